"""What is reported of predictions, by task. The headline: RMSE, AUROC for two classes, accuracy for more."""

from __future__ import annotations

import math

import numpy as np
from torch import Tensor, nn

LOWER_IS_BETTER = frozenset({"rmse", "mae", "loss"})


def headline(task: str, classes: int) -> str:
    """The name of the metric that tables show."""
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
        """The mean of weight times loss over the rows.

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
    """The loss of a task; labels are smoothed in training only."""
    return Loss(task, label_smoothing)


def probabilities(outputs: Tensor) -> Tensor:
    """Those of classes, float64, of logits [rows, classes]."""
    return outputs.double().softmax(1)


def decided(outputs: Tensor, threshold: float | None = None) -> Tensor:
    """The predicted class [rows] of logits [rows, classes], see `decided_by`."""
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
    """Metrics of a network's outputs.

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
