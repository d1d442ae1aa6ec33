"""Which requests name and check concepts, and what they will cost."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from jaxtyping import Float64, Int64

from htaf.concepts.codes import Codes, ConceptError
from htaf.concepts.completeness import by_importance
from htaf.concepts.counts import class_counts, class_sizes, shares
from htaf.concepts.groups import Groups, groups
from htaf.concepts.naming.checks import Case, Settings, case_of
from htaf.concepts.naming.prompts import TEMPLATES, ChoiceReply, NameReply, SortReply, naming_prompt, sorting_prompt
from htaf.llm import Client, Message, ModelError, tokens_of

NAME_TOKENS = 120  # of a reply, about; a choice needs fewer
SORTED_TOKENS = 3  # of a reply, for each class
USUAL = "a short phrase of about seven words"


@dataclass(frozen=True)
class Name:
    """What a naming said.

    Attributes:
        name: the concept. label_1, label_0: what images with the bit have, and without.
        justification: the model's. negated: whether it is the negation of a candidate.
    """

    name: str
    label_1: str
    label_0: str
    justification: str = ""
    negated: bool = False

    @classmethod
    def given(cls, entry: Mapping[str, Any]) -> Name:
        """The name of an entry; without labels: the name, and "otherwise"."""
        name = str(entry["name"])
        return cls(name, str(entry.get("label_1") or name), str(entry.get("label_0") or "otherwise"))


@dataclass(frozen=True, eq=False)
class Plan:
    """All that the requests follow from.

    Attributes:
        grouped: the groups of all concepts.
        candidates: what names are chosen from; none: the model's own words.
        settings: of rounds and checks.
        order: all concepts, the most important first (`htaf.concepts.completeness.by_importance`); of proportions by
            their numbers.
    """

    grouped: Groups
    candidates: tuple[str, ...]
    settings: Settings
    order: tuple[int, ...]

    def case(self, concept: int) -> Case:
        """The classes of a concept."""
        return case_of(self.grouped, concept, self.settings)

    def naming(self, case: Case, held: int) -> list[Message]:
        """The messages that ask for a name from the classes that round `held` does not hold out."""
        rng = np.random.default_rng((self.settings.seed, case.concept, 2, held))
        seen = case.fold != held
        lists, sizes = [], []
        for side in (True, False):
            rows = np.flatnonzero(seen & (case.inside == side))
            sizes.append(len(rows))
            if len(rows) > self.settings.most:
                rows = np.sort(rng.choice(rows, self.settings.most, replace=False))
            lists.append([self.grouped.classes[row] for row in case.used[rows]])
        return naming_prompt(lists[0], lists[1], sizes=(sizes[0], sizes[1]), candidates=self.candidates)

    def sorting(self, case: Case, name: Name, number: int) -> tuple[list[Message], Int64[np.ndarray, " scored"]]:
        """The messages that ask to sort the scored classes by a name, and the place in `case.scored` of each line.

        Args:
            number: of the round; each has an order of its own, so that no class is always the last.
        """
        order = np.random.default_rng((self.settings.seed, case.concept, 3, number)).permutation(len(case.scored))
        classes = [self.grouped.classes[row] for row in case.used[case.scored[order]]]
        return sorting_prompt(name.name, name.label_1, name.label_0, classes), order

    def fingerprint(self, case: Case, client: Client, name: Name | None = None) -> str:
        """16 hexadecimal digits of all that an entry rests on: the same for the same questions to the same model of
        the same server."""
        classes = [self.grouped.classes[row] for row in case.used]
        who = [client.model, getattr(client, "base_url", "")]  # files have none
        rests = [asdict(self.settings), self.candidates, who, TEMPLATES, classes, case.inside.tolist(), case.concept]
        rests += [] if name is None else [[name.name, name.label_1, name.label_0]]
        return hashlib.sha256(json.dumps(rests).encode()).hexdigest()[:16]

    def chosen(self, only: Sequence[int] | None) -> list[int]:
        """The concepts that are meant, once each; None: all, the most important first.

        Raises:
            ConceptError: no such concept.
        """
        if only is None:
            return list(self.order)
        if wrong := [number for number in only if not 0 <= number < len(self.order)]:
            raise ConceptError(f"expected concepts in 0 to {len(self.order) - 1}, got {wrong[0]}")
        return list(dict.fromkeys(only))

    def to_check(self, names: Mapping[int, Mapping[str, Any]], only: Sequence[int] | None) -> list[int]:
        """The concepts of `only`, else those named by hand, that have a name."""
        hand = [concept for concept, entry in names.items() if entry.get("source", "hand") == "hand"]
        wanted = self.chosen(hand if only is None else only)
        return [concept for concept in wanted if names.get(concept, {}).get("name")]


def plan_of(
    concepts: Codes | np.ndarray | Plan,
    classes: Sequence[str] = (),
    candidates: Sequence[str] = (),
    settings: Settings | None = None,
) -> Plan:
    """The groups of codes, of their training part, or of proportions [C, K]; a plan is given back as it is.

    Raises:
        ConceptError: proportions that are none; a plan with classes, candidates or settings beside it.
    """
    if isinstance(concepts, Plan):
        if classes or candidates or settings is not None:
            raise ConceptError("expected classes, candidates and settings in the plan, got some beside it")
        return concepts
    settings = settings or Settings()
    if isinstance(concepts, Codes):
        train, classes = concepts.part("train"), concepts.classes
        counts, sizes = class_counts(train), class_sizes(train)
        table, rates = shares(counts, sizes), counts.sum(1) / max(1, int(sizes.sum()))
        order = by_importance(concepts.weight, rates).tolist()
    else:
        table = np.asarray(concepts, dtype=np.float64)
        order = range(len(table))
    grouped = groups(table, settings.low, settings.high, classes=classes)
    return Plan(grouped, tuple(candidates), settings, tuple(order))


def ask_name(plan: Plan, case: Case, held: int, client: Client) -> Name:
    """Ask for a name.

    Raises:
        ModelError: as the client.
    """
    messages = plan.naming(case, held)
    if not plan.candidates:
        said = client.ask(messages, NameReply, sample=held)
        return Name(said.concept, said.label_1, said.label_0, said.justification)
    choice = client.ask(messages, ChoiceReply, sample=held, context={"count": len(plan.candidates)})
    has = plan.candidates[choice.number - 1]
    labels = (f"not {has}", has) if choice.negated else (has, f"not {has}")
    return Name(labels[0], *labels, choice.justification, choice.negated)


def ask_sorting(plan: Plan, case: Case, name: Name, number: int, client: Client) -> Float64[np.ndarray, " scored"]:
    """Let the scored classes be sorted by a name: 1, 0, or 0.5 for a class that is left out.

    Raises:
        ModelError: as the client.
    """
    messages, order = plan.sorting(case, name, number)
    said = client.ask(messages, SortReply, sample=number, context={"count": len(order)})
    found = np.full(len(order), 0.5)
    for value, numbers in ((1.0, said.label_1), (0.0, said.label_0)):
        found[order[np.array(numbers, dtype=np.int64) - 1]] = value
    return found


@dataclass(frozen=True)
class Estimate:
    """What naming will need, about.

    Attributes:
        concepts: still to be named; idle: of them, those with nothing to ask; single: those that are not asked for, as
            a group has one class, so that no name could be checked; hopeless: those that are asked for though they have
            so few classes that hardly any name can be verified.
        calls: their requests; cached: of them, those whose reply is at hand.
        prompt_tokens, reply_tokens: of the others. A sorting that follows from a name yet to come is counted with a
            name of usual length.
    """

    concepts: int
    idle: int
    calls: int
    cached: int
    prompt_tokens: int
    reply_tokens: int
    single: int = 0
    hopeless: int = 0


def estimate(
    concepts: Codes | np.ndarray | Plan,
    client: Client,
    *,
    names: Iterable[Mapping[str, Any]] | None = None,
    classes: Sequence[str] = (),
    candidates: Sequence[str] = (),
    settings: Settings | None = None,
    only: Sequence[int] | None = None,
    known: Iterable[Mapping[str, Any]] = (),
) -> Estimate:
    """How many requests and tokens `name_by_model`, or with `names` `check_names`, will need.

    No server is asked: replies at hand are read, so that the requests which follow from them are known too.

    Raises:
        ConceptError: as these do.
    """
    plan = plan_of(concepts, classes, candidates, settings)
    given = None if names is None else {int(entry["concept"]): entry for entry in names}
    settled = {entry["concept"]: entry.get("settings") for entry in known}
    total = idle = cached = single = hopeless = 0
    open_requests: list[tuple[int, int]] = []
    for concept in plan.chosen(only) if given is None else plan.to_check(given, only):
        case, name = plan.case(concept), None if given is None else Name.given(given[concept])
        if settled.get(concept) == plan.fingerprint(case, client, name):
            continue
        total += 1
        idle += case.nameless
        alone = name is None and not case.rounds and not case.nameless
        single += alone
        hopeless += (
            plan.settings.permutations > 0 and not (alone or case.nameless) and case.hopeless(folds=name is None)
        )
        for at_hand, prompt, reply in _requests(plan, case, client, name):
            cached += at_hand
            if not at_hand:
                open_requests.append((prompt, reply))
    prompts, replies = (sum(sizes) for sizes in zip(*open_requests, strict=True)) if open_requests else (0, 0)
    return Estimate(total, idle, cached + len(open_requests), cached, prompts, replies, single, hopeless)


def _requests(plan: Plan, case: Case, client: Client, name: Name | None) -> Iterator[tuple[bool, int, int]]:
    """Each request of a concept: whether its reply is at hand, its tokens and the reply's."""
    if case.nameless:
        return
    many = SORTED_TOKENS * len(case.scored)
    if name is not None:
        messages, _ = plan.sorting(case, name, 0)
        yield client.known(messages), tokens_of(messages), many
        return
    for held in range(case.rounds):
        messages = plan.naming(case, held)
        at_hand = client.known(messages, sample=held)
        yield at_hand, tokens_of(messages), NAME_TOKENS
        usual = plan.candidates[0] if plan.candidates else USUAL
        said = Name(usual, usual, usual)
        if at_hand:
            try:
                said = ask_name(plan, case, held, client)
            except ModelError:  # at hand, but of no use
                at_hand = False
        messages, _ = plan.sorting(case, said, held)
        yield at_hand and client.known(messages, sample=held), tokens_of(messages), many
