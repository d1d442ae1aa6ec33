"""JSON is found whatever stands around it, and no text or body breaks that."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from askings import Name
from hypothesis import given
from hypothesis import strategies as st

import htaf.llm
from htaf.llm import MalformedReply
from htaf.llm.chat import objects_in, read_completion, short, validated


@pytest.mark.parametrize(
    "text",
    [
        '{"name": "wings"}',
        '\ufeff {"name": "wings"}\n',
        '```json\n{"name": "wings"}\n```',
        '```\n{"name": "wings"}',
        'Sure! Here it is:\n```JSON\n{"name": "wings"}\n```\nAnything else?',
        'The attribute is {"name": "wings"}, I think.',
        '<think>Perhaps {"name": "beak"}? No.</think>\n{"name": "wings"}',
        'thinking without a start, {"name": "beak"}</think>{"name": "wings"}',
        '{"name": "beak"}, no: {"name": "wings"}',
        '{"name": "wings"} and {"other": 1}',
        '```json\n{"name": "wings"}\n```\nrather than {"name": "beak"}',
        'an unfinished {"name": and then {"name": "wings"}',
        '{"name": "wings", "more": "```"}',
        'text {"name": "wings", "more": "```json"} text',
    ],
)
def test_json_is_found_in_a_reply(text: str) -> None:
    assert validated(text, Name, None).name == "wings"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "expected a JSON object, got ''"),
        ("no idea", "expected a JSON object, got 'no idea'"),
        ('{"name": "wings"', "expected a JSON object"),
        ('<think>{"name": "beak"}', "expected a JSON object"),
        ('[{"name": "wings"}]', "valid dictionary"),
        ('{"name": NaN}', "expected a JSON object"),
        ('{"name": "\\ud800"}', "expected a JSON object"),
        ('{"name": "a", "votes": [1e999]}', "expected a JSON object"),
        ('{"name": ""}', "name: String should have at least 1 character"),
        ('{"name": "wings", "votes": [3]}', "expected numbers below 3"),
        ("[" * 100_000, "expected a JSON object"),
        ('{"a":' * 39_000, "expected a JSON object"),
        ('{"' * 99_000, "expected a JSON object"),
        ('{"name": "wings"}' + " " * 200_000, "expected at most 200,000 characters"),
    ],
)
def test_what_cannot_be_used_says_why(text: str, words: str) -> None:
    start = time.monotonic()
    with pytest.raises(MalformedReply) as caught:
        validated(text, Name, {"count": 3})
    assert words in str(caught.value)
    assert len(str(caught.value)) < 500
    assert time.monotonic() - start < 10


jsons = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
objects = st.dictionaries(st.text(), jsons, min_size=1, max_size=4)
prose = st.text(st.characters(codec="utf-8", exclude_characters="{}`<"), max_size=30)


@given(jsons, st.booleans(), st.sampled_from([None, 2]), st.sampled_from(["", "\n", " \t"]))
def test_bare_json_is_read_as_it_is(value: Any, escaped: bool, indent: int | None, space: str) -> None:
    text = space + json.dumps(value, ensure_ascii=escaped, indent=indent) + space
    assert objects_in(text) == [json.loads(text)]


@given(objects, prose, prose, st.booleans())
def test_json_is_found_between_words(value: dict[str, Any], before: str, after: str, thought: bool) -> None:
    text = f"x {before}{json.dumps(value)}{after} x"
    if "```" not in text and "</think>" not in text:
        assert objects_in(f"<think>hm {{</think>{text}" if thought else text) == [value]


@given(objects, prose, prose)
def test_json_is_found_in_a_fence(value: dict[str, Any], before: str, after: str) -> None:
    body = json.dumps(value, indent=1)
    if "```" not in body and "</think>" not in body:
        assert objects_in(f"{before}\n```json\n{body}\n```\n{after}") == [value]


@given(st.text())
def test_no_text_breaks_it(text: str) -> None:
    for found in objects_in(text):
        json.dumps(found, allow_nan=False, ensure_ascii=False).encode()
    assert short(text).isprintable()


@given(st.binary(max_size=200) | jsons.map(lambda value: json.dumps(value).encode()))
def test_no_body_breaks_it(body: bytes) -> None:
    got = read_completion(body)
    assert got.problem
    assert not got.chat


def test_every_public_name_is_there() -> None:
    assert [name for name in htaf.llm.__all__ if not hasattr(htaf.llm, name)] == []
    with pytest.raises(AttributeError, match="Asker"):
        htaf.llm.Asker  # noqa: B018
