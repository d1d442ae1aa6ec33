"""Interventions: bits set to what most images of the true class have, and what the head then says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from jaxtyping import Float64, Int64

from htaf.concepts.codes import Codes, ConceptError, PartName
from htaf.concepts.completeness import by_importance
from htaf.concepts.counts import labelled_rows, proportions

InterventionOrder = Literal["random", "importance"]
CELLS = 2**22  # bits, or logits where there are more of them, at once: about 100 MB


@dataclass(frozen=True, eq=False)
class Curve:
    """Accuracy as more and more bits are corrected.

    Attributes:
        order: "random" or "importance".
        points: int64 [P], n: how many bits were set, whether or not that changed them.
        accuracy: float64 [S, P], one row a seed; one row for a fixed order.
        changed: float64 [S, P], mean number of bits that were really changed.
        images: how many were scored.
    """

    order: InterventionOrder
    points: Int64[np.ndarray, " points"]
    accuracy: Float64[np.ndarray, "seeds points"]
    changed: Float64[np.ndarray, "seeds points"]
    images: int

    def to_json(self) -> dict[str, Any]:
        """Plain values: points, mean and standard deviation of the accuracy over seeds, mean changed bits."""
        spread = self.accuracy.std(0, ddof=1) if len(self.accuracy) > 1 else np.zeros(len(self.points))
        return {
            "order": self.order,
            "images": self.images,
            "seeds": len(self.accuracy),
            "points": self.points.tolist(),
            "accuracy": self.accuracy.mean(0).tolist(),
            "accuracy_sd": spread.tolist(),
            "changed": self.changed.mean(0).tolist(),
        }


def intervention_curve(
    codes: Codes,
    *,
    order: InterventionOrder = "random",
    fitted: PartName = "train",
    scored: PartName = "test",
    seeds: int = 5,
    points: Sequence[int] | None = None,
) -> Curve:
    """Accuracy when n bits of each image are set to what most images of its true class have.

    It knows the true class, as interventions in concept bottleneck models do: it says what correct concepts are worth,
    not how good a classifier is. At n = 0 it is the exact network's accuracy; at n = C every image of a class has the
    same bits, so it is the share of images whose class is told from its majority bits.

    Args:
        order: "random": each image in its own order, by seed; "importance": for all images alike by falling
            max_k |w_kj|, the order "weight" and not "spread" of `htaf.concepts.completeness.by_importance`; it knows
            neither labels nor predictions (a fixed order, as in Koh et al. 2020; orders by image are compared in
            Shin et al. 2023).
        fitted: the part that the majorities come from; half counts as 1.
        scored: the part that is scored; its images without a label are left out.
        seeds: of the random order.
        points: values of n, 0 to C; None: all up to 64, otherwise 65 even steps.
    Raises:
        ConceptError: settings out of range, empty parts, classes that `fitted` has no image of.
    """
    if order not in get_args(InterventionOrder):
        raise ConceptError(f"order must be one of {get_args(InterventionOrder)}, got {order!r}")
    if seeds < 1:
        raise ConceptError(f"seeds must be >= 1, got {seeds}")
    count = codes.concepts
    given = np.round(np.linspace(0, count, min(count, 64) + 1)) if points is None else points
    if not len(given) or min(given) < 0 or max(given) > count:  # before the conversion: they may be of any size
        raise ConceptError(f"expected points in 0 to {count}, got {list(given)}")
    steps = np.unique(np.asarray(given, dtype=np.int64))
    majority = proportions(codes.part(fitted)) >= 0.5
    rows = labelled_rows(codes, scored)
    if not len(rows):
        raise ConceptError(f"expected images with labels in the part {scored!r}, got none")
    _check_classes(codes, rows, fitted)
    by_weight = by_importance(codes.weight, np.zeros(count), "weight")  # to which rates do not matter
    fixed = np.argsort(by_weight) if order == "importance" else None  # the place of each concept
    repeats = 1 if fixed is not None else seeds
    hits, changed = np.zeros((repeats, len(steps))), np.zeros((repeats, len(steps)))
    size = max(1, CELLS // max(1, count, len(codes.bias)))
    for seed in range(repeats):
        rng = np.random.default_rng(seed)  # one stream an image after the other: the size of a chunk does not matter
        for start in range(0, len(rows), size):
            chunk = rows[start : start + size]
            bits, label = codes.unpack(chunk).astype(bool), codes.labels[chunk]
            right = majority.T[label]
            rank = fixed if fixed is not None else np.argsort(rng.random(bits.shape), axis=1)
            for place, n in enumerate(steps.tolist()):
                now = np.where(rank < n, right, bits)
                hits[seed, place] += ((now.astype(np.float32) @ codes.weight.T + codes.bias).argmax(1) == label).sum()
                changed[seed, place] += (now != bits).sum()
    return Curve(order, steps, hits / len(rows), changed / len(rows), len(rows))


def _check_classes(codes: Codes, rows: np.ndarray, fitted: PartName) -> None:
    missing = np.setdiff1d(codes.labels[rows], codes.labels[codes.rows(fitted)])
    if len(missing):
        names = ", ".join(repr(codes.classes[label]) for label in missing[:5].tolist())
        raise ConceptError(f"expected images of each scored class in the part {fitted!r}, got none of {names}")
