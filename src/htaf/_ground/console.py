"""How the command speaks: JSON, notes, and errors as one clear line with an exit code."""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import signal
import sys
import time
import unicodedata
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, NoReturn

from htaf import __version__
from htaf._ground.compat import no_trace
from htaf._ground.errors import HtafError, MissingError, expect_seed, installed, said_by_command
from htaf._ground.files import OutputError

if TYPE_CHECKING:
    from rich.console import Console

_MARKUP = re.compile(r"[\\`*\[\]<>|~&$]|(?<![^\W_])_|_(?![^\W_])")  # an underscore within a word is none
HIDDEN = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})  # control, format (bidirectional too), surrogates, line, paragraph
EXITS = {  # exit codes of the command, in docs/command.md too
    0: "done",
    1: "it failed",
    2: "it was used wrongly",
    3: "done, except for images that cannot be read",
    130: "stopped by Ctrl-C",
    143: "stopped by SIGTERM",
}
DONE, FAILED, MISUSED, UNREAD, STOPPED, TERMINATED = EXITS
LISTED = 20
Rows = Iterable[Sequence[object]]


def visible(text: str, keep: str = "") -> str:
    r"""The text with control, format, surrogate and separator characters, but those to keep, as \uXXXX.

    For a terminal; without `keep` on one line.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        _escaped(letter) if letter not in keep and unicodedata.category(letter) in HIDDEN else letter for letter in text
    )


def markdown_text(text: str) -> str:
    """A name that others gave as plain text in Markdown, in a cell of a table too: no markup, no HTML, nothing hidden
    in it (`visible`)."""
    return _MARKUP.sub(r"\\\g<0>", visible(text))


def _escaped(letter: str) -> str:
    return json.dumps(letter)[1:-1] if ord(letter) != 0x7F else "\\u007f"


def terminal(**options: Any) -> Console:
    """A console of rich for text with names that others gave: they are shown letter by letter, nothing hidden in them.

    No markup and no emoji codes are read; control and bidirectional characters show as \\uXXXX (`visible`).

    Args:
        options: of `rich.console.Console`.
    """
    with no_trace():  # rich draws a number of `random`
        from rich.console import Console
        from rich.text import Text

    class Terminal(Console):
        def render_str(self, text: str, **options: Any) -> Text:
            return super().render_str(visible(text, keep="\n"), **options)

        def on_broken_pipe(self) -> None:
            raise BrokenPipeError  # for `plain_errors`: rich would end with exit code 1

    return Terminal(markup=False, emoji=False, **options)


def tell(text: str) -> None:
    """A line on the error stream, so that results can be piped."""
    print(visible(text, keep="\n"), file=sys.stderr)


class UsageError(Exception):
    """The command was used wrongly: exit code 2."""


class Terminated(KeyboardInterrupt):
    """SIGTERM has come: exit code 143."""


class Ended(Exception):
    """A verb has ended with a message and an exit code."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


def say(*words: object, sep: str = " ", end: str = "\n") -> None:
    """As `print`, with nothing hidden in the text (`visible`)."""
    print(*(visible(str(word), keep="\n") for word in words), sep=sep, end=end)


TOLD = (UsageError, OutputError, HtafError, MissingError, Ended, KeyboardInterrupt, OSError, MemoryError)  # in one line


@dataclass
class Command:
    """The verb that runs, and what it answers to `--json`.

    Attributes:
        verb: its words, None: no verb. keeps: whether the same command goes on from what was done. json: whether there
            is an answer to give. result: of the verb. notes: said on the way. busy: progress is shown.
    """

    verb: str | None = None
    keeps: bool = False
    json: bool = False
    result: Any = None
    notes: list[str] = field(default_factory=list)
    busy: bool = False

    @property
    def stopped(self) -> str:
        """The message of a stopped command."""
        kept = "goes on from what is done" if self.keeps else "begins anew: nothing unfinished is kept"
        if self.verb and self.verb.startswith("train "):
            kept = "goes on from the last checkpoint, if there is one yet (--checkpoint-seconds)"
        return f"stopped; the same command {kept}"

    def answer(self, error: BaseException | None = None) -> str:
        """The one object of `--json`, the same for all verbs."""
        message, code = self.ended(error) if error else (None, DONE)
        told = {"htaf": __version__, "verb": self.verb, "result": plain(self.result), "notes": self.notes}
        told["error"] = error and {"code": code, "message": message}
        # what `visible` writes as \\uXXXX is the same text to a reader of JSON
        return visible(json.dumps(told, indent=1, allow_nan=False, ensure_ascii=False), keep="\n")

    def tell(self, error: BaseException | None = None) -> None:
        """The answer on the output, once, where it was asked for."""
        if self.json:
            self.json = False
            print(self.answer(error), flush=True)

    def ended(self, error: BaseException) -> tuple[str, int]:
        """The message and the exit code of what ended a verb."""
        if isinstance(error, Ended):
            return str(error), error.code
        if isinstance(error, SystemExit):  # tyro has said what it expected
            return f"wrong flags or values, see the error stream; htaf {self.verb} --help lists them", MISUSED
        if isinstance(error, (UsageError, OutputError)):
            return str(error), MISUSED
        if isinstance(error, KeyboardInterrupt):
            return self.stopped, TERMINATED if isinstance(error, Terminated) else STOPPED
        if isinstance(error, (HtafError, MissingError)):
            return str(error), FAILED
        if isinstance(error, MemoryError):
            return f"out of memory: {str(error) or 'a part of the work does not fit'}", FAILED
        if isinstance(error, OSError):
            return f"{error.filename or 'writing the output'}: {error.strerror or error}", FAILED
        return f"{type(error).__name__}: {error}", FAILED


