"""Does a name hold? What was sorted by the name alone is compared with chance; nothing here asks a model.

A sorting is a number for each class or image: 1 where the name's first label was chosen, 0 where the second, 0.5 where
it was left out.
"""

from __future__ import annotations

from math import comb

import numpy as np
from jaxtyping import Bool, Float64

LEVEL = 0.05  # of the p-value
FEWEST_CLASSES = 10  # half of them check: C(6, 3) = 20 groups of three, so that the right sorting has p = 1 / 20


def balanced(inside: Bool[np.ndarray, " n"], said: Float64[np.ndarray, " n"]) -> float:
    """Give (mean of s over A + mean of 1 - s over B) / 2 of a sorting s; what is left out counts as half right."""
    return float(said[inside].mean() + (1 - said[~inside]).mean()) / 2


def chance(inside: Bool[np.ndarray, " n"], said: Float64[np.ndarray, " n"]) -> float:
    """Give the p-value of a sorting: the share of all groups as large as A that it fits as well as A, or better.

    The sum of s over a random group is counted exactly: k of the ones and j of the halves make 2 k + j halves.
    """
    zeros, halves, ones = (int((said == value).sum()) for value in (0, 0.5, 1))
    size, reached = int(inside.sum()), round(2 * said[inside].sum())
    ways = sum(
        comb(ones, k) * comb(halves, j) * comb(zeros, size - k - j)
        for k in range(ones + 1)
        for j in range(halves + 1)
        if k + j <= size and 2 * k + j >= reached
    )
    return ways / comb(len(inside), size)
