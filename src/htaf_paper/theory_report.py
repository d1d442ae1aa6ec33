"""Reads the cells of `htaf_paper.theory`: report.json and report.md."""

from __future__ import annotations

import json
import math
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from htaf import theory
from htaf.runs import to_json, write_atomic
from htaf.runs.metrics import LOWER_IS_BETTER

Record = dict[str, Any]
KINDS = ("square", "product", "relu", "gap", "activation")
METHODS = {
    "relu": "ReLU",
    "tanh": "tanh",
    "htaf-1-4": "HTAF (1, 4)",
    "htaf-2-11": "HTAF (2, 11)",
    "htaf-learned": "HTAF, learned from (1, 4)",
}


def report(folder: str | Path) -> str:
    """Write report.md, and report.json with the same figures, into the folder of a run.

    Returns:
        The text of report.md.

    Raises:
        ValueError: no cells there, or a damaged one.
    """
    folder = Path(folder)
    found: dict[str, list[Record]] = {kind: [] for kind in KINDS}
    for path in sorted(folder.glob("cells/*.json")):
        try:
            record = json.loads(path.read_bytes())
            found[record["cell"]["kind"]].append(record)
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{path} is damaged ({error}): delete it to compute the cell again") from None
    if not any(found.values()):
        raise ValueError(f"{folder}: expected cells, got none")
    for records in found.values():
        records.sort(
            key=lambda r: [str(r["cell"].get(k)) for k in ("table", "task", "form")] + [r["cell"].get("alpha0")]
        )
    figures = {
        "square": [square_row(r) for r in found["square"]],
        "product": [product_row(r) for r in found["product"]],
        "relu": [row | _named(r, "alpha0", "alpha1") for r in found["relu"] for row in r["rows"]],
        "steps": [{"neurons": n, **step_row(n)} for n in (1, 4, 9, 49, 499)],
        "gap": [gap_row(r) for r in found["gap"]],
        "activation": activation_rows(found["activation"]),
    }
    text = "\n".join(["# Theory", "", *_sections(figures, found), "", *_measured(found)]) + "\n"
    write_atomic(folder / "report.json", to_json(figures))
    write_atomic(folder / "report.md", text)
    return text


def square_row(record: Record) -> Record:
    """Of one pair and form: bound and exact error at m = 100, how tight, and the best m of both float types."""
    rows = record["rows"]
    at = min(rows, key=lambda row: abs(row["m"] - 100))
    found = _named(record, "alpha0", "alpha1", "form") | {"bound": at["bound"], "exact": at["exact"]}
    found["ratio"] = [
        max(row["bound"] / row["exact"] for row in rows),
        min(row["bound"] / row["exact"] for row in rows),
    ]
    for dtype in ("float64", "float32"):
        best = min(rows, key=lambda row: row[dtype])
        found[dtype] = {"best_m": best["m"], "error": best[dtype], "predicted_m": record["best_m"][dtype]}
    return found


def product_row(record: Record) -> Record:
    """Of one pair: bound and error in float64 at m = 100, and the least errors of both float types."""
    rows = record["rows"]
    at = min(rows, key=lambda row: abs(row["m"] - 100))
    found = _named(record, "alpha0", "alpha1") | {"bound": at["bound"], "measured": at["float64"]}
    for dtype in ("float64", "float32"):
        best = min(rows, key=lambda row: row[dtype])
        found[dtype] = {"best_m": best["m"], "error": best[dtype]}
    return found


def step_row(neurons: int) -> Record:
    """The least error of n exact steps for f(x) = x, and that of `htaf.theory.step_network` on 10,001 points."""
    thresholds, outer, offset = theory.step_network(neurons)
    points = [j / 10_000 for j in range(10_001)]
    error = max(abs(offset + outer * sum(x >= t for t in thresholds) - x) for x in points)
    return {"bound": theory.step_network_error(neurons), "measured": error}


def gap_row(record: Record) -> Record:
    """Of one network: its bounds and how many times the measured gap each is."""
    cell, bounds = record["cell"], record["bounds"]
    found = _named(record, "table", "alpha0", "alpha1") | {"depth": len(cell["hidden"]), **bounds}
    names = [name for name, value in bounds.items() if value is not None and name != "measured"]
    found["times"] = {name: bounds[name] / bounds["measured"] if bounds["measured"] else math.inf for name in names}
    last = record["layers"][-1]
    return found | {key: last[key] for key in ("eps", "density", "flipped", "undecided")}


