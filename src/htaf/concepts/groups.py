"""Which classes have a concept, which have not, and which are mixed; and whether a name sorts them better than chance.

A sorting is a number for each class or image: 1 where the name's first label was chosen, 0 where the second, 0.5 where
it was left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import comb
from typing import Any

import numpy as np
from jaxtyping import Bool, Float64, Int8

from htaf.concepts.codes import ConceptError

IN_A, IN_B, MIXED, EMPTY = 1, 0, -1, -2
LOW, HIGH = 0.2, 0.8  # bounds of the groups


@dataclass(frozen=True, eq=False)
class Groups:
    """For each concept, the group of each class.

    Attributes:
        member: int8 [C, K]: 1 in group A (most images of the class have the bit), 0 in B (few have it), -1 mixed,
            -2 a class without images.
        proportions: float64 [C, K]: the share of the class's images that have the bit.
        classes: K names.
        held: float64 [C, K]: the same share of images that no one learned from; nan for a class without any.
    """

    member: Int8[np.ndarray, "concepts classes"]
    proportions: Float64[np.ndarray, "concepts classes"]
    classes: tuple[str, ...]
    held: Float64[np.ndarray, "concepts classes"]

    def on_test(self, concept: int) -> dict[str, float | None]:
        """ "test_a" and "test_b": the mean of `held` over the classes of A and of B; None where they have no images."""
        found: dict[str, float | None] = {}
        for key, code in (("test_a", IN_A), ("test_b", IN_B)):
            some = self.held[concept][(self.member[concept] == code) & ~np.isnan(self.held[concept])]
            found[key] = float(some.mean()) if len(some) else None
        return found

    def counts(self, concept: int) -> dict[str, Any]:
        """How many classes are in "group_a", "group_b", "mixed" and "empty", and `on_test`."""
        codes = {"group_a": IN_A, "group_b": IN_B, "mixed": MIXED, "empty": EMPTY}
        return {key: int((self.member[concept] == code).sum()) for key, code in codes.items()} | self.on_test(concept)

    def reversal(self, concept: int) -> str:
        """What speaks against a name for these groups: test images do not tell them apart, or say the opposite. Empty
        where they do tell them apart, or where there are none."""
        a, b = self.on_test(concept).values()
        if a is None or b is None or a > b:
            return ""
        return f"not so on test images: {a:.0%} of group A and {b:.0%} of group B have it"

    def note(self, concept: int) -> str:
        """Why there is nothing to name; empty where both groups have classes."""
        has_a, has_b = (self.member[concept] == IN_A).any(), (self.member[concept] == IN_B).any()
        if has_a and has_b:
            return ""
        if not has_a and not has_b:
            return "both groups are empty: every class is mixed"
        used = self.member[concept] != EMPTY
        shares = self.proportions[concept][used]
        if (shares == shares[0]).all() and shares[0] in (0, 1):
            return f"dead: always {shares[0]:.0f}"
        bound = f"of {LOW:.0%} or less" if has_a else f"of {HIGH:.0%} or more"
        return f"group {'B' if has_a else 'A'} is empty: no class with a share {bound}"


def groups(
    proportions: Float64[np.ndarray, "concepts classes"],
    *,
    classes: Sequence[str] = (),
    held: Float64[np.ndarray, "concepts classes"] | None = None,
) -> Groups:
    """Each class in group A when a share >= 0.8 of its images has the bit, in B when <= 0.2, else mixed.

    Args:
        proportions: float64 [C, K] in [0, 1], of the training images (`htaf.concepts.counts.proportions`); nan for a
            class without images, which is left out.
        classes: K names; default: the numbers.
        held: float64 [C, K], proportions of images that were not trained on, nan for a class without any; None: there
            are none.

    Raises:
        ConceptError: proportions that are none.
    """
    values = np.asarray(proportions, dtype=np.float64)
    names = tuple(classes) or tuple(map(str, range(values.shape[-1] if values.ndim else 0)))
    if values.ndim != 2 or values.shape[1] != len(names) or not values.shape[1]:
        raise ConceptError(f"expected proportions [concepts, {len(names) or 'classes'}], got {values.shape}")
    empty = np.isnan(values)
    if not (empty | ((values >= 0) & (values <= 1))).all():
        raise ConceptError(f"expected proportions in [0, 1], got {values.min()} to {values.max()}")
    if empty.all(1).any():
        raise ConceptError("expected images of one class or more, got none")
    member = np.select([empty, values >= HIGH, values <= LOW], [EMPTY, IN_A, IN_B], MIXED).astype(np.int8)
    return Groups(member, values, names, np.full_like(values, np.nan) if held is None else held)


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
