"""Columns of a table as numbers, dates or text: one rule for files and data frames."""

import functools
import math
import os
import re
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float64, Shaped

from htaf._ground.errors import DataError as DataError
from htaf._ground.errors import listed, option
from htaf.data.notes import MOST_NAMED, Note
from htaf.data.numerals import (
    BLANKS,
    DURATION,
    SECONDS,
    has_decimal_comma,
    is_padded,
    number_in,
    unit_of,
    units_of,
)

if TYPE_CHECKING:
    from htaf.data.dates import Dates

NUMBER_BLANKS = BLANKS | {"none"}  # "None" is a common category, but never a number
WORDS = 0.25  # share of texts among numbers from which a column is a category
FEW = 1000  # columns of a frame that are taken out one by one
MIXED_CATEGORIES = 20  # a column that mixes numbers and text is a category up to this many distinct values

_NO_NAME = re.compile(r"(Unnamed: \d+(\.\d+)?)?")  # as pandas writes it


class TableError(DataError):
    """A cell of a table that cannot be used; the message is made of these attributes when it is shown.

    Attributes:
        what: what was expected, and what came.
        column, row: where; the row counts from 1.
        table: in which table, where that is to be said.
    """

    def __init__(self, what: str, column: str, row: int, table: str = "") -> None:
        super().__init__(what)
        self.what, self.column, self.row, self.table = what, column, row, table

    def __str__(self) -> str:
        table = f"{self.table}, " if self.table else ""
        return f"{table}column {self.column!r}, row {self.row}: {self.what}"

    def __reduce__(self) -> Any:
        return type(self), (self.what, self.column, self.row, self.table)


