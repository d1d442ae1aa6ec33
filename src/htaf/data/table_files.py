"""Tables in files, read by Arrow in pieces, whole or one by one; encoding and separator are found and noted."""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import os
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float64

from htaf._ground.errors import TooLargeError, expect_memory, first_line, suggestion
from htaf._ground.files import regular
from htaf.data.cells import DOTS, NUMBER_BLANKS, ONLY_COMMA, ONLY_POINT, WITH_COMMA, Separators, is_number
from htaf.data.notes import Note
from htaf.data.reading import (
    WORDS,
    DataError,
    TableError,
    check_names,
    named,
    refuse_nameless,
    with_names,
)

TEXT_SUFFIXES = (".csv", ".tsv", ".txt", ".data")
SUFFIXES = (*TEXT_SUFFIXES, *(suffix + ".gz" for suffix in TEXT_SUFFIXES), ".parquet")
HEAD = 4 * 2**20  # characters in which the line of names is
PIECE, WIDE = 4 * 2**20, 4096  # bytes of text that are held at a time; of each column at least
ROWS = 65_536  # of a piece of a Parquet file
Numbers = Callable[[str], bool]

_QUOTED_COMMA = re.compile(r'"[^"\r\n]{0,20}[0-9],[0-9][^"\r\n]{0,20}"')
_BEYOND = re.compile(r"[^,;\t\r\n\"]{0,30}[^\x00-\x7f]{1,30}[^,;\t\r\n\"]{0,30}")
_PADDED = r"^0\d+$"
_DAMAGED = (OSError, EOFError, zlib.error, UnicodeError)


def read_frame(
    path: str | os.PathLike[str],
    *,
    names: Sequence[str] | None = None,
    numbers: Numbers | None = None,
    separators: str = "",
) -> tuple[pd.DataFrame, list[Note]]:
    """The raw rows of a CSV, TSV or Parquet file, with notes on what was handled.

    The separator (comma, semicolon, tab or bar) is the one that splits most lines alike.
    Text is UTF-8 with or without a byte-order mark, UTF-16 with one, else Windows-1252 or, where it has bytes that this
    does not know, Latin-1, with a note. A file has one format of numbers: where one has a decimal comma, all have.
    Columns without a name (a saved index, a trailing separator) are left out with a note, names that come again are
    numbered, as pandas does.

    Args:
        path: a file that ends in one of `SUFFIXES`, in any case.
        names: column names of a text file without a header line.
        numbers: whether a column of a text file, by its name, becomes float64 where each of its texts is plainly a
            number; None: none does. All others are texts, as categories.
        separators: those of another file, which decide where this one does not show its own: "," where decimals have
            commas, ".," where dots set thousands apart too, "." where decimals have points, "" where it showed neither.
    Returns:
        the frame [rows, columns], and the notes; `attrs["separators"]` has its own separators.
    Raises:
        DataError: no such file, unknown kind, damaged, empty, header only, ragged, a value in a column without a
            name that ends the rows, or a number that the separators leave open.
        TooLargeError: more than memory holds.
    """
    ((frame, notes),) = _read(Path(path), str(path), names, numbers, separators, whole=True)
    return frame, notes


def read_pieces(
    path: str | os.PathLike[str], *, numbers: Numbers | None = None, label: str = "", separators: str = ""
) -> Iterator[tuple[pd.DataFrame, list[Note]]]:
    """The rows of a file as `read_frame` gives them, in pieces of bounded size.

    Whether a text file has decimal commas is said by all of its values, for which the file is read through once more;
    so every piece is read in the same way.

    Args:
        path, numbers, separators: as `read_frame`; whether a column is plainly numbers is decided for each piece.
        label: what messages call the file; "": its path.

    Yields:
        A frame [rows, columns] with a fresh index, and notes; those of the whole file come with the first.

    Raises:
        DataError: as `read_frame`, when the piece is read where it is.
    """
    yield from _read(Path(path), label or str(path), None, numbers, separators, whole=False)


