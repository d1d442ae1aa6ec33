"""What is computed together: a layer with the affine maps and the sum after it, and a step with those before it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor
from torch.fx import Node

from htaf.program.packed.affine import Affine, Constants, aten, compose, interval, is_float, read_affine, same, shape_of
from htaf.program.packed.kinds import Bits, Step, is_pool, is_spikes, read_step
from htaf.program.packed.layers import (
    LayerSite,
    MeansSite,
    RoundedSite,
    binary_scales,
    counts,
    integers,
    over_bits,
    read_layer,
    read_means,
    read_rounded,
    slower,
)


@dataclass(frozen=True)
class Tail:
    """A step of an affine map of `root`: what stands between them is only taken by the step."""

    step: Node
    affine: Affine

    def interval(self, inner: Affine | None = None, *, integer: bool = False) -> tuple[Tensor, Tensor]:
        """The ends for the values of the root, or for those of which the root is the map `inner`."""
        affine = self.affine if inner is None else compose(self.affine, inner)
        assert affine is not None
        return interval(affine.scale, affine.shift, integer=integer)


@dataclass
class Chain:
    """A layer over bits up to `end`: end = affine(sums) + residual. pool: its maxima over windows, before the tail."""

    site: LayerSite
    kind: Bits
    end: Node
    affine: Affine
    residual: Node | None = None
    tail: Tail | None = None
    keep: bool = True
    pool: Node | None = None


@dataclass
class Fusion:
    """chains by their end; tails by their step; folded: affine maps after a float layer, by their last node; rounded:
    layers of integers over floats; means: heads over means of bits.

    absorbed: nodes that have no value of their own, and the node with which they are computed. reasons:
    why a layer over bits runs in float.
    """

    chains: dict[Node, Chain] = field(default_factory=dict)
    tails: dict[Node, Tail] = field(default_factory=dict)
    folded: dict[Node, tuple[LayerSite, Affine]] = field(default_factory=dict)
    rounded: dict[Node, RoundedSite] = field(default_factory=dict)
    means: dict[Node, MeansSite] = field(default_factory=dict)
    absorbed: dict[Node, Node] = field(default_factory=dict)
    reasons: dict[Node, str] = field(default_factory=dict)

    @property
    def taken(self) -> set[Node]:
        """The nodes that are computed with others."""
        return {*self.absorbed, *self.chains, *self.folded}


def fuse(nodes: list[Node], kinds: dict[Node, Bits], constants: Constants, outputs: set[Node]) -> Fusion:
    """Find the chains and tails of a graph, none of which share a node."""
    found = Fusion()
    for node in nodes:
        if node in kinds and not is_spikes(node):
            step = read_step(node, constants)
            if step is not None:
                _find_tail(node, step, kinds, constants, outputs, found)
        elif node not in kinds and (means := read_means(node, kinds, constants, outputs)) is not None:
            found.means[node] = means
            found.absorbed |= dict.fromkeys(means.inside, node)
    order = {node: i for i, node in enumerate(nodes)}
    for node in reversed(nodes):  # where two layers are added, the later takes the earlier one's output
        if node in found.absorbed or node in kinds or (site := read_layer(node, constants)) is None:
            continue
        kind = kinds.get(site.source)
        fitting = None if kind is None else over_bits(site, kind)
        if fitting is not None and kind is not None and (reason := slower(fitting, kind)) is not None:
            found.reasons[node] = reason
            fitting = None
        if kind is None and (rounded := read_rounded(site, constants, outputs)) is not None:
            found.rounded[node] = rounded
            found.absorbed |= dict.fromkeys(rounded.inside, node)
        elif fitting is None or kind is None:
            _fold(site, constants, outputs, found)
        else:
            _find_chain(node, fitting, kind, kinds, constants, outputs, order, found)
    return found


def _only(node: Node, outputs: set[Node]) -> Node | None:
    """The one node that takes this value, if nothing else does."""
    users = [user for user in node.users if user.target is not aten.sym_size.int]
    return users[0] if len(users) == 1 and node not in outputs else None


def _find_tail(
    node: Node, step: Step, kinds: dict[Node, Bits], constants: Constants, outputs: set[Node], found: Fusion
) -> None:
    unit = torch.ones((), dtype=torch.float64)
    affine = Affine(step.source, unit, torch.zeros_like(unit), None)
    reader, passed, root = node, list[Node](), affine
    while affine.source not in kinds and _only(affine.source, outputs) is reader:
        inner = read_affine(affine.source, constants)
        joined = None if inner is None else compose(affine, inner)
        if joined is None or (joined.axis is not None and joined.axis != kinds[node].axis):
            break
        reader = affine.source
        passed.append(reader)
        affine = joined
        if is_float(affine.source):  # what ends in float64 is no root
            found.absorbed.update(dict.fromkeys(passed, node))
            passed, root = [], affine
    found.tails[node] = Tail(node, root)


def _find_chain(
    node: Node, site: LayerSite, kind: Bits, kinds: dict[Node, Bits], constants: Constants, outputs: set[Node],
    order: dict[Node, int], found: Fusion,
) -> None:  # fmt: skip
    unit = torch.ones((), dtype=torch.float64)
    axis = 1 if site.form == "image" else len(shape_of(node)) - 1
    chain = Chain(site, kind, node, Affine(node, unit, torch.zeros_like(unit), None))
    inside = [node]
    whole = replace(chain), 1  # up to the last float32
    while (user := _only(chain.end, outputs)) is not None and user not in found.taken and user not in kinds:
        affine = read_affine(user, constants)
        if affine is not None and chain.residual is None:
            joined = compose(affine, chain.affine)
            if joined is None or joined.axis not in (None, axis):
                break
            chain.affine = joined
        elif (other := _added(user, chain.end)) is not None and chain.residual is None:
            if not same(shape_of(other), shape_of(user)) or other in constants:
                break
            chain.residual = other
        else:
            break
        chain.end = user
        inside.append(user)
        if is_float(user):
            whole = replace(chain), len(inside)
    chain, inside = whole[0], inside[: whole[1]]
    tails = [t for t in found.tails.values() if t.affine.source is chain.end and t.affine.axis in (None, axis)]
    tails = [t for t in tails if kinds[t.step].axis == axis]
    if tails:
        chain.tail = min(tails, key=lambda t: order[t.step])
        del found.tails[chain.tail.step]
        reader = _reader(chain.end, chain.tail, found)
        chain.keep = _only(chain.end, outputs) is not reader
        found.absorbed[chain.tail.step] = chain.end
    elif (pool := _only(chain.end, outputs)) is not None and chain.residual is None and _exact(site, kind):
        _take_pool(chain, pool, axis, kinds, outputs, found)
    for part in inside[:-1]:
        found.absorbed[part] = chain.end
    found.chains[chain.end] = chain


def _exact(site: LayerSite, kind: Bits) -> bool:
    """Whether the sums are integers, so that a larger one is never taken for a smaller one."""
    binary = counts(site.geometry, kind) and binary_scales(site.weight) is not None
    return binary or integers(site.weight, kind.most) is not None


def _take_pool(chain: Chain, pool: Node, axis: int, kinds: dict[Node, Bits], outputs: set[Node], found: Fusion) -> None:
    """A step behind a pooling, as both may change places: the bits are pooled in place of the sums."""
    if chain.site.form != "image" or pool in kinds or not is_pool(pool):
        return
    tails = [t for t in found.tails.values() if t.affine.source is pool and t.affine.axis in (None, axis)]
    if len(tails) != 1 or kinds[tails[0].step].axis != axis:
        return
    if _reader(pool, tails[0], found) is not _only(pool, outputs):
        return
    chain.pool, chain.tail, chain.keep = pool, tails[0], False
    del found.tails[chain.tail.step]
    found.absorbed |= {pool: chain.end, chain.tail.step: chain.end}


def _reader(end: Node, tail: Tail, found: Fusion) -> Node | None:
    """The node of a tail that takes `end` itself."""
    for user in end.users:
        if user is tail.step or found.absorbed.get(user) is tail.step:
            return user
    return None


def _added(node: Node, end: Node) -> Node | None:
    """What is added to `end` in this node, with neither of them scaled."""
    if node.target is not aten.add.Tensor or len(node.args) != 2 or node.kwargs:
        return None
    left, right = node.args
    other = right if left is end else left
    return other if isinstance(other, Node) and other is not end else None


def _fold(site: LayerSite, constants: Constants, outputs: set[Node], found: Fusion) -> None:
    """Affine maps after a layer over floats go into its weights, unless others have these too: they are kept once, or
    they are integers times a power of two, whose sums are exact."""
    if any(source in constants and len(source.users) > 1 for source in site.node.all_input_nodes):
        return
    if integers(site.weight) is not None:
        return
    unit = torch.ones((), dtype=torch.float64)
    end, affine = site.node, Affine(site.node, unit, torch.zeros_like(unit), None)
    axis = 1 if site.form == "image" else len(shape_of(end)) - 1
    inside = [end]
    whole = end, affine, 1  # up to the last float32
    while (user := _only(end, outputs)) is not None and user not in found.taken:
        outer = read_affine(user, constants)
        joined = None if outer is None else compose(outer, affine)
        if joined is None or joined.axis not in (None, axis):
            break
        end, affine = user, joined
        inside.append(user)
        if is_float(end):
            whole = end, affine, len(inside)
    end, affine, inside = whole[0], whole[1], inside[: whole[2]]
    if len(inside) > 1:
        for part in inside[:-1]:
            found.absorbed[part] = end
        found.folded[end] = site, affine
