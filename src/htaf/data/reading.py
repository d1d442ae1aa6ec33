"""A frame whose columns are numbers, dates or text, made once at the door: one rule for files and data frames."""

import os
import re
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import pandas as pd
from jaxtyping import Shaped

from htaf._ground.errors import DataError as DataError
from htaf._ground.errors import counted, listed, option
from htaf.data.cells import (
    TableError,
    finite_numbers,
    is_date,
    is_number,
    is_padded,
    is_text,
    lost_digits,
    number_in,
    to_number,
    to_text,
    unit_of,
)
from htaf.data.dates import MIXED_CATEGORIES, YEAR_FIRST, Dates, find, has_zone, native
from htaf.data.notes import MOST_NAMED, Note

WORDS = 0.25  # share of texts among numbers from which a column is a category
FEW = 1000  # columns of a frame that are taken out one by one
MAX_CLASSES = 10  # whole-number targets, and such in a unit, with more distinct values are regression

_NO_NAME = re.compile(r"(Unnamed: \d+(\.\d+)?)?")  # as pandas writes it


def typed(
    frame: pd.DataFrame,
    *,
    target: str | None = None,
    task: str | None = None,
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
        target: a column in which dates are not looked for, and units only for a regression: by `task`, or where it has
            more than 10 distinct values.
        texts: columns that are text whatever their values are.
        consume: take the columns out of `frame`, so that none is held twice.
        text_as_missing: text among numbers, in less than a quarter of the values, is missing, with a note.
    Returns:
        the typed frame with a fresh index, and the notes. `attrs["written"]` has the order of each column of dates, and
        the unit of each column of numbers whose texts all have one.
    Raises:
        DataError: infinite values; text in a column of numbers; dates of several forms; lists, durations and the like.
    """
    columns: dict[str, pd.Series] = {}
    notes: list[Note] = []
    written: dict[str, str] = {}
    rows = len(frame)
    consume = consume and frame.shape[1] <= FEW  # taking one out takes time by the number of columns
    for name in list(frame.columns):
        column = frame.pop(name) if consume else frame[name]
        if is_date(column) and name != target and name not in texts:
            dates = Dates(YEAR_FIRST, native(column), False, "", float(has_zone(column)))
            columns[name] = _of_dates(str(name), dates, written, notes)
        elif is_text(column) or is_date(column) or name in texts:
            _refuse_containers(str(name), column)
            columns[name] = _of_texts(
                str(name), column, written, notes, as_text=name in texts or pd.api.types.is_bool_dtype(column),
                target=name == target, task=task, text_as_missing=text_as_missing,
            )  # fmt: skip
        else:
            columns[name] = _of_numbers(str(name), column, to_number(column)[0], notes)
    made = pd.DataFrame(columns, index=pd.RangeIndex(rows), copy=not consume)
    made.attrs["written"] = written
    return made, notes


def _of_numbers(name: str, column: pd.Series, values: np.ndarray, notes: list[Note]) -> pd.Series:
    if np.isinf(values).any():
        finite_numbers(column, name)  # says which row is not
    if (lost := lost_digits(column, values)) is not None:
        notes.append(Note("rounded", name, values=(str(column.iloc[lost]),), row=lost + 1))
    return pd.Series(values)


def _of_dates(name: str, dates: Dates, written: dict[str, str], notes: list[Note]) -> pd.Series:
    """Return dates, with a note on how they are read; their order is written down."""
    known = dates.values[~np.isnat(dates.values)].astype("M8[D]")
    first, last = (str(known.min()), str(known.max())) if len(known) else ("", "")
    notes.append(Note("dates", name, values=(first, last, dates.example, dates.order, dates.zoned, dates.open)))
    written[name] = dates.order
    values: Any = pd.Series(dates.values)
    return values.dt.tz_localize("UTC") if dates.zoned else values


def _of_texts(
    name: str,
    column: pd.Series,
    written: dict[str, str],
    notes: list[Note],
    *,
    as_text: bool,
    target: bool,
    task: str | None,
    text_as_missing: bool,
) -> pd.Series:
    """Return what a column of texts is, as `typed` says; each text is looked at once."""
    text = to_text(column)
    codes, known = pd.factorize(text)  # missing: -1

    def of_rows(values: Shaped[np.ndarray, " texts"]) -> pd.Series:
        return pd.Series(np.append(values, np.nan)[codes])

    def row(place: int) -> int:
        return int(np.argmax(codes == place)) + 1

    if (padded := is_padded(known)) is not None:
        notes.append(Note("leading zeros", name, values=(padded,)))
        as_text = True
    if as_text:
        return pd.Series(text, dtype=object)
    dates = None if target else find(name, codes, known)
    if isinstance(dates, Dates):
        return _of_dates(name, dates, written, notes)
    values, wrong = to_number(pd.Series(known, dtype=object))
    if not wrong.any():
        as_people_write = ((text, number_in(text)) for text in known if not is_number(text))  # such as (5), 5- or 1,352
        shown = next(((text, f"{value:.15g}") for text, value in as_people_write if value is not None), None)
        notes += [Note("read as", name, values=shown)] if shown else []
        return _of_numbers(name, column, of_rows(values).to_numpy(), notes)
    of_unit = not target or task == "regression" or (task is None and len(known) > MAX_CLASSES)
    if of_unit and (unit := unit_of(known)) is not None:
        values, written[name] = to_number(pd.Series(known, dtype=object), unit)[0], unit
        notes.append(Note("unit", name, values=(unit, known[0], float(values[0]))))
        return of_rows(values)
    numbers, count = (int(np.isin(codes, np.flatnonzero(of)).sum()) for of in (~np.isnan(values), wrong))
    first = int(np.argmax(wrong))
    few = numbers > 0 and count < WORDS * (numbers + count)
    if few and text_as_missing and not target:
        notes.append(Note("text as missing", name, count, tuple(known[wrong][:MOST_NAMED]), row(first)))
        return of_rows(values)
    if few and len(known) > MIXED_CATEGORIES:
        raise TableError(
            f"expected a number as in {numbers:,} other rows, got {known[first]!r} ({count:,} such rows); "
            "delete the row if it is a line of names or units, correct them, leave them blank, or say that they are "
            f"missing ({option('--text-as-missing', 'text_as_missing=True')})",
            name,
            row(first),
        )
    if numbers:
        notes.append(Note("mixed", name, count, (counted(numbers, "number"), known[first], ""), row(first)))
    elif dates is not None:
        notes.append(dates)
    return pd.Series(text, dtype=object)  # not pandas' own text type: None stays None


def _refuse_containers(name: str, column: pd.Series) -> None:
    if getattr(column.dtype, "kind", "") == "m":
        hint = option("", f": frame[{name!r}].dt.total_seconds() makes numbers of them")
        raise DataError(f"column {name!r}: expected numbers, text or dates, got durations{hint}")
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
