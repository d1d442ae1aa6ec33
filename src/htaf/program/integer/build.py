"""A hardened network on a grid as an integer program, read from its exported graph.

Every value of the graph that the program holds is a power of two times an integer. What lies between these and a step
(norms, casts, clips) is not written down: a step's threshold is the least integer at which the network's own nodes,
run on it, fire. So ties are decided as PyTorch decides them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor, nn
from torch.fx import Node
from torch.fx.node import map_arg

from htaf._ground.errors import option
from htaf.program.integer import ops
from htaf.program.integer.ops import Array, IntegerError, Op, Value, by_channel, channel_axis
from htaf.program.integer.program import Input, IntegerProgram, simplify
from htaf.program.packed import graph
from htaf.program.packed.graph import Affine, LayerSite, Traced, aten

MOST = 2**15 - 1  # of a weight
FINEST = 2**24  # steps of an input's grid, at most: what float32 holds
COLUMNS = (16, 2**30)  # exponent and clip of columns that a graph does not round; those of runs do
_SIZE = aten.sym_size.int
_VIEWS = (aten.reshape.default, aten.squeeze.dim, aten.unsqueeze.default)
_INSTEAD = {  # what to do where a layer has no integer form
    "put a step such as htaf.HTAF() in its place": (
        "relu", "relu6", "leaky_relu", "prelu", "elu", "gelu", "silu", "mish", "hardtanh", "hardswish", "sigmoid",
        "tanh", "softplus",
    ),
    "use nn.BatchNorm1d or 2d before a step, which is a threshold of integers": (
        "layer_norm", "group_norm", "instance_norm", "rms_norm", "native_layer_norm", "native_group_norm",
    ),
    "give it ceil_mode=False and no dilation": ("max_pool2d",),
    "use nn.MaxPool2d, or nn.AdaptiveAvgPool2d(1) before the last layer": ("avg_pool2d", "adaptive_avg_pool2d"),
    "use padding= of the layer behind it": ("constant_pad_nd", "pad"),
    "take a copy of a column for each of its thresholds, x.index_select(1, columns) - thresholds": ("sub",),
    "use two dimensions": ("conv1d", "max_pool1d", "avg_pool1d", "adaptive_avg_pool1d"),
    "use nn.MaxPool2d with the size of the image": ("adaptive_max_pool1d", "adaptive_max_pool2d", "amax", "max"),
    "return its input, and leave the rest to the loss": ("softmax", "log_softmax", "_softmax", "_log_softmax"),
}  # fmt: skip


@dataclass(frozen=True)
class Known:
    """A node of the graph by integers: unit[c] integer / divisor + shift[c] is what `base` gives, and scale[c] times
    that + offset[c] the node; clipped: but for a clip between them, which keeps the order.

    value: its number in the program. unit: float64 [C], powers of two. table: [C, 256], what base gives for each pixel,
    rising, where that is on no grid: only steps can read it.
    """

    value: int
    unit: Array
    base: Node
    divisor: int = 1
    shift: Array | None = None
    table: Tensor | None = None
    scale: Array = field(default_factory=lambda: np.ones(1))
    offset: Array = field(default_factory=lambda: np.zeros(1))
    clipped: bool = False

    def real(self, integers: Array) -> Tensor:
        """What base gives for some integers a channel, [C]."""
        if self.table is not None:
            return self.table[torch.arange(len(self.table)), torch.from_numpy(integers)]
        y = integers * self.unit / self.divisor
        return torch.from_numpy(y if self.shift is None else y + self.shift).to(self.base.meta["val"].dtype)


def integer_program(
    model: nn.Module | Traced, example: Any, *, input: Input | None = None, table: Tensor | None = None
) -> IntegerProgram:
    """The integer program of a hardened network.

    Args:
        model: hardened, with weights on a grid (`htaf.on_grid`); or what `htaf.packed.trace` made of it.
        example: inputs of it.
        input: what the program takes: the pixels that `table` prepares, or columns, such as whole numbers from 0 to 16;
            None: columns as fine as the network reads them, see `columns_input`.
        table: float32 [channels, 256], what the network is given for each pixel.

    Returns:
        The program, simplified.

    Raises:
        IntegerError: a part of the network has no integer form; the message names it and says what to do.
        PackedError: a model that is smooth, or that cannot be exported.
    """
    traced = model if isinstance(model, Traced) else graph.trace(model, example)
    return simplify(Walk(traced, input or columns_input(traced), table).program())


def columns_input(traced: Traced) -> Input:
    """The integers that a network of columns takes: of the finest grid to which it rounds them; bits where truth tables
    read them.

    Where it rounds none, as where only thresholds read them: multiples of 2^-16 in +-2^14.
    """
    (given,) = traced.inputs
    found, shape = list[tuple[int, int]](), tuple(int(n) for n in graph.shape_of(given)[1:])
    for node in traced.graph.nodes:
        if node.target is torch.ops.htaf.lookup.default:
            source = node.args[0]
            while source.target in (*_VIEWS, aten.index_select.default):
                source = source.args[0]
            if source is given:
                return Input("columns", shape, 0, 1, 0)
        if node.op == "call_function" and node.target is aten.round.default:
            source, factor, limits, _ = graph.before_rounding(node, traced.constants)
            while source.target in _VIEWS:
                (source,) = source.all_input_nodes[:1]
            if source is given and limits is not None:
                found.append((round(math.log2(factor)), round(min(-limits[0], limits[1]))))
    exponent, limit = max(found, default=COLUMNS)
    return Input("columns", shape, -limit, limit, exponent)


def module_of(node: Node) -> str:
    """The path of the module that a node is of, or its own name."""
    stack = [path for path, _ in (node.meta.get("nn_module_stack") or {}).values()]
    return next((path for path in reversed(stack) if path and not path.startswith("_")), node.name)


def off_grid() -> str:
    """What to do with real weights."""
    flag = option("--weights int8", 'weights="int8"')
    return f"train a run with {flag}, or a model of your own after htaf.on_grid(model, example)"


def refuse(node: Node, expected: str, got: object) -> NoReturn:
    raise IntegerError(f"{module_of(node)}: expected {expected}, got {got}")


def _operator(node: Node) -> str:
    """As `relu` of aten.relu.default."""
    return getattr(node.target, "__name__", str(node.target)).partition(".")[0]


class Walk:
    """One pass over a graph: `known` holds its values by integers, `pixels` those that are functions of each pixel."""

    def __init__(self, traced: Traced, given: Input, table: Tensor | None) -> None:
        self.traced, self.constants, self.input = traced, traced.constants, given
        self.single = {
            node: held.float() if held.dtype == torch.float64 else held for node, held in self.constants.items()
        }
        self.ops, self.values = list[Op](), [Value(given.shape, given.low, given.high)]
        self.known, self.pixels = dict[Node, Known](), dict[Node, Tensor]()
        if len(traced.inputs) != 1:
            raise IntegerError(f"expected a network with one input, got {len(traced.inputs)}")
        if any(map(graph.is_spikes, traced.graph.nodes)):
            got = "spiking neurons: htaf.pack runs them over bits, htaf.export.to_nir writes them for other software"
            raise IntegerError(f"expected a network without time steps for integers alone, got {got}")
        (placeholder,) = traced.inputs
        shape = tuple(graph.shape_of(placeholder)[1:])
        if given.shape != shape:
            raise IntegerError(f"expected an input {list(given.shape)}, got a network of {list(shape)}")
        if given.kind == "pixels":
            if table is None or tuple(table.shape) != (given.shape[0], 256):
                got = None if table is None else list(table.shape)
                raise IntegerError(f"expected a table [{given.shape[0]}, 256] of what each pixel is, got {got}")
            self.pixels[placeholder] = table[None, :, None]
        else:
            self.known[placeholder] = Known(0, np.full(self.values[0].channels, 2.0**-given.exponent), placeholder)
        for node in traced.graph.nodes:
            if node.op == "call_function" and node not in self.constants and isinstance(node.meta.get("val"), Tensor):
                self._see(node)

    def program(self) -> IntegerProgram:
        """The program of all operations.

        Raises:
            IntegerError: there are several outputs, or they are no row of numbers.
        """
        node, *more = self.traced.outputs
        if node is None or more:
            raise IntegerError(f"expected a network with one output, got {1 + len(more)}")
        end = self._aligned(node, self._settled(node))
        unit = (round(math.log2(end.unit[0])), end.divisor)
        return IntegerProgram(self.input, tuple(self.ops), end.value, unit)

    def row_shape(self, node: Node) -> tuple[int, ...]:
        """The shape of one row of a node [N, ...]."""
        batch, *row = graph.shape_of(node) or (0,)
        if str(batch) != str(self.traced.batch) or not all(isinstance(n, int) for n in row):
            refuse(node, "values [N, ...] of N rows, of known sizes", f"{node.name} of {[batch, *row]}")
        return tuple(row)

    def _see(self, node: Node) -> None:
        target, sources = node.target, node.all_input_nodes
        moved: list[Any] = [n for n in sources if n not in self.constants and n.target is not _SIZE]
        if moved and all(n in self.pixels for n in moved) and self._of_each_pixel(node):
            self.pixels[node] = self.pixels[moved[0]] if target in _VIEWS else self._run(node, self.pixels)
            return
        for source in moved:
            if source in self.pixels and source not in self.known:
                self._look_up(source)
        if (step := graph.read_step(node, self.constants)) is not None:
            self._step(node, step.low)
        elif (site := graph.read_layer(node, self.single)) is not None:
            self._layer(node, site)
        elif target is aten.round.default:
            self._round(node)
        elif graph.is_pool(node):
            self._pool(node)
        elif target in (aten.mean.dim, aten.sum.dim_IntList):
            self._count(node)
        elif target in _VIEWS:
            self._view(node)
        elif target is aten.index_select.default and len(graph.shape_of(node)) in (2, 3):
            self._take(node)
        elif target is torch.ops.htaf.lookup.default:
            self._lut(node)
        elif target is aten.add.Tensor and len(moved) == 2:
            self._add(node, *moved)
        elif (affine := self._affine(node)) is not None:
            self._map(node, affine)
        elif target is aten.clamp.default:
            self.known[node] = replace(self._of(node.args[0]), clipped=True)
        else:
            self._refuse_kind(node)

    def _refuse_kind(self, node: Node) -> NoReturn:
        """No operation of a program is like the node."""
        while _operator(node) == "getitem":
            node = node.args[0]  # pyright: ignore
        otherwise = "htaf.pack runs it in float, among layers over bits"
        instead = next((what for what, those in _INSTEAD.items() if _operator(node) in those), otherwise)
        got = f"{node.target} ({node.name}): {instead}"
        refuse(node, "layers on a grid, norms, steps, poolings and sums", got)

    def _of_each_pixel(self, node: Node) -> bool:
        if node.target in _VIEWS:
            return True
        shaped = {str(graph.shape_of(n)[1:]) for n in (node, *self.traced.inputs)}
        if len(shaped) > 1 and any(n in self.constants and graph.shape_of(n) for n in node.all_input_nodes):
            return False  # of each place in another shape than that of the image
        if self._affine(node) is not None or graph.maps_each(node):
            return True
        return node.target is aten.clamp.default or graph.read_step(node, self.constants) is not None

    def _affine(self, node: Node) -> Affine | None:
        """The node as an affine map whose constants vary by channel at most."""
        affine = graph.read_affine(node, self.constants)
        if affine is not None and affine.axis is not None:
            rank = len(graph.shape_of(node))
            if affine.axis != rank + (-1 if rank < 4 else -3):
                return None
        return affine

    def _run(self, node: Node, known: dict[Node, Tensor]) -> Any:
        """The node on values of what it takes, constants among it."""
        given: Any = map_arg((node.args, node.kwargs), lambda n: known[n] if n in known else self.constants[n])
        return node.target(*given[0], **given[1])  # pyright: ignore[reportCallIssue]

    def put(self, op: Op) -> int:
        """Append an operation."""
        if isinstance(op, ops.View) and op.x and isinstance(before := self.ops[op.x - 1], ops.View):
            op = replace(op, x=before.x)
        self.ops.append(op)
        self.values.append(op.value(*(self.values[i] for i in op.reads)))
        return len(self.ops)

    def _hold(self, node: Node, op: Op, unit: Array, **more: Any) -> None:
        """The node is what an operation gives."""
        self.known[node] = Known(self.put(op), unit, node, **more)

    def _look_up(self, node: Node) -> None:
        """A value of each pixel, as integers of one unit."""
        values = self.pixels[node].flatten(0, -2)
        if not bool(values.isfinite().all()):
            refuse(node, "finite numbers of each pixel", values)
        whole, unit = graph.on_powers(values[None].float())
        if float(whole.abs().max()) > FINEST:
            if not bool((values.diff(dim=-1) >= 0).all()):
                self._refuse_pixels(node)
            self.known[node] = Known(0, np.ones(len(values)), node, table=values)
            self._shaped(node, node)
            return
        table = whole[0].numpy().astype(np.int64)
        self._hold(node, ops.Lookup(module_of(node), 0, table), np.full(len(table), float(unit)))
        self._shaped(node, node)

    def _refuse_pixels(self, node: Node) -> NoReturn:
        refuse(node, "pixels that are rounded to a grid before a layer", f"real ones ({node.name}): {off_grid()}")

    def _of(self, node: Any) -> Known:
        if node not in self.known:
            refuse(node, "a value that the program holds", node)
        return self.known[node]

    def _passes(self, node: Node) -> bool:
        """Whether a node only moves numbers, so that its channels are those of its argument."""
        return node.target in _VIEWS or graph.is_pool(node)

    def _settled(self, node: Any, *, ranks: bool = False) -> Known:
        """A value without anything between base and node: its shift goes into the operation that made it.

        ranks: pixels may be known by what each gives alone.

        Raises:
            IntegerError: it is not a power of two times an integer.
        """
        known = self._of(node)
        if known.table is not None and not (ranks and known.base is node):
            self._refuse_pixels(node)
        if known.base is node and known.shift is None:
            return known
        if known.clipped:
            refuse(node, "a norm or another affine map", "a clip that nothing rounds")
        scale, offset = (np.broadcast_to(part, known.unit.shape) for part in (known.scale, known.offset))
        shift = offset if known.shift is None else offset + scale * known.shift
        scale = scale * known.unit
        channels, made = len(scale), self.ops[known.value - 1] if known.value else None
        if isinstance(made, ops.Steps) and known.divisor == 1 and len({*scale}) == len({*shift}) == 1:
            op, unit = _relabelled(made, scale[0], shift[0])
            if op is None:
                refuse(node, "steps whose levels are integers times a power of two", [shift[0], scale[0]])
            return Known(self.put(op), np.full(channels, unit), node)
        if not (_powers(scale) and (scale > 0).all()):
            what = "as of a norm or of binary weights that no step follows: put a step behind it, or leave it out"
            got = f"real numbers, {what}; of columns, normalise them before they come in"
            refuse(node, "sums of integers in units that are powers of two", got)
        settled = Known(known.value, scale, node, known.divisor)
        if not shift.any():
            return settled
        finest = graph.on_powers(torch.from_numpy(shift / scale)[:, None])[1].numpy()
        finer = self._in_units(settled, np.where(shift == 0, scale, np.minimum(finest, 1) * scale))
        bias = shift * known.divisor / (scale if finer is None else finer.unit)
        if finer is None or (bias != np.rint(bias)).any() or np.abs(bias).max() > 2**52:
            what = "a real one: give the layer bias=False, or let its step or norm come right behind it"
            refuse(node, "a bias on the grid of the layer's sums", what)
        made, whole = self.ops[finer.value - 1], bias.astype(np.int64)
        assert isinstance(made, (ops.Linear, ops.Conv))
        return replace(finer, value=self.put(replace(made, bias=whole if made.bias is None else made.bias + whole)))

    def _in_units(self, known: Known, unit: Array) -> Known | None:
        """The sums of a layer in finer units, by larger weights; None where these are too large, or of others."""
        made, by = self.ops[known.value - 1], (known.unit / unit).round().astype(np.int64)
        if not isinstance(made, (ops.Linear, ops.Conv)) or by.max() > MOST:
            return None
        weight = made.weight * by.reshape(-1, *[1] * (made.weight.ndim - 1))
        if np.abs(weight).max() > MOST:
            return None
        bias = None if made.bias is None else made.bias * by
        return replace(known, unit=unit, value=self.put(replace(made, weight=weight, bias=bias)))

    def _aligned(self, node: Node, known: Known) -> Known:
        """In one unit for all channels."""
        one = np.full_like(known.unit, known.unit.min())
        if (known.unit == one).all():
            return known
        if (finer := self._in_units(known, one)) is not None:
            return finer
        most = int(max(-self.values[known.value].low, self.values[known.value].high) * (known.unit.max() / one[0]))
        left = np.log2(known.unit / one).astype(np.int64)
        return replace(known, value=self.put(ops.Shift(module_of(node), known.value, left, -most, most)), unit=one)

    def _step(self, node: Node, low: float) -> None:
        """By bisection: where the network's own nodes, run on an integer a channel, change from `low` to 1."""
        source: Any = next(n for n in node.all_input_nodes if n not in self.constants)
        known = self._of(source)
        value, channels = self.values[known.value], len(known.unit)

        def fires(integers: Array) -> Array:
            return self._at(node, known, integers).numpy() == 1

        least, most = np.full(channels, value.low), np.full(channels, value.high)
        first, last = fires(least), fires(most)
        below, above = least, most
        while (above - below > 1).any():
            middle = (below + above) // 2
            as_last = fires(middle) == last
            below, above = np.where(as_last, below, middle), np.where(as_last, middle, above)
        falls = first & ~last
        threshold = np.where(falls, -below, np.where(first, value.low, np.where(last, above, value.high + 1)))
        made = ops.Steps(module_of(node), known.value, threshold[:, None], np.where(falls, -1, 1), 0, 1)
        op, unit = _relabelled(made, 1.0 - low, low)
        assert op is not None
        self._hold(node, op, np.full(channels, unit))

    def _at(self, node: Node, known: Known, integers: Array) -> Tensor:
        """What a node gives where the integers of its base are these, [C]."""
        if node is known.base:
            return known.real(integers)
        source: Any = next(n for n in node.all_input_nodes if n not in self.constants and n.target is not _SIZE)
        before = self._at(source, known, integers)
        if self._passes(node):
            return before
        rank = len(graph.shape_of(source))
        shaped = before.reshape(-1, 1, 1) if rank >= 4 else before
        return self._run(node, {source: shaped.reshape(*[1] * (rank - shaped.ndim), *shaped.shape)}).flatten()

    def _layer(self, node: Node, site: LayerSite) -> None:
        known, name = self._settled(site.source), module_of(node)
        g, weight = site.geometry, site.weight.double()
        if g.groups != 1:
            refuse(node, "a convolution without groups", f"{g.groups} groups")
        one = float(known.unit.min())
        if (known.unit != one).any():
            weight = weight * torch.from_numpy(known.unit / one).view(-1, 1, 1)
        if not bool(weight.isfinite().all()):
            refuse(node, "finite weights", "others")
        whole, step = graph.on_powers(weight)
        if float(whole.abs().max()) > MOST:
            refuse(node, "weights on a grid of integers", f"real ones: {off_grid()}")
        k = whole.numpy().astype(np.int64)
        if site.form == "row":
            op: Op = ops.Linear(name, known.value, k[:, :, 0, 0], None)
        else:
            op = ops.Conv(name, known.value, k, None, g.stride, g.padding, g.dilation)
        step = torch.where(whole.flatten(1).any(1), step, step.min())  # a filter of zeros takes any unit
        shift = None if site.bias is None else site.bias.double().numpy()
        self._hold(node, op, step.numpy() * one, divisor=known.divisor, shift=shift)

    def _round(self, node: Node) -> None:
        """The grid of a layer's inputs: a shift, half to even, and a clip."""
        source, factor, limits, _ = graph.before_rounding(node, self.constants)
        known = self._settled(source)
        unit = known.unit * factor / known.divisor
        if not _powers(unit) or factor <= 0:
            refuse(node, "numbers that are rounded to a power of two", f"multiples of {factor:g}")
        shift, value = np.log2(unit).astype(np.int64), self.values[known.value]
        low, high = limits or (-math.inf, math.inf)
        if not shift.any() and low <= value.low and value.high <= high:
            self.known[node] = Known(known.value, np.ones_like(unit), node)
            return
        widest = max(abs(value.low), abs(value.high)) << max(int(shift.max()), 0)
        least, most = (round(max(low, -widest)), round(min(high, widest)))
        op = ops.Shift(module_of(node), known.value, shift, least, most)
        self._hold(node, op, np.ones_like(unit))

    def _map(self, node: Node, affine: Affine) -> None:
        """An affine map: a power of two goes into the unit, a cast that loses nothing changes nothing."""
        known = self._of(affine.source)
        scale, offset = affine.scale.numpy(), affine.scale.numpy() * known.offset + affine.shift.numpy()
        self.known[node] = replace(known, scale=scale * known.scale, offset=offset)
        value = self.values[known.value]
        wide = node.meta["val"].dtype == torch.float64  # a head's bias, on the grid of its sums, may be divided too
        exact = known.base is affine.source and (known.shift is None or wide) and known.divisor == 1
        held = max(abs(value.low), abs(value.high)) <= 2**24
        if known.table is not None or not exact or affine.shift.numpy().any() or not (scale > 0).all():
            return
        over = round(1 / float(scale)) if scale.ndim == 0 else 0
        if held and _powers(scale) and known.shift is None:
            self.known[node] = Known(known.value, known.unit * scale, node)
        elif over and not _powers(scale) and 1 / over == float(scale):  # a mean
            self.known[node] = replace(self._settled(affine.source), base=node, divisor=over)

    def _pool(self, node: Node) -> None:
        source: Any = node.args[0]
        known = self._of(source)
        kernel, stride, padding = graph.pool_sizes(node)
        falls = np.broadcast_to(known.scale < 0, (len(known.unit),))
        op = ops.Pool(module_of(node), known.value, kernel, stride, padding, falls.astype(np.int64))
        base = node if known.base is source else known.base
        self.known[node] = replace(known, value=self.put(op), base=base)

    def _count(self, node: Node) -> None:
        source: Any = node.args[0]
        known, dims = self._settled(source), [*node.args[1]] if len(node.args) > 1 and node.args[1] else []  # pyright: ignore
        shape, row = graph.shape_of(source), self.row_shape(source)
        axes = [int(dim) % len(shape) - len(shape) for dim in dims]
        image = channel_axis(row) == -3 and len({-1, -2} & {*axes}) == 1
        if not axes or -len(shape) in axes or image or channel_axis(row) in axes:
            refuse(node, "a mean or sum over pixels or columns", f"one over dimensions {dims} of {list(shape)}")
        made = ops.Count(module_of(node), known.value, tuple(sorted(axes)))
        number = math.prod(row[axis] for axis in axes) if node.target is aten.mean.dim else 1
        self._hold(node, made, known.unit, divisor=known.divisor * number)
        self._shaped(node, node)

    def _viewed(self, node: Node, known: Known, wanted: tuple[int, ...]) -> Known:
        """In another shape."""
        before = self.values[known.value].shape
        if before == wanted:
            return known
        units = _by_channel(np.broadcast_to(by_channel(known.unit, before), before), wanted)
        if units is None:
            refuse(node, "a view that keeps one unit a channel", f"{list(before)} as {list(wanted)}")
        made = replace(known, value=self.put(ops.View(module_of(node), known.value, wanted)), unit=units)
        if known.table is None:
            return made
        places = _by_channel(np.broadcast_to(by_channel(np.arange(len(known.table)), before), before), wanted)
        return replace(made, table=known.table[places])

    def _shaped(self, node: Node, base: Node) -> None:
        """As the node's own shape, by a view where it is another."""
        known, wanted = self.known[node], self.row_shape(node)
        before = self.values[known.value].shape
        if before != wanted:
            self.known[node] = replace(self._viewed(node, known, wanted), base=base)

    def _view(self, node: Node) -> None:
        source: Any = node.args[0]
        known = self._of(source)
        row = self.row_shape(source)
        wanted = self.row_shape(node)
        if row == wanted:
            self.known[node] = replace(known, base=node) if known.base is source else known
            return
        row = self.values[known.value].shape
        kept = len(row) and len(wanted) and row[channel_axis(row)] == wanted[channel_axis(wanted)]
        if known.base is source or not kept:
            known = self._settled(source, ranks=True)
            self.known[node] = replace(known, base=node)
            self._shaped(node, node)
        else:
            self.known[node] = known
            self._shaped(node, known.base)

    def _take(self, node: Node) -> None:
        source, dim, index = node.args
        known, row = self._settled(source, ranks=True), self.row_shape(source)  # pyright: ignore
        places = self.constants.get(index)  # pyright: ignore
        if places is None or channel_axis(row) != -1 or int(dim) not in (-1, len(row)):  # pyright: ignore
            refuse(node, "columns of rows, by a list of them", f"{node.target} ({node.name})")
        taken = places.numpy()
        table = None if known.table is None else known.table[taken]
        take = ops.Take(module_of(node), known.value, taken)
        self._hold(node, take, known.unit[taken], divisor=known.divisor, table=table)

    def _lut(self, node: Node) -> None:
        """Truth tables, which read their bits where these come from rather than copies of them."""
        source, entries = node.args
        known, table = self._settled(source), self.constants.get(entries)  # pyright: ignore
        if table is None or not bool(((table == 0) | (table == 1)).all()):
            refuse(node, "truth tables of 0 and 1", "others: harden the network")
        value = self.values[known.value]
        if (value.low, value.high) != (0, 1) or known.divisor != 1 or (known.unit != 1).any():
            refuse(node, "truth tables of bits", f"{source}")
        tables = table.numpy().astype(np.int64)
        shape = (len(tables), int(math.log2(tables.shape[1])))
        number, index = known.value, np.arange(math.prod(shape))
        while number and isinstance(op := self.ops[number - 1], (ops.View, ops.Take)):
            if self.values[op.x].shape[:-1] != value.shape[:-2]:
                break
            index = op.index[index] if isinstance(op, ops.Take) else index
            number = op.x
        self._hold(node, ops.LUT(module_of(node), number, index.reshape(shape), tables), np.ones(len(tables)))

    def _add(self, node: Node, a: Node, b: Node) -> None:
        if "nested" in node.meta:
            self._levels(node, a, b)
            return
        one, other = self._settled(a), self._settled(b)
        if one.divisor != other.divisor:
            refuse(node, "a sum of means of as many bits", f"means of {one.divisor} and {other.divisor}")
        if node.kwargs or len(node.args) > 2:
            refuse(node, "a plain sum of two values", f"{node.args} {node.kwargs}")
        if len(one.unit) != len(other.unit):
            refuse(node, "two values of one shape", f"{graph.shape_of(a)} and {graph.shape_of(b)}")
        unit = np.minimum(one.unit, other.unit)
        left, right = (np.log2(part.unit / unit).astype(np.int64) for part in (one, other))
        op = ops.Add(module_of(node), one.value, other.value, left, right)
        self._hold(node, op, unit, divisor=one.divisor)

    def _levels(self, node: Node, a: Node, b: Node) -> None:
        """The steps of one activation with several levels, as one."""
        known = self.known[a]
        one, other = (self.ops[self.known[n].value - 1] for n in (a, b))
        assert isinstance(one, ops.Steps)
        assert isinstance(other, ops.Steps)
        value = self.values[one.x]
        sign = np.where((one.sign == -1) | (other.sign == -1), -1, 1)
        both = []
        for step in (one, other):  # where it is the same for all inputs, its sign says nothing
            never = step.thresholds > value.high
            constant = np.where(never, 1 - value.low, -value.high)
            both.append(np.where((sign != step.sign)[:, None], constant, step.thresholds))
        op = ops.Steps(module_of(node), one.x, np.concatenate(both, 1), sign, 0, 1)
        self._hold(node, op, known.unit)


