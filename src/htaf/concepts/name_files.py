"""A file of names that grows while they are made, and that an interrupted naming goes on from."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from htaf.concepts.codes import ConceptError
from htaf.concepts.name_plan import Plan
from htaf.concepts.names import read_names, write_names

SECONDS = 1.0  # between two writings


def earlier_names(path: Path, plan: Plan, model: str, *, checked: Path | None = None) -> list[dict[str, Any]]:
    """What an earlier call left in the file that is to be written: the `known` of `htaf.concepts.naming`.

    Args:
        path: .json, or .csv, which does not say what its names rest on: nothing is known then.
        plan, model: of this call.
        checked: the file whose names are checked, where that is what this call does.
    Raises:
        ConceptError: the file holds names that this call would not make, and that would be lost; or is no such file.
    """
    if not path.exists():
        return []
    found = read_names(path, len(plan.grouped.member))
    whole = path.suffix.lower() == ".json"
    if checked is not None:
        done = [entry for entry in found if entry.get("checked_by")]
        others = [entry for entry in found if entry["name"] and not entry.get("checked_by")]
        if others and path.resolve() != checked.resolve():
            raise ConceptError(f"{path}: expected a new file or checked names, got others: they would be lost")
        return done
    for entry in found:
        rests = entry.get("settings") if whole else None
        ours = entry["source"] == "model" and not entry.get("checked_by")
        if not ours or (rests and rests != plan.fingerprint(plan.case(entry["concept"]), model)):
            raise ConceptError(
                f"{path}: expected a new file or names of the same settings, got concept {entry['concept']} named "
                "otherwise (by hand, with another model, settings or codes): it would be lost"
            )
    return found if whole else []


@contextlib.contextmanager
def kept_names(path: Path | None) -> Iterator[Callable[[Sequence[Mapping[str, Any]]], None]]:
    """A function that takes all names so far: they are written once a second at most, and at the end, whatever ends it.

    Args:
        path: None: nothing is written.
    Raises:
        OSError: the file cannot be written.
    """
    latest: Sequence[Mapping[str, Any]] | None = None
    last = -SECONDS

    def keep(names: Sequence[Mapping[str, Any]]) -> None:
        nonlocal latest, last
        latest = names
        if path is not None and time.monotonic() - last >= SECONDS:
            write_names(names, path)
            latest, last = None, time.monotonic()

    try:
        yield keep
    finally:
        if path is not None and latest is not None:
            write_names(latest, path)