def _read(
    path: Path, label: str, names: Sequence[str] | None, numbers: Numbers | None, separators: str, *, whole: bool
) -> Iterator[tuple[pd.DataFrame, list[Note]]]:
    """The rows of a file in one piece or several, each with its notes."""
    from pyarrow import default_memory_pool

    check_path(path)
    if path.name.lower().endswith(".parquet"):
        yield from _parquet(path, label, whole=whole)
        return
    text = _Text.opened(path, label, names, numbers, separators)
    columns, held, said, notes = dict[str, list[Any]](), 0, 0, text.notes

    def made() -> tuple[pd.DataFrame, list[Note]]:
        empty = text.empty - said  # rows without any text
        return _frame(columns, numbers), [*notes, *[Note("empty rows", count=empty)] * (empty > 0)]

    for piece in text.pieces():
        for name, array in piece.items():
            columns.setdefault(name, []).append(array)
            held += array.nbytes
        if whole:
            expect_memory(held, f"{label}: a table of {held / 1e9:,.1f} GB or more", "take some of the rows")
            continue
        yield made()
        notes, said = [], text.empty
    if whole:
        frame, notes = made()
        frame.attrs["separators"] = text.separators
        default_memory_pool().release_unused()
        yield frame, notes


def _parquet(path: Path, label: str, *, whole: bool) -> Iterator[tuple[pd.DataFrame, list[Note]]]:
    import pyarrow as pa
    from pyarrow.parquet import ParquetFile

    # whole numbers beside missing ones stay whole: they may be ids
    whole_numbers = (pd.Int8Dtype, pd.Int16Dtype, pd.Int32Dtype, pd.Int64Dtype)
    natural_numbers = (pd.UInt8Dtype, pd.UInt16Dtype, pd.UInt32Dtype, pd.UInt64Dtype)
    kinds = {pa.type_for_alias(kind.name.lower()): kind() for kind in (*whole_numbers, *natural_numbers)}
    try:
        with ParquetFile(path) as file:
            rows, columns = file.metadata.num_rows, file.metadata.num_columns
            if not rows:
                raise DataError(f"{label}: expected rows below the column names, got the header only")
            if whole:
                what = f"{label}: a table of {rows:,} rows and {columns:,} columns"
                expect_memory(8.0 * rows * columns, what, "take some of the rows")
            given: Any = [file.read()] if whole else (pa.Table.from_batches([one]) for one in file.iter_batches(ROWS))
            before = 0
            for piece in given:
                frame = named(piece.to_pandas(types_mapper=kinds.get).reset_index(drop=True))
                frame, notes = with_names(label, frame, before)
                yield frame, [] if before else notes
                before += len(frame)
    except (DataError, TooLargeError):
        raise
    except Exception as error:  # Arrow's readers raise nearly everything on damaged files
        raise DataError(
            f"{label}: expected a Parquet file, this one cannot be read as one ({first_line(error)})"
        ) from error


