"""Networks from plain descriptions, the form in which a run folder keeps them."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, get_args

import torch
from torch import nn
from torch.nn.modules.module import (
    register_module_buffer_registration_hook,
    register_module_parameter_registration_hook,
)

from htaf._ground.errors import expect_memory
from htaf._ground.names import BACKBONES, Method, SlopeName, is_outside
from htaf.core import surrogates
from htaf.core.activations import HTAF, ScaledSigmoid, StraightThrough
from htaf.core.binary import BinaryConv2d
from htaf.core.contract import StepFactory, from_outside, make_step
from htaf.models.bireal import BiRealNet
from htaf.models.icbm import (
    ICBM,
    check_timm,
    timm_backbone,
)
from htaf.models.logic import LogicNet
from htaf.models.mlp import MLP
from htaf.models.resnet import ResNet
from htaf.models.sew_resnet import SEWResNet
from htaf.models.whitened import WhitenedConvNet
from htaf.models.wide_resnet import WideResNet
from htaf.transform.grid import Bits, on_grid
from htaf.transform.spiking.neurons import IF, LIF

GRIDS: dict[Any, Bits] = {"int8": 8, "int4": 4}
# kind: its class, the arguments that a description gives beside outputs and activation, and those of some
_NETWORKS: dict[str, tuple[Callable[..., nn.Module], tuple[str, ...], tuple[str, ...]]] = {
    "mlp": (MLP, ("in_features", "hidden", "batch_norm"), ("members", "thresholds", "dropout", "direct", "leaves")),
    "wide_resnet": (WideResNet, ("in_channels", "depth", "width", "dropout"), ()),
    "resnet": (ResNet, ("in_channels", "depth", "width", "stem"), ()),
    "bireal": (BiRealNet, ("in_channels", "depth", "width", "stem"), ()),
    "sew_resnet": (SEWResNet, ("in_channels", "depth", "width", "stem", "steps", "connect", "neuron"), ()),
    "whitened": (WhitenedConvNet, ("in_channels", "widths", "binary_weights"), ("steps", "neuron", "keep_first")),
    "logic": (LogicNet, ("luts", "thresholds", "inputs", "learned"), ("exponent", "divisor", "learn_divisor")),
}
KINDS = (*_NETWORKS, "icbm")

SLOPES: dict[SlopeName, surrogates.Slope] = {name: getattr(surrogates, name) for name in get_args(SlopeName)}


def activation(description: dict[str, Any], step: StepFactory | None = None) -> Callable[[], nn.Module]:
    """A factory of activation modules.

    Args:
        description: {"method": "htaf", "alpha0": 2.0, "alpha1": 11.0}, "learnable": True where it is learned;
            {"method": "ss", "beta": 22.0}, {"method": "ste", "slope": "tanh"}, {"method": "relu"}, or of a step from
            outside htaf {"method": "package.module:Class", "kind": "mine"} with its sharpness parameters; all but relu
            take "bipolar": True and "levels": 2, of steps with several thresholds.
        step: the class of that step, which is never imported by its name.

    Raises:
        ValueError: an unknown method or slope, or a step from outside that is not given or is another one.
    """
    bipolar, levels = bool(description.get("bipolar", False)), description.get("levels", 1)
    several = {"levels": levels} if levels != 1 else {}
    match description:
        case {"method": "htaf", "alpha0": alpha0, "alpha1": alpha1}:
            learned = {"learnable": True} if description.get("learnable") else {}
            return partial(HTAF, alpha0, alpha1, bipolar=bipolar, **learned, **several)
        case {"method": "ss", "beta": beta}:
            return partial(ScaledSigmoid, beta, bipolar=bipolar, **several)
        case {"method": "ste", "slope": slope} if slope in SLOPES:
            return partial(StraightThrough, SLOPES[slope], bipolar=bipolar, **several)
        case {"method": "relu"} if not bipolar and levels == 1:
            return nn.ReLU
        case {"method": method, "kind": str(kind), **numbers} if is_outside(method):
            values = {name: value for name, value in numbers.items() if name not in ("bipolar", "levels")}
            return partial(make_step, from_outside(method, step), values, kind=kind, bipolar=bipolar, levels=levels)
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


def check_backbone(name: str) -> None:
    """Raises ValueError where there is no backbone of this name, without building it."""
    if name not in BACKBONES:
        check_timm(name)


def without_weights(make: Callable[[], nn.Module]) -> nn.Module:
    """A network to look at: on PyTorch's meta device, which needs no memory, where its constructor can do that."""
    try:
        with torch.device("meta"):
            return make()
    except (RuntimeError, ValueError):
        with torch.random.fork_rng():
            return make()


