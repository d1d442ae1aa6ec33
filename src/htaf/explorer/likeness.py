"""How far the images of a page are from those of the training, and which of these are nearest."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float32

from htaf.concepts.codes import Codes
from htaf.concepts.known import FAR, Known
from htaf.explorer.scripts import packed

NEAREST = 3  # training images beside an image
PICTURED = 2_000  # training images with a thumbnail, at most


@dataclass(frozen=True, eq=False)
class Likeness:
    """known: the training images. features: what the backbone gives of images, by their ids."""

    known: Known
    features: Callable[[Sequence[str]], Float32[np.ndarray, "images f"]]


def likeness_of(codes: Codes, shown: Codes, given: Likeness) -> tuple[dict[str, Any], np.ndarray, dict[str, Any]]:
    """What the head of a page says; of each image the share of validation images that are nearer; data/known.js: ids
    and labels (-1: not known) of training images, the nearest ones of the images that are least like them first, and of
    each image which are nearest, and how far."""
    distances, rows = given.known.nearest(given.features(shown.ids), NEAREST)
    unlike = given.known.unlike(distances[:, 0])
    some = list(dict.fromkeys(rows[np.argsort(-unlike, kind="stable")].T.ravel().tolist()))
    place = {row: at for at, row in enumerate(some)}
    ids = [given.known.ids[row] for row in some]
    named = set(ids)
    labels = {one: int(codes.labels[row]) for row in codes.rows("train").tolist() if (one := codes.ids[row]) in named}
    return (
        {"far": FAR, "validation": len(given.known.distances), "train": len(given.known.ids)},
        unlike.astype(np.float32),
        {"ids": ids, **packed({
            "labels": np.array([labels.get(one, -1) for one in ids], np.int32),
            "nearest": np.array([[place[row] for row in of] for of in rows.tolist()], np.int32),
            "distances": distances,
        })},
    )  # fmt: skip
