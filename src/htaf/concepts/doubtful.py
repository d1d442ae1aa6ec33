"""Images whose labels are doubtful: near-copies with different labels, and images that are like another class.

Both are found from numbers of the images, such as what a frozen backbone gives of them, and from the labels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Float, Float32, Float64, Int32, Int64

from htaf.concepts.codes import PARTS, Codes
from htaf.concepts.finding import evenly, ridge

MOST = 20_000  # images that are compared; of more some evenly spread
FEWEST = 20  # images, of fewer nothing can be said
CHUNK = 1_000  # images whose distances to all others are in memory
COPY = 0.5  # of the usual distance to the nearest image: nearer ones are copies
EQUAL = 1e-6  # distance of images whose numbers are the same but for rounding
LEAD = 0.3  # by which another class must be ahead of the label, where the targets are 0 and 1
NEIGHBOURS, AGREEING = 5, 3  # nearest training images; how many more of them must have the other class
PENALTY = 1.0  # of the ridge regression, in mean eigenvalues


@dataclass(frozen=True)
class Doubt:
    """An image whose label is doubtful, and the image that speaks against it.

    Attributes:
        kind: "copy": they are near-copies, and their labels differ. "class": the image is like those of another class.
        row, like: of the image and of the other one: its near-copy, or its nearest training image of that class.
        seems: the class that the image may be of.
        strength: of copies how much nearer they are than images usually are, in 0 to 1; else the lead of that class.
    """

    kind: Literal["copy", "class"]
    row: int
    like: int
    seems: int
    strength: float


def doubtful(codes: Codes, features: Float[np.ndarray, "images f"] | None) -> tuple[list[Doubt], int]:
    """Find images whose labels are doubtful, the surest first, copies before others.

    Near-copies: of two images with different labels the distance (1 - cosine) is at most half of what is usual: of the
    median distance of an image to its nearest, or of its own distance to the second nearest where that is more.

    Like another class, of images that are no copies: a ridge regression of the classes on the features that was fitted
    without the image puts another class ahead of its label by 0.3 or more, and of its five nearest training images
    three more have that class than have the label. Where the image is no training image, the network must predict that
    class too; a training image it was taught to take for its label.

    Args:
        codes: of the images; those without a label are left out.
        features: of all of them, such as a backbone's, or pre-activations; None: the bits, which find no near-copies,
            as images of one class often have equal bits.

    Returns:
        what was found, and how many images were compared: none where they are too few, or where most have a twin, as
        where bits only divide the classes.
    """
    rows = np.flatnonzero(np.asarray(codes.labels) >= 0)
    rows = rows[evenly(len(rows), MOST)]
    labels = np.asarray(codes.labels)[rows]
    if len(rows) < FEWEST or len(np.unique(labels)) < 2:
        return [], 0
    x = 2 * codes.unpack(rows).astype(np.float32) - 1 if features is None else np.asarray(features[rows], np.float32)
    unit = x / np.linalg.norm(x, axis=1, keepdims=True).clip(1e-12)
    nearest, others, far = _nearest(unit, labels)
    usual = float(np.median(nearest[:, 0]))
    if usual <= EQUAL:
        return [], 0
    limit = COPY * np.maximum(usual, nearest[:, 1]) if features is not None else np.full(len(x), -1.0)
    alone = {one.row: one for one in _of_other_class(codes, rows, unit, x)}
    copies = {(min(i, others[i]), max(i, others[i])): 1 - far[i] / limit[i] for i in np.flatnonzero(far <= limit)}
    found = list[Doubt]()
    for (i, j), near in copies.items():
        one, other = (j, i) if j in alone and i not in alone else (i, j)  # the one that is like another class too
        found.append(Doubt("copy", int(one), int(other), int(labels[other]), float(near)))
    copied = {row for one in found for row in (one.row, one.like)}
    found += [one for row, one in alone.items() if row not in copied]
    found.sort(key=lambda one: (one.kind != "copy", -one.strength, one.row))
    return [Doubt(one.kind, int(rows[one.row]), int(rows[one.like]), one.seems, one.strength) for one in found], len(x)


def _nearest(
    unit: Float32[np.ndarray, "n f"], labels: Int32[np.ndarray, " n"]
) -> tuple[Float64[np.ndarray, "n 2"], Int64[np.ndarray, " n"], Float64[np.ndarray, " n"]]:
    """Distances of each image to its two nearest; its nearest with another label, and the distance to that."""
    nearest, others, far = np.empty((len(unit), 2)), np.empty(len(unit), np.int64), np.empty(len(unit))
    for start in range(0, len(unit), CHUNK):
        some = slice(start, start + CHUNK)
        apart = (1 - unit[some] @ unit.T).clip(0)
        own = np.arange(len(apart))
        apart[own, start + own] = np.inf
        nearest[some] = np.partition(apart, 1, axis=1)[:, :2]
        apart[labels[some, None] == labels] = np.inf
        others[some] = apart.argmin(1)
        far[some] = apart[own, others[some]]
    return nearest, others, far


def _of_other_class(
    codes: Codes, rows: Int64[np.ndarray, " n"], unit: Float32[np.ndarray, "n f"], x: Float32[np.ndarray, "n f"]
) -> list[Doubt]:
    """Images that are like those of another class; rows of `unit`."""
    labels, exact = np.asarray(codes.labels)[rows], np.asarray(codes.exact)[rows]
    learned = np.asarray(codes.parts)[rows] == PARTS.index("train")
    taught = np.flatnonzero(learned)
    if len(taught) <= NEIGHBOURS:
        return []
    scale = x.std(0, dtype=np.float64)
    scale[scale <= EQUAL * np.abs(x).max(0)] = np.inf  # a column that is the same throughout tells nothing
    standard = (x - x.mean(0, dtype=np.float64)) / scale
    strength = PENALTY * max((standard**2).mean(), EQUAL) * len(x)
    scores = ridge(standard, np.eye(len(codes.classes))[labels], strength)[0]
    seems, own = scores.argmax(1), np.arange(len(rows))
    lead = scores[own, seems] - scores[own, labels]
    found = []
    for i in np.flatnonzero((lead >= LEAD) & (learned | (exact == seems))).tolist():
        near = taught[taught != i]
        near = near[np.argsort(-(unit[near] @ unit[i]), kind="stable")]
        of = labels[near[:NEIGHBOURS]]
        if (of == seems[i]).sum() - (of == labels[i]).sum() >= AGREEING:
            like = int(near[labels[near] == seems[i]][0])
            found.append(Doubt("class", i, like, int(seems[i]), float(lead[i])))
    return found
