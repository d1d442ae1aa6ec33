"""The page of the paper's claims, tables and figures: one file of HTML without scripts; photographs lie beside it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from htaf.report import parts
from htaf.report.drawing import text
from htaf_paper import drawing, outcomes
from htaf_paper.outcomes import Item, Judged, Measured, Read, judged, sentence
from htaf_paper.protocol import ABOUT_SCALES, Claim, Drawing, Scale, Table, Verdict

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
    claims = judged(items)
    sections = [
        _head(items, [one for some in claims.values() for one in some]),
        *(_claims(scale, some) for scale, some in claims.items()),
        _not_run(items),
        _contents(items),
        *(_item(item, names) for item in items if item.shown is not None),
        _errata(items),
        _how(items, command),
    ]
    return parts.document("The paper, claim by claim", filter(None, sections), style=STYLE, pictures=True)


def _head(items: Sequence[Item], claims: Sequence[Judged]) -> str:
    counts = outcomes.counted(claims)
    by_scale = {scale: outcomes.counted(some) for scale, some in judged(items).items()}
    tiles = "".join(
        f"<div class='tile {SIGNS[verdict]}'><span>{text(verdict)}</span><b>{count}</b>"
        f"<span>{text(', '.join(f'{of[verdict]} at {scale}' for scale, of in by_scale.items() if of[verdict]))}</span>"
        "</div>"
        for verdict, count in counts.items()
    )
    missing = [item for item in items if item.shown is None]
    said = (
        f"{_many(len(claims), 'claim')} of {_many(len(items) - len(missing), 'table or figure', 'tables and figures')}"
    )
    if missing:
        said += f"; <a href='#h-not-run'>{_many(len(missing), 'more was', 'more were')} not run</a>"
    if failed := [item for item in items if item.shown and item.shown.status != "finished"]:
        said += f"; not finished: {', '.join(f'<a href={chr(39)}#h-{one.id}{chr(39)}>{one.id}</a>' for one in failed)}"
    scales = [f"{len(some)} at <a href='#h-claims-{scale}'>{scale}</a>" for scale, some in judged(items).items()]
    told = f"{said}. Tested: {', '.join(scales)}." if scales else f"{said}."
    rows = [[(_badge(verdict), False), (text(about), False)] for verdict, about in ABOUT_VERDICTS.items()]
    meaning = parts.table(("verdict", "meaning"), rows, "What the verdicts mean", kind="meaning")
    rows = [[(f"<b>{scale}</b>", False), (text(about), False)] for scale, about in reversed(ABOUT_SCALES.items())]
    meaning += parts.table(("scale", "meaning"), rows, "What the scales mean", kind="meaning")
    meaning += f"<p>{text(ABOUT_CHANCE)}</p>"
    return (
        f"<header><p class='what'>{text(CITED)}</p><h1>Does it hold? The paper, claim by claim</h1>"
        + "".join(f"<p class='lead'>{text(one)}</p>" for one in ABOUT_PAPER)
        + f"</header><section aria-labelledby='h-result'><h2 id='h-result'>The answer in numbers</h2>"
        f"<div class='tiles'>{tiles}</div><p>{told}</p>{parts.folded('What verdicts and scales mean', meaning)}"
        "</section>"
    )


def _many(count: int, one: str, many: str = "") -> str:
    return f"{count} {one if count == 1 else many or one + 's'}"


def prose(line: str) -> str:
    """Text for HTML; what stands between two backticks is code."""
    parts = re.split(r"(`[^`\n]+`)", line)
    return "".join(f"<code>{text(p[1:-1])}</code>" if place % 2 else text(p) for place, p in enumerate(parts))


def _badge(verdict: Verdict) -> str:
    return f"<span class='verdict {SIGNS[verdict]}'>{text(verdict)}</span>"


def _claims(scale: Scale, claims: Sequence[Judged]) -> str:
    """The claims that were tested at a scale."""
    counts = outcomes.spoken(outcomes.counted(claims))
    body = f"<p class='muted'>{text(sentence(ABOUT_SCALES[scale]))} {text(sentence(counts))}</p>"
    return parts.section(
        f"claims-{scale}",
        f"Claims at scale {scale}",
        body + _judged_table([one.claim for one in claims], f"Claims at scale {scale}", [one.item for one in claims]),
    )


def _judged_table(claims: Iterable[Claim], label: str, items: Sequence[Item] | None = None) -> str:
    """Claims with verdict and evidence; on a narrow screen each is a block. Roles are said, as blocks have none."""
    heads = ("verdict", "claim", "evidence", *(("shown in",) if items else ()))
    top = "".join(f"<th role='columnheader' scope='col'>{name}</th>" for name in heads)
    rows = []
    for place, claim in enumerate(claims):
        more = ""
        if items:
            item = items[place]
            more = f"<td role='cell'><a href='#h-{item.id}'>{text(item.id)}</a></td>"
        rule = f"<details class='rule'><summary>rule</summary><p>{text(claim.rule)}</p></details>"
        rows.append(
            f"<tr role='row'><td role='cell'>{_badge(claim.verdict)}</td>"
            f"<th role='rowheader' scope='row'>{text(claim.text)}<span class='place'>{text(claim.place)}</span></th>"
            f"<td role='cell'>{text(claim.evidence)}{rule}</td>{more}</tr>"
        )
    return (
        f"<table class='claims' role='table' aria-label='{text(label)}'><thead role='rowgroup'>"
        f"<tr role='row'>{top}</tr></thead><tbody role='rowgroup'>{''.join(rows)}</tbody></table>"
    )


def _not_run(items: Sequence[Item]) -> str:
    missing = [item for item in items if item.shown is None]
    if not missing:
        return ""
    rows = []
    for item in missing:
        name = text(item.title) if item.title == item.id else f"{text(item.title)} <span class='place'>{item.id}</span>"
        rows.append([(name, False), (text(item.paper), False), (_reason(item.reason), False), _ran(item)])
    body = parts.table(("item", "in the paper", "state", "how to run it"), rows, "Not run", kind="loose")
    told = "No figure of these. A command with a smaller --scale (cpu, reduced, smoke) takes less time."
    return parts.section("not-run", "Not run", f"<p class='muted'>{text(told)}</p>{body}")


def _ran(item: Item) -> parts.Cell:
    """The command of an item that is not shown, and what was said when it was tried."""
    said = f"<p class='place'>{text(item.message)}</p>" if item.message else ""
    return f"<code>{text(item.command)}</code>{said}", False


def _reason(status: str) -> str:
    return f"<span class='verdict none'>{text(status)}</span>"


def _contents(items: Sequence[Item]) -> str:
    rows = []
    for item in items:
        if item.shown is None:
            rows.append(
                [(text(item.title), False), (text(item.paper), False), ("-", False), (text(item.reason), False)]
            )
            continue
        counts = {
            "" if scale == item.shown.scale else f" at {scale}": outcomes.spoken(Counter(one.verdict for one in some))
            for scale, some in item.claims.items()
        }
        said = "; ".join(f"{count}{at}" for at, count in counts.items()) or "no claim"
        if item.shown.status != "finished":
            said = f"{item.shown.status}; {said}"
        link = f"<a href='#h-{item.id}'>{text(item.title)}</a>"
        rows.append([(link, False), (text(item.paper), False), (item.shown.scale, False), (text(said), False)])
    heads = ("table or figure", "in the paper", "scale", "claims")
    return parts.section("contents", "All tables and figures", parts.table(heads, rows, "Items", kind="loose"))


def _item(item: Item, names: Mapping[tuple[str, str], str]) -> str:
    read = item.shown
    assert read is not None
    outcome, reported = read.outcome, item.claims.get(read.scale, ())
    body = [
        f"<p class='muted'>{text(sentence(item.paper))} Scale <b>{read.scale}</b>: {prose(read.about)}.</p>",
        f"<p class='warning'>Not finished: {text(read.message)}</p>" if read.status != "finished" else "",
        _judged_table(reported, f"Claims of {item.title}") if reported else "",
        *(_table(one, item.title) for one in outcome.tables),
        *(_figure(one, names[item.id, one.name]) for one in outcome.drawings),
        _listed("Notes", outcome.notes),
        _missing(read),
        _listed("Where this differs from the paper's protocol", outcome.deviations),
        _listed("Errors in the paper", outcome.errata),
        *(_smaller(item, one) for one in item.smaller),
        _others(item),
        _measured(read),
    ]
    return parts.section(item.id, item.title, "".join(body))


def _listed(title: str, lines: Sequence[str]) -> str:
    if not lines:
        return ""
    return (
        f"<h3>{text(title)}</h3><ul class='notes'>{''.join(f'<li>{prose(sentence(line))}</li>' for line in lines)}</ul>"
    )


def _table(table: Table, of: str) -> str:
    """A table; a column that the paper has too is three: ours, the paper's, the difference."""
    found = outcomes.columns(table)
    two = any(len(column.parts) > 1 for column in found)
    top, below = [], []
    for column in found:
        number = " class='num'" if column.numbers else ""
        if len(column.parts) > 1:
            top.append(f"<th scope='colgroup' colspan='{len(column.parts)}' class='group'>{text(column.name)}</th>")
            below += [f"<th scope='col' class='num{_edge(i)}'>{part}</th>" for i, part in enumerate(column.parts)]
        elif not column.name:
            top.append(f"<td{' rowspan=2' if two else ''}></td>")
        else:
            top.append(f"<th scope='col'{' rowspan=2' if two else ''}{number}>{text(column.name)}</th>")
    head = f"<tr>{''.join(top)}</tr>" + (f"<tr>{''.join(below)}</tr>" if two else "")
    rows = []
    short = [" class='short'" if all(len(some[0]) <= SHORT for some in one.cells) else "" for one in found]
    for place in range(len(table.rows)):
        cells = []
        for first, column in enumerate(found):
            for i, words in enumerate(column.cells[place]):
                group = _edge(i) if len(column.parts) > 1 else ""
                kind = f" class='num{group}{' soft' if i else ''}'" if column.numbers else short[first]
                tag = "th scope='row'" if first == 0 and i == 0 else "td"
                cells.append(f"<{tag}{kind}>{text(words)}</{tag[:2]}>")
        rows.append(f"<tr>{''.join(cells)}</tr>")
    inside = f"<table class='figures'><thead>{head}</thead><tbody>{''.join(rows)}</tbody></table>"
    said = "".join(f"<p class='place'>{prose(line)}</p>" for line in outcomes.notes(table))
    return f"<h3>{text(table.title)}</h3>{parts.scrolled(f'{of}, {table.title}', inside)}{said}"


