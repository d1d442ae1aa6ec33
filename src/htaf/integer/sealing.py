"""Texts that hold the SHA-256 of themselves, so that an edited export is told from a written one."""

from __future__ import annotations

import hashlib
import re

OPEN = "0" * 64  # where the digest of a text is put: that of the text with these zeros
_SEAL = re.compile(r"text sha256: ([0-9a-f]{64})")


def sealed(text: str) -> str:
    """The text with its digest in place of the zeros of `text sha256: 000...`, which it has once."""
    assert _SEAL.findall(text) == [OPEN]
    return text.replace(f"text sha256: {OPEN}", f"text sha256: {hashlib.sha256(text.encode()).hexdigest()}")


def is_whole(text: str) -> bool:
    """Whether a text is as `sealed` made it."""
    found = _SEAL.findall(text)
    return len(found) == 1 and sealed(text.replace(found[0], OPEN)) == text
