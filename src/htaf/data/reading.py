"""Reads one table from a file: encoding, separator, decimal commas and blanks are handled and noted."""

import csv
import functools
import gzip
import io
import math
import os
import re
import zlib
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float64, Shaped

from htaf._errors import HtafError, TooLargeError, expect_memory, first_line, suggestion
from htaf._files import regular

if TYPE_CHECKING:
    from htaf.data.dates import Dates

TEXT_SUFFIXES = (".csv", ".tsv", ".txt", ".data")
SUFFIXES = (*TEXT_SUFFIXES, *(suffix + ".gz" for suffix in TEXT_SUFFIXES), ".parquet")
BLANKS = frozenset({"", "na", "n/a", "#n/a", "nan", "null", "?", "<na>"})
NUMBER_BLANKS = BLANKS | {"none"}  # "None" is a common category, but never a number
WORDS = 0.25  # share of texts among numbers from which a column is a category
SECONDS = 86_400  # of a day
LARGE = 64 * 2**20  # bytes of a file from which Arrow reads it
FEW = 1000  # columns of a frame that are taken out one by one
HELD = 10  # bytes of memory for one of a text file that is read at once
PIECE, WIDE = 4 * 2**20, 4096  # bytes that it holds as text at a time; of each column at least
MIXED_CATEGORIES = 20  # a column that mixes numbers and text is a category up to this many distinct values

_THOUSANDS = re.compile(r"[+-]?[1-9]\d{0,2}(?:(?:,\d{3})+|(?:'\d{3})+)(?:\.\d+)?")
_JOINED = str.maketrans("", "", ",'")
_NO_NAME = re.compile(r"(Unnamed: \d+(\.\d+)?)?")  # as pandas writes it
_SEP_LINE = re.compile(r'\ufeff?"?sep=(.*?)"?\s*', re.IGNORECASE)
_DECIMAL_COMMA = re.compile(r"[+-]?(\d+|\d{1,3}(\.\d{3})+)(,\d+)?([eE][+-]?\d+)?")


class DataError(HtafError, ValueError):
    """Data that cannot be used as it is; the message is one line: what was expected and what came."""


def listed(names: Sequence[str], limit: int = 30) -> str:
    """Names joined by commas, cut after `limit` with a count of the rest."""
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(repr(name) for name in names[:limit]) + more


