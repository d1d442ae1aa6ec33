"""The kind of tables of every layer with real weights, chosen by measurement."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from htaf.kernels.layers import Epilogue
from htaf.packed.execution import FORMS, kernels
from htaf.packed.model import PackedModel
from htaf.packed.program import Kind, Layer, Program, Step

KINDS: tuple[Kind, ...] = ("float32", "int16", "int8")
_REPEATS = 5


@dataclass(frozen=True)
class Measured:
    """A layer with one kind of tables: seconds (median) and the rms error of its sums over their rms."""

    kind: Kind
    seconds: float
    error: float


def choose(packed: PackedModel, inputs: tuple[Tensor, ...], budget: float) -> tuple[Program, dict[str, Measured]]:
    """For each layer the fastest kind whose error is within the budget.

    Args:
        packed: with tables of float32.
        inputs: the example; each kind is timed and measured on what reaches the layer in a run of it.
        budget: the largest rms error of a layer's sums, over their rms.

    Returns:
        The program with these kinds, and what was measured of the kind chosen, by the layer's name.
    """
    chosen: dict[str, Measured] = {}

    def after(step: Step, values: list[Any]) -> None:
        if isinstance(step, Layer) and step.weights == "table":
            chosen[step.name] = _fastest(step, values[step.input], packed.program.tensors, budget)

    packed.watch(inputs, after)
    steps = tuple(
        replace(s, tables=chosen[s.name].kind) if isinstance(s, Layer) and s.name in chosen else s
        for s in packed.program.steps
    )
    return replace(packed.program, steps=steps), chosen


def _fastest(step: Layer, bits: Tensor, tensors: dict[str, Tensor], budget: float) -> Measured:
    taken, tables = FORMS[step.form][0](bits), kernels()[1]
    # without an epilogue there are sums and nothing else
    exact = tables.forward(
        taken, tables.prepare(tensors[step.weight], step.geometry, "float32"), step.geometry, Epilogue()
    )[0]
    found: list[Measured] = []
    for kind in KINDS:
        weights = tables.prepare(tensors[step.weight], step.geometry, kind)
        times = []
        sums = exact
        for _ in range(_REPEATS):
            start = time.perf_counter()
            sums = tables.forward(taken, weights, step.geometry, Epilogue())[0]
            times.append(time.perf_counter() - start)
        size = float(exact.double().square().mean().sqrt())
        error = float((sums - exact).double().square().mean().sqrt())
        found.append(Measured(kind, statistics.median(times), error / size if size else 0.0))
    return min((m for m in found if m.error <= budget), key=lambda m: m.seconds)
