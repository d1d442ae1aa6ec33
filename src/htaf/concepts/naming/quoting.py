"""Text that others wrote, made safe to stand in a prompt or on a terminal: on one line, with nothing hidden in it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import lru_cache

from htaf._console import visible

LONGEST = 200  # characters of a name, a candidate, a concept
ELLIPSIS = "…"


def shortened(text: str, most: int = LONGEST) -> str:
    """At most so many characters, the last an ellipsis where some are missing."""
    return text if len(text) <= most else text[: most - 1] + ELLIPSIS


@lru_cache(maxsize=2**14)  # the same classes stand in many prompts
def quoted(text: str, most: int = LONGEST) -> str:
    """The text, shortened, as a JSON string of visible characters on one line; `json.loads` gives it back."""
    return visible(json.dumps(shortened(text, most), ensure_ascii=False))


def numbered(names: Sequence[str]) -> str:
    """A line for each name: its number, counted from 1, and the name as a JSON string."""
    return "\n".join(f"{number}. {quoted(name)}" for number, name in enumerate(names, 1))
