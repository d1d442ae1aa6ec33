"""Does a name hold? What was sorted by the name alone is compared with chance and with repetitions.

A sorting is a number for each class or image: 1 where the name's first label was chosen, 0 where the second, 0.5 where
it was left out. Nothing here asks anything of a model.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool, Float64, Int64

LEVEL = 0.05  # of the p-value
# kappa between the rounds' sortings; two that are right for three classes of four, independently, reach 0.25 at best
AGREEMENT = 0.2
# with fewer even the right sorting has p > LEVEL in three rounds, as the groups can be permuted in so few ways
FEWEST_CLASSES = 9


def balanced(inside: Bool[np.ndarray, " n"], said: Float64[np.ndarray, " n"]) -> float:
    """(mean of s over A + mean of 1 - s over B) / 2 of a sorting s; what is left out counts as half right."""
    return float(said[inside].mean() + (1 - said[~inside]).mean()) / 2


def shuffled(
    inside: Bool[np.ndarray, " n"],
    said: Float64[np.ndarray, " n"],
    fold: Int64[np.ndarray, " n"],
    permutations: int,
    rng: np.random.Generator,
) -> Float64[np.ndarray, " permutations"]:
    """The balanced accuracies of a sorting when the groups are permuted within each fold."""
    moved = np.tile(said, (permutations, 1))
    for number in np.unique(fold):
        columns = np.flatnonzero(fold == number)
        moved[:, columns] = rng.permuted(moved[:, columns], axis=1)
    return (moved[:, inside].mean(1) + (1 - moved[:, ~inside]).mean(1)) / 2


def against_chance(score: float, chance: Float64[np.ndarray, " permutations"]) -> dict[str, Any]:
    """ "p_value", (1 + permutations that do as well) / (1 + permutations), and "baseline", their mean and 95th
    percentile."""
    return {
        "p_value": float((1 + (chance >= score - 1e-12).sum()) / (1 + len(chance))),
        "baseline": {"mean": float(chance.mean()), "p95": float(np.quantile(chance, 0.95))},
    }


def kappa(one: Float64[np.ndarray, " n"], other: Float64[np.ndarray, " n"]) -> float:
    """How far two sortings of the same classes agree beyond chance: 1 - mean_i |s_i - t_i| / mean_ij |s_i - t_j|.

    Without classes left out this is Cohen's kappa, with them the linearly weighted one. 1: the same; 0: no more than
    two sorters who know only how many belong to each label; 0 too where both put all classes under one label, which
    tells nothing.

    Source: Cohen (1968), Weighted kappa.
    """
    expected = np.abs(one[:, None] - other[None]).mean()
    return 0.0 if expected == 0 else float(1 - np.abs(one - other).mean() / expected)


def agreements(sortings: Sequence[Float64[np.ndarray, " n"]]) -> Float64[np.ndarray, "rounds rounds"]:
    """kappa of each pair of rounds; 1 on the diagonal."""
    found = np.eye(len(sortings))
    for i in range(len(sortings)):
        for j in range(i):
            found[i, j] = found[j, i] = kappa(sortings[i], sortings[j])
    return found


def poorly_shown(shown: float, own: float, threshold: float) -> str:
    """Why the one name that is shown does not hold, though all rounds together do; "" where it does.

    On all sorted classes it must reach the threshold t. Of these it was made from most, and a name that only lists them
    does well there: so on the few held out of it, where scores are noisy, it must be nearer to t than to chance,
    >= (1/2 + t) / 2.

    Args:
        shown, own: balanced accuracies of the name on all sorted classes, and on those held out of it.
    """
    least = min(threshold, (0.5 + threshold) / 2)
    if shown < threshold:
        return f"the name shown, alone, has a balanced accuracy of {shown:.2f} < {threshold:g}"
    if own < least:
        return f"the name shown, alone, has a held-out balanced accuracy of {own:.2f} < {least:.3g}"
    return ""


def refusal(found: dict[str, Any], threshold: float, score: str, chance: str) -> str:
    """Why a score refuses a name; "" where it does not.

    Args:
        found: "held_out", "p_value" (None: no permutations) and "agreement" (None: one sorting).
        score: what the score is called. chance: what was permuted.
    """
    if found["held_out"] < threshold:
        return f"{score} {found['held_out']:.2f} < {threshold:g}"
    agreement, p_value = found.get("agreement"), found["p_value"]
    if agreement is not None and agreement < AGREEMENT:
        return f"the names of the rounds sort differently: kappa {agreement:.2f} < {AGREEMENT}"
    if p_value is not None and p_value > LEVEL:
        return f"{chance} as well: p = {p_value:.2f} > {LEVEL}"
    return ""
