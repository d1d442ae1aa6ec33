"""Names for concepts from attributes of classes, without any language model, checked on classes that did not choose."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import comb

import numpy as np
from jaxtyping import Bool, Float64

from htaf._ground.errors import expect_seed
from htaf.concepts.codes import Codes, ConceptError
from htaf.concepts.counts import IN_A, IN_B, LEVEL, Groups, groups, part_proportions, proportions
from htaf.concepts.naming.files import FEW_CLASSES, NOT_VERIFIED, NOTHING, VERIFIED, NameEntry
from htaf.data.attributes import Attributes

ROUNDS = 20  # splits of each concept
HELD_OUT = 0.3  # of each group, one class at least
SHUFFLES = 99  # permutations of the classes behind a p-value
AGREEMENT = 0.5  # of the rounds, so that the score is mostly that of the name itself


@dataclass(frozen=True, eq=False)
class Round:
    """Many namings of one concept. Each array is [rounds]."""

    attribute: np.ndarray
    negated: np.ndarray
    naming: np.ndarray  # balanced accuracy on the naming classes
    held_out: np.ndarray  # on the others


def name_by_attributes(
    concepts: Codes | np.ndarray,
    attributes: Attributes,
    *,
    threshold: float = 0.75,
    seed: int = 0,
) -> list[NameEntry]:
    """For each concept the attribute, or negated attribute, that tells the classes with it from those without.

    The name has the best balanced accuracy over the classes of both groups (`htaf.concepts.counts`), (share of A that
    has it + share of B that has it not) / 2; ties go to the larger difference of the groups' mean values. The check is
    a cross-validation: in each of 20 rounds 30% of each group are set apart, the rest chooses a name in the same way,
    and that name is scored on the classes set apart, which had no say in it. The score is the mean over all rounds, and
    half of them must agree on the name. The same with classes shuffled, 99 times, tells what chance gives. How this
    compares with a single split and with a vote of the rounds: `htaf_paper.planted`.

    Args:
        concepts: codes, of whose training part the groups are made, or proportions [C, K], nan for an empty class.
        attributes: of all K classes; with codes, found by name.
        threshold: least held-out balanced accuracy of a verified name; its p-value must also be <= 0.05: with few
            classes chance alone often passes the threshold.
        seed: of splits and permutations; concept c's depend on (seed, c) alone.
    Returns:
        for each concept a dict of plain values: "concept", "name" (None without one), "attribute", "negated",
        "verified", "status", "reason" (why not), "held_out" (the score), "naming" (balanced accuracy on the classes
        that chose, too high as a score), "agreement" (share of rounds that chose the name, or one that no class tells
        apart from it), "rounds", "p_value" and "baseline" (mean and 95th percentile of the score when classes are
        shuffled), "group_a", "group_b", "mixed", "empty" (numbers of classes), "test_a", "test_b" (mean share of their
        test images that have the bit; where that of A is not larger, no name is verified), "source" ("attributes").
    Raises:
        ConceptError: settings out of range. DataError: attributes lack a class.
    """
    expect_seed(seed, ConceptError)
    if not 0 <= threshold <= 1:
        raise ConceptError(f"expected threshold in 0 to 1, got {threshold}")
    if isinstance(concepts, Codes):
        attributes = attributes.of(concepts.classes)
        shares, held = proportions(concepts.part("train")), part_proportions(concepts, "test")
    else:
        shares, held = np.asarray(concepts, dtype=np.float64), None
    if shares.ndim != 2 or shares.shape[1] != len(attributes.classes):
        raise ConceptError(f"expected proportions [concepts, {len(attributes.classes)} classes], got {shares.shape}")
    if not attributes.names:
        raise ConceptError("expected one attribute or more, got none")
    grouped = groups(shares, classes=attributes.classes, held=held)
    return [
        _named(grouped, concept, attributes, threshold, np.random.default_rng((seed, concept)))
        for concept in range(len(shares))
    ]


def splits(
    inside: Bool[np.ndarray, " classes"], rounds: int, share: float, rng: np.random.Generator
) -> Bool[np.ndarray, "rounds classes"]:
    """Return which classes each round holds out: `share` of those inside and of those outside, one of each at least.

    Args:
        inside: whether each of the used classes is in group A; two or more are and two or more are not.
    """
    held = np.zeros((rounds, len(inside)), dtype=bool)
    for side in (True, False):
        rows = np.flatnonzero(inside == side)
        count = min(max(1, round(share * len(rows))), len(rows) - 1)
        for number in range(rounds):
            held[number, rng.permutation(rows)[:count]] = True
    return held


def play(inside: Bool[np.ndarray, " classes"], held: Bool[np.ndarray, "rounds classes"], known: Attributes) -> Round:
    """Name the concept in each round on the classes that it does not hold out, and score the name on the others.

    Args:
        inside: bool [n], of the used classes.
        held: bool [rounds, n].
        known: attributes of these classes.
    """
    best, negated, fit = chosen(inside, ~held, known)
    outside = np.einsum("rn,nr->r", _contrast(inside, held), known.binary()[:, best].astype(np.float64))
    return Round(best, negated, fit, (1 + np.where(negated, -outside, outside)) / 2)


def chosen(
    inside: Bool[np.ndarray, " classes"], used: Bool[np.ndarray, "rounds classes"], known: Attributes
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Choose in each round the best candidate on the classes used: attribute, whether negated, balanced accuracy.

    With d = [class in A] / |A| - [class in B] / |B|, an attribute's balanced accuracy is (1 + d . have) / 2 and its
    negation's (1 - d . have) / 2, so the best has the largest |d . have|.
    """
    contrast, sizes = _contrast(inside, used), (used & inside).sum(1) * (used & ~inside).sum(1)
    fit = contrast @ known.binary().astype(np.float64)
    # values of `fit` differ by 1 / (|A| |B|) at least, so a tenth of it in either direction only breaks ties
    order = fit + (contrast / (10 * sizes[:, None])) @ known.values
    best, rows = np.abs(order).argmax(1), np.arange(len(used))
    negated = order[rows, best] < 0
    return best, negated, (1 + np.where(negated, -1, 1) * fit[rows, best]) / 2


