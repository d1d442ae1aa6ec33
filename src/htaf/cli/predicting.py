"""`htaf predict`: predictions of a run or of a packed file."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from tyro.conf import Positional, arg

from htaf._ground.console import UsageError, print_csv, print_json, progress, say, say_notes, say_unread
from htaf._ground.errors import counted, listed
from htaf._ground.files import check_output, frame_csv, write_atomic, written_whole
from htaf.cli.flags import AT_HUB, Columns, File, Json, MethodOfRun

if TYPE_CHECKING:
    import pandas as pd

    from htaf.concepts.known import Known
    from htaf.training.runs import PackedRun, Run

NAMED = 8  # names that a note lists
LEVEL = 1e-4  # of a margin: below it is the rounding of a sum
LOOKED, COLOUR, SHRUNK = 100, 16, 4  # files; levels between channels; times the side of the network's images
NEAREST = 3  # training images that --explain names


def predict(
    run: Annotated[Positional[Path], arg(metavar="RUN"), AT_HUB],
    inputs: Annotated[Positional[tuple[Path, ...]], arg(metavar="INPUT", help_behavior_hint="(required)")],
    *,
    out: File = None,
    id: Columns = (),
    text_as_missing: bool = False,
    smooth: bool = False,
    method: MethodOfRun = None,
    bits: bool = False,
    explain: bool = False,
    names: File = None,
    strict: bool = False,
    json: Json = False,
) -> None:
    """Predict with the exact network: a column `prediction`, and a probability per class.

    For an ICBM also its bits, the reasons of each row, and a column `unlike`: the share of validation images that are
    nearer to the training images. A note names images beyond 99%. Images that cannot be read keep their row, with the
    reason in a column `error`; the exit code is then 3.

    Args:
        run: Run folder, file of htaf pack, or owner/name[@revision] of one at the Hugging Face hub.
        inputs: A CSV or Parquet file with the raw columns, or - for the standard input; image files, or a folder.
        out: Write a .csv or .parquet file; none: print CSV.
        id: For a table: columns of the input to keep beside the predictions.
        text_as_missing: For a table: read a text in a column of numbers or dates, as "unknown", as missing; else it is
            refused.
        smooth: Use the smooth network instead of the exact one.
        bits: For an ICBM's run: a column for each concept, 0 or 1.
        explain: For an ICBM's run: the second class, the margin to it, the bits without which the margin would be
            smaller, the share of it that they explain, and the nearest training images.
        names: Names of the concepts, .json or .csv, for --bits and --explain; none: numbers alone.
        strict: Images: stop at the first file that cannot be read.
    """
    if out is not None and out.suffix not in (".csv", ".parquet"):
        raise UsageError(f"--out must end in .csv or .parquet, got {out.name}")
    if not inputs:
        raise UsageError("expected INPUT: a CSV or Parquet file, or for a run on images: files or a folder; got none")
    if out is not None:
        check_output(out, [run, *(place for place in inputs if str(place) != "-")])
    if names is not None and not (bits or explain):
        raise UsageError("--names is for --bits and --explain: give one of them too")
    if smooth and (bits or explain):
        raise UsageError("--bits and --explain are for the exact network: leave --smooth out")
    from htaf.cli.packing import opened

    network = opened(run, exact=not smooth, method=method)
    if (bits or explain) and (run.is_file() or not network.takes_images):
        packed = f"the packed file {run}; in Python htaf.load(FILE).predict_images(files, bits=True) has its bits"
        raise UsageError(
            "--bits and --explain: expected the run folder of an ICBM (htaf train icbm), got "
            f"{packed if run.is_file() else run}"
        )
    if not network.takes_images:
        if len(inputs) != 1:
            raise UsageError(f"expected one CSV or Parquet file for a run on a table, got {len(inputs)}")
        return predict_rows(network, inputs[0], out, id, exact=not smooth, text_as_missing=text_as_missing, json=json)
    for flag, is_given in (("--id", id), ("--text-as-missing", text_as_missing)):
        if is_given:
            raise UsageError(f"{flag} is for a run on a table, {run} was trained on images: leave it out")
    if any(str(place) == "-" for place in inputs):
        raise UsageError(f"- is for a run on a table, {run} was trained on images: give files or a folder")
    return _predict_images(
        run, network, inputs, out, exact=not smooth, bits=bits, explain=explain, names=names, strict=strict, json=json
    )


def _names_of(run: Run, file: Path) -> list[Any]:
    """Read the names of a run's concepts from a file."""
    from htaf.concepts.codes import network_key
    from htaf.concepts.extract import ConceptNetwork
    from htaf.concepts.naming.files import read_names

    network = ConceptNetwork(run, "cpu")
    key = network_key(network.preprocessor.classes, network.weight, network.bias)
    return [entry for entry in read_names(file, network.weight.shape[1], codes=key) if entry["name"]]


