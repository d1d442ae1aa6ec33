"""Reads the cells of `htaf_paper.language`: report.md, report.json and two figures."""

from __future__ import annotations

import io
import json
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

from htaf.language.run import RECORD
from htaf.runs import to_json, write_atomic

Record = dict[str, Any]
NAMES = {"htaf": "HTAF", "ste": "straight-through", "ss": "scaled sigmoid"}
COLOURS = {"htaf": "tab:blue", "ste": "tab:orange", "ss": "tab:green", "calibrated": "tab:gray"}
FIGURES = ("language_text", "language_task")
WAYS = {"plain": "plain step", "threshold": "threshold and scale"}


def report(folder: str | Path) -> str:
    """Write report.md, report.json and the figures into the folder of a study.

    Returns:
        The text of report.md.

    Raises:
        ValueError: there are no finished cells.
    """
    folder = Path(folder)
    found: dict[str, Record] = {}
    for file in sorted(folder.glob(f"*-k*/{RECORD}")):
        record = json.loads(file.read_text())
        if record["status"] == "finished":
            found[file.parent.name] = record
    if not found:
        raise ValueError(f"expected finished cells in {folder}, got none")
    text = "\n".join(_lines(found)) + "\n"
    rows = [{"cell": name, **_row(record)} for name, record in found.items()]
    write_atomic(folder / "report.json", to_json({"format": 1, "rows": rows}))
    for name, draw in zip(FIGURES, (text_figure, task_figure), strict=True):
        if not any(cell.startswith(name.removeprefix("language_")) for cell in found):
            continue
        figure = draw(found)
        for kind in ("svg", "png"):
            picture = io.BytesIO()
            with mpl.rc_context({"svg.hashsalt": "htaf"}):
                figure.savefig(picture, format=kind, dpi=150, metadata={"Date": None} if kind == "svg" else None)
            write_atomic(folder / f"{name}.{kind}", picture.getvalue())
    write_atomic(folder / "report.md", text)
    return text


def _row(record: Record) -> Record:
    """What of a record stands in report.json."""
    keys = ("model", "last_k", "calibration", "before", "calibrated", "trained", "seconds", "commit")
    opened = [gate["open"] for gate in record["gates"]]
    kept = {key: record.get(key) for key in keys}
    return kept | {"training": record["training"], "open": statistics.fmean(opened)}


def _lines(found: dict[str, Record]) -> list[str]:
    first = next(iter(found.values()))
    text = {name: record for name, record in found.items() if name.startswith("text-")}
    task = {name: record for name, record in found.items() if name.startswith("task-")}
    lines = ["# Language models with 0/1 gates", "", f"Model: {Path(first['model']).name}. Reduced to two cores.", ""]
    if text:
        lines += _text_lines(text)
    if task:
        lines += _task_lines(task)
    return lines


def _text_lines(found: dict[str, Record]) -> list[str]:
    original = next(iter(found.values()))["before"]
    lines = [
        "## Gates calibrated, then LoRA with distillation on text",
        "",
        "Test documents that nothing was fitted on. KL: mean KL divergence of the original's next-token distribution, "
        "nats. Same token: both find it the likeliest. Mean (standard deviation) over seeds where there are several.",
        "",
        "| last k | network | perplexity | over the original | KL | same token | questions | open gates | seeds |",
        "|---|---|---|---|---|---|---|---|---|",
        f"| 0 | original | {original['perplexity']:.2f} | 1 | | | {_questions([original])} | | |",
    ]
    for k in sorted({record["last_k"] for record in found.values()}):
        for way, name in WAYS.items():
            if (record := found.get(f"text-k{k:02d}-{way}")) is not None:
                lines.append(_text_row(k, name, [record], lambda r: r["calibrated"]))
        trained = {m: [r for c, r in found.items() if c.startswith(f"text-k{k:02d}-{m}-")] for m in NAMES}
        if one := [record for seeds in trained.values() for record in seeds][:1]:  # all begin with the same
            lines.append(_text_row(k, "calibrated: down refitted too", one, lambda r: r["calibrated"], "layers"))
        for method, name in NAMES.items():
            if seeds := trained[method]:
                lines.append(_text_row(k, f"trained, {name}", seeds, lambda r: r["trained"]))
    return [*lines, "", f"![perplexity over k]({FIGURES[0]}.svg)", ""]


