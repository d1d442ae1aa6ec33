"""The study over many tables as text and figures: cells.csv, results.json and report.md."""

from __future__ import annotations

import csv
import io
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from scipy import stats

from htaf._files import to_json, write_atomic
from htaf.runs import short_commit
from htaf_paper.kept import KeptError, kept_errors, read_kept

Record = dict[str, Any]
Row = dict[str, Any]
NETWORKS = ("htaf", "ste", "ss", "relu")
BASE = "boosting"
LABELS = {
    "htaf": "HTAF", "ste": "STE", "ss": "SS", "relu": "ReLU", "boosting": "HGB", "catboost": "CatBoost",
    "realmlp": "RealMLP", "tabm": "TabM",
}  # fmt: skip
SMOOTH = " smooth"
PACKAGES = {"boosting": "scikit-learn", "catboost": "catboost", "realmlp": "pytabkit", "tabm": "pytabkit"}
KINDS = {"rmse": "RMSE (%)", "auroc": "AUROC", "accuracy": "accuracy"}
GROUPS = {"unseen": "Sets on which nothing was chosen", "chose": "Sets that chose the defaults"}
CELLS, RESULTS, REPORT = "cells.csv", "results.json", "report.md"
NUMBERS = ("validation", "test", "smooth_validation", "smooth_test", "train_cpu", "train_wall", "predict_cpu",
           "predict_wall")  # fmt: skip
COUNTS = ("split", "train_rows", "validation_rows", "test_rows", "columns")
TEXTS = ("set", "method", "metric", "rows_key", "recipe", "made_by")
Cells = dict[tuple[str, str, int], Row]
Values = dict[str, dict[tuple[str, int], float]]  # label -> (set, split) -> test value


def check_record(record: Record) -> None:
    """Reads all of a record that the report is made of."""
    row_of(record)


def row_of(record: Record) -> Row:
    """One line of cells.csv."""
    metric, method = str(record["metric"]), str(record["method"])
    if metric not in KINDS or method not in LABELS:
        raise ValueError(f"expected one of {', '.join(KINDS)} by one of {', '.join(LABELS)}, got {metric} by {method}")
    values, smooth, versions = record["values"], record["smooth"], record["versions"]
    package = PACKAGES.get(method)
    made = f"htaf {short_commit(record.get('commit'))}" if package is None else f"{package} {versions[package]}"
    return {
        "set": str(record["set"]), "method": method, "split": int(record["split"]), "metric": metric,
        "validation": _number(values["validation"][metric]), "test": _number(values["test"][metric]),
        "smooth_validation": _number(smooth["validation"][metric]) if smooth else None,
        "smooth_test": _number(smooth["test"][metric]) if smooth else None,
        **{f"{step}_{clock}": float(record[step][clock]) for step in ("train", "predict") for clock in ("cpu", "wall")},
        **{f"{part}_rows": int(record["rows"][part]) for part in ("train", "validation", "test")},
        "columns": int(record["columns"]), "rows_key": str(record["rows_key"]), "recipe": record.get("recipe") or "",
        "made_by": made,
    }  # fmt: skip


def _number(value: Any) -> float | None:
    """Rounded to 7 digits; None where a metric is not defined."""
    return None if value is None else float(f"{float(value):.7g}")


