"""A network as a program of integer operations: one definition, which every other form must equal to the last bit."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
from jaxtyping import Float64, Int64, Integer, Num
from numpy.typing import ArrayLike

from htaf.program.integer import ops
from htaf.program.integer.ops import WIDEST, Array, IntegerError, Op, Value

KINDS = ("pixels", "columns")


PACKED = "packed"  # of `about`: what `htaf.load` needs besides
LARGEST = 2**28  # numbers of a value, a row


@dataclass(frozen=True)
class Input:
    """What a program takes a row: pixels 0 to 255 [C, H, W], or prepared columns [F] as integers.

    A column is round(x * 2 ** exponent), half to even, kept in [low, high].
    """

    kind: Literal["pixels", "columns"]
    shape: tuple[int, ...]
    low: int = 0
    high: int = 255
    exponent: int = 0

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise IntegerError(f"expected an input of pixels or columns, got {self.kind!r}")
        if len(self.shape) not in (1, 3) or min(self.shape) < 1:
            shapes = "[features] or [channels, height, width], of lines [channels, 1, places]"
            raise IntegerError(f"expected an input {shapes}, got {list(self.shape)}")
        if not -(2**31) <= self.low < self.high < 2**31 or (
            self.kind == "pixels" and (self.low, self.high) != (0, 255)
        ):
            raise IntegerError(f"expected int32 columns or pixels of 0 to 255, got [{self.low}, {self.high}]")

    def quantised(self, x: Num[Array, "rows ..."]) -> Int64[Array, "rows ..."]:
        """Prepared columns as integers; pixels are integers already."""
        if self.kind == "pixels":
            return x.astype(np.int64)
        if np.isnan(x).any():
            raise IntegerError(f"expected numbers in all columns, got NaN in {int(np.isnan(x).any(-1).sum())} rows")
        return np.rint(np.ldexp(x.astype(np.float64), self.exponent)).clip(self.low, self.high).astype(np.int64)


@dataclass(frozen=True)
class IntegerProgram:
    """A network of integers alone.

    Value 0 is the input, value i + 1 what `ops[i]` gives; an operation reads earlier values only. A row's outputs are
    those of value `output`, one a class, times 2 ** unit[0] / unit[1]: one number for all of them, so that the greatest
    integer is the greatest output.

    about: what else is to be known of it: JSON values.

    Raises:
        IntegerError: an operation reads a value that is not there yet, or of a shape or range that it cannot take.
    """

    input: Input
    ops: tuple[Op, ...]
    output: int
    unit: tuple[int, int] = (0, 1)
    about: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        whole = (self.input.low, self.input.high, self.input.exponent, *self.input.shape, self.output, *self.unit)
        if len(self.unit) != 2 or not all(type(number) is int for number in whole):
            raise IntegerError(f"expected integers in the input, the output and the unit, got {whole}")
        if not isinstance(self.about, Mapping):
            raise IntegerError(f"expected an object in about, got {type(self.about).__name__}")
        if not 0 <= self.output <= len(self.ops):
            raise IntegerError(f"expected an output in 0 to {len(self.ops)}, got {self.output}")
        if self.unit[1] < 1:
            raise IntegerError(f"expected a divisor from 1 in the unit, got {self.unit[1]}")
        if len(self.values[self.output].shape) != 1:
            raise IntegerError(f"expected outputs [classes], got {list(self.values[self.output].shape)}")

    def __repr__(self) -> str:
        """Its operations without their numbers."""
        lines = [f"IntegerProgram {self.digest[:12]}: {self.input}", *(f"{n}: {_short(op, v)}" for n, op, v in self)]
        return "\n".join([*lines, f"output: {self.output}, times 2 ** {self.unit[0]} / {self.unit[1]}"])

    @cached_property
    def values(self) -> tuple[Value, ...]:
        """All values, the input first; their ranges hold for every input."""
        found = [Value(self.input.shape, self.input.low, self.input.high)]
        for op in self.ops:
            wrong = [number for number in op.reads if not 0 <= number < len(found)]
            op.expect(not wrong, f"values in 0 to {len(found) - 1}", wrong)
            made = op.value(*(found[number] for number in op.reads))
            widest = max(abs(made.low), abs(made.high))
            op.expect(widest <= WIDEST, "sums that an int64 holds", f"up to {widest:,}")
            op.expect(made.size <= LARGEST, f"at most {LARGEST:,} numbers a row", f"{made.size:,}")
            found.append(made)
        return tuple(found)

    def __iter__(self) -> Iterator[tuple[int, Op, Value]]:
        """The number of each operation's value, the operation, and the value."""
        return ((i + 1, op, self.values[i + 1]) for i, op in enumerate(self.ops))

    def run(self, x: Integer[Array, "rows ..."]) -> Int64[Array, "rows classes"]:
        """The integer outputs of some rows, by the definition of each operation.

        Args:
            x: integers in the range of the input, [rows, *input.shape].
        Raises:
            IntegerError: another shape or range.
        """
        return self.every_value(x)[self.output]

    def outputs(self, x: ArrayLike) -> Float64[Array, "rows classes"]:
        """What the network gives: `run` of `input.quantised(x)`, times the unit.

        Args:
            x: prepared columns [rows, *input.shape], as the network takes them, or pixels.
        """
        exponent, divisor = self.unit
        return np.ldexp(self.run(self.input.quantised(np.asarray(x))).astype(np.float64), exponent) / divisor

    def every_value(self, x: Integer[Array, "rows ..."]) -> list[Int64[Array, "rows ..."]]:
        """All values of some rows, as `run` makes them; each is checked against its proved range."""
        given, wanted = np.asarray(x), self.input
        if given.dtype.kind not in "iub" or given.shape[1:] != wanted.shape or not given.ndim:
            raise IntegerError(f"expected integers [rows, {wanted.shape}], got {given.dtype} {list(given.shape)}")
        if given.size and not (wanted.low <= int(given.min()) and int(given.max()) <= wanted.high):
            ends = f"[{int(given.min())}, {int(given.max())}]"
            raise IntegerError(f"expected inputs in [{wanted.low}, {wanted.high}], got some in {ends}")
        found = [given.astype(np.int64)]
        for number, op, value in self:
            made = op.run(*(found[place] for place in op.reads))
            assert made.shape[1:] == value.shape, (op.name, made.shape, value)
            assert not made.size or value.low <= made.min() <= made.max() <= value.high, (number, op.name, value)
            found.append(made)
        return found

    def described(self) -> dict[str, Any]:
        """The program without its arrays, as JSON values."""
        about = {"kind": self.input.kind, "shape": list(self.input.shape), "low": self.input.low}
        about |= {"high": self.input.high, "exponent": self.input.exponent}
        made = [{"op": type(op).__name__, **ops.plain(op), "arrays": sorted(ops.arrays(op))} for op in self.ops]
        return {"input": about, "ops": made, "output": self.output, "unit": list(self.unit), "about": dict(self.about)}

    @cached_property
    def digest(self) -> str:
        """The SHA-256 of the program, in hexadecimal digits: two programs with the same one are the same."""
        said = self.described()
        said["about"].pop(PACKED, None)  # what a run's metrics and labels are changes no number
        found = hashlib.sha256(json.dumps(said, sort_keys=True).encode())
        for op in self.ops:
            for name, array in sorted(ops.arrays(op).items()):
                found.update(f"{name} {array.shape}".encode())
                found.update(array.astype("<i8").tobytes())
        return found.hexdigest()


