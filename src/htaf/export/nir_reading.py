"""NIR graphs as networks of htaf's neurons: what other spiking libraries wrote, trained on, packed, written again."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import reduce
from graphlib import CycleError, TopologicalSorter
from numbers import Real
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from htaf.activations import Heaviside
from htaf.convert.exported import cause_of
from htaf.export.nir_layers import DT, above, pair
from htaf.export.program import ExportError, require
from htaf.spiking.neurons import IF, LIF, Neuron

SpikeFactory = Callable[[], nn.Module]


def from_nir(
    graph: Any,
    *,
    steps: int | None = None,
    dt: float | None = None,
    inclusive: bool = False,
    spike: SpikeFactory = Heaviside,
) -> SpikingGraph:
    """Read a NIR graph as a network of `htaf.IF` and `htaf.LIF` over T time steps, stepped by Euler's method.

    Read: Affine, Linear, Conv1d and Conv2d, IF and LIF neurons alike in a layer that rest at and are reset to 0,
    Threshold, Scale, average pooling, flattening; edges that meet add. What `to_nir` wrote gives the same numbers.

    Args:
        graph: the path of a file, or a `nir.NIRGraph` (of `export_to_nir` of SpikingJelly or snnTorch).
        steps: T; None: as the file's metadata say.
        dt: seconds a time step; None: as the metadata say, else 1e-4, as SpikingJelly and snnTorch write.
        inclusive: False: neurons fire where v > v_threshold, as NIR says. True: where v >= v_threshold, as
            SpikingJelly's do, which writes its own threshold all the same.
        spike: makes one module a neuron; Heaviside, or a step that trains such as HTAF.

    Raises:
        ExportError: a node that cannot be read or has values that htaf's layers do not take, a loop in the graph,
            neurons of a layer that differ, no number of steps; or nir is not installed.

    Source: arXiv:2311.14641.
    """
    nir = require("nir")
    if isinstance(graph, (str, Path)):
        if not Path(graph).is_file():
            raise ExportError(f"expected a NIR file, got {graph}, which is none")
        try:
            graph = nir.read(graph)
        except Exception as error:  # h5py's and nir's own
            raise ExportError(f"expected a NIR file, got {graph}: {cause_of(error)}") from None
    if not isinstance(graph, nir.NIRGraph):
        raise ExportError(f"expected a NIR graph or the path of one, got {type(graph).__name__}")
    steps = graph.metadata.get("steps") if steps is None else steps
    if not isinstance(steps, Real) or not float(steps).is_integer() or steps < 1:
        raise ExportError(f"expected steps=T, the number of time steps (the graph does not say it), got {steps!r:.40}")
    dt = graph.metadata.get("dt", DT) if dt is None else dt
    if not isinstance(dt, Real) or not 0 < dt < math.inf:
        raise ExportError(f"dt must be > 0 seconds, got {dt!r:.40}")
    read = _Reader(nir, float(dt), inclusive, spike)
    layers, sources = {}, {}
    for name in _ordered(graph):
        node = graph.nodes[name]
        try:
            layers[name] = read.layer(node)
        except (ExportError, ValueError, TypeError, ArithmeticError) as error:
            raise ExportError(f"{name} ({type(node).__name__}): {error}") from None
        sources[name] = [before for before, after in graph.edges if after == name]
    (given,) = graph.inputs.values()
    shape = given.input_type.get("input")
    return SpikingGraph(layers, sources, int(steps), None if shape is None else len(shape)).eval()


@final
class SpikingGraph(nn.Module):
    """Layers and neurons as a NIR graph joins them, over T time steps. Made by `from_nir`, in eval mode.

    Shape: `forward` [N, ...] -> [N, classes], a static input and the mean of the output over T steps; `over_time`
    [T, N, ...] -> [T, N, classes], an input for each step. ndim: of one input, where the graph says its shape; inputs
    of another are refused by ExportError, as a linear layer would read their time as features.
    """

    def __init__(
        self, layers: dict[str, nn.Module | None], sources: dict[str, list[str]], steps: int, ndim: int | None = None
    ) -> None:
        super().__init__()
        self.steps, self.ndim = steps, ndim
        own = _own_names(layers)
        self.layers = nn.ModuleDict({own[name]: layer for name, layer in layers.items() if layer is not None})
        self.sources = {own[name]: [own[source] for source in found] for name, found in sources.items()}

    def forward(self, x: Float[Tensor, " batch *shape"]) -> Float[Tensor, " batch *classes"]:
        y, static = self._run(x, self.steps, static=True)
        return y if static else y.unflatten(0, (self.steps, -1)).mean(0)

    def over_time(self, x: Float[Tensor, " steps batch *shape"]) -> Float[Tensor, " steps batch *classes"]:
        return self._run(x.flatten(0, 1), len(x), static=False)[0].unflatten(0, (len(x), -1))

    def _run(self, x: Tensor, steps: int, *, static: bool) -> tuple[Tensor, bool]:
        """The output, [N, ...] while it is the same at every step (static), else [T N, ...]."""
        if self.ndim is not None and x.ndim != 1 + self.ndim:
            wanted = "[N, ...] without time steps (with them: over_time)" if static else "[T, N, ...]"
            raise ExportError(f"expected inputs {wanted}, of {self.ndim} axes each, got {x.ndim - 1} axes")

        def at_each(value: tuple[Tensor, bool]) -> Tensor:
            y, same = value
            return y.expand(steps, *y.shape).flatten(0, 1) if same else y

        values: dict[str, tuple[Tensor, bool]] = {}
        last = x, static
        for name, sources in self.sources.items():
            found = [values[source] for source in sources] or [(x, static)]
            same = all(static for _, static in found)
            y = reduce(torch.add, [y if same else at_each((y, is_same)) for y, is_same in found])
            layer = self.layers[name] if name in self.layers else None  # noqa: SIM401 (a ModuleDict has no get)
            if isinstance(layer, Neuron):
                y = y.expand(steps, *y.shape) if same else y.unflatten(0, (steps, -1))
                y, same = layer(y).flatten(0, 1), False
            elif layer is not None:
                y = layer(y)
            values[name] = last = y, same
        return last

    def extra_repr(self) -> str:
        return f"steps={self.steps}"


class _Reader:
    """Layers from the nodes of a NIR graph."""

    def __init__(self, nir: Any, dt: float, inclusive: bool, spike: SpikeFactory) -> None:
        self.nir, self.dt, self.inclusive, self.spike = nir, dt, inclusive, spike

    def layer(self, node: Any) -> nn.Module | None:
        """None: what passes on what comes in."""
        nir = self.nir
        match node:
            case nir.Input() | nir.Output():
                return None
            case nir.Affine() | nir.Linear():
                return _filled(nn.Linear(*node.weight.shape[::-1]), node)
            case nir.Conv1d() | nir.Conv2d():
                return _convolution(node)
            case nir.Scale():
                return _Scale(_tensor(node.scale))
            case nir.Flatten():
                return nn.Flatten(*(int(d) + (d >= 0) for d in (node.start_dim, node.end_dim)))
            case nir.AvgPool2d():
                kernel, stride, padding = map(_pair, (node.kernel_size, node.stride, node.padding))
                if any(padding):
                    raise ExportError("expected average pooling over whole windows, got a padding")
                return nn.AvgPool2d(kernel, stride)
            case nir.Threshold():
                return _Threshold(self.spike(), self._threshold(_one(node.threshold, "threshold")))
            case nir.IF() | nir.LIF():
                return self._neuron(node)
        known = "Affine, Linear, Conv1d, Conv2d, Scale, Flatten, AvgPool2d, Threshold, IF or LIF"
        raise ExportError(f"expected {known}, got a node that htaf has no layer for")

    def _neuron(self, node: Any) -> Neuron:
        """v <- leak v + gain x; where the gain is another than those of htaf, it divides the threshold."""
        leaks = isinstance(node, self.nir.LIF)
        rest = {"v_reset": node.v_reset, **({"v_leak": node.v_leak} if leaks else {})}
        for name, value in rest.items():
            if np.any(value):
                raise ExportError(f"expected {name} = 0, got {np.unique(value)}: htaf's neurons rest at 0")
        threshold, r = _one(node.v_threshold, "v_threshold"), _one(node.r, "r")
        tau = _digits(_one(node.tau, "tau") / self.dt) if leaks else 1.0
        gain = _digits(r * self.dt if not leaks else r / tau)
        if leaks and math.isclose(gain * tau, 1.0, rel_tol=1e-6):
            return LIF(self.spike(), tau=tau, threshold=self._threshold(threshold))
        if gain <= 0 or threshold <= 0:
            raise ExportError(f"expected a threshold and a gain > 0, got {threshold:g} and {gain:g}")
        threshold = self._threshold(threshold / gain)
        if leaks:
            return LIF(self.spike(), tau=tau, threshold=threshold, decay_input=False)
        return IF(self.spike(), threshold=threshold)

    def _threshold(self, threshold: float) -> float:
        """Where htaf's neurons fire, v >= threshold, the file's do."""
        return threshold if self.inclusive else float(above(threshold))


class _Scale(nn.Module):
    """x times a constant."""

    def __init__(self, scale: Tensor) -> None:
        super().__init__()
        self.scale = nn.Buffer(scale)

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale


class _Threshold(nn.Module):
    """A step at a threshold, without a state."""

    def __init__(self, spike: nn.Module, threshold: float) -> None:
        super().__init__()
        self.spike, self.threshold = spike, threshold

    def forward(self, x: Tensor) -> Tensor:
        return self.spike(x - self.threshold if self.threshold else x)


def _ordered(graph: Any) -> list[str]:
    """Names of nodes, each behind those that it reads."""
    before: dict[str, set[str]] = {name: set() for name in graph.nodes}
    for source, name in graph.edges:
        before[name].add(source)
    try:
        order = list(TopologicalSorter(before).static_order())
    except CycleError as error:
        raise ExportError(f"expected a graph without loops, got {' -> '.join(error.args[1])}") from None
    if (len(graph.inputs), len(graph.outputs)) != (1, 1):
        raise ExportError(f"expected one input and one output, got {len(graph.inputs)} and {len(graph.outputs)}")
    output = next(iter(graph.outputs))
    return [name for name in order if name != output] + [output]


def _convolution(node: Any) -> nn.Module:
    kind: Any = nn.Conv1d if node.weight.ndim == 3 else nn.Conv2d
    sizes: Any = _single if kind is nn.Conv1d else _pair
    groups, (out, width, *kernel) = int(node.groups), node.weight.shape
    padding = node.padding if isinstance(node.padding, str) else sizes(node.padding)
    return _filled(
        kind(
            width * groups, out, tuple(kernel), stride=sizes(node.stride), padding=padding,
            dilation=sizes(node.dilation), groups=groups,
        ),
        node,
    )  # fmt: skip


def _filled(layer: Any, node: Any) -> nn.Module:
    layer.weight = nn.Parameter(_tensor(node.weight))
    bias = getattr(node, "bias", None)
    layer.bias = None if bias is None else nn.Parameter(_tensor(bias))
    return layer


def _tensor(array: Any) -> Tensor:
    return torch.tensor(np.asarray(array), dtype=torch.float32)


def _single(value: Any) -> int:
    return int(np.ravel(value)[0])


def _pair(value: Any) -> tuple[int, int]:
    return pair([int(v) for v in np.ravel(value)])


def _one(values: Any, name: str) -> float:
    found = np.unique(values)
    if len(found) != 1:
        raise ExportError(f"expected one {name} for all neurons of a layer, got {found.min():g} to {found.max():g}")
    return float(found[0])


def _digits(number: float) -> float:
    """The number of six digits that is the same to a file of float32: 2 for 1.99999995, a tau of 2e-4 over 1e-4."""
    short = float(f"{number:.6g}")
    return short if math.isclose(short, number, rel_tol=2e-7) else number


def _own_names(names: Iterable[str]) -> dict[str, str]:
    """Names of nodes as those of modules: without dots, none twice, and none that an attribute of ModuleDict has."""
    own, attributes = dict[str, str](), nn.ModuleDict()
    for name in names:
        plain = name.replace(".", "_")
        while not plain or hasattr(attributes, plain) or plain in own.values():
            plain += "_"
        own[name] = plain
    return own
