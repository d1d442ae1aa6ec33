"""From the graph of a hardened model to the instructions of a packed one.

First which values of a graph are bits or small integers, and the layers over them; then what is computed together: a
layer with the affine maps and the sum after it, a step with those before it; at last one instruction after another.
"""

from __future__ import annotations

import hashlib
import math
import re
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.fx import Node
from torch.fx.node import map_arg
from torch.utils import _pytree as pytree

from htaf.core.kernels.float_layers import reference as float_layers
from htaf.core.kernels.integer_convolution.reference import LARGEST_INPUT, MOST
from htaf.core.kernels.layers import EXACT, Geometry, row_bytes
from htaf.core.kernels.packed_maps.reference import MOST_BIAS, LinearOfMeans
from htaf.core.kernels.packed_maps.reference import pack as packed_bits
from htaf.program.packed import graph, instructions, operators
from htaf.program.packed.errors import PackedError
from htaf.program.packed.graph import CONVOLUTIONS, PRODUCTS, Affine, Constants, LayerSite, Traced, aten
from htaf.program.packed.model import PackedModel
from htaf.program.packed.program import Input, Program
from htaf.program.packed.report import Report, Row
from htaf.program.packed.verification import compare

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
    step = graph.read_step(node, constants)
    if step is not None or graph.is_spikes(node):
        shape = graph.shape_of(node)
        if not graph.is_float(node) or not shape or (step is not None and not _of_floats(step.source, constants)):
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
    if graph.is_pool(node) and kind.axis == 1 and kind.whole is None:
        return kind if kind.low < kind.high and (kind.most == 1 or kind.nested) else None
    if node.target is aten.reshape.default:
        return viewed(kind, graph.shape_of(node.args[0]), graph.shape_of(node))  # pyright: ignore[reportArgumentType]
    return _mapped(node, found)


def _of_floats(source: Node, constants: Constants) -> bool:
    """Whether a value is float32, or float64 that is affine in one: what a threshold takes."""
    while not graph.is_float(source):
        if (affine := graph.read_affine(source, constants)) is None:
            return False
        source = affine.source
    return True


def _mapped(node: Node, found: dict[Node, Bits]) -> Bits | None:
    """A function of every entry of bits: the levels are what it makes of them, where these lie evenly but for rounding.

    `h * 2 - 1` rounds thirds: the layer over them sums exact ones, as near to the model's sums as these are rounded.
    """
    if not graph.maps_each(node) or (kind := found.get(node.all_input_nodes[0])) is None:
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
    shapes = {str(graph.shape_of(n)) for n in (node, *node.all_input_nodes)}
    if len(shapes) > 1 or len(node.args) > 2 or node.kwargs:
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
    if axis + moved >= 1 and graph.same(before[axis:], after[axis + moved :]):
        return replace(kind, axis=axis + moved)
    tail = before[axis:]
    flat = len(after) == axis + 1 and all(isinstance(s, int) for s in tail)
    if flat and graph.same((*before[:axis], math.prod(tail)), after):
        return replace(kind, channels=math.prod(tail), whole=tuple(tail))
    return None


# ---- layers over bits, as the kernels take them ----


def over_bits(site: LayerSite, kind: Bits) -> LayerSite | None:
    """The layer as it takes these bits; None where they lie otherwise."""
    if kind.axis != site.axis:
        return None
    if kind.whole is None:
        return site
    if site.form != "row" or len(graph.shape_of(site.source)) != 2 or len(kind.whole) != 3:
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
    whole, step = graph.on_powers(weight)
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
        plus = weight < 0 if falling else weight > 0  # filters of zeros have scale 0
        signs = packed_bits(plus.permute(0, 2, 3, 1))
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
    return torch.cat([signs | packed_bits(last) if i % 2 else signs for i in range(planes)], -1)


# ---- what a grid leaves beside layers over bits: inputs that are rounded first, heads over means ----

MOST_OVER = 2**20  # by which a mean in float32 is a count but for less than a half


@dataclass(frozen=True)
class GridSite:
    """A layer of integers with what stands before it, which is computed with it.

    source: floats that are rounded, for a convolution; or bits of images (over time), for a linear layer over their
    means, in float64 and rounded once. inside: the nodes between, which have no other reader.
    """

    source: Node
    weights: float_layers.Rounded | LinearOfMeans
    inside: tuple[Node, ...]


