"""Pictures of a report, drawn by matplotlib as SVG inside a page, whose colours follow light and dark."""

from __future__ import annotations

import io
import math
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from hashlib import sha256
from html import escape
from typing import Any, cast

import matplotlib as mpl
import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from htaf._ground.console import visible

INK, MUTED, GRID = "#1d1f1e", "#5f6361", "#e4e0d8"
ACCENT, ORANGE, BLUE, BAD, GOOD = "#0b6763", "#b9500f", "#0b67a0", "#a83a1c", "#1b6b3a"
# in a page: colours of its style sheet
THEME = {
    INK: "var(--ink)", MUTED: "var(--muted)", GRID: "var(--line)", "#000000": "var(--ink)", ACCENT: "var(--accent)",
    ORANGE: "var(--orange)", BLUE: "var(--blue)", BAD: "var(--bad)", GOOD: "var(--good)",
}  # fmt: skip
STYLE: dict[str, Any] = {
    "svg.hashsalt": "htaf", "svg.fonttype": "none", "text.parse_math": False, "axes.unicode_minus": False,
    "text.color": INK, "axes.labelcolor": INK, "axes.titlecolor": INK, "axes.edgecolor": MUTED, "xtick.color": MUTED,
    "ytick.color": MUTED, "grid.color": GRID, "grid.linewidth": 0.8, "axes.grid": True, "axes.axisbelow": True,
    "axes.spines.top": False, "axes.spines.right": False, "lines.linewidth": 1.6, "figure.facecolor": "none",
    "axes.facecolor": "none", "figure.dpi": 72,
}  # fmt: skip
NO_METADATA = dict.fromkeys(("Date", "Creator", "Format", "Type"))
WIDTH, HEIGHT, ROW = 4.6, 2.9, 0.3  # inches: of a picture, and of a row of one with names of rows
LOOKS = {  # by the class of a line, as in the legend of the page: colour and dashes
    "exact": (ORANGE, "-"), "c0": (ACCENT, "-"), "c1": (ORANGE, "--"), "c2": (BLUE, ":"), "c3": (MUTED, "-"),
    "c4": (BAD, "--"), "c5": (GOOD, ":"),
}  # fmt: skip
IDEAL: dict[str, Any] = {"color": MUTED, "linewidth": 0.9, "linestyle": (0, (4, 4))}
LARGEST = 1e100  # farther values are drawn there: the width of an axis must be a float too


