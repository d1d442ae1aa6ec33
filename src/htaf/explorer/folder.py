"""The folder of a page: claimed, recognised, cleaned of what a former page left."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from htaf._files import expect_folder
from htaf.concepts.codes import ConceptError
from htaf.explorer.scripts import value_of
from htaf.runs import LOCK, locked, write_atomic

FORMAT = 3
PAGE = Path(__file__).parent / "page"
INDEX, DATA, FULL = "index.html", "data", "full"
MARK = ".htaf-explorer"  # in a folder from the first moment, so that a build that was killed can be repeated


def page_files() -> dict[str, bytes]:
    """The page itself, as it comes with this package. Raises ConceptError: it is not there."""
    try:
        (PAGE / INDEX).stat()
        return {file.name: file.read_bytes() for file in sorted(PAGE.iterdir()) if file.is_file()}
    except OSError as error:
        raise ConceptError(f"{error.filename}: the page is missing in this installation ({error.strerror})") from None


def head_of(out: Path) -> dict[str, Any] | None:
    """What data/page.js of a folder says; None where there is no whole page of this format."""
    try:
        head = value_of((out / DATA / "page.js").read_text("ascii"), "page")
    except (OSError, ValueError, RecursionError):
        return None
    return head if isinstance(head, dict) and head.get("format") == FORMAT else None


def check_folder(out: Path) -> None:
    """Raises ConceptError unless `out` is new, empty, or a folder that `build_page` wrote."""
    expect_folder(out, "the page", ConceptError)
    try:
        others = sorted(file.name for file in out.iterdir() if file.name != LOCK)
    except FileNotFoundError:
        return
    if others and not (out / MARK).is_file() and head_of(out) is None:
        raise ConceptError(f"expected a new or empty folder, {out} holds {others[0]!r}: choose another --out")


@contextmanager
def claimed(out: Path) -> Iterator[None]:
    """Hold the folder while the block runs; raises ConceptError as `check_folder`, or where another process writes."""
    check_folder(out)
    with locked(out, "another process writes", ConceptError):
        (out / DATA).mkdir(exist_ok=True)
        write_atomic(out / MARK, f"format {FORMAT}\n")
        yield


OURS = ("sprite-*.webp", "bits-*.js", "ids-*.js", "texts-*.js", "maps-*.js", f"{FULL}/*.webp", "beside.js", "known.js")


def remove_stale(out: Path, kept: set[str]) -> None:
    """Sheets and parts that this page does not have, and what a killed process left half written."""
    for file in (file for pattern in OURS for file in out.glob(f"{DATA}/{pattern}")):
        if file.relative_to(out).as_posix() not in kept:
            file.unlink(missing_ok=True)
    with suppress(OSError):
        (out / DATA / FULL).rmdir()  # where it is empty
    ours = {Path(name).name for name in kept} | {MARK}
    for left in [*out.glob(".*"), *out.glob(f"{DATA}/.*"), *out.glob(f"{DATA}/{FULL}/.*")]:
        whole = left.name[1:].rpartition(".")[0]  # `write_atomic` writes .NAME.RANDOM
        if left.name != MARK and (
            whole in ours
            or whole.startswith(("sprite-", "bits-", "ids-", "texts-", "maps-"))
            or left.parent.name == FULL
        ):
            left.unlink(missing_ok=True)
