"""Names for concepts from a language model, each checked on classes that the naming has not seen.

The classes of both groups (`htaf.concepts.groups`) are dealt out to a few rounds. In each round the model sees only the
classes that the round does not hold out, and names the concept; then, in a new request, it sees that name alone and the
classes in random order, and sorts them. Each class is judged by the round that held it out, so that a name which only
repeats the lists it was made of scores as chance does. The score is the balanced accuracy over all classes; the same
sortings with the groups permuted say what chance gives; the rounds' names must sort alike; and the one that is shown
must hold by itself.

`prompts` says what is asked, `checks` who is held out and whether a name holds, `htaf.llm` who is asked; here is which
requests there are, what they will cost, and what comes of them.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from jaxtyping import Float64, Int64

from htaf.concepts.codes import Codes, ConceptError
from htaf.concepts.completeness import by_importance
from htaf.concepts.counts import class_counts, class_sizes, part_proportions, shares
from htaf.concepts.groups import Groups, groups
from htaf.concepts.naming.checks import (
    Case,
    NamingSettings,
    agreements,
    balanced,
    case_of,
    class_status,
    counts,
    poorly_shown,
    verdict,
)
from htaf.concepts.naming.files import NO_ANSWER, NO_REPLY, WAITING, WAITS, NameEntry
from htaf.concepts.naming.prompts import TEMPLATES, ChoiceReply, NameReply, SortReply, naming_prompt, sorting_prompt
from htaf.llm import Client, MalformedReply, Message, ModelError, Stopped, Unanswered, in_threads, shortened, tokens_of

Save = Callable[[list[NameEntry]], None]
Progress = Callable[[int, int], None]
OF_ROUNDS = ("own", "shown", "rounds_detail")  # keys of names that a model made
NAME_TOKENS = 120  # of a reply, about; a choice needs fewer
SORTED_TOKENS = 3  # of a reply, for each class
WAITS_FOR_REPLIES: NameEntry = {"reason": WAITING, "status": WAITS, "settings": None}
USUAL = "a short phrase of about seven words"


@dataclass(frozen=True)
class ConceptName:
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
    def given(cls, entry: Mapping[str, Any]) -> ConceptName:
        """The name of an entry; without labels: the name, and "otherwise"."""
        name = str(entry["name"])
        return cls(name, str(entry.get("label_1") or name), str(entry.get("label_0") or "otherwise"))

    @classmethod
    def picked(cls, candidate: str, negated: bool, justification: str) -> ConceptName:
        """A candidate, or its negation."""
        labels = (f"not {candidate}", candidate) if negated else (candidate, f"not {candidate}")
        return cls(labels[0], *labels, justification, negated)


@dataclass(frozen=True, eq=False)
class NamingPlan:
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
    settings: NamingSettings
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

    def sorting(self, case: Case, name: ConceptName, number: int) -> tuple[list[Message], Int64[np.ndarray, " scored"]]:
        """The messages that ask to sort the scored classes by a name, and the place in `case.scored` of each line.

        Args:
            number: of the round; each has an order of its own, so that no class is always the last.
        """
        order = np.random.default_rng((self.settings.seed, case.concept, 3, number)).permutation(len(case.scored))
        classes = [self.grouped.classes[row] for row in case.used[case.scored[order]]]
        return sorting_prompt(name.name, name.label_1, name.label_0, classes), order

    def fingerprint(self, case: Case, client: Client, name: ConceptName | None = None) -> str:
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


def naming_plan(
    concepts: Codes | np.ndarray | NamingPlan,
    classes: Sequence[str] = (),
    candidates: Sequence[str] = (),
    settings: NamingSettings | None = None,
) -> NamingPlan:
    """The groups of codes, of their training part, or of proportions [C, K]; a plan is given back as it is.

    Raises:
        ConceptError: proportions that are none; a plan with classes, candidates or settings beside it.
    """
    if isinstance(concepts, NamingPlan):
        if classes or candidates or settings is not None:
            raise ConceptError("expected classes, candidates and settings in the plan, got some beside it")
        return concepts
    settings = settings or NamingSettings()
    if isinstance(concepts, Codes):
        train, classes = concepts.part("train"), concepts.classes
        counts, sizes = class_counts(train), class_sizes(train)
        table, rates = shares(counts, sizes), counts.sum(1) / max(1, int(sizes.sum()))
        held = part_proportions(concepts, "test")
        order = by_importance(concepts.weight, rates).tolist()
    else:
        table, held = np.asarray(concepts, dtype=np.float64), None
        order = range(len(table))
    grouped = groups(table, settings.low, settings.high, classes=classes, held=held)
    return NamingPlan(grouped, tuple(candidates), settings, tuple(order))


def ask_name(plan: NamingPlan, case: Case, held: int, client: Client) -> ConceptName:
    """Ask for a name.

    Raises:
        ModelError: as the client.
    """
    messages = plan.naming(case, held)
    if not plan.candidates:
        said = client.ask(messages, NameReply, sample=held)
        return ConceptName(said.concept, said.label_1, said.label_0, said.justification)
    choice = client.ask(messages, ChoiceReply, sample=held, context={"count": len(plan.candidates)})
    return ConceptName.picked(plan.candidates[choice.number - 1], choice.negated, choice.justification)


def ask_sorting(
    plan: NamingPlan, case: Case, name: ConceptName, number: int, client: Client
) -> Float64[np.ndarray, " scored"]:
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
        calls: their requests; cached: of them, those whose reply is known already.
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
    concepts: Codes | np.ndarray | NamingPlan,
    client: Client,
    *,
    names: Iterable[Mapping[str, Any]] | None = None,
    classes: Sequence[str] = (),
    candidates: Sequence[str] = (),
    settings: NamingSettings | None = None,
    only: Sequence[int] | None = None,
    known: Iterable[Mapping[str, Any]] = (),
) -> Estimate:
    """How many requests and tokens `name_by_model`, or with `names` `check_names`, will need.

    No server is asked: replies that are known are read, so that the requests which follow from them are known too.

    Raises:
        ConceptError: as these do.
    """
    plan = naming_plan(concepts, classes, candidates, settings)
    given = None if names is None else {int(entry["concept"]): entry for entry in names}
    settled = {entry["concept"]: entry.get("settings") for entry in known}
    total = idle = cached = single = hopeless = 0
    open_requests: list[tuple[int, int]] = []
    for concept in plan.chosen(only) if given is None else plan.to_check(given, only):
        case, name = plan.case(concept), None if given is None else ConceptName.given(given[concept])
        if settled.get(concept) == plan.fingerprint(case, client, name):
            continue
        total += 1
        idle += case.nameless
        alone = name is None and not case.rounds and not case.nameless
        single += alone
        hopeless += (
            plan.settings.permutations > 0 and not (alone or case.nameless) and case.hopeless(folds=name is None)
        )
        for replied, prompt, reply in _requests(plan, case, client, name):
            cached += replied
            if not replied:
                open_requests.append((prompt, reply))
    prompts, replies = (sum(sizes) for sizes in zip(*open_requests, strict=True)) if open_requests else (0, 0)
    return Estimate(total, idle, cached + len(open_requests), cached, prompts, replies, single, hopeless)


def _requests(
    plan: NamingPlan, case: Case, client: Client, name: ConceptName | None
) -> Iterator[tuple[bool, int, int]]:
    """Each request of a concept: whether its reply is known, its tokens and the reply's."""
    if case.nameless:
        return
    many = SORTED_TOKENS * len(case.scored)
    if name is not None:
        messages, _ = plan.sorting(case, name, 0)
        yield client.known(messages), tokens_of(messages), many
        return
    for held in range(case.rounds):
        messages = plan.naming(case, held)
        known = client.known(messages, sample=held)
        yield known, tokens_of(messages), NAME_TOKENS
        usual = plan.candidates[0] if plan.candidates else USUAL
        said = ConceptName(usual, usual, usual)
        if known:
            try:
                said = ask_name(plan, case, held, client)
            except ModelError:  # known, but of no use
                known = False
        messages, _ = plan.sorting(case, said, held)
        yield known and client.known(messages, sample=held), tokens_of(messages), many


