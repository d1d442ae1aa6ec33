"""Small pictures as SVG inside a page: colours come from its style sheet, so that they follow light and dark."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from markupsafe import Markup

from htaf.report.parts import templates

WIDTH, HEIGHT = 400, 250
LEFT, RIGHT, TOP, BOTTOM = 52, 20, 12, 40
WIDE_LEFT, ROW = 130, 24  # of a picture with names of rows
WIDE = 20.0  # largest over smallest loss, from which the axis is logarithmic


def number(value: float | None) -> str:
    """A number for people: four significant digits; "-" for none."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if 10_000 <= abs(value) < 1e9 else f"{value:.4g}"


def short(name: str, most: int = 34) -> str:
    """A name that fits beside a picture."""
    return name if len(name) <= most else name[: most - 1] + "…"


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
        dated: the x axis is days since 1970.
        rows: names of places 0, 1, ... down the picture, in place of the y axis.
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
        dated: bool = False,
        rows: Sequence[str] = (),
    ) -> None:
        self.x, self.log, self.whole, self.dated, self.rows = _wider(x), logarithmic, whole, dated, rows
        self.left = WIDE_LEFT if rows else LEFT
        self.height = TOP + ROW * len(rows) + BOTTOM if rows else HEIGHT
        self.y = _wider((math.log10(y[0]), math.log10(y[1])) if logarithmic else y)
        self.names, self.alternative = names, alternative
        self.marks: list[Mark] = []

    def across(self, value: float) -> float:
        """The place of a value on the x axis."""
        return self.left + _share(value, self.x) * (WIDTH - self.left - RIGHT)

    def up(self, value: float) -> float:
        """The place of a value on the y axis."""
        if self.rows:
            return TOP + ROW * (value + 0.5)
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

    def band(self, points: Sequence[tuple[float, float, float]], kind: str) -> None:
        """What lies between a lower and an upper line; points: x, low, high."""
        around = [(x, low) for x, low, _ in points] + [(x, high) for x, _, high in reversed(points)]
        self._mark(
            "polygon", f"band {kind}", points=" ".join(f"{_at(self.across(x))},{_at(self.up(y))}" for x, y in around)
        )

    def dot(self, x: float, y: float, kind: str, radius: float = 4.0) -> None:
        """A dot."""
        self._mark("circle", f"dot {kind}", cx=_at(self.across(x)), cy=_at(self.up(y)), r=f"{radius:.1f}")

    def upright(self, x: float, low: float, high: float, kind: str) -> None:
        """A line straight up."""
        self._line(self.across(x), self.up(low), self.up(high), f"line {kind}")

    def level(self, y: float, low: float, high: float, kind: str) -> None:
        """A line straight across."""
        at = {"x1": _at(self.across(low)), "x2": _at(self.across(high)), "y1": _at(self.up(y)), "y2": _at(self.up(y))}
        self._mark("line", f"line {kind}", **at)

    def rug(self, values: Sequence[float]) -> None:
        """Short lines on the x axis, of the values that lie on it."""
        for x in values:
            if self.x[0] <= x <= self.x[1]:
                self._line(self.across(x), HEIGHT - BOTTOM, HEIGHT - BOTTOM - 6, "line rug")

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
        places = [(float(place), short(name, 18)) for place, name in enumerate(self.rows)]
        for value, words in places or [(value, number(value)) for value in self._upward()]:
            y = self.up(value)
            at = {"x1": self.left, "x2": WIDTH - RIGHT, "y1": _at(y), "y2": _at(y)}
            found.append(("line", {"class": "grid"} | at, ""))
            found.append(("text", {"x": self.left - 6, "y": _at(y + 4), "text-anchor": "end"}, words))
        middle, half = {"text-anchor": "middle"}, (TOP + self.height - BOTTOM) / 2
        for value, words in self._along():
            at = {"x": _at(self.across(value)), "y": self.height - BOTTOM + 16, "text-anchor": "middle"}
            if self.across(value) + 3 * len(words) > WIDTH:
                at |= {"x": WIDTH, "text-anchor": "end"}
            found.append(("text", at, words))
        centre = {"x": _at((self.left + WIDTH - RIGHT) / 2), "y": self.height - 5}
        found.append(("text", centre | middle, self.names[0]))
        turned = {"transform": f"rotate(-90 11 {half:.0f})", "x": 11, "y": f"{half:.0f}"}
        found.append(("text", turned | middle, self.names[1]))
        drawn = (
            templates()
            .get_template("plot.svg")
            .render(width=WIDTH, height=self.height, alternative=self.alternative, marks=[*found, *self.marks])
        )
        return Markup(drawn)

    def _along(self) -> list[tuple[float, str]]:
        """The ticks of the x axis, with their words."""
        if self.dated:
            days = ticks(*self.x, 3)
            return [(day, str(np.datetime64(math.floor(day), "D"))) for day in days]
        return [(value, number(value)) for value in ticks(*self.x) if not self.whole or value % 1 == 0]

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


