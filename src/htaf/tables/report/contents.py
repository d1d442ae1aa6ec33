"""The figures of a report, as plain JSON values: what `report.json` holds and the page shows."""

from __future__ import annotations

import csv
import dataclasses
import io
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Int64

from htaf._ground.console import direction
from htaf.data.columns import Column
from htaf.data.notes import Note, from_record, told
from htaf.data.tabular import Table
from htaf.tables.report.baselines import Baseline
from htaf.tables.report.measured import Measured, thresholds, verdict
from htaf.tables.rules.bits import RulesError
from htaf.tables.rules.explanation import BitRule, Explanation, explain
from htaf.tables.rules.inspection import effects, importance
from htaf.tables.rules.trees import surrogate
from htaf.training.runs import METRICS, Run
from htaf.training.runs.metrics import LOWER_IS_BETTER, confusion, quantiles

FORMAT = 6
BINS = 10
MOST_CLASSES = 100  # whose whole confusion matrix is kept
MOST_PAIRS = 20  # of classes that are taken for each other
MOST_SHOWN = 8  # categories of a column that are named
RULES = 12  # bits that are described
EFFECTS = 6  # columns whose effect is drawn, and classes whose probability is
KINDS = {
    "number": "number", "category": "category", "encoded": "many categories", "date": "date", "dropped": "not used"
}  # fmt: skip
LOSSES = ("train_loss", "val_loss_smooth", "val_loss")


def contents(
    run: Run,
    table: Table,
    measured: Measured,
    *,
    baselines: Sequence[Baseline] | None = None,
) -> dict[str, Any]:
    """Say what there is to say of a finished run of a table; the same for the same run.

    Args:
        run: of a table.
        table: the one that it was trained on.
        measured: what its networks say of the rows of the report.
        baselines: beside it; None: none.

    Returns:
        JSON values; docs/tables.md describes them.

    Raises:
        RunError: other data, or a damaged run.
    """
    record, preprocessor = run.record, measured.preprocessor
    metrics, headline, part, target = record["metrics"], record["headline"], measured.part, preprocessor.target
    found = results(metrics, headline)
    own = found[part]["smooth"] if found[part]["exact"] is None else found[part]["exact"]
    shuffled = importance(run, table, part=part)
    explained = opened(run, table)
    of = {
        "format": FORMAT,
        "key": record["key"],
        "model_sha256": record["model_sha256"],
        "data": record["data"]["name"],
        "target": target.name,
        "task": target.task,
        "classes": list(target.classes),
        "threshold": measured.threshold,
        "weighted": table.weights is not None,
        "method": record["recipe"]["method"],
        "refitted": refitted(run),
        "rows": record["rows"],
        "part": part,
        "headline": headline,
        "lower_is_better": headline in LOWER_IS_BETTER,
        "verdict": verdict(own, part, headline, baselines or ()),
        "results": found,
        "metrics": metrics,
        "intervals": measured.intervals(),
        "baselines": None if baselines is None else [dataclasses.asdict(one) for one in baselines],
        "surrogate": surrogate(run, table).to_json(),
        "training": training(run),
        "importance": shuffled.to_json(),
        "effects": of_columns(run, table, shuffled.columns),
        "rules": None if explained is None else rules(explained),
        "columns": columns(preprocessor.columns),
        "left_out": left_out(record),
        "notes": told(from_record(record["notes"])),
        "recipe": record["recipe"],
        "seed": record["seed"],
        "parameters": record.get("parameters"),
        "seconds": record.get("seconds"),
        "calibration": None,
        "confusion": None,
        "thresholds": None,
        "residuals": None,
    }
    if target.task == "regression":
        return of | {"residuals": residuals(measured)}
    matrix = confusion(measured.outputs, measured.target, len(target.classes), measured.threshold)
    return of | {
        "calibration": calibration(measured),
        "confusion": confused(matrix),
        "thresholds": thresholds(measured),
    }


def opened(run: Run, table: Table) -> Explanation | None:
    """Open the bits of a run; None of a network that has none to read."""
    try:
        return explain(run, table) if run.has_step else None
    except RulesError:
        return None


