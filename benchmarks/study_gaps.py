"""What the cells of a study say beyond its table: by sharpening and batch norm, when the best epoch came and the gap.

python benchmarks/study_gaps.py paper/results/tabular
"""

from __future__ import annotations

import statistics
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

from htaf.training.records import read_records


def main(folder: Path) -> None:
    groups: dict[tuple[str, str, str, str], list[tuple[int, float, float]]] = {}
    for record in read_records(folder):
        if record["metrics"]["exact"] is None:
            continue
        recipe, name = record["recipe"], record["headline"]
        exact, smooth = (record["metrics"][k] for k in ("exact", "smooth"))
        key = (record["data"]["name"], recipe["method"], str(recipe.get("sharpen", "-")), str(recipe["batch_norm"]))
        gap = abs(exact["test"][name] - smooth["test"][name])
        groups.setdefault(key, []).append((record["best_epoch"], exact["validation"][name], gap))
    table = Table(title=f"{folder}: cells by recipe, means", title_justify="left")
    for column in ("data", "method", "sharpen", "batch norm", "cells", "best epoch", "validation, exact", "test gap"):
        table.add_column(column)
    for key, values in sorted(groups.items()):
        epoch, validation, gap = (statistics.fmean(column) for column in zip(*values, strict=True))
        table.add_row(*key, str(len(values)), f"{epoch:.0f}", f"{validation:.4f}", f"{gap:.4f}")
    Console(width=120).print(table)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(Path(sys.argv[1]))
