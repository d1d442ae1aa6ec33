"""Networks from plain descriptions, the form in which a run folder keeps them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Literal, get_args

from torch import nn

from htaf import surrogates
from htaf.activations import HTAF, ScaledSigmoid, StraightThrough
from htaf.models.mlp import MLP

Method = Literal["htaf", "ste", "ss", "relu"]
SlopeName = Literal["sigmoid", "tanh", "rectangular", "atan", "approx_sign", "htaf"]

SLOPES: dict[SlopeName, surrogates.Slope] = {
    "sigmoid": surrogates.sigmoid,
    "tanh": surrogates.tanh,
    "rectangular": surrogates.rectangular,
    "atan": surrogates.atan,
    "approx_sign": surrogates.approx_sign,
    "htaf": surrogates.htaf,
}


def activation(description: dict[str, Any]) -> Callable[[], nn.Module]:
    """A factory of activation modules.

    Args:
        description: {"method": "htaf", "alpha0": 2.0, "alpha1": 11.0}, {"method": "ss", "beta": 22.0},
            {"method": "ste", "slope": "tanh"} or {"method": "relu"}.

    Raises:
        ValueError: an unknown method or slope.
    """
    match description:
        case {"method": "htaf", "alpha0": alpha0, "alpha1": alpha1}:
            return partial(HTAF, alpha0, alpha1)
        case {"method": "ss", "beta": beta}:
            return partial(ScaledSigmoid, beta)
        case {"method": "ste", "slope": slope} if slope in SLOPES:
            return partial(StraightThrough, SLOPES[slope])
        case {"method": "relu"}:
            return nn.ReLU
    raise ValueError(
        f"expected a method of {get_args(Method)} with its parameters (slope one of {tuple(SLOPES)}), got {description}"
    )


def build(description: dict[str, Any]) -> nn.Module:
    """The network that a run folder describes, with fresh weights.

    Args:
        description: {"kind": "mlp", "in_features", "out_features", "hidden", "batch_norm", "activation": {...}}.

    Raises:
        ValueError: an unknown kind, or a description that lacks a field.
    """
    try:
        match description["kind"]:
            case "mlp":
                return MLP(
                    description["in_features"],
                    description["out_features"],
                    tuple(description["hidden"]),
                    activation(description["activation"]),
                    description["batch_norm"],
                )
            case kind:
                raise ValueError(f"expected a model of kind mlp, got {kind!r}")
    except KeyError as missing:
        raise ValueError(f"the model's description lacks {missing}") from None