def _of_reasons(frame: Any, reasons: Sequence[Sequence[Any]]) -> list[str]:
    """Return a note on how much of the predictions the reasons explain."""
    found = frame["shown"].dropna()
    if len(found) < 2:
        return []
    all_of_it = f"{int((found == 1).sum()):,} of {len(found):,} images"
    level = frame.loc[frame["margin"] < LEVEL, "image"]
    undecided = f"two classes tie, so the prediction says nothing: {listed([*map(str, level)], 3)}"
    return [
        *([f"{len(level):,} of {counted(len(found), 'image')}: {undecided}"] if len(level) else []),
        f"the reasons, {max(map(len, reasons))} at most, explain {found.mean():.0%} of the margin on average (column "
        f"shown); for {all_of_it} they explain all of it: flipping them undoes the prediction",
    ]


def _training_images(run: Any, seen: list[Any]) -> tuple[Known | None, Callable[[Any], AbstractContextManager[Any]]]:
    """Return what an ICBM's run keeps of its training images, and in what its network sees new ones, so that `seen` has
    what the backbone gives of them; where a run keeps nothing, a note says how to have it."""
    if run.record["model"]["kind"] != "icbm":
        return None, nullcontext
    from htaf.concepts.known import FILE, open_known, watched

    found = open_known(run)
    if found is None:
        say_notes(
            [
                f"no column `unlike`, the distance from the training images: {run.path} has no {FILE}. To write it, "
                "give the command of its training again, or call htaf.concepts.known.keep_known(run, run.data())"
            ]
        )
    return found, nullcontext if found is None else partial(watched, seen=seen)


def _beside_known(
    frame: pd.DataFrame, training: Known, seen: list[Any], explain: bool
) -> tuple[pd.DataFrame, list[list[dict[str, Any]]]]:
    """Return the predictions with a column `unlike`, with `explain` also `nearest`, and of each image its nearest
    training images; a note names images that are far from all."""
    import numpy as np
    import torch

    from htaf.concepts.known import ENOUGH, FAR

    distances, rows = training.nearest(torch.cat(seen)[: len(frame)].numpy(), NEAREST)
    read = frame["error"].isna().to_numpy() if "error" in frame else np.ones(len(frame), bool)
    unlike = np.where(read, training.unlike(distances[:, 0]), np.nan)
    near = [
        [{"image": training.ids[row], "distance": round(float(far), 6)} for row, far in zip(*of, strict=True)]
        for of in zip(rows, distances, strict=True)
    ]
    near = [of if ok else [] for of, ok in zip(near, read, strict=True)]
    frame.insert(2, "unlike", unlike)
    if explain:
        frame["nearest"] = ["; ".join(one["image"] for one in of) or None for of in near]
    if len(far := frame.loc[frame["unlike"] > FAR, "image"]):
        count = len(training.distances)
        few = f"which are too few to tell anything: it takes {ENOUGH}"
        so = "so the prediction may mean nothing" if count >= ENOUGH else few
        say_notes(
            [
                f"{len(far):,} of {counted(len(frame), 'image')} {'is' if len(far) == 1 else 'are'} farther from the "
                f"training images than {FAR:.0%} of {count:,} other images of the training, {so}: "
                f"{listed([*map(str, far)], 3)}"
            ]
        )
    return frame, near


