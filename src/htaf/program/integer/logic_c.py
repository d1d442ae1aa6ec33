"""C of truth tables: every table is written out as compares and shifts of one word, so that nothing is indexed.

A table of five inputs is a word of 32 bits. Each input shifts it by half of what is left, or not, and the last bit is
the table's. The sixth input chooses one of two words:

    w = 0x0ff017e8u;
    KEEP(w);
    if (x[3] >= 7) w = 0x96a5c33cu;
    if (x[9] >= 5) w >>= 16;
    ...
    n += w & 1;

A threshold is compared where a table reads it: a compare costs no more than the load of a bit.
"""

from __future__ import annotations

import itertools
import re
import unicodedata
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from htaf.program.integer.exports import is_raw, least_difference
from htaf.program.integer.ops import LUT, Array, Count, Lookup, Steps, Take, View, by_channel
from htaf.program.integer.program import IntegerProgram

MOST = 1024  # tables that are written out: 50 to 90 bytes each. More are loops over arrays
OFTEN = 5  # columns that are named
WORD = 5  # inputs of a table that is one word


@dataclass(frozen=True)
class Compared:
    """A bit of one column: `first` below all toggles, and the other one from each toggle on."""

    place: int
    toggles: tuple[int, ...]
    first: int

    def at(self, x: Sequence[int]) -> Array:
        """The bits of some integers."""
        return (self.first + np.searchsorted(self.toggles, x, side="right")) % 2

    def text(self) -> str:
        """A condition in C; there is a toggle at least."""
        v, ends = f"x[{self.place}]", [None, *self.toggles] if self.first else [*self.toggles]
        spans = [_within(v, a, b) for a, b in zip(ends[::2], [*ends[1::2], None][: len(ends[::2])], strict=True)]
        return " || ".join(f"({one})" if "&&" in one else one for one in spans)


def _within(v: str, low: int | None, high: int | None) -> str:
    """That low <= v < high."""
    if low is not None and high == low + 1:
        return f"{v} == {low}"
    parts = [f"{v} >= {low}"] * (low is not None) + [f"{v} < {high}"] * (high is not None)
    return " && ".join(parts)


@dataclass(frozen=True, eq=False)
class Table:
    """A truth table: its entry is that at the sum of inputs[i] 2^i."""

    inputs: tuple[Bit, ...]
    entries: Array


Bit = Compared | Table


def reduced(inputs: Sequence[Bit], entries: Array) -> Bit:
    """The same bit of as few inputs as it depends on; of one column alone its compares."""
    by_axis, cube = [*inputs][::-1], entries.reshape([2] * len(inputs))
    axis = 0
    while axis < len(by_axis):
        one, twin = by_axis[axis], by_axis.index(by_axis[axis])
        zero, other = cube.take(0, axis), cube.take(1, axis)
        if isinstance(one, Compared) and not one.toggles:
            cube = other if one.first else zero
        elif twin < axis:
            cube = np.moveaxis(cube.diagonal(0, twin, axis), -1, twin)
        elif np.array_equal(zero, other):
            cube = zero
        else:
            axis += 1
            continue
        del by_axis[axis]
        axis = 0
    columns = [one for one in by_axis if isinstance(one, Compared)]
    if len(columns) == len(by_axis) and len({one.place for one in columns}) <= 1:
        ends = sorted({end for one in columns for end in one.toggles})
        points = [ends[0] - 1, *ends] if ends else [0]
        found = np.broadcast_to(cube[tuple(one.at(points) for one in columns)], len(points))
        changed = [end for end, differs in zip(ends, np.diff(found), strict=True) if differs]
        return Compared(columns[0].place if columns else 0, tuple(changed), int(found[0]))
    if len(by_axis) == 1 and cube[1]:
        return by_axis[0]
    return Table(tuple(by_axis[::-1]), cube.reshape(-1))


@dataclass(frozen=True)
class Logic:
    """What a program counts. number: of the value that holds the counts. groups: the bits of each count."""

    number: int
    groups: tuple[tuple[Bit, ...], ...]

    def tables(self) -> list[Table]:
        """Those that are needed, each after those that it reads."""
        found = dict[Table, None]()

        def visit(one: Bit) -> None:
            if isinstance(one, Table) and one not in found:
                for read in one.inputs:
                    visit(read)
                found[one] = None

        for bits in self.groups:
            for one in bits:
                visit(one)
        return [*found]

    def stored(self) -> dict[Table, str]:
        """Those that other tables read, and where their bits lie in C."""
        tables = self.tables()
        read = {one for table in tables for one in table.inputs}
        return {table: f"b[{i}]" for i, table in enumerate(table for table in tables if table in read)}


def stored_lines(stored: dict[Table, str]) -> Iterator[str]:
    """C that computes the bits that other tables read."""
    for table, place in stored.items():
        yield from _word(table, stored)
        yield f"{place} = w & 1;"


