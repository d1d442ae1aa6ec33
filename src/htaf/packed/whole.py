"""What a grid leaves beside layers over bits: convolutions whose inputs are rounded first, and heads over means."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor
from torch.fx import Node

from htaf.kernels.float_layers.reference import WIDEST, Rounded
from htaf.kernels.layers import EXACT
from htaf.kernels.packed_maps.reference import MOST_BIAS
from htaf.packed.affine import Constants, aten, is_float, read_affine, shape_of
from htaf.packed.instructions.schema import LARGEST
from htaf.packed.kinds import Bits
from htaf.packed.layers import LayerSite, on_powers

Limits = tuple[float, float]
MOST_OVER = 2**20  # by which a mean in float32 is a count but for less than a half


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
    if any(_readers(inner) != {outer} or inner in outputs for outer, inner in pairwise([node, *inside])):
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


def _readers(node: Node) -> set[Node]:
    """What takes its numbers, not its sizes."""
    return {user for user in node.users if user.target is not aten.sym_size.int}
