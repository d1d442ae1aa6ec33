"""The experiment on checked names as text and figure."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from htaf_paper.planted_report import levels, write_files

Record = dict[str, Any]
PICTURE = "roc.png"
COLUMNS = {
    "true": "true, given", "made": "made by the stand-in", "errs on 20%": "made, 20% of sortings wrong",
    "shuffled": "shuffled, given", "null": "made for null bits", "random name": "random attribute",
    "same name": "always the same", "lists classes": "lists its classes", "random sorting": "sorted at random",
    "all under label 1": "all under label 1",
}  # fmt: skip


def write(record: Record, out: str | Path) -> str:
    """Write report.md and roc.png into a folder; the report."""
    return write_files(Path(out), report(record), PICTURE, figure(record))


def report(record: Record) -> str:
    """Tables of mean and standard deviation over seeds."""
    data, noise = record["data"], levels(record)
    seeds = len(record["cells"]) // len(noise)
    lines = [
        "# Names of a language model: does the check accept true ones and refuse wrong ones?",
        "",
        f"`python -m htaf_paper.named --out DIR`, {record['cpu_seconds']:.0f} s of a core. {data['images']:,} images "
        f"of {data['classes']} CUB classes, {data['bits']} bits planted from attributes, each image's bit flipped with "
        "the probability in the head of a column. No language model was asked: a stand-in that reads the same prompts "
        f"knows the table of classes and {data['attributes']} attributes. So this measures the check, not how well "
        f"language models know birds. Mean ± standard deviation over {seeds} seeds.",
        "",
        "## Names that are verified (%)",
        "",
        "Verified: balanced accuracy >= 0.75 on held-out classes sorted by the name alone, p <= 0.05 against permuted "
        "groups, kappa >= 0.2 between the rounds' sortings, and of the one name that is shown balanced accuracy "
        ">= 0.75 on all sorted classes and >= 0.625 on those held out of it. Given names are sorted once, on all "
        "classes. Of the names that the stand-in made, so many are the planted attribute: "
        + ", ".join(f"{_mean(record, n, 'found')} at {n:.0%}" for n in noise)
        + ". A shuffled name that is verified is an attribute that most of the same classes have: the stand-in sorts "
        "by the table, so its score is the true one.",
        "",
        *_table(record, "accepted", list(COLUMNS), 100, 1),
        "",
        "## Mean score on held-out classes",
        "",
        *_table(record, "held_out", list(COLUMNS), 1, 2),
        "",
        "## Mean kappa of the rounds",
        "",
        *_table(record, "agreement", [key for key in COLUMNS if key not in ("true", "shuffled")], 1, 2),
        "",
        "## Area under the ROC curve of the score",
        "",
        "Given: true against shuffled names. Others: the stand-in's names that are the planted attribute, against "
        "wrong ones.",
        "",
        *_table(record, "auc", ["shuffled", *list(COLUMNS)[4:]], 1, 3),
        "",
        "## Is the p-value one?",
        "",
        "Null bits with p <= 0.05 (%), where 5 would be right and the stand-in searches all attributes for the best: "
        + ", ".join(f"{_mean(record, n, 'null_p_small')} at {n:.0%}" for n in noise)
        + ".",
    ]
    return "\n".join(lines) + "\n"


def _mean(record: Record, noise: float, key: str) -> str:
    values = [cell[key] for cell in record["cells"] if cell["noise"] == noise]
    return f"{100 * np.mean(values):.1f}%"


def _table(record: Record, what: str, keys: list[str], scale: float, digits: int) -> list[str]:
    noise = levels(record)
    lines = [f"| Names | {' | '.join(f'{level:.0%}' for level in noise)} |", "|---" * (len(noise) + 1) + "|"]
    for key in keys:
        texts = []
        for level in noise:
            own = [c[what][key] for c in record["cells"] if c["noise"] == level and c[what].get(key) is not None]
            values = np.array(own) * scale
            spread = values.std(ddof=1) if len(values) > 1 else 0
            texts.append(f"{values.mean():.{digits}f} ± {spread:.{digits}f}" if len(values) else "-")
        lines.append(f"| {COLUMNS[key]} | {' | '.join(texts)} |")
    return lines


def figure(record: Record) -> Figure:
    """Names verified over the noise, and ROC curves."""
    noise = levels(record)
    picture = Figure(figsize=(11, 3.8), layout="constrained")
    left, middle, right = picture.subplots(1, 3)
    for key, colour in zip(COLUMNS, ("black", "tab:blue", "tab:cyan", "tab:orange", "tab:red"), strict=False):
        cells = [[100 * c["accepted"][key] for c in record["cells"] if c["noise"] == level] for level in noise]
        spread = [np.std(each, ddof=1) if len(each) > 1 else 0 for each in cells]
        means = [np.mean(each) for each in cells]
        left.errorbar([100 * n for n in noise], means, yerr=spread, marker="o", capsize=3, label=COLUMNS[key],
                      color=colour)  # fmt: skip
    left.set(xlabel="bits flipped (%)", ylabel="names verified (%)", ylim=(-3, 105))
    left.legend(fontsize=7, loc="lower left", bbox_to_anchor=(0.02, 0.21))
    titles = {"shuffled": "given: true against shuffled", "null": "made: right against those of null bits"}
    for axes, (key, title) in zip((middle, right), titles.items(), strict=True):
        for level in noise:
            curve = record["curves"][f"{level:g}"][key]
            axes.plot(curve["wrong"], curve["right"], label=f"{level:.0%} flipped")
        axes.set(xlabel="wrong names that pass", ylabel="right names that pass", title=title)
        axes.set(xlim=(-0.005, 0.2), ylim=(0.8, 1.005))  # a corner: elsewhere all lines are one
        axes.legend(fontsize=7, loc="lower right")
    return picture
