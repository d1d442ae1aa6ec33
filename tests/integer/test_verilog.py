"""Integer programs as Verilog: simulated, 0 numbers of random programs differ."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.integer.made import KINDS, random_program

from htaf.program.integer import execute
from htaf.program.integer.execute import run_verilog
from htaf.program.integer.exports import classes, least_difference
from htaf.program.integer.ops import LUT, Count, IntegerError, Linear, Steps, Take, Value, View
from htaf.program.integer.program import Input, IntegerProgram
from htaf.program.integer.verilog import argmax_luts, luts, to_verilog

GATES = [kind for kind in KINDS if kind not in ("conv", "residual")]


def needs(tool: str) -> None:
    if not os.environ.get("CI") and shutil.which(tool) is None:
        pytest.skip(f"{tool} is not installed")


def small(x: int = 8) -> IntegerProgram:
    fc = Linear("fc", 0, np.array([[3, -7], [1, 4]]), None)
    return IntegerProgram(Input("columns", (2,), -x, x - 1), (fc, Steps("act", 1, fc.weight, np.ones(2, int), 0, 1)), 2)


@pytest.mark.parametrize("kind", GATES)
@pytest.mark.parametrize("seed", [0, 1])
def test_verilog_gives_the_same_integers(kind: str, seed: int, tmp_path: Path) -> None:
    needs("iverilog")
    program, x = random_program(seed, kind)
    to_verilog(program, tmp_path, most=10**6, pipelined=seed == 0)
    np.testing.assert_array_equal(run_verilog(tmp_path, x), program.run(x))


@pytest.mark.slow
@pytest.mark.parametrize("kind", GATES)
def test_more_of_verilog(kind: str, tmp_path: Path) -> None:
    needs("iverilog")
    for seed in range(2, 6):
        program, x = random_program(seed, kind)
        to_verilog(program, tmp_path / str(seed), most=10**6, pipelined=seed % 2 == 0)
        np.testing.assert_array_equal(run_verilog(tmp_path / str(seed), x), program.run(x))


def test_the_testbench_counts_rows_that_differ(tmp_path: Path) -> None:
    needs("iverilog")
    to_verilog(small(), tmp_path, name="tiny")
    width = small().values[2].size  # one bit each
    for other, said in ((0, "0 of 64 rows differ"), (1, "1 of 64 rows differ"), (1 << width, "2 of 64 rows differ")):
        if other:  # a number of y, then the label
            lines = (tmp_path / "outputs.hex").read_text().splitlines()
            row = 5 if other == 1 else 6
            lines[row] = f"{int(lines[row], 16) ^ other:x}"
            (tmp_path / "outputs.hex").write_text("\n".join(lines))
        subprocess.run(["iverilog", "-g2001", "-o", "sim", "tiny.v", "tiny_tb.v"], cwd=tmp_path, check=True)
        done = subprocess.run(["vvp", "-n", "sim"], cwd=tmp_path, check=True, capture_output=True, text=True)
        assert said in done.stdout


@pytest.mark.parametrize("name", ["1a", "a b", "endmodule", "", "a;b"])
def test_names_that_verilog_has_not_are_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(IntegerError, match="expected a name of letters, digits and _"):
        to_verilog(small(), tmp_path / "v", name=name)


def test_networks_of_images_are_refused(tmp_path: Path) -> None:
    with pytest.raises(IntegerError, match=r"conv\d: expected tables, steps, .*: write C, got Conv"):
        to_verilog(random_program(0, "conv")[0], tmp_path / "v")


def test_too_large_networks_are_refused(tmp_path: Path) -> None:
    wide = Linear("layers.0", 0, np.ones((1_001, 2_000), int), None)
    program = IntegerProgram(Input("columns", (2_000,), 0, 1), (wide,), 1)
    told = r"at most 100,000 LUTs, got about 4,037,000 \(layers\.0 4,004,000, label 33,000\)"
    with pytest.raises(IntegerError, match=f"{told}.* set most to what"):
        to_verilog(program, tmp_path / "v")
    with pytest.raises(IntegerError, match="at most 5 LUTs, got about"):
        to_verilog(small(), tmp_path / "v", most=5)
    assert not (tmp_path / "v").exists()


def test_luts_are_estimated_near_those_of_yosys() -> None:
    """64-32-32-10 over bits, -1 and 1 before int8, or all int8: 7,331 and 17,126 by `benchmarks/gates.py`."""
    rng, bits = np.random.default_rng(0), Value((64,), 0, 1)
    for binary, measured in ((True, 7_331), (False, 17_126)):
        given, total = bits, 0
        for outputs in (32, 32, 10):
            weight = rng.normal(0, 30, (outputs, given.size)).round().clip(-127, 127).astype(int)
            fc = Linear("fc", 0, np.where(weight < 0, -1, 1) if binary and outputs > 10 else weight, None)
            step = Steps("act", 0, np.zeros((outputs, 1), int), np.ones(outputs, int), 0, 1)
            total += luts(fc, given, fc.value(given)) + luts(step, fc.value(given), step.value(fc.value(given)))
            given = step.value(fc.value(given))
        assert 0.7 < total / measured < 1.4


def test_luts_of_counts_and_labels_are_estimated_near_those_of_yosys() -> None:
    """Measured by `synth -lut 6` of the operations alone."""
    count = Count("sums", 0, (-2, -1))
    for bits, measured in ((20, 20), (40, 40)):
        given = Value((1, 1, bits), 0, 1)
        assert 0.7 < luts(count, given, count.value(given)) / measured < 1.4
    for most, measured in ((20, 137), (100, 196)):
        assert 0.7 < argmax_luts(Value((10,), 0, most)) / measured < 1.4


@pytest.mark.parametrize(
    ("low", "high", "some"),
    [
        (0, 15, (-17, 18)),
        (0, 16, (-18, 19)),
        (-8, 7, (-9, 10)),
        (-5, 2, (-5, 6)),
        (-99, 99, (33, 40)),
        (0, 200, (97, 112)),
    ],
)
def test_each_threshold_of_a_column(low: int, high: int, some: tuple[int, int], tmp_path: Path) -> None:
    needs("iverilog")
    thresholds = np.array([t for t in range(*some) for t in (t, t if low == 0 or high < 9 else 1 - t)])
    bits = Steps("t", 1, thresholds[:, None], np.resize([-1, 1], len(thresholds)), 0, 1)
    take = Take("column", 0, np.zeros(len(thresholds), int))
    program, x = IntegerProgram(Input("columns", (1,), low, high), (take, bits), 2), np.arange(low, high + 1)[:, None]
    to_verilog(program, tmp_path)
    np.testing.assert_array_equal(run_verilog(tmp_path, x), program.run(x))


@pytest.mark.parametrize("outputs", [1, 2, 3, 5, 8, 11])
@pytest.mark.parametrize("low", [0, -4])
def test_label_is_the_first_greatest_output(outputs: int, low: int, tmp_path: Path) -> None:
    needs("iverilog")
    program = IntegerProgram(Input("columns", (outputs,), low, 3), (), 0)
    to_verilog(program, tmp_path, pipelined=outputs % 2 == 0)
    x = np.random.default_rng(0).integers(low, 4, (200, outputs))
    np.testing.assert_array_equal(run_verilog(tmp_path, x), x)
    assert ("label" in (tmp_path / "network.v").read_text()) == (outputs > 1)


@pytest.mark.parametrize("size", [1, 2, 6, 7, 37])
def test_counts_of_bits(size: int, tmp_path: Path) -> None:
    needs("iverilog")
    shaped = View("", 0, (2, 1, size))
    program = IntegerProgram(Input("columns", (2 * size,), 0, 1), (shaped, Count("", 1, (-2, -1))), 2)
    to_verilog(program, tmp_path)
    x = (np.random.default_rng(0).random((100, 2 * size)) < np.linspace(0, 1, 100)[:, None]).astype(int)
    np.testing.assert_array_equal(run_verilog(tmp_path, x), program.run(x))


def test_equal_comparisons_and_tables_are_written_once(tmp_path: Path) -> None:
    bits = Steps("t", 1, np.array([[3], [5], [3], [0], [9]]), np.ones(5, int), 0, 1)
    tables = LUT("luts", 2, np.array([[0, 1], [2, 1], [0, 4], [3, 4]]), np.array([[0, 1, 1, 0]] * 3 + [[1] * 4]))
    program = IntegerProgram(Input("columns", (2,), 0, 7), (Take("", 0, np.array([0, 1, 0, 0, 1])), bits, tables), 3)
    to_verilog(program, tmp_path)
    text = (tmp_path / "network.v").read_text()
    assert (text.count(">="), text.count("4'h6")) == (2, 2)
    assert "(x[2:0] >= 3'd3)" in text


@pytest.mark.parametrize("read", ["sums", "steps"])
def test_columns_outside_the_range_count_as_its_ends(read: str, tmp_path: Path) -> None:
    """As far as the port is wide enough for them."""
    needs("iverilog")
    given = Input("columns", (2,), -5, 5)
    act = Steps("act", 0, np.array([[6], [-5]]), np.array([1, -1]), 0, 1)
    program = IntegerProgram(given, (Linear("fc", 0, np.array([[3, -7], [1, 4]]), None) if read == "sums" else act,), 1)
    to_verilog(program, tmp_path)
    said = tmp_path / "network.json"
    said.write_text(said.read_text().replace('"low": -5', '"low": -8').replace('"high": 5', '"high": 7'))
    x = np.array([[a, b] for a in (-8, -6, 0, 7) for b in (-8, 6)])
    np.testing.assert_array_equal(run_verilog(tmp_path, x), program.run(x.clip(-5, 5)))
    assert ("x, clamped" in (tmp_path / "network.v").read_text()) == (read == "sums")  # which costs LUTs


def test_comments_hold_no_text_of_strangers(tmp_path: Path) -> None:
    op = Linear("fc\nendmodule // \\", 0, np.ones((1, 2), int), None)
    to_verilog(IntegerProgram(Input("columns", (2,), 0, 1), (op,), 1), tmp_path)
    assert (tmp_path / "network.v").read_text().count("endmodule") == 2
    assert "// Linear fc_endmodule_____\n" in (tmp_path / "network.v").read_text()


def test_what_cannot_run_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needs("iverilog")
    to_verilog(small(), tmp_path)
    with pytest.raises(IntegerError, match=r"expected inputs in \[-8, 7\], got some in \[8, 8\]"):
        run_verilog(tmp_path, np.full((1, 2), 8))
    with pytest.raises(IntegerError, match=r"expected integers \[rows, \[2\]\]"):
        run_verilog(tmp_path, np.ones((1, 3), int))
    with pytest.raises(IntegerError, match="expected a folder of to_verilog"):
        run_verilog(tmp_path / "none", np.ones((1, 2), int))
    for file in ("network_tb.v", "network.v"):
        (tmp_path / file).write_text((tmp_path / file).read_text() + "\n")
        with pytest.raises(IntegerError, match=f"expected {file} as it was written"):
            run_verilog(tmp_path, np.ones((1, 2), int))
    monkeypatch.setattr(execute.shutil, "which", lambda tool: None)
    with pytest.raises(IntegerError, match="expected iverilog on the PATH, got none: apt-get install iverilog"):
        run_verilog(tmp_path, np.ones((1, 2), int))


def test_the_label_of_two_classes_goes_by_the_threshold(tmp_path: Path) -> None:
    program, x = random_program(3, "logic")
    program = replace(program, ops=program.ops[:-2], output=len(program.ops) - 2)
    size = program.values[program.output].size // 2
    index = np.arange(size * 2)
    ops = (Take("same", program.output, index), View("groups", len(program.ops) + 1, (2, 1, size)))
    ops = (*program.ops, *ops, Count("sums", len(program.ops) + 2, (-2, -1)))
    about = {"target": {"task": "classification", "classes": ["a", "b"], "threshold": 0.7}}
    program = IntegerProgram(program.input, ops, len(ops), (-1, 1), about)
    least = least_difference(program)
    assert least is not None
    assert 1 / (1 + np.exp(-least / 2)) >= 0.7 > 1 / (1 + np.exp(-(least - 1) / 2))
    y = program.run(x)
    assert len({*classes(y, least)}) == 2
    assert not np.array_equal(classes(y, least), y.argmax(1))
    to_verilog(program, tmp_path, rows=x[:4])
    assert np.array_equal(run_verilog(tmp_path, x), y)  # which compares the label
