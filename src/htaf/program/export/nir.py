"""Spiking networks as NIR graphs (Neuromorphic Intermediate Representation; Pedersen et al. 2024).

NIR's neurons, stepped by Euler's method with a time step dt from v = 0, are those of htaf with a hard reset:

    IF    v <- v + dt r x                           IF:  r = 1 / dt
    LIF   v <- v + (dt / tau) (v_leak - v + r x)    LIF: tau = tau_steps dt, r = 1, or tau_steps without decay_input
    z = v > v_threshold, then v = v_reset           v_threshold: the float32 just below ours, since here v >= threshold

A NIR graph says what one time step does: time is no dimension of it, and edges that meet add what they carry.
"""

from __future__ import annotations

import io
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch._ops import OpOverload
from torch.fx import Node
from torch.fx.node import map_arg

from htaf._ground.files import check_output, write_atomic
from htaf.program.export.program import Example, ExportError, exported, require
from htaf.transform.convert.exported import cause_of

aten = torch.ops.aten
DT = 1e-4  # seconds a time step, as snnTorch and SpikingJelly take it
# Operators whose result is their input, or shares its memory (a dropout in eval mode)
ALIASES = {
    aten.detach.default, aten.detach_.default, aten.alias.default, aten.contiguous.default, aten.dropout.default,
    aten.feature_dropout.default,
}  # fmt: skip
MOVES = {aten.flatten.using_ints, aten.unflatten.int, aten.view.default, aten.reshape.default}
OPERATORS = [torch.ops.htaf.spikes.default, torch.ops.htaf.heaviside.default, torch.ops.htaf.levels.default]
SAME = ALIASES | {aten.clone.default, aten.lift_fresh_copy.default}
POOLS = (aten.avg_pool2d.default, aten.adaptive_avg_pool2d.default)


def to_nir(model: nn.Module, example: Example, path: str | Path, *, dt: float = DT) -> None:
    """Write a hardened spiking model as a NIR graph (HDF5, as `nir.read` reads it).

    The input, a static image, is given at every time step; the model's output is the mean of the graph's over the time
    steps. Their number and dt stand in the graph's metadata as `steps` and `dt`. Batch norms are folded into the
    convolutions and linear layers before them. What can be written: convolutions, linear and batch norm layers, exact
    IF and LIF neurons with a hard reset, steps, average pooling without borders, flattening, sums (of SEW blocks with
    connect "add"), products with constants. The numbers are those of the model up to the rounding of float32: a
    potential within rounding of the threshold may fire the other way.

    Args:
        model: hardened; not changed. Written as in eval mode.
        example: inputs [rows, ...].
        path: of the file, which is written whole or not at all.
        dt: seconds that a time step stands for.

    Raises:
        ExportError: the model is not hardened, or holds what NIR cannot say exactly (a soft reset, max pooling,
            products of spikes: "and", "iand"); or nir is not installed.

    Source: arXiv:2311.14641.
    """
    check_output(Path(path), flag="path")
    nir = require("nir")
    if not 0 < dt < math.inf:
        raise ExportError(f"dt must be > 0 seconds, got {dt}")
    program = exported(model, example, OPERATORS)
    walk = _Walk(nir, program, dt)
    try:
        graph, buffer = walk.written(), io.BytesIO()
        nir.write(buffer, graph)
    except ExportError as error:
        raise ExportError(f"{type(model).__name__} cannot be written as NIR: {error}") from None
    except (ValueError, AssertionError, NotImplementedError) as error:  # nir's own checks
        raise ExportError(f"{type(model).__name__} cannot be written as NIR: {cause_of(error)}") from None
    write_atomic(Path(path), buffer.getvalue())


