"""Does a name hold? Classes that the name has not seen are sorted by it; chance and repetition are compared with it.

A sorting is a number for each class: 1 where the name's first label was chosen, 0 where the second, 0.5 where the class
was left out. Nothing here asks anything of a model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import comb, prod
from typing import Any

import numpy as np
from jaxtyping import Bool, Float64, Int64

from htaf._errors import SEEDS
from htaf.concepts.codes import ConceptError
from htaf.concepts.groups import EMPTY, HIGH, IN_A, IN_B, LOW, MIXED, Groups
from htaf.concepts.naming.files import FEW_CLASSES, NOT_VERIFIED, NOTHING, VERIFIED

LEVEL = 0.05  # of the p-value
# kappa between the rounds' sortings; two that are right for three classes of four, independently, reach 0.25 at best
AGREEMENT = 0.2
# with fewer even the right sorting has p > LEVEL in three rounds, as the groups can be permuted in so few ways
FEWEST_CLASSES = 9
NEVER = -1  # the fold of a class that is not sorted


@dataclass(frozen=True)
class NamingSettings:
    """How concepts are named and checked.

    Attributes:
        low, high: bounds of the groups (`htaf.concepts.groups`).
        rounds: namings of each concept, each of which another part of the classes is held out of; >= 2.
        threshold: least balanced accuracy of a verified name on the classes held out, and of the name shown on all.
        permutations: behind the p-value, 19 or more; 0 for none.
        most: classes of a group that a prompt lists; twice as many are sorted.
        seed: of folds, lists and permutations; concept c's depend on (seed, c) alone.

    Raises:
        ConceptError: a value out of range.
    """

    low: float = LOW
    high: float = HIGH
    rounds: int = 3
    threshold: float = 0.75
    permutations: int = 999
    most: int = 100
    seed: int = 0

    def __post_init__(self) -> None:
        if not (
            self.rounds >= 2
            and 0 <= self.threshold <= 1
            and (self.permutations == 0 or self.permutations >= 19)
            and self.most >= 2
            and 0 <= self.seed < SEEDS
        ):
            raise ConceptError(
                "expected rounds >= 2, 0 <= threshold <= 1, permutations 0 or >= 19, most >= 2 and 0 <= seed < 2**63, "
                f"got {self.rounds}, {self.threshold}, {self.permutations}, {self.most} and {self.seed}"
            )


@dataclass(frozen=True, eq=False)
class Case:
    """The classes of one concept, n of which are in group A or B.

    Attributes:
        concept: its number.
        used: int64 [n], numbers of the classes.
        inside: bool [n], whether they are in group A.
        fold: int64 [n], the round that holds a class out; -1 for one that is never sorted.
        rounds: how many; 0 where a group has fewer than two classes: then none can be held out, and no name is asked.
        note: why there is nothing to name, or to check; empty where there is.
    """

    concept: int
    used: Int64[np.ndarray, " classes"]
    inside: Bool[np.ndarray, " classes"]
    fold: Int64[np.ndarray, " classes"]
    rounds: int
    note: str

    @property
    def scored(self) -> Int64[np.ndarray, " scored"]:
        """Places in `used` of the classes that are sorted."""
        return np.flatnonzero(self.fold != NEVER)

    @property
    def nameless(self) -> bool:
        """Whether a group is empty, so that there is nothing to ask."""
        return not (self.inside.any() and (~self.inside).any())

    def hopeless(self, *, folds: bool) -> bool:
        """Whether even the right sorting has p > LEVEL, as the groups can be permuted in so few ways."""
        inside, fold = self.inside[self.scored], self.fold[self.scored] * folds
        ways = [comb(int((fold == number).sum()), int(inside[fold == number].sum())) for number in np.unique(fold)]
        return prod(ways) < 1 / LEVEL


def class_status(case: Case, verified: bool, *, folds: bool) -> str:
    """The status of a name that classes checked, or could not check (`htaf.concepts.naming.files.STATUSES`).

    Args:
        folds: whether each round held out a part of its own.
    """
    if verified:
        return VERIFIED
    if case.nameless:
        return NOTHING
    return FEW_CLASSES if (folds and not case.rounds) or case.hopeless(folds=folds) else NOT_VERIFIED


def case_of(grouped: Groups, concept: int, settings: NamingSettings) -> Case:
    """Which classes of a concept are used, which of them are sorted, and by whose round.

    Of more than 2 `most` classes so many are drawn, `most` of each group, more of one where the other has fewer. Each
    group's are dealt out to the rounds in random order, so that the folds' sizes differ by one at most.
    """
    member = grouped.member[concept]
    used = np.flatnonzero((member == IN_A) | (member == IN_B))
    inside = member[used] == IN_A
    rng = np.random.default_rng((settings.seed, concept))
    sizes = int(inside.sum()), int((~inside).sum())
    most = 2 * settings.most
    kept = [min(own, max(settings.most, most - other)) for own, other in (sizes, sizes[::-1])]
    rounds = min(settings.rounds, *kept)
    fold = np.full(len(used), NEVER, dtype=np.int64)
    for side, count in zip((True, False), kept, strict=True):
        drawn = rng.permutation(np.flatnonzero(inside == side))[:count]
        # the smaller folds of A are the larger of B, so that each round holds out about as many
        places = np.arange(count) if side else -1 - np.arange(count)
        fold[drawn] = places % max(1, rounds)
    note = grouped.note(concept)
    if not note and rounds < 2:
        note = f"group {'A' if sizes[0] < 2 else 'B'} has one class: not asked, as the name could not be checked"
    return Case(concept, used, inside, fold, rounds if rounds >= 2 else 0, note)


def counts(grouped: Groups, concept: int) -> dict[str, Any]:
    """How many classes are in A, in B, mixed, and without images; and the groups' shares of test images."""
    member = grouped.member[concept]
    codes = {"group_a": IN_A, "group_b": IN_B, "mixed": MIXED, "empty": EMPTY}
    return {key: int((member == code).sum()) for key, code in codes.items()} | grouped.on_test(concept)


