"""The report of one study: what was done, tables and figures, as Markdown."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from htaf._ground.files import write_atomic
from htaf_paper import drawing
from htaf_paper.protocol import Outcome, Series
from htaf_paper.summary import escaped, table_lines

REPORT, FIGURES = "report.md", "figures"


def text_of(title: str, outcome: Outcome) -> str:
    """The report as Markdown: notes, tables, figures."""
    lines = [f"# {escaped(title)}", ""]
    for note in outcome.notes:
        lines += [escaped(note), ""]
    for table in outcome.tables:
        lines += table_lines(table)
    for one in outcome.drawings:
        lines += [f"![{escaped(one.alternative)}]({FIGURES}/{one.name}.svg)", "", f"**{escaped(one.title)}.**", ""]
    return "\n".join(lines).rstrip() + "\n"


def write(out: Path, title: str, outcome: Outcome) -> str:
    """Write report.md and figures/NAME.svg into a folder; the text."""
    text = text_of(title, outcome)
    for one in outcome.drawings:
        write_atomic(out / FIGURES / f"{one.name}.svg", drawing.files(one)[0])
    write_atomic(out / REPORT, text)
    return text


def spread(values: Iterable[float | None], digits: int = 1, *, times: float = 1.0) -> str:
    """Mean ± standard deviation of the values that are known; "-" of none."""
    known = [times * value for value in values if value is not None and value == value]
    if not known:
        return "-"
    return f"{fmean(known):.{digits}f} ± {stdev(known) if len(known) > 1 else 0:.{digits}f}"


def line(
    label: str, xs: Sequence[float], values: Callable[[float], Iterable[float | None]], *, times: float = 1.0
) -> Series:
    """Means with standard deviations over xs; values: of one x, which is left out where none is known."""
    points = [(x, [times * value for value in values(x) if value is not None]) for x in xs]
    points = [(x, found) for x, found in points if found]
    means = tuple(fmean(found) for _, found in points)
    errors = tuple(stdev(found) if len(found) > 1 else 0.0 for _, found in points)
    return Series(label, tuple(x for x, _ in points), means, "line", errors)


def levels(records: Sequence[dict[str, Any]], name: str) -> list[Any]:
    """The values of a field over all records, ascending."""
    return sorted({record[name] for record in records})
