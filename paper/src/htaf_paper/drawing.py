"""Figures of the paper, drawn from data: SVG and PNG files, and panels inside a page that follow light and dark.

The same data give the same bytes with the same matplotlib. Colours are those of Okabe and Ito, which people with any
kind of colour vision tell apart; series differ by line style, marker or hatching too.
"""

from __future__ import annotations

import io
import itertools
import re
from html import escape
from typing import Any, cast

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure, SubFigure
from matplotlib.ticker import FuncFormatter, NullFormatter

from htaf._ground.console import visible
from htaf.tables.report.writing import INK, MUTED, NO_METADATA, for_page, styled
from htaf_paper.protocol import Drawing, Panel, Series

# Okabe and Ito (2008); yellow is left out, as it is hardly seen on white
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#000000", "#E69F00", "#56B4E9")
LINES = ("-", "--", "-.", ":", (0, (6, 1.5, 1, 1.5, 1, 1.5)), (0, (8, 2)), (0, (2, 1)))
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
HATCHES = ("", "///", "...", "xxx", "\\\\\\", "++", "oo")
GROUND = "#ffffff"
FEW = 40  # points of a line, up to which each has a marker
WIDTH, HEIGHT, LINE = 4.6, 3.0, 0.23  # inches: of a panel, and of a line of its legend
LETTER = 0.08  # inches: the mean width of one in a legend
SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
OWN_STYLE: dict[str, Any] = {  # beside that of the pictures of a run's report
    "font.size": 11.5, "axes.titlesize": 12, "axes.labelsize": 11.5, "legend.fontsize": 11, "legend.frameon": False,
    "xtick.labelsize": 10.5, "ytick.labelsize": 10.5, "lines.linewidth": 1.9, "lines.markersize": 5.5,
    "hatch.linewidth": 0.7, "savefig.facecolor": GROUND, "errorbar.capsize": 2.5,
    "figure.constrained_layout.w_pad": 0.07, "figure.constrained_layout.h_pad": 0.05,
}  # fmt: skip


