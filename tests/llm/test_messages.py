"""JSON is found in what a model says, texts of others stay data, and pictures arrive whole."""

from __future__ import annotations

import time

import numpy as np
import pytest
from askings import Name
from hypothesis import given
from hypothesis import strategies as st

from htaf.concepts.llm import MalformedReply, picture_part, short, text_part, validated
from made_pictures import picture_pixels


@pytest.mark.parametrize(
    "text",
    [
        '{"name": "wings"}',
        '\ufeff {"name": "wings"}\n',
        '```json\n{"name": "wings"}\n```',
        'Sure! Here it is:\n```JSON\n{"name": "wings"}\n```\nAnything else?',
        'The attribute is {"name": "wings"}, I think.',
        '<think>Perhaps {"name": "beak"}? No.</think>\n{"name": "wings"}',
        'thinking without a start, {"name": "beak"}</think>{"name": "wings"}',
        '{"name": "wings", "more": "```"}',
    ],
)
def test_json_is_found_in_a_reply(text: str) -> None:
    assert validated(text, Name).name == "wings"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "expected a JSON object, got ''"),
        ("no idea", "expected a JSON object, got 'no idea'"),
        ('{"name": "wings"', "expected a JSON object"),
        ('{"name": "beak"} or {"name": "wings"}', "trailing characters"),
        ('{"name": NaN}', "name: Input should be a valid string"),
        ('{"name": 5}', "name: Input should be a valid string"),
        ('{"name": "a", "votes": ["1"]}', "votes.0: Input should be a valid integer"),
        ('{"name": "\\ud800"}', "Invalid JSON"),
        ('{"name": ""}', "name: String should have at least 1 character"),
        ('{"name": "wings", "votes": [3]}', "expected numbers below 3"),
        ('{"a":' * 39_000 + "}", "Invalid JSON"),
        ('{"name": "wings"}' + "}" * 2_000_000, "trailing characters"),
    ],
)
def test_what_cannot_be_used_says_why(text: str, words: str) -> None:
    start = time.monotonic()
    with pytest.raises(MalformedReply) as caught:
        validated(text, Name, {"count": 3})
    assert words in str(caught.value)
    assert len(str(caught.value)) < 500
    assert time.monotonic() - start < 10


@given(st.text())
def test_no_text_breaks_it(text: str) -> None:
    with pytest.raises(MalformedReply):
        validated(text, Name)
    assert short(text).isprintable()


def made(height: int = 56, width: int = 29) -> np.ndarray:
    return np.full((height, width, 3), (200, 30, 90), dtype=np.uint8)


def messages() -> list[dict]:
    return [{"role": "user", "content": [text_part("what is it"), picture_part(made())]}]


def test_a_picture_arrives() -> None:
    found = picture_pixels(messages()[0]["content"][1]["image_url"]["url"])
    assert found.shape == (56, 29, 3)
    assert np.abs(found.astype(int) - made()).max() <= 3
