"""Which values of a graph are bits or small integers: outputs of steps and neurons, and what keeps them so."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.fx import Node
from torch.fx.node import map_arg

from htaf.program.packed.affine import Constants, aten, is_float, read_affine, same, shape_of

CONVOLUTIONS = (aten.conv2d.default, aten.conv2d.padding)
PRODUCTS = (aten.linear.default, aten.matmul.default)


Pair = tuple[int, int]
ROUNDED = 2**-22  # of the larger level: what a few operations in float32 round


@dataclass(frozen=True)
class Bits:
    """A value of a graph that is `low` or `high` everywhere, or (`most` > 1) a level of several: an integer from 0 to
    `most` that stands for a number from `low` to `high`, evenly.

    axis: the dimension of the channels, in the graph's order. whole: the sizes [channels, ...] that were flattened into
    this one dimension, None where nothing was. planes: bits an integer takes. nested: the integer is a sum of as many
    bits, each of which is 1 only where the one before is: the thresholds of one step.
    """

    channels: int
    axis: int
    low: float = 0.0
    high: float = 1.0
    most: int = 1
    whole: tuple[int, ...] | None = None
    nested: bool = False

    @property
    def unit(self) -> float:
        """Between two neighbouring levels."""
        return (self.high - self.low) / self.most

    def levels(self) -> torch.Tensor:
        """The numbers that the integers stand for, float32."""
        i = torch.arange(self.most + 1.0)
        return (self.low * (self.most - i) + self.high * i) / self.most

    @property
    def planes(self) -> int:
        return self.most.bit_length()

    @property
    def plain(self) -> bool:
        return (self.low, self.high, self.most) == (0.0, 1.0, 1)


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


def infer(nodes: list[Node], constants: Constants) -> dict[Node, Bits]:
    """The values that are worth keeping as bits: those that a layer, or a pooling before one, takes."""
    found: dict[Node, Bits] = {}
    for node in nodes:
        if (kind := _kind(node, found, constants)) is not None:
            found[node] = kind
    return found


def _kind(node: Node, found: dict[Node, Bits], constants: Constants) -> Bits | None:
    step = read_step(node, constants)
    if step is not None or is_spikes(node):
        shape = shape_of(node)
        if _dtype(node) != torch.float32 or not shape or (step is not None and not _of_floats(step.source, constants)):
            return None
        axis = wanted_axis(node, constants, set())
        if axis is None:  # as bits too, so that `verify` sees which of them flip
            axis = len(shape) - (3 if len(shape) > 3 else 1)
        if axis == 0 or not isinstance(shape[axis], int):
            return None
        return Bits(shape[axis], axis, 0.0 if step is None else step.low)
    operands = [found.get(a) for a in node.args if isinstance(a, Node)] if node.op == "call_function" else []
    kind = operands[0] if operands else None
    if kind is None:
        return _mapped(node, found)
    if len(operands) == 2 and operands[1] is not None:
        return _joined(node, kind, operands[1])
    if is_pool(node) and kind.axis == 1 and kind.whole is None:
        return kind if kind.low < kind.high and (kind.most == 1 or kind.nested) else None
    if node.target is aten.reshape.default:
        return viewed(kind, shape_of(node.args[0]), shape_of(node))  # pyright: ignore[reportArgumentType]
    return _mapped(node, found)


def _of_floats(source: Node, constants: Constants) -> bool:
    """Whether a value is float32, or float64 that is affine in one: what a threshold takes."""
    while not is_float(source):
        if (affine := read_affine(source, constants)) is None:
            return False
        source = affine.source
    return True


def maps_each(node: Node) -> bool:
    """Whether a node is a function of every entry of one value, with numbers for its other arguments."""
    tags = getattr(node.target, "tags", ())
    once = sum(isinstance(a, Node) for a in node.args) == len(node.all_input_nodes) == 1
    return torch.Tag.pointwise in tags and once and _dtype(node) == _dtype(node.all_input_nodes[0]) == torch.float32


def _mapped(node: Node, found: dict[Node, Bits]) -> Bits | None:
    """A function of every entry of bits: the levels are what it makes of them, where these lie evenly but for rounding.

    `h * 2 - 1` rounds thirds: the layer over them sums exact ones, as near to the model's sums as these are rounded.
    """
    if not maps_each(node) or (kind := found.get(node.all_input_nodes[0])) is None:
        return None
    args, kwargs = map_arg((node.args, node.kwargs), lambda _: kind.levels())
    after = node.target(*args, **kwargs)  # pyright: ignore[reportCallIssue]
    low, high = float(after[0]), float(after[-1])
    if low == high or not math.isfinite(low + high):
        return None
    even = torch.linspace(low, high, kind.most + 1, dtype=torch.float64)
    rounded = ROUNDED * min(max(abs(low), abs(high)), 64 * abs(high - low))  # far less than one level
    return replace(kind, low=low, high=high) if float((even - after).abs().max()) <= rounded else None


def _joined(node: Node, a: Bits, b: Bits) -> Bits | None:
    """Sums of spikes are integers; products of 0 and 1 are bits, one of them possibly the complement."""
    if not (a.axis == b.axis and a.channels == b.channels and a.whole == b.whole):
        return None
    if not all(same(shape_of(n), shape_of(node)) for n in node.all_input_nodes) or len(node.args) > 2 or node.kwargs:
        return None
    alike = a.low == b.low == 0.0 and a.unit == b.unit and math.frexp(a.unit)[0] == 0.5  # so that sums are exact
    if node.target is aten.add.Tensor and alike and a.most + b.most < 256:
        most, nested = a.most + b.most, "nested" in node.meta
        return replace(a, high=a.unit * most, most=most, nested=nested)
    complement = (1.0, 0.0)
    if node.target is aten.mul.Tensor and a.most == b.most == 1 and (a.plain or b.plain):
        other = b if a.plain else a
        if other.plain or (other.low, other.high) == complement:
            return replace(a, low=0.0, high=1.0)
    return None


def viewed(kind: Bits, before: tuple[Any, ...], after: tuple[Any, ...]) -> Bits | None:
    """What a view makes of bits: dimensions before the channels regrouped, or all from the channels on made one."""
    axis, moved = kind.axis, len(after) - len(before)
    if kind.whole is not None:
        return None
    if axis + moved >= 1 and same(before[axis:], after[axis + moved :]):
        return replace(kind, axis=axis + moved)
    tail = before[axis:]
    flat = len(after) == axis + 1 and all(isinstance(s, int) for s in tail)
    if flat and same((*before[:axis], math.prod(tail)), after):
        return replace(kind, channels=math.prod(tail), whole=tuple(tail))
    return None


def wanted_axis(node: Node, constants: Constants, seen: set[Node]) -> int | None:
    """The dimension along which the first layer that takes this value sums, in the node's own order."""
    rank = len(shape_of(node))
    for user in node.users:
        if user in seen or user.op != "call_function":
            continue
        seen.add(user)
        weight = next((a for a in user.args[1:3] if isinstance(a, Node) and a in constants), None)
        if user.target in CONVOLUTIONS and user.args[0] is node and weight is not None:
            if rank == 4:
                return 1
        elif user.target in PRODUCTS and weight is not None and node in user.args[:2]:
            if rank > 1:
                return rank - 1
        elif user.target is aten.reshape.default:
            axis = wanted_axis(user, constants, seen)
            before, after = shape_of(node), shape_of(user)
            moved = len(after) - len(before)
            if axis is not None and axis - moved >= 1 and same(before[axis - moved :], after[axis:]):
                return axis - moved
            if axis is not None and axis == len(after) - 1 and 1 <= axis < rank and same(before[:axis], after[:axis]):
                return axis
        elif is_pool(user) or maps_each(user) or user.target in _ELEMENTWISE:
            axis = wanted_axis(user, constants, seen)
            if axis is not None and len(shape_of(user)) == rank:
                return axis
    return None


