"""Read and write records of cells: what was measured, one JSON object a cell.

A folder of finished results holds `cells.jsonl`, a record a line; one in which cells are computed also holds
`cells/<key>/record.json`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from htaf._ground.errors import HtafError, first_line
from htaf._ground.files import parse_json, regular, write_atomic

FILE = "cells.jsonl"


class RecordsError(HtafError):
    """A file of records that is damaged."""


def read_records(folder: Path) -> list[dict[str, Any]]:
    """The records of a folder: the lines of `cells.jsonl`, then `cells/*/record.json` in the order of their keys.

    Raises:
        RecordsError: a file that cannot be read, or a line that is no object of JSON.
    """
    computed = sorted(folder.glob("cells/*/record.json"))
    return read_lines(folder / FILE) + [_record(_bytes(one), str(one)) for one in computed]


def read_lines(file: Path) -> list[dict[str, Any]]:
    """The records of a file, one a line; none where it is not there. Raises RecordsError: as `read_records`."""
    lines = _bytes(file).splitlines() if file.exists() else []
    return [_record(line, f"{file}, line {number}") for number, line in enumerate(lines, 1)]


def write_records(path: Path, records: Iterable[Mapping[str, Any]]) -> None:
    """Write records as compact JSON, one a line, sorted and each once: the same bytes for the same records.

    Raises:
        OSError: as `write_atomic`; the file is written whole or not at all.
    """
    compact: dict[str, Any] = {"sort_keys": True, "allow_nan": False, "ensure_ascii": False, "separators": (",", ":")}
    write_atomic(path, "".join(f"{line}\n" for line in sorted({json.dumps(one, **compact) for one in records})))


def _bytes(file: Path) -> bytes:
    try:
        return regular(file).read_bytes()
    except OSError as error:
        raise RecordsError(f"{file} cannot be read: {first_line(error)}") from None


def _record(text: bytes, place: str) -> dict[str, Any]:
    try:
        record = parse_json(text)
    except ValueError as error:
        raise RecordsError(f"{place} is damaged: {first_line(error)}") from None
    if not isinstance(record, dict):
        raise RecordsError(f"{place} is damaged: expected a record, an object of JSON, got {type(record).__name__}")
    return record
