"""Images laid out for a model to look at: a contact sheet with numbers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import UInt8

from htaf.llm.pictures import Part, picture_part, text_part

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