def balanced(inside: Bool[np.ndarray, " n"], said: Float64[np.ndarray, " n"]) -> float:
    """(mean of s over A + mean of 1 - s over B) / 2 of a sorting s; a class left out counts as half right."""
    return float(said[inside].mean() + (1 - said[~inside]).mean()) / 2


def shuffled(
    inside: Bool[np.ndarray, " n"],
    said: Float64[np.ndarray, " n"],
    fold: Int64[np.ndarray, " n"],
    permutations: int,
    rng: np.random.Generator,
) -> Float64[np.ndarray, " permutations"]:
    """The balanced accuracies of a sorting when the groups of the classes of each fold are permuted."""
    moved = np.tile(said, (permutations, 1))
    for number in np.unique(fold):
        columns = np.flatnonzero(fold == number)
        moved[:, columns] = rng.permuted(moved[:, columns], axis=1)
    return (moved[:, inside].mean(1) + (1 - moved[:, ~inside]).mean(1)) / 2


def kappa(one: Float64[np.ndarray, " n"], other: Float64[np.ndarray, " n"]) -> float:
    """How far two sortings of the same classes agree beyond chance: 1 - mean_i |s_i - t_i| / mean_ij |s_i - t_j|.

    Without classes left out this is Cohen's kappa, with them the linearly weighted one. 1: the same; 0: no more than
    two sorters who know only how many belong to each label; 0 too where both put all classes under one label, which
    tells nothing.

    Source: Cohen (1968), Weighted kappa.
    """
    expected = np.abs(one[:, None] - other[None]).mean()
    return 0.0 if expected == 0 else float(1 - np.abs(one - other).mean() / expected)


def agreements(sortings: Sequence[Float64[np.ndarray, " n"]]) -> Float64[np.ndarray, "rounds rounds"]:
    """kappa of each pair of rounds; 1 on the diagonal."""
    found = np.eye(len(sortings))
    for i in range(len(sortings)):
        for j in range(i):
            found[i, j] = found[j, i] = kappa(sortings[i], sortings[j])
    return found


def poorly_shown(shown: float, own: float, threshold: float) -> str:
    """Why the one name that is shown does not hold, though all rounds together do; "" where it does.

    On all sorted classes it must reach the threshold t. Of these it was made from most, and a name that only lists them
    does well there: so on the few held out of it, where scores are noisy, it must be nearer to t than to chance,
    >= (1/2 + t) / 2.

    Args:
        shown, own: balanced accuracies of the name on all sorted classes, and on those held out of it.
    """
    least = min(threshold, (0.5 + threshold) / 2)
    if shown < threshold:
        return f"the name shown, alone, has a balanced accuracy of {shown:.2f} < {threshold:g}"
    if own < least:
        return f"the name shown, alone, has a held-out balanced accuracy of {own:.2f} < {least:.3g}"
    return ""


def verdict(
    inside: Bool[np.ndarray, " n"],
    said: Float64[np.ndarray, " n"],
    fold: Int64[np.ndarray, " n"],
    settings: NamingSettings,
    concept: int,
    agreement: float | None,
) -> dict[str, Any]:
    """The check of a name as plain values: "held_out", "p_value", "baseline", "agreement", "verified", "reason".

    p = (1 + permutations that do as well) / (1 + permutations).

    Args:
        inside, said: of the classes that were sorted.
        fold: within which the groups are permuted.
        agreement: of the rounds; None where there is one, which holds nothing out.
    """
    score = balanced(inside, said)
    found: dict[str, Any] = {"held_out": score, "p_value": None, "baseline": None, "agreement": agreement}
    found |= {"verified": False, "reason": ""}
    if settings.permutations:
        rng = np.random.default_rng((settings.seed, concept, 1))
        chance = shuffled(inside, said, fold, settings.permutations, rng)
        found["p_value"] = float((1 + (chance >= score - 1e-12).sum()) / (1 + settings.permutations))
        found["baseline"] = {"mean": float(chance.mean()), "p95": float(np.quantile(chance, 0.95))}
    if score < settings.threshold:
        what = "balanced accuracy" if agreement is None else "held-out balanced accuracy"
        return found | {"reason": f"{what} {score:.2f} < {settings.threshold:g}"}
    if agreement is not None and agreement < AGREEMENT:
        return found | {"reason": f"the names of the rounds sort differently: kappa {agreement:.2f} < {AGREEMENT}"}
    if settings.permutations and found["p_value"] > LEVEL:
        return found | {"reason": f"shuffled classes do as well: p = {found['p_value']:.2f} > {LEVEL}"}
    return found | {"verified": True}
