"""A logic network as a circuit: how many truth tables read each column, which tables say most, and what it takes."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Collection
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from htaf.data.parts import table_part
from htaf.data.tabular import Table
from htaf.program.integer.logic_c import Bit, Compared, Logic, asked
from htaf.program.integer.ops import IntegerError
from htaf.program.integer.program import IntegerProgram
from htaf.program.integer.raw import raw, raw_inputs
from htaf.program.integer.verilog import estimated
from htaf.tables.readable import condition_of
from htaf.training.runs import Run
from htaf.training.runs.integer import build_run, values_of

if TYPE_CHECKING:
    from htaf.tables.report.contents import Measured

SHOWN, SAMPLED = 10, 1_000  # truth tables that are shown; about how many rows choose them


def circuit(run: Run, table: Table, measured: Measured) -> dict[str, Any] | None:
    """Describe a logic network as a circuit.

    Returns:
        {"tables": how many, "asked": [{"column", "tables": how many read it}], "telling": as `telling` gives, and
        estimates: "luts" of an FPGA, "flash" in bytes and "instructions" a row of a Cortex-M0}; None of more tables
        than C writes out.
    """
    program, times = build_run(run), Counter[str]()
    lines, written = program.about["columns"], program
    with suppress(IntegerError):  # C and Verilog then take prepared columns
        written = raw(program, raw_inputs(program, values_of(lines, table.features)))
    if (found := asked(program)) is None or (takes := asked(written)) is None:
        return None
    for place, count in found.times.items():
        times[lines[place]["column"]] += count
    return {
        "tables": len(found.logic.tables()),
        "asked": [{"column": column, "tables": count} for column, count in times.most_common()],
        "telling": telling(program, found.logic, table, measured)[:SHOWN],
        "luts": estimated(written, math.inf),
        "flash": takes.flash,
        "instructions": takes.instructions,
    }


def telling(program: IntegerProgram, logic: Logic, table: Table, measured: Measured) -> list[dict[str, Any]]:
    """Order the counted tables by how far their bit differs between the rows of their class and the others; of a
    regression, between the rows above the median and the others.

    Returns:
        [{"class": its number, "reads": conditions in words, "own", "others": shares of these rows whose bit is 1}]
    """
    some = slice(None, None, math.ceil(len(measured.rows) / SAMPLED))
    x = torch.cat([x for x, _ in table_part(table, measured.preprocessor, measured.rows[some])]).numpy()
    values, truth, found = program.every_value(program.input.quantised(x)), measured.truth()[some], list[Any]()
    numbers = table.features.select_dtypes("number")
    whole = {str(name) for name, column in numbers.items() if (column.dropna() % 1 == 0).all()}
    counted = values[program.ops[logic.number - 1].reads[0]].reshape(len(x), len(logic.groups), -1)
    for group, bits in enumerate(logic.groups):
        own = truth == group if measured.preprocessor.target.classes else truth > np.median(truth)
        shares = [counted[rows, group].sum(0) / max(rows.sum(), 1) for rows in (own, ~own)]
        for bit, share, other in zip(bits, *shares, strict=True):
            reads = [condition(program, one, whole) for one in ([bit] if isinstance(bit, Compared) else bit.inputs)]
            found.append({"class": group, "reads": reads, "own": float(share), "others": float(other)})
    return sorted(found, key=lambda one: -abs(one["own"] - one["others"]))


def condition(program: IntegerProgram, bit: Bit, whole: Collection[str] = ()) -> str:
    """Say in words where an input of a truth table is 1, in the unit of its column; whole: columns of whole numbers."""
    if not isinstance(bit, Compared):
        return "another table"
    said, unit = program.about["columns"][bit.place], 2.0**-program.input.exponent
    of_whole, near = said["column"] in whole, (-0.501, -0.5, -0.499)
    ends = [condition_of(said, end * unit, program.input, near, whole=of_whole) for end in bit.toggles]
    signs = itertools.cycle((not bit.first, bool(bit.first)))
    return ", ".join(one.text(on) for one, on in zip(ends, signs, strict=False))
