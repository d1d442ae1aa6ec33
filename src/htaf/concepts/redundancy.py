"""Concepts that say the same: pairs, and how many are left in effect."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Float64, Int64

from htaf._ground.errors import counted

AGREEMENT, CORRELATION = 0.99, 0.9
FEW = 8  # distinct bits: fewer are divisions of the classes
LISTED = 200  # pairs of each kind in a report


def correlations(
    pairs: Int64[np.ndarray, "concepts concepts"], images: int
) -> Float64[np.ndarray, "concepts concepts"]:
    """Pearson's (phi) of every two bits: (n n_ij - n_i n_j) / sqrt(n_i (n - n_i) n_j (n - n_j)).

    Args:
        pairs: n_ij, images with both bits; n_i on the diagonal. images: n.

    Returns:
        float64 [C, C]; 0 where a bit is the same in every image.
    """
    ones = np.diagonal(pairs).astype(np.float64)
    spread = np.sqrt(ones * (images - ones))
    scale = np.outer(spread, spread)
    above = float(images) * pairs - np.outer(ones, ones)
    return np.clip(np.divide(above, scale, out=np.zeros_like(scale), where=scale > 0), -1, 1)


@dataclass(frozen=True)
class Same:
    """Which bits are one concept, found by `same_bits`.

    Attributes:
        of: int64 [C], of each bit the one that stands for it, often itself; -1 where it never changes.
        opposite: bool [C], whether it is the opposite of that one; of a bit that never changes whether it is 1.
    """

    of: Int64[np.ndarray, " concepts"]
    opposite: Bool[np.ndarray, " concepts"]

    @property
    def distinct(self) -> Bool[np.ndarray, " concepts"]:
        """bool [C]: the bits that stand for themselves."""
        return self.of == np.arange(len(self.of))

    def folded(
        self, weight: Float64[np.ndarray, "classes concepts"], bias: Float64[np.ndarray, " classes"]
    ) -> tuple[Float64[np.ndarray, "classes concepts"], Float64[np.ndarray, " classes"]]:
        """A head with weights on distinct bits alone; the same logits where the bits of a concept agree."""
        told, made = self.of >= 0, np.zeros_like(weight)
        signed = np.where(self.opposite, -weight, weight)
        np.add.at(made.T, self.of[told], signed.T[told])
        return made, bias + weight[:, self.opposite].sum(1)

    def about(self, kind: str = "image") -> str:
        """That there are no concepts beyond the classes, in a sentence; "" where there are some. kind: of the items."""
        distinct = int(self.distinct.sum())
        if distinct >= FEW:
            return ""
        return (
            f"there are no concepts beyond the classes: the {counted(len(self.of), 'bit')} divide the training {kind}s "
            f"in {counted(distinct, 'way')} only; more classes, or more varied {kind}s within a class, make more"
        )


def same_bits(pairs: Int64[np.ndarray, "concepts concepts"], images: int) -> Same:
    """Bits that correlate by 0.9 or more, or by -0.9 or less: one concept, whatever their number.

    Greedy: the first bit that is not yet in a group stands for all that correlate with it and are not yet in one.

    Args: as of `correlations`, of training images.
    """
    ones, related = np.diagonal(pairs), correlations(pairs, images)
    of, opposite = np.full(len(pairs), -1), (ones == images) & (images > 0)
    free = (ones > 0) & (ones < images)
    for first in range(len(pairs)):
        if free[first]:
            members = free & (np.abs(related[first]) >= CORRELATION)
            of[members], opposite[members] = first, related[first, members] < 0
            free &= ~members
    return Same(of, opposite)


def redundancy(pairs: Int64[np.ndarray, "concepts concepts"], images: int) -> dict[str, Any]:
    """Find duplicate and complementary concepts among the live ones, and count those that are left in effect.

    A pair is duplicate when it agrees on >= 99% of images and correlates by >= 0.9, complementary when it agrees on
    <= 1% and correlates by <= -0.9. The correlation is asked for because two unrelated bits that are both 1 on 0.4%
    of images agree on 99% too. The effective number is exp(-sum p_i ln p_i), p the eigenvalues of the correlation
    matrix over their sum (Roy and Vetterli 2007): C when all are uncorrelated, 1 when all are the same.

    Args:
        pairs: images with both bits; with one on the diagonal. images: how many in all.

    Returns:
        "duplicates" and "complementary", each {"count", "pairs": [[i, j], ...], 200 at most}, and "effective".
    """
    ones = np.diagonal(pairs)
    live = (ones > 0) & (ones < images)
    differ = ones[:, None] + ones[None, :] - 2 * pairs
    related = correlations(pairs, images)
    both = np.triu(np.outer(live, live), 1)
    most = (1 - AGREEMENT) * images + 1e-9
    found = {
        "duplicates": both & (differ <= most) & (related >= CORRELATION),
        "complementary": both & (images - differ <= most) & (related <= -CORRELATION),
    }
    listed = {name: np.argwhere(which) for name, which in found.items()}
    effective = 0.0
    if live.any():
        values = np.clip(np.linalg.eigvalsh(related[np.ix_(live, live)]), 0, None)
        share = values[values > 0] / values.sum()
        effective = float(np.exp(-(share * np.log(share)).sum()))
    return {name: {"count": len(some), "pairs": some[:LISTED].tolist()} for name, some in listed.items()} | {
        "effective": effective
    }
