"""`htaf predict` of a table: from a file or the standard input, in pieces, to a file or the standard output."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from htaf._ground.console import UsageError, print_csv, print_json, progress, say, say_notes
from htaf._ground.files import frame_csv, written_whole
from htaf.data.notes import Note, told
from htaf.data.reading import DataError, TableError, listed
from htaf.data.table_files import PIECE, read_pieces
from htaf.training.runs.packed import PackedRun
from htaf.training.runs.predictions import RowPredictions

if TYPE_CHECKING:
    from htaf.training.runs import Run

STDIN = "the standard input"


def predict_rows(
    network: Run | PackedRun,
    given: Path,
    out: Path | None,
    ids: Sequence[str],
    *,
    exact: bool,
    text_as_missing: bool,
    json: bool,
) -> None:
    """Return predictions of the rows of a file, or of the standard input where `given` is "-"."""
    if twice := sorted({name for name in ids if list(ids).count(name) > 1}):
        raise UsageError(f"--id: expected each column once, got {listed(twice)} twice")
    model = network.model if isinstance(network, PackedRun) else network.model(exact=exact)
    preprocessor: Any = network.preprocessor()
    predictions = RowPredictions(model, preprocessor, ids, text_as_missing=text_as_missing)
    kept = {*ids, *preprocessor.ids} - {"prediction"}
    notes: list[Note] = []
    with _file(given, out) as file:
        try:
            large = file.stat().st_size > 2 * PIECE if file.is_file() else False
            with (
                _sink(out, file, kept, json) as write,
                progress("predicting", None, shown=large and out is not None) as more,
            ):
                label = STDIN if str(given) == "-" else str(given)
                reads = predictions.reads_numbers
                for rows, of_piece in read_pieces(file, numbers=reads, label=label, separators=preprocessor.separators):
                    notes += of_piece
                    write(predictions.predict(rows))
                    more(len(rows))
        except DataError as error:
            say_notes(told(notes))
            if isinstance(error, TableError) and error.what.startswith(("expected a number", "expected a date")):
                error.what += "; --text-as-missing would lose such values, as missing ones"
            raise
    say_notes(told([*notes, *predictions.notes()]))
    if out is not None and not json:
        say(f"{predictions.rows:,} rows: {out}")


@contextlib.contextmanager
def _file(given: Path, out: Path | None) -> Iterator[Path]:
    """The input as a file; the standard input is copied to the disk, so that it need not fit into memory."""
    if str(given) != "-":
        yield given
        return
    stream = getattr(sys.stdin, "buffer", None)
    if stream is None or sys.stdin.isatty():
        raise UsageError(f"-: expected a table on {STDIN}, got {'none' if stream is None else 'a terminal'}")
    with contextlib.suppress(OSError, ValueError):  # no descriptor, or nothing at `out`
        if out is not None and os.path.samestat(os.fstat(sys.stdin.fileno()), out.stat()):
            raise UsageError(f"--out {out} is {STDIN} too: choose another file")
    with tempfile.TemporaryDirectory(prefix="htaf-") as folder:
        begin = stream.read(4)
        kind = ".parquet" if begin == b"PAR1" else ".csv.gz" if begin[:2] == b"\x1f\x8b" else ".csv"
        file = Path(folder) / f"rows{kind}"
        with file.open("wb") as copy:
            copy.write(begin)
            shutil.copyfileobj(stream, copy, 1 << 20)
        yield file


@contextlib.contextmanager
def _sink(out: Path | None, source: Path, ids: Collection[str], json: bool) -> Iterator[Callable[[pd.DataFrame], None]]:
    """What takes the predictions piece by piece: a file, whole or not at all, and the output."""
    with contextlib.ExitStack() as stack:
        sinks: list[Callable[[pd.DataFrame], None]] = []
        if out is not None:
            file = stack.enter_context(written_whole(out))
            written = _parquet_file(file, source, ids) if out.suffix == ".parquet" else _csv_file(file)
            sinks.append(stack.enter_context(written))
        elif not json:
            sinks.append(_csv(print_csv))
        kept: list[pd.DataFrame] = []
        if json:
            sinks.append(kept.append)

        def write(frame: pd.DataFrame) -> None:
            for sink in sinks:
                sink(frame)

        yield write
    if json:
        whole = pd.concat(kept)
        print_json(whole.astype(object).where(whole.notna(), None).to_dict(orient="records"))


def _csv(write: Callable[[str], Any]) -> Callable[[pd.DataFrame], None]:
    header = True

    def add(frame: pd.DataFrame) -> None:
        nonlocal header
        write(frame_csv(frame, header=header))
        header = False

    return add


@contextlib.contextmanager
def _csv_file(path: Path) -> Iterator[Callable[[pd.DataFrame], None]]:
    with path.open("w", encoding="utf-8", newline="") as file:
        yield _csv(file.write)


@contextlib.contextmanager
def _parquet_file(path: Path, source: Path, ids: Collection[str]) -> Iterator[Callable[[pd.DataFrame], None]]:
    """Ids of a Parquet file keep their types."""
    import pyarrow
    from pyarrow import parquet

    known = {field.name.strip(): field for field in parquet.read_schema(source)} if _is_parquet(source) else {}
    writer: Any = None

    def add(frame: pd.DataFrame) -> None:
        nonlocal writer
        if writer is None:
            found = pyarrow.Schema.from_pandas(frame, preserve_index=False)
            made = {name for name in ids if name in frame and name in known}
            fields = [pyarrow.field(f.name, known[f.name].type) if f.name in made else f for f in found]
            writer = parquet.ParquetWriter(path, pyarrow.schema(fields))
        writer.write_table(pyarrow.Table.from_pandas(frame, schema=writer.schema, preserve_index=False))

    try:
        yield add
    finally:
        if writer is not None:
            writer.close()


def _is_parquet(source: Path) -> bool:
    return source.suffix.lower() == ".parquet" and source.is_file()
