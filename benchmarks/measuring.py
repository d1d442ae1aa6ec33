"""What the benchmarks share: tests before times, alternating rounds, spread, the machine, one layout of JSON.

The layout: {"benchmark", "command", "machine", "versions", "rows"}; a row holds its own threads, dtype and sizes.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

from htaf.cli import doctor
from htaf.core.kernels import native

ROOT = Path(__file__).resolve().parents[1]
WARM_UP = 2
WIDTH = 150  # letters of a table
CLASSES = {"amx": "AMX", "avx2": "AVX2", "neon": "NEON"}  # of processors, by the instruction set in use

Sample = tuple[float, ...]  # seconds; a benchmark may time several parts of one call


class Spread(NamedTuple):
    """Median and quartiles."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:.2f} ({self.low:.2f}-{self.high:.2f})"


def parser(description: str | None, rounds: int | None = None, **several: Sequence[int]) -> argparse.ArgumentParser:
    """A parser with the flags that all benchmarks have; those that time things have --rounds and --no-test.

    several: flags of numbers, 1 or more, with their defaults, such as threads=(1, 2).
    """
    made = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--json", type=Path, metavar="FILE", help="write figures, versions and machine here")
    if rounds is not None:
        made.add_argument("--rounds", type=at_least_one, default=rounds, help=f"default: {rounds}")
        made.add_argument("--no-test", action="store_true", help="time without running the tests first")
    for name, default in several.items():
        made.add_argument(f"--{name}", type=at_least_one, nargs="+", default=[*default])
    return made


def begin(made: argparse.ArgumentParser, *tests: str) -> argparse.Namespace:
    """The flags; says when the machine is busy, and runs these files of tests/ unless --no-test is given."""
    given = made.parse_args()
    warn_when_busy()
    if tests and not given.no_test:
        test_first(*tests)
    return given


def end(given: argparse.Namespace, rows: list[dict[str, Any]]) -> None:
    """Say the machine, and write the rows to --json."""
    print(one_line())
    write(given.json, rows)


def show(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]], left: Collection[str] = ()) -> None:
    """Print a table; left: the columns whose cells are words, the others stand at the right."""
    table = Table(title=title)
    for name in columns:
        table.add_column(name, justify="left" if name in left else "right", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    if table.row_count:
        Console(width=WIDTH).print(table)


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


def repeated(run: Callable[[], object], seconds: float) -> Callable[[], Sample]:
    """Samples of so many calls as take about so long, the seconds of one call; calls it a few times first."""
    run()
    calls = max(1, round(seconds / statistics.median(once(run) for _ in range(3))))
    return lambda: (once(run, calls),)


def once(run: Callable[[], object], calls: int = 1) -> float:
    """Seconds of a call."""
    start = time.perf_counter()
    for _ in range(calls):
        run()
    return (time.perf_counter() - start) / calls


class Peer:
    """A program that answers lines of JSON, in an environment of its own. told: what it says of itself first."""

    def __init__(self, python: str, file: Path, *words: object) -> None:
        command = [python, str(file), *map(str, words)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.told = self._line()

    def _line(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            sys.exit(f"{self.process.args!r:.200} ended: see above")
        return json.loads(line)

    def ask(self, **question: Any) -> Any:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(question) + "\n")
        self.process.stdin.flush()
        return self._line()

    def close(self) -> None:
        """End the process."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


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


def processor() -> str:
    """Its name, and in brackets its class: the instructions by which the layers over packed bits run."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    module = native.load()[0]
    used = "no kernels" if module is None else module.instruction_set()
    if module is not None and used == "avx512":  # its first processors run these layers by AVX2
        used = "AVX-512 VNNI" if module.tables_take_fours() else "AVX2"
    return f"{names[0] if names else platform.processor() or platform.machine()} ({CLASSES.get(used, used)})"


def machine() -> dict[str, Any]:
    found = doctor.report()
    kept = {key: found.get(key) for key in ("processor", "platform", "accelerator", "kernels", "layers over bits")}
    kept["name"] = processor()
    allocator = {key: value for key, value in os.environ.items() if key.startswith(("MALLOC_", "GLIBC_TUNABLES"))}
    return {**kept, "cores": os.cpu_count(), "load_before": LOAD, "allocator": allocator}


def versions() -> dict[str, Any]:
    found = doctor.report()
    return {key: found.get(key) for key in ("htaf", "torch", "python", "commit")}


def one_line() -> str:
    """Machine and versions, to stand under a table."""
    return "; ".join(
        (processor(), str(machine()["processor"]), f"torch {versions()['torch']}", f"kernels: {machine()['kernels']}"),
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
