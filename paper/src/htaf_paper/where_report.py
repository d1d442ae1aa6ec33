"""The planted-spot experiment as text and figure."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from htaf_paper.planted_report import write_files

Record = dict[str, Any]
PICTURE = "where.png"
METHODS = (
    "exact",
    "exact, without the constant",
    "gradient x input",
    "occlusion, 8 windows a side",
    "occlusion, windows as large as the spot",
    "exact, untrained network",
)


def write(record: Record, out: str | Path) -> str:
    """Write report.md and where.png into a folder; the report."""
    return write_files(Path(out), report(record), PICTURE, figure(record))


def report(record: Record) -> str:
    """Tables of mean and standard deviation over seeds."""
    cells, settings = record["cells"], record["settings"]
    networks = list(dict.fromkeys(each["network"] for each in cells))
    seeds = len({each["seed"] for each in cells})
    side, spot, seconds = settings["size"], settings["spot"], sum(each["cpu_seconds"] for each in cells)
    lines = [
        "# Planted spots: do maps find what decides a bit?",
        "",
        f"`python -m htaf_paper.where --out DIR`, {seconds:.0f} s of a core. Images of {side} x {side} pixels; four "
        f"kinds of spots of {spot} x {spot}, each in half of the images, at random places. Bit j is 1 where spot j is "
        f"there; {settings['training']:,} training images, {settings['epochs']} epochs, exact step. Maps of "
        f"{settings['images']} test images a seed, of bits that are 1 and right. Mean ± standard deviation over "
        f"{seeds} seeds.",
        "",
        "- **mass**: share of the map's positive values inside the spot (%).",
        "- **pointing**: how often the highest value lies inside the spot (%).",
        "- **IoU**: overlap of the responsible region's box with the spot (%).",
        "",
    ]
    for name in networks:
        own = [each for each in cells if each["network"] == name]
        grid = " x ".join(map(str, own[0]["grid"]))
        lines += [
            f"## {name}: maps of {grid} places",
            "",
            f"Bits right: {_spread(own, lambda c: c['accuracy'])}%. Largest difference between an exact map's sum and "
            f"its pre-activation: {max(c['largest_difference'] for c in own):.0e}.",
            "",
            "| Map | mass | pointing | IoU |",
            "|---|---|---|---|",
        ]
        for method in METHODS:
            values = [
                _spread(own, lambda c, m=method, k=key: c["methods"][m][k]) for key in ("mass", "pointing", "iou")
            ]
            lines.append(f"| {method} | {' | '.join(values)} |")
        area, off = (
            100 * own[0]["area"],
            [_spread(own, lambda c, k=key: c["covered"][k]) for key in ("box", "elsewhere")],
        )
        lines += [
            f"| the same value everywhere | {area:.1f} | {area:.1f} | {area:.1f} |",
            f"| the most that {grid} places allow | {_spread(own, lambda c: c['most_possible'])} | 100 | |",
            "",
            f"The bit turns to 0 when the box of the exact map is covered: {off[0]}%; when a box of the same size "
            f"beside the spot is: {off[1]}%.",
            "",
        ]
    return "\n".join(lines).rstrip() + "\n"


def _spread(cells: list[Record], value: Callable[[Record], float | None]) -> str:
    """Per cent."""
    found = 100 * np.array([v for each in cells if (v := value(each)) is not None], dtype=float)
    found = found[np.isfinite(found)]
    if not len(found):
        return "-"
    return f"{found.mean():.1f} ± {found.std(ddof=1) if len(found) > 1 else 0:.1f}"


def figure(record: Record) -> Figure:
    """Mass inside the spot, by network and map."""
    cells = record["cells"]
    networks = list(dict.fromkeys(each["network"] for each in cells))
    picture = Figure(figsize=(9, 3.6), layout="constrained")
    panels: Any = picture.subplots(1, len(networks), squeeze=False, sharey=True)
    for axes, name in zip(panels[0], networks, strict=True):
        own = [each for each in cells if each["network"] == name]
        values = 100 * np.array([[each["methods"][method]["mass"] for each in own] for method in METHODS])
        spread = values.std(1, ddof=1) if len(own) > 1 else np.zeros(len(METHODS))
        axes.barh(
            METHODS, values.mean(1), xerr=spread, capsize=3, color=["tab:orange"] + ["tab:blue"] * (len(METHODS) - 1)
        )
        axes.axvline(100 * own[0]["area"], color="grey", linewidth=0.8, linestyle="--")
        axes.invert_yaxis()
        axes.set(xlabel="map inside the spot (%)", title=name, xlim=(0, 100))
    return picture
