"""A file of names, one for each concept: written, edited in a spreadsheet or on the page, read back."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from htaf._errors import first_line
from htaf._files import csv_text, regular, to_json, unguarded, write_atomic
from htaf.concepts.codes import ConceptError, letters

NameEntry = dict[str, Any]  # the name of one concept, how it was found and what its check gave

SOURCES = ("attributes", "model", "pictures", "hand", "supervised", "label-free")
LONGEST = 200  # characters of a name, a label, a candidate
COLUMNS = [
    *("concept", "name", "label_1", "label_0", "verified", "status", "held_out", "p_value", "agreement", "naming"),
    *("group_a", "group_b", "mixed", "test_a", "test_b", "source", "reason", "justification", "checked_by", "codes"),
    "seal",
]
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
    """The text with U+FFFD for each half of a surrogate pair that stands alone: UTF-8 cannot hold one."""
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
    """Say what a checked name and its labels are known by: 12 letters of their SHA-256; None for one without a check.
    Letters alone, as spreadsheets turn digits into numbers."""
    if entry.get("held_out") is None and not entry.get("verified"):
        return None
    texts = json.dumps([valid_text(entry.get(key) or "") for key in SEALED])
    return letters(hashlib.sha256(texts.encode()).hexdigest()[:12])


def status_of(entry: Mapping[str, Any]) -> str:
    """The status of a name, one of `STATUSES`: the entry's own where it agrees with its check, else what that says."""
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
    """Write names as JSON or, for a path ending in .csv, as a table of their main columns.

    Each checked name gets its `seal_of`, by which `read_names` sees whether it was renamed. In the table, texts that a
    spreadsheet would run as a formula get a ' in front, which `read_names` takes away.

    Args:
        path: ending in .json or .csv.
        codes: `htaf.concepts.codes.codes_key` of the codes that were named; None: the file does not say.
    """
    path = Path(path)
    of = {} if codes is None else {"codes": codes}
    names = [
        dict(entry) | {"status": status_of(entry)} | of | ({"seal": seal} if (seal := seal_of(entry)) else {})
        for entry in names
    ]
    if path.suffix.lower() == ".json":
        write_atomic(path, valid_text(to_json(names)))
    elif path.suffix.lower() == ".csv":
        rows = [[entry.get(key) for key in COLUMNS] for entry in names]
        write_atomic(path, valid_text(csv_text([COLUMNS, *rows], lineterminator="\r\n")))
    else:
        raise ConceptError(f"{path}: expected a path that ends in .json or .csv")


def read_names(path: str | Path, concepts: int | None = None, *, codes: str | None = None) -> list[NameEntry]:
    """Read the names of a file that `write_names`, the page or a hand wrote.

    Args:
        path: a JSON list of objects, or a CSV (separated by commas, semicolons or tabs) with the columns `concept` and
            `name` and any others of `COLUMNS`.
        concepts: how many there are; None: any.
        codes: as `write_names` takes it; None: any. A file that does not say whose its names are is taken.
    Returns:
        a dict for each concept of the file, ascending. Keys that the file lacks are None, verified False; a name
        without a source is "hand" and not verified, and so is a checked one whose seal is not that of its texts: its
        check is dropped.
    Raises:
        ConceptError: what the file holds cannot be used, or is of other codes.
    """
    path = Path(path)
    kind = path.suffix.lower()
    if kind not in (".json", ".csv"):
        raise ConceptError(f"{path}: expected a path that ends in .json or .csv")
    text = read_text(path)
    found: dict[int, NameEntry] = {}
    for place, entry in _from_json(text, path) if kind == ".json" else _from_csv(text, path):
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


def _from_csv(text: str, path: Path) -> list[tuple[str, dict[str, Any]]]:
    first = text.split("\n", 1)[0]
    table = csv.reader(io.StringIO(text, newline=""), delimiter=max(",;\t", key=first.count))
    try:
        header = [cell.strip().lower() for cell in next(table, [])]
        if missing := [name for name in ("concept", "name") if name not in header]:
            raise ConceptError(f"{path}: expected the columns concept and name, {' and '.join(missing)} missing")
        if twice := sorted({name for name in header if name in COLUMNS and header.count(name) > 1}):
            raise ConceptError(f"{path}: expected each column once, got {', '.join(twice)} again")
        rows = []
        for cells in table:
            if not any(cells):
                continue
            place = f"{path}, line {table.line_num}"
            if len(cells) > len(header):
                raise ConceptError(f"{place}: expected {len(header)} cells, got {len(cells)}")
            given = zip(header, cells, strict=False)
            rows.append((place, {name: _cell(name, cell) for name, cell in given if name in COLUMNS}))
    except csv.Error as error:
        raise ConceptError(f"{path}, line {table.line_num}: expected CSV: {error}") from None
    return rows


def _cell(name: str, cell: str) -> Any:
    """A cell as JSON would have it."""
    if name in TEXTS:
        return unguarded(cell) or None
    plain = cell.strip()
    if name == "verified":
        return plain.lower() in ("true", "yes", "1")  # a word of another language is not believed
    if not plain:
        return None
    try:
        return float(plain.replace(",", ".")) if name in NUMBERS else int(plain)
    except ValueError:
        return plain  # _entry says what was expected


def _entry(entry: Mapping[str, Any], place: str) -> NameEntry:
    """All keys, of the right kinds."""
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
