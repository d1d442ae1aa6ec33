"""Does a name sort images as the bit does? Scores of a rating of held-out images, and what chance gives.

A rating is a number for each image: 1 where the name fits, 0 where it does not, 0.5 for undecided or left out. Nothing
here asks anything of a model.
"""

from __future__ import annotations

from math import comb
from typing import Any

import numpy as np
from jaxtyping import Bool, Float64
from sklearn.metrics import average_precision_score, f1_score

from htaf.concepts.naming.checks import LEVEL, balanced, shuffled
from htaf.concepts.naming.files import NOT_VERIFIED, VERIFIED
from htaf.concepts.naming.picture_choice import Choice, PictureSettings

LEAST_PAIRS = 5  # four in the right order still have p = 1 / 16


def decided(said: Float64[np.ndarray, " n"]) -> Float64[np.ndarray, " n"]:
    """1 where a rating is above a half, 0 where it is below, 0.5 between."""
    return (np.sign(said - 0.5) + 1) / 2


def scores(
    bit: Bool[np.ndarray, " n"], said: Float64[np.ndarray, " n"], weight: Float64[np.ndarray, " n"] | None = None
) -> dict[str, float]:
    """How a rating agrees with a bit: "auprc", "f1", "correlation" and "balanced_accuracy".

    "auprc": area under precision over recall (average precision) of the rating. "f1": 2 TP / (2 TP + FP + FN) of
    ratings above a half. "correlation": Pearson's, 0 where either is constant. "balanced_accuracy": (share of images
    with the bit that the name fits + share of the others that it does not) / 2, an undecided one half right.

    Args:
        bit: whether each image has the bit; both occur.
        said: the rating, in [0, 1].
        weight: of each image, > 0; None: equal.

    Source: Oikarinen et al. (2025), Evaluating Neuron Explanations: the first three pass its checks of missing and of
        extra labels, balanced accuracy and recall do not.
    """
    weight = np.full(len(bit), 1 / len(bit)) if weight is None else weight / weight.sum()
    x, y = bit - (weight * bit).sum(), said - (weight * said).sum()
    spread = float((weight * x * x).sum() * (weight * y * y).sum())
    return {
        "auprc": float(average_precision_score(bit, said, sample_weight=weight)),
        "f1": float(f1_score(bit, said > 0.5, sample_weight=weight, zero_division=0)),  # pyright: ignore
        "correlation": float((weight * x * y).sum() / spread**0.5) if spread > 1e-24 else 0.0,
        "balanced_accuracy": balanced(bit, decided(said)),
    }


def at_rate(bit: Bool[np.ndarray, " n"], said: Float64[np.ndarray, " n"], rate: float) -> dict[str, float]:
    """The first three `scores` as they would be on images of which a share `rate` has the bit, and that "rate".

    Half of the images that check a name have the bit, however rare it is, and a name that also fits many others looks
    good there. So images with the bit weigh rate / (number with it), those without (1 - rate) / (number without).
    """
    weight = np.where(bit, rate / max(1, bit.sum()), (1 - rate) / max(1, (~bit).sum()))
    found = scores(bit, said, weight)
    return {"rate": rate} | {key: found[key] for key in ("auprc", "f1", "correlation")}


def within(choice: Choice, said: Float64[np.ndarray, " n"]) -> dict[str, Any] | None:
    """How often a name prefers, of two images of one class, the one with the bit: "score", "pairs" and "p_value".

    score = (pairs rated in the right order + half of those rated alike) / pairs; p: that of the sign test, the chance
    that fair coins order as many of the pairs that are not alike rightly. None without pairs.
    """
    if not len(choice.pairs):
        return None
    order = np.sign(said[choice.pairs[:, 0]] - said[choice.pairs[:, 1]])
    right, wrong = int((order > 0).sum()), int((order < 0).sum())
    tail = sum(comb(right + wrong, k) for k in range(right, right + wrong + 1)) / 2 ** (right + wrong)
    return {"score": float((order + 1).mean() / 2), "pairs": len(order), "p_value": float(tail)}


def picture_verdict(choice: Choice, said: Float64[np.ndarray, " n"], settings: PictureSettings) -> dict[str, Any]:
    """The check of a name as plain values.

    Verified: balanced accuracy >= the threshold on the images drawn at random, and p <= 0.05, where p = (1 +
    permutations of the bit over them that do as well) / (1 + permutations).

    Args:
        said: the rating of `choice.sorted`.
    Returns:
        "held_out" (the balanced accuracy), "p_value", "baseline" (mean and 95th percentile with the bit permuted),
        "scores", "at_rate", "within", "only_class" (whether the name tells no images of one class apart, by p > 0.05;
        None with fewer than 5 pairs), "verified", "status", "reason".
    """
    bit, rated = choice.bit[choice.drawn], said[choice.drawn]
    rng = np.random.default_rng((settings.seed, choice.concept, 6))
    found = scores(bit, rated)
    score = found["balanced_accuracy"]
    chance = shuffled(bit, decided(rated), np.zeros(len(bit), np.int64), settings.permutations, rng)
    inner = within(choice, said)
    result: dict[str, Any] = {
        "held_out": score,
        "p_value": float((1 + (chance >= score - 1e-12).sum()) / (1 + settings.permutations)),
        "baseline": {"mean": float(chance.mean()), "p95": float(np.quantile(chance, 0.95))},
        "scores": found, "at_rate": at_rate(bit, rated, choice.rate), "within": inner,
        "only_class": None if len(choice.pairs) < LEAST_PAIRS or inner is None else inner["p_value"] > LEVEL,
        "verified": False, "status": NOT_VERIFIED, "reason": "",
    }  # fmt: skip
    if score < settings.threshold:
        return result | {"reason": f"balanced accuracy {score:.2f} < {settings.threshold:g} on held-out images"}
    if result["p_value"] > LEVEL:
        return result | {"reason": f"a shuffled bit does as well: p = {result['p_value']:.2f} > {LEVEL}"}
    return result | {"verified": True, "status": VERIFIED}
