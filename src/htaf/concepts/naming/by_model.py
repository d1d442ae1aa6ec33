"""Names for concepts from a language model, each checked on classes that the naming has not seen.

The classes of both groups (`htaf.concepts.groups`) are dealt out to a few rounds. In each round the model sees only the
classes that the round does not hold out, and names the concept; then, in a new request, it sees that name alone and the
classes in random order, and sorts them. Each class is judged by the round that held it out, so that a name which only
repeats the lists it was made of scores as chance does. The score is the balanced accuracy over all classes; the same
sortings with the groups permuted say what chance gives; the rounds' names must sort alike; and the one that is shown
must hold by itself.

`prompts` says what is asked, `plan` which requests there are, `checks` who is held out and whether a name holds,
`htaf.llm` who is asked.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from htaf.concepts.codes import Codes, ConceptError
from htaf.concepts.naming.checks import Case, Settings, agreements, balanced, counts, poorly_shown, verdict
from htaf.concepts.naming.plan import Name, Plan, ask_name, ask_sorting, plan_of
from htaf.concepts.naming.words import NO_REPLY, WAITING
from htaf.llm import Client, MalformedReply, Stopped, Unanswered, in_threads, shortened

Entry = dict[str, Any]
Save = Callable[[list[Entry]], None]
Progress = Callable[[int, int], None]
OF_ROUNDS = ("own", "shown", "rounds_detail")  # keys of names that a model made


def name_by_model(
    concepts: Codes | np.ndarray | Plan,
    client: Client,
    *,
    classes: Sequence[str] = (),
    candidates: Sequence[str] = (),
    settings: Settings | None = None,
    only: Sequence[int] | None = None,
    known: Iterable[Mapping[str, Any]] = (),
    parallel: int = 4,
    save: Save | None = None,
    progress: Progress | None = None,
) -> list[Entry]:
    """Let a language model name concepts, and check each name.

    Args:
        concepts: codes, of whose training part the groups are made, or proportions [C, K], nan for an empty class; or
            the plan that `plan_of` made of them, of classes, candidates and settings.
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
        "label_0" (what images with the bit have, and without), "justification", "negated", "verified", "reason" (why
        not), "held_out" (the score), "p_value" and "baseline" (mean and 95th percentile with the groups permuted),
        "agreement" (mean kappa of the rounds' sortings), "naming" (mean balanced accuracy on the sorted classes that
        the rounds did not hold out), "own" and "shown" (those of the shown name alone on the classes held out of it,
        and on all sorted ones; `htaf.concepts.naming.checks.poorly_shown` says what they must be), "rounds",
        "rounds_detail", "scored" (classes that were sorted), "group_a", "group_b", "mixed", "empty" (numbers of
        classes), "source" ("model"), "model", "candidate" (whether chosen from a list), "settings" (a hash of what it
        rests on; None where no usable reply came, so that it is asked for again). The name shown is that of the round
        whose sorting agrees most with the others', which knows nothing of the groups.
    Raises:
        ConceptError: settings out of range, no such concept. ModelError: the server or the budget gave out; whatever
            was finished has been saved.
    """
    plan = plan_of(concepts, classes, candidates, settings)
    found, wanted = {int(entry["concept"]): dict(entry) for entry in known}, plan.chosen(only)
    todo = [c for c in wanted if found.get(c, {}).get("settings") != plan.fingerprint(plan.case(c), client)]

    def work(concept: int, stop: threading.Event) -> Entry:
        return _named(plan, concept, client, stop)

    return _entries(found, todo, len(wanted), work, parallel, save, progress)


def check_names(
    concepts: Codes | np.ndarray | Plan,
    client: Client,
    names: Iterable[Mapping[str, Any]],
    *,
    classes: Sequence[str] = (),
    settings: Settings | None = None,
    only: Sequence[int] | None = None,
    known: Iterable[Mapping[str, Any]] = (),
    parallel: int = 4,
    save: Save | None = None,
    progress: Progress | None = None,
) -> list[Entry]:
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
    plan = plan_of(concepts, classes, (), settings)
    found = {int(entry["concept"]): dict(entry) for entry in names}
    wanted = plan.to_check(found, only)
    todo = dict.fromkeys(wanted)
    for before in known:
        concept = int(before["concept"])
        given = found.get(concept, {})
        if not (given.get("name") and before.get("name") and before.get("checked_by")):
            continue
        same = Name.given(before) == Name.given(given)
        if same and before.get("settings") == plan.fingerprint(plan.case(concept), client, Name.given(given)):
            found[concept] = dict(before)
            todo.pop(concept, None)
    names_of = {concept: found[concept] for concept in todo}

    def work(concept: int, stop: threading.Event) -> Entry:
        return _rechecked(plan, names_of[concept], client, stop)

    return _entries(found, list(todo), len(wanted), work, parallel, save, progress)


def _named(plan: Plan, concept: int, client: Client, stop: threading.Event) -> Entry:
    """One concept: all its rounds and the check."""
    case = plan.case(concept)
    entry: Entry = {
        "concept": concept, **asdict(Name("", "", "")), "name": None, "label_1": None, "label_0": None,
        "justification": None, "verified": False, "reason": case.note, "held_out": None, "p_value": None,
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
        return entry | {"reason": shortened(f"{NO_REPLY}: {error}"), "settings": None}
    if waiting:
        return entry | {"reason": WAITING, "settings": None}
    return entry | _judged(plan, case, names, sortings)


def _shown(name: Name) -> Entry:
    return asdict(name) | {"justification": name.justification or None}  # as a file of names has it


def _judged(plan: Plan, case: Case, names: Sequence[Name], sortings: Sequence[np.ndarray]) -> Entry:
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
    if found["verified"] and (reason := poorly_shown(shown, own, plan.settings.threshold)):
        found |= {"verified": False, "reason": reason}
    return _shown(names[best]) | found | {
        "naming": float(np.mean([each["naming"] for each in details])), "own": own, "shown": shown,
        "rounds_detail": details, "scored": len(inside),
    }  # fmt: skip


def _rechecked(plan: Plan, given: Entry, client: Client, stop: threading.Event) -> Entry:
    """One given name."""
    if stop.is_set():
        raise Stopped
    concept = int(given["concept"])
    case, name = plan.case(concept), Name.given(given)
    note = case.note if case.nameless else ""
    entry = {key: value for key, value in given.items() if key not in OF_ROUNDS} | counts(plan.grouped, concept) | {
        "verified": False, "reason": note, "held_out": None, "p_value": None, "baseline": None, "agreement": None,
        "naming": None, "rounds": 1, "scored": 0, "checked_by": client.model,
        "settings": plan.fingerprint(case, client, name),
    }  # fmt: skip
    if note:
        return entry
    try:
        said = ask_sorting(plan, case, name, 0, client)
    except Unanswered:
        return entry | {"reason": WAITING, "settings": None}
    except MalformedReply as error:
        return entry | {"reason": shortened(f"{NO_REPLY}: {error}"), "settings": None}
    inside = case.inside[case.scored]
    one_fold = np.zeros(len(inside), dtype=np.int64)
    return entry | verdict(inside, said, one_fold, plan.settings, concept, None) | {"scored": len(inside)}


def _entries(
    found: dict[int, Entry],
    todo: Sequence[int],
    wanted: int,
    work: Callable[[int, threading.Event], Entry],
    parallel: int,
    save: Save | None,
    progress: Progress | None,
) -> list[Entry]:
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
