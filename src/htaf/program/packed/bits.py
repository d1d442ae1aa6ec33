"""Which values of a graph are bits or small integers, and the layers over them: signs of binary weights, integers as
planes, heads over means; and layers of integers over what is rounded."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Literal

import torch
from torch import Tensor
from torch.fx import Node
from torch.fx.node import map_arg

from htaf.core.kernels.float_layers.reference import WIDEST, Rounded
from htaf.core.kernels.integer_convolution.reference import LARGEST_INPUT, MOST
from htaf.core.kernels.layers import EXACT, Geometry, row_bytes
from htaf.core.kernels.packed_maps.reference import MOST_BIAS, pack
from htaf.program.packed.instructions.contract import LARGEST
from htaf.program.packed.nodes import (
    PRODUCTS,
    Constants,
    LayerSite,
    aten,
    before_rounding,
    is_float,
    is_pool,
    is_spikes,
    maps_each,
    on_powers,
    read_affine,
    read_step,
    same,
    shape_of,
)

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
        if not is_float(node) or not shape or (step is not None and not _of_floats(step.source, constants)):
            return None
        is_rows = len(shape) <= 3 or any(user.target in PRODUCTS for user in node.users)
        axis = len(shape) - (1 if is_rows else 3)  # of rows, or of images
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
    """Sums of spikes are integers."""
    if not (a.axis == b.axis and a.channels == b.channels and a.whole == b.whole):
        return None
    if not all(same(shape_of(n), shape_of(node)) for n in node.all_input_nodes) or len(node.args) > 2 or node.kwargs:
        return None
    alike = a.low == b.low == 0.0 and a.unit == b.unit and math.frexp(a.unit)[0] == 0.5  # so that sums are exact
    if node.target is aten.add.Tensor and alike and a.most + b.most < 256:
        most, nested = a.most + b.most, "nested" in node.meta
        return replace(a, high=a.unit * most, most=most, nested=nested)
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


# ---- layers over bits, as the kernels take them ----


def over_bits(site: LayerSite, kind: Bits) -> LayerSite | None:
    """The layer as it takes these bits; None where they lie otherwise."""
    if kind.axis != site.axis:
        return None
    if kind.whole is None:
        return site
    if site.form != "row" or len(shape_of(site.source)) != 2 or len(kind.whole) != 3:
        return None
    channels, *kernel = kind.whole
    kernel = (kernel[0], kernel[1])
    weight = site.weight.reshape(-1, channels, *kernel)
    geometry = Geometry(channels, site.geometry.outputs, kernel)
    return LayerSite(site.node, site.source, "whole", geometry, weight, site.bias, 1)


def binary_scales(weight: Tensor) -> Tensor | None:
    """float64 [outputs], the one magnitude of each filter; None where a filter has several."""
    flat = weight.detach().abs().flatten(1)
    low, high = flat.amin(1), flat.amax(1)
    return high.double() if bool((low == high).all()) and bool(high.isfinite().all()) else None


def integers(weight: Tensor, most: int = 1) -> tuple[Tensor, Tensor] | None:
    """The weights as integers of -127 to 127 times a power of two a filter, whose sums are below 2^24.

    Args:
        most: the largest input.

    Returns:
        int8 of the weight's shape and float64 [outputs]; None where there are no such numbers.
    """
    if not weight.numel() or not bool(weight.isfinite().all()) or most > LARGEST_INPUT - 1:
        return None
    whole, step = on_powers(weight)
    whole = whole.flatten(1)
    if bool((whole.abs() > MOST).any()) or bool((whole.abs().sum(1) * most >= EXACT).any()):
        return None
    return whole.to(torch.int8).reshape(weight.shape).contiguous(), step


def counts(g: Geometry, kind: Bits) -> bool:
    """Whether bits of these levels can be counted where weights are +-1 times a number a filter."""
    levels = [(0.0, 1.0), (-1.0, 1.0), (1.0, -1.0)]
    if g.padding == (0, 0):
        levels.append((1.0, 0.0))  # 1 - bit, but nothing in the padding
    if kind.most > 1:  # the places that fill up words must cancel, see `_side_by_side`
        fits = kind.most % 2 == 0 or g.channels % 64 == 0 or 0.0 in (kind.low, kind.high)
        if not (kind.nested and fits):
            return False
    return (kind.low, kind.high) in levels


def slower(site: LayerSite, kind: Bits) -> str | None:
    """Why a layer that could run over bits is larger and slower so; None where it is not."""
    g = site.geometry
    binary = counts(g, kind) and binary_scales(site.weight) is not None
    if kind.low != 0.0 and g.padding != (0, 0) and not binary:
        return f"its padding is not the level of a bit that is 0, {kind.low:g}"
    return None if g.groups == 1 else "its channels are in groups"


@dataclass(frozen=True)
class Prepared:
    """What a layer over bits of two levels, or over planes, sums: weight as the kernels take it, and what remains.

    sums of the model = scale sums of the kernel + shift.
    planes: bit planes side by side as channels; the weight is that of the first, see instructions/layer.py.
    """

    geometry: Geometry
    kind: Literal["binary", "table", "integer"]
    weight: Tensor
    scale: Tensor
    shift: Tensor
    bipolar: bool
    planes: int = 1


def prepare(site: LayerSite, kind: Bits) -> Prepared:
    """The layer's weights for the kernels: packed signs of binary ones, or float32; not if it is `slower`."""
    g, weight = site.geometry, site.weight.detach()
    shift = torch.zeros(g.outputs, dtype=torch.float64) if site.bias is None else site.bias.double()
    one = torch.ones(g.outputs, dtype=torch.float64)
    scales = binary_scales(weight)
    if scales is not None and counts(g, kind):
        falling = kind.low > kind.high  # bits that are 1 where the value is low, with the signs exchanged
        signs = pack((weight < 0 if falling else weight > 0).permute(0, 2, 3, 1))  # filters of zeros have scale 0
        if (kind.low, kind.high) == (1.0, 0.0):
            shift = shift + weight.double().sum((1, 2, 3))
        if kind.most > 1:  # the bits of all thresholds side by side, each with the same signs
            g = g._replace(channels=kind.most * row_bytes(g.channels) * 8)
            signs, scales = _side_by_side(signs, site.geometry.channels, kind.most), scales / kind.most
        return Prepared(g, "binary", signs, scales, shift, -1.0 in (kind.low, kind.high))
    scaled = (weight.double() * kind.unit).float()
    if kind.low != 0.0:  # there is no padding
        shift = shift + kind.low * weight.double().sum((1, 2, 3))
    if (whole := integers(scaled, kind.most)) is not None:
        return Prepared(g, "integer", *whole, shift, False, kind.planes)
    wide = g if kind.most == 1 else g._replace(channels=kind.planes * row_bytes(g.channels) * 8)
    return Prepared(wide, "table", scaled.contiguous(), one, shift, False, kind.planes)


