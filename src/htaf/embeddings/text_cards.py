"""Texts drawn as pictures, as a page of concepts shows its images."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import UInt8
from PIL import Image, ImageDraw, ImageFont

SIDE, FONT, COLUMNS, LINES = 208, 20, 20, 8  # of a small card: shown at about half of its size
WIDE, WIDE_COLUMNS, WIDE_LINES = 640, 62, 40  # of a card at full size


class Cards:
    """Pictures of texts by their ids: the first words as a thumbnail, 2,000 characters or so at full size.

    Drawn with Pillow's own font, which has Latin, Greek and Cyrillic letters; others are boxes.
    """

    def __init__(self, texts: Mapping[str, str]) -> None:
        self.texts = texts

    def pixels(self, ids: Sequence[str]) -> UInt8[np.ndarray, "n 1 side side"]:
        """Thumbnails."""
        return np.stack([_drawn(self.texts[name], (SIDE, SIDE), COLUMNS, LINES) for name in ids])

    def original(self, name: str) -> UInt8[np.ndarray, "1 height width"]:
        """One text at full size, as small as a thumbnail where that holds it."""
        if len(_lines(self.texts[name], COLUMNS, LINES + 1)) <= LINES:
            return _drawn(self.texts[name], (SIDE, SIDE), COLUMNS, LINES)
        lines = len(_lines(self.texts[name], WIDE_COLUMNS, WIDE_LINES))
        return _drawn(self.texts[name], (WIDE, 24 * lines + 16), WIDE_COLUMNS, WIDE_LINES)


def _lines(text: str, columns: int, most: int) -> list[str]:
    cut = " ".join(text[: 2 * columns * most].split())
    return textwrap.wrap(cut, columns, max_lines=most, placeholder=" ...") or [""]


def _drawn(text: str, size: tuple[int, int], columns: int, most: int) -> UInt8[np.ndarray, "1 height width"]:
    card = Image.new("L", size, 255)
    ImageDraw.Draw(card).multiline_text((8, 8), "\n".join(_lines(text, columns, most)), 0, ImageFont.load_default(FONT))
    return np.asarray(card, dtype=np.uint8)[None]