def losses(epochs: Sequence[dict[str, float | None]], best: float, lines: dict[str, str]) -> Markup:
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
    plot.whole_upright(min(best, last), "kept")
    for name, kind in lines.items():
        plot.line([(float(row["epoch"] or 0), row[name]) for row in epochs], kind)
    return plot.svg()


def reliability(bins: Sequence[dict[str, float]], names: tuple[str, str]) -> Markup:
    """Predicted against observed shares; the larger a dot, the more rows, or the more weight."""
    most = max(one["share"] for one in bins)
    told = ", ".join(f"{one['predicted']:.0%} predicted {one['observed']:.0%} observed" for one in bins)
    plot = Plot((0.0, 1.0), (0.0, 1.0), names, f"Reliability by bin: {told}.")
    plot.line([(0.0, 0.0), (1.0, 1.0)], "ideal")
    plot.line([(one["predicted"], one["observed"]) for one in bins], "exact")
    for one in bins:
        plot.dot(one["predicted"], one["observed"], "exact", 2.5 + 5.5 * math.sqrt(one["share"] / most))
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


def effect(found: dict[str, Any], outputs: Sequence[str], target: str) -> Markup:
    """The prediction over the values of a column, see `htaf.rules.Effect`: of one output with the middle 80% of the
    rows, of several a line each; outputs: their names."""
    points = [point for point in found["points"] if point["value"] != ""]
    by_name = found["kind"] == "category" or len(points) == 1  # one number: a flag, beside its blanks
    points = found["points"] if by_name else points
    alone = len(outputs) == 1
    low = min(min(point["low" if alone else "mean"]) for point in points)
    high = max(max(point["high" if alone else "mean"]) for point in points)
    first, last = points[0], points[-1]
    ends = f"{number(first['mean'][0])} at {first['label']}, {number(last['mean'][0])} at {last['label']}"
    said = f"{outputs[0] if not alone else target} over {found['column']}: {ends}."
    if by_name:
        room = 0.04 * (high - low)
        plot = Plot(
            (low - room, high + room), (0.0, 1.0), (target, ""), said, rows=[point["label"] for point in points]
        )
        for place, point in enumerate(points):
            for k, mean in enumerate(point["mean"]):
                if alone:
                    plot.level(place, point["low"][k], point["high"][k], "spread")
                plot.dot(mean, place, "exact" if alone else f"c{k}")
        return plot.svg()
    dated = found["kind"] == "date"
    plot = Plot((first["value"], last["value"]), (low, high), (short(found["column"]), target), said, dated=dated)
    if alone:
        plot.band([(p["value"], p["low"][0], p["high"][0]) for p in points], "exact")
    plot.rug(found["tenths"])
    for k in range(len(outputs)):
        plot.line([(p["value"], p["mean"][k]) for p in points], "exact" if alone else f"c{k}")
    return plot.svg()


def rates(curves: Sequence[dict[str, Any]], names: Sequence[str], kind: str, own: tuple[float, float] | None) -> Markup:
    """ROC, kind "roc", or precision over recall, kind "precision"; own: the point of the run's threshold."""
    axes = (
        ("share of the others taken for it", "share found") if kind == "roc" else ("recall, share found", "precision")
    )
    figure = "auroc" if kind == "roc" else "average_precision"
    what = "ROC" if kind == "roc" else "Precision and recall"
    area = "area" if kind == "roc" else "average precision"
    said = "; ".join(f"{name} {area} {one[figure]:.3f}" for one, name in zip(curves, names, strict=True))
    plot = Plot((0.0, 1.0), (0.0, 1.0), axes, f"{what}: {said}.")
    if kind == "roc":
        plot.line([(0.0, 0.0), (1.0, 1.0)], "ideal")
    for k, one in enumerate(curves):
        plot.line([(x, y) for x, y in one[kind]], "exact" if len(curves) == 1 else f"c{k}")
    if own is not None:
        plot.dot(*own, "smooth", 5)
    return plot.svg()


def scatter(points: Sequence[Sequence[float]], target: str) -> Markup:
    """Predictions and true values; points: [prediction, true value]."""
    low, high = min(map(min, points)), max(map(max, points))
    said = f"True {target} over predicted, {len(points)} rows from {number(low)} to {number(high)}; equal on the line."
    plot = Plot((low, high), (low, high), (f"predicted {target}", f"true {target}"), said)
    plot.line([(plot.x[0], plot.x[0]), (plot.x[1], plot.x[1])], "ideal")
    for x, y in points:
        plot.dot(x, y, "exact faint", 2.5)
    return plot.svg()
