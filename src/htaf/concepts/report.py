"""Scores as files: JSON, short tables in Markdown, and a picture of a histogram and a curve."""

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

SCORES, TABLES, PICTURE = "scores.json", "scores.md", "scores.png"
COLOUR = "#08519c"


def write_report(scores: Mapping[str, Any], out: str | Path, *, title: str = "Concepts") -> list[Path]:
    """Write scores.json, scores.md and scores.png.

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
        PICTURE: _picture(scores),
    }
    for name, content in files.items():
        write_atomic(out / name, content)
    return [out / name for name in files]


def tables(scores: Mapping[str, Any], *, title: str = "Concepts") -> str:
    """The scores as Markdown."""
    accuracy, concept = scores["accuracy"], scores["concept_accuracy"]
    specific, same, complete = scores["class_specificity"], scores["redundancy"], scores["completeness"]
    scored = scores["scored"]
    lines = [
        f"# {markdown_text(title)}",
        "",
        f"{scores['concepts']} concepts, {len(scores['classes'])} classes; fitted on the part 'train', scored on "
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
        f"| dead (the same in every image of 'train') | {scores['dead']['count']} "
        f"({_percent(scores['dead']['share'])}) |",
        f"| whether an image has a concept, told from its class alone: balanced | {_percent(concept['balanced'])} |",
        f"| concept accuracy: all; live | {_percent(concept['mean'])}; {_percent(concept['live'])} |",
        f"| the same, always the more frequent value | {_percent(concept['trivial'])} |",
        f"| duplicate, complementary pairs | {same['duplicates']['count']}, {same['complementary']['count']} |",
        f"| distinct; effective number | {same['distinct']}; {same['effective']:.1f} |",
        f"| of a class, NEC (weights other than 0) | {scores['sparsity']['nec']:.1f} |",
        f"| of a decision, NCC (95% of a logit): all classes; the predicted one | {scores['sparsity']['ncc']:.1f}; "
        f"{scores['sparsity']['ncc_predicted']:.1f} |",
        f"| enough of this head, not refitted, within {complete['within']} points | {complete['enough']} |",
        "",
        "| Class specificity | |",
        "|---|---|",
        f"| clear (concept, class) pairs: proportion <= 0.1 or >= 0.9 | {_percent(specific['extreme'])} |",
        f"| the same, live concepts alone | {_percent(specific['extreme_live'])} |",
        f"| variance between classes | {_percent(specific['explained'])} |",
    ]
    if "sample" in scores:
        sample = scores["sample"]
        drawn = f"{sample['images']:,} of {sample['of']:,} images, drawn by a hash of their row numbers"
        lines += ["", f"NCC and how many are enough: {drawn}."]
    title = f"number (weight, contribution in its {scored} images / train images)"
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
    "How to read it. *Change by the cut* and *predictions that differ*: what the step costs. *Balanced*: 50% where the "
    "class says nothing of a bit, 100% where all images of a class agree; the plain accuracy is high for rare bits "
    "too. *Proportion*: the share of a class's images that have a concept. *Variance between classes*: 100% where the "
    "class decides every bit. *Enough*: concepts in the order of how far they move the logits between classes. "
    "*Contribution*: weight times how much more often the class's images have the concept than all images; with its "
    "sign it says whether the concept speaks for the class. Beside it that of the images which the weights were fitted "
    "to; *reversed*: the two have other signs, and their shares differ by more than chance explains (twice the "
    "standard error of the difference).",
)


def _picture(scores: Mapping[str, Any]) -> bytes:
    """Draw how many concepts have which proportion of a class's images, and accuracy from the k most important ones."""
    figure = Figure(figsize=(8.4, 3.2), layout="constrained")
    axes: Any = figure.subplots(1, 2)
    counts = np.array(scores["class_specificity"]["histogram"])
    axes[0].bar(np.arange(BINS) / BINS, counts / max(1, counts.sum()), 1 / BINS, align="edge", color=COLOUR)
    axes[0].set(xlabel="share of a class's images that have the concept", ylabel="share of concepts", xlim=(0, 1))
    complete = scores["completeness"]
    axes[1].plot(complete["k"], 100 * np.array(complete["accuracy"]), color=COLOUR)
    axes[1].set_xscale("symlog", linthresh=4, base=2)
    axes[1].xaxis.set_major_formatter("{x:.0f}")
    axes[1].set(xlabel="concepts, others replaced by their mean", ylabel="accuracy, %")
    axes[1].set_xlim(0, max(complete["k"]) or 1)
    axes[1].grid(alpha=0.3)
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
