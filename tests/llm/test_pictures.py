"""Pictures in messages: they arrive whole, the cache keeps none, and a model that sees none is found out."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import openai
import pytest
from askings import Name, model_of

from htaf.llm.chat import ModelError
from htaf.llm.pictures import DIGITS, drawn_digits, expect_sight, picture_part, text_part
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


@pytest.mark.parametrize("said", [f'"{DIGITS}"', '"8 0 1 1"', DIGITS])
def test_digits_that_are_read(said: str) -> None:
    assert drawn_digits().std() > 20
    with scripted(Answer(text=f'{{"digits": {said}}}')) as server, model_of(server) as asked:
        expect_sight(asked)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (Answer(text='{"digits": "1234"}'), "expected the digits 8053 of a made picture, got '1234'"),
        (Answer(text="I cannot see."), "does not see pictures"),
        (Answer(status=500, body=b'{"error": {"message": "image input is not supported"}}'), "image input is not"),
        (Answer(status=401, body=b"{}"), "refused the key, or wants one"),
    ],
)
def test_a_model_without_sight(answer: Answer, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openai._base_client, "INITIAL_RETRY_DELAY", 0.01)
    with scripted(answer) as server, model_of(server) as asked, pytest.raises(ModelError, match=words):
        expect_sight(asked)
