"""Random order that is the same on every machine, in a stream that users do not draw from."""

from __future__ import annotations

import numpy as np
from jaxtyping import Int64, UInt64

# "htaf" in ASCII. Without it `default_rng(0)` gives the same words: rows that a user drew from it are split by value
STREAM = 0x68746166


def random_words(count: int, *seed: int) -> UInt64[np.ndarray, " count"]:
    """Draw raw PCG64 words, which numpy keeps stable across versions, as it does not for permutations.

    Args:
        count: how many.
        seed: each >= 0; other numbers give other words.
    """
    return np.random.PCG64([STREAM, *seed]).random_raw(count)


def random_order(count: int, *seed: int) -> Int64[np.ndarray, " count"]:
    """Draw the numbers below `count` in random order; `seed` as in `random_words`."""
    return np.argsort(random_words(count, *seed), kind="stable")
