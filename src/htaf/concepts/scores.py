"""How good the concepts of a network are: every score from packed bits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import Int64

from htaf.concepts.codes import PARTS, Codes, PartName
from htaf.concepts.counts import labelled, pair_counts, part_counts, redundancy
from htaf.concepts.heads import effective
from htaf.concepts.store import CodesFolder

BINS = 20  # of the histograms of class proportions over [0, 1]


def score(codes: CodesFolder | Codes, *, scored: PartName = "test") -> dict[str, Any]:
    """Give all scores of a set of codes, as plain JSON values. Images without a label are left out and counted.

    accuracy: of the smooth and the exact network on each part, gap (exact minus smooth), flips (share of images whose
        prediction differs).
    binarity: share of smooth outputs > 0.99 or < 0.01 on the scored part; None where there are none.
    rates, dead: share of images that have a concept; concepts that are the same in every training image.
    concept_accuracy: `concept_accuracy`. class_specificity: `specificity`.
    nec: of the network's own head, `htaf.concepts.heads.effective`.
    images: of each class, labelled, of the scored part. redundancy: `htaf.concepts.counts`.

    Args:
        codes: of the network.
        scored: the part that is scored; class majorities, means, dead and redundant concepts are of the training part.

    Raises:
        ConceptError: no labelled images of a part; a label outside the classes; and as `CodesFolder.codes`.
    """
    codes = codes if isinstance(codes, Codes) else codes.codes()
    fit, test = labelled(codes, "train"), labelled(codes, scored)
    (of_fit, size), (of_test, test_size) = part_counts(codes, "train"), part_counts(codes, scored)
    counts, sizes = (of_fit, of_test), (size, test_size)
    rates = [count.sum(1) / len(part) for count, part in zip(counts, (fit, test), strict=True)]
    always = {"always_0": rates[0] == 0, "always_1": rates[0] == 1}
    dead = always["always_0"] | always["always_1"]
    saturated = np.asarray(test.saturated)
    binarity = int(saturated.sum(dtype=np.int64)) / (len(test) * codes.concepts)
    return {
        "concepts": codes.concepts,
        "classes": list(codes.classes),
        "scored": scored,
        "images": test_size.tolist(),
        "accuracy": {
            part: accuracy_of(codes.labels[rows], codes.smooth[rows], codes.exact[rows])
            for part in PARTS
            if len(rows := codes.rows(part))
        },
        "binarity": None if (saturated < 0).any() else binarity,
        "rates": {"fitted": rates[0].tolist(), "scored": rates[1].tolist()},
        "dead": {name: np.flatnonzero(there).tolist() for name, there in always.items()}
        | {"count": int(dead.sum()), "share": float(dead.mean())},
        "concept_accuracy": concept_accuracy(counts, sizes),
        "class_specificity": specificity(of_test, test_size),
        "nec": effective(codes.weight),
        "redundancy": redundancy(pair_counts(fit), len(fit)),
    }


def summary(scores: Mapping[str, Any], kind: str = "image") -> list[dict[str, Any]]:
    """List the scores that pages, files and the console show.

    Args:
        scores: of `score`. kind: the word for what is scored.

    Returns:
        "key", "label", "value" (None: not known), "kind" and "help" of each. By kind a value is a percent, as a share
        in [0, 1], points, as a difference of shares, a count or a number.
    """
    accuracy, concept = scores["accuracy"][scores["scored"]], scores["concept_accuracy"]
    specific, same = scores["class_specificity"], scores["redundancy"]
    sizes = scores["images"]
    return [_row(*row) for row in (
        ("exact", "Accuracy, exact bits", accuracy["exact"], "percent",
         f"Share of {kind}s whose class the network with bits of 0 and 1 finds. "
         f"A guess finds {1 / len(sizes):.1%}, always the most frequent class {max(sizes) / sum(sizes):.1%}."),
        ("smooth", "Accuracy, smooth", accuracy["smooth"], "percent",
         "The same of the network as it was trained, before its outputs are cut to 0 and 1."),
        ("gap", "Change by the cut to bits", accuracy["gap"], "points",
         "Exact minus smooth accuracy: below 0, the bits cost accuracy."),
        ("flips", "Predictions that differ", accuracy["flips"], "percent",
         f"Share of {kind}s whose predicted class the cut changes."),
        ("binarity", "Outputs almost 0 or 1 before the cut", scores["binarity"], "percent",
         "Share of smooth outputs above 0.99 or below 0.01."),
        ("concept_accuracy", "Concept accuracy", concept["mean"], "percent",
         "How often one who knows the class alone can tell whether a concept is on; rare and dead ones raise it."),
        ("balanced", "The same, balanced", concept["balanced"], "percent",
         f"Mean of the shares found among {kind}s with and without the bit; chance gives 50%."),
        ("extreme", "Clear (concept, class) pairs", specific["extreme"], "percent",
         f"Share of pairs in which 10% of a class's {kind}s or fewer, or 90% or more, have the concept."),
        ("explained", "Variance between classes", specific["explained"], "percent",
         "Part of a bit's variance that lies between classes: 100% where the class decides every bit."),
        ("effective", "Effective number of concepts", float(same["effective"]), "number",
         "Concepts that say the same count once: from the spectrum of their correlations."),
        ("duplicates", "Duplicate pairs", same["duplicates"]["count"], "count",
         f"Two bits that agree on 99% of training {kind}s and correlate by 0.9."),
        ("complementary", "Complementary pairs", same["complementary"]["count"], "count",
         f"Two bits that disagree on 99% of training {kind}s and correlate by -0.9."),
        ("nec", "Concepts of a class (NEC)", scores["nec"], "number", "Weights other than 0, mean over classes."),
    )] + [dead_row(scores["dead"]["count"], kind)]  # fmt: skip


def shown(row: Mapping[str, Any]) -> str:
    """Give the value of a row of `summary` as a text."""
    value = row["value"]
    if value is None:
        return "-"
    forms = {"percent": f"{100 * value:.1f}%", "points": f"{100 * value:+.2f} points", "count": f"{value:,}"}
    return forms.get(row["kind"], f"{value:.1f}")


def dead_row(count: int, kind: str) -> dict[str, Any]:
    """Give the row of `summary` that is known without labels."""
    return _row("dead", "Dead concepts", count, "count", f"Always 0 or 1 in training {kind}s: they say nothing.")


def _row(*values: Any) -> dict[str, Any]:
    return dict(zip(("key", "label", "value", "kind", "help"), values, strict=True))


def accuracy_of(labels: np.ndarray, smooth: np.ndarray, exact: np.ndarray | None) -> dict[str, Any]:
    """Accuracies on images of which the labels are known; None where there are none, or a network has not predicted.

    Args:
        labels, smooth, exact: class numbers, -1: not known.

    Returns:
        "images" with a label, "unlabelled", "smooth", "exact", "gap" (exact minus smooth), "flips".
    """
    known = labels >= 0
    images = int(known.sum())
    before, after = (
        float((of == labels)[known].mean()) if images and of is not None and (of[known] >= 0).all() else None
        for of in (smooth, exact)
    )
    return {
        "images": images,
        "unlabelled": len(labels) - images,
        "smooth": before,
        "exact": after,
        "gap": None if before is None or after is None else after - before,
        "flips": None if before is None or after is None else float((smooth != exact)[known].mean()),
    }


def concept_accuracy(
    counts: tuple[Int64[np.ndarray, "concepts classes"], Int64[np.ndarray, "concepts classes"]],
    sizes: tuple[Int64[np.ndarray, " classes"], Int64[np.ndarray, " classes"]],
) -> dict[str, Any]:
    """Return how well the class alone tells whether an image has a concept.

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
    """Return how far the proportion of a class's images that have a concept is from undecided.

    Args:
        counts: images of class k with bit c. sizes: images of each class; those without any are left out.

    Returns:
        "histogram": concepts in 20 equal bins of the proportion, over all classes; "per_class": the same for each
        class, None for one without images; "extreme": share of (concept, class) pairs whose proportion is <= 0.1 or
        >= 0.9, "extreme_live" over live concepts alone; "explained": the part of a bit's variance that lies between
        classes, sum_k n_k (p_k - r)^2 / (n r (1 - r)), mean over live concepts: it does not grow by bits being rare.
    """
    present = sizes > 0
    n, count = sizes[present], counts[:, present]
    bins = np.minimum(BINS * count // n, BINS - 1)  # whole numbers: no edge is off by a rounding
    histograms = [np.bincount(column, minlength=BINS).tolist() for column in bins.T]
    extreme = (10 * count <= n) | (10 * count >= 9 * n)
    rate, proportion = count.sum(1) / n.sum(), count / n
    live = (rate > 0) & (rate < 1)
    between = ((proportion - rate[:, None]) ** 2 * n).sum(1)[live] / (n.sum() * rate * (1 - rate))[live]
    per_class = iter(histograms)
    return {
        "histogram": np.sum(histograms, axis=0).tolist(),
        "per_class": [next(per_class) if there else None for there in present],
        "extreme": float(extreme.mean()),
        "extreme_live": _mean(extreme[live]),
        "explained": _mean(between),
    }


def _mean(values: np.ndarray) -> float | None:
    """None of nothing."""
    return float(values.mean()) if values.size else None
