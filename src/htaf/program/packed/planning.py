"""From instructions to a plan: kernels, sizes and places in memory of one size of inputs, run as one call.

A run of a program by its closures costs some ten microseconds of Python an instruction: more than the work of an MLP on
one row, and time in which other threads wait. A plan is made beside the first run of each size of inputs, from the
shapes and strides that the values had. Instructions that have no kernel stay closures between plans.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from htaf.core.kernels.float_layers.cpu import NO_WINDOW
from htaf.core.kernels.native import extension
from htaf.core.kernels.packed_native import CPU

LINE = 64  # bytes of a cache line, at which values begin


class At(NamedTuple):
    """Where a value lies, in the arguments of a step; None: nowhere."""

    value: int | None


class Layout(NamedTuple):
    """What a value was in the run that a plan is made beside. `source`: that in whose memory it lies, if any."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    source: int | None = None
    offset: int = 0  # in bytes, from the source

    def bytes(self) -> int:
        """What it needs from its first element on."""
        if 0 in self.shape:
            return 0
        last = sum((n - 1) * s for n, s in zip(self.shape, self.stride, strict=True))
        return (last + 1) * self.dtype.itemsize


@dataclass
class Ends:
    """An epilogue. Constants by their addresses, 0 for none; values by their numbers."""

    scale: int = 0
    shift: int = 0
    lower: int = 0
    upper: int = 0
    wide_scale: int = 0
    wide_shift: int = 0
    residual: int | None = None
    y: int | None = None
    bits: int | None = None

    def constants(self) -> tuple[int, ...]:
        return self.scale, self.shift, self.lower, self.upper, self.wide_scale, self.wide_shift


@dataclass
class Step:
    """A call of a method of `Plan` (csrc/bind_plan.cpp). ends: None where it has none."""

    name: str
    arguments: list[Any]
    ends: Ends | None
    makes: list[int]


class Segment(NamedTuple):
    """A plan and what it takes and makes: values by number."""

    plan: Any
    takes: tuple[int, ...]
    gives: tuple[tuple[int, tuple[int, ...], tuple[int, ...], torch.dtype], ...]
    views: tuple[tuple[int, int, tuple[int, ...], tuple[int, ...], int], ...]  # value, root, shape, stride, offset
    scratch: int
    first: int
    last: int  # of its instructions, and one behind
    kept: tuple[Any, ...]


@dataclass
class Planning:
    """The segment that is being planned."""

    layouts: Mapping[int, Layout]
    readers: Mapping[int, int]  # how many instructions read a value; outputs count too
    steps: list[Step] = field(default_factory=list)
    aliases: list[int] = field(default_factory=list)
    kept: list[Any] = field(default_factory=list)  # whose memory the steps' addresses are of

    def example(self, value: int) -> Tensor:
        """A tensor with the shape, strides and type of the value, whose contents mean nothing."""
        shape, stride, dtype, _, _ = self.layouts[value]
        return torch.empty_strided(shape, stride, dtype=dtype, device=CPU)

    def address(self, tensor: Tensor | None) -> int:
        """Of a constant, which the plan keeps."""
        if tensor is None:
            return 0
        self.kept.append(tensor)
        return tensor.data_ptr()

    def step(self, name: str, *arguments: Any, ends: Ends | None = None, makes: Sequence[int] = ()) -> None:
        made = [*makes, *(v for v in ((ends.y, ends.bits) if ends else ()) if v is not None)]
        self.steps.append(Step(name, list(arguments), ends, made))

    def alias(self, value: int) -> bool:
        """A value that lies in the memory of another one; whether it does."""
        if self.layouts[value].source is None:
            return False
        self.aliases.append(value)
        return True

    def with_maximum(self, source: int, window: Any, y: int) -> bool:
        """The maximum over windows of floats that the last step makes and nothing else takes, in that step."""
        last = self.steps[-1] if self.steps else None
        if last is None or last.ends is None or last.name not in ("floats", "rounded") or last.ends.y != source:
            return False
        if last.arguments[-1] != NO_WINDOW or self.readers[source] != 1:
            return False
        last.arguments[-1], last.ends.y = window, y
        last.makes[:] = [y]
        return True

    def origin(self, value: int) -> tuple[int, int]:
        """The value in whose memory one lies as far as this segment knows, and the bytes from there."""
        offset = 0
        while value in self.aliases and (source := self.layouts[value].source) is not None:
            offset += self.layouts[value].offset
            value = source
        return value, offset


