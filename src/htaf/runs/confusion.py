"""Which classes a network takes for which: the confusion matrix, and figures of each class."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor

from htaf._files import csv_text
from htaf.runs.metrics import decided

COUNTED = 20  # classes whose cells have room for counts
LABELLED = 30  # classes whose names fit beside a picture


def confusion(
    outputs: Tensor, targets: Int64[Tensor, " n"], classes: int, threshold: float | None = None
) -> Int64[np.ndarray, "true predicted"]:
    """How many rows of each class have which prediction.

    Args:
        outputs: [n, classes]. targets: class numbers. threshold: see `htaf.runs.metrics.decided`.
    """
    pairs = targets * classes + decided(outputs, threshold)
    return torch.bincount(pairs, minlength=classes * classes).view(classes, classes).numpy()


def per_class(matrix: Int64[np.ndarray, "true predicted"], classes: Sequence[str]) -> list[dict[str, Any]]:
    """Of each class: rows; recall, the share of them that is found; precision, the share of its predictions that is
    right; F1, their harmonic mean; and the class that it is most often taken for, with how many rows. None where there
    is nothing to divide by."""
    found: list[dict[str, Any]] = []
    for number, name in enumerate(classes):
        right, rows, said = (int(v) for v in (matrix[number, number], matrix[number].sum(), matrix[:, number].sum()))
        wrong = matrix[number].copy()
        wrong[number] = 0
        other = int(wrong.argmax())
        found.append(
            {
                "class": name,
                "rows": rows,
                "predicted": said,
                "recall": right / rows if rows else None,
                "precision": right / said if said else None,
                "f1": 2 * right / (rows + said) if rows + said else None,
                "taken_for": classes[other] if wrong[other] else None,
                "times": int(wrong[other]),
            }
        )
    return found


def matrix_csv(matrix: Int64[np.ndarray, "true predicted"], classes: Sequence[str]) -> str:
    """The matrix as CSV: a row for each true class, a column for each predicted one."""
    rows = ([name, *map(int, row)] for name, row in zip(classes, matrix, strict=True))
    return csv_text([["true", *classes], *rows])


def classes_csv(figures: Sequence[dict[str, Any]]) -> str:
    """The figures of classes as CSV."""
    return csv_text([figures[0], *(row.values() for row in figures)])


def picture(matrix: Int64[np.ndarray, "true predicted"], classes: Sequence[str], title: str) -> bytes:
    """The matrix as a PNG: the share of each true class that has each prediction; of at most 20 classes with the counts
    above 0 in the cells."""
    share = matrix / np.maximum(matrix.sum(1, keepdims=True), 1)
    side = max(4.0, min(12.0, 0.3 * len(classes) + 2.5))
    from matplotlib.figure import Figure

    figure = Figure(figsize=(side, side), layout="constrained")
    axes = figure.subplots()
    image = axes.imshow(share, cmap="Blues", vmin=0, vmax=1)
    axes.set(xlabel="predicted", ylabel="true")
    axes.set_title(title, parse_math=False)  # a $ would begin a formula
    if len(classes) <= LABELLED:
        names = [name.replace("$", r"\$") for name in classes]
        axes.set_xticks(range(len(classes)), names, rotation=90, fontsize=8)
        axes.set_yticks(range(len(classes)), names, fontsize=8)
    if len(classes) <= COUNTED:
        small = 7 if matrix.max(initial=0) < 1000 else 5
        for true, predicted in np.argwhere(matrix).tolist():
            colour = "white" if share[true, predicted] > 0.5 else "black"
            words = str(matrix[true, predicted])
            axes.text(predicted, true, words, ha="center", va="center", fontsize=small, color=colour)
    figure.colorbar(image, ax=axes, shrink=0.7, label="share of the true class")
    data = io.BytesIO()
    figure.savefig(data, format="png", dpi=120)
    return data.getvalue()
