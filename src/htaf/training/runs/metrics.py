"""Metrics of predictions, their intervals by the bootstrap over rows, and which classes are taken for which.

The headline metric: RMSE of numbers, AUROC for two classes, accuracy for more.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float64, Int64
from torch import Tensor, nn

LOWER_IS_BETTER = frozenset({"rmse", "mae", "loss"})


def headline(task: str, classes: int) -> str:
    """Return the name of the metric that tables show."""
    return "rmse" if task == "regression" else "auroc" if classes == 2 else "accuracy"


class Loss(nn.Module):
    """Mean squared error of the standardised target, or cross-entropy; a mean over rows, weighted where weights come.

    Args:
        smoothing: of labels.
    """

    def __init__(self, task: str, smoothing: float = 0.0) -> None:
        super().__init__()
        self.regression, self.smoothing = task == "regression", smoothing

    def forward(self, outputs: Tensor, target: Tensor, weights: Tensor | None = None) -> Tensor:
        """Compute the mean of weight times loss over the rows.

        Args:
            outputs, target: as of `metrics`; of several outputs a row, as of members, the rows repeated one by one.
            weights: [rows], of mean 1 over all rows whose losses are averaged; None: 1.
        """
        how = "mean" if weights is None else "none"
        if self.regression:
            each = nn.functional.mse_loss(outputs, target, reduction=how)
        else:
            each = nn.functional.cross_entropy(outputs, target, label_smoothing=self.smoothing, reduction=how)
        if weights is None:
            return each
        each = each.flatten(1).mean(1) if self.regression else each
        return (each * weights.repeat_interleave(len(each) // len(weights))).mean()


def loss_function(task: str, label_smoothing: float = 0.0) -> Loss:
    """Make the loss of a task; labels are smoothed in training only."""
    return Loss(task, label_smoothing)


def probabilities(outputs: Tensor) -> Tensor:
    """Compute the probabilities of classes, float64, from logits [rows, classes]."""
    return outputs.double().softmax(1)


def decided(outputs: Tensor, threshold: float | None = None) -> Tensor:
    """Find the predicted class [rows] of logits [rows, classes], see `decided_by`."""
    return decided_by(probabilities(outputs), threshold)


def decided_by(probability: Tensor, threshold: float | None = None) -> Tensor:
    """The predicted class [rows] by probabilities [rows, classes]: the likeliest one, of equal ones the first; with a
    threshold the second of two where its probability reaches it."""
    return probability.argmax(1) if threshold is None else (probability[:, 1] >= threshold).long()


def metrics(
    outputs: Tensor,
    target: Tensor,
    task: str,
    scale: float = 1.0,
    *,
    weights: Tensor | None = None,
    threshold: float | None = None,
) -> dict[str, float | None]:
    """Compute the metrics of a network's outputs.

    Args:
        outputs: [rows, 1] standardised predictions, or [rows, classes] logits.
        target: [rows, 1] standardised float targets, or [rows] int64 class codes.
        task: "regression" or "classification".
        scale: standard deviation of the target: RMSE and MAE are in its units.
        weights: [rows], > 0, how much each row counts; None: all alike.
        threshold: of the second of two classes, for the accuracy; see `decided`.

    Returns:
        loss and rmse, mae, r2; or loss and accuracy, auroc (macro, one against the rest, for more than two classes).
        None where a metric is not defined, such as AUROC of rows that lack a class.
    """
    w = None if weights is None else weights.double() / weights.double().mean()

    def mean(values: Tensor) -> Tensor:
        return (values.double() if w is None else values.double() * w).mean()

    result: dict[str, float] = {"loss": loss_function(task)(outputs, target, w).item()}
    if task == "regression":
        error, t = outputs[:, 0].double() - target[:, 0].double(), target[:, 0].double()
        square = mean(error.square())
        result["rmse"] = scale * square.sqrt().item()
        result["mae"] = scale * mean(error.abs()).item()
        result["r2"] = (1 - square / mean((t - mean(t)).square())).item() if len(t) > 1 else math.nan
    else:
        result["accuracy"] = min(mean(decided(outputs, threshold) == target).item(), 1.0)  # rounded up by weights
        present = len(target.unique()) == outputs.shape[1] and bool(outputs.isfinite().all())
        result["auroc"] = _auroc(outputs.double(), target, w) if present else math.nan
    return {k: v if math.isfinite(v) else None for k, v in result.items()}


def _auroc(outputs: Tensor, target: Tensor, weights: Tensor | None) -> float:
    """Of rows of every class; macro, one against the rest, for more than two."""
    from sklearn.metrics import roc_auc_score  # a run is read, and its predictions made, without it

    of = None if weights is None else weights.cpu().numpy()
    known = target.cpu().numpy()
    if outputs.shape[1] == 2:  # the difference of logits orders rows as the probability does, without ties at 0 and 1
        return float(roc_auc_score(known, (outputs[:, 1] - outputs[:, 0]).cpu().numpy(), sample_weight=of))
    probability = probabilities(outputs).cpu().numpy()
    return float(roc_auc_score(known, probability, multi_class="ovr", sample_weight=of))


def threshold_for(
    metric: str, outputs: Tensor, target: Tensor, weights: Tensor | None = None
) -> tuple[float, float, float]:
    """The probability from which predicting the second of two classes is best, the metric then, and the one at 0.5.

    Args:
        metric: "f1", "balanced_accuracy" or "matthews_corrcoef", as scikit-learn defines them, f1 of the second class.
        outputs: finite logits [rows, 2]. target: class codes [rows], of both classes. weights: [rows] or None.

    Returns:
        the middle between two neighbouring probabilities; of several that are best the one nearest to 0.5.
    """
    from sklearn.metrics import roc_curve

    p, known = probabilities(outputs)[:, 1].cpu().numpy(), target.cpu().numpy()
    of = np.ones(len(p)) if weights is None else weights.double().cpu().numpy()
    false, true, at = roc_curve(known, p, sample_weight=of, drop_intermediate=False)
    tp, fp = true * of[known == 1].sum(), false * of[known == 0].sum()
    fn, tn = tp[-1] - tp, fp[-1] - fp
    with np.errstate(invalid="ignore", divide="ignore"):
        found = {
            "f1": 2 * tp / (2 * tp + fp + fn),
            "balanced_accuracy": (true + 1 - false) / 2,
            "matthews_corrcoef": (tp * tn - fp * fn) / np.sqrt((tp + fp) * (tp + fn) * (tn + fp) * (tn + fn)),
        }[metric]
    found = np.nan_to_num(found)
    lower = np.append(at[1:], 0.0)  # `at` falls: the first predicts nothing, each other one rows from it on
    middle = np.clip((np.minimum(at, 1.0) + lower) / 2, 1e-12, 1 - 1e-12)
    best = np.flatnonzero(found >= found.max() - 1e-12)
    chosen = best[np.abs(middle[best] - 0.5).argmin()]
    return float(middle[chosen]), float(found[chosen]), float(found[np.flatnonzero(at >= 0.5)[-1]])


# ---- intervals ----

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
    """Find the middle 95% of the draws; None where a twentieth of them or more have no figure."""
    known = drawn[np.isfinite(drawn)]
    if len(known) < 0.95 * len(drawn):
        return None
    low, high = np.quantile(known, [0.025, 0.975])
    return float(low), float(high)


def metrics_by_weight(
    outputs: Tensor,
    target: Tensor,
    task: str,
    scale: float = 1.0,
    *,
    weights: Weights | None = None,
    threshold: float | None = None,
) -> Callable[[Weights], dict[str, float]]:
    """Make a function from weights of the rows to the metrics of `metrics`; NaN where one is not defined.

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
    """Compute the metrics of `metrics` in each draw of the rows; arguments as there.

    Of more than 50,000 rows so many, evenly spread, are drawn from: a metric's distance from that of all rows is then
    multiplied by the root of the share (m out of n).

    Args:
        weights: how much each row counts, beside how often it is drawn; None: all alike.
        threshold: of the probability of the second of two classes, from which it is predicted; None: the likelier is.
    """

    def of(some: Tensor) -> Callable[[Weights], dict[str, float]]:
        own = None if weights is None else weights[some.numpy()]
        return metrics_by_weight(outputs[some], target[some], task, scale, weights=own, threshold=threshold)

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


