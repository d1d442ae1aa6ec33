"""How the command speaks: JSON, notes, and errors as one clear line with an exit code."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

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


@contextlib.contextmanager
def progress(
    what: str, total: int | None, *, shown: bool = True, done: int = 0, every: float = 10.0
) -> Iterator[Callable[..., None]]:
    """What is told how many more are done: `advance(1, "accuracy 0.93")`, the note standing behind the count.

    A bar on a terminal, which goes when all is done. Elsewhere, as in the log of a job, plain lines: one at most
    `every` seconds (0: one each time), so that what is soon done prints none. total: None where it is not known; then
    one line tells that it begins. done: how many were done before. shown: False for no word at all.
    """
    # not `err`: the error stream may have been another when this module was imported
    console = Console(stderr=True, highlight=False)
    start = told = time.monotonic()
    count = done

    def state(note: str) -> str:
        spent = time.monotonic() - start
        rest = 0 if total is None or count <= done else spent * (total - count) / (count - done)
        left = f", {span(rest)} left" if rest > 0 else ""
        of = f"{count:,}" if total is None else f"{count:,} of {total:,}"
        return f"{of} in {span(spent)}{left}{'; ' if note else ''}{note}"

    if not shown:
        yield lambda more=1, note="": None
    elif console.is_terminal:
        before, after = (TextColumn(f"{{task.{name}}}", markup=False) for name in ("description", "fields[state]"))
        with Progress(before, BarColumn(20), after, console=console, transient=True) as bar:
            task = bar.add_task(what, total=total, completed=done, state="")

            def advance(more: int = 1, note: str = "") -> None:
                nonlocal count
                count += more
                bar.update(task, completed=count, state=state(note))

            yield advance
    else:
        if total is None:
            console.print(what, markup=False, soft_wrap=True)

        def advance(more: int = 1, note: str = "") -> None:
            nonlocal count, told
            count += more
            if time.monotonic() - told >= every:
                told = time.monotonic()
                console.print(f"{what}: {state(note)}", markup=False, soft_wrap=True)

        yield advance


def span(seconds: float) -> str:
    """A duration as people say it: 0.4 s, 12 s, 3 min, 2.5 h."""
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 9.5 else f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


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