def layouts_after(values: Sequence[Any], made: Sequence[int], read: Sequence[int], known: dict[int, Layout]) -> None:
    """Note what an instruction made, right after it ran. What is no tensor on the CPU is left out."""
    for value in made:
        x = values[value]
        if not isinstance(x, Tensor) or x.device.type != "cpu" or x.layout != torch.strided:
            continue
        storage, lies_in, offset = x.untyped_storage().data_ptr(), None, 0
        for source in read:
            if source in known and values[source].untyped_storage().data_ptr() == storage and x.numel():
                lies_in, offset = source, x.data_ptr() - values[source].data_ptr()
        known[value] = Layout(tuple(x.shape), x.stride(), x.dtype, lies_in, offset)


def segment(planning: Planning, first: int, last: int, wanted: set[int]) -> Segment | None:
    """The plan of the steps, which are those of instructions [first, last). wanted: values that others read."""
    layouts, steps = planning.layouts, planning.steps
    if not steps:
        return None
    made: dict[int, int] = {}  # the step that makes a value
    for at, step in enumerate(steps):
        made |= dict.fromkeys(step.makes, at)
    spans: dict[int, int] = dict(made)  # the last step that needs the memory of a value
    takes: dict[int, None] = {}
    for at, step in enumerate(steps):
        for value in _values(step):
            root, _ = planning.origin(value)
            if root in made:
                spans[root] = at
            else:
                takes[root] = None
    outside = {root for v in wanted if (root := planning.origin(v)[0]) in made}
    there = {v: (made[v], spans[v]) for v in made if v not in outside}
    begins, scratch = places(there, {v: layouts[v].bytes() for v in there})
    gives = tuple((v, layouts[v].shape, layouts[v].stride, layouts[v].dtype) for v in sorted(outside))
    tensors = {v: k for k, v in enumerate([*takes, *(g[0] for g in gives)])}

    def place(at: At) -> tuple[int, int]:
        if at.value is None:
            return 0, 0
        root, offset = planning.origin(at.value)
        return (1, begins[root] + offset) if root in begins else (tensors[root] + 2, offset)

    plan = extension().Plan()
    for step in steps:
        arguments = _placed(step.arguments, place)
        if (ends := step.ends) is not None:
            arguments.append((ends.constants(), *(place(At(v)) for v in (ends.residual, ends.y, ends.bits))))
        getattr(plan, step.name)(*arguments)
    views = tuple(
        (v, (of := planning.origin(v))[0], layouts[v].shape, layouts[v].stride, of[1] // layouts[v].dtype.itemsize)
        for v in planning.aliases
        if v in wanted
    )
    return Segment(plan, tuple(takes), gives, views, scratch, first, last, tuple(planning.kept))


def _values(step: Step) -> list[int]:
    """The values whose memory a step reads or writes."""
    found = list[At]()
    _placed(step.arguments, found.append)
    if step.ends is not None:
        found += [At(step.ends.residual), At(step.ends.y), At(step.ends.bits)]
    return [one.value for one in found if one.value is not None]


def _placed(argument: Any, place: Callable[[At], Any]) -> Any:
    """An argument with what is made of each `At` in its place."""
    if isinstance(argument, At):
        return place(argument)
    if type(argument) in (list, tuple):
        return type(argument)([_placed(one, place) for one in argument])
    return argument


def places(
    spans: Mapping[int, tuple[int, int]], sizes: Mapping[int, int], line: int = LINE
) -> tuple[dict[int, int], int]:
    """Where values begin in one memory, so that no two overlap that are there at the same step; its bytes.

    Args:
        spans: the first and the last step at which each value is there.
        sizes: bytes of each value.
        line: bytes of which every beginning is a multiple.
    """
    found: dict[int, int] = {}
    end = 0
    for value in sorted(spans, key=lambda v: spans[v]):
        size = -(-sizes[value] // line) * line
        first, last = spans[value]
        others = sorted(
            (found[v], found[v] + -(-sizes[v] // line) * line)
            for v in found
            if spans[v][0] <= last and first <= spans[v][1]
        )
        at = 0
        for begin, stop in others:
            if at + size <= begin:
                break
            at = max(at, stop)
        found[value] = at
        end = max(end, at + size)
    return found, end
