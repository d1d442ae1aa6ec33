"""Reads the cells of `htaf_paper.vanishing`: report.md and two figures."""

from __future__ import annotations

import io
import json
import statistics
from collections import Counter
from itertools import zip_longest
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from htaf.diagnostics import vanishes
from htaf.diagnostics.gradients import last_epochs
from htaf.runs import to_json, write_atomic

Record = dict[str, Any]
THRESHOLD = 1e-5
LAYERS_FIGURE, SHAPES_FIGURE = "vanishing_layers.png", "vanishing_shapes.png"
PRINTED = ("ReLU", "HTAF (3, 7.3)", "SS 22")
METHODS = (*PRINTED, "HTAF tuned", "SS tuned")
COLOURS = dict(zip(METHODS, ("tab:green", "tab:blue", "tab:orange", "navy", "saddlebrown"), strict=True))
PAIRS = ("HTAF (2, 11)", "HTAF (8, 2.75)", "HTAF (11, 2)", "SS 22", "ReLU")
FIGURE_SHAPE = (256, 256, 128)
# The paper's table: whether the gradient vanishes, ReLU, HTAF (3, 7.3), SS 22
PAPER = {
    (256, 256, 128): (False, False, True),
    (512, 512, 256): (False, False, True),
    (1024, 1024, 512): (False, False, True),
    (256, 256, 256, 128): (False, False, True),
    (512, 512, 512, 256): (False, False, True),
    (1024, 1024, 1024, 512): (False, False, True),
    (256, 256, 256, 256, 256): (False, True, True),
}
# The paper's text on its figure of 256-256-128, in the order of PAIRS
PAPER_PAIRS = (False, True, True, True, False)


def report(folder: str | Path, figures: str | Path | None = None) -> str:
    """Write report.md into the folder of a run, and the figures beside it or into `figures`.

    Returns:
        The text of report.md.

    Raises:
        ValueError: no cells there, cells of different lengths or data, or a damaged one.
    """
    folder = Path(folder)
    groups = _groups(folder)
    lines = ["# Vanishing gradients", "", *INTRODUCTION, ""]
    for rate, own in groups.items():
        lines += [f"## Learning rate {rate:g}", "", *_table(own), "", *_pairs(own), ""]
    lines += _measured(groups)
    text = "\n".join(lines) + "\n"
    for name, figure in ((LAYERS_FIGURE, layers_figure(groups)), (SHAPES_FIGURE, shapes_figure(groups))):
        picture = io.BytesIO()
        figure.savefig(picture, format="png", dpi=100)
        write_atomic((folder if figures is None else Path(figures)) / name, picture.getvalue())
    write_atomic(folder / "report.md", text)
    return text


Group = dict[tuple[tuple[int, ...], str], list[Record]]
Groups = dict[float, Group]

INTRODUCTION = (
    "First layer, median over the last 10% of the epochs of the L2 norm of dL/d(pre-activation) over the batch",
    "matrix (in brackets: of the per-sample norm); with several seeds from least to largest. **vanishes**: below",
    "1e-5 in every seed, or in k of n. In square brackets the paper's verdict; it does not print its learning rate.",
    "Training loss: mean squared error of the standardised target in the last epoch (1: as good as the mean). RMSE:",
    "on the validation part, smooth / exact network, after the last epoch. Tuned: `htaf.tune` with the learning rate,",
    "then sharpened. It makes the pre-activations of a layer s times as large, which divides its norm by s.",
)


def _groups(folder: Path) -> Groups:
    """Learning rate -> (hidden sizes, label of the activation) -> records, by seed."""
    found: Groups = {}
    for path in sorted(folder.glob("cells/*.json")):
        try:
            record = json.loads(path.read_bytes())
            cell = record["cell"]
            key = (tuple(cell["hidden"]), _label(cell["activation"], cell.get("tuned", False)))
            found.setdefault(cell["lr"], {}).setdefault(key, []).append(record)
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{path} is damaged ({error}): delete it to compute the cell again") from None
    settings = {(r["cell"]["epochs"], r["cell"]["data"]) for r in _all(found)}
    if len(settings) != 1:
        raise ValueError(f"{folder}: expected cells of one data set and number of epochs, got {sorted(settings)}")
    return {
        rate: {key: sorted(records, key=lambda r: r["cell"]["seed"]) for key, records in found[rate].items()}
        for rate in sorted(found)
    }


