"""How many concepts a class and a decision draw on: NEC and NCC of a linear head."""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Float

from htaf.concepts.codes import Codes, ConceptError
from htaf.concepts.store import Features

COVERAGE = 0.95  # of what is added to a logit, as NCC's source has it
CELLS = 2**22  # contributions sorted at once: some 100 MB
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
