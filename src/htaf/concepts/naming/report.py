"""What a naming says on a terminal: what it will need, what became of each concept, what the checks are worth."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.table import Table

from htaf.concepts.naming.checks import LEVEL
from htaf.concepts.naming.files import FEW_CLASSES, FEW_IMAGES, status_of

if TYPE_CHECKING:  # it needs pydantic, which names of attributes do without
    from htaf.concepts.naming.job import Estimate

FEW_GROUPED = 8  # below it permuted classes do as well too often
COLUMNS = ("concept", "verified", "held out", "p", "A/B", "on test", "name (why not)")
SHORT = {FEW_CLASSES: "few", FEW_IMAGES: "few"}  # statuses that are no failure of a name


def estimate_line(needed: Estimate, host: str) -> str:
    """An estimate in one line; host: where pictures go."""
    text = f"{needed.concepts:,} names to find or check"
    without = f"{needed.idle:,} with nothing to ask" if needed.idle else ""
    single = f"{needed.single:,} of them cannot be checked (a group has one class): not asked" if needed.single else ""
    text += f" ({'; '.join(filter(None, (without, single)))})" if without or single else ""
    text += f": {needed.calls:,} requests"
    if needed.cached:
        text += f", {needed.cached:,} of them kept from before"
    if needed.pictures:
        size = f"{needed.bytes / 1e6:,.1f} MB" if needed.bytes >= 1e5 else f"{needed.bytes:,} bytes"
        text += (
            f" with {needed.pictures:,} pictures that show {needed.images:,} of your images, about {size}, to {host}"
        )
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


def name_table(names: Sequence[Mapping[str, Any]], order: Sequence[int]) -> Table:
    """A row for each name: the verified first, then the most important.

    Args:
        order: all concepts, the most important first.
    """
    rank = {concept: place for place, concept in enumerate(order)}
    table = Table(box=None, pad_edge=False)
    for column in COLUMNS[:-1]:
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column(COLUMNS[-1], overflow="fold")
    for entry in sorted(names, key=lambda e: (not e["verified"], rank.get(e["concept"], len(rank)))):
        held_out, p_value, test_a, test_b = (entry.get(key) for key in ("held_out", "p_value", "test_a", "test_b"))
        reason = "of its class alone" if entry["verified"] and entry.get("only_class") else entry["reason"]
        table.add_row(
            str(entry["concept"]),
            "yes" if entry["verified"] else SHORT.get(status_of(entry), "no"),
            "-" if held_out is None else f"{held_out:.2f}",
            "-" if p_value is None else f"{p_value:.3f}",
            "/".join("-" if entry[key] is None else str(entry[key]) for key in ("group_a", "group_b")),
            "-" if test_a is None or test_b is None else f"{100 * test_a:.0f}/{100 * test_b:.0f}%",
            " ".join(filter(None, (entry["name"], f"({reason})" if reason else ""))) or "-",
        )
    return table