def activation_rows(records: Sequence[Record]) -> list[Record]:
    """By task and method: test metric of the rate that the validation part chose, seed by seed, and less ReLU's."""
    groups: dict[tuple[str, str, int], list[Record]] = {}
    for record in records:
        cell = record["cell"]
        groups.setdefault((cell["task"], cell["method"], cell["seed"]), []).append(record)
    chosen: dict[tuple[str, str], dict[int, Record]] = {}
    for (task, method, seed), own in groups.items():
        sign = 1 if own[0]["metric"] in LOWER_IS_BETTER else -1
        best = min(own, key=lambda r: (sign * r["validation"], r["cell"]["lr"]))
        chosen.setdefault((task, method), {})[seed] = best
    rows = []
    for (task, method), by_seed in chosen.items():
        tests = {seed: record["test"] for seed, record in by_seed.items()}
        relu = {seed: record["test"] for seed, record in chosen.get((task, "relu"), {}).items()}
        paired = [tests[seed] - relu[seed] for seed in tests if seed in relu]
        first = next(iter(by_seed.values()))
        row = {"task": task, "method": method, "metric": first["metric"], "seeds": len(tests)}
        row |= {"test": _mean(tests.values()), "less_relu": _mean(paired) if method != "relu" and paired else None}
        row["rates"] = {f"{k:g}": n for k, n in sorted(Counter(r["cell"]["lr"] for r in by_seed.values()).items())}
        if learned := [r["learned"] for r in by_seed.values() if "learned" in r]:
            row["learned"] = [[v for own in learned for v in own[i]] for i in range(2)]
            row["learned"] = [[min(values), max(values)] for values in row["learned"]]
        rows.append(row)
    order = list(METHODS)
    return sorted(rows, key=lambda row: (row["task"], order.index(row["method"])))


def _mean(values: Iterable[float]) -> list[float | None]:
    """Mean and its standard error, None of one value."""
    values = list(values)
    error = statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else None
    return [statistics.fmean(values), error]


def _named(record: Record, *keys: str) -> Record:
    return {key: record["cell"][key] for key in keys}


