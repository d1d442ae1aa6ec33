"""Thumbnails: each image in its cell, and pages without them where the images are gone."""

from __future__ import annotations

import io
from collections.abc import Sequence

import numpy as np
import pytest
from PIL import Image

from htaf.explorer.sprites import sheets


def of_shape(channels: int, height: int, width: int):
    """Images by number, every one different; and how many were asked for at once."""
    asked: list[int] = []

    def pixels(ids: Sequence[str]) -> np.ndarray:
        asked.append(len(ids))
        drawn = [np.random.default_rng(int(one)).integers(0, 256, (channels, height, width)) for one in ids]
        return np.array(drawn, dtype=np.uint8)

    return pixels, asked


def cell(data: bytes, form, number: int) -> np.ndarray:
    sheet = np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))
    assert sheet.shape == (form.rows * form.height, form.columns * form.width, 3)
    down, right = divmod(number, form.columns)
    return sheet[down * form.height :, right * form.width :][: form.height, : form.width]


@pytest.mark.parametrize("channels", [1, 3])
def test_small_images_are_kept_to_the_bit(channels: int) -> None:
    pixels, asked = of_shape(channels, 8, 11)
    made = list(sheets([str(i) for i in range(300)], pixels))
    assert len(made) == 2
    assert max(asked) == 256
    for number in (0, 1, 16, 255, 256, 299):
        form, data = made[number // 256]
        image = pixels([str(number)])[0].transpose(1, 2, 0)
        np.testing.assert_array_equal(cell(data, form, number % 256), np.broadcast_to(image, (8, 11, 3)))
    assert not cell(*made[1][::-1], 300 % 256).any()  # unused cells are black


def test_large_images_are_scaled() -> None:
    def pixels(ids: Sequence[str]) -> np.ndarray:
        colours = np.array([[int(one) * 20, 255 - int(one) * 20, 90] for one in ids], dtype=np.uint8)
        return np.broadcast_to(colours[:, :, None, None], (len(ids), 3, 300, 200))

    ((form, data),) = sheets([str(i) for i in range(10)], pixels)
    assert (form.width, form.height, form.columns, form.rows) == (64, 96, 16, 16)
    for number in range(10):
        colour = cell(data, form, number)[2:-2, 2:-2].reshape(-1, 3).astype(int)  # at the edges colours run
        assert np.abs(colour - pixels([str(number)])[0, :, 0, 0]).max() < 16
