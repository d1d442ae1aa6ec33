"""Memory of a whole training on a large CSV file, from the file to the report, by phase.

    python benchmarks/tables_memory.py [--rows 5000000] [--columns 8] [--task regression] [--json FILE]

A file of numbers, a category and a date is made in a temporary folder; `htaf train tabular` runs on it for one epoch, a
small network, in a process of its own. Of each phase: the most memory that the process held (Linux only), and its CPU
seconds; those of "end" are of all. `beside`: less what the same phase of the same command holds on 2,000 rows, which is
the program itself.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import pandas as pd
from measuring import LOAD, parser, write
from memory import _reset_peak, _status
from pyarrow import Table, csv

SMALL = 2_000  # rows of the table that shows what the program takes
TRAINING = ("--epochs", "1", "--hidden", "32", "--thresholds", "16", "--batch-size", "8192")
# phases: where the function is looked up, and its name there
WATCHED = (
    ("read the file", "htaf.data.tabular", "read_frame"),
    ("make the table", "htaf.data.tabular", "_table"),
    ("prepare the inputs", "htaf.training.fit", "problem"),
    ("first weights", "htaf.training.fit", "_network"),
    ("train and validate", "htaf.training.fit", "_train"),
    ("fit norms and head", "htaf.training.fit", "finished"),
    ("measure", "htaf.training.fit", "measure"),
    ("layer statistics", "htaf.training.fit", "_layers"),
    ("write the run", "htaf.training.fit", "finish_run"),
    ("baselines", "htaf.tables.report.writing", "fit_baselines"),
    ("figures of the report", "htaf.tables.report.writing", "contents"),
)


def write_table(path: Path, rows: int, columns: int, task: str) -> None:
    """A file in pieces of 100,000 rows; of a classification the target is yes or no."""
    days = pd.date_range("2010-01-01", periods=3000, freq="D").strftime("%Y-%m-%d").to_numpy()
    for begin in range(0, rows, 100_000):
        rng, count = np.random.default_rng(begin), min(100_000, rows - begin)
        frame = pd.DataFrame(rng.normal(size=(count, columns)).round(5), columns=[f"x{i}" for i in range(columns)])
        frame["kind"], frame["day"] = rng.choice(["red", "green", "blue"], count), rng.choice(days, count)
        frame["y"] = frame["x0"] + rng.normal(size=count).round(5)
        if task == "classification":
            frame["y"] = np.where(frame["y"] > 0, "yes", "no")
        with path.open("ab") as file:
            csv.write_csv(
                Table.from_pandas(frame), file, csv.WriteOptions(include_header=not begin, quoting_style="none")
            )


def watched(words: list[str]) -> list[dict[str, Any]]:
    """Run the command in this process and note each phase; what lies between two phases counts to the next one."""
    import importlib

    from htaf.cli import main as command

    found: list[dict[str, Any]] = []

    def note(phase: str, began: float) -> None:
        entry = {"phase": phase, "peak_mib": _status("VmHWM") / 2**20, "after_mib": _status("VmRSS") / 2**20}
        found.append(entry | {"cpu_seconds": round(time.process_time() - began, 2)})
        print(f"{phase}: {entry['peak_mib']:.0f} MiB, {found[-1]['cpu_seconds']} s", file=sys.stderr, flush=True)
        _reset_peak()

    def wrapped(phase: str, function: Any) -> Any:
        @functools.wraps(function)
        def call(*given: Any, **named: Any) -> Any:
            began = time.process_time()
            try:
                return function(*given, **named)
            finally:
                note(phase, began)

        return call

    for phase, module, name in WATCHED:
        place = importlib.import_module(module)
        setattr(place, name, wrapped(phase, getattr(place, name)))
    if not _reset_peak():
        sys.exit("this system does not say what a process holds at most")
    sys.argv = ["htaf", *words]
    command()
    note("end", 0.0)
    return found


def measured(file: Path, words: list[str]) -> list[dict[str, Any]]:
    """The phases of a training on a file, in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        told = Path(folder) / "phases.json"
        given = ["train", "tabular", "--data", str(file), "--target", "y", "--out", str(Path(folder) / "run"), *words]
        subprocess.run([sys.executable, __file__, "--watch", str(told), shlex.join(given)], check=True)
        assert (Path(folder) / "run" / "report.html").is_file(), "the command wrote no report"
        return json.loads(told.read_text())


def main() -> None:
    made = parser(__doc__)
    made.add_argument("--rows", type=int, default=5_000_000)
    made.add_argument("--columns", type=int, default=8, help="of numbers; a category and a date beside them")
    made.add_argument("--task", choices=("regression", "classification"), default="regression")
    made.add_argument("--words", default=shlex.join(TRAINING), help="flags of the training, default: %(default)s")
    made.add_argument("--watch", nargs=2, metavar=("FILE", "WORDS"), help=argparse.SUPPRESS)
    given = made.parse_args()
    if given.watch:
        file, words = given.watch
        Path(file).write_text(json.dumps(watched(shlex.split(words))))
        return
    with tempfile.TemporaryDirectory() as folder:
        large, small = Path(folder) / "large.csv", Path(folder) / "small.csv"
        write_table(large, given.rows, given.columns, given.task)
        write_table(small, SMALL, given.columns, given.task)
        size, words = large.stat().st_size / 2**20, shlex.split(given.words)
        few = measured(small, words) if given.rows > SMALL else []
        program = {one["phase"]: one["peak_mib"] for one in few}
        phases = measured(large, words)
    print(f"file {size:.0f} MiB, {given.rows:,} rows of {given.columns} numbers, {given.task}; load before {LOAD}")
    print(f"{'phase':24}{'CPU s':>9}{'peak MiB':>10}{'program':>9}{'files':>7}{'beside':>8}")
    for one in phases:
        one["program_mib"] = program.get(one["phase"], 0.0)
        one["files"] = one["peak_mib"] / size
        one["files_beside"] = (one["peak_mib"] - one["program_mib"]) / size
        print(f"{one['phase']:24}{one['cpu_seconds']:9.1f}{one['peak_mib']:10.0f}{one['program_mib']:9.0f}"
              f"{one['files']:7.2f}{one['files_beside']:8.2f}")  # fmt: skip
    most = max(phases, key=lambda one: one["files_beside"])
    print(f"most beside the program: {most['files_beside']:.2f} files ({most['phase']}); "
          f"with it {max(one['files'] for one in phases):.2f}")  # fmt: skip
    what = {"rows": given.rows, "columns": given.columns, "task": given.task, "file_mib": size, "words": words}
    write(given.json, [what | {"phases": phases}])


if __name__ == "__main__":
    main()
