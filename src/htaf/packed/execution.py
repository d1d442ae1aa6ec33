"""Running the program of a packed model: everything is resolved once, a run calls one closure an instruction."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from htaf.kernels import native
from htaf.kernels.layers import Spare
from htaf.packed.instructions.contract import Machine, Ready, Run, Values, kernels
from htaf.packed.program import Program


class Execution:
    """The closures of a program. `ready`: its instructions as they run, in order."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.spare: Spare = {}  # of the batch size that ran last
        self.batch = 0
        machine = Machine(program.tensors, *kernels(), self.spare)
        instructions = program.instructions
        self.count = 1 + max([len(program.inputs) - 1, *(v for i in instructions for v in i.makes)])
        last: dict[int, int] = {}
        for at, instruction in enumerate(instructions):
            last |= dict.fromkeys((*instruction.makes, *instruction.reads), at)
        for value in program.returned():
            last[value] = len(instructions)
        reusable = _reusable(program) if native.available() else set()  # the formulas take none
        self.ready: list[Ready] = []
        self.runs: list[tuple[Run, tuple[int, ...], tuple[int, ...]]] = []
        for at, instruction in enumerate(instructions):
            done = {v for v in (*instruction.makes, *instruction.reads) if last[v] == at}
            self.ready.append(instruction.prepare(machine))
            self.runs.append((self.ready[-1].run, tuple(done - reusable), tuple(done & reusable)))
        self.outputs = _gather(program.outputs)

    def __call__(self, inputs: tuple[Tensor, ...], *, after: Callable[[int, Values], None] | None = None) -> Any:
        """The outputs. `after` sees the values after every instruction, and may change them; none are freed then."""
        values: Values = [None] * self.count
        values[: len(inputs)] = inputs
        batch = inputs[0].shape[0]
        if after is not None:
            for at, (run, _, _) in enumerate(self.runs):
                run(values, batch)
                after(at, values)
            return self.outputs(values)
        if batch != self.batch:
            self.batch = batch
            self.spare.clear()
        spare = self.spare
        for run, done, reused in self.runs:
            run(values, batch)
            for value in done:
                values[value] = None
            for value in reused:
                y, values[value] = values[value].permute(0, 2, 3, 1), None
                spare.setdefault(tuple(y.shape), []).append(y)
        return self.outputs(values)


def _reusable(program: Program) -> set[int]:
    """Floats in memory of their own that nothing holds after their last reader."""
    found = {v for i in program.instructions for v in i.dense()}
    held = {v for i in program.instructions for v in i.holds()}
    return found - held - set(program.returned())


def _gather(written: Any) -> Callable[[Values], Any]:
    """A function from the values of a run to the outputs, structured as the model gives them."""
    ((key, content),) = written.items()
    if key == "v":
        return lambda values: values[content]
    if key == "none":
        return lambda values: None
    if key == "dict":
        parts = {k: _gather(item) for k, item in content.items()}
        return lambda values: {k: part(values) for k, part in parts.items()}
    items = [_gather(item) for item in content]
    if key == "list":
        return lambda values: [part(values) for part in items]
    return lambda values: tuple(part(values) for part in items)
