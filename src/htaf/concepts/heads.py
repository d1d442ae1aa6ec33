"""Linear heads on concepts: dense ones, sparse ones with so many weights a class, edited ones.

How many concepts a class and a decision draw on (NEC and NCC of a head).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64, Int32, Int64

from htaf._ground.errors import expect_seed
from htaf.concepts.codes import CHUNK, Codes, ConceptError, class_number
from htaf.concepts.counts import in_turn, labelled, same_bits, training_means
from htaf.concepts.store import Features
from htaf.transform.hardening.linear import LinearFit, Weights, largest_of_each

COVERAGE = 0.95  # of what is added to a logit, as NCC's source has it
CELLS = 2**22  # contributions sorted at once: some 100 MB
_LEAST = 1e-9  # of a logit's sum: what rounding adds
CAP = 20_000  # images that a head is fitted to
CANDIDATES = 4  # points of the path whose largest weights are tried at a target
STRENGTHS = (1e-1, 1e-2, 1e-3, 1e-4)  # of the L2 penalty of a fit on chosen weights, the strongest first
Edit = tuple[int | str | np.integer, int | np.integer]  # class (name or number), concept
Point = tuple[float, Weights]


def effective(weight: Float[np.ndarray, "classes concepts"]) -> float:
    """The number of effective concepts, NEC: weights other than 0 of a class, mean over classes.

    Args:
        weight: [K, C] of a linear head.

    Source: Srivastava et al. 2024, VLG-CBM.
    """
    return float(np.count_nonzero(weight, axis=1).mean())


def contributing(
    weight: Float[np.ndarray, "classes concepts"],
    inputs: Float[np.ndarray, "images concepts"],
    *,
    coverage: float = COVERAGE,
) -> float:
    """The number of contributing concepts, NCC: how many make up a share tau of what is added to a logit.

        NCC = mean over images i and classes k of min {m: sum of the m largest u_j >= tau sum_j u_j},
        u_j = |w_kj x_ij|

    A logit to which nothing is added counts 0. At tau = 1, with no input at 0, it is NEC.

    Args:
        weight: [K, C].
        inputs: [N, C], what the head reads.
        coverage: tau, in (0, 1].

    Raises:
        ConceptError: a coverage out of range, or no images.

    Source: "Learning Concept Bottleneck Models from Mechanistic Explanations" (M-CBM, 2026); `PyC
    <https://github.com/pyc-team/pytorch_concepts>`_ has the same formula.
    """
    if not 0 < coverage <= 1:
        raise ConceptError(f"coverage must be > 0 and <= 1, got {coverage}")
    if not len(inputs):
        raise ConceptError("expected images, got none")
    classes, concepts = weight.shape
    wide = weight.astype(np.float64)
    used = [np.flatnonzero(line) for line in wide]
    step = max(1, CELLS // max(1, concepts))
    counted = 0
    for start in range(0, len(inputs), step):
        values = inputs[start : start + step].astype(np.float64)
        for k, nodes in enumerate(used):
            if not len(nodes):
                continue
            largest = np.sort(np.abs(values[:, nodes] * wide[k, nodes]), axis=1)[:, ::-1]
            summed = largest.cumsum(1)
            total = summed[:, -1:]
            # a rounding of the sum must not ask for one more
            counted += int(((summed < coverage * total - _LEAST * total).sum(1) + (total[:, 0] > 0)).sum())
    return counted / (len(inputs) * classes)


def sparsity(codes: Codes | Features, means: Float[np.ndarray, " concepts"], *, most: int = 500) -> dict[str, Any]:
    """NEC and NCC of the head of some codes.

    NCC is taken of the bits, or soft values, less their means, w_kj (c_ij - mean_j): so a concept that an image lacks
    counts as well as one that it has, and the head reads the standardised concepts of the definition. A number moved
    from the bits to the bias would change it otherwise.

    Args:
        codes: the images that are counted.
        means: [C], such as the training part's.
        most: images, evenly spaced, that NCC is counted on.

    Returns:
        "nec", "ncc", "coverage", "images".
    """
    rows = np.unique(np.linspace(0, len(codes) - 1, min(len(codes), most)).astype(np.int64)) if len(codes) else []
    inputs = codes.unpack(np.asarray(rows, np.int64)).astype(np.float64) - means
    return {
        "nec": effective(codes.weight),
        "ncc": contributing(codes.weight, inputs),
        "coverage": COVERAGE,
        "images": len(rows),
    }


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


def most_important(codes: Codes) -> Int64[np.ndarray, " concepts"]:
    """`by_importance` with the rates of the labelled training images."""
    return by_importance(codes.weight, training_means(codes))


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
        strength: of the elastic net whose largest weights it has; None with all concepts.
        ridge: strength of the L2 penalty of the last fit.
        validation: its accuracy on the validation part.
    """

    target: int | None
    head: Head
    nec: float
    strength: float | None
    ridge: float
    validation: float


