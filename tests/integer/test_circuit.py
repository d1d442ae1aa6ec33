"""Programs of truth tables, compiled: the same integers as by definition, with every instruction set."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.integer.made import LOGIC, Made, random_program

from htaf.core.kernels import native
from htaf.program.integer.circuit import Circuit
from htaf.program.integer.ops import LUT, Count, IntegerError, Shift, Steps, View
from htaf.program.integer.program import Input, IntegerProgram

SETS = native.extension().instruction_sets() if native.load()[0] else []
needs_kernels = pytest.mark.skipif(not SETS, reason="no compiled kernels")


@needs_kernels
@pytest.mark.parametrize("kind", LOGIC)
@given(seed=st.integers(0, 10_000), rows=st.integers(0, 1100))
def test_a_circuit_gives_the_programs_integers(kind: str, seed: int, rows: int) -> None:
    program, _ = random_program(seed, kind)
    x = Made(seed, program.input).rows(rows)
    before = native.extension().instruction_set()
    try:
        for name in SETS:
            native.extension().use_instruction_set(name)
            assert np.array_equal(Circuit(program).run(x), program.run(x)), name
            assert np.array_equal(Circuit(program).classes(x), program.run(x).argmax(1)), name
    finally:
        native.extension().use_instruction_set(before)


@needs_kernels
def test_many_thresholds_of_a_column_and_counts_without_tables() -> None:
    given = Input("columns", (70,), -(2**31), 2**31 - 1)
    made = Made(0, given)
    made.add(Steps, 0, made.thresholds(1), made.signs(), 0, 1)
    made.add(View, 1, (7, 1, 10))
    made.count((-2, -1))
    program = IntegerProgram(given, tuple(made.ops), 3)
    assert np.array_equal(Circuit(program).run(made.seen[0]), program.run(made.seen[0]))


@needs_kernels
def test_what_is_no_circuit_is_refused_by_its_layer() -> None:
    with pytest.raises(IntegerError, match="truth tables"):
        Circuit(random_program(0, "mlp")[0])
    made = Made(0, Input("columns", (3,), 0, 7))
    made.bits()
    made.luts(4, 7)
    made.add(View, 2, (2, 1, 2))
    made.count((-2, -1))
    with pytest.raises(IntegerError, match="6 inputs"):
        Circuit(IntegerProgram(made.input, tuple(made.ops), 4))


@needs_kernels
def test_rows_that_do_not_fit_are_refused() -> None:
    program, x = random_program(0, "logic of pixels")
    for rows in (x[:3].astype(float), x[:3, :, :2], x[:3] + 256, x[:3] - 256):
        with pytest.raises(IntegerError, match="expected in"):
            Circuit(program).run(rows)


@needs_kernels
def test_bits_that_are_read_by_others_are_refused() -> None:
    made = Made(0, Input("columns", (2**13,), 0, 7))
    made.bits()
    made.add(Shift, 1, np.zeros(2**13, np.int64), 0, 1)
    made.add(View, 2, (2**13, 1, 1))
    made.count((-2, -1))
    with pytest.raises(IntegerError, match="thresholds of columns"):
        Circuit(IntegerProgram(made.input, tuple(made.ops), 4))


def test_tables_that_do_not_fit_are_refused() -> None:
    made = Made(0, Input("columns", (3,), 0, 7))
    with pytest.raises(IntegerError, match="rows of bits"):
        made.luts(2)
    made.bits()
    for index, table in (([[3]], [[0, 1]]), ([[0]], [[0, 2]]), ([[0]], [[0, 1, 1]]), ([0], [[0, 1]])):
        with pytest.raises(IntegerError):
            made.add(LUT, 1, np.array(index), np.array(table))
    assert Count("c", 1, (-1,)).reads == (1,)
