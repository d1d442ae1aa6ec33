"""Accuracy of networks whose weights are on a grid beside the same with real weights, over seeds.

    python benchmarks/grid_accuracy.py --out DIR [--families dhn snn] [--seeds 3] [--epochs 4] [--json FILE] [--no-test]

For each family and seed: `htaf train` by the recipe `quick` of small width on all of CIFAR-10, with real weights, int8
and int4. The last two are packed, and predictions on all 10,000 test images are compared with those of the trained
network. Differences are of the same seed, with Student's 95% interval over the seeds. Runs stay in DIR: the same
command goes on where it was stopped. (The figures of docs/log.md are of an earlier protocol: two more epochs on the
grid from the weights of a float run.)
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import measuring
from scipy import stats

KINDS = ("float", "int8", "int4")
WIDTHS = {"dhn": ("32", "128", "128"), "snn": ("16", "32", "32")}


def htaf(*words: str | Path) -> dict[str, Any]:
    """What a command says as JSON."""
    said = subprocess.run(
        [sys.executable, "-m", "htaf", *map(str, words), "--json"], stdout=subprocess.PIPE, text=True, check=True
    )
    return json.loads(said.stdout)["result"]


def trained(family: str, seed: int, out: Path, *more: str | Path) -> dict[str, Any]:
    """The record of a run, finished in this call or an earlier one."""
    record = out / "record.json"
    if not record.is_file() or json.loads(record.read_text()).get("status") != "finished":
        htaf("train", family, "--data", "cifar10", "--seed", str(seed), *more, "--out", out)
    return json.loads(record.read_text())


def measured(family: str, seed: int, epochs: int, out: Path) -> list[dict[str, Any]]:
    """One row for each kind of weights."""
    words, rows = ("--recipe", "quick", "--widths", *WIDTHS[family], "--epochs", str(epochs)), []
    for kind in KINDS:
        run = out / f"{family}-{seed}-{kind}"
        record = trained(family, seed, run, *words, "--weights", kind)
        row = {"family": family, "seed": seed, "weights": kind, "exact": record["metrics"]["exact"]["test"]["accuracy"]}
        if kind != "float":
            file = out / f"{family}-{seed}-{kind}.packed"
            file.unlink(missing_ok=True)
            made = htaf("pack", run, "--out", file, "--differing", "10000")
            row |= {"rows": made["rows"], "differing": made["rows"] - made["same"]}
        rows.append(row)
        print(json.dumps(row), flush=True)
    return rows


def interval(values: list[float]) -> str:
    """Mean and 95% interval of Student's t."""
    mean = sum(values) / len(values)
    if len(values) < 2:
        return f"{mean:+.2f}"
    low, high = stats.t.interval(0.95, len(values) - 1, mean, stats.sem(values)) if len({*values}) > 1 else (mean, mean)
    return f"{mean:+.2f} [{low:+.2f}, {high:+.2f}]"


def show(rows: list[dict[str, Any]]) -> None:
    cells = []
    for family in dict.fromkeys(row["family"] for row in rows):
        of = {k: {r["seed"]: r for r in rows if (r["family"], r["weights"]) == (family, k)} for k in KINDS}
        for kind, found in of.items():
            values = {seed: 100 * row["exact"] for seed, row in found.items()}
            more = [values[seed] - 100 * of["float"][seed]["exact"] for seed in values if seed in of["float"]]
            differing = [f"{row['differing']} of {row['rows']:,}" for row in found.values() if "rows" in row]
            each = " ".join(f"{value:.2f}" for value in values.values())
            mean = f"{sum(values.values()) / len(values):.2f}"
            cells.append((family, kind, each, mean, "" if kind == "float" else interval(more), ", ".join(differing)))
    columns = ("family", "weights", "each seed", "mean", "more than float", "predictions that differ, packed")
    title = "Exact test accuracy in %, and points more than float weights of the same seed"
    measuring.show(title, columns, cells, columns)


def main() -> None:
    parser = measuring.parser(__doc__, rounds=1)
    parser.add_argument("--out", type=Path, required=True, help="folder of the runs")
    parser.add_argument("--families", nargs="+", choices=[*WIDTHS], default=[*WIDTHS])
    parser.add_argument("--seeds", type=measuring.at_least_one, default=3)
    parser.add_argument("--epochs", type=measuring.at_least_one, default=4)
    arguments = measuring.begin(parser, "kernels/test_integer_convolution.py", "packed/test_packed_grid.py")
    rows: list[dict[str, Any]] = []
    for family in arguments.families:
        for seed in range(arguments.seeds):
            rows += measured(family, seed, arguments.epochs, arguments.out)
            measuring.write(arguments.json, rows)  # one that is stopped has said what it knows
    show(rows)


if __name__ == "__main__":
    main()
