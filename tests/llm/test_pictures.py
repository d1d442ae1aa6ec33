"""Pictures in messages: they arrive whole, and the cache keeps none."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from askings import Name, model_of

from htaf.llm.pictures import picture_part, text_part
from made_pictures import picture_pixels
from scripted_server import Answer, scripted


def made(height: int = 56, width: int = 29) -> np.ndarray:
    return np.full((height, width, 3), (200, 30, 90), dtype=np.uint8)


def messages() -> list[dict]:
    return [{"role": "user", "content": [text_part("what is it"), picture_part(made())]}]


def test_a_picture_arrives() -> None:
    found = picture_pixels(messages()[0]["content"][1]["image_url"]["url"])
    assert found.shape == (56, 29, 3)
    assert np.abs(found.astype(int) - made()).max() <= 3


def test_the_cache_keeps_no_picture(tmp_path: Path) -> None:
    with scripted(Answer(text='{"name": "wings"}')) as server, model_of(server, tmp_path) as asked:
        for _ in range(2):
            assert asked.ask(messages(), Name).name == "wings"
        assert len(server.requests) == 1
        assert server.requests[0]["messages"][0]["content"][1] == messages()[0]["content"][1]
    (kept,) = tmp_path.rglob("*.json")
    assert "base64" not in kept.read_text()
