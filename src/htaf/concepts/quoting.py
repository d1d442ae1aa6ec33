"""Text that others wrote, made safe to stand in a prompt or on a terminal: on one line, with nothing hidden in it."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Sequence
from functools import lru_cache

HIDDEN = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})  # control, format (bidirectional too), surrogates, line, paragraph
LONGEST = 200  # characters of a name, a candidate, a concept
ELLIPSIS = "…"


def shortened(text: str, most: int = LONGEST) -> str:
    """At most so many characters, the last an ellipsis where some are missing."""
    return text if len(text) <= most else text[: most - 1] + ELLIPSIS


def visible(text: str, keep: str = "") -> str:
    r"""The text with control, format, surrogate and separator characters, but those to keep, as \uXXXX.

    For a terminal; without `keep` on one line.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        _escaped(letter) if letter not in keep and unicodedata.category(letter) in HIDDEN else letter for letter in text
    )


@lru_cache(maxsize=2**14)  # the same classes stand in many prompts
def quoted(text: str, most: int = LONGEST) -> str:
    """The text, shortened, as a JSON string of visible characters on one line; `json.loads` gives it back."""
    return visible(json.dumps(shortened(text, most), ensure_ascii=False))


def _escaped(letter: str) -> str:
    return json.dumps(letter)[1:-1] if ord(letter) != 0x7F else "\\u007f"


def numbered(names: Sequence[str]) -> str:
    """A line for each name: its number, counted from 1, and the name as a JSON string."""
    return "\n".join(f"{number}. {quoted(name)}" for number, name in enumerate(names, 1))