def read_rounded(site: LayerSite, constants: Constants, outputs: set[Node]) -> GridSite | None:
    """The layer as one of integers of 16 bits whose sums float32 holds; None where it is none."""
    g, back = site.geometry, graph.read_affine(site.source, constants)
    plain = site.form == "image" and g.groups == 1 and g.dilation[1] == 1
    if not plain or site.bias is not None or back is None:
        return None
    rounding, widest = back.source, float_layers.WIDEST
    if rounding.target is not aten.round.default or back.scale.ndim or float(back.shift):
        return None
    source, factor, limits, between = graph.before_rounding(rounding, constants)
    exponent = round(math.log2(factor)) if factor > 0 else 0
    if limits is None or factor != 2.0**exponent or float(back.scale) != 1 / factor or limits[0] != -limits[1]:
        return None
    limit, weight = round(limits[1]), site.weight.detach()
    if limit != limits[1] or not 1 <= limit <= widest or not bool(weight.isfinite().all()):
        return None
    whole, unit = graph.on_powers(weight)
    if float(whole.abs().max()) > widest or float(whole.abs().flatten(1).sum(1).max()) * limit > EXACT:
        return None
    inside = list[Node]()
    for node in (site.source, rounding, *between):
        reader = inside[-1] if inside else site.node
        if set(node.users) != {reader} or node in outputs:
            break
        inside.append(node)
    return GridSite(source, float_layers.Rounded(whole.short(), unit.float(), exponent, limit), tuple(inside))


def _over_means(node: Node, constants: Constants) -> tuple[list[Node], Node, Node, float] | None:
    """A cast to float32 of a linear layer over means, as `GridLinear` has them.

    Returns:
        The nodes from the layer's end to the means; the layer; the means; by what they are multiplied before they are
        rounded to integers, of whose sums it is a divisor again: 0 where they are not rounded.
    """
    if node.target is not aten._to_copy.default:
        return None
    linear, share, limits, inside = graph.before_rounding(node, constants)
    if linear.target is not aten.linear.default or not isinstance(mean := linear.args[0], Node):
        return None
    inside, over = [*inside, linear], 0.0
    if mean.target is aten.round.default:
        before, over, clipped, between = graph.before_rounding(mean, constants)
        limits, inside, mean = limits or clipped, [*inside, mean, *between], before
        if not over >= 1 or over % 1:
            return None
    if mean.target is aten.reshape.default:  # a flatten
        inside, mean = [*inside, mean], mean.all_input_nodes[0]
    if mean.target is not aten.mean.dim or share != 1 / (over or 1) or limits:
        return None
    return [*inside, mean], linear, mean, over


def read_means(node: Node, kinds: dict[Node, Bits], constants: Constants, outputs: set[Node]) -> GridSite | None:
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
    rank = len(graph.shape_of(source))
    dims = tuple(sorted(int(d) % rank for d in mean.args[1] or ()))  # pyright: ignore
    if (rank, kind.axis, dims) not in ((4, 1, (2, 3)), (5, 2, (0, 3, 4))):
        return None
    counted, taken = [graph.shape_of(source)[d] for d in dims], graph.shape_of(linear.all_input_nodes[0])
    if not all(isinstance(n, int) for n in counted) or math.prod(counted) * kind.channels > instructions.LARGEST:
        return None
    if len(taken) != 2 or taken[1] != kind.channels:
        return None
    low, span = int(kind.low), int(kind.high - kind.low)
    exact = over <= MOST_OVER and span * over % math.prod(counted) == 0 if over else _is_double(mean)
    if not exact or not _is_double(linear) or not graph.is_float(node):
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
    whole, unit = graph.on_powers(held.flatten()[None].float())  # one unit for all of them
    whole = whole.reshape(held.shape)
    if float(whole[:, : weight.shape[1]].abs().max()) > float_layers.WIDEST or float(whole.abs().max()) > MOST_BIAS / 2:
        return None
    whole = whole.long()
    added = whole[:, weight.shape[1] :].flatten() if bias is not None else torch.zeros(len(weight), dtype=torch.int64)
    whole = whole[:, : weight.shape[1]]
    held = LinearOfMeans((span * whole).int(), added + low * whole.sum(1), float(unit))
    return GridSite(source, held, tuple(inside))


def _is_double(node: Node) -> bool:
    return node.meta["val"].dtype == torch.float64


def readers(node: Node) -> set[Node]:
    """What takes its numbers, not its sizes."""
    return {user for user in node.users if user.target is not aten.sym_size.int}


# ---- what is computed together ----


@dataclass(frozen=True)
class Tail:
    """A step of an affine map of `root`: what stands between them is only taken by the step."""

    step: Node
    affine: Affine

    def interval(self, inner: Affine | None = None, *, integer: bool = False) -> tuple[Tensor, Tensor]:
        """The ends for the values of the root, or for those of which the root is the map `inner`."""
        affine = self.affine if inner is None else graph.compose(self.affine, inner)
        assert affine is not None
        return graph.interval(affine.scale, affine.shift, integer=integer)


