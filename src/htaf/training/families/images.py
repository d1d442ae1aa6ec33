"""Deep Heaviside, binary and spiking networks on images, and the sizes in which they are trained."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from htaf.training.recipe import (
    Activation,
    Family,
    Hardening,
    ImageData,
    Network,
    Optimization,
    Recipe,
    Weights,
    expect,
    titled,
    weighted,
)

if TYPE_CHECKING:
    from torch import nn

    from htaf.training.problems import Problem

EXAMPLES = 5000  # images that the whitening is taken from
DEEPEST = 1204  # of 6 n + 4; WideResNet's paper ends at 40, ResNet's at 1202
MOST_STEPS = 4096  # time steps, all of which a training holds in memory
SPIKING_FIELDS = ("weights", "steps", "neuron", "tau", "reset")
SIZES_HELP = (
    "cifar10, cifar100: the published code's, for a GPU; reduced: a small network and "
    "5,000 images, for two cores; small: the same network on all images, 20 epochs."
)
QUICK_HELP = f"{SIZES_HELP[:-1]}; quick: a whitened network on all images, which two cores train in less than an hour."


def check_depth(name: str, depth: int) -> None:
    """Raises ValueError for a depth that a WideResNet cannot have; name: of what is asked for it."""
    fits = 10 <= depth <= DEEPEST and depth % 6 == 4
    expect(fits, f"depth for {name} must be 6 n + 4 in 10 to {DEEPEST}", depth)


@dataclass(frozen=True)
class ImageNetwork(Network):
    """What the families on images share: beside the residual network of their paper they have a whitened one."""

    data: ClassVar = ImageData
    kind: ClassVar[str]  # of the residual network, as `models.build.build` knows it
    residual: ClassVar[tuple[str, ...]]  # the fields that only the residual network reads
    layout: Literal["residual", "whitened"] = "residual"
    widths: tuple[int, ...] = (64, 256, 256)
    width: int = 64
    weights: Weights = "float"

    def check(self) -> None:
        sizes = len(self.widths) > 0 and all(type(size) is int and 1 <= size < 2**20 for size in self.widths)
        expect(sizes, "widths must be integers in 1 to 1,048,575", self.widths)
        self.expect_all(("width",), lambda v: v >= 1, "must be >= 1")

    def unread(self, method: str) -> dict[str, str]:
        if self.layout == "residual":
            return dict.fromkeys(("widths",), "layout residual")
        return dict.fromkeys(self.residual, "layout whitened")

    def model(self, inputs: Mapping[str, Any], outputs: int, activation: Mapping[str, Any]) -> dict[str, Any]:
        given = {"in_channels": inputs["in_channels"], "out_features": outputs, "activation": activation}
        if self.layout == "whitened":
            size, least = inputs.get("image_size", ()), 2 ** len(self.widths) + 1
            blocks = f"images of {least} pixels or more on a side for {len(self.widths)} blocks (widths)"
            expect(min(size, default=least) >= least, f"expected {blocks}", " x ".join(map(str, size)))
            shape = {"kind": "whitened", "widths": list(self.widths), "binary_weights": False}
        else:
            shape = {"kind": self.kind, **{name: getattr(self, name) for name in self.residual}}
        made = shape | given | self.more(activation["method"])
        return made if "weights" in self.unread(activation["method"]) else weighted(made, self.weights)

    def more(self, method: str) -> dict[str, Any]:
        """What else `models.build.build` is told of the network."""
        return {}

    @abstractmethod
    def names(self) -> tuple[str, str]:
        """The residual network in words, and what is added to the words for either."""

    def title(self) -> str:
        name, more = self.names()
        shape = f"whitened network {'-'.join(map(str, self.widths))}" if self.layout == "whitened" else name
        return titled(shape + more, self.weights)

    def initialise(self, net: nn.Module, posed: Problem) -> dict[str, Any]:
        from htaf.models.whitened import WhitenedConvNet

        if isinstance(net, WhitenedConvNet):
            net.whiten(posed.examples(EXAMPLES))
        return {}


@dataclass(frozen=True)
class DHNNetwork(ImageNetwork):
    """The network.

    Args:
        layout: residual: a WideResNet; whitened: plain convolutions behind a whitening layer, which learn quickly.
        widths: Of whitened: channels of its blocks.
        keep_first: Of whitened: how many of its first activations stay ReLU.
        depth: 6 n + 4.
        width: Widening factor.
        dropout: Between the convolutions of a block.
        weights: int8, int4: of layers over bits on a grid of integers, so that all sums are exact, see docs/packed.md.
    """

    family: ClassVar[str] = "dhn"
    kind: ClassVar[str] = "wide_resnet"
    residual: ClassVar[tuple[str, ...]] = ("depth", "width", "dropout")
    depth: int = 16
    width: int = 1
    dropout: float = 0.0
    keep_first: int = 0

    def check(self) -> None:
        super().check()
        self.expect_all(("dropout",), lambda v: 0 <= v < 1, "must lie in [0, 1)")
        most = 2 * len(self.widths) - 1
        expect(0 <= self.keep_first <= most, f"keep_first must be in 0 to {most}", self.keep_first)
        check_depth(self.family, self.depth)

    def unread(self, method: str) -> dict[str, str]:
        unread = dict.fromkeys(("weights", "keep_first"), "method relu") if method == "relu" else {}
        residual = {"keep_first": "layout residual"} if self.layout == "residual" else {}
        return super().unread(method) | residual | unread

    def more(self, method: str) -> dict[str, Any]:
        return {"keep_first": self.keep_first} if self.keep_first and "keep_first" not in self.unread(method) else {}

    def names(self) -> tuple[str, str]:
        return f"WideResNet, depth {self.depth}, width {self.width}", ""


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
    kind: ClassVar[str] = "bireal"
    residual: ClassVar[tuple[str, ...]] = ("depth", "width", "stem")
    bipolar: ClassVar[bool] = True
    takes_relu: ClassVar[bool] = False
    depth: int = 18
    stem: Literal["cifar", "imagenet"] = "cifar"
    weights: Literal["float", "int8"] = "float"

    def check(self) -> None:
        super().check()
        expect(self.depth in (18, 34), f"depth for {self.family} must be one of (18, 34)", self.depth)

    def unread(self, method: str) -> dict[str, str]:
        return super().unread(method) | ({"weights": "layout residual"} if self.layout == "residual" else {})

    def more(self, method: str) -> dict[str, Any]:
        return {"binary_weights": True} if self.layout == "whitened" else {}

    def names(self) -> tuple[str, str]:
        more = ", binary weights" if self.layout == "whitened" else ""
        return f"Bi-Real Net, depth {self.depth}, width {self.width}", more


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
        weights: int8, int4: of layers over bits on a grid of integers, so that all sums are exact, see docs/packed.md.
    """

    family: ClassVar[str] = "snn"
    kind: ClassVar[str] = "sew_resnet"
    residual: ClassVar[tuple[str, ...]] = ("depth", "width", "stem", "connect")
    one_level: ClassVar[str] = "spikes over time are its levels, so give more steps"
    depth: int = 18
    stem: Literal["cifar", "imagenet"] = "cifar"
    steps: int = 4
    connect: Literal["add", "and", "iand"] = "add"
    neuron: Literal["if", "lif"] = "if"
    tau: float = 2.0
    reset: Literal["hard", "soft"] = "hard"

    def check(self) -> None:
        super().check()
        expect(1 <= self.steps <= MOST_STEPS, f"steps must be in 1 to {MOST_STEPS:,}", self.steps)
        expect(1 < self.tau < math.inf, "tau must be > 1 and finite", self.tau)
        expect(self.depth in (18, 34, 50), f"depth for {self.family} must be one of (18, 34, 50)", self.depth)

    def unread(self, method: str) -> dict[str, str]:
        leak = dict.fromkeys(("tau",), "neuron if") if self.neuron == "if" else {}
        plain = dict.fromkeys(SPIKING_FIELDS, "method relu") if method == "relu" else {}
        return super().unread(method) | leak | plain

    def more(self, method: str) -> dict[str, Any]:
        neuron = {"kind": self.neuron, "reset": self.reset, "detach_reset": True, "exact_reset": False}
        neuron |= {"tau": self.tau} if self.neuron == "lif" else {}
        return {"steps": 1 if method == "relu" else self.steps, "neuron": neuron}

    def names(self) -> tuple[str, str]:
        spiking = ", spiking" if self.layout == "whitened" else ""
        return f"SEW-ResNet, depth {self.depth}, width {self.width}", f"{spiking}, T = {self.steps}"