def _short(op: Op, value: Value) -> str:
    reads, shape = ", ".join(map(str, op.reads)), list(value.shape)
    return f"{type(op).__name__} {op.name} of {reads}: {shape} in {value.low:,} to {value.high:,}"


# ---- programs that compute the same with fewer or cheaper operations ----


def needed(program: IntegerProgram) -> IntegerProgram:
    """Without operations that the output does not need."""
    wanted = {program.output}
    for number in range(len(program.ops), 0, -1):
        if number in wanted:
            wanted.update(program.ops[number - 1].reads)
    kept = [0, *sorted(wanted - {0})]
    places = {number: place for place, number in enumerate(kept)}
    made = list[Op]()
    for op in (program.ops[number - 1] for number in kept[1:]):
        made.append(replace(op, **{name: places[getattr(op, name)] for name in op.READS}))
    return replace(program, ops=tuple(made), output=places[program.output])


def simplify(program: IntegerProgram) -> IntegerProgram:
    """What the output needs, with poolings behind steps: a pooling whose only reader is a step pools the step's bits,
    the least where the step falls. Truth tables are reduced, see `fewer_bits`."""
    program = needed(program)
    made, readers = [*program.ops], Counter([program.output, *(read for op in program.ops for read in op.reads)])
    for number, op, _ in reversed([*program]):  # of several poolings the last first
        after = made[number] if number < len(made) else None
        if isinstance(op, ops.Pool) and isinstance(after, ops.Steps) and after.x == number and readers[number] == 1:
            made[number - 1] = replace(after, x=op.x)
            made[number] = replace(op, x=number, smallest=op.smallest ^ (after.sign < 0))
    return fewer_bits(replace(program, ops=tuple(made)))


