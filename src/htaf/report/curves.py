"""Figures of the probabilities in a report: ROC, precision and recall, thresholds."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float64

from htaf.report.measured import Measured
from htaf.runs.metrics import decided_by

POINTS = 60  # of a curve
MOST_CURVES = 6  # classes
THRESHOLDS = tuple(k / 10 for k in range(1, 10))


def class_curves(measured: Measured) -> list[dict[str, Any]]:
    """ROC and precision-recall on the rows of the report: of two classes those of the second; of three to six those of
    each against the rest; of more none. Classes that all rows or none have are left out. Rows count by their weights.

    Returns:
        by class {"class": its number, "rows": that have it, "auroc", "average_precision", "roc": [[share of the others
        that are taken for it, share of its rows that are found], ...], "precision": [[recall, precision], ...]}.
    """
    from sklearn.metrics import average_precision_score, precision_recall_curve, roc_auc_score, roc_curve

    values, truth = measured.values(), measured.truth()
    count = values.shape[1]
    found = list[dict[str, Any]]()
    for place in [1] if count == 2 else range(count) if count <= MOST_CURVES else []:
        has = truth == place
        if has.all() or not has.any():
            continue
        score = values[:, place]
        if count == 2:  # probabilities near 0 and 1 have ties that logits have not
            score = (measured.outputs[:, 1].double() - measured.outputs[:, 0].double()).numpy()
        of = measured.weights
        wrong, right, _ = roc_curve(has, score, sample_weight=of)
        precision, recall, _ = precision_recall_curve(has, score, sample_weight=of)
        found.append(
            {
                "class": place,
                "rows": int(has.sum()),
                "auroc": float(roc_auc_score(has, score, sample_weight=of)),
                "average_precision": float(average_precision_score(has, score, sample_weight=of)),
                "roc": _thinned(wrong, right),
                "precision": _thinned(recall[-2::-1], precision[-2::-1]),  # without the end that no row has
            }
        )
    return found


def _thinned(x: Float64[np.ndarray, " points"], y: Float64[np.ndarray, " points"]) -> list[list[float]]:
    """At most 60 points of a curve, spread evenly along it."""
    along = np.concatenate([[0.0], np.cumsum(np.abs(np.diff(x)) + np.abs(np.diff(y)))])
    wanted = np.searchsorted(along, np.linspace(0, along[-1], POINTS))
    chosen = np.unique(np.concatenate([[0], np.minimum(wanted, len(x) - 1), [len(x) - 1]]))
    return [[round(float(a), 5), round(float(b), 5)] for a, b in zip(x[chosen], y[chosen], strict=True)]


def thresholds(measured: Measured) -> list[dict[str, Any]]:
    """Of two classes what is found and what is right where the second is said from a probability on; the run's own
    threshold stands among round ones. Rows count by their weights.

    Returns:
        {"threshold", "said": share of the rows of which class 1 is said, "wrong": share of the rows of class 0 of which
        it is, "recall", "precision", "f1", "accuracy", "own": whether it is the run's}, in order; None where there is
        nothing to divide by.
    """
    values, truth = torch.from_numpy(measured.values()), measured.truth()
    if values.shape[1] != 2:
        return []
    own = 0.5 if measured.threshold is None else measured.threshold
    positive, found = truth == 1, list[dict[str, Any]]()
    for threshold in sorted({*THRESHOLDS, own}):
        by = measured.threshold if threshold == own else threshold
        said: Bool[np.ndarray, " rows"] = decided_by(values, by).numpy() == 1
        hits, count, wanted, whole = map(measured.total, (said & positive, said, positive, truth >= 0))
        found.append(
            {
                "threshold": threshold,
                "said": count / whole,
                "wrong": (count - hits) / (whole - wanted) if not positive.all() else None,
                "recall": hits / wanted if wanted else None,
                "precision": hits / count if count else None,
                "f1": 2 * hits / (count + wanted) if count + wanted else None,
                "accuracy": measured.total(said == positive) / whole,
                "own": threshold == own,
            }
        )
    return found
