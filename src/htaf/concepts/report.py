"""Scores as files: JSON, short tables in Markdown, histograms and curves, and grids of images."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from htaf._console import markdown_text
from htaf.concepts.scores import BINS
from htaf.runs import to_json, write_atomic

SCORES, TABLES, HISTOGRAMS, COMPLETENESS = "scores.json", "scores.md", "histograms.png", "completeness.png"
MOST_CLASSES = 20  # with a histogram of their own
COLOURS = ("#08519c", "#fdae6b", "#74c476", "#9e9ac8")


def write_report(scores: Mapping[str, Any], out: str | Path, *, title: str = "Concepts") -> list[Path]:
    """Write scores.json, scores.md, histograms.png and completeness.png.

    Args:
        scores: what `htaf.concepts.scores.score` returns.
        out: a folder, made when it does not exist; files of these names are replaced.
        title: of the page.

    Returns:
        the files.

    Raises:
        OSError: the folder cannot be written.
    """
    out = Path(out)
    files: dict[str, bytes | str] = {
        SCORES: to_json(scores),
        TABLES: tables(scores, title=title),
        HISTOGRAMS: histograms(scores),
        COMPLETENESS: curves(scores),
    }
    for name, content in files.items():
        write_atomic(out / name, content)
    return [out / name for name in files]


def tables(scores: Mapping[str, Any], *, title: str = "Concepts") -> str:
    """The scores as Markdown."""
    accuracy, concept = scores["accuracy"], scores["concept_accuracy"]
    specific, same, complete = scores["class_specificity"], scores["redundancy"], scores["completeness"]
    fitted, scored = scores["fitted"], scores["scored"]
    lines = [
        f"# {markdown_text(title)}",
        "",
        f"{scores['concepts']} concepts, {len(scores['classes'])} classes; fitted on the part {fitted!r}, scored on "
        f"{scored!r}. All scores: {SCORES}.",
        "",
        "| Part | images | smooth | exact | change by the cut to bits, points (below 0: worse) | "
        "predictions that differ |",
        "|---|---|---|---|---|---|",
        *(
            f"| {part} | {row['images']:,} | {_percent(row['smooth'])} | {_percent(row['exact'])} | "
            f"{'-' if row['gap'] is None else format(100 * row['gap'], '+.2f')} | {_percent(row['flips'], 2)} |"
            for part, row in accuracy.items()
        ),
        "",
        "| Concepts | |",
        "|---|---|",
        f"| outputs almost 0 or 1 before the cut to bits (> 0.99 or < 0.01) | {_percent(scores['binarity'])} |",
        f"| dead (the same in every image of {fitted!r}) | {scores['dead']['count']} "
        f"({_percent(scores['dead']['share'])}) |",
        f"| whether an image has a concept, told from its class alone: balanced | {_percent(concept['balanced'])} |",
        f"| concept accuracy: all; live | {_percent(concept['mean'])}; {_percent(concept['live'])} |",
        f"| the same, always the more frequent value | {_percent(concept['trivial'])} |",
        f"| duplicate, complementary pairs | {same['duplicates']['count']}, {same['complementary']['count']} |",
        f"| distinct; effective number | {same['distinct']}; {same['effective']:.1f} |",
        f"| of a class, NEC (weights other than 0) | {scores['sparsity']['nec']:.1f} |",
        f"| of a decision, NCC (95% of a logit): all classes; the predicted one | {scores['sparsity']['ncc']:.1f}; "
        f"{scores['sparsity']['ncc_predicted']:.1f} |",
        f"| enough of this head, not refitted, within {complete['within']} points, by spread; by weight | "
        f"{complete['spread']['enough']}; {complete['weight']['enough']} |",
        "",
        "| Class specificity | clear (concept, class) pairs: proportion <= 0.1 or >= 0.9 | live concepts alone | "
        "variance between classes | the same, rare to frequent |",
        "|---|---|---|---|---|",
        *(
            f"| {markdown_text(name)} | {_percent(row['extreme'])} | {_percent(row['extreme_live'])} | "
            f"{_percent(row['explained'])} | {', '.join(_percent(group['extreme']) for group in row['by_rate'])} |"
            for name, row in {"these concepts": specific, **specific["baselines"]}.items()
        ),
    ]
    if "sample" in scores:
        sample = scores["sample"]
        drawn = f"{sample['images']:,} of {sample['of']:,} images, drawn by a hash of their row numbers"
        lines += ["", f"NCC and how many are enough: {drawn}."]
    title = f"number (weight, contribution in its {scored} images / {fitted} images)"
    lines += ["", f"| Class | {scored} images | concepts of largest weight: {title} |", "|---|---|---|"]
    dead = {*scores["dead"]["always_0"], *scores["dead"]["always_1"]}
    for entry in scores["importance"]:
        found = ", ".join(
            f"{t['concept']} ({t['weight']:+.2f}, {_added(t['contribution'])} / {_added(t['fitted_contribution'])}"
            f"{', reversed' if t['reversed'] else ''})"
            for t in [t for t in entry["top"] if t["concept"] not in dead][:5]
        )
        lines.append(f"| {markdown_text(entry['class'])} | {entry['images']:,} | {found} |")
    lines += ["", *READING]
    return "\n".join(lines) + "\n"


READING = (
    "How to read it. *Gap* and *predictions that differ*: what the step costs. *Balanced concept accuracy*: 50% where "
    "the class says nothing of a bit, 100% where all images of a class agree; the plain one is high for rare bits "
    "too. *Proportion*: the share of a class's images that have a concept. *Variance between classes*: 100% where the "
    "class decides every bit. *The same, rare to frequent*: the first column for four groups of concepts, the rarest "
    "first. *By spread*: concepts in the order of how far they move the logits between classes; *by weight*: of max "
    "|w|. *Contribution*: weight times how much more often the class's images have the concept than all images; with "
    "its sign it says whether the concept speaks for the class. Beside it that of the images which the weights were "
    "fitted to; *reversed*: the two have other signs, and their shares differ by more than chance explains (twice the "
    "standard error of the difference).",
)


def histograms(scores: Mapping[str, Any]) -> bytes:
    """PNG: for each class (the first 20), how many concepts have which proportion of its images; baselines beside."""
    specific = scores["class_specificity"]
    sets = {"these concepts": specific, **specific["baselines"]}
    names = [name for name, row in zip(scores["classes"], specific["per_class"], strict=True) if row is not None]
    rows = [i for i, row in enumerate(specific["per_class"]) if row is not None][:MOST_CLASSES]
    panels = [("all classes", None), *zip(names[:MOST_CLASSES], rows, strict=True)]
    columns = min(4, len(panels))
    lines = -(-len(panels) // columns)
    figure = Figure(figsize=(2.9 * columns + 0.4, 1.9 * lines + 0.6), layout="constrained")
    grid: Any = figure.subplots(lines, columns, squeeze=False)
    left, width = np.arange(BINS) / BINS, 1 / BINS / len(sets)
    for axes, (name, number) in zip(grid.flat, panels, strict=False):
        for place, (label, row) in enumerate(sets.items()):
            counts = row["histogram"] if number is None else row["per_class"][number]
            total = sum(counts) if counts else 0
            if counts and total:
                share = np.array(counts) / total
                axes.bar(
                    left + place * width,
                    share,
                    width,
                    align="edge",
                    label=label.replace("$", r"\$"),
                    color=COLOURS[place % 4],
                )
        axes.set_title(name, fontsize=8, parse_math=False)  # a $ would begin a formula
        axes.tick_params(labelsize=7)
        axes.set_xlim(0, 1)
    for axes in grid.flat[len(panels) :]:
        axes.set_visible(False)
    figure.supxlabel("share of the class's images that have the concept", fontsize=8)
    figure.supylabel("share of concepts", fontsize=8)
    figure.legend(*grid[0, 0].get_legend_handles_labels(), loc="outside upper center", ncols=len(sets), fontsize=8)
    return png(figure)


def curves(scores: Mapping[str, Any]) -> bytes:
    """PNG: accuracy from the k most important concepts."""
    figure = Figure(figsize=(5.2, 3.2), layout="constrained")
    axes: Any = figure.subplots()
    complete = scores["completeness"]
    for name, label, colour in (("spread", "by spread", COLOURS[0]), ("weight", "by largest weight", COLOURS[1])):
        values = 100 * np.array(complete[name]["accuracy"])
        axes.plot(complete["k"], values, label=f"{label}, same head ({scores['scored']})", color=colour)
    axes.set_xscale("symlog", linthresh=4, base=2)
    axes.xaxis.set_major_formatter("{x:.0f}")
    axes.set(xlabel="concepts, others replaced by their mean", ylabel="accuracy, %", xlim=(0, max(complete["k"]) or 1))
    axes.grid(alpha=0.3)
    axes.legend(fontsize=7)
    return png(figure)


def png(figure: Figure) -> bytes:
    """A picture file of a figure."""
    data = io.BytesIO()
    figure.savefig(data, format="png", dpi=120)
    return data.getvalue()


def _added(value: float | None) -> str:
    return "-" if value is None else f"{value:+z.2f}"


def _percent(value: float | None, digits: int = 1) -> str:
    return "-" if value is None else f"{100 * value:.{digits}f}%"


def short(text: str, most: int) -> str:
    """The text, of more characters the first ones."""
    return text if len(text) <= most else text[: most - 1] + "…"
