"""The ready recipes, by name: functions that return a complete `Recipe`.

Full scale: the paper's networks with the official codes' settings. Reduced: 5,000 training and 1,000 validation images,
for two cores. Small: the same networks on any set.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Literal, get_args

from htaf.contract import is_outside
from htaf.models.build import is_layer_normed, is_own_backbone
from htaf.training.recipe import Family, Recipe

TabularName = Literal["tabular-mlp", "tabular-paper", "tabular-quick"]
ImageName = Literal["cifar10", "cifar100", "reduced", "small"]
ConceptName = Literal["cifar10", "cifar100", "reduced", "small", "finetune"]

# learning rates that an optimizer usually takes
SGD_RATE, ADAPTIVE_RATE = 0.1, 1e-3
# depth and width of a backbone that is not the recipe's own
_SHAPES = {"resnet": (18, 16), "wide_resnet": (16, 1)}


def tabular_mlp() -> Recipe:
    """The default for tables: (2, 11) from a soft start, batch norm, one cycle up to 3e-3, at most 100 epochs."""
    return Recipe()


def tabular_paper() -> Recipe:
    """As the paper words it: Adam 1e-3, constant, no sharpening and no batch norm, 1,000 epochs."""
    return Recipe(sharpen=False, batch_norm=False, epochs=1000, lr=1e-3, schedule="constant", patience=0)


def tabular_quick() -> Recipe:
    """The demo's: 30 epochs."""
    return Recipe(epochs=30, patience=0)


TABULAR: dict[TabularName, Callable[[], Recipe]] = {
    "tabular-mlp": tabular_mlp,
    "tabular-paper": tabular_paper,
    "tabular-quick": tabular_quick,
}


def dhn(depth: int) -> Recipe:
    """WRN-depth-6 as AugMix trains it: SGD 0.1, Nesterov, per-step cosine to 1e-6, 100 epochs, crop and flip."""
    return Recipe(
        family="dhn", augment="crop-flip", depth=depth, width=6, epochs=100, batch_size=128, patience=0,
        optimizer="sgd", nesterov=True, lr=0.1, weight_decay=5e-4, schedule="cosine", lr_end=1e-6,
    )  # fmt: skip


def bnn() -> Recipe:
    """Bi-Real-18 as its authors train it: Adam 1e-3, linear to 0 over 256 epochs, batch 512, label smoothing 0.1."""
    return Recipe(
        family="bnn", augment="crop-flip",
        depth=18, width=64, stem="cifar", slope="approx_sign", epochs=256, batch_size=512, patience=0,
        optimizer="adam", lr=1e-3, schedule="linear", label_smoothing=0.1,
    )  # fmt: skip


def snn() -> Recipe:
    """SEW-ResNet-18, T = 4, as its authors train it: SGD 0.1, momentum 0.9, no weight decay, cosine over 320 epochs."""
    return Recipe(
        family="snn", augment="crop-flip",
        depth=18, width=64, stem="cifar", steps=4, slope="atan", epochs=320, batch_size=128, patience=0,
        optimizer="sgd", lr=0.1, schedule="cosine", precision="bfloat16",
    )  # fmt: skip


def icbm(depth: int) -> Recipe:
    """An ICBM over WRN-depth-6, trained from scratch as AugMix trains that network."""
    return replace(dhn(depth), family="icbm", backbone="wide_resnet")


def finetune() -> Recipe:
    """An ICBM over a pretrained timm ResNet-18: AdamW, the backbone at a tenth of the head's learning rate."""
    return Recipe(
        family="icbm", backbone="resnet18", pretrained="hub", epochs=20, batch_size=32, lr=1e-3, backbone_lr=0.1,
        weight_decay=0.01, schedule="one_cycle", patience=0, precision="bfloat16",
    )  # fmt: skip


