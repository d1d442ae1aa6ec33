"""Figures of single rows of a report: ROC and precision-recall, thresholds, balance of classes, points, examples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float64, Int64

from htaf.data.tabular import Table
from htaf.report.measured import Measured
from htaf.rules.explanation import Explanation
from htaf.runs.metrics import decided_by

POINTS = 60  # of a curve
MOST_CURVES = 6  # classes
THRESHOLDS = tuple(k / 10 for k in range(1, 10))
SCATTERED = 400  # rows as points
REASONS = 6  # columns of an example
LOOKED_AT = 60  # columns of an example whose values are changed, by their importance


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


def balance(table: Table, parts: Mapping[str, Int64[np.ndarray, " rows"]], measured: Measured) -> list[dict[str, Any]]:
    """By class how many rows of each part have it, and of how many of the report's rows it is said; and the shares of
    these in the weight of all."""
    count = len(table.classes)

    def counted(codes: np.ndarray, weights: np.ndarray | None) -> tuple[list[int], list[float]]:
        shares = np.bincount(codes, weights, count) / (len(codes) if weights is None else weights.sum())
        return np.bincount(codes, minlength=count).tolist(), shares.tolist()

    of = {name: counted(table.target[rows], table.weights_of(rows)) for name, rows in parts.items() if len(rows)}
    said, share = counted(measured.decided(), measured.weights)
    return [
        {
            "class": k,
            "said": said[k],
            "said_share": share[k],
            "rows": {name: rows[k] for name, (rows, _) in of.items()},
            "shares": {name: shares[k] for name, (_, shares) in of.items()},
        }
        for k in range(count)
    ]


def points(measured: Measured) -> list[list[float]]:
    """Of a regression the prediction and the true value of at most 400 rows, evenly spread."""
    said, truth = measured.decided(), measured.truth()
    chosen = np.unique(np.linspace(0, len(said) - 1, min(SCATTERED, len(said))).astype(np.int64))
    return [[float(said[k]), float(truth[k])] for k in chosen]


def picked(measured: Measured) -> dict[str, int]:
    """Places of three telling rows: of classes the surest one that is right, the most unsure one, and the surest one
    that is wrong; of numbers those with the smallest, the middle and the largest error. A kind that no row is of is
    left out."""
    values, truth, decided = measured.values(), measured.truth(), measured.decided()
    if values.shape[1] == 1:
        order = np.argsort(np.abs(values[:, 0] - truth), kind="stable")
        return {"near": int(order[0]), "usual": int(order[len(order) // 2]), "far": int(order[-1])}
    sure = np.sort(values, axis=1)[:, -1] - np.sort(values, axis=1)[:, -2]
    if measured.threshold is not None:
        sure = np.abs(values[:, 1] - measured.threshold)
    hit = decided == truth
    found = {"hit": np.where(hit, sure, -np.inf), "unsure": -sure, "miss": np.where(hit, -np.inf, sure)}
    return {name: int(of.argmax()) for name, of in found.items() if np.isfinite(of.max())}


def examples(measured: Measured, table: Table, explained: Explanation, ordered: Sequence[str]) -> list[dict[str, Any]]:
    """The rows of `picked` with what the values of each column add, as `htaf explain RUN ROWS --row` gives it.

    Args:
        ordered: columns by importance; of more than 60 the first are looked at.

    Returns:
        {"kind", "row": in the table, from 1, "truth", "said", "instead": the next class or None, "chance": the
        probability of what is said or None, "columns": [{"column", "value", "adds", "std"}]}, those that add most.
    """
    classes, found = table.classes, list[dict[str, Any]]()
    values, truth, decided = measured.values(), measured.truth(), measured.decided()
    for kind, place in picked(measured).items():
        raw = table.features.iloc[[measured.rows[place]]]
        of_columns = explained.reasons(raw, ordered[:LOOKED_AT]).columns.head(REASONS)
        said, one = decided[place], truth[place]
        order = [int(k) for k in np.argsort(-values[place], kind="stable") if k != said]
        found.append(
            {
                "kind": kind,
                "row": int(measured.rows[place]) + 1,
                "truth": classes[int(one)] if classes else float(one),
                "said": classes[int(said)] if classes else float(said),
                "instead": classes[order[0]] if classes else None,
                "chance": float(values[place, int(said)]) if classes else None,
                "columns": [
                    {
                        "column": name,
                        "value": _plain(raw[name].iloc[0]),
                        "adds": float(of["adds"]),
                        "std": float(of["std"]),
                    }
                    for name, of in of_columns.iterrows()
                ],
            }
        )
    return found


def _plain(value: Any) -> str | float | None:
    """A raw value as JSON has it; None where it is missing."""
    if value is None or value != value or str(value) in ("", "NaT", "<NA>"):
        return None
    if isinstance(value, int | float | np.number):
        return float(value)
    return str(value).removesuffix(" 00:00:00")
