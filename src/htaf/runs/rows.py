"""Predictions of tables in pieces: ids beside them, notes of all pieces in one, values outside the training range."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from torch import nn

from htaf._errors import listed, suggestion
from htaf.data import dates
from htaf.data.columns import Column
from htaf.data.notes import OF_COLUMNS, Note, together
from htaf.data.reading import DataError, TableError, to_number
from htaf.runs.predictions import of_rows

if TYPE_CHECKING:
    from htaf.data.preprocess import Preprocessor

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
        self._numbers = {column.name for column in preprocessor.columns if column.kind == "number"}
        self._numbers -= {*preprocessor.ids}
        self._outside = OutsideRange(preprocessor)
        self._notes: list[Note] = []

    def reads_numbers(self, name: str) -> bool:
        """Whether a column is read as a number, and not also as it stands; as `read_pieces` asks."""
        return name not in self.ids and name in self._numbers

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
        known_rows = rows
        try:
            for name in (name for name in columns if columns[name].kind == "date" and name in rows):
                moments = dates.read(name, rows[name], columns[name].order)
                known_rows = known_rows.assign(**{name: pd.Series(moments, index=rows.index)})  # read once
            beside = [name for name in self.ids if name not in columns and name not in self.preprocessor.ids]
            found, notes = of_rows(self.model, self.preprocessor, known_rows.drop(columns=beside))
        except TableError as error:
            error.row += self.rows
            raise
        known = {*self.preprocessor.ids} - {"prediction"}  # are there already
        if taken := [name for name in self.ids if name in found.columns and name not in known]:
            raise DataError(f"--id: expected other columns than those of the predictions, got {listed(taken)}")
        self._outside.see(known_rows)
        self._notes = together([*self._notes, *notes])
        self.rows += len(rows)
        ids = [name for name in self.ids if name not in known]
        made = pd.concat([rows[ids], found], axis=1) if ids else found
        return made.astype({name: object for name, kind in made.dtypes.items() if kind == "category"})

    def notes(self) -> list[Note]:
        """What was handled in all rows up to now, in the order of the columns."""
        places = {column.name: place for place, column in enumerate(self.preprocessor.columns)}
        in_order = sorted(self._notes, key=lambda note: (note.kind in OF_COLUMNS, places.get(note.column, -1)))
        outside = self._outside.note()
        return in_order if outside is None else [*in_order, outside]


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

    def note(self) -> Note | None:
        """All rows and, of each column, those outside, how far they are and what training had; the column with most
        rows comes first. None where there are none."""
        if not self.rows:
            return None
        found = [(column, *self.found[column.name]) for column in self.columns if column.name in self.found]
        values = []
        for column, count, low, high in sorted(found, key=lambda item: -item[1]):
            least, most = self.ranges[column.name]
            down, up, *range_of_training = _in_words(column, (low, high, least, most))
            beyond = (down if low < least else "", up if high > most else "")
            values.append((column.name, count, *beyond, *range_of_training))
        return Note("outside", count=self.rows, values=tuple(values))


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
