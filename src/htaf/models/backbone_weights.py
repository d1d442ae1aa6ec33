"""Weights of a backbone from a local file."""

from __future__ import annotations

import functools
import hashlib
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor, nn

from htaf._ground.compat import no_trace
from htaf._ground.errors import first_line
from htaf._ground.files import file_sha256

SUFFIXES = (".safetensors", ".pth", ".pt", ".bin")
PLACES = "a file of weights (.safetensors, .pth, .pt), a run folder or the name of an installed package of weights"
_CLASSIFIERS = ("head", "fc", "classifier", "last_linear", "head_dist", "heads")
_COUNTER = "num_batches_tracked"  # of a batch norm; old files lack it


@dataclass(frozen=True)
class WeightsSource:
    """A file of weights that lies on this machine, and what is known of it.

    Attributes:
        path: the file. package: name and version of the package that it comes with, "" where there is none.
        licence: as the package says it, "" where nothing does.
    """

    path: Path
    package: str = ""
    licence: str = ""

    def sha256(self) -> str:
        """Of its content, in hexadecimal digits."""
        stat = self.path.stat()
        return _digest(self.path, stat.st_mtime_ns, stat.st_size)

    def described(self) -> dict[str, str]:
        """File, checksum, package and licence, as a record holds them."""
        found = {"file": self.path.name, "sha256": self.sha256(), "package": self.package, "licence": self.licence}
        return {name: value for name, value in found.items() if value}


@functools.lru_cache(maxsize=16)
def _digest(path: Path, changed: int, size: int) -> str:
    return file_sha256(path)


def find_weights(place: str | Path) -> WeightsSource:
    """What a place of weights means: a file, a run folder, whose smooth network is meant, or the name of an installed
    package with one file of weights. No code of a package is run.

    Raises:
        ValueError: none of these; the message says how to supply a file.
    """
    path = Path(place)
    file = path / "model.safetensors" if path.is_dir() else path
    own = path / "smooth.safetensors"  # of a run whose exact network was changed after it was hardened
    file = own if own.is_file() else file
    if file.is_file():
        return WeightsSource(file)
    if found := _in_package(str(place)):
        return found
    raise ValueError(
        f"pretrained: expected hub, {PLACES}, got {str(place)!r:.200}, which is neither a file nor installed"
    )


def _in_package(name: str) -> WeightsSource | None:
    """The weights of an installed package; None where none has this name."""
    try:
        package = metadata.distribution(name)
    except (metadata.PackageNotFoundError, ValueError):  # ValueError: no name at all
        return None
    files = [file for file in package.files or () if file.name.endswith(SUFFIXES)]
    if len(files) != 1:
        came = f"{len(files)}: {', '.join(map(str, files[:5]))}" if files else "none"
        raise ValueError(
            f"pretrained: expected one file of weights ({', '.join(SUFFIXES)}) in the package {name}, got {came}"
        )
    about = dict(package.metadata.items())  # pyright: ignore[reportAttributeAccessIssue]
    path = Path(str(package.locate_file(files[0])))
    if not path.is_file():
        raise ValueError(f"pretrained: {path} of the package {name} is missing: install it again")
    text = next((file.read_text() for file in package.files or () if file.name == "LICENSE"), "")
    return WeightsSource(path, f"{about['Name']} {package.version}", _licence(about, text))


def _licence(about: Mapping[str, Any], text: str) -> str:
    """As the metadata of a package say it, else the first line of its licence."""
    for key in ("License-Expression", "License"):
        if (found := str(about.get(key) or "").strip()) and found != "UNKNOWN":
            return found.splitlines()[0][:200]
    return next((line.strip()[:200] for line in text.splitlines() if line.strip()), "")


def read_weights(source: WeightsSource | str | Path) -> dict[str, Tensor]:
    """A state dict from .safetensors, or from .pt, .pth and .bin as plain tensors (no code is run).

    Args:
        source: from `find_weights`, or what it takes.

    Raises:
        ValueError: the file cannot be read or holds something else.
    """
    path = (source if isinstance(source, WeightsSource) else find_weights(source)).path
    try:
        if path.suffix == ".safetensors":
            return safetensors.torch.load_file(path)
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:  # torch stores what it saves as it is
                packed = [one.filename for one in archive.infolist() if one.compress_type != zipfile.ZIP_STORED]
            if packed:
                raise ValueError(f"{packed[0]} is compressed")
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # readers raise nearly everything on damaged files
        why = "" if isinstance(error, KeyError) else f" ({first_line(error).split('. ')[0]:.120})"
        raise ValueError(
            f"pretrained: {path} cannot be read as weights: it is cut short, or holds more than tensors{why}; "
            "expected .safetensors, or what torch.save(model.state_dict(), FILE) writes"
        ) from None
    for key in ("state_dict", "model", "net"):
        if isinstance(content, dict) and isinstance(content.get(key), dict):
            content = content[key]
    if not isinstance(content, dict) or not all(isinstance(v, Tensor) for v in content.values()) or not content:
        other = [v for v in content.values() if not isinstance(v, Tensor)] if isinstance(content, dict) else [content]
        found = type(other[0]).__name__ if other else "nothing"
        raise ValueError(
            f"pretrained: expected a state dict of tensors in {path}, got {found}: save one with "
            "torch.save(model.state_dict(), FILE)"
        )
    return content