def augmix_training() -> Optimization:
    """As AugMix trains WideResNets: SGD 0.1, Nesterov, per-step cosine to 1e-6, 100 epochs."""
    return Optimization(
        epochs=100, batch_size=128, patience=0, optimizer="sgd", nesterov=True, lr=0.1, weight_decay=5e-4,
        schedule="cosine", lr_end=1e-6,
    )  # fmt: skip


def reduced(recipe: Recipe, network: Network, *, epochs: int, batch_size: int) -> Recipe:
    """The same training of a smaller network for two cores: 5,000 + 1,000 images, one cycle."""
    training = replace(
        recipe.optimization, schedule="one_cycle", lr_end=0.0, precision="bfloat16", epochs=epochs,
        batch_size=batch_size,
    )  # fmt: skip
    return replace(recipe, network=network, data=ImageData("auto", 5000, 1000), optimization=training)


def small(recipe: Recipe) -> Recipe:
    """A reduced training on all images of a set, 10% of them for validation; 20 epochs."""
    training = replace(recipe.optimization, epochs=20, batch_size=64)
    return replace(recipe, data=ImageData(), optimization=training)


def quick(network: Network, *, epochs: int) -> Recipe:
    """A training of a whitened network on all images of a set but 2,500: Muon at a high rate, alternating flips, few
    epochs, in bfloat16. Smooth for a third of the epochs, then exact with the gradient of the smooth steps."""
    training = Optimization(
        epochs=epochs, batch_size=500, lr=0.012, weight_decay=0.5, optimizer="muon", momentum=0.8, label_smoothing=0.1,
        precision="bfloat16", patience=0,
    )  # fmt: skip
    activation = Activation(alpha0=0.4, alpha1=5.0, beta=2.0, slope="tanh", sharpen=False)
    exact = Hardening(exact_from=0.34, recalibrate=True, refit=True)
    return Recipe(network, ImageData("shift-flip", 0, 2500), activation, training, exact)