def read_cells(table: Path, folders: Iterable[Path]) -> Cells:
    """The cells of cells.csv, and those of folders with a record each, which come before them.

    Raises:
        KeptError: a damaged file; or cells that cannot be compared: other rows of one split, or recipes that differ.
    """
    cells: Cells = {}
    with kept_errors(table):
        if table.is_file():
            for line in csv.DictReader(io.StringIO(table.read_text())):
                row: Row = {name: line[name] for name in TEXTS}
                row |= {name: int(line[name]) for name in COUNTS}
                row |= {name: float(line[name]) if line[name] else None for name in NUMBERS}
                if row["metric"] not in KINDS or row["method"] not in LABELS:
                    raise ValueError(f"{row['metric']} by {row['method']}")
                cells[row["set"], row["method"], row["split"]] = row
    for folder in folders:
        for path in sorted(folder.glob("*.json")):
            row = row_of(read_kept(path, check_record))
            cells[row["set"], row["method"], row["split"]] = row
    rows: dict[tuple[str, int], Row] = {}
    recipes: dict[str, Row] = {}
    for row in cells.values():
        other = rows.setdefault((row["set"], row["split"]), row)
        if other["rows_key"] != row["rows_key"]:
            raise KeptError(
                f"{row['set']}, split {row['split']}: expected {row['method']} on the rows of {other['method']}, got "
                "others: write the inputs again and compute its cells anew"
            )
        other = recipes.setdefault(row["method"], row)
        if other["recipe"] != row["recipe"]:
            raise KeptError(
                f"{row['method']}: expected one recipe, got {other['recipe']} ({other['set']}, split {other['split']}) "
                f"and {row['recipe']} ({row['set']}, split {row['split']}): move the cells of one away"
            )
    return cells


def values_of(cells: Cells, sets: Sequence[str]) -> Values:
    """The test values of some sets by label: of every method, and of the smooth networks."""
    found: Values = {}
    for (name, method, split), row in sorted(cells.items()):
        if name not in sets:
            continue
        for label, key in ((LABELS[method], "test"), (LABELS[method] + SMOOTH, "smooth_test")):
            if row[key] is not None:
                found.setdefault(label, {})[name, split] = row[key]
    return {label: found[label] for label in _order() if label in found}


def _order() -> list[str]:
    return [*LABELS.values(), *(LABELS[method] + SMOOTH for method in NETWORKS if method != "relu")]


def by_set(one: Mapping[tuple[str, int], float], other: Mapping[tuple[str, int], float]) -> dict[str, list[Any]]:
    """The pairs of values of the cells that both have, by set."""
    found: dict[str, list[Any]] = {}
    for cell in sorted(one.keys() & other.keys()):
        found.setdefault(cell[0], []).append((one[cell], other[cell]))
    return found


def ranks(values: Values, lower: Mapping[str, bool]) -> dict[str, Row]:
    """Mean ranks of the methods, 1 for the best, on the cells that all ranked methods have.

    In each cell the methods are ranked, ties by their mean rank; of a set the mean over its cells, then over the sets.
    A method that lacks more than half of the sets that HTAF and HGB have is not ranked: else it would leave the others
    few sets. Where one has fewer splits than others, the ranks are of those that it has.

    Args:
        values: by label. lower: by set whether less is better.

    Returns:
        by method "rank", None where it is not ranked; "sets" and "cells" of the ranks; "own", the cells that it has.
    """
    methods = [label for label in values if not label.endswith(SMOOTH)]
    anchors = [label for label in (LABELS["htaf"], LABELS[BASE]) if label in methods] or methods[:1]
    wanted = _common(values, anchors)
    sets = {name for name, _ in wanted}
    of = {label: {name for name, _ in wanted & values[label].keys()} for label in methods}
    ranked = [label for label in methods if 2 * len(of[label]) >= len(sets) > 0]
    common = sorted(_common(values, ranked))
    of_set: dict[str, list[Any]] = {}
    for cell in common:
        sign = 1.0 if lower[cell[0]] else -1.0
        of_set.setdefault(cell[0], []).append(stats.rankdata([sign * values[label][cell] for label in ranked]))
    means = {
        label: statistics.fmean(statistics.fmean(float(each[place]) for each in cells) for cells in of_set.values())
        for place, label in enumerate(ranked)
        if common
    }
    return {
        label: {"rank": means.get(label), "sets": len(of_set), "cells": len(common), "own": len(values[label])}
        for label in methods
    }


def _common(values: Values, labels: Sequence[str]) -> set[tuple[str, int]]:
    """The cells that all of these have."""
    return set.intersection(*({*values[label]} for label in labels)) if labels else set()


