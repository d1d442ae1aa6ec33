"""Predictions of tables in pieces: ids beside them, notes of all pieces in one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pandas as pd
from torch import nn

from htaf._errors import listed, suggestion
from htaf.data.notes import OF_COLUMNS, Note, together
from htaf.data.reading import DataError, TableError
from htaf.runs.predictions import of_rows

if TYPE_CHECKING:
    from htaf.data.preprocess import Preprocessor


class RowPredictions:
    """Predicts tables that come in pieces; the pieces count as one table in notes and in row numbers of errors.

    Args:
        model: [rows, inputs] -> [rows, outputs], exact or smooth, in eval mode.
        preprocessor: of its inputs.
        ids: columns of the rows that stay beside the predictions.
        text_as_missing: as of `htaf.runs.Run.predict`.
    """

    def __init__(
        self, model: nn.Module, preprocessor: Preprocessor, ids: Sequence[str] = (), *, text_as_missing: bool = False
    ) -> None:
        self.model, self.preprocessor, self.ids, self.text_as_missing = model, preprocessor, [*ids], text_as_missing
        self.rows = 0
        self._numbers = {column.name for column in preprocessor.columns if column.kind == "number"}
        self._numbers -= {*preprocessor.ids}
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
        columns = {*(column.name for column in self.preprocessor.columns), *self.preprocessor.ids}
        try:
            beside = [name for name in self.ids if name not in columns]
            found, notes = of_rows(
                self.model, self.preprocessor, rows.drop(columns=beside), text_as_missing=self.text_as_missing
            )
        except TableError as error:
            error.row += self.rows
            raise
        known = {*self.preprocessor.ids} - {"prediction"}  # are there already
        if taken := [name for name in self.ids if name in found.columns and name not in known]:
            raise DataError(f"--id: expected other columns than those of the predictions, got {listed(taken)}")
        self._notes = together([*self._notes, *notes])
        self.rows += len(rows)
        ids = [name for name in self.ids if name not in known]
        made = pd.concat([rows[ids], found], axis=1) if ids else found
        return made.astype({name: object for name, kind in made.dtypes.items() if kind == "category"})

    def notes(self) -> list[Note]:
        """What was handled in all rows up to now, in the order of the columns."""
        places = {column.name: place for place, column in enumerate(self.preprocessor.columns)}
        return sorted(self._notes, key=lambda note: (note.kind in OF_COLUMNS, places.get(note.column, -1)))