def _text_row(
    k: int, name: str, records: Sequence[Record], part: Callable[[Record], Record], gates: str = "gates"
) -> str:
    scores = [part(record) for record in records]
    opened = [statistics.fmean(gate["open"] for gate in record[gates]) for record in records]
    over = [score["perplexity"] / record["before"]["perplexity"] for score, record in zip(scores, records, strict=True)]
    cells = [
        str(k), name, _spread([s["perplexity"] for s in scores], "{:.2f}"), _spread(over, "{:.3f}"),
        _spread([s["kl"] for s in scores], "{:.3f}"), _spread([100 * s["agreement"] for s in scores], "{:.1f}", "%"),
        _questions(scores), _spread([100 * v for v in opened], "{:.1f}", "%"), str(len(records)),
    ]  # fmt: skip
    return f"| {' | '.join(cells)} |"


def _task_lines(found: dict[str, Record]) -> list[str]:
    original = next(iter(found.values()))["before"]
    lines = [
        "## As the paper: the likelihood of the task's answers alone, each k from the k before",
        "",
        f"Accuracy on the test questions, %; the original without training: {_questions([original])}.",
        "",
        "| last k | HTAF | straight-through |",
        "|---|---|---|",
    ]
    for k in sorted({record["last_k"] for record in found.values()}):
        cells = [found.get(f"task-k{k:02d}-{method}-0") for method in ("htaf", "ste")]
        lines.append(f"| {k} | {' | '.join('' if c is None else _questions([c['trained']]) for c in cells)} |")
    return [*lines, "", f"![accuracy over k]({FIGURES[1]}.svg)", ""]


def _spread(values: Sequence[float], form: str, unit: str = "") -> str:
    mean = form.format(statistics.fmean(values)) + unit
    return f"{mean} ({form.format(statistics.stdev(values))})" if len(values) > 1 else mean


def _questions(scores: Sequence[Record]) -> str:
    """Accuracy, %, with its standard error from the number of questions."""
    if any("task" not in score for score in scores):
        return ""
    mean = statistics.fmean(score["task"]["accuracy"] for score in scores)
    return f"{100 * mean:.1f} ± {100 * scores[0]['task']['error']:.1f}"


def text_figure(found: dict[str, Record]) -> Figure:
    """Perplexity over the original's against k."""
    lines: dict[str, dict[int, list[float]]] = {}
    for cell, record in found.items():
        part, k, what = cell.split("-")[:3]
        if part == "text" and what in NAMES:
            ratio = {
                name: record[name]["perplexity"] / record["before"]["perplexity"] for name in ("calibrated", "trained")
            }
            lines.setdefault("calibrated", {})[int(k[1:])] = [ratio["calibrated"]]
            lines.setdefault(what, {}).setdefault(int(k[1:]), []).append(ratio["trained"])
    return _figure(lines, "perplexity / original's", 1.0)


def task_figure(found: dict[str, Record]) -> Figure:
    """Accuracy on the task against k."""
    lines: dict[str, dict[int, list[float]]] = {}
    base = None
    for cell, record in found.items():
        part, k, what = cell.split("-")[:3]
        if part == "task" and "task" in record["trained"]:
            base = 100 * record["before"]["task"]["accuracy"]
            lines.setdefault(what, {}).setdefault(int(k[1:]), []).append(100 * record["trained"]["task"]["accuracy"])
    return _figure(lines, "accuracy, %", base)


def _figure(lines: dict[str, dict[int, list[float]]], label: str, base: float | None) -> Figure:
    figure = Figure(figsize=(6, 3.6), layout="constrained")
    axes = figure.subplots()
    for what, points in lines.items():
        ks = sorted(points)
        means = [statistics.fmean(points[k]) for k in ks]
        spread = [statistics.stdev(points[k]) if len(points[k]) > 1 else 0 for k in ks]
        marker = {"htaf": "o", "ste": "s", "ss": "^"}.get(what, "x")
        axes.errorbar(ks, means, spread, marker=marker, color=COLOURS[what], label=NAMES.get(what, what), capsize=3)
    if base is not None:
        axes.axhline(base, color="black", linewidth=0.8, linestyle=":", label="original")
    axes.set_xlabel("last k layers with 0/1 gates")
    axes.set_ylabel(label)
    axes.legend(frameon=False)
    return figure
