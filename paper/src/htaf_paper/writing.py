"""Write the report of the paper's items: a page, Markdown, figures, and claims for other programs."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from htaf._ground.files import write_atomic
from htaf_paper import drawing, reports
from htaf_paper.outcomes import Item, figure_names, picture_file, read_experiments, read_items
from htaf_paper.page import page
from htaf_paper.protocol import PaperError, command_of
from htaf_paper.summary import TITLE, claims_csv, claims_json, markdown

PAGE, MARKDOWN, FIGURES, CLAIMS = "report.html", "report.md", "figures", "claims"
PNG = b"\x89PNG\r\n\x1a\n"


def write_report(out: Path, *, command: str = "htaf paper report") -> Path:
    """Write report.html, report.md, figures/, claims.json and claims.csv into a folder of the paper's items.

    It reads `outcomes.jsonl` alone, and shows every item at its largest finished scale; an item without an
    outcome is a row that says how to run it. A study of ours has ID/report.md and ID/figures/.

    The same outcomes give the same bytes; what differs between two runs of
    the same cells is what `htaf_paper.outcomes.without_times` takes out.

    Args:
        out: as for `htaf_paper.engine.run`. command: that writes the report, for its last line.

    Returns:
        report.html, which is written last.

    Raises:
        PaperError: the folder is not there; a file in it is damaged or no outcome of an item.
        OSError: it cannot be written.
    """
    items = [_kept(out, item) for item in read_items(out)]
    for read in read_experiments(out):
        reports.write(out / read.id, read.title, read.outcome)
    _expect_own(out)
    names = figure_names(items)
    made = _figures(out, items, names)
    texts = {
        f"{CLAIMS}.json": claims_json(items),
        f"{CLAIMS}.csv": claims_csv(items),
        MARKDOWN: markdown(items, names, command),
        PAGE: page(items, names, command),
    }
    for name, data in made.items():
        write_atomic(out / FIGURES / name, data)
    for name, text in texts.items():
        write_atomic(out / name, text)
    return out / PAGE


def _expect_own(out: Path) -> None:
    """Raises PaperError where a report lies in the folder that this command did not write."""
    file = out / MARKDOWN
    if file.exists() and not file.read_text(errors="replace").startswith(TITLE):
        raise PaperError(f"expected a folder of `htaf paper run --out`, {file} is another text: move it away")


def _figures(out: Path, items: Sequence[Item], names: dict[tuple[str, str], str]) -> dict[str, bytes]:
    """The files of all drawings by name."""
    found: dict[str, bytes] = {}
    for item in items:
        for one in item.shown.outcome.drawings if item.shown else ():
            name = names[item.id, one.name]
            if one.picture is None:
                found[f"{name}.svg"], found[f"{name}.png"] = drawing.files(one)
            elif item.shown is not None:
                found[f"{name}.png"] = _picture(picture_file(out, item.shown.scale, one.picture))
    return found


def _kept(out: Path, item: Item) -> Item:
    """The item with a row in place of each photograph that is not there: photographs are not passed on with results."""
    read = item.shown
    if read is None:
        return item
    pictured = [one for one in read.outcome.drawings if one.picture]
    lost = [one for one in pictured if not picture_file(out, read.scale, one.picture or "").is_file()]
    if not lost:
        return item
    command = command_of(item.id, read.scale)
    outcome = dataclasses.replace(
        read.outcome,
        drawings=tuple(one for one in read.outcome.drawings if one not in lost),
        missing=(*read.outcome.missing, *((one.title, "not kept: photographs", command) for one in lost)),
    )
    return dataclasses.replace(item, shown=dataclasses.replace(read, outcome=outcome))


def _picture(file: Path) -> bytes:
    data = file.read_bytes()
    if not data.startswith(PNG):
        raise PaperError(f"{file} is damaged: expected a PNG file")
    return data