def _by_channel(numbers: Array, shape: tuple[int, ...]) -> Array | None:
    """The one number of each channel, of a number for each place; None where a channel has several."""
    each = np.moveaxis(numbers.reshape(shape), channel_axis(shape), 0).reshape(shape[channel_axis(shape)], -1)
    return None if (each != each[:, :1]).any() else each[:, 0].copy()


def _powers(numbers: Array) -> bool:
    """Whether all are powers of two, or minus these."""
    return bool((np.frexp(np.abs(numbers))[0] == 0.5).all())


def _relabelled(op: ops.Steps, scale: float, shift: float) -> tuple[ops.Steps | None, float]:
    """Steps whose levels are scale level + shift, and their unit; None where no unit has them."""
    first, gap = scale * op.least + shift, scale * op.unit
    if gap < 0:  # the levels in the other order: what is not reached counts
        reached = op.thresholds.shape[1]
        op = replace(op, thresholds=1 - op.thresholds[:, ::-1], sign=-op.sign)
        first, gap = first + gap * reached, -gap
    whole, unit = graph.on_powers(torch.tensor([[first, gap]]).double())
    least, between = whole[0].tolist()
    held = bool((whole == whole.round()).all())
    return replace(op, least=int(least), unit=int(between)) if held else None, float(unit)
