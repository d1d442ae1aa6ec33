"""Linear heads on concepts: dense ones, sparse ones with so many weights a class, edited ones.

How many concepts a class draws on (NEC of a head).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import sqrt
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float, Float64, Int32, Int64

from htaf._ground.errors import expect_seed
from htaf.concepts.codes import Codes, ConceptError, class_number
from htaf.concepts.counts import OfImages, labelled, same_bits, taken
from htaf.concepts.store import Features
from htaf.transform.hardening.linear import LinearFit, Weights, largest_of_each

CAP = 20_000  # images that a head is fitted to
STRENGTHS = (1e-1, 3e-2, 1e-2, 1e-3)  # of the L2 penalty, the strongest first
FOLDS = 3  # of the validation images
INTERVAL = 1.96  # standard errors: 95%
Edit = tuple[int | str | np.integer, int | np.integer]  # class (name or number), concept


def effective(weight: Float[np.ndarray, "classes concepts"]) -> float:
    """The number of effective concepts, NEC: weights other than 0 of a class, mean over classes.

    Args:
        weight: [K, C] of a linear head.

    Source: Srivastava et al. 2024, VLG-CBM.
    """
    return float(np.count_nonzero(weight, axis=1).mean())


def by_importance(
    weight: Float[np.ndarray, "classes concepts"], rates: Float[np.ndarray, " concepts"]
) -> Int64[np.ndarray, " concepts"]:
    """Order concepts, the most important over all classes first; ties by number.

    The key is the standard deviation of what a concept adds to the logits: sqrt(r_j (1 - r_j)) times the root mean
    square over classes of w_kj - mean_k w_kj. A number added to w_kj for all k changes no prediction, nor this order.

    Args:
        weight: [K, C] of the head. rates: [C] share of images that have the concept.
    """
    key = np.sqrt(rates * (1 - rates)) * weight.astype(np.float64).std(0)
    return np.argsort(-key, kind="stable")


@dataclass(frozen=True, eq=False)
class Head:
    """A linear head: weight float64 [K, kept], bias float64 [K]."""

    weight: Float64[np.ndarray, "classes kept"]
    bias: Float64[np.ndarray, " classes"]


@dataclass(frozen=True, eq=False)
class SparseHead:
    """A head in which each class draws on few concepts.

    Attributes:
        target: most concepts of a class; None: all.
        head: weight float64 [K, C], of bits as they are; bias float64 [K].
        nec: mean number of weights other than 0 of a class.
        ridge: strength of its L2 penalty.
        right: bool [validation], whether each validation image is right by a head that was fitted without it.
        validation: the share of these.
    """

    target: int | None
    head: Head
    nec: float
    ridge: float
    right: Bool[np.ndarray, " validation"]
    validation: float


def fit_of(train: Codes | Features, cap: int = CAP, seed: int = 0, more: Codes | Features | None = None) -> LinearFit:
    """Make a fit to the training part, to at most `cap` images of it, and to all of `more`. A concept whose bits are
    those of an earlier one (`same_bits`), or on which no class of the network's own head draws, is set to 0 throughout:
    it gets no weight."""
    if cap < 1:
        raise ConceptError(f"cap must be >= 1, got {cap}")
    rows = balanced_rows(train.labels, cap, seed)
    values, labels = train.unpack(rows).astype(np.float32), np.asarray(train.labels)[rows].astype(np.int64)
    silent: Bool[np.ndarray, " concepts"] = np.zeros(values.shape[1], bool)
    if not isinstance(train, Features):
        drawn_on = train.weight.any(0)
        silent = ~same_bits((values.T @ values).astype(np.int64), len(values)).distinct | ~drawn_on & drawn_on.any()
    if more is not None:
        values = np.concatenate([values, more.unpack().astype(np.float32)])
        labels = np.concatenate([labels, np.asarray(more.labels).astype(np.int64)])
    values[:, silent] = 0
    return LinearFit(torch.from_numpy(values), torch.from_numpy(labels))


def head_of(fit: LinearFit, weights: Weights) -> Head:
    """A fit as a head on bits; a class without images is never predicted."""
    weight, bias = (values.numpy() for values in fit.raw(weights))
    absent = np.setdiff1d(np.arange(len(bias)), fit.y)
    weight[absent] = 0
    if len(absent):
        bias[absent] = (bias - np.abs(weight).sum(1))[np.unique(fit.y)].min() - 1
    return Head(weight, bias)


def correct(codes: Codes | Features, head: Head) -> Bool[np.ndarray, " images"]:
    """Whether a head gets each of some labelled images right."""
    tried = replace(codes, weight=head.weight.astype(np.float32), bias=head.bias.astype(np.float32))
    return tried.predictions() == np.asarray(codes.labels)


def balanced_rows(labels: Int32[np.ndarray, " images"], cap: int, seed: int) -> Int64[np.ndarray, " rows"]:
    """At most `cap` rows, classes as even as they can be, ascending."""
    if len(labels) <= cap:
        return np.arange(len(labels))
    shuffled = np.random.default_rng(seed).permutation(len(labels))
    of = pd.Series(np.asarray(labels)[shuffled])
    turns = of.groupby(of).cumcount().to_numpy()  # the first of every class, then the second of every class, ...
    return np.sort(shuffled[np.argsort(turns, kind="stable")[:cap]])


def sparse_heads(
    codes: Codes | Features,
    targets: Sequence[int | None] = (5, 10, None),
    *,
    cap: int = CAP,
    seed: int = 0,
) -> list[SparseHead]:
    """Fit heads in which no class draws on more than so many concepts.

    Multinomial logistic regression with an L2 penalty on standardised concepts of training and validation images. Each
    class then keeps the half of its concepts with the largest weights, is fitted again, and so on down to the target.

    The penalty is chosen by cross-validation. Bits of training images were learned from their classes, so what is held
    out are validation images, a third at a time. The strongest penalty stands until a weaker one is right more often by
    more than a standard error.

    Args:
        codes: with labelled training and validation parts; or the numbers that a soft bottleneck has in place of bits.
        targets: most concepts of a class; None: all of them.
        cap: most training images to fit to; beyond it an even share of each class, drawn with the seed.
        seed: of that draw, and of the thirds.

    Returns:
        a head for each target, in their order.

    Raises:
        ConceptError: a part is missing, or a target below 1.

    Source: Han et al. 2015 (pruning by steps); Srivastava et al. 2024 (accuracy at NEC 5).
    """
    expect_seed(seed, ConceptError)
    if not targets or any(target is not None and target < 1 for target in targets):
        raise ConceptError(f"expected numbers of concepts >= 1, got {list(targets)}")
    training, held, classes = labelled(codes, "train"), labelled(codes, "validation"), len(codes.classes)
    third = np.random.default_rng(seed).permutation(len(held)) % FOLDS
    folds = [np.flatnonzero(third == k) for k in range(min(FOLDS, len(held)))]
    fits = [fit_of(training, cap, seed, _without(held, rows)) for rows in folds]
    best: dict[int | None, tuple[Bool[np.ndarray, " validation"], float]] = {}
    for ridge in STRENGTHS:
        right = {target: np.zeros(len(held), bool) for target in targets}
        for rows, fit in zip(folds, fits, strict=True):
            for target, weights in pruned(fit, targets, ridge, classes).items():
                right[target][rows] = correct(taken(held, rows), head_of(fit, weights))
        better = {target for target in right if target not in best or _is_better(right[target], best[target][0])}
        best |= {target: (right[target], ridge) for target in better}
        if not better:
            break
    whole, found = fit_of(training, cap, seed, held), {}
    for target, (right, ridge) in best.items():
        head = head_of(whole, pruned(whole, (target,), ridge, classes)[target])
        found[target] = SparseHead(target, head, effective(head.weight), ridge, right, float(right.mean()))
    return [found[target] for target in targets]


def _without(held: OfImages, rows: Int64[np.ndarray, " rows"]) -> OfImages | None:
    """The other images; None where there are none."""
    others = np.setdiff1d(np.arange(len(held)), rows)
    return taken(held, others) if len(others) else None


def _is_better(one: Bool[np.ndarray, " images"], other: Bool[np.ndarray, " images"]) -> bool:
    """Whether one is right on more of the same images, by more than a standard error."""
    found = fewer_right(one, other)
    return found["cost"] > found["error"]


def pruned(fit: LinearFit, targets: Sequence[int | None], ridge: float, classes: int) -> dict[int | None, Weights]:
    """Fit with all concepts, then halve those of each class and fit again, down to each target."""
    weights, most = fit.logistic(fit.constant(classes), ridge), int((fit.z != 0).any(0).sum())
    found: dict[int | None, Weights] = {None: weights}
    for target in sorted({target for target in targets if target is not None}, reverse=True):
        while most > target:
            most = max(target, most // 2)
            weights = fit.logistic(weights, ridge, kept=largest_of_each(weights[0], most))
        found[target] = weights
    return {target: found[target] for target in dict.fromkeys(targets)}


def fewer_right(dense: Bool[np.ndarray, " images"], other: Bool[np.ndarray, " images"]) -> dict[str, Any]:
    """How much less accurate one head is than another on the same images, with a 95% interval.

        (b - c) / (n + 2) +- 1.96 sqrt(b + c + 1 - (b - c)^2 / (n + 2)) / (n + 2)

    b of the n images only the first head gets right, c only the other. Heads that agree on few images are not the same
    for sure: half an image is added to each of the four cases.

    Args:
        dense, other: whether each head is right on each image.

    Returns:
        "cost", (b - c) / n; "error", the square root above, of n + 2; "interval", its two ends.

    Source: Agresti and Min 2005.
    """
    lost, gained, count = int((dense & ~other).sum()), int((other & ~dense).sum()), len(dense) + 2
    less = (lost - gained) / count
    error = sqrt(lost + gained + 1 - less * (lost - gained)) / count
    cost = (lost - gained) / len(dense)
    return {"cost": cost, "error": error, "interval": [less - INTERVAL * error, less + INTERVAL * error]}


def edited(codes: Codes, off: Sequence[Edit]) -> Codes:
    """The codes with head weights w[class, concept] = 0, and the exact network's predictions after that.

    Args:
        off: (class, concept) pairs; a class is its name or its number.
    Raises:
        ConceptError: a class or concept that is not there.
    """
    weight = codes.weight.copy()
    pairs = edit_pairs(off, codes.classes, codes.concepts)
    for label, concept in pairs:
        weight[label, concept] = 0
    changed = replace(codes, weight=weight, smooth=np.full(len(codes), -1, dtype=np.int32))
    return replace(changed, exact=changed.predictions(), info={**codes.info, "off": [list(pair) for pair in pairs]})


def edit_pairs(off: Sequence[Edit], classes: Sequence[str], concepts: int) -> list[tuple[int, int]]:
    """Edits as distinct (class number, concept), ascending."""
    found = set()
    for label, concept in off:
        number = class_number(classes, label)
        if not 0 <= concept < concepts:
            raise ConceptError(f"expected a concept in 0 to {concepts - 1}, got {concept}")
        found.add((number, int(concept)))
    if not found:
        raise ConceptError("expected one (class, concept) or more, got none")
    return sorted(found)