@dataclass(frozen=True)
class Chain:
    """A layer up to `end`: end = affine(sums) + residual.

    kind: of the bits that it takes; None: it takes floats. inside: its nodes, the end among them. pool: its maxima over
    windows, before the tail.
    """

    site: LayerSite
    kind: Bits | None
    end: Node
    affine: Affine
    inside: tuple[Node, ...]
    residual: Node | None = None
    tail: Tail | None = None
    keep: bool = True
    pool: Node | None = None


class Fusion:
    """The chains and tails of a graph, none of which share a node.

    chains: by their end. tails: by their step. grid: layers of integers over what is rounded, and over means of bits.
    absorbed: nodes that have no value of their own, and the node with which they are computed. reasons: why a layer
    over bits runs in float.
    """

    def __init__(self, nodes: list[Node], kinds: dict[Node, Bits], constants: Constants, outputs: set[Node]) -> None:
        self.kinds, self.constants, self.outputs = kinds, constants, outputs
        self.chains, self.tails = dict[Node, Chain](), dict[Node, Tail]()
        self.grid, self.absorbed, self.reasons = dict[Node, GridSite](), dict[Node, Node](), dict[Node, str]()
        for node in nodes:
            if node in kinds and not graph.is_spikes(node):
                if (step := graph.read_step(node, constants)) is not None:
                    self._find_tail(node, step)
            elif node not in kinds and (means := read_means(node, kinds, constants, outputs)) is not None:
                self.grid[node] = means
                self.absorbed |= dict.fromkeys(means.inside, node)
        for node in reversed(nodes):  # where two layers are added, the later takes the earlier one's output
            site = None if node in self.absorbed or node in kinds else graph.read_layer(node, constants)
            if site is not None:
                self._find_layer(node, site)

    def _find_layer(self, node: Node, site: LayerSite) -> None:
        kind = self.kinds.get(site.source)
        fitting = None if kind is None else over_bits(site, kind)
        if fitting is not None and kind is not None and (reason := slower(fitting, kind)) is not None:
            self.reasons[node] = reason
            fitting = None
        if kind is None and (rounded := read_rounded(site, self.constants, self.outputs)) is not None:
            self.grid[node] = rounded
            self.absorbed |= dict.fromkeys(rounded.inside, node)
        elif fitting is not None:
            self._add(self._with_tail(self._followed(fitting, kind)))
        elif not self._stays(site) and (chain := self._followed(site, None)).end is not node:
            self._add(chain)

    def _stays(self, site: LayerSite) -> bool:
        """Whether a layer over floats keeps its weights: others have these too, which are then kept once, or they are
        integers times a power of two, whose sums are exact."""
        shared = any(source in self.constants and len(source.users) > 1 for source in site.node.all_input_nodes)
        return shared or integers(site.weight) is not None

    def _add(self, chain: Chain) -> None:
        self.absorbed |= dict.fromkeys(chain.inside[:-1], chain.end)
        self.chains[chain.end] = chain

    def _only(self, node: Node) -> Node | None:
        """The one node that takes this value, if nothing else does."""
        users = readers(node)
        return users.pop() if len(users) == 1 and node not in self.outputs else None

    def _find_tail(self, node: Node, step: graph.Step) -> None:
        affine = graph.identity(step.source)
        reader, passed, root = node, list[Node](), affine
        while affine.source not in self.kinds and self._only(affine.source) is reader:
            inner = graph.read_affine(affine.source, self.constants)
            joined = None if inner is None else graph.compose(affine, inner)
            if joined is None or (joined.axis is not None and joined.axis != self.kinds[node].axis):
                break
            reader = affine.source
            passed.append(reader)
            affine = joined
            if graph.is_float(affine.source):  # what ends in float64 is no root
                self.absorbed.update(dict.fromkeys(passed, node))
                passed, root = [], affine
        self.tails[node] = Tail(node, root)

    def _followed(self, site: LayerSite, kind: Bits | None) -> Chain:
        """A layer with the affine maps after it, and of one over bits a sum behind them, that nothing else takes."""
        chain = Chain(site, kind, site.node, graph.identity(site.node), (site.node,))
        whole = chain  # up to the last float32
        while (user := self._only(chain.end)) is not None and user not in self.kinds:
            if user in self.absorbed or user in self.chains or chain.residual is not None:
                break
            affine = graph.read_affine(user, self.constants)
            joined = None if affine is None else graph.compose(affine, chain.affine)
            if joined is not None and joined.axis in (None, chain.site.axis):
                chain = replace(chain, affine=joined)
            elif affine is None and kind is not None and (other := self._added(user, chain.end)) is not None:
                chain = replace(chain, residual=other)
            else:
                break
            chain = replace(chain, end=user, inside=(*chain.inside, user))
            whole = chain if graph.is_float(user) else whole
        return whole

    def _added(self, node: Node, end: Node) -> Node | None:
        """What is added to `end` in this node, with neither of them scaled."""
        if node.target is not aten.add.Tensor or len(node.args) != 2 or node.kwargs:
            return None
        left, right = node.args
        other = right if left is end else left
        if not isinstance(other, Node) or other is end or other in self.constants:
            return None
        return other if graph.same(graph.shape_of(other), graph.shape_of(node)) else None

    def _with_tail(self, chain: Chain) -> Chain:
        """With the step behind a chain, or behind a pooling of exact sums, with which a step may change places: its
        bits are pooled in place of the sums."""
        user = self._only(chain.end)
        if tails := self._tails_of(chain.end, chain.site.axis):
            first = self._taken(tails[0], chain)
            return replace(chain, tail=first, keep=user is not self._reader(chain.end, first))
        pooled = user is not None and user not in self.kinds and graph.is_pool(user) and chain.site.form == "image"
        if user is None or not pooled or chain.residual is not None or not _exact(chain):
            return chain
        tails = self._tails_of(user, chain.site.axis)
        if len(tails) != 1 or self._reader(user, tails[0]) is not self._only(user):
            return chain
        self.absorbed[user] = chain.end
        return replace(chain, pool=user, tail=self._taken(tails[0], chain), keep=False)

    def _tails_of(self, root: Node, axis: int) -> list[Tail]:
        found = [t for t in self.tails.values() if t.affine.source is root and t.affine.axis in (None, axis)]
        return [tail for tail in found if self.kinds[tail.step].axis == axis]

    def _taken(self, tail: Tail, chain: Chain) -> Tail:
        self.absorbed[tail.step] = chain.end
        return self.tails.pop(tail.step)

    def _reader(self, end: Node, tail: Tail) -> Node | None:
        """The node of a tail that takes `end` itself."""
        return next((u for u in end.users if u is tail.step or self.absorbed.get(u) is tail.step), None)