def tensors_sha256(net: nn.Module) -> str:
    """SHA-256 of the names, types, shapes and bytes of a network's state dict, in hexadecimal digits."""
    digest = hashlib.sha256()
    for name, value in net.state_dict().items():
        plain = value.detach().cpu().contiguous()
        digest.update(f"{name} {plain.dtype} {[*plain.shape]}\n".encode())
        digest.update(plain.flatten().view(torch.uint8).numpy().data if plain.numel() else b"")
    return digest.hexdigest()


def load_backbone(backbone: nn.Module, place: str | Path) -> str:
    """Put weights from a file into a backbone; a classifier in the file is left out.

    Tensors are found by their names, which may have a prefix, such as "backbone." in an ICBM's run. Where another
    library has named them, they are taken in their order, if kind (weight, bias, running_mean, ...) and shape of every
    tensor are the same. Position embeddings of a timm ViT for images of another size are resampled.

    Args:
        backbone: changed in place.
        place: as `find_weights` takes it.

    Returns:
        How the tensors were found: "by name" or "by order".

    Raises:
        ValueError: the weights are another architecture's: the message names what is missing, left over or of another
            shape; the backbone is as it was.
    """
    whole, wanted = read_weights(place), backbone.state_dict()
    state = _prefixed(whole, wanted)
    state |= {k: v for k, v in wanted.items() if k.endswith(_COUNTER) and k not in state}
    _resample(backbone, state, wanted)
    missing = sorted(wanted.keys() - state.keys())
    left = sorted(k for k in state.keys() - wanted.keys() if k.split(".")[0] not in _CLASSIFIERS)
    shapes = [
        f"{k} {tuple(state[k].shape)} instead of {tuple(wanted[k].shape)}"
        for k in sorted(wanted.keys() & state.keys())
        if state[k].shape != wanted[k].shape
    ]
    if missing or left or shapes:
        ordered = _in_order(whole, wanted)
        if ordered is not None:
            backbone.load_state_dict(ordered)
            return "by order"
        parts = [
            f"{len(found)} {what} ({', '.join(found[:3])}{', ...' if len(found) > 3 else ''})"
            for what, found in (("missing", missing), ("left over", left), ("of another shape", shapes))
            if found
        ]
        raise ValueError(f"pretrained: {place} holds the weights of another architecture: {'; '.join(parts)}")
    backbone.load_state_dict({key: state[key] for key in wanted})
    return "by name"


def _prefixed(state: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors behind the prefix with which most of the wanted names are found."""
    first = next(iter(wanted))
    prefixes = {key.removesuffix(first) for key in state if key.endswith(first)}
    inside = [{k.removeprefix(p): v for k, v in state.items() if k.startswith(p)} for p in sorted(prefixes)]
    return dict(max(inside, key=lambda found: len(found.keys() & wanted.keys()), default=state))


def _in_order(state: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> dict[str, Tensor] | None:
    """The tensors of another naming by their order, and a classifier behind them left out; None where they differ."""

    def kind(key: str) -> str:
        return key.rpartition(".")[2]

    counted = any(kind(key) == _COUNTER for key in state)
    names = [name for name in wanted if counted or kind(name) != _COUNTER]
    given = list(state.items())
    rest = [kind(key) for key, _ in given[len(names) :]]
    if len(given) < len(names) or rest not in ([], ["weight"], ["weight", "bias"]):
        return None
    pairs = list(zip(names, given, strict=False))
    if any(kind(name) != kind(key) or wanted[name].shape != value.shape for name, (key, value) in pairs):
        return None
    return {**wanted, **{name: value for name, (_, value) in pairs}}


def _resample(backbone: nn.Module, state: dict[str, Tensor], wanted: Mapping[str, Tensor]) -> None:
    """Bring the position embedding of a timm ViT to the grid of this backbone."""
    key, grid = "pos_embed", getattr(getattr(backbone, "patch_embed", None), "grid_size", None)
    if grid is None or key not in state or key not in wanted or state[key].shape == wanted[key].shape:
        return
    if state[key].ndim != 3 or state[key].shape[2] != wanted[key].shape[2]:
        return
    with no_trace():
        from timm.layers.pos_embed import resample_abs_pos_embed

    prefix: Any = 0 if getattr(backbone, "no_embed_class", False) else getattr(backbone, "num_prefix_tokens", 1)
    state[key] = resample_abs_pos_embed(state[key], list(grid), num_prefix_tokens=prefix)