@dataclass
class _Text:
    """A text file: how it is written, and its rows as Arrow reads them.

    Attributes:
        label: what messages call it. skipped: lines up to the first row. kept: which columns have a name.
        commas: columns whose numbers have decimal commas. separators: as of `read_frame`.
    """

    path: Path
    label: str
    encoding: str
    separator: str
    header: list[str]
    skipped: int
    kept: list[bool]
    notes: list[Note]
    commas: frozenset[str] = field(default_factory=frozenset)
    separators: Separators = ""
    empty: int = 0  # rows without any text, up to the last piece

    @classmethod
    def opened(
        cls, path: Path, label: str, names: Sequence[str] | None, numbers: Numbers | None, separators: str
    ) -> _Text:
        """names: of the columns, where no line has them. numbers, separators: as `read_frame`."""
        try:
            encoding, notes, commas = _encoding(path, label)
            with _binary(path) as raw, io.TextIOWrapper(raw, encoding, errors="replace", newline="") as file:
                head = file.read(HEAD)
        except _DAMAGED as error:
            raise DataError(f"{label}: cannot be read: {first_line(error)}") from error
        if not head.strip():
            raise DataError(f"{label}: expected a table, got an empty file")
        separator, header, skipped = separator_of(head), names, 0
        if header is None:
            rows = csv.reader(io.StringIO(head, newline=""), delimiter=separator)
            header = next((row for row in rows if any(name.strip() for name in row)), None)
            if header is None:
                raise DataError(f"{label}: expected a table, got blank lines only")
            skipped = rows.line_num
            if sum(map(is_number, header)) * 2 > len(header):  # perhaps the first row
                notes.append(Note("header of numbers"))
            else:
                header = _numbered(header, notes)
            header = [name.strip() for name in header]
        kept, more = check_names(label, header)
        made = cls(path, label, encoding, separator, [*header], skipped, kept, [*notes, *more])
        if separator != "," or commas or "," in separators:
            try:
                of_file = _decimal_commas(made.pieces(), separator, separators, numbers)
            except TableError as error:
                error.table = label
                raise
            made.commas, more, made.separators = of_file
            made.notes += more
        return made

    def pieces(self) -> Iterator[dict[str, Any]]:
        """Arrow arrays of text by column, without blank rows; not empty."""
        from pyarrow import ArrowException, string
        from pyarrow import csv as arrow

        places = [str(place) for place in range(len(self.header))]
        kept = [place for place, has_name in zip(places, self.kept, strict=True) if has_name]
        size, rows, self.empty = max(PIECE, WIDE * len(places)), 0, 0
        utf8, separator = self.encoding.startswith("utf-8"), self.separator
        try:
            with (
                _binary(self.path) as raw,
                arrow.open_csv(
                    raw,
                    arrow.ReadOptions(
                        use_threads=False, column_names=places, skip_rows=self.skipped, block_size=size,
                        encoding="utf8" if utf8 else self.encoding,
                    ),
                    arrow.ParseOptions(  # a row of too many or few fields without any text is none
                        delimiter=separator, newlines_in_values=True,
                        invalid_row_handler=lambda row: "error" if row.text.replace(separator, "").strip() else "skip",
                    ),
                    arrow.ConvertOptions(column_types=dict.fromkeys(places, string()), strings_can_be_null=False),
                ) as reader,
            ):  # fmt: skip
                for piece in reader:
                    full, before = _not_blank(piece.columns), piece.num_rows
                    piece = piece if full is None else piece.filter(full)
                    self.empty += before - piece.num_rows
                    named_to = max((int(place) for place in kept), default=0)
                    for place in places[named_to + 1 :]:
                        refuse_nameless(self.label, int(place), piece.column(place).to_pylist(), rows)
                    if piece.num_rows:
                        rows += piece.num_rows
                        found = {self.header[int(place)]: piece.column(place) for place in kept}
                        yield {name: _with_points(x) if name in self.commas else x for name, x in found.items()}
        except ArrowException as error:
            said = first_line(error)
            if "straddl" in said:
                said = f"expected lines of less than {size:,} characters, got a longer one or an open quote"
            elif "Expected" in said:
                said += "; correct the row, or delete the lines above the column names"
            raise DataError(f"{self.label}: cannot be read: {said}") from None
        except _DAMAGED as error:
            raise DataError(f"{self.label}: cannot be read: {first_line(error)}") from error
        if not rows:
            wanted, got = ("rows below the column names", "the header") if self.skipped else ("a table", "blank lines")
            raise DataError(f"{self.label}: expected {wanted}, got {got} only")


def _with_points(array: Any) -> Any:
    """The texts of an Arrow array, numbers with decimal points in place of commas."""
    import pyarrow.compute

    compute: Any = pyarrow.compute
    with_points = compute.replace_substring(compute.replace_substring(array, ".", ""), ",", ".")
    return compute.if_else(compute.match_substring_regex(_present(array), WITH_COMMA), with_points, array)


