"""What a study found, as data and as a table that people read."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scipy.special import stdtrit

from htaf._console import markdown_text
from htaf._errors import counted
from htaf.activations import SATURATION
from htaf.runs import short_commit
from htaf.runs.metrics import LOWER_IS_BETTER
from htaf.training.families import make_recipe
from htaf.training.notes import trained_exact
from htaf.training.plan import Plan, Source
from htaf.training.recipe import ImageData, Recipe


@dataclass(frozen=True)
class SearchResult:
    """What the search of one data set and method gave: the best recipe on validation, and all that were tried; no
    validation and none tried where there was but one candidate."""

    recipe: Recipe
    validation: float | None
    trials: tuple[dict[str, Any], ...]


def score(record: dict[str, Any], part: str, network: str | None = None) -> float | None:
    """The headline metric of a record; of the exact network unless `network` says otherwise or there is none."""
    metrics = record["metrics"]
    chosen = metrics[network] if network else metrics["exact"] or metrics["smooth"]
    return chosen.get(part, {}).get(record["headline"]) if chosen else None  # a search does not measure the test part


def summary_row(
    plan: Plan,
    source: Source,
    method: str,
    choice: SearchResult,
    records: list[dict[str, Any]],
    spent: Sequence[dict[str, Any]] = (),
) -> dict[str, Any]:
    """One row of the report: a data set and a method, from the records of the final trainings.

    spent: records of all its trainings, candidates and final ones, each once.
    """
    reference = plan.reference.get((source.label, method))
    trained = records[0].get("recipe") if records else None  # what a recipe leaves to the data is settled there
    return {
        "data": source.label,
        "method": method,
        "metric": records[0]["headline"] if records else None,
        "exact": _summary([score(r, "test", "exact") for r in records]),
        "smooth": _summary([None if trained_exact(r) else score(r, "test", "smooth") for r in records]),
        "reference": None if reference is None else {"mean": reference[0], "error": reference[1]},
        "recipe": trained or choice.recipe.identity(),
        "validation": choice.validation,
        "candidates": max(1, len(choice.trials)),
        "trials": list(choice.trials),
        "seconds": round(math.fsum(r["seconds"] for r in records), 1),
        "cpu_seconds": _summary([r.get("cpu_seconds") for r in records]),
        "gap": _summary([_gap(r) for r in records]),
        "spent": _cost([{"cells": 1, "cpu_seconds": r.get("cpu_seconds")} for r in spent]),
    }


def overall(plan: Plan, method: str, rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """One row of the plan over all data sets: the gap from smooth to exact in %, and what all its trainings took."""
    own = [row for row in rows if row["method"] == method]
    gaps = [row["gap"]["mean"] for row in own if row["gap"]]
    largest = max(gaps) if gaps else None
    return {"method": method, "gap": interval(gaps), "largest_gap": largest, **_cost([row["spent"] for row in own])}


def _cost(parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Trainings and CPU seconds; None where a record does not say its time."""
    seconds = [part["cpu_seconds"] for part in parts]
    total = None if None in seconds else round(math.fsum(seconds), 1)
    return {"cells": sum(part["cells"] for part in parts), "cpu_seconds": total}


def _gap(record: dict[str, Any]) -> float | None:
    """What is lost from the smooth to the exact network, in % of the smooth one; below 0: won. None without either."""
    if trained_exact(record):
        return None
    exact, smooth = (score(record, "test", network) for network in ("exact", "smooth"))
    gain = None if exact is None or smooth is None else _gain(exact, smooth, record["headline"])
    return None if gain is None else -gain


def _gain(value: float, reference: float, metric: str) -> float | None:
    """How much better in %, None against 0."""
    sign = -1 if metric in LOWER_IS_BETTER else 1
    return 100 * sign * (value - reference) / abs(reference) if reference else None


def interval(values: Sequence[float]) -> dict[str, Any] | None:
    """Mean and 95% interval by Student's t: mean +- t s / sqrt(n), t of n - 1 degrees; no interval of one value."""
    if not values:
        return None
    mean, bounds = statistics.fmean(values), None
    if len(values) > 1:
        half = float(stdtrit(len(values) - 1, 0.975)) * statistics.stdev(values) / math.sqrt(len(values))
        bounds = [mean - half, mean + half]
    return {"mean": mean, "interval": bounds, "values": [*values]}


Found = Mapping[tuple[Source, str], Mapping[int, dict[str, Any]]]


