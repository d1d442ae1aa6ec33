"""Evidence for names of concepts: images with a bit and without it, never the same image to name and to check.

The model sees images with the bit and without it, and names what sets them apart. Then, in new requests, it sees that
name alone and other images, and says how well the name fits each. No classes are needed: where there are too few for
the check of `htaf.concepts.naming.classes`, or none, names can be verified here.

A name is made from images of the training part and checked on images of the other parts. Codes with one part alone are
split in two halves. Some of the checking images are pairs of one class, one with the bit and one without: only a name
that says more than the class tells these apart.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from math import comb
from typing import Any, get_args

import numpy as np
from jaxtyping import Bool, Float64, Int64, UInt8
from sklearn.metrics import average_precision_score, f1_score

from htaf._errors import SEEDS
from htaf.concepts.codes import PARTS, Codes, ConceptError, codes_key
from htaf.concepts.completeness import by_importance
from htaf.concepts.naming.album import ON_A_SHEET, AlbumKind, album
from htaf.concepts.naming.checks import LEVEL, against_chance, balanced, refusal, shuffled
from htaf.concepts.naming.files import FEW_IMAGES, NOT_VERIFIED, NOTHING, VERIFIED, NameEntry
from htaf.concepts.naming.prompts import ConceptName, RatingReply, picture_naming_prompt, rating_prompt
from htaf.llm import Client, Message, expect_sight

Pixels = Callable[[Int64[np.ndarray, " rows"]], UInt8[np.ndarray, "rows channels height width"]]
LEAST_SHOWN = 2  # images of each side to make a name of
LEAST_SORTED = 4  # of each side to check one: C(8, 4) = 70 orders, while the C(6, 3) = 20 of three can just reach 5%
LEAST_PAIRS = 5  # four in the right order still have p = 1 / 16
TILES = (32, 768)  # pixels
COUNTED = 20_000  # images, of which the rates of bits are counted


@dataclass(frozen=True)
class PictureSettings:
    """How bits are named from pictures, and how the names are checked.

    Attributes:
        album: "sheets": up to 20 images on one picture, with numbers; "images": each a picture of its own, which costs
            more and which weak models read better.
        shown: images with the bit, and as many without, that make the name.
        held_out: images with the bit, and as many without, drawn at random, that check it.
        pairs: of one class, one image with the bit and one without, that check it within classes; 0 for none.
        tile: longer side of each image, in pixels.
        threshold: least balanced accuracy of a verified name.
        permutations: behind the p-value, 19 or more.
        seed: of all that is drawn; concept c's depends on (seed, c) alone.

    Raises:
        ConceptError: a value out of range.
    """

    album: AlbumKind = "sheets"
    shown: int = 12
    held_out: int = 20
    pairs: int = 12
    tile: int = 160
    threshold: float = 0.75
    permutations: int = 999
    seed: int = 0

    def __post_init__(self) -> None:
        if self.album not in get_args(AlbumKind):
            raise ConceptError(f"album must be one of {get_args(AlbumKind)}, got {self.album!r}")
        if min(self.shown - LEAST_SHOWN, self.held_out - LEAST_SORTED, self.pairs, self.permutations - 19) < 0:
            raise ConceptError(
                f"expected shown >= {LEAST_SHOWN}, held_out >= {LEAST_SORTED}, pairs >= 0 and permutations >= 19, got "
                f"{self.shown}, {self.held_out}, {self.pairs} and {self.permutations}"
            )
        if not (TILES[0] <= self.tile <= TILES[1] and 0 <= self.threshold <= 1 and 0 <= self.seed < SEEDS):
            raise ConceptError(
                f"expected tile in {TILES[0]} to {TILES[1]}, 0 <= threshold <= 1 and 0 <= seed < 2**63, got "
                f"{self.tile}, {self.threshold} and {self.seed}"
            )


@dataclass(frozen=True, eq=False)
class Choice:
    """The images of one bit. Rows are those of the codes.

    Attributes:
        concept: its number.
        shown_with, shown_without: int64, rows that make the name.
        sorted: int64 [n], rows that check it, each once, in random order.
        bit: bool [n], whether they have the bit.
        drawn: bool [n], whether they are of the images drawn at random from all that are held out.
        pairs: int64 [p, 2], places in `sorted`: with the bit, and of the same class without it.
        rate: share of all held-out images that have the bit; nan where there are none.
        note: why there is nothing to ask, else "". status: of a name that is not verified.
    """

    concept: int
    shown_with: Int64[np.ndarray, " with"]
    shown_without: Int64[np.ndarray, " without"]
    sorted: Int64[np.ndarray, " n"]
    bit: Bool[np.ndarray, " n"]
    drawn: Bool[np.ndarray, " n"]
    pairs: Int64[np.ndarray, "pairs 2"]
    rate: float
    note: str = ""
    status: str = NOT_VERIFIED

    @property
    def nameless(self) -> bool:
        """Whether there is nothing to ask."""
        return bool(self.note)

    @property
    def rounds(self) -> int:
        """Namings: one, if any."""
        return 0 if self.note else 1

    @property
    def rows(self) -> Int64[np.ndarray, " rows"]:
        """All rows: shown with, shown without, sorted."""
        return np.concatenate([self.shown_with, self.shown_without, self.sorted])


def pools(codes: Codes, seed: int) -> tuple[Int64[np.ndarray, " naming"], Int64[np.ndarray, " checking"]]:
    """The rows that may name and those that may check, both ascending: the training part and all others; where either
    is empty, two halves at random."""
    training = codes.parts == PARTS.index("train")
    if training.any() and not training.all():
        return np.flatnonzero(training), np.flatnonzero(~training)
    order = np.random.default_rng((seed, 4)).permutation(len(codes))
    return np.sort(order[: len(order) // 2]), np.sort(order[len(order) // 2 :])


def choose(
    codes: Codes,
    concept: int,
    settings: PictureSettings,
    naming: Int64[np.ndarray, " naming"],
    checking: Int64[np.ndarray, " checking"],
) -> Choice:
    """The images of one bit.

    Half of those that make the name are pairs of one class, where there are such, so that the name need not be that of
    a class; all others are drawn at random from those with the bit, and from those without it.

    Args:
        naming, checking: rows to draw from (`pools`).
    """
    rng = np.random.default_rng((settings.seed, concept, 5))
    sides, held = (_sides(codes, concept, rows) for rows in (naming, checking))
    counts = [len(side) for side in (*sides, *held)]
    rate = len(held[0]) / len(checking) if len(checking) else float("nan")
    none, no_pairs = np.empty(0, np.int64), np.empty((0, 2), np.int64)
    empty = Choice(concept, none, none, none, none.astype(bool), none.astype(bool), no_pairs, rate)
    if not counts[0] + counts[2] or not counts[1] + counts[3]:
        always = int(bool(counts[0] + counts[2]))
        return _noted(empty, f"dead: always {always}", NOTHING)
    for count, word, least, what in zip(
        counts, ("with", "without") * 2, [LEAST_SHOWN] * 2 + [LEAST_SORTED] * 2, ["to name"] * 2 + ["to check"] * 2,
        strict=True,
    ):  # fmt: skip
        if count < least:
            note = f"{count} {'image' if count == 1 else 'images'} {word} the bit {what} it, {least} are needed"
            return _noted(empty, note, FEW_IMAGES)
    matched = _pairs(codes, *sides, settings.shown // 2, rng)
    shown = [
        np.r_[own, _drawn(np.setdiff1d(rows, own), settings.shown - len(own), rng)]
        for rows, own in zip(sides, matched.T, strict=True)
    ]
    drawn = [_drawn(rows, settings.held_out, rng) for rows in held]
    pairs = _pairs(codes, *held, settings.pairs, rng)
    rows = rng.permutation(np.unique(np.concatenate([*drawn, pairs.ravel()])))
    place = {row: number for number, row in enumerate(rows.tolist())}
    places = np.array([[place[row] for row in pair] for pair in pairs.tolist()], dtype=np.int64).reshape(-1, 2)
    of_drawn = np.isin(rows, np.concatenate(drawn))
    bit = codes.has(concept, rows)
    return Choice(concept, rng.permutation(shown[0]), rng.permutation(shown[1]), rows, bit, of_drawn, places, rate)


def _noted(choice: Choice, note: str, status: str) -> Choice:
    return Choice(**{**vars(choice), "note": note, "status": status})


def _sides(codes: Codes, concept: int, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    bit = codes.has(concept, rows)
    return rows[bit], rows[~bit]


def _drawn(rows: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    return rng.choice(rows, min(count, len(rows)), replace=False)


def _pairs(
    codes: Codes, with_bit: np.ndarray, without: np.ndarray, count: int, rng: np.random.Generator
) -> Int64[np.ndarray, "pairs 2"]:
    """At most so many pairs of one known class, of as many classes as there are; no row twice."""
    labels = codes.labels[with_bit], codes.labels[without]
    both = rng.permutation(np.intersect1d(*labels))
    queues = [
        list(zip(*(rng.permutation(rows[of == label]) for rows, of in zip((with_bit, without), labels, strict=True)),
                 strict=False))
        for label in both[both >= 0][:count]
    ]  # fmt: skip
    found: list[tuple[int, int]] = []
    while len(found) < count and any(queues):
        found += [queue.pop() for queue in queues if queue][: count - len(found)]
    return np.array(found, dtype=np.int64).reshape(-1, 2)


def decided(said: Float64[np.ndarray, " n"]) -> Float64[np.ndarray, " n"]:
    """1 where a rating is above a half, 0 where it is below, 0.5 between."""
    return (np.sign(said - 0.5) + 1) / 2


def scores(
    bit: Bool[np.ndarray, " n"], said: Float64[np.ndarray, " n"], weight: Float64[np.ndarray, " n"] | None = None
) -> dict[str, float]:
    """How a rating agrees with a bit: "auprc", "f1", "correlation" and "balanced_accuracy".

    "auprc": area under precision over recall (average precision) of the rating. "f1": 2 TP / (2 TP + FP + FN) of
    ratings above a half. "correlation": Pearson's, 0 where either is constant. "balanced_accuracy": (share of images
    with the bit that the name fits + share of the others that it does not) / 2, an undecided one half right.

    Args:
        bit: whether each image has the bit; both occur.
        said: the rating, in [0, 1].
        weight: of each image, > 0; None: equal.

    Source: Oikarinen et al. (2025), Evaluating Neuron Explanations: the first three pass its checks of missing and of
        extra labels, balanced accuracy and recall do not.
    """
    weight = np.full(len(bit), 1 / len(bit)) if weight is None else weight / weight.sum()
    x, y = bit - (weight * bit).sum(), said - (weight * said).sum()
    spread = float((weight * x * x).sum() * (weight * y * y).sum())
    return {
        "auprc": float(average_precision_score(bit, said, sample_weight=weight)),
        "f1": float(f1_score(bit, said > 0.5, sample_weight=weight, zero_division=0)),  # pyright: ignore
        "correlation": float((weight * x * y).sum() / spread**0.5) if spread > 1e-24 else 0.0,
        "balanced_accuracy": balanced(bit, decided(said)),
    }


def at_rate(bit: Bool[np.ndarray, " n"], said: Float64[np.ndarray, " n"], rate: float) -> dict[str, float]:
    """The first three `scores` as they would be on images of which a share `rate` has the bit, and that "rate".

    Half of the images that check a name have the bit, however rare it is, and a name that also fits many others looks
    good there. So images with the bit weigh rate / (number with it), those without (1 - rate) / (number without).
    """
    weight = np.where(bit, rate / max(1, bit.sum()), (1 - rate) / max(1, (~bit).sum()))
    found = scores(bit, said, weight)
    return {"rate": rate} | {key: found[key] for key in ("auprc", "f1", "correlation")}


def within(choice: Choice, said: Float64[np.ndarray, " n"]) -> dict[str, Any] | None:
    """How often a name prefers, of two images of one class, the one with the bit: "score", "pairs" and "p_value".

    score = (pairs rated in the right order + half of those rated alike) / pairs; p: that of the sign test, the chance
    that fair coins order as many of the pairs that are not alike rightly. None without pairs.
    """
    if not len(choice.pairs):
        return None
    order = np.sign(said[choice.pairs[:, 0]] - said[choice.pairs[:, 1]])
    right, wrong = int((order > 0).sum()), int((order < 0).sum())
    tail = sum(comb(right + wrong, k) for k in range(right, right + wrong + 1)) / 2 ** (right + wrong)
    return {"score": float((order + 1).mean() / 2), "pairs": len(order), "p_value": float(tail)}


@dataclass(frozen=True, eq=False)
class PictureEvidence:
    """Images with a bit and without it, as evidence for its name (`htaf.concepts.naming.job.Evidence`).

    Attributes:
        codes: whose bits are named. settings: of images and check.
        pixels: gives the images of rows, uint8 [n, channels, height, width]; called by one thread at a time.
        order: all concepts, the most important first. key: `htaf.concepts.codes.codes_key` of the codes.
        pools: rows that may name, and rows that may check (`pools`).
    """

    codes: Codes
    pixels: Pixels
    settings: PictureSettings
    order: tuple[int, ...]
    key: str
    pools: tuple[Int64[np.ndarray, " naming"], Int64[np.ndarray, " checking"]]
    guard: threading.Lock = field(default_factory=threading.Lock)

    source = "pictures"
    replies = RatingReply
    reply_tokens = 10  # for each image
    sampled = 3

    def case(self, concept: int, given: bool = False) -> Choice:
        """The images of a bit; the same whether a name is given or not."""
        return choose(self.codes, concept, self.settings, *self.pools)

    def images(self, rows: Int64[np.ndarray, " rows"]) -> UInt8[np.ndarray, "rows channels height width"]:
        """Their pixels."""
        with self.guard:
            return np.asarray(self.pixels(rows))

    def rests(self, case: Choice) -> list[Any]:
        """What a name rests on, the images by their ids: plain values."""
        return [asdict(self.settings), [self.codes.ids[row] for row in case.rows.tolist()], case.bit.tolist()]

    def facts(self, case: Choice, given: bool = False) -> NameEntry:
        """How many images are shown to the naming, and check the name with and without the bit, and in pairs."""
        return {
            "pictures": {
                "shown": 0 if given else len(case.shown_with) + len(case.shown_without),
                "with": int((case.bit & case.drawn).sum()),
                "without": int((~case.bit & case.drawn).sum()),
                "pairs": len(case.pairs),
            }
        }

    def naming(self, case: Choice, number: int, candidates: Sequence[str] = ()) -> list[Message]:
        """The messages that ask for a name."""
        with_bit, kind, side = len(case.shown_with), self.settings.album, self.settings.tile
        images = self.images(np.concatenate([case.shown_with, case.shown_without]))
        group_a = album(images[:with_bit], kind, side, title="Group A")
        group_b = album(images[with_bit:], kind, side, title="Group B", first=with_bit + 1)
        return picture_naming_prompt(group_a, group_b, candidates)

    def checking(
        self, case: Choice, name: ConceptName, number: int
    ) -> tuple[list[tuple[list[Message], int]], Int64[np.ndarray, " n"]]:
        """The requests that ask how well a name fits the images that check it, at most 20 each, and how many."""
        images, found = self.images(case.sorted), []
        requests = -(-len(images) // ON_A_SHEET)
        for some in np.array_split(images, requests):  # of about the same size
            shown = album(some, self.settings.album, self.settings.tile, title="Images")
            found.append((rating_prompt(name, shown, len(some)), len(some)))
        return found, np.arange(len(images))

    def verdict(
        self, case: Choice, names: Sequence[ConceptName], sortings: Sequence[Float64[np.ndarray, " n"]]
    ) -> tuple[int, NameEntry]:
        """The check of a name by a rating of `case.sorted`.

        Verified: balanced accuracy >= the threshold on the images drawn at random, and p <= 0.05 against the bit
        permuted over them.

        Returns:
            "held_out" (the balanced accuracy), "p_value", "baseline", "scores", "at_rate", "within", "only_class"
            (whether the name tells no images of one class apart, by p > 0.05; None with fewer than 5 pairs),
            "verified", "status", "reason".
        """
        settings, said = self.settings, sortings[0]
        bit, rated = case.bit[case.drawn], said[case.drawn]
        rng = np.random.default_rng((settings.seed, case.concept, 6))
        agree, inner = scores(bit, rated), within(case, said)
        chance = shuffled(bit, decided(rated), np.zeros(len(bit), np.int64), settings.permutations, rng)
        found: NameEntry = {"held_out": agree["balanced_accuracy"]}
        found |= against_chance(found["held_out"], chance)
        reason = refusal(found, settings.threshold, "held-out balanced accuracy", "a shuffled bit does")
        return 0, found | {
            "scores": agree, "at_rate": at_rate(bit, rated, case.rate), "within": inner,
            "only_class": None if len(case.pairs) < LEAST_PAIRS or inner is None else inner["p_value"] > LEVEL,
            "verified": not reason, "reason": reason, "status": NOT_VERIFIED if reason else VERIFIED,
        }  # fmt: skip

    def look(self, client: Client) -> None:
        """See that a model sees: it reads a made picture of four digits before anybody's own is sent."""
        expect_sight(client)

    def foreseen(self, cases: Sequence[Choice], given: bool = False) -> dict[str, int]:
        """How many different images are shown."""
        rows = (row for case in cases for row in (case.sorted if given else case.rows).tolist())
        return {"images": len(set(rows))}


def picture_evidence(codes: Codes, pixels: Pixels, settings: PictureSettings | None = None) -> PictureEvidence:
    """Images of codes as evidence for the names of their bits.

    Args:
        pixels: gives the images of rows of the codes, uint8 [n, channels, height, width].
    """
    settings = settings or PictureSettings()
    parted = pools(codes, settings.seed)
    rows = parted[0][:: max(1, len(parted[0]) // COUNTED)]
    rates = codes.unpack(rows).mean(0) if len(rows) else np.zeros(codes.concepts)
    order = tuple(by_importance(codes.weight, rates).tolist())
    return PictureEvidence(codes, pixels, settings, order, codes_key(codes), parted)