def continuing(record: Mapping[str, Any]) -> Recipe:
    """The recipe of a run, to go on from its weights with a new schedule: the activation starts as it was left.

    Args:
        record: of a finished run.

    Raises:
        ValueError: the record holds no such recipe.
    """
    try:
        fields = {name: tuple(v) if isinstance(v, list) else v for name, v in record["recipe"].items()}
        recipe = Recipe(**{**fields, "pretrained": ""})
        if recipe.sharpening() is None:
            return recipe
        if is_outside(recipe.method):  # at its final values: the record does not say the order of its names
            return replace(recipe, start=None)
        names = ("alpha0", "alpha1") if recipe.method == "htaf" else ("beta",)
        return replace(recipe, start=tuple(record["model"]["activation"][name] for name in names))
    except (KeyError, TypeError) as error:
        raise ValueError(f"the record holds no recipe of this version: {error}") from None


def for_backbone(recipe: Recipe, backbone: str, optimizer: str | None = None) -> tuple[Recipe, tuple[str, ...]]:
    """A recipe of an ICBM over another backbone than its own, and in words what changes.

    One of htaf's comes with a depth and width that it knows. One that normalises by layers (ViT, Mixer, ConvNeXt) is
    trained by AdamW with one cycle up to 1e-3, weight decay 0.05 and gradients of norm 1 at most, where the recipe
    would take SGD at a rate that such networks do not stand.

    Args:
        recipe: family icbm.
        backbone: its name. optimizer: what someone asked for; sgd keeps the recipe's.

    Raises:
        ValueError: no such backbone.
    """
    if backbone in _SHAPES and backbone != recipe.backbone:
        depth, width = _SHAPES[backbone]
        return replace(recipe, backbone=backbone, pretrained="", depth=depth, width=width), ()
    recipe = replace(recipe, backbone=backbone)
    if recipe.optimizer != "sgd" or optimizer == "sgd" or is_own_backbone(backbone) or not is_layer_normed(backbone):
        return recipe, ()
    adapted = replace(
        recipe, optimizer="adamw", lr=ADAPTIVE_RATE, lr_end=0.0, weight_decay=0.05, clip=1.0, schedule="one_cycle",
    )  # fmt: skip
    note = (
        f"{backbone} normalises by layers: optimizer adamw, lr {adapted.lr:g}, one cycle, weight decay "
        f"{adapted.weight_decay:g}, clip {adapted.clip:g} instead of sgd, lr {recipe.lr:g}"
    )
    return adapted, (note,)


def reduced(recipe: Recipe) -> Recipe:
    """The same training for two cores: 5,000 + 1,000 images, WRN-16-1 or a first stage of 16 channels, one cycle."""
    small = replace(
        recipe, train_images=5000, validation_images=1000, schedule="one_cycle", lr_end=0.0, precision="bfloat16",
        augment="auto",
    )  # fmt: skip
    match recipe.family:
        case "dhn" | "icbm":
            return replace(small, depth=16, width=1, epochs=14, batch_size=128)
        case "bnn":
            return replace(small, width=16, epochs=12, batch_size=128, lr=5e-3, label_smoothing=0.0)
    return replace(small, width=16, epochs=4, batch_size=64)


def small(recipe: Recipe) -> Recipe:
    """The reduced network on all images of a set, 10% of them for validation; 20 epochs."""
    return replace(reduced(recipe), train_images=0, validation_images=0.1, epochs=20, batch_size=64)


def image_recipe(family: Family, name: ConceptName) -> Recipe:
    """The recipe of a family: cifar10 and cifar100 at full scale, reduced, or small; of icbm also finetune.

    Raises:
        ValueError: no such family or name.
    """
    full: dict[str, Callable[[], Recipe]] = {
        "dhn": lambda: dhn(28 if name == "cifar100" else 40),
        "bnn": bnn,
        "snn": snn,
        "icbm": finetune if name == "finetune" else lambda: icbm(28 if name == "cifar100" else 40),
    }
    known = get_args(ConceptName if family == "icbm" else ImageName)
    if family not in full or name not in known:
        raise ValueError(f"expected a family of {tuple(full)} and one of {known}, got {family!r}, {name!r}")
    recipe = full[family]()
    return reduced(recipe) if name == "reduced" else small(recipe) if name == "small" else recipe
