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
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from htaf._files import write_atomic
from htaf.export.program import Example, ExportError, exported, first_line, require

DT = 1e-4  # seconds a time step, as snnTorch and SpikingJelly take it

aten = torch.ops.aten
OPERATORS = [torch.ops.htaf.spikes.default, torch.ops.htaf.heaviside.default]
SAME = {
    aten.detach.default, aten.clone.default, aten.contiguous.default, aten.dropout.default, aten.alias.default,
    aten.detach_.default, aten.lift_fresh_copy.default, aten.feature_dropout.default,
}  # fmt: skip
POOLS = (aten.avg_pool2d.default, aten.adaptive_avg_pool2d.default)


def to_nir(model: nn.Module, example: Example, path: str | Path, *, dt: float = DT) -> None:
    """Write a hardened spiking model as a NIR graph (HDF5, as `nir.read` reads it).

    The input, a static image, is given at every time step; the model's output is the mean of the graph's over the time
    steps. Their number and dt stand in the graph's metadata as `steps` and `dt`. Batch norms are folded into the
    convolutions and linear layers before them. What can be written: convolutions, linear and batch norm layers, exact
    IF and LIF neurons with a hard reset, steps, average pooling, flattening, sums (of SEW blocks with connect "add"),
    products with constants.

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
    nir = require("nir")
    if not 0 < dt < math.inf:
        raise ExportError(f"dt must be > 0 seconds, got {dt}")
    program = exported(model, example, OPERATORS)
    walk = _Walk(nir, program, dt)
    try:
        graph, buffer = walk.graph(), io.BytesIO()
        nir.write(buffer, graph)
    except ExportError as error:
        raise ExportError(f"{type(model).__name__} cannot be written as NIR: {error}") from None
    except (ValueError, AssertionError, NotImplementedError) as error:  # nir's own checks
        raise ExportError(f"{type(model).__name__} cannot be written as NIR: {first_line(error)}") from None
    write_atomic(Path(path), buffer.getvalue())


@dataclass(frozen=True)
class _Value:
    """Nodes whose outputs add up to a value, and how time lies in it: not yet, [T, N], [T N], or averaged."""

    sources: tuple[str, ...]
    time: Literal["static", "split", "merged", "mean"]
    shape: tuple[int, ...]  # of one row at one time step


class _Walk:
    """From the nodes of an exported program to those of a NIR graph."""

    def __init__(self, nir: Any, program: Any, dt: float) -> None:
        self.nir, self.program, self.dt = nir, program, dt
        self.nodes: dict[str, Any] = {}
        self.edges: list[tuple[str, str]] = []
        self.values: dict[Any, Any] = {}  # a _Value, or the tensor of a constant
        self.steps: int | None = None

    def graph(self) -> Any:
        state = {**self.program.state_dict, **self.program.constants}
        signature = self.program.graph_signature
        kept = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
        kept |= signature.inputs_to_lifted_tensor_constants
        if len(signature.user_inputs) != 1 or len(signature.user_outputs) != 1:
            raise ExportError("expected one input and one output, got several")
        for node in self.program.graph.nodes:
            if node.op == "placeholder" and node.name in kept:
                self.values[node] = state[kept[node.name]]
            elif node.op == "placeholder":
                shape = self._shape(node, 1)
                self._add("input", self.nir.Input(input_type={"input": np.array(shape)}), ())
                self.values[node] = _Value(("input",), "static", shape)
            elif node.op == "call_function":
                self.values[node] = self._made(node)
            elif node.op == "output":
                (result,) = node.args[0]
                value = self._value(result)
                if value.time in ("split", "merged"):
                    raise ExportError("expected an output averaged over time, got one of every time step")
                output = self.nir.Output(output_type={"output": np.array(value.shape)})
                self._add("output", output, value.sources)
        metadata = {"dt": self.dt, "steps": self.steps or 1, "readout": "mean of the output over the steps"}
        return self.nir.NIRGraph(self.nodes, self.edges, metadata=metadata)

    def _made(self, node: Any) -> Any:
        target, args = node.target, node.args
        if not node.users or not isinstance(node.meta.get("val"), Tensor):  # a size, or a check of one
            return None
        inputs = [self.values[a] for a in node.all_input_nodes]
        if not any(isinstance(value, _Value) for value in inputs):
            return self._constant(node)
        if target in SAME:
            return self.values[args[0]]
        if target in (aten.conv2d.default, aten.conv2d.padding):
            return self._convolution(node)
        if target is aten.linear.default:
            return self._linear(node)
        if target is aten.batch_norm.default:
            return self._norm(node)
        if target is torch.ops.htaf.spikes.default:
            return self._neuron(node)
        if target is torch.ops.htaf.heaviside.default and not args[1]:
            value = self._value(args[0])
            below = np.nextafter(np.zeros(value.shape, np.float32), np.float32(-1))
            return self._after(value, node, self.nir.Threshold(threshold=below))
        if target in (aten.add.Tensor, aten.add_.Tensor) and len(inputs) in (1, 2) and not node.kwargs:
            return self._sum(node)
        if target in (aten.mul.Tensor, aten.div.Tensor):
            return self._scaled(node)
        if target in POOLS:
            return self._pool(node)
        if target is aten.mean.dim:
            return self._mean(node)
        return self._reshaped(node)

    # ---- layers ----

    def _convolution(self, node: Any) -> _Value:
        x, weight, bias, stride, padding, dilation, groups = _filled(
            node.args, (None, None, None, [1, 1], [0, 0], [1, 1], 1)
        )
        value, weight = self._value(x), self._tensor(weight)
        if isinstance(padding, str):
            if padding == "same" and (any(s != 1 for s in stride) or any(k % 2 == 0 for k in weight.shape[2:])):
                raise ExportError("expected a padding of equal sides, got 'same' over an even kernel")
            sides = [d * (k - 1) // 2 for d, k in zip(dilation, weight.shape[2:], strict=True)]
            padding = sides if padding == "same" else [0, 0]
        if len(value.shape) != 3 or len(set(weight.shape[2:])) != 1:  # nir infers sizes from one side of a kernel
            raise ExportError(f"expected images and square kernels, got {list(value.shape)} and {list(weight.shape)}")
        bias = torch.zeros(len(weight)) if bias is None else self._tensor(bias)
        layer = self.nir.Conv2d(
            input_shape=value.shape[1:], weight=_array(_ungrouped(weight, groups)), stride=_pair(stride),
            padding=_pair(padding), dilation=_pair(dilation), groups=1, bias=_array(bias),
        )  # fmt: skip
        return self._after(value, node, layer)

    def _linear(self, node: Any) -> _Value:
        x, weight, bias = _filled(node.args, (None, None, None))
        value, weight = self._value(x), self._tensor(weight)
        if len(value.shape) != 1:
            raise ExportError(f"expected a linear layer over features, got one over {list(value.shape)}")
        bias = torch.zeros(len(weight)) if bias is None else self._tensor(bias)
        return self._after(value, node, self.nir.Affine(weight=_array(weight), bias=_array(bias)))

    def _norm(self, node: Any) -> _Value:
        """Folded into the layer before it where that has no other reader; else a layer of its own."""
        x, weight, bias, mean, variance = node.args[:5]
        eps, value = node.args[7], self._value(node.args[0])
        mean, variance = self._tensor(mean).double(), self._tensor(variance).double()
        scale = (variance + eps).rsqrt() * (1 if weight is None else self._tensor(weight).double())
        shift = (0 if bias is None else self._tensor(bias).double()) - mean * scale
        layer = self.nodes[value.sources[0]] if len(value.sources) == 1 else None
        if len(x.users) == 1 and isinstance(layer, (self.nir.Conv2d, self.nir.Affine)) and x.op == "call_function":
            along = scale.view(-1, *(1,) * (layer.weight.ndim - 1)).numpy()
            layer.weight = (layer.weight * along).astype(np.float32)
            layer.bias = (layer.bias * scale.numpy() + shift.numpy()).astype(np.float32)
            return value
        if len(value.shape) == 1:
            return self._after(value, node, self.nir.Affine(weight=_array(scale.diag()), bias=_array(shift)))
        own = self.nir.Conv2d(
            input_shape=value.shape[1:], weight=_array(scale.diag()[..., None, None]), stride=(1, 1), padding=(0, 0),
            dilation=(1, 1), groups=1, bias=_array(shift),
        )  # fmt: skip
        return self._after(value, node, own)

    def _neuron(self, node: Any) -> _Value:
        x, leak, gain, threshold, soft = node.args
        value = self._value(x)
        if value.time != "split":
            raise ExportError("expected neurons over [T, N, ...], got another order of time")
        if soft:
            raise ExportError("expected neurons with a hard reset, got a soft one: NIR's neurons are set to v_reset")
        below = np.nextafter(np.float32(threshold), np.float32(-np.inf))

        def all_(number: Any, dtype: Any = np.float32) -> np.ndarray:
            return np.full(value.shape, number, dtype=dtype)

        if leak == 1:
            neuron = self.nir.IF(r=all_(gain / self.dt), v_threshold=all_(below), v_reset=all_(0))
        else:
            steps = 1 / (1 - leak)
            neuron = self.nir.LIF(
                tau=all_(steps * self.dt), r=all_(gain * steps), v_leak=all_(0), v_threshold=all_(below),
                v_reset=all_(0),
            )  # fmt: skip
        return self._after(value, node, neuron)

    def _sum(self, node: Any) -> _Value:
        a, b = (self.values.get(arg) if isinstance(arg, torch.fx.Node) else None for arg in node.args)
        if not isinstance(a, _Value) or not isinstance(b, _Value):
            raise ExportError(f"{node.name}: expected a sum of two values of the network, got one with a constant")
        if (a.time, a.shape) != (b.time, b.shape):
            raise ExportError(f"{node.name}: expected a sum of equal shapes, got {a.shape} and {b.shape}")
        sources = list(a.sources)
        for source in b.sources:
            if source in sources:  # one edge carries a value once
                one = np.ones(b.shape, np.float32)
                source = self._after(replace(b, sources=(source,)), node, self.nir.Scale(scale=one)).sources[0]
            sources.append(source)
        return replace(a, sources=tuple(sources))

    def _scaled(self, node: Any) -> _Value:
        values = [self.values[arg] if isinstance(arg, torch.fx.Node) else arg for arg in node.args]
        if all(isinstance(value, _Value) for value in values):
            raise ExportError(f"{node.name}: expected products with constants, got one of two values of the network")
        value, other = values if isinstance(values[0], _Value) else values[::-1]
        factor = torch.as_tensor(other, dtype=torch.float64)
        if node.target is aten.div.Tensor:
            if not isinstance(values[0], _Value):
                raise ExportError(f"{node.name}: expected a value over a constant, got the inverse")
            factor = 1 / factor
        if factor.ndim > len(value.shape):
            raise ExportError(f"{node.name}: expected one constant for all rows, got {list(factor.shape)}")
        return self._after(value, node, self.nir.Scale(scale=_array(factor.expand(value.shape))))

    def _pool(self, node: Any) -> _Value:
        value = self._value(node.args[0])
        height, width = value.shape[-2:]
        if node.target is aten.adaptive_avg_pool2d.default:
            rows, columns = _pair(node.args[1])
            if height % rows or width % columns:
                raise ExportError(f"expected pooling to parts of equal sizes, got {height} x {width} to {node.args[1]}")
            return self._average(value, node, (height // rows, width // columns))
        _, kernel, stride, padding, ceil, counted, divisor = _filled(
            node.args, (None, None, [], [0, 0], False, True, None)
        )
        if ceil or divisor is not None or (any(_pair(padding)) and not counted):
            raise ExportError("expected average pooling over whole windows, got other borders")
        return self._average(value, node, _pair(kernel), _pair(stride or kernel), _pair(padding))

    def _mean(self, node: Any) -> _Value:
        """Over pixels, over time, or both."""
        x, dims, keep = _filled(node.args, (None, None, False))
        value = self._value(x)
        rank = len(value.shape) + (2 if value.time == "split" else 1)
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
        pooled = self._average(value, node, value.shape[1:])
        return pooled if keep else self._flattened(pooled, node)

    def _average(
        self, value: _Value, node: Any, kernel: tuple[int, ...], stride: Any = None, padding: Any = (0, 0)
    ) -> _Value:
        stride = kernel if stride is None else stride
        pool = self.nir.AvgPool2d(
            kernel_size=np.array(kernel), stride=np.array(stride), padding=np.array(padding)
        )  # fmt: skip
        sizes = [(s + 2 * p - k) // t + 1 for s, p, k, t in zip(value.shape[1:], padding, kernel, stride, strict=True)]
        return replace(self._after(value, node, pool), shape=(value.shape[0], *sizes))

    def _reshaped(self, node: Any) -> _Value:
        """An operator that only says anew where time and rows lie, or flattens an image."""
        value = self._value(node.args[0])
        before, after = node.args[0].meta["val"].shape, node.meta["val"].shape
        if node.target is aten.expand.default and len(after) == len(before) + 1 and value.time == "static":
            self._time(after[0])
            return replace(value, time="split")
        moves = (aten.flatten.using_ints, aten.unflatten.int, aten.view.default, aten.reshape.default)
        if node.target in moves:
            rest = len(value.shape)
            if value.time == "split" and tuple(after[1:]) == tuple(before[2:]):
                return replace(value, time="merged")
            if value.time == "merged" and len(after) == rest + 2 and after[0] == self.steps:
                return replace(value, time="split")
            lead = 2 if value.time == "split" else 1
            if len(after) == lead + 1 and after[lead] == math.prod(value.shape):
                return value if rest == 1 else self._flattened(value, node)
        raise ExportError(f"{node.name}: expected what NIR can say exactly, got {node.target}")

    def _flattened(self, value: _Value, node: Any) -> _Value:
        flatten = self.nir.Flatten(input_type={"input": np.array(value.shape)}, start_dim=0, end_dim=-1)
        return replace(self._after(value, node, flatten), shape=(math.prod(value.shape),))

    # ---- nodes ----

    def _after(self, value: _Value, node: Any, layer: Any) -> _Value:
        name = f"{node.name}_{len(self.nodes)}"
        self._add(name, layer, value.sources)
        weight = getattr(layer, "weight", None)
        if weight is None:
            return replace(value, sources=(name,))
        shape = tuple(int(s) for s in layer.output_type["output"])
        return replace(value, sources=(name,), shape=shape)

    def _add(self, name: str, layer: Any, sources: tuple[str, ...]) -> None:
        self.nodes[name] = layer
        self.edges += [(source, name) for source in sources]

    def _time(self, steps: int) -> None:
        if self.steps not in (None, steps):
            raise ExportError(f"expected one number of time steps, got {self.steps} and {steps}")
        self.steps = int(steps)

    def _constant(self, node: Any) -> Any:
        def given(arg: Any) -> Any:
            return self.values[arg] if isinstance(arg, torch.fx.Node) else arg

        with torch.no_grad():
            args = torch.fx.node.map_arg(node.args, given)
            return node.target(*args, **torch.fx.node.map_arg(node.kwargs, given))

    def _value(self, node: Any) -> _Value:
        value = self.values[node]
        if not isinstance(value, _Value):
            raise ExportError(f"{node.name}: expected a value of the network, got a constant")
        return value

    def _tensor(self, node: Any) -> Tensor:
        tensor = self.values[node]
        if not isinstance(tensor, Tensor):
            raise ExportError(f"{node.name}: expected constant weights, got some that depend on the input")
        return tensor.detach().float()

    def _shape(self, node: Any, lead: int) -> tuple[int, ...]:
        return tuple(int(size) for size in node.meta["val"].shape[lead:])


def _filled(args: tuple[Any, ...], defaults: tuple[Any, ...]) -> list[Any]:
    """An operator's arguments, whose last ones a graph may leave out."""
    return [*args, *defaults[len(args) :]]


def _pair(value: Any) -> tuple[int, int]:
    values = [value] if isinstance(value, int) else list(value)
    return int(values[0]), int(values[-1])


def _array(tensor: Tensor) -> np.ndarray:
    return np.ascontiguousarray(tensor.detach().float().numpy())


def _ungrouped(weight: Tensor, groups: int) -> Tensor:
    """The dense weights of a grouped convolution, whose sizes nir infers wrongly."""
    if groups == 1:
        return weight
    return torch.cat([nn.functional.pad(w, (0, 0, 0, 0, i * w.shape[1], (groups - 1 - i) * w.shape[1]))
                      for i, w in enumerate(weight.chunk(groups))])  # fmt: skip
