"""Run the demonstration on digits: three ways to train 0/1 activations, and what the bits of an ICBM mean."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from htaf.cli.evaluating import report_once
from htaf.concepts.codes import Codes, codes_key
from htaf.concepts.discovery import discover
from htaf.concepts.explorer.shown import Shown
from htaf.concepts.naming.by_attributes import name_by_attributes
from htaf.concepts.naming.files import write_names
from htaf.data.attributes import load as load_attributes
from htaf.data.tabular import load
from htaf.training.distributed import default_threads, thread_count
from htaf.training.families import ready_recipe
from htaf.training.families.mlp import tabular_mlp
from htaf.training.fit import fit
from htaf.training.recipe import Running
from htaf.training.runs import to_json, write_atomic

CONCEPTS, EPOCHS = 32, 15
EPOCHS_OF_NETWORKS = 30
METHODS = {"htaf": "HTAF", "ste": "straight-through", "ss": "scaled sigmoid"}


def run_demo(out: Path, *, seed: int = 0) -> list[dict[str, Any]]:
    """Train three methods, harden each network and compare them; write demo.json, a run folder for each method and
    the report of the first.

    Returns:
        A row for each method: test accuracy of the smooth and of the exact network, their difference, seconds.
    """
    table, running = load("digits"), Running(progress=True)
    rows = []
    for method, label in METHODS.items():
        recipe = tabular_mlp().replace(method=method, epochs=EPOCHS_OF_NETWORKS)
        with thread_count(default_threads(recipe)):
            run = fit(recipe, table, out / method, seed=seed, source={"name": "digits"}, running=running)
        if method == "htaf":
            report_once(run, table)
        smooth, exact = (run.record["metrics"][k]["test"]["accuracy"] for k in ("smooth", "exact"))
        rows.append(
            {
                "method": label,
                "smooth": smooth,
                "exact": exact,
                "gap": exact - smooth,
                "epochs": run.record["epochs_run"],
                "seconds": run.record["seconds"],
            }
        )
    write_atomic(out / "demo.json", to_json(rows))
    return rows


def run_concepts(out: Path, *, seed: int = 0) -> dict[str, Any]:
    """Train an implicit concept bottleneck model with `discover`, name its concepts from a table of strokes, and return
    the summary."""
    recipe = ready_recipe("icbm", "small").replace(depth=10, concepts=CONCEPTS, epochs=EPOCHS)

    def name(codes: Codes, file: Path) -> None:
        write_names(name_by_attributes(codes, load_attributes("digits")), file, codes=codes_key(codes))

    return discover("digits", out, recipe, seed=seed, name=name, shown=Shown(detailed=0), progress=True).summary