def count_lines(bits: Sequence[Bit], stored: dict[Table, str]) -> Iterator[str]:
    """C that counts bits in n."""
    yield f"n = {sum(one.first for one in bits if isinstance(one, Compared) and not one.toggles)};"
    for one in bits:
        if isinstance(one, Compared):
            yield from [f"if ({one.text()}) n++;"] * bool(one.toggles)
        elif one in stored:
            yield f"n += {stored[one]};"
        else:
            yield from _word(one, stored)
            yield "n += w & 1;"


def _word(table: Table, stored: dict[Table, str]) -> Iterator[str]:
    tests = [one.text() if isinstance(one, Compared) else stored[one] for one in table.inputs]
    bits = min(len(tests), WORD)
    words = (table.entries.reshape(-1, 2**bits) << np.arange(2**bits)).sum(1)
    texts = [f"0x{word:0{max(2**bits // 4, 1)}x}u" for word in words.tolist()]
    for test in tests[WORD:-1]:
        texts = [f"({test} ? {one} : {zero})" for zero, one in zip(texts[::2], texts[1::2], strict=True)]
    yield f"w = {texts[0]};"
    yield "KEEP(w);"
    yield from (f"if ({tests[-1]}) w = {text};" for text in texts[1:])
    for i in reversed(range(bits)):
        yield f"if ({tests[i]}) w >>= {2**i};"


def compared_of(program: IntegerProgram) -> tuple[dict[int, tuple[Array, Array | None]], dict[int, list[Compared]]]:
    """The values that are columns or pixels as they come, by the place of each element and what it makes of a pixel;
    and those that are thresholds of these. Columns of 0 and 1 are both."""
    columns: dict[int, tuple[Array, Array | None]] = {0: (np.arange(program.values[0].size), None)}
    bits, are_bits = dict[int, list[Compared]](), (program.input.low, program.input.high) == (0, 1)
    if are_bits:
        bits[0] = [Compared(place, (1,), 0) for place in range(program.values[0].size)]
    for number, op, _ in program:
        if (source := op.reads[0]) not in columns:
            continue
        (places, table), shape = columns[source], program.values[source].shape
        match op:
            case Lookup() if table is None:
                columns[number] = places, _each(op.table, shape)
            case Take():
                taken = np.arange(len(places)).reshape(shape)[..., op.index].reshape(-1)
                columns[number] = places[taken], None if table is None else table[taken]
            case View():
                columns[number] = columns[source]
            case Steps() if (op.least, op.unit, op.thresholds.shape[1]) == (0, 1, 1):
                bits[number] = _compared(program, op, places, table)
        if are_bits and number in columns and columns[number][1] is None:
            bits[number] = [Compared(place, (1,), 0) for place in columns[number][0].tolist()]
    return columns, bits


def logic_of(program: IntegerProgram) -> Logic | None:
    """What a program counts, where it is thresholds of columns or of pixels, truth tables and counts of their bits;
    operations behind the counts may be of any kind. None where it has another form, or more than `MOST` tables."""
    columns, compared = compared_of(program)
    bits: dict[int, Sequence[Bit]] = {**compared}
    for number, op, _ in program:
        source = op.reads[0]
        shape = program.values[source].shape
        match op:
            case _ if number in columns or number in bits:
                continue
            case View() if source in bits:
                bits[number] = bits[source]
            case LUT() if source in bits and len(shape) == 1:
                given = bits[source]
                read = zip(op.index.tolist(), op.table, strict=True)
                bits[number] = [reduced([given[i] for i in places], entries) for places, entries in read]
            case Count() if source in bits and len(op.axes) == len(shape) - 1 and -len(shape) not in op.axes:
                return _counted(program, number, bits[source])
            case _:
                return None
    return None


def _counted(program: IntegerProgram, number: int, bits: Sequence[Bit]) -> Logic | None:
    after = (read for op in program.ops[number:] for read in op.reads)
    size = len(bits) // program.values[number].size
    found = Logic(number, tuple(tuple(bits[i : i + size]) for i in range(0, len(bits), size)))
    apart = number <= program.output and all(read >= number for read in after)
    return found if apart and len(found.tables()) <= MOST else None


def _each(of: Array, shape: tuple[int, ...]) -> Array:
    """What is there once a channel, once an element."""
    channel = np.broadcast_to(by_channel(np.arange(len(of)), shape), shape)
    return of[channel.reshape(-1)]


def _compared(program: IntegerProgram, op: Steps, places: Array, table: Array | None) -> list[Compared]:
    shape = program.values[op.x].shape
    thresholds, signs = _each(op.thresholds[:, 0], shape).tolist(), _each(op.sign, shape).tolist()
    found, low, high = list[Compared](), program.input.low, program.input.high
    for i, (place, threshold, sign) in enumerate(zip(places.tolist(), thresholds, signs, strict=True)):
        if table is not None:
            fires = (table[i] * sign >= threshold).astype(np.int64)
            found.append(Compared(place, tuple((np.flatnonzero(np.diff(fires)) + 1).tolist()), int(fires[0])))
            continue
        end = threshold if sign > 0 else 1 - threshold
        found.append(Compared(place, (end,) if low < end <= high else (), int((sign > 0) == (end <= low))))
    return found