def comparison(plan: Plan, reference: str, found: Found) -> dict[str, Any]:
    """Every other row against a reference row, on the same splits.

    Args:
        found: the records of the final trainings, by data set and row, then by seed.

    Returns:
        of each data set and row the difference of the test metric and the gain in % (above 0: better than the
        reference), with intervals over splits; of each row the gain over data sets, and how often it is better or worse
        in the mean, and so that the interval holds no 0.
    """
    rows, totals = [], []
    for method in plan.methods:
        if method == reference:
            continue
        own = [_paired(source, method, found[source, method], found[source, reference]) for source in plan.sources]
        own = [row for row in own if row is not None]
        rows += own
        gains = [row["gain"]["mean"] for row in own if row["gain"]]
        sure = [row["gain"]["mean"] for row in own if row["gain"] and _is_sure(row["difference"])]
        counts = {"better": gains, "worse": gains, "surely_better": sure, "surely_worse": sure}
        totals.append(
            {"method": method, "gain": interval(gains)}
            | {name: sum(g < 0 if "worse" in name else g > 0 for g in of) for name, of in counts.items()}
        )
    order = [source.label for source in plan.sources]
    return {"reference": reference, "rows": sorted(rows, key=lambda row: order.index(row["data"])), "overall": totals}


def _is_sure(difference: dict[str, Any]) -> bool:
    bounds = difference["interval"]
    return bounds is not None and bounds[0] * bounds[1] > 0


def _paired(
    source: Source, method: str, own: Mapping[int, dict[str, Any]], others: Mapping[int, dict[str, Any]]
) -> dict[str, Any] | None:
    """One row of a comparison; None where no split has both results."""
    both = [(seed, score(own[seed], "test"), score(others[seed], "test")) for seed in own if seed in others]
    pairs = [(seed, a, b) for seed, a, b in both if a is not None and b is not None]
    if not pairs:
        return None
    metric = own[pairs[0][0]]["headline"]
    gains = [_gain(a, b, metric) for _, a, b in pairs]
    return {
        "data": source.label,
        "method": method,
        "metric": metric,
        "seeds": [seed for seed, _, _ in pairs],
        "difference": interval([a - b for _, a, b in pairs]),
        "gain": interval([gain for gain in gains if gain is not None]),
    }


def _summary(values: list[float | None]) -> dict[str, Any] | None:
    """Mean and standard error (standard deviation over the root of the number)."""
    known = [v for v in values if v is not None]
    if not known:
        return None
    error = statistics.stdev(known) / math.sqrt(len(known)) if len(known) > 1 else None
    return {"mean": statistics.fmean(known), "error": error, "values": known}


def markdown(report: dict[str, Any]) -> str:
    """The report as a table that people read."""
    plan = report["plan"]
    base = make_recipe(**plan["base"])
    images = isinstance(base.data, ImageData)
    titles = ["data", "metric", "method", "exact", "smooth", "reference", "candidates", "chosen"]
    titles += ["CPU seconds a run"] if images else []
    lines = [
        f"# {markdown_text(report['study'])}",
        "",
        *([_scale(base, plan.get("search_epochs")), ""] if images else []),
    ]
    lines += _header(*titles)
    for row in report["rows"]:
        figures = [_figure(row[k], plan["splits"]) for k in ("exact", "smooth", "reference")]
        chosen = ", ".join(f"{k}={v}" for k, v in _chosen(row, plan).items())
        if row["recipe"]["method"] == "htaf" and row["recipe"]["alpha1"] <= SATURATION:
            chosen += " (alpha1 <= ln 99: binarity 0)"
        cells = [markdown_text(row["data"]), row["metric"], row["method"], *figures, row["candidates"], chosen]
        if images:
            cells.append("-" if row["cpu_seconds"] is None else f"{row['cpu_seconds']['mean']:.0f}")
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    splits = counted(plan["splits"], "seed" if images else "split")
    lines += [
        "",
        f"Mean (standard error) of the test metric over {splits}; the recipe "
        f"of each row was chosen on the validation part {'with seed' if images else 'of split'} 0.",
        "exact: the hardened network; smooth: the network before hardening, of the same weights unless the recipe fits",
        "some to the exact bits; none (-) of a recipe that trains the exact network to the end.",
        "",
        *_costs(report),
        *(line for one in report["compared"] for line in _compared(one)),
    ]
    for entry in report["measured"]:
        versions = ", ".join(f"{k} {v}" for k, v in entry["versions"].items())
        lines.append(
            f"{entry['cells']} cells: commit {short_commit(entry['commit'])}, {versions}, {entry['threads']} thread(s)."
        )
    if len({entry["commit"] for entry in report["measured"]}) > 1:
        lines.append("The cells come from more than one commit: compare rows with care.")
    lines += [f"The cells come from more than one {what}: compare rows with care." for what in differing(report)]
    lines += [f"Failed: {markdown_text(message)}" for message in report["failures"]]
    return "\n".join(lines) + "\n"


