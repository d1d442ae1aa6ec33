"""The backbone of an ICBM: where its first weights come from, and its features where it is frozen.

What a frozen backbone gives of images is computed once and kept on disk for all trainings that ask for the same:

    features.npy    float32 [images, F], memory-mapped
    checks.npy      uint32 [images], CRC-32 of each row's bytes; 0: not computed yet

A row counts where its check does, so a computation that was killed anywhere is continued, and a damaged row is computed
again. The folder lies in the cache (XDG_CACHE_HOME/htaf/features, or ~/.cache/htaf/features) and may be deleted.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from filelock import FileLock
from jaxtyping import Float32, Int64
from numpy.lib.format import open_memmap
from torch import Tensor, nn

from htaf._ground.console import progress as progress_of
from htaf._ground.errors import first_line, option
from htaf._ground.files import LOCK, cache_folder, naming
from htaf.data.images import ImagePreprocessor, Images
from htaf.data.images import Part as ImagePart
from htaf.data.parts import Keyed, Part
from htaf.models.backbone_weights import PLACES, find_weights, load_backbone, tensors_sha256
from htaf.models.build import backbone_description
from htaf.models.hub import asking_hub
from htaf.models.icbm import ICBM, timm_backbone, timm_configuration
from htaf.training.problems import Problem
from htaf.training.recipe import ImageData, Recipe
from htaf.training.runs.folder import RunError, content_hash

CHUNK = 8192  # rows of features at once where nothing is learned
Normalisation = tuple[tuple[float, ...], tuple[float, ...]]  # mean and deviation of each channel, in [0, 1]


def fingerprint(pretrained: str) -> dict[str, str]:
    """SHA-256 of the file that a backbone starts from, as part of a training's identity: what it holds counts, not
    where it lies. Empty where there is none.

    Args:
        pretrained: as the field of an ICBM's recipe.

    Raises:
        ValueError: no such file.
    """
    return {} if pretrained in ("", "hub") else {"pretrained_sha256": find_weights(pretrained).sha256()}


def start_from(net: ICBM, backbone: str, pretrained: str) -> dict[str, Any]:
    """Put the weights that a recipe names into the backbone of a network that it describes.

    Args:
        net: changed in place; projection, norm and head keep their first weights.
        backbone: its name. pretrained: "hub", or what `htaf.models.backbone_weights.find_weights` takes.

    Returns:
        Where they come from, as a record holds it: "from", and what is known of file, checksum, package, licence.

    Raises:
        ValueError: the weights cannot be had, or are another architecture's.
    """
    if pretrained != "hub":
        source = find_weights(pretrained)
        how = load_backbone(net.backbone, pretrained)
        return {"from": "file", **source.described(), "matched": how, "tensors_sha256": tensors_sha256(net.backbone)}
    try:
        with asking_hub(backbone):
            whole = timm_backbone(backbone, net.channels, net.backbone_size, pretrained=True)
    except Exception as error:  # a hub that is out of reach raises nearly everything
        raise ValueError(
            f"the weights of {backbone} cannot be had from its hub: {first_line(error)}. Supply them: "
            f"{option('--pretrained', 'pretrained')} with {PLACES}"
        ) from None
    net.backbone.load_state_dict(whole.state_dict())
    found = timm_configuration(backbone)
    known = {"url": found.get("hf_hub_id") or found.get("url"), "licence": found.get("license")}
    known = {key: value for key, value in known.items() if value}
    return {"from": "hub", **known, "tensors_sha256": tensors_sha256(net.backbone)}


def normalisation(backbone: str, pretrained: str, channels: int) -> Normalisation | None:
    """The mean and deviation that images had when the first weights were trained; None where nothing says it.

    Args:
        backbone, pretrained: as the fields of an ICBM's recipe. channels: of the images; one gets the mean of three.

    Returns:
        mean and deviation of each channel, in the unit in which white is 1.
    """
    if not pretrained:
        return None
    if pretrained != "hub" and Path(pretrained).is_dir():
        return _as_pair(_of_run(Path(pretrained)), channels)
    if backbone_description(backbone, {"depth": 0, "width": 0, "stem": "", "dropout": 0.0})["kind"] != "timm":
        return None
    found = timm_configuration(backbone)
    return _as_pair((found.get("mean"), found.get("std")), channels)


def _of_run(folder: Path) -> tuple[Any, Any]:
    try:
        content = json.loads((folder / "preprocessing.json").read_text())
        return content["mean"], content["std"]
    except (OSError, ValueError, KeyError, TypeError):
        return None, None


def _as_pair(given: tuple[Any, Any], channels: int) -> Normalisation | None:
    """Values for so many channels; None where they are none."""
    if not all(isinstance(part, list | tuple) and all(type(v) in (int, float) for v in part) for part in given):
        return None
    mean, std = (tuple(map(float, part)) for part in given)
    if channels == 1 and len(mean) == len(std) == 3:
        mean, std = (sum(mean) / 3,), (sum(std) / 3,)
    if len(mean) != channels or len(std) != channels or min(std) <= 0:
        return None
    return mean, std


def learns_from_features(recipe: Recipe) -> bool:
    """Whether a training asks for the features of a frozen backbone on images that are the same in every epoch.

    Args:
        recipe: with an augment that is settled, see `htaf.training.problems.resolved`.
    """
    return recipe.network.frozen and isinstance(recipe.data, ImageData) and recipe.data.augment == "none"


def on_features(
    posed: Problem,
    images: Images,
    net: ICBM,
    model: dict[str, Any],
    *,
    device: str = "cpu",
    progress: bool = False,
) -> tuple[Problem, Callable[[nn.Module], None]]:
    """The same problem, whose inputs are what the backbone gives of the images; the network loses the backbone.

    Args:
        posed: the problem on images. images: the set.
        net: changed in place: it takes features alone.
        model: its description. device: where the features are computed.

    Returns:
        The problem, and what gives a network its backbone back.

    Raises:
        RunError: the backbone gives NaN. DataError: an image is gone.
    """
    preprocessor = posed.preprocessor
    assert isinstance(preprocessor, ImagePreprocessor)
    with torch.no_grad():
        training = net.training
        width = net.eval().features(torch.zeros(1, net.channels, *net.image_size)).shape[1]
        net.train(training)  # dropout and the norm of the concepts learn in training mode
    sides = [("train", images.train)] + ([] if posed.test is None else [("test", images.test)])
    known = {side: key_of(net, model, preprocessor, part, part.fingerprint()) for side, part in sides}

    def stored(side: str, rows: Tensor) -> FeatureBatches:
        store, part = FeatureStore(known[side], width), getattr(images, side)
        what = f"features of {side} images"
        fill(store, net, part, preprocessor, rows, device=device, progress=progress, label=what)
        return FeatureBatches(store, part.labels)

    learned, held = posed.train.rows, posed.validation.rows
    plain = stored("train", torch.cat([learned, held]).sort().values)
    validation = Part(plain, held, CHUNK)
    posed = replace(
        posed,
        train=Part(plain, learned, CHUNK),
        validation=validation,
        statistics=validation,
        plain=Part(plain, (posed.plain or posed.train).rows, CHUNK),
    )
    if posed.test is not None:
        posed = replace(posed, test=Part(stored("test", posed.test.rows), posed.test.rows, CHUNK))
    backbone, net.backbone = net.backbone, nn.Identity()

    def restore(net: nn.Module) -> None:
        assert isinstance(net, ICBM)
        net.backbone = backbone

    return posed, restore


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
    net: nn.Module, model: Mapping[str, Any], preprocessor: ImagePreprocessor, part: ImagePart, fingerprint: str
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
        self.folder = folder_of(key)
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
    part: ImagePart,
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