def _edge(place: int) -> str:
    """The first of three columns stands off from what is left of it."""
    return "" if place else " first"


def _figure(one: Drawing, name: str) -> str:
    """The panels in the page, or a photograph beside it; the caption says what is seen, and has the files."""
    label = text(one.alternative)
    if one.picture is not None:
        shown = f"<img src='figures/{name}.png' alt='{label}'>"
        links = f"<a href='figures/{name}.png'>PNG</a>"
    else:
        panels = "".join(
            f"<div class='panel'>{drawing.inline(panel, f'{name}-{place}')}</div>"
            for place, panel in enumerate(one.panels)
        )
        wide = min(one.columns, len(one.panels), 3)
        shown = f"<div class='panels of{wide}' role='img' aria-label='{label}'>{panels}</div>"
        links = f"<a href='figures/{name}.svg'>SVG</a> <a href='figures/{name}.png'>PNG</a>"
    caption = (
        f"<figcaption><span><b>{text(one.title)}.</b> <span aria-hidden='true'>{label}</span></span>"
        f"<span class='files' aria-label='files of {text(one.title)}' role='group'>{links}</span></figcaption>"
    )
    return f"<figure>{shown}{caption}</figure>"


def _missing(read: Read) -> str:
    rows = [
        [(text(row), False), (_reason(reason), False), (f"<code>{text(command)}</code>", False)]
        for row, reason, command in read.outcome.missing
    ]
    if not rows:
        return ""
    told = parts.table(("row", "state", "how to run it"), rows, f"{read.title}, rows that were not run", kind="loose")
    return f"<h3>Rows that were not run</h3>{told}"


