"""The one base of errors that a user can cause, and checks whose words every room shares."""

from __future__ import annotations

import os
from pathlib import Path

SEEDS = 2**63  # PyTorch's generators take no more


class HtafError(Exception):
    """Its message is one sentence for the user: the command prints it without a traceback and exits with 1."""


class TooLargeError(HtafError):
    """What was asked for cannot fit into the memory of this machine."""


def expect_seed(seed: int, error: type[Exception], name: str = "seed") -> None:
    """Raises `error` unless every generator takes this seed."""
    if not 0 <= seed < SEEDS:
        raise error(f"{name} must be >= 0 and below 2**63, got {seed}")


def expect_memory(needed: float, what: str, instead: str) -> None:
    """Raises TooLargeError, with figures, where so many bytes are more than this machine's memory."""
    have = _memory()
    if needed > have:
        raise TooLargeError(f"{what} needs {_size(needed)} of memory, this machine has {_size(have)}: {instead}")


def _memory() -> float:
    """Bytes of memory of this machine, or of the control group in which this process runs; inf where unknown."""
    try:
        have = float(os.sysconf("SC_PAGE_SIZE")) * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return float("inf")
    try:
        return min(have, float(Path("/sys/fs/cgroup/memory.max").read_text()))
    except (OSError, ValueError):  # "max": no limit
        return have


def _size(count: float) -> str:
    return f"{count / 1e9:,.1f} GB" if count < 1e13 else f"{count / 1e12:,.0f} TB" if count < 1e18 else f"{count:.0e} B"
