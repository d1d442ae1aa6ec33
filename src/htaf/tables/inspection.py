"""What a network says about a table: importance of raw columns, by scikit-learn, and reasons of a row; own are the
bounds of time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float32, Float64, Int64
from sklearn.dummy import DummyRegressor
from sklearn.inspection import permutation_importance
from torch import Tensor, nn

from htaf._ground.console import progress
from htaf._ground.errors import HtafError
from htaf.data.order import random_order
from htaf.data.preprocess import Preprocessor
from htaf.data.tabular import Table, frame_like
from htaf.training.runs import Run, UnknownSourceError, forward
from htaf.training.runs.metrics import (
    LOWER_IS_BETTER,
    Weights,
    decided,
    metrics_by_weight,
    probabilities,
)
from htaf.training.runs.run import rows_are_known, rows_for_figures
from htaf.transform.grid import settled

MOST_ROWS, LEAST_ROWS = 2_000, 20  # whose columns are shuffled
MOST_FORWARD = 200_000  # rows through the network, in all
MOST_REPEATS = 10
OTHERS = 200  # training rows whose values a row is given


class InspectionError(HtafError):
    """A run or a question that has no answer."""


@runtime_checkable
class Fitted(Protocol):
    """An estimator that is fitted: it holds its run."""

    run_: Run


def table_of(model: Run | Fitted) -> tuple[Run, Preprocessor]:
    """Open a run of a table, or that of a fitted estimator, and its preprocessing.

    Raises:
        InspectionError: a run of images, or an estimator before `fit`.
    """
    run = getattr(model, "run_", model)
    if not isinstance(run, Run):
        came = f"{type(model).__name__}{', not fitted' if hasattr(model, 'fit') else ''}"
        raise InspectionError(f"expected a run or a fitted HtafClassifier or HtafRegressor, got {came}")
    preprocessor = run.preprocessor()
    if not isinstance(preprocessor, Preprocessor):
        raise InspectionError(
            f"expected a run of a table, {run.path} was trained on images: its bits are read by htaf concepts, the "
            "reasons of an image by htaf predict --explain"
        )
    return run, preprocessor


def own_table(run: Run, data: Table | pd.DataFrame | None) -> Table:
    """Read the table of a run: the one given, or the one that its record names."""
    target = table_of(run)[1].target
    if isinstance(data, pd.DataFrame):
        if rows_are_known(run):
            raise InspectionError(
                f"{run.path} knows the rows of its training: expected its table or none, got a data frame"
            )
        return frame_like(data, target=target)
    try:
        found = run.data() if data is None else data
    except UnknownSourceError as error:
        raise InspectionError(f"{error.said}: give data=, a data frame with the column {target.name!r}") from None
    if not isinstance(found, Table):
        raise InspectionError(f"expected a table for {run.path}, got the images {found.name}")
    return found


def drawn(rows: Int64[np.ndarray, " part"], most: int) -> Int64[np.ndarray, " some"]:
    """Draw at most so many of the row numbers, and keep their order."""
    if len(rows) <= most:
        return rows
    return rows[np.sort(random_order(len(rows), 0, 2)[:most])]


def in_units(outputs: Tensor, preprocessor: Preprocessor) -> Float64[np.ndarray, "rows outputs"]:
    """Read a network's outputs as probabilities of classes, or numbers [rows, 1] in the unit of the target."""
    if preprocessor.target.task == "regression":
        return preprocessor.inverse(outputs[:, 0].double().numpy())[:, None]
    return probabilities(outputs).numpy()


# ---- importance ----


