"""What a run predicts of a row when some of its columns are others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch

from htaf.data.notes import Note
from htaf.data.tabular import Table
from htaf.rules.bits import RulesError, TableBits
from htaf.rules.explanation import drawn, own_table
from htaf.rules.raw_columns import RARE, read
from htaf.runs import Run
from htaf.runs.data import rows_for_looking
from htaf.runs.predictions import predicted

QUANTILES = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0)
CATEGORIES = 12  # that are tried of a category column
AVERAGED = 2_000  # test rows


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


def what_if(run: Run, rows: pd.DataFrame, changes: Mapping[str, Any]) -> WhatIf:
    """What changes in the predictions of raw rows when columns have other values.

    Args:
        run: from `htaf.runs.open_run`. rows: the columns that the run was trained on, by name.
        changes: raw values by column, as they would stand in the table: numbers, text, None or "" for missing.

    Raises:
        RulesError: no change, or a column that the network does not read.
        DataError: rows lack a column, or rows or changes hold values that cannot be used, such as text for a number.
    """
    bits = TableBits.of(run)
    if not changes:
        raise RulesError("expected at least one column to change, got none")
    before, outputs, _ = bits.of_rows(rows)
    changed = bits.preprocessor.named(rows)
    for name, value in changes.items():
        bits.column(name)
        # as a column of its own, as of a file: a whole number beside fractions must not become another category
        changed[name] = pd.Series([value] * len(rows), index=rows.index, dtype=object)
    after, others, told = bits.of_rows(changed)
    flips = after.astype(int) - before.astype(int)
    turned_on, turned_off = (tuple(tuple(np.flatnonzero(row == way).tolist()) for row in flips) for way in (1, -1))
    notes = tuple(note for note in told if note.column in changes)
    was, would_be = (predicted(torch.from_numpy(of), bits.preprocessor, changed.index) for of in (outputs, others))
    return WhatIf(was, would_be, turned_on, turned_off, notes)


def vary(
    run: Run, column: str, rows: pd.DataFrame | None = None, *, data: Table | pd.DataFrame | None = None, seed: int = 0
) -> pd.DataFrame:
    """The prediction over the values of one column.

    Args:
        run: from `htaf.runs.open_run`. column: of the table, one that the network reads.
        rows: raw rows; None: up to 2,000 rows of the test part.
        data: the table that the run was trained on; None: `run.data()`, which reads it.
            As `explain` takes it.
        seed: of the rows that are drawn.

    Returns:
        A row for each value. Of a number column: `share`, of the training values that are at most this one (0, 10, 25,
        50, 75, 90 and 100%), and `value`; of dates the same, as ISO 8601; where blanks are told, last "" with the share
        of the training rows that are blank. Of a category: `share` of the training rows that have it, and `value`, for
        the 12 that have most ("" for missing). Spellings that the network reads alike are one; rare categories that
        share an input are left out. Then the mean over the rows: `prediction` of a
        regression, else `probability_<class>` for each class.

    Raises:
        RulesError: a column that the network does not read. RunError: another table than that of the training.
    """
    bits, table = TableBits.of(run), own_table(run, data)
    parts = rows_for_looking(run, table)
    known, training = bits.column(column), table.features[column].iloc[parts.train]
    given = table.features.iloc[drawn(parts.test, AVERAGED, seed)] if rows is None else bits.preprocessor.named(rows)
    values = read(known, training)
    if known.kind in ("category", "encoded"):
        count = pd.Series(values[values != RARE]).value_counts(sort=True)
        tried = [(n / len(training), str(name)) for name, n in count.head(CATEGORIES).items()]
    else:
        plain = values[~np.isnan(values)]
        if not len(plain):
            raise RulesError(f"column {column!r}: expected training rows with a number, got none")
        found = np.quantile(plain, QUANTILES, method="inverted_cdf")
        as_given = _date if known.kind == "date" else float
        tried = [(share, as_given(value)) for share, value in zip(QUANTILES, found, strict=True)]
        if found[0] == found[-1]:  # a flag
            tried = [(len(plain) / len(values), as_given(found[0]))]
        if known.missing:
            tried.append((float(np.isnan(values).mean()), ""))
    made = []
    for share, value in tried:
        changed = given.copy()
        changed[column] = pd.Series([value] * len(given), index=given.index, dtype=object)
        frame = predicted(torch.from_numpy(bits.of_rows(changed)[1]), bits.preprocessor, changed.index)
        mean = frame.drop(columns=[] if bits.regression else "prediction").mean()
        made.append({"share": share, "value": value, **mean.to_dict()})
    return pd.DataFrame(made)


def _date(days: float) -> str:
    """A point in time as ISO 8601, without the hour where it is midnight."""
    moment = pd.Timestamp(0) + pd.Timedelta(days=days).round("us")
    return str(moment.date()) if moment == moment.normalize() else str(moment.round("s"))
