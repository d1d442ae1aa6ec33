"""Spiking networks: SEW-ResNets of integrate-and-fire neurons."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

from htaf.training.families import scales
from htaf.training.families.quick import ImageNetwork, quick
from htaf.training.families.weights import Weights, titled, weighted
from htaf.training.recipe import Activation, Family, ImageData, Optimization, Recipe, expect

DEPTHS = (18, 34, 50)
MOST_STEPS = 4096  # time steps, all of which a training holds in memory
_SPIKING = ("weights", "steps", "neuron", "tau", "reset", "detach_reset", "exact_reset")


@dataclass(frozen=True)
class SNNNetwork(ImageNetwork):
    """The network and its neurons. With method relu it is the network of the same shape, with one time step.

    Args:
        layout: residual: a SEW-ResNet; whitened: plain convolutions behind a whitening layer, which learn quickly.
        widths: Of whitened: channels of its blocks.
        depth: 18, 34 or 50.
        width: Channels of the first stage.
        stem: First layers: cifar: 3x3, no pooling; imagenet: 7x7 and pooling.
        steps: Time steps T.
        connect: How a block meets its shortcut.
        neuron: Integrate-and-fire, or leaky.
        tau: Membrane time constant of lif, in steps.
        reset: To zero, or by subtraction.
        detach_reset: No gradient through the reset.
        exact_reset: Reset by the exact step.
        weights: int8, int4: of layers over bits on a grid of integers, so that all sums are exact, see docs/packed.md.
    """

    family: ClassVar[str] = "snn"
    data: ClassVar = ImageData
    one_level: ClassVar[str] = "spikes over time are its levels, so give more steps"
    depth: int = 18
    width: int = 64
    stem: Literal["cifar", "imagenet"] = "cifar"
    steps: int = 4
    connect: Literal["add", "and", "iand"] = "add"
    neuron: Literal["if", "lif"] = "if"
    tau: float = 2.0
    reset: Literal["hard", "soft"] = "hard"
    detach_reset: bool = True
    exact_reset: bool = False
    weights: Weights = "float"

    def check(self) -> None:
        super().check()
        self.expect_all(("width", "steps"), lambda v: v >= 1, "must be >= 1")
        expect(self.steps <= MOST_STEPS, f"steps must be in 1 to {MOST_STEPS:,}", self.steps)
        expect(1 < self.tau < math.inf, "tau must be > 1 and finite", self.tau)
        expect(self.depth in DEPTHS, f"depth for {self.family} must be one of {DEPTHS}", self.depth)

    def unread(self, method: str) -> dict[str, str]:
        leak = dict.fromkeys(("tau",), "neuron if") if self.neuron == "if" else {}
        return super().unread(method) | leak | (dict.fromkeys(_SPIKING, "method relu") if method == "relu" else {})

    def residual_fields(self) -> tuple[str, ...]:
        return ("depth", "width", "stem", "connect")

    def model(self, inputs: Mapping[str, Any], outputs: int, activation: Mapping[str, Any]) -> dict[str, Any]:
        neuron = {"kind": self.neuron, "reset": self.reset, "detach_reset": self.detach_reset}
        neuron |= {"exact_reset": self.exact_reset} | ({"tau": self.tau} if self.neuron == "lif" else {})
        steps = 1 if activation["method"] == "relu" else self.steps
        if self.layout == "whitened":
            model = self.whitened_model(inputs, outputs, activation, steps=steps, neuron=neuron)
            return weighted(model, self.weights)
        model = {
            "kind": "sew_resnet",
            "in_channels": inputs["in_channels"],
            "out_features": outputs,
            "activation": activation,
            "depth": self.depth,
            "width": self.width,
            "stem": self.stem,
            "connect": self.connect,
            "steps": steps,
            "neuron": neuron,
        }
        return weighted(model, self.weights)

    def title(self) -> str:
        if self.layout == "whitened":
            title = f"whitened network {'-'.join(map(str, self.widths))}, spiking, T = {self.steps}"
        else:
            title = f"SEW-ResNet, depth {self.depth}, width {self.width}, T = {self.steps}"
        return titled(title, self.weights)


def published() -> Recipe:
    """SEW-ResNet-18, T = 4, as its authors train it: SGD 0.1, momentum 0.9, no weight decay, cosine over 320 epochs."""
    training = Optimization(
        epochs=320, batch_size=128, patience=0, optimizer="sgd", lr=0.1, schedule="cosine", precision="bfloat16"
    )
    return Recipe(SNNNetwork(), ImageData("crop-flip"), Activation(slope="atan"), training)


def reduced() -> Recipe:
    """A first stage of 16 channels, 4 epochs."""
    full = published()
    return scales.reduced(full, replace(full.network, width=16), epochs=4, batch_size=64)


FAMILY = Family(
    SNNNetwork,
    verb="snn",
    about="Train a SEW-ResNet of spiking neurons on images; smooth and exact results, and how they differ.",
    recipes={
        "small": lambda: scales.small(reduced()),
        "quick": lambda: quick(SNNNetwork(layout="whitened", steps=2), epochs=8),
        "reduced": reduced,
        "cifar10": published,
        "cifar100": published,
    },
    recipes_help=scales.QUICK,
)
