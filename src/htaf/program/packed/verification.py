"""A packed model beside the hardened one it was made from, instruction by instruction."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import Interpreter, Node
from torch.utils import _pytree as pytree

from htaf._ground.compat import free_start_method
from htaf._ground.console import progress as shown_progress
from htaf._ground.errors import first_line
from htaf.core.kernels.packed_maps import reference as maps
from htaf.program.packed.errors import PackedError
from htaf.program.packed.graph import Traced, arguments_of, is_spikes, read_step, trace
from htaf.program.packed.instructions import Decided, Instruction
from htaf.program.packed.model import PackedModel

_ROUNDING = 8  # a bound is this many times the rounding error that float32 was seen to make


@dataclass(frozen=True)
class LayerCheck:
    """The bits of one step, given the same bits before it. `bound`: how near the threshold a flip may lie."""

    layer: str
    bits: int
    flips: int
    farthest: float
    bound: float

    @property
    def ok(self) -> bool:
        return not self.flips or self.farthest <= self.bound


@dataclass(frozen=True)
class Verification:
    """What `verify` found.

    layers: every step that makes bits. difference: the largest of the float outputs, given the
    same bits inside, and `bound`, what rounding explains. free_difference: the same in an ordinary run, where a flip
    has consequences. predictions: rows of the first output, and how many of them have the same largest entry.
    """

    layers: tuple[LayerCheck, ...]
    difference: float
    bound: float
    free_difference: float
    predictions: int
    equal: int

    @property
    def ok(self) -> bool:
        """Every difference is one that rounding explains."""
        return self.difference <= self.bound < math.inf and all(layer.ok for layer in self.layers)  # NaN is larger

    @property
    def count(self) -> int:
        """Flips in all layers."""
        return sum(layer.flips for layer in self.layers)

    def __str__(self) -> str:
        bits = sum(layer.bits for layer in self.layers)
        judged = "equal but for rounding" if self.ok else "NOT EQUAL"
        lines = [
            f"{judged}: {self.equal} of {self.predictions} predictions the same",
            f"outputs differ by {self.difference:.3g} at most (bound {self.bound:.3g}), in an ordinary run by "
            f"{self.free_difference:.3g}",
            f"{self.count} of {bits:,} bits in {len(self.layers)} layers differ",
        ]
        for layer in self.layers:
            if layer.flips:
                far = f"{layer.farthest:.3g} from the threshold at most (bound {layer.bound:.3g})"
                lines.append(f"  {layer.layer}: {layer.flips} of {layer.bits:,}, {far}")
        return "\n".join(lines)


def verify(packed: PackedModel, hardened: nn.Module | Traced, inputs: Any, *, progress: bool = False) -> Verification:
    """Compare a packed model with the hardened one.

    Both run the inputs. In a second run of the packed model, every tensor of bits is compared and then replaced by that
    of the hardened model. So each layer is judged on the same inputs, and one flip is counted once. The hardened model
    also runs in float64 with the bits of its float32 run. This gives the exact distance of a flip from its threshold,
    and the rounding error of float32 there; the bound is 8 times this error.

    Args:
        packed: made by `pack` from `hardened`, or loaded.
        hardened: the model itself, on the CPU in float32, or what `trace` made of it.
        inputs: a tensor [batch, ...] or a tuple of them, in the dtypes of the example.
        progress: show bars, and plain lines where there is no terminal.

    Raises:
        PackedError: the inputs do not fit, or `hardened` is another model.
    """
    if not isinstance(packed, PackedModel):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise PackedError(f"expected a packed model, then the hardened one, got {type(packed).__name__} first")
    if isinstance(hardened, PackedModel):
        raise PackedError("expected the hardened model after the packed one, got one that is packed")
    given = arguments_of(inputs)
    traced = hardened if isinstance(hardened, Traced) else trace(hardened, given, progress=progress)
    return compare(packed, traced, given, progress=progress)


def _potentials(x: Tensor, spikes: Tensor, leak: float, gain: float, threshold: float, soft: bool) -> Tensor:
    """h - threshold of neurons over time that spiked as they did."""
    v, found = torch.zeros_like(x[0]), []
    for now, spike in zip(x, spikes, strict=True):
        h = leak * v + gain * now
        found.append(h - threshold)
        v = h - threshold * spike if soft else (1 - spike) * h
    return torch.stack(found)


class _Recorder(Interpreter):
    """Runs a graph and keeps what its steps take and make; `forced` are outputs to take for them instead."""

    def __init__(
        self,
        traced: Traced,
        names: set[str],
        forced: dict[str, Tensor],
        dtype: torch.dtype,
        advance: Callable[[], None],
    ) -> None:
        super().__init__(traced.module, garbage_collect_values=False)  # a comparison's source is asked for later
        self.names, self.forced, self.dtype = names, forced, dtype
        self.constants, self.advance = traced.constants, advance
        self.seen: dict[str, Tensor] = {}
        self.before: dict[str, Tensor] = {}

    def run_node(self, n: Node) -> Any:
        self.advance()
        if "_assert_tensor_metadata" in str(n.target):
            return None
        if n.name in self.forced:
            result = self.forced[n.name].to(self.dtype)
        else:
            result = super().run_node(n) if self.dtype == torch.float32 else self._widened(n)
        if n.name in self.names:
            step = read_step(n, self.constants)
            before = _potentials(self.env[n.args[0]], result, *n.args[1:]) if step is None else self.env[step.source]  # pyright: ignore
            self.seen[n.name], self.before[n.name] = result, before.double()
        return result

    def _widened(self, n: Node) -> Any:
        """Return what a node makes, in self.dtype where it says float32, or makes float32 of numbers."""
        if n.op != "call_function":
            return super().run_node(n)

        def wide(item: Any) -> Any:
            if isinstance(item, Tensor) and item.dtype == torch.float32:
                return item.to(self.dtype)
            return self.dtype if item is torch.float32 else item

        args, kwargs = pytree.tree_map(wide, self.fetch_args_kwargs_from_env(n))
        try:
            return pytree.tree_map(wide, n.target(*args, **kwargs))  # pyright: ignore[reportCallIssue]
        except Exception as error:  # whatever an operator says of float64
            raise PackedError(f"expected {n.target} ({n.name}) to run in float64, got: {first_line(error)}") from error


def compare(packed: PackedModel, traced: Traced, given: tuple[Tensor, ...], *, progress: bool = False) -> Verification:
    """As `verify`, for a model that is exported already."""
    total = 2 * len(traced.graph.nodes) + len(packed.program.instructions)
    with shown_progress("comparing layer by layer", total, shown=progress) as advance:
        return _compare(packed, traced, given, advance)


def _compare(
    packed: PackedModel, traced: Traced, given: tuple[Tensor, ...], advance: Callable[[], None]
) -> Verification:
    steps = {i.name: decided for i in packed.program.instructions if (decided := i.decided()) is not None}
    made = {n.name for n in traced.graph.nodes if is_spikes(n) or read_step(n, traced.constants) is not None}
    if missing := sorted(steps.keys() - made):
        raise PackedError(f"expected the model that was packed, got one without its step {missing[0]}")
    free = _tensors(packed(*given))  # first, as it says what is wrong with inputs
    with torch.no_grad():
        single = _Recorder(traced, set(steps), {}, torch.float32, advance)
        expected = _outputs(single, traced, given, torch.float32)
        double = _Recorder(traced, set(steps), single.seen, torch.float64, advance)
        exact = _outputs(double, traced, given, torch.float64)
    seen: dict[str, tuple[Tensor, Tensor]] = {}

    def after(instruction: Instruction, values: list[Any]) -> None:
        advance()
        if (decided := instruction.decided()) is None:
            return
        name, bits = instruction.name, values[decided.bits]
        right = maps.pack(single.seen[name].movedim(decided.axis, -1) == 1).reshape(bits.shape)
        seen[name] = bits, right
        values[decided.bits] = right

    forced = _tensors(packed.watch(given, after))
    if [f.shape for f in forced] != [e.shape for e in expected]:
        raise PackedError(
            f"expected outputs of {[list(e.shape) for e in expected]}, got {[list(f.shape) for f in forced]}"
        )
    layers = tuple(
        _judged(name, steps[name], got, right, single.before[name], double.before[name])
        for name, (got, right) in seen.items()
    )
    rounding = _largest([_far(e, x) for e, x in zip(expected, exact, strict=True)])
    largest = _largest([float(e[e.isfinite()].abs().max()) for e in expected if e.isfinite().any()])
    bound = _ROUNDING * rounding + 1e-5 * largest
    rows, equal = _predictions(expected[0], free[0])
    difference = _largest([_far(a, b) for a, b in zip(forced, expected, strict=True)])
    wander = _largest([_far(a, b) for a, b in zip(free, expected, strict=True)])
    return Verification(layers, difference, bound, wander, rows, equal)


def _judged(name: str, step: Decided, got: Tensor, right: Tensor, before: Tensor, exact: Tensor) -> LayerCheck:
    differ = got ^ right
    channels = got.shape[-1] * 8
    used = right.numel() // right.shape[-1]
    z = exact.movedim(step.axis, -1)
    rounding = float((exact - before).nan_to_num(0.0, 0.0, 0.0).abs().max()) if exact.numel() else 0.0
    bound = _ROUNDING * rounding + 1e-6 * _size(z)
    if not differ.any():
        return LayerCheck(name, used * z.shape[-1], 0, 0.0, bound)
    mask = maps.unpack(differ, channels)[..., : z.shape[-1]].reshape(z.shape) > 0
    first = mask
    if step.over_time:  # a wrong spike changes those after it
        first = mask & (mask.cumsum(0) == 1)
    return LayerCheck(name, used * z.shape[-1], int(mask.sum()), float(z[first].abs().max()), bound)


def _outputs(recorder: _Recorder, traced: Traced, given: tuple[Tensor, ...], dtype: torch.dtype) -> list[Tensor]:
    inputs: list[Any] = []
    rest = list(given)
    for node in traced.graph.find_nodes(op="placeholder"):
        value = traced.constants[node] if node in traced.constants else rest.pop(0)
        inputs.append(value.to(dtype) if value.is_floating_point() else value)
    with free_start_method():  # torch.fx asks for a lock of tqdm's
        return _tensors(recorder.run(*inputs, enable_io_processing=False))


def _tensors(outputs: Any) -> list[Tensor]:
    return [leaf for leaf in pytree.tree_leaves(outputs) if isinstance(leaf, Tensor)]


def _far(a: Tensor, b: Tensor) -> float:
    """Return the largest difference; NaN where one of them alone is, or an infinity that the other is not."""
    a, b = a.double(), b.double()
    same = (a == b) | (a.isnan() & b.isnan())
    return float(torch.where(same, 0.0, a - b).abs().max()) if a.numel() else 0.0


def _largest(distances: list[float]) -> float:
    """Return the largest; NaN if one is, which Python's max may drop."""
    return math.nan if any(map(math.isnan, distances)) else max(distances, default=0.0)


def _size(z: Tensor) -> float:
    """Return the mean of |z| where it is finite."""
    finite = z[z.isfinite()]
    return float(finite.abs().mean()) if finite.numel() else 0.0


def _predictions(expected: Tensor, got: Tensor) -> tuple[int, int]:
    if expected.ndim < 2 or expected.shape[-1] < 2:
        return 0, 0
    same = expected.argmax(-1) == got.argmax(-1)
    return same.numel(), int(same.sum())
