"""Templates of pages of one file, without scripts, over one set of parts: `templates/parts.html`."""

from __future__ import annotations

from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from htaf._ground.console import visible

TEMPLATES = Path(__file__).with_name("templates")


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
    made.filters["comma"] = "{:,}".format
    return made


def _without_hidden(value: object) -> object:
    return visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value