def _exact(chain: Chain) -> bool:
    """Whether the sums are integers, so that a larger one is never taken for a smaller one."""
    site, kind = chain.site, chain.kind
    assert kind is not None
    binary = counts(site.geometry, kind) and binary_scales(site.weight) is not None
    return binary or integers(site.weight, kind.most) is not None


# ---- the instructions ----

# why what takes no bits runs in float
NOT_OF_BITS, NOT_READ = "float: its input is not bits", "float: no layer over bits takes its output"


class Lowering:
    """One pass over the graph; `program` and `report` are its results.

    Raises:
        PackedError: an operator that a packed model cannot run.
    """

    def __init__(self, traced: Traced) -> None:
        self.traced, self.constants = traced, traced.constants
        self.kinds: dict[Node, Bits] = {}
        self.instructions: list[instructions.Instruction] = []
        self.tensors: dict[str, Tensor] = {}
        self.names: dict[Any, str] = {}  # of tensors, by content
        self.rows: dict[Node, Row] = {}
        self.floats: dict[Node, int] = {}  # values of nodes as floats
        self.bits: dict[Node, tuple[int, ...]] = {}  # and as bits, one value a plane
        self.nested: dict[Node, tuple[int, ...]] = {}  # of nested kinds, the bits whose sum they are
        self.packed_bytes = self.float_bytes = 0
        self.next = 0
        for node in traced.inputs:
            self.floats[node] = self._value()
        nodes = [n for n in traced.graph.nodes if n.op == "call_function" and n not in traced.constants]
        nodes = [n for n in nodes if isinstance(n.meta.get("val"), (Tensor, list, tuple))]  # not sizes
        outputs = {n for n in traced.outputs if n is not None}
        self.kinds |= infer(nodes, traced.constants)
        self.fusion = Fusion(nodes, self.kinds, traced.constants, outputs)
        for node in nodes:
            self._lower(node)
        tree = pytree.tree_unflatten([self._output(n) for n in traced.outputs], traced.out_spec)
        inputs = tuple(
            Input(tuple(s if isinstance(s, int) else None for s in graph.shape_of(n)), n.meta["val"].dtype)
            for n in traced.inputs
        )
        self.program = Program(inputs, tuple(self.instructions), tree, self.tensors)
        self.report = Report(tuple(self.rows.values()), self.packed_bytes, self.float_bytes)

    # ---- what is added to the program, and the values of a graph's nodes ----

    def _value(self) -> int:
        self.next += 1
        return self.next - 1

    def _put(self, made: Any) -> Any:
        """Append an instruction."""
        self.instructions.append(made)
        return made

    def _tensor(self, name: str, tensor: Tensor) -> str:
        """Keep a tensor under this name or a longer one, equal ones under that of the first; gives its name."""
        kept = tensor.detach().clone(memory_format=torch.contiguous_format)
        key = kept.dtype, kept.shape, hashlib.sha256(kept.numpy().tobytes()).digest()
        if key not in self.names:
            while name in self.tensors:
                name += "_"
            self.names[key], self.tensors[name] = name, kept
        return self.names[key]

    def _row(self, node: Node, how: str) -> None:
        self.rows[node] = Row(node.name, self._path(node), str(node.target), how)

    def _path(self, node: Node) -> str:
        """The path of the module that a node is of."""
        stack = list((node.meta.get("nn_module_stack") or {}).values())
        return str(stack[-1][0]) if stack else ""

    def _ends(self, node: Node, ends: tuple[Tensor, Tensor], channels: int) -> tuple[str, str]:
        lower, upper = (end.broadcast_to(channels) for end in ends)
        return self._channels(f"{node.name}.lower", lower), self._channels(f"{node.name}.upper", upper)

    def _channels(self, name: str, values: Tensor) -> str:
        """Numbers of every channel, as one where they are equal: pixels that were flattened may be many."""
        return self._tensor(name, values[:1] if bool((values == values[:1]).all()) else values)

    def _aten(self, node: Node, operator: str, args: list[Any], kwargs: dict[str, Any] | None = None) -> int:
        return self._put(instructions.Call(node.name, operator, args, kwargs or {}, self._value())).y

    def _argument(self, node: Node) -> dict[str, Any]:
        if node in self.constants:
            name = next((n for n, t in self.tensors.items() if t is self.constants[node]), None)
            if name is None:
                name = self._tensor(re.sub(r"[^a-z0-9_.]", "_", node.name), self.constants[node])
                self.constants[node] = self.tensors[name]  # the next use finds it
            return {"t": name}
        if not isinstance(node.meta.get("val"), (Tensor, list, tuple)):
            return self._size(node.meta["val"])
        return {"v": self._float(node)}

    def _size(self, size: Any) -> Any:
        """An integer, or {"s": [times, over, plus]}: batch times // over + plus."""
        if isinstance(size, int):
            return size
        batch = self.traced.batch.node.expr
        expression = size.node.expr
        at = [int(expression.subs(batch, n)) for n in (0, 1, 2, 60, 120)]
        slope, offset = at[1] - at[0], at[0]
        if at[2] == offset + 2 * slope and at[4] == offset + 120 * slope and slope >= 0 and offset >= 0:
            return {"s": [slope, 1, offset]}
        raise PackedError(f"expected sizes that are multiples of the batch, got {expression}")

    def _float(self, node: Node) -> int:
        """The value as floats, unpacked where it is bits."""
        if node in self.floats:
            return self.floats[node]
        kind, total = self.kinds[node], None
        for i, plane in enumerate(self._kept(node)):
            low, high = (kind.low, kind.high) if kind.most == 1 else (0.0, 1.0 if node in self.nested else float(2**i))
            channels = kind.channels if kind.whole is None else kind.whole[0]
            unpack = self._put(instructions.Unpack(node.name, plane, channels, kind.axis, low, high, self._value()))
            total = unpack.y if total is None else self._aten(node, "add.Tensor", [{"v": total}, {"v": unpack.y}])
        assert total is not None
        total = self._levels(node, total, kind) if kind.most > 1 else total
        if kind.whole is not None:  # what was flattened
            total = self._aten(node, "reshape.default", [{"v": total}, [self._size(s) for s in graph.shape_of(node)]])
        self.floats[node] = total
        return total

    def _kept(self, node: Node) -> tuple[int, ...]:
        """The bits whose sum a level is, of a nested kind; else its planes."""
        return self.nested.get(node) or self.bits[node]

    def _levels(self, node: Node, whole: int, kind: Bits) -> int:
        """The numbers that integers stand for, rounded as those of `Bits.levels`."""
        span = kind.high - kind.low
        if (span, kind.low) == (kind.most, 0.0):
            return whole
        if span != 1.0:
            whole = self._aten(node, "mul.Scalar", [{"v": whole}, span])
        if kind.low != 0.0:
            whole = self._aten(node, "add.Scalar", [{"v": whole}, kind.low * kind.most])
        return self._aten(node, "div.Scalar", [{"v": whole}, kind.most])

    # ---- one node ----

    def _lower(self, node: Node) -> None:
        fusion = self.fusion
        if node in fusion.chains:
            chain = fusion.chains[node]
            if chain.end is not chain.site.node:
                self._row(chain.end, f"with {chain.site.node.name}")
            if chain.kind is None:
                self._folded(chain)
            else:
                self._layer(chain, chain.kind)
        elif node in fusion.absorbed:
            self._row(node, f"with {fusion.absorbed[node].name}")
        elif node in fusion.grid:
            self._on_grid(node, fusion.grid[node])
        elif node in fusion.tails:
            self._threshold(node, fusion.tails[node])
        elif node in self.kinds and graph.is_spikes(node):
            self._spikes(node)
        elif node in self.kinds:
            self._on_bits(node, self.kinds[node])
        else:
            self._call(node)

    def _layer(self, chain: Chain, kind: Bits) -> None:
        site, node = chain.site, chain.site.node
        ready = prepare(site, kind)
        outputs = ready.geometry.outputs
        affine = chain.affine
        scale = (affine.scale * ready.scale).broadcast_to(outputs)
        shift = (affine.scale * ready.shift + affine.shift).broadcast_to(outputs)
        lower = upper = None
        raw = not chain.keep and chain.residual is None
        if chain.tail is not None:
            inner = Affine(chain.end, scale, shift, chain.tail.affine.axis) if raw else None
            ends = chain.tail.interval(inner, integer=raw and ready.kind != "table")
            lower, upper = self._ends(node, ends, outputs)
        plain_scale = raw or bool((scale == 1).all())
        plain_shift = raw or bool((shift == 0).all())
        wide = None
        in_float = plain_shift and bool((scale == scale.float()).all() and (scale.frexp().mantissa.abs() == 0.5).all())
        if ready.kind == "integer" and not raw and not in_float:
            wide = self._tensor(f"{node.name}.wide", torch.stack([scale, shift]))
            plain_scale = plain_shift = True
        residual = None if chain.residual is None else self._float(chain.residual)
        counted = ready.kind == "binary" and kind.most > 1
        planes = self.nested[site.source] if counted else self._planes(site.source)
        source = planes[0] if len(planes) == 1 else self._aten(node, "cat.default", [[{"v": p} for p in planes], -1])
        kept = ready.weight
        if ready.kind == "integer" and int(kept.abs().max()) <= instructions.SMALL:
            kept = instructions.to_nibbles(kept)
        weight = self._tensor(f"{node.name}.weight", kept)
        layer = instructions.Layer(
            name=node.name if chain.tail is None or chain.pool else chain.tail.step.name,
            weights=ready.kind, form=site.form, geometry=ready.geometry, weight=weight,
            bipolar=ready.bipolar, input=source, residual=residual,
            scale=None if plain_scale else self._channels(f"{node.name}.scale", scale.float()),
            shift=None if plain_shift else self._channels(f"{node.name}.shift", shift.float()),
            lower=lower, upper=upper,
            y=self._value() if chain.keep else None,
            bits=self._value() if chain.tail is not None else None,
            planes=ready.planes, wide=wide, pooled=chain.pool is not None,
        )  # fmt: skip
        self._put(layer)
        if layer.y is not None:
            self.floats[chain.end] = layer.y
        if layer.bits is not None and chain.tail is not None:
            made = layer.bits if chain.pool is None else self._pooled(chain.pool, layer, chain.tail)
            self.bits[chain.tail.step] = (made,)
        self.packed_bytes += kept.nbytes + (4 * outputs if layer.scale else 0) + (16 * outputs if wide else 0)
        self.float_bytes += 4 * site.weight.numel()
        bits = 8 if kept.dtype == torch.int8 else 4
        kinds = {"binary": "binary", "table": "table float32", "integer": f"integer, {bits} bits"}
        self._row(node, f"packed: {kinds[ready.kind]}")

    def _pooled(self, node: Node, layer: instructions.Layer, tail: Tail) -> int:
        """The bits of a step behind a pooling: the least of them where the step falls with what is pooled."""
        assert layer.bits is not None
        channels, smallest = layer.geometry.outputs, None
        falls = tail.affine.scale < 0
        if bool(falls.any()):
            mask = torch.zeros(8 * row_bytes(channels), dtype=torch.bool)
            mask[:channels] = falls
            smallest = self._tensor(f"{node.name}.smallest", packed_bits(mask))
        sizes = graph.pool_sizes(node)
        return self._put(instructions.Pool(tail.step.name, layer.bits, *sizes, self._value(), smallest, True)).bits

    def _on_grid(self, node: Node, found: GridSite) -> None:
        """A convolution in integers of 16 bits over what is rounded, or a linear layer over means of bits."""
        held = found.weights
        if isinstance(held, LinearOfMeans):
            names = (self._tensor(f"{node.name}.weight", held.weight), self._tensor(f"{node.name}.bias", held.bias))
            source = self._planes(found.source)[0]
            self.floats[node] = self._put(instructions.Means(node.name, source, *names, held.unit, self._value())).y
            self._row(node, "packed: means of bits")
            return
        site = graph.read_layer(node, self.constants)
        assert site is not None
        names = (self._tensor(f"{node.name}.weight", held.values), self._channels(f"{node.name}.unit", held.unit))
        sizes = (site.geometry, *names, held.exponent, held.limit)
        source = self._float(found.source)
        self.floats[node] = self._put(instructions.Rounded(node.name, source, *sizes, self._value())).y
        self._row(node, "integers of 16 bits: its input is rounded")

    def _folded(self, chain: Chain) -> None:
        """A layer over floats with the affine maps after it in its weights."""
        site, affine, outputs = chain.site, chain.affine, chain.site.geometry.outputs
        scale = affine.scale.broadcast_to(outputs)
        bias = torch.zeros(outputs).double() if site.bias is None else site.bias.double()
        weight = (site.weight.double() * scale.reshape(-1, 1, 1, 1)).float()
        weight = weight.flatten(1) if site.form == "row" else weight
        shift = (scale * bias + affine.shift).float()
        layer = site.node
        source = {"v": self._float(site.source)}
        names = [{"t": self._tensor(f"{layer.name}.{n}", t)} for n, t in (("weight", weight), ("bias", shift))]
        g = site.geometry
        if site.form == "row":
            call: tuple[str, list[Any]] = ("linear.default", [source, *names])
        else:
            sizes = [list(g.stride), list(g.padding), list(g.dilation), g.groups]
            call = "conv2d.default", [source, *names, *sizes]
        self.floats[chain.end] = self._aten(chain.end, *call)
        self._row(layer, self._why(layer, site.source))

    def _threshold(self, node: Node, tail: Tail) -> None:
        kind = self.kinds[node]
        lower, upper = self._ends(node, tail.interval(), kind.channels)
        source = self._float(tail.affine.source)
        made = instructions.Threshold(node.name, source, kind.axis, lower, upper, self._value())
        self.bits[node] = (self._put(made).bits,)
        self._row(node, "packed: bits of floats")

    def _spikes(self, node: Node) -> None:
        kind = self.kinds[node]
        source, leak, gain, threshold, soft = node.args
        assert isinstance(source, Node)
        leak, gain, threshold = (float(n) for n in (leak, gain, threshold))  # pyright: ignore[reportArgumentType]
        neuron = kind.axis, leak, gain, threshold, bool(soft)
        self.bits[node] = (self._put(instructions.Spikes(node.name, self._float(source), *neuron, self._value())).bits,)
        self._row(node, "packed: spikes of floats")

    def _on_bits(self, node: Node, kind: Bits) -> None:
        """A value that is bits because its sources are."""
        first, *others = [a for a in node.args if isinstance(a, Node)]
        planes = self._kept(first)
        how = "packed: the same bits"
        if graph.is_pool(node):
            sizes = graph.pool_sizes(node)
            pools = [instructions.Pool(node.name, plane, *sizes, self._value()) for plane in planes]
            planes, how = tuple(self._put(pool).bits for pool in pools), "packed: pooled bits"
        elif node.target is aten.reshape.default and kind.whole is None:
            planes = tuple(self._viewed(node, first, p) for p in planes)
        elif others and kind.nested:
            planes, how = (*planes, *self.bits[others[0]]), "packed: levels"
        elif others:
            planes = self._sum(node, self._planes(first), self._planes(others[0]))[: kind.planes]
            how = f"packed: sum in {len(planes)} planes"
        (self.nested if kind.nested else self.bits)[node] = planes
        self._row(node, how)

    def _planes(self, node: Node) -> tuple[int, ...]:
        """The planes of an integer, made when they are first wanted of one that is kept as the bits whose sum it is."""
        if node not in self.bits:
            total: tuple[int, ...] = ()
            for bit in self.nested[node]:
                total = self._sum(node, total, (bit,))
            self.bits[node] = total[: self.kinds[node].planes]  # a last carry is always 0
        return self.bits[node]

    def _viewed(self, node: Node, source: Node, plane: int) -> int:
        kind, before = self.kinds[node], self.kinds[source]
        shape = list(graph.shape_of(node))
        del shape[kind.axis]
        sizes = [self._size(s) for s in shape]
        return self._aten(node, "reshape.default", [{"v": plane}, [*sizes, row_bytes(before.channels)]])

    def _sum(self, node: Node, a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
        """The planes of the sum of two integers."""
        planes: list[int] = []
        carry: int | None = None
        for i in range(max(len(a), len(b)) + 1):
            terms = [t for t in (a[i] if i < len(a) else None, b[i] if i < len(b) else None, carry) if t is not None]
            carry = None
            while len(terms) > 1:  # two half adders make a full one; at most one of them carries
                x, y = terms.pop(), terms.pop()
                terms.append(self._bitwise(node, "xor", x, y))
                over = self._bitwise(node, "and", x, y)
                carry = over if carry is None else self._bitwise(node, "or", carry, over)
            planes += terms
        return tuple(planes)

    def _bitwise(self, node: Node, name: str, a: int, b: int) -> int:
        return self._aten(node, f"bitwise_{name}.Tensor", [{"v": a}, {"v": b}])

    def _call(self, node: Node, how: str | None = None) -> None:
        name = operators.name_of(node)
        if name is None:
            where = f"{node.name} in layer {self._path(node) or 'of the model itself'}"
            hint = ": htaf.integer.integer_program takes truth tables" if "lookup" in str(node.target) else ""
            raise PackedError(f"expected operators that a packed model can run, got {node.target} ({where}){hint}")
        args = [operators.encode(a, self._argument) for a in node.args]
        kwargs = operators.encode_keywords(node, self._argument)
        if operators.makes(node.target) and "dtype" in (a.name for a in node.target._schema.arguments):  # pyright: ignore
            kwargs["dtype"] = operators.encode(node.meta["val"].dtype, self._argument)
        y = self._aten(node, name, args, kwargs)
        self.floats[node] = y
        source = next(iter(node.all_input_nodes), None)
        self._row(node, how or ("float" if source is None else self._why(node, source)))

    def _why(self, node: Node, source: Node) -> str:
        if node in self.fusion.reasons:
            return f"float: {self.fusion.reasons[node]}"
        if source in self.kinds:
            return "float: it takes bits as floats"
        if node.target in CONVOLUTIONS or node.target in PRODUCTS:
            return NOT_OF_BITS
        return NOT_READ

    def _output(self, node: Node | None) -> int | None:
        if node in self.constants:
            raise PackedError(f"expected outputs that depend on the input, got the constant {node.name}")
        return None if node is None else self._float(node)


# ---- the whole way ----


def pack(model: nn.Module | Traced, example: Any, *, progress: bool = False) -> PackedModel:
    """Return a model that computes the same over packed bits, on the CPU.

    The model is exported (`torch.export`). Every layer that reads the outputs of steps becomes a layer over bits. If
    the weights of each filter are +-1 times one number, it uses xor and popcount; else it uses tables of sums. Batch
    norms, sums and steps after a layer are computed with it. All other operators run in float32, as before. `pack`
    compares the result with the model on the example, see `verify`.

    A packed model refuses inputs that are not finite, because a bit has no value for NaN.

    Args:
        model: from `htaf.harden`, or any float32 module with exact steps; it is packed as in eval mode. Or what
            `trace` made of it.
        example: tensor [batch, ...] or a tuple of them, as the model takes them: float32, integers (ids) or bools
            (masks). The packed model takes these dtypes.
        progress: show bars, and plain lines where there is no terminal.

    Returns:
        A module with the same call, in eval mode whatever the mode of the model. `.report` says what became of every
        operator.

    Raises:
        PackedError: a model that is smooth, has NaN, cannot be exported, holds nothing to pack or operators that a
            packed model does not know, or whose packed form does not agree with it on the example.

    Example:
        >>> net = nn.Sequential(nn.Linear(8, 64), htaf.Heaviside(), nn.Linear(64, 2))
        >>> pack(net, torch.randn(4, 8))(torch.randn(100, 8)).shape
        torch.Size([100, 2])
    """
    if isinstance(model, PackedModel):
        raise PackedError("expected a hardened model, got one that is packed already")
    given = graph.arguments_of(example)
    traced = model if isinstance(model, Traced) else graph.trace(model, given, progress=progress)
    lowered = Lowering(traced)
    if not lowered.report.layers:
        raise PackedError(f"there is nothing to pack: {_why_none(lowered.report)}")
    packed = PackedModel(lowered.program, lowered.report)
    found = compare(packed, traced, given, progress=progress)
    if not found.ok:
        raise PackedError(f"expected the packed model to agree with the hardened one on the example, got:\n{found}")
    return packed


def _why_none(report: Report) -> str:
    """Why no layer of a network runs over bits."""
    taking = [r for r in report.rows if r.how.startswith("float: ") and r.how not in (NOT_OF_BITS, NOT_READ)]
    if not taking:
        return "expected steps (Heaviside) with layers behind them, got none (htaf.replace, train, htaf.harden)"
    found = "; ".join(f"{r.path or r.name} ({r.operator}): {r.how.removeprefix('float: ')}" for r in taking[:4])
    return f"expected a linear layer or a convolution that takes the bits of a step, got what runs in float: {found}"
