"""How far a figure of some rows may be off: the bootstrap over rows, the one mechanism for all intervals."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from jaxtyping import Float64, Int64
from torch import Tensor

DRAWS, LEAST_DRAWS = 500, 200
MOST_DRAWN = 10_000_000  # rows in all draws, before there are fewer draws
MOST_CLASSES = 10  # of more the AUROC of each class has no interval: it is sorted anew for each
Weights = Float64[np.ndarray, " rows"]  # how often each row is in a draw
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


def drawn_metrics(
    outputs: Tensor,
    target: Tensor,
    task: str,
    scale: float = 1.0,
    *,
    threshold: float | None = None,
) -> dict[str, Float64[np.ndarray, " draws"]]:
    """The metrics of `htaf.runs.metrics.metrics` in each draw of the rows; arguments as there.

    Args:
        threshold: of the probability of the second of two classes, from which it is predicted; None: the likelier is.
    """
    if task == "regression":
        said, truth = outputs[:, 0].double().numpy(), target[:, 0].double().numpy()
        off, square = np.abs(said - truth), truth**2

        def of_numbers(weights: Weights) -> dict[str, float]:
            total = weights.sum()
            loss, mean = weights @ off**2 / total, weights @ truth / total
            spread = weights @ square / total - mean**2
            r2 = 1 - loss / spread if spread > 1e-12 else np.nan
            return {"loss": loss, "rmse": scale * loss**0.5, "mae": scale * (weights @ off) / total, "r2": r2}

        return bootstrap(len(said), of_numbers)
    logs = outputs.double().log_softmax(1)
    losses = -logs.gather(1, target[:, None])[:, 0].numpy()
    classes = outputs.shape[1]
    said = outputs.argmax(1) if threshold is None else logs.exp()[:, 1] >= threshold
    right = (said == target).double().numpy()
    scores = (outputs[:, 1] - outputs[:, 0])[:, None].double() if classes == 2 else logs.exp()
    sides = [target.numpy() == (1 if classes == 2 else k) for k in range(scores.shape[1])]
    areas = [_area(scores[:, k].numpy(), side) for k, side in enumerate(sides)] if classes <= MOST_CLASSES else []

    def of_classes(weights: Weights) -> dict[str, float]:
        total = weights.sum()
        auroc = float(np.mean([area(weights) for area in areas])) if areas else np.nan
        return {"loss": weights @ losses / total, "accuracy": weights @ right / total, "auroc": auroc}

    return bootstrap(len(losses), of_classes)


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
