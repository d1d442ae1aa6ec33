"""How the command speaks: JSON, notes, and errors as one clear line with an exit code."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import Console

from htaf._errors import HtafError, expect_seed
from htaf._files import OutputError

err = Console(stderr=True, highlight=False, soft_wrap=True)


class UsageError(Exception):
    """The command was used wrongly: exit code 2."""


def print_json(value: Any) -> None:
    """Strict JSON on the output."""
    print(json.dumps(value, indent=1, allow_nan=False, ensure_ascii=False))


def say_notes(notes: Sequence[str]) -> None:
    """What was handled in the data, on the error stream so that results can be piped."""
    for note in notes:
        err.print(f"note: {note}", markup=False)


UNREAD = 3  # exit code: done, but for some inputs
LISTED = 20


def say_unread(problems: Sequence[str], total: int, count: int | None = None) -> None:
    """List files that could not be read, `count` or all of `problems`, and leave with their exit code; if there are."""
    count = len(problems) if count is None else count
    if not count:
        return
    for problem in problems[:LISTED]:
        err.print(f"not read: {problem}", markup=False)
    if count > LISTED:
        err.print(f"not read: {count - LISTED:,} more", markup=False)
    fail(f"{count:,} of {total:,} files cannot be read; all others are done", UNREAD)


def figures(smooth: float | None, exact: float | None) -> tuple[str, str, str]:
    """Smooth, exact and gap for a table."""
    gap = None if smooth is None or exact is None else exact - smooth
    large = max(abs(v) for v in (smooth or 0.0, exact or 0.0)) >= 1000
    digits = 1 if large else 4
    return (
        "-" if smooth is None else f"{smooth:.{digits}f}",
        "-" if exact is None else f"{exact:.{digits}f}",
        "-" if gap is None else f"{gap:+.{digits}f}",
    )


def check_seed(seed: int) -> None:
    """A seed is a whole number that NumPy and PyTorch both take."""
    expect_seed(seed, UsageError, "--seed")


@contextlib.contextmanager
def plain_errors() -> Iterator[None]:
    """One clear line and an exit code instead of a traceback, for errors that a user can cause."""
    try:
        yield
    except (UsageError, OutputError) as error:
        fail(str(error), 2)
    except HtafError as error:
        fail(str(error), 1)
    except KeyboardInterrupt:
        fail(
            "stopped; train, study and concepts extract go on from what they kept when the same command is given again",
            130,
        )
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the reader has gone: head, less
    except OSError as error:
        fail(f"{error.filename or 'writing'}: {error.strerror or error}", 1)


def fail(message: str, code: int) -> None:
    """Print one line and leave."""
    err.print(f"htaf: error: {message}", markup=False)
    raise SystemExit(code)