def losses(values: Values, metrics: Mapping[str, str], base: str = LABELS[BASE]) -> dict[str, dict[str, Row]]:
    """How much worse than a base each label is, by metric: percent of RMSE, or points of AUROC or accuracy.

    Of a set the mean over the splits that both have; over the sets mean and 95% interval (Student's t over sets).

    Args:
        values: by label. metrics: by set. base: a label.
    """
    theirs = values.get(base, {})
    found: dict[str, dict[str, Row]] = {}
    for label, own in values.items():
        if label == base:
            continue
        pairs = by_set(own, theirs)
        for kind in KINDS:
            here = {name: each for name, each in pairs.items() if metrics[name] == kind}
            if not here:
                continue
            each = {
                name: statistics.fmean(100 * (a / b - 1) if kind == "rmse" else b - a for a, b in some)
                for name, some in here.items()
            }
            cells = sum(map(len, here.values()))
            found.setdefault(label, {})[kind] = {**mean_interval([*each.values()]), "cells": cells, "each": each}
    return found


def mean_interval(values: Sequence[float]) -> Row:
    """Mean, and the 95% interval of Student's t; None as interval of a single value."""
    mean = statistics.fmean(values)
    if len(values) < 2:
        return {"mean": mean, "interval": None}
    half = float(stats.t.ppf(0.975, len(values) - 1)) * statistics.stdev(values) / math.sqrt(len(values))
    return {"mean": mean, "interval": [mean - half, mean + half]}


def times(cells: Cells, sets: Sequence[str]) -> dict[str, Row]:
    """Medians over cells: CPU seconds of a training, the same over HGB's of the same cell, microseconds of a row."""
    base = {(row["set"], row["split"]): row for row in cells.values() if row["method"] == BASE}
    found: dict[str, Row] = {}
    for method, label in LABELS.items():
        own = [row for row in cells.values() if row["method"] == method and row["set"] in sets]
        if not own:
            continue
        over = [
            row["train_cpu"] / other["train_cpu"]
            for row in own
            if (other := base.get((row["set"], row["split"]))) and other["train_cpu"] > 0
        ]
        found[label] = {
            "train_cpu": statistics.median(row["train_cpu"] for row in own),
            "over_base": statistics.median(over) if over else None,
            "row_us": statistics.median(1e6 * row["predict_cpu"] / row["test_rows"] for row in own),
            "rows": statistics.median(row["train_rows"] for row in own),
            "cells": len(own),
        }
    return found


def results(cells: Cells, groups: Mapping[str, Sequence[str]], splits: int) -> Record:
    """Everything that the report shows, as plain values."""
    metrics = {row["set"]: row["metric"] for row in cells.values()}
    lower = {name: metric == "rmse" for name, metric in metrics.items()}
    record: Record = {"format": 1, "groups": {}, "splits": splits}
    for group, sets in groups.items():
        values = values_of(cells, sets)
        there = {name for each in values.values() for name, _ in each}
        record["groups"][group] = {
            "sets": len(sets),
            "ranks": ranks(values, lower),
            "losses": losses(values, metrics),
            "against_ste": losses(
                {label: values[label] for label in map(LABELS.__getitem__, NETWORKS) if label in values},
                metrics,
                LABELS["ste"],
            ),
            "times": times(cells, sets),
            "missing": {
                label: len(sets) * splits - len(values.get(label, {}))
                for label in LABELS.values()
                if len(values.get(label, {})) < len(sets) * splits
            },
            "tables": {
                name: {"metric": metrics[name], "values": {label: _mean(own, name) for label, own in values.items()}}
                for name in sets
                if name in there
            },
        }
    record["recipes"] = {row["method"]: row["recipe"] for _, row in sorted(cells.items()) if row["method"] in NETWORKS}
    record["made_by"] = sorted({row["made_by"] for row in cells.values()})
    return record


def _mean(own: Mapping[tuple[str, int], float], name: str) -> Row | None:
    found = [value for (other, _), value in own.items() if other == name]
    if not found:
        return None
    return {"mean": statistics.fmean(found), "sd": statistics.stdev(found) if len(found) > 1 else None, "n": len(found)}


