"""A JSON file of names, one for each concept: written, edited by hand or on the page, read back."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from htaf._ground.errors import first_line
from htaf._ground.files import regular, to_json, write_atomic
from htaf.concepts.codes import ConceptError

NameEntry = dict[str, Any]  # the name of one concept, how it was found and what its check gave

SOURCES = ("attributes", "model", "pictures", "hand", "supervised", "label-free")
LONGEST = 200  # characters of a name, a label, a candidate
SEALED = ("name", "label_1", "label_0")
TEXTS = (*SEALED, "status", "source", "reason", "justification", "checked_by", "codes", "seal", "model")
NUMBERS = ("held_out", "p_value", "agreement", "naming", "test_a", "test_b")
COUNTS = ("concept", "group_a", "group_b", "mixed", "empty", "rounds", "scored")
GROUPS = ("group_a", "group_b", "mixed", "empty", "test_a", "test_b")
# what a check says; another check says it anew
CHECKED = (*NUMBERS, *GROUPS[:4], "baseline", "pictures", "within", "only_class")
# values of an entry's "reason"
BY_HAND = "named by hand, not checked"
RENAMED = "renamed since it was checked"
NO_REPLY = "no usable reply"
# values of an entry's "status"
VERIFIED, NOT_VERIFIED = "verified", "not verified"
FEW_CLASSES, FEW_IMAGES = "too few classes", "too few images"  # not for want of a name: nothing could be checked
NOTHING = "nothing to name"  # the bit is always the same, or tells no classes apart
NOT_CHECKED, NO_ANSWER = "not checked", "no answer"
STATUSES = (VERIFIED, NOT_VERIFIED, FEW_CLASSES, FEW_IMAGES, NOTHING, NOT_CHECKED, NO_ANSWER)
_COMMON: dict[str, Any] = {
    **dict.fromkeys((*SEALED, "justification", "status", "baseline", *NUMBERS[:4], *GROUPS)),
    "verified": False, "reason": "", "rounds": 0, "source": "hand",
}  # fmt: skip
_KINDS: dict[str, tuple[Callable[[Any], bool], str]] = {
    **dict.fromkeys(TEXTS, (lambda value: isinstance(value, str), "text")),
    **dict.fromkeys(NUMBERS, (lambda value: _is_number(value), "a number")),
    **dict.fromkeys(COUNTS, (lambda value: type(value) is int and value >= 0, "a whole number")),
    **dict.fromkeys(("verified", "negated", "only_class"), (lambda value: isinstance(value, bool), "true or false")),
    **dict.fromkeys(("baseline", "pictures", "within"), (lambda value: isinstance(value, dict), "an object")),
}


def valid_text(text: str) -> str:
    """Return the text with U+FFFD for each half of a surrogate pair that stands alone: UTF-8 cannot hold one."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def read_text(path: Path) -> str:
    """Read a text of UTF-8, with or without a byte-order mark; raises ConceptError."""
    try:
        return regular(path).read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConceptError(
            f"{path}: expected UTF-8, got byte {error.object[error.start]:#x} at {error.start}"
        ) from None
    except OSError as error:
        raise ConceptError(f"{path}: {error.strerror or error}") from None


def seal_of(entry: Mapping[str, Any]) -> str | None:
    """Give what a checked name and its labels are known by, 12 digits of their SHA-256; None without a check."""
    if entry.get("held_out") is None and not entry.get("verified"):
        return None
    texts = json.dumps([valid_text(entry.get(key) or "") for key in SEALED])
    return hashlib.sha256(texts.encode()).hexdigest()[:12]


def status_of(entry: Mapping[str, Any]) -> str:
    """Return the status of a name, one of `STATUSES`: the entry's own where it agrees with its check, else what that
    says."""
    own, reason = entry.get("status"), entry.get("reason") or ""
    if entry.get("verified"):
        return VERIFIED
    if own in STATUSES and own != VERIFIED:
        return own
    if reason.startswith(NO_REPLY):
        return NO_ANSWER
    if entry.get("held_out") is None:
        return NOT_CHECKED if entry.get("name") else NOTHING
    return NOT_VERIFIED


def write_names(names: Sequence[Mapping[str, Any]], path: str | Path, *, codes: str | None = None) -> None:
    """Write names as JSON. Each checked name gets its `seal_of`, by which `read_names` sees whether it was renamed.

    Args:
        path: ending in .json.
        codes: `htaf.concepts.codes.codes_key` of the codes that were named; None: the file does not say.
    """
    of = {} if codes is None else {"codes": codes}
    names = [
        dict(entry) | {"status": status_of(entry)} | of | ({"seal": seal} if (seal := seal_of(entry)) else {})
        for entry in names
    ]
    write_atomic(_json_path(path), valid_text(to_json(names)))