def _side_by_side(signs: Tensor, channels: int, planes: int) -> Tensor:
    """The packed signs of a layer for each of several planes of bits.

    Places that fill up words hold no bit, which -1 and 1 count as -1: their signs are + in every other plane, so that
    two planes cancel.
    """
    last = torch.arange(signs.shape[-1] * 8) >= channels
    return torch.cat([signs | pack(last) if i % 2 else signs for i in range(planes)], -1)


# ---- what a grid leaves beside layers over bits: inputs that are rounded first, heads over means ----

MOST_OVER = 2**20  # by which a mean in float32 is a count but for less than a half


@dataclass(frozen=True)
class RoundedSite:
    """A convolution whose inputs `source` are rounded first. inside: the nodes that do so, and have no other reader."""

    site: LayerSite
    source: Node
    weights: Rounded
    inside: tuple[Node, ...]


def read_rounded(site: LayerSite, constants: Constants, outputs: set[Node]) -> RoundedSite | None:
    """The layer as one of integers of 16 bits whose sums float32 holds; None where it is none."""
    g, back = site.geometry, read_affine(site.source, constants)
    plain = site.form == "image" and g.groups == 1 and g.dilation[1] == 1
    if not plain or site.bias is not None or back is None:
        return None
    rounding = back.source
    if rounding.target is not aten.round.default or back.scale.ndim or float(back.shift):
        return None
    source, factor, limits, between = before_rounding(rounding, constants)
    exponent = round(math.log2(factor)) if factor > 0 else 0
    if limits is None or factor != 2.0**exponent or float(back.scale) != 1 / factor or limits[0] != -limits[1]:
        return None
    limit, weight = round(limits[1]), site.weight.detach()
    if limit != limits[1] or not 1 <= limit <= WIDEST or not bool(weight.isfinite().all()):
        return None
    whole, unit = on_powers(weight)
    if float(whole.abs().max()) > WIDEST or float(whole.abs().flatten(1).sum(1).max()) * limit > EXACT:
        return None
    inside = list[Node]()
    for node in (site.source, rounding, *between):
        reader = inside[-1] if inside else site.node
        if set(node.users) != {reader} or node in outputs:
            break
        inside.append(node)
    return RoundedSite(site, source, Rounded(whole.short(), unit.float(), exponent, limit), tuple(inside))


