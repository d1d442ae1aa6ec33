"""What a run predicts of a row when some of its columns are others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch

from htaf.data.notes import Note
from htaf.rules.bits import Fitted, RulesError, TableBits, column_of
from htaf.runs import Run
from htaf.runs.predictions import predicted


@dataclass(frozen=True)
class WhatIf:
    """Predictions of rows as they are and as they would be.

    Attributes:
        before, after: as `htaf.runs.Run.predict` gives them.
        turned_on, turned_off: of each row the bits of the last hidden layer that change.
        notes: what was handled in the changed rows.
    """

    before: pd.DataFrame
    after: pd.DataFrame
    turned_on: tuple[tuple[int, ...], ...]
    turned_off: tuple[tuple[int, ...], ...]
    notes: tuple[Note, ...]


def what_if(model: Run | Fitted, changes: Mapping[str, Any], rows: pd.DataFrame) -> WhatIf:
    """What changes in the predictions of raw rows when columns have other values.

    Args:
        model: a run, from `htaf.runs.open_run`, or a fitted estimator.
        changes: raw values by column, as they would stand in the table: numbers, text, None or "" for missing.
        rows: the columns that it was trained on, by name.

    Raises:
        RulesError: no change, or a column that the network does not read.
        DataError: rows lack a column, or rows or changes hold values that cannot be used, such as text for a number.
    """
    bits = TableBits.of(model)
    if not isinstance(changes, Mapping):
        raise RulesError(f"expected values by column, then the rows, got {type(changes).__name__} first")
    if not changes:
        raise RulesError("expected at least one column to change, got none")
    before, outputs, _ = bits.of_rows(rows)
    changed = bits.preprocessor.named(rows)
    for name, value in changes.items():
        column_of(bits.preprocessor, name)
        # as a column of its own, as of a file: a whole number beside fractions must not become another category
        changed[name] = pd.Series([value] * len(rows), index=rows.index, dtype=object)
    after, others, told = bits.of_rows(changed)
    flips = after.astype(int) - before.astype(int)
    turned_on, turned_off = (tuple(tuple(np.flatnonzero(row == way).tolist()) for row in flips) for way in (1, -1))
    notes = tuple(note for note in told if note.column in changes)
    was, would_be = (predicted(torch.from_numpy(of), bits.preprocessor, changed.index) for of in (outputs, others))
    return WhatIf(was, would_be, turned_on, turned_off, notes)
