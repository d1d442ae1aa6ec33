"""Small pictures as SVG inside a page: colours come from its style sheet, so that they follow light and dark."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from markupsafe import Markup

from htaf.report.parts import templates

WIDTH, HEIGHT = 400, 250
LEFT, RIGHT, TOP, BOTTOM = 52, 12, 12, 40
WIDE = 20.0  # largest over smallest loss, from which the axis is logarithmic


def number(value: float | None) -> str:
    """A number for people: four significant digits; "-" for none."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if 10_000 <= abs(value) < 1e9 else f"{value:.4g}"


def ticks(low: float, high: float, most: int = 5) -> list[float]:
    """Round numbers, 1, 2 or 5 times a power of 10 apart, within a range."""
    if not high > low:
        return [low]
    rough = high / most - low / most  # the difference may be beyond float64
    power = 10.0 ** math.floor(math.log10(rough))
    step = next((power * m for m in (1, 2, 5) if power * m >= rough), power * 10)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(place * step, 12) if abs(step) > 1e-9 else place * step for place in range(first, last + 1)]


Mark = tuple[str, dict[str, Any], str]  # an element, its attributes, and the words in it


class Plot:
    """Axes of a picture, to which marks are added; `svg` gives it.

    Args:
        x, y: lowest and highest value of each axis.
        names: of the axes.
        alternative: what the picture shows, in words.
        logarithmic: the y axis. whole: only whole numbers on the x axis.
    """

    def __init__(
        self,
        x: tuple[float, float],
        y: tuple[float, float],
        names: tuple[str, str],
        alternative: str,
        *,
        logarithmic: bool = False,
        whole: bool = False,
    ) -> None:
        self.x, self.log, self.whole = _wider(x), logarithmic, whole
        self.y = _wider((math.log10(y[0]), math.log10(y[1])) if logarithmic else y)
        self.names, self.alternative = names, alternative
        self.marks: list[Mark] = []

    def across(self, value: float) -> float:
        """The place of a value on the x axis."""
        return LEFT + _share(value, self.x) * (WIDTH - LEFT - RIGHT)

    def up(self, value: float) -> float:
        """The place of a value on the y axis."""
        value = math.log10(value) if self.log else value
        return HEIGHT - BOTTOM - _share(value, self.y) * (HEIGHT - TOP - BOTTOM)

    def line(self, points: Sequence[tuple[float, float | None]], kind: str) -> None:
        """A line through points, broken where a value is missing; a single point is a dot."""
        pieces: list[list[str]] = [[]]
        for x, y in points:
            if y is None or (self.log and y <= 0):
                pieces.append([])
            else:
                pieces[-1].append(f"{self.across(x):.1f},{self.up(y):.1f}")
        for piece in filter(None, pieces):
            if len(piece) == 1:
                cx, cy = piece[0].split(",")
                self._mark("circle", f"dot {kind}", cx=cx, cy=cy, r=3)
            else:
                self._mark("polyline", f"line {kind}", points=" ".join(piece))

    def dot(self, x: float, y: float, kind: str, radius: float = 4.0) -> None:
        """A dot."""
        self._mark("circle", f"dot {kind}", cx=_at(self.across(x)), cy=_at(self.up(y)), r=f"{radius:.1f}")

    def upright(self, x: float, low: float, high: float, kind: str) -> None:
        """A line straight up."""
        self._line(self.across(x), self.up(low), self.up(high), f"line {kind}")

    def whole_upright(self, x: float, kind: str) -> None:
        """A line over the whole height."""
        self._line(self.across(x), TOP, HEIGHT - BOTTOM, f"line {kind}")

    def _line(self, x: float, first: float, last: float, kind: str) -> None:
        self._mark("line", kind, x1=_at(x), x2=_at(x), y1=_at(first), y2=_at(last))

    def _mark(self, element: str, kind: str, **attributes: Any) -> None:
        self.marks.append((element, {"class": kind} | attributes, ""))

    def svg(self) -> Markup:
        """The picture."""
        found: list[Mark] = []
        for value in self._upward():
            y = self.up(value)
            found.append(("line", {"class": "grid", "x1": LEFT, "x2": WIDTH - RIGHT, "y1": _at(y), "y2": _at(y)}, ""))
            found.append(("text", {"x": LEFT - 6, "y": _at(y + 4), "text-anchor": "end"}, number(value)))
        middle, half = {"text-anchor": "middle"}, (TOP + HEIGHT - BOTTOM) / 2
        for value in ticks(*self.x):
            if not self.whole or value % 1 == 0:
                at = {"x": _at(self.across(value)), "y": HEIGHT - BOTTOM + 16}
                found.append(("text", at | middle, number(value)))
        found.append(("text", {"x": _at((LEFT + WIDTH - RIGHT) / 2), "y": HEIGHT - 5} | middle, self.names[0]))
        turned = {"transform": f"rotate(-90 11 {half:.0f})", "x": 11, "y": f"{half:.0f}"}
        found.append(("text", turned | middle, self.names[1]))
        drawn = (
            templates()
            .get_template("plot.svg")
            .render(width=WIDTH, height=HEIGHT, alternative=self.alternative, marks=[*found, *self.marks])
        )
        return Markup(drawn)

    def _upward(self) -> list[float]:
        """The ticks of the y axis."""
        if not self.log:
            return ticks(*self.y)
        powers = range(math.floor(self.y[0]), math.ceil(self.y[1]) + 1)
        found = [m * 10.0**p for p in powers for m in (1, 2, 5)]
        found = [v for v in found if self.y[0] <= math.log10(v) <= self.y[1]]
        return found if len(found) <= 7 else [v for v in found if f"{v:e}".startswith("1")]


