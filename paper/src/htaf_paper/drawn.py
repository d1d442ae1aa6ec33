"""Drawn pictures whose attributes are known, and can be read back from the pixels alone."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float64, Int64, UInt8
from PIL import Image

SIDE = 48
RED, BLUE, GREEN, YELLOW = (210, 40, 40), (40, 70, 210), (30, 160, 60), (235, 215, 40)
PURPLE, ORANGE, CYAN, WHITE, BLACK = (170, 40, 190), (240, 140, 20), (30, 200, 215), (255, 255, 255), (0, 0, 0)
LIGHT, DARK = (205, 205, 205), (70, 70, 70)
NAMES = (
    "a round thing in the middle", "a red thing in the middle", "a dark background", "a yellow stripe at the top",
    "a green square at the lower left", "a purple bar at the right", "a white spot in the middle",
    "an orange square at the upper left", "a cyan stripe at the bottom", "a black bar at the left",
)  # fmt: skip
ROUND, COLOUR, GROUND = 0, 1, 2
# (attribute, colour, rows and columns) of what is there or not; no two overlap
MARKS = (
    (3, YELLOW, (3, 8, 12, 38)), (4, GREEN, (37, 45, 3, 11)), (5, PURPLE, (12, 36, 41, 46)),
    (6, WHITE, (20, 28, 20, 28)), (7, ORANGE, (2, 9, 2, 9)), (8, CYAN, (40, 45, 14, 38)), (9, BLACK, (13, 35, 3, 7)),
)  # fmt: skip
FIXED = (ROUND,)  # by the class: every image of a class has it, or none
LINKED = (1, 3, 4, 5)  # to the class: 90% of the images of some classes have it, 10% of those of others
FREE = (2, 6, 7, 8, 9)  # of the class
SHARES = (0.1, 0.9)


@dataclass(frozen=True, eq=False)
class Drawn:
    """Pictures of K classes.

    Attributes:
        pixels: uint8 [n, 3, 48, 48]. has: bool [n, A], their attributes. labels: int64 [n].
        linked: float64 [K, A], the share of each class's images that have an attribute.
    """

    pixels: UInt8[np.ndarray, "n 3 48 48"]
    has: Bool[np.ndarray, "n attributes"]
    labels: Int64[np.ndarray, " n"]
    linked: Float64[np.ndarray, "classes attributes"]


def draw(has: Bool[np.ndarray, " attributes"], rng: np.random.Generator) -> UInt8[np.ndarray, "3 48 48"]:
    """A picture with these attributes, and noise of 6 grey levels."""
    picture = np.empty((SIDE, SIDE, 3))
    picture[:] = DARK if has[GROUND] else LIGHT
    y, x = np.mgrid[:SIDE, :SIDE] - (SIDE - 1) / 2
    inside = y**2 + x**2 < 13**2 if has[ROUND] else (np.abs(y) < 12) & (np.abs(x) < 12)
    picture[inside] = RED if has[COLOUR] else BLUE
    for attribute, colour, (top, bottom, left, right) in MARKS:
        if has[attribute]:
            picture[top:bottom, left:right] = colour
    noisy = picture + rng.normal(0, 6, picture.shape)
    return np.moveaxis(noisy.clip(0, 255).astype(np.uint8), 2, 0)


def read(tiles: list[UInt8[np.ndarray, "height width 3"]]) -> Bool[np.ndarray, "n attributes"]:
    """The attributes of square pictures of any size, from their pixels alone."""
    found = np.zeros((len(tiles), len(NAMES)), dtype=bool)
    for row, tile in zip(found, tiles, strict=True):
        small = np.asarray(Image.fromarray(tile).resize((SIDE, SIDE), Image.Resampling.BOX), dtype=np.float64)
        corners = [(12, 12), (12, 35), (35, 12), (35, 35)]  # inside the square, outside the circle
        middle = small[14:18, 20:28].mean((0, 1))
        row[COLOUR] = middle[0] > middle[2]
        row[GROUND] = small[9:11, 14:34].mean() < 140
        ground, thing = np.array(DARK if row[GROUND] else LIGHT), np.array(RED if row[COLOUR] else BLUE)
        colour = np.mean([small[y + (1 if y < 24 else -1), x + (1 if x < 24 else -1)] for y, x in corners], axis=0)
        row[ROUND] = np.abs(colour - ground).sum() < np.abs(colour - thing).sum()
        for attribute, mark, (top, bottom, left, right) in MARKS:
            seen = small[top + 1 : bottom - 1, left + 1 : right - 1].mean((0, 1))
            row[attribute] = np.abs(seen - mark).sum() < 90
    return found


def drawn(classes: int, images: int, rng: np.random.Generator) -> Drawn:
    """Pictures of so many classes, as many of each class as of any other, or one less.

    Attributes that are fixed by the class, or linked to it, are those of half of the classes, drawn anew for each.
    """
    linked = np.empty((classes, len(NAMES)))
    linked[:, FREE] = rng.uniform(0.35, 0.65, len(FREE))
    for attribute in (*FIXED, *LINKED):
        shares = (0.0, 1.0) if attribute in FIXED else SHARES
        linked[:, attribute] = np.array(shares)[(rng.permutation(classes) < classes / 2).astype(int)]
    labels = np.arange(images) % classes
    has = rng.random((images, len(NAMES))) < linked[labels]
    return Drawn(np.stack([draw(row, rng) for row in has]), has, labels, linked)