def files(drawing: Drawing) -> tuple[bytes, bytes]:
    """All panels of a drawing on white, as an SVG and a PNG."""
    columns = min(drawing.columns, len(drawing.panels))
    rows = -(-len(drawing.panels) // columns)
    with styled(OWN_STYLE):
        height = max(map(_height, drawing.panels))
        figure = Figure((columns * WIDTH, rows * height), layout="constrained")
        FigureCanvasAgg(figure)
        parts = list(figure.subfigures(rows, columns, squeeze=False).flat)
        for part, panel in zip(parts, drawing.panels, strict=False):
            _draw(part, panel)
        vector, pixels = io.BytesIO(), io.BytesIO()
        figure.savefig(vector, format="svg", metadata=cast(Any, NO_METADATA))
        figure.savefig(pixels, format="png", dpi=144, metadata={"Software": None})
    label = f"<title>{escape(visible(drawing.title))}</title><desc>{escape(visible(drawing.alternative))}</desc>"
    text = re.sub(r"(<svg [^>]*>)", lambda found: f"{found[1]}\n {label}", vector.getvalue().decode(), count=1)
    return text.encode(), pixels.getvalue()


def inline(panel: Panel, prefix: str) -> str:
    """A panel as an element of a page, with the page's colours and no background.

    Args:
        prefix: of ids in it, which must differ between the panels of a page.
    """
    with styled(OWN_STYLE):
        figure = Figure((WIDTH, _height(panel)), layout="constrained")
        FigureCanvasAgg(figure)
        _draw(figure, panel)
        return for_page(figure, prefix, 'aria-hidden="true"')


def _legend_columns(panel: Panel) -> int:
    widest = max(len(one.label) for one in panel.series) * LETTER + 0.7
    return max(1, min(len(panel.series), int((WIDTH - 0.2) / widest)))


def _height(panel: Panel) -> float:
    """Inches: of axes that are always as high, and of what is below."""
    lines = -(-len(panel.series) // _legend_columns(panel)) if len(panel.series) > 1 else 0
    return HEIGHT + lines * LINE + (0.45 if _turned(panel) else 0.0)


def _turned(panel: Panel) -> bool:
    """Whether names of the x axis stand at an angle, as they do not fit side by side."""
    return max(map(len, panel.ticks), default=0) * LETTER > (WIDTH - 0.8) / max(1, len(panel.ticks))


def _draw(figure: Figure | SubFigure, panel: Panel) -> None:
    axes = figure.subplots()
    if panel.x_log:
        axes.set_xscale("log", nonpositive="mask")
    if panel.y_log:
        axes.set_yscale("log", nonpositive="mask")
    bars = [one for one in panel.series if one.style == "bars"]
    handles = []
    looks = zip(itertools.cycle(COLOURS), itertools.cycle(LINES), itertools.cycle(MARKERS), itertools.cycle(HATCHES))
    for series, look in zip(panel.series, looks, strict=False):
        place = next((i for i, one in enumerate(bars) if one is series), 0)
        handles.append(_series(axes, series, look, place, len(bars)))
    if panel.hline is not None:
        axes.axhline(panel.hline, color=MUTED, linewidth=1.2, linestyle=(0, (4, 3)), zorder=1.5)
    axes.set_title(visible(panel.title), loc="left", wrap=True)
    axes.set_xlabel(visible(panel.x))
    axes.set_ylabel(visible(panel.y))
    if panel.ticks:
        turned: dict[str, Any] = {"rotation": 35, "ha": "right", "rotation_mode": "anchor"} if _turned(panel) else {}
        axes.set_xticks(range(len(panel.ticks)), [visible(name) for name in panel.ticks], **turned)
        axes.grid(visible=False, axis="x")
    for axis, logarithmic in ((axes.xaxis, panel.x_log), (axes.yaxis, panel.y_log)):
        if logarithmic:
            low, high = axis.get_view_interval()
            axis.set_major_formatter(FuncFormatter(_power))
            axis.set_minor_formatter(FuncFormatter(_plain) if high < 30 * low else NullFormatter())
    if len(panel.series) > 1:
        legend = figure.legend(
            handles, [" "] * len(handles), loc="outside lower center", ncols=_legend_columns(panel), handlelength=2.6
        )
        for text, one in zip(legend.get_texts(), panel.series, strict=True):
            text.set_text(visible(one.label))  # matplotlib hides labels that begin with _


def _series(axes: Axes, series: Series, look: tuple[Any, ...], place: int, bars: int) -> Any:
    """Draw a series; gives what stands for it in the legend. place: among the `bars` series of bars."""
    colour, line, marker, hatch = look
    x, y, error = list(series.x), list(series.y), list(series.error) or None
    if series.style == "steps":
        return axes.stairs(y, x, color=colour, linestyle=line, linewidth=1.9)
    if series.style == "bars":
        gap = min((b - a for a, b in itertools.pairwise(sorted(set(x))) if b > a), default=1.0)
        width = 0.82 * gap / bars
        at = [value + (place - (bars - 1) / 2) * width for value in x]
        look_of_error = {"ecolor": INK, "elinewidth": 1.1}
        return axes.bar(
            at, y, width * 0.94, yerr=error, color=colour, hatch=hatch, edgecolor=GROUND, linewidth=0.0,
            error_kw=look_of_error,
        )  # fmt: skip
    kind: dict[str, Any] = {"color": colour, "markerfacecolor": colour, "markeredgewidth": 0.0}
    if series.style == "points":
        kind |= {"linestyle": "none", "marker": marker}
    else:
        kind |= {"linestyle": line, "marker": marker if len(x) <= FEW else ""}
    if error:
        return axes.errorbar(x, y, yerr=error, elinewidth=1.1, **kind)
    return axes.plot(x, y, **kind)[0]


def _power(value: float, _: Any = None) -> str:
    """1, 10, 100, 1000 as they are, other powers as 10⁻⁶."""
    if 0.01 <= value <= 1000:
        return f"{value:g}"
    mantissa, _, power = f"{value:.0e}".partition("e")
    return ("" if mantissa == "1" else f"{mantissa}·") + f"10{str(int(power)).translate(SUPERSCRIPTS)}"


def _plain(value: float, _: Any = None) -> str:
    """2, 3 and 5 between powers, of an axis with few."""
    return _power(value) if f"{value:.0e}"[0] in "235" else ""
