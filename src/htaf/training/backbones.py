"""The backbone of an ICBM: where its first weights come from, and its features where it is frozen."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from htaf._ground.errors import first_line, option
from htaf.data.images import ImagePreprocessor, Images
from htaf.data.parts import Part
from htaf.models.backbone_weights import PLACES, find_weights, load_backbone, tensors_sha256
from htaf.models.build import backbone_description
from htaf.models.hub import asking_hub
from htaf.models.icbm import ICBM, timm_backbone, timm_configuration
from htaf.training.problems import Problem
from htaf.training.recipe import ImageData, Recipe
from htaf.training.runs.features import FeatureBatches, FeatureStore, fill, key_of

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
