"""Every family of networks on images at its smallest, a row each: the table of what is tried with all of them."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import nn

from htaf.models.bireal import BiRealNet
from htaf.models.logic import LogicNet
from htaf.models.sew_resnet import SEWResNet
from htaf.models.wide_resnet import WideResNet


class Smallest(NamedTuple):
    """A row of the table."""

    fields: dict[str, Any]  # of its recipe
    network: type[nn.Module]
    steps: int  # that it has with these fields

    def flags(self) -> tuple[str, ...]:
        """The fields as words of the command."""
        words: list[str] = []
        for name, value in self.fields.items():
            values = value if isinstance(value, tuple) else (value,)
            words += ["--" + name.replace("_", "-"), *map(str, values)]
        return tuple(words)


SMALLEST = {
    "dhn": Smallest({"depth": 10, "width": 1}, WideResNet, 7),
    "bnn": Smallest({"width": 4}, BiRealNet, 16),
    "snn": Smallest({"width": 4, "steps": 2}, SEWResNet, 20),
    "logic-images": Smallest({"luts": (20,)}, LogicNet, 1),
}