def _smaller(item: Item, read: Read) -> str:
    """What another scale tested that the section's own did not."""
    of = f"{item.title} at {read.scale}"
    return (
        f"<h3>Tested at scale {read.scale} alone</h3><p class='muted'>{prose(sentence(read.about))}</p>"
        + _judged_table(item.claims[read.scale], f"Claims of {of}")
        + parts.folded(f"Tables at scale {read.scale}", "".join(_table(one, of) for one in read.outcome.tables))
    )


def _others(item: Item) -> str:
    """Other scales of an item, which are not mixed with this one."""
    rows = []
    for read in item.others:
        said = text(outcomes.spoken(read.counts()) or "-")
        state = text(read.status) if read.status == "finished" else f"{_reason(read.status)} {text(read.message)}"
        rows.append(
            [
                (f"<a href='{read.file}'>{read.scale}</a>", False),
                (f"{prose(read.about)}", False),
                (f"{state}<br><code>{text(read.command)}</code>", False),
                (said, False),
            ]
        )
    if not rows:
        return ""
    told = parts.table(("scale", "what is done", "state", "claims"), rows, f"{item.title}, other scales", kind="loose")
    return parts.folded(f"Other scales: {', '.join(read.scale for read in item.others)}", told)


def _measured(read: Read) -> str:
    """Command, commits, machines, versions, times."""
    rows = [
        [
            (f"<code>{text(commit(one.commit))}</code>", False),
            (f"{one.cells:,}", True),
            (text(outcomes.seconds(one.cpu_seconds)), True),
            (text(one.device), False),
            ("-" if one.threads is None else str(one.threads), True),
            (text(one.platform or "unknown"), False),
            (text(versions(one)), False),
        ]
        for one in read.measured
    ]
    told = f"<pre tabindex='0' aria-label='command'>{text(read.command)}</pre>"
    if rows:
        heads = ("commit", "cells", "time", "device", "threads", "machine", "versions")
        told += parts.table(heads, rows, f"{read.title}, measured by", kind="loose")
    else:
        told += "<p class='muted'>Computed from formulas when the outcome was written: no cell is kept.</p>"
    told += f"<p class='muted'>Data of this section: <a href='{read.file}'>{text(read.file)}</a></p>"
    cells = sum(one.cells for one in read.measured)
    commits = sorted({commit(one.commit) for one in read.measured})
    title = f"Measured by: {_many(cells, 'cell')}, {_many(len(commits), 'commit')}" if rows else "Measured by"
    return parts.folded(title, told)


