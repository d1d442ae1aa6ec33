"""Deep Heaviside networks: WideResNets with the step for their activation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from htaf.training.families import scales
from htaf.training.families.quick import ImageNetwork, quick
from htaf.training.families.weights import Weights, titled, weighted
from htaf.training.recipe import Family, ImageData, Optimization, Recipe, expect

DEEPEST = 1204  # of 6 n + 4; WideResNet's paper ends at 40, ResNet's at 1202


def check_depth(name: str, depth: int) -> None:
    """Raises ValueError for a depth that a WideResNet cannot have; name: of what is asked for it."""
    fits = 10 <= depth <= DEEPEST and depth % 6 == 4
    expect(fits, f"depth for {name} must be 6 n + 4 in 10 to {DEEPEST}", depth)


@dataclass(frozen=True)
class DHNNetwork(ImageNetwork):
    """The network.

    Args:
        layout: residual: a WideResNet; whitened: plain convolutions behind a whitening layer, which learn quickly.
        widths: Of whitened: channels of its blocks.
        depth: 6 n + 4.
        width: Widening factor.
        dropout: Between the convolutions of a block.
        weights: int8, int4: of layers over bits on a grid of integers, so that all sums are exact, see docs/packed.md.
    """

    family: ClassVar[str] = "dhn"
    data: ClassVar = ImageData
    depth: int = 16
    width: int = 1
    dropout: float = 0.0
    weights: Weights = "float"

    def check(self) -> None:
        super().check()
        self.expect_all(("width",), lambda v: v >= 1, "must be >= 1")
        self.expect_all(("dropout",), lambda v: 0 <= v < 1, "must lie in [0, 1)")
        check_depth(self.family, self.depth)

    def residual_fields(self) -> tuple[str, ...]:
        return ("depth", "width", "dropout")

    def unread(self, method: str) -> dict[str, str]:
        return super().unread(method) | (dict.fromkeys(("weights",), "method relu") if method == "relu" else {})

    def model(self, inputs: Mapping[str, Any], outputs: int, activation: Mapping[str, Any]) -> dict[str, Any]:
        if self.layout == "whitened":
            return weighted(self.whitened_model(inputs, outputs, activation), self.weights)
        model = {
            "kind": "wide_resnet",
            "in_channels": inputs["in_channels"],
            "out_features": outputs,
            "activation": activation,
            **{name: getattr(self, name) for name in self.residual_fields()},
        }
        return weighted(model, self.weights)

    def title(self) -> str:
        if self.layout == "whitened":
            return titled(f"whitened network {'-'.join(map(str, self.widths))}", self.weights)
        return titled(f"WideResNet, depth {self.depth}, width {self.width}", self.weights)


def augmix_training() -> Optimization:
    """As AugMix trains WideResNets: SGD 0.1, Nesterov, per-step cosine to 1e-6, 100 epochs."""
    return Optimization(
        epochs=100, batch_size=128, patience=0, optimizer="sgd", nesterov=True, lr=0.1, weight_decay=5e-4,
        schedule="cosine", lr_end=1e-6,
    )  # fmt: skip


def published(depth: int) -> Recipe:
    """WRN-depth-6 as AugMix trains it, crop and flip."""
    return Recipe(DHNNetwork(depth=depth, width=6), ImageData("crop-flip"), optimization=augmix_training())


def reduced() -> Recipe:
    """WRN-16-1, 14 epochs."""
    full = published(40)
    return scales.reduced(full, replace(full.network, depth=16, width=1), epochs=14, batch_size=128)


FAMILY = Family(
    DHNNetwork,
    verb="dhn",
    about="Train a WideResNet with 0/1 activations on images; smooth and exact results, and how they differ.",
    recipes={
        "small": lambda: scales.small(reduced()),
        "quick": lambda: quick(DHNNetwork(layout="whitened"), epochs=32),
        "reduced": reduced,
        "cifar10": lambda: published(40),
        "cifar100": lambda: published(28),
    },
    recipes_help=scales.QUICK,
)
