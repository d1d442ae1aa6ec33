"""Integer programs of truth tables, compiled to run on many rows at once: csrc/logic.hpp.

A program has this form where steps compare single columns, tables read these steps, columns of 0 and 1 and one another,
and counts of bits follow. What comes after the counts runs as the program defines it.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Int64, Integer

from htaf.core.kernels import native
from htaf.program.integer.logic_c import Compared, compared_of
from htaf.program.integer.ops import LUT, Array, Count, IntegerError, Lookup, Steps, Take, View
from htaf.program.integer.program import IntegerProgram

CHUNK = 64  # columns that are compared together
INPUTS = 6  # of a table
MOST = 2**24  # bits of a count
TABLES = 2**40  # the plane of the first table, while those of thresholds are counted
ALWAYS = -1  # the plane that is 0 for all rows


class _Bits(NamedTuple):
    """Bits of a row: bit i is that of plane[i], or the other one where inverted[i] is 1."""

    plane: Array
    inverted: Array


class Circuit:
    """An integer program of truth tables that computes a bit of 64 to 512 rows in one operation.

    sizes, arrays: the planes of bits as csrc/logic.hpp takes them. counted: the value that holds the counts.

    Args:
        program: of such a form, see the head of this file.

    Raises:
        IntegerError: it has another form, or a table of more than six inputs; the message names the operation.
    """

    def __init__(self, program: IntegerProgram) -> None:
        self.program, self.pixels = program, program.input.kind == "pixels"
        self.kind = np.uint8 if self.pixels else np.int32
        self._planes = dict[tuple[int, int], int]()  # of a column and what it is compared with
        self._chunks, self._levels = dict[int, list[int]](), Counter[int]()  # of 64 columns, and how many of a column
        self._first, self._thresholds = list[int](), list[Array]()
        self._inputs, self._entries, self._order, self.counted = list[Array](), list[Array](), list[int](), 0
        compared, bits = compared_of(program)[1], dict[int, _Bits]()
        if 0 in compared:  # tables may read the columns themselves
            planes = [self._plane(one.place, *one.toggles) for one in compared[0]]
            bits[0] = _Bits(np.array(planes), np.zeros(len(planes), bool))
        for number, op, _ in program:
            if self.counted:
                op.expect(all(read >= self.counted for read in op.reads), "what follows the counts", type(op).__name__)
            elif isinstance(op, Steps):
                op.expect(number in compared, "steps of columns to 0 and 1", f"{(op.least, op.unit)} of {op.x}")
                bits[number] = self._steps(number, op, compared[number])
            elif isinstance(op, LUT):
                op.expect(op.x in bits, "tables of steps and of tables", "others")
                bits[number] = self._lut(op, bits[op.x])
            elif isinstance(op, View) and op.x in bits:
                bits[number] = bits[op.x]
            elif isinstance(op, Take) and op.x in bits:
                bits[number] = _Bits(*(self._places(op, held).reshape(-1) for held in bits[op.x]))
            elif isinstance(op, Count) and op.x in bits:
                self._count(number, op, bits[op.x])
            else:
                moved = isinstance(op, (Take, Lookup, View)) and not any(read in bits for read in op.reads)
                op.expect(moved, "thresholds of columns, truth tables of these and counts", type(op).__name__)
        if not self.counted or program.output < self.counted:
            raise IntegerError("expected a program that counts the bits of truth tables, got none that counts")
        self.sizes, self.arrays = self._laid_out()
        self._circuit = (*self.sizes, *(array.ctypes.data for array in self.arrays))

    def __reduce__(self) -> tuple[Any, ...]:
        return Circuit, (self.program,)  # addresses are made anew

    def run(self, x: Integer[Array, "rows ..."]) -> Int64[Array, "rows classes"]:
        """As `IntegerProgram.run`.

        Args:
            x: integers in the range of the input, [rows, *input.shape]; pixels are read fastest as uint8.
        Raises:
            IntegerError: another shape, dtype or range; or htaf has no compiled kernels here.
        """
        values = {self.counted: self._counts(x)}
        for number, op in enumerate(self.program.ops[self.counted :], self.counted + 1):
            values[number] = op.run(*(values[place] for place in op.reads))
        return values[self.program.output]

    def classes(self, x: Integer[Array, "rows ..."]) -> Int64[Array, " rows"]:
        """The place of each row's greatest output, the first of several; raises as `run`."""
        if self.program.output != self.counted:
            return self.run(x).argmax(1)
        best = np.empty(len(x), np.int64)
        self._counts(x, best.ctypes.data)
        return best

    def _counts(self, x: Array, best: int = 0) -> Int64[Array, "rows groups"]:
        """The counts; best: an address for the place of the greatest of each row, in place of the counts."""
        given = self.program.input
        if not native.available():
            raise IntegerError("expected compiled kernels: install htaf with a C++ compiler")
        if x.dtype.kind not in "iub" or x.shape[1:] != given.shape:
            raise IntegerError(f"expected integers [rows, {given.shape}], got {x.dtype} {list(x.shape)}")
        if (
            x.size
            and not (self.pixels and x.dtype == np.uint8)
            and not (given.low <= int(x.min()) and int(x.max()) <= given.high)
        ):
            raise IntegerError(f"expected inputs in [{given.low}, {given.high}], got [{int(x.min())}, {int(x.max())}]")
        rows = np.ascontiguousarray(x.reshape(len(x), self.program.values[0].size), self.kind)
        counts = np.empty((0 if best else len(rows), self._groups), np.int64)
        to, threads = 0 if best else counts.ctypes.data, torch.get_num_threads()
        native.extension().circuit(self._circuit, rows.ctypes.data, to, best, len(rows), threads)
        return counts

    def _laid_out(self) -> tuple[tuple[int, ...], tuple[Array, ...]]:
        """The circuit as csrc/logic.hpp takes it."""
        thresholds = np.array(self._thresholds).astype(self.kind)
        inputs, planes = np.array(self._inputs), CHUNK * len(thresholds)
        inputs = np.where(inputs >= TABLES, inputs - TABLES + planes, inputs).astype(np.int32)
        first, places = (np.array(of, np.int32) for of in (self._first, self._order))
        arrays = (first, thresholds, inputs, np.array(self._entries, np.uint64), places)
        given, columns = self.program.input, self.program.values[0].size
        kind = 0 if self.pixels else 2 if given.low >= -(2**15) and given.high < 2**15 else 1
        return (kind, columns, len(thresholds), len(inputs), self._groups, self._size), arrays

    def _steps(self, number: int, op: Steps, compared: list[Compared]) -> _Bits:
        op.expect(all(len(one.toggles) < 2 for one in compared), "steps that rise or fall", "others")
        read = zip(compared, self._read(number).tolist(), strict=True)
        plane = [self._plane(one.place, *one.toggles) if one.toggles and is_read else ALWAYS for one, is_read in read]
        return _Bits(np.array(plane), np.array([one.first for one in compared], bool))

    def _read(self, number: int) -> Array:
        """Which bits of a step anything reads: tables read some, all else all."""
        readers = [op for op in self.program.ops if number in op.reads]
        found = np.full(self.program.values[number].shape, not all(isinstance(op, LUT) for op in readers))
        for op in readers:
            if isinstance(op, LUT):
                found[..., op.index] = True
        return found.reshape(-1)

    def _plane(self, column: int, least: int) -> int:
        """The plane of column >= least, in a chunk whose place for the column is free."""
        if (column, least) not in self._planes:
            first = column // CHUNK * CHUNK
            chunks, level = self._chunks.setdefault(first, []), self._levels[column]
            if level == len(chunks):
                chunks.append(len(self._first))
                self._first.append(first)
                self._thresholds.append(np.full(CHUNK, np.iinfo(self.kind).min))
            self._levels[column] += 1
            self._thresholds[chunks[level]][column - first] = least
            self._planes[column, least] = chunks[level] * CHUNK + column - first
        return self._planes[column, least]

    def _lut(self, op: LUT, bits: _Bits) -> _Bits:
        """Tables of six inputs; what is inverted, or the same for all rows, goes into their entries."""
        inputs = op.index.shape[1]
        op.expect(inputs <= INPUTS, f"tables of {INPUTS} inputs at most", inputs)
        plane, inverted = (self._places(op, held).reshape(-1, inputs) for held in bits)
        inverted, table = inverted.astype(np.int64), np.tile(op.table, (len(plane) // len(op.table), 1))
        place = np.arange(2**INPUTS) >> np.arange(inputs)[:, None] & 1
        given = np.where((plane == ALWAYS)[..., None], 0, place) ^ inverted[..., None]
        address = (given << np.arange(inputs)[:, None]).sum(1)
        entries = np.take_along_axis(table, address, 1).astype(np.uint64)
        return self._tables(plane, (entries << np.arange(2**INPUTS, dtype=np.uint64)).sum(1, dtype=np.uint64))

    def _places(self, op: Take | LUT, held: Array) -> Array:
        """What an operation reads of each row of the value that it takes."""
        return held.reshape(self.program.values[op.x].shape)[..., op.index]

    def _tables(self, plane: Array, entries: Array) -> _Bits:
        """New tables that read these planes, [tables, inputs]."""
        if not self._first:
            self._plane(0, self.program.input.high)
        read = np.pad(np.where(plane == ALWAYS, 0, plane), ((0, 0), (0, INPUTS - plane.shape[1])))
        made = TABLES + len(self._inputs) + np.arange(len(plane))
        order, read, entries = _shared(read, entries)
        self._order += [*len(self._inputs) + order]
        self._inputs += [*read]
        self._entries += [*entries]
        return _Bits(made, np.zeros(len(plane), bool))

    def _count(self, number: int, op: Count, bits: _Bits) -> None:
        shape = self.program.values[op.x].shape
        op.expect(sorted(op.axes) == [*range(1 - len(shape), 0)], "counts of all but the first axis", op.axes)
        op.expect(math.prod(shape[1:]) < MOST, f"counts below {MOST:,}", math.prod(shape[1:]))
        last = TABLES + len(self._inputs)
        if not np.array_equal(bits.plane, np.arange(last - len(bits.plane), last)):  # others, or in another order
            one, constant = 0xAAAAAAAAAAAAAAAA, bits.plane == ALWAYS
            entries = np.where(constant, 0, one).astype(np.uint64) ^ np.where(bits.inverted, 2**64 - 1, 0).astype(
                np.uint64
            )
            self._tables(bits.plane[:, None], entries)
        self.counted, self._groups, self._size = number, shape[0], math.prod(shape[1:])


def _shared(read: Array, entries: Array) -> tuple[Array, Array, Array]:
    """Tables in an order in which neighbours share their first two inputs where they can: their functions are then made
    once.

    Returns:
        The place of each before, and what it reads and its entries, with its inputs in another order.
    """
    of = defaultdict[tuple[int, int], list[tuple[int, int, int]]](list)
    for table, row in enumerate(read.tolist()):
        for i, j in combinations(sorted(range(INPUTS), key=row.__getitem__), 2):
            of[row[i], row[j]].append((table, i, j))
    found = dict[int, list[int]]()
    for some in sorted(of.values(), key=len, reverse=True):
        left = [one for one in some if one[0] not in found]
        if len(left) > 1:
            found |= {table: [i, j, *sorted({*range(INPUTS)} - {i, j})] for table, i, j in left}
    found |= {table: [*range(INPUTS)] for table in range(len(read)) if table not in found}
    order, turned = np.array([*found]), np.array([*found.values()])
    address = ((np.arange(2**INPUTS) >> np.arange(INPUTS)[:, None] & 1) << turned[..., None]).sum(1)
    bits = entries[order][:, None] >> address.astype(np.uint64) & np.uint64(1)
    moved = (bits << np.arange(2**INPUTS, dtype=np.uint64)).sum(1, dtype=np.uint64)
    return order, np.take_along_axis(read[order], turned, 1), moved