_command = Command()


@contextlib.contextmanager
def running(verb: str | None, *, keeps: bool, json: bool) -> Iterator[None]:
    """A verb runs in the block; at its end, or that of an error, `--json` is answered."""
    global _command
    before, _command = _command, Command(verb, keeps, json)
    try:
        yield
        if _command.result is not None:  # else --help was asked for, or another process of a training answers
            _command.tell()
    except BrokenPipeError:
        raise
    except BaseException as error:
        if not isinstance(error, SystemExit) or error.code == MISUSED:
            _command.tell(error)
        if isinstance(error, TOLD):
            raise Ended(*_command.ended(error)) from None
        raise
    finally:
        _command = before


def print_json(value: Any) -> None:
    """The result of a verb for `--json`, on the output when the verb ends."""
    _command.result = value


def plain(value: Any) -> Any:
    """A value as JSON has it: paths are texts, arrays are lists, and what is not finite is null."""
    if isinstance(value, Mapping):
        return {str(key) if isinstance(key, PurePath) else key: plain(one) for key, one in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(one) for one in value]
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, PurePath):
        return str(value)
    return plain(value.tolist()) if hasattr(value, "tolist") else value  # of NumPy and PyTorch


def print_csv(text: str) -> None:
    """CSV on the output: as it is into a file or a pipe, with nothing hidden in it on a terminal."""
    (say if sys.stdout.isatty() else print)(text, end="")


def say_notes(notes: Sequence[str]) -> None:
    """What was handled in the data, on the error stream so that results can be piped."""
    for note in notes:
        tell(f"note: {note}")
    if _command.json:
        _command.notes += notes


def quiet_transformers() -> None:
    """Keep transformers' bars out of logs; on a terminal they stay."""
    if not sys.stderr.isatty():
        from transformers.utils.logging import disable_progress_bar

        disable_progress_bar()


def say_unread(problems: Sequence[str], total: int, count: int | None = None) -> None:
    """List files that could not be read, `count` or all of `problems`, and leave with their exit code; if there are."""
    count = len(problems) if count is None else count
    if not count:
        return
    for problem in problems[:LISTED]:
        tell(f"not read: {problem}")
    if count > LISTED:
        tell(f"not read: {count - LISTED:,} more")
    fail(f"{count:,} of {total:,} files cannot be read; all others are done", UNREAD)


def direction(gap: float, *, lower_is_better: bool = False) -> str:
    """Say whether a gap makes the exact network better or worse; nothing where it is none but rounding."""
    return "" if abs(gap) < 1e-9 else "better" if (gap < 0) == lower_is_better else "worse"


def figures(smooth: float | None, exact: float | None, *, lower_is_better: bool) -> tuple[str, str, str]:
    """Smooth, exact and gap for a table; behind the gap whether the exact network is better or worse."""
    large = max(abs(v) for v in (smooth or 0.0, exact or 0.0)) >= 1000
    digits = 1 if large else 4
    gap = None if smooth is None or exact is None else round(exact - smooth, digits) + 0.0  # no -0
    return (
        "-" if smooth is None else f"{smooth:.{digits}f}",
        "-" if exact is None else f"{exact:.{digits}f}",
        "-" if gap is None else f"{gap:+.{digits}f} {direction(gap, lower_is_better=lower_is_better)}".strip(),
    )