def backbone_description(name: str, fields: dict[str, Any]) -> dict[str, Any]:
    """A backbone as `build` takes it.

    Args:
        name: wide_resnet, resnet, or a timm model's name. fields: depth, width, stem, dropout.
    """
    if name in BACKBONES:
        return {"kind": name, **{field: fields[field] for field in BACKBONES[name]}}
    return {"kind": "timm", "name": name}


def backbone(description: dict[str, Any], in_channels: int, size: tuple[int, int] | None) -> nn.Module:
    """A network without its classifier, with fresh weights: images -> [batch, features].

    Args:
        description: from `backbone_description`. in_channels, size: of the images; None: the size of its own.

    Raises:
        ValueError: an unknown kind or model.
    """
    match description:
        case {"kind": "wide_resnet", "depth": depth, "width": width, "dropout": dropout}:
            net = WideResNet(depth, width, 1, nn.ReLU, in_channels=in_channels, dropout=dropout)
        case {"kind": "resnet", "depth": depth, "width": width, "stem": stem}:
            net = ResNet(depth, 1, nn.ReLU, width=width, stem=stem, in_channels=in_channels)
        case {"kind": "timm", "name": str(name)}:
            return timm_backbone(name, in_channels, size)
        case _:
            kinds = f"{', '.join(BACKBONES)} or timm"
            raise ValueError(f"expected a backbone of kind {kinds}, got {description!r:.200}")
    net.head = nn.Identity()  # pyright: ignore[reportAttributeAccessIssue]
    return net


def _icbm(d: dict[str, Any], step: StepFactory | None) -> ICBM:
    """A concept bottleneck from its description."""
    channels, size = d["in_channels"], tuple(d["image_size"])
    enlarge = tuple(d["enlarge"]) if d.get("enlarge") else None
    real = d["activation"] == {"method": "relu"}
    act = None if real else activation(d["activation"], step)
    if real and d["bottleneck"] == "independent":  # its head has learned on 0 and 1
        act = nn.Sigmoid
    return ICBM(
        backbone(d["backbone"], channels, enlarge or size),
        d["out_features"],
        act,
        example=torch.zeros(2, channels, *size),
        concepts=d["concepts"],
        norm=False if real else d["norm"],
        freeze=d["freeze"],
        keep_norms=d.get("keep_norms", False),
        enlarge=enlarge,
        dropout=d.get("feature_dropout", 0.0),
    )


def weight_bytes(description: dict[str, Any], step: StepFactory | None = None) -> int:
    """Bytes of the weights that `build` would make, in float32; 0 where they are not known before (timm).

    Raises:
        ValueError: as `build`.
    """
    kind = (description.get("backbone") or {}).get("kind")
    if kind not in (None, *BACKBONES):
        return 0
    with torch.device("meta"), warnings.catch_warnings():  # shapes alone
        warnings.simplefilter("ignore")
        return 4 * sum(p.numel() for p in _built(description, step).parameters())


