"""Permutation importance of raw columns on the exact network of a run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch

from htaf.data.tabular import Table
from htaf.rules.bits import RulesError, TableBits
from htaf.rules.explanation import MOST_ROWS, drawn, own_table
from htaf.runs import Run, forward
from htaf.runs.data import table_rows
from htaf.runs.metrics import LOWER_IS_BETTER, metrics

REPEATS = 10


@dataclass(frozen=True)
class Importance:
    """How much worse the exact network is when one raw column is shuffled among the rows.

    Attributes:
        metric: of the run: rmse, auroc or accuracy; loss where that is not defined on these rows.
        value: of the metric on the rows as they are. rows: how many. repeats: shuffles of each column.
        columns: index the column; `worse` mean over the repeats of how much worse the metric gets (above 0 is worse,
            of every metric), `std` its standard deviation over the repeats; the largest first.
    """

    metric: str
    value: float
    rows: int
    repeats: int
    columns: pd.DataFrame

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values."""
        columns = [
            {"column": name, "worse": float(row["worse"]), "std": float(row["std"])}
            for name, row in self.columns.iterrows()
        ]
        return {k: v for k, v in vars(self).items() if k != "columns"} | {"columns": columns}


def importance(
    run: Run,
    data: Table | None = None,
    *,
    part: str = "test",
    repeats: int = REPEATS,
    seed: int = 0,
    most_rows: int = MOST_ROWS,
    told: Callable[[], object] = lambda: None,
) -> Importance:
    """Permutation importance (Breiman 2001) of the raw columns, as in `sklearn.inspection.permutation_importance`.

    A raw column is shuffled with all the inputs that are made of it. Rows are prepared once: the inputs of a column are
    those that change when the raw column is moved on by a row. Columns that say the same share their importance, so a
    column of little importance need not be a useless one.

    Args:
        run: from `htaf.runs.open_run`. data: the table that it was trained on; None: `run.data()`, which reads it.
        part: "train", "validation" or "test". repeats: shuffles of each column, >= 1. seed: of the shuffles.
        most_rows: of a larger part so many are drawn. told: called after each column, for progress.

    Raises:
        RulesError: a run of images or without bits, no such part, or less than one repeat.
        RunError: another table than that of the training.
    """
    bits, table = TableBits.of(run), own_table(run, data)
    parts = table_rows(run, table)
    if part not in ("train", "validation", "test"):
        raise RulesError(f"expected a part of train, validation, test, got {part!r}")
    if repeats < 1:
        raise RulesError(f"expected at least one repeat, got {repeats}")
    chosen = drawn(getattr(parts, part), most_rows, seed)
    rows, target = table.features.iloc[chosen], table.target[chosen]
    preprocessor = bits.preprocessor
    inputs = preprocessor.transform(rows)
    y = torch.from_numpy(preprocessor.encode_target(target))
    y = y.float().unsqueeze(1) if bits.regression else y.long()

    def measured(x: np.ndarray) -> dict[str, float | None]:
        outputs = forward(bits.network, torch.from_numpy(x))
        return metrics(outputs, y, preprocessor.target.task, preprocessor.target.std)

    base = measured(inputs)
    metric = run.record["headline"] if base.get(run.record["headline"]) is not None else "loss"
    value = base[metric] or 0.0
    sign = 1 if metric in LOWER_IS_BETTER else -1
    found: dict[str, tuple[float, float]] = {}
    for place, column in enumerate(preprocessor.columns):
        if column.kind == "dropped":
            continue
        moved = rows.assign(**{column.name: np.roll(rows[column.name].to_numpy(), 1)})
        own = np.flatnonzero((preprocessor.transform(moved) != inputs).any(0))
        worse = []
        random = np.random.default_rng([seed, place])
        for _ in range(repeats if len(own) else 0):
            shuffled = inputs.copy()
            shuffled[:, own] = inputs[random.permutation(len(inputs))][:, own]
            worse.append(sign * ((measured(shuffled)[metric] or 0.0) - value))
        found[column.name] = (float(np.mean(worse)), float(np.std(worse))) if worse else (0.0, 0.0)
        told()
    frame = pd.DataFrame.from_dict(found, orient="index", columns=["worse", "std"]).rename_axis("column")
    frame = frame.sort_values("worse", ascending=False, kind="stable")
    return Importance(metric, float(value), len(rows), repeats, frame)
