"""Weights of a backbone from a local file."""

from __future__ import annotations

from pathlib import Path

import safetensors.torch
import torch
from torch import Tensor, nn

from htaf._errors import first_line

_CLASSIFIERS = ("head", "fc", "classifier", "last_linear", "head_dist")


def weights_file(path: str | Path) -> Path:
    """The file of weights that a path means: itself, or of a run folder those of its smooth network.

    Raises:
        ValueError: neither.
    """
    path = Path(path)
    file = path / "model.safetensors" if path.is_dir() else path
    own = path / "smooth.safetensors"  # of a run whose exact network was changed after it was hardened
    file = own if own.is_file() else file
    if not file.is_file():
        raise ValueError(f"pretrained: expected hub, a file of weights or a run folder, got {path}")
    return file


def read_weights(path: str | Path) -> dict[str, Tensor]:
    """A state dict from .safetensors, or from .pt and .pth as plain tensors (no code is run).

    Raises:
        ValueError: the file cannot be read or holds something else.
    """
    file = weights_file(path)
    try:
        if file.suffix == ".safetensors":
            return safetensors.torch.load(file.read_bytes())
        content = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # readers raise nearly everything on damaged files
        raise ValueError(f"pretrained: {file} cannot be read as weights: {first_line(error)}") from None
    for key in ("state_dict", "model", "net"):
        if isinstance(content, dict) and isinstance(content.get(key), dict):
            content = content[key]
    if not isinstance(content, dict) or not all(isinstance(v, Tensor) for v in content.values()) or not content:
        raise ValueError(f"pretrained: expected a state dict of tensors in {file}, got {type(content).__name__}")
    return content


def load_backbone(backbone: nn.Module, path: str | Path) -> None:
    """Put weights from a file into a backbone. Keys may have a prefix, such as "backbone." in an ICBM's run; a
    classifier in the file is left out.

    Args:
        backbone: changed in place.
        path: a .safetensors, .pt or .pth file, or a run folder.

    Raises:
        ValueError: the weights are another architecture's: the message names what is missing, left over or of another
            shape; the backbone is as it was.
    """
    state, wanted = read_weights(path), backbone.state_dict()
    first = next(iter(wanted))
    prefixes = {key.removesuffix(first) for key in state if key.endswith(first)}
    inside = [{k.removeprefix(p): v for k, v in state.items() if k.startswith(p)} for p in sorted(prefixes)]
    state = max(inside, key=lambda found: len(found.keys() & wanted.keys()), default=state)
    missing = sorted(wanted.keys() - state.keys())
    left = sorted(k for k in state.keys() - wanted.keys() if k.split(".")[0] not in _CLASSIFIERS)
    shapes = [
        f"{k} {tuple(state[k].shape)} instead of {tuple(wanted[k].shape)}"
        for k in sorted(wanted.keys() & state.keys())
        if state[k].shape != wanted[k].shape
    ]
    if missing or left or shapes:
        parts = [
            f"{len(found)} {what} ({', '.join(found[:3])}{', ...' if len(found) > 3 else ''})"
            for what, found in (("missing", missing), ("left over", left), ("of another shape", shapes))
            if found
        ]
        raise ValueError(f"pretrained: {path} holds the weights of another architecture: {'; '.join(parts)}")
    backbone.load_state_dict({key: state[key] for key in wanted})