def _foreign(files: Sequence[Path], network: Run | PackedRun) -> list[str]:
    """Return a note where preparation loses much of the images: their colours, or most of their pixels."""
    import numpy as np

    from htaf.data.image_reading import look_all, read_each

    preprocessor: Any = network.preprocessor()
    grey, side = preprocessor.channels == 1, max(preprocessor.size)
    source = getattr(network, "record", {}).get("source") or {"size": side}
    small = side <= 64 and source.get("size") is None  # as their images are: nobody asked for less
    some = [files[row] for row in np.unique(np.linspace(0, len(files) - 1, LOOKED).astype(int))]
    found = [one for one in look_all(some) if not one.problem]
    pixels = read_each(some, 3, (8, 8))[0].numpy() if grey else []
    colour = sum(bool((np.ptp(of, axis=0) > COLOUR).mean() > 0.05) for of in pixels)
    large = sum(min(one.size) > SHRUNK * side for one in found) if small else 0
    lost = [f"{colour} in colour, read as grey"] * bool(colour)
    lost += [f"{large} over {SHRUNK} times as large, shrunk to {' x '.join(map(str, preprocessor.size))}"] * bool(large)
    what = "they may differ from the images of the training"
    return [f"of {counted(len(found), 'image')} looked at {' and '.join(lost)}: {what}"] if lost else []


def _predict_images(
    run: Path, network: Any, inputs: tuple[Path, ...], out: Path | None, *, exact: bool, bits: bool, explain: bool,
    names: Path | None, strict: bool, json: bool,
) -> None:  # fmt: skip
    from htaf.data.image_reading import image_files
    from htaf.data.reading import DataError

    reasons: list[list[dict[str, Any]]] = []
    files, left_out = image_files(inputs)
    say_notes([*left_out, *_foreign(files, network)])
    seen: list[Any] = []
    training, watching = (None, nullcontext) if run.is_file() else _training_images(network, seen)
    if bits or explain:
        from htaf.concepts.reasons import predict_with_bits

        known = [] if names is None else _names_of(network, names)
        frame, reasons = predict_with_bits(
            network, files, bits=bits, explain=explain, names=known, strict=strict, watching=watching
        )
        frame = frame.reset_index()
        say_notes(_of_reasons(frame, reasons) if explain else [])
        if doubtful := sum(not entry["verified"] for entry in known):
            text = f"{doubtful:,} of {len(known):,} names did not pass a check, so they are guesses"
            said = {one["concept"]: one["name"] for row in reasons for one in row if one["verified"] is False}
            those = [f"{concept} {name}" for concept, name in sorted(said.items())]
            say_notes([f"{text}; in these reasons {listed(those, NAMED)}" if those else text])
        shown = next((row[0]["concept"] for row in reasons if row), None)
        if names is None and shown is not None:
            say_notes(
                [
                    "concepts have numbers, not names: the page of `htaf explore` shows images of each, concept "
                    f"{shown} at index.html#/concept/{shown}. If a concept is off, the image lacks what these have. "
                    "--names FILE writes names in place of numbers"
                ]
            )
    elif run.is_file():
        frame = network.predict_images(files, strict=strict).reset_index()
    else:
        from htaf.training.runs.predictions import of_images

        net = network.model(exact=exact)
        with watching(net):
            frame = of_images(net, network.preprocessor(), files, strict=strict).reset_index()
    near: list[list[dict[str, Any]]] = [[] for _ in range(len(frame))]
    if training is not None and seen:
        frame, near = _beside_known(frame, training, seen, explain)
    unread: dict[Any, Any] = {} if strict else frame.set_index("image")["error"].dropna().to_dict()
    if unread and len(unread) == len(frame):
        first = next(iter(unread))
        raise DataError(f"none of {len(frame)} files can be read as an image: {first}: {unread[first]}")
    if out is not None:
        data: Any = frame_csv(frame) if out.suffix == ".csv" else frame.to_parquet(index=False)
        write_atomic(out, data)
    if json:
        rows = frame.astype(object).where(frame.notna(), None).to_dict(orient="records")
        for row, why, images in zip(rows, reasons, near, strict=False):  # without --explain no reasons
            row |= {"reasons": why} | ({} if training is None else {"nearest": images})
        print_json(rows)
    elif out is None:
        print_csv(frame_csv(frame))
    else:
        say(f"{counted(len(frame), 'row')}: {out}")
    say_unread([f"{file}: {reason}" for file, reason in unread.items()], len(frame))


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
    from htaf.data.notes import Note, told
    from htaf.data.reading import DataError, TableError
    from htaf.data.table_files import PIECE, read_pieces
    from htaf.training.runs.packed import PackedRun
    from htaf.training.runs.predictions import RowPredictions

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
        import pandas as pd

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
