"""How good the concepts of a network are: every score from packed bits.

Bits are unpacked a chunk of images at a time. A part whose labelled images do not lie in one piece is copied, packed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from jaxtyping import Float64, Int64

from htaf.concepts.codes import PARTS, Codes, ConceptError, PartName
from htaf.concepts.completeness import by_importance, completeness
from htaf.concepts.counts import class_counts, class_sizes, pair_counts
from htaf.concepts.redundancy import redundancy
from htaf.concepts.sparsity import sparsity

BINS = 20  # of the histograms of class proportions over [0, 1]
RATE_GROUPS = 4


def labelled(codes: Codes, part: PartName) -> Codes:
    """The images of a part whose class is known, without their ids; a view where they lie in one piece,
    else a copy.

    Raises:
        ConceptError: there are none.
    """
    rows = codes.rows(part)
    rows = rows[np.asarray(codes.labels)[rows] >= 0]
    if not len(rows):
        known = np.asarray(codes.parts)[np.asarray(codes.labels) >= 0]
        present = [name for i, name in enumerate(PARTS) if (known == i).any()]
        raise ConceptError(f"expected labelled images of the part {part!r}, got only {', '.join(present) or 'none'}")
    whole = rows[-1] - rows[0] + 1 == len(rows)
    index = slice(int(rows[0]), int(rows[-1]) + 1) if whole else rows
    names = ("bits", "labels", "parts", "smooth", "exact", "saturated")
    return replace(codes, **{name: getattr(codes, name)[index] for name in names}, ids=())


def score(
    codes: Codes,
    *,
    baseline: Codes | Mapping[str, Codes] | None = None,
    fitted: PartName = "train",
    scored: PartName = "test",
    top: int = 10,
    points: int | None = None,
) -> dict[str, Any]:
    """All scores of a set of codes, as plain JSON values. Images without a label are left out and counted.

    accuracy: of the smooth and the exact network on each part, gap (exact minus smooth), flips (share of images whose
        prediction differs).
    binarity: share of smooth outputs > 0.99 or < 0.01 on the scored part; None where there are none.
    rates, dead: share of images that have a concept; concepts that are the same in every fitted image.
    concept_accuracy: `concept_accuracy`. class_specificity: `specificity`, with the same for each baseline.
    sparsity: NEC and NCC of the network's own head, `htaf.concepts.sparsity.sparsity`.
    importance: `importance`. completeness: `htaf.concepts.completeness`. redundancy: `htaf.concepts.redundancy`.

    Args:
        codes: of the network.
        baseline: codes of other networks for the class specificity, by name: such as a plain one binarised to the
            same rates.
        fitted: the part that class majorities, means, dead and redundant concepts are taken from.
        scored: the part that is scored.
        top: how many concepts to list for each class.
        points: of the completeness curve; default: all that seconds allow.

    Raises:
        ConceptError: no labelled images of a part; a label outside the classes; a baseline with other classes.
    """
    if top < 1:
        raise ConceptError(f"top must be >= 1, got {top}")
    fit, test = labelled(codes, fitted), labelled(codes, scored)
    counts, sizes = (class_counts(fit), class_counts(test)), (class_sizes(fit), class_sizes(test))
    rates = [count.sum(1) / size.sum() for count, size in zip(counts, sizes, strict=True)]
    always = {"always_0": rates[0] == 0, "always_1": rates[0] == 1}
    dead = always["always_0"] | always["always_1"]
    missing = test.saturated < 0
    specific = specificity(counts[1], sizes[1])
    named = {"baseline": baseline} if isinstance(baseline, Codes) else dict(baseline or {})
    return {
        "concepts": codes.concepts,
        "classes": list(codes.classes),
        "fitted": fitted,
        "scored": scored,
        "accuracy": _accuracy(codes),
        "binarity": None if missing.any() else float(test.saturated.sum(dtype=np.int64) / (len(test) * codes.concepts)),
        "rates": {"fitted": rates[0].tolist(), "scored": rates[1].tolist()},
        "dead": {name: np.flatnonzero(found).tolist() for name, found in always.items()}
        | {"count": int(dead.sum()), "share": float(dead.mean())},
        "concept_accuracy": concept_accuracy(counts, sizes),
        "class_specificity": specific
        | {"baselines": {name: _baseline(other, codes, scored) for name, other in named.items()}},
        "sparsity": sparsity(test, rates[0]),
        "importance": importance(codes, rates[0], counts[1], sizes[1], top=top),
        "completeness": completeness(test, rates[0], points=points),
        "redundancy": redundancy(pair_counts(fit), len(fit), by_importance(codes.weight, rates[0])).report(),
    }


def _accuracy(codes: Codes) -> dict[str, Any]:
    """Of each part that has images."""
    result: dict[str, Any] = {}
    for number, part in enumerate(PARTS):
        here = codes.parts == number
        rows = np.flatnonzero(here & (codes.labels >= 0))
        if not here.any():
            continue
        labels, smooth, exact = (np.asarray(values)[rows] for values in (codes.labels, codes.smooth, codes.exact))
        known = len(rows) > 0
        before = float((smooth == labels).mean()) if known and (smooth >= 0).all() else None
        after = float((exact == labels).mean()) if known and (exact >= 0).all() else None
        result[part] = {
            "images": len(rows),
            "unlabelled": int(here.sum()) - len(rows),
            "smooth": before,
            "exact": after,
            "gap": None if before is None or after is None else after - before,
            "flips": None if before is None or after is None else float((smooth != exact).mean()),
        }
    return result


def concept_accuracy(
    counts: tuple[Int64[np.ndarray, "concepts classes"], Int64[np.ndarray, "concepts classes"]],
    sizes: tuple[Int64[np.ndarray, " classes"], Int64[np.ndarray, " classes"]],
) -> dict[str, Any]:
    """How well the class alone tells whether an image has a concept.

    The logistic regression from the class to one bit is the majority of the bit among the fitted images of the class;
    a tie counts as 1, as the step at 0 does. A class without fitted images takes the majority over all. Balanced
    accuracy is the mean of the shares found among scored images with and without the bit, None where either are none.
    Beside them stands the trivial score, max(r, 1 - r) of the rate r on the scored part.

    Args:
        counts: images of class k with bit c, of the fitted and of the scored part. sizes: images of each class.

    Returns:
        {"mean", "live", "balanced", "trivial": means over concepts ("live": those that are not dead on the fitted
        part), "per_concept": {"accuracy", "balanced", "trivial": [C]}}.

    Source: the paper's appendix "Heaviside approximation and concept meaningfulness".
    """
    (fit, test), (fit_size, size) = counts, sizes
    majority = 2 * fit >= fit_size
    overall = 2 * fit.sum(1) >= fit_size.sum()
    majority[:, fit_size == 0] = overall[:, None]
    hits_1, hits_0 = (majority * test).sum(1), (~majority * (size - test)).sum(1)
    ones, images = test.sum(1), int(size.sum())
    accuracy = (hits_1 + hits_0) / images
    zeros = images - ones
    both = (ones > 0) & (zeros > 0)
    balanced = (hits_1 / np.maximum(ones, 1) + hits_0 / np.maximum(zeros, 1)) / 2
    trivial = np.maximum(ones, zeros) / images
    live = (fit.sum(1) > 0) & (fit.sum(1) < fit_size.sum())
    return {
        "mean": float(accuracy.mean()),
        "live": _mean(accuracy[live]),
        "balanced": _mean(balanced[both]),
        "trivial": float(trivial.mean()),
        "per_concept": {
            "accuracy": accuracy.tolist(),
            "balanced": [float(b) if known else None for b, known in zip(balanced, both, strict=True)],
            "trivial": trivial.tolist(),
        },
    }


def specificity(counts: Int64[np.ndarray, "concepts classes"], sizes: Int64[np.ndarray, " classes"]) -> dict[str, Any]:
    """How far the proportion of a class's images that have a concept is from undecided.

    Args:
        counts: images of class k with bit c. sizes: images of each class; those without any are left out.

    Returns:
        "histogram": concepts in 20 equal bins of the proportion, over all classes; "per_class": the same for each
        class, None for one without images; "extreme": share of (concept, class) pairs whose proportion is <= 0.1 or
        >= 0.9, "extreme_live" over live concepts alone; "explained": the part of a bit's variance that lies between
        classes, sum_k n_k (p_k - r)^2 / (n r (1 - r)), mean over live concepts: it does not grow by bits being rare;
        "by_rate": concepts in four groups of ascending rate, with mean rate and "extreme" of each.
    """
    present = sizes > 0
    n, count = sizes[present], counts[:, present]
    bins = np.minimum(BINS * count // n, BINS - 1)  # whole numbers: no edge is off by a rounding
    histograms = [np.bincount(column, minlength=BINS).tolist() for column in bins.T]
    extreme = (10 * count <= n) | (10 * count >= 9 * n)
    rate, proportion = count.sum(1) / n.sum(), count / n
    live = (rate > 0) & (rate < 1)
    between = ((proportion - rate[:, None]) ** 2 * n).sum(1)[live] / (n.sum() * rate * (1 - rate))[live]
    groups = np.array_split(np.argsort(rate, kind="stable"), min(RATE_GROUPS, len(rate)))
    per_class = iter(histograms)
    return {
        "histogram": np.sum(histograms, axis=0).tolist(),
        "per_class": [next(per_class) if there else None for there in present],
        "extreme": float(extreme.mean()),
        "extreme_live": _mean(extreme[live]),
        "explained": _mean(between),
        "by_rate": [{"rate": float(rate[g].mean()), "extreme": float(extreme[g].mean())} for g in groups],
    }


def _baseline(other: Codes, codes: Codes, scored: PartName) -> dict[str, Any]:
    if other.classes != codes.classes:
        raise ConceptError(f"baseline: expected the classes {codes.classes}, got {other.classes}")
    part = labelled(other, scored)
    return specificity(class_counts(part), class_sizes(part))


def importance(
    codes: Codes,
    means: Float64[np.ndarray, " concepts"],
    counts: Int64[np.ndarray, "concepts classes"],
    sizes: Int64[np.ndarray, " classes"],
    *,
    top: int = 10,
) -> list[dict[str, Any]]:
    """For each class its concepts of largest importance |w_kj|, as the paper has it.

    Beside it the signed contribution w_kj (p_kj - mean_j), what the concept adds on average to the class's logit among
    images of the class (share p_kj have it), compared with all images. It knows how often the concept fires.

    Args:
        codes: for the head.
        means: [C] of the fitted part. counts, sizes: of the scored part.
        top: how many of each class.

    Returns:
        K objects {"class", "top": [{"concept", "weight", "importance", "contribution"}], "top_contributions": [...]};
        contribution is None for a class without images, top_contributions the same by descending contribution.
    """
    result = []
    for number, name in enumerate(codes.classes):
        weight, size = codes.weight[number].astype(np.float64), int(sizes[number])
        added = weight * (counts[:, number] / size - means) if size else None
        orders = {"top": np.abs(weight), "top_contributions": added}
        lists = {
            key: []
            if by is None
            else [
                {
                    "concept": j,
                    "weight": float(weight[j]),
                    "importance": float(abs(weight[j])),
                    "contribution": None if added is None else float(added[j]),
                }
                for j in np.argsort(-by, kind="stable")[:top].tolist()
            ]
            for key, by in orders.items()
        }
        result.append({"class": name, **lists})
    return result


def _mean(values: np.ndarray) -> float | None:
    """None of nothing."""
    return float(values.mean()) if values.size else None