def name_by_model(
    concepts: Codes | np.ndarray | NamingPlan,
    client: Client,
    *,
    classes: Sequence[str] = (),
    candidates: Sequence[str] = (),
    settings: NamingSettings | None = None,
    only: Sequence[int] | None = None,
    known: Iterable[Mapping[str, Any]] = (),
    parallel: int = 4,
    save: Save | None = None,
    progress: Progress | None = None,
) -> list[NameEntry]:
    """Let a language model name concepts, and check each name.

    Args:
        concepts: codes, of whose training part the groups are made, or proportions [C, K], nan for an empty class; or
            the plan that `naming_plan` made of them, of classes, candidates and settings.
        client: `htaf.llm.ServerClient`, `htaf.llm.BatchClient`, or anything that answers as they do.
        classes: K names, where `concepts` are proportions.
        candidates: what a name, or its negation, is chosen from; none: the model's own words.
        settings: of groups, rounds and check.
        only: which concepts, in the order in which they are asked for; default: all, the most important first.
        known: entries of an earlier call. One with the same settings is not asked for again; those of concepts that
            are not in `only` are kept as they are.
        parallel: threads, each with a concept of its own; they change nothing but the time.
        save: called with all entries so far whenever a concept is finished.
        progress: called with the numbers of concepts finished and to be finished.
    Returns:
        a dict of plain values for each concept, ascending (a concept with a group of one class is not asked for, as its
        name could not be checked): "concept", "name" (None without one), "label_1" and
        "label_0" (what images with the bit have, and without), "justification", "negated", "verified", "status" (one of
        `htaf.concepts.naming.files.STATUSES`), "reason" (why not), "held_out" (the score), "p_value" and "baseline"
        (mean and 95th percentile with the groups permuted),
        "agreement" (mean kappa of the rounds' sortings), "naming" (mean balanced accuracy on the sorted classes that
        the rounds did not hold out), "own" and "shown" (those of the shown name alone on the classes held out of it,
        and on all sorted ones; `htaf.concepts.naming.checks.poorly_shown` says what they must be), "rounds",
        "rounds_detail", "scored" (classes that were sorted), "group_a", "group_b", "mixed", "empty" (numbers of
        classes), "test_a" and "test_b" (mean share of their test images that have the bit, over the classes of each
        group; where that of A is not larger, no name is verified; None without such images), "source" ("model"),
        "model", "candidate" (whether chosen from a list), "settings" (a hash of what it rests on; None where no usable
        reply came, so that it is asked for again). The name shown is that of the round whose sorting agrees most with
        the others', which knows nothing of the groups.
    Raises:
        ConceptError: settings out of range, no such concept. ModelError: the server or the budget gave out; whatever
            was finished has been saved.
    """
    plan = naming_plan(concepts, classes, candidates, settings)
    found, wanted = {int(entry["concept"]): dict(entry) for entry in known}, plan.chosen(only)
    todo = [c for c in wanted if found.get(c, {}).get("settings") != plan.fingerprint(plan.case(c), client)]

    def work(concept: int, stop: threading.Event) -> NameEntry:
        return _named(plan, concept, client, stop)

    return gathered(found, todo, len(wanted), work, parallel, save, progress)


