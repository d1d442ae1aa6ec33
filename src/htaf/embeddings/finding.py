"""A concept of one's own among the bits of a classifier, from rows that have it and rows that do not."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64, UInt8

from htaf.concepts.codes import ConceptError
from htaf.concepts.heads import Head

DRAWS = 1000
FEWEST = 5  # rows with, and without


@dataclass(frozen=True)
class Found:
    """The bit that tells rows with a concept best from rows without.

    Attributes:
        concept: its number. on: whether rows with the concept have the bit; False: those without have it.
        agreement: mean of the shares of rows with and of rows without that it tells right; 0.5: by chance.
        p: of a permutation test: the share of random divisions of the same rows for which some bit agrees as much.
        weights: float64 [K], of the head, less their mean over classes.
        changed: share of these rows whose prediction changes where the bit is flipped.
    """

    concept: int
    on: bool
    agreement: float
    p: float
    weights: Float64[np.ndarray, " classes"]
    changed: float

    @property
    def used(self) -> bool:
        """Whether the classifier draws on the bit at all."""
        return bool(np.abs(self.weights).max() > 0)


def find_concept(
    with_: UInt8[np.ndarray, "rows concepts"],
    without: UInt8[np.ndarray, "others concepts"],
    head: Head,
    *,
    seed: int = 0,
) -> Found:
    """The bit that follows a concept, tested against 1,000 random divisions of the same rows.

    The best of many bits agrees somewhat with any division, so each random one is given its own best bit.

    Args:
        with_, without: bits of rows that have the concept, and of rows that do not. seed: of the divisions.

    Raises:
        ConceptError: fewer than 5 rows with or without.

    Source: Kim et al. 2018 (TCAV) for random sets as the null hypothesis.
    """
    if min(len(with_), len(without)) < FEWEST:
        raise ConceptError(
            f"expected at least {FEWEST} rows with the concept and as many without, got {len(with_)} and {len(without)}"
        )
    bits = np.concatenate([with_, without]).astype(np.float64)
    own = np.arange(len(bits)) < len(with_)
    random = np.random.default_rng(seed)
    several = np.stack([own, *(random.permutation(own) for _ in range(DRAWS))]).astype(np.float64)
    apart = several @ bits / len(with_) - (1 - several) @ bits / len(without)  # shares with less shares without
    best = np.abs(apart).max(1)
    concept = int(np.abs(apart[0]).argmax())
    logits = bits @ head.weight.T + head.bias
    flipped = logits + (1 - 2 * bits[:, concept, None]) * head.weight[:, concept]
    return Found(
        concept=concept,
        on=bool(apart[0, concept] > 0),
        agreement=float((1 + best[0]) / 2),
        p=float(((best[1:] >= best[0] - 1e-12).sum() + 1) / (DRAWS + 1)),
        weights=head.weight[:, concept] - head.weight[:, concept].mean(),
        changed=float((logits.argmax(1) != flipped.argmax(1)).mean()),
    )
