"""What the nodes of a traced graph are, for every form that a network is written in: affine maps of every channel and
the intervals in which a step after one gives 1, steps, poolings, what is rounded, layers with constant weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node

from htaf.core.kernels.layers import Geometry
from htaf.program.packed.instructions.layer import Form

aten = torch.ops.aten
Constants = dict[Node, Tensor]
Limits = tuple[float, float]
Pair = tuple[int, int]
CONVOLUTIONS = (aten.conv2d.default, aten.conv2d.padding)
PRODUCTS = (aten.linear.default, aten.matmul.default)


@dataclass(frozen=True)
class Affine:
    """scale source + shift; float64 [channels] along dimension `axis` of source, or [] with axis None."""

    source: Node
    scale: Tensor
    shift: Tensor
    axis: int | None


def identity(node: Node, scale: float = 1.0) -> Affine:
    """The node itself, or some times it."""
    return Affine(node, torch.tensor(scale, dtype=torch.float64), torch.tensor(0.0, dtype=torch.float64), None)


def shape_of(node: Node) -> tuple[Any, ...]:
    """Sizes as the export found them: integers, and symbols for the batch."""
    value = node.meta.get("val")
    return tuple(map(_known, value.shape)) if isinstance(value, Tensor) else ()


def _known(size: Any) -> Any:
    """A size as an integer where its symbol stands for one, as of what a mask chooses for a layer of known inputs."""
    number = size.node.maybe_as_int() if isinstance(size, torch.SymInt) else None
    return size if number is None else number


def same(a: tuple[Any, ...], b: tuple[Any, ...]) -> bool:
    """Equal sizes; symbols are compared by what they are, without a guard."""
    return len(a) == len(b) and all(str(x) == str(y) for x, y in zip(a, b, strict=True))


def batch_norm(node: Node, constants: Constants) -> Affine | None:
    if node.target is not aten.batch_norm.default or node.args[5]:
        return None
    source, *parts = node.args[:5]
    eps = node.args[7]
    weight, bias, mean, var = (constants.get(p) if isinstance(p, Node) else None for p in parts)  # pyright: ignore
    if mean is None or var is None or not isinstance(source, Node) or not isinstance(eps, float):
        return None
    scale = (var.double() + eps).rsqrt()
    scale = scale if weight is None else scale * weight.double()
    shift = -mean.double() * scale
    return Affine(source, scale, shift if bias is None else shift + bias.double(), 1)


def read_affine(node: Node, constants: Constants) -> Affine | None:
    """The node as an affine map of one float value, with constants that vary along one dimension at most."""
    if node.op != "call_function" or node in constants:
        return None
    if (norm := batch_norm(node, constants)) is not None:
        return norm
    if node.target is aten._to_copy.default and _copied(node):
        return identity(node.args[0])  # pyright: ignore
    if node.target is aten.neg.default and isinstance(node.args[0], Node):
        return identity(node.args[0], -1.0)
    signs: dict[Any, int] = {
        aten.add.Tensor: 1, aten.add.Scalar: 1, aten.sub.Tensor: -1, aten.sub.Scalar: -1, aten.rsub.Scalar: -1,
        aten.rsub.Tensor: -1, aten.mul.Tensor: 0, aten.mul.Scalar: 0, aten.div.Tensor: 0, aten.div.Scalar: 0,
    }  # fmt: skip
    if node.target not in signs or len(node.args) != 2 or node.kwargs:
        return None
    left, right = node.args
    if node.target in (aten.rsub.Scalar, aten.rsub.Tensor):
        left, right = right, left
    source = left if _is_value(left, constants) else right
    other = right if source is left else left
    if not isinstance(source, Node) or not _is_value(source, constants):
        return None
    constant = _along_one(other, source, constants)
    if constant is None or not same(shape_of(node), shape_of(source)):
        return None
    value, axis = constant
    one, zero = torch.ones_like(value), torch.zeros_like(value)
    if "div" in str(node.target):
        return None if source is right else Affine(source, 1 / value, zero, axis)
    if signs[node.target] == 0:
        return Affine(source, value, zero, axis)
    sign = signs[node.target]
    if source is left:
        return Affine(source, one, sign * value, axis)
    return Affine(source, sign * one, value, axis)


def is_float(node: Node) -> bool:
    """Whether a value is float32, as all that is fused begins and ends; between, a model may compute in float64."""
    value = node.meta.get("val")
    return isinstance(value, Tensor) and value.dtype == torch.float32


def _copied(node: Node) -> bool:
    """Whether a float becomes one of another width."""
    dtypes = [n.meta["val"].dtype for n in (node, *node.all_input_nodes) if isinstance(n.meta.get("val"), Tensor)]
    return len(dtypes) == 2 and all(dtype in (torch.float32, torch.float64) for dtype in dtypes)


def compose(outer: Affine, inner: Affine) -> Affine | None:
    """outer after inner, where `outer.source` is the node of `inner`; None where they vary along other dimensions."""
    if outer.axis is not None and inner.axis is not None and outer.axis != inner.axis:
        return None
    axis = inner.axis if outer.axis is None else outer.axis
    scale, shift = outer.scale * inner.scale, outer.scale * inner.shift + outer.shift
    scale, shift = torch.broadcast_tensors(scale, shift)
    return Affine(inner.source, scale, shift, axis)


def interval(scale: Tensor, shift: Tensor, *, integer: bool) -> tuple[Tensor, Tensor]:
    """float32 ends [channels] between which scale x + shift >= 0 in exact arithmetic.

    With integer x the finite end lies halfway between the last integer outside and the first inside; a bound within
    1e-9 of an integer, which float64 cannot tell from it, counts as that integer.
    """
    bound = torch.where(scale == 0, 0.0, -shift / scale)
    always = shift >= 0
    if integer:
        near = bound.round()
        bound = torch.where((bound - near).abs() <= 1e-9 * near.abs().clamp(min=1), near, bound)
        at_least, at_most = (bound.ceil() - 0.5).float(), (bound.floor() + 0.5).float()
    else:
        at_least, at_most = _rounded(bound, up=True), _rounded(bound, up=False)
    infinity = torch.full_like(at_least, torch.inf)
    lower = torch.where(scale > 0, at_least, torch.where((scale < 0) | always, -infinity, infinity))
    upper = torch.where(scale < 0, at_most, torch.where((scale > 0) | always, infinity, -infinity))
    never = ~scale.isfinite() | shift.isnan() | torch.isneginf(shift)  # NaN is never >= 0
    certain = torch.isposinf(shift)
    lower = torch.where(never, infinity, torch.where(certain, -infinity, lower))
    upper = torch.where(never, -infinity, torch.where(certain, infinity, upper))
    return lower.contiguous(), upper.contiguous()


def _rounded(bound: Tensor, *, up: bool) -> Tensor:
    """The least float32 >= bound, or the greatest <= bound."""
    to = torch.full_like(bound, torch.inf if up else -torch.inf).float()
    found = bound.float()
    missed = found.double() < bound if up else found.double() > bound
    return torch.where(missed, torch.nextafter(found, to), found)


def _is_value(argument: Any, constants: Constants) -> bool:
    return isinstance(argument, Node) and argument not in constants and shape_of(argument) != ()


def _along_one(other: Any, source: Node, constants: Constants) -> tuple[Tensor, int | None] | None:
    """A constant as float64 [channels] and the dimension of source along which it lies."""
    if isinstance(other, (int, float)) and not isinstance(other, bool):
        return torch.tensor(float(other), dtype=torch.float64), None
    value = constants.get(other) if isinstance(other, Node) else None
    rank = len(shape_of(source))
    if value is None or value.ndim > rank or not (value.is_floating_point() or value.dtype == torch.int64):
        return None
    wide = [i for i, size in enumerate(value.shape) if size != 1]
    if len(wide) > 1:
        return None
    axis = wide[0] + rank - value.ndim if wide else None
    return value.detach().double().reshape(-1 if wide else ()), axis


# ---- steps, neurons, poolings ----


@dataclass(frozen=True)
class Step:
    """1 where source >= 0, else `low`; NaN is no such place."""

    source: Node
    low: float


def read_step(node: Node, constants: Constants) -> Step | None:
    """The node as a step of one float value; None if it is none."""
    if node.op != "call_function" or node in constants or str(node.target) != "htaf.heaviside.default":
        return None
    source, bipolar = node.args
    return Step(source, -1.0 if bipolar else 0.0) if isinstance(source, Node) else None


def maps_each(node: Node) -> bool:
    """Whether a node is a function of every entry of one value, with numbers for its other arguments."""
    tags = getattr(node.target, "tags", ())
    once = sum(isinstance(a, Node) for a in node.args) == len(node.all_input_nodes) == 1
    return torch.Tag.pointwise in tags and once and is_float(node) and is_float(node.all_input_nodes[0])


def is_spikes(node: Node) -> bool:
    return str(node.target) == "htaf.spikes.default"


def is_pool(node: Node) -> bool:
    """A maximum over windows of images without dilation, whose sizes are not rounded up."""
    if node.target is not aten.max_pool2d.default or len(shape_of(node)) != 4:
        return False
    dilation, ceil = [*node.args[4:], *[1, False][max(len(node.args) - 4, 0) :]]
    return pair(node.kwargs.get("dilation", dilation)) == (1, 1) and not node.kwargs.get("ceil_mode", ceil)


def pair(value: Any) -> Pair:
    """Two sizes, of which an operator may be given one."""
    first, *rest = value if isinstance(value, (list, tuple)) else [value]
    return int(first), int(rest[-1] if rest else first)


def pool_sizes(node: Node) -> tuple[Pair, Pair, Pair]:
    """Kernel, stride and padding of a maximum over windows."""

    def given(name: str, index: int, default: Any) -> Pair:
        return pair((node.args[index] if len(node.args) > index else node.kwargs.get(name)) or default)

    kernel = given("kernel_size", 1, None)
    return kernel, given("stride", 2, kernel), given("padding", 3, 0)


# ---- layers, and what is rounded before them ----


@dataclass(frozen=True)
class LayerSite:
    """A convolution or linear layer: weight float32 [outputs, channels / groups, height, width], bias [outputs]."""

    node: Node
    source: Node
    form: Form
    geometry: Geometry
    weight: Tensor
    bias: Tensor | None
    axis: int


def read_layer(node: Node, constants: Constants) -> LayerSite | None:
    """The node as a layer with constant weights."""
    if node.op != "call_function" or node in constants:
        return None
    if node.target in CONVOLUTIONS:
        return _convolution(node, constants)
    if node.target in PRODUCTS:
        return _product(node, constants)
    return None


def _convolution(node: Node, constants: Constants) -> LayerSite | None:
    names = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")
    defaults: dict[str, Any] = {"bias": None, "stride": [1], "padding": [0], "dilation": [1], "groups": 1}
    given: dict[str, Any] = defaults | dict[str, Any](zip(names, node.args, strict=False)) | node.kwargs
    source, weight = given["input"], constants.get(given["weight"])
    bias = constants.get(given["bias"]) if given["bias"] is not None else None
    if weight is None or source in constants or len(shape_of(source)) != 4 or weight.dtype != torch.float32:
        return None
    if given["bias"] is not None and bias is None:
        return None
    groups = given["groups"]
    kernel = (weight.shape[2], weight.shape[3])
    dilation, padding = pair(given["dilation"]), given["padding"]
    if isinstance(padding, str):
        reach = [d * (k - 1) for d, k in zip(dilation, kernel, strict=True)]
        if padding == "same" and any(r % 2 for r in reach):
            return None  # one pixel more on one side
        pads = (reach[0] // 2, reach[1] // 2) if padding == "same" else (0, 0)
    else:
        pads = pair(padding)
    sizes = (weight.shape[1] * groups, weight.shape[0])
    geometry = Geometry(*sizes, kernel, pair(given["stride"]), pads, dilation, groups)
    return LayerSite(node, source, "image", geometry, weight, bias, 1)


def _product(node: Node, constants: Constants) -> LayerSite | None:
    args = list(node.args)
    source, weight = args[0], constants.get(args[1]) if isinstance(args[1], Node) else None
    bias = constants.get(args[2]) if len(args) > 2 and isinstance(args[2], Node) else None
    if weight is None or weight.ndim != 2 or weight.dtype != torch.float32 or not isinstance(source, Node):
        return None
    if source in constants or len(shape_of(source)) < 2 or (len(args) > 2 and args[2] is not None and bias is None):
        return None
    if node.target is not aten.linear.default:
        weight = weight.t()
    if bias is not None and tuple(bias.shape) != (weight.shape[0],):
        return None
    geometry = Geometry(weight.shape[1], weight.shape[0])
    weight = weight.reshape(*weight.shape, 1, 1)
    return LayerSite(node, source, "row", geometry, weight, bias, len(shape_of(source)) - 1)


def on_powers(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Numbers of float32, finite, as integers times the greatest power of two a filter with which all are.

    Returns:
        float64 of the shape of weight and float64 [filters].
    """
    flat = weight.detach().flatten(1).double()
    mantissa, exponent = flat.frexp()
    digits = (mantissa * 2**24).long()  # float32 has so many
    lowest = (digits & -digits).double().frexp().exponent - 25 + exponent  # of the last one that is set
    lowest = torch.where(flat == 0, 10_000, lowest).amin(1)
    step = torch.ldexp(torch.ones(len(flat), dtype=torch.float64), torch.where(lowest == 10_000, 0, lowest))
    return (flat / step[:, None]).reshape(weight.shape), step


def before_rounding(node: Node, constants: Constants) -> tuple[Node, float, Limits | None, list[Node]]:
    """What a node rounds, to integers or to float32.

    Returns:
        The value before, by how much it is multiplied, where it is clipped then, and the nodes between.
    """
    source = node.args[0]
    factor, limits, between = 1.0, None, list[Node]()
    while True:
        assert isinstance(source, Node)
        affine = read_affine(source, constants)
        if affine is not None and affine.scale.ndim == 0 and float(affine.shift) == 0:
            between.append(source)
            factor, source = factor * float(affine.scale), affine.source
        elif source.target is aten.clamp.default and limits is None and len(source.args) == 3 and not source.kwargs:
            if None in source.args:
                return source, factor, limits, between
            between.append(source)
            limits = (float(source.args[1]) * factor, float(source.args[2]) * factor)  # pyright: ignore
            source = source.args[0]
        else:
            return source, factor, limits, between