def commit(found: str | None) -> str:
    """A commit for people."""
    return "unknown" if found is None else re.sub(rf"^([0-9a-f]{{{SHORT_COMMIT}}})[0-9a-f]+", r"\1", found)


def versions(measured: Measured) -> str:
    """Of packages, in a line."""
    return ", ".join(f"{name} {number}" for name, number in measured.versions) or "unknown"


def _errata(items: Sequence[Item]) -> str:
    found: dict[str, str] = {}
    for item in items:
        for line in item.shown.outcome.errata if item.shown else ():
            found.setdefault(line, item.id)
    lines = "".join(f"<li>{prose(sentence(line))} <a href='#h-{name}'>{name}</a></li>" for line, name in found.items())
    return parts.section("errata", "All errors found in the paper", f"<ul class='notes'>{lines}</ul>") if lines else ""


def _how(items: Sequence[Item], command: str) -> str:
    """How the report was made."""
    known = [one for item in items if item.shown for one in item.shown.measured]
    cells, spent = sum(one.cells for one in known), sum(one.cpu_seconds for one in known)
    commits = sorted({commit(one.commit) for one in known})
    said = f"{_many(cells, 'cell')}, {outcomes.seconds(spent)}"
    if commits:
        said += f", {_many(len(commits), 'commit')}: {', '.join(commits)}"
    return parts.section(
        "how",
        "How this page was made",
        f"<p>{text(said)}. Each section says which machine and versions; cells that two sections read count in both."
        "</p>"
        f"<p class='muted'>From the outcomes in its folder alone, by:</p><pre tabindex='0' aria-label='command'>"
        f"{text(command)}</pre><p>For programs: <a href='claims.json'>claims.json</a>, "
        "<a href='claims.csv'>claims.csv</a>. The same as Markdown: <a href='report.md'>report.md</a>.</p>",
    )


