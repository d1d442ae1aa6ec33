"""Names for bits from a model that sees pictures, each checked on images that the naming has not seen.

The model sees images with the bit and without it, and names what sets them apart. Then, in new requests, it sees that
name alone and other images, and says how well the name fits each. No classes are needed: where there are too few for
the check of `htaf.concepts.naming.by_model`, or none, names can be verified here.

`picture_choice` says which images, `album` how they are laid out, `picture_prompts` what is asked, `picture_scores`
whether a name holds; here is which requests there are, what would leave the machine, and what comes of it.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float64, Int64, UInt8

from htaf.concepts.codes import Codes, ConceptError, codes_key
from htaf.concepts.completeness import by_importance
from htaf.concepts.naming.album import ON_A_SHEET, album
from htaf.concepts.naming.by_model import (
    NAME_TOKENS,
    OF_ROUNDS,
    USUAL,
    WAITS_FOR_REPLIES,
    ConceptName,
    gathered,
    no_answer,
)
from htaf.concepts.naming.files import NOT_CHECKED, NameEntry, kept_names, read_names
from htaf.concepts.naming.job import unused_replies
from htaf.concepts.naming.picture_choice import Choice, PictureSettings, Pixels, choose, pools
from htaf.concepts.naming.picture_prompts import MOST, TEMPLATES, RatingReply, picture_naming_prompt, rating_prompt
from htaf.concepts.naming.picture_scores import picture_verdict
from htaf.concepts.naming.prompts import ChoiceReply, NameReply
from htaf.llm import BatchClient, Client, MalformedReply, Message, Stopped, Unanswered, pictures_in, tokens_of
from htaf.llm.sight import expect_sight

RATED_TOKENS = 10  # of a reply, for each image
MEASURED = 3  # concepts whose pictures are made to estimate bytes and tokens
COUNTED = 20_000  # images, of which the rates of bits are counted
FILLED = (  # by the check, or by no check of this kind
    "held_out", "p_value", "baseline", "agreement", "naming", "group_a", "group_b", "mixed", "empty", "scores",
    "at_rate", "within", "only_class",
)  # fmt: skip
TEXTS = ("name", "label_1", "label_0", "justification")
USUAL_NAME = ConceptName(USUAL, USUAL, USUAL)


@dataclass(frozen=True)
class PicturePlan:
    """All that the requests follow from.

    Attributes:
        codes: whose bits are named.
        pixels: gives the images of rows, uint8 [n, channels, height, width]; called by one thread at a time.
        candidates: what names are chosen from; none: the model's own words.
        settings: of images and check.
    """

    codes: Codes
    pixels: Pixels
    candidates: tuple[str, ...] = ()
    settings: PictureSettings = field(default_factory=PictureSettings)

    @cached_property
    def order(self) -> tuple[int, ...]:
        """All concepts, the most important first (`htaf.concepts.completeness.by_importance`)."""
        rows = self._pools[0]
        rows = rows[:: max(1, len(rows) // COUNTED)]
        rates = self.codes.unpack(rows).mean(0) if len(rows) else np.zeros(self.codes.concepts)
        return tuple(by_importance(self.codes.weight, rates).tolist())

    @cached_property
    def _pools(self) -> tuple[np.ndarray, np.ndarray]:
        return pools(self.codes, self.settings.seed)

    @cached_property
    def _guard(self) -> threading.Lock:
        return threading.Lock()

    def choice(self, concept: int) -> Choice:
        """The images of a bit."""
        return choose(self.codes, concept, self.settings, *self._pools)

    def images(self, rows: Int64[np.ndarray, " rows"]) -> UInt8[np.ndarray, "rows channels height width"]:
        """Their pixels."""
        with self._guard:
            return np.asarray(self.pixels(rows))

    def naming(self, choice: Choice) -> list[Message]:
        """The messages that ask for a name."""
        with_bit, kind, side = len(choice.shown_with), self.settings.album, self.settings.tile
        images = self.images(np.concatenate([choice.shown_with, choice.shown_without]))
        group_a = album(images[:with_bit], kind, side, title="Group A")
        group_b = album(images[with_bit:], kind, side, title="Group B", first=with_bit + 1)
        return picture_naming_prompt(group_a, group_b, self.candidates)

    def ratings(self, choice: Choice, name: ConceptName) -> list[tuple[list[Message], int]]:
        """The messages that ask how well a name fits the images that check it, at most 20 each, and how many."""
        images, found = self.images(choice.sorted), []
        requests = -(-len(images) // ON_A_SHEET)
        for some in np.array_split(images, requests):  # of about the same size
            shown = album(some, self.settings.album, self.settings.tile, title="Images")
            found.append((rating_prompt(name.name, name.label_1, name.label_0, shown, len(some)), len(some)))
        return found

    def fingerprint(self, choice: Choice, client: Client, name: ConceptName | None = None) -> str:
        """16 hexadecimal digits of all that an entry rests on, the images by their ids."""
        ids = [[self.codes.ids[row] for row in rows.tolist()] for rows in (choice.rows,)]
        who = [client.model, getattr(client, "base_url", "")]  # files have none
        rests = ["pictures", asdict(self.settings), self.candidates, who, TEMPLATES, ids, choice.bit.tolist()]
        rests += [choice.concept] if name is None else [choice.concept, name.name, name.label_1, name.label_0]
        return hashlib.sha256(json.dumps(rests).encode()).hexdigest()[:16]

    def chosen(self, only: Sequence[int] | None) -> list[int]:
        """The concepts that are meant, once each; None: all, the most important first.

        Raises:
            ConceptError: no such concept.
        """
        if only is None:
            return list(self.order)
        if wrong := [number for number in only if not 0 <= number < self.codes.concepts]:
            raise ConceptError(f"expected concepts in 0 to {self.codes.concepts - 1}, got {wrong[0]}")
        return list(dict.fromkeys(only))


@dataclass(frozen=True)
class PictureEstimate:
    """What naming from pictures will send, about.

    Attributes:
        concepts: still to be named or checked; idle: of them, those with nothing to ask.
        calls: requests, those whose reply is kept among them. images: different images that they show.
        pictures: files in them: contact sheets, or images. bytes: of these, as they are sent.
        prompt_tokens, reply_tokens: of all requests.
    """

    concepts: int
    idle: int
    calls: int
    images: int
    pictures: int
    bytes: int
    prompt_tokens: int
    reply_tokens: int


def ask_name_of_pictures(plan: PicturePlan, choice: Choice, client: Client) -> ConceptName:
    """Ask for a name.

    Raises:
        ModelError: as the client.
    """
    messages = plan.naming(choice)
    if not plan.candidates:
        said = client.ask(messages, NameReply)
        return ConceptName(said.concept, said.label_1, said.label_0, said.justification)
    picked = client.ask(messages, ChoiceReply, context={"count": len(plan.candidates)})
    return ConceptName.picked(plan.candidates[picked.number - 1], picked.negated, picked.justification)


def ask_ratings(plan: PicturePlan, choice: Choice, name: ConceptName, client: Client) -> Float64[np.ndarray, " n"]:
    """Let `choice.sorted` be rated by a name: float64 [n] in [0, 1], 0.5 for an image that is left out.

    Raises:
        Unanswered: some of the requests, all of which are noted. ModelError: as the client.
    """
    parts, waiting = [], None
    for messages, count in plan.ratings(choice, name):
        found = np.full(count, 0.5)
        try:
            for rating in client.ask(messages, RatingReply, context={"count": count}).pictures:
                found[rating.number - 1] = rating.fits / MOST
        except Unanswered as error:
            waiting = error
        parts.append(found)
    if waiting is not None:
        raise waiting
    return np.concatenate(parts)


@dataclass(frozen=True, eq=False)
class PictureJob:
    """Names of bits to be found from pictures, or given names to be checked on pictures.

    Attributes:
        plan: what is asked. client: who is asked.
        only: which concepts; None: all, or those of `given` that were named by hand.
        given: names to check; None: names are to be found.
        known: entries of an interrupted job.
        out: where the names are kept; None: nowhere.
    """

    plan: PicturePlan
    client: Client
    only: tuple[int, ...] | None = None
    given: tuple[NameEntry, ...] | None = None
    known: tuple[NameEntry, ...] = ()
    out: Path | None = None

    def _wanted(self) -> list[int]:
        if self.given is None:
            return self.plan.chosen(self.only)
        names = {int(entry["concept"]): entry for entry in self.given}
        hand = [concept for concept, entry in names.items() if entry.get("source", "hand") == "hand"]
        wanted = self.plan.chosen(hand if self.only is None else self.only)
        return [concept for concept in wanted if names.get(concept, {}).get("name")]

    def _todo(self) -> dict[int, ConceptName | None]:
        """What is to be asked: each concept with the name that is to be checked, if one is given."""
        named = {int(e["concept"]): ConceptName.given(e) for e in self.given or () if e.get("name")}
        settled = {int(entry["concept"]): entry.get("settings") for entry in self.known}
        todo = {concept: named.get(concept) for concept in self._wanted()}
        return {
            concept: name
            for concept, name in todo.items()
            if settled.get(concept) is None
            or settled[concept] != self.plan.fingerprint(self.plan.choice(concept), self.client, name)
        }

    def estimate(self) -> PictureEstimate:
        """What the job will send; of up to three concepts the pictures are made, of others they are taken to be alike.

        Replies that are known are not looked for, as that would need the pictures of all.
        """
        todo, rows, idle = self._todo(), set[int](), 0
        calls = pictures = size = prompts = replies = measured = asked = 0
        for concept, name in todo.items():
            choice = self.plan.choice(concept)
            if choice.note:
                idle += 1
                continue
            asked += 1
            rows |= set((choice.rows if name is None else choice.sorted).tolist())
            calls += -(-len(choice.sorted) // ON_A_SHEET) + (name is None)
            replies += RATED_TOKENS * len(choice.sorted) + NAME_TOKENS * (name is None)
            if measured < MEASURED:
                measured += 1
                requests = [messages for messages, _ in self.plan.ratings(choice, name or USUAL_NAME)]
                requests += [self.plan.naming(choice)] if name is None else []
                urls = [url for messages in requests for url in pictures_in(messages)]
                pictures, size = pictures + len(urls), size + sum(map(len, urls))
                prompts += sum(map(tokens_of, requests))
        pictures, size, prompts = (round(value * asked / max(1, measured)) for value in (pictures, size, prompts))
        return PictureEstimate(len(todo), idle, calls, len(rows), pictures, size, prompts, replies)

    def run(self, *, parallel: int = 4, progress: Callable[[int, int], None] | None = None) -> list[NameEntry]:
        """Ask for all that is not known yet; whatever is finished is in the file, however the job ends.

        A server is first shown a made picture of four digits, to see whether the model sees any.

        Args:
            parallel: threads, each with a concept of its own; they change nothing but the time.
            progress: called with the numbers of concepts finished and to be finished.
        Returns:
            a dict of plain values for each concept, ascending, with the keys of `name_by_model` ("agreement", "naming",
            and the sizes of the groups are None) and those of
            `htaf.concepts.naming.picture_scores.picture_verdict`; "pictures" counts the images: "shown" to the naming,
            and of those that checked the name "with" and "without" the bit, drawn at random, and "pairs" of one class.
        Raises:
            BlindError: the model sees no pictures. ConceptError, ModelError: as `name_by_model`. OSError: the file
                cannot be written.
        """
        todo = self._todo()
        if todo and not isinstance(self.client, BatchClient):
            expect_sight(self.client)
        given = {int(entry["concept"]): dict(entry) for entry in self.given or ()}
        found = given | {int(e["concept"]): dict(e) for e in self.known if int(e["concept"]) not in todo}

        def work(concept: int, stop: threading.Event) -> NameEntry:
            return _entry(self.plan, concept, given.get(concept) if todo[concept] else None, self.client, stop)

        with kept_names(self.out, codes_key(self.plan.codes)) as save:
            names = gathered(found, list(todo), len(self._wanted()), work, parallel, save, progress)
            save(names)
        return names

    def unused_replies(self, names: Sequence[Mapping[str, Any]]) -> list[str]:
        """As `htaf.concepts.naming.NamingJob.unused_replies`."""

        def meet() -> None:
            for entry in names:
                choice = self.plan.choice(int(entry["concept"]))
                if not choice.note:
                    self.client.known(self.plan.naming(choice))
                    if entry["name"]:
                        for messages, _ in self.plan.ratings(choice, ConceptName.given(entry)):
                            self.client.known(messages)

        return unused_replies(self.client, names, meet)


def _entry(
    plan: PicturePlan, concept: int, given: NameEntry | None, client: Client, stop: threading.Event
) -> NameEntry:
    """One concept: its name, unless it is given, and the check."""
    if stop.is_set():
        raise Stopped
    choice = plan.choice(concept)
    name = None if given is None else ConceptName.given(given)
    counts = {
        "shown": len(choice.shown_with) + len(choice.shown_without),
        "with": int((choice.bit & choice.drawn).sum()), "without": int((~choice.bit & choice.drawn).sum()),
        "pairs": len(choice.pairs),
    }  # fmt: skip
    if given is None:
        entry: NameEntry = {
            "concept": concept, **dict.fromkeys(TEXTS), "negated": False,
            "source": "pictures", "model": client.model, "candidate": bool(plan.candidates),
        }  # fmt: skip
    else:
        entry = {key: value for key, value in given.items() if key not in OF_ROUNDS} | {"checked_by": client.model}
        counts["shown"] = 0
    entry |= dict.fromkeys(FILLED) | {
        "verified": False, "status": choice.status or NOT_CHECKED, "reason": choice.note, "rounds": 1, "scored": 0,
        "pictures": counts, "settings": plan.fingerprint(choice, client, name),
    }  # fmt: skip
    if choice.note:
        return entry
    try:
        if name is None:
            name = ask_name_of_pictures(plan, choice, client)
            entry |= asdict(name) | {"justification": name.justification or None}
        said = ask_ratings(plan, choice, name, client)
    except Unanswered:
        return entry | WAITS_FOR_REPLIES | ({} if given else dict.fromkeys(TEXTS))
    except MalformedReply as error:
        return entry | no_answer(error) | ({} if given else dict.fromkeys(TEXTS))
    return entry | picture_verdict(choice, said, plan.settings) | {"scored": len(said)}


def picture_job(
    codes: Codes,
    pixels: Pixels,
    client: Client,
    settings: PictureSettings | None = None,
    *,
    candidates: Sequence[str] = (),
    given: Path | None = None,
    only: Sequence[int] = (),
    top: int | None = None,
    out: Path | None = None,
    refresh: bool = False,
) -> PictureJob:
    """A job that continues what an earlier one left in `out`.

    Args:
        codes: whose concepts are named.
        pixels: gives the images of rows of the codes, uint8 [n, channels, height, width].
        client, candidates, given, only, top, out, refresh: as `htaf.concepts.naming.naming_job` takes them.
        settings: of images and check.
    Raises:
        ConceptError: no such concept; `given` or `out` cannot be read or are of other codes; names in `out` would be
            lost.
    """
    key = codes_key(codes)
    names = None if given is None else tuple(read_names(given, codes.concepts, codes=key))
    plan = PicturePlan(codes, pixels, tuple(candidates), settings or PictureSettings())
    wanted = tuple(only) or (None if top is None else plan.order[:top])
    job = PictureJob(plan, client, wanted, names, (), out)
    known = () if out is None else _earlier(job, out, given, key)
    if refresh:
        anew = set(plan.chosen(wanted))
        known = tuple(entry | {"settings": None} if entry["concept"] in anew else entry for entry in known)
    return replace(job, known=known)


def _earlier(job: PictureJob, path: Path, checked: Path | None, key: str) -> tuple[NameEntry, ...]:
    """What an earlier job left in the file that is to be written; raises ConceptError for names that would be lost."""
    if not path.exists():
        return ()
    if path.suffix.lower() == ".csv":
        raise ConceptError(
            f"{path}: expected a new .csv file, got one that exists: a .csv cannot be continued, choose a .json or "
            "another name"
        )
    found = read_names(path, job.plan.codes.concepts, codes=key)
    of_given = {int(entry["concept"]): entry for entry in job.given or ()}
    kept = []
    for entry in found:
        concept, rests = entry["concept"], entry.get("settings")
        choice = job.plan.choice(concept)
        if checked is not None:
            same = entry.get("checked_by") and entry["name"] and entry["name"] == of_given.get(concept, {}).get("name")
            if same and rests == job.plan.fingerprint(choice, job.client, ConceptName.given(of_given[concept])):
                kept.append(entry)
            elif path.resolve() != checked.resolve() and entry["name"] and not entry.get("checked_by"):
                raise ConceptError(
                    f"{path}: expected a new file or one of checked names, got other names, which would be lost: "
                    "choose another --out"
                )
            continue
        ours = entry["source"] == "pictures" and not entry.get("checked_by")
        if not ours or (rests and rests != job.plan.fingerprint(choice, job.client)):
            raise ConceptError(
                f"{path}: expected a new file or names of the same settings, got concept {concept} named otherwise (by "
                "hand, from classes, with another model, server or settings, or of other images), which would be "
                "lost: choose another --out"
            )
        kept.append(entry)
    return tuple(kept)