def number(value: float | None) -> str:
    """Write a number for people: four significant digits; "-" for none."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if 10_000 <= abs(value) < 1e9 else f"{value:.4g}"


def short(name: str, most: int = 34) -> str:
    """Shorten a name so that it fits beside a picture."""
    return name if len(name) <= most else name[: most - 1] + "…"


@contextmanager
def styled(style: dict[str, Any] | None = None) -> Iterator[None]:
    """Draw with nobody's settings of matplotlib but ours; letters that its font lacks are no warning.

    style: settings beside `STYLE`.
    """
    with mpl.rc_context(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        mpl.rcdefaults()
        mpl.rcParams.update(cast(Any, STYLE | (style or {})))
        yield


def for_page(figure: Figure, prefix: str, attributes: str) -> str:
    """Write a figure as an SVG element of a page: no header, no background, the page's fonts and colours.

    Args:
        prefix: of ids in it, which must differ between the figures of a page.
        attributes: of the element, such as aria-hidden="true".
    """
    vector = io.BytesIO()
    figure.savefig(vector, format="svg", transparent=True, metadata=cast(Any, NO_METADATA))
    text = vector.getvalue().decode()
    text = text[text.index("<svg ") :].rstrip()
    text = re.sub(r"\s*<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r"\s*<!--.*?-->", "", text, flags=re.DOTALL)
    box = re.search(r'viewBox="[^"]*"', text)
    text = re.sub(r"<svg [^>]*>", lambda _: f"<svg {box[0] if box else ''} {attributes}>", text, count=1)
    used = set(re.findall(r'(?:url\(#|href="#)([^")]+)', text))
    text = re.sub(r' id="([^"]+)"', lambda m: f' id="{prefix}-{m[1]}"' if m[1] in used else "", text)
    text = re.sub(r'(url\(#|href="#)', rf"\g<1>{prefix}-", text).replace("xlink:href", "href")
    text = re.sub(r"\s*<defs>\s*<style[^>]*>.*?</style>\s*</defs>", "", text, count=1, flags=re.DOTALL)
    text = re.sub(r"font-family: [^;\"]*;? ?", "", text)
    text = re.sub(r' d="[^"]*"', lambda m: re.sub(r"(\.\d\d)\d+", r"\1", m[0]).replace(" \n", "\n"), text)
    for colour, name in THEME.items():
        text = re.sub(re.escape(colour), name, text, flags=re.IGNORECASE)
    return text


def _axes(x: str, y: str, height: float = HEIGHT) -> tuple[Figure, Axes]:
    """A figure, and its axes with these names."""
    figure = Figure((WIDTH, height), layout="constrained")
    axes = figure.subplots()
    axes.set_xlabel(visible(x))
    axes.set_ylabel(visible(y))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(5))
        axis.set_major_formatter(FuncFormatter(lambda value, _: number(value)))
    return figure, axes


def _svg(figure: Figure, alternative: str) -> Markup:
    """The picture as an element, with what it shows in words for those who do not see it."""
    words = escape(visible(alternative))
    prefix = f"p{sha256(words.encode()).hexdigest()[:8]}"
    return Markup(for_page(figure, prefix, f'role="img" aria-label="{words}"'))


def _line(axes: Axes, points: Sequence[tuple[float, float]], kind: str, *, steps: bool = False) -> None:
    """A line through points, or steps at them; a single point is a dot."""
    x, y = (_drawn([point[k] for point in points]) for k in (0, 1))
    colour, dashes = LOOKS[kind]
    dot, style = "o" if len(points) == 1 else "", "steps-post" if steps else "default"
    axes.plot(x, y, color=colour, linestyle=dashes, marker=dot, markersize=4, drawstyle=style)


def _drawn(values: Sequence[float]) -> np.ndarray:
    """The values as an axis takes them."""
    return np.clip(np.array(values, dtype=np.float64), -LARGEST, LARGEST)


def reliability(bins: Sequence[dict[str, float]], names: tuple[str, str]) -> Markup:
    """Predicted against observed shares; the larger a dot, the more rows, or the more weight."""
    most = max(one["share"] for one in bins)
    told = ", ".join(f"{one['predicted']:.0%} predicted {one['observed']:.0%} observed" for one in bins)
    with styled():
        figure, axes = _axes(*names)
        axes.plot([0, 1], [0, 1], **IDEAL)
        x, y = ([one[name] for one in bins] for name in ("predicted", "observed"))
        _line(axes, list(zip(x, y, strict=True)), "exact")
        axes.scatter(x, y, [(4 + 9 * math.sqrt(one["share"] / most)) ** 2 for one in bins], color=ORANGE, linewidth=0)
        return _svg(figure, f"Reliability by bin: {told}.")


def spreads(bins: Sequence[dict[str, float]], target: str) -> Markup:
    """Draw residuals by prediction: the middle 80% as a line, the mean as a dot."""
    first, last = bins[0], bins[-1]
    told = f"means from {number(first['mean'])} at {number(first['predicted'])} to {number(last['mean'])} at "
    x, mean, low, high = (_drawn([one[name] for one in bins]) for name in ("predicted", "mean", "q10", "q90"))
    with styled():
        figure, axes = _axes(f"predicted {target}", "true minus predicted")
        axes.axhline(0, **IDEAL)
        axes.vlines(x, low, high, color=ORANGE, alpha=0.55)
        axes.plot(x, mean, "o", color=ORANGE, markersize=5)
        return _svg(figure, f"Residuals in {len(bins)} bins by prediction: {told}{number(last['predicted'])}.")


def effect(term: dict[str, Any], outputs: Sequence[str], target: str) -> Markup:
    """Draw what a term adds: steps over its numbers, from a little below the first to a little above the last one, or a
    dot a group of its texts.

    Args:
        term: of `htaf.tables.report.contents.whole_model`.
        outputs: their names. target: what the axis says.
    """
    is_number, alone = term["kind"] == "number", len(outputs) == 1
    levels = [one for one in term["levels"] if one["end"] is not None or not is_number]
    first, last = term["levels"][0], levels[-1]
    ends = f"{number(first['points'][0])} at {first['text']}, {number(last['points'][0])} at {last['text']}"
    said = f"{outputs[0] if not alone else target} over {term['name']}: {ends}."
    kinds = ["exact"] if alone else [f"c{k}" for k in range(len(outputs))]
    with styled():
        if not is_number:
            figure, axes = _axes(target, "", 0.7 + ROW * len(levels))
            places = range(len(levels))
            axes.set_yticks(places, [visible(short(one["text"], 18)) for one in levels])
            axes.set_ylim(len(levels) - 0.5, -0.5)
            for k, kind in enumerate(kinds):
                axes.plot(_drawn([one["points"][k] for one in levels]), places, "o", color=LOOKS[kind][0], markersize=5)
            return _svg(figure, said)
        figure, axes = _axes(short(term["name"]), target)
        low, high = levels[0]["end"], last["end"]
        edge = (high - low) / 10 or abs(low) / 10 or 1.0
        values = _drawn([low - edge, *(one["end"] for one in levels), high + edge])
        for k, kind in enumerate(kinds):
            steps = (one["points"][k] for one in (first, *levels, last))
            _line(axes, list(zip(values, steps, strict=True)), kind, steps=True)
        return _svg(figure, said)
