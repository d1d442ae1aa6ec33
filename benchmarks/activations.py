"""Time forward plus backward of the activations against `torch.sigmoid`, once their tests pass.

    python benchmarks/activations.py [--sizes 1000000 16777216] [--threads 1] [--rounds 15] [--json FILE] [--no-test]

Each round runs every function once, in turn forwards and backwards, so that drift of the machine falls on all alike;
the ratio is the median over rounds of time / time of torch.sigmoid in the same round.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

import htaf
from htaf import functional, surrogates

ROOT = Path(__file__).parents[1]
FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "torch.sigmoid": torch.sigmoid,
    "naive composition": lambda x: torch.sigmoid(11.0 * torch.tanh(2.0 * x)),
    "htaf (2, 11)": lambda x: functional.htaf(x, 2.0, 11.0),
    "scaled_sigmoid 22": lambda x: functional.scaled_sigmoid(x, 22.0),
    "straight_through sigmoid": lambda x: surrogates.straight_through(x, surrogates.sigmoid),
}


def seconds(function: Callable[[Tensor], Tensor], x: Tensor, grad: Tensor) -> float:
    """One forward and backward pass."""
    x.grad = None
    start = time.perf_counter()
    function(x).backward(grad)
    return time.perf_counter() - start


def measure(size: int, rounds: int) -> list[dict]:
    x = torch.randn(size, generator=torch.Generator().manual_seed(0)).requires_grad_()
    grad = torch.ones(size)
    times: dict[str, list[float]] = {name: [] for name in FUNCTIONS}
    for i in range(-2, rounds):  # two rounds to warm up
        for name in list(FUNCTIONS)[:: -1 if i % 2 else 1]:
            spent = seconds(FUNCTIONS[name], x, grad)
            if i >= 0:
                times[name].append(spent)
    base = times["torch.sigmoid"]
    return [
        {
            "function": name,
            "size": size,
            "median_ms": 1e3 * statistics.median(spent),
            "ratio": statistics.median(t / b for t, b in zip(spent, base, strict=True)),
            "rounds": rounds,
        }
        for name, spent in times.items()
    ]


def cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    if info.is_file():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def main() -> None:
    parser = argparse.ArgumentParser(description="Time of the activations over torch.sigmoid")
    parser.add_argument("--sizes", type=int, nargs="+", default=[1_000_000, 2**24], help="numbers of float32 values")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", type=Path, help="write the figures, versions and machine here")
    parser.add_argument("--no-test", action="store_true", help="time without running the tests first")
    arguments = parser.parse_args()

    if not arguments.no_test:  # a fast wrong function is worth nothing
        tests = [sys.executable, "-m", "pytest", "-q", str(ROOT / "tests" / "test_functional.py")]
        if subprocess.run(tests, cwd=ROOT).returncode:
            sys.exit("tests/test_functional.py fails: nothing is timed")

    torch.set_num_threads(arguments.threads)
    rows = [row for size in arguments.sizes for row in measure(size, arguments.rounds)]
    machine = {"cpu": cpu_name(), "platform": platform.platform(), "threads": arguments.threads}
    versions = {"htaf": htaf.__version__, "torch": torch.__version__, "python": platform.python_version()}
    show(rows, arguments.sizes, machine)
    if arguments.json:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        record = {"versions": versions, "machine": machine, "dtype": "float32", "rows": rows}
        arguments.json.write_text(json.dumps(record, indent=1) + "\n")


def show(rows: list[dict], sizes: list[int], machine: dict) -> None:
    table = Table(title="Time over that of torch.sigmoid (median ms)")
    table.add_column("function")
    for size in sizes:
        table.add_column(f"{size:,} values", justify="right")
    for name in FUNCTIONS:
        cells = [row for row in rows if row["function"] == name]
        table.add_row(name, *(f"{row['ratio']:.2f} ({row['median_ms']:.2f})" for row in cells))
    console = Console(width=120)
    console.print(table)
    console.print(f"{machine['cpu']}, {machine['threads']} thread(s), torch {torch.__version__}")


if __name__ == "__main__":
    main()