def check_names(
    concepts: Codes | np.ndarray | NamingPlan,
    client: Client,
    names: Iterable[Mapping[str, Any]],
    *,
    classes: Sequence[str] = (),
    settings: NamingSettings | None = None,
    only: Sequence[int] | None = None,
    known: Iterable[Mapping[str, Any]] = (),
    parallel: int = 4,
    save: Save | None = None,
    progress: Progress | None = None,
) -> list[NameEntry]:
    """Check names that somebody gave: a language model sorts all classes of both groups by each name alone.

    There is one sorting and no class is held out, as nothing is known of how the name was found: the score of a name
    that was made by looking at these very classes is too high. So names of a model or of attributes, whose own check
    held classes out, keep it unless they are asked for.

    Args:
        names: entries with "concept" and "name", perhaps "label_1" and "label_0", as `read_names` gives them.
        only: which concepts; default: those named by hand (source "hand", or none).
        known: entries of an earlier call; those of the same name and settings are not asked for again, others count for
            nothing.
        others: as in `name_by_model`.
    Returns:
        the entries, ascending, with the check's "held_out", "p_value", "baseline", "verified", "reason", the sizes of
        the groups, "scored", "rounds" (1), "checked_by" (the model) and "settings"; "agreement" and "naming" are None,
        "own", "shown" and "rounds_detail" of an earlier check are gone. Name, source and all else are kept; entries
        that are not checked stay as they are.
    Raises:
        ConceptError, ModelError: as `name_by_model`.
    """
    plan = naming_plan(concepts, classes, (), settings)
    found = {int(entry["concept"]): dict(entry) for entry in names}
    wanted = plan.to_check(found, only)
    todo = dict.fromkeys(wanted)
    for before in known:
        concept = int(before["concept"])
        given = found.get(concept, {})
        if not (given.get("name") and before.get("name") and before.get("checked_by")):
            continue
        same = ConceptName.given(before) == ConceptName.given(given)
        if same and before.get("settings") == plan.fingerprint(plan.case(concept), client, ConceptName.given(given)):
            found[concept] = dict(before)
            todo.pop(concept, None)
    names_of = {concept: found[concept] for concept in todo}

    def work(concept: int, stop: threading.Event) -> NameEntry:
        return _rechecked(plan, names_of[concept], client, stop)

    return gathered(found, list(todo), len(wanted), work, parallel, save, progress)


