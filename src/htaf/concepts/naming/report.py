"""What a naming says on a terminal: what it will need, what became of each concept, what the checks are worth."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.cells import cell_len, set_cell_size

from htaf._console import visible
from htaf.concepts.naming.checks import LEVEL
from htaf.concepts.naming.files import FEW_CLASSES, FEW_IMAGES, WAITING, status_of

if TYPE_CHECKING:  # it needs pydantic, which names of attributes do without
    from htaf.concepts.naming.by_model import Estimate
    from htaf.concepts.naming.by_pictures import PictureEstimate

ELLIPSIS = "…"
FEW_GROUPED = 8  # below it permuted classes do as well too often
COLUMNS = ("concept", "verified", "held out", "p", "A/B", "on test")
SHORT = {FEW_CLASSES: "few", FEW_IMAGES: "few"}  # statuses that are no failure of a name
LEAST = 20  # cells for a name and its reason, on a terminal however narrow


def estimate_line(needed: Estimate) -> str:
    """An estimate in one line."""
    text = f"{needed.concepts} names to find or check"
    without = f"{needed.idle} with nothing to ask" if needed.idle else ""
    single = f"{needed.single} of them cannot be checked (a group has one class): not asked" if needed.single else ""
    text += f" ({'; '.join(filter(None, (without, single)))})" if without or single else ""
    text += f": {needed.calls:,} requests"
    if needed.cached:
        text += f", {needed.cached:,} of them kept from before"
    if needed.calls > needed.cached:
        text += f", about {needed.prompt_tokens:,} tokens to send and {needed.reply_tokens:,} to receive"
    return text


def estimate_notes(needed: Estimate) -> list[str]:
    """What an estimate warns of, before anything is paid."""
    if not needed.hopeless:
        return []
    return [
        f"{needed.hopeless} of them: so few classes in the groups that even the right sorting has p > {LEVEL}; they "
        "can hardly be verified"
    ]


def sending_line(needed: PictureEstimate, host: str) -> str:
    """What names from pictures will send, and to whom, in one line."""
    text = f"{needed.concepts:,} names to find or check"
    text += f" ({needed.idle:,} with nothing to ask)" if needed.idle else ""
    return (
        f"{text}: {needed.calls:,} requests with {needed.pictures:,} pictures that show {needed.images:,} of your "
        f"images, {_megabytes(needed.bytes)}, to {host}; about {needed.prompt_tokens:,} tokens to send and "
        f"{needed.reply_tokens:,} to receive"
    )


def _megabytes(size: int) -> str:
    return f"about {size / 1e6:,.1f} MB" if size >= 1e5 else f"about {size:,} bytes"


def check_notes(names: Sequence[Mapping[str, Any]]) -> list[str]:
    """What the checks of all names together are worth."""
    notes, checked = [], sum(entry.get("p_value") is not None for entry in names)
    if checked > 1:
        notes.append(
            f"{checked:,} names were checked, each at p <= {LEVEL}: "
            f"chance alone may pass about {round(LEVEL * checked, 1):g} of them"
        )
    ours = [entry for entry in names if entry.get("source") == "attributes"]
    largest = max(((entry["group_a"] or 0) + (entry["group_b"] or 0) for entry in ours), default=FEW_GROUPED)
    if not any(entry["verified"] for entry in names) and largest < FEW_GROUPED:
        notes.append(f"with {largest} classes in the groups chance does as well: names want {FEW_GROUPED} or more")
    if few := sum(status_of(entry) == FEW_CLASSES for entry in names):
        notes.append(
            f"{few:,} of {len(names):,} names have too few classes for this check: "
            "htaf concepts name --pictures checks names on images"
        )
    if only := sum(bool(entry.get("only_class") and entry["verified"]) for entry in names):
        notes.append(f"{only:,} of the verified names tell no images of one class apart: they may only name classes")
    return notes


def name_lines(names: Sequence[Mapping[str, Any]], order: Sequence[int], width: int) -> list[str]:
    """A header and a line of at most `width` cells for each name: the verified first, then the most important.

    Args:
        order: all concepts, the most important first.
        width: of the terminal; below about 70 the lines are longer.
    """
    rank = {concept: place for place, concept in enumerate(order)}
    names = sorted(names, key=lambda entry: (not entry["verified"], rank.get(entry["concept"], len(rank))))
    rows: list[tuple[str, ...]] = [COLUMNS]
    for entry in names:
        waits = entry["reason"] == WAITING
        sizes = ("-" if entry[key] is None else str(entry[key]) for key in ("group_a", "group_b"))
        held_out, p_value = entry["held_out"], entry["p_value"]
        rows.append((
            str(entry["concept"]),
            "waits" if waits else "yes" if entry["verified"] else SHORT.get(status_of(entry), "no"),
            "-" if held_out is None else f"{held_out:.2f}",
            "-" if p_value is None else f"{p_value:.3f}",
            "/".join(sizes),
            "-" if entry.get("test_a") is None or entry.get("test_b") is None
            else f"{100 * entry['test_a']:.0f}/{100 * entry['test_b']:.0f}%",
        ))  # fmt: skip
    wide = [max(len(row[column]) for row in rows) for column in range(len(COLUMNS))]
    rest = max(LEAST, width - sum(wide) - 2 * len(wide))
    texts = ["name (why not)", *(_named(entry, rest) for entry in names)]
    return [
        "  ".join([*(cell.rjust(size) for cell, size in zip(row, wide, strict=True)), text])
        for row, text in zip(rows, texts, strict=True)
    ]


def _named(entry: Mapping[str, Any], most: int) -> str:
    """The name, and in brackets why it is not verified; cut to `most` cells."""
    name = visible(entry["name"] or "")
    reason = "" if entry["reason"] == WAITING else visible(entry["reason"] or "")
    reason = "of its class alone" if entry["verified"] and entry.get("only_class") else reason
    if not reason:
        return _cut(name or "-", most)
    brackets = 3 if name else 2
    name = _cut(name, max(most // 2, most - brackets - cell_len(reason)))
    return f"{name} ({_cut(reason, most - brackets - cell_len(name))})".lstrip()


def _cut(text: str, most: int) -> str:
    return text if cell_len(text) <= most else set_cell_size(text, most - 1).rstrip() + ELLIPSIS
