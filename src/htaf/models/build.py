"""Networks from plain descriptions, the form in which a run folder keeps them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Literal, get_args

from torch import nn

from htaf import surrogates
from htaf.activations import HTAF, ScaledSigmoid, StraightThrough
from htaf.models.bireal import BiRealNet
from htaf.models.mlp import MLP
from htaf.models.sew_resnet import SEWResNet
from htaf.models.wide_resnet import WideResNet
from htaf.neurons import IF, LIF

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
            {"method": "ste", "slope": "tanh"} or {"method": "relu"}; all but relu also take "bipolar": True.

    Raises:
        ValueError: an unknown method or slope.
    """
    bipolar = bool(description.get("bipolar", False))
    match description:
        case {"method": "htaf", "alpha0": alpha0, "alpha1": alpha1}:
            return partial(HTAF, alpha0, alpha1, bipolar=bipolar)
        case {"method": "ss", "beta": beta}:
            return partial(ScaledSigmoid, beta, bipolar=bipolar)
        case {"method": "ste", "slope": slope} if slope in SLOPES:
            return partial(StraightThrough, SLOPES[slope], bipolar=bipolar)
        case {"method": "relu"} if not bipolar:
            return nn.ReLU
    raise ValueError(
        f"expected a method of {get_args(Method)} with its parameters (slope one of {tuple(SLOPES)}), got {description}"
    )


def neuron(description: dict[str, Any], act: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    """A factory of spiking neurons around an activation; of plain ReLU modules where that is the activation.

    Args:
        description: {"kind": "if" or "lif", "reset", "detach_reset", "exact_reset"} and for lif "tau".
        act: from `activation`.

    Raises:
        ValueError: an unknown kind.
    """
    if act is nn.ReLU:
        return nn.ReLU
    options = {name: description[name] for name in ("reset", "detach_reset", "exact_reset")}
    match description["kind"]:
        case "if":
            return lambda: IF(act(), **options)
        case "lif":
            return lambda: LIF(act(), tau=description["tau"], **options)
    raise ValueError(f"expected a neuron of kind if or lif, got {description['kind']!r}")


def build(description: dict[str, Any]) -> nn.Module:
    """The network that a run folder describes, with fresh weights.

    Args:
        description: {"kind", "out_features", "activation": {...}} and
            mlp: "in_features", "hidden", "batch_norm"; wide_resnet: "in_channels", "depth", "width", "dropout";
            bireal: "in_channels", "depth", "width", "stem"; sew_resnet: these, "steps", "connect", "neuron": {...}.

    Raises:
        ValueError: an unknown kind, or a description that lacks a field.
    """
    d = description
    try:
        act, outputs = activation(d["activation"]), d["out_features"]
        match d["kind"]:
            case "mlp":
                return MLP(d["in_features"], outputs, tuple(d["hidden"]), act, d["batch_norm"])
            case "wide_resnet":
                return WideResNet(
                    d["depth"], d["width"], outputs, act, in_channels=d["in_channels"], dropout=d["dropout"]
                )
            case "bireal":
                return BiRealNet(
                    d["depth"], outputs, act, width=d["width"], stem=d["stem"], in_channels=d["in_channels"]
                )
            case "sew_resnet":
                return SEWResNet(
                    d["depth"],
                    outputs,
                    neuron(d["neuron"], act),
                    steps=d["steps"],
                    width=d["width"],
                    connect=d["connect"],
                    stem=d["stem"],
                    in_channels=d["in_channels"],
                )
            case kind:
                raise ValueError(f"expected a model of kind mlp, wide_resnet, bireal or sew_resnet, got {kind!r}")
    except KeyError as missing:
        raise ValueError(f"the model's description lacks {missing}") from None
