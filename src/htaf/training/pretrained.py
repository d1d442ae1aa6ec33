"""The first weights of a backbone: from a local file, a run, or a hub."""

from __future__ import annotations

import functools
import hashlib
from pathlib import Path

from htaf.models.backbone_weights import load_backbone, weights_file
from htaf.models.build import backbone_description
from htaf.models.icbm import ICBM, timm_backbone, transformers_backbone


def fingerprint(backbone: str, pretrained: str) -> dict[str, str]:
    """SHA-256 of the files that a backbone starts from, as part of a training's identity: what they hold counts, not
    where they lie. Empty where there are none.

    Args:
        backbone, pretrained: as the fields of an ICBM's recipe.

    Raises:
        ValueError: no such file.
    """
    found: dict[str, str] = {}
    folder = Path(backbone.partition(":")[2])
    if backbone.startswith("transformers:") and folder.is_dir():
        files = [folder / "config.json"]
        files += sorted([*folder.glob("*.safetensors"), *folder.glob("*.bin")]) if pretrained == "hub" else []
        found["backbone_sha256"] = " ".join(_digest(file) for file in files if file.is_file())
    if pretrained in ("", "hub"):
        return found
    return found | {"pretrained_sha256": _digest(weights_file(pretrained))}


def _digest(file: Path) -> str:
    stat = file.stat()
    return _digest_of(file, stat.st_mtime_ns, stat.st_size)


@functools.lru_cache(maxsize=16)
def _digest_of(file: Path, changed: int, size: int) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def start_from(net: ICBM, backbone: str, pretrained: str) -> None:
    """Put the weights that a recipe names into the backbone of a network that it describes.

    Args:
        net: changed in place; projection, norm and head keep their first weights.
        backbone: its name. pretrained: "hub", a file or a run folder.

    Raises:
        ValueError, OSError: the weights cannot be had, or are another architecture's.
    """
    if pretrained != "hub":
        return load_backbone(net.backbone, pretrained)
    kind = backbone_description(backbone, {})
    channels, size = net.channels, net.image_size
    if kind["kind"] == "timm":
        whole = timm_backbone(kind["name"], channels, size, {}, pretrained=True)
    else:
        whole = transformers_backbone(backbone.partition(":")[2], size, pretrained=True)
    net.backbone.load_state_dict(whole.state_dict())
    return None
