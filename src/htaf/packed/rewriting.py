"""A network written so that more of it runs over bits: what it computes is the same."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, Node

from htaf.packed.affine import Constants, aten, is_float, shape_of
from htaf.packed.graph import Traced
from htaf.packed.kinds import CONVOLUTIONS, Bits, cat_dim, infer, part_of
from htaf.packed.layers import LayerSite, read_layer, slower

FEWEST = 8  # channels of bits that repay a layer of their own
_LAYERS = (*CONVOLUTIONS, aten.linear.default)
_Parts = list[list[int]]  # places in a `cat` of what each part of a layer takes


def rewritten(traced: Traced) -> Traced:
    """The network as it is lowered.

        a layer over bits and floats side by side           the sum of one over each
        a convolution of lines of bits, cut at their ends   one over bits that are padded by less

    Returns:
        A copy, in which nodes that stay have their names; or what was given, where nothing is written otherwise.
    """
    calls = [node for node in traced.graph.nodes if node.op == "call_function" and node not in traced.constants]
    calls = [node for node in calls if isinstance(node.meta.get("val"), (Tensor, list, tuple))]
    sites = [site for node in calls if node.target in _LAYERS and (site := read_layer(node, traced.constants))]
    joined = [s for s in sites if s.source.target is aten.cat.default and s.geometry.groups == 1]
    lines = [s for s in sites if s.node.target is aten.conv1d.default and max(s.geometry.padding)]
    if not joined and not lines:
        return traced
    kinds, _ = infer(calls, traced.constants)
    parts = {site: found for site in joined if (found := _parts(site, kinds)) is not None}
    borders = {site: found for site in lines if (found := _borders(site, kinds)) is not None}
    if not parts and not borders:
        return traced
    graph, known = Graph(), dict[Node, Node]()
    graph.output(graph.graph_copy(traced.graph, known))
    constants = {known[node]: value for node, value in traced.constants.items() if node in known}
    for site, found in parts.items():
        _split(graph, known[site.node], site, found, constants)
    for site, border in borders.items():
        _padded(graph, known[site.node], border)
    (result,) = graph.find_nodes(op="output")
    inputs = tuple(known[node] for node in traced.inputs)
    return replace(traced, graph=graph, constants=constants, inputs=inputs, outputs=tuple(result.args[0]))


def _parts(site: LayerSite, kinds: dict[Node, Bits]) -> _Parts | None:
    """What each part of a layer takes: floats first, then bits of the same levels. None where it stays one."""
    if site.source in kinds or cat_dim(site.source) != site.axis or not all(map(is_float, site.source.all_input_nodes)):
        return None  # bits already, side by side along another dimension, or numbers of other dtypes
    parts: dict[Any, list[int]] = {None: []}
    channels = 0
    for place, source in enumerate(site.source.args[0]):  # pyright: ignore
        levels = _levels(site, kinds.get(source))
        parts.setdefault(levels, []).append(place)
        channels += 0 if levels is None else shape_of(source)[site.axis]
    taken = [places for places in parts.values() if places]
    return taken if len(taken) > 1 and channels >= FEWEST else None


def _borders(site: LayerSite, kinds: dict[Node, Bits]) -> tuple[int, int] | None:
    """The padding on either side, of which none is cut away behind the layer; None where that is what it has."""
    g, kind, users = site.geometry, kinds.get(site.source), list(site.node.users)
    if kind is None or kind.axis != 1 or not _holds_zero(kind) or g.stride[1] != 1 or len(users) != 1:
        return None
    part = part_of(users[0], 1) if users[0].target is aten.slice.Tensor else None
    length = shape_of(site.source)[2]
    if part is None or part[0] != 2 or part[1] != 0 or not isinstance(length, int):
        return None
    reach = g.dilation[1] * (g.kernel[1] - 1)
    right = part[2] + reach - g.padding[1] - length
    return (g.padding[1], right) if 0 <= right < g.padding[1] else None


def _levels(site: LayerSite, kind: Bits | None) -> Bits | None:
    """What bits that one layer takes have in common, all but their channels; None of what it takes as floats."""
    if kind is None or kind.axis != site.axis or kind.whole is not None or slower(site, kind) is not None:
        return None
    return replace(kind, channels=1)


def _holds_zero(kind: Bits) -> bool:
    """Whether bits that are padded by 0 are bits of the same levels."""
    return 0.0 in ((kind.low,) if kind.most > 1 else (kind.low, kind.high))


def _split(graph: Graph, node: Node, site: LayerSite, parts: _Parts, constants: Constants) -> None:
    """Put layers over parts of what was joined, and their sums, in place of one over all of it."""
    joined: Any = node.args[0]
    sources: list[Node] = list(joined.args[0])
    weight, bias = constants[node.args[1]], node.args[2] if len(node.args) > 2 else None  # pyright: ignore
    places = torch.arange(weight.shape[1]).split([shape_of(one)[site.axis] for one in sources])
    total: Node | None = None

    def call(what: str, target: Any, *args: Any) -> Node:
        made = graph.create_node("call_function", target, args, name=f"{node.name}_{what}")
        made.meta = dict(node.meta)
        return made

    with graph.inserting_before(node):
        for number, part in enumerate(parts):
            source = sources[part[0]]
            if len(part) > 1:
                taken = [sources[place] for place in part]
                source = call("joined", aten.cat.default, taken, site.axis)
                source.meta["val"] = torch.cat([one.meta["val"] for one in taken], site.axis)
            own = graph.create_node("get_attr", f"{node.name}_weight_{number}")
            constants[own] = weight[:, torch.cat([places[place] for place in part])].contiguous()
            own.meta["val"] = constants[own]
            layer = call("part", node.target, source, own, None if total else bias, *node.args[3:])
            layer.kwargs = node.kwargs
            total = layer if total is None else call("sum", aten.add.Tensor, layer, total)
    assert total is not None
    node.replace_all_uses_with(total)
    graph.erase_node(node)
    if not joined.users:
        graph.erase_node(joined)


def _padded(graph: Graph, node: Node, border: tuple[int, int]) -> None:
    """Put a convolution of padded lines in place of one whose ends a slice cuts off."""
    given: list[Any] = list(node.args)
    (cut,) = node.users
    source = given[0]
    with graph.inserting_before(node):
        padded = graph.create_node("call_function", aten.constant_pad_nd.default, (source, list(border), 0.0))
    batch, channels, length = shape_of(source)
    padded.meta = {**node.meta, "val": source.meta["val"].new_empty(batch, channels, length + sum(border))}
    node.args = (padded, *given[1:4], [0], *given[5:])
    node.meta = {**node.meta, "val": cut.meta["val"]}
    cut.replace_all_uses_with(node)
    graph.erase_node(cut)
