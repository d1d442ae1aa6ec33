"""Implicit concept bottleneck models: any image backbone, its last features as bits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import inf
from statistics import NormalDist
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from htaf._ground.names import BACKBONES, Bottleneck
from htaf.training.families.images import SIZES_HELP, augmix_training, check_depth, small
from htaf.training.families.images import reduced as on_fewer_images
from htaf.training.recipe import (
    Activation,
    Family,
    ImageData,
    Network,
    Optimization,
    Recipe,
    expect,
)

if TYPE_CHECKING:
    import torch

    from htaf.models.icbm import ICBM
    from htaf.training.problems import Problem

_SHAPE = ("depth", "width", "stem", "dropout")
_OF_BITS = ("concept_rate", "neighbours", "group_share")
LARGEST = 4096


@dataclass(frozen=True)
class ICBMNetwork(Network):
    """The backbone and its concepts. With method relu it is the plain backbone with its own activation.

    Args:
        backbone: wide_resnet, resnet, or a timm model's name (resnet18, convnext_tiny).
        depth: wide_resnet: 6 n + 4; resnet: 18, or 34.
        width: wide_resnet: widening factor; resnet: channels of the first stage.
        stem: Of resnet: cifar: 3x3, no pooling; imagenet: 7x7 and pooling.
        dropout: Of wide_resnet.
        concepts: How many; 0: as many as the backbone has features.
        pretrained: hub (timm's), a file of weights, the name of an installed package with one, or a run folder.
        freeze: Leave the backbone as it is: what it gives of images that are not augmented is computed once and kept;
            with an augment that is not auto or none nothing is kept.
        keep_norms: The backbone's batch norms keep the statistics of its first weights while it is trained.
        enlarge: Height and width in pixels to which images are enlarged before the backbone; 0: as the data are.
        feature_dropout: Of the backbone's features.
        concept_rate: Share of the images for which a concept is to be on; auto: 15%, of fewer than 20 classes the share
            of three, at most half. 0: as it comes, about half.
        neighbours: How much concepts are to agree among images whose features are alike, a term of the loss; 0: not.
        group_share: Share of the concepts that are groups of images that look alike, whatever their class: k-means of
            the features of a frozen backbone, where these are computed once. No class draws on them.
        backbone_lr: Learning rate of the backbone, as a share of lr.
        bottleneck: implicit, or given attributes as concepts: joint (the gradient of the head reaches them),
            sequential (it does not), independent (the head learns on the true ones).
        attributes: Those attributes: cub, or a CSV with a row for each class.
        concept_weight: Of their loss, the sum of their binary cross-entropies.
    """

    family: ClassVar[str] = "icbm"
    one_level: ClassVar[str] = "a concept is there or not"
    data: ClassVar = ImageData
    backbone: str = "wide_resnet"
    depth: int = 16
    width: int = 1
    stem: Literal["cifar", "imagenet"] = "cifar"
    dropout: float = 0.0
    concepts: int = 0
    pretrained: str = ""
    freeze: bool = False
    keep_norms: bool = False
    backbone_lr: float = 1.0
    bottleneck: Bottleneck = "implicit"
    attributes: str = "cub"
    concept_weight: float = 0.01
    enlarge: int = 0
    feature_dropout: float = 0.0
    concept_rate: float | Literal["auto"] = 0.0
    neighbours: float = 0.0
    group_share: float = 0.0

    def check(self) -> None:
        self.expect_all(("width",), lambda v: v >= 1, "must be >= 1")
        self.expect_all(("concepts",), lambda v: v >= 0, "must be >= 0")
        self.expect_all(("enlarge",), lambda v: 0 <= v <= LARGEST, f"must be in 0 to {LARGEST}")
        self.expect_all(("dropout", "feature_dropout"), lambda v: 0 <= v < 1, "must lie in [0, 1)")
        self.expect_all(("concept_rate",), lambda v: v == "auto" or 0 <= v < 1, "must be auto or lie in [0, 1)")
        self.expect_all(("neighbours",), lambda v: 0 <= v < inf, "must be >= 0 and finite")
        self.expect_all(("group_share",), lambda v: 0 <= v < 1, "must lie in [0, 1)")
        self.expect_all(("backbone_lr",), lambda v: 0 < v < inf, "must be > 0 and finite")
        self.expect_all(("concept_weight",), lambda v: 0 <= v < inf, "must be >= 0 and finite")
        own = self.backbone in BACKBONES
        expect(bool(self.backbone), "backbone must be the name of a model", repr(self.backbone))
        both = self.pretrained == "hub" and own
        expect(not both, "pretrained must be a path for backbones of htaf, which have no weights on a hub", "hub")
        given = self.bottleneck != "implicit" and self.concepts
        expect(not given, f"concepts must be 0 for bottleneck {self.bottleneck}: the attributes", self.concepts)
        if self.backbone == "wide_resnet":
            check_depth(self.backbone, self.depth)
        elif self.backbone == "resnet":
            expect(self.depth in (18, 34), "depth for resnet must be one of (18, 34)", self.depth)

    def unread(self, method: str) -> dict[str, str]:
        found = dict.fromkeys({*_SHAPE} - {*BACKBONES.get(self.backbone, ())}, f"backbone {self.backbone}")
        if self.bottleneck == "implicit":
            found |= dict.fromkeys(("attributes", "concept_weight"), "bottleneck implicit")
        else:
            found |= dict.fromkeys(_OF_BITS, f"bottleneck {self.bottleneck}")
        if method == "relu":
            found |= dict.fromkeys(_OF_BITS, "method relu")
        if not self.freeze:
            return found | {"group_share": "freeze false"}
        return found | dict.fromkeys(("backbone_lr", "keep_norms"), "freeze true")

    def identity(self, fields: dict[str, Any]) -> dict[str, Any]:
        stored = self.pretrained not in ("", "hub")  # what the file holds counts, not where it lies
        return fields | {"pretrained": "file"} if stored else fields

    def model(self, inputs: Mapping[str, Any], outputs: int, activation: Mapping[str, Any]) -> dict[str, Any]:
        from htaf.models.build import backbone_description

        own = {name: getattr(self, name) for name in _SHAPE}
        more: dict[str, Any] = {"enlarge": [self.enlarge] * 2} if self.enlarge else {}
        more |= {"feature_dropout": self.feature_dropout} if self.feature_dropout else {}
        more |= {"keep_norms": True} if self.keep_norms and not self.freeze else {}
        return {
            "kind": "icbm",
            "in_channels": inputs["in_channels"],
            "image_size": inputs["image_size"],
            "out_features": outputs,
            "activation": activation,
            "backbone": backbone_description(self.backbone, own),
            "concepts": inputs.get("concepts") or self.concepts or None,
            "norm": None,
            "bottleneck": self.bottleneck,
            "freeze": self.freeze,
            **more,
        }

    def title(self) -> str:
        shape = f", depth {self.depth}, width {self.width}" if self.backbone in BACKBONES else ""
        return f"ICBM over {self.backbone}{shape}"

    @property
    def supervised_by(self) -> str | None:
        return None if self.bottleneck == "implicit" else self.attributes

    def check_available(self) -> None:
        from htaf.models.build import check_backbone

        check_backbone(self.backbone)

    def fingerprint(self) -> dict[str, str]:
        from htaf.training.backbones import fingerprint

        return fingerprint(self.pretrained)

    def initialise(self, net: torch.nn.Module, posed: Problem) -> dict[str, Any]:
        from htaf.models.icbm import ICBM
        from htaf.training.backbones import start_from

        if not isinstance(net, ICBM):
            return {}
        self.begin_at_rate(net)
        return start_from(net, self.backbone, self.pretrained) if self.pretrained else {}

    def begin_at_rate(self, net: ICBM) -> None:
        """Let so many concepts be on from the start as are to be."""
        from torch import nn

        if (rate := self.rate_for(net.head.out_features)) and isinstance(net.norm, nn.BatchNorm1d):
            nn.init.constant_(net.norm.bias, NormalDist().inv_cdf(rate))

    def begin_on_features(self, net: torch.nn.Module, posed: Problem) -> None:
        from htaf.models.concept_terms import GROUPED
        from htaf.models.icbm import ICBM

        if isinstance(net, ICBM) and self.group_share and self.bottleneck == "implicit":
            net.begin_groups(posed.examples(GROUPED), self.group_share)

    @property
    def frozen(self) -> bool:
        return self.freeze

    def normalisation(self, channels: int) -> tuple[tuple[float, ...], tuple[float, ...]] | None:
        from htaf.training.backbones import normalisation

        return normalisation(self.backbone, self.pretrained, channels)

    def groups(self, net: torch.nn.Module, lr: float) -> list[Any]:
        from htaf.models.icbm import ICBM

        trained = super().groups(net, lr)
        if not isinstance(net, ICBM) or self.backbone_lr == 1.0:
            return trained
        backbone = [p for p in net.backbone.parameters() if p.requires_grad]
        own = {id(p) for p in backbone}
        groups = [{"params": [p for p in trained if id(p) not in own]}]
        return [*groups, {"params": backbone, "lr": lr * self.backbone_lr}] if backbone else groups

    def loss(
        self,
        net: torch.nn.Module,
        x: torch.Tensor,
        y: torch.Tensor,
        loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
        attributes: torch.Tensor | None,
    ) -> torch.Tensor:
        from torch.nn.functional import binary_cross_entropy_with_logits

        from htaf.models.concept_terms import concept_terms
        from htaf.models.icbm import ICBM

        assert isinstance(net, ICBM)
        if attributes is None:
            if not (self.concept_rate or self.neighbours) or not net.has_steps:
                return loss(net(x), y)
            features, concepts, logits = net.taken_apart(x)
            rate, learned = self.rate_for(logits.shape[1]), concepts[:, : net.size - net.grouped]
            return loss(logits, y) + concept_terms(learned, features, rate=rate, neighbours=self.neighbours)
        z = net.pre_activations(x)
        of_concepts = binary_cross_entropy_with_logits(z.float(), attributes, reduction="none").sum(1).mean()
        match self.bottleneck:
            case "joint":
                seen = net.act(z)
            case "sequential":
                seen = net.act(z).detach()
            case _:
                seen = attributes.to(z.dtype)
        return loss(net.head(seen), y) + self.concept_weight * of_concepts

    def rate_for(self, classes: int) -> float:
        """The share of the images for which a concept is to be on, given so many classes; 0: as it comes."""
        from htaf.models.concept_terms import shared_rate

        return shared_rate(classes) if self.concept_rate == "auto" else self.concept_rate


def published(depth: int) -> Recipe:
    """An ICBM over WRN-depth-6, trained from scratch as AugMix trains that network."""
    network = ICBMNetwork("wide_resnet", depth, 6)
    return Recipe(network, ImageData("crop-flip"), optimization=augmix_training())


def reduced() -> Recipe:
    """An ICBM over WRN-16-1, 14 epochs."""
    return on_fewer_images(published(40), ICBMNetwork(), epochs=14, batch_size=128)


def finetune() -> Recipe:
    """An ICBM over a pretrained timm ResNet-18: AdamW, the backbone at a tenth of the head's learning rate."""
    training = Optimization(
        epochs=20, batch_size=32, lr=1e-3, weight_decay=0.01, schedule="one_cycle", patience=0, precision="bfloat16"
    )
    network = ICBMNetwork("resnet18", pretrained="hub", backbone_lr=0.1)
    return Recipe(network, ImageData(), optimization=training)


def frozen() -> Recipe:
    """An ICBM of 208 concepts over a pretrained, frozen EfficientNet-Lite0: AdamW on its features, 60 epochs.

    125 of them are for the classes: on for 15% of the images, or three classes, and alike for images that look alike.
    83 are groups of images, whatever their class (`htaf.models.concept_terms`).
    """
    training = Optimization(
        epochs=60,
        least_steps=600,
        batch_size=128,
        lr=5e-3,
        weight_decay=0.01,
        schedule="one_cycle",
        patience=0,
        keep="last",
    )
    network = ICBMNetwork(
        "tf_efficientnet_lite0", pretrained="hub", concepts=208, freeze=True, feature_dropout=0.5,
        concept_rate="auto", neighbours=0.5, group_share=0.4,
    )  # fmt: skip
    return Recipe(network, ImageData(), Activation(alpha0=2.0, alpha1=8.0, start=(0.5, 2.0)), optimization=training)


def _suited(given: Mapping[str, Any]) -> str:
    """A frozen backbone is trained on its features, a pretrained one slowly."""
    if given.get("freeze"):
        return "frozen"
    return "finetune" if given.get("pretrained") else ""


FAMILY = Family(
    ICBMNetwork,
    verb="icbm",
    about="Train an implicit concept bottleneck model: any image backbone, its last features as bits. Then: htaf "
    "concepts.",
    recipes={
        "small": lambda: small(reduced()),
        "reduced": reduced,
        "cifar10": lambda: published(40),
        "cifar100": lambda: published(28),
        "finetune": finetune,
        "frozen": frozen,
    },
    recipes_help=f"{SIZES_HELP} finetune: a pretrained timm ResNet-18, the backbone at a tenth of the learning rate. "
    "frozen: 208 concepts on the features of a pretrained EfficientNet-Lite0, in seconds; the default with --freeze "
    "True, as is finetune with --pretrained.",
    suited=_suited,
)
