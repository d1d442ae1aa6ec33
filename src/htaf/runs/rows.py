"""Predictions of tables in pieces: ids beside them, notes of all pieces in one, values outside the training range."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from torch import nn

from htaf._errors import suggestion
from htaf.data import dates
from htaf.data.columns import Column
from htaf.data.reading import NUMBER_BLANKS, DataError, counted, listed, to_number
from htaf.runs.predictions import of_rows

if TYPE_CHECKING:
    from htaf.data.preprocess import Preprocessor

SHOWN, LISTED = 5, 10  # columns in a note of values out of range, and of missing values
ELAPSED = dates.PARTS[-1]


class RowPredictions:
    """Predicts tables that come in pieces; the pieces count as one table in notes and in row numbers of errors.

    Args:
        model: [rows, inputs] -> [rows, outputs], exact or smooth, in eval mode.
        preprocessor: of its inputs.
        ids: columns of the rows that stay beside the predictions.
    """

    def __init__(self, model: nn.Module, preprocessor: Preprocessor, ids: Sequence[str] = ()) -> None:
        self.model, self.preprocessor, self.ids = model, preprocessor, [*ids]
        self.rows = 0
        self._outside = OutsideRange(preprocessor)
        self._notes = _PiecesNotes([column.name for column in preprocessor.columns])

    def predict(self, rows: pd.DataFrame) -> pd.DataFrame:
        """The next piece.

        Args:
            rows: raw columns by name, and the ids; other columns are ignored.

        Returns:
            The ids as they are, then the columns of `htaf.runs.Run.predict`.

        Raises:
            DataError: as `htaf.runs.Run.predict`; no column of an id, or one named as a column of predictions.
        """
        for name in self.ids:
            if name not in rows.columns:
                near = suggestion(name, [*map(str, rows.columns)])
                raise DataError(
                    f"--id: expected a column of the input, got {name!r}{near}; it has {listed([*map(str, rows)])}"
                )
        columns = {column.name: column for column in self.preprocessor.columns}
        kinds = {str(n): columns[str(n)].kind for n in rows.columns if str(n) in columns}
        typed = {n: parsed_numbers(rows[n]) for n, kind in kinds.items() if kind == "number"}
        try:
            for n in (n for n, kind in kinds.items() if kind == "date"):
                typed[n] = pd.Series(dates.read(n, rows[n], columns[n].order), index=rows.index)
            typed_rows = rows.assign(**typed) if typed else rows
            beside = [name for name in self.ids if name not in columns and name not in self.preprocessor.ids]
            found, notes = of_rows(self.model, self.preprocessor, typed_rows.drop(columns=beside))
        except DataError as error:
            raise DataError(
                re.sub(r"\brow (\d+)\b", lambda m: f"row {int(m[1]) + self.rows}", str(error), count=1)
            ) from None
        known = {*self.preprocessor.ids} - {"prediction"}  # are there already
        if taken := [name for name in self.ids if name in found.columns and name not in known]:
            raise DataError(f"--id: expected other columns than those of the predictions, got {listed(taken)}")
        self._outside.see(typed_rows)
        for note in notes:
            self._notes.see(note)
        self.rows += len(rows)
        ids = [name for name in self.ids if name not in known]
        return pd.concat([rows[ids], found], axis=1) if ids else found

    def notes(self) -> list[str]:
        """What was handled in all rows up to now, one line each."""
        outside = self._outside.note()
        return [*self._notes.told(), *([outside] if outside else [])]


_NAME = r"(?:'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")"  # as repr writes it
_UNSEEN = re.compile(rf"column ({_NAME}): ([\d,]+) rows? with (categories .*?) \((.*)\), (.*)", re.DOTALL)
_MEDIAN = re.compile(r"(missing values set to the training median: )(.*)", re.DOTALL)
_MISSING = re.compile(rf"([\d,]+) in ({_NAME}) \(([^)]*)\)")
_MORE = re.compile(r" and ([\d,]+) more(?: columns?)?$")
NAMES = 3  # categories in a note


class _PiecesNotes:
    """Notes of `Preprocessor.transform_with_notes` of pieces as one note of the whole each.

    Where a piece names so many categories or columns that the rest is only counted, the rest of the whole is at least
    what is known of it.

    Args:
        columns: raw columns, in order.
    """

    def __init__(self, columns: Sequence[str]) -> None:
        self.order = {repr(name): place for place, name in enumerate(columns)}
        self.other: dict[str, None] = {}
        self.unseen: dict[str, _Unseen] = {}
        self.median, self.missing, self.cut, self.pieces = "", dict[str, tuple[int, str]](), 0, 0

    def see(self, note: str) -> None:
        """A note of the next piece."""
        if parts := _UNSEEN.fullmatch(note):
            column, count, what, names, instead = parts.groups()
            known = self.unseen.setdefault(column, _Unseen(what, instead))
            known.rows += _number(count)
            names, cut = _without_more(names)
            known.names |= dict.fromkeys(re.findall(_NAME, names))
            known.cut, known.pieces = max(known.cut, cut), known.pieces + 1
        elif parts := _MEDIAN.fullmatch(note):
            self.median = parts[1]
            listed, cut = _without_more(parts[2])
            self.cut, self.pieces = max(self.cut, cut), self.pieces + 1
            for count, column, fill in _MISSING.findall(listed):
                self.missing[column] = (self.missing.get(column, (0, ""))[0] + _number(count), fill)
        else:
            self.other[note] = None

    def told(self) -> list[str]:
        """One line each, in the order of the whole."""

        def in_order(found: Iterable[str]) -> list[str]:
            return sorted(found, key=lambda name: self.order.get(name, len(self.order)))

        found = [*self.other, *(f"column {name}: {self.unseen[name]}" for name in in_order(self.unseen))]
        if self.missing:
            each = [f"{self.missing[n][0]:,} in {n} ({self.missing[n][1]})" for n in in_order(self.missing)]
            found.append(self.median + _first(each, LISTED, self.cut, self.pieces, " more column"))
        return found


@dataclass
class _Unseen:
    """Rows of a column with unknown categories."""

    what: str
    instead: str
    rows: int = 0
    names: dict[str, None] = field(default_factory=dict)
    cut: int = 0
    pieces: int = 0

    def __str__(self) -> str:
        names = _first([*self.names], NAMES, self.cut, self.pieces, " more")
        return f"{counted(self.rows, 'row')} with {self.what} ({names}), {self.instead}"


def _first(shown: list[str], limit: int, cut: int, pieces: int, noun: str) -> str:
    """The first of many. cut: most that were not shown in one of so many pieces."""
    more = max(len(shown) - limit, cut)
    least = "at least " if cut and pieces > 1 else ""
    plural = "s" if more > 1 and noun.endswith("column") else ""
    return ", ".join(shown[:limit]) + (f" and {least}{more:,}{noun}{plural}" if more > 0 else "")


def _number(text: str) -> int:
    return int(text.replace(",", ""))


def _without_more(text: str) -> tuple[str, int]:
    more = _MORE.search(text)
    return (text[: more.start()], _number(more[1])) if more else (text, 0)


class OutsideRange:
    """Counts rows with numbers or dates outside the range that the training part had.

    Args:
        preprocessor: its columns of numbers with low < high and those of dates are looked at; missing values and
            special codes are not.
    """

    def __init__(self, preprocessor: Preprocessor) -> None:
        self.columns: list[Column] = []
        self.ranges: dict[str, tuple[float, float]] = {}  # of dates in days since the first
        for column in preprocessor.columns:
            if column.kind == "number" and column.high > column.low:
                self.ranges[column.name] = (column.low, column.high)
            elif column.kind == "date" and ELAPSED in column.outputs:
                place = column.outputs.index(ELAPSED)
                self.ranges[column.name] = (column.lows[place], column.highs[place])
            else:
                continue
            self.columns.append(column)
        self.codes = preprocessor.special_codes
        self.rows = 0
        self.found: dict[str, tuple[int, float, float]] = {}  # rows, smallest and largest outside

    def see(self, rows: pd.DataFrame) -> None:
        """Raw rows that `Preprocessor.transform` takes."""
        any_outside = np.zeros(len(rows), dtype=bool)
        for column in self.columns:
            least, most = self.ranges[column.name]
            if column.kind == "date":
                moments = dates.read(column.name, rows[column.name], column.order)
                since = (moments - np.datetime64(column.first, "us")).astype(np.int64) / dates.DAY
                values = np.where(np.isnat(moments), np.nan, since)
            else:
                values = to_number(rows[column.name])[0]
            outside = (values < least) | (values > most)
            if self.codes and column.kind == "number":
                outside &= ~np.isin(values, self.codes)
            if outside.any():
                any_outside |= outside
                count, low, high = self.found.get(column.name, (0, np.inf, -np.inf))
                some = values[outside]
                found = (count + len(some), min(low, float(some.min())), max(high, float(some.max())))
                self.found[column.name] = found
        self.rows += int(any_outside.sum())

    def note(self) -> str:
        """One line, such as "2 rows have values outside the range of training: age (2 rows, up to 131 where training
        had 18 to 95)"; "" where there are none."""
        if not self.rows:
            return ""
        columns = {column.name: column for column in self.columns}
        shown, in_order = [], [(name, self.found[name]) for name in columns if name in self.found]
        for name, (count, low, high) in sorted(in_order, key=lambda item: -item[1][0])[:SHOWN]:
            least, most = self.ranges[name]
            said = _in_words(columns[name], (low, high, least, most))
            beyond = [f"down to {said[0]}"] * (low < least) + [f"up to {said[1]}"] * (high > most)
            extent = f"{' and '.join(beyond)} where training had {said[2]} to {said[3]}"
            shown.append(f"{name} ({counted(count, 'row')}, {extent})")
        more = len(self.found) - len(shown)
        rest = f" and {counted(more, 'more column')}" if more > 0 else ""
        have = "has" if self.rows == 1 else "have"
        return f"{counted(self.rows, 'row')} {have} values outside the range of training: {', '.join(shown)}{rest}"