@dataclass(frozen=True)
class MeansSite:
    """A linear layer over the means of bits, in float64 and rounded once.

    source: the bits. dims: of the means. weight: int32 [outputs, channels]; bias: int64 [outputs]; both times `unit`.
    inside: nodes that have no other reader.
    """

    source: Node
    dims: tuple[int, ...]
    weight: Tensor
    bias: Tensor
    unit: float
    inside: tuple[Node, ...]


def _over_means(node: Node, constants: Constants) -> tuple[list[Node], Node, Node, float] | None:
    """A cast to float32 of a linear layer over means, as `GridLinear` has them.

    Returns:
        The nodes from the layer's end to the means; the layer; the means; by what they are multiplied before they are
        rounded to integers, of whose sums it is a divisor again: 0 where they are not rounded.
    """
    if node.target is not aten._to_copy.default:
        return None
    linear, share, limits, inside = before_rounding(node, constants)
    if linear.target is not aten.linear.default or not isinstance(mean := linear.args[0], Node):
        return None
    inside, over = [*inside, linear], 0.0
    if mean.target is aten.round.default:
        before, over, clipped, between = before_rounding(mean, constants)
        limits, inside, mean = limits or clipped, [*inside, mean, *between], before
        if not over >= 1 or over % 1:
            return None
    if mean.target is aten.reshape.default:  # a flatten
        inside, mean = [*inside, mean], mean.all_input_nodes[0]
    if mean.target is not aten.mean.dim or share != 1 / (over or 1) or limits:
        return None
    return [*inside, mean], linear, mean, over


def read_means(node: Node, kinds: dict[Node, Bits], constants: Constants, outputs: set[Node]) -> MeansSite | None:
    """The node as such a layer, of images, or of images over time; None where it is none."""
    if (found := _over_means(node, constants)) is None:
        return None
    inside, linear, mean, over = found
    (source,) = mean.all_input_nodes
    if source.target is aten._to_copy.default:
        inside, source = [*inside, source], source.all_input_nodes[0]
    kind = kinds.get(source)
    if kind is None or kind.most != 1 or kind.whole is not None or not {kind.low, kind.high} <= {-1.0, 0.0, 1.0}:
        return None
    rank = len(shape_of(source))
    dims = tuple(sorted(int(d) % rank for d in mean.args[1] or ()))  # pyright: ignore
    if (rank, kind.axis, dims) not in ((4, 1, (2, 3)), (5, 2, (0, 3, 4))):
        return None
    counted, taken = [shape_of(source)[d] for d in dims], shape_of(linear.all_input_nodes[0])
    if not all(isinstance(n, int) for n in counted) or math.prod(counted) * kind.channels > LARGEST:
        return None
    if len(taken) != 2 or taken[1] != kind.channels:
        return None
    low, span = int(kind.low), int(kind.high - kind.low)
    exact = over <= MOST_OVER and span * over % math.prod(counted) == 0 if over else _is_double(mean)
    if not exact or not _is_double(linear) or not is_float(node):
        return None
    if any(readers(inner) != {outer} or inner in outputs for outer, inner in pairwise([node, *inside])):
        return None
    given = [constants.get(a) for a in linear.args[1:]]  # pyright: ignore
    weight, bias = (*given, None)[:2]
    if weight is None or (len(given) > 1 and bias is None) or weight.ndim != 2:
        return None
    bias = bias if bias is None else bias / (over or 1)
    held = weight if bias is None else torch.cat([weight, bias[:, None]], 1)
    if not bool(held.isfinite().all()) or not bool((held == held.float()).all()):
        return None
    whole, unit = on_powers(held.flatten()[None].float())  # one unit for all of them
    whole = whole.reshape(held.shape)
    if float(whole[:, : weight.shape[1]].abs().max()) > WIDEST or float(whole.abs().max()) > MOST_BIAS / 2:
        return None
    whole = whole.long()
    added = whole[:, weight.shape[1] :].flatten() if bias is not None else torch.zeros(len(weight), dtype=torch.int64)
    whole = whole[:, : weight.shape[1]]
    return MeansSite(source, dims, (span * whole).int(), added + low * whole.sum(1), float(unit), tuple(inside))


def _is_double(node: Node) -> bool:
    return node.meta["val"].dtype == torch.float64


def readers(node: Node) -> set[Node]:
    """What takes its numbers, not its sizes."""
    return {user for user in node.users if user.target is not aten.sym_size.int}
