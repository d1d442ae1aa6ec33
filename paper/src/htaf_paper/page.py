"""The page of the paper's claims, tables and figures: one file of HTML without scripts; photographs lie beside it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from htaf._ground.console import visible
from htaf.tables.report.writing import templates
from htaf_paper import drawing, outcomes
from htaf_paper.outcomes import Column, Item, Measured, judged
from htaf_paper.protocol import ABOUT_SCALES, Panel, Verdict

SHORT_COMMIT = 12
SHORT = 22  # letters of a cell that is not broken into lines
ABOUT_PAPER = (
    "The paper proposes an activation, HTAF(x) = sigmoid(alpha1 tanh(alpha0 x)). It is trained by ordinary gradients; "
    "then the exact step takes its place, and every activation is 0 or 1.",
    "It claims that its gradients vanish less than those of a steep sigmoid, that little accuracy is lost when the "
    "step takes its place, that networks trained so are level with or ahead of straight-through estimators on tables, "
    "images and language, and that their bits can be read as concepts.",
)
CITED = (
    "Park, Kim, Lee, Park, Kong and Kim, A Composite Activation Function for Learning Stable Binary Representations "
    "(2026)."
)
ABOUT_VERDICTS: Mapping[Verdict, str] = {
    "holds": "by the rule that stands beside the claim",
    "does not hold": "by the same rule; the evidence says how far off it is",
    "not settled": "the interval of what was measured holds both answers",
    "not testable at this scale": "it was computed, but too small to say anything about the claim",
    "not run": "nothing was computed; the command that would do it is given",
}
ABOUT_CHANCE = (
    "Each rule is applied to its claim alone. No correction is made for their number: of 20 verdicts that an interval "
    "of 95% decides, about one may be wrong by chance. A verdict at a scale other than full says nothing about the "
    "paper's own figures; it says whether their order is found again."
)
SIGNS: Mapping[Verdict, str] = {
    "holds": "good", "does not hold": "bad", "not settled": "open", "not testable at this scale": "small",
    "not run": "none",
}  # fmt: skip


def page(items: Sequence[Item], names: Mapping[tuple[str, str], str], command: str) -> str:
    """The page.

    Args:
        items: of `htaf_paper.outcomes.read_items`. names: of the files of drawings, of
            `htaf_paper.outcomes.figure_names`. command: that writes the report.

    Returns:
        HTML: the same text for the same outcomes. All that comes from files is escaped.
    """
    found = templates(Path(__file__).with_name("templates"))
    of_figures: dict[str, Any] = {"columns": outcomes.columns, "table_notes": outcomes.notes}
    of_words = {"many": _many, "prose": prose, "sentence": outcomes.sentence, "spoken": outcomes.spoken, "said": _said}
    of_cells = {"commit": commit, "commits": _commits, "versions": versions, "seconds": outcomes.seconds}
    found.filters |= of_figures | of_words | of_cells | {"counted": outcomes.counted}
    found.tests["short"] = _is_short
    return found.get_template("paper.html").render(
        items=items,
        names=names,
        command=command,
        claims=judged(items),
        tiles=_tiles(items),
        errata=_errata(items),
        known=[one for item in items if item.shown for one in item.shown.measured],
        inline=_inline,
        signs=SIGNS,
        cited=CITED,
        about_paper=ABOUT_PAPER,
        about_scales=ABOUT_SCALES,
        about_verdicts=ABOUT_VERDICTS,
        about_chance=ABOUT_CHANCE,
    )


def _tiles(items: Sequence[Item]) -> list[tuple[str, int, str, str]]:
    """Of each verdict: it, how many claims have it, its sign, and at which scales they are."""
    by_scale = {scale: outcomes.counted(some) for scale, some in judged(items).items()}
    found = []
    for verdict, sign in SIGNS.items():
        at = [f"{of[verdict]} at {scale}" for scale, of in by_scale.items() if of[verdict]]
        found.append((verdict, sum(of[verdict] for of in by_scale.values()), sign, ", ".join(at)))
    return found


def _many(count: int, one: str, many: str = "") -> str:
    return f"{count} {one if count == 1 else many or one + 's'}"


def prose(line: str) -> Markup:
    """Text for HTML; what stands between two backticks is code."""
    parts = re.split(r"(`[^`\n]+`)", visible(line))
    code = Markup("<code>{}</code>")
    return Markup().join(code.format(part[1:-1]) if place % 2 else part for place, part in enumerate(parts))


def _said(item: Item) -> str:
    """The verdicts on the claims of an item that is shown, in words."""
    assert item.shown is not None
    counts = {
        "" if scale == item.shown.scale else f" at {scale}": outcomes.spoken(Counter(one.verdict for one in some))
        for scale, some in item.claims.items()
    }
    said = "; ".join(f"{count}{at}" for at, count in counts.items()) or "no claim"
    return said if item.shown.status == "finished" else f"{item.shown.status}; {said}"


def _is_short(column: Column) -> bool:
    """Whether no cell of a column is broken into lines."""
    return all(len(some[0]) <= SHORT for some in column.cells)


def _inline(panel: Panel, prefix: str) -> Markup:
    return Markup(drawing.inline(panel, prefix))


def commit(found: str | None) -> str:
    """A commit for people."""
    return "unknown" if found is None else re.sub(rf"^([0-9a-f]{{{SHORT_COMMIT}}})[0-9a-f]+", r"\1", found)


def _commits(measured: Iterable[Measured]) -> list[str]:
    return sorted({commit(one.commit) for one in measured})


def versions(measured: Measured) -> str:
    """Of packages, in a line."""
    return ", ".join(f"{name} {number}" for name, number in sorted((measured.versions or {}).items())) or "unknown"


def _errata(items: Sequence[Item]) -> dict[str, str]:
    """Each error of the paper, and the first item that shows it."""
    found: dict[str, str] = {}
    for item in items:
        for line in item.shown.outcome.errata if item.shown else ():
            found.setdefault(line, item.id)
    return found
