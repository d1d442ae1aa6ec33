"""Evidence for names of concepts: the names of classes that have the concept and of classes that have not.

The classes of both groups (`htaf.concepts.groups`) are dealt out to a few rounds. In each round the model sees only the
classes that the round does not hold out, and names the concept; then, in a new request, it sees that name alone and the
classes in random order, and sorts them. Each class is judged by the round that held it out, so that a name which only
repeats the lists it was made of scores as chance does. The score is the balanced accuracy over all classes; the same
sortings with the groups permuted say what chance gives; the rounds' names must sort alike; the one that is shown
must hold by itself; and test images must not turn the groups round.

A name that is given is checked by one sorting of all classes: nobody knows which of them made it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import comb, prod
from typing import Any

import numpy as np
from jaxtyping import Bool, Float64, Int64

from htaf._errors import SEEDS
from htaf.concepts.codes import Codes, ConceptError, codes_key
from htaf.concepts.completeness import by_importance
from htaf.concepts.counts import class_counts, class_sizes, part_proportions, shares
from htaf.concepts.groups import HIGH, IN_A, IN_B, LOW, Groups, groups
from htaf.concepts.naming.checks import (
    LEVEL,
    against_chance,
    agreements,
    balanced,
    poorly_shown,
    refusal,
    shuffled,
)
from htaf.concepts.naming.files import FEW_CLASSES, NOT_VERIFIED, NOTHING, VERIFIED, NameEntry
from htaf.concepts.naming.prompts import ConceptName, SortReply, naming_prompt, sorting_prompt
from htaf.llm import Client, Message

NEVER = -1  # the fold of a class that is not sorted


@dataclass(frozen=True)
class NamingSettings:
    """How concepts are named and checked on classes.

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
class ClassCase:
    """The classes of one concept, n of which are in group A or B.

    Attributes:
        concept: its number.
        used: int64 [n], numbers of the classes.
        inside: bool [n], whether they are in group A.
        fold: int64 [n], the round that holds a class out; -1 for one that is never sorted.
        rounds: how many; 0 where a group has too few classes, so that no name is asked for.
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
        """Whether a group is empty, so that there is nothing to name."""
        return not (self.inside.any() and (~self.inside).any())

    @property
    def hopeless(self) -> bool:
        """Whether even the right sorting has p > LEVEL, as the groups can be permuted in so few ways."""
        inside, fold = self.inside[self.scored], self.fold[self.scored]
        ways = [comb(int((fold == number).sum()), int(inside[fold == number].sum())) for number in np.unique(fold)]
        return prod(ways) < 1 / LEVEL

    @property
    def status(self) -> str:
        """Of a name that is not verified."""
        if self.nameless:
            return NOTHING
        return FEW_CLASSES if not self.rounds or self.hopeless else NOT_VERIFIED


@dataclass(frozen=True, eq=False)
class ClassEvidence:
    """Classes with a concept and without it, as evidence for its name (`htaf.concepts.naming.job.Evidence`).

    Attributes:
        grouped: the groups of all concepts. settings: of rounds and checks.
        order: all concepts, the most important first; of proportions by their numbers.
        key: `htaf.concepts.codes.codes_key` of the codes; None of proportions.
    """

    grouped: Groups
    settings: NamingSettings
    order: tuple[int, ...]
    key: str | None

    source = "model"
    replies = SortReply
    reply_tokens = 3  # for each class
    sampled = None

    def case(self, concept: int, given: bool = False) -> ClassCase:
        """Which classes of a concept are used, which of them are sorted, and by whose round.

        Of more than 2 `most` classes so many are drawn, `most` of each group, more of one where the other has fewer.
        Each group's are dealt out to the rounds in random order, so that the folds' sizes differ by one at most.

        Args:
            given: whether a name is there: then one round sorts them all, and none is held out.
        """
        settings, member = self.settings, self.grouped.member[concept]
        used = np.flatnonzero((member == IN_A) | (member == IN_B))
        inside = member[used] == IN_A
        rng = np.random.default_rng((settings.seed, concept))
        sizes = int(inside.sum()), int((~inside).sum())
        kept = [min(own, max(settings.most, 2 * settings.most - other)) for own, other in (sizes, sizes[::-1])]
        rounds = min(1 if given else settings.rounds, *kept)
        fold = np.full(len(used), NEVER, dtype=np.int64)
        for side, count in zip((True, False), kept, strict=True):
            drawn = rng.permutation(np.flatnonzero(inside == side))[:count]
            # the smaller folds of A are the larger of B, so that each round holds out about as many
            places = np.arange(count) if side else -1 - np.arange(count)
            fold[drawn] = places % max(1, rounds)
        note = self.grouped.note(concept)
        if not note and not given and rounds < 2:
            note = f"group {'A' if sizes[0] < 2 else 'B'} has one class: not asked, as the name could not be checked"
        return ClassCase(concept, used, inside, fold, 0 if note else rounds, note)

    def rests(self, case: ClassCase) -> list[Any]:
        """What a name rests on: plain values."""
        classes = [self.grouped.classes[row] for row in case.used]
        return [asdict(self.settings), classes, case.inside.tolist()]

    def facts(self, case: ClassCase, given: bool = False) -> NameEntry:
        """Sizes of the groups, and the groups' shares of test images."""
        return self.grouped.counts(case.concept)

    def naming(self, case: ClassCase, number: int, candidates: Sequence[str] = ()) -> list[Message]:
        """The messages that ask for a name from the classes that round `number` does not hold out."""
        rng = np.random.default_rng((self.settings.seed, case.concept, 2, number))
        seen = case.fold != number
        lists, sizes = [], []
        for side in (True, False):
            rows = np.flatnonzero(seen & (case.inside == side))
            sizes.append(len(rows))
            if len(rows) > self.settings.most:
                rows = np.sort(rng.choice(rows, self.settings.most, replace=False))
            lists.append([self.grouped.classes[row] for row in case.used[rows]])
        return naming_prompt(lists[0], lists[1], sizes=(sizes[0], sizes[1]), candidates=candidates)

    def checking(
        self, case: ClassCase, name: ConceptName, number: int
    ) -> tuple[list[tuple[list[Message], int]], Int64[np.ndarray, " scored"]]:
        """The request that asks to sort the scored classes by a name, and the place in `case.scored` of each line.

        Args:
            number: of the round; each has an order of its own, so that no class is always the last.
        """
        order = np.random.default_rng((self.settings.seed, case.concept, 3, number)).permutation(len(case.scored))
        classes = [self.grouped.classes[row] for row in case.used[case.scored[order]]]
        return [(sorting_prompt(name, classes), len(classes))], order

    def verdict(
        self, case: ClassCase, names: Sequence[ConceptName], sortings: Sequence[Float64[np.ndarray, " scored"]]
    ) -> tuple[int, NameEntry]:
        """Which name is shown, and the check of all rounds; of one round, that of a given name.

        The name shown is that of the round whose sorting agrees most with the others', which knows nothing of the
        groups.
        """
        inside, fold, settings = case.inside[case.scored], case.fold[case.scored], self.settings
        said = np.stack(sortings)[fold, np.arange(len(fold))]  # each class by the round that held it out
        found: NameEntry = {"held_out": balanced(inside, said), "p_value": None, "baseline": None, "agreement": None}
        if settings.permutations:
            rng = np.random.default_rng((settings.seed, case.concept, 1))
            found |= against_chance(found["held_out"], shuffled(inside, said, fold, settings.permutations, rng))
        best, poor = 0, ""
        if len(names) > 1:
            alike = agreements(sortings)
            best = int(np.argmax(alike.sum(1).round(12)))  # the first of those that agree most
            found |= self._of_rounds(inside, fold, names, sortings, best)
            found["agreement"] = float(alike[np.triu_indices(len(sortings), 1)].mean())
            poor = poorly_shown(found["shown"], found["own"], settings.threshold)
        score = "held-out balanced accuracy" if len(names) > 1 else "balanced accuracy"
        reason = refusal(found, settings.threshold, score, "shuffled classes do")
        reason = reason or poor or self.grouped.reversal(case.concept)
        return best, found | {
            "verified": not reason, "reason": reason, "status": case.status if reason else VERIFIED,
        }  # fmt: skip

    def _of_rounds(
        self,
        inside: np.ndarray,
        fold: np.ndarray,
        names: Sequence[ConceptName],
        sortings: Sequence[np.ndarray],
        best: int,
    ) -> NameEntry:
        details = []
        for number, (name, said) in enumerate(zip(names, sortings, strict=True)):
            held = fold == number
            scores = {"held_out": balanced(inside[held], said[held]), "naming": balanced(inside[~held], said[~held])}
            details.append(asdict(name) | scores)
        return {
            "naming": float(np.mean([each["naming"] for each in details])), "own": details[best]["held_out"],
            "shown": balanced(inside, sortings[best]), "rounds_detail": details,
        }  # fmt: skip

    def look(self, client: Client) -> None:
        """Nothing is to be seen of a client that reads."""

    def foreseen(self, cases: Sequence[ClassCase], given: bool = False) -> dict[str, int]:
        """How many of these cases can hardly be verified, whatever the model says."""
        return {"hopeless": sum(case.hopeless for case in cases) if self.settings.permutations else 0}


def class_evidence(
    concepts: Codes | Float64[np.ndarray, "concepts classes"],
    settings: NamingSettings | None = None,
    *,
    classes: Sequence[str] = (),
) -> ClassEvidence:
    """The groups of codes, of their training part, or of proportions [C, K], nan for an empty class.

    Args:
        classes: K names, where `concepts` are proportions.
    Raises:
        ConceptError: proportions that are none.
    """
    settings = settings or NamingSettings()
    if isinstance(concepts, Codes):
        train = concepts.part("train")
        counts, sizes = class_counts(train), class_sizes(train)
        rates = counts.sum(1) / max(1, int(sizes.sum()))
        order, key = by_importance(concepts.weight, rates).tolist(), codes_key(concepts)
        table, held, classes = shares(counts, sizes), part_proportions(concepts, "test"), concepts.classes
    else:
        table, held, key = np.asarray(concepts, dtype=np.float64), None, None
        order = range(len(table))
    grouped = groups(table, settings.low, settings.high, classes=classes, held=held)
    return ClassEvidence(grouped, settings, tuple(order), key)