def fit_of(train: Codes | Features, cap: int = CAP, seed: int = 0) -> LinearFit:
    """Make a fit to the training part, to at most `cap` images of it. A concept whose bits are those of an earlier one
    (`same_bits`), or on which no class of the network's own head draws, is set to 0 throughout: it gets no weight."""
    if cap < 1:
        raise ConceptError(f"cap must be >= 1, got {cap}")
    rows = balanced_rows(train.labels, cap, seed)
    values, labels = train.unpack(rows).astype(np.float32), np.asarray(train.labels)[rows].astype(np.int64)
    if not isinstance(train, Features):
        values[:, ~same_bits((values.T @ values).astype(np.int64), len(values)).distinct] = 0
        drawn_on = train.weight.any(0)
        values[:, ~drawn_on & drawn_on.any()] = 0
    return LinearFit(torch.from_numpy(values), torch.from_numpy(labels))


def head_of(fit: LinearFit, weights: Weights) -> Head:
    """A fit as a head on bits; a class without training images is never predicted."""
    weight, bias = (values.numpy() for values in fit.raw(weights))
    absent = np.setdiff1d(np.arange(len(bias)), fit.y)
    weight[absent] = 0
    if len(absent):
        bias[absent] = (bias - np.abs(weight).sum(1))[np.unique(fit.y)].min() - 1
    return Head(weight, bias)


def correct(codes: Codes | Features, head: Head) -> Bool[np.ndarray, " images"]:
    """Whether a head gets each of some labelled images right."""
    hits = np.zeros(len(codes), dtype=bool)
    weight, bias = head.weight.T.astype(np.float32), head.bias.astype(np.float32)
    for start in range(0, len(codes), CHUNK):
        rows = slice(start, start + CHUNK)
        logits = codes.unpack(rows).astype(np.float32) @ weight + bias
        hits[rows] = logits.argmax(1) == np.asarray(codes.labels)[rows]
    return hits


def balanced_rows(labels: Int32[np.ndarray, " images"], cap: int, seed: int) -> Int64[np.ndarray, " rows"]:
    """At most `cap` rows, classes as even as they can be, ascending."""
    if len(labels) <= cap:
        return np.arange(len(labels))
    shuffled = np.random.default_rng(seed).permutation(len(labels))
    return np.sort(in_turn(shuffled, np.asarray(labels))[:cap])


