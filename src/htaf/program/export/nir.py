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
from typing import Any, Literal, NoReturn, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.fx import Node

from htaf._ground.files import check_output, write_atomic
from htaf.program.export.onnx import Example, ExportError, require
from htaf.program.packed.errors import PackedError
from htaf.program.packed.graph import (
    Affine,
    LayerSite,
    Pair,
    Traced,
    aten,
    is_spikes,
    pair,
    read_affine,
    read_layer,
    read_step,
    same,
    shape_of,
    trace,
)
from htaf.transform.convert.exported import cause_of

DT = 1e-4  # seconds a time step, as snnTorch and SpikingJelly take it


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
    try:
        graph, buffer = _Walk(nir, trace(model, example), dt).written(), io.BytesIO()
        nir.write(buffer, graph)
    except (ExportError, PackedError) as error:
        raise ExportError(f"{type(model).__name__} cannot be written as NIR: {error}") from None
    except (ValueError, AssertionError, NotImplementedError) as error:  # nir's own checks
        raise ExportError(f"{type(model).__name__} cannot be written as NIR: {cause_of(error)}") from None
    write_atomic(Path(path), buffer.getvalue())


@dataclass(frozen=True)
class Value:
    """Nodes of NIR whose outputs add up to a value, and how time lies in it.

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


def refuse(node: Node | str, expected: str, got: object) -> NoReturn:
    raise ExportError(f"{node}: expected {expected}, got {got}")


class _Walk:
    """From the nodes of a traced network to those of a NIR graph."""

    def __init__(self, nir: Any, traced: Traced, dt: float) -> None:
        self.nir, self.traced, self.constants, self.dt = nir, traced, traced.constants, dt
        self.nodes: dict[str, Any] = {}
        self.edges: list[tuple[str, str]] = []
        self.values: dict[Node, Value] = {}
        self.makers: dict[str, Node] = {}
        self.steps: int | None = None

    def written(self) -> Any:
        (given, *more), (end, *others) = self.traced.inputs, self.traced.outputs
        if more or others or end is None:
            raise ExportError("expected one input and one output, got several")
        if given.meta["val"].dtype != torch.float32:
            raise ExportError(f"expected a network of float32, got an input of {given.meta['val'].dtype}")
        shape = tuple(int(size) for size in shape_of(given)[1:])
        self._add("input", self.nir.Input(input_type={"input": np.array(shape)}), ())
        self.values[given] = Value(("input",), "static", shape)
        for node in self.traced.graph.nodes:
            if node.op != "call_function" or node in self.constants:
                continue
            if isinstance(node.meta.get("val"), (Tensor, list, tuple)):  # no size
                made = self._made(node)
                row = shape_of(node)[made.lead :]
                if not all(isinstance(size, int) for size in row):
                    refuse(node, "rows of known sizes", list(row))
                self.values[node] = replace(made, shape=row)
        value = self._value(end)
        if value.time in ("split", "merged"):
            raise ExportError("expected an output averaged over time, got one of every time step")
        self._add("output", self.nir.Output(output_type={"output": np.array(value.shape)}), value.sources)
        metadata = {"dt": self.dt, "steps": self.steps or 1, "readout": "mean of the output over the steps"}
        return self.nir.NIRGraph(self.nodes, self.edges, metadata=metadata)

    # ---- the graph while it is made ----

    def _add(self, name: str, layer: Any, sources: tuple[str, ...]) -> None:
        self.nodes[name] = layer
        self.edges += [(source, name) for source in sources]

    def _after(self, value: Value, node: Node, layer: Any) -> Value:
        """Return a node of NIR behind a value."""
        name = f"{node.name}_{len(self.nodes)}"
        self._add(name, layer, value.sources)
        self.makers[name] = node
        return replace(value, sources=(name,))

    def _value(self, node: Any) -> Value:
        if node not in self.values:
            refuse(node, "a value of the network", "a constant")
        return self.values[node]

    # ---- one node ----

    def _made(self, node: Node) -> Value:
        """What a node gives; the shape of its rows is to come."""
        target, constants = node.target, self.constants
        if (site := read_layer(node, constants)) is not None:
            return self._layer(node, site)
        if is_spikes(node):
            return self._neuron(node)
        if (step := read_step(node, constants)) is not None and step.low == 0:
            return self._step(node, self._value(step.source))
        if target is not aten._to_copy.default and (affine := read_affine(node, constants)) is not None:
            return self._affine(node, affine)
        if target is aten.add.Tensor and len(node.args) == 2 and not node.kwargs:
            return self._sum(node)
        if target in (aten.mul.Tensor, aten.div.Tensor):
            refuse(node, "products with constants", "one of two values of the network")
        if target is aten.avg_pool2d.default:
            return self._pool(node)
        if target is aten.mean.dim:
            return self._mean(node)
        return self._reshaped(node)

    def _layer(self, node: Node, site: LayerSite) -> Value:
        value, g, weight = self._value(site.source), site.geometry, site.weight
        bias = torch.zeros(g.outputs) if site.bias is None else site.bias
        if site.form == "row":
            if len(value.shape) != 1:
                refuse(node, "a linear layer over features", f"one over {list(value.shape)}")
            return self._after(value, node, self.nir.Affine(weight=array(weight.flatten(1)), bias=array(bias)))
        if g.groups != 1 or g.kernel[0] != g.kernel[1]:  # whose sizes nir infers wrongly
            refuse(node, "a convolution with square kernels, without groups", f"{list(g.kernel)}, {g.groups} groups")
        return self._after(value, node, self._convolution(value, weight, bias, g.stride, g.padding, g.dilation))

    def _convolution(
        self,
        value: Value,
        weight: Tensor,
        bias: Tensor,
        stride: Pair = (1, 1),
        padding: Pair = (0, 0),
        apart: Pair = (1, 1),
    ) -> Any:
        return self.nir.Conv2d(
            input_shape=value.shape[1:], weight=array(weight), stride=stride, padding=padding, dilation=apart, groups=1,
            bias=array(bias),
        )  # fmt: skip

    def _affine(self, node: Node, found: Affine) -> Value:
        """Return a norm, or products and sums with constants: folded into the layer before it where that has no other
        reader; else a layer of its own."""
        value = self._value(found.source)
        if found.axis not in (None, value.lead):
            refuse(node, "constants of channels", f"some along dimension {found.axis}")
        channels = value.shape[0]
        scale, shift = found.scale.broadcast_to(channels), found.shift.broadcast_to(channels)
        (source, *others), maker = value.sources, self.makers.get(value.sources[0])
        layer = self.nodes[source]
        foldable = not others and isinstance(layer, (self.nir.Conv2d, self.nir.Affine))
        if foldable and maker is not None and _alone(found.source, maker):
            along = scale.view(-1, *(1,) * (layer.weight.ndim - 1)).numpy()
            layer.weight = (layer.weight * along).astype(np.float32)
            layer.bias = (layer.bias * scale.numpy() + shift.numpy()).astype(np.float32)
            return value
        if not shift.any():
            whole = scale.view(-1, *(1,) * (len(value.shape) - 1)).expand(value.shape)
            return self._after(value, node, self.nir.Scale(scale=array(whole)))
        if len(value.shape) == 1:
            return self._after(value, node, self.nir.Affine(weight=array(scale.diag()), bias=array(shift)))
        return self._after(value, node, self._convolution(value, scale.diag()[..., None, None], shift))

    def _neuron(self, node: Node) -> Value:
        """v <- leak v + gain x, with a hard reset to 0; x > threshold where x >= ours, for float32."""
        x, leak, gain, threshold, soft = node.args
        value = self._value(x)
        if value.time != "split":
            refuse(node, "neurons over [T, N, ...]", "another order of time")
        if soft:
            refuse(node, "neurons with a hard reset", "a soft one: NIR's neurons are set to v_reset")
        leak, gain, threshold = (float(cast(float, number)) for number in (leak, gain, threshold))

        def all_(number: Any) -> np.ndarray:
            return np.full(value.shape, number, dtype=np.float32)

        shared = {"v_threshold": all_(below(threshold)), "v_reset": all_(0)}
        if leak == 1:
            return self._after(value, node, self.nir.IF(r=all_(gain / self.dt), **shared))
        steps = 1 / (1 - leak)
        lif = self.nir.LIF(tau=all_(steps * self.dt), r=all_(gain * steps), v_leak=all_(0), **shared)
        return self._after(value, node, lif)

    def _step(self, node: Node, value: Value) -> Value:
        if value.time == "mean":
            refuse(node, "steps before the mean over time", "one after it")
        return self._after(value, node, self.nir.Threshold(threshold=np.full(value.shape, below(0))))

    def _sum(self, node: Node) -> Value:
        if any(argument not in self.values for argument in node.args):
            refuse(node, "a sum of two values of the network", "one with a constant")
        a, b = (self._value(argument) for argument in node.args)
        if (a.time, a.shape) != (b.time, b.shape):
            refuse(node, "a sum of equal shapes", f"{a.shape} and {b.shape}")
        sources = list(a.sources)
        for source in b.sources:
            if source in sources:  # one edge carries a value once
                one = self.nir.Scale(scale=np.ones(b.shape, np.float32))
                source = self._after(replace(b, sources=(source,)), node, one).sources[0]
            sources.append(source)
        return replace(a, sources=tuple(sources))

    def _pool(self, node: Node) -> Value:
        _, kernel, stride, padding, ceil, _, divisor = _filled(node.args, (None, None, [], [0, 0], False, True, None))
        if ceil or divisor is not None or any(pair(padding)):  # NIR does not say what a border counts
            refuse(node, "average pooling over whole windows", "other borders")
        return self._averaged(self._value(node.args[0]), node, pair(kernel), pair(stride or kernel))

    def _averaged(self, value: Value, node: Node, kernel: Pair, stride: Pair) -> Value:
        sizes = {"kernel_size": np.array(kernel), "stride": np.array(stride), "padding": np.array((0, 0))}
        return self._after(value, node, self.nir.AvgPool2d(**sizes))

    def _mean(self, node: Node) -> Value:
        """Over pixels, over time, or both."""
        x, dims, keep = _filled(node.args, (None, None, False))
        value = self._value(x)
        if not dims or node.kwargs:
            refuse(node, "a mean over pixels or time", "one over everything")
        rank = len(value.shape) + value.lead
        over = {d % rank for d in dims}
        if value.time == "split" and 0 in over:
            over, value = {d - 1 for d in over - {0}}, replace(value, time="mean")
            if keep:
                refuse(node, "a mean that takes time away", "keepdim")
        elif value.time == "split":
            over = {d - 1 for d in over}
        if not over:
            return value
        if over != {2, 3} or len(value.shape) != 3:
            refuse(node, "a mean over pixels or time", f"one over {sorted(dims)}")
        pooled = self._averaged(value, node, pair(value.shape[1:]), pair(value.shape[1:]))
        return pooled if keep else self._flattened(replace(pooled, shape=(value.shape[0], 1, 1)), node)

    def _flattened(self, value: Value, node: Node) -> Value:
        rank = len(value.shape)  # from behind: snnTorch counts the batch among the dimensions
        flatten = self.nir.Flatten(input_type={"input": np.array(value.shape)}, start_dim=-rank, end_dim=-1)
        return self._after(value, node, flatten)

    def _reshaped(self, node: Node) -> Value:
        """Return an operator that says anew where time and rows lie, or flattens what a row holds."""
        used, after = next(iter(node.all_input_nodes), node), shape_of(node)
        value, before = self._value(used), shape_of(used)
        if node.target is aten.expand.default and value.time == "static" and same(after[1:], before):
            if not isinstance(after[0], int) or self.steps not in (None, after[0]):
                raise ExportError(f"expected one number of time steps, got {self.steps} and {after[0]}")
            self.steps = after[0]
            return replace(value, time="split")
        if node.target is aten.reshape.default:
            if value.time == "split" and same(after[1:], before[2:]):
                return replace(value, time="merged")
            if value.time == "merged" and same(after[2:], value.shape) and same(after[:1], (self.steps,)):
                return replace(value, time="split")
            lead = value.lead
            if same(after[:lead], before[:lead]) and same(after[lead:], (math.prod(value.shape),)):
                return self._flattened(value, node)
        refuse(node, "what NIR can say exactly", f"{node.target} (see docs/export.md)")


def _filled(args: tuple[Any, ...], defaults: tuple[Any, ...]) -> list[Any]:
    """Return an operator's arguments, whose last ones a graph may leave out."""
    return [*args, *defaults[len(args) :]]


def _alone(node: Node, maker: Node) -> bool:
    """Return whether a value has one reader, and all from its maker on."""
    while len([user for user in node.users if user.target is not aten.sym_size.int]) == 1:
        if node is maker:
            return True
        node = node.all_input_nodes[0]
    return False


def below(threshold: float) -> np.float32:
    """x > this where x >= threshold, for float32."""
    return np.nextafter(np.float32(threshold), np.float32(-np.inf))


def array(tensor: Tensor) -> np.ndarray:
    return np.ascontiguousarray(tensor.detach().float().numpy())