def _all(groups: Groups) -> list[Record]:
    return [record for group in groups.values() for records in group.values() for record in records]


def _label(activation: Record, tuned: bool) -> str:
    match activation:
        case {"method": method} if tuned:
            return f"{method.upper()} tuned"
        case {"method": "htaf", "alpha0": alpha0, "alpha1": alpha1}:
            return f"HTAF ({alpha0:g}, {alpha1:g})"
        case {"method": "ss", "beta": beta}:
            return f"SS {beta:g}"
    return "ReLU"


def verdict(records: list[Record], measure: str = "norm") -> tuple[int, float, float]:
    """Of the first layer: seeds in which the gradient vanishes; least and largest median of the last epochs."""
    curves = [record[measure][0] for record in records]
    medians = [statistics.median(last_epochs(curve)) for curve in curves]
    return sum(vanishes(curve, threshold=THRESHOLD) for curve in curves), min(medians), max(medians)


def _table(groups: Group) -> list[str]:
    lines = [
        "| hidden layers | " + " | ".join(METHODS) + " |",
        "|---|" + "---|" * len(METHODS),
    ]
    agree = known = 0
    for hidden, printed in PAPER.items():
        entries = []
        for method, paper in zip_longest(METHODS, printed):
            records = groups.get((hidden, method), [])
            entries.append(_entry(records, paper))
            for record in records[: paper is not None]:
                known += 1
                agree += bool(verdict([record])[0]) == paper
        lines.append(f"| {_shape(hidden)} | " + " | ".join(entries) + " |")
    return [*lines, "", f"The first seed's verdict is the paper's in {agree} of {known} networks."]


def _entry(records: list[Record], paper: bool | None) -> str:
    if not records:
        return "-"
    number, low, high = verdict(records)
    _, low_sample, high_sample = verdict(records, "per_sample")
    of = "**vanishes**" if number == len(records) else "no" if not number else f"**{number} of {len(records)} vanish**"
    printed = "" if paper is None else f" [{'vanishes' if paper else 'no'}]"
    return f"{_range(low, high)} ({_range(low_sample, high_sample)}): {of}{printed}"


def _pairs(groups: Group) -> list[str]:
    lines = [
        f"All layers of {_shape(FIGURE_SHAPE)}, first seed:",
        "",
        "| activation | norm by layer, first to last | first layer | training loss | validation RMSE |",
        "|---|---|---|---|---|",
    ]
    for method, paper in zip(PAIRS, PAPER_PAIRS, strict=True):
        if records := groups.get((FIGURE_SHAPE, method)):
            norms = ", ".join(f"{statistics.median(last_epochs(curve)):.1e}" for curve in records[0]["norm"])
            loss = _range(*_ends([r["train_loss"][-1] for r in records]), ".3f")
            lines.append(f"| {method} | {norms} | {_entry(records, paper)} | {loss} | {_rmse(records)} |")
    return [
        *lines,
        "",
        "Training loss and validation RMSE:",
        "",
        "| hidden layers | " + " | ".join(METHODS) + " |",
        "|---|" + "---|" * len(METHODS),
        *(
            f"| {_shape(hidden)} | "
            + " | ".join(_outcome(groups.get((hidden, method), [])) for method in METHODS)
            + " |"
            for hidden in PAPER
        ),
    ]


def _outcome(records: list[Record]) -> str:
    if not records:
        return "-"
    return f"{_range(*_ends([r['train_loss'][-1] for r in records]), '.3f')}; RMSE {_rmse(records)}"


def _rmse(records: list[Record]) -> str:
    parts = [[r["validation_rmse"][which] for r in records] for which in ("smooth", "exact")]
    return " / ".join("-" if values[0] is None else _range(*_ends(values), ".2f") for values in parts)


def _ends(values: list[float]) -> tuple[float, float]:
    return min(values), max(values)