def _contrast(inside: np.ndarray, used: np.ndarray) -> Float64[np.ndarray, "rounds classes"]:
    a, b = used & inside, used & ~inside
    return a / a.sum(1, keepdims=True) - b / b.sum(1, keepdims=True)


def _named(grouped: Groups, concept: int, known: Attributes, threshold: float, rng: np.random.Generator) -> NameEntry:
    """Return one concept."""
    member = grouped.member[concept]
    result: NameEntry = {
        "concept": concept, "name": None, "attribute": None, "negated": None, "verified": False,
        "status": NOTHING, "reason": grouped.note(concept), "held_out": None, "naming": None, "agreement": None,
        "rounds": ROUNDS, "p_value": None, "baseline": None, **grouped.counts(concept),
        "source": "attributes",
    }  # fmt: skip
    if result["reason"]:
        return result
    used = np.flatnonzero((member == IN_A) | (member == IN_B))
    inside = member[used] == IN_A
    local = replace(known, classes=tuple(known.classes[row] for row in used), values=known.values[used])
    every = np.ones((1, len(inside)), dtype=bool)
    attribute, negated, fit = (each.item() for each in chosen(inside, every, local))
    name = f"not {known.names[attribute]}" if negated else known.names[attribute]
    result |= {"name": name, "attribute": attribute, "negated": negated, "naming": fit}
    if min(result["group_a"], result["group_b"]) < 2:
        few = "A" if result["group_a"] < 2 else "B"
        return result | {"status": FEW_CLASSES, "reason": f"group {few} has one class: none can be held out"}
    held = splits(inside, ROUNDS, HELD_OUT, rng)
    played = play(inside, held, local)
    named = local.binary()[:, attribute] ^ negated
    chose = local.binary()[:, played.attribute].T ^ played.negated[:, None]  # [rounds, classes]
    agrees = (chose == named).all(1)  # by column: which of two twins a round names is a matter of chance
    score, agreement = float(played.held_out.mean()), float(agrees.mean())
    hopeless = comb(len(used), int(inside.sum())) < 1 / LEVEL  # so few permutations there are
    result["status"] = FEW_CLASSES if hopeless else NOT_VERIFIED
    result |= {"held_out": score, "agreement": agreement}
    chance: Float64[np.ndarray, " shuffles"] = np.empty(SHUFFLES)
    for number in range(SHUFFLES):
        order = rng.permutation(len(used))
        chance[number] = play(inside, held, replace(local, values=local.values[order])).held_out.mean()
    result["p_value"] = float((1 + (chance >= score - 1e-12).sum()) / (1 + SHUFFLES))
    result["baseline"] = {"mean": float(chance.mean()), "p95": float(np.quantile(chance, 0.95))}
    if score < threshold:
        return result | {"reason": f"held-out balanced accuracy {score:.2f} < {threshold:g}"}
    if agreement < AGREEMENT:
        return result | {"reason": f"only {agreement:.0%} of the rounds chose this name"}
    if result["p_value"] > LEVEL:
        return result | {"reason": f"shuffled classes do as well: p = {result['p_value']:.2f} > {LEVEL}"}
    if reason := grouped.reversal(concept):
        return result | {"reason": reason}
    return result | {"verified": True, "status": VERIFIED}
