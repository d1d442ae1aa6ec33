"""Binary networks: Bi-Real Nets, whose weights are binary too."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

from htaf.training.families import scales
from htaf.training.families.quick import ImageNetwork, quick
from htaf.training.families.weights import titled, weighted
from htaf.training.recipe import Activation, Family, ImageData, Optimization, Recipe, expect

DEPTHS = (18, 34)


@dataclass(frozen=True)
class BNNNetwork(ImageNetwork):
    """The network.

    Args:
        layout: residual: a Bi-Real Net; whitened: plain convolutions behind a whitening layer, which learn quickly.
        widths: Of whitened: channels of its blocks.
        depth: 18 or 34.
        width: Channels of the first stage.
        stem: First layers: cifar: 3x3, no pooling; imagenet: 7x7 and pooling.
        weights: Of whitened: int8: of the layers over pixels on a grid of integers, so that all sums are exact, see
            docs/packed.md.
    """

    family: ClassVar[str] = "bnn"
    data: ClassVar = ImageData
    bipolar: ClassVar[bool] = True
    takes_relu: ClassVar[bool] = False
    depth: int = 18
    width: int = 64
    stem: Literal["cifar", "imagenet"] = "cifar"
    weights: Literal["float", "int8"] = "float"

    def check(self) -> None:
        super().check()
        self.expect_all(("width",), lambda v: v >= 1, "must be >= 1")
        expect(self.depth in DEPTHS, f"depth for {self.family} must be one of {DEPTHS}", self.depth)

    def residual_fields(self) -> tuple[str, ...]:
        return ("depth", "width", "stem")

    def unread(self, method: str) -> dict[str, str]:
        return super().unread(method) | ({"weights": "layout residual"} if self.layout == "residual" else {})

    def model(self, inputs: Mapping[str, Any], outputs: int, activation: Mapping[str, Any]) -> dict[str, Any]:
        if self.layout == "whitened":
            return weighted(self.whitened_model(inputs, outputs, activation, binary_weights=True), self.weights)
        return {
            "kind": "bireal",
            "in_channels": inputs["in_channels"],
            "out_features": outputs,
            "activation": activation,
            **{name: getattr(self, name) for name in self.residual_fields()},
        }

    def title(self) -> str:
        if self.layout == "whitened":
            return titled(f"whitened network {'-'.join(map(str, self.widths))}, binary weights", self.weights)
        return f"Bi-Real Net, depth {self.depth}, width {self.width}"


def published() -> Recipe:
    """Bi-Real-18 as its authors train it: Adam 1e-3, linear to 0 over 256 epochs, batch 512, label smoothing 0.1."""
    training = Optimization(
        epochs=256, batch_size=512, patience=0, optimizer="adam", lr=1e-3, schedule="linear", label_smoothing=0.1
    )
    return Recipe(BNNNetwork(), ImageData("crop-flip"), Activation(slope="approx_sign"), training)


def reduced() -> Recipe:
    """A first stage of 16 channels, 12 epochs at a higher rate."""
    full = published()
    recipe = scales.reduced(full, replace(full.network, width=16), epochs=12, batch_size=128)
    return recipe.replace(lr=5e-3, label_smoothing=0.0)


FAMILY = Family(
    BNNNetwork,
    verb="bnn",
    about="Train a Bi-Real Net, binary activations and weights, on images; smooth and exact results, side by side.",
    recipes={
        "small": lambda: scales.small(reduced()),
        "quick": lambda: quick(BNNNetwork(layout="whitened"), epochs=12),
        "reduced": reduced,
        "cifar10": published,
        "cifar100": published,
    },
    recipes_help=scales.QUICK,
)