# ---- confusion ----


def confusion(
    outputs: Tensor, targets: Int64[Tensor, " n"], classes: int, threshold: float | None = None
) -> Int64[np.ndarray, "true predicted"]:
    """Say how many rows of each class have which prediction.

    Args:
        outputs: [n, classes]. targets: class numbers. threshold: see `decided`.
    """
    pairs = targets * classes + decided(outputs, threshold)
    return torch.bincount(pairs, minlength=classes * classes).view(classes, classes).numpy()


def per_class(matrix: Int64[np.ndarray, "true predicted"], classes: Sequence[str]) -> list[dict[str, Any]]:
    """Of each class: rows; recall, the share of them that is found; precision, the share of its predictions that is
    right; F1, their harmonic mean; and the class that it is most often taken for, with how many rows. None where there
    is nothing to divide by."""
    found: list[dict[str, Any]] = []
    for number, name in enumerate(classes):
        right, rows, said = (int(v) for v in (matrix[number, number], matrix[number].sum(), matrix[:, number].sum()))
        wrong = matrix[number].copy()
        wrong[number] = 0
        other = int(wrong.argmax())
        found.append(
            {
                "class": name,
                "rows": rows,
                "predicted": said,
                "recall": right / rows if rows else None,
                "precision": right / said if said else None,
                "f1": 2 * right / (rows + said) if rows + said else None,
                "taken_for": classes[other] if wrong[other] else None,
                "times": int(wrong[other]),
            }
        )
    return found
