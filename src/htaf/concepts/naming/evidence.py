"""Evidence for the name of a concept: classes that have it and classes that have not, or images with its bit and
without. What makes the name and what checks it are never the same.

Classes: the classes of both groups (`htaf.concepts.groups`) are split in halves. The model sees the names of one half's
and names the concept; then, in a new request, it sorts the other half's by that name alone.

Images: a name is made from images of the training part and checked on images of the other parts. Codes with one part
alone are split in two halves. Beside the images that check it there are pairs of one class, one image with the bit and
one without: only a name that says more than the class tells these apart. No classes are needed: where there are too
few, names can be verified here.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import comb

import numpy as np
from jaxtyping import Bool, Int64, UInt8

from htaf._ground.errors import expect_seed
from htaf.concepts.codes import PARTS, Codes, ConceptError, codes_key
from htaf.concepts.counts import class_counts, class_sizes, part_proportions, shares
from htaf.concepts.groups import IN_A, IN_B, LEVEL, Groups, groups
from htaf.concepts.heads import by_importance
from htaf.concepts.llm import Part, numbered, picture_part, text_part
from htaf.concepts.naming.files import FEW_CLASSES, FEW_IMAGES, NOTHING, NameEntry

Pixels = Callable[[Int64[np.ndarray, " rows"]], UInt8[np.ndarray, "rows channels height width"]]
CLASSES = 100  # of a group that a prompt lists at most
SHOWN = 12  # images with the bit, and as many without, that make a name
CHECKED = 20  # images with the bit, and as many without, that check it
PAIRS = 12  # of one class, one image with the bit and one without, that check it within classes
LEAST = (2, 4)  # of each side to make a name, and to check it: C(6, 3) = 20 orders can just reach 5%, C(8, 4) = 70 do
COUNTED = 20_000  # images, of which the rates of bits are counted
NONE = np.empty(0, np.int64)


@dataclass(frozen=True, eq=False)
class Case:
    """What one concept is named from and checked on: numbers of classes, or rows of images.

    Attributes:
        facts: what an entry says of all this.
        note: why nothing is asked, else "". status: of an entry of which nothing is asked.
        shown_with, shown_without: those that make the name, with the concept and without it.
        checked: those that check it, in random order. inside: bool [n], whether each of them has the concept.
        pairs: of `checked` other ones, of one class each: those with the concept, then those without.
        against: what speaks against any name, else "".
    """

    facts: NameEntry
    note: str = ""
    status: str | None = None
    shown_with: Int64[np.ndarray, " with"] = field(default_factory=lambda: np.empty(0, np.int64))
    shown_without: Int64[np.ndarray, " without"] = field(default_factory=lambda: np.empty(0, np.int64))
    checked: Int64[np.ndarray, " n"] = field(default_factory=lambda: np.empty(0, np.int64))
    inside: Bool[np.ndarray, " n"] = field(default_factory=lambda: np.empty(0, bool))
    against: str = ""
    pairs: Int64[np.ndarray, "2 pairs"] = field(default_factory=lambda: np.empty((2, 0), np.int64))


@dataclass(frozen=True, eq=False)
class ClassEvidence:
    """Classes with a concept and without it.

    Attributes:
        order: all concepts, the most important first. key: `htaf.concepts.codes.codes_key` of the codes.
        source: of the names. things: what is shown. at_once: how many things one request asks to sort.
    """

    grouped: Groups
    order: tuple[int, ...]
    key: str
    seed: int

    source = "model"
    things = "classes"
    at_once = 2 * CLASSES

    def case(self, concept: int) -> Case:
        """Split the classes of each group in halves: the larger one checks."""
        member, facts = self.grouped.member[concept], self.grouped.counts(concept)
        if note := self.grouped.note(concept):
            return Case(facts, note, NOTHING)
        rng = np.random.default_rng((self.seed, concept))
        sides = [rng.permutation(np.flatnonzero(member == group)) for group in (IN_A, IN_B)]
        shown = [side[: len(side) // 2][:CLASSES] for side in sides]
        held = [side[len(side) // 2 :][:CLASSES] for side in sides]
        size_a, size_b = map(len, held)
        if not all(map(len, shown)) or comb(size_a + size_b, size_a) < 1 / LEVEL:
            a, b = map(len, sides)
            return Case(facts, f"{a} classes with the concept and {b} without it are too few to check", FEW_CLASSES)
        order = rng.permutation(size_a + size_b)
        checked, inside = np.concatenate(held)[order], order < size_a
        return Case(facts, "", None, shown[0], shown[1], checked, inside, self.grouped.reversal(concept))

    def show(self, numbers: Int64[np.ndarray, " n"], title: str) -> list[Part]:
        """Make the parts of a message that list the names of classes, numbered from 1."""
        return [text_part(f"{title}:\n{numbered([self.grouped.classes[number] for number in numbers])}")]


@dataclass(frozen=True, eq=False)
class PictureEvidence:
    """Images with a bit and without it; attributes as those of `ClassEvidence`.

    Attributes:
        pixels: called by one thread at a time. tile: longer side of each image, in pixels.
        pools: rows that may name, and rows that may check (`pools`).
    """

    codes: Codes
    pixels: Pixels
    order: tuple[int, ...]
    key: str
    seed: int
    tile: int
    pools: tuple[Int64[np.ndarray, " naming"], Int64[np.ndarray, " checking"]]
    guard: threading.Lock = field(default_factory=threading.Lock)

    source = "pictures"
    things = "pictures"
    at_once = 20

    def case(self, concept: int) -> Case:
        """Draw images with the bit and without it at random. Half of those that make the name are pairs of one class
        where there are such, so that it need not be that of a class."""
        rng = np.random.default_rng((self.seed, concept))
        bits = [self.codes.has(concept, rows) for rows in self.pools]
        sides = [(rows[bit], rows[~bit]) for rows, bit in zip(self.pools, bits, strict=True)]
        if all(bit.all() for bit in bits) or not any(bit.any() for bit in bits):
            return Case({"pictures": None}, f"dead: always {int(bits[0].any() or bits[1].any())}", NOTHING)
        for (with_bit, without), least, what in zip(sides, LEAST, ("name", "check"), strict=True):
            if min(len(with_bit), len(without)) < least:
                have = f"{len(with_bit)} images with the bit and {len(without)} without it"
                return Case({"pictures": None}, f"{have} to {what} it, {least} of each are needed", FEW_IMAGES)
        matched = self._pairs(*sides[0], SHOWN // 2, rng)
        shown = [_filled(own, rows, SHOWN, rng) for own, rows in zip(matched, sides[0], strict=True)]
        drawn = [_filled(NONE, rows, CHECKED, rng) for rows in sides[1]]
        left = [np.setdiff1d(rows, own) for own, rows in zip(drawn, sides[1], strict=True)]
        pairs = self._pairs(left[0], left[1], PAIRS, rng)
        checked = rng.permutation(np.concatenate(drawn))
        facts = {"pictures": {"shown": sum(map(len, shown)), "checked": len(checked), "pairs": pairs.shape[1]}}
        return Case(facts, "", None, shown[0], shown[1], checked, self.codes.has(concept, checked), "", pairs)

    def show(self, numbers: Int64[np.ndarray, " n"], title: str) -> list[Part]:
        """Make the parts of a message that show images, numbered from 1."""
        with self.guard:
            pixels = np.asarray(self.pixels(numbers))
        return album(pixels, self.tile, title=title)

    def _pairs(
        self, with_bit: np.ndarray, without: np.ndarray, count: int, rng: np.random.Generator
    ) -> Int64[np.ndarray, "2 pairs"]:
        """At most so many pairs of one known class, of as many classes as there are; no row twice."""
        labels = self.codes.labels[with_bit], self.codes.labels[without]
        both = rng.permutation(np.intersect1d(*labels))
        queues = [
            list(zip(rng.permutation(with_bit[labels[0] == k]), rng.permutation(without[labels[1] == k]), strict=False))
            for k in both[both >= 0][:count]
        ]
        found: list[tuple[int, int]] = []
        while len(found) < count and any(queues):
            found += [queue.pop() for queue in queues if queue][: count - len(found)]
        return np.array(found, dtype=np.int64).reshape(-1, 2).T


def _filled(own: np.ndarray, rows: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    """These rows and random other ones, so many in all, in random order."""
    return rng.permutation(np.r_[own, rng.permutation(np.setdiff1d(rows, own))[: count - len(own)]])


Evidence = ClassEvidence | PictureEvidence


def class_evidence(concepts: Codes, *, seed: int = 0) -> ClassEvidence:
    """Make the groups of codes, of their training part, the evidence for names."""
    expect_seed(seed, ConceptError)
    train = concepts.part("train")
    counts, sizes = class_counts(train), class_sizes(train)
    order = by_importance(concepts.weight, counts.sum(1) / max(1, int(sizes.sum())))
    held = part_proportions(concepts, "test")
    grouped = groups(shares(counts, sizes), classes=concepts.classes, held=held)
    return ClassEvidence(grouped, tuple(order.tolist()), codes_key(concepts), seed)


def picture_evidence(codes: Codes, pixels: Pixels, *, tile: int = 160, seed: int = 0) -> PictureEvidence:
    """Make the images of codes the evidence for names.

    Args:
        pixels: gives the images of rows of the codes, uint8 [n, channels, height, width].
        tile: longer side of each image on a contact sheet, in pixels.
    """
    expect_seed(seed, ConceptError)
    naming, checking = pools(codes, seed)
    rows = naming[:: max(1, len(naming) // COUNTED)]
    rates = codes.unpack(rows).mean(0) if len(rows) else np.zeros(codes.concepts)
    order = tuple(by_importance(codes.weight, rates).tolist())
    return PictureEvidence(codes, pixels, order, codes_key(codes), seed, tile, (naming, checking))


def pools(codes: Codes, seed: int) -> tuple[Int64[np.ndarray, " naming"], Int64[np.ndarray, " checking"]]:
    """Part the rows: those that may name a bit, of the training part, and those that may check a name.

    Where there is one part alone, each has a random half.
    """
    training = codes.parts == PARTS.index("train")
    if training.any() and not training.all():
        return np.flatnonzero(training), np.flatnonzero(~training)
    order = np.random.default_rng((seed, 4)).permutation(len(codes))
    return np.sort(order[: len(order) // 2]), np.sort(order[len(order) // 2 :])


COLUMNS = 5
GAP = 8  # pixels around each image
CAPTION = 22  # pixels above it, for its number
PAPER = 255


def tile_of(pixels: UInt8[np.ndarray, "channels height width"], side: int) -> UInt8[np.ndarray, "h w 3"]:
    """Scale an image, in colour, so that its longer side has `side` pixels: uint8 [height, width, 3]."""
    from PIL import Image

    whole = np.moveaxis(pixels, 0, 2)
    whole = np.repeat(whole[:, :, :1], 3, axis=2) if whole.shape[2] < 3 else whole[:, :, :3]
    height, width = whole.shape[:2]
    scale = side / max(height, width)
    size = max(1, round(width * scale)), max(1, round(height * scale))
    return np.asarray(Image.fromarray(np.ascontiguousarray(whole)).resize(size, Image.Resampling.BICUBIC))


def boxes(count: int, side: int) -> tuple[tuple[int, int], list[tuple[int, int]]]:
    """Give height and width of a contact sheet of so many images, and the top left corner (y, x) of each one's place.

    The places are squares of `side` pixels, in rows of at most 5, from left to right; numbers stand above them.
    """
    columns = min(COLUMNS, count)
    down, across = CAPTION + side + GAP, side + GAP
    corners = [(GAP + i // columns * down + CAPTION, GAP + i % columns * across) for i in range(count)]
    return (GAP + -(-count // columns) * down, GAP + columns * across), corners


def sheet_of(tiles: Sequence[UInt8[np.ndarray, "height width 3"]], side: int) -> UInt8[np.ndarray, "h w 3"]:
    """Draw a contact sheet: each tile in the middle of its place, with its number above it."""
    from PIL import Image, ImageDraw, ImageFont

    size, corners = boxes(len(tiles), side)
    paper = np.full((*size, 3), PAPER, dtype=np.uint8)
    for tile, (top, left) in zip(tiles, corners, strict=True):
        height, width = tile.shape[:2]
        y, x = top + (side - height) // 2, left + (side - width) // 2
        paper[y : y + height, x : x + width] = tile
    picture = Image.fromarray(paper)
    draw, font = ImageDraw.Draw(picture), ImageFont.load_default(16)
    for number, (top, left) in enumerate(corners, 1):
        draw.text((left + side // 2, top - CAPTION // 2), str(number), "black", font, anchor="mm")
    return np.asarray(picture)


def album(pixels: UInt8[np.ndarray, "n channels height width"], side: int, *, title: str) -> list[Part]:
    """Make the parts of a message that show images on a contact sheet, numbered from 1, below a title."""
    tiles = [tile_of(each, side) for each in pixels]
    return [text_part(f"{title}, {len(tiles)} pictures, numbered:"), picture_part(sheet_of(tiles, side))]
