"""Reads the cells of `htaf_paper.language`: tables, figures and claims."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from htaf_paper.methods import NAMES as ALL_NAMES
from htaf_paper.protocol import Claim, Drawing, Outcome, Panel, Scale, Series, Table
from htaf_paper.verdicts import better, true

Record = dict[str, Any]
NAMES = {method: ALL_NAMES[method] for method in ("htaf", "ste", "ss")}
WAYS = {"plain": "plain step", "threshold": "threshold and scale"}


def outcome(found: Mapping[str, Record], scale: Scale, missing: Sequence[tuple[str, str, str]] = ()) -> Outcome:
    """Tables, figures and claims.

    Args:
        found: records of `htaf.language.run.fit` by the name of their cell. missing: as in `Outcome`, of its cells.
    """
    text = {name: record for name, record in found.items() if name.startswith("text-")}
    task = {name: record for name, record in found.items() if name.startswith("task-")}
    tables, drawings = [], []
    if text:
        tables.append(_text_table(text))
        drawings.append(text_drawing(text))
    if task:
        tables.append(_task_table(task))
        drawings.append(task_drawing(task))
    return Outcome(tuple(tables), tuple(drawings), _claims(text, task, scale), ERRATA, DEVIATIONS, tuple(missing))


ERRATA = (
    "WinoGrande-medium has 2,558 + 1,267 = 3,825 questions (3,823 printed), OpenBookQA 4,957 + 500 = 5,457 (5,456).",
)
DEVIATIONS = (
    "SmolLM2-135M-Instruct instead of Llama-2-7b and Qwen3.5-9B; 100 steps of two blocks instead of 5,000. A model of "
    "this size is near chance on OpenBookQA, so perplexity on text is the figure that tells.",
    "Thresholds, scales and `down` are first calibrated in closed form for every method, and LoRA learns by "
    "distillation; the paper has neither. `plain step` is the network without them.",
)


def _claims(text: Mapping[str, Record], task: Mapping[str, Record], scale: Scale) -> tuple[Claim, ...]:
    drop = "As k grows HTAF loses less than straight-through"
    less: dict[int, list[float]] = {}
    for name, record in text.items():
        if "-htaf-" in name and (other := text.get(name.replace("-htaf-", "-ste-"))) is not None:
            gain = math.log(other["trained"]["perplexity"]) - math.log(record["trained"]["perplexity"])
            less.setdefault(record["last_k"], []).append(100 * gain)
    perplexity = [sum(gains) / len(gains) for gains in less.values()]  # by k
    accuracy = [
        100 * (record["trained"]["task"]["accuracy"] - other["trained"]["task"]["accuracy"])
        for name, record in task.items()
        if "-htaf-" in name and (other := task.get(name.replace("-htaf-", "-ste-"))) is not None
    ]
    ks = sorted({record["last_k"] for record in text.values()})
    losses = [
        (k, record["trained"]["perplexity"]) for k in ks if (record := text.get(f"text-k{k:02d}-htaf-0")) is not None
    ]
    falls = len(losses) > 1 and all(a[1] < b[1] for a, b in itertools.pairwise(losses))
    shown = ", ".join(f"k = {k}: {value:.2f}" for k, value in losses)
    return (
        better(
            f"{drop} (perplexity on text)",
            "Figure 9",
            perplexity,
            scale,
            what="less perplexity by, mean over k,",
            unit="%",
        ),
        better(f"{drop} (accuracy on OpenBookQA)", "Figure 9", accuracy, scale, what="more by", unit=" points"),
        true("The performance degrades as k grows", "Figure 9", falls, f"perplexity of HTAF {shown}", scale=scale),
    )


def _text_table(found: Mapping[str, Record]) -> Table:
    original = next(iter(found.values()))["before"]
    first = ("0", "original", f"{original['perplexity']:.2f}", "1", "", "", _questions([original]), "", "")
    rows: list[tuple[str, ...]] = [first]
    for k in sorted({record["last_k"] for record in found.values()}):
        for way, name in WAYS.items():
            if (record := found.get(f"text-k{k:02d}-{way}")) is not None:
                rows.append(_text_row(k, name, [record], lambda r: r["calibrated"]))
        trained = {m: [r for c, r in found.items() if c.startswith(f"text-k{k:02d}-{m}-")] for m in NAMES}
        if one := [record for seeds in trained.values() for record in seeds][:1]:  # all begin with the same
            rows.append(_text_row(k, "calibrated: down refitted too", one, lambda r: r["calibrated"], "layers"))
        for method, name in NAMES.items():
            if seeds := trained[method]:
                rows.append(_text_row(k, f"trained, {name}", seeds, lambda r: r["trained"]))
    columns = (
        "last k", "network", "perplexity", "over the original", "KL", "same token", "questions, %", "open gates",
        "seeds",
    )  # fmt: skip
    note = (
        "Test documents that nothing was fitted on. KL: mean KL divergence of the original's next-token distribution, "
        "nats. Same token: both find it the likeliest. Mean (standard deviation) over seeds where there are several."
    )
    return Table("Gates calibrated, then LoRA with distillation on text", columns, tuple(rows), note)


def _text_row(
    k: int, name: str, records: Sequence[Record], part: Callable[[Record], Record], gates: str = "gates"
) -> tuple[str, ...]:
    scores = [part(record) for record in records]
    opened = [statistics.fmean(gate["open"] for gate in record[gates]) for record in records]
    over = [score["perplexity"] / record["before"]["perplexity"] for score, record in zip(scores, records, strict=True)]
    return (
        str(k), name, _spread([s["perplexity"] for s in scores], "{:.2f}"), _spread(over, "{:.3f}"),
        _spread([s["kl"] for s in scores], "{:.3f}"), _spread([100 * s["agreement"] for s in scores], "{:.1f}", "%"),
        _questions(scores), _spread([100 * v for v in opened], "{:.1f}", "%"), str(len(records)),
    )  # fmt: skip


def _task_table(found: Mapping[str, Record]) -> Table:
    original = next(iter(found.values()))["before"]
    rows = []
    for k in sorted({record["last_k"] for record in found.values()}):
        cells = [found.get(f"task-k{k:02d}-{method}-0") for method in ("htaf", "ste")]
        rows.append((str(k), *("not run" if c is None else _questions([c["trained"]]) for c in cells)))
    title = "As the paper: the likelihood of the task's answers alone, each k from the k before"
    note = f"Accuracy on the test questions, %; the original without training: {_questions([original])}."
    return Table(title, ("last k", "HTAF", "straight-through"), tuple(rows), note)


def _spread(values: Sequence[float], form: str, unit: str = "") -> str:
    mean = form.format(statistics.fmean(values)) + unit
    return f"{mean} ({form.format(statistics.stdev(values))})" if len(values) > 1 else mean


def _questions(scores: Sequence[Record]) -> str:
    """Accuracy, %, with its standard error from the number of questions."""
    if any("task" not in score for score in scores):
        return ""
    mean = statistics.fmean(score["task"]["accuracy"] for score in scores)
    return f"{100 * mean:.1f} ± {100 * scores[0]['task']['error']:.1f}"


def text_drawing(found: Mapping[str, Record]) -> Drawing:
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
    panel = _panel(lines, "text", "perplexity over the original's", 1.0)
    about = "Perplexity over that of the original by the number of layers with 0/1 gates; the line is the original."
    return Drawing("language-text", "Perplexity over k", about, (panel,), columns=1)


def task_drawing(found: Mapping[str, Record]) -> Drawing:
    """Accuracy on the task against k."""
    lines: dict[str, dict[int, list[float]]] = {}
    base = None
    for cell, record in found.items():
        part, k, what = cell.split("-")[:3]
        if part == "task" and "task" in record["trained"]:
            base = 100 * record["before"]["task"]["accuracy"]
            lines.setdefault(what, {}).setdefault(int(k[1:]), []).append(100 * record["trained"]["task"]["accuracy"])
    about = "Accuracy on the task by the number of layers with 0/1 gates; the line is the original's."
    panel = _panel(lines, "task", "accuracy, %", base)
    return Drawing("language-task", "Accuracy over k", about, (panel,), columns=1)


def _panel(lines: dict[str, dict[int, list[float]]], title: str, label: str, base: float | None) -> Panel:
    series = []
    for what, points in lines.items():
        ks = sorted(points)
        means = tuple(statistics.fmean(points[k]) for k in ks)
        spread = tuple(statistics.stdev(points[k]) if len(points[k]) > 1 else 0.0 for k in ks)
        series.append(Series(NAMES.get(what, what), tuple(map(float, ks)), means, "line", spread))
    return Panel(title, "last k layers with 0/1 gates", label, tuple(series), hline=base)
