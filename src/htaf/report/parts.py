"""Parts that pages of one file are made of, without scripts, and their style sheet."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from htaf.report.drawing import text

Cell = tuple[str, bool]  # HTML, and whether it is a number
SAFE = "default-src 'none'; style-src 'unsafe-inline'"
PICTURES = "; img-src 'self' file:"  # beside the page


def document(title: str, sections: Iterable[str], *, style: str = "", pictures: bool = False) -> str:
    """A whole page, which may load nothing.

    Args:
        title: text. sections: HTML. style: rules after those of `STYLE`. pictures: it may show files beside it.
    """
    policy = SAFE + (PICTURES if pictures else "")
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        f"<title>{text(title)}</title>\n<style>{STYLE}{style}</style></head>\n<body><main>\n"
        + "\n".join(sections)
        + "\n</main></body></html>\n"
    )


def section(name: str, title: str, body: str) -> str:
    """A part of the page. name: of its heading, an id of our own; body: HTML."""
    return f"<section aria-labelledby='h-{name}'><h2 id='h-{name}'>{text(title)}</h2>{body}</section>"


def folded(title: str, body: str, *, opened: bool = False) -> str:
    """What is shown when it is asked for. body: HTML."""
    return f"<details{' open' if opened else ''}><summary>{text(title)}</summary>{body}</details>"


def scrolled(label: str, body: str) -> str:
    """What may be wider than the page, which the keyboard can scroll."""
    return f"<div class='wide' role='region' tabindex='0' aria-label='{text(label)}: table'>{body}</div>"


def table(heads: Sequence[str], rows: Iterable[Sequence[Cell]], label: str, *, kind: str = "") -> str:
    """A table; cells are HTML, the first of each row is its head."""
    rows = list(rows)
    numbers = [len(rows) > 0 and rows[0][place][1] for place in range(len(heads))]
    top = "".join(
        f"<th scope='col'{' class=num' if num else ''}>{text(name)}</th>" if name else "<td></td>"
        for name, num in zip(heads, numbers, strict=True)
    )
    lines = []
    for row in rows:
        (first, is_number), *others = row
        cells = "".join(f"<td{' class=num' if num else ''}>{cell}</td>" for cell, num in others)
        lines.append(f"<tr><th scope='row'{' class=num' if is_number else ''}>{first}</th>{cells}</tr>")
    inside = f"<table class='{kind}'><thead><tr>{top}</tr></thead><tbody>{''.join(lines)}</tbody></table>"
    return scrolled(label, inside)


STYLE = """
:root { color-scheme: light dark; --paper: #faf9f6; --surface: #fff; --line: #e4e0d8; --ink: #1d1f1e; --muted: #5f6361;
  --accent: #0b6763; --orange: #b9500f; --blue: #0b67a0; --good: #1b6b3a; --bad: #a83a1c; --sunken: #f1efea; }
@media (prefers-color-scheme: dark) { :root { --paper: #131514; --surface: #1b1e1d; --line: #313635; --ink: #ecebe6;
  --muted: #a6aba8; --accent: #74cdc4; --orange: #e38d5a; --blue: #6bb1e2; --good: #7fd19d; --bad: #f09a7c;
  --sunken: #252928; } }
*, ::before, ::after { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; text-size-adjust: 100%; }
body { margin: 0; background: var(--paper); color: var(--ink); font: 15px/1.55 -apple-system, "Segoe UI", Roboto,
  "Helvetica Neue", Arial, sans-serif; font-variant-numeric: tabular-nums; overflow-wrap: anywhere; }
h1, h2, h3, p, ul, figure, pre { margin: 0; padding: 0; }
main { max-width: 1120px; margin: 0 auto; padding: 40px 24px 72px; display: grid; gap: 20px;
  grid-template-columns: repeat(2, minmax(0, 1fr)); }
header, #h-result, section { grid-column: 1 / -1; }
section { background: var(--surface); border: 1px solid var(--line); border-radius: 10px; padding: 20px 22px 22px; }
section[aria-labelledby="h-training"], section[aria-labelledby="h-calibration"],
section[aria-labelledby="h-residuals"] { grid-column: span 1; }
.what { color: var(--accent); font-weight: 600; }
h1 { font-size: 30px; line-height: 1.2; font-weight: 650; letter-spacing: -0.015em; margin: 2px 0 6px; }
h2 { font-size: 18px; line-height: 1.3; font-weight: 620; margin-bottom: 8px; }
h3 { font-size: 15px; font-weight: 620; margin: 18px 0 6px; }
p + p, p + div, .tiles + p, .wide + .wide, .wide + p { margin-top: 12px; }
section > p { max-width: 72ch; }
.muted, figcaption { color: var(--muted); }
.tiles { display: flex; flex-wrap: wrap; gap: 12px; }
.tile { flex: 1 1 150px; padding: 10px 14px 12px; border-radius: 8px; background: var(--sunken); }
.tile span { display: block; font-size: 13px; color: var(--muted); }
.tile b { font-size: 26px; line-height: 1.2; font-weight: 620; letter-spacing: -0.01em; }
.tile.main b { color: var(--accent); }
.tile.worse b { color: var(--bad); } .tile.better b { color: var(--good); }
.wide { overflow-x: auto; }
:focus-visible { outline: 2px solid var(--accent); outline-offset: 2px; border-radius: 4px; }
table { border-collapse: collapse; width: 100%; font-size: 14px; overflow-wrap: normal; }
th, td { text-align: left; vertical-align: top; padding: 5px 14px 5px 0; border-bottom: 1px solid var(--line);
  font-weight: 400; }
th:last-child, td:last-child { padding-right: 0; }
td:last-child, th[scope="row"] { overflow-wrap: anywhere; min-width: 8.5em; }
thead th { color: var(--muted); font-size: 13px; white-space: nowrap; }
tbody tr:last-child > * { border-bottom: 0; }
.num { text-align: right; white-space: nowrap; }
th.num[scope="row"] { min-width: 0; }
.matrix { width: auto; } .matrix td, .matrix th { min-width: 0 !important; }
.matrix th, .matrix td { padding: 5px 9px; border: 1px solid var(--line); }
.matrix tbody tr:last-child > * { border-bottom: 1px solid var(--line); }
.matrix thead th { white-space: normal; max-width: 9em; overflow-wrap: break-word; vertical-align: bottom; }
.shade { background: color-mix(in srgb, var(--accent) calc(var(--s) * 45%), transparent); }
.bars th[scope="row"] { width: 34%; } .bars td:nth-child(2) { width: 40%; vertical-align: middle; min-width: 60px; }
.rules th[scope="row"] { min-width: 3em; } .rules td:nth-child(2) { min-width: 17em; overflow-wrap: anywhere; }
.doubt { color: var(--bad); font-weight: 600; }
.bar { display: block; height: 10px; border-radius: 3px; width: calc(var(--s) * 100%); background: var(--accent);
  min-width: 1px; }
figure svg { display: block; width: 100%; max-width: 520px; height: auto; }
svg text { font-size: 12px; fill: var(--muted); }
figcaption { font-size: 13px; margin-top: 6px; display: flex; flex-wrap: wrap; gap: 2px 16px; }
.grid { stroke: var(--line); stroke-width: 1; }
.line { fill: none; stroke-width: 2; stroke-linejoin: round; stroke-linecap: round; }
.line.train { stroke: var(--muted); } .line.smooth { stroke: var(--blue); } .line.exact { stroke: var(--orange); }
.line.smooth { stroke-dasharray: 1 5; }
.line.kept, .line.ideal, .line.stage { stroke: var(--muted); stroke-width: 1; stroke-dasharray: 4 4; }
.line.stage { stroke-dasharray: none; stroke: var(--line); } .line.spread { stroke: var(--orange); opacity: .55; }
.dot.exact { fill: var(--orange); } .dot.smooth { fill: var(--blue); } .dot.train { fill: var(--muted); }
.key::before { content: ""; display: inline-block; width: 16px; border-top: 2px solid; margin-right: 6px;
  vertical-align: middle; }
.key.train::before { border-color: var(--muted); }
.key.smooth::before { border: 0; border-top: 2px dotted var(--blue); }
.key.exact::before { border-color: var(--orange); } .key.stage::before { border-color: var(--line); }
.key.kept::before { border-top: 1px dashed var(--muted); }
details { margin-top: 12px; } summary { cursor: pointer; color: var(--accent); width: fit-content; }
details > .wide { margin-top: 8px; max-height: 420px; overflow-y: auto; }
.notes { padding-left: 18px; font-size: 14px; } .notes li { margin: 3px 0; } div + .notes { margin-top: 10px; }
pre { margin-top: 8px; padding: 12px 14px; border-radius: 8px; background: var(--sunken); white-space: pre-wrap;
  font: 13px/1.5 ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; }
@media (max-width: 860px) { main { grid-template-columns: minmax(0, 1fr); padding: 24px 14px 48px; gap: 14px; }
  section { padding: 16px 14px 18px; } h1 { font-size: 25px; } .tile b { font-size: 22px; } }
@media print { body { background: none; } section { break-inside: avoid; border: 0; padding-inline: 0; } }
"""
