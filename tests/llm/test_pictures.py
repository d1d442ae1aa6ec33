"""Pictures in messages: they arrive whole, and the cache keeps none."""

from __future__ import annotations

import numpy as np

from htaf.llm.pictures import picture_part, text_part
from made_pictures import picture_pixels


def made(height: int = 56, width: int = 29) -> np.ndarray:
    return np.full((height, width, 3), (200, 30, 90), dtype=np.uint8)


def messages() -> list[dict]:
    return [{"role": "user", "content": [text_part("what is it"), picture_part(made())]}]


def test_a_picture_arrives() -> None:
    found = picture_pixels(messages()[0]["content"][1]["image_url"]["url"])
    assert found.shape == (56, 29, 3)
    assert np.abs(found.astype(int) - made()).max() <= 3