def report(record: Record) -> str:
    """The text of report.md."""
    lines = [
        "# HTAF beside boosted trees and other networks, on many tables",
        "",
        "`python -m htaf_paper.many_tables --out DIR`, `benchmarks/peers/tables/compare.py`, then `--report`. "
        f"{record['splits']} splits of each table, 70/10/20; one recipe for all tables, and defaults for all others. "
        "Nothing was tuned here, and nothing chosen on test rows. HTAF, STE and SS are the exact networks, whose "
        "activations are 0 or 1; ReLU is real-valued. HGB: scikit-learn's HistGradientBoosting.",
        "",
        "- All train on the same rows. The validation rows choose the epoch of the networks and the number of "
        "CatBoost's trees; HGB does not see them.",
        "- HGB and the peers get the columns that htaf reads before it prepares them: numbers, categories, and of a "
        "date the parts that htaf makes (year, month, weekday, day of year, hour, days). RealMLP and TabM take no "
        "missing numbers: there the training median stands.",
        "- A cell is a table, a method and a split. Two methods are compared on the cells that both have.",
        "- The aim for HTAF: on sets on which nothing was chosen at most 2% more RMSE than HGB, and 0.005 less AUROC.",
        "",
    ]
    for group, title in GROUPS.items():
        if group in record["groups"]:
            lines += _group(title, record["groups"][group])
    lines += [
        "## What made the figures",
        "",
        "; ".join(record["made_by"]) + ".",
        "",
        "Keys of the recipes: " + ", ".join(f"{LABELS[m]} {key}" for m, key in record["recipes"].items()) + ".",
        "",
    ]
    return "\n".join(lines)


def _group(title: str, group: Record) -> list[str]:
    if not group["tables"]:
        return [f"## {title}", "", "No cell yet.", ""]
    lines = [f"## {title} ({group['sets']})", "", "### Loss against HGB", ""]
    lines += [
        "Mean over tables, in brackets the 95% interval (t over tables) and the number of tables. RMSE: percent more. "
        "AUROC and accuracy: points of 1 less. Below 0 is better than HGB.",
        "",
        f"| | {' | '.join(KINDS.values())} | rank | cells | CPU s to train | over HGB's | us a row |",
        "|---" * (len(KINDS) + 6) + "|",
    ]
    for label in _order():
        loss, rank, time = (group[key].get(label) for key in ("losses", "ranks", "times"))
        if not (loss or rank):
            continue
        cells = [_loss((loss or {}).get(kind), 1 if kind == "rmse" else 4) for kind in KINDS]
        place = rank and rank["rank"]
        common = sum(one["cells"] for one in loss.values()) if loss else rank["own"] if rank else 0
        cells += ["-" if place is None else f"{place:.2f}", str(common)]
        if time:
            over = "-" if time["over_base"] is None else f"{time['over_base']:.3g}"
            cells += [f"{time['train_cpu']:.1f}", over, f"{time['row_us']:.2g}"]
        lines.append(f"| {label} | {' | '.join(cells if time else [*cells, '', '', ''])} |")
    lines += [
        "",
        f"{_ranked(group['ranks'])}",
        "",
        "Cells: those that a method and HGB both have, of which its loss is; of HGB its own. Times are medians over "
        "the cells that a method has, one thread; over HGB's: the median ratio in the cells of both. The networks' "
        "times hold the preparation of the columns and the measuring after the training; those of others do not.",
        "",
    ]
    for kind, loss in (group["losses"].get(LABELS["htaf"]) or {}).items():
        digits = 1 if kind == "rmse" else 3
        told = sorted(loss["each"].items(), key=lambda pair: -pair[1])
        lines += [f"HTAF, {KINDS[kind]}: {', '.join(f'{name} {value:+.{digits}f}' for name, value in told)}.", ""]
    if group["against_ste"]:
        lines += [
            "The same against STE, on the cells that both have:",
            "",
            f"| | {' | '.join(KINDS.values())} |",
            "|---" * (len(KINDS) + 1) + "|",
        ]
        for label, loss in group["against_ste"].items():
            texts = [_loss(loss.get(kind), 1 if kind == "rmse" else 4) for kind in KINDS]
            lines.append(f"| {label} | {' | '.join(texts)} |")
        lines.append("")
    if group["missing"]:
        told = ", ".join(f"{label} {count}" for label, count in group["missing"].items())
        lines += [f"Cells that are missing, and left out: {told}.", ""]
    shown = [label for label in _order() if any(t["values"].get(label) for t in group["tables"].values())]
    shown = [label for label in shown if label not in (LABELS["ste"] + SMOOTH, LABELS["ss"] + SMOOTH)]
    lines += [
        "### Tables",
        "",
        "Mean (standard deviation) over the splits; in square brackets their number where it is not all.",
        "",
        f"| | metric | {' | '.join(shown)} |",
        "|---" * (len(shown) + 2) + "|",
    ]
    most = max(v["n"] for t in group["tables"].values() for v in t["values"].values() if v)
    for name, table in group["tables"].items():
        texts = [_value(table["values"].get(label), table["metric"], most) for label in shown]
        lines.append(f"| {name} | {table['metric']} | {' | '.join(texts)} |")
    return [*lines, ""]