def differing(report: dict[str, Any]) -> list[str]:
    """What differs between the machines that measured the cells: a package with its versions, or the platform."""
    seen: dict[str, set[str]] = {}
    for entry in report["measured"]:
        for name, value in (*entry["versions"].items(), ("platform", entry["platform"])):
            seen.setdefault(name, set()).add(str(value))
    words = {name: "platform" if name == "platform" else f"version of {name}" for name in seen}
    return [f"{words[name]} ({', '.join(sorted(values))})" for name, values in seen.items() if len(values) > 1]


def _costs(report: dict[str, Any]) -> list[str]:
    lines = ["## Gap and cost", "", *_header("method", "gap, %", "largest", "trainings", "CPU seconds")]
    for row in report["overall"]:
        largest = "-" if row["largest_gap"] is None else f"{row['largest_gap']:.2f}"
        seconds = "-" if row["cpu_seconds"] is None else f"{row['cpu_seconds']:,.0f}"
        lines.append(f"| {row['method']} | {_bounded(row['gap'], 2)} | {largest} | {row['cells']} | {seconds} |")
    return [
        *lines,
        "",
        "gap: what the test metric loses from the smooth to the exact network, in % of the smooth one; mean over data",
        "sets [95% interval over them]. Trainings and their CPU seconds: candidates and final ones of all data sets.",
        "",
    ]


def _compared(comparison: dict[str, Any]) -> list[str]:
    name = comparison["reference"]
    columns = ("method", "gain, %", "better : worse", "without 0 in the interval")
    lines = [f"## Compared with {name}", "", *_header(*columns)]
    for row in comparison["overall"]:
        sure = f"{row['surely_better']} : {row['surely_worse']}"
        counts = f"{row['better']} : {row['worse']}"
        lines.append(f"| {row['method']} | {_bounded(row['gain'], 2)} | {counts} | {sure} |")
    methods = [row["method"] for row in comparison["overall"]]
    lines += ["", *_header("data", "metric", *methods)]
    gains = {(row["data"], row["method"]): row for row in comparison["rows"]}
    for data, metric in dict.fromkeys((row["data"], row["metric"]) for row in comparison["rows"]):
        own = [gains.get((data, method)) for method in methods]
        cells = ["-" if row is None else _bounded(row["gain"], 2) for row in own]
        lines.append(f"| {markdown_text(data)} | {metric} | {' | '.join(cells)} |")
    return [
        *lines,
        "",
        f"Gain: difference of the test metric on the same splits in % of {name}, above 0 is better; mean [95%",
        "interval]. First table: over data sets; on how many the mean is better or worse, and on how many so that the",
        "interval of the differences holds no 0. Splits share rows, so that intervals over them are too narrow for new",
        "data. Differences in the metric's own units: report.json.",
        "",
    ]


def _header(*titles: str) -> list[str]:
    return ["| " + " | ".join(titles) + " |", "|---" * len(titles) + "|"]


def _bounded(value: dict[str, Any] | None, digits: int) -> str:
    if value is None:
        return "-"
    bounds = value["interval"]
    shown = "" if bounds is None else f" [{bounds[0]:+.{digits}f}, {bounds[1]:+.{digits}f}]"
    return f"{value['mean']:+.{digits}f}{shown}"


def _scale(base: Recipe, candidate: int | None) -> str:
    """How large the networks and their data were: no figure of images may be read without it."""
    data, training = base.data, base.optimization
    assert isinstance(data, ImageData)
    train = f"{data.train_images:,}" if data.train_images else "all other"
    share = data.validation_images
    held = f"{share:,.0f}" if share >= 1 else f"{share:.0%} of the"
    short = "" if candidate is None else f" ({candidate} a candidate)"
    return (
        f"{base.network.title()}; {train} training and {held} validation "
        f"images, the whole test part; {training.epochs} epochs{short}, {training.precision}. "
        "References are at the paper's scale."
    )


def _chosen(row: dict[str, Any], plan: dict[str, Any]) -> dict[str, Any]:
    fields = {f for name in plan["methods"][row["method"]] for f in name.split(",")}
    return {k: v for k, v in row["recipe"].items() if k in fields}


def _figure(value: dict[str, Any] | None, splits: int) -> str:
    if value is None:
        return "-"
    text = f"{value['mean']:.3f}" + ("" if value["error"] is None else f" ({value['error']:.3f})")
    number = len(value.get("values", ())) or splits
    return text if number == splits else f"{text} [{number} of {splits}]"
