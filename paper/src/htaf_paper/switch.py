"""The figure of a switch profile: where accuracy is lost when the steps of a network become exact, layer by layer."""

from __future__ import annotations

import math
from collections.abc import Sequence

from htaf.diagnostics import SwitchProfile
from htaf_paper.protocol import Drawing, Panel, Series


def switch_drawing(profile: SwitchProfile, name: str = "loss", *, title: str = "") -> Drawing:
    """The profile as a figure: scores, then flipped bits, gradient norms and the scale of the pre-activations.

    Args:
        profile: of `htaf.diagnostics.switch_profile`.
        name: of the score to show; the line in its panel is the network with all layers exact.
        title: which network it is.

    Raises:
        ValueError: no such score.
    """
    if name not in profile.smooth:
        raise ValueError(f"expected one of the scores {', '.join(profile.smooth)}, got {name!r}")
    layers = profile.layers
    paths = tuple(layer.path for layer in layers)

    def series(label: str, values: Sequence[float | None]) -> Series:
        points = tuple(math.nan if value is None else value for value in values)
        return Series(label, tuple(map(float, range(len(points)))), points)

    scores = (
        series("exact up to this layer", [layer.up_to[name] for layer in layers]),
        series("this layer alone exact", [layer.only[name] for layer in layers]),
        series("smooth network", [profile.smooth[name]] * len(layers)),
    )
    flips = [None if layer.flip_rate is None else 100 * layer.flip_rate for layer in layers]
    gradients = [layer.gradient or None for layer in layers]
    panels = (
        Panel(name, "layer", name, scores, ticks=paths, hline=profile.exact[name]),
        Panel("flipped bits", "layer", "%", (series("flipped", flips),), ticks=paths),
        Panel("gradient norm", "layer", "norm", (series("gradient", gradients),), y_log=True, ticks=paths),
        Panel("pre-activations", "layer", "standard deviation", (series("std", [v.std for v in layers]),), ticks=paths),
    )
    about = "Scores of the network with some layers exact, flipped bits, gradient norms and scales, by layer."
    return Drawing("switch", title or "The switch, layer by layer", about, panels, columns=2)
