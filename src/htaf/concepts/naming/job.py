"""Naming concepts: one job, whatever the evidence; kept in a file, so that an interrupted one can be continued.

An `Evidence` says which requests find a name and which check it, and judges the replies: `classes` are names of
classes, `pictures` are images. Here is who is asked, what it will cost, what is known already, and what is kept.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np

from htaf.concepts.codes import ConceptError
from htaf.concepts.naming.files import CHECKED, NO_ANSWER, NO_REPLY, NameEntry, kept_names, read_names
from htaf.concepts.naming.prompts import TEMPLATES, ChoiceReply, ConceptName, Judgements, NameReply
from htaf.llm import Client, MalformedReply, Message, pictures_in, shortened, tokens_of

Progress = Callable[[int, int], None]
NAME_TOKENS = 120  # of a reply, about; a choice needs fewer
_PHRASE = "a short phrase of about seven words"
USUAL = ConceptName(_PHRASE, _PHRASE, _PHRASE)


@runtime_checkable
class Evidence(Protocol):
    """What names are found from, and checked on.

    Attributes:
        source: of the names that it gives.
        replies: the form of a reply to a check. reply_tokens: of it, for each thing that is judged.
        sampled: of how many concepts the requests are made to estimate those of all; None: of all.
        order: all concepts, the most important first. key: of the codes; None: unknown.

    A case is what one concept is named from. It has a `concept`, its number; `rounds`, how often it is named, 0 where
    there is nothing to ask; a `note`, why, else ""; `nameless`, whether there is nothing to name at all; and the
    `status` of a name that is not verified.
    """

    @property
    def source(self) -> str: ...
    @property
    def replies(self) -> type[Judgements]: ...
    @property
    def reply_tokens(self) -> int: ...
    @property
    def sampled(self) -> int | None: ...
    @property
    def order(self) -> tuple[int, ...]: ...
    @property
    def key(self) -> str | None: ...

    def case(self, concept: int, given: bool = False) -> Any:
        """That of a concept; given: of a name that is there and only to be checked."""
        ...

    def rests(self, case: Any) -> list[Any]:
        """Plain values: all that a name rests on."""
        ...

    def facts(self, case: Any, given: bool = False) -> NameEntry:
        """What an entry says of the evidence."""
        ...

    def naming(self, case: Any, number: int, candidates: Sequence[str] = ()) -> list[Message]:
        """The messages of round `number` that ask for a name."""
        ...

    def checking(self, case: Any, name: ConceptName, number: int) -> tuple[list[tuple[list[Message], int]], np.ndarray]:
        """The requests that check a name, each with the number of things that it asks about, and the place of each
        thing: int64 [n]."""
        ...

    def verdict(self, case: Any, names: Sequence[ConceptName], sortings: Sequence[np.ndarray]) -> tuple[int, NameEntry]:
        """Which of the rounds' names is shown, and what an entry says of the check."""
        ...

    def look(self, client: Client) -> None:
        """See that a client serves, before it is asked; raises ModelError."""
        ...

    def foreseen(self, cases: Sequence[Any], given: bool = False) -> dict[str, int]:
        """What an `Estimate` of these cases says of this evidence alone."""
        ...


@dataclass(frozen=True)
class Estimate:
    """What naming will need, about.

    Attributes:
        concepts: still to be named or checked; idle: of them, those with nothing to ask; single: those that are not
            asked for, as a group has one class, so that no name could be checked; hopeless: those that are asked for
            though hardly any name can be verified.
        calls: their requests; cached: of them, those whose reply is known already.
        prompt_tokens, reply_tokens: of the others. A check that follows from a name yet to come is counted with a name
            of usual length.
        images: different images that all requests show; pictures: files that show them, contact sheets or images;
            bytes: of these, as they are sent.
    """

    concepts: int
    idle: int
    calls: int
    cached: int
    prompt_tokens: int
    reply_tokens: int
    single: int = 0
    hopeless: int = 0
    images: int = 0
    pictures: int = 0
    bytes: int = 0


