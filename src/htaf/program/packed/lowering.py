"""From the graph of a hardened model to the instructions of a packed one."""

from __future__ import annotations

import hashlib
import re
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import Node
from torch.utils import _pytree as pytree

from htaf.core.kernels.layers import row_bytes
from htaf.core.kernels.packed_maps.reference import pack as packed_bits
from htaf.program.packed import operators
from htaf.program.packed.bits import Bits, MeansSite, RoundedSite, infer, prepare
from htaf.program.packed.errors import PackedError
from htaf.program.packed.fusion import Chain, Fusion, Tail
from htaf.program.packed.graph import Traced, arguments_of, trace
from htaf.program.packed.instructions import Call, Instruction, Layer, Means, Pool, Rounded, Spikes, Threshold, Unpack
from htaf.program.packed.instructions.layer import SMALL, to_nibbles
from htaf.program.packed.model import PackedModel
from htaf.program.packed.nodes import CONVOLUTIONS, PRODUCTS, Affine, aten, is_pool, is_spikes, pool_sizes, shape_of
from htaf.program.packed.program import Input, Program
from htaf.program.packed.report import Report, Row
from htaf.program.packed.verification import compare

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
        self.instructions: list[Instruction] = []
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
            Input(tuple(s if isinstance(s, int) else None for s in shape_of(n)), n.meta["val"].dtype)
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
        return self._put(Call(node.name, operator, args, kwargs or {}, self._value())).y

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
            unpack = self._put(Unpack(node.name, plane, channels, kind.axis, low, high, self._value()))
            total = unpack.y if total is None else self._aten(node, "add.Tensor", [{"v": total}, {"v": unpack.y}])
        assert total is not None
        total = self._levels(node, total, kind) if kind.most > 1 else total
        if kind.whole is not None:  # what was flattened
            total = self._aten(node, "reshape.default", [{"v": total}, [self._size(s) for s in shape_of(node)]])
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
        elif node in fusion.rounded:
            self._rounded(node, fusion.rounded[node])
        elif node in fusion.means:
            self._means(node, fusion.means[node])
        elif node in fusion.tails:
            self._threshold(node, fusion.tails[node])
        elif node in self.kinds and is_spikes(node):
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
        in_float = plain_shift and bool((scale == scale.float()).all() and _powers(scale))
        if ready.kind == "integer" and not raw and not in_float:
            wide = self._tensor(f"{node.name}.wide", torch.stack([scale, shift]))
            plain_scale = plain_shift = True
        residual = None if chain.residual is None else self._float(chain.residual)
        counted = ready.kind == "binary" and kind.most > 1
        planes = self.nested[site.source] if counted else self._planes(site.source)
        source = planes[0] if len(planes) == 1 else self._aten(node, "cat.default", [[{"v": p} for p in planes], -1])
        kept = ready.weight
        if ready.kind == "integer" and int(kept.abs().max()) <= SMALL:
            kept = to_nibbles(kept)
        weight = self._tensor(f"{node.name}.weight", kept)
        layer = Layer(
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

    def _pooled(self, node: Node, layer: Layer, tail: Tail) -> int:
        """The bits of a step behind a pooling: the least of them where the step falls with what is pooled."""
        assert layer.bits is not None
        channels, smallest = layer.geometry.outputs, None
        falls = tail.affine.scale < 0
        if bool(falls.any()):
            mask = torch.zeros(8 * row_bytes(channels), dtype=torch.bool)
            mask[:channels] = falls
            smallest = self._tensor(f"{node.name}.smallest", packed_bits(mask))
        sizes = pool_sizes(node)
        return self._put(Pool(tail.step.name, layer.bits, *sizes, self._value(), smallest, True)).bits

    def _rounded(self, node: Node, found: RoundedSite) -> None:
        """A convolution over floats in integers of 16 bits."""
        weights = found.weights
        names = (self._tensor(f"{node.name}.weight", weights.values), self._channels(f"{node.name}.unit", weights.unit))
        sizes = (found.site.geometry, *names, weights.exponent, weights.limit)
        self.floats[node] = self._put(Rounded(node.name, self._float(found.source), *sizes, self._value())).y
        self._row(node, "integers of 16 bits: its input is rounded")

    def _means(self, node: Node, found: MeansSite) -> None:
        """A linear layer over means of bits."""
        names = (self._tensor(f"{node.name}.weight", found.weight), self._tensor(f"{node.name}.bias", found.bias))
        source = self._planes(found.source)[0]
        self.floats[node] = self._put(Means(node.name, source, *names, found.unit, self._value())).y
        self._row(node, "packed: means of bits")

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
        self.bits[node] = (self._put(Threshold(node.name, source, kind.axis, lower, upper, self._value())).bits,)
        self._row(node, "packed: bits of floats")

    def _spikes(self, node: Node) -> None:
        kind = self.kinds[node]
        source, leak, gain, threshold, soft = node.args
        assert isinstance(source, Node)
        leak, gain, threshold = (float(n) for n in (leak, gain, threshold))  # pyright: ignore[reportArgumentType]
        neuron = kind.axis, leak, gain, threshold, bool(soft)
        self.bits[node] = (self._put(Spikes(node.name, self._float(source), *neuron, self._value())).bits,)
        self._row(node, "packed: spikes of floats")

    def _on_bits(self, node: Node, kind: Bits) -> None:
        """A value that is bits because its sources are."""
        first, *others = [a for a in node.args if isinstance(a, Node)]
        planes = self._kept(first)
        how = "packed: the same bits"
        if is_pool(node):
            planes, how = tuple(self._pool(node, plane) for plane in planes), "packed: pooled bits"
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

    def _pool(self, node: Node, source: int) -> int:
        return self._put(Pool(node.name, source, *pool_sizes(node), self._value())).bits

    def _viewed(self, node: Node, source: Node, plane: int) -> int:
        kind, before = self.kinds[node], self.kinds[source]
        shape = list(shape_of(node))
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


def _powers(scale: Tensor) -> bool:
    """Whether all are powers of two, with which products of integers are exact."""
    return bool((scale.frexp().mantissa.abs() == 0.5).all())


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
    given = arguments_of(example)
    traced = model if isinstance(model, Traced) else trace(model, given, progress=progress)
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
