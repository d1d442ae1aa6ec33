"""Images laid out for a model to look at: contact sheets with numbers, or one picture each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from jaxtyping import UInt8

from htaf.llm.pictures import Part, picture_part, text_part

AlbumKind = Literal["sheets", "images"]
ON_A_SHEET = 20
COLUMNS = 5
GAP = 8  # pixels around each image
CAPTION = 22  # pixels above it, for its number
PAPER = 255


def tile_of(pixels: UInt8[np.ndarray, "channels height width"], side: int) -> UInt8[np.ndarray, "h w 3"]:
    """An image in colour whose longer side has `side` pixels: uint8 [height, width, 3]."""
    from PIL import Image

    whole = np.moveaxis(pixels, 0, 2)
    whole = np.repeat(whole[:, :, :1], 3, axis=2) if whole.shape[2] < 3 else whole[:, :, :3]
    height, width = whole.shape[:2]
    scale = side / max(height, width)
    size = max(1, round(width * scale)), max(1, round(height * scale))
    return np.asarray(Image.fromarray(np.ascontiguousarray(whole)).resize(size, Image.Resampling.BICUBIC))


def boxes(count: int, side: int) -> tuple[tuple[int, int], list[tuple[int, int]]]:
    """Height and width of a contact sheet of so many images, and the top left corner (y, x) of the place of each.

    The places are squares of `side` pixels, in rows of at most 5, from left to right; numbers stand above them.
    """
    columns = min(COLUMNS, count)
    rows = -(-count // columns)
    down, across = CAPTION + side + GAP, side + GAP
    corners = [(GAP + i // columns * down + CAPTION, GAP + i % columns * across) for i in range(count)]
    return (GAP + rows * down, GAP + columns * across), corners


def sheet_of(tiles: Sequence[UInt8[np.ndarray, "height width 3"]], side: int, first: int) -> UInt8[np.ndarray, "h w 3"]:
    """A contact sheet: each tile in the middle of its place, with its number, counted from `first`, above it."""
    from PIL import Image, ImageDraw, ImageFont

    size, corners = boxes(len(tiles), side)
    paper = np.full((*size, 3), PAPER, dtype=np.uint8)
    for tile, (top, left) in zip(tiles, corners, strict=True):
        height, width = tile.shape[:2]
        y, x = top + (side - height) // 2, left + (side - width) // 2
        paper[y : y + height, x : x + width] = tile
    picture = Image.fromarray(paper)
    draw, font = ImageDraw.Draw(picture), ImageFont.load_default(16)
    for number, (top, left) in enumerate(corners, first):
        draw.text((left + side // 2, top - CAPTION // 2), str(number), "black", font, anchor="mm")
    return np.asarray(picture)


def album(
    pixels: UInt8[np.ndarray, "n channels height width"], kind: AlbumKind, side: int, *, title: str, first: int = 1
) -> list[Part]:
    """The parts of a message that show images, numbered from `first`.

    Args:
        pixels: uint8 [n, channels, height, width].
        kind: "sheets", with numbers, or "images", each by itself. side: of each image's longer side, in pixels.
        title: stands before them, as in "Group A, pictures 1 to 12:".
    """
    tiles = [tile_of(each, side) for each in pixels]
    last = first + len(tiles) - 1
    if kind == "images":
        parts = [text_part(f"{title}, pictures {first} to {last}:")]
        for number, tile in enumerate(tiles, first):
            parts += [text_part(f"Picture {number}:"), picture_part(tile)]
        return parts
    parts = []
    for start in range(0, len(tiles), ON_A_SHEET):
        some, number = tiles[start : start + ON_A_SHEET], first + start
        parts.append(text_part(f"{title}, pictures {number} to {number + len(some) - 1}, numbered on one sheet:"))
        parts.append(picture_part(sheet_of(some, side, number)))
    return parts