@dataclass(frozen=True, eq=False)
class NamingJob:
    """Names of concepts to be found by a model, or given names to be checked by it.

    Attributes:
        evidence: what is asked about. client: who is asked.
        candidates: what a name, or its negation, is chosen from; none: the model's own words.
        only: which concepts; None: all, or of given names those by hand.
        given: names to check, by concept; None: names are to be found.
        known: entries of an interrupted job, by concept.
        out: where the names are kept; None: nowhere.
    """

    evidence: Evidence
    client: Client
    candidates: tuple[str, ...] = ()
    only: tuple[int, ...] | None = None
    given: Mapping[int, NameEntry] | None = None
    known: Mapping[int, NameEntry] | None = None
    out: Path | None = None

    def fingerprint(self, concept: int) -> str:
        """16 hexadecimal digits of all that an entry rests on: the same for the same questions to the same model of
        the same server."""
        name = self._given_name(concept)
        case = self.evidence.case(concept, name is not None)
        who = [self.client.model, getattr(self.client, "base_url", "")]
        rests = [concept, self.evidence.source, self.evidence.rests(case), self.candidates, who, TEMPLATES]
        rests += [] if name is None else [[name.name, name.label_1, name.label_0]]
        return hashlib.sha256(json.dumps(rests).encode()).hexdigest()[:16]

    def chosen(self, only: Sequence[int] | None) -> list[int]:
        """The concepts that are meant, once each; None: all, the most important first.

        Raises:
            ConceptError: no such concept.
        """
        order = self.evidence.order
        if only is None:
            return list(order)
        if wrong := [number for number in only if not 0 <= number < len(order)]:
            raise ConceptError(f"expected concepts in 0 to {len(order) - 1}, got {wrong[0]}")
        return list(dict.fromkeys(only))

    def wanted(self) -> list[int]:
        """The concepts that the job is for; of given names those that there are."""
        if self.given is None:
            return self.chosen(self.only)
        hand = [concept for concept, entry in self.given.items() if entry.get("source", "hand") == "hand"]
        return [c for c in self.chosen(hand if self.only is None else self.only) if self._given_name(c)]

    def todo(self) -> list[int]:
        """Of these, those that no earlier job finished with the same settings."""
        settled = {concept: entry.get("settings") for concept, entry in (self.known or {}).items()}
        return [c for c in self.wanted() if not settled.get(c) or settled[c] != self.fingerprint(c)]

    def estimate(self) -> Estimate:
        """How many requests and tokens the job will need.

        No server is asked: replies that are known are read, so that the requests which follow from them are known too.
        Of pictures those of three concepts are made, and others taken to be alike.
        """
        todo, find = self.todo(), self.given is None
        cases = [self.evidence.case(concept, not find) for concept in todo]
        asked = [case for case in cases if not case.note]
        some = asked if self.evidence.sampled is None else asked[: self.evidence.sampled]
        requests = [request for case in some for request in self._requests(case)]
        left = [(messages, reply) for messages, reply, known in requests if not known]
        urls = [url for messages, _, _ in requests for url in pictures_in(messages)]
        numbers = {
            "calls": len(requests), "cached": len(requests) - len(left),
            "prompt_tokens": sum(tokens_of(messages) for messages, _ in left),
            "reply_tokens": sum(reply for _, reply in left),
            "pictures": len(urls), "bytes": sum(map(len, urls)),
        }  # fmt: skip
        numbers = {key: round(value * len(asked) / max(1, len(some))) for key, value in numbers.items()}
        idle = sum(case.nameless for case in cases)
        single = len(cases) - len(asked) - idle
        return Estimate(len(todo), idle, single=single, **numbers, **self.evidence.foreseen(asked, not find))

    def _requests(self, case: Any) -> Iterator[tuple[list[Message], int, bool]]:
        """Each request of a concept: its messages, the tokens of its reply, and whether that is known."""
        given = self._given_name(case.concept)
        for number in range(case.rounds):
            name, follows = given, True
            if name is None:
                messages = self.evidence.naming(case, number, self.candidates)
                known = self.client.known(messages, sample=number)
                yield messages, NAME_TOKENS, known
                try:
                    name, follows = (self._ask_name(case, number) if known else USUAL), known
                except MalformedReply:  # known, but of no use
                    name, follows = USUAL, False
            for messages, count in self.evidence.checking(case, name, number)[0]:
                known = follows and self.client.known(messages, sample=number)
                yield messages, self.evidence.reply_tokens * count, known

    def run(self, *, parallel: int = 4, progress: Progress | None = None) -> list[NameEntry]:
        """Ask for all that is not known yet; whatever is finished is in the file, however the job ends.

        Names that are given are checked without holding anything out that could have made them; those of a model or of
        attributes, whose own check held classes out, keep it unless they are asked for. Everything else of an entry is
        kept, and so are entries that are not checked.

        Args:
            parallel: threads, each with a concept of its own; they change nothing but the time.
            progress: called with the numbers of concepts finished and to be finished.
        Returns:
            a dict of plain values for each concept, ascending: "concept", "name" (None without one), "label_1" and
            "label_0" (what images with the bit have, and without), "justification", "negated", "verified", "status"
            (one of `htaf.concepts.naming.files.STATUSES`), "reason" (why not), "held_out" (the score), "p_value" and
            "baseline" (mean and 95th percentile of permutations), "rounds", "scored" (classes or images that were
            judged), "source", "model", "candidate" (whether chosen from a list), "checked_by" (of a given name),
            "settings" (a hash of what it rests on; None where no usable reply came, so that it is asked for again).
            Of classes also "agreement" (mean kappa of the rounds' sortings), "naming" (mean balanced accuracy on the
            sorted classes that the rounds did not hold out), "own" and "shown" (those of the shown name alone on the
            classes held out of it, and on all sorted ones), "rounds_detail", "group_a", "group_b", "mixed", "empty"
            (numbers of classes), "test_a" and "test_b" (mean share of their test images that have the bit). Of pictures
            "pictures" (how many), and the scores of `htaf.concepts.naming.pictures.PictureEvidence.verdict`.
        Raises:
            ConceptError: no such concept. ModelError: the server or the budget gave out. OSError: the file cannot be
                written.
        """
        if parallel < 1:
            raise ConceptError(f"expected parallel >= 1, got {parallel}")
        todo, wanted = self.todo(), self.wanted()
        if todo:
            self.evidence.look(self.client)
        known = self.known or {}
        found = dict(known if self.given is None else self.given)
        found |= {concept: known[concept] for concept in wanted if concept not in todo}
        with kept_names(self.out, self.evidence.key) as save:
            if progress is not None:
                progress(len(wanted) - len(todo), len(wanted))
            for done, entry in enumerate(_in_threads(self._entry, todo, parallel), len(wanted) - len(todo) + 1):
                found[entry["concept"]] = entry
                save([found[concept] for concept in sorted(found)])
                if progress is not None:
                    progress(done, len(wanted))
            names = [found[concept] for concept in sorted(found)]
            save(names)
        return names

    def _given_name(self, concept: int) -> ConceptName | None:
        entry = (self.given or {}).get(concept, {})
        return ConceptName.given(entry) if entry.get("name") else None

    def _entry(self, concept: int) -> NameEntry:
        """One concept: its name, unless it is given, and the check."""
        given = self._given_name(concept)
        case = self.evidence.case(concept, given is not None)
        if given is None:
            entry: NameEntry = {
                "concept": concept, **dict.fromkeys(asdict(USUAL)), "negated": False, "source": self.evidence.source,
                "model": self.client.model, "candidate": bool(self.candidates),
            }  # fmt: skip
        else:
            entry = dict((self.given or {})[concept]) | {"checked_by": self.client.model}
        entry |= dict.fromkeys(CHECKED) | self.evidence.facts(case, given is not None) | {
            "verified": False, "status": case.status, "reason": case.note, "rounds": case.rounds, "scored": 0,
            "settings": self.fingerprint(concept),
        }  # fmt: skip
        if case.note:
            return entry
        names, sortings = [], []
        try:
            for number in range(case.rounds):
                names.append(given or self._ask_name(case, number))
                sortings.append(self._ask_check(case, names[-1], number))
        except MalformedReply as error:
            return entry | {"reason": shortened(f"{NO_REPLY}: {error}"), "status": NO_ANSWER, "settings": None}
        best, verdict = self.evidence.verdict(case, names, sortings)
        return entry | ({} if given else asdict(names[best])) | verdict | {"scored": len(sortings[0])}

    def _ask_name(self, case: Any, number: int) -> ConceptName:
        form = ChoiceReply if self.candidates else NameReply
        messages, context = self.evidence.naming(case, number, self.candidates), {"count": len(self.candidates)}
        return self.client.ask(messages, form, sample=number, context=context).said(self.candidates)

    def _ask_check(self, case: Any, name: ConceptName, number: int) -> np.ndarray:
        requests, places = self.evidence.checking(case, name, number)
        said = [
            self.client.ask(messages, self.evidence.replies, sample=number, context={"count": count}).values(count)
            for messages, count in requests
        ]
        found = np.empty(len(places))
        found[places] = np.concatenate(said)
        return found


