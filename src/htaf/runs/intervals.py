"""How far a figure of some rows may be off: the bootstrap over rows, the one mechanism for all intervals."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from htaf.runs.metrics import decided

DRAWS, LEAST_DRAWS = 500, 200
MOST_DRAWN = 5_000_000  # rows in all draws, before there are fewer draws
MOST_ROWS = 50_000  # that are drawn from: of more rows so many, and the interval is as much narrower
MOST_CLASSES = 10  # of more the AUROC of each class has no interval: it is sorted anew for each
Weights = Float64[np.ndarray, " rows"]  # how much each row counts, or how often it is in a draw
Interval = tuple[float, float]


def bootstrap(rows: int, figures: Callable[[Weights], Mapping[str, float]]) -> dict[str, Float64[np.ndarray, " draws"]]:
    """Figures of rows that are drawn again and again with replacement (Efron 1979): 500 draws, 200 of many rows.

    The draws are the same for as many rows, on every machine: figures of two models on the same rows may be subtracted.

    Args:
        rows: how many there are. figures: of weights of the rows, their numbers in a draw.

    Returns:
        each figure in all draws; NaN where it is not defined.
    """
    raw, found = np.random.PCG64([rows, 3]), list[Mapping[str, float]]()
    for _ in range(int(np.clip(MOST_DRAWN // max(rows, 1), LEAST_DRAWS, DRAWS))):
        chosen: Int64[np.ndarray, " rows"] = (raw.random_raw(rows) % np.uint64(rows)).astype(np.int64)
        found.append(figures(np.bincount(chosen, minlength=rows).astype(np.float64)))
    return {name: np.array([one[name] for one in found], np.float64) for name in found[0]}


def interval(drawn: Float64[np.ndarray, " draws"]) -> Interval | None:
    """The middle 95% of the draws; None where a twentieth of them or more have no figure."""
    known = drawn[np.isfinite(drawn)]
    if len(known) < 0.95 * len(drawn):
        return None
    low, high = np.quantile(known, [0.025, 0.975])
    return float(low), float(high)


def quantiles(
    values: np.ndarray, wanted: Sequence[float], weights: Weights | None = None, axis: int = 0
) -> Float64[np.ndarray, "wanted ..."]:
    """Quantiles along an axis; of weighted rows the value up to which so much of the weight lies."""
    how = "linear" if weights is None else "inverted_cdf"
    return np.quantile(values, wanted, axis=axis, weights=weights, method=how)


def figures(
    outputs: Tensor,
    target: Tensor,
    task: str,
    scale: float = 1.0,
    *,
    weights: Weights | None = None,
    threshold: float | None = None,
) -> Callable[[Weights], dict[str, float]]:
    """The metrics of `htaf.runs.metrics.metrics` of rows that are drawn so often; NaN where one is not defined.

    Args: as of `drawn_metrics`.
    """
    found = _of_numbers(outputs, target, scale) if task == "regression" else _of_classes(outputs, target, threshold)
    return found if weights is None else lambda drawn: found(drawn * weights)


def drawn_metrics(
    outputs: Tensor,
    target: Tensor,
    task: str,
    scale: float = 1.0,
    *,
    weights: Weights | None = None,
    threshold: float | None = None,
) -> dict[str, Float64[np.ndarray, " draws"]]:
    """The metrics of `htaf.runs.metrics.metrics` in each draw of the rows; arguments as there.

    Of more than 50,000 rows so many, evenly spread, are drawn from: a metric's distance from that of all rows is then
    multiplied by the root of the share (m out of n).

    Args:
        weights: how much each row counts, beside how often it is drawn; None: all alike.
        threshold: of the probability of the second of two classes, from which it is predicted; None: the likelier is.
    """

    def of(some: Tensor) -> Callable[[Weights], dict[str, float]]:
        own = None if weights is None else weights[some.numpy()]
        return figures(outputs[some], target[some], task, scale, weights=own, threshold=threshold)

    rows = len(target)
    whole = of(torch.arange(rows))
    if rows <= MOST_ROWS:
        return bootstrap(rows, whole)
    part = of(torch.linspace(0, rows - 1, MOST_ROWS).long())
    of_all, of_part = whole(np.ones(rows)), part(np.ones(MOST_ROWS))
    share = (MOST_ROWS / rows) ** 0.5
    return {name: of_all[name] + share * (of - of_part[name]) for name, of in bootstrap(MOST_ROWS, part).items()}


def _of_numbers(outputs: Tensor, target: Tensor, scale: float) -> Callable[[Weights], dict[str, float]]:
    said, truth = outputs[:, 0].double().numpy(), target[:, 0].double().numpy()
    off, square = np.abs(said - truth), truth**2

    def figures(weights: Weights) -> dict[str, float]:
        total = weights.sum()
        loss, mean = weights @ off**2 / total, weights @ truth / total
        spread = weights @ square / total - mean**2
        r2 = 1 - loss / spread if spread > 1e-12 else np.nan
        return {"loss": loss, "rmse": scale * loss**0.5, "mae": scale * (weights @ off) / total, "r2": r2}

    return figures


def _of_classes(outputs: Tensor, target: Tensor, threshold: float | None) -> Callable[[Weights], dict[str, float]]:
    logs, classes = outputs.double().log_softmax(1), outputs.shape[1]
    losses = -logs.gather(1, target[:, None])[:, 0].numpy()
    right = (decided(outputs, threshold) == target).double().numpy()
    scores = (outputs[:, 1:].double() - outputs[:, :1].double()) if classes == 2 else logs.exp()
    sides = [target.numpy() == (1 if classes == 2 else k) for k in range(scores.shape[1])]
    areas = [_area(scores[:, k].numpy(), side) for k, side in enumerate(sides)] if classes <= MOST_CLASSES else []

    def figures(weights: Weights) -> dict[str, float]:
        total = weights.sum()
        auroc = float(np.mean([area(weights) for area in areas])) if areas else np.nan
        return {"loss": weights @ losses / total, "accuracy": weights @ right / total, "auroc": auroc}

    return figures


def _area(score: Float64[np.ndarray, " rows"], positive: np.ndarray) -> Callable[[Weights], float]:
    """The AUROC as a function of weights of the rows; rows of one score count half."""
    order = np.argsort(score, kind="stable")
    starts = np.flatnonzero(np.r_[True, np.diff(score[order]) != 0])
    ordered = positive[order]

    def area(weights: Weights) -> float:
        by_score = weights[order]
        ups = np.add.reduceat(by_score * ordered, starts)
        downs = np.add.reduceat(by_score * ~ordered, starts)
        pairs = ups.sum() * downs.sum()
        return float(ups @ (np.cumsum(downs) - downs / 2) / pairs) if pairs else np.nan

    return area
