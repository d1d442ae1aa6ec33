"""The kind of tables of every layer with real weights, chosen by measurement."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, get_args

from torch import Tensor

from htaf.kernels.layers import Epilogue
from htaf.packed.instructions import Instruction, Layer
from htaf.packed.instructions.contract import kernels
from htaf.packed.instructions.layer import FORMS, Kind, widened
from htaf.packed.model import PackedModel
from htaf.packed.program import Program

KINDS: tuple[Kind, ...] = get_args(Kind)
_REPEATS = 5


@dataclass(frozen=True)
class Measured:
    """A layer with one kind of tables: seconds (median) and the rms error of its sums over their rms."""

    seconds: float
    error: float


@dataclass(frozen=True)
class ChosenTables:
    """The kind taken for a layer, and what was measured of all of them."""

    kind: Kind
    measured: dict[Kind, Measured]

    def __str__(self) -> str:
        found = "; ".join(f"{kind}: {m.seconds:.1e} s, error {m.error:.1e}" for kind, m in self.measured.items())
        return f"{self.kind} ({found} of the rms)"


def choose(
    packed: PackedModel, inputs: tuple[Tensor, ...], budget: float, advance: Callable[[], None]
) -> tuple[Program, dict[str, ChosenTables]]:
    """For each layer the fastest kind whose error is within the budget.

    Args:
        packed: with tables of float32.
        inputs: the example; each kind is timed and measured on what reaches the layer in a run of it.
        budget: the largest rms error of a layer's sums, over their rms.
        advance: is told of each layer.

    Returns:
        The program with these kinds, and what was measured, by the layer's name.
    """
    chosen: dict[str, ChosenTables] = {}

    def after(instruction: Instruction, values: list[Any]) -> None:
        if isinstance(instruction, Layer) and instruction.looks_up:
            found = measure(instruction, values[instruction.input], packed.program.tensors)
            fitting: list[Kind] = [kind for kind in KINDS if found[kind].error <= budget]
            fastest: Kind = min(fitting, key=lambda kind: found[kind].seconds)
            chosen[instruction.name] = ChosenTables(fastest, found)
            advance()

    packed.watch(inputs, after)
    instructions = tuple(
        replace(i, tables=chosen[i.name].kind) if isinstance(i, Layer) and i.name in chosen else i
        for i in packed.program.instructions
    )
    return replace(packed.program, instructions=instructions), chosen


def measure(layer: Layer, bits: Tensor, tensors: dict[str, Tensor]) -> dict[Kind, Measured]:
    """The seconds and errors of a layer's sums over these bits with each kind of tables, timed in turn."""
    taken, tables = FORMS[layer.form][0](bits), kernels()[1]
    weight = widened(tensors[layer.weight], layer.geometry, layer.planes)
    weights = {kind: tables.prepare(weight, layer.geometry, kind) for kind in KINDS}
    times: dict[Kind, list[float]] = {kind: [] for kind in KINDS}
    sums: dict[Kind, Tensor] = {}
    for _ in range(_REPEATS + 1):  # the first of each fills the caches
        for kind in KINDS:
            start = time.perf_counter()
            # without an epilogue there are sums and nothing else
            sums[kind] = tables.forward(taken, weights[kind], layer.geometry, Epilogue())[0]
            times[kind].append(time.perf_counter() - start)
    exact = sums["float32"].double()
    size = float(exact.square().mean().sqrt())
    return {
        kind: Measured(
            statistics.median(times[kind][1:]),
            float((sums[kind] - exact).square().mean().sqrt()) / size if size else 0.0,
        )
        for kind in KINDS
    }