class _Walk:
    """From the nodes of an exported program to those of a NIR graph."""

    def __init__(self, nir: Any, program: Any, dt: float) -> None:
        self.nir, self.program, self.dt = nir, program, dt
        self.graph = Graph(nir)

    def written(self) -> Any:
        graph, signature = self.graph, self.program.graph_signature
        state = {**self.program.state_dict, **self.program.constants}
        kept = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
        kept |= signature.inputs_to_lifted_tensor_constants
        if len(signature.user_inputs) != 1 or len(signature.user_outputs) != 1:
            raise ExportError("expected one input and one output, got several")
        for node in self.program.graph.nodes:
            if node.op == "placeholder" and node.name in kept:
                graph.values[node] = state[kept[node.name]]
            elif node.op == "placeholder":
                given = node.meta["val"]
                if given.dtype != torch.float32:
                    raise ExportError(f"expected a network of float32, got an input of {given.dtype}")
                shape = tuple(int(size) for size in given.shape[1:])
                graph.add("input", self.nir.Input(input_type={"input": np.array(shape)}), ())
                graph.values[node] = Value(("input",), "static", shape)
            elif node.op == "call_function":
                graph.values[node] = made = self._made(node)
                if isinstance(made, Value) and tuple(node.meta["val"].shape[made.lead :]) != made.shape:
                    raise ExportError(f"{node.name}: expected rows of {list(made.shape)}, got other sizes")
            elif node.op == "output":
                value = graph.value(node.args[0][0])
                if value.time in ("split", "merged"):
                    raise ExportError("expected an output averaged over time, got one of every time step")
                graph.add("output", self.nir.Output(output_type={"output": np.array(value.shape)}), value.sources)
        metadata = {"dt": self.dt, "steps": graph.steps or 1, "readout": "mean of the output over the steps"}
        return self.nir.NIRGraph(graph.nodes, graph.edges, metadata=metadata)

    def _made(self, node: Node) -> Value | Tensor | None:
        graph, target, args = self.graph, node.target, node.args
        inputs = [graph.values[used] for used in node.all_input_nodes]
        ours = any(isinstance(value, Value) for value in inputs)
        if isinstance(target, OpOverload) and target._schema.is_mutable and target is not aten.detach_.default:
            if target is not aten.add_.Tensor or not alone(node.all_input_nodes[0]):
                raise ExportError(f"{node.name}: expected values that do not change once made, got {target}")
        elif not node.users:  # a check of a size
            return None
        if not isinstance(node.meta.get("val"), Tensor):
            if ours and isinstance(node.meta.get("val"), (tuple, list)):
                raise ExportError(f"{node.name}: expected what NIR can say exactly, got {target} (see docs/export.md)")
            return None
        if not ours:
            return graph.constant(node)
        if target in SAME and args[2:3] != (True,):  # a dropout that stays on in eval mode
            return graph.value(args[0])
        if target in (aten.conv2d.default, aten.conv2d.padding):
            return self._convolution(node)
        if target is aten.linear.default:
            return self._linear(node)
        if target is aten.batch_norm.default:
            return self._norm(node)
        if target is torch.ops.htaf.spikes.default:
            return self._neuron(node)
        if target is torch.ops.htaf.levels.default:
            levels = len(args[1]) if isinstance(args[1], list) else args[1]
            if levels != 1:
                raise ExportError(f"{node.name}: expected steps with levels=1 for NIR, got levels={levels}: use ONNX")
        if target in OPERATORS[1:] and not args[-1]:
            value = graph.value(args[0])
            if value.time == "mean":
                raise ExportError(f"{node.name}: expected steps before the mean over time, got one after it")
            threshold: Any = args[1][0] if isinstance(args[1], list) else 0.0
            return graph.after(value, node, step(self.nir, value.shape, threshold))
        if target in (aten.add.Tensor, aten.add_.Tensor) and len(args) == 2 and not node.kwargs:
            return self._sum(node)
        if target in (aten.mul.Tensor, aten.div.Tensor):
            return self._scaled(node)
        if target in POOLS:
            return self._pool(node)
        if target is aten.mean.dim:
            return self._mean(node)
        return graph.reshaped(node)

    def _convolution(self, node: Node) -> Value:
        x, weight, bias, stride, padding, dilation, groups = _filled(
            node.args, (None, None, None, [1, 1], [0, 0], [1, 1], 1)
        )
        value = self.graph.value(x)
        layer, shape = convolution(
            self.nir, value.shape, self.graph.tensor(weight), None if bias is None else self.graph.tensor(bias),
            stride=stride, padding=padding, dilation=dilation, groups=groups,
        )  # fmt: skip
        return self.graph.after(value, node, layer, shape)

    def _linear(self, node: Node) -> Value:
        x, weight, bias = _filled(node.args, (None, None, None))
        value, weight = self.graph.value(x), self.graph.tensor(weight)
        if len(value.shape) != 1:
            raise ExportError(f"expected a linear layer over features, got one over {list(value.shape)}")
        layer = affine(self.nir, weight, None if bias is None else self.graph.tensor(bias))
        return self.graph.after(value, node, layer, (len(weight),))

    def _norm(self, node: Node) -> Value:
        """Folded into the layer before it where that has no other reader; else a layer of its own."""
        graph, (x, weight, bias, mean, variance, training) = self.graph, node.args[:6]
        if training:
            raise ExportError(f"{node.name}: expected a batch norm with running statistics, got one of each batch")
        value, eps = graph.value(x), cast(float, node.args[7])
        mean, variance = graph.tensor(mean).double(), graph.tensor(variance).double()
        scale = (variance + eps).rsqrt() * (1 if weight is None else graph.tensor(weight).double())
        shift = (0 if bias is None else graph.tensor(bias).double()) - mean * scale
        (source, *others), maker = value.sources, graph.makers.get(value.sources[0])
        layer: Any = graph.nodes[source]
        foldable = not others and isinstance(layer, (self.nir.Conv2d, self.nir.Affine))
        if foldable and isinstance(x, Node) and maker is not None and alone(x, maker):
            fold(layer, scale, shift)
            return value
        return graph.after(value, node, norm(self.nir, value.shape, scale, shift))

    def _neuron(self, node: Node) -> Value:
        x, leak, gain, threshold, soft = node.args
        value = self.graph.value(x)
        if value.time != "split":
            raise ExportError("expected neurons over [T, N, ...], got another order of time")
        if soft:
            raise ExportError("expected neurons with a hard reset, got a soft one: NIR's neurons are set to v_reset")
        leak, gain, threshold = (float(cast(float, number)) for number in (leak, gain, threshold))
        layer = neuron(self.nir, value.shape, leak, gain, threshold, self.dt)
        return self.graph.after(value, node, layer)

    def _sum(self, node: Node) -> Value:
        a, b = (self.graph.given(arg) for arg in node.args)
        if not isinstance(a, Value) or not isinstance(b, Value):
            raise ExportError(f"{node.name}: expected a sum of two values of the network, got one with a constant")
        if (a.time, a.shape) != (b.time, b.shape):
            raise ExportError(f"{node.name}: expected a sum of equal shapes, got {a.shape} and {b.shape}")
        sources = list(a.sources)
        for source in b.sources:
            if source in sources:  # one edge carries a value once
                one = self.nir.Scale(scale=np.ones(b.shape, np.float32))
                source = self.graph.after(replace(b, sources=(source,)), node, one).sources[0]
            sources.append(source)
        return replace(a, sources=tuple(sources))

    def _scaled(self, node: Node) -> Value:
        a, b = (self.graph.given(arg) for arg in node.args)
        value, other = (a, b) if isinstance(a, Value) else (b, a)
        if not isinstance(value, Value) or not isinstance(other, (int, float, Tensor)):
            raise ExportError(f"{node.name}: expected products with constants, got one of two values of the network")
        factor = torch.as_tensor(other, dtype=torch.float64)
        if node.target is aten.div.Tensor:
            if value is not a:
                raise ExportError(f"{node.name}: expected a value over a constant, got the inverse")
            factor = 1 / factor
        if factor.ndim > len(value.shape):
            raise ExportError(f"{node.name}: expected one constant for all rows, got {list(factor.shape)}")
        scale = self.nir.Scale(scale=array(factor.expand(value.shape)))
        return self.graph.after(value, node, scale)

    def _pool(self, node: Node) -> Value:
        value = self.graph.value(node.args[0])
        if node.target is aten.adaptive_avg_pool2d.default:
            sizes, parts = value.shape[-2:], pair(node.args[1])
            if any(size % part for size, part in zip(sizes, parts, strict=True)):
                raise ExportError(f"expected pooling to parts of equal sizes, got {sizes} to {parts}")
            height, width = (size // part for size, part in zip(sizes, parts, strict=True))
            return self._average(value, node, (height, width))
        _, kernel, stride, padding, ceil, _, divisor = _filled(node.args, (None, None, [], [0, 0], False, True, None))
        if ceil or divisor is not None or any(pair(padding)):  # NIR does not say what a border counts
            raise ExportError("expected average pooling over whole windows, got other borders")
        return self._average(value, node, pair(kernel), pair(stride or kernel))

    def _average(
        self, value: Value, node: Node, kernel: tuple[int, int], stride: tuple[int, int] | None = None
    ) -> Value:
        layer, shape = average(self.nir, value.shape, kernel, stride or kernel)
        return self.graph.after(value, node, layer, shape)

    def _mean(self, node: Node) -> Value:
        """Over pixels, over time, or both."""
        x, dims, keep = _filled(node.args, (None, None, False))
        value = self.graph.value(x)
        if not dims or node.kwargs:
            raise ExportError(f"{node.name}: expected a mean over pixels or time, got one over everything")
        rank = len(value.shape) + value.lead
        over = {d % rank for d in dims}
        if value.time == "split" and 0 in over:
            over, value = {d - 1 for d in over - {0}}, replace(value, time="mean")
            if keep:
                raise ExportError(f"{node.name}: expected a mean that takes time away, got keepdim")
        elif value.time == "split":
            over = {d - 1 for d in over}
        if not over:
            return value
        if over != {2, 3} or len(value.shape) != 3:
            raise ExportError(f"{node.name}: expected a mean over pixels or time, got one over {sorted(dims)}")
        pooled = self._average(value, node, pair(value.shape[1:]))
        return pooled if keep else self.graph.flattened(pooled, node)


def _filled(args: tuple[Any, ...], defaults: tuple[Any, ...]) -> list[Any]:
    """An operator's arguments, whose last ones a graph may leave out."""
    return [*args, *defaults[len(args) :]]


# ---- the graph while it is made ----


@dataclass(frozen=True)
class Value:
    """Nodes whose outputs add up to a value, and how time lies in it.

    Attributes:
        sources: names of nodes.
        time: "static": the same at every step; "split": [T, N, ...]; "merged": [T N, ...]; "mean": averaged, which the
            graph's reader does last, so that only linear layers may follow.
        shape: of one row at one time step.
    """

    sources: tuple[str, ...]
    time: Literal["static", "split", "merged", "mean"]
    shape: tuple[int, ...]

    @property
    def lead(self) -> int:
        """Dimensions of a tensor before those of a row."""
        return 2 if self.time == "split" else 1


class Graph:
    """Nodes and edges of NIR beside the values of an exported program."""

    def __init__(self, nir: Any) -> None:
        self.nir = nir
        self.nodes: dict[str, Any] = {}
        self.edges: list[tuple[str, str]] = []
        self.values: dict[Node, Value | Tensor | None] = {}  # None: a size, or what is made of sizes
        self.makers: dict[str, Node] = {}
        self.steps: int | None = None

    def add(self, name: str, layer: Any, sources: tuple[str, ...]) -> None:
        self.nodes[name] = layer
        self.edges += [(source, name) for source in sources]

    def after(self, value: Value, node: Node, layer: Any, shape: tuple[int, ...] | None = None) -> Value:
        """A node of NIR behind a value; its rows have this shape, None: the same."""
        name = f"{node.name}_{len(self.nodes)}"
        self.add(name, layer, value.sources)
        self.makers[name] = node
        return replace(value, sources=(name,), shape=value.shape if shape is None else shape)

    def flattened(self, value: Value, node: Node) -> Value:
        rank = len(value.shape)  # from behind: snnTorch counts the batch among the dimensions
        flatten = self.nir.Flatten(input_type={"input": np.array(value.shape)}, start_dim=-rank, end_dim=-1)
        return self.after(value, node, flatten, (math.prod(value.shape),))

    def given(self, argument: Any) -> Any:
        """A node's value; anything else is itself."""
        return self.values[argument] if isinstance(argument, Node) else argument

    def value(self, argument: Any) -> Value:
        value = self.given(argument)
        if not isinstance(value, Value):
            raise ExportError(f"{argument}: expected a value of the network, got a constant")
        return value

    def tensor(self, argument: Any) -> Tensor:
        tensor = self.given(argument)
        if not isinstance(tensor, Tensor):
            raise ExportError(f"{argument}: expected constant weights, got none or some that depend on the input")
        return tensor.detach().float()

    def constant(self, node: Node) -> Tensor | None:
        """What a node makes of constants alone; None where sizes of the batch are among them."""
        if any(self.values[used] is None for used in node.all_input_nodes):
            return None
        args, kwargs = (_filled_in(part, self.values) for part in (node.args, node.kwargs))
        with torch.no_grad():
            made = cast(Any, node.target)(*args, **kwargs)
        return made if isinstance(made, Tensor) else None

    def reshaped(self, node: Node) -> Value:
        """An operator that says anew where time and rows lie, or flattens what a row holds."""
        value, used = self.value(node.args[0]), node.all_input_nodes[0]
        before, after = tuple(used.meta["val"].shape), tuple(node.meta["val"].shape)
        if node.target is aten.expand.default and value.time == "static" and after[1:] == before:
            self._time(after[0])
            return replace(value, time="split")
        if node.target in MOVES:
            if after == before:
                return value
            if value.time == "split" and after[1:] == before[2:]:
                return replace(value, time="merged")
            if value.time == "merged" and after[2:] == value.shape and self._is_time(after[0]):
                return replace(value, time="split")
            if after[: value.lead] == before[: value.lead] and after[value.lead :] == (math.prod(value.shape),):
                return self.flattened(value, node)
        raise ExportError(f"{node.name}: expected what NIR can say exactly, got {node.target} (see docs/export.md)")

    def _is_time(self, size: Any) -> bool:
        return isinstance(size, int) and size == self.steps  # a size of the batch is a SymInt

    def _time(self, steps: Any) -> None:
        if not isinstance(steps, int) or self.steps not in (None, steps):
            raise ExportError(f"expected one number of time steps, got {self.steps} and {steps}")
        self.steps = steps


def _filled_in(arguments: Any, values: Any) -> Any:
    return map_arg(arguments, lambda used: values[used])


def _readers(node: Node) -> list[Node]:
    """Nodes that take this one's numbers, not its sizes alone."""
    return [user for user in node.users if user.op == "output" or not _is_size(user)]


def _is_size(node: Node) -> bool:
    return not isinstance(node.meta.get("val"), (Tensor, tuple, list))


def alone(node: Node, maker: Node | None = None) -> bool:
    """Whether what this node makes has one reader, as what it shares memory with up to its maker has."""
    return all(len(_readers(one)) == 1 for one in _upwards(node, maker))


def _upwards(node: Node, maker: Node | None) -> Iterator[Node]:
    """The node and those it is an alias of; to the maker, through whatever takes one value."""
    while True:
        yield node
        if node is maker or node.op != "call_function" or not node.all_input_nodes:
            return
        if maker is None and node.target not in ALIASES | MOVES | {aten.expand.default}:
            return
        node = node.all_input_nodes[0]


# ---- nodes of NIR from the numbers of PyTorch's layers ----


def pair(value: Any) -> tuple[int, int]:
    values = [value] if isinstance(value, int) else list(value)
    return int(values[0]), int(values[-1])


def array(tensor: Tensor) -> np.ndarray:
    return np.ascontiguousarray(tensor.detach().float().numpy())


def convolution(
    nir: Any, shape: Sequence[int], weight: Tensor, bias: Tensor | None, *, stride: Any = (1, 1),
    padding: Any = (0, 0), dilation: Any = (1, 1), groups: int = 1,
) -> tuple[Any, tuple[int, ...]]:  # fmt: skip
    """Of images [channels, height, width]; and the shape of its output."""
    sizes = weight.shape[2:]
    if isinstance(padding, str):
        if padding == "same" and (any(s != 1 for s in stride) or any(k % 2 == 0 for k in sizes)):
            raise ExportError("expected a padding of equal sides, got 'same' over an even kernel")
        sides = [d * (k - 1) // 2 for d, k in zip(pair(dilation), sizes, strict=True)]
        padding = sides if padding == "same" else (0, 0)
    if len(shape) != 3 or len(set(sizes)) != 1:  # nir infers sizes from one side of a kernel
        raise ExportError(f"expected images and square kernels, got {list(shape)} and {list(weight.shape)}")
    layer = nir.Conv2d(
        input_shape=tuple(shape[1:]), weight=array(_ungrouped(weight, groups)), stride=pair(stride),
        padding=pair(padding), dilation=pair(dilation), groups=1,
        bias=array(torch.zeros(len(weight)) if bias is None else bias),
    )  # fmt: skip
    return layer, tuple(int(size) for size in layer.output_type["output"])


def affine(nir: Any, weight: Tensor, bias: Tensor | None) -> Any:
    return nir.Affine(weight=array(weight), bias=array(torch.zeros(len(weight)) if bias is None else bias))


def norm(nir: Any, shape: Sequence[int], scale: Tensor, shift: Tensor) -> Any:
    """y = scale x + shift, of channels [channels] float64."""
    if len(shape) == 1:
        return affine(nir, scale.diag(), shift)
    return convolution(nir, shape, scale.diag()[..., None, None], shift)[0]


def fold(layer: Any, scale: Tensor, shift: Tensor) -> None:
    """The same behind a Conv2d or an Affine, as its own weights."""
    along = scale.view(-1, *(1,) * (layer.weight.ndim - 1)).numpy()
    layer.weight = (layer.weight * along).astype(np.float32)
    layer.bias = (layer.bias * scale.numpy() + shift.numpy()).astype(np.float32)


def neuron(nir: Any, shape: Sequence[int], leak: float, gain: float, threshold: float, dt: float) -> Any:
    """v <- leak v + gain x, with a hard reset to 0."""

    def all_(number: Any) -> np.ndarray:
        return np.full(tuple(shape), number, dtype=np.float32)

    shared = {"v_threshold": all_(below(threshold)), "v_reset": all_(0)}
    if leak == 1:
        return nir.IF(r=all_(gain / dt), **shared)
    steps = 1 / (1 - leak)
    return nir.LIF(tau=all_(steps * dt), r=all_(gain * steps), v_leak=all_(0), **shared)


def step(nir: Any, shape: Sequence[int], threshold: float) -> Any:
    return nir.Threshold(threshold=np.full(tuple(shape), below(threshold)))


def below(threshold: float) -> np.float32:
    """x > this where x >= threshold, for float32."""
    return np.nextafter(np.float32(threshold), np.float32(-np.inf))


def average(
    nir: Any, shape: Sequence[int], kernel: tuple[int, int], stride: tuple[int, int]
) -> tuple[Any, tuple[int, ...]]:
    """Of images [channels, height, width]; and the shape of its output."""
    if len(shape) != 3:
        raise ExportError(f"expected average pooling over images, got {list(shape)}")
    pool = nir.AvgPool2d(kernel_size=np.array(kernel), stride=np.array(stride), padding=np.array((0, 0)))
    sizes = [(size - k) // t + 1 for size, k, t in zip(shape[1:], kernel, stride, strict=True)]
    return pool, (shape[0], *sizes)


def _ungrouped(weight: Tensor, groups: int) -> Tensor:
    """The dense weights of a grouped convolution, whose sizes nir infers wrongly."""
    if groups == 1:
        return weight
    parts = []
    for i, part in enumerate(weight.chunk(groups)):
        width = part.shape[1]
        parts.append(nn.functional.pad(part, (0, 0, 0, 0, i * width, (groups - 1 - i) * width)))
    return torch.cat(parts)