@contextmanager
def at_most(weights: int, tensors: int) -> Iterator[None]:
    """Networks that are built in the block may hold about so many weights in so many tensors: those of their file.

    A description is a few bytes that may ask for any amount of memory, which many systems give and then kill for.

    Raises:
        ValueError: from the block, before what is too large is filled.
    """
    left = [4 * weights + (1 << 22), 4 * tensors + 1000]  # what is taken away, shared or loaded later counts again

    def count(module: nn.Module, name: str, tensor: torch.Tensor | None) -> None:
        left[0] -= 0 if tensor is None else tensor.numel()
        left[1] -= 1
        if min(left) < 0:
            raise ValueError(
                f"expected at most {weights:,} weights in {tensors:,} tensors, as its file can hold, got more"
            )

    hooks = [register_module_parameter_registration_hook(count), register_module_buffer_registration_hook(count)]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def build(description: dict[str, Any], step: StepFactory | None = None) -> nn.Module:
    """The network that a run folder describes, with fresh weights.

    Args:
        description: {"kind", "out_features", "activation": {...}} and
            mlp: "in_features", "hidden", "batch_norm", and of some "members", "thresholds", "dropout", "direct",
                "leaves";
            logic: "in_features" or "in_channels" and "image_size", "luts", "inputs", "thresholds", "learned" and
                of some "exponent", "divisor" and "learn_divisor";
            wide_resnet: "in_channels", "depth", "width", "dropout";
            bireal: "in_channels", "depth", "width", "stem"; sew_resnet: these, "steps", "connect", "neuron": {...};
            resnet: as bireal; whitened: "in_channels", "widths", "binary_weights", of some "keep_first", and of a
            spiking one "steps" and "neuron"; icbm: "in_channels", "image_size", "backbone": {...}, "concepts", "norm",
            "bottleneck", "freeze", and of some "keep_norms", "enlarge" and "feature_dropout". Of mlp, wide_resnet,
            sew_resnet and whitened with weights on a grid: "weights", int8 or int4.
        step: the class of its activation where that is a step from outside htaf, see `activation`.

    Raises:
        ValueError: an unknown kind, or a description that lacks a field. TooLargeError: it does not fit into memory.
    """
    expect_memory(weight_bytes(description, step), "this network", "choose a smaller one")
    net = _built(description, step)
    return net if "weights" not in description else _on_grid(net, description)


def _on_grid(net: nn.Module, d: dict[str, Any]) -> nn.Module:
    """The network with the weights that its description asks for."""
    bits = GRIDS.get(d["weights"])
    if bits is None or d["activation"].get("method") == "relu":
        expected = f"weights of {', '.join(GRIDS)} with steps for activations"
        raise ValueError(f"expected {expected}, got {d['weights']!r:.40} and {d['activation']!r:.80}")
    size = 2 ** len(d.get("widths", ())) * 8 + 1  # of small images that fit
    shape = (d["in_features"],) if d["kind"] == "mlp" else (d["in_channels"], size, size)
    example = torch.randn(2, *shape, generator=torch.Generator().manual_seed(0))  # which layers read bits
    return on_grid(net, example, bits=bits)


def _built(d: dict[str, Any], step: StepFactory | None) -> nn.Module:
    try:
        if d["kind"] == "icbm":
            return _icbm(d, step)
        act, outputs = activation(d["activation"], step), d["out_features"]
        match d["kind"]:
            case str(kind) if kind in _NETWORKS:
                make, names, more = _NETWORKS[kind]
                found = {name: d[name] for name in names} | {name: d[name] for name in more if name in d}
                given: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in found.items()}
                if kind == "whitened":
                    given["conv"] = BinaryConv2d if given.pop("binary_weights") else nn.Conv2d
                if "neuron" in given:
                    act = neuron(given.pop("neuron"), act)
                if kind == "logic":
                    pixels = "in_features" not in d
                    given["in_features"] = d["in_channels"] * math.prod(d["image_size"]) if pixels else d["in_features"]
                given["out_features" if kind in ("mlp", "logic") else "classes"] = outputs
                return make(**given, **{"neuron" if kind == "sew_resnet" else "act": act})
            case kind:
                raise ValueError(f"expected a model of kind {', '.join(KINDS)}, got {kind!r:.80}")
    except KeyError as missing:
        raise ValueError(f"the model's description lacks {missing}") from None