def _at(place: float) -> str:
    """A place in a picture."""
    return f"{place:.1f}"


def _share(value: float, bounds: tuple[float, float]) -> float:
    """Where a value lies in a range, 0 to 1; halved, as the width may be beyond float64."""
    low, high = bounds
    return (value / 2 - low / 2) / (high / 2 - low / 2)


def _wider(bounds: tuple[float, float]) -> tuple[float, float]:
    """A range that is one: of a single value some room around it."""
    low, high = bounds
    if high > low:
        return low, high
    room = abs(low) * 0.1 or 1.0
    return low - room, low + room


def losses(
    epochs: Sequence[dict[str, float | None]], best: float, stages: Sequence[float], lines: dict[str, str]
) -> Markup:
    """The losses by epoch; lines: names of columns, each with the class of its line."""
    values = [row[name] for row in epochs for name in lines]
    known = [v for v in values if v is not None]
    if not known:
        return Markup()
    low, high = min(known), max(known)
    log = low > 0 and high > WIDE * low
    last = float(epochs[-1]["epoch"] or 1)
    ends = [f"{name.replace('_', ' ')} from {number(epochs[0][name])} to {number(epochs[-1][name])}" for name in lines]
    said = f"Losses over {last:.0f} epochs: {'; '.join(ends)}. The kept epoch is {best:g}."
    bounds = (low, high) if log else (min(low, 0.0) if low < 0.3 * high else low, high)
    plot = Plot((1.0, last), bounds, ("epoch", "loss"), said, logarithmic=log, whole=True)
    for stage in stages:
        plot.whole_upright(stage - 0.5, "stage")
    plot.whole_upright(min(best, last), "kept")
    for name, kind in lines.items():
        plot.line([(float(row["epoch"] or 0), row[name]) for row in epochs], kind)
    return plot.svg()


def reliability(bins: Sequence[dict[str, float]], names: tuple[str, str]) -> Markup:
    """Predicted against observed shares; the larger a dot, the more rows."""
    most = max(one["rows"] for one in bins)
    told = ", ".join(f"{one['predicted']:.0%} predicted {one['observed']:.0%} observed" for one in bins)
    plot = Plot((0.0, 1.0), (0.0, 1.0), names, f"Reliability by bin: {told}.")
    plot.line([(0.0, 0.0), (1.0, 1.0)], "ideal")
    plot.line([(one["predicted"], one["observed"]) for one in bins], "exact")
    for one in bins:
        plot.dot(one["predicted"], one["observed"], "exact", 2.5 + 5.5 * math.sqrt(one["rows"] / most))
    return plot.svg()


def spreads(bins: Sequence[dict[str, float]], target: str) -> Markup:
    """Residuals by prediction: the middle 80% as a line, the mean as a dot."""
    first, last = bins[0], bins[-1]
    told = f"means from {number(first['mean'])} at {number(first['predicted'])} to {number(last['mean'])} at "
    low, high = min(0.0, *(one["q10"] for one in bins)), max(0.0, *(one["q90"] for one in bins))
    low, high = min(low, *(one["mean"] for one in bins)), max(high, *(one["mean"] for one in bins))
    plot = Plot(
        (first["predicted"], last["predicted"]),
        (low, high),
        (f"predicted {target}", "true minus predicted"),
        f"Residuals in {len(bins)} bins by prediction: {told}{number(last['predicted'])}.",
    )
    plot.line([(plot.x[0], 0.0), (plot.x[1], 0.0)], "ideal")
    for one in bins:
        plot.upright(one["predicted"], one["q10"], one["q90"], "spread")
    for one in bins:
        plot.dot(one["predicted"], one["mean"], "exact")
    return plot.svg()
