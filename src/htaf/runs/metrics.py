"""What is reported of predictions, by task. The headline: RMSE, AUROC for two classes, accuracy for more."""

from __future__ import annotations

import math
import warnings
from typing import Any

from torch import Tensor, nn

from htaf._compat import no_trace

LOWER_IS_BETTER = frozenset({"rmse", "mae", "loss"})


def headline(task: str, classes: int) -> str:
    """The name of the metric that tables show."""
    return "rmse" if task == "regression" else "auroc" if classes == 2 else "accuracy"


def loss_function(task: str, label_smoothing: float = 0.0) -> nn.Module:
    """Mean squared error of the standardised target, or cross-entropy (smoothed in training only)."""
    return nn.MSELoss() if task == "regression" else nn.CrossEntropyLoss(label_smoothing=label_smoothing)


def metrics(outputs: Tensor, target: Tensor, task: str, scale: float = 1.0) -> dict[str, float | None]:
    """Metrics of a network's outputs.

    Args:
        outputs: [rows, 1] standardised predictions, or [rows, classes] logits.
        target: [rows, 1] standardised float targets, or [rows] int64 class codes.
        task: "regression" or "classification".
        scale: standard deviation of the target: RMSE and MAE are in its units.

    Returns:
        loss and rmse, mae, r2; or loss and accuracy, auroc (macro, one against the rest, for more than two classes).
        None where a metric is not defined, such as AUROC of rows that lack a class.
    """
    with no_trace():  # a run is read, and its predictions made, without them
        from torchmetrics.functional import accuracy, auroc, mean_absolute_error, mean_squared_error, r2_score

    result: dict[str, float] = {"loss": loss_function(task)(outputs, target).item()}
    if task == "regression":
        y, t = outputs[:, 0].double(), target[:, 0].double()
        result["rmse"] = scale * mean_squared_error(y, t, squared=False).item()
        result["mae"] = scale * mean_absolute_error(y, t).item()
        result["r2"] = r2_score(y, t).item() if len(t) > 1 else math.nan
    else:
        classes = outputs.shape[1]
        result["accuracy"] = accuracy(outputs, target, task="multiclass", num_classes=classes).item()
        present = len(target.unique()) == classes
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if classes == 2:  # the difference of logits orders rows as the probability does, without ties at 0 and 1
                score = (outputs[:, 1] - outputs[:, 0]).double().sigmoid()
                value: Any = auroc(score, target, task="binary")
            else:
                probability = outputs.double().softmax(1)
                value = auroc(probability, target, task="multiclass", num_classes=classes)
        result["auroc"] = value.item() if present else math.nan
    return {k: v if math.isfinite(v) else None for k, v in result.items()}