@dataclass(frozen=True)
class Asked:
    """What a logic network asks, and what its C takes on a Cortex-M0.

    Attributes:
        logic: its tables. times: how many of them read an input, by its place.
        flash, instructions: bytes, and instructions a row: estimates by the inputs of a table and the width of a
            column, means of benchmarks/integer_peers.py.
    """

    logic: Logic
    times: Counter[int]
    flash: int
    instructions: int


def asked(program: IntegerProgram) -> Asked | None:
    """Count what a logic network asks; None of other programs."""
    if (logic := logic_of(program)) is None:
        return None
    tables = logic.tables()
    times = Counter(one.place for table in tables for one in table.inputs if isinstance(one, Compared))
    inputs, narrow = sum(len(table.inputs) for table in tables), program.input.high - program.input.low < 256
    taken = ((3, 11), (5, 3.4)) if narrow else ((18, 15), (7, 4.5))
    flash, instructions = (round(each * len(tables) + more * inputs, -2) for each, more in taken)
    return Asked(logic, times, int(flash), int(instructions))


def told(program: IntegerProgram) -> tuple[str, ...]:
    """Say what a logic network asks and takes, in words; none of other programs."""
    if (found := asked(program)) is None:
        return ()
    columns = program.about.get("columns") or []
    names = [one.get("name", one["column"]) for one in columns] or [f"x[{i}]" for i in range(program.values[0].size)]
    often = ", ".join(f"{names[place]} {times}" for place, times in found.times.most_common(OFTEN))
    asks = f"{len(found.logic.tables()):,} tables ask {len(found.times):,} of {len(names):,} inputs, most often {often}"
    takes = f"{found.flash:,} bytes of flash and {found.instructions:,} instructions a row on a Cortex-M0"
    return asks, f"about {takes}, an estimate"


# ---- names of raw columns, and classes ----

STDINT = re.compile(r"(U?INT\w*|SIZE|PTRDIFF|SIG_ATOMIC|WCHAR|WINT)_(MIN|MAX|C)")  # macros of C's


def _letters(text: str) -> str:
    """A text in A to Z, 0 to 9 and _, without accents; empty where it has letters that these do not spell."""
    plain = "".join(c for c in unicodedata.normalize("NFKD", text).upper() if not unicodedata.combining(c))
    spelled = all(c.isascii() or not c.isalpha() for c in plain)
    return re.sub(r"[^A-Z0-9]+", "_", plain).strip("_") if spelled else ""


def names(program: IntegerProgram, name: str, taken: Sequence[str]) -> str:
    """Enumerations for a header: the places of raw columns, what stands for a missing value, and the places of texts;
    empty where the inputs are no raw columns. What A to Z do not spell is named by its number. taken: names that are
    there."""
    columns = program.about.get("columns") or []
    if not is_raw(columns):
        return ""
    used = {*taken}

    def named(before: str, text: str, otherwise: str) -> str:
        text = f"{before.upper()}_{_letters(text) or otherwise}"
        every = (text if i == 1 else f"{text}_{i}" for i in itertools.count(1))
        free = next(one for one in every if one not in used and not STDINT.fullmatch(one))
        used.add(free)
        return free

    places, texts = list[str](), list[str]()
    for one in columns:
        place = named(name, one["name"], f"COLUMN_{one['x']}")
        places.append(f"    {place} = {int(one['x'])}")
        if one["kind"] == "fixed":
            texts.append(f"    {named(place, 'missing', '')} = {int(one['missing'])}")
            continue
        texts.append(f"    {named(place, 'other', '')} = {len(one['texts'])}")
        if "" not in one["texts"]:
            texts.append(f"    {named(place, 'missing', '')} = {len(one['texts'])}")
        texts += [f"    {named(place, text or 'missing', f'TEXT_{i}')} = {i}" for i, text in enumerate(one["texts"])]
    classes = (program.about.get("target") or {}).get("classes") or ()
    labels = [f"    {named(f'{name}_class', str(one), f'NUMBER_{i}')} = {i}" for i, one in enumerate(classes)]
    said = {"places in x": places, "what stands for a missing value, and for texts": texts, "classes": labels}
    parts = [f"/* {what} */\nenum {{\n" + ",\n".join(some) + "\n};\n" for what, some in said.items() if some]
    return "\n".join(parts)


def chosen(program: IntegerProgram) -> str:
    """C statements that give the class of the outputs y; empty of a regression."""
    target, outputs = program.about.get("target") or {}, program.values[program.output].size
    if outputs < 2 or target.get("task", "classification") != "classification":
        return ""
    if (least := least_difference(program)) is not None:
        end = program.values[program.output]
        wide = "(int64_t)" * (end.high - end.low >= 2**31)
        return f"    return {wide}y[1] - {wide}y[0] >= {least};"
    return f"""    int most = 0;
    for (int i = 1; i < {outputs}; i++) if (y[i] > y[most]) most = i;
    return most;"""
