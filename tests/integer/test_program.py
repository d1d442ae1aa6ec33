"""Integer programs: each operation against loops of Python's own integers, proved ranges, files that were edited."""

from __future__ import annotations

import dataclasses
import itertools
import json
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
from hypothesis import given
from hypothesis import strategies as st
from tests.integer.made import KINDS, random_program

from htaf.program.integer import files
from htaf.program.integer.ops import Conv, IntegerError, Linear, Pool, Shift, Steps, Value
from htaf.program.integer.program import Input, IntegerProgram


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(6))
def test_random_programs_run_within_their_ranges(kind: str, seed: int, tmp_path: Path) -> None:
    program, x = random_program(seed, kind)
    y = program.run(x)
    assert y.shape == (64, *program.values[program.output].shape)
    assert len(np.unique(y)) > (1 if "logic" in kind else 4)
    np.testing.assert_array_equal(program.run(x[5:6])[0], y[5])
    files.save(program, tmp_path / "p.safetensors")
    read = files.load(tmp_path / "p.safetensors")
    assert read.digest == program.digest
    np.testing.assert_array_equal(read.run(x), y)


@given(st.integers(-(2**40), 2**40), st.integers(-30, 10))
def test_shift_is_half_to_even(x: int, shift: int) -> None:
    op = Shift("s", 0, np.array([shift]), -(2**61), 2**61)
    from fractions import Fraction

    wanted = round(Fraction(x) * Fraction(2) ** shift)
    assert op.run(np.array([[x]])).tolist() == [[wanted]]
    assert op.value(Value((1,), x, x)) == Value((1,), wanted, wanted)


@pytest.mark.parametrize(
    ("stride", "padding", "dilation"),
    [((1, 1), (0, 0), (1, 1)), ((2, 1), (1, 2), (1, 2)), ((1, 3), (2, 0), (2, 1))],
)
def test_convolution_by_loops(stride: tuple, padding: tuple, dilation: tuple) -> None:
    rng = np.random.default_rng(0)
    x, w, b = rng.integers(-9, 9, (2, 4, 7, 8)), rng.integers(-5, 5, (8, 4, 3, 2)), rng.integers(-9, 9, 8)
    y = Conv("c", 0, w, b, stride, padding, dilation).run(x)
    for n, o, i, j in itertools.product(*map(range, y.shape)):
        total = int(b[o])
        for c, p, q in itertools.product(*map(range, w.shape[1:])):
            row, column = i * stride[0] + p * dilation[0] - padding[0], j * stride[1] + q * dilation[1] - padding[1]
            if 0 <= row < 7 and 0 <= column < 8:
                total += int(w[o, c, p, q]) * int(x[n, c, row, column])
        assert y[n, o, i, j] == total


def test_large_sums_are_exact() -> None:
    op = Linear("l", 0, np.array([[2**30, -(2**30) + 1]]), np.array([1]))
    assert op.run(np.array([[2**30 - 1, 2**30 - 3]])).tolist() == [
        [2**30 * (2**30 - 1) + (1 - 2**30) * (2**30 - 3) + 1]
    ]


@pytest.mark.parametrize("bits", [12, 13, 26, 27, 31])
def test_sums_of_one_more_than_a_float_holds(bits: int) -> None:
    """2^24 + 1 and 2^53 + 1 are between two numbers of float32 and float64."""
    w, x = np.array([[2**bits, 1]]), np.array([[2 ** (bits - bits % 2), 1]])
    wanted = [2 ** (2 * bits - bits % 2) + 1]
    assert Linear("l", 0, w, None).run(x).tolist() == [wanted]
    images = Conv("c", 0, w[..., None, None], None, (1, 1), (0, 0), (1, 1)).run(x[..., None, None])
    assert images.flatten().tolist() == wanted


def test_pool_takes_the_least_where_it_says_and_no_border() -> None:
    x = np.arange(-8, 24).reshape(1, 2, 4, 4)
    op = Pool("p", 0, (2, 2), (2, 2), (1, 1), np.array([0, 1]))
    assert op.run(x)[0].tolist() == [[[-8, -6, -5], [0, 2, 3], [4, 6, 7]], [[8, 9, 11], [12, 13, 15], [20, 21, 23]]]


def _one(op: object) -> IntegerProgram:
    return IntegerProgram(Input("columns", (2,), -4, 4), (op,), 1)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Linear("fc", 0, np.ones((2, 3)), None), "fc: expected integers in weight"),
        (lambda: Linear("fc", 0, np.ones((2, 3), int), None), "fc: expected rows of 3, got"),
        (lambda: Linear("fc", 1, np.ones((2, 2), int), None), "fc: expected values in 0 to 0, got"),
        (lambda: Linear("fc", 0, np.full((2, 2), 2**61), None), "fc: expected sums that an int64 holds"),
        (
            lambda: Linear("fc", 0.5, np.ones((2, 2), int), None),  # pyright: ignore[reportArgumentType]
            "fc: expected an integer as x, got 0.5",
        ),
        (lambda: Steps("act", 0, np.ones((3, 1), int), np.ones(3, int), 0, 1), "act: expected 2 channels in thresh"),
        (lambda: Steps("act", 0, np.ones((2, 1), int), np.zeros(2, int), 0, 1), "act: expected signs 1 or -1"),
        (lambda: Conv("c", 0, np.ones((2, 2, 1, 1), int), None, (1, 1), (0, 0), (1, 1)), "c: expected images"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(make: object, message: str) -> None:
    with pytest.raises(IntegerError, match=message):
        _one(make())  # type: ignore[operator]


def test_inputs_out_of_range_are_refused() -> None:
    program = _one(Linear("fc", 0, np.ones((2, 2), int), None))
    with pytest.raises(IntegerError, match=r"expected inputs in \[-4, 4\], got some in \[0, 5\]"):
        program.run(np.array([[0, 5]]))
    with pytest.raises(IntegerError, match="expected integers"):
        program.run(np.array([[0.0, 1.0]]))
    columns = Input("columns", (2,), -4, 4, 1)
    assert columns.quantised(np.array([[0.25, 0.75], [9, -0.76]])).tolist() == [[0, 2], [4, -2]]


def test_edited_and_foreign_files_are_refused(tmp_path: Path) -> None:
    program, _ = random_program(0, "conv")
    file = tmp_path / "p.safetensors"
    files.save(program, file)
    data = bytearray(file.read_bytes())
    data[-3] ^= 1
    (tmp_path / "edited").write_bytes(data)
    with pytest.raises(IntegerError, match="got one that was changed"):
        files.load(tmp_path / "edited")
    (tmp_path / "text").write_text("no")
    with pytest.raises(IntegerError, match="cannot be read as a file of format htaf-integer"):
        files.load(tmp_path / "text")
    safetensors.torch.save_file({}, tmp_path / "other")
    with pytest.raises(IntegerError, match="expected a file of format htaf-integer, version 2"):
        files.load(tmp_path / "other")


def test_a_digest_is_of_every_number() -> None:
    program, _ = random_program(1, "mlp")
    assert json.dumps(program.described())
    first = program.ops[0]
    assert isinstance(first, Linear)
    weight = first.weight.copy()
    weight[0, 0] += 1
    other = dataclasses.replace(program, ops=(dataclasses.replace(first, weight=weight), *program.ops[1:]))
    assert other.digest != program.digest
