"""What is computed together: a layer with the affine maps and the sum after it, and a step with those before it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor
from torch.fx import Node

from htaf.program.packed.bits import (
    Bits,
    MeansSite,
    RoundedSite,
    binary_scales,
    counts,
    integers,
    over_bits,
    read_means,
    read_rounded,
    readers,
    slower,
)
from htaf.program.packed.nodes import (
    Affine,
    Constants,
    LayerSite,
    Step,
    aten,
    compose,
    identity,
    interval,
    is_float,
    is_pool,
    is_spikes,
    read_affine,
    read_layer,
    read_step,
    same,
    shape_of,
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

    chains: by their end. tails: by their step. rounded: layers of integers over floats. means: heads over means of
    bits. absorbed: nodes that have no value of their own, and the node with which they are computed. reasons: why a
    layer over bits runs in float.
    """

    def __init__(self, nodes: list[Node], kinds: dict[Node, Bits], constants: Constants, outputs: set[Node]) -> None:
        self.kinds, self.constants, self.outputs = kinds, constants, outputs
        self.chains, self.tails = dict[Node, Chain](), dict[Node, Tail]()
        self.rounded, self.means = dict[Node, RoundedSite](), dict[Node, MeansSite]()
        self.absorbed, self.reasons = dict[Node, Node](), dict[Node, str]()
        for node in nodes:
            if node in kinds and not is_spikes(node):
                if (step := read_step(node, constants)) is not None:
                    self._find_tail(node, step)
            elif node not in kinds and (means := read_means(node, kinds, constants, outputs)) is not None:
                self.means[node] = means
                self.absorbed |= dict.fromkeys(means.inside, node)
        for node in reversed(nodes):  # where two layers are added, the later takes the earlier one's output
            if node not in self.absorbed and node not in kinds and (site := read_layer(node, constants)) is not None:
                self._find_layer(node, site)

    def _find_layer(self, node: Node, site: LayerSite) -> None:
        kind = self.kinds.get(site.source)
        fitting = None if kind is None else over_bits(site, kind)
        if fitting is not None and kind is not None and (reason := slower(fitting, kind)) is not None:
            self.reasons[node] = reason
            fitting = None
        if kind is None and (rounded := read_rounded(site, self.constants, self.outputs)) is not None:
            self.rounded[node] = rounded
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

    def _find_tail(self, node: Node, step: Step) -> None:
        affine = identity(step.source)
        reader, passed, root = node, list[Node](), affine
        while affine.source not in self.kinds and self._only(affine.source) is reader:
            inner = read_affine(affine.source, self.constants)
            joined = None if inner is None else compose(affine, inner)
            if joined is None or (joined.axis is not None and joined.axis != self.kinds[node].axis):
                break
            reader = affine.source
            passed.append(reader)
            affine = joined
            if is_float(affine.source):  # what ends in float64 is no root
                self.absorbed.update(dict.fromkeys(passed, node))
                passed, root = [], affine
        self.tails[node] = Tail(node, root)

    def _followed(self, site: LayerSite, kind: Bits | None) -> Chain:
        """A layer with the affine maps after it, and of one over bits a sum behind them, that nothing else takes."""
        chain = Chain(site, kind, site.node, identity(site.node), (site.node,))
        whole = chain  # up to the last float32
        while (user := self._only(chain.end)) is not None and user not in self.kinds:
            if user in self.absorbed or user in self.chains or chain.residual is not None:
                break
            affine = read_affine(user, self.constants)
            joined = None if affine is None else compose(affine, chain.affine)
            if joined is not None and joined.axis in (None, chain.site.axis):
                chain = replace(chain, affine=joined)
            elif affine is None and kind is not None and (other := self._added(user, chain.end)) is not None:
                chain = replace(chain, residual=other)
            else:
                break
            chain = replace(chain, end=user, inside=(*chain.inside, user))
            whole = chain if is_float(user) else whole
        return whole

    def _added(self, node: Node, end: Node) -> Node | None:
        """What is added to `end` in this node, with neither of them scaled."""
        if node.target is not aten.add.Tensor or len(node.args) != 2 or node.kwargs:
            return None
        left, right = node.args
        other = right if left is end else left
        if not isinstance(other, Node) or other is end or other in self.constants:
            return None
        return other if same(shape_of(other), shape_of(node)) else None

    def _with_tail(self, chain: Chain) -> Chain:
        """With the step behind a chain, or behind a pooling of exact sums, with which a step may change places: its
        bits are pooled in place of the sums."""
        user = self._only(chain.end)
        if tails := self._tails_of(chain.end, chain.site.axis):
            first = self._taken(tails[0], chain)
            return replace(chain, tail=first, keep=user is not self._reader(chain.end, first))
        pooled = user is not None and user not in self.kinds and is_pool(user) and chain.site.form == "image"
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
