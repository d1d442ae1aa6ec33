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
from htaf.packed.affine import Constants, aten, read_affine, shape_of
from htaf.packed.instructions.schema import LARGEST
from htaf.packed.kinds import Bits
from htaf.packed.layers import LayerSite, on_powers

Limits = tuple[float, float]


def before_rounding(node: Node, constants: Constants) -> tuple[Node, float, Limits | None, list[Node]]:
    """What a node rounds to integers.

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
    plain = site.form == "image" and site.more is None and g.groups == 1 and g.dilation[1] == 1
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


def read_means(node: Node, kinds: dict[Node, Bits], constants: Constants, outputs: set[Node]) -> MeansSite | None:
    """The node as such a layer, of images, or of images over time; None where it is none."""
    chain = [node]  # to float32, linear, mean, to float64
    for target in (aten._to_copy.default, aten.linear.default, aten.mean.dim, aten._to_copy.default):
        last = chain[-1]
        if last.target is not target or not isinstance(last.args[0], Node):
            return None
        chain.append(last.args[0])
    rounded, linear, mean, widened, source = chain
    kind, values = kinds.get(source), [n.meta["val"].dtype for n in (rounded, linear, mean, widened)]
    if kind is None or values != [torch.float32, torch.float64, torch.float64, torch.float64] or mean.args[2:]:
        return None
    if kind.most != 1 or kind.whole is not None or not {kind.low, kind.high} <= {-1.0, 0.0, 1.0}:
        return None
    rank = len(shape_of(source))
    dims = tuple(sorted(int(d) % rank for d in mean.args[1]))  # pyright: ignore
    if (rank, kind.axis, dims) not in ((4, 1, (2, 3)), (5, 2, (0, 3, 4))):
        return None
    counted = [shape_of(source)[d] for d in dims]
    if not all(isinstance(n, int) for n in counted) or math.prod(counted) * kind.channels > LARGEST:
        return None
    if any(set(inner.users) != {outer} or inner in outputs for outer, inner in pairwise(chain[:4])):
        return None
    given = [constants.get(a) for a in linear.args[1:]]  # pyright: ignore
    weight, bias = (*given, None)[:2]
    if weight is None or (len(given) > 1 and bias is None) or weight.ndim != 2:
        return None
    held = weight if bias is None else torch.cat([weight, bias[:, None]], 1)
    if not bool(held.isfinite().all()) or not bool((held == held.float()).all()):
        return None
    whole, unit = on_powers(held.flatten()[None].float())  # one unit for all of them
    whole = whole.reshape(held.shape)
    if float(whole[:, : weight.shape[1]].abs().max()) > WIDEST or float(whole.abs().max()) > MOST_BIAS / 2:
        return None
    whole = whole.long()
    added = whole[:, weight.shape[1] :].flatten() if bias is not None else torch.zeros(len(weight), dtype=torch.int64)
    low, span = int(kind.low), int(kind.high - kind.low)
    whole = whole[:, : weight.shape[1]]
    return MeansSite(
        source, dims, (span * whole).int(), added + low * whole.sum(1), float(unit), (linear, mean, widened)
    )
