"""What a network predicts over the values of one column, all others as they are: partial dependence."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float32, Float64
from scipy.special import expit, logit
from torch import nn

from htaf.data.columns import Column
from htaf.data.preprocess import Preprocessor
from htaf.data.tabular import Table
from htaf.grid import settled
from htaf.rules.bits import Fitted, RulesError, TableBits, run_of
from htaf.rules.explanation import drawn, own_table
from htaf.rules.raw_columns import RARE, read
from htaf.runs import Run, forward
from htaf.runs.data import rows_for_figures
from htaf.runs.intervals import Weights, quantiles
from htaf.runs.metrics import probabilities

QUANTILES = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0)
FINE = (0.01, *(k / 20 for k in range(1, 20)), 0.99)  # quantiles of a curve
FEW = 12  # distinct numbers that are all tried; categories that are tried
AVERAGED = 2_000  # test rows
CURVES = 500  # test rows whose curves are drawn
Tried = tuple[float, float | str, float | str]  # the share of the training rows, the value, and as a table has it


@dataclass(frozen=True)
class Point:
    """One value of a column.

    Attributes:
        value: a number (of a date days since 1970) or a category; "" where there is none. label: in words.
        share: of the training rows that have at most this number, or have this category, or have no value.
        mean: float64 [outputs], of the prediction: probabilities of classes, or a number.
        low, high: the middle 80% of the curves of single rows, each moved up or down to the common level,
            probabilities as logits: wide where what the column does depends on others.
    """

    value: float | str
    label: str
    share: float
    mean: Float64[np.ndarray, " outputs"]
    low: Float64[np.ndarray, " outputs"]
    high: Float64[np.ndarray, " outputs"]


@dataclass(frozen=True)
class Effect:
    """Partial dependence (Friedman 2001) of a network on one raw column.

    Attributes:
        column: its name. kind: of its values.
        points: numbers and dates ascending, categories by their rows; last, where blanks are told, those without one.
        tenths: of the training values of a number or a date. rows: of the held-out part, over which is averaged.
    """

    column: str
    kind: Literal["number", "date", "category"]
    points: tuple[Point, ...]
    tenths: tuple[float, ...]
    rows: int

    def to_json(self, outputs: Sequence[int]) -> dict[str, Any]:
        """As plain JSON values; outputs: those of the network that are wanted."""
        chosen = list(outputs)
        points = [
            vars(point) | {name: getattr(point, name)[chosen].tolist() for name in ("mean", "low", "high")}
            for point in self.points
        ]
        return vars(self) | {"points": points, "tenths": list(self.tenths)}


def curves(
    network: nn.Module,
    preprocessor: Preprocessor,
    column: str,
    rows: pd.DataFrame,
    inputs: Float32[np.ndarray, "rows inputs"],
    values: Sequence[Any],
) -> Iterator[Float64[np.ndarray, "rows outputs"]]:
    """What a network predicts of rows in which a column has one value after the other.

    Args:
        rows: raw; inputs: made of them. values: as they would stand in the table.

    Yields:
        for each value probabilities of classes, or numbers in the unit of the target.
    """
    network, block = settled(network), preprocessor.inputs_of(column)
    with_values = rows.iloc[[0] * len(values)].reset_index(drop=True)
    with_values[column] = pd.Series(list(values), dtype=object)
    made, moved = preprocessor.transform(with_values)[:, block], inputs.copy()
    for one in made:
        moved[:, block] = one
        yield answers(network, preprocessor, moved)


def answers(
    network: nn.Module, preprocessor: Preprocessor, inputs: Float32[np.ndarray, "rows inputs"]
) -> Float64[np.ndarray, "rows outputs"]:
    """The predictions of a network: probabilities of classes, or numbers [rows, 1] in the unit of the target."""
    outputs = forward(network, torch.from_numpy(inputs))
    if preprocessor.target.task == "regression":
        return preprocessor.inverse(outputs[:, 0].double().numpy())[:, None]
    return probabilities(outputs).numpy()


def effects(
    model: Run | Fitted, columns: Sequence[str], data: Table | pd.DataFrame | None = None, *, seed: int = 0
) -> list[Effect]:
    """Partial dependence of the exact network of a run on raw columns, over 500 test rows, by their weights.

    Args:
        model: as `htaf.rules.explain` takes it.
        columns: that it reads; those without a value in the training rows are left out.
        data: as `htaf.rules.importance` takes it. seed: of the rows that are drawn.
    """
    run = run_of(model)
    preprocessor = run.preprocessor()
    if not isinstance(preprocessor, Preprocessor):
        raise RulesError(f"expected a run of a table, {run.path} was trained on images")
    table = own_table(run, data)
    parts = rows_for_figures(run, table)
    network = run.model(exact=run.has_step)
    chosen = drawn(parts.test, CURVES, seed)
    rows, weights = table.features.iloc[chosen], table.weights_of(chosen)
    inputs, known = preprocessor.transform(rows), {c.name: c for c in preprocessor.columns}
    found = []
    for name in columns:
        training = read(known[name], table.features[name].iloc[parts.train])
        tried = values_of(known[name], training, FINE)
        if not tried:
            continue
        as_given = [given for _, _, given in tried]
        of_rows = np.stack([*curves(network, preprocessor, name, rows, inputs, as_given)])
        mean = np.average(of_rows, axis=1, weights=weights)
        low, high = band(of_rows, mean, weights, chances=preprocessor.target.task != "regression")
        points = [
            Point(value, (given if isinstance(given, str) else f"{given:.10g}") or "missing", share, *of)
            for (share, value, given), *of in zip(tried, mean, low, high, strict=True)
        ]
        kind: Any = known[name].kind if known[name].kind in ("number", "date") else "category"
        tenths = () if kind == "category" else np.nanquantile(training, np.linspace(0.1, 0.9, 9)).tolist()
        found.append(Effect(name, kind, tuple(points), tuple(tenths), len(rows)))
    return found


def band(
    of_rows: Float64[np.ndarray, "values rows outputs"],
    mean: Float64[np.ndarray, "values outputs"],
    weights: Weights | None,
    *,
    chances: bool,
) -> Float64[np.ndarray, "2 values outputs"]:
    """The middle 80% of the curves of single rows, each moved to the level of their mean; probabilities are moved as
    logits, so that they stay probabilities."""
    there, back = (_logit, expit) if chances else (np.array, np.array)
    moved = there(of_rows)
    moved -= moved.mean(0)
    moved -= np.average(moved, axis=1, weights=weights)[:, None]
    return back(there(mean) + quantiles(moved, [0.1, 0.9], weights, axis=1))


def _logit(chance: np.ndarray) -> np.ndarray:
    return logit(chance.clip(1e-12, 1 - 1e-12))


def values_of(column: Column, training: np.ndarray, quantiles: Sequence[float]) -> list[Tried]:
    """Values of a column that are tried.

    Args:
        training: its values in the training rows, as `htaf.rules.raw_columns.read` gives them.
    """
    if column.kind in ("category", "encoded"):
        count = pd.Series(training[training != RARE]).value_counts(sort=True).head(FEW)
        return [(n / len(training), str(name), str(name)) for name, n in count.items()]
    plain = np.sort(training[~np.isnan(training)])
    if not len(plain):
        return []
    distinct = np.unique(plain)
    if quantiles is FINE:
        values = distinct if len(distinct) <= FEW else np.unique(np.quantile(plain, FINE, method="inverted_cdf"))
        shares = np.searchsorted(plain, values, side="right") / len(plain)
    else:
        values, shares = np.quantile(plain, quantiles, method="inverted_cdf"), np.array(quantiles)
    if len(distinct) == 1:  # a flag
        values, shares = distinct, np.array([len(plain) / len(training)])
    as_given = partial(_date, zoned=column.zoned) if column.kind == "date" else float
    tried: list[Tried] = [(float(share), float(v), as_given(v)) for share, v in zip(shares, values, strict=True)]
    if column.missing:
        tried.append((float(np.isnan(training).mean()), "", ""))
    return tried


def vary(
    model: Run | Fitted,
    column: str,
    rows: pd.DataFrame | None = None,
    *,
    data: Table | pd.DataFrame | None = None,
    seed: int = 0,
) -> pd.DataFrame:
    """The prediction over the values of one column.

    Args:
        model: as `htaf.rules.explain` takes it. column: of the table, one that the network reads.
        rows: raw rows; None: up to 2,000 rows of the test part.
        data: as `htaf.rules.importance` takes it; its values are tried.
        seed: of the rows that are drawn.

    Returns:
        A row for each value. Of a number column: `share`, of the training values that are at most this one (0, 10, 25,
        50, 75, 90 and 100%), and `value`, one where all are alike; of dates the same, as ISO 8601; where blanks are
        told, last "" with the share of the training rows that are blank. Of a category: `share` of the training rows
        that have it, and `value`, for the 12 that have most ("" for missing). Spellings that the network reads alike
        are one; rare categories that share an input are left out. Then the mean over the rows: `prediction` of a
        regression, else `probability_<class>` for each class; test rows count by their weights.

    Raises:
        RulesError: a column that the network does not read. RunError: another table than that of the training.
    """
    bits = TableBits.of(model)
    table = own_table(bits.run, data)
    parts = rows_for_figures(bits.run, table)
    known, training = bits.column(column), table.features[column].iloc[parts.train]
    chosen = drawn(parts.test, AVERAGED, seed)
    given = table.features.iloc[chosen] if rows is None else bits.preprocessor.named(rows)
    weights = table.weights_of(chosen) if rows is None else None
    tried = values_of(known, read(known, training), QUANTILES)
    if not tried:
        raise RulesError(f"column {column!r}: expected training rows with a number, got none")
    as_given, classes = [given_as for _, _, given_as in tried], bits.preprocessor.target.classes
    of_rows = curves(bits.network, bits.preprocessor, column, given, bits.preprocessor.transform(given), as_given)
    names = [f"probability_{name}" for name in classes] or ["prediction"]
    made = [dict(zip(names, np.average(one, axis=0, weights=weights).tolist(), strict=True)) for one in of_rows]
    return pd.DataFrame(
        [{"share": share, "value": value} | mean for (share, _, value), mean in zip(tried, made, strict=True)]
    )


def _date(days: float, *, zoned: bool) -> str:
    """A point in time as ISO 8601, in UTC where the column has a zone, else without the hour where it is midnight."""
    moment = pd.Timestamp(0) + pd.Timedelta(days=days).round("us")
    if zoned:
        return f"{moment.round('s')}Z"
    return str(moment.date()) if moment == moment.normalize() else str(moment.round("s"))
