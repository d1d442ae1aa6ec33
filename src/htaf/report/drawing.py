"""Small pictures as SVG inside a page: colours come from its style sheet, so that they follow light and dark."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from htaf._console import visible

WIDTH, HEIGHT = 400, 250
LEFT, RIGHT, TOP, BOTTOM = 52, 12, 12, 40
WIDE = 20.0  # largest over smallest loss, from which the axis is logarithmic


def text(value: object) -> str:
    """Text for HTML: escaped, with nothing hidden in it."""
    return escape(visible(str(value)))


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
        self.marks: list[str] = []

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
                self.marks.append(f'<circle class="dot {kind}" cx="{cx}" cy="{cy}" r="3"/>')
            else:
                self.marks.append(f'<polyline class="line {kind}" points="{" ".join(piece)}"/>')

    def dot(self, x: float, y: float, kind: str, radius: float = 4.0) -> None:
        """A dot."""
        self.marks.append(
            f'<circle class="dot {kind}" cx="{self.across(x):.1f}" cy="{self.up(y):.1f}" r="{radius:.1f}"/>'
        )

    def upright(self, x: float, low: float, high: float, kind: str) -> None:
        """A line straight up."""
        at = f"{self.across(x):.1f}"
        self.marks.append(
            f'<line class="line {kind}" x1="{at}" x2="{at}" y1="{self.up(low):.1f}" y2="{self.up(high):.1f}"/>'
        )

    def whole_upright(self, x: float, kind: str) -> None:
        """A line over the whole height."""
        at = f"{self.across(x):.1f}"
        self.marks.append(f'<line class="line {kind}" x1="{at}" x2="{at}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>')

    def svg(self) -> str:
        """The picture."""
        found: list[str] = []
        for value in self._upward():
            y = self.up(value)
            found.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
            found.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{text(number(value))}</text>')
        for value in ticks(*self.x):
            if self.whole and value % 1:
                continue
            at = f'x="{self.across(value):.1f}" y="{HEIGHT - BOTTOM + 16}"'
            found.append(f'<text {at} text-anchor="middle">{text(number(value))}</text>')
        middle = (LEFT + WIDTH - RIGHT) / 2
        found.append(f'<text x="{middle:.0f}" y="{HEIGHT - 5}" text-anchor="middle">{text(self.names[0])}</text>')
        half = (TOP + HEIGHT - BOTTOM) / 2
        turned = f'transform="rotate(-90 11 {half:.0f})" x="11" y="{half:.0f}"'
        found.append(f'<text {turned} text-anchor="middle">{text(self.names[1])}</text>')
        inside = "".join([*found, *self.marks])
        label = text(self.alternative)
        return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{label}">{inside}</svg>'

    def _upward(self) -> list[float]:
        """The ticks of the y axis."""
        if not self.log:
            return ticks(*self.y)
        powers = range(math.floor(self.y[0]), math.ceil(self.y[1]) + 1)
        found = [m * 10.0**p for p in powers for m in (1, 2, 5)]
        found = [v for v in found if self.y[0] <= math.log10(v) <= self.y[1]]
        return found if len(found) <= 7 else [v for v in found if f"{v:e}".startswith("1")]


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
) -> str:
    """The losses by epoch; lines: names of columns, each with the class of its line."""
    values = [row[name] for row in epochs for name in lines]
    known = [v for v in values if v is not None]
    if not known:
        return ""
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


def reliability(bins: Sequence[dict[str, float]], names: tuple[str, str]) -> str:
    """Predicted against observed shares; the larger a dot, the more rows."""
    most = max(one["rows"] for one in bins)
    told = ", ".join(f"{one['predicted']:.0%} predicted {one['observed']:.0%} observed" for one in bins)
    plot = Plot((0.0, 1.0), (0.0, 1.0), names, f"Reliability by bin: {told}.")
    plot.line([(0.0, 0.0), (1.0, 1.0)], "ideal")
    plot.line([(one["predicted"], one["observed"]) for one in bins], "exact")
    for one in bins:
        plot.dot(one["predicted"], one["observed"], "exact", 2.5 + 5.5 * math.sqrt(one["rows"] / most))
    return plot.svg()


def spreads(bins: Sequence[dict[str, float]], target: str) -> str:
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
