"""Importance and partial dependence of raw columns, by scikit-learn; own are the bounds of time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float32, Float64, Int64
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.inspection import partial_dependence, permutation_importance
from torch import Tensor, nn

from htaf.data.columns import Column
from htaf.data.preprocess import Preprocessor
from htaf.data.tabular import Table
from htaf.tables.rules.bits import Fitted, RulesError, answers, column_of, drawn, own_table, table_of
from htaf.tables.rules.conditions import RARE, read
from htaf.training.runs import Run, forward
from htaf.training.runs.data import rows_for_figures
from htaf.training.runs.metrics import LOWER_IS_BETTER, Weights, metrics_by_weight
from htaf.transform.grid import settled

MOST_ROWS, LEAST_ROWS = 2_000, 20  # whose columns are shuffled
MOST_FORWARD = 200_000  # rows through the network, in all
MOST_REPEATS = 10
QUANTILES = (0.01, *(k / 20 for k in range(1, 20)), 0.99)  # values of a curve
FEW = 12  # distinct numbers that are all tried; categories that are tried
CURVES = 500  # test rows whose curves are drawn
Tried = tuple[float, float | str, float | str]  # the share of the training rows, the value, and as a table has it


class ByRowNumber(RegressorMixin, BaseEstimator):
    """A network as an estimator of scikit-learn, over row numbers.

    X float64 [rows, columns]: from which row each row takes the value of a raw column, its own number for its own
    value. So all inputs that are made of a raw column move together, and rows are prepared once.

    Args:
        inputs: float32 [many, inputs] of the rows, and below them of rows with other values.
        blocks: of each raw column its inputs. said: what the network says of inputs.
    """

    def __init__(
        self,
        inputs: Float32[np.ndarray, "many inputs"],
        blocks: Sequence[Int64[np.ndarray, " _"]],
        said: Callable[[Float32[np.ndarray, "rows inputs"]], np.ndarray],
    ) -> None:
        self.inputs, self.blocks, self.said = inputs, blocks, said

    def __sklearn_is_fitted__(self) -> bool:
        return True

    def fit(self, X: np.ndarray, y: np.ndarray) -> ByRowNumber:
        """Return itself: the network is trained."""
        return self

    def own(self, rows: int) -> Float64[np.ndarray, "rows columns"]:
        """Make an X in which each of the first rows has its own values."""
        return np.tile(np.arange(rows, dtype=np.float64)[:, None], len(self.blocks))

    def predict(self, X: Float64[np.ndarray, "rows columns"]) -> np.ndarray:
        """Say what the network says of these rows."""
        made, from_row = self.inputs[: len(X)].copy(), X.astype(np.int64)
        for place in np.flatnonzero((from_row != np.arange(len(X))[:, None]).any(0)).tolist():
            block = self.blocks[place]
            made[:, block] = self.inputs[from_row[:, place]][:, block]
        return self.said(made)


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
        columns = [
            {"column": name} | {key: None if np.isnan(value) else float(value) for key, value in row.items()}
            for name, row in self.columns.iterrows()
        ]
        return {k: v for k, v in vars(self).items() if k != "columns"} | {"columns": columns}


def importance(
    model: Run | Fitted,
    data: Table | pd.DataFrame | None = None,
    *,
    part: str = "test",
    repeats: int | None = None,
) -> Importance:
    """Measure the permutation importance (Breiman 2001) of the raw columns, by scikit-learn.

    Of the exact network; of a run without a step, method relu, of its network. A raw column is shuffled with all the
    inputs that are made of it, in at most 2,000 rows; where there are more than 100 columns, in fewer rows, 100 at
    least. Columns that say the same share their importance, so a column of little importance need not be a useless one.
    The report of a run and `htaf explain` have these figures.

    Args:
        model: as `htaf.rules.explain` takes it.
        data: the table that it was trained on; None: `run.data()`, which reads it. Of an estimator or a run on a data
            frame any labelled rows, all of which are looked at; give rows that were held out.
        part: "train", "validation" or "test", where the rows of the training are known.
        repeats: shuffles of each column, >= 1; None: as many as are 200,000 rows through the network, 1 to 10.

    Raises:
        RulesError: a run of images, no such part, or less than one repeat.
        RunError: another table than that of the training.
    """
    run, preprocessor = table_of(model)
    table = own_table(run, data)
    parts = rows_for_figures(run, table)
    if part not in ("train", "validation", "test"):
        raise RulesError(f"expected a part of train, validation, test, got {part!r}")
    if repeats is not None and repeats < 1:
        raise RulesError(f"expected at least one repeat, got {repeats}")
    columns = sum(column.kind != "dropped" for column in preprocessor.columns)
    most = int(np.clip(MOST_FORWARD // max(1, columns), LEAST_ROWS, MOST_ROWS))
    chosen = drawn(getattr(parts, part), most)
    target = torch.from_numpy(preprocessor.encode_target(table.target[chosen]))
    target = target.float().unsqueeze(1) if preprocessor.target.task == "regression" else target.long()
    return network_importance(
        run.model(exact=run.has_step), preprocessor, table.features.iloc[chosen], target,
        headline=run.record["headline"], weights=table.weights_of(chosen), repeats=repeats,
    )  # fmt: skip


def network_importance(
    network: nn.Module,
    preprocessor: Preprocessor,
    features: pd.DataFrame,
    target: Tensor,
    *,
    headline: str,
    weights: Weights | None = None,
    repeats: int | None = None,
) -> Importance:
    """Measure the `importance` of a network in memory.

    Args:
        network: the one to measure. features: raw rows, as the preprocessing takes them.
        target: as the network learns it. headline: "rmse", "auroc" or "accuracy".
        weights: how much each row counts; None: all alike. Others as of `importance`.
    """
    network, rows = settled(network), len(features)  # weights on a grid are rounded once, not for each column
    names = [c.name for c in preprocessor.columns if c.kind != "dropped" and c.name in features]
    inputs = preprocessor.transform(features.reset_index(drop=True))
    estimator = ByRowNumber(
        inputs,
        [preprocessor.inputs_of(name) for name in names],
        lambda inputs: forward(network, torch.from_numpy(inputs)).numpy(),
    )
    of = (target, preprocessor.target.task, preprocessor.target.std)
    how: Any = {"weights": weights, "threshold": preprocessor.target.threshold}

    def measured(said: np.ndarray) -> dict[str, float]:
        return metrics_by_weight(torch.from_numpy(said), *of, **how)(np.ones(rows))

    def score(estimator: ByRowNumber, X: np.ndarray, y: object) -> float:
        return -sign * measured(estimator.predict(X))[metric]

    before = measured(estimator.predict(estimator.own(rows)))
    metric = headline if np.isfinite(before[headline]) else "loss"
    sign = 1.0 if metric in LOWER_IS_BETTER else -1.0
    if repeats is None:
        repeats = int(np.clip(MOST_FORWARD // max(1, rows * len(names)), 1, MOST_REPEATS))
    frame = pd.DataFrame({"worse": [], "std": []}, dtype=np.float64)
    if names:
        found: Any = permutation_importance(
            estimator, estimator.own(rows), None, scoring=score, n_repeats=repeats, random_state=0
        )
        frame = pd.DataFrame({"worse": found.importances_mean, "std": found.importances_std}, index=names)
    frame = frame.rename_axis("column").sort_values("worse", ascending=False, kind="stable")
    return Importance(metric, before[metric], rows, repeats, frame)


# ---- partial dependence ----


@dataclass(frozen=True)
class Point:
    """One value of a column.

    Attributes:
        value: a number (of a date days since 1970) or a category; "" where there is none. label: in words.
        share: of the training rows that have at most this number, or have this category, or have no value.
        mean: float64 [outputs], of the prediction: probabilities of classes, or a number.
    """

    value: float | str
    label: str
    share: float
    mean: Float64[np.ndarray, " outputs"]


@dataclass(frozen=True)
class Effect:
    """Partial dependence (Friedman 2001) of a network on one raw column.

    Attributes:
        column: its name. kind: of its values.
        points: numbers and dates ascending, categories by their rows; last, where blanks are told, those without one.
        rows: of the held-out part, over which is averaged.
    """

    column: str
    kind: Literal["number", "date", "category"]
    points: tuple[Point, ...]
    rows: int

    def to_json(self, outputs: Sequence[int]) -> dict[str, Any]:
        """Write as plain JSON values; outputs: those of the network that are wanted."""
        points = [vars(point) | {"mean": point.mean[list(outputs)].tolist()} for point in self.points]
        return vars(self) | {"points": points}


def curves(
    network: nn.Module,
    preprocessor: Preprocessor,
    column: str,
    rows: pd.DataFrame,
    values: Sequence[Any],
    weights: Weights | None = None,
) -> Float64[np.ndarray, "values outputs"]:
    """Predict rows in which a column has one value after the other, by scikit-learn's partial dependence.

    Args:
        rows: raw. values: as they would stand in the table. weights: how much each row counts; None: all alike.

    Returns:
        the mean of what is predicted: probabilities of classes, or numbers in the unit of the target.
    """
    network = settled(network)
    with_values = rows.iloc[[0] * len(values)].reset_index(drop=True)
    with_values[column] = pd.Series(list(values), dtype=object)
    inputs = np.vstack([preprocessor.transform(rows), preprocessor.transform(with_values)])
    estimator = ByRowNumber(
        inputs, [preprocessor.inputs_of(column)], lambda inputs: answers(network, preprocessor, inputs)
    )
    at = len(rows) + np.arange(len(values), dtype=np.float64)
    found: Any = partial_dependence(
        estimator, estimator.own(len(rows)), [0], custom_values={0: at}, kind="average", sample_weight=weights
    )
    return found["average"].T


def effects(
    model: Run | Fitted,
    columns: Sequence[str],
    data: Table | pd.DataFrame | None = None,
    *,
    rows: pd.DataFrame | None = None,
) -> list[Effect]:
    """Measure the partial dependence of the exact network of a run on raw columns, by the weights of the rows.

    Args:
        model: as `htaf.rules.explain` takes it.
        columns: that it reads; those without a value in the training rows are left out.
        data: as `htaf.rules.importance` takes it; its values are tried.
        rows: raw rows, over which is averaged; None: up to 500 rows of the test part.

    Raises:
        RulesError: a column that the network does not read. RunError: another table than that of the training.
    """
    run, preprocessor = table_of(model)
    table = own_table(run, data)
    parts = rows_for_figures(run, table)
    network = run.model(exact=run.has_step)
    if rows is None:
        chosen = drawn(parts.test, CURVES)
        given, weights = table.features.iloc[chosen], table.weights_of(chosen)
    else:
        given, weights = preprocessor.named(rows), None
    found = []
    for name in columns:
        column = column_of(preprocessor, name)
        training = read(column, table.features[name].iloc[parts.train])
        tried = values_of(column, training)
        if not tried:
            continue
        as_given = [value for _, _, value in tried]
        means = curves(network, preprocessor, name, given, as_given, weights)
        points = [
            Point(value, (text if isinstance(text, str) else f"{text:.10g}") or "missing", share, mean)
            for (share, value, text), mean in zip(tried, means, strict=True)
        ]
        kind: Any = column.kind if column.kind in ("number", "date") else "category"
        found.append(Effect(name, kind, tuple(points), len(given)))
    return found


def values_of(column: Column, training: np.ndarray) -> list[Tried]:
    """Choose the values of a column that are tried.

    Args:
        training: its values in the training rows, as `htaf.rules.conditions.read` gives them.
    """
    if column.kind in ("category", "encoded"):
        count = pd.Series(training[training != RARE]).value_counts(sort=True).head(FEW)
        return [(n / len(training), str(name), str(name)) for name, n in count.items()]
    plain = np.sort(training[~np.isnan(training)])
    if not len(plain):
        return []
    distinct = np.unique(plain)
    values = distinct if len(distinct) <= FEW else np.unique(np.quantile(plain, QUANTILES, method="inverted_cdf"))
    shares = np.searchsorted(plain, values, side="right") / len(plain)
    if len(distinct) == 1:  # a flag
        shares = np.array([len(plain) / len(training)])
    as_given = partial(_date, zoned=column.zoned) if column.kind == "date" else float
    tried: list[Tried] = [(float(share), float(v), as_given(v)) for share, v in zip(shares, values, strict=True)]
    if column.missing:
        tried.append((float(np.isnan(training).mean()), "", ""))
    return tried


def _date(days: float, *, zoned: bool) -> str:
    """Write a point in time as ISO 8601: in UTC if the column has a zone, else without the hour at midnight."""
    moment = pd.Timestamp(0) + pd.Timedelta(days=days).round("us")
    if zoned:
        return f"{moment.round('s')}Z"
    return str(moment.date()) if moment == moment.normalize() else str(moment.round("s"))
