"""Running the program of a packed model: everything is resolved once, a run calls one closure an instruction."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from htaf.core.kernels import native
from htaf.core.kernels.float_layers import cpu as float_layers
from htaf.core.kernels.packed_native import CPU
from htaf.program.packed.instructions import Machine, Ready, Run, Values, kernels
from htaf.program.packed.planning import Layout, Planning, Segment, layouts_after, segment
from htaf.program.packed.program import Program

KNOWN_SIZES = 16  # of inputs, whose plans are kept


class Execution:
    """The closures of a program, and plans in their place. `ready`: its instructions as they run, in order."""

    def __init__(self, program: Program) -> None:
        self.program = program
        tensors = _owned(program.tensors)
        machine = Machine(tensors, *kernels(), float_layers if native.available() else None)
        instructions = program.instructions
        self.count = 1 + max([len(program.inputs) - 1, *(v for i in instructions for v in i.makes)])
        last = program.last_uses()
        self.ready: list[Ready] = []
        self.runs: list[tuple[Run, tuple[int, ...]]] = []  # and the values that nothing reads after it
        for at, instruction in enumerate(instructions):
            done = {v for v in (*instruction.makes, *instruction.reads) if last[v] == at}
            self.ready.append(instruction.prepare(machine))
            self.runs.append((self.ready[-1].run, tuple(done)))
        self.outputs = _gather(program.outputs)
        self.plans: dict[Any, Planned] = {}  # by shapes and strides of the inputs
        self.fast: dict[Any, Callable[[int], Any]] = {}  # of plans that are the whole network, likewise
        self.scratch: list[Tensor] = []  # that no call uses now

    def __call__(self, inputs: tuple[Tensor, ...], *, after: Callable[[int, Values], None] | None = None) -> Any:
        """The outputs. `after` sees the values after every instruction, and may change them; none are freed then."""
        values: Values = [None] * self.count
        values[: len(inputs)] = inputs
        batch = inputs[0].shape[0]
        if after is not None:
            for at, (run, _) in enumerate(self.runs):
                run(values, batch)
                after(at, values)
            return self.outputs(values)
        known: dict[int, Layout] | None = None
        key = tuple((x.shape, x.stride()) for x in inputs)
        if native.available():
            if (planned := self.plans.get(key)) is not None:
                return planned(values, batch)
            known = {}
            layouts_after(values, range(len(inputs)), (), known)
        for at, (run, done) in enumerate(self.runs):
            run(values, batch)
            if known is not None:
                instruction = self.program.instructions[at]
                layouts_after(values, instruction.makes, instruction.reads, known)
            for value in done:
                values[value] = None
        if known is not None:
            self._plan(key, inputs, known)
        return self.outputs(values)

    def _plan(self, key: Any, inputs: tuple[Tensor, ...], known: dict[int, Layout]) -> None:
        """Keep a plan for inputs of these sizes."""
        if len(self.plans) >= KNOWN_SIZES:
            self.plans.clear()
            self.fast.clear()
        planned = Planned(self, known)
        self.scratch.clear()
        self.plans[key] = planned
        floats = len(inputs) == 1 and inputs[0].dtype is torch.float32  # what `forward` gives to the whole of a plan
        if floats and (whole := planned.whole()) is not None:
            self.fast[key[0]] = whole


class Planned:
    """A run of a program for one size of inputs: plans, and closures of instructions that have none."""

    def __init__(self, execution: Execution, known: dict[int, Layout]) -> None:
        program = execution.program
        # not the execution itself, which holds this: without a cycle a model's memory goes with its last reference
        self.runs, self.pool, self.outputs, self.written = (
            execution.runs, execution.scratch, execution.outputs, program.outputs
        )  # fmt: skip
        instructions = program.instructions
        readers = Counter([v for i in instructions for v in i.reads] + program.returned())
        last = program.last_uses()
        parts: list[Segment | int] = []  # an instruction by its number
        begin, planning = 0, Planning(known, readers)

        def close(end: int) -> None:
            made = {v for i in instructions[begin:end] for v in i.makes}
            wanted = {v for v in made if last.get(v, -1) >= end}
            found = segment(planning, begin, end, wanted) if end > begin else None
            parts.extend(range(begin, end) if found is None else [found])

        for at, instruction in enumerate(instructions):
            there = all(v in known for v in (*instruction.makes, *instruction.reads))
            if not there or not instruction.plan(planning, execution.ready[at]):
                close(at)
                parts.append(at)
                begin, planning = at + 1, Planning(known, readers)
        close(len(instructions))
        self.parts = parts
        self.layouts = {v: known[v][:3] for p in parts if isinstance(p, Segment) for v in p.takes}
        self.scratch = max([p.scratch for p in parts if isinstance(p, Segment)], default=0)

    def whole(self) -> Callable[[int], Any] | None:
        """The run as one call with the input's address, where the network is one plan from its only input to its only
        output. It keeps what the plan points at, so that it may outlive the model."""
        part = self.parts[0] if len(self.parts) == 1 else None
        if not isinstance(part, Segment) or part.takes != (0,) or len(part.gives) != 1 or part.views:
            return None
        (value, shape, stride, dtype), run, threads = part.gives[0], part.plan.run, torch.get_num_threads
        if self.written != value:
            return None
        pool, size, empty = self.pool, self.scratch, torch.empty_strided

        def call(address: int, kept: tuple[Any, ...] = part.kept) -> Tensor:
            y = empty(shape, stride, dtype=dtype, device=CPU)
            scratch = _scratch(pool, size)
            run([address, y.data_ptr()], scratch.data_ptr(), threads())
            pool.append(scratch)
            return y

        return call

    def __call__(self, values: Values, batch: int) -> Any:
        scratch = _scratch(self.pool, self.scratch)
        for part in self.parts:
            if isinstance(part, int):
                self.runs[part][0](values, batch)
                first, last = part, part + 1
            else:
                first, last = part.first, part.last
                if all(_is(values[v], self.layouts[v]) for v in part.takes):
                    for value, shape, stride, dtype in part.gives:
                        values[value] = torch.empty_strided(shape, stride, dtype=dtype, device=CPU)
                    tensors = [values[v].data_ptr() for v in (*part.takes, *(g[0] for g in part.gives))]
                    part.plan.run(tensors, scratch.data_ptr(), torch.get_num_threads())
                    for value, root, shape, stride, offset in part.views:
                        of = values[root]
                        values[value] = of.as_strided(shape, stride, of.storage_offset() + offset)
                else:
                    for run, _ in self.runs[first:last]:
                        run(values, batch)
            for _, done in self.runs[first:last]:
                for value in done:
                    values[value] = None
        self.pool.append(scratch)
        return self.outputs(values)


def _owned(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copies that nobody else reaches, as addresses of them are kept between calls.

    Memory that others reach is moved or freed behind these: to pickle a tensor for another process, PyTorch moves it
    into shared memory.
    """
    return {name: x.detach().clone() for name, x in tensors.items()}


def _is(x: Tensor, layout: tuple[Any, ...]) -> bool:
    """Whether a value lies as it did when its plan was made, at an address that kernels take."""
    return (tuple(x.shape), x.stride(), x.dtype) == layout and x.data_ptr() % 8 == 0


def _scratch(pool: list[Tensor], size: int) -> Tensor:
    """Memory that no other call uses; what is too small is left to go."""
    try:
        found = pool.pop()
    except IndexError:
        return torch.empty(size, dtype=torch.uint8, device=CPU)
    return found if found.numel() >= size else torch.empty(size, dtype=torch.uint8, device=CPU)


def _gather(outputs: Any) -> Callable[[Values], Any]:
    """A function from the values of a run to the outputs, structured as the model gives them."""
    if isinstance(outputs, dict):
        named = {key: _gather(item) for key, item in outputs.items()}
        return lambda values: {key: part(values) for key, part in named.items()}
    if isinstance(outputs, (list, tuple)):
        kind, parts = type(outputs), [_gather(item) for item in outputs]
        return lambda values: kind([part(values) for part in parts])
    return lambda values: None if outputs is None else values[outputs]
