"""What a network says about a table: importance and partial dependence of raw columns, by scikit-learn, reasons of a
row, and what if; own are the bounds of time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float32, Float64, Int64, Shaped
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.inspection import partial_dependence, permutation_importance
from torch import Tensor, nn

from htaf._ground.errors import HtafError, suggestion
from htaf.data import dates
from htaf.data.columns import Column, Target, places, read_values
from htaf.data.notes import Note
from htaf.data.order import random_order
from htaf.data.preprocess import Preprocessor
from htaf.data.reading import listed
from htaf.data.tabular import Table, frame_like
from htaf.training.runs import Run, UnknownSourceError, forward
from htaf.training.runs.data import rows_are_known, rows_for_figures
from htaf.training.runs.metrics import (
    LOWER_IS_BETTER,
    Weights,
    decided,
    decided_by,
    metrics_by_weight,
    probabilities,
)
from htaf.training.runs.predictions import predicted
from htaf.transform.grid import settled

MOST_ROWS, LEAST_ROWS = 2_000, 20  # whose columns are shuffled
MOST_FORWARD = 200_000  # rows through the network, in all
MOST_REPEATS = 10
QUANTILES = (0.01, *(k / 20 for k in range(1, 20)), 0.99)  # values of a curve
FEW = 12  # distinct numbers that are all tried; categories that are tried
CURVES = 500  # test rows whose curves are drawn
OTHERS = 200  # training rows whose values a row is given
RARE = "other (rare or new)"  # what a network reads alike: categories of few training rows, and new ones
Tried = tuple[float, float | str, float | str]  # the share of the training rows, the value, and as a table has it


class InspectionError(HtafError):
    """A run or a question that has no answer."""


@runtime_checkable
class Fitted(Protocol):
    """An estimator that is fitted: it holds its run."""

    run_: Run


def run_of(model: Run | Fitted) -> Run:
    """Take the run itself, or that of a fitted estimator.

    Raises:
        InspectionError: neither, or an estimator before `fit`.
    """
    run = getattr(model, "run_", model)
    if not isinstance(run, Run):
        came = f"{type(model).__name__}{', not fitted' if hasattr(model, 'fit') else ''}"
        raise InspectionError(f"expected a run or a fitted HtafClassifier or HtafRegressor, got {came}")
    return run


def table_of(model: Run | Fitted) -> tuple[Run, Preprocessor]:
    """Open a run of a table, or that of a fitted estimator, and its preprocessing.

    Raises:
        InspectionError: a run of images.
    """
    run = run_of(model)
    preprocessor = run.preprocessor()
    if not isinstance(preprocessor, Preprocessor):
        raise InspectionError(
            f"expected a run of a table, {run.path} was trained on images: its bits are read by htaf concepts, the "
            "reasons of an image by htaf predict --explain"
        )
    return run, preprocessor


def column_of(preprocessor: Preprocessor, name: str) -> Column:
    """Look up a raw column that a network reads.

    Raises:
        InspectionError: there is none of this name, or it was dropped.
    """
    columns = {column.name: column for column in preprocessor.columns}
    names = list(columns)
    if name not in columns:
        raise InspectionError(f"expected one of the columns {listed(names)}, got {name!r}{suggestion(name, names)}")
    if columns[name].kind == "dropped":
        raise InspectionError(f"column {name!r} was dropped in training: no value of it changes the prediction")
    return columns[name]


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


def answers(
    network: nn.Module, preprocessor: Preprocessor, inputs: Float32[np.ndarray, "rows inputs"]
) -> Float64[np.ndarray, "rows outputs"]:
    """Predict by a network: probabilities of classes, or numbers [rows, 1] in the unit of the target."""
    return in_units(forward(network, torch.from_numpy(inputs)), preprocessor)


def in_units(outputs: Tensor, preprocessor: Preprocessor) -> Float64[np.ndarray, "rows outputs"]:
    """Read a network's outputs as probabilities of classes, or numbers [rows, 1] in the unit of the target."""
    if preprocessor.target.task == "regression":
        return preprocessor.inverse(outputs[:, 0].double().numpy())[:, None]
    return probabilities(outputs).numpy()