def published_dhn(depth: int) -> Recipe:
    """WRN-depth-6 as AugMix trains it, crop and flip."""
    return Recipe(DHNNetwork(depth=depth, width=6), ImageData("crop-flip"), optimization=augmix_training())


def published_bnn() -> Recipe:
    """Bi-Real-18 as its authors train it: Adam 1e-3, linear to 0 over 256 epochs, batch 512, label smoothing 0.1."""
    training = Optimization(
        epochs=256, batch_size=512, patience=0, optimizer="adam", lr=1e-3, schedule="linear", label_smoothing=0.1
    )
    return Recipe(BNNNetwork(), ImageData("crop-flip"), Activation(slope="approx_sign"), training)


def published_snn() -> Recipe:
    """SEW-ResNet-18, T = 4, as its authors train it: SGD 0.1, momentum 0.9, no weight decay, cosine over 320 epochs."""
    training = Optimization(
        epochs=320, batch_size=128, patience=0, optimizer="sgd", lr=0.1, schedule="cosine", precision="bfloat16"
    )
    return Recipe(SNNNetwork(), ImageData("crop-flip"), Activation(slope="atan"), training)


def reduced_dhn() -> Recipe:
    """WRN-16-1, 14 epochs."""
    return reduced(published_dhn(40), DHNNetwork(), epochs=14, batch_size=128)


def reduced_bnn() -> Recipe:
    """A first stage of 16 channels, 12 epochs at a higher rate."""
    recipe = reduced(published_bnn(), BNNNetwork(width=16), epochs=12, batch_size=128)
    return recipe.replace(lr=5e-3, label_smoothing=0.0)


def reduced_snn() -> Recipe:
    """A first stage of 16 channels, 4 epochs."""
    return reduced(published_snn(), SNNNetwork(width=16), epochs=4, batch_size=64)


DHN = Family(
    DHNNetwork,
    verb="dhn",
    about="Train a WideResNet with 0/1 activations on images; smooth and exact results, and how they differ.",
    recipes={
        "small": lambda: small(reduced_dhn()),
        "quick": lambda: quick(DHNNetwork(layout="whitened"), epochs=32),
        "reduced": reduced_dhn,
        "cifar10": lambda: published_dhn(40),
        "cifar100": lambda: published_dhn(28),
    },
    recipes_help=QUICK_HELP,
)
BNN = Family(
    BNNNetwork,
    verb="bnn",
    about="Train a Bi-Real Net, binary activations and weights, on images; smooth and exact results, side by side.",
    recipes={
        "small": lambda: small(reduced_bnn()),
        "quick": lambda: quick(BNNNetwork(layout="whitened"), epochs=12),
        "reduced": reduced_bnn,
        "cifar10": published_bnn,
        "cifar100": published_bnn,
    },
    recipes_help=QUICK_HELP,
)
SNN = Family(
    SNNNetwork,
    verb="snn",
    about="Train a SEW-ResNet of spiking neurons on images; smooth and exact results, and how they differ.",
    recipes={
        "small": lambda: small(reduced_snn()),
        "quick": lambda: quick(SNNNetwork(layout="whitened", steps=2), epochs=8),
        "reduced": reduced_snn,
        "cifar10": published_snn,
        "cifar100": published_snn,
    },
    recipes_help=QUICK_HELP,
)
