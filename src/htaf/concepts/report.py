"""Scores as files: JSON, and a picture of a histogram and a curve."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from htaf.concepts.scores import BINS
from htaf.runs import to_json, write_atomic

SCORES, PICTURE = "scores.json", "scores.png"
COLOUR = "#08519c"


def write_report(scores: Mapping[str, Any], out: str | Path) -> list[Path]:
    """Write scores.json and scores.png.

    Args:
        scores: what `htaf.concepts.scores.score` returns.
        out: a folder, made when it does not exist; files of these names are replaced.

    Returns:
        the files.

    Raises:
        OSError: the folder cannot be written.
    """
    files: dict[str, bytes | str] = {SCORES: to_json(scores), PICTURE: _picture(scores)}
    for name, content in files.items():
        write_atomic(Path(out) / name, content)
    return [Path(out) / name for name in files]


def shown(row: Mapping[str, Any]) -> str:
    """Give the value of a row of `htaf.concepts.scores.summary` as a text."""
    value = row["value"]
    if value is None:
        return "-"
    forms = {"percent": f"{100 * value:.1f}%", "points": f"{100 * value:+.2f} points", "count": f"{value:,}"}
    return forms.get(row["kind"], f"{value:.1f}")


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


def short(text: str, most: int) -> str:
    """The text, of more characters the first ones."""
    return text if len(text) <= most else text[: most - 1] + "…"