def decided_values(said: Float64[np.ndarray, "rows outputs"], target: Target) -> Shaped[np.ndarray, " rows"]:
    """Say what is predicted: classes, by number, of their probabilities; numbers as they are."""
    return said[:, 0] if target.task == "regression" else decided_by(torch.tensor(said), target.threshold).numpy()


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
        model: a run, from `htaf.runs.open_run`, or a fitted estimator.
        data: the table that it was trained on; None: `run.data()`, which reads it. Of an estimator or a run on a data
            frame any labelled rows, all of which are looked at; give rows that were held out.
        part: "train", "validation" or "test", where the rows of the training are known.
        repeats: shuffles of each column, >= 1; None: as many as are 200,000 rows through the network, 1 to 10.

    Raises:
        InspectionError: a run of images, no such part, or less than one repeat.
        RunError: another table than that of the training.
    """
    run, preprocessor = table_of(model)
    table = own_table(run, data)
    parts = rows_for_figures(run, table)
    if part not in ("train", "validation", "test"):
        raise InspectionError(f"expected a part of train, validation, test, got {part!r}")
    if repeats is not None and repeats < 1:
        raise InspectionError(f"expected at least one repeat, got {repeats}")
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
        model: a run, from `htaf.runs.open_run`, or a fitted estimator.
        columns: that it reads; those without a value in the training rows are left out.
        data: as `htaf.inspection.importance` takes it; its values are tried.
        rows: raw rows, over which is averaged; None: up to 500 rows of the test part.

    Raises:
        InspectionError: a column that the network does not read. RunError: another table than that of the training.
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
        training: its values in the training rows, as `read` gives them.
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


def read(column: Column, raw: pd.Series) -> Shaped[np.ndarray, " rows"]:
    """Raw values as a network reads them: spellings of one category are one, rare and new ones are `RARE` where they
    share an input, dates are read in the order of the training.

    Args:
        column: not a dropped one. raw: any dtype, [rows].
    Returns:
        object of str, "" where missing; float64 of a number or a date (days since 1970), NaN where missing or a code.
    Raises:
        DataError: a text that is no number or no date.
    """
    values = read_values(column, raw)
    if column.kind in ("category", "encoded"):
        at = places(column, values)
        names = np.array([*column.categories, RARE], dtype=object)[at]  # -1 is the last
        return names if column.other else np.where(at < 0, values, names)
    if column.kind == "date":
        days = values.astype("datetime64[us]").astype(np.int64) / dates.DAY
        return np.where(np.isnat(values), np.nan, days)
    return np.where(np.isin(values, column.codes), np.nan, values) if column.codes else values


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
    first, second = _likeliest(forward(network, torch.from_numpy(inputs)), target)

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


def _likeliest(outputs: Float32[Tensor, "1 outputs"], target: Target) -> tuple[int, int]:
    """The class that is predicted and that of the next highest logit, which by a threshold may be the higher; zeros of
    a number."""
    if not target.classes:
        return 0, 0
    first = int(decided(outputs, target.threshold)[0])
    others = outputs[0].clone()
    others[first] = -torch.inf
    return first, int(others.argmax())


# ---- what if ----


@dataclass(frozen=True)
class WhatIf:
    """Predictions of rows as they are and as they would be.

    Attributes:
        before, after: as `htaf.runs.Run.predict` gives them.
        notes: what was handled in the changed rows.
    """

    before: pd.DataFrame
    after: pd.DataFrame
    notes: tuple[Note, ...]


def what_if(model: Run | Fitted, changes: Mapping[str, Any], rows: pd.DataFrame) -> WhatIf:
    """Say what changes in the predictions of raw rows when columns have other values.

    Args:
        model: a run, from `htaf.runs.open_run`, or a fitted estimator.
        changes: raw values by column, as they would stand in the table: numbers, text, None or "" for missing.
        rows: the columns that it was trained on, by name.

    Raises:
        InspectionError: no change, or a column that the network does not read.
        DataError: rows lack a column, or rows or changes hold values that cannot be used, such as text for a number.
    """
    run, preprocessor = table_of(model)
    if not isinstance(changes, Mapping):
        raise InspectionError(f"expected values by column, then the rows, got {type(changes).__name__} first")
    if not changes:
        raise InspectionError("expected at least one column to change, got none")
    network, changed = run.model(exact=run.has_step), preprocessor.named(rows)
    for name, value in changes.items():
        column_of(preprocessor, name)
        # as a column of its own, as of a file: a whole number beside fractions must not become another category
        changed[name] = pd.Series([value] * len(rows), index=rows.index, dtype=object)

    def said(rows: pd.DataFrame) -> tuple[pd.DataFrame, list[Note]]:
        inputs, notes = preprocessor.transform_with_notes(rows)
        return predicted(forward(network, torch.from_numpy(inputs)), preprocessor, changed.index), notes

    before, _ = said(rows)
    after, notes = said(changed)
    return WhatIf(before, after, tuple(note for note in notes if note.column in changes))