def sparse_heads(
    codes: Codes | Features,
    targets: Sequence[int | None] = (5, 10, None),
    *,
    cap: int = CAP,
    seed: int = 0,
) -> list[SparseHead]:
    """Fit heads in which no class draws on more than so many concepts.

    Multinomial logistic regression on standardised concepts of the training part: an elastic net along a path of
    strengths, each fit started from the last. Of the first four points of the path with n or more concepts a class, the
    n largest weights of each class are fitted again without the L1 penalty; validation accuracy chooses the point, then
    the strength of the L2 penalty. With all concepts: the L2 penalty alone.

    Args:
        codes: with labelled training and validation parts; or the numbers that a soft bottleneck has in place of bits.
        targets: most concepts of a class; None: all of them.
        cap: most training images to fit to; beyond it an even share of each class, drawn with the seed.
        seed: of that draw.

    Returns:
        a head for each target, in their order.

    Raises:
        ConceptError: a part is missing, or a target below 1.

    Source: Wong et al. 2021 (sparse heads along a path); Srivastava et al. 2024 (accuracy at NEC 5).
    """
    expect_seed(seed, ConceptError)
    if not targets or any(target is not None and target < 1 for target in targets):
        raise ConceptError(f"expected numbers of concepts >= 1, got {list(targets)}")
    validation = labelled(codes, "validation")
    fit = fit_of(labelled(codes, "train"), cap, seed)
    wanted = sorted({target for target in targets if target is not None})
    points = _points(fit, len(codes.classes), wanted)
    found = {target: _at(fit, validation, target, points) for target in dict.fromkeys(targets)}
    return [found[target] for target in targets]


def _points(fit: LinearFit, classes: int, wanted: Sequence[int]) -> list[Point]:
    if not wanted:
        return []
    points: list[Point] = []
    for strength, weights in fit.path(classes):
        points.append((strength, weights))
        if sum(effective(weight.numpy()) >= wanted[-1] for _, (weight, _) in points) == CANDIDATES:
            break  # no later point is looked at
    return points


def _at(fit: LinearFit, validation: Codes | Features, target: int | None, points: Sequence[Point]) -> SparseHead:
    """The head for one target."""

    def accuracy(weights: Weights) -> float:
        return float(correct(validation, head_of(fit, weights)).mean())

    chosen, kept, start = None, None, fit.constant(len(validation.classes))
    if target is not None:
        reaching = [point for point in points if effective(point[1][0].numpy()) >= target][:CANDIDATES] or [points[-1]]
        tried = []
        for strength, weights in reaching:
            kept = largest_of_each(weights[0], target)
            fitted = fit.logistic(weights, STRENGTHS[2], kept=kept)
            tried.append((accuracy(fitted), strength, kept, fitted))
        _, chosen, kept, start = max(tried, key=lambda row: row[0])  # the first of equals: the sparser
    best, ridge, weights = fit.best(accuracy, STRENGTHS, start, kept)
    head = head_of(fit, weights)
    return SparseHead(target, head, effective(head.weight), chosen, ridge, best)


def measured(
    codes: Codes | Features, head: Head, means: Float64[np.ndarray, " concepts"]
) -> tuple[Bool[np.ndarray, " images"], dict[str, Any]]:
    """Which images a head gets right, and its figures.

    Args:
        codes: labelled images. head: weight [K, C] and bias [K]. means: of the training images.

    Returns:
        whether it is right on each image, and "accuracy", "nec" and "ncc".
    """
    right = correct(codes, head)
    small = replace(codes, weight=head.weight.astype(np.float32), bias=head.bias.astype(np.float32))
    found = sparsity(small, means)
    return right, {"accuracy": float(right.mean()), "nec": found["nec"], "ncc": found["ncc"]}


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


def edits_of(off: Any) -> list[tuple[Any, Any]]:
    """What was given as (class, concept) pairs. Raises ConceptError where it is something else."""
    try:
        return [(label, concept) for label, concept in off]
    except (TypeError, ValueError):
        raise ConceptError(f"expected pairs of a class and a concept, such as [(3, 6)], got {off!r:.80}") from None


def edit_pairs(off: Sequence[Edit], classes: Sequence[str], concepts: int) -> list[tuple[int, int]]:
    """Edits as distinct (class number, concept), ascending."""
    found = set()
    for label, concept in edits_of(off):
        number = class_number(classes, label)
        if not 0 <= concept < concepts:
            raise ConceptError(f"expected a concept in 0 to {concepts - 1}, got {concept}")
        found.add((number, int(concept)))
    if not found:
        raise ConceptError("expected one (class, concept) or more, got none")
    return sorted(found)