def to_text(column: pd.Series, blanks: frozenset[str] = BLANKS) -> Shaped[np.ndarray, " rows"]:
    """Return one column as stripped text, None where missing.

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


def to_number(column: pd.Series, unit: str = "") -> tuple[Float64[np.ndarray, " rows"], Bool[np.ndarray, " rows"]]:
    """Return one column as numbers, and where it holds text that is no number.

    Texts are read by `htaf.data.numerals.number_in`. Durations are in days. A text beyond float64, such as the code
    8E467, is no number.

    Args:
        column: any dtype, [rows].
        unit: as `htaf.data.numerals.unit_of` gives it, that texts may have.
    Returns:
        values float64 [rows], NaN where missing or wrong; wrong bool [rows].
    Raises:
        DataError: complex numbers.
    """
    if getattr(column.dtype, "kind", "") == "c":
        raise DataError(f"column {str(column.name)!r}: expected real numbers, got complex ones")
    if is_duration(column):
        values = column.dt.total_seconds().to_numpy(dtype=np.float64, na_value=np.nan) / SECONDS
        return values, np.zeros(len(values), dtype=bool)
    if pd.api.types.is_numeric_dtype(column):
        plain = column.dtype == np.float64  # the same memory
        values = column.to_numpy() if plain else column.to_numpy(dtype=np.float64, na_value=np.nan)
        return values, np.zeros(len(values), dtype=bool)
    if isinstance(column.dtype, pd.CategoricalDtype):  # each text once
        values, wrong = to_number(pd.Series(np.asarray(column.cat.categories, dtype=object)), unit)
        codes = column.cat.codes.to_numpy()
        return np.append(values, np.nan)[codes], np.append(wrong, False)[codes]
    values, wrong = np.full(len(column), np.nan), np.zeros(len(column), dtype=bool)
    for row, text in enumerate(to_text(column, NUMBER_BLANKS)):
        if text is None:
            continue
        try:
            number = float(text)
        except ValueError:
            found = number_in(text, unit)
            wrong[row], values[row] = found is None, np.nan if found is None else found
            continue
        if "_" in text or (math.isinf(number) and "inf" not in text.lower()):  # float() reads 1_000, a table does not
            wrong[row] = True
        else:
            values[row] = number
    return values, wrong


def finite_numbers(
    column: pd.Series, name: str, where: str = "", table: str = "", unit: str = ""
) -> Float64[np.ndarray, " rows"]:
    """Return one column as numbers that are all finite; see `to_number`.

    Args:
        column: any dtype, [rows].
        name, table: what messages call it and its table. where: what it is to them, as in "a number in the target".
        unit: as of `to_number`.
    Returns:
        float64 [rows], NaN where missing.
    Raises:
        TableError: a text that is no number, or an infinite one.
    """
    values, wrong = to_number(column, unit)
    for bad, wanted in (
        (wrong, f"a number in {unit!r}" if unit else "a number"),
        (np.isinf(values), "a finite number"),
    ):
        if bad.any():
            row = int(np.argmax(bad))
            came = str(column.iloc[row])
            came = came if len(came) <= 40 else f"{came[:40]}..."
            raise TableError(f"expected {wanted}{where}, got {came!r}{_how_to_write(came, unit)}", name, row + 1, table)
    return values


def _how_to_write(text: str, unit: str) -> str:
    """Return what to do about a text that is no number, where it nearly is one; else empty."""
    if has_decimal_comma(text.strip()):
        point = text.strip().replace(".", "").replace(",", ".")
        return f": write {point}" + option("", ", or read the file with decimal=','")
    written, example = units_of([text.strip()]), unit.replace("#", "12")
    if unit and written and written[0].casefold() == unit.replace("#", "").casefold():
        return f" (did you mean {unit.replace('#', '')!r}? a unit keeps its case)"
    return f": write it as in training, such as {example!r}" if unit and written else ""


def lost_digits(column: pd.Series, values: Float64[np.ndarray, " rows"]) -> int | None:
    """Return the first row (from 0) whose whole number float64 rounds; None where every one is kept, as all up to 2^53
    are.

    Args:
        column: any dtype, [rows].
        values: float64 [rows], the same as numbers, NaN where they are none.
    """
    for row in np.flatnonzero(np.isfinite(values) & (np.abs(values) >= 2**53)).tolist():
        try:
            number = int(str(column.iloc[row]).strip())
        except ValueError:
            continue  # 1e300 means the float
        if number != int(values[row]):
            return row
    return None


def is_text(column: pd.Series) -> bool:
    """Return whether a column is a category by its dtype: text and truth values are; numbers, durations and dates are
    not."""
    return pd.api.types.is_bool_dtype(column) or not (_has_numbers(column) or is_date(column))


def is_duration(column: pd.Series) -> bool:
    """Return whether a column holds differences of times by its dtype, which `to_number` gives in days."""
    return getattr(column.dtype, "kind", "") == "m"


def is_date(column: pd.Series) -> bool:
    """Return whether a column holds dates by its dtype: dates, times with or without a zone, and periods. Texts may be
    dates too, see `htaf.data.dates.find`."""
    return pd.api.types.is_datetime64_any_dtype(column) or isinstance(column.dtype, pd.PeriodDtype)


def typed(
    frame: pd.DataFrame,
    *,
    target: str | None = None,
    texts: Collection[str] = (),
    consume: bool = False,
    text_as_missing: bool = False,
) -> tuple[pd.DataFrame, list[Note]]:
    """Return every column as float64 (NaN where missing), datetime64[us] (NaT), in UTC where a time zone was written,
    or text (object, None where missing).

    A column is a number when every value that is present reads as one, or does with the one unit that all texts have,
    and a date as `htaf.data.dates.find` says. Truth values are text, and so are codes of digits of which one begins
    with a 0. A column that mixes numbers and text is a
    category, with a note, when it has at most 20 distinct values or a quarter of its values are text; else the text
    among the numbers is taken for a mistake.

    Args:
        frame: any dtypes, [rows, columns].
        target: a column in which dates are not looked for.
        texts: columns that are text whatever their values are.
        consume: take the columns out of `frame`, so that none is held twice.
        text_as_missing: text among numbers, in less than a quarter of the values, is missing, with a note.
    Returns:
        the typed frame with a fresh index, and the notes. `attrs["dates"]` has the order of each column of dates,
        `attrs["units"]` the unit of each column of numbers whose texts all have one.
    Raises:
        DataError: infinite values; text in a column of numbers; dates of several forms; lists and the like.
    """
    from htaf.data.dates import among, find

    columns: dict[str, pd.Series] = {}
    notes: list[Note] = []
    orders: dict[str, str] = {}
    units: dict[str, str] = {}
    rows = len(frame)
    kept = {*texts}
    consume = consume and frame.shape[1] <= FEW  # taking one out takes time by the number of columns
    for name in list(frame.columns):
        column = frame.pop(name) if consume else frame[name]
        _refuse_containers(str(name), column)
        if (padded := _padded(column)) is not None:
            columns[name] = pd.Series(to_text(column), dtype=object)
            notes.append(Note("leading zeros", str(name), values=(padded,)))
            continue
        if name in kept:
            columns[name] = pd.Series(to_text(column), dtype=object)
            continue
        in_text = functools.cache(functools.partial(to_text, column))
        dates = None if name == target or _has_numbers(column) else find(str(name), column, in_text)
        if dates is not None:
            columns[name], orders[str(name)] = pd.Series(dates.values), dates.order
            if dates.zoned:
                columns[name] = columns[name].dt.tz_localize("UTC")
            notes.append(_about_dates(str(name), dates))
            continue
        values, wrong = to_number(column)
        numbers = int(np.count_nonzero(~np.isnan(values)))
        if not pd.api.types.is_bool_dtype(column) and not wrong.any():
            columns[name] = pd.Series(finite_numbers(column, str(name)) if np.isinf(values).any() else values)
            if is_duration(column):
                units[str(name)] = DURATION
                first = int(np.argmax(~np.isnan(values)))
                notes.append(Note("unit", str(name), values=(DURATION, str(column.iloc[first]), float(values[first]))))
            notes += _about_writing(str(name), column)
            if (lost := lost_digits(column, values)) is not None:
                notes.append(Note("rounded", str(name), values=(str(column.iloc[lost]),), row=lost + 1))
            continue
        text = in_text()
        columns[name] = pd.Series(text, dtype=object)  # not pandas' own text type: None stays None
        if not _has_numbers(column) and (unit := unit_of(pd.unique(text))) is not None:
            if name == target:
                continue  # whether these are classes says `htaf.data.targets.in_unit`
            values, units[str(name)] = to_number(column, unit)[0], unit
            columns[name] = pd.Series(values)
            place = int(np.argmax(wrong))
            notes.append(Note("unit", str(name), values=(unit, text[place], float(values[place]))))
            continue
        if numbers == 0 or pd.api.types.is_bool_dtype(column):
            mixed = None if name == target or _has_numbers(column) else among(column, text)
            if mixed is not None:
                known, others, first, row = mixed
                notes.append(Note("mixed", str(name), others, (known, "date", first), row))
            continue
        count, row = int(wrong.sum()), int(np.argmax(wrong)) + 1
        if text_as_missing and name != target and count < WORDS * (numbers + count):
            columns[name] = pd.Series(values)
            texts_of = tuple(dict.fromkeys(text[wrong]))[:MOST_NAMED]
            notes.append(Note("text as missing", str(name), count, texts_of, row))
            continue
        distinct = len({value for value in text if value is not None})
        if count < WORDS * (numbers + count) and distinct > MIXED_CATEGORIES:
            again = count == 1 and text[row - 1] == str(name)
            line = f"delete the row if it is a line of {'names' if again else 'units'}; "
            line = line if again or (count == 1 and row == 1) else ""
            raise TableError(
                f"expected a number as in {numbers:,} other rows, got {text[row - 1]!r} ({count:,} such rows); {line}"
                "correct them, leave them blank, or say that they are missing "
                f"({option('--text-as-missing', 'text_as_missing=True')})",
                str(name),
                row,
            )
        notes.append(Note("mixed", str(name), count, (numbers, "number", text[row - 1]), row))
    made = pd.DataFrame(columns, index=pd.RangeIndex(rows), copy=not consume)
    made.attrs["dates"], made.attrs["units"] = orders, units
    return made, notes


def _has_numbers(column: pd.Series) -> bool:
    return pd.api.types.is_numeric_dtype(column) or pd.api.types.is_bool_dtype(column) or is_duration(column)


def _padded(column: pd.Series) -> str | None:
    """Return the first code with a leading zero in a column of texts that are digits alone, see
    `numerals.is_padded`."""
    if _has_numbers(column) or is_date(column):
        return None
    texts = column.cat.categories if isinstance(column.dtype, pd.CategoricalDtype) else pd.unique(column.dropna())
    return is_padded(to_text(pd.Series(texts, dtype=object), NUMBER_BLANKS))


def _about_writing(name: str, column: pd.Series) -> list[Note]:
    """Notes with the first number that is below 0 by brackets or a minus behind, and the first with thousands apart."""
    if _has_numbers(column):
        return []
    values = column.cat.categories if isinstance(column.dtype, pd.CategoricalDtype) else column
    found: dict[bool, Note] = {}
    for text in (value.strip() for value in values if isinstance(value, str) and not is_number(value)):
        if text and (value := number_in(text)) is not None:
            below = text[0] == "(" or text[-1] == "-"
            found.setdefault(below, Note("read as", name, values=(text, f"{value:.15g}")))
    return [found[below] for below in sorted(found, reverse=True)]


def _refuse_containers(name: str, column: pd.Series) -> None:
    if column.dtype != object:
        return
    for row, value in enumerate(column):
        if isinstance(value, list | tuple | dict | set | np.ndarray | bytes):
            raise TableError(
                f"expected numbers, text or dates, got a {type(value).__name__}: make a column of each of its values, "
                f"or leave it out ({option(f'--exclude {name}', f'frame.drop(columns={name!r})')})",
                name,
                row + 1,
            )


def _about_dates(name: str, dates: "Dates") -> Note:
    known = dates.values[~np.isnat(dates.values)].astype("M8[D]")
    first, last = (str(known.min()), str(known.max())) if len(known) else ("", "")
    return Note("dates", name, values=(first, last, dates.example, dates.order, dates.zoned, dates.open))


def check_names(where: str, names: Sequence[str]) -> tuple[list[bool], list[Note]]:
    """Return which columns have a name, with a note of the others: a saved index, or a separator at the ends of lines.

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
    return kept, [Note("no name", count=len(names), values=(", ".join(places),))] if places else []


