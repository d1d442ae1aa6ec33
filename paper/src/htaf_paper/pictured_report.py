"""The experiment on names from pictures as text and figure."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from htaf_paper.planted_report import write_files

Record = dict[str, Any]
PICTURE = "pictured.png"
KINDS = {
    "true": "true, given", "made": "made by the stand-in", "shuffled": "shuffled, given", "random": "random phrase",
    "constant": "one name for all", "null": "made for null bits", "random ratings": "true, rated at random",
    "fits always": "true, fits always", "class": "its class, given",
}  # fmt: skip
SCORES = {"balanced_accuracy": "balanced accuracy", "auprc": "AUPRC", "f1": "F1", "correlation": "correlation"}


def write(record: Record, out: str | Path) -> str:
    """Write report.md and pictured.png into a folder; the report."""
    return write_files(Path(out), report(record), PICTURE, figure(record))


def report(record: Record) -> str:
    """Tables of means over seeds, and of standard deviations where there is one error."""
    classes, errors = levels(record, "classes"), levels(record, "errs")
    settings, seeds = record["settings"], len(record["cells"]) // (len(classes) * len(errors))
    listed = ", ".join(map(str, classes))
    beyond = [(f"### {count} classes", "", *_shares(record, count, "beyond_class"), "") for count in classes]
    found = "; ".join(f"{count} classes {_found(record, count, errors)}" for count in classes)
    lines = [
        "# Names from pictures: does the check on held-out images accept true ones and refuse wrong ones?",
        "",
        f"`python -m htaf_paper.pictured --out DIR`, {record['cpu_seconds']:.0f} s of a core. {record['images']} drawn "
        f"pictures with {record['attributes']} known attributes, of {listed} classes; each attribute is a bit. No "
        "model was asked: a stand-in that gets the same messages decodes the contact sheets and reads the attributes "
        "from the pixels; it misreads each with the probability in the head of a column, each time anew. So this "
        f"measures the check, not how well models see. A name is made from {settings['shown']} images with the bit and "
        f"as many without, checked on {settings['held_out']} and {settings['held_out']} others and on "
        f"{settings['pairs']} pairs of one class. Mean ± standard deviation over {seeds} seeds.",
        "",
    ]
    for count in classes:
        lines += [f"## {count} classes: names that are verified (%)", "", *_shares(record, count, "accepted"), ""]
    lines += [
        f"Verified: balanced accuracy >= {settings['threshold']} on the images drawn at random, and p <= 0.05 against "
        "a shuffled bit. Of the names that the stand-in made, so many are the planted attribute, at errors of "
        f"{', '.join(f'{e:.0%}' for e in errors)}: {found}.",
        "",
        "A shuffled or constant name that is verified is an attribute that goes with the bit, because both go with the "
        "class: with two classes all linked attributes do. Such a name sorts images rightly. What it cannot do is tell "
        "images of one class apart, and that is what the flag `only_class` is for.",
        "",
        "## Verified and not flagged as the name of a class alone (%)",
        "",
        *[line for lines_of in beyond for line in lines_of],
        "A true name is flagged where the errors leave too few of the pairs in the right order.",
        "",
        "## Area under the ROC curve: true against wrong names, all numbers of classes",
        "",
        *_areas(record, errors),
        "",
        "Wrong names: shuffled, random, constant, null, and true ones that are rated badly; mean of the six. Area of a "
        "score within one cell (10 bits), mean over seeds and numbers of classes.",
    ]
    return "\n".join(lines) + "\n"


def levels(record: Record, key: str) -> list[Any]:
    """The values of a key over all cells, ascending."""
    return sorted({cell[key] for cell in record["cells"]})


def _cells(record: Record, classes: int | None, errs: float) -> list[Record]:
    return [c for c in record["cells"] if classes in (None, c["classes"]) and c["errs"] == errs]


def _shares(record: Record, classes: int, what: str) -> list[str]:
    errors = levels(record, "errs")
    lines = [f"| Names | {' | '.join(f'{e:.0%} misread' for e in errors)} |", "|---" * (len(errors) + 1) + "|"]
    for key, label in KINDS.items():
        texts = []
        for errs in errors:
            values = 100 * np.array([c[what][key] for c in _cells(record, classes, errs) if key in c[what]])
            spread = values.std(ddof=1) if len(values) > 1 else 0
            texts += [f"{values.mean():.1f} ± {spread:.1f}"] if len(values) else []
        lines += [f"| {label} | {' | '.join(texts)} |"] if texts else []
    return lines


def _found(record: Record, classes: int, errors: list[float]) -> str:
    return ", ".join(f"{100 * np.mean([c['found'] for c in _cells(record, classes, e)]):.0f}%" for e in errors)


def _areas(record: Record, errors: list[float]) -> list[str]:
    lines = [f"| Score | {' | '.join(f'{e:.0%} misread' for e in errors)} |", "|---" * (len(errors) + 1) + "|"]
    for score, label in SCORES.items():
        means = [np.mean([[a[score] for a in c["auc"].values()] for c in _cells(record, None, e)]) for e in errors]
        lines.append(f"| {label} | {' | '.join(f'{mean:.3f}' for mean in means)} |")
    return lines


def figure(record: Record) -> Figure:
    """Names verified over the errors, a panel for each number of classes."""
    classes, errors = levels(record, "classes"), levels(record, "errs")
    picture = Figure(figsize=(3.1 * len(classes), 3.6), layout="constrained")
    panels = np.atleast_1d(picture.subplots(1, len(classes), sharey=True))
    colours = ("black", "tab:blue", "tab:orange", "tab:green", "tab:purple", "tab:red")
    for axes, count in zip(panels, classes, strict=True):
        for key, colour in zip(KINDS, colours, strict=False):
            shares = [[100 * c["accepted"][key] for c in _cells(record, count, e)] for e in errors]
            spread = [np.std(each, ddof=1) if len(each) > 1 else 0 for each in shares]
            axes.errorbar([100 * e for e in errors], [np.mean(each) for each in shares], yerr=spread, marker="o",
                          capsize=3, label=KINDS[key], color=colour)  # fmt: skip
        axes.set(title=f"{count} classes", xlabel="attributes misread (%)", ylim=(-3, 105))
    panels[0].set(ylabel="names verified (%)")
    panels[0].legend(fontsize=7)
    return picture