def of_columns(run: Run, table: Table, shuffled: pd.DataFrame) -> dict[str, Any]:
    """Effects of the strongest columns, those without which the network is worse by more than the spread of shuffles.

    Returns:
        {"outputs": numbers of the classes whose probability is shown, [0] of a regression; "columns": a list of
        `htaf.rules.Effect`}: of two classes the second, of more those whose probability moves most.
    """
    strong = shuffled[(shuffled["worse"] > 0) & (shuffled["worse"] > shuffled["std"])].index[:EFFECTS].tolist()
    found = effects(run, strong, table)
    count = len(table.classes)
    outputs = [0] if not count else [1] if count == 2 else list(range(count))
    if count > EFFECTS:
        moved = sum((np.ptp([point.mean for point in one.points], axis=0) for one in found), np.zeros(count))
        outputs = sorted(np.argsort(-moved, kind="stable")[:EFFECTS].tolist())
    return {"outputs": outputs, "columns": [one.to_json(outputs) for one in found]}


def results(metrics: Mapping[str, Any], headline: str) -> dict[str, dict[str, Any]]:
    """Put together, by part, the headline of the smooth and the exact network, the gap and its direction in words."""
    found: dict[str, dict[str, Any]] = {}
    for part, smooth in metrics["smooth"].items():
        one = smooth[headline]
        other = metrics["exact"][part][headline] if metrics["exact"] else None
        gap = None if one is None or other is None else other - one
        word = "" if gap is None else direction(gap, lower_is_better=headline in LOWER_IS_BETTER) or "the same"
        found[part] = {"smooth": one, "exact": other, "gap": gap, "direction": word}
    return found


def refitted(run: Run) -> list[str] | None:
    """What of the exact network was fitted to its bits, so that its weights are not those of the smooth one: the steps
    that the training kept, by name. None: both have the same weights."""
    if not run.has_own_smooth:
        return None
    return [one["name"] for one in run.record.get("hardening", {}).get("finish", ()) if one["kept"]]


def training(run: Run) -> dict[str, Any]:
    """Read the losses by epoch, counted from 1, and the epoch that was kept."""
    record, rows = run.record, list[dict[str, float | None]]()
    try:
        for row in csv.DictReader(io.StringIO((run.path / METRICS).read_text("utf-8"))):
            rows.append({"epoch": int(row["epoch"]) + 1} | {name: _finite(row[name]) for name in LOSSES})
    except (OSError, ValueError, KeyError, TypeError):  # a run is whole without it
        rows = []
    return {"epochs": rows, "best_epoch": record["best_epoch"] + 1}


def _finite(text: Any) -> float | None:
    value = float(text)
    return value if math.isfinite(value) else None


def calibration(measured: Measured) -> dict[str, Any]:
    """Reliability in ten bins of equal width: of two classes the probability of class 1 and how often it is; of more
    the highest probability and how often it is right. Empty bins are left out. Rows count by their weights.

    Returns:
        {"of": "class 1" or "highest", "bins": [{"low", "high", "rows", "share": of the rows' weight, "predicted",
        "observed"}], "error": the expected calibration error, the mean |predicted - observed| over the rows}.
    """
    shares, weights = measured.values(), measured.weights
    two = shares.shape[1] == 2
    said, right = (
        (shares[:, 1], measured.truth() == 1) if two else (shares.max(1), measured.decided() == measured.truth())
    )
    weights = np.ones(len(said)) if weights is None else weights
    place = np.minimum((said * BINS).astype(np.int64), BINS - 1)
    bins, error = list[dict[str, Any]](), 0.0
    for number in range(BINS):
        chosen = place == number
        count = int(chosen.sum())
        if not count:
            continue
        predicted, observed = (float(np.average(of[chosen], weights=weights[chosen])) for of in (said, right))
        share = float(weights[chosen].sum() / weights.sum())
        error += abs(predicted - observed) * share
        one = {"low": number / BINS, "high": (number + 1) / BINS, "rows": count, "share": share}
        bins.append(one | {"predicted": predicted, "observed": observed})
    return {"of": "class 1" if two else "highest", "bins": bins, "error": error}


def residuals(measured: Measured) -> dict[str, Any]:
    """True value minus prediction, in ten bins of about as many rows each, by prediction. In figures rows count by
    their weights.

    Returns:
        {"bins": [{"low", "high": of the predictions, "rows", "predicted": mean, "mean", "q10", "median", "q90": of the
        residuals}], "mean", "deviation": of all residuals}.
    """
    predicted, weights = measured.decided(), measured.weights
    order = np.argsort(predicted, kind="stable")
    bins: list[dict[str, Any]] = []
    left = measured.truth() - predicted
    for chosen in np.array_split(order, min(BINS, len(order))):
        own = None if weights is None else weights[chosen]
        q10, median, q90 = quantiles(left[chosen], [0.1, 0.5, 0.9], own)
        bins.append(
            {
                "low": float(predicted[chosen].min()),
                "high": float(predicted[chosen].max()),
                "rows": len(chosen),
                "predicted": float(np.average(predicted[chosen], weights=own)),
                "mean": float(np.average(left[chosen], weights=own)),
                "q10": float(q10),
                "median": float(median),
                "q90": float(q90),
            }
        )
    mean = float(np.average(left, weights=weights))
    return {"bins": bins, "mean": mean, "deviation": float(np.average((left - mean) ** 2, weights=weights) ** 0.5)}