def refuse_nameless(where: str, place: int, values: Iterable[Any], before: int = 0) -> None:
    """Raise TableError for a value in a column without a name that ends the rows: the row has a field too many.

    place: of the column, from 0. before: how many rows come before these.
    """
    for row, value in enumerate(values, start=before + 1):
        if value is not None and value == value and str(value).strip():
            why = f"expected no value, as the column has no name, got {str(value)!r}: the row may have a field too many"
            raise TableError(f"{why}; correct it, or name the column", str(place + 1), row, where)


def refuse_shifted(where: str, frame: pd.DataFrame, before: int = 0) -> None:
    """As `refuse_nameless`, of all columns behind the last one with a name."""
    for place in reversed(range(frame.shape[1])):
        if _NO_NAME.fullmatch(str(frame.columns[place])) is None:
            return
        refuse_nameless(where, place, frame.iloc[:, place], before)


def with_names(where: str, frame: pd.DataFrame, before: int = 0) -> tuple[pd.DataFrame, list[Note]]:
    """Return the columns of a data frame that have a name, and notes; raises as `check_names` and `refuse_nameless`
    do."""
    kept, notes = check_names(where, [*frame.columns])
    refuse_shifted(where, frame, before)
    return frame if all(kept) else frame.loc[:, kept], notes


