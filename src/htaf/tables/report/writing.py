"""Write the report of a run: report.json, its figures, and report.html, the page: one file of HTML, without scripts,
from the figures alone. Templates say what stands where."""

from __future__ import annotations

import io
import math
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from hashlib import sha256
from html import escape
from pathlib import Path
from typing import Any, cast

import matplotlib as mpl
import numpy as np
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from htaf._ground.compat import free_start_method
from htaf._ground.console import direction, visible
from htaf._ground.files import parse_json, to_json, write_atomic
from htaf.data import stored
from htaf.data.reading import DataError
from htaf.data.tabular import Table
from htaf.tables.report.contents import BASELINES, FORMAT, NAMES, Baseline, Measured, contents, fit_baselines
from htaf.training.distributed import thread_count
from htaf.training.families import make_recipe
from htaf.training.problems import class_weights, row_weights
from htaf.training.recipe import TableData
from htaf.training.runs import Run, locked
from htaf.training.runs.metrics import LOWER_IS_BETTER
from htaf.training.runs.run import table_rows

PAGE, VALUES = "report.html", "report.json"
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
TEMPLATES = Path(__file__).with_name("templates")
LABELLED = 30  # classes whose confusion matrix is shown whole
SHOWN = 15  # columns by importance before the rest is folded away
PARTS = ("train", "validation", "test")
METHODS = {"htaf": "HTAF", "ste": "straight-through", "ss": "scaled sigmoid", "relu": "ReLU"}


def write_report(
    run: Run, table: Table | None = None, *, baselines: bool = True, progress: Callable[[str], Any] = lambda name: None
) -> dict[str, Any]:
    """Write report.json and report.html into the folder of a finished run of a table.

    The same run gives the same bytes: baselines, with the seconds that they took, are taken from a report of the same
    weights that is there.

    Args:
        run: finished. table: the one that it was trained on; None: `run.data()`, which reads it.
        baselines: also those of `fit_baselines`.
        progress: called with the name of each baseline before it is fitted.

    Returns:
        The figures, as they stand in report.json.

    Raises:
        RunError: other data, a damaged run, or another process writes in its folder. DataError: a run of images.
            OSError: it cannot be written.
    """
    table = run.data() if table is None else table  # pyright: ignore[reportAssignmentType]
    if not isinstance(table, Table):
        raise DataError(f"expected a run of a table, {run.path} was trained on images")
    with locked(run.path, "another process writes in"), free_start_method(), thread_count(run.record["threads"]):
        measured, found = Measured.of(run, table), None
        if baselines:
            rows = vars(table_rows(run, table))
            used = {"train", *run.record["metrics"]["smooth"]}
            rows = {name: rows[name] for name in ("train", "validation", "test") if name in used}
            options = make_recipe(**run.record["recipe"]).data
            assert isinstance(options, TableData)
            train = rows["train"]
            found = kept_baselines(run) or fit_baselines(
                table,
                rows,
                measured.preprocessor,
                threads=run.record["threads"],
                progress=progress,
                weights=row_weights(table, train, class_weights(options, table, train)),
                beside=(measured.part, measured.drawn),
            )
        text = to_json(contents(run, table, measured, baselines=found))
        values = parse_json(text)  # in the order of the file, whether the record was read or has just been made
        write_atomic(run.path / VALUES, text)
        write_atomic(run.path / PAGE, page(values))
    return values


def has_report(run: Run) -> bool:
    """Say whether the folder has a report of this run, of these weights; the page is written last."""
    return own_values(run) is not None and (run.path / PAGE).is_file()


def own_values(run: Run) -> dict[str, Any] | None:
    """Read the figures in the folder; None where they are of other weights, damaged or not there."""
    try:
        values = parse_json((run.path / VALUES).read_bytes())
        own = (FORMAT, run.record["key"], run.record["model_sha256"])
        return values if (values["format"], values["key"], values["model_sha256"]) == own else None
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None