def _in_words(column: Column, values: Sequence[float]) -> list[str]:
    """Values of a column as a note shows them; dates with their time where days alone are not told apart."""
    if column.kind == "number":
        return [f"{value:g}" for value in values]
    first = np.datetime64(column.first, "us")
    known = sorted(value for value in {*values} if np.isfinite(value))
    moments = {value: first + np.timedelta64(round(value * dates.DAY), "us") for value in known}
    days = {value: str(moment.astype("M8[D]")) for value, moment in moments.items()}
    if len({*days.values()}) < len(days):
        days = {value: str(moment.astype("M8[s]")) for value, moment in moments.items()}
    return [days[value] for value in values]


def parsed_numbers(column: pd.Series) -> pd.Series:
    """A column of texts as float64 where each is a number or blank, as `to_number` reads it but faster; else as it is.

    Args:
        column: any dtype, [rows].
    """
    if pd.api.types.is_numeric_dtype(column) or pd.api.types.is_bool_dtype(column):
        return column
    values = column.to_numpy(dtype=object, copy=True)
    try:
        blank = np.array([value.strip().lower() in NUMBER_BLANKS for value in values], dtype=bool)
        if "_" in "".join(values):  # float() reads 1_000, a table does not
            return column
        values[blank] = "nan"
        numbers = values.astype(np.float64)
        return column if np.isinf(numbers).any() else pd.Series(numbers, index=column.index)  # an error names the text
    except (AttributeError, TypeError, ValueError):
        return column
