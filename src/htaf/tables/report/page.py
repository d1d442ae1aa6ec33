"""The page of a report: one file of HTML, without scripts, from the figures alone; templates say what stands where."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from htaf._ground.console import direction, visible
from htaf.tables.report import drawing
from htaf.tables.report.contents import BASELINES, NAMES
from htaf.tables.report.drawing import number, short
from htaf.training.runs.metrics import LOWER_IS_BETTER

TEMPLATES = Path(__file__).with_name("templates")
LABELLED = 30  # classes whose confusion matrix is shown whole
SHOWN = 15  # columns by importance before the rest is folded away
PARTS = ("train", "validation", "test")
METHODS = {"htaf": "HTAF", "ste": "straight-through", "ss": "scaled sigmoid", "relu": "ReLU"}


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
    return templates().get_template("run.html").render(values | of, drawing=drawing)


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
