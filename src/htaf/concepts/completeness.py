"""Accuracy of the exact network from its k most important concepts, all others replaced by their mean."""

from __future__ import annotations

from typing import Any, Literal, get_args

import numpy as np
from jaxtyping import Float, Int64

from htaf.concepts.codes import CHUNK, Codes, ConceptError
from htaf.concepts.counts import training_means

Order = Literal["spread", "weight"]
READ = 20_000_000  # predictions in a curve: seconds, however many images


def by_importance(
    weight: Float[np.ndarray, "classes concepts"], rates: Float[np.ndarray, " concepts"], order: Order = "spread"
) -> Int64[np.ndarray, " concepts"]:
    """Concepts, the most important over all classes first; ties by number.

    "spread" is the standard deviation of what a concept adds to the logits: sqrt(r_j (1 - r_j)) times the root mean
    square over classes of w_kj - mean_k w_kj. A number added to w_kj for all k changes no prediction, nor this order.
    "weight" is max_k |w_kj|, which knows neither; it is the "importance" of `htaf.concepts.intervene`.

    Args:
        weight: [K, C] of the head. rates: [C] share of images that have the concept.

    Raises:
        ConceptError: no such order.
    """
    if order not in get_args(Order):
        raise ConceptError(f"order must be one of {get_args(Order)}, got {order!r}")
    weight = weight.astype(np.float64)
    key = np.abs(weight).max(0) if order == "weight" else np.sqrt(rates * (1 - rates)) * weight.std(0)
    return np.argsort(-key, kind="stable")


def most_important(codes: Codes) -> Int64[np.ndarray, " concepts"]:
    """`by_importance` with the rates of the labelled training images."""
    return by_importance(codes.weight, training_means(codes))


def accuracies(
    codes: Codes,
    order: Int64[np.ndarray, " concepts"],
    means: Float[np.ndarray, " concepts"],
    counts: Int64[np.ndarray, " points"],
) -> Float[np.ndarray, " points"]:
    """Accuracy from the first k concepts of an order, for each k.

    logits_k = b + sum of w_j c_j over the first k + sum of w_j mean_j over the others. A concept taken out leaves its
    mean behind, so that the bias stays right; as 0 it would shift every class that counts on it.

    Args:
        codes: labelled images.
        order: concept numbers. means: [C] what stands for a concept that is taken out.
        counts: the k, ascending, each in [0, C].

    Returns:
        float64 [points]; memory is bounded by a chunk of images.
    """
    ordered = codes.weight[:, order].astype(np.float64)
    rest = np.concatenate(
        [np.zeros((len(codes.bias), 1)), np.cumsum((ordered * means[order])[:, ::-1], axis=1)], axis=1
    )
    constant = (codes.bias[:, None] + rest[:, ::-1]).T.astype(np.float32)  # [C + 1, K]
    weight = np.ascontiguousarray(ordered.T, dtype=np.float32)
    correct = np.zeros(len(counts), dtype=np.int64)
    for start in range(0, len(codes), CHUNK):
        rows = slice(start, start + CHUNK)
        bits = codes.unpack(rows).T[order].astype(np.float32)  # a concept a row: a block is one piece of memory
        labels = codes.labels[rows]
        known = np.zeros((bits.shape[1], len(codes.bias)), dtype=np.float32)
        before = 0
        for place, k in enumerate(counts.tolist()):
            if k > before:
                known += bits[before:k].T @ weight[before:k]
            correct[place] += np.count_nonzero((known + constant[k]).argmax(1) == labels)
            before = k
    return correct / len(codes)


def completeness(
    codes: Codes, means: Float[np.ndarray, " concepts"], *, points: int | None = None, within: float = 0.5
) -> dict[str, Any]:
    """Both orders' curves, k -> accuracy, with the smallest k from which on accuracy stays near the full network's.

    Args:
        codes: labelled images to score.
        means: [C] of the fitted part.
        points: how many k besides 0, spaced evenly on a logarithmic scale; default: every k, fewer where
            images times k pass 20 million.
        within: tolerance in points of accuracy.

    Returns:
        {"k": [...], "within": points, "spread": {"accuracy": [...], "enough": k}, "weight": {...}}; of the k measured.

    Raises:
        ConceptError: points < 1, or within < 0 or not finite.
    """
    if (points is not None and points < 1) or not 0 <= within < np.inf:
        raise ConceptError(f"expected points >= 1 and a finite within >= 0, got {points} and {within}")
    count = codes.concepts
    most = max(1, READ // len(codes)) if points is None else points
    grid = np.arange(1, count + 1) if most >= count else np.round(np.geomspace(1, count, most)).astype(np.int64)
    counts = np.unique(np.concatenate([[0, count], grid]))
    result: dict[str, Any] = {"k": counts.tolist(), "within": within}
    for order in get_args(Order):
        curve = accuracies(codes, by_importance(codes.weight, means, order), means, counts)
        low = np.flatnonzero(curve < curve[-1] - within / 100 - 1e-12)
        enough = counts[low[-1] + 1 if len(low) else 0]
        result[order] = {"accuracy": curve.tolist(), "enough": int(enough)}
    return result
