"""How far images are from those that a network learned from: the angle between what its backbone gives of them.

A run keeps for this, in known.safetensors, what the backbone gives of its training images, their names, and how far
usual images are from the nearest of them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import safetensors.numpy
import torch
from jaxtyping import Float32, Float64, Int64
from safetensors import safe_open
from torch import Tensor, nn

from htaf._ground.console import progress as progress_of
from htaf._ground.files import regular, write_atomic
from htaf.concepts.codes import ConceptError
from htaf.concepts.extract import choose_device, ids_of, kept_store
from htaf.concepts.finding import evenly
from htaf.concepts.where import Pictures
from htaf.data.images import ImagePreprocessor, Images, Part
from htaf.training.runs import Run
from htaf.training.runs.features import BATCH
from htaf.training.runs.run import rows_of

FILE = "known.safetensors"
KEPT, CALIBRATING = 10_000, 1_000  # training and validation images, of more some evenly spread
CHUNK = 1_000  # images whose distances to all kept ones are in memory
FAR = 0.99  # share of the calibrating images that are nearer to a training image
ENOUGH = 99  # calibrating images: with fewer a usual image is the farthest of all in more than one case in a hundred


@dataclass(frozen=True, eq=False)
class Known:
    """The training images of a run, as its backbone sees them.

    Attributes:
        features: [N, F], each of length 1. ids: their N names.
        distances: of calibrating images to the nearest of these, ascending: of validation images, and where these are
            too few also of each of these to its nearest other one.
    """

    features: Float32[np.ndarray, "n f"]
    ids: Sequence[str]
    distances: Float32[np.ndarray, " validation"]

    def nearest(
        self, features: Float32[np.ndarray, "images f"], k: int = 1
    ) -> tuple[Float32[np.ndarray, "images k"], Int64[np.ndarray, "images k"]]:
        """Return the k nearest training images, at most all, of images of which the backbone gives these features.

        Returns:
            distances, 1 - the cosine of the angle, ascending, and rows of `ids`.
        """
        k = min(k, len(self.ids))
        found = [
            torch.from_numpy(_of_length_1(features[start : start + CHUNK]) @ self.features.T).topk(k)
            for start in range(0, len(features), CHUNK)
        ]
        distances = np.concatenate([np.empty((0, k), np.float32), *(1 - of.values.numpy() for of in found)]).clip(0)
        rows = np.concatenate([np.empty((0, k), np.int64), *(of.indices.numpy() for of in found)])
        return distances, rows

    def unlike(self, distances: Float32[np.ndarray, " images"]) -> Float64[np.ndarray, " images"]:
        """Of images that are so far from the nearest training image: share of calibrating images that are nearer."""
        return np.searchsorted(self.distances, distances) / len(self.distances)


@contextmanager
def watched(net: Any, seen: list[Tensor]) -> Iterator[None]:
    """Meanwhile what the backbone of an ICBM gives of each batch is appended to `seen`."""

    def see(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        seen.append(inputs[0].detach().float().cpu())

    handle = net.projection.register_forward_pre_hook(see)
    try:
        yield
    finally:
        handle.remove()


def keep_known(run: Run, images: Images, *, progress: bool = False) -> None:
    """Write the file of a run, unless it is there; without validation images there is none.

    Args:
        run: of `htaf train icbm`. images: those that it was trained on.
        progress: show a bar on the error stream.

    Raises:
        RunError: other images, or a damaged run. DataError: an image is gone. OSError: it cannot be written.
    """
    rows = rows_of(run, images)
    sides = ((rows[part][1], most) for part, most in (("train", KEPT), ("validation", CALIBRATING)))
    chosen = [of[evenly(len(of), most)] for of, most in sides]
    if not all(map(len, chosen)) or open_known(run) is not None:
        return
    found = _features(run, images.train, torch.cat(chosen), progress)
    learned, held = np.split(_of_length_1(found), [len(chosen[0])])
    learned = learned.astype(np.float16)
    ids = ids_of(images.train, "train", chosen[0])
    own = learned.astype(np.float32)
    known = Known(own, ids, np.empty(0, np.float32))
    distances = known.nearest(held)[0][:, 0]
    if len(held) < ENOUGH and len(own) > 1:
        distances = np.concatenate([distances, known.nearest(own, 2)[0][:, 1]])  # beside the image itself
    kept = {"features": learned, "distances": np.sort(distances)}
    said = {"ids": json.dumps(ids), "model_sha256": run.record["model_sha256"]}
    write_atomic(run.path / FILE, safetensors.numpy.save(kept, said))


def open_known(run: Run) -> Known | None:
    """Open what a run keeps of its training images; None where it keeps nothing, or that of another training.

    Raises:
        ConceptError: the file is damaged.
    """
    file = run.path / FILE
    if not file.is_file():
        return None
    try:
        with safe_open(regular(file), "numpy") as opened:
            said = opened.metadata() or {}
            if said.get("model_sha256") != run.record["model_sha256"]:
                return None
            features, distances = (opened.get_tensor(name).astype(np.float32) for name in ("features", "distances"))
        ids = [str(name) for name in json.loads(said["ids"])]
        if features.ndim != 2 or len(features) != len(ids) or not len(ids) or not len(distances):
            raise ValueError("other sizes")
    except (ValueError, KeyError, TypeError, OSError, safetensors.SafetensorError):
        raise ConceptError(f"{file} is damaged: delete it, and give the command of the training again") from None
    return Known(features, ids, distances)


def _of_length_1(values: Float32[np.ndarray, "n f"]) -> Float32[np.ndarray, "n f"]:
    return values / np.linalg.norm(values, axis=1, keepdims=True).clip(1e-12)


def kept_features(run: Run, pictures: Pictures, ids: Sequence[str]) -> Float32[np.ndarray, "images f"] | None:
    """Return what a frozen backbone gave of images, by their ids; None where not all of it is kept."""
    if not run.record["model"].get("freeze") or not isinstance(pictures.of, Images):
        return None
    places = [pictures.places.get(name) for name in ids]
    where, found = list[int](), list[np.ndarray]()
    for part in (pictures.of.train, pictures.of.test):
        here = {n: place[1] for n, place in enumerate(places) if place is not None and place[0] is part}
        rows = torch.tensor([*here.values()], dtype=torch.long)
        if here and (store := kept_store(run, part, rows)) is not None:
            where += here
            found.append(store.batch(rows).numpy())
    return np.concatenate(found)[np.argsort(where)] if len(where) == len(ids) and where else None


@torch.no_grad()
def _features(run: Run, part: Part, rows: Tensor, progress: bool) -> Float32[np.ndarray, "rows f"]:
    """Return what the backbone gives of these rows, as it is kept of a frozen one, else computed."""
    net: Any = run.model()
    known = run.preprocessor()
    assert isinstance(known, ImagePreprocessor)
    if run.record["model"].get("freeze") and (store := kept_store(run, part, rows)) is not None:
        return store.batch(rows).numpy()
    on = choose_device("auto")
    net = net.to(on)
    found: list[Tensor] = []
    with progress_of("distances to the training images", len(rows), shown=progress) as advance:
        for some in rows.split(BATCH):
            x = known.normalise(part.batch(some).to(on)).contiguous(memory_format=torch.channels_last)
            found.append(net.features(x).float().cpu())
            advance(len(some))
    return torch.cat(found).numpy()