def counted(count: int, noun: str) -> str:
    """`1 row`, `2 rows`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def to_text(column: pd.Series, blanks: frozenset[str] = BLANKS) -> Shaped[np.ndarray, " rows"]:
    """One column as stripped text, None where missing.

    Whole numbers lose their ".0", so that a category 1 reads the same from an integer and a float column.

    Args:
        column: any dtype, [rows].
        blanks: lower-case texts that count as missing.
    Returns:
        object [rows] of str or None.
    """

    def text(value: object) -> str | None:
        if isinstance(value, float | np.floating) and float(value).is_integer():
            value = int(value)
        stripped = str(value).strip()
        return None if stripped.lower() in blanks else stripped

    if isinstance(column.dtype, pd.CategoricalDtype):  # each text once
        texts = to_text(pd.Series(np.asarray(column.cat.categories, dtype=object)), blanks)
        return np.append(texts, np.array([None]))[column.cat.codes.to_numpy()]
    result = np.empty(len(column), dtype=object)
    missing = column.isna().to_numpy(dtype=bool)
    result[:] = [None if gone else text(value) for value, gone in zip(column, missing, strict=True)]
    return result


def to_number(column: pd.Series) -> tuple[Float64[np.ndarray, " rows"], Bool[np.ndarray, " rows"]]:
    """One column as numbers, and where it holds text that is no number.

    Thousands may be set apart, as in 1,352 or 1'352.5. Durations are in days. A text beyond float64, such as the code
    8E467, is no number.

    Args:
        column: any dtype, [rows].
    Returns:
        values float64 [rows], NaN where missing or wrong; wrong bool [rows].
    """
    if is_duration(column):
        values = column.dt.total_seconds().to_numpy(dtype=np.float64, na_value=np.nan) / SECONDS
        return values, np.zeros(len(values), dtype=bool)
    if pd.api.types.is_numeric_dtype(column):
        plain = column.dtype == np.float64  # the same memory
        values = column.to_numpy() if plain else column.to_numpy(dtype=np.float64, na_value=np.nan)
        return values, np.zeros(len(values), dtype=bool)
    if isinstance(column.dtype, pd.CategoricalDtype):  # each text once
        values, wrong = to_number(pd.Series(np.asarray(column.cat.categories, dtype=object)))
        codes = column.cat.codes.to_numpy()
        return np.append(values, np.nan)[codes], np.append(wrong, False)[codes]
    values, wrong = np.full(len(column), np.nan), np.zeros(len(column), dtype=bool)
    for row, text in enumerate(to_text(column, NUMBER_BLANKS)):
        if text is None:
            continue
        try:
            number = float(text)
        except ValueError:
            wrong[row] = _THOUSANDS.fullmatch(text) is None
            values[row] = np.nan if wrong[row] else float(text.translate(_JOINED))
            continue
        if "_" in text or (math.isinf(number) and "inf" not in text.lower()):  # float() reads 1_000, a table does not
            wrong[row] = True
        else:
            values[row] = number
    return values, wrong


def lost_digits(column: pd.Series, values: Float64[np.ndarray, " rows"]) -> tuple[int, bool] | None:
    """The first row (from 0) whose whole number float64 rounds, and whether different numbers become one by that.

    Args:
        column: any dtype, [rows].
        values: float64 [rows], the same as numbers, NaN where they are none.
    Returns:
        None where every whole number is kept, as all up to 2^53 are.
    """
    first, exact, rounded = None, set(), set()
    for row in np.flatnonzero(np.isfinite(values) & (np.abs(values) >= 2**53)).tolist():
        try:
            number = int(str(column.iloc[row]).strip())
        except ValueError:
            continue  # 1e300 means the float
        exact.add(number)
        rounded.add(values[row])
        if first is None and number != int(values[row]):
            first = row
    return None if first is None else (first, len(rounded) < len(exact))


def is_text(column: pd.Series) -> bool:
    """Whether a column is a category by its dtype: text and truth values are, numbers and durations are not.

    Args:
        column: any dtype, [rows].
    Returns:
        True for text and truth values.
    """
    return pd.api.types.is_bool_dtype(column) or not (pd.api.types.is_numeric_dtype(column) or is_duration(column))


def is_duration(column: pd.Series) -> bool:
    """Whether a column holds differences of times by its dtype, which `to_number` gives in days."""
    return getattr(column.dtype, "kind", "") == "m"


def is_date(column: pd.Series) -> bool:
    """Whether a column holds dates by its dtype; texts may be dates too, see `htaf.data.dates.find`.

    Args:
        column: any dtype, [rows].
    Returns:
        True for dates and times with or without a zone, and for periods.
    """
    return pd.api.types.is_datetime64_any_dtype(column) or isinstance(column.dtype, pd.PeriodDtype)


def distinct_values(column: pd.Series) -> int:
    """How many different values a column has, without those that are missing; of numbers in little memory.

    Args:
        column: any dtype, [rows].
    """
    if column.dtype != np.float64:
        return column.nunique()
    values = np.sort(column.to_numpy())
    values = values[: len(values) - int(np.isnan(values).sum())]  # missing ones are last
    return 0 if not len(values) else 1 + int(np.count_nonzero(values[1:] != values[:-1]))


def typed(
    frame: pd.DataFrame,
    *,
    target: str | None = None,
    texts: Collection[str] = (),
    plain: bool = False,
    consume: bool = False,
) -> tuple[pd.DataFrame, tuple[str, ...]]:
    """Every column as float64 (NaN where missing), datetime64[us] (NaT) or text (object, None where missing).

    A column is a number when every value that is present reads as one, and a date as `htaf.data.dates.find` says.
    Truth values are text. A column that mixes numbers and text is a category, with a note, when it has at most 20
    distinct values or a quarter of its values are text; else the text among the numbers is taken for a mistake.

    Args:
        frame: any dtypes, [rows, columns].
        target: a column in which dates are not looked for. plain: dates are text, as before they were known.
        texts: columns that are text whatever their values are.
        consume: take the columns out of `frame`, so that none is held twice.
    Returns:
        the typed frame with a fresh index, and the notes. `attrs["dates"]` has the order of each column of dates.
    Raises:
        DataError: infinite values; text in a column of numbers; dates of several forms; lists and the like.
    """
    from htaf.data.dates import find

    columns: dict[str, pd.Series] = {}
    notes: list[str] = []
    orders: dict[str, str] = {}
    rows = len(frame)
    kept = {*texts}
    consume = consume and frame.shape[1] <= FEW  # taking one out takes time by the number of columns
    for name in list(frame.columns):
        column = frame.pop(name) if consume else frame[name]
        _refuse_containers(str(name), column)
        if name in kept:
            columns[name] = pd.Series(to_text(column), dtype=object)
            continue
        in_text = functools.cache(functools.partial(to_text, column))
        dates = None if plain or name == target or _has_numbers(column) else find(str(name), column, in_text)
        if dates is not None:
            columns[name], orders[str(name)] = pd.Series(dates.values), dates.order
            notes.append(_about_dates(str(name), dates))
            continue
        values, wrong = to_number(column)
        numbers = int(np.count_nonzero(~np.isnan(values)))
        if not pd.api.types.is_bool_dtype(column) and not wrong.any():
            if np.isinf(values).any():
                row = int(np.argmax(np.isinf(values))) + 1
                came = str(column.iloc[row - 1])
                came = came if len(came) <= 40 else f"{came[:40]}..."
                raise DataError(f"column {name!r}, row {row}: expected a finite number, got {came}")
            columns[name] = pd.Series(values)
            if is_duration(column):
                notes.append(f"column {name!r}: durations, in days")
            if grouped := _first_grouped(column):
                notes.append(f"column {name!r}: thousands set apart, {grouped!r} read as {grouped.translate(_JOINED)}")
            if lost := lost_digits(column, values):
                notes.append(
                    f"column {name!r}: whole numbers beyond 2^53 are rounded (first {column.iloc[lost[0]]}, row "
                    f"{lost[0] + 1}); of names, put a letter before each"
                )
            continue
        text = in_text()
        columns[name] = pd.Series(text, dtype=object)  # not pandas' own text type: None stays None
        if numbers == 0 or pd.api.types.is_bool_dtype(column):
            continue
        count, row = int(wrong.sum()), int(np.argmax(wrong)) + 1
        distinct = len({value for value in text if value is not None})
        if count < WORDS * (numbers + count) and distinct > MIXED_CATEGORIES:
            raise DataError(
                f"column {name!r}, row {row}: expected a number as in {numbers:,} other rows, "
                f"got {text[row - 1]!r} ({count:,} such rows); correct them or leave them blank"
            )
        notes.append(
            f"column {name!r} mixes {counted(numbers, 'number')} with {counted(count, 'text')} "
            f"(first {text[row - 1]!r}, row {row}): read as a category"
        )
    made = pd.DataFrame(columns, index=pd.RangeIndex(rows), copy=not consume)
    made.attrs["dates"] = orders
    return made, tuple(notes)


def _has_numbers(column: pd.Series) -> bool:
    return pd.api.types.is_numeric_dtype(column) or pd.api.types.is_bool_dtype(column) or is_duration(column)


def _first_grouped(column: pd.Series) -> str | None:
    """The first text of a column of numbers that sets thousands apart."""
    if _has_numbers(column):
        return None
    values = column.cat.categories if isinstance(column.dtype, pd.CategoricalDtype) else column
    return next((value.strip() for value in values if isinstance(value, str) and ("," in value or "'" in value)), None)


def _refuse_containers(name: str, column: pd.Series) -> None:
    if column.dtype != object:
        return
    for row, value in enumerate(column):
        if isinstance(value, list | tuple | dict | set | np.ndarray | bytes):
            raise DataError(
                f"column {name!r}, row {row + 1}: expected numbers, text or dates, got a {type(value).__name__}: make "
                f"a column of each of its values, or exclude it (--exclude {name})"
            )


def _about_dates(name: str, dates: "Dates") -> str:
    known = dates.values[~np.isnat(dates.values)]
    span = f", {known.min().astype('M8[D]')} to {known.max().astype('M8[D]')}" if len(known) else ""
    said = f"column {name!r}: dates{span}"
    if dates.example:
        said += f", {dates.example!r} read as {dates.order}"
    if dates.zoned:
        said += "; times are UTC" + (", those without a zone too" if dates.zoned < 1 else "")
    if dates.open:
        said += "; no row says whether day or month comes first, write 2012-01-31 to be sure"
    return said


def read_frame(
    path: str | os.PathLike[str], *, names: Sequence[str] | None = None, texts: Sequence[str] | None = None
) -> tuple[pd.DataFrame, tuple[str, ...]]:
    """The raw rows of a CSV, TSV or Parquet file, text kept as text, with notes on what was handled.

    The separator (comma, semicolon or tab) is the one that splits most lines as it splits the header.
    Text is UTF-8 with or without a byte-order mark, UTF-16 with one, else Latin-1 with a note. Columns
    without a name (a saved index, a trailing separator) are left out with a note.

    Args:
        path: a file that ends in one of `SUFFIXES`, in any case.
        names: column names of a text file without a header line.
        texts: columns that are to be text; the others of a large file are float64 where each of their texts reads as a
            number. None: all.
    Returns:
        the frame [rows, columns], and the notes.
    Raises:
        DataError: no such file, unknown kind, damaged, empty, header only, ragged or repeated columns.
    """
    path = Path(path)
    check_path(path)
    if path.name.lower().endswith(".parquet"):
        from pyarrow.parquet import read_metadata

        try:
            about = read_metadata(path)
            what = f"{path}: a table of {about.num_rows:,} rows and {about.num_columns:,} columns"
            expect_memory(8.0 * about.num_rows * about.num_columns, what, "take some of the rows")
            frame, notes = pd.read_parquet(path), []
        except TooLargeError:
            raise
        except Exception as error:  # Arrow's and pandas' readers raise nearly everything on damaged files
            raise DataError(
                f"{path}: expected a Parquet file, this one cannot be read as one ({first_line(error)})"
            ) from error
        frame = named(frame)
    else:
        notes = list[str]()
        frame = _large(path, texts) if names is None and path.stat().st_size > LARGE else None
        if frame is None:
            text, notes = _decode(path)
            frame = _parse(path, text, names, notes)
    kept, told = check_names(str(path), [*frame.columns])
    notes += told
    frame = frame if all(kept) else frame.loc[:, kept]
    if not len(frame):
        raise DataError(f"{path}: expected rows below the column names, got the header only")
    return frame, tuple(notes)


def check_names(where: str, names: Sequence[str]) -> tuple[list[bool], list[str]]:
    """Which columns have a name, with a note of the others: a saved index, or a separator at the ends of lines.

    Args:
        where: the table, for messages. names: without blanks around them.
    Raises:
        DataError: a name twice.
    """
    kept = [_NO_NAME.fullmatch(name) is None for name in names]
    repeated = sorted(name for name, times in Counter(names).items() if times > 1 and _NO_NAME.fullmatch(name) is None)
    if repeated:
        raise DataError(
            f"{where}: expected distinct column names, got {listed(repeated)} more than once{without_names(names)}"
        )
    places = [str(place) for place, has_name in enumerate(kept, start=1) if not has_name]
    return kept, [f"left out without a name: column {', '.join(places)} of {len(names)}"] if places else []


def without_names(names: Sequence[str]) -> str:
    """Of names among which are numbers: that the line of names may be missing; else empty."""
    return "; if its first line is data, add a line of names" if any(map(_is_number, names)) else ""


@runtime_checkable
class GivesPandas(Protocol):
    """A table of Polars, of pyarrow, or another one that gives a data frame of pandas."""

    @property
    def columns(self) -> Any:
        """Of the table."""

    def to_pandas(self) -> pd.DataFrame:
        """The same rows."""
        ...


Frame = pd.DataFrame | GivesPandas


def in_pandas(frame: Any) -> Any:
    """A `Frame` as a data frame of pandas; anything else as it is."""
    return frame.to_pandas() if isinstance(frame, GivesPandas) and not isinstance(frame, pd.DataFrame) else frame


def named(frame: Frame, known: Iterable[str] = ()) -> pd.DataFrame:
    """A data frame of pandas with its columns named as those of a file: by texts, without blanks around them.

    known: names that stay as they are. So do those that would be the name of another column without their blanks.
    """
    plain: pd.DataFrame = in_pandas(frame)
    names, known = [*map(str, plain.columns)], {*known}
    times = Counter(name.strip() for name in names)
    kept = (name in known or (name.strip() and times[name.strip()] > 1) for name in names)
    return plain.set_axis([name if as_is else name.strip() for name, as_is in zip(names, kept, strict=True)], axis=1)


def _large(path: Path, texts: Sequence[str] | None) -> pd.DataFrame | None:
    """A large file by Arrow, in pieces, so that no more is held than what comes of it; None where it is not plain
    enough for it.

    Plain: UTF-8, as many fields in each line as in the first, no decimal commas. What is wrong in another file is said
    by the usual way of reading.

    Args:
        texts: columns that hold texts, as categories; others are float64 where each text reads as a number, as
            `to_number` gives them. None: all.
    """
    from pyarrow import ArrowException, default_memory_pool

    if path.name.lower().endswith(".gz"):
        return None
    with path.open("rb") as file:
        head = file.read(100_000)
    try:
        text = head.decode("utf-8-sig") if b"\0" not in head else ""
    except UnicodeDecodeError as error:
        text = head[: error.start].decode("utf-8-sig") if error.start > len(head) - 4 else ""
    if not text.strip():
        return None
    separator = separator_of(path, text)
    header = next(csv_rows(text, separator))
    first, end, _ = text.partition("\n")
    if not end or not first.strip() or any("\n" in name for name in header):
        return None  # Arrow skips one line for the names
    if (
        len(set(header)) < len(header)
        or any(map(_NO_NAME.fullmatch, header))
        or sum(map(_is_number, header)) * 2 > len(header)
    ):
        return None
    kept = None if texts is None else {*texts}
    try:
        while True:  # again where a column of numbers had a text further down
            found = _pieces(path, header, separator, '"' in text, kept)
            if not isinstance(found, str):
                return found
            assert kept is not None
            kept.add(found)
    except ArrowException:
        return None
    finally:
        default_memory_pool().release_unused()


def _pieces(path: Path, header: list[str], separator: str, quoted: bool, kept: set[str] | None) -> Any:
    """The frame of `_large`; None for decimal commas; a name for a column that is to be kept as text.

    Args:
        kept: columns that hold texts; None: all.
    """
    from pyarrow import csv, string

    size = max(PIECE, WIDE * len(header))
    with csv.open_csv(
        path,
        read_options=csv.ReadOptions(use_threads=False, column_names=header, skip_rows=1, block_size=size),
        parse_options=csv.ParseOptions(delimiter=separator, newlines_in_values=quoted),
        convert_options=csv.ConvertOptions(column_types=dict.fromkeys(header, string()), strings_can_be_null=False),
    ) as reader:
        columns: list[_Numbers | _Texts] = []
        for piece in reader:
            if not columns:
                first = piece.slice(0, 1000)
                if separator != "," and any("," in str(value) for column in first for value in column):
                    return None
                for name, column in zip(header, first, strict=True):
                    text = kept is None or name in kept or _plain_numbers(column) is None
                    columns.append(_Texts() if text else _Numbers())
            given = [*piece.columns]
            if (full := _not_blank(given)) is not None:
                given = [column.filter(full) for column in given]
            for name, made, column in zip(header, columns, given, strict=True):
                if not made.take(column):
                    return name
    if separator != "," and any(has_decimal_commas(c.known) for c in columns if isinstance(c, _Texts)):
        return None  # further down than was looked at first
    frame: dict[str, pd.Series] = {}
    for name in header:
        frame[name] = columns.pop(0).series()  # each piece once
    return pd.DataFrame(frame, copy=False)


class _Numbers:
    """A column of numbers, piece by piece."""

    def __init__(self) -> None:
        self.parts: list[np.ndarray] = []

    def take(self, column: Any) -> bool:
        """Whether all of these texts are numbers."""
        values = _plain_numbers(column)
        if values is not None:
            self.parts.append(values)
        return values is not None

    def series(self) -> pd.Series:
        return pd.Series(np.concatenate(self.parts), copy=False)


class _Texts:
    """A column of texts, piece by piece: each text once, and its number in each row."""

    def __init__(self) -> None:
        self.parts: list[np.ndarray] = []
        self.known: dict[str, int] = {}

    def take(self, column: Any) -> bool:
        found = column.dictionary_encode()
        places = [self.known.setdefault(text, len(self.known)) for text in found.dictionary.to_pylist()]
        self.parts.append(np.array(places, dtype=np.int32)[found.indices.to_numpy()])
        return True

    def series(self) -> pd.Series:
        texts = np.array([*self.known], dtype=object)
        kind = pd.CategoricalDtype(pd.Index(texts, dtype=object))
        return pd.Series(pd.Categorical.from_codes(np.concatenate(self.parts), dtype=kind), copy=False)


def _plain_numbers(column: Any) -> Float64[np.ndarray, " rows"] | None:
    """The numbers of an Arrow array of text; None where some text is none, not plainly one, or not exact in float64."""
    import pyarrow as pa
    import pyarrow.compute

    compute: Any = pyarrow.compute  # its functions are made when it is imported
    text = compute.utf8_trim_whitespace(column)
    blank = compute.is_in(compute.utf8_lower(text), pa.array(sorted(NUMBER_BLANKS)))
    text = compute.if_else(blank, pa.scalar(None, text.type), text)
    try:
        values = text.cast(pa.float64()).to_numpy(zero_copy_only=False)
    except pa.ArrowException:
        return None
    return None if (np.abs(values) >= 2**53).any() else values


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


def csv_rows(text: str, separator: str) -> Iterator[list[str]]:
    """The rows of a text that are not blank, their fields stripped."""
    for row in csv.reader(io.StringIO(text, newline=""), delimiter=separator):
        if any(field.strip() for field in row):
            yield [field.strip() for field in row]


def check_path(path: Path) -> None:
    if path.is_dir():
        inside = sorted(entry.name for entry in path.iterdir() if entry.name.lower().endswith(SUFFIXES))
        raise DataError(f"{path}: expected a file, got a folder; tables in it: {listed(inside) or 'none'}")
    if not path.exists():
        if path.is_symlink():
            raise DataError(f"{path}: expected a file, got a link that leads to none")
        folder = path.parent
        beside = sorted(entry.name for entry in folder.iterdir()) if folder.is_dir() else []
        raise DataError(f"{path}: no such file{suggestion(path.name, beside)}")
    try:
        regular(path)
    except OSError as error:
        raise DataError(str(error)) from None
    if not path.name.lower().endswith(SUFFIXES):
        excel = ": save the sheet as CSV" if path.suffix.lower().startswith((".xls", ".ods")) else ""
        raise DataError(f"{path}: expected a file ending in {', '.join(SUFFIXES)}, got {path.suffix or 'none'}{excel}")


def _content(path: Path) -> bytes:
    """The content of a file, unpacked.

    Raises:
        TooLargeError: more than memory holds as a table, found as soon as so much is unpacked.
    """
    packed, blocks, size = path.name.lower().endswith(".gz"), list[bytes](), 0
    instead = "unpack it, as plain files are read in pieces" if packed else "save it as UTF-8 or as Parquet"
    with gzip.open(path) if packed else path.open("rb") as file:
        while block := file.read(PIECE):
            size += len(block)
            expect_memory(HELD * size, f"{path}: a text of {size / 1e9:,.1f} GB or more", instead)
            blocks.append(block)
    return b"".join(blocks)


def _decode(path: Path) -> tuple[str, list[str]]:
    try:
        data = _content(path)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path}: cannot be read: {first_line(error)}") from error
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        return data.decode("utf-16", errors="replace"), ["read as UTF-16"]
    if b"\0" in data:
        raise DataError(f"{path}: expected text, got a binary file")
    try:
        return data.decode("utf-8-sig"), []
    except UnicodeDecodeError:
        return data.decode("latin-1"), ["not UTF-8: read as Latin-1"]


def _parse(path: Path, text: str, names: Sequence[str] | None, notes: list[str]) -> pd.DataFrame:
    if not text.strip():
        raise DataError(f"{path}: expected a table, got an empty file")
    separator = separator_of(path, text)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator)
    header = None if names is None else list(names)
    rows: list[list[str]] = []
    try:
        for row in reader:
            if not any(field.strip() for field in row):
                continue  # blank lines, most often the last
            if header is None:
                header = [field.strip() for field in row]
                continue
            if len(row) != len(header):
                raise DataError(
                    f"{path}, line {reader.line_num}: expected {len(header)} fields separated by "
                    f"{separator!r}, got {len(row)}"
                )
            rows.append(row)
    except csv.Error as error:
        raise DataError(f"{path}, line {reader.line_num}: {error}") from error
    if header is None or (names is not None and not rows):
        raise DataError(f"{path}: expected a table, got blank lines only")
    if names is None and sum(_is_number(name) for name in header) * 2 > len(header):
        notes.append(
            "the first line looks like data, but was taken for the column names: add a line of names if it is data"
        )
    columns: list[np.ndarray] = []
    for place, name in enumerate(header):
        values = np.array([row[place] for row in rows], dtype=object)
        if separator != "," and has_decimal_commas(values):
            notes.append(f"column {name!r}: decimal commas read as points")
            values[:] = [value.replace(".", "").replace(",", ".") for value in values]
        columns.append(values)
    frame = pd.DataFrame(dict(enumerate(columns)), dtype=object)
    frame.columns = header
    return frame


def separator_of(path: Path, text: str) -> str:
    """The separator whose column count in the header is kept by most of the first lines, comma if none.

    Raises:
        DataError: a line that tells Excel of the separator, or columns that something else separates.
    """
    lines = [line for line in text[:100_000].splitlines()[:50] if line.strip()]
    if lines and _SEP_LINE.fullmatch(lines[0]):
        raise DataError(
            f"{path}: expected the column names, got {lines[0].strip()!r}, which is for Excel: delete this line"
        )
    best, best_score = ",", (0.0, 0)
    for separator in ",;\t":
        counts = [len(row) for row in csv.reader(lines, delimiter=separator)]
        if counts and counts[0] > 1:
            score = (sum(count == counts[0] for count in counts) / len(counts), counts[0])
            best, best_score = (separator, score) if score > best_score else (best, best_score)
    if best_score > (0.0, 0):
        return best
    for what, fields in (("'|'", [line.split("|") for line in lines]), ("blanks", [line.split() for line in lines])):
        alike = len({len(row) for row in fields}) == 1 and len(lines) > 1 and len(fields[0]) > 1
        if alike and all(any(map(_is_number, row)) for row in fields[1:]):
            raise DataError(
                f"{path}: expected columns separated by commas, semicolons or tabs, got {what}: write a comma in place "
                "of each"
            )
    return best


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def has_decimal_commas(values: Iterable[str]) -> bool:
    """Whether texts are numbers with a comma before their decimals, as in 1.234,5: some have one, and all may."""
    return all(commas_in(values))


def commas_in(values: Iterable[str]) -> tuple[bool, bool]:
    """Whether some of these texts have a comma, and whether all that are not missing may be numbers with decimal
    commas; a column that comes in pieces has them where some piece has the first and every piece the second."""
    present = [value.strip() for value in values if value.strip().lower() not in NUMBER_BLANKS]
    return any("," in value for value in present), all(_DECIMAL_COMMA.fullmatch(v) for v in present)
