"""Concepts that say the same: pairs, clusters, and how many are left in effect."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Float64, Int64, Shaped

AGREEMENT, CORRELATION = 0.99, 0.9
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
    return phi(pairs, ones, ones, images)


def phi(
    both: Shaped[np.ndarray, "concepts others"],
    ones: Float64[np.ndarray, " concepts"],
    others: Float64[np.ndarray, " others"],
    images: int,
) -> Float64[np.ndarray, "concepts others"]:
    """`correlations` of the bits of one set of concepts with those of another.

    Args:
        both: images with both bits. ones, others: images with each bit of the one and of the other set.
    """
    spread, of_others = (np.sqrt(count * (images - count)) for count in (ones, others))
    scale = np.outer(spread, of_others)
    above = float(images) * both - np.outer(ones, others)
    return np.clip(np.divide(above, scale, out=np.zeros_like(scale), where=scale > 0), -1, 1)


@dataclass(frozen=True)
class Redundancy:
    """What `redundancy` finds.

    Attributes:
        duplicates: bool [C, C], symmetric: pairs that agree. complementary: pairs that disagree.
        clusters: lists of concept numbers, the leader first; every live concept is in one.
        effective: effective number of concepts.
    """

    duplicates: Bool[np.ndarray, "concepts concepts"]
    complementary: Bool[np.ndarray, "concepts concepts"]
    clusters: list[list[int]]
    effective: float

    def report(self) -> dict[str, Any]:
        """Plain values; at most 200 pairs of each kind are listed."""
        result: dict[str, Any] = {}
        for name, pairs in (("duplicates", self.duplicates), ("complementary", self.complementary)):
            found = np.argwhere(np.triu(pairs, 1))
            result[name] = {"count": len(found), "pairs": found[:LISTED].tolist()}
        return result | {
            "clusters": [cluster for cluster in self.clusters if len(cluster) > 1],
            "distinct": len(self.clusters),
            "effective": self.effective,
            "agreement": AGREEMENT,
            "correlation": CORRELATION,
        }


def redundancy(
    pairs: Int64[np.ndarray, "concepts concepts"], images: int, order: Int64[np.ndarray, " concepts"] | None = None
) -> Redundancy:
    """Duplicate and complementary concepts among the live ones.

    A pair is duplicate when it agrees on >= 99% of images and correlates by >= 0.9, complementary when it agrees on
    <= 1% and correlates by <= -0.9. The correlation is asked for because two unrelated bits that are both 1 on 0.4%
    of images agree on 99% too. Clusters are greedy: the first concept not yet in one leads, with all its partners
    that are not yet in one. The effective number is exp(-sum p_i ln p_i), p the eigenvalues of the correlation matrix
    over their sum (Roy and Vetterli 2007): C when all are uncorrelated, 1 when all are the same.

    Args:
        pairs: images with both bits; with one on the diagonal. images: how many in all.
        order: in which concepts lead clusters; default: by number.
    """
    ones = np.diagonal(pairs)
    live = (ones > 0) & (ones < images)
    differ = ones[:, None] + ones[None, :] - 2 * pairs
    related = correlations(pairs, images)
    both = np.outer(live, live)
    np.fill_diagonal(both, False)
    duplicates = both & (differ <= (1 - AGREEMENT) * images + 1e-9) & (related >= CORRELATION)
    complementary = both & (images - differ <= (1 - AGREEMENT) * images + 1e-9) & (related <= -CORRELATION)

    clusters, free = [], live.copy()
    for leader in range(len(ones)) if order is None else order.tolist():
        if free[leader]:
            partners = free & (duplicates[leader] | complementary[leader])
            clusters.append([int(leader), *np.flatnonzero(partners).tolist()])
            free[clusters[-1]] = False
    if not live.any():
        return Redundancy(duplicates, complementary, clusters, 0.0)
    values = np.clip(np.linalg.eigvalsh(related[np.ix_(live, live)]), 0, None)
    share = values[values > 0] / values.sum()
    return Redundancy(duplicates, complementary, clusters, float(np.exp(-(share * np.log(share)).sum())))
