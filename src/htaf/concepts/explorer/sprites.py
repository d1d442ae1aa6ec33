"""Thumbnails of many images in few files: sheets of equal cells, one image a cell."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import UInt8
from PIL import Image

Pixels = Callable[[Sequence[str]], UInt8[np.ndarray, "n channels height width"]]
Original = Callable[[str], UInt8[np.ndarray, "channels height width"]]

CELLS = 16  # a side of a sheet, where cells are small
SIDE = 2048  # of a sheet at most, in pixels: what phones still draw
THUMBNAIL = 96  # pixels of the longer side of a larger image
LOSSLESS = 48  # pixels of the longer side up to which images are kept as they are
QUALITY = 80


@dataclass(frozen=True)
class Layout:
    """width, height: of a cell in pixels. columns, rows: cells of a sheet. lossless: nothing is scaled."""

    width: int
    height: int
    columns: int
    rows: int
    lossless: bool

    @property
    def cells(self) -> int:
        return self.columns * self.rows


def layout(height: int, width: int) -> Layout:
    """Lay out cells for images of that size, in pixels: as they are up to 48, else their longer side 96 at most."""
    longer = max(height, width)
    scale = 1.0 if longer <= LOSSLESS else min(1.0, THUMBNAIL / longer)
    size = max(1, round(width * scale)), max(1, round(height * scale))
    columns, rows = (max(1, min(CELLS, SIDE // side)) for side in size)
    return Layout(*size, columns, rows, longer <= LOSSLESS)


def sheets(ids: Sequence[str], pixels: Pixels) -> Iterator[tuple[Layout, bytes]]:
    """Draw WebP files one after the other; image i is in cell i % cells, row by row, of sheet i // cells.

    Args:
        ids: of the images. pixels: gives uint8 [n, C, H, W] for some of them, C 1 or 3; asked for a sheet at a time.
    """
    if not len(ids):
        return
    height, width = pixels(ids[:1]).shape[2:]
    form = layout(height, width)
    for start in range(0, len(ids), form.cells):
        yield form, _sheet(pixels(ids[start : start + form.cells]), form)


def _sheet(pixels: UInt8[np.ndarray, "n channels height width"], form: Layout) -> bytes:
    grey = pixels.shape[1] == 1
    sheet = Image.new("L" if grey else "RGB", (form.columns * form.width, form.rows * form.height))
    for number, image in enumerate(pixels):
        cell = _as_picture(image)
        if cell.size != (form.width, form.height):
            cell = cell.resize((form.width, form.height), Image.Resampling.LANCZOS)
        sheet.paste(cell, (number % form.columns * form.width, number // form.columns * form.height))
    data = io.BytesIO()
    sheet.convert("RGB").save(data, format="WEBP", lossless=form.lossless, quality=QUALITY, method=4)
    return data.getvalue()


def webp(pixels: UInt8[np.ndarray, "channels height width"]) -> bytes:
    """One image as a WebP file, its longer side 2,048 pixels at most."""
    image = _as_picture(pixels)
    image.thumbnail((SIDE, SIDE), Image.Resampling.LANCZOS)
    data = io.BytesIO()
    image.convert("RGB").save(data, format="WEBP", quality=QUALITY, method=4)
    return data.getvalue()


def _as_picture(pixels: UInt8[np.ndarray, "channels height width"]) -> Image.Image:
    return Image.fromarray(pixels[0] if len(pixels) == 1 else np.ascontiguousarray(pixels.transpose(1, 2, 0)))
