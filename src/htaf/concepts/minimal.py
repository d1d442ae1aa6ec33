"""Minimal sufficient concept set: the smallest set found that keeps the exact network's accuracy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from jaxtyping import Int64

from htaf._errors import expect_seed
from htaf.concepts.codes import Codes, ConceptError
from htaf.concepts.completeness import accuracies, by_importance
from htaf.concepts.counts import labelled, pair_counts
from htaf.concepts.heads import CAP, Fit, Head, accuracy_of
from htaf.concepts.redundancy import redundancy

DROP = 0.1
ALGORITHM = (
    "Recursive feature elimination (Guyon et al. 2002). Concepts that never change on the training part go first, then "
    "all but the most important one of each cluster of duplicate and complementary concepts. A multinomial logistic "
    "head is fitted to the training part (L2 strength chosen once on validation); the 10% of concepts, at least one, "
    "that add the least spread to its logits go, and so on down to none. Between the smallest set that reaches the "
    "target on validation and the next one, concepts go one by one. The target is the validation accuracy of the exact "
    "network less the tolerance. Same head: concepts taken out in order of importance, each replaced by its mean. "
    "Random: the head is fitted to the first k of a random order, the smallest k by bisection."
)


def minimal_set(
    codes: Codes,
    *,
    tolerance: float = 0.5,
    seeds: int = 3,
    cap: int = CAP,
    seed: int = 0,
    progress: Callable[[int, float], None] | None = None,
) -> dict[str, Any]:
    """The smallest set of concepts found whose refitted head stays within a tolerance of the exact network.

    Found by recursive feature elimination, so a smaller set may exist.

    Training and validation part choose everything; the test part is read once, for what was chosen.

    Args:
        codes: with labelled train, validation and test parts.
        tolerance: finite, in points of accuracy on the validation part.
        seeds: random orders to compare with.
        cap: most training images to fit to; beyond it an even share of each class, drawn with the seed.
        seed: of those draws.
        progress: called with how many concepts a fitted head has and its validation accuracy.

    Returns:
        plain values: "needed" (the size of the set), "kept" (its concepts), "head" ("refitted", or "same" where no
        refitted head on fewer concepts reaches the target), "weight" and "bias" of that head, "accuracy" {"full",
        "kept", "chosen"} of validation and test ("kept": the same concepts with the old head, others replaced by their
        means), "curve" {k: validation accuracy}, "same_head" {"needed", "curve"}, "random" [k or None, one a seed],
        "target", "removed", "strength", "fitted_images" and "train_images", "algorithm".

    Raises:
        ConceptError: a part is missing, or an argument out of range.
    """
    expect_seed(seed, ConceptError)
    if not 0 <= tolerance < np.inf or seeds < 0:
        raise ConceptError(f"expected a finite tolerance >= 0 and seeds >= 0, got {tolerance} and {seeds}")
    train, validation, test = (labelled(codes, part) for part in ("train", "validation", "test"))
    counts = pair_counts(train)
    means = np.diagonal(counts) / len(train)
    order = by_importance(codes.weight, means)
    found = redundancy(counts, len(train), order)
    start = np.array(sorted(cluster[0] for cluster in found.clusters), dtype=np.int64)
    every, old = np.arange(codes.concepts), Head(codes.weight.astype(float), codes.bias.astype(float))
    target = accuracy_of(validation, every, old) - tolerance / 100
    least = target - 1e-12  # an equal share reaches it, whatever the rounding

    same = accuracies(validation, order, means, np.arange(codes.concepts + 1))
    reaching = np.flatnonzero(same >= least)  # all of them may not, where two logits are as good as equal
    same_needed = int(reaching[0]) if len(reaching) else codes.concepts

    fit = Fit(train, means, cap, seed)
    strength, head = fit.choose(start, validation)
    candidates = start, head
    curve: dict[int, float] = {}

    def measure(kept: Int64[np.ndarray, " kept"], head: Head) -> bool:
        curve[len(kept)] = accuracy_of(validation, kept, head)
        if progress is not None:
            progress(len(kept), curve[len(kept)])
        return curve[len(kept)] >= least

    path = _eliminate(fit, strength, start, head, measure)
    passing = [i for i, (kept, _) in enumerate(path) if curve[len(kept)] >= least]
    best = path[passing[-1]] if passing else None
    if best is not None and passing[-1] + 1 < len(path):  # at the border, one by one
        kept, head = best
        while len(kept) > len(path[passing[-1] + 1][0]) + 1:
            kept, head = fit.without(kept, head, 1, strength)
            if measure(kept, head):
                best = kept, head
    if best is None or same_needed < len(best[0]):
        kept = np.sort(order[:same_needed])
        out = order[same_needed:]
        best, kind = (kept, Head(old.weight[:, kept], old.bias + old.weight[:, out] @ means[out])), "same"
    else:
        kind = "refitted"
    kept, head = best
    kept_first, count = np.concatenate([kept, np.setdiff1d(every, kept)]), np.array([len(kept)])
    chosen: dict[str, Any] = {"full": {}, "kept": {}, "chosen": {}}
    for name, part in (("validation", validation), ("test", test)):
        chosen["full"][name] = accuracy_of(part, every, old)
        chosen["kept"][name] = float(accuracies(part, kept_first, means, count)[0])
        chosen["chosen"][name] = accuracy_of(part, kept, head)
    return {
        "needed": len(kept),
        "kept": kept.tolist(),
        "head": kind,
        "weight": head.weight.tolist(),
        "bias": head.bias.tolist(),
        "accuracy": chosen,
        "curve": {str(k): curve[k] for k in sorted(curve)},
        "same_head": {"needed": same_needed, "curve": same.tolist()},
        "random": [_random(fit, strength, *candidates, validation, least, seed + i) for i in range(seeds)],
        "tolerance": tolerance,
        "target": target,
        "removed": {
            "dead": int(((means == 0) | (means == 1)).sum()),
            "redundant": sum(len(cluster) - 1 for cluster in found.clusters),
        },
        "strength": strength,
        "fitted_images": len(fit.labels),
        "train_images": len(train),
        "algorithm": ALGORITHM,
    }


def _eliminate(
    fit: Fit,
    strength: float,
    kept: Int64[np.ndarray, " kept"],
    head: Head,
    measure: Callable[[np.ndarray, Head], bool],
) -> list[tuple[np.ndarray, Head]]:
    """The sets from all candidates down to none, each measured."""
    path = [(kept, head)]
    measure(kept, head)
    while len(kept):
        kept, head = fit.without(kept, head, max(1, int(DROP * len(kept))), strength)
        path.append((kept, head))
        measure(kept, head)
    return path


def _random(
    fit: Fit,
    strength: float,
    start: Int64[np.ndarray, " kept"],
    whole: Head,
    validation: Codes,
    least: float,
    seed: int,
) -> int | None:
    """How many concepts of a random order reach the target; None where all of them do not."""
    order = np.random.default_rng(seed).permutation(len(start))

    def reaches(k: int) -> bool:
        return accuracy_of(validation, *fit.among(start, whole, order[:k], strength)) >= least

    if not reaches(len(order)):
        return None
    low, high = 0, len(order)  # `high` reaches it
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if reaches(middle) else (middle + 1, high)
    return high
