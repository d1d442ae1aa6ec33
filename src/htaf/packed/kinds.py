"""Which values of a graph are bits or small integers: outputs of steps and neurons, and what keeps them so."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.fx import Node

from htaf.packed.affine import Constants, aten, same, shape_of

CONVOLUTIONS = (aten.conv1d.default, aten.conv2d.default, aten.conv1d.padding, aten.conv2d.padding)
PRODUCTS = (aten.linear.default, aten.mm.default, aten.matmul.default, aten.addmm.default)


Pair = tuple[int, int]


@dataclass(frozen=True)
class Bits:
    """A value of a graph that is `low` or `high` everywhere, or (`most` > 1) an integer from 0 to `most`.

    axis: the dimension of the channels, in the graph's order. whole: the sizes [channels, ...] that were flattened into
    this one dimension, None where nothing was. planes: bits an integer takes.
    """

    channels: int
    axis: int
    low: float = 0.0
    high: float = 1.0
    most: int = 1
    whole: tuple[int, ...] | None = None

    @property
    def planes(self) -> int:
        return self.most.bit_length()

    @property
    def plain(self) -> bool:
        return (self.low, self.high, self.most) == (0.0, 1.0, 1)


@dataclass(frozen=True)
class Step:
    """`high` where source >= threshold (>, if strict; <= or <, if below), else `low`; NaN is no such place."""

    source: Node
    threshold: float
    strict: bool
    low: float
    high: float
    below: bool = False


def read_step(node: Node, constants: Constants) -> Step | None:
    """The node as a step of one float value; None if it is none."""
    if node.op != "call_function" or node in constants or not node.args or not isinstance(node.args[0], Node):
        return None
    source, rest = node.args[0], node.args[1:]
    name = str(node.target)
    if name == "htaf.heaviside.default":
        return Step(source, 0.0, False, -1.0 if rest[0] else 0.0, 1.0)
    if node.target is aten.heaviside.default and isinstance(rest[0], Node) and rest[0] in constants:
        value = constants[rest[0]]
        if value.numel() == 1 and value.item() in (0.0, 1.0):
            return Step(source, 0.0, value.item() == 0.0, 0.0, 1.0)
    if node.target is aten._to_copy.default and node.kwargs.get("dtype") == torch.float32:
        return _compared(source, constants, 0.0, 1.0)
    numbers = [_number(item, constants) for item in rest]
    if str(node.target).startswith("aten.where.") and len(numbers) == 2 and None not in numbers:
        return _compared(source, constants, float(numbers[1] or 0.0), float(numbers[0] or 0.0))
    return None


def _compared(node: Node, constants: Constants, low: float, high: float) -> Step | None:
    kind, _, overload = str(node.target).removeprefix("aten.").partition(".")
    if kind not in ("ge", "gt", "le", "lt") or overload not in ("Scalar", "Tensor") or node in constants:
        return None
    source, other = node.args
    threshold = _number(other, constants)
    if threshold is None or not math.isfinite(threshold) or not isinstance(source, Node) or source in constants:
        return None
    return Step(source, threshold, kind in ("gt", "lt"), low, high, kind in ("le", "lt"))


def _number(item: Any, constants: Constants) -> float | None:
    if isinstance(item, (int, float)) and not isinstance(item, bool):
        return float(item)
    value = constants.get(item) if isinstance(item, Node) else None
    return float(value.item()) if value is not None and value.numel() == 1 else None


def infer(nodes: list[Node], constants: Constants) -> dict[Node, Bits]:
    """The values that are worth keeping as bits: those that a layer, or a pooling before one, takes."""
    found: dict[Node, Bits] = {}
    for node in nodes:
        kind = _kind(node, found, constants)
        if kind is not None:
            found[node] = kind
    return found


def _kind(node: Node, found: dict[Node, Bits], constants: Constants) -> Bits | None:
    step = read_step(node, constants)
    if step is not None or is_spikes(node):
        shape = shape_of(node)
        if _dtype(node) != torch.float32 or not shape:
            return None
        axis = wanted_axis(node, constants, set())
        if axis is None and _counted(node, set()):
            axis = max(1, len(shape) - 3)
        if axis is None or axis == 0 or not isinstance(shape[axis], int):
            return None
        low, high = (0.0, 1.0) if step is None else (step.low, step.high)
        return Bits(shape[axis], axis, low, high) if low != high else None
    operands = [found.get(a) for a in node.args if isinstance(a, Node)] if node.op == "call_function" else []
    kind = operands[0] if operands else None
    if kind is None:
        return _scaled(node, found)
    if len(operands) == 2 and operands[1] is not None:
        return _joined(node, kind, operands[1])
    if is_pool(node) and kind.axis == 1 and kind.most == 1 and kind.whole is None:
        return replace(kind, low=min(kind.low, kind.high), high=max(kind.low, kind.high))
    if node.target is aten.constant_pad_nd.default:
        return kind if pads_bits(node, kind) else None
    if node.target is aten.reshape.default:
        return viewed(kind, shape_of(node.args[0]), shape_of(node))  # pyright: ignore[reportArgumentType]
    if node.target is aten.relu.default:
        low, high = max(kind.low, 0.0), max(kind.high, 0.0)
        return replace(kind, low=low, high=high) if low != high else None
    return _scaled(node, found)


def _scaled(node: Node, found: dict[Node, Bits]) -> Bits | None:
    """A number added to, or times, a value of two levels."""
    if len(node.args) < 2 or len(node.all_input_nodes) != 1 or set(node.kwargs) - {"alpha"}:
        return None
    left, right = node.args[:2]
    source, number = (left, right) if isinstance(left, Node) else (right, left)
    kind = found.get(source) if isinstance(source, Node) else None
    alpha = node.kwargs.get("alpha", 1)
    if kind is None or kind.most > 1 or not isinstance(number, (int, float)) or len(node.args) > 2 or alpha != 1:
        return None
    name = str(node.target).split(".")[1]
    maps = {
        "add": lambda v: v + number, "mul": lambda v: v * number, "rsub": lambda v: number - v,
        "sub": (lambda v: v - number) if source is left else (lambda v: number - v),
    }  # fmt: skip
    if name not in maps:
        return None
    low, high = maps[name](kind.low), maps[name](kind.high)
    return replace(kind, low=low, high=high) if low != high and math.isfinite(low + high) else None


def _joined(node: Node, a: Bits, b: Bits) -> Bits | None:
    """Sums of spikes are integers; products of 0 and 1 are bits, one of them possibly the complement."""
    if not (a.axis == b.axis and a.channels == b.channels and a.whole == b.whole):
        return None
    if not all(same(shape_of(n), shape_of(node)) for n in node.all_input_nodes) or len(node.args) > 2 or node.kwargs:
        return None
    if node.target is aten.add.Tensor and a.low == b.low == 0.0 and a.high == b.high == 1.0 and a.most + b.most < 256:
        return replace(a, most=a.most + b.most)
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
    flat = kind.most == 1 and len(after) == axis + 1 and all(isinstance(s, int) for s in tail)
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
            if rank == (4 if "2d" in str(user.target) else 3):
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
        elif is_pool(user) or user.target in (aten.relu.default, aten.constant_pad_nd.default, *_ELEMENTWISE):
            axis = wanted_axis(user, constants, seen)
            if axis is not None and len(shape_of(user)) == rank:
                return axis
    return None


def _counted(node: Node, seen: set[Node]) -> bool:
    """Whether only means are taken of it: as bits, so that `verify` sees which of them flip."""
    seen.add(node)
    for user in node.users.keys() - seen:
        elementwise = user.target in _ELEMENTWISE and same(shape_of(user), shape_of(node))
        if user.target is not aten.mean.dim and not (elementwise and _counted(user, seen)):
            return False
    return bool(node.users) and len(shape_of(node)) in (2, 4, 5)


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


def pads_bits(node: Node, kind: Bits) -> bool:
    """Whether a padding adds a level that the bits have, in dimensions after the channels."""
    pads, value = node.args[1], node.args[2] if len(node.args) > 2 else 0
    if not isinstance(pads, (list, tuple)) or not all(isinstance(p, int) for p in pads) or kind.whole is not None:
        return False
    inside = len(pads) <= 2 * (len(shape_of(node)) - 1 - kind.axis)
    return inside and value in ((0.0,) if kind.most > 1 else (kind.low, kind.high))


def pool_sizes(node: Node) -> tuple[Pair, Pair, Pair, Pair]:
    """Kernel, stride, padding and dilation of a maximum over windows."""

    def pair(name: str, index: int, default: Any) -> Pair:
        value: Any = (node.args[index] if len(node.args) > index else node.kwargs.get(name)) or default
        items = list(value) if isinstance(value, (list, tuple)) else [value]
        return int(items[0]), int(items[-1])

    kernel = pair("kernel_size", 1, None)
    return kernel, pair("stride", 2, kernel), pair("padding", 3, 0), pair("dilation", 4, 1)


def _dtype(node: Node) -> torch.dtype | None:
    value = node.meta.get("val")
    return value.dtype if isinstance(value, torch.Tensor) else None