def _ranked(found: Mapping[str, Row]) -> str:
    """On which cells the ranks are, and which methods have none."""
    names = [label for label, one in found.items() if one["rank"] is not None]
    if not names:
        return "No ranks: no cell that all methods have."
    first, less = (
        found[names[0]],
        [f"{label} ({one['own']})" for label, one in found.items() if one["rank"] is None],
    )
    without = f" Not ranked, with less than half of the tables (cells): {', '.join(less)}." if less else ""
    return (
        f"Rank: the mean rank, 1 for the best, on the {first['cells']} cells of {first['sets']} tables that all of "
        f"{', '.join(names)} have; ties share theirs.{without}"
    )


def _loss(loss: Row | None, digits: int) -> str:
    if loss is None:
        return "-"
    if loss["interval"] is None:
        return f"{loss['mean']:+.{digits}f} (1)"
    low, high = loss["interval"]
    return f"{loss['mean']:+.{digits}f} ({low:+.{digits}f} to {high:+.{digits}f}; {len(loss['each'])})"


def _value(value: Row | None, metric: str, most: int) -> str:
    if value is None:
        return "-"
    form = ".4g" if metric == "rmse" else ".4f"
    sd = "" if value["sd"] is None else _plain(value["sd"], ".2g" if metric == "rmse" else ".4f")
    spread = f" ({sd})" if sd else ""
    fewer = "" if value["n"] == most else f" [{value['n']}]"
    return f"{_plain(value['mean'], form)}{spread}{fewer}"


def _plain(value: float, form: str) -> str:
    """Without an exponent."""
    return f"{value:,.0f}" if abs(value) >= 99.5 else format(value, form)


def write(out: Path, folders: Sequence[Path], groups: Mapping[str, Sequence[str]], splits: int = 5) -> str:
    """Gather the cells and write cells.csv, results.json and report.md into `out`; the report.

    Args:
        folders: with a record a cell; what they lack is taken from the cells.csv that is there.
        groups: "chose" and "unseen", the sets of each.

    Raises:
        KeptError: no cell; or as `read_cells`.
    """
    cells = read_cells(out / CELLS, folders)
    if not cells:
        raise KeptError(f"{', '.join(map(str, folders))}: expected records of cells, got none")
    held = io.StringIO()
    writer = csv.DictWriter(held, [*TEXTS[:2], *COUNTS[:1], *TEXTS[2:3], *NUMBERS, *COUNTS[1:], *TEXTS[3:]],
                            lineterminator="\n")  # fmt: skip
    writer.writeheader()
    writer.writerows(row for _, row in sorted(cells.items()))
    with kept_errors(out):
        record = results(cells, groups, splits)
        text = report(record)
    write_atomic(out / CELLS, held.getvalue())
    write_atomic(out / RESULTS, to_json(record))
    write_atomic(out / REPORT, text)
    return text
