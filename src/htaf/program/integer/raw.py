"""Programs of tables that take raw columns as integers: amounts in cents, an index a category.

A program whose columns are read by thresholds alone needs no preparation. A bit of a prepared column is a set of raw
values, which begins and ends at some integers; these are found with the preparation itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Int64

from htaf.data import dates
from htaf.data.preprocess import spelled
from htaf.program.integer.logic_c import Compared, compared_of
from htaf.program.integer.ops import LUT, Array, IntegerError, Linear, Op, Steps, Take
from htaf.program.integer.program import Input, IntegerProgram

Line = dict[str, Any]
TEXTS = ("category", "other", "encoded", "index")
TYPES = ((0, 2**8 - 1), (-(2**7), 2**7 - 1), (0, 2**16 - 1), (-(2**15), 2**15 - 1), (-(2**31), 2**31 - 1))
DECIMALS = 9
PARITY = 6  # inputs of a table that joins thresholds
UNSEEN = "\0"  # a text that is no category


# ---- an input of a raw column, by what a program says of it ----


def prepared_column(said: Line, v: Array, given: Input) -> Int64[Array, " rows"]:
    """What a program takes, by a line of `about["columns"]`.

    Args:
        v: the raw column: float64 with NaN, datetime64[us] or texts as `spelled`; of a date also its part, float64.
    """
    match said["kind"]:
        case "number":
            absent = np.isnan(v) | np.isin(v, said["codes"])
            t = np.where(absent, said["fill"], v) * said["scale"] + said["offset"]
        case "code":
            t = v == said["code"]
        case "missing":
            t = pd.isna(v)
        case "date":
            if v.dtype.kind == "M":
                v = np.where(np.isnat(v), np.datetime64(said["fill"], "us"), v)
            t = (_part(said, v) - said["low"]) / (said["high"] - said["low"])
        case "category":
            t = v == spelled(said["text"])
        case "other":
            t = ~np.isin(v, [spelled(text) for text in said["texts"]])
        case "encoded":
            known = {spelled(text): number for text, number in said["values"].items()}
            return np.array([known.get(text, said["otherwise"]) for text in v], np.int64)
        case "index":
            known = {spelled(text): place for place, text in enumerate(said["texts"])}
            return np.array([known.get(text, len(known)) for text in v], np.int64)
        case "fixed":
            v = _part(said, v)
            t = np.rint(v * 10.0 ** said["decimals"]).clip(*_values(said))
            return np.where(np.isnan(v), said["missing"], t).astype(np.int64)
        case kind:
            raise IntegerError(f"expected an input of a known kind, got {kind!r}")
    return given.quantised(np.asarray(t, np.float32))


def _part(said: Line, v: Array) -> Array:
    """The numbers of a column: of dates those of a part, NaN where there is none."""
    return dates.numbers(v, np.datetime64(said["first"], "us"))[said["part"]] if v.dtype.kind == "M" else v


# ---- raw columns of a program ----


def raw_inputs(program: IntegerProgram, values: Mapping[str, Array]) -> list[Line]:
    """What the inputs of `raw` are, as JSON values: a line a raw column, of a date one a part that is read.

    fixed: a number in units of 10^-decimals, the least at which all rows, codes and ends of the training are exact and
    an int32 holds them. low, high: the smallest type that holds all columns; its last integer (the least one of a
    signed type) is no value. A missing value is that integer, or one of the values by which the program does the same.
    index: the place of the text in "texts", behind them that of all other texts; texts alike to the program are
    neighbours.

    Args:
        program: as `raw` takes it. values: raw columns as `prepared_column` takes them, by name, such as those by which
            the program is checked.

    Raises:
        IntegerError: a program that reads columns in another way, or values that no int32 holds.
    """
    _, bits, used = _thresholds(program)
    columns, given = program.about["columns"], program.input
    read = [bits[i] for i in used]
    lines, ends = _begun(columns, {one.place for one in read}), [0, 0]
    for x, line in enumerate(lines):
        if line["kind"] == "fixed":
            v = np.concatenate([_part(line, values[line["column"]]), [*_known(line, columns)]]).astype(float)
            v = v[~np.isnan(v)] if any(_home(columns[one.place], lines) == x for one in read) else v[:0]
            line["decimals"] = _decimals(line["name"], v)
            integers = np.rint(v * 10.0 ** line["decimals"]).astype(np.int64)
            ends = [min(ends[0], int(integers.min(initial=0))), max(ends[1], int(integers.max(initial=0)))]
        else:
            ends[1] = max(ends[1], len(line["texts"]))
    low, high = next((a, b) for a, b in TYPES if a + (a < 0) <= ends[0] and ends[1] <= b - (a == 0))
    for x, line in enumerate(lines):
        line |= {"low": low, "high": high}
        own = [one for one in read if _home(columns[one.place], lines) == x]
        if line["kind"] == "fixed":
            line["missing"] = _missing(line, columns, own, given)
        else:
            line["texts"] = _in_order(line, columns, own, given)
    return [{"x": x, **line} for x, line in enumerate(lines)]


def raw(program: IntegerProgram, columns: Sequence[Line]) -> IntegerProgram:
    """The program that computes the same of raw columns.

    A bit of a prepared column becomes thresholds of the raw one, joined by a table of parity where it has several.
    Bits that are read nowhere are left out.

    Args:
        program: of prepared columns, which `about["columns"]` describes, as `htaf.training.runs.packing.build_run`
            makes it. columns: as `raw_inputs`.

    Raises:
        IntegerError: columns are read by something else than thresholds of one number, or these by something else than
            truth tables and sums; lines that are none of `raw_inputs` of this program.
    """
    number, bits, used = _thresholds(program)
    try:
        made = [_toggled(bits[i], program, columns) for i in used]
        given = Input("columns", (len(columns),), int(columns[0]["low"]), int(columns[0]["high"]))
    except (KeyError, IndexError, TypeError, ValueError, OverflowError) as error:
        raise IntegerError(f"expected lines of raw columns, got {error!r}") from None
    different = [*dict.fromkeys(made)]
    ops = _joined(program.ops[number - 1].name, different, given)
    places, behind = {one: place for place, one in enumerate(different)}, len(ops) - number
    index = np.zeros(len(bits), int)
    index[used] = [places[one] for one in made]
    for op in program.ops[number:]:
        moved = replace(op, **{name: getattr(op, name) + behind for name in op.READS})
        if isinstance(op, LUT) and op.x == number:
            moved = replace(moved, index=index[op.index])  # pyright: ignore[reportCallIssue]
        elif isinstance(op, Linear) and op.x == number:
            weight = np.zeros((len(different), len(op.weight)), np.int64)
            np.add.at(weight, index[used], op.weight.T[used])
            moved = replace(moved, weight=weight.T)  # pyright: ignore[reportCallIssue]
        ops.append(moved)
    about = {**program.about, "columns": [*columns]}
    return IntegerProgram(given, tuple(ops), program.output + behind, program.unit, about)


def _thresholds(program: IntegerProgram) -> tuple[int, list[Compared], Array]:
    """The value that holds bits of columns, these bits, and the places of those that are read."""
    columns, bits = compared_of(program)
    number = min(bits, default=0)
    used, others = list[Array](), list[str]()
    for op in program.ops[number:]:
        if op.reads == (number,) and isinstance(op, LUT):
            used.append(op.index.reshape(-1))
        elif number and op.reads == (number,) and isinstance(op, Linear):
            used.append(np.flatnonzero(op.weight.any(0)))
        elif min(op.reads) <= number:
            others.append(op.name)
    if not program.about.get("columns") or not number or not used or others or {*columns} != {*range(number)}:
        wanted = "columns of a table that thresholds alone read, and truth tables or sums of these"
        raise IntegerError(f"expected {wanted}, got {', '.join(others) or 'others'}")
    return number, bits[number], np.unique(np.concatenate(used))


def _begun(columns: Sequence[Line], read: set[int]) -> list[Line]:
    """A line for each raw column, in the order in which they are first named; decimals, ends and the rest to come."""
    lines = list[Line]()
    for name in dict.fromkeys(one["column"] for one in columns):
        own = [(x, one) for x, one in enumerate(columns) if one["column"] == name]
        first = {"name": name, "column": name}
        first |= {key: own[0][1][key] for key in ("unit", "order", "zoned") if key in own[0][1]}
        if own[0][1]["kind"] in TEXTS:
            texts = [
                *dict.fromkeys(t for _, one in own for t in one.get("values", one.get("texts", [one.get("text")])))
            ]
            lines.append({**first, "kind": "index", "texts": texts})
        elif "order" in first:
            parts = [one for x, one in own if one["kind"] == "date" and x in read] or [
                {"part": "weekday", "first": "1970-01-01"}
            ]
            for one in parts:
                said = {"name": f"{name}: {one['part']}", "part": one["part"], "first": one["first"]}
                lines.append({**first, **said, "kind": "fixed"})
        else:
            lines.append({**first, "kind": "fixed"})
    return lines


def _home(one: Line, lines: Sequence[Line]) -> int:
    """The raw input of which a prepared one is made."""
    for x, line in enumerate(lines):
        if line["column"] == one["column"] and (one["kind"] != "date" or line["part"] == one["part"]):
            return x
    raise KeyError(one["column"])


def _known(line: Line, columns: Sequence[Line]) -> Iterator[float]:
    """Numbers that a raw column may hold whatever the rows are: ends of the training, and codes."""
    for one in columns:
        if one["column"] == line["column"] and one.get("part") == line.get("part"):
            yield from (one[key] for key in ("low", "high", "code") if key in one)
            yield from one.get("codes", ())


def _decimals(name: str, v: Array) -> int:
    """The least number of decimals at which these numbers are exact, else the most that an int32 holds."""
    most = max(TYPES[-1])
    if len(v) and np.abs(v).max() >= most:
        largest = v[np.abs(v).argmax()]
        raise IntegerError(f"column {name!r}: expected numbers below {most:,}, which an int32 holds, got {largest:g}")
    held = [d for d in range(DECIMALS + 1) if not len(v) or np.abs(v).max() * 10.0**d < most]
    return next((d for d in held if (np.rint(v * 10.0**d) / 10.0**d == v).all()), held[-1])


def _values(line: Line) -> tuple[int, int]:
    """The least and the greatest integer that is a value."""
    low, high = line["low"], line["high"]
    return low + (low < 0), high - (low >= 0)


def _absent(line: Line) -> int:
    """The integer that is no value."""
    return line["low"] if line["low"] < 0 else line["high"]


def _bits(one: Compared, line: Line, said: Line, integers: Sequence[int], given: Input) -> Array:
    """A bit of a prepared column, by the integers of its raw one."""
    if line["kind"] == "index":
        texts = [*map(spelled, line["texts"]), UNSEEN]
        v = np.array([texts[min(i, len(texts) - 1)] for i in integers], object)
    else:
        v = np.clip(integers, *_values(line)) / 10.0 ** line["decimals"]
        v[np.array(integers) == _absent(line)] = np.nan
        if said["kind"] == "date" and np.isnan(v).any():
            filled = _part(said, np.array([said["fill"]], "datetime64[us]"))
            v = np.where(np.isnan(v), filled, v)
    return one.at(prepared_column(said, v, given).tolist())


def _missing(line: Line, columns: Sequence[Line], own: Sequence[Compared], given: Input) -> int:
    """What stands for a missing value: a number with the same bits, where there is one, else what is no value."""
    absent, (low, high) = _absent(line), _values(line)
    fills = [columns[one.place].get("fill") for one in own]
    if not own or fills[0] is None:
        return absent
    said = columns[own[0].place]
    fill = fills[0] if said["kind"] == "number" else _part(said, np.array([fills[0]], "datetime64[us]"))[0]
    middle = fill * 10.0 ** line["decimals"]
    for near in dict.fromkeys(int(i) for i in (np.floor(middle), np.ceil(middle)) if low <= i <= high):
        both = [_bits(one, line, columns[one.place], [near, absent], given) for one in own]
        if all(one[0] == one[1] for one in both):
            return near
    return absent


def _in_order(line: Line, columns: Sequence[Line], own: Sequence[Compared], given: Input) -> list[str]:
    """The texts, such that bits change seldom from one to the next; the last one is the most like all others."""
    texts = line["texts"]
    every = range(len(texts) + 1)
    bits = np.array([_bits(one, line, columns[one.place], every, given) for one in own]).reshape(-1, len(every)).T
    alike, which = np.unique(bits, axis=0, return_inverse=True)
    which, left = which.reshape(-1), [*range(len(alike))]
    order = [left.pop(which[-1])]
    while left:
        apart = [int((alike[i] != alike[order[-1]]).sum()) for i in left]
        order.append(left.pop(apart.index(min(apart))))
    return [texts[i] for place in reversed(order) for i in np.flatnonzero(which[:-1] == place)]


def _toggled(one: Compared, program: IntegerProgram, lines: Sequence[Line]) -> Compared:
    """A bit of a prepared column as one of the raw column."""
    columns = program.about["columns"]
    said = columns[one.place]
    x = _home(said, lines)
    line = lines[x]

    def at(integers: Sequence[int]) -> list[int]:
        return _bits(one, line, said, integers, program.input).tolist()

    if line["kind"] == "index":
        starts = [*range(len(line["texts"]) + 1)]
    else:  # between these integers the bit rises at most
        low, high = _values(line)
        codes = [*said.get("codes", ()), *([said["code"]] if "code" in said else [])]
        apart = [round(code * 10 ** line["decimals"]) for code in codes]
        apart += [_absent(line)] * (line["missing"] == _absent(line))
        cuts = {low, *(end for at_ in apart for end in (at_, at_ + 1) if line["low"] <= end <= line["high"])}
        starts = sorted(cuts)
        for start, end in pairwise([*starts, high + 1]):
            starts += _rise(at, start, end - 1)
        starts.sort()
    found = at(starts)
    toggles = tuple(start for start, (before, now) in zip(starts[1:], pairwise(found), strict=True) if before != now)
    return Compared(x, toggles, found[0])


def _rise(at: Callable[[Sequence[int]], list[int]], below: int, above: int) -> list[int]:
    """Where a monotone bit changes between two integers, by bisection."""
    first, last = at([below, above])
    if first == last or above <= below:
        return []
    while above - below > 1:
        middle = (below + above) // 2
        below, above = (middle, above) if at([middle])[0] == first else (below, middle)
    return [above]


def _joined(name: str, bits: Sequence[Compared], given: Input) -> list[Op]:
    """Operations whose last value is these bits."""
    ends = dict[tuple[int, int, bool], int]()  # a threshold: its place

    def place(x: int, end: int, falls: bool) -> int:
        return ends.setdefault((x, end, falls), len(ends))

    rows, first = list[list[int]](), list[int]()
    for one in bits:
        alone = len(one.toggles) <= 1
        toggles = one.toggles or ([given.low] if one.first else [given.high + 1])
        rows.append([place(one.place, end, bool(one.toggles) and alone and one.first == 1) for end in toggles])
        first.append(0 if alone else one.first)
    thresholds = np.array([[1 - end if falls else end] for _, end, falls in ends])
    signs = np.array([-1 if falls else 1 for *_, falls in ends])
    columns = np.array([x for x, *_ in ends])
    ops: list[Op] = [Take(f"{name}.columns", 0, columns), Steps(name, 1, thresholds, signs, 0, 1)]
    while max(map(len, rows)) > PARITY:
        parts = [[row[i : i + PARITY] for i in range(0, len(row), PARITY)] for row in rows]
        starts = np.cumsum([0, *map(len, parts)])
        ops.append(_parity(name, len(ops), [part for some in parts for part in some], [0] * int(starts[-1])))
        rows = [[*range(start, end)] for start, end in pairwise(starts.tolist())]
    if rows != [[i] for i in range(len(rows))]:
        ops.append(_parity(name, len(ops), rows, first))
    return ops


def _parity(name: str, x: int, rows: Sequence[Sequence[int]], first: Sequence[int]) -> LUT:
    """Tables of the parity of so many of their inputs; the others are the first one again."""
    inputs = max(map(len, rows))
    index = np.array([[*row, *[row[0]] * (inputs - len(row))] for row in rows])
    counted = np.arange(2**inputs)[None, :] & ((1 << np.array([[len(row)] for row in rows])) - 1)
    return LUT(f"{name}.parity", x, index, (np.bitwise_count(counted) + np.array(first)[:, None]) % 2)