def _frame(columns: dict[str, list[Any]], numbers: Numbers | None) -> pd.DataFrame:
    """A frame of Arrow arrays of text, which are taken out: a column is float64 where it may be and is plainly numbers,
    else a category, which has each text once."""
    import pyarrow as pa

    made: dict[str, pd.Series] = {}
    for name in [*columns]:
        column = pa.chunked_array(columns.pop(name))
        values: Any = plain_numbers(column) if numbers is not None and numbers(name) else None
        if values is None:
            texts = column.dictionary_encode().unify_dictionaries()
            known = pd.Index(texts.chunk(0).dictionary.to_numpy(zero_copy_only=False), dtype=object)
            codes = np.concatenate([chunk.indices.to_numpy() for chunk in texts.chunks])
            values = pd.Categorical.from_codes(codes, dtype=pd.CategoricalDtype(known))
        made[name] = pd.Series(values, copy=False)
    return pd.DataFrame(made, copy=False)


def plain_numbers(column: Any) -> Float64[np.ndarray, " rows"] | None:
    """The numbers of an Arrow array of text; None where some text is none, not plainly one, or not exact in float64,
    or where one that begins with 0 may be a code."""
    import pyarrow as pa

    text = _present(column)
    try:
        values = text.cast(pa.float64()).to_numpy(zero_copy_only=False)
    except pa.ArrowException:
        return None
    import pyarrow.compute

    compute: Any = pyarrow.compute
    padded = compute.any(compute.match_substring_regex(text, _PADDED)).as_py()
    return None if padded or (np.abs(values) >= 2**53).any() else values


def _present(column: Any) -> Any:
    """The texts of an Arrow array without blanks around them, null where they stand for a missing number."""
    import pyarrow as pa
    import pyarrow.compute

    compute: Any = pyarrow.compute  # its functions are made when it is imported
    text = compute.utf8_trim_whitespace(column)
    blank = compute.is_in(compute.utf8_lower(text), pa.array(sorted(NUMBER_BLANKS)))
    return compute.if_else(blank, pa.scalar(None, text.type), text)


def _not_blank(columns: list[Any]) -> Any:
    """Which rows of Arrow arrays of text have a text that is not blank; None: all."""
    import pyarrow.compute

    compute: Any = pyarrow.compute
    blank = None
    for column in columns:
        empty = compute.equal(compute.utf8_trim_whitespace(column), "")
        blank = empty if blank is None else compute.and_(blank, empty)
        if not compute.any(blank).as_py():
            return None
    return compute.invert(blank)


def _decimal_commas(
    pieces: Iterator[dict[str, Any]], separator: str, trained: str, wanted: Numbers | None
) -> tuple[frozenset[str], list[Note], Separators]:
    """Columns of numbers that are to be read with decimal commas, notes on them, or on dots that may be decimal, and
    the separators of the numbers.

    A column is of numbers where they are more than three quarters of its values. One that has what only decimal commas
    explain, as 12,5 or 1.234.567, decides for the whole file, else one of decimal points, else the separators of the
    training, else the separator of the columns.

    Raises:
        TableError: a number such as 1.500 in a wanted column, where training had decimal commas, no thousands apart.
    """
    import pyarrow.compute

    compute: Any = pyarrow.compute
    texts, numbers, points = Counter[str](), Counter[str](), Counter[str]()
    commas, sure, dots = set[str](), set[str](), dict[str, str]()

    def some(text: Any, pattern: str) -> Any:
        return text.filter(compute.match_substring_regex(text, pattern))

    for piece in pieces:
        for name, array in piece.items():
            text = _present(array).drop_null()
            found = some(text, WITH_COMMA)
            texts[name] += len(text)
            numbers[name] += len(found)
            points[name] += len(some(text, ONLY_POINT)) if len(found) < len(text) else 0
            commas |= {name} if len(some(found, ",")) else set()
            sure |= {name} if len(some(found, ONLY_COMMA)) else set()
            if name not in dots and len(with_dots := some(found, DOTS)):
                dots[name] = with_dots[0].as_py()
    without = {name: (text, text.replace(".", "")) for name, text in dots.items()}
    may = [name for name in texts if numbers[name] > (1 - WORDS) * texts[name]]
    pointed = any(points[name] and points[name] + numbers[name] > (1 - WORDS) * texts[name] for name in texts)
    guessed = "," in trained or (not trained and separator != "," and bool(commas & {*may}))
    if sure & {*may} or (guessed and not pointed):
        chosen = [name for name in may if name in commas or name in dots]
        if trained == "," and not sure & {*may}:
            for name in chosen:
                if name in dots and (wanted is None or wanted(name)):
                    which = f"write {dots[name].replace('.', '')} or {dots[name].replace('.', ',')}"
                    raise TableError(f"{dots[name]!r} may be either, as training had decimal commas: {which}", name, 1)
        notes = [
            Note("decimal commas", name) if name in commas else Note("read as", name, values=without[name])
            for name in chosen
        ]
        return frozenset(chosen), notes, ".," if dots.keys() & {*chosen} else ","
    is_open = [name for name in may if name in dots and not pointed and separator != ","]
    notes = [Note("open dots", name, values=without[name]) for name in is_open]
    return frozenset(), notes, "." if pointed or is_open else ""