def _range(low: float, high: float, form: str = ".1e") -> str:
    a, b = f"{low:{form}}", f"{high:{form}}"
    return a if a == b else f"{a} to {b}"


def _shape(hidden: tuple[int, ...]) -> str:
    return "-".join(map(str, hidden))


def _measured(groups: Groups) -> list[str]:
    records = _all(groups)
    cell = records[0]["cell"]
    lines = [
        f"Abalone, {cell['epochs']} epochs, Adam, batches of {cell['batch_size']}, no batch norm;",
        f"{len(records)} trainings, {sum(r['seconds'] for r in records) / 60:.0f} minutes.",
    ]
    seen = Counter(to_json({k: r[k] for k in ("commit", "versions", "threads")}) for r in records)
    for text, count in seen.most_common():
        made = json.loads(text)
        versions = ", ".join(f"{k} {v}" for k, v in made["versions"].items())
        lines.append(f"{count} cells: commit {made['commit']}, {versions}, {made['threads']} thread(s).")
    return lines


def layers_figure(groups: Groups) -> Figure:
    """Of one shape the norms of every layer and the training loss by epoch, one column an activation, two rows a
    learning rate."""
    figure = Figure(figsize=(14, 4.6 * len(groups)), layout="constrained")
    panels = figure.subplots(2 * len(groups), len(PAIRS), sharex=True, sharey="row", squeeze=False)
    shades = mpl.colormaps["viridis"]
    for i, (rate, group) in enumerate(groups.items()):
        for column, method in enumerate(PAIRS):
            above, below = panels[2 * i : 2 * i + 2, column]
            above.set_title(f"{method}, lr {rate:g}")
            for record in group.get((FIGURE_SHAPE, method), [])[:1]:
                for j, (curve, each) in enumerate(zip(record["norm"], record["per_sample"], strict=True)):
                    colour = shades(0.85 * j / max(1, len(record["norm"]) - 1))
                    above.plot(curve, color=colour, label=f"layer {j + 1}")
                    above.plot(each, color=colour, linestyle=":", linewidth=0.9)
                below.plot(record["train_loss"], color="0.2")
            _norm_axis(above)
        panels[2 * i, 0].set_ylabel("L2 norm of dL/d(pre-activation)\n(dotted: per sample)")
        panels[2 * i + 1, 0].set_ylabel("training loss")
    if panels[0, 0].lines:
        panels[0, 0].legend(fontsize="x-small")
    figure.supxlabel("epoch")
    return figure


def shapes_figure(groups: Groups) -> Figure:
    """The first layer's norm by epoch, one column a shape, one row a learning rate, one line an activation and seed."""
    figure = Figure(figsize=(18, 3.2 * len(groups) + 0.4), layout="constrained")
    panels = figure.subplots(len(groups), len(PAPER), sharex=True, sharey="row", squeeze=False)
    for row, (rate, group) in zip(panels, groups.items(), strict=True):
        for panel, hidden in zip(row, PAPER, strict=True):
            for method in METHODS:
                for record in group.get((hidden, method), []):
                    panel.plot(record["norm"][0], color=COLOURS[method], linewidth=1)
                    panel.plot(record["per_sample"][0], color=COLOURS[method], linestyle=":", linewidth=0.8)
            _norm_axis(panel)
        row[0].set_ylabel(f"lr {rate:g}")
    for panel, hidden in zip(panels[0], PAPER, strict=True):
        panel.set_title(_shape(hidden), fontsize="medium")
    for method in METHODS:
        panels[0, 0].plot([], [], color=COLOURS[method], label=method)
    panels[0, 0].plot([], [], color="0.4", linestyle=":", label="per sample")
    panels[0, 0].plot([], [], color="0.4", linestyle="--", label="1e-5")
    figure.legend(*panels[0, 0].get_legend_handles_labels(), loc="outside right upper")
    figure.supxlabel("epoch")
    figure.supylabel("norm in the first layer")
    return figure


def _norm_axis(axes: Axes) -> None:
    axes.set_yscale("log", nonpositive="mask")
    if axes.lines:
        axes.axhline(THRESHOLD, color="0.4", linestyle="--", linewidth=0.8)
    else:
        axes.axis("off")