def kept_baselines(run: Run) -> list[Baseline]:
    """The baselines of a report that is in the folder; none where it is of other weights, damaged or without them."""
    values = own_values(run)
    try:
        return [] if values is None else [stored.read(Baseline, one, "") for one in values["baselines"] or ()]
    except (ValueError, TypeError, KeyError, AttributeError):
        return []


# ---- pictures, drawn by matplotlib as SVG inside a page, whose colours follow light and dark ----


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


# ---- the page ----


def templates(*folders: Path) -> Environment:
    """Find templates of pages in folders; they may use the parts and the page of this room.

    All text that they are given is escaped, and has nothing hidden in it.
    """
    made = Environment(
        loader=FileSystemLoader([*folders, TEMPLATES]),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_without_hidden,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {"comma": "{:,}".format, "percent": "{:.1%}".format, "signed": "{:+,}".format, "number": number}
    made.filters |= {"figure": _figure, "interval": _interval, "change": _change, "beside": _beside, "said": _said}
    made.filters |= {"ordered": _ordered, "named": lambda metric: NAMES.get(metric, metric), "short": short}
    return made


def _without_hidden(value: object) -> object:
    return visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def page(values: dict[str, Any]) -> str:
    """Write the page of a report.

    Args:
        values: of `htaf.tables.report.contents.contents`.

    Returns:
        HTML: the same text for the same values. All that comes from data is escaped.
    """
    of: dict[str, Any] = {"most": SHOWN, "labelled": LABELLED, "parts": PARTS, "methods": METHODS, "models": BASELINES}
    of |= {"effect": effect, "reliability": reliability, "spreads": spreads}
    return templates().get_template("run.html").render(values | of)


# ---- how figures are written ----


def _ordered(metrics: Iterable[str]) -> list[str]:
    """The names of metrics as `NAMES` orders them."""
    return sorted(metrics, key=lambda name: [*NAMES, name].index(name))


def _figure(value: float | None, metric: str, sign: str = "") -> str:
    """A metric as tables of the command show it; of a target with a small unit three significant digits."""
    if value is None:
        return "-"
    if abs(value) >= 1000:
        return f"{value:{sign},.1f}"
    small = 0 < abs(value) < 0.01 and metric in ("rmse", "mae") and not sign
    return f"{value:.3g}" if small else f"{0.0 if abs(value) < 5e-5 else value:{sign}.4f}"


def _gap(value: float, metric: str) -> str:
    """A difference, with its sign."""
    shown = _figure(value, metric, "+")
    return f"{value:+.2g}" if abs(value) >= 1e-9 and not shown.strip("+-0.") else shown


def _interval(found: dict[str, Any] | None, metric: str, sign: str = "", turned: bool = False) -> str:
    """The interval of a metric in words, "" where there is none; turned: with the other sign."""
    within = (found or {}).get(metric)
    within = within and ((-within[1], -within[0]) if turned else within)
    return " to ".join(_figure(bound, metric, sign) for bound in within or ())


def _change(exact: float | None, smooth: float | None, metric: str, same: str = "") -> str:
    """What the exact network differs by from the smooth one, and whether it is better; same: the word for neither."""
    if exact is None or smooth is None:
        return "-"
    gap = exact - smooth
    return f"{_gap(gap, metric)} {direction(gap, lower_is_better=metric in LOWER_IS_BETTER) or same}".strip()


def _beside(own: float | None, other: float | None, metric: str) -> str:
    """Whether a network is better than another model, and by how much."""
    if own is None or other is None:
        return "-"
    word = direction(own - other, lower_is_better=metric in LOWER_IS_BETTER)
    return f"{word} by {_gap(own - other, metric)[1:]}" if word else "the same"


def _said(value: Any) -> str:
    """A field of a recipe."""
    if isinstance(value, Sequence) and not isinstance(value, str):
        return " ".join(map(_said, value))
    return "-" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
