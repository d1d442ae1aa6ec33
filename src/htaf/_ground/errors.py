"""The one base of errors that a user can cause, and what every room shares of checks and messages."""

from __future__ import annotations

import contextlib
import ctypes
import difflib
import math
import numbers
import os
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from pathlib import Path

LEAST, MOST = 2.0**-123, 2.0**123  # of parameters, whatever the dtype of x: small multiples are normal in float32 too
SEEDS = 2**63  # PyTorch's generators take no more

# packages that `pip install htaf` does not bring -> the extra that does
EXTRAS = {
    **dict.fromkeys(("pandas", "pyarrow", "sklearn", "scipy", "joblib", "tyro", "rich", "jinja2"), "tables"),
    **dict.fromkeys(("lightning", "torchmetrics", "matplotlib", "PIL"), "tables"),
    **dict.fromkeys(("torchvision", "timm", "openai", "pydantic"), "images"),
    **dict.fromkeys(("transformers", "peft", "accelerate", "gguf"), "language"),
    **dict.fromkeys(("onnx", "onnxscript", "onnxruntime", "nir"), "export"),
    **dict.fromkeys(("ray", "mosec"), "scale"),
    "huggingface_hub": "hub",
}


class HtafError(Exception):
    """Its message is one sentence for the user: the command prints it without a traceback and exits with 1."""


class DataError(HtafError, ValueError):
    """Data that cannot be used as it is; the message is one line: what was expected and what came."""


class MissingError(ModuleNotFoundError):
    """A package is not installed that an extra of htaf brings; the message says which extra."""


class TooLargeError(HtafError):
    """What was asked for cannot fit into the memory of this machine."""


_SAID_BY_COMMAND = ContextVar("said by the command", default=False)


@contextlib.contextmanager
def said_by_command() -> Iterator[None]:
    """In the block messages are read by someone who gave a command: `option` says flags."""
    before = _SAID_BY_COMMAND.set(True)
    try:
        yield
    finally:
        _SAID_BY_COMMAND.reset(before)


def option(flag: str, python: str) -> str:
    """What to give in another way: a flag where the command says it, else how Python calls it."""
    return flag if _SAID_BY_COMMAND.get() else python


def suggestion(wanted: str, known: Sequence[str], most: int = 1) -> str:
    """` (did you mean 'x'?)` for the nearest known names, or an empty text when none is near."""
    lowered = {name.lower(): name for name in known}
    near = difflib.get_close_matches(wanted.lower(), lowered, n=most, cutoff=0.6)
    return f" (did you mean {' or '.join(repr(lowered[name]) for name in near)}?)" if near else ""


def listed(names: Sequence[object], limit: int = 30) -> str:
    """Names joined by commas, cut after `limit` with a count of the rest."""
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(repr(name) for name in names[:limit]) + more


def counted(count: int, noun: str) -> str:
    """`1 row`, `2 rows`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def first_line(error: BaseException) -> str:
    """The first line of an error's message, or its type where there is none."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


@contextlib.contextmanager
def installed() -> Iterator[None]:
    """Around imports of packages that an extra brings: where one is not there, the error says which extra."""
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in EXTRAS or isinstance(error, MissingError):
            raise
        instead = f"this needs {package}: pip install 'htaf[{EXTRAS[package]}]'"
        raise MissingError(instead, name=error.name) from None


def expect_seed(seed: int, error: type[Exception], name: str = "seed") -> None:
    """Raises `error` unless every generator takes this seed."""
    if not 0 <= seed < SEEDS:
        raise error(f"{name} must be >= 0 and below 2**63, got {seed}")


def check_positive(name: str, value: float) -> float:
    """The value as a float; ValueError unless it is > 0, finite and well within the normal numbers of float32."""
    if not isinstance(value, (float, int)) and not isinstance(value, numbers.Real):  # Dynamo knows the first test only
        raise TypeError(f"{name} must be a number or a tensor, got {value!r}")
    if not 0.0 < value < math.inf:  # also False for NaN
        raise ValueError(f"{name} must be > 0 and finite, got {value}")
    if not LEAST <= value <= MOST:
        raise ValueError(f"{name} must be from {LEAST:.3g} to {MOST:.3g}, which float32 can hold, got {value}")
    return float(value)


def check_finite(name: str, value: float) -> float:
    """The value as a float; TypeError unless it is a number, ValueError unless it is finite."""
    if not isinstance(value, (float, int)) and not isinstance(value, numbers.Real):
        raise TypeError(f"{name} must be a number, got {value!r}")
    if not -math.inf < value < math.inf:
        raise ValueError(f"{name} must be finite, got {value}")
    return float(value)


def expect_memory(needed: float, what: str, instead: str) -> None:
    """Raises TooLargeError, with figures, where so many bytes are more than this machine's memory."""
    have = _memory()
    if needed > have:
        raise TooLargeError(f"{what} needs {_size(needed)} of memory, this machine has {_size(have)}: {instead}")


def release_memory() -> None:
    """Give memory that was freed back to the system, where the C library can (glibc); it keeps most of it otherwise."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if os.name == "posix" else None
    if trim is not None:
        trim(0)


def _memory() -> float:
    """Bytes of memory of this machine, or of the control group in which this process runs; inf where unknown."""
    try:
        have = float(os.sysconf("SC_PAGE_SIZE")) * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return float("inf")
    try:
        return min(have, float(Path("/sys/fs/cgroup/memory.max").read_text()))
    except (OSError, ValueError):  # "max": no limit
        return have


def _size(count: float) -> str:
    return f"{count / 1e9:,.1f} GB" if count < 1e13 else f"{count / 1e12:,.0f} TB" if count < 1e18 else f"{count:.0e} B"
