"""What a frozen backbone gives of images, computed once and kept on disk for all trainings that ask for the same.

    features.npy    float32 [images, F], memory-mapped
    checks.npy      uint32 [images], CRC-32 of each row's bytes; 0: not computed yet

A row counts where its check does, so a computation that was killed anywhere is continued, and a damaged row is computed
again. The folder lies in the cache (XDG_CACHE_HOME/htaf/features, or ~/.cache/htaf/features) and may be deleted.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from filelock import FileLock
from jaxtyping import Float32, Int64
from numpy.lib.format import open_memmap
from torch import Tensor, nn

from htaf._ground.console import progress as progress_of
from htaf._ground.files import LOCK, cache_folder, naming
from htaf.data.images import ImagePreprocessor, Part
from htaf.data.parts import Keyed
from htaf.models.backbone_weights import tensors_sha256
from htaf.training.runs.folder import RunError, content_hash

FEATURES, CHECKS = "features.npy", "checks.npy"
BATCH = 64  # images at once; what one batch takes is the most that a kill costs


@dataclass(frozen=True)
class FeatureKey:
    """What features are of; equal keys mean equal features, up to the rounding of another machine.

    Attributes:
        weights: `tensors_sha256` of the backbone.
        backbone: its description. cut: whether its final activation is taken away.
        enlarge: (H, W) to which images are brought before it, or None.
        preprocessor: mean, deviation, size and channels.
        images: fingerprint of the part, and how many it has.
    """

    weights: str
    backbone: str
    cut: bool
    enlarge: tuple[int, int] | None
    preprocessor: tuple[Any, ...]
    images: str
    count: int


def key_of(
    net: nn.Module, model: Mapping[str, Any], preprocessor: ImagePreprocessor, part: Part, fingerprint: str
) -> FeatureKey:
    """The key of what the backbone of an ICBM gives of a part of a set, not augmented.

    Args:
        net: the ICBM. model: its description.
        fingerprint: of the part's images.
    """
    own: Any = net
    known = (preprocessor.mean, preprocessor.std, preprocessor.size, preprocessor.channels)
    described = content_hash(model["backbone"])
    return FeatureKey(tensors_sha256(own.backbone), described, own.cut, own.enlarge, known, fingerprint, len(part))


def folder_of(key: FeatureKey) -> Path:
    """Where features are kept."""
    return cache_folder() / "features" / content_hash(asdict(key))


class FeatureStore:
    """The features of one key, memory-mapped; a folder without them, or with parts of files, is begun anew.

    Args:
        key: what they are of. width: F.
    """

    def __init__(self, key: FeatureKey, width: int) -> None:
        self.key, self.folder = key, folder_of(key)
        self.folder.mkdir(parents=True, exist_ok=True)
        with self.alone():
            self.features = _mapped(self.folder / FEATURES, np.float32, (key.count, width))
            self.checks = _mapped(self.folder / CHECKS, np.uint32, (key.count,))

    @classmethod
    def kept(cls, key: FeatureKey, rows: Int64[Tensor, " rows"]) -> FeatureStore | None:
        """The features of a key, where those of all these rows are at hand; else None, and none are computed."""
        try:
            width = int(np.load(folder_of(key) / FEATURES, mmap_mode="r").shape[1])
        except (OSError, ValueError, EOFError, IndexError):
            return None
        store = cls(key, width)
        return None if len(store.missing(rows)) else store

    def alone(self) -> FileLock:
        """A context in which no other process writes here; it waits for one that does."""
        return FileLock(self.folder / LOCK)

    def missing(self, rows: Int64[Tensor, " rows"]) -> Int64[Tensor, " missing"]:
        """Those of the rows that are not there, or are damaged."""
        wanted = rows.numpy()
        found = np.array([_check(self.features[row]) for row in wanted], dtype=np.uint32)
        return rows[torch.from_numpy(found != self.checks[wanted])]

    def write(self, rows: Int64[Tensor, " rows"], values: Float32[Tensor, "rows width"]) -> None:
        """Keep features of rows, and their checks after them."""
        made = np.ascontiguousarray(values.numpy(), dtype=np.float32)
        self.features[rows.numpy()] = made
        self.checks[rows.numpy()] = [_check(row) for row in made]

    def flush(self) -> None:
        """Bring to the disk what was written."""
        for array in (self.features, self.checks):
            if isinstance(array, np.memmap):
                array.flush()

    def batch(self, rows: Int64[Tensor, " rows"]) -> Float32[Tensor, "rows width"]:
        """The features of these rows, as a copy."""
        return torch.from_numpy(np.array(self.features[rows.numpy()]))


def _mapped(file: Path, dtype: type, shape: tuple[int, ...]) -> np.ndarray:
    """An array in a file; of zeros where the file is missing, damaged, or of another shape."""
    try:
        found = np.load(file, mmap_mode="r+")
        if found.dtype == dtype and found.shape == shape:
            return found
    except (OSError, ValueError, EOFError):
        pass
    with naming(file):
        found = open_memmap(file, "w+", dtype, shape)
        if hasattr(os, "posix_fallocate"):  # where there is no room, to write a mapped file ends the process
            with file.open("r+b") as whole:
                os.posix_fallocate(whole.fileno(), 0, file.stat().st_size)
    return found


def _check(row: np.ndarray) -> int:
    return zlib.crc32(row.tobytes()) or 1


def fill(
    store: FeatureStore,
    net: nn.Module,
    part: Part,
    preprocessor: ImagePreprocessor,
    rows: Int64[Tensor, " rows"],
    *,
    device: str | torch.device = "cpu",
    progress: bool = False,
    label: str = "features",
) -> int:
    """Compute what a store lacks of some rows of a part; returns how many those were.

    Args:
        net: the ICBM, in eval mode. part, preprocessor: as the key of the store says.
        device: where the backbone runs. progress: show a bar on the error stream.

    Raises:
        RunError: the backbone gives NaN. DataError: an image is gone.
    """
    if not len(store.missing(rows)):
        return 0
    own: Any = net
    with store.alone(), _on(own, device):
        wanted = store.missing(rows)  # another process may just have made them
        with progress_of(label, len(rows), shown=progress, done=len(rows) - len(wanted)) as advance:
            for chosen in wanted.split(BATCH):
                store.write(chosen, _features(own, part.batch(chosen), preprocessor, device))
                advance(len(chosen))
        store.flush()
    return len(wanted)


@torch.no_grad()
def _features(net: Any, pixels: Tensor, preprocessor: ImagePreprocessor, device: str | torch.device) -> Tensor:
    x = preprocessor.normalise(pixels.to(device)).contiguous(memory_format=torch.channels_last)
    # a GPU's shorter mantissas would turn bits near the threshold
    with torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=False):
        found = net.features(x).float().cpu()
    if not torch.isfinite(found).all():
        raise RunError("expected finite features of the frozen backbone, got NaN or infinity: check its weights")
    return found


@contextmanager
def _on(net: Any, device: str | torch.device) -> Iterator[None]:
    """The network in eval mode on a device, and back where it was."""
    before, training = next(net.backbone.parameters()).device, net.backbone.training
    net.backbone.eval().to(device)
    try:
        yield
    finally:
        net.backbone.train(training).to(before)


@dataclass(frozen=True, eq=False)
class FeatureBatches:
    """Features of a part of a set as networks take them, indexed as images are.

    labels: int64 [images].
    """

    store: FeatureStore
    labels: Int64[Tensor, " images"]

    def __getitem__(self, index: Keyed) -> tuple[Tensor, Tensor]:
        return self.store.batch(index[0]), self.labels[index[0]]

    def targets(self, rows: Tensor) -> Tensor:
        return self.labels[rows]
