"""The first weights of a backbone: from a local file, a run, or a hub."""

from __future__ import annotations

import hashlib

from htaf.models._pretrained import load_backbone, weights_file
from htaf.models.build import backbone_description
from htaf.models.icbm import ICBM, timm_backbone, transformers_backbone
from htaf.training.distributed import TrainingError
from htaf.training.recipe import Recipe


def fingerprint(recipe: Recipe) -> dict[str, str]:
    """SHA-256 of the file that a recipe starts from, as part of a training's identity: what it holds counts, not where
    it lies. Empty where there is none.

    Raises:
        TrainingError: no such file.
    """
    if recipe.pretrained in ("", "hub"):
        return {}
    try:
        return {"pretrained_sha256": hashlib.sha256(weights_file(recipe.pretrained).read_bytes()).hexdigest()}
    except ValueError as error:
        raise TrainingError(str(error)) from None


def start_from(net: ICBM, recipe: Recipe) -> None:
    """Put the weights that a recipe names into the backbone of a network that it describes.

    Args:
        net: changed in place; projection, norm and head keep their first weights.
        recipe: family icbm, with `pretrained` "hub", a file or a run folder.

    Raises:
        ValueError, OSError: the weights cannot be had, or are another architecture's.
    """
    if recipe.pretrained != "hub":
        return load_backbone(net.backbone, recipe.pretrained)
    kind = backbone_description(recipe.backbone, {})
    channels, size = net.channels, net.image_size
    if kind["kind"] == "timm":
        whole = timm_backbone(kind["name"], channels, size, {}, pretrained=True)
    else:
        whole = transformers_backbone(recipe.backbone.partition(":")[2], size, pretrained=True)
    net.backbone.load_state_dict(whole.state_dict())
    return None
