"""The folder of a page: claimed, recognised, cleaned of what a former page left; and how values are written in it.

Values are classic scripts `htafData("NAME", VALUE);`: a page opened from disk may load scripts, but fetch nothing.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from htaf._ground.files import expect_folder
from htaf.concepts.codes import ConceptError
from htaf.concepts.naming.files import valid_text
from htaf.training.runs import LOCK, locked, write_atomic

FORMAT = 3
PAGE = Path(__file__).parent / "page"
INDEX, DATA, FULL = "index.html", "data", "full"
KINDS = {"u1": "<u1", "i4": "<i4", "f4": "<f4"}  # of the numbers of arrays
MARK = ".htaf-explorer"  # in a folder from the first moment, so that a build that was killed can be repeated


def page_files() -> dict[str, bytes]:
    """Return the page itself, as it comes with this package. Raises ConceptError: it is not there."""
    try:
        (PAGE / INDEX).stat()
        return {file.name: file.read_bytes() for file in sorted(PAGE.iterdir()) if file.is_file()}
    except OSError as error:
        raise ConceptError(f"{error.filename}: the page is missing in this installation ({error.strerror})") from None


def check_folder(out: Path) -> None:
    """Raise ConceptError unless `out` is new, empty, or a folder that `build_page` wrote."""
    expect_folder(out, "the page", ConceptError)
    try:
        others = sorted(file.name for file in out.iterdir() if file.name != LOCK)
    except FileNotFoundError:
        return
    if others and not (out / MARK).is_file():
        raise ConceptError(f"expected a new or empty folder, {out} holds {others[0]!r}: choose another --out")


@contextmanager
def claimed(out: Path) -> Iterator[None]:
    """Hold the folder while the block runs; raises ConceptError as `check_folder`, or where another process writes."""
    check_folder(out)
    with locked(out, "another process writes", ConceptError):
        (out / DATA).mkdir(exist_ok=True)
        write_atomic(out / MARK, f"format {FORMAT}\n")
        yield


def remove_stale(out: Path, kept: set[str]) -> None:
    """Remove files that this page does not have, and what a killed process left half written; the folder of data is
    the page's own."""
    for file in [*(out / DATA).rglob("*"), *out.glob(".*.*")]:  # `write_atomic` writes .NAME.RANDOM
        ours = file.parent != out or file.name[1:].rpartition(".")[0] in {*kept, MARK}
        if file.is_file() and ours and file.relative_to(out).as_posix() not in kept:
            file.unlink(missing_ok=True)
    with suppress(OSError):
        (out / DATA / FULL).rmdir()  # where it is empty


def script(name: str, value: Any) -> str:
    """Return one call of htafData, in ASCII alone; no text in it can end the script or open a comment.

    Raises:
        ValueError: a number that is not finite.
    """
    # a half of a surrogate pair would break encodeURIComponent
    whole = valid_text(json.dumps(value, ensure_ascii=False, allow_nan=False))
    text = json.dumps(json.loads(whole), separators=(",", ":")).replace("<", "\\u003c")
    return f'htafData("{name}", {text});\n'


def value_of(text: str, name: str) -> Any:
    """Return what `script` wrote. Raises ValueError: anything else."""
    start, end = f'htafData("{name}", ', ");\n"
    if not (text.startswith(start) and text.endswith(end)):
        raise ValueError(f"expected a call of htafData with {name}")
    return json.loads(text[len(start) : -len(end)])


def packed(arrays: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Arrays of bytes, whole numbers and floats as JSON: dtype u1, i4 or f4, shape, and base64 little-endian."""
    made = {}
    for name, array in arrays.items():
        kind = {"u": "u1", "i": "i4", "f": "f4"}[array.dtype.kind]
        data = np.ascontiguousarray(array, dtype=KINDS[kind]).tobytes()
        made[name] = {"dtype": kind, "shape": list(array.shape), "data": base64.b64encode(data).decode("ascii")}
    return made