def without_names(names: Sequence[str]) -> str:
    """Of names among which are numbers: that the line of names may be missing; else empty."""
    return "; if its first line is data, add a line of names" if any(map(is_number, names)) else ""


@runtime_checkable
class GivesPandas(Protocol):
    """A table of Polars, of pyarrow, or another one that gives a data frame of pandas."""

    @property
    def columns(self) -> Any:
        """Of the table."""

    def to_pandas(self) -> pd.DataFrame:
        """Return the same rows."""
        ...


Frame = pd.DataFrame | GivesPandas


def in_pandas(frame: Any) -> Any:
    """Return a `Frame` as a data frame of pandas; anything else as it is.

    Raises:
        DataError: a query that is yet to be run, such as a LazyFrame of Polars.
    """
    if isinstance(frame, pd.DataFrame):
        return frame
    if isinstance(frame, GivesPandas):
        return frame.to_pandas()
    if run := next((name for name in ("collect", "compute", "execute") if callable(getattr(frame, name, None))), None):
        kind = type(frame).__name__
        raise DataError(
            f"expected a data frame or an array, got a {kind}, which is yet to be computed: call its {run}()"
        )
    return frame


def named(frame: Frame, known: Iterable[str] = ()) -> pd.DataFrame:
    """Return a new data frame of pandas with its columns named as those of a file: by texts, without blanks around
    them.

    known: names that stay as they are. So do those that would be the name of another column without their blanks.
    """
    plain: pd.DataFrame = in_pandas(frame)
    given = plain.columns.tolist()
    names, known = [*map(str, given)], {*known}
    times = Counter(name.strip() for name in names)
    kept = (name in known or (name.strip() and times[name.strip()] > 1) for name in names)
    found = [name if as_is else name.strip() for name, as_is in zip(names, kept, strict=True)]
    return plain.copy(deep=False) if found == given else plain.set_axis(found, axis=1)


def data_folders(data_dir: str | os.PathLike[str] | None) -> list[Path]:
    """Return where data are looked for: in this folder, then in the one that HTAF_DATA names.

    Raises:
        DataError: `data_dir` is no folder.
    """
    if data_dir is not None and not Path(data_dir).is_dir():
        raise DataError(f"data_dir: expected a folder, got {os.fspath(data_dir)!r}")
    return [Path(folder) for folder in (data_dir, os.environ.get("HTAF_DATA")) if folder]


def is_number(text: str) -> bool:
    """Return whether Python reads this text as a number."""
    try:
        float(text)
    except ValueError:
        return False
    return True
