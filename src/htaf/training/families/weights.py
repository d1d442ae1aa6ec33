"""What the families whose weights may lie on a grid share: the field `weights`."""

from __future__ import annotations

from typing import Any, Literal

Weights = Literal["float", "int8", "int4"]


def weighted(model: dict[str, Any], weights: Weights) -> dict[str, Any]:
    """A network as `models.build.build` takes it, with these weights."""
    return model if weights == "float" else model | {"weights": weights}


def titled(title: str, weights: Weights) -> str:
    """The network in words, with its weights."""
    return title if weights == "float" else f"{title}, {weights} weights"
