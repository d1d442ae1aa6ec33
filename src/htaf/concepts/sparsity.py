"""How many concepts a class and a decision draw on (NEC and NCC of a linear head), and how many suffice."""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Float, Int64

from htaf.concepts.codes import CHUNK, Codes, ConceptError
from htaf.concepts.counts import training_means
from htaf.concepts.store import Features

COVERAGE = 0.95  # of what is added to a logit, as NCC's source has it
CELLS = 2**22  # contributions sorted at once: some 100 MB
READ = 20_000_000  # predictions in a curve: seconds, however many images
WITHIN = 0.5  # points of accuracy
_LEAST = 1e-9  # of a logit's sum: what rounding adds


def effective(weight: Float[np.ndarray, "classes concepts"]) -> float:
    """The number of effective concepts, NEC: weights other than 0 of a class, mean over classes.

    Args:
        weight: [K, C] of a linear head.

    Source: Srivastava et al. 2024, VLG-CBM.
    """
    return float(np.count_nonzero(weight, axis=1).mean())


def contributing(
    weight: Float[np.ndarray, "classes concepts"],
    inputs: Float[np.ndarray, "images concepts"],
    bias: Float[np.ndarray, " classes"] | None = None,
    *,
    coverage: float = COVERAGE,
) -> dict[str, float]:
    """The number of contributing concepts, NCC: how many make up a share tau of what is added to a logit.

        NCC = mean over images i and classes k of min {m: sum of the m largest u_j >= tau sum_j u_j},
        u_j = |w_kj x_ij|

    A logit to which nothing is added counts 0. At tau = 1, with no input at 0, it is NEC.

    Args:
        weight: [K, C]. bias: [K], which only the predicted class depends on; None: 0.
        inputs: [N, C], what the head reads.
        coverage: tau, in (0, 1].

    Returns:
        "classes": the mean over all classes; "predicted": over the class with the largest logit of each image alone.

    Raises:
        ConceptError: a coverage out of range, or no images.

    Source: "Learning Concept Bottleneck Models from Mechanistic Explanations" (M-CBM, 2026); `PyC
    <https://github.com/pyc-team/pytorch_concepts>`_ has the same formula.
    """
    if not 0 < coverage <= 1:
        raise ConceptError(f"coverage must be > 0 and <= 1, got {coverage}")
    if not len(inputs):
        raise ConceptError("expected images, got none")
    classes, concepts = weight.shape
    wide, offset = weight.astype(np.float64), np.zeros(classes) if bias is None else bias
    used = [np.flatnonzero(line) for line in wide]
    step = max(1, CELLS // max(1, concepts))
    counted, of_predicted = 0, 0
    for start in range(0, len(inputs), step):
        values = inputs[start : start + step].astype(np.float64)
        predicted = (values @ wide.T + offset).argmax(1)
        for k, nodes in enumerate(used):
            if not len(nodes):
                continue
            largest = np.sort(np.abs(values[:, nodes] * wide[k, nodes]), axis=1)[:, ::-1]
            summed = largest.cumsum(1)
            total = summed[:, -1:]
            # a rounding of the sum must not ask for one more
            needed = (summed < coverage * total - _LEAST * total).sum(1) + (total[:, 0] > 0)
            counted += int(needed.sum())
            of_predicted += int(needed[predicted == k].sum())
    return {"classes": counted / (len(inputs) * classes), "predicted": of_predicted / len(inputs)}


def sparsity(
    codes: Codes | Features, means: Float[np.ndarray, " concepts"], *, coverage: float = COVERAGE, most: int = 500
) -> dict[str, Any]:
    """NEC and NCC of the head of some codes.

    NCC is taken of the bits, or soft values, less their means, w_kj (c_ij - mean_j): so a concept that an image lacks
    counts as well as one that it has, and the head reads the standardised concepts of the definition. A number moved
    from the bits to the bias would change it otherwise.

    Args:
        codes: the images that are counted.
        means: [C], such as the training part's.
        coverage: as `contributing`.
        most: images, evenly spaced, that NCC is counted on.

    Returns:
        "nec", "ncc" (over all classes), "ncc_predicted" (of the predicted class alone), "coverage", "images".
    """
    rows = np.unique(np.linspace(0, len(codes) - 1, min(len(codes), most)).astype(np.int64)) if len(codes) else []
    inputs = codes.unpack(np.asarray(rows, np.int64)).astype(np.float64) - means
    found = contributing(codes.weight, inputs, codes.bias + codes.weight @ means, coverage=coverage)
    return {
        "nec": effective(codes.weight),
        "ncc": found["classes"],
        "ncc_predicted": found["predicted"],
        "coverage": coverage,
        "images": len(rows),
    }


def by_importance(
    weight: Float[np.ndarray, "classes concepts"], rates: Float[np.ndarray, " concepts"]
) -> Int64[np.ndarray, " concepts"]:
    """Order concepts, the most important over all classes first; ties by number.

    The key is the standard deviation of what a concept adds to the logits: sqrt(r_j (1 - r_j)) times the root mean
    square over classes of w_kj - mean_k w_kj. A number added to w_kj for all k changes no prediction, nor this order.

    Args:
        weight: [K, C] of the head. rates: [C] share of images that have the concept.
    """
    key = np.sqrt(rates * (1 - rates)) * weight.astype(np.float64).std(0)
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


def completeness(codes: Codes, means: Float[np.ndarray, " concepts"]) -> dict[str, Any]:
    """Give the curve k -> accuracy, with the smallest k from which on accuracy stays near the full network's.

    Args:
        codes: labelled images to score.
        means: [C] of the fitted part.

    Returns:
        {"k": [...], "within": points, "accuracy": [...], "enough": k}; of every k, or of fewer, spaced evenly on a
        logarithmic scale, where images times k pass 20 million.
    """
    count = codes.concepts
    most = max(1, READ // len(codes))
    grid = np.arange(1, count + 1) if most >= count else np.round(np.geomspace(1, count, most)).astype(np.int64)
    counts = np.unique(np.concatenate([[0, count], grid]))
    curve = accuracies(codes, by_importance(codes.weight, means), means, counts)
    low = np.flatnonzero(curve < curve[-1] - WITHIN / 100 - 1e-12)
    enough = counts[low[-1] + 1 if len(low) else 0]
    return {"k": counts.tolist(), "within": WITHIN, "accuracy": curve.tolist(), "enough": int(enough)}