STYLE = """
a { color: var(--accent); text-underline-offset: 2px; }
.lead { max-width: 80ch; margin-top: 8px; }
header .what { font-weight: 400; color: var(--muted); max-width: 80ch; }
.tile b { display: block; }
.tile.good b { color: var(--good); } .tile.bad b { color: var(--bad); } .tile.open b { color: var(--orange); }
.verdict { display: inline-block; padding: 1px 9px 2px; border-radius: 10px; font-size: 13px; font-weight: 600;
  line-height: 1.4; border: 1px solid; color: var(--muted); }
.verdict.good { color: var(--good); } .verdict.good::before { content: "\\2713\\a0" / ""; }
.verdict.bad { color: var(--bad); } .verdict.bad::before { content: "\\2715\\a0" / ""; }
.verdict.open { color: var(--orange); } .verdict.open::before { content: "?\\a0" / ""; }
.place { display: block; color: var(--muted); font-size: 13px; }
.wide + .place { margin-top: 6px; } .place + .place { margin-top: 2px; }
.claims { table-layout: fixed; margin-top: 8px; }
.claims th, .claims td { overflow-wrap: anywhere; padding: 8px 18px 8px 0; min-width: 0; }
.claims thead th:nth-child(1) { width: 158px; } .claims thead th:nth-child(4) { width: 106px; }
.claims tbody th { font-weight: 500; }
.claims td:nth-child(3) { color: var(--muted); }
.claims .rule { margin-top: 2px; font-size: 13px; } .rule p { color: var(--muted); }
.warning { color: var(--bad); }
.figures { width: auto; min-width: 50%; }
.figures th, .figures td { min-width: 0 !important; padding: 5px 10px; overflow-wrap: normal !important; }
.figures th:first-child, .figures td:first-child { padding-left: 0; }
.figures tbody th { position: sticky; left: 0; background: var(--surface); max-width: 22em; }
.figures thead th { white-space: normal; vertical-align: bottom; }
.figures thead .group { text-align: center; border-bottom-style: dotted; }
.figures .short { white-space: nowrap; }
.figures .first { padding-left: 26px; } .soft { color: var(--muted); }
.loose td, .loose th { overflow-wrap: break-word; min-width: 7em; }
.loose .num { min-width: 0; }
.meaning { margin-bottom: 6px; } .meaning th[scope="row"] { width: 15em; }
code { font: 13px/1.5 ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; }
figure { margin-top: 18px; }
figure .panels { display: grid; gap: 14px 20px; }
figure .of2 { grid-template-columns: repeat(2, minmax(0, 1fr)); max-width: 860px; }
figure .of3 { grid-template-columns: repeat(3, minmax(0, 1fr)); }
.panel svg { max-width: 480px; } .panel svg * { stroke-linejoin: round; }
figure img { display: block; max-width: 100%; height: auto; border-radius: 6px; }
figcaption { justify-content: space-between; } figcaption > span:first-child { max-width: 78ch; }
.files { display: flex; gap: 12px; }
@media (max-width: 860px) {
  .loose td, .loose th { min-width: 5em; padding-right: 10px; font-size: 13px; }
  figure .of2, figure .of3 { grid-template-columns: minmax(0, 1fr); }
  .claims, .claims tbody, .claims tr, .claims td, .claims tbody th { display: block; }
  .claims thead { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); }
  .claims tr { padding: 12px 0; border-bottom: 1px solid var(--line); }
  .claims tbody tr:last-child { border-bottom: 0; }
  .claims th, .claims td { border: 0; padding: 3px 0; }
}
@media print { .claims tr { break-inside: avoid; } }
"""
