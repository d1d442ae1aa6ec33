"""The planted-concept experiment as text and figure."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from htaf.runs import write_atomic

Record = dict[str, Any]
PICTURE, REPORT = "planted.png", "report.md"
WRONG = ("shuffled", "other", "null")


def write(record: Record, out: str | Path) -> str:
    """Write report.md and planted.png into a folder; the report."""
    return write_files(Path(out), report(record), PICTURE, figure(record))


def write_files(out: Path, text: str, picture: str, drawn: Figure) -> str:
    """Write a text as report.md, and a figure under a name; the text."""
    write_atomic(out / REPORT, text)
    data = io.BytesIO()
    drawn.savefig(data, format="png", dpi=100)
    write_atomic(out / picture, data.getvalue())
    return text


def report(record: Record) -> str:
    """Tables of mean and standard deviation over seeds."""
    data, cells = record["data"], record["cells"]
    noise = levels(record)
    seeds = len(cells) // len(noise)
    twins = data["with_a_twin"]
    lines = [
        "# Planted concepts: does attribute naming find names that are there?",
        "",
        f"`python -m htaf_paper.planted --out DIR`, {record['cpu_seconds']:.0f} s of a core. {data['images']:,} "
        f"images of {data['classes']} CUB classes; {len(data['planted'])} bits, one for each of those of "
        f"{data['attributes']} attributes that at least 5 classes have and at least 5 lack; {twins} of them share "
        "their column with another attribute, which then counts as the same name. Each image's bit is flipped with the "
        "probability in the first column. "
        f"Mean ± standard deviation over {seeds} seeds.",
        "",
        "## Names found (%), and verified by `name_by_attributes`",
        "",
        "Names of one split's naming classes, of a vote over 20 splits, and of all classes (`name_by_attributes`). "
        "Verified: held-out balanced accuracy >= 0.75, half of the rounds agree, p <= 0.05. Null: bits whose classes "
        "were permuted, so that no name is right. Mixed: classes in neither group, of each bit.",
        "",
        "| Noise | one split | vote | all classes | verified | right among verified | null verified | mixed |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for level in noise:
        own = [each for each in cells if each["noise"] == level]
        columns = [
            _percent(own, lambda c: c["one split"]["found"]), _percent(own, lambda c: c["20 splits"]["vote"]),
            *(_percent(own, lambda c, key=key: c["name_concepts"][key])
              for key in ("found", "verified", "verified_right", "null_verified")),
        ]  # fmt: skip
        mixed = np.mean([c["name_concepts"]["mixed"] for c in own])
        lines.append(f"| {level:.0%} | {' | '.join(columns)} | {mixed:.1f} |")
    lines += [
        "",
        "## The held-out score as a detector of right names",
        "",
        "Area under the ROC curve, right names against wrong ones: names of other bits (shuffled), random other "
        "attributes (other), the names found for null bits (null).",
        "",
        "| Noise | Splits | shuffled | other | null | null, score of the rounds that chose the name |",
        "|---|---|---|---|---|---|",
    ]
    for level in noise:
        own = [each for each in cells if each["noise"] == level]
        for name in ("one split", "20 splits"):
            values = [_spread(own, lambda c, n=name, k=key: c[n]["auc"][k], 1, 3) for key in WRONG]
            values.append(_spread(own, lambda c, n=name: c[n]["auc"]["null, rounds that chose"], 1, 3))
            lines.append(f"| {level:.0%} | {name} | {' | '.join(values)} |")
    lines += [
        "",
        "## Which score? Null bits have no name: chance is 0.50",
        "",
        "The score over all rounds, and over those that chose the vote's name; and the share that passes 0.75 (%).",
        "",
        "| Noise | Splits | all rounds | rounds that chose | passing, all | passing, that chose |",
        "|---|---|---|---|---|---|",
    ]
    for level in noise:
        own = [each for each in cells if each["noise"] == level]
        for name in ("one split", "20 splits"):
            kinds = ("all rounds", "rounds that chose")
            values = [_spread(own, lambda c, n=name, k=kind: c[n]["null_held_out"][k], 1, 2) for kind in kinds]
            values += [_percent(own, lambda c, n=name, k=kind: c[n]["null_passed"][k]) for kind in kinds]
            lines.append(f"| {level:.0%} | {name} | {' | '.join(values)} |")
    return "\n".join(lines) + "\n"


def levels(record: Record) -> list[float]:
    """The noise levels, ascending."""
    return sorted({each["noise"] for each in record["cells"]})


def _spread(cells: list[Record], value: Callable[[Record], float | None], scale: float, digits: int) -> str:
    found = np.array([v for each in cells if (v := value(each)) is not None]) * scale
    if not len(found):
        return "-"
    return f"{found.mean():.{digits}f} ± {found.std(ddof=1) if len(found) > 1 else 0:.{digits}f}"


def _percent(cells: list[Record], value: Callable[[Record], float | None]) -> str:
    return _spread(cells, value, 100, 1)


def figure(record: Record) -> Figure:
    """Names found, and the detector's area, over the noise."""
    noise, cells = levels(record), record["cells"]
    picture = Figure(figsize=(9, 3.6), layout="constrained")
    left, right = picture.subplots(1, 2)

    def line(axes: Any, value: Callable[[Record], float | None], scale: float, **style: Any) -> None:
        groups = [[v * scale for c in cells if c["noise"] == n and (v := value(c)) is not None] for n in noise]
        means = [np.mean(group) if group else np.nan for group in groups]
        spread = [np.std(group, ddof=1) if len(group) > 1 else 0 for group in groups]
        axes.errorbar([100 * n for n in noise], means, yerr=spread, marker="o", capsize=3, **style)

    for name, colour in (("one split", "tab:orange"), ("20 splits", "tab:blue")):
        label = "right, names of one split" if name == "one split" else "right, names of all classes"
        line(left, lambda c, n=name: c[n]["found"], 100, label=label, color=colour)
        for wrong, dash in (("shuffled", ":"), ("null", "-")):
            label = f"{name}, against {wrong}"
            line(right, lambda c, n=name, w=wrong: c[n]["auc"][w], 1, label=label, color=colour, linestyle=dash)
    label = "verified though nothing is planted"
    line(left, lambda c: c["name_concepts"]["null_verified"], 100, label=label, color="tab:red")
    left.axhline(95, color="grey", linewidth=0.8, linestyle="--")
    left.set(xlabel="bits flipped (%)", ylabel="bits (%)", ylim=(-3, 103), title="names")
    right.set(xlabel="bits flipped (%)", ylabel="area under the ROC curve", title="held-out score, right against wrong")
    right.set_ylim(0.94, 1.005)
    left.legend(fontsize=8, loc="center left")
    right.legend(fontsize=8, loc="lower left")
    return picture
