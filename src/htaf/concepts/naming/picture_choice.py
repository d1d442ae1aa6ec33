"""Which images name a bit, and which check the name: with the bit and without it, never the same image for both.

A name is made from images of the training part and checked on images of the other parts. Codes with one part alone are
split in two halves. Some of the checking images are pairs of one class, one with the bit and one without: only a name
that says more than the class tells these apart.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from jaxtyping import Bool, Int64, UInt8

from htaf._errors import SEEDS
from htaf.concepts.codes import PARTS, Codes, ConceptError
from htaf.concepts.naming.files import FEW_IMAGES, NOTHING

AlbumKind = Literal["sheets", "images"]
Pixels = Callable[[Int64[np.ndarray, " rows"]], UInt8[np.ndarray, "rows channels height width"]]
LEAST_SHOWN = 2  # images of each side to make a name of
LEAST_SORTED = 4  # of each side to check one: C(8, 4) = 70 orders, while the C(6, 3) = 20 of three can just reach 5%
TILES = (32, 768)  # pixels


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
        note: why there is nothing to ask, else "". status: the status that goes with it, else "".
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
    status: str = ""

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


def has_bit(codes: Codes, concept: int, rows: Int64[np.ndarray, " rows"]) -> Bool[np.ndarray, " rows"]:
    """Whether images have a bit."""
    return (codes.bits[rows, concept // 8] >> (concept % 8) & 1).astype(bool)


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
    bit = has_bit(codes, concept, rows)
    return Choice(concept, rng.permutation(shown[0]), rng.permutation(shown[1]), rows, bit, of_drawn, places, rate)


def _noted(choice: Choice, note: str, status: str) -> Choice:
    return Choice(**{**vars(choice), "note": note, "status": status})


def _sides(codes: Codes, concept: int, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    bit = has_bit(codes, concept, rows)
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