def naming_job(
    evidence: Evidence,
    client: Client,
    *,
    candidates: Sequence[str] = (),
    given: Path | Sequence[Mapping[str, Any]] | None = None,
    only: Sequence[int] = (),
    top: int | None = None,
    out: Path | None = None,
    refresh: bool = False,
) -> NamingJob:
    """A job that continues what an earlier one left in `out`.

    Args:
        evidence: `htaf.concepts.naming.class_evidence` or `htaf.concepts.naming.picture_evidence`.
        client: who is asked: `htaf.llm.ServerClient`, or anything that answers as it does.
        candidates: what names are chosen from; none: the model's own words.
        given: names to be checked, in place of finding names: entries, or a file of them.
        only: concepts, by number; empty: all, or of given names those by hand.
        top: in place of `only`, the most important ones.
        out: .json, or a .csv that is not there yet.
        refresh: name anew what the file holds of these concepts; until then it stays there.
    Raises:
        ConceptError: no such concept; `given` or `out` cannot be read or are of other codes; names in `out` would be
            lost.
    """
    if isinstance(given, Path):
        names: Sequence[Mapping[str, Any]] | None = read_names(given, len(evidence.order), codes=evidence.key)
    else:
        names = given
    by_concept = None if names is None else {int(entry["concept"]): {"source": "hand"} | dict(entry) for entry in names}
    wanted = tuple(only) or (None if top is None else evidence.order[:top])
    job = NamingJob(evidence, client, tuple(candidates), wanted, by_concept, None, out)
    job.chosen(wanted)
    known = {} if out is None else _earlier(job, out, given)
    if refresh:
        known |= {concept: known[concept] | {"settings": None} for concept in job.wanted() if concept in known}
    return replace(job, known=known)


