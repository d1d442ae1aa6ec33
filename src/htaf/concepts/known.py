"""How far images are from those that a network learned from: the angle between what its backbone gives of them.

A run keeps for this, in known.safetensors, what the backbone gives of its training images, their names, and how far
validation images are from the nearest of them.
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
from htaf.concepts.extract import choose_device
from htaf.data.images import ImagePreprocessor, Images, Part
from htaf.training.runs import Run
from htaf.training.runs.features import BATCH, FeatureStore, key_of
from htaf.training.runs.run import rows_of

FILE = "known.safetensors"
KEPT, CALIBRATING = 10_000, 1_000  # training and validation images, of more some evenly spread
CHUNK = 1_000  # images whose distances to all kept ones are in memory
FAR = 0.99  # share of the validation images that are nearer to a training image


@dataclass(frozen=True, eq=False)
class Known:
    """The training images of a run, as its backbone sees them.

    Attributes:
        features: [N, F], each of length 1. ids: their N names.
        distances: of validation images to the nearest of these, ascending.
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
        distances, rows = np.empty((len(features), k), np.float32), np.empty((len(features), k), np.int64)
        for start in range(0, len(features), CHUNK):
            some = slice(start, start + CHUNK)
            cosine = _of_length_1(features[some]) @ self.features.T
            own = np.arange(len(cosine))
            for place in range(k):  # a few: to sort them all takes 6 times the product
                rows[some, place] = best = cosine.argmax(1)
                distances[some, place] = (1 - cosine[own, best]).clip(0)
                cosine[own, best] = -np.inf
        return distances, rows

    def unlike(self, distances: Float32[np.ndarray, " images"]) -> Float64[np.ndarray, " images"]:
        """Of images that are so far from the nearest training image: the share of validation images that are nearer."""
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
    chosen = [_spread(rows[part][1], most) for part, most in (("train", KEPT), ("validation", CALIBRATING))]
    if not all(map(len, chosen)) or _metadata(run) is not None:
        return
    found = _features(run, images.train, torch.cat(chosen), progress)
    learned, held = np.split(_of_length_1(found), [len(chosen[0])])
    learned = learned.astype(np.float16)
    names = images.train.names
    ids = [f"train/{row}" if names is None else names[row] for row in chosen[0].tolist()]
    distances = Known(learned.astype(np.float32), ids, np.empty(0, np.float32)).nearest(held)[0][:, 0]
    kept = {"features": learned, "distances": np.sort(distances)}
    said = {"ids": json.dumps(ids), "model_sha256": run.record["model_sha256"]}
    write_atomic(run.path / FILE, safetensors.numpy.save(kept, said))


def open_known(run: Run) -> Known | None:
    """Open what a run keeps of its training images; None where it keeps nothing.

    Raises:
        ConceptError: the file is damaged.
    """
    said = _metadata(run)
    if said is None:
        return None
    try:
        found, ids = safetensors.numpy.load_file(run.path / FILE), json.loads(said["ids"])
        features, distances = found["features"].astype(np.float32), found["distances"]
        if features.ndim != 2 or len(features) != len(ids) or not len(ids) or not len(distances):
            raise ValueError("other sizes")
        return Known(features, [str(name) for name in ids], distances.astype(np.float32))
    except (ValueError, KeyError, TypeError, OSError, safetensors.SafetensorError):
        raise _damaged(run) from None


def _damaged(run: Run) -> ConceptError:
    return ConceptError(f"{run.path / FILE} is damaged: delete it, and give the command of the training again")


def _metadata(run: Run) -> dict[str, str] | None:
    """Return what the file says beside its arrays; None where there is no file, or it is of another training."""
    file = run.path / FILE
    if not file.is_file():
        return None
    try:
        with safe_open(regular(file), "numpy") as opened:
            said = opened.metadata() or {}
    except (OSError, safetensors.SafetensorError):
        raise _damaged(run) from None
    return said if said.get("model_sha256") == run.record["model_sha256"] else None


def _of_length_1(values: Float32[np.ndarray, "n f"]) -> Float32[np.ndarray, "n f"]:
    return values / np.linalg.norm(values, axis=1, keepdims=True).clip(1e-12)


def _spread(rows: Tensor, most: int) -> Tensor:
    return rows[torch.linspace(0, len(rows) - 1, min(most, len(rows))).round().long()]


@torch.no_grad()
def _features(run: Run, part: Part, rows: Tensor, progress: bool) -> Float32[np.ndarray, "rows f"]:
    """Return what the backbone gives of these rows, as it is kept of a frozen one, else computed."""
    net: Any = run.model()
    known = run.preprocessor()
    assert isinstance(known, ImagePreprocessor)
    if run.record["model"].get("freeze"):
        store = FeatureStore.kept(key_of(net, run.record["model"], known, part, part.fingerprint()), rows)
        if store is not None:
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
