"""Files that are written whole or not at all, and JSON of files that anyone may have written."""

from __future__ import annotations

import json
import math
import os
import tempfile
from pathlib import Path
from typing import Any

_DEEPEST = 100  # levels: what walks over the values again must not run out of stack


def parse_json(data: bytes | str) -> Any:
    """The values of a JSON text, such that they can be compared, printed and written again.

    Raises:
        ValueError: no JSON; or NaN, infinity, a whole number beyond 64 bits, half of a surrogate pair, more than 100
            levels.
    """
    try:
        value = json.loads(data, parse_constant=_number, parse_float=_number, parse_int=_whole)
    except RecursionError:
        raise ValueError(f"expected at most {_DEEPEST} levels, got more") from None
    level, depth = [value], 0
    while level:
        inside: list[Any] = []
        for item in level:
            if isinstance(item, str):
                item.isascii() or item.encode()  # raises UnicodeEncodeError, a ValueError
            elif isinstance(item, list):
                inside += item
            elif isinstance(item, dict):
                inside += item.keys()
                inside += item.values()
        level, depth = inside, depth + 1
        if depth > _DEEPEST:
            raise ValueError(f"expected at most {_DEEPEST} levels, got more")
    return value


def _number(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"expected finite numbers, got {text:.20}")
    return value


def _whole(text: str) -> int:
    if len(text) > 20 or not -(2**63) <= int(text) < 2**64:
        raise ValueError(f"expected whole numbers of 64 bits, got {text:.24}")
    return int(text)


def write_atomic(path: Path, data: bytes | str) -> None:
    """Write a whole file or nothing: to a temporary file beside it, flushed to disk, then renamed.

    Raises:
        OSError: the disk is full or the folder is not writable; the old file, if any, is untouched.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data.encode() if isinstance(data, str) else data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
