"""The report of the paper as Markdown, and its claims for other programs."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Mapping, Sequence
from typing import Any

from htaf._ground.console import visible
from htaf._ground.files import to_json
from htaf_paper import outcomes
from htaf_paper.outcomes import OUTCOMES, Item, judged, sentence
from htaf_paper.page import ABOUT_PAPER, CITED, commit, versions
from htaf_paper.protocol import ABOUT_SCALES, Claim, Table

FORMAT = 1
TITLE = "# Does it hold? The paper, claim by claim"
FIELDS: tuple[str, ...] = ("item", "scale", "place", "verdict", "claim", "evidence", "rule")


def escaped(text: object) -> str:
    """Text that Markdown shows as it is, on one line; what stands between two backticks is code."""
    parts = re.split(r"(`[^`\n]+`)", str(text))
    return "".join(code(part[1:-1]) if place % 2 else _plain(part) for place, part in enumerate(parts))


def _plain(text: str) -> str:
    """Text without any meaning in Markdown."""
    found = re.sub(r"([\\`*|~$])", r"\\\1", visible(text))
    found = re.sub(r"(?<!\w)_|_(?!\w)", r"\\_", found)
    found = found.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace("](", r"]\(")
    return re.sub(r"^((?:[+-]|#{1,6}|\d+[.)])(?=\s)|\[)", lambda m: f"{m[0][:-1]}\\{m[0][-1]}", found)


def code(text: str) -> str:
    """A command, as code: between more backticks than it has."""
    text = visible(text).replace("|", "\\|")
    ticks = "`" * (max(map(len, re.findall("`+", text)), default=0) + 1)
    pad = " " if "`" in text else ""
    return f"{ticks}{pad}{text}{pad}{ticks}"


def markdown(items: Sequence[Item], names: Mapping[tuple[str, str], str], command: str) -> str:
    """The report, as `htaf_paper.page.page` has it."""
    claims = judged(items)
    counts = outcomes.counted([one for some in claims.values() for one in some])
    missing = [item for item in items if item.shown is None]
    lines = [TITLE, "", escaped(CITED), "", *_paragraphs(ABOUT_PAPER)]
    lines += [
        f"**{outcomes.spoken(counts) or 'No claim was tested'}; items not run: {len(missing)} of {len(items)}.**",
        "",
    ]
    for scale, some in claims.items():
        lines += [f"## Claims at scale {scale}", "", f"Scale {scale}: {escaped(ABOUT_SCALES[scale])}.", ""]
        lines += _header("verdict", "claim", "place", "evidence", "shown in")
        for one in some:
            c = one.claim
            lines.append(
                _row(
                    f"**{c.verdict}**", *map(escaped, (c.text, c.place, c.evidence)), f"[{one.item.id}](#{one.item.id})"
                )
            )
        lines.append("")
    if missing:
        lines += ["## Not run", "", *_header("item", "in the paper", "state", "how to run it")]
        for item in missing:
            said = f" {escaped(item.message)}" if item.message else ""
            lines.append(_row(*map(escaped, (item.title, item.paper, item.reason)), code(item.command) + said))
        lines.append("")
    for item in items:
        lines += _item(item, names)
    errata = {line: item.id for item in reversed(items) if item.shown for line in item.shown.outcome.errata}
    if errata:
        lines += ["## All errors found in the paper", ""]
        ordered = dict.fromkeys(line for item in items if item.shown for line in item.shown.outcome.errata)
        lines += [f"- {escaped(sentence(line))} ([{errata[line]}](#{errata[line]}))" for line in ordered]
        lines.append("")
    lines += ["## How this report was made", "", f"From the outcomes in its folder alone, by {code(command)}.", ""]
    return "\n".join(lines)


def _paragraphs(lines: Sequence[str]) -> list[str]:
    return [part for line in lines for part in (escaped(line), "")]


def _header(*names: str) -> list[str]:
    return [_row(*names), _row(*("---" for _ in names))]


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def _item(item: Item, names: Mapping[tuple[str, str], str]) -> list[str]:
    read = item.shown
    if read is None:
        return []
    outcome = read.outcome
    lines = [f'<a id="{item.id}"></a>', "", f"## {escaped(item.title)}", ""]
    lines += [f"{escaped(sentence(item.paper))} Scale **{read.scale}**: {escaped(read.about)}.", ""]
    if read.status != "finished":
        lines += [f"**Not finished:** {escaped(read.message)}", ""]
    reported = item.claims.get(read.scale, ())
    lines += [*map(_claim, reported), ""] if reported else []
    for table in outcome.tables:
        lines += table_lines(table)
    for one in outcome.drawings:
        name = names[item.id, one.name]
        file = f"figures/{name}.{'svg' if one.picture is None else 'png'}"
        lines += [f"![{escaped(one.alternative).replace(']', chr(92) + ']')}]({file})", ""]
        lines += [f"**{escaped(one.title)}.** {escaped(one.alternative)}", ""]
    if outcome.missing:
        lines += ["Rows that were not run:", "", *_header("row", "state", "how to run it")]
        lines += [_row(escaped(row), escaped(reason), code(made)) for row, reason, made in outcome.missing]
        lines.append("")
    for title, some in (
        ("Notes", outcome.notes),
        ("Where this differs from the paper's protocol", outcome.deviations),
        ("Errors in the paper", outcome.errata),
    ):
        if some:
            lines += [f"{title}:", "", *(f"- {escaped(sentence(line))}" for line in some), ""]
    for other in item.smaller:
        lines += [f"### Tested at scale {other.scale} alone", "", escaped(sentence(other.about)), ""]
        lines += [*map(_claim, item.claims[other.scale]), ""]
        for table in other.outcome.tables:
            lines += table_lines(table)
    if item.others:
        lines += ["Other scales:", "", *_header("scale", "state", "claims", "command")]
        for other in item.others:
            said = f"{other.status}. {other.message}" if other.message else other.status
            lines.append(_row(other.scale, escaped(said), outcomes.spoken(other.counts()) or "-", code(other.command)))
        lines.append("")
    lines += [f"Measured by {code(read.command)}; data: [{OUTCOMES}]({OUTCOMES}).", ""]
    if read.measured:
        lines += _header("commit", "cells", "time", "device", "threads", "machine", "versions")
        for one in read.measured:
            threads = "-" if one.threads is None else str(one.threads)
            cells = (commit(one.commit), f"{one.cells:,}", outcomes.seconds(one.cpu_seconds), one.device, threads)
            lines.append(_row(*map(escaped, (*cells, one.platform or "unknown", versions(one)))))
        lines.append("")
    return lines


def _claim(claim: Claim) -> str:
    said = f"- **{claim.verdict}**: {escaped(claim.text)} ({escaped(claim.place)}). {escaped(sentence(claim.evidence))}"
    return f"{said} Rule: {escaped(claim.rule)}."


def table_lines(table: Table) -> list[str]:
    """A table with its title and its notes."""
    found = outcomes.columns(table)
    heads = [
        escaped(f"{column.name}, {part}" if part and i == 0 else part or column.name)
        for column in found
        for i, part in enumerate(column.parts)
    ]
    rule = ["---:" if column.numbers else "---" for column in found for _ in column.parts]
    lines = [f"**{escaped(table.title)}**", "", _row(*heads), _row(*rule)]
    for place in range(len(table.rows)):
        lines.append(_row(*(escaped(words) for column in found for words in column.cells[place])))
    lines.append("")
    said = " ".join(outcomes.notes(table))
    return [*lines, escaped(said), ""] if said else lines


def claims_json(items: Sequence[Item]) -> str:
    """Items and claims, for other programs; it holds no times."""
    claims = judged(items)
    value: dict[str, Any] = {
        "format": FORMAT,
        "counts": {scale: outcomes.counted(some) for scale, some in claims.items()},
        "items": [
            {
                "id": item.id,
                "title": item.title,
                "paper": item.paper,
                "scale": item.shown.scale if item.shown else None,
                "status": item.shown.status if item.shown else item.reason,
                "message": item.message,
                "command": item.command,
                "other_scales": {read.scale: read.status for read in item.others},
                "errata": list(item.shown.outcome.errata) if item.shown else [],
                "deviations": list(item.shown.outcome.deviations) if item.shown else [],
                "missing": [
                    {"row": row, "reason": reason, "command": made}
                    for row, reason, made in (item.shown.outcome.missing if item.shown else ())
                ],
            }
            for item in items
        ],
        "claims": _claims(items),
    }
    return to_json(value)


def claims_csv(items: Sequence[Item]) -> str:
    """The claims as a table; an item that was not run is a row without a claim."""
    text = io.StringIO()
    writer = csv.DictWriter(text, FIELDS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(_claims(items))
    writer.writerows(
        {
            **dict.fromkeys(FIELDS, ""),
            "item": item.id,
            "place": item.paper,
            "verdict": "not run",
            "evidence": item.reason,
        }
        for item in items
        if item.shown is None
    )
    return text.getvalue()


def _claims(items: Sequence[Item]) -> list[dict[str, str]]:
    return [
        dict(
            zip(
                FIELDS,
                (one.item.id, one.scale, one.claim.place, one.claim.verdict, one.claim.text, one.claim.evidence,
                 one.claim.rule),
                strict=True,
            )
        )
        for some in judged(items).values()
        for one in some
    ]  # fmt: skip