def confused(matrix: Int64[np.ndarray, "true predicted"]) -> dict[str, Any]:
    """The confusion matrix, None of more than 100 classes, and the pairs of classes that are most often confused."""
    wrong = matrix.copy()
    np.fill_diagonal(wrong, 0)
    order = np.argsort(-wrong, axis=None, kind="stable")[:MOST_PAIRS]
    places = [divmod(int(place), len(matrix)) for place in order]
    pairs = [{"true": t, "predicted": p, "rows": int(wrong[t, p])} for t, p in places if wrong[t, p]]
    return {"matrix": matrix.tolist() if len(matrix) <= MOST_CLASSES else None, "pairs": pairs}


def rules(explained: Explanation) -> dict[str, Any]:
    """The bits that do most, each with its rule and how faithful it is; and what the linear part does beside them."""
    of_rule = dict[str, BitRule]()  # bits of one rule are said once
    for one in (found := explained.rules(RULES)):
        of_rule.setdefault(str(one.rule), one)
    shown = [*of_rule.values()]
    return {
        "bits": len(explained.bits),
        "dead": {kind: len(bits) for kind, bits in explained.dead.items()},
        "rows": len(explained.test),
        "share": explained.share(len(found)),
        "linear": explained.linear_share,
        "shown": [one.to_json() for one in shown],
    }


def columns(learned: Sequence[Column]) -> list[dict[str, Any]]:
    """Say of each raw column its kind, how many inputs it makes, and in words how it is read."""
    return [{"name": c.name, "kind": KINDS[c.kind], "inputs": _inputs(c), "read": read_as(c)} for c in learned]


def left_out(record: Mapping[str, Any]) -> list[dict[str, str]]:
    """Columns of the data that are no inputs, and why: those that a training was told not to read, and those that it
    had no use for. What does not vary in the training part alone stands among the columns."""
    found: list[dict[str, str]] = []
    for note in from_record(record["notes"]):
        if isinstance(note, Note) and note.kind == "dropped":
            found.append({"name": note.column, "why": str(note.values[0])})
        elif isinstance(note, Note) and note.kind == "no name":
            places = str(note.values[0]).split(", ")
            found += [{"name": f"column {place}", "why": "has no name"} for place in places]
    return found


def _inputs(column: Column) -> int:
    if column.kind == "number":
        return (column.high > column.low) + len(column.codes) + column.missing
    return len(column.categories) + column.other if column.kind == "category" else len(column.outputs) + column.missing


def read_as(column: Column) -> str:
    """Say how a column is read, in words."""
    if column.kind == "dropped":
        return "not used: it does not vary"
    if column.kind == "number":
        said = [f"{column.low:g} to {column.high:g} become 0 to 1; missing: {column.fill:g}"] * (
            column.high > column.low
        )
        said += [f"in {column.unit!r}"] * bool(column.unit)
        said += [f"codes {', '.join(f'{c:g}' for c in column.codes)}"] * bool(column.codes)
        return "; ".join([*said, *["one input for missing"] * column.missing])
    if column.kind == "date":
        order = column.order if column.order == "month by name" else f"as {column.order}"
        first = column.first.partition("T")[0]
        return f"{', '.join(column.outputs)}; read {order}, from {first}; missing: {column.filled.partition('T')[0]}"
    if column.kind == "encoded":
        what = ", ".join(column.outputs[:MOST_SHOWN]) + (" ..." if len(column.outputs) > MOST_SHOWN else "")
        return f"{what} in each of {len(column.categories):,} categories: {_named(column.categories)}"
    rare = "; one for rare and new ones" if column.other else ""
    return f"one input each: {_named(column.categories)}{rare}"


def _named(values: Sequence[Any]) -> str:
    shown = [str(value) or "missing" for value in values[:MOST_SHOWN]]
    more = len(values) - MOST_SHOWN
    return ", ".join(shown) + (f" and {more:,} more" if more > 0 else "")