def read_names(path: str | Path, concepts: int | None = None, *, codes: str | None = None) -> list[NameEntry]:
    """Read the names of a file that `write_names`, the page or a hand wrote.

    Args:
        path: a JSON list of objects with `concept`, `name` and any others that `write_names` writes.
        concepts: how many there are; None: any.
        codes: as `write_names` takes it; None: any. A file that does not say whose its names are is taken.
    Returns:
        a dict for each concept of the file, ascending. Keys that the file lacks are None, verified False; a name
        without a source is "hand" and not verified, and so is a checked one whose seal is not that of its texts: its
        check is dropped.
    Raises:
        ConceptError: what the file holds cannot be used, or is of other codes.
    """
    path = _json_path(path)
    found: dict[int, NameEntry] = {}
    for place, entry in _from_json(read_text(path), path):
        read = _entry(entry, place)
        number = read["concept"]
        if (theirs := read.pop("codes", None)) and codes not in (None, theirs):
            raise ConceptError(
                f"{place}: expected names of this network's concepts ({codes}), got those of another network "
                f"({theirs}): take the names of this network, or make them with htaf concepts name"
            )
        if concepts is not None and number >= concepts:
            raise ConceptError(
                f"{place}: expected a concept in 0 to {concepts - 1}, got {number}: are these the names of another "
                "network?"
            )
        if number in found:
            raise ConceptError(f"{place}: expected one entry for each concept, got concept {number} again")
        found[number] = read
    return [found[number] for number in sorted(found)]


def earlier_names(path: Path, source: str | None, concepts: int, codes: str | None) -> list[NameEntry]:
    """Read the names of a file that is to be written anew; none where it is not there.

    Args:
        source: of the names that may be there; None: those that somebody gave and a model checked.
    Raises:
        ConceptError: it holds others, which would be lost, or is no file of names.
    """
    found = read_names(path, concepts, codes=codes) if path.exists() else []
    for entry in found:
        checked = bool(entry.get("checked_by"))
        if entry["name"] and not (checked if source is None else entry["source"] == source and not checked):
            raise ConceptError(
                f"{path}: expected a new file or names of {source or 'an earlier check'}, got concept "
                f"{entry['concept']} of another source ({entry['source']}), which would be lost: choose another --out"
            )
    return found


def _json_path(path: str | Path) -> Path:
    path = Path(path)
    if path.suffix.lower() != ".json":
        raise ConceptError(f"{path}: expected a path that ends in .json")
    return path


def _from_json(text: str, path: Path) -> list[tuple[str, dict[str, Any]]]:
    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is no number")

    try:
        entries = json.loads(text, parse_constant=refuse)
    except (ValueError, RecursionError) as error:
        raise ConceptError(f"{path}: expected JSON, got something else: {first_line(error)}") from None
    if not isinstance(entries, list):
        raise ConceptError(f"{path}: expected a list of objects, got {type(entries).__name__}")
    rows = []
    for number, entry in enumerate(entries):
        place = f"{path}, entry {number + 1}"
        if not isinstance(entry, dict) or not {"concept", "name"} <= entry.keys():
            raise ConceptError(f"{place}: expected an object with concept and name, got {_short(entry)}")
        rows.append((place, entry))
    return rows


def _entry(entry: Mapping[str, Any], place: str) -> NameEntry:
    """Return all keys, of the right kinds."""
    read = _COMMON | {key: value for key, value in entry.items() if value is not None or key not in _COMMON}
    for key, (fits, said) in _KINDS.items():
        value = read.get(key)
        if (value is not None or key == "concept") and not fits(value):
            raise ConceptError(f"{place}: expected {said} for {key}, got {_short(value)}")
        if isinstance(value, str):
            read[key] = valid_text(value) or _COMMON.get(key)
    if read["source"] not in SOURCES:
        raise ConceptError(f"{place}: expected a source of {', '.join(SOURCES)}, got {_short(read['source'])}")
    if not entry.get("source"):
        read |= {"verified": False, "status": None, "reason": BY_HAND if read["name"] else ""}
    seal = seal_of(read)
    if read.pop("seal", None) != seal and seal is not None:
        kept = {key: read[key] for key in ("concept", *SEALED, *GROUPS)}
        return _COMMON | kept | {"reason": RENAMED, "status": NOT_CHECKED}
    read["verified"] = read["verified"] and read["name"] is not None
    return read | {"status": status_of(read)}


def _is_number(value: Any) -> bool:
    try:
        return not isinstance(value, bool) and isinstance(value, (int, float)) and math.isfinite(value)
    except OverflowError:  # a whole number beyond the largest float
        return False


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}..."
