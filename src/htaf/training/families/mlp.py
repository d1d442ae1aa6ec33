"""Multi-layer perceptrons for tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from htaf.training.recipe import (
    LIMIT,
    Activation,
    Family,
    Hardening,
    Network,
    Optimization,
    Recipe,
    TableData,
    expect,
)

# Fields that came after the first records: at these values they do not change the key of a training.
_LATER = {
    "family": "mlp", "optimizer": "adamw", "momentum": 0.9, "nesterov": False, "lr_end": 0.0, "label_smoothing": 0.0,
    "clip": 0.0, "precision": "float32", "compile": False,
}  # fmt: skip


@dataclass(frozen=True)
class MLPNetwork(Network):
    """The multi-layer perceptron.

    Args:
        hidden: Sizes of the hidden layers.
        batch_norm: Normalise the pre-activations.
    """

    family: ClassVar[str] = "mlp"
    data: ClassVar = TableData
    hidden: tuple[int, ...] = (256, 256, 128)
    batch_norm: bool = True

    def check(self) -> None:
        sizes = len(self.hidden) > 0 and all(type(size) is int and 1 <= size < LIMIT for size in self.hidden)
        expect(sizes, f"hidden sizes must be integers in 1 to {LIMIT - 1:,}", self.hidden)

    @property
    def normalised(self) -> bool:
        return self.batch_norm

    def model(self, inputs: Mapping[str, Any], outputs: int, activation: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "kind": "mlp",
            "in_features": inputs["in_features"],
            "out_features": outputs,
            "activation": activation,
            "hidden": list(self.hidden),
            "batch_norm": self.batch_norm,
        }

    def title(self) -> str:
        return f"MLP {'-'.join(map(str, self.hidden))}"

    def identity(self, fields: dict[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in fields.items() if name not in _LATER or _LATER[name] != value}


def tabular_mlp() -> Recipe:
    """The default for tables: (2, 11) from a soft start, batch norm, one cycle up to 3e-3, at most 100 epochs."""
    return Recipe(MLPNetwork(), TableData())


def tabular_paper() -> Recipe:
    """As the paper words it: Adam 1e-3, constant, no sharpening and no batch norm, 1,000 epochs."""
    training = Optimization(epochs=1000, lr=1e-3, schedule="constant", patience=0)
    return Recipe(MLPNetwork(batch_norm=False), TableData(), Activation(sharpen=False), training)


def tabular_quick() -> Recipe:
    """The demo's: 30 epochs."""
    return Recipe(MLPNetwork(), TableData(), optimization=Optimization(epochs=30, patience=0))


def tabular_progressive() -> Recipe:
    """Layer by layer exact in the last 40% of 30 epochs: a softer pair (1, 8) from (0.5, 4), repair, refit."""
    activation = Activation(alpha0=1.0, alpha1=8.0, beta=8.0, sharpen_fraction=0.3)
    hardening = Hardening("progressive", recalibrate=True, refit=True)
    return Recipe(MLPNetwork(), TableData(), activation, Optimization(epochs=30, patience=0), hardening)


FAMILY = Family(
    MLPNetwork,
    verb="tabular",
    about="Train an MLP with 0/1 activations on a table; smooth and exact results, and the gap.",
    recipes={
        "tabular-mlp": tabular_mlp,
        "tabular-paper": tabular_paper,
        "tabular-quick": tabular_quick,
        "tabular-progressive": tabular_progressive,
    },
    recipes_help="tabular-mlp: 100 epochs with sharpening; tabular-paper: as the paper words it; tabular-quick: "
    "30 epochs; tabular-progressive: 30 epochs, hardened layer by layer.",
)
