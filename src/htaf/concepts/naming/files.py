"""A file of names that grows while they are made, and that an interrupted naming goes on from."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from htaf.concepts.codes import ConceptError
from htaf.concepts.naming.names import read_names, write_names

if TYPE_CHECKING:  # it needs pydantic, which names of attributes do without
    from htaf.concepts.naming.plan import Plan
    from htaf.llm import Client

SECONDS = 1.0  # between two writings


def earlier_names(
    path: Path, plan: Plan, client: Client, *, checked: Path | None = None, codes: str | None = None
) -> list[dict[str, Any]]:
    """What an earlier call left in the file that is to be written: the `known` of `htaf.concepts.naming.by_model`.

    Args:
        path: .json, or a .csv that is not there yet.
        plan, client: of this call.
        checked: the file whose names are checked, where that is what this call does.
        codes: as `htaf.concepts.naming.names.read_names` takes it.
    Raises:
        ConceptError: the file holds names that this call would not make, and that would be lost; is a table, which does
            not say what its names rest on; or is no such file.
    """
    if not path.exists():
        return []
    if path.suffix.lower() == ".csv":
        raise ConceptError(
            f"{path}: expected a new .csv file, got one that exists: a .csv cannot be continued, choose a .json or "
            "another name"
        )
    found = read_names(path, len(plan.order), codes=codes)
    if checked is not None:
        if path.resolve() != checked.resolve() and any(e["name"] and not e.get("checked_by") for e in found):
            raise ConceptError(
                f"{path}: expected a new file or one of checked names, got other names, which would be lost: choose "
                "another --out"
            )
        return [entry for entry in found if entry.get("checked_by")]
    for entry in found:
        rests = entry.get("settings")
        ours = entry["source"] == "model" and not entry.get("checked_by")
        if not ours or (rests and rests != plan.fingerprint(plan.case(entry["concept"]), client)):
            raise ConceptError(
                f"{path}: expected a new file or names of the same settings, got concept {entry['concept']} named "
                "otherwise (by hand, with another model, server, settings, codes or version), which would be lost: "
                "choose another --out"
            )
    return found


def check_only(path: Path, source: str, concepts: int, codes: str | None = None) -> None:
    """See that a file which is to be written anew is not there, or holds names of one source alone.

    Raises:
        ConceptError: it holds others, which would be lost, or is no file of names.
    """
    for entry in read_names(path, concepts, codes=codes) if path.exists() else ():
        if entry["source"] != source or entry.get("checked_by"):
            raise ConceptError(
                f"{path}: expected a new file or names of {source}, got concept {entry['concept']} of another source "
                f"({entry['source']}), which would be lost: choose another --out"
            )


@contextlib.contextmanager
def kept_names(path: Path | None, codes: str | None = None) -> Iterator[Callable[[Sequence[Mapping[str, Any]]], None]]:
    """A function that takes all names so far: they are written once a second at most, and at the end, whatever ends it.

    Args:
        path: None: nothing is written.
        codes: as `htaf.concepts.naming.names.write_names` takes it.
    Raises:
        OSError: the file cannot be written.
    """
    latest: Sequence[Mapping[str, Any]] | None = None
    last = -SECONDS

    def keep(names: Sequence[Mapping[str, Any]]) -> None:
        nonlocal latest, last
        latest = names
        if path is not None and time.monotonic() - last >= SECONDS:
            write_names(names, path, codes=codes)
            latest, last = None, time.monotonic()

    try:
        yield keep
    finally:
        if path is not None and latest is not None:
            write_names(latest, path, codes=codes)