def fewer_bits(program: IntegerProgram) -> IntegerProgram:
    """The same outputs by truth tables that read no bit twice, no constant one, and none on which they do not depend.

    Of equal bits the tables read the first. A bit that only tables can read and none does is left out. The output needs
    all operations.
    """
    made, known = [*program.ops], dict[int, Array]()
    for number, op, value in program:
        if isinstance(op, ops.LUT):
            made[number - 1] = op = _reduced(op, known.get(op.x, np.arange(program.values[op.x].channels)))
            constant = np.where((op.table == op.table[:, :1]).all(1), -1 - op.table[:, 0], 0)
            known[number] = _firsts(np.column_stack([op.index, op.table]), constant)
        elif isinstance(op, ops.Steps) and (value.low, value.high) == (0, 1) and ops.channel_axis(value.shape) == -1:
            before, given = made[op.x - 1] if op.x else None, program.values[op.x]
            column = before.index if isinstance(before, ops.Take) else np.arange(given.channels)
            (threshold,), low = op.thresholds.T, np.where(op.sign > 0, given.low, -given.high)
            constant = np.where(threshold <= low, -2, np.where(threshold > low + given.high - given.low, -1, 0))
            known[number] = _firsts(np.column_stack([column, threshold, op.sign]), constant)
    for number in sorted(known, reverse=True):
        _keep_what_is_read(made, number)
    return replace(program, ops=tuple(_narrowed(op) if isinstance(op, ops.LUT) else op for op in made))


def _firsts(rows: Array, constant: Array) -> Array:
    """For each bit the first one that is made by an equal row; -1 and -2, as `constant` says, where it is 0 or 1."""
    _, first, of = np.unique(rows, axis=0, return_index=True, return_inverse=True)
    return np.where(constant < 0, constant, first[of.reshape(-1)])


def _reduced(op: ops.LUT, known: Array) -> ops.LUT:
    """Tables whose inputs are sorted. Behind those on which a table depends it repeats the first, or bit 0."""
    place = np.arange(op.index.shape[1])
    address, read = np.arange(2 ** len(place)), known[op.index]
    bits = address >> place[:, None] & 1
    first = (read[:, :, None] == read[:, None]).argmax(2)
    given = np.where(read[..., None] < 0, -1 - read[..., None], bits[first])
    table = np.take_along_axis(op.table, (given << place[:, None]).sum(1), 1)
    matters = (table[:, address ^ (1 << place[:, None])] != table[:, None]).any(2)
    order = np.where(matters, read, len(known)).argsort(1, kind="stable")
    index = np.take_along_axis(np.where(matters, read, -1), order, 1)
    index = np.where(index < 0, index[:, :1].clip(0), index)
    table = np.take_along_axis(table, (bits << order[..., None]).sum(1), 1)
    return replace(op, index=index, table=table)


def _narrowed(op: ops.LUT) -> ops.LUT:
    """Without inputs that every table repeats."""
    inputs = 1 + int((op.index[:, 1:] != op.index[:, :1]).any(0).sum())
    return replace(op, index=op.index[:, :inputs], table=op.table[:, : 2**inputs])


def _keep_what_is_read(made: list[Op], number: int) -> None:
    """Take away the bits of a value that only tables read, but for those that they do; and what made them."""
    op, readers = made[number - 1], [place for place, one in enumerate(made) if number in one.reads]
    tables = [(place, one) for place in readers if isinstance(one := made[place], ops.LUT)]
    if not readers or len(tables) < len(readers):
        return
    used = np.unique(np.concatenate([one.index.reshape(-1) for _, one in tables]))
    if isinstance(op, ops.LUT):
        made[number - 1] = replace(op, index=op.index[used], table=op.table[used])
    elif isinstance(op, ops.Steps):
        before = made[op.x - 1] if op.x else None
        if not isinstance(before, ops.Take) or sum(op.x in one.reads for one in made) > 1:
            return
        made[op.x - 1] = replace(before, index=before.index[used])
        made[number - 1] = replace(op, thresholds=op.thresholds[used], sign=op.sign[used])
    for place, one in tables:
        made[place] = replace(one, index=np.searchsorted(used, one.index))