def _sections(figures: dict[str, Any], found: dict[str, list[Record]]) -> list[str]:
    lines: list[str] = []
    if figures["square"]:
        lines += [
            "## The squaring network",
            "",
            "Largest error over [0, 1]. Bound: `htaf.theory.square_network`; exact: in 60 digits. Bound / exact: over",
            "m from 1 to 1e7. Best m: of the grid (in brackets as `best_m` says), and the least error there.",
            "",
            "| form | pair | bound, m = 100 | exact | bound / exact | float64: best m, error | float32: the same |",
            "|---|---|---|---|---|---|---|",
        ]
        for row in figures["square"]:
            ends = [
                f"{row[d]['best_m']:.1e} ({row[d]['predicted_m']:.1e}), {row[d]['error']:.1e}"
                for d in ("float64", "float32")
            ]
            ratio = f"{row['ratio'][1]:.3g} to {row['ratio'][0]:.3g}"
            lines.append(
                _line(row["form"], _pair(row), f"{row['bound']:.2e}", f"{row['exact']:.2e}", ratio, *ends),
            )
        lines.append("")
    if figures["product"]:
        lines += [
            "## The product network",
            "",
            "Largest error over [-1, 1]^2, three neurons.",
            "",
            "| pair | bound, m = 100 | float64, m = 100 | float64: best m, error | float32: best m, error |",
            "|---|---|---|---|---|",
        ]
        for row in figures["product"]:
            ends = [f"{row[d]['best_m']:.1e}, {row[d]['error']:.1e}" for d in ("float64", "float32")]
            lines.append(_line(_pair(row), f"{row['bound']:.2e}", f"{row['measured']:.2e}", *ends))
        lines.append("")
    if figures["relu"]:
        cell = found["relu"][0]["cell"]
        size = "-".join(map(str, cell["hidden"]))
        lines += [
            "## A ReLU network copied by an HTAF network",
            "",
            f"{cell['table'].capitalize()}, hidden layers {size}; the copy has twice as many, of up to three times the",
            "width. Errors in standard deviations of the target, the largest over test rows and 5,000 uniform ones.",
            "",
            "| pair | eps | bound | float64 | float32 | largest weight |",
            "|---|---|---|---|---|---|",
        ]
        for row in figures["relu"]:
            values = (row[key] for key in ("eps", "bound", "float64", "float32", "largest"))
            lines.append(_line(_pair(row), *(f"{v:.1e}" for v in values)))
        lines.append("")
    lines += [
        "## Exact steps",
        "",
        "f(x) = x on [0, 1]: the least error of a network with n exact steps in its first layer, 1 / (2 (n + 1)).",
        "",
        "| n | least error | `step_network`, measured |",
        "|---|---|---|",
        *(_line(str(r["neurons"]), f"{r['bound']:.4g}", f"{r['measured']:.4g}") for r in figures["steps"]),
        "",
    ]
    one, deep = ([row for row in figures["gap"] if (row["depth"] > 1) == several] for several in (False, True))
    if one:
        lines += [
            "## The gap, one hidden layer",
            "",
            "Mean |exact - smooth output| over test rows and outputs (standardised target, logits). In brackets: times",
            "the gap. Bounds as in `htaf.diagnostics.GapBound`; eps and C of the paper's condition, measured.",
            "",
            "| table | pair | eps | C | gap | triangle | by neuron | paper |",
            "|---|---|---|---|---|---|---|---|",
        ]
        lines += [
            _line(row["table"], _pair(row), f"{row['eps']:.3f}", f"{row['density']:.2f}", f"{row['measured']:.4f}")
            + "".join(f" {_bound(row, name)} |" for name in ("triangle", "by_neuron", "paper"))
            for row in one
        ]
        lines += ["", *_median(one, ("triangle", "by_neuron", "paper")), ""]
    if deep:
        lines += [
            "## The gap, two hidden layers",
            "",
            "Flipped: share of second-layer bits that differ; undecided: that `certified` cannot exclude to differ.",
            "",
            "| table | pair | gap | triangle | certified | flipped | undecided |",
            "|---|---|---|---|---|---|---|",
        ]
        lines += [
            _line(row["table"], _pair(row), f"{row['measured']:.4f}", _bound(row, "triangle"), _bound(row, "certified"))
            + f" {row['flipped']:.4f} | {row['undecided']:.4f} |"
            for row in deep
        ]
        lines += ["", *_median(deep, ("triangle", "certified")), ""]
    if figures["activation"]:
        lines += [
            "## HTAF as a general activation",
            "",
            "Smooth networks, never hardened. Wine: 64-64 and batch norm, RMSE; digits: two convolutions and batch",
            "norm, accuracy in %. The learning rate is chosen for each seed by the validation part, from the same",
            "three for all. Mean (standard error) over the seeds; less ReLU: paired by seed.",
            "",
            "| task | activation | test | less ReLU | rates chosen |",
            "|---|---|---|---|---|",
        ]
        for row in figures["activation"]:
            scale, digits = (100, 2) if row["metric"] in ("accuracy", "auroc") else (1, 4)
            rates = ", ".join(f"{rate}: {n}" for rate, n in row["rates"].items())
            values = [_with_error(row[key], scale, digits) for key in ("test", "less_relu")]
            lines.append(_line(row["task"], METHODS[row["method"]], *values, rates))
        for row in figures["activation"]:
            if ends := row.get("learned"):
                shown = "; ".join(
                    f"{k} {a:.2f} to {b:.2f}" for k, (a, b) in zip(("alpha0", "alpha1"), ends, strict=True)
                )
                lines += ["", f"Learned on {row['task']}: {shown}."]
    return lines


def _median(rows: Sequence[Record], names: Sequence[str]) -> list[str]:
    shown = [
        f"{name.replace('_', ' ')} {statistics.median(times):.1f} ({min(times):.1f} to {max(times):.1f})"
        for name in names
        for times in [[row["times"][name] for row in rows]]
    ]
    return [f"Times the gap, median (least to largest): {', '.join(shown)}."]


def _bound(row: Record, name: str) -> str:
    return f"{row[name]:.4f} ({row['times'][name]:.1f})"


def _with_error(value: Sequence[float | None] | None, scale: float, digits: int) -> str:
    if value is None or value[0] is None:
        return "-"
    error = "" if value[1] is None else f" ({scale * value[1]:.{digits}f})"
    return f"{scale * value[0]:.{digits}f}{error}"


def _pair(row: Record) -> str:
    return f"({row['alpha0']:g}, {row['alpha1']:g})"


def _line(*entries: str) -> str:
    return f"| {' | '.join(entries)} |"


def _measured(found: dict[str, list[Record]]) -> list[str]:
    records = [record for own in found.values() for record in own]
    lines = [f"{len(records)} cells, {sum(r['seconds'] for r in records) / 60:.1f} minutes."]
    seen = Counter(to_json({k: r[k] for k in ("commit", "versions", "threads")}) for r in records)
    for text, count in seen.most_common():
        made = json.loads(text)
        versions = ", ".join(f"{k} {v}" for k, v in made["versions"].items())
        lines.append(f"{count} cells: commit {made['commit']}, {versions}, {made['threads']} thread(s).")
    return lines
