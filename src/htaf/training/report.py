"""What a study found, as data and as a table that people read."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from typing import Any

from htaf.activations import SATURATION
from htaf.runs import short_commit
from htaf.training.families import make_recipe
from htaf.training.plan import Plan, Source
from htaf.training.recipe import ImageData, Recipe


@dataclass(frozen=True)
class SearchResult:
    """What the search of one data set and method gave: the best recipe on validation, and all that were tried."""

    recipe: Recipe
    validation: float
    trials: tuple[dict[str, Any], ...]


def score(record: dict[str, Any], part: str, network: str | None = None) -> float | None:
    """The headline metric of a record; of the exact network unless `network` says otherwise or there is none."""
    metrics = record["metrics"]
    chosen = metrics[network] if network else metrics["exact"] or metrics["smooth"]
    return chosen.get(part, {}).get(record["headline"]) if chosen else None  # a search does not measure the test part


def summary_row(
    plan: Plan, source: Source, method: str, choice: SearchResult, records: list[dict[str, Any]]
) -> dict[str, Any]:
    """One row of the report: a data set and a method, from the records of the final trainings."""
    reference = plan.reference.get((source.label, method))
    trained = records[0].get("recipe") if records else None  # what a recipe leaves to the data is settled there
    return {
        "data": source.label,
        "method": method,
        "metric": records[0]["headline"] if records else None,
        "exact": _summary([score(r, "test", "exact") for r in records]),
        "smooth": _summary([score(r, "test", "smooth") for r in records]),
        "reference": None if reference is None else {"mean": reference[0], "error": reference[1]},
        "recipe": trained or choice.recipe.identity(),
        "validation": choice.validation,
        "candidates": len(choice.trials),
        "trials": list(choice.trials),
        "seconds": round(math.fsum(r["seconds"] for r in records), 1),
        "cpu_seconds": _summary([r.get("cpu_seconds") for r in records]),
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
    lines = [f"# {report['study']}", "", *([_scale(base, plan.get("search_epochs")), ""] if images else [])]
    lines += ["| " + " | ".join(titles) + " |", "|---" * len(titles) + "|"]
    for row in report["rows"]:
        figures = [_figure(row[k], plan["splits"]) for k in ("exact", "smooth", "reference")]
        chosen = ", ".join(f"{k}={v}" for k, v in _chosen(row, plan).items())
        if row["method"] == "htaf" and row["recipe"]["alpha1"] <= SATURATION:
            chosen += " (alpha1 <= ln 99: binarity 0)"
        cells = [row["data"], row["metric"], row["method"], *figures, row["candidates"], chosen]
        if images:
            cells.append("-" if row["cpu_seconds"] is None else f"{row['cpu_seconds']['mean']:.0f}")
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    lines += [
        "",
        f"Mean (standard error) of the test metric over {plan['splits']} {'seeds' if images else 'splits'}; the recipe "
        f"of each row was chosen on the validation part {'with seed' if images else 'of split'} 0.",
        "exact: the hardened network; smooth: the same weights before hardening.",
        "",
    ]
    for entry in report["measured"]:
        versions = ", ".join(f"{k} {v}" for k, v in entry["versions"].items())
        lines.append(
            f"{entry['cells']} cells: commit {short_commit(entry['commit'])}, {versions}, {entry['threads']} thread(s)."
        )
    if len({entry["commit"] for entry in report["measured"]}) > 1:
        lines.append("The cells come from more than one commit: compare rows with care.")
    lines += [f"Failed: {message}" for message in report["failures"]]
    return "\n".join(lines) + "\n"


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