@dataclass(frozen=True)
class Importance:
    """How much worse a network is when one raw column is shuffled among the rows.

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
        """Write as plain JSON values."""
        columns = self.columns.astype(object).where(self.columns.notna(), None).reset_index().to_dict("records")
        return {k: v for k, v in vars(self).items() if k != "columns"} | {"columns": columns}


def importance(
    model: Run | Fitted,
    data: Table | pd.DataFrame | None = None,
    *,
    part: str = "test",
) -> Importance:
    """Measure the permutation importance (Breiman 2001) of the raw columns, by scikit-learn.

    Of the exact network; of a run without a step, method relu, of its network. A raw column is shuffled with all the
    inputs that are made of it, up to ten times, in at most 2,000 rows; where there are more than 100 columns, in fewer
    rows, 100 at least. Columns that say the same share their importance, so a column of little importance need not be a
    useless one. The report of a run and `htaf explain` have these figures.

    Args:
        model: a run, from `htaf.runs.open_run`, or a fitted estimator.
        data: the table that it was trained on; None: `run.data()`, which reads it. Of an estimator or a run on a data
            frame any labelled rows, all of which are looked at; give rows that were held out.
        part: "train", "validation" or "test", where the rows of the training are known.

    Raises:
        InspectionError: a run of images, or no such part.
        RunError: another table than that of the training.
    """
    run, preprocessor = table_of(model)
    table = own_table(run, data)
    parts = rows_for_figures(run, table)
    if part not in ("train", "validation", "test"):
        raise InspectionError(f"expected a part of train, validation, test, got {part!r}")
    columns = sum(column.kind != "dropped" for column in preprocessor.columns)
    most = int(np.clip(MOST_FORWARD // max(1, columns), LEAST_ROWS, MOST_ROWS))
    chosen = drawn(getattr(parts, part), most)
    target = torch.from_numpy(preprocessor.encode_target(table.target[chosen]))
    target = target.float().unsqueeze(1) if preprocessor.target.task == "regression" else target.long()
    return network_importance(
        run.model(exact=run.has_step), preprocessor, table.features.iloc[chosen], target,
        headline=run.record["headline"], weights=table.weights_of(chosen),
    )  # fmt: skip


def network_importance(
    network: nn.Module,
    preprocessor: Preprocessor,
    features: pd.DataFrame,
    target: Tensor,
    *,
    headline: str,
    weights: Weights | None = None,
) -> Importance:
    """Measure the `importance` of a network in memory.

    Args:
        network: the one to measure. features: raw rows, as the preprocessing takes them.
        target: as the network learns it. headline: "rmse", "auroc" or "accuracy".
        weights: how much each row counts; None: all alike. Others as of `importance`.
    """
    network, rows = settled(network), len(features)  # weights on a grid are rounded once, not for each column
    names = [c.name for c in preprocessor.columns if c.kind != "dropped" and c.name in features]
    inputs, blocks = preprocessor.transform(features.reset_index(drop=True)), [*map(preprocessor.inputs_of, names)]
    own = np.tile(np.arange(rows)[:, None], len(names))  # from which row each row takes each raw column
    of = (target, preprocessor.target.task, preprocessor.target.std)
    how: Any = {"weights": weights, "threshold": preprocessor.target.threshold}

    def measured(from_row: Int64[np.ndarray, "rows columns"]) -> dict[str, float]:
        made = inputs.copy()
        for place in np.flatnonzero((from_row != own).any(0)).tolist():  # all inputs of a raw column move together
            made[:, blocks[place]] = inputs[from_row[:, place]][:, blocks[place]]
        return metrics_by_weight(forward(network, torch.from_numpy(made)), *of, **how)(np.ones(rows))

    def score(_: object, from_row: Int64[np.ndarray, "rows columns"], y: object) -> float:
        advance()
        return -sign * measured(from_row)[metric]

    before = measured(own)
    metric = headline if np.isfinite(before[headline]) else "loss"
    sign = 1.0 if metric in LOWER_IS_BETTER else -1.0
    repeats = int(np.clip(MOST_FORWARD // max(1, rows * len(names)), 1, MOST_REPEATS))
    frame = pd.DataFrame({"worse": [], "std": []}, dtype=np.float64)
    if names:
        trained = DummyRegressor()  # the network is trained: it is `score` that asks it
        with progress("importance of columns", repeats * len(names), shown=None) as advance:
            found: Any = permutation_importance(trained, own, None, scoring=score, n_repeats=repeats, random_state=0)
        frame = pd.DataFrame({"worse": found.importances_mean, "std": found.importances_std}, index=names)
    frame = frame.rename_axis("column").sort_values("worse", ascending=False, kind="stable")
    return Importance(metric, before[metric], rows, repeats, frame)


# ---- reasons of a row ----


@dataclass(frozen=True)
class RowReasons:
    """What the values of one row add to its decision, column by column.

    Attributes:
        prediction: a class, or a number. instead: the class with the next highest logit; None of a regression.
        decision: the prediction, or the logit of its class minus that of the next one.
        columns: index the column; `adds`, the decision minus its mean when the column has the values of 200 training
            rows, one after the other, and all others stay; `std`, the standard deviation over the values; the largest
            |adds| first. Columns are looked at one by one, so what takes two of them together is in neither or in both.
    """

    prediction: str | float
    instead: str | None
    decision: float
    columns: pd.DataFrame


def reasons(model: Run | Fitted, row: pd.DataFrame, data: Table | pd.DataFrame | None = None) -> RowReasons:
    """Say why the exact network predicts what it does of one row; of a run without a step, method relu, its network.

    Args:
        model: a run, from `htaf.runs.open_run`, or a fitted estimator.
        row: raw columns by name, one row.
        data: the table that it was trained on; None: `run.data()`, which reads it. Of an estimator or a run on a data
            frame any labelled rows.

    Raises:
        InspectionError: a run of images, or not one row; a data frame where the rows of the training are known.
        RunError: another table than that of the training. DataError: rows without a column or the target.
    """
    run, preprocessor = table_of(model)
    table = own_table(run, data)
    if len(row) != 1:
        raise InspectionError(f"expected one row, got {len(row)}: ask for each by itself, as row.iloc[[0]]")
    network, target = run.model(exact=run.has_step), preprocessor.target
    inputs = preprocessor.transform(row)
    outputs, first, second = forward(network, torch.from_numpy(inputs)), 0, 0
    if target.classes:  # by a threshold the other one may have the higher logit
        first = int(decided(outputs, target.threshold)[0])
        second = next(place for place in outputs[0].argsort(descending=True, stable=True).tolist() if place != first)

    def decision(inputs: Float32[np.ndarray, "rows inputs"]) -> Float64[np.ndarray, " rows"]:
        outputs = forward(network, torch.from_numpy(inputs)).double().numpy()
        return outputs[:, first] - outputs[:, second] if target.classes else preprocessor.inverse(outputs[:, 0])

    chosen = drawn(rows_for_figures(run, table).train, OTHERS)
    others, own, found = preprocessor.transform(table.features.iloc[chosen]), float(decision(inputs)[0]), {}
    for name in (column.name for column in preprocessor.columns if column.kind != "dropped"):
        block = preprocessor.inputs_of(name)
        moved = np.repeat(inputs, len(others), axis=0)
        moved[:, block] = others[:, block]
        values = decision(moved) if len(block) else np.array([own])
        found[name] = (float(own - values.mean()), float(values.std()))
    frame = pd.DataFrame.from_dict(found, orient="index", columns=["adds", "std"]).rename_axis("column")
    frame = frame.sort_values("adds", key=lambda of: -of.abs(), kind="stable")
    if not target.classes:
        return RowReasons(own, None, own, frame)
    return RowReasons(target.classes[first], target.classes[second], own, frame)