@contextlib.contextmanager
def progress(
    what: str, total: int | None, *, shown: bool | None = True, done: int = 0, every: float = 10.0
) -> Iterator[Callable[..., None]]:
    """What is told how many more are done: `advance(1, "accuracy 0.93")`, the note is shown behind the count.

    A bar on a terminal, which goes when all is done. Elsewhere, as in the log of a job, plain lines: one at most
    `every` seconds (0: one each time), so that what is soon done prints none. total: None where it is not known; then
    one line tells that it begins. done: how many were done before. shown: False for no word at all; None: as part of a
    command, where no other progress is shown.
    """
    what = visible(what)
    start = told = time.monotonic()
    count = done
    outer, _command.busy = _command.busy, True
    if shown is None:
        shown = _command.verb is not None and not outer

    def state(note: str) -> str:
        spent = time.monotonic() - start
        rest = 0 if total is None or count <= done else spent * (total - count) / (count - done)
        left = f", {span(rest)} left" if rest > 0 else ""
        of = f"{count:,}" if total is None else f"{count:,} of {total:,}"
        return f"{of} in {span(spent)}{left}{'; ' if note else ''}{note}"

    bar: Any = None

    def advance(more: int = 1, note: str = "") -> None:
        nonlocal count, told
        count += more
        if bar is not None:
            bar.update(bar.task_ids[0], completed=count, state=state(note))
        elif time.monotonic() - told >= every:
            told = time.monotonic()
            tell(f"{what}: {state(note)}")

    try:
        if not shown:
            yield lambda more=1, note="": None
        elif sys.stderr.isatty() and find_spec("rich"):
            from rich.progress import BarColumn, Progress, TextColumn

            console = terminal(stderr=True, highlight=False)
            before, after = (TextColumn(f"{{task.{name}}}", markup=False) for name in ("description", "fields[state]"))
            with Progress(before, BarColumn(20), after, console=console, transient=True) as bar:
                bar.add_task(what, total=total, completed=done, state="")
                yield advance
        else:
            if total is None:
                tell(what)
            yield advance
    finally:
        _command.busy = outer


def span(seconds: float) -> str:
    """A duration as people say it: 0.4 s, 12 s, 3 min, 2.5 h."""
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 9.5 else f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def check_seed(seed: int) -> None:
    """A seed is a whole number that NumPy and PyTorch both take."""
    expect_seed(seed, UsageError, "--seed")


@contextlib.contextmanager
def ended_by_signals() -> Iterator[None]:
    """Ctrl-C and what a scheduler sends, SIGTERM, raise KeyboardInterrupt in the block; the exit code is 130 or 143."""

    def terminate(*_: object) -> NoReturn:
        raise Terminated

    handlers = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: terminate}
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def plain_errors() -> Iterator[None]:
    """One clear line and an exit code instead of a traceback, for errors that a user can cause."""
    before, warnings.formatwarning = warnings.formatwarning, _warning
    try:
        with installed(), said_by_command():
            yield
        sys.stdout.flush()  # here, where an error of it is told, not at the end of Python
    except BrokenPipeError:
        pass  # the reader has gone: head, less
    except TOLD as error:
        message, code = _command.ended(error)
        with contextlib.suppress(BrokenPipeError):
            tell(f"htaf: error: {message}")
        raise SystemExit(code) from None
    finally:
        warnings.formatwarning = before
        try:
            sys.stdout.flush()
        except OSError:  # the reader has gone, or the disk is full: Python's own flush at the end would complain
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _warning(message: Warning | str, *_: object) -> str:
    """A warning as one line, without the file and the line of code that it came from."""
    return f"warning: {visible(str(message))}\n"


def fail(message: str, code: int) -> NoReturn:
    """End the command with one line and an exit code."""
    raise Ended(message, code)


def show(title: str, columns: Sequence[str], rows: Rows, *, left: Collection[str] | None = None) -> None:
    """A table under its title; None is shown as -, a float with four digits.

    Args:
        left: columns of words; all others are numbers, at the right. None: the first one.
    """
    console = terminal(highlight=False)
    from rich.table import Table

    table = Table()
    words = columns[:1] if left is None else left
    for column in columns:
        table.add_column(column, justify="left" if column in words else "right", overflow="fold")
    for row in rows:
        table.add_row(*map(_shown, row))
    if title:
        say(title)  # a table's own would be folded to its width
    console.print(table)


def _shown(value: object) -> str:
    return "-" if value is None else f"{value:.4f}" if isinstance(value, float) else str(value)
