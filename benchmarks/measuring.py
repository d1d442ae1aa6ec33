"""What the benchmarks share: tests before times, alternating rounds, spread, the machine, one layout of JSON.

The layout: {"benchmark", "command", "machine", "versions", "rows"}; a row holds its own threads, dtype and sizes.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import shlex
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from htaf.cli import doctor

ROOT = Path(__file__).resolve().parents[1]
WARM_UP = 2

Sample = tuple[float, ...]  # seconds; a benchmark may time several parts of one call


class Spread(NamedTuple):
    """Median and quartiles."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:.2f} ({self.low:.2f}-{self.high:.2f})"


def parser(description: str | None, rounds: int | None = None) -> argparse.ArgumentParser:
    """A parser with the flags that all benchmarks have; those that time things have --rounds and --no-test."""
    made = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--json", type=Path, metavar="FILE", help="write figures, versions and machine here")
    if rounds is not None:
        made.add_argument("--rounds", type=at_least_one, default=rounds, help=f"default: {rounds}")
        made.add_argument("--no-test", action="store_true", help="time without running the tests first")
    return made


def at_least_one(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"expected 1 or more, got {value}")
    return value


def test_first(*files: str) -> None:
    """Run these files of tests/ and leave when one fails: a fast wrong function is worth nothing."""
    paths = [f"tests/{name}" for name in files]
    if subprocess.run([sys.executable, "-m", "pytest", "-q", *paths], cwd=ROOT).returncode:
        sys.exit(f"{' '.join(paths)}: not all tests pass, so nothing is timed")


def kernel_tests() -> list[str]:
    """The tests of the kernels."""
    found = sorted(str(p.relative_to(ROOT / "tests")) for p in (ROOT / "tests" / "kernels").glob("test_*.py"))
    assert found, "tests/kernels holds no test: nothing would be checked before it is timed"
    return found


def alternate(
    samples: Mapping[str, Callable[[], Sample]], rounds: int, *, warm_up: int = WARM_UP
) -> dict[str, list[Sample]]:
    """Take one sample of each in every round, in reversed order every other round. `warm_up` rounds do not count.

    So drift of the machine falls on all alike, and none has always the same predecessor.
    """
    times: dict[str, list[Sample]] = {name: [] for name in samples}
    gc.collect()
    collecting = gc.isenabled()
    gc.disable()
    try:
        for i in range(-warm_up, rounds):
            for name in list(samples)[:: -1 if i % 2 else 1]:
                spent = samples[name]()
                if i >= 0:
                    times[name].append(spent)
    finally:
        if collecting:
            gc.enable()
    return times


def spread(values: Iterable[float]) -> Spread:
    values = list(values)
    if len(values) == 1:
        return Spread(values[0], values[0], values[0])
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return Spread(middle, low, high)


def ratio(times: Iterable[Sample], base: Iterable[Sample], part: int = 0) -> Spread:
    """Spread over the rounds of time / time of the base in the same round."""
    return spread(t[part] / b[part] for t, b in zip(times, base, strict=True))


def _load() -> float | None:
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else None


LOAD = _load()  # over the last minute, before this process adds its own


def warn_when_busy() -> None:
    """Other work on the machine spoils times on several threads first: they wait for each other."""
    if LOAD is not None and LOAD > 0.5:
        print(f"the load of this machine is {LOAD:.1f} before anything is timed: these times will be rough")


def machine() -> dict[str, Any]:
    found = doctor.report()
    kept = {key: found.get(key) for key in ("processor", "platform", "accelerator", "kernels")}
    allocator = {key: value for key, value in os.environ.items() if key.startswith(("MALLOC_", "GLIBC_TUNABLES"))}
    return {**kept, "cores": os.cpu_count(), "load_before": LOAD, "allocator": allocator}


def versions() -> dict[str, Any]:
    found = doctor.report()
    return {key: found.get(key) for key in ("htaf", "torch", "python", "commit")}


def one_line() -> str:
    """Machine and versions, to stand under a table."""
    return "; ".join(
        (str(machine()["processor"]), f"torch {versions()['torch']}", f"kernels: {machine()['kernels']}"),
    )


def write(file: Path | None, rows: list[dict[str, Any]]) -> None:
    """Write the rows of the script that runs, if a file was asked for."""
    if file is None:
        return
    script = Path(sys.argv[0])
    record = {
        "benchmark": script.stem,
        "command": shlex.join(["python", str(script.resolve().relative_to(ROOT)), *sys.argv[1:]]),
        "machine": machine(),
        "versions": versions(),
        "rows": rows,
    }
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(record, indent=1) + "\n")