def _numbered(names: Sequence[str], notes: list[Note]) -> list[str]:
    """Names of which one that comes again has a number, as pandas gives it."""
    made, names = list[str](), [name.strip() for name in names]
    for place, name in enumerate(names):
        others = {*made, *names[place + 1 :]}  # a name that stands there stays as it is
        numbered = (f"{name}.{times}" for times in range(1, len(names) + 1))
        again = name and name in made
        one = next(other for other in numbered if other not in others) if again else name
        made.append(one)
        if one != name:
            notes.append(Note("name again", one, values=(name, len(made))))
    return made


def _binary(path: Path) -> gzip.GzipFile | io.BufferedReader:
    """The content of a file, unpacked as it is read."""
    return gzip.open(path) if path.name.lower().endswith(".gz") else path.open("rb")


def _encoding(path: Path, label: str) -> tuple[str, list[Note], bool]:
    """UTF-8 with or without a mark, UTF-16 with one, else Windows-1252, else Latin-1; and whether there are commas in
    quoted numbers. The file is read through, once for each encoding that is tried.

    Raises:
        DataError: it holds no text.
    """
    with _binary(path) as file:
        if file.read(2) in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
            return "utf-16", [], True
    for encoding, kind in (("utf-8-sig", ""), ("cp1252", "Windows-1252"), ("latin-1", "Latin-1")):
        commas, beyond = False, ""
        with _binary(path) as raw, io.TextIOWrapper(raw, encoding, newline="") as file, suppress(UnicodeDecodeError):
            while block := file.read(1 << 20):
                if "\0" in block:
                    raise DataError(f"{label}: expected text, got a binary file")
                commas = commas or _QUOTED_COMMA.search(block) is not None
                beyond = beyond or "".join(match[0] for match in [_BEYOND.search(block)] if match)
            return encoding, [Note("encoding", values=(kind, beyond.strip()))] if kind else [], commas
    raise AssertionError("Latin-1 reads every byte")


def check_path(path: Path) -> None:
    """Raises DataError unless this is a file that may hold a table."""
    if path.is_dir():
        raise DataError(f"{path}: expected a file, got a folder")
    if not path.exists():
        beside = sorted(entry.name for entry in path.parent.iterdir()) if path.parent.is_dir() else []
        raise DataError(f"{path}: no such file{suggestion(path.name, beside)}")
    try:
        regular(path)
    except OSError as error:
        raise DataError(str(error)) from None
    if not path.name.lower().endswith(SUFFIXES):
        excel = ": save the sheet as CSV" if path.suffix.lower().startswith((".xls", ".ods")) else ""
        raise DataError(f"{path}: expected a file ending in {', '.join(SUFFIXES)}, got {path.suffix or 'none'}{excel}")


def separator_of(text: str) -> str:
    """The separator that cuts most of the first lines into as many fields, comma if none."""
    lines = [line for line in text[:100_000].splitlines()[:50] if line.strip()]
    best, best_score = ",", (0.0, 0)
    for separator in ",;\t|":
        counts = [len(row) for row in csv.reader(lines, delimiter=separator)]
        width, times = Counter(counts).most_common(1)[0] if counts else (1, 0)
        if width > 1:
            score = (times / len(counts), width)
            best, best_score = (separator, score) if score > best_score else (best, best_score)
    return best
