"""Leakage: what a class is told by beyond the bits as they are named.

Three questions, each with a definition of the literature. The soft values against the bits: concepts-task leakage
(Parisini et al. 2025) and the accuracy that a soft bottleneck gains over a hard one (Mahinpei et al. 2021, Havasi et
al. 2022). All bits against those with a verified name: how much of the accuracy no name accounts for. A bit against the
attribute that it is named after: I(bit; class | attribute) (Makonnen et al. 2025).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float64, Int64

from htaf.concepts.codes import Codes, ConceptError, PartName
from htaf.concepts.counts import class_counts, class_sizes, labelled
from htaf.concepts.heads import CAP, STRENGTHS, balanced_rows, correct, fit_of, head_of
from htaf.concepts.store import Features
from htaf.data.attributes import Attributes
from htaf.transform.hardening.linear import Weights

NEIGHBOURS = 3  # of the estimate for soft values, as the source has it
MOST = 2000  # images of that estimate
DEFINITION = (
    "Soft: concepts-task leakage of concept j is max(0, (I(soft_j; class) - I(bit_j; class)) / H(class)) (Parisini et "
    "al. 2025), mean over concepts; soft values by nearest neighbours (Ross 2014), bits by counting, both less what "
    "the same estimate gives for permuted classes. Gain: accuracy of a logistic head on soft values less that of one "
    "on bits (Mahinpei et al. 2021, Havasi et al. 2022). Unnamed: accuracy of a logistic head on all bits less that of "
    "one on the bits with a verified name. Beyond the name: I(bit; class | attribute) / I(bit; class), the share of "
    "what a bit tells of the class that the attribute it is named after does not (Makonnen et al. 2025)."
)


def paired(difference: Float64[np.ndarray, " images"]) -> dict[str, Any]:
    """The mean of what each image differs by, with its 95% interval by the normal approximation."""
    mean, n = float(difference.mean()), len(difference)
    half = float(1.959964 * difference.std(ddof=1) / np.sqrt(n)) if n > 1 else float("nan")
    return {"difference": mean, "interval": [mean - half, mean + half]}


def entropy(sizes: Int64[np.ndarray, " classes"]) -> float:
    """H(class) in nats, of how many images each class has."""
    share = sizes[sizes > 0] / sizes.sum()
    return float(-(share * np.log(share)).sum())


def information(
    counts: Int64[np.ndarray, "concepts classes"], sizes: Int64[np.ndarray, " classes"]
) -> Float64[np.ndarray, " concepts"]:
    """I(bit; class) in nats of each concept, by counting: float64 [C], not corrected for few images.

    Args:
        counts: images of class k with bit c. sizes: images of each class.
    """
    present = sizes > 0
    n, joint = sizes.sum(), np.stack([counts[:, present], sizes[present] - counts[:, present]])
    expected = joint.sum(2, keepdims=True) * sizes[present] / n
    ratio = np.divide(joint, expected, out=np.ones(joint.shape), where=joint > 0)
    return np.maximum(0, (joint / n * np.log(ratio)).sum((0, 2)))


def soft_leakage(
    codes: Codes,
    features: Features,
    *,
    part: PartName = "test",
    cap: int = CAP,
    most: int = MOST,
    seed: int = 0,
) -> dict[str, Any]:
    """How much more of the class the pre-activations tell than the bits that the head reads.

    Args:
        codes: with labelled train and validation parts. features: pre-activations of the same images, one a concept.
        part: that is scored.
        cap: most training images to fit to. most: images of the part for the information. seed: of both draws.

    Returns:
        "ctl": mean over concepts; "per_concept" {"ctl", "soft", "bit": [C], as shares of H(class)}; "entropy" in nats;
        "images"; "accuracy" {"soft", "bits"} and "gain" {"difference", "interval"} of logistic heads.

    Raises:
        ConceptError: pre-activations of other images or of another number.
    """
    if features.values.shape != (len(codes), codes.concepts):
        expected = f"[{len(codes)}, {codes.concepts}]"
        raise ConceptError(f"expected pre-activations {expected}, as bits, got {list(features.values.shape)}")
    labelled(codes, part)  # there are some
    rows = _known(codes, part)
    rows = rows[balanced_rows(np.asarray(codes.labels)[rows], most, seed)]
    labels, values = np.asarray(codes.labels)[rows].astype(np.int64), np.asarray(features.values[rows], np.float64)
    if ((values >= 0) != codes.unpack(rows)).any():
        raise ConceptError("expected pre-activations whose signs are the bits, got others")
    whole = entropy(np.bincount(labels))
    shuffled = np.random.default_rng(seed).permutation(labels)
    bits, told = codes.unpack(rows).astype(np.int64), []
    for y in (labels, shuffled):
        sizes = np.bincount(y, minlength=len(codes.classes)).astype(np.int64)
        counts = np.zeros((codes.concepts, len(sizes)), np.int64)
        np.add.at(counts.T, y, bits)
        told.append((_neighbours(values, y, seed), information(counts, sizes)))
    soft, bit = (np.maximum(0, real - chance.mean()) for real, chance in zip(*told, strict=True))
    scale = whole if whole > 0 else 1.0
    ctl = np.maximum(0, soft - bit) / scale
    hits = {
        "soft": _right(replace(features, labels=codes.labels, parts=codes.parts), part, cap, seed),
        "bits": _right(codes, part, cap, seed),
    }
    return {
        "ctl": float(ctl.mean()),
        "per_concept": {"ctl": ctl.tolist(), "soft": (soft / scale).tolist(), "bit": (bit / scale).tolist()},
        "entropy": whole,
        "images": len(rows),
        "accuracy": {name: float(right.mean()) for name, right in hits.items()},
        "gain": paired(hits["soft"].astype(np.float64) - hits["bits"]),
    }


def named_leakage(
    codes: Codes,
    names: Sequence[Mapping[str, Any]],
    attributes: Attributes | None = None,
    *,
    part: PartName = "test",
    cap: int = CAP,
    seed: int = 0,
) -> dict[str, Any]:
    """How much of the accuracy, and of what each bit tells of the class, no name accounts for.

    Args:
        codes: with labelled train and validation parts.
        names: of the concepts, as `htaf.concepts.naming.files.read_names` gives them.
        attributes: of the classes; names that are an attribute's, or its negation's, are compared with it.
        part: that is scored. cap, seed: as `soft_leakage`.

    Returns:
        "verified": numbers of the concepts with a verified name; "accuracy" {"all", "verified"} of logistic heads
        ("verified": 0 bits give the most frequent class) and "unnamed" {"difference", "interval"}; "beyond": of each
        verified concept that is named after an attribute {"concept", "name", "information" (I(bit; class) / H(class)),
        "beyond" (the share of it that the name does not account for), None where the bit tells nothing}.
    """
    verified = sorted({int(entry["concept"]) for entry in names if entry.get("verified")})
    kept = np.array(verified, dtype=np.int64)
    every = _right(codes, part, cap, seed)
    some = _right(codes, part, cap, seed, kept)
    return {
        "verified": verified,
        "accuracy": {"all": float(every.mean()), "verified": float(some.mean())},
        "unnamed": paired(every.astype(np.float64) - some),
        "beyond": [] if attributes is None else _beyond(codes, names, attributes.of(codes.classes), part),
    }


def beyond(
    counts: Int64[np.ndarray, " classes"],
    sizes: Int64[np.ndarray, " classes"],
    has: Bool[np.ndarray, " classes"],
) -> tuple[float, float]:
    """I(bit; class) and I(bit; class | attribute) in nats, of one bit and an attribute that a class has or has not.

    As the class decides the attribute, I(bit; class) = I(bit; attribute) + I(bit; class | attribute). The second is
    less what chance gives, (classes - 1) / 2n on each side of the attribute (Miller 1955), and not below 0.

    Args:
        counts: images of each class with the bit. sizes: images of each class. has: whether a class has the attribute.
    """
    n = int(sizes.sum())
    within = 0.0
    for side in (has, ~has):
        images, classes = int(sizes[side].sum()), int((sizes[side] > 0).sum())
        if images and 0 < counts[side].sum() < images:
            within += images / n * float(information(counts[side][None], sizes[side])[0]) - (classes - 1) / (2 * n)
    between = information(
        np.array([[counts[has].sum(), counts[~has].sum()]]), np.array([sizes[has].sum(), sizes[~has].sum()])
    )
    within = max(0.0, within)
    return float(between[0]) + within, within


def _beyond(
    codes: Codes, names: Sequence[Mapping[str, Any]], attributes: Attributes, part: PartName
) -> list[dict[str, Any]]:
    scored = labelled(codes, part)
    counts, sizes = class_counts(scored), class_sizes(scored)
    place = {name: number for number, name in enumerate(attributes.names)}
    whole, found = entropy(sizes) or 1.0, []
    for entry in names:
        label = str(entry.get("name") or "").removeprefix("not ")  # a negation tells the same
        if not entry.get("verified") or label not in place:
            continue
        has = attributes.binary()[:, place[label]].astype(bool)
        told, rest = beyond(counts[int(entry["concept"])], sizes, has)
        about = {"concept": int(entry["concept"]), "name": entry["name"], "information": told / whole}
        found.append(about | {"beyond": rest / told if told > 0 else None})
    return found


def _known(codes: Codes, part: PartName) -> Int64[np.ndarray, " rows"]:
    """The rows of a part whose class is known."""
    rows = codes.rows(part)
    return rows[np.asarray(codes.labels)[rows] >= 0]


def _neighbours(
    values: Float64[np.ndarray, "images concepts"], labels: Int64[np.ndarray, " images"], seed: int
) -> Float64[np.ndarray, " concepts"]:
    """I(soft; class) in nats, Ross 2014."""
    from sklearn.feature_selection import mutual_info_classif

    options: Any = {"discrete_features": False, "n_neighbors": NEIGHBOURS, "random_state": seed}
    found = mutual_info_classif(values, labels, **options)
    return np.asarray(found, np.float64)


def _right(
    codes: Codes | Features, part: PartName, cap: int, seed: int, kept: Int64[np.ndarray, " kept"] | None = None
) -> Bool[np.ndarray, " scored"]:
    """Which images of a part a logistic head gets right that is fitted to some bits, or to soft values."""
    train, validation, scored = (labelled(codes, name) for name in ("train", "validation", part))
    fit = fit_of(train, cap, seed)
    support = torch.zeros(len(codes.classes), codes.concepts, dtype=torch.bool)
    support[:, slice(None) if kept is None else kept] = True

    def accuracy(weights: Weights) -> float:
        return float(correct(validation, head_of(fit, weights)).mean())

    return correct(scored, head_of(fit, fit.best(accuracy, STRENGTHS, fit.constant(len(support)), support)[2]))
