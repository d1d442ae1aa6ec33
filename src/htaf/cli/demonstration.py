"""The demonstration on handwritten digits: three ways to train 0/1 activations, and what the bits of an ICBM mean."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure

from htaf.cli.evaluating import report_once
from htaf.concepts.codes import Codes, codes_key
from htaf.concepts.discovery import discover
from htaf.concepts.explorer.shown import Shown
from htaf.concepts.naming.by_attributes import name_by_attributes
from htaf.concepts.naming.files import write_names
from htaf.core.activations import Heaviside
from htaf.data.attributes import load as load_attributes
from htaf.data.preprocess import Preprocessor
from htaf.data.tabular import Table, load, split
from htaf.training.distributed import default_threads, thread_count
from htaf.training.families import ready_recipe
from htaf.training.families.mlp import tabular_mlp
from htaf.training.fit import fit
from htaf.training.recipe import Running
from htaf.training.runs import Run, forward, to_json, write_atomic

CONCEPTS, EPOCHS = 32, 15
EPOCHS_OF_NETWORKS = 30
METHODS = {"htaf": "HTAF", "ste": "straight-through", "ss": "scaled sigmoid"}


def run_demo(out: Path, *, seed: int = 0) -> list[dict[str, Any]]:
    """Train, harden and compare; writes demo.json, demo.png and one run folder a method under `out`, the report
    of the first beside baselines.

    Returns:
        One row a method: test accuracy of the smooth and the exact network, the gap in points, seconds.
    """
    table, running = load("digits"), Running(progress=True)
    rows, runs = [], []
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
        runs.append(run)
    write_atomic(out / "demo.json", to_json(rows))
    write_atomic(out / "demo.png", _picture(rows, runs[0], table, seed))
    return rows


def run_concepts(out: Path, *, seed: int = 0) -> dict[str, Any]:
    """Train an implicit concept bottleneck model, as `discover`, whose summary it returns; its concepts have names from
    a table of strokes."""
    recipe = ready_recipe("icbm", "small").replace(depth=10, concepts=CONCEPTS, epochs=EPOCHS)

    def name(codes: Codes, file: Path) -> None:
        write_names(name_by_attributes(codes, load_attributes("digits")), file, codes=codes_key(codes))

    return discover("digits", out, recipe, seed=seed, name=name, shown=Shown(detailed=0), progress=True).summary


def _picture(rows: list[dict[str, Any]], run: Run, table: Table, seed: int) -> bytes:
    """Left: accuracies. Right: one test image of each digit, the bits of the last hidden layer under it, what it was
    read as."""
    figure = Figure(figsize=(11, 2.9), layout="constrained")
    halves: Any = figure.subfigures(1, 2, width_ratios=[1, 2])
    left, right = halves
    axes = left.subplots()
    place = np.arange(len(rows))
    axes.bar(place - 0.2, [100 * r["smooth"] for r in rows], 0.4, label="smooth", color="#9ecae1")
    axes.bar(place + 0.2, [100 * r["exact"] for r in rows], 0.4, label="exact 0/1", color="#08519c")
    axes.set_xticks(place, [r["method"] for r in rows], fontsize=8)
    axes.set(
        ylabel="test accuracy, %",
        ylim=(min(80.0, *(95 * r["exact"] for r in rows)), 100),
        title=f"digits, {run.record['rows']['test']} test images",
    )
    left.legend(loc="outside lower center", ncols=2, fontsize=8)

    test = split(table, seed).test
    chosen = np.array([test[table.target[test] == digit][0] for digit in range(10)])
    preprocessor = run.preprocessor()
    assert isinstance(preprocessor, Preprocessor)
    x = torch.from_numpy(preprocessor.transform(table.features.iloc[chosen]))
    model = run.model()
    seen: list[Any] = []
    last = [m for m in model.modules() if isinstance(m, Heaviside)][-1]
    handle = last.register_forward_hook(lambda module, args, output: seen.append(output))
    read = forward(model, x).argmax(1).tolist()
    handle.remove()
    bits = seen[0].reshape(10, 8, 16).numpy()
    grid: Any = right.subplots(2, 10, gridspec_kw={"height_ratios": [2, 1]})
    right.suptitle("HTAF network with the exact step: image, its 128 bits, what it reads", fontsize=10)
    for digit in range(10):
        top, bottom = grid[:, digit]
        top.imshow(table.features.iloc[chosen[digit]].to_numpy(dtype=float).reshape(8, 8), cmap="gray_r")
        bottom.imshow(bits[digit], cmap="gray_r", vmin=0, vmax=1)
        bottom.set_xlabel(f"reads {read[digit]}", fontsize=8, color="black" if read[digit] == digit else "red")
        for axis in (top, bottom):
            axis.set_xticks([])
            axis.set_yticks([])
    data = io.BytesIO()
    figure.savefig(data, format="png", dpi=120)
    return data.getvalue()
