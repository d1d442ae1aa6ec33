"""A picture of a switch profile."""

from __future__ import annotations

import math

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from htaf.diagnostics.switch import SwitchProfile

# Okabe and Ito's colours, which colour-blind readers tell apart; the markers differ too
BLUE, ORANGE, SKY, GREEN, VERMILION = "#0072B2", "#E69F00", "#56B4E9", "#009E73", "#D55E00"


def switch_figure(
    profile: SwitchProfile, name: str = "loss", *, title: str = "", repaired: float | None = None
) -> Figure:
    """The profile as a picture: scores above, flip rate, gradient norm and scale of the pre-activations below.

    Args:
        profile: of `switch_profile`.
        name: of the score to show.
        title: which network it is.
        repaired: the score of an exact network with weights of its own, which is a line too.

    Raises:
        ValueError: no such score.
    """
    if name not in profile.smooth:
        raise ValueError(f"expected one of the scores {', '.join(profile.smooth)}, got {name!r}")
    layers = profile.layers
    x, width = range(len(layers)), min(18.0, max(6.4, 2.5 + 0.45 * len(layers)))
    figure = Figure(figsize=(width, 8.6), layout="constrained")
    above, flips, gradients, scales = figure.subplots(4, 1, sharex=True, height_ratios=(2.4, 1, 1, 1))
    _line(above, [layer.up_to[name] for layer in layers], BLUE, "o-", "exact up to this layer")
    _line(above, [layer.only[name] for layer in layers], ORANGE, "s--", "this layer alone exact")
    levels = [
        (profile.smooth[name], "0.3", "-", "smooth network"),
        (profile.exact[name], "0.3", ":", "smooth network, all layers exact"),
        (repaired, GREEN, "-.", "exact network, with weights of its own"),
    ]
    for value, colour, style, label in levels:
        if value is not None:
            above.axhline(value, color=colour, linestyle=style, linewidth=1, label=label)
    above.set_ylabel(name)
    above.set_title(title.replace("$", r"\$"), fontsize="medium", loc="left", wrap=True)  # a $ would begin a formula
    above.legend(fontsize="small")
    flips.bar(x, [100 * (layer.flip_rate or 0.0) for layer in layers], color=SKY)
    flips.set_ylabel("flipped bits, %")
    _line(gradients, [layer.gradient or None for layer in layers], VERMILION, "^-", "")
    gradients.set_yscale("log")
    gradients.set_ylabel("gradient norm")
    _line(scales, [layer.std for layer in layers], GREEN, "D-", "")
    scales.set_ylabel("std of\npre-activations")
    scales.set_xticks(x, [layer.path for layer in layers], rotation=90, fontsize="x-small")
    for axes in (above, flips, gradients, scales):
        axes.grid(axis="y", alpha=0.3)
    return figure


def _line(axes: Axes, values: list[float | None], colour: str, style: str, label: str) -> None:
    axes.plot([math.nan if v is None else v for v in values], style, color=colour, label=label, markersize=5)
