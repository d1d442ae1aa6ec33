"""The figure of a switch profile shows what the profile has."""

from __future__ import annotations

import pytest

from htaf.diagnostics import SwitchedLayer, SwitchProfile
from htaf_paper import drawing
from htaf_paper.switch import switch_drawing


def profile(accuracy: float | None = 0.9) -> SwitchProfile:
    layers = [
        SwitchedLayer(f"hidden.{i}", 1.0 + i, 0.9, None if i else 0.02, float(i), {"accuracy": 0.9 - 0.1 * i},
                      {"accuracy": accuracy})
        for i in range(3)
    ]  # fmt: skip
    return SwitchProfile(tuple(layers), {"accuracy": 0.95}, {"accuracy": 0.7})


def test_the_figure_shows_the_profile() -> None:
    found = profile()
    scores, flips, gradients, scales = switch_drawing(found, "accuracy", title="$of mine").panels
    lines = {series.label: series.y for series in scores.series}
    assert lines["exact up to this layer"] == tuple(layer.up_to["accuracy"] for layer in found.layers)
    assert lines["this layer alone exact"] == (0.9, 0.9, 0.9)
    assert lines["smooth network"] == (0.95, 0.95, 0.95)
    assert (scores.hline, scores.ticks) == (0.7, ("hidden.0", "hidden.1", "hidden.2"))
    assert (flips.series[0].y[0], scales.series[0].y) == (2.0, (1.0, 2.0, 3.0))
    assert gradients.y_log


@pytest.mark.parametrize("accuracy", [0.9, None])
def test_it_can_be_drawn(accuracy: float | None) -> None:
    vector, pixels = drawing.files(switch_drawing(profile(accuracy), "accuracy"))
    assert b"hidden.1" in vector
    assert pixels.startswith(b"\x89PNG")
    with pytest.raises(ValueError, match="expected one of the scores accuracy, got 'auroc'"):
        switch_drawing(profile(), "auroc")