def _earlier(job: NamingJob, path: Path, given: object) -> dict[int, NameEntry]:
    """What an earlier job left in the file that is to be written; raises ConceptError for names that would be lost."""
    if not path.exists():
        return {}
    if path.suffix.lower() == ".csv":  # it does not say what its names rest on
        raise ConceptError(
            f"{path}: expected a new .csv file, got one that exists: a .csv cannot be continued, choose a .json or "
            "another name"
        )
    found = {entry["concept"]: entry for entry in read_names(path, len(job.evidence.order), codes=job.evidence.key)}
    if job.given is not None:
        ours = path.resolve() == given.resolve() if isinstance(given, Path) else False
        if not ours and any(entry["name"] and not entry.get("checked_by") for entry in found.values()):
            raise ConceptError(
                f"{path}: expected a new file or one of checked names, got other names, which would be lost: choose "
                "another --out"
            )
        return {concept: entry for concept, entry in found.items() if entry.get("checked_by")}
    for concept, entry in found.items():
        rests = entry.get("settings")
        ours = entry["source"] == job.evidence.source and not entry.get("checked_by")
        if not ours or (rests and rests != job.fingerprint(concept)):
            raise ConceptError(
                f"{path}: expected a new file or names of the same settings, got concept {concept} named otherwise (by "
                "hand, of other evidence, with another model, server, settings or version), which would be lost: "
                "choose another --out"
            )
    return found


def _in_threads(work: Callable[[int], NameEntry], concepts: Sequence[int], parallel: int) -> Iterator[NameEntry]:
    """What the work gives for each concept, as it is finished; they are begun in their order.

    After a failure nothing more is begun: what is under way still comes, then the first failure is raised. Ctrl-C waits
    for nobody.
    """
    failures: list[BaseException] = []

    def guarded(concept: int) -> NameEntry | None:
        if failures:
            return None
        try:
            return work(concept)
        except BaseException as failure:  # whatever it is, it is raised below
            failures.append(failure)
            return None

    pool = ThreadPoolExecutor(parallel)
    try:
        for future in as_completed([pool.submit(guarded, concept) for concept in concepts]):
            if (entry := future.result()) is not None:
                yield entry
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
    if failures:
        raise failures[0]
