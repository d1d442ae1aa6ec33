"""Logic networks, whose neurons are truth tables of a few bits, for tables and for small images."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from htaf.training.recipe import (
    LIMIT,
    Activation,
    Family,
    ImageData,
    Network,
    Optimization,
    Recipe,
    TableData,
    expect,
)

if TYPE_CHECKING:
    from torch import nn

    from htaf.training.problems import Problem

EXPONENT = 10  # of columns: 15 bits
HEAD = 10  # divisors of a regression, whose head would make too much of single bits
CONNECTIONS, SCALE = 0.5, 0.36  # learning rates of connections and of the divisor's logarithm, of that of the tables


@dataclass(frozen=True)
class LogicNetwork(Network):
    """The logic network.

    Args:
        luts: Truth tables of each layer, whose connections are learned; classes are the sums of equal groups of the
            last layer's bits.
        lut_inputs: Of each table, 1 to 8: 6 is a LUT of most FPGAs.
        thresholds: Most bits of a thermometer for each input, at quantiles of the training rows.
        connecting: Share of the training in which connections are learned, on one device; then the tables alone, which
            takes a third of the time a step.
        divisor: A class's score is its count over this times sqrt(tables a class), at the start of a training that
            learns it; a regression starts with ten times this, and its head learns. 0: it is fixed at the power of two
            that is nearest to sqrt(tables a class) / 2.
    """

    family: ClassVar[str] = "logic"
    data: ClassVar = TableData
    takes_relu: ClassVar[bool] = False
    one_level: ClassVar[str] = "a table's entry is one bit"
    luts: tuple[int, ...] = (200,)
    lut_inputs: int = 6
    thresholds: int = 15
    connecting: float = 1.0
    divisor: float = 3.2

    def check(self) -> None:
        sizes = len(self.luts) > 0 and all(type(size) is int and 1 <= size < LIMIT for size in self.luts)
        expect(sizes, f"luts must be integers in 1 to {LIMIT - 1:,}", self.luts)
        self.expect_all(("lut_inputs",), lambda v: 1 <= v <= 8, "must lie in 1 to 8")
        self.expect_all(("thresholds",), lambda v: 1 <= v <= 255, "must lie in 1 to 255")
        self.expect_all(("divisor",), lambda v: 0 <= v < math.inf, "must be >= 0 and finite")
        self.expect_all(("connecting",), lambda v: 0 < v <= 1, "must lie in (0, 1]")

    def model(self, inputs: Mapping[str, Any], outputs: int, activation: Mapping[str, Any]) -> dict[str, Any]:
        from htaf.models.logic import LogicNet

        if "image_size" in inputs:
            sizes = {name: inputs[name] for name in ("in_channels", "image_size")}
            counts = [self.thresholds] * (inputs["in_channels"] * math.prod(inputs["image_size"]))
        else:
            sizes = {"in_features": inputs["in_features"], "exponent": EXPONENT}
            counts = [min(self.thresholds, levels - 1) for levels in inputs["levels"]]
        if self.divisor:
            groups = outputs if outputs > 1 else LogicNet.GROUPS
            start = self.divisor * math.sqrt(math.ceil(self.luts[-1] / groups)) * (1 if outputs > 1 else HEAD)
            start = 2.0 ** round(math.log2(start))
            sizes |= {"divisor": start, "learn_divisor": outputs > 1}
        return {
            "kind": "logic",
            **sizes,
            "out_features": outputs,
            "activation": activation,
            "luts": list(self.luts),
            "inputs": self.lut_inputs,
            "thresholds": counts,
            "learned": True,
        }

    def title(self) -> str:
        return f"{'-'.join(map(str, self.luts))} truth tables of {self.lut_inputs} bits"

    def initialise(self, net: nn.Module, posed: Problem) -> dict[str, Any]:
        from htaf.models.logic import LogicNet

        assert isinstance(net, LogicNet)
        net.place(posed.examples(sys.maxsize))
        return {}

    def groups(self, net: nn.Module, lr: float) -> list[Any]:
        rates = {name: lr * _share(name) for name, p in net.named_parameters() if p.requires_grad}
        return [
            {"params": [p for name, p in net.named_parameters() if rates.get(name) == rate], "lr": rate}
            for rate in sorted({*rates.values()}, reverse=True)
        ]

    def advance(self, net: nn.Module, progress: float) -> None:
        for name, parameter in net.named_parameters():
            if _share(name) == CONNECTIONS:
                parameter.requires_grad_(progress < self.connecting)

    def settle(self, net: nn.Module) -> dict[str, Any]:
        from htaf.models.logic import LogicNet

        assert isinstance(net, LogicNet)
        net.settle()
        return {"learned": False, "divisor": net.sums.divisor, "learn_divisor": False}


def _share(name: str) -> float:
    """The learning rate of a parameter, of that of the tables."""
    if name.startswith("layers.") and name.endswith(".weight"):
        return CONNECTIONS
    return SCALE if name == "sums.log2_divisor" else 1.0


@dataclass(frozen=True)
class ImageLogicNetwork(LogicNetwork):
    """The logic network on the pixels of images.

    Args:
        luts: Truth tables of each layer, whose connections are learned; classes are the sums of equal groups of the
            last layer's bits.
        lut_inputs: Of each table, 1 to 8: 6 is a LUT of most FPGAs.
        thresholds: Bits of a thermometer for each pixel and channel: of evenly spaced levels of the images' values, at
            least 3, those that say most about the class. One threshold for all pixels costs least on an FPGA.
        connecting: Share of the training in which connections are learned, on one device; then the tables alone, which
            takes a third of the time a step.
        divisor: A class's score is its count over this times sqrt(tables a class), at the start of a training that
            learns it. 0: it is fixed at the power of two that is nearest to sqrt(tables a class) / 2.
    """

    family: ClassVar[str] = "logic-images"
    data: ClassVar = ImageData
    luts: tuple[int, ...] = (1000,)
    thresholds: int = 1
    connecting: float = 0.5
    divisor: float = 0.0

    def initialise(self, net: nn.Module, posed: Problem) -> dict[str, Any]:
        import torch

        from htaf.models.logic import LogicNet, informative

        assert isinstance(net, LogicNet)
        some = posed.fitting().spread(EXAMPLES)
        x, y = some[torch.arange(len(some)), 0][:2]
        low, high = x.amin((0, 2, 3)), x.amax((0, 2, 3))
        levels = max(self.thresholds + 1, LEVELS)
        share = torch.arange(1, levels) / levels
        placed = low[:, None] + (high - low)[:, None] * share  # of each channel
        chosen = [*range(levels - 1)]
        if self.thresholds < len(chosen):
            reached = (x.flatten(2)[..., None] >= placed[:, None]).sum(-1)
            chosen = informative(reached.flatten(1), y, self.thresholds)
        net.thermometer.threshold.copy_(placed[:, chosen].repeat_interleave(x.shape[2] * x.shape[3], 0).flatten())  # pyright: ignore
        return {}


LEVELS = 4  # of an image's values between its least and its greatest: one threshold is one of three
EXAMPLES = 5000  # images whose values are looked at


def logic_tables() -> Recipe:
    """200 truth tables, 60 epochs: (2, 11) from a soft start over all of them."""
    training = Optimization(epochs=60, least_steps=2000, lr=0.02, schedule="cosine", label_smoothing=0.05, patience=0)
    return Recipe(LogicNetwork(), TableData(), ACTIVATION, training)


def logic_images() -> Recipe:
    """1,000 truth tables on one bit of each pixel, 24 epochs of images that are moved by a pixel or two."""
    training = Optimization(epochs=24, lr=0.02, schedule="cosine", patience=0)
    return Recipe(ImageLogicNetwork(), ImageData("shift"), ACTIVATION, training)


ABOUT = "Train a network of truth tables on a table or on small images: a lookup a neuron, for small devices."
ACTIVATION = Activation(start=(0.5, 4.0), sharpen_fraction=1.0)
TABLES = Family(
    LogicNetwork,
    verb="logic",
    about=ABOUT,
    recipes={"logic": logic_tables},
    recipes_help="logic: 200 tables of six bits; of images logic-images: 1,000, on one bit of each pixel.",
)
IMAGES = Family(
    ImageLogicNetwork,
    verb="logic",
    about=ABOUT,
    recipes={"logic-images": logic_images},
    recipes_help="logic-images: 1,000 tables of six bits, one bit of each pixel.",
)
