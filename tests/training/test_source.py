"""Where data come from: what goes together, and what a run remembers of it."""

from __future__ import annotations

from typing import Any

import pytest

from htaf.training.source import Source


def test_arguments_and_split() -> None:
    made = Source("a.csv", exclude=["b"], shares=[0.5, 0.25, 0.25], group="g")  # pyright: ignore[reportArgumentType]
    assert (made.mode, hash(made)) == ("grouped", hash(made))
    assert made.arguments() == {"exclude": ("b",), "shares": (0.5, 0.25, 0.25), "group": "g"}
    assert Source("a.csv", time="t").mode == "time"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"split": "stratified", "group": "g"}, "does not go with split stratified"),
        ({"split": "grouped", "time": "t"}, "goes with no other split"),
        ({"task": "both"}, "task must be one of .*, got 'both'"),
        ({"exclude": [1]}, r"exclude must be several texts, got \[1\]"),
        ({"size": 0}, "size must be >= 1, got 0"),
    ],
)
def test_what_makes_no_sense(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Source("a.csv", **options)
