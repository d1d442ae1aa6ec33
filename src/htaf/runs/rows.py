"""Predictions of tables in pieces: ids beside them, notes of all pieces in one, values outside the training range."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from torch import nn

from htaf._errors import suggestion
from htaf.data.columns import Column
from htaf.data.reading import NUMBER_BLANKS, DataError, counted, listed, to_number
from htaf.runs.predictions import of_rows

if TYPE_CHECKING:
    from htaf.data.preprocess import Preprocessor

SHOWN = 5  # columns in a note


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
        self._notes: dict[tuple[str, str], _Counted] = {}

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
        kinds = {column.name: column.kind for column in self.preprocessor.columns}
        typed = {str(n): parsed_numbers(rows[n]) for n in rows.columns if kinds.get(str(n)) == "number"}
        typed_rows = rows.assign(**typed) if typed else rows
        try:
            found, notes = of_rows(self.model, self.preprocessor, typed_rows)
        except DataError as error:
            raise DataError(
                re.sub(r"\brow (\d+)\b", lambda m: f"row {int(m[1]) + self.rows}", str(error), count=1)
            ) from None
        if taken := [name for name in self.ids if name in found.columns]:
            raise DataError(f"--id: expected other columns than those of the predictions, got {listed(taken)}")
        self._outside.see(typed_rows)
        for note in notes:
            self._see(note)
        self.rows += len(rows)
        return pd.concat([rows[self.ids], found], axis=1) if self.ids else found

    def notes(self) -> list[str]:
        """What was handled in all rows up to now, one line each."""
        outside = self._outside.note()
        return [*map(str, self._notes.values()), *([outside] if outside else [])]

    def _see(self, note: str) -> None:
        parts = re.match(r"(column .*?: )([\d,]+) (missing value|row)s?\b(.*)", note)
        if parts is None:
            self._notes.setdefault((note, ""), _Counted(note))
            return
        before, count, noun, after = parts.groups()
        known = self._notes.setdefault((before, noun), _Counted(before, 0, noun, after))
        known.count += int(count.replace(",", ""))
        if known.after != after and "(first " not in known.after:
            known.after = known.after.replace("(", "(first ", 1)


@dataclass
class _Counted:
    """A note with a count in it, which further pieces of a table raise."""

    before: str
    count: int = 0
    noun: str = ""
    after: str = ""

    def __str__(self) -> str:
        return f"{self.before}{counted(self.count, self.noun) if self.noun else ''}{self.after}"


class OutsideRange:
    """Counts rows with numbers outside the range that the training part had.

    Args:
        preprocessor: its columns of numbers with low < high are looked at; missing values and special codes are not.
    """

    def __init__(self, preprocessor: Preprocessor) -> None:
        self.columns: list[Column] = [c for c in preprocessor.columns if c.kind == "number" and c.high > c.low]
        self.codes = preprocessor.special_codes
        self.rows = 0
        self.found: dict[str, tuple[int, float, float]] = {}  # rows, smallest and largest outside

    def see(self, rows: pd.DataFrame) -> None:
        """Raw rows that `Preprocessor.transform` takes."""
        any_outside = np.zeros(len(rows), dtype=bool)
        for column in self.columns:
            values = to_number(rows[column.name])[0]
            outside = (values < column.low) | (values > column.high)
            if self.codes:
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
        ranges = {column.name: (column.low, column.high) for column in self.columns}
        shown = []
        for name, (count, low, high) in sorted(self.found.items(), key=lambda item: -item[1][0])[:SHOWN]:
            least, most = ranges[name]
            beyond = [f"down to {low:g}"] * (low < least) + [f"up to {high:g}"] * (high > most)
            extent = f"{' and '.join(beyond)} where training had {least:g} to {most:g}"
            shown.append(f"{name} ({counted(count, 'row')}, {extent})")
        more = len(self.found) - len(shown)
        rest = f" and {counted(more, 'more column')}" if more > 0 else ""
        have = "has" if self.rows == 1 else "have"
        return f"{counted(self.rows, 'row')} {have} values outside the range of training: {', '.join(shown)}{rest}"


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