def _named(plan: NamingPlan, concept: int, client: Client, stop: threading.Event) -> NameEntry:
    """One concept: all its rounds and the check."""
    case = plan.case(concept)
    entry: NameEntry = {
        "concept": concept, **asdict(ConceptName("", "", "")), "name": None, "label_1": None, "label_0": None,
        "justification": None, "verified": False, "status": class_status(case, False, folds=True),
        "reason": case.note, "held_out": None, "p_value": None,
        "baseline": None, "agreement": None, "naming": None, "own": None, "shown": None, "rounds": case.rounds,
        "rounds_detail": [], **counts(plan.grouped, concept), "scored": 0, "source": "model", "model": client.model,
        "candidate": bool(plan.candidates), "settings": plan.fingerprint(case, client),
    }  # fmt: skip
    if not case.rounds:
        return entry
    names, sortings, waiting = [], [], False
    try:
        for held in range(case.rounds):
            if stop.is_set():
                raise Stopped
            try:
                names.append(ask_name(plan, case, held, client))
                sortings.append(ask_sorting(plan, case, names[-1], held, client))
            except Unanswered:  # the requests of the other rounds are noted too
                waiting = True
    except MalformedReply as error:
        return entry | no_answer(error)
    if waiting:
        return entry | WAITS_FOR_REPLIES
    return entry | judged(plan, case, names, sortings)


def _shown(name: ConceptName) -> NameEntry:
    return asdict(name) | {"justification": name.justification or None}  # as a file of names has it


def judged(plan: NamingPlan, case: Case, names: Sequence[ConceptName], sortings: Sequence[np.ndarray]) -> NameEntry:
    """The name that is shown, and the check of all rounds."""
    inside, fold = case.inside[case.scored], case.fold[case.scored]
    details = []
    for number, (name, said) in enumerate(zip(names, sortings, strict=True)):
        held = fold == number
        scores = {"held_out": balanced(inside[held], said[held]), "naming": balanced(inside[~held], said[~held])}
        details.append(asdict(name) | scores)
    alike = agreements(sortings)
    best = int(np.argmax(alike.sum(1).round(12)))  # the first of those that agree most
    agreement = float(alike[np.triu_indices(len(sortings), 1)].mean())
    said = np.stack(sortings)[fold, np.arange(len(fold))]  # each class by the round that held it out
    found = verdict(inside, said, fold, plan.settings, case.concept, agreement)
    own, shown = details[best]["held_out"], balanced(inside, sortings[best])
    poor = poorly_shown(shown, own, plan.settings.threshold)
    if found["verified"] and (reason := poor or plan.grouped.reversal(case.concept)):
        found |= {"verified": False, "reason": reason}
    found["status"] = class_status(case, found["verified"], folds=True)
    return _shown(names[best]) | found | {
        "naming": float(np.mean([each["naming"] for each in details])), "own": own, "shown": shown,
        "rounds_detail": details, "scored": len(inside),
    }  # fmt: skip


def _rechecked(plan: NamingPlan, given: NameEntry, client: Client, stop: threading.Event) -> NameEntry:
    """One given name."""
    if stop.is_set():
        raise Stopped
    concept = int(given["concept"])
    case, name = plan.case(concept), ConceptName.given(given)
    note = case.note if case.nameless else ""
    status = class_status(case, False, folds=False)
    entry = {key: value for key, value in given.items() if key not in OF_ROUNDS} | counts(plan.grouped, concept) | {
        "verified": False, "status": status, "reason": note, "held_out": None, "p_value": None, "baseline": None,
        "agreement": None, "naming": None, "rounds": 1, "scored": 0, "checked_by": client.model,
        "settings": plan.fingerprint(case, client, name),
    }  # fmt: skip
    if note:
        return entry
    try:
        said = ask_sorting(plan, case, name, 0, client)
    except Unanswered:
        return entry | WAITS_FOR_REPLIES
    except MalformedReply as error:
        return entry | no_answer(error)
    inside = case.inside[case.scored]
    one_fold = np.zeros(len(inside), dtype=np.int64)
    found = verdict(inside, said, one_fold, plan.settings, concept, None)
    if found["verified"] and (reason := plan.grouped.reversal(concept)):
        found |= {"verified": False, "reason": reason}
    return entry | found | {"scored": len(inside), "status": class_status(case, found["verified"], folds=False)}


def no_answer(error: Exception) -> NameEntry:
    """What an entry says of a model without a usable reply; it is asked again."""
    return {"reason": shortened(f"{NO_REPLY}: {error}"), "status": NO_ANSWER, "settings": None}


def gathered(
    found: dict[int, NameEntry],
    todo: Sequence[int],
    wanted: int,
    work: Callable[[int, threading.Event], NameEntry],
    parallel: int,
    save: Save | None,
    progress: Progress | None,
) -> list[NameEntry]:
    """What was found before, and what comes of that which is to be done; `wanted` counts both."""
    if parallel < 1:
        raise ConceptError(f"expected parallel >= 1, got {parallel}")
    if progress is not None:
        progress(wanted - len(todo), wanted)
    for done, entry in enumerate(in_threads(todo, work, parallel), wanted - len(todo) + 1):
        found[entry["concept"]] = entry
        if save is not None:
            save([found[concept] for concept in sorted(found)])
        if progress is not None:
            progress(done, wanted)
    return [found[concept] for concept in sorted(found)]