_ELEMENTWISE = (
    aten.add.Tensor, aten.sub.Tensor, aten.mul.Tensor, aten.rsub.Scalar,
    aten.add.Scalar, aten.sub.Scalar, aten.mul.Scalar,
)  # fmt: skip


def is_spikes(node: Node) -> bool:
    return str(node.target) == "htaf.spikes.default"


def is_pool(node: Node) -> bool:
    """A maximum over windows of images, each with a pixel inside, whose sizes are not rounded up."""
    if node.target is not aten.max_pool2d.default or len(shape_of(node)) != 4:
        return False
    if node.kwargs.get("ceil_mode") or (len(node.args) > 5 and node.args[5]):
        return False
    kernel, _, padding, dilation = pool_sizes(node)
    sizes = shape_of(node.all_input_nodes[0])[2:]
    # a window that reaches over the border has a pixel inside unless it steps over the whole image
    return all(
        p == 0 or (isinstance(size, int) and p <= d * (k - 1) and d <= size)
        for size, k, p, d in zip(sizes, kernel, padding, dilation, strict=True)
    )


def pair(value: Any) -> Pair:
    """Two sizes, of which an operator may be given one."""
    first, *rest = value if isinstance(value, (list, tuple)) else [value]
    return int(first), int(rest[-1] if rest else first)


def pool_sizes(node: Node) -> tuple[Pair, Pair, Pair, Pair]:
    """Kernel, stride, padding and dilation of a maximum over windows."""

    def given(name: str, index: int, default: Any) -> Pair:
        return pair((node.args[index] if len(node.args) > index else node.kwargs.get(name)) or default)

    kernel = given("kernel_size", 1, None)
    return kernel, given("stride", 2, kernel), given("padding", 3, 0), given("dilation", 4, 1)


def _dtype(node: Node) -> torch.dtype | None:
    value = node.meta.get("val")
    return value.dtype if isinstance(value, torch.Tensor) else None
