"""Random integer programs: small, and of all operations."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from htaf.program.integer.ops import (
    LUT,
    Add,
    Conv,
    Count,
    Linear,
    Lookup,
    Op,
    Pool,
    Shift,
    Steps,
    Take,
    Value,
    View,
    channel_axis,
)
from htaf.program.integer.program import Input, IntegerProgram


class Made:
    """A program that grows by random operations on its last value."""

    def __init__(self, seed: int, given: Input) -> None:
        self.rng = np.random.default_rng(seed)
        self.input, self.ops = given, list[Op]()
        self.values = [Value(given.shape, given.low, given.high)]
        self.seen = [self.rows(64)]

    @property
    def last(self) -> Value:
        return self.values[-1]

    def add(self, kind: type[Op], *fields: Any) -> int:
        op = kind(f"{kind.__name__.lower()}{len(self.ops)}", *fields)
        self.values.append(op.value(*(self.values[i] for i in op.reads)))
        self.seen.append(op.run(*(self.seen[i] for i in op.reads)))
        self.ops.append(op)
        return len(self.ops)

    def here(self) -> int:
        return len(self.ops)

    def signs(self) -> np.ndarray:
        return self.rng.choice([-1, 1], self.last.channels)

    def lookup(self) -> None:
        self.add(Lookup, self.here(), self.rng.integers(-900, 900, (self.last.channels, 256)))

    def shift(self) -> None:
        self.add(Shift, self.here(), self.rng.integers(-9, 2, self.last.channels), -300, 281)

    def conv(self, filters: int = 6, most: int = 127, stride: int = 1) -> None:
        size = int(self.rng.choice([k for k in (1, 2, 3) if k <= min(self.last.shape[-2:])]))
        weight = self.rng.integers(-most, most + 1, (filters, self.last.channels, size, size))
        bias = self.rng.integers(-99, 99, filters) if self.rng.random() < 0.5 else None
        pad = int(self.rng.integers(0, size))
        self.add(Conv, self.here(), weight, bias, (stride, 1), (pad, size // 2), (1, 1))

    def linear(self, outputs: int, most: int = 127) -> None:
        weight = self.rng.integers(-most, most + 1, (outputs, self.last.channels))
        bias = self.rng.integers(-999, 999, outputs) if self.rng.random() < 0.7 else None
        self.add(Linear, self.here(), weight, bias)

    def thresholds(self, count: int, of: int | None = None) -> np.ndarray:
        """Numbers that occur in the channel, and some at the ends of the range."""
        of = self.here() if of is None else of
        seen, value = self.seen[of], self.values[of]
        by_channel = np.moveaxis(seen, channel_axis(value.shape), 0).reshape(value.channels, -1)
        found = np.stack([self.rng.choice(numbers, count) for numbers in by_channel])
        found[self.rng.random(found.shape) < 0.03] = value.high + 1
        found[self.rng.random(found.shape) < 0.03] = value.low
        return found

    def steps(self, levels: int = 1) -> None:
        least, unit = ((0, 1), (-1, 2))[int(self.rng.integers(2))] if levels == 1 else (0, 1)
        self.add(Steps, self.here(), self.thresholds(levels), self.signs(), least, unit)

    def bits(self) -> int:
        return self.add(Steps, self.here(), self.thresholds(1), self.signs(), 0, 1)

    def pool(self) -> None:
        size = 2 if min(self.last.shape[-2:]) >= 2 else 1
        smallest = self.rng.integers(0, 2, self.last.channels)
        self.add(Pool, self.here(), (size, size), (2, 1), (size // 2, 0), smallest)

    def count(self, axes: tuple[int, ...]) -> None:
        self.add(Count, self.here(), axes)

    def luts(self, tables: int, inputs: int = 6) -> None:
        """Of which some give the same for all rows, and some read a bit twice."""
        rng, index = self.rng, self.rng.integers(0, self.last.channels, (tables, inputs))
        table = (rng.random((tables, 2**inputs)) < rng.choice([0.0, 0.3, 0.5, 1.0], (tables, 1))).astype(np.int64)
        self.add(LUT, self.here(), index, table)

    def logic(self) -> IntegerProgram:
        """Two layers of truth tables of single columns' bits, and counts of groups of them."""
        columns = int(self.rng.integers(1, 90))
        self.add(Take, self.here(), self.rng.integers(0, self.last.channels, columns))
        if self.input.high > 1:
            self.bits()
        self.luts(int(self.rng.integers(1, 40)), int(self.rng.integers(1, 7)))
        groups, size = (int(n) for n in self.rng.integers(1, 12, 2))
        self.luts(groups * size)
        self.add(View, self.here(), (groups, 1, size))
        self.count((-2, -1))
        return IntegerProgram(self.input, tuple(self.ops), self.here(), (-2, 1))

    def logic_of_patches(self) -> IntegerProgram:
        """Truth tables of windows of columns' bits, then as `logic`."""
        windows, size = (int(n) for n in self.rng.integers(1, 7, 2))
        self.add(Take, self.here(), self.rng.integers(0, self.last.channels, 12))
        self.bits()
        self.add(Take, self.here(), self.rng.integers(0, 12, windows * size))
        self.add(View, self.here(), (windows, size))
        self.luts(int(self.rng.integers(1, 9)), 4)
        self.add(View, self.here(), (self.last.size,))
        self.luts(12, int(self.rng.integers(1, 7)))
        self.add(View, self.here(), (3, 1, 4))
        self.count((-2, -1))
        return IntegerProgram(self.input, tuple(self.ops), self.here(), (-2, 1))

    def flat(self) -> None:
        self.add(View, self.here(), (math.prod(self.last.shape),))

    def ended(self, classes: int = 4) -> IntegerProgram:
        """With the pixels summed, and a last layer."""
        if channel_axis(self.last.shape) == -3:
            self.count((-1, -2)) if self.rng.random() < 0.5 else self.flat()
        self.linear(classes, 3000)
        return IntegerProgram(self.input, tuple(self.ops), self.here(), (-7, 9))

    def rows(self, count: int) -> np.ndarray:
        """Inputs, of which some are all at an end."""
        given = self.input
        x = self.rng.integers(given.low, given.high + 1, (count, *given.shape))
        x[: count // 8] = given.low
        x[count // 8 : count // 4] = given.high
        return x


def random_program(seed: int, kind: str) -> tuple[IntegerProgram, np.ndarray]:
    """A program and rows for it.

    kind: "mlp", "table" (thermometer), "logic", "logic of bits", "logic of pixels", "logic of patches", "conv",
    "residual".
    """
    rng = np.random.default_rng([seed, 1])
    if kind in ("mlp", "table", "logic", "logic of patches"):
        given = Input("columns", (int(rng.integers(3, 9)),), -(2**15), 2**15 - int(rng.integers(2)), 12)
    elif kind == "logic of bits":
        given = Input("columns", (int(rng.integers(1, 70)),), 0, 1)
    else:
        given = Input("pixels", (int(rng.integers(1, 4)), int(rng.integers(5, 9)), int(rng.integers(5, 9))))
    made = Made(seed, given)
    if kind == "logic of pixels":  # whose values rise or fall with the pixel
        rising = np.sort(rng.integers(-900, 900, (given.shape[0], 256)), 1)
        made.add(Lookup, 0, rising * rng.choice([-1, 1], (given.shape[0], 1)))
        made.flat()
    if kind in ("logic", "logic of bits", "logic of pixels"):
        return made.logic(), made.seen[0]
    if kind == "logic of patches":
        return made.logic_of_patches(), made.seen[0]
    if kind == "mlp":
        made.linear(13)
        made.steps(int(rng.integers(1, 4)))
        made.linear(9)
        made.steps()
    elif kind == "table":
        made.add(Take, 0, rng.integers(0, given.shape[0], 21))
        made.bits()
        made.linear(10, 7)
        made.bits()
    else:
        made.lookup()
        made.conv(most=7)
        if rng.random() < 0.5:
            made.shift()
            made.conv()
        if kind == "conv":
            made.steps()
            made.pool()
            made.conv(most=1, stride=2)
            made.pool()
            made.steps(2)
        else:
            a = made.bits()
            made.conv(6, 63)
            b = made.here()
            shifts = rng.integers(0, 4, 6)
            if made.values[a].shape == made.values[b].shape:
                made.add(Add, a, b, shifts[::-1].copy(), shifts)
            made.bits()
    return made.ended(), made.seen[0]


LOGIC = ("logic", "logic of bits", "logic of pixels", "logic of patches")
KINDS = ("mlp", "table", *LOGIC, "conv", "residual")
