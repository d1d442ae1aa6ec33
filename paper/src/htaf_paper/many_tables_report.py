"""Reads the records of `htaf_paper.many_tables` and of its peers: losses, ranks, times, tables."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from scipy import stats

from htaf.training.runs import short_commit
from htaf_paper.protocol import Outcome, PaperError, Table

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
Cells = dict[tuple[str, str, int], Row]
Values = dict[str, dict[tuple[str, int], float]]  # label -> (set, split) -> test value


def row_of(record: Record) -> Row:
    """What the report needs of a record, one value a name."""
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


def rows_of(records: Iterable[Record]) -> Cells:
    """The cells of records.

    Raises:
        PaperError: a record that is none; or cells that cannot be compared: other rows of one split, or recipes that
            differ.
    """
    cells: Cells = {}
    for record in records:
        try:
            row = row_of(record)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise PaperError(f"expected a record of the study over tables: {type(error).__name__}: {error}") from None
        cells[row["set"], row["method"], row["split"]] = row
    rows: dict[tuple[str, int], Row] = {}
    recipes: dict[str, Row] = {}
    for row in cells.values():
        other = rows.setdefault((row["set"], row["split"]), row)
        if other["rows_key"] != row["rows_key"]:
            raise PaperError(
                f"{row['set']}, split {row['split']}: expected {row['method']} on the rows of {other['method']}, got "
                "others: write the inputs again and compute its cells anew"
            )
        other = recipes.setdefault(row["method"], row)
        if other["recipe"] != row["recipe"]:
            raise PaperError(
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


def outcome(records: Iterable[Record], groups: Mapping[str, Sequence[str]], splits: int) -> Outcome:
    """The tables of each group of sets that has a cell.

    Args:
        records: of the study and of its peers. groups: "chose" and "unseen", the sets of each. splits: of each set.

    Raises:
        PaperError: as `rows_of`.
    """
    record = results(rows_of(records), groups, splits)
    tables = []
    for name, title in GROUPS.items():
        if (group := record["groups"].get(name)) and group["tables"]:
            tables += [*_loss_tables(title, group), _values_table(title, group)]
    made = "; ".join(record["made_by"])
    keys = ", ".join(f"{LABELS[method]} {key}" for method, key in record["recipes"].items())
    return Outcome(tuple(tables), notes=(*ABOUT, f"Made by {made}. Keys of the recipes: {keys}."))


ABOUT = (
    "Splits of each table, 70/10/20; one recipe for all tables, and defaults for all others. Nothing was tuned here, "
    "and nothing chosen on test rows. HTAF, STE and SS are the exact networks, whose activations are 0 or 1; ReLU is "
    "real-valued. HGB: scikit-learn's HistGradientBoosting. Peers: `benchmarks/peers/tables/compare.py`.",
    "All train on the same rows. The validation rows choose the epoch of the networks and the number of CatBoost's "
    "trees; HGB does not see them. HGB and the peers get the columns that htaf reads before it prepares them: numbers, "
    "categories, and of a date the parts that htaf makes (year, month, weekday, day of year, hour, days). RealMLP and "
    "TabM take no missing numbers: there the training median stands.",
    "A cell is a table, a method and a split. Two methods are compared on the cells that both have. The aim for HTAF: "
    "on sets on which nothing was chosen at most 2% more RMSE than HGB, and 0.005 less AUROC.",
)


def _loss_tables(title: str, group: Record) -> list[Table]:
    """Against HGB and, where there are cells of STE, against it."""
    rows = []
    for label in _order():
        loss, rank, time = (group[key].get(label) for key in ("losses", "ranks", "times"))
        if not (loss or rank):
            continue
        place = rank and rank["rank"]
        common = sum(one["cells"] for one in loss.values()) if loss else rank["own"] if rank else 0
        spent = ("", "", "")
        if time:
            over = "-" if time["over_base"] is None else f"{time['over_base']:.3g}"
            spent = (f"{time['train_cpu']:.1f}", over, f"{time['row_us']:.2g}")
        rows.append((label, *_losses(loss or {}), "-" if place is None else f"{place:.2f}", str(common), *spent))
    told = [
        f"HTAF, {KINDS[kind]}: "
        + ", ".join(f"{name} {value:+.{1 if kind == 'rmse' else 3}f}" for name, value in _largest_first(loss["each"]))
        for kind, loss in (group["losses"].get(LABELS["htaf"]) or {}).items()
    ]
    if group["missing"]:
        lacking = ", ".join(f"{label} {count}" for label, count in group["missing"].items())
        told.append(f"Cells that are missing, and left out: {lacking}")
    note = (
        "Mean over tables, in brackets the 95% interval (t over tables) and the number of tables. RMSE: percent more. "
        "AUROC and accuracy: points of 1 less. Below 0 is better than HGB. "
        f"{_ranked(group['ranks'])} Cells: those that a method and HGB both have, of which its loss is; of HGB its "
        "own. Times are medians over the cells that a method has, one thread; over HGB's: the median ratio in the "
        "cells of both. The networks' times hold the preparation of the columns and the measuring after the training; "
        "those of "
        f"others do not. {'. '.join(told)}"
    )
    spent = ("CPU s to train", "over HGB's", "us a row")
    columns = ("method", *KINDS.values(), "rank", "cells", *spent)
    tables = [Table(f"{title} ({group['sets']}): loss against HGB", columns, tuple(rows), note)]
    if group["against_ste"]:
        against = tuple((label, *_losses(loss)) for label, loss in group["against_ste"].items())
        note = "The same against STE, on the cells that both have"
        tables.append(Table(f"{title}: loss against STE", ("method", *KINDS.values()), against, note))
    return tables


def _largest_first(each: Mapping[str, float]) -> list[tuple[str, float]]:
    return sorted(each.items(), key=lambda pair: -pair[1])


def _losses(loss: Mapping[str, Row]) -> tuple[str, ...]:
    return tuple(_loss(loss.get(kind), 1 if kind == "rmse" else 4) for kind in KINDS)


def _values_table(title: str, group: Record) -> Table:
    shown = [label for label in _order() if any(t["values"].get(label) for t in group["tables"].values())]
    shown = [label for label in shown if label not in (LABELS["ste"] + SMOOTH, LABELS["ss"] + SMOOTH)]
    most = max(v["n"] for t in group["tables"].values() for v in t["values"].values() if v)
    rows = tuple(
        (name, table["metric"], *(_value(table["values"].get(label), table["metric"], most) for label in shown))
        for name, table in group["tables"].items()
    )
    note = "Mean (standard deviation) over the splits; in square brackets their number where it is not all"
    return Table(f"{title}: tables", ("set", "metric", *shown), rows, note)


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
