"""Runs of small tables with reports, and a table whose every name tries to be HTML."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from htaf.data.tabular import Table, load
from htaf.tables.report.writing import write_report
from htaf.training.families import make_recipe
from htaf.training.fit import fit
from htaf.training.recipe import Recipe, Running
from htaf.training.runs import Run

QUICK = make_recipe(hidden=(8,), epochs=3, batch_size=32, lr=0.02)
HOSTILE = {
    "number": "<script>alert(1)</script>",
    "text": "a&b \"q\" 'r' </td>",
    "hidden": "$\\frac{1}{2}$ \u202eevil",
    "target": "<img src=x onerror=alert(2)>",
    "file": "<i>hostile & co.csv",
}
CLASSES = ("</title><script>alert(3)</script>", "two", "\u202ethree'")


def hostile(folder: Path, task: str = "classification", rows: int = 120) -> Table:
    """Names of the file, columns, categories and classes that are markup or hide something."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            HOSTILE["number"]: rng.normal(size=rows),
            HOSTILE["text"]: rng.choice(["<b>x</b>", "y & z", "</table>"], rows),
            HOSTILE["hidden"]: rng.normal(size=rows),
        }
    )
    amount = frame[HOSTILE["number"]] + 0.2 * rng.normal(size=rows)
    names = np.where(amount > 0.5, CLASSES[0], np.where(amount < -0.5, CLASSES[1], CLASSES[2]))
    frame[HOSTILE["target"]] = names if task == "classification" else amount
    folder.mkdir(parents=True, exist_ok=True)
    frame.to_csv(folder / HOSTILE["file"], index=False)
    return load(folder / HOSTILE["file"], target=HOSTILE["target"])


def trained(out: Path, table: Table, recipe: Recipe = QUICK) -> Run:
    """A run of a few epochs."""
    source = {"name": table.name, "data_dir": None, "target": table.target_name, "task": None}
    return fit(recipe, table, out, running=Running("cpu"), source=source)


def reported(out: Path, table: Table, recipe: Recipe = QUICK) -> Run:
    """A run of a few epochs with its report."""
    run = trained(out, table, recipe)
    write_report(run, table)
    return run
