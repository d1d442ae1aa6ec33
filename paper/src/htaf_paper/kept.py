"""What an earlier call of a study left in its folder: read with care, as anyone may have changed it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from htaf._errors import HtafError
from htaf._files import parse_json


class KeptError(HtafError):
    """A file of results that is damaged or that another program wrote."""


def read_kept(file: Path, use: Callable[[Any], object]) -> Any:
    """The values of a JSON file of an earlier call.

    Args:
        file: its path. use: reads all of the values that are needed later; whatever it raises for them is told as
            damage.

    Returns:
        the values; None where there is no file.

    Raises:
        KeptError: no JSON, or values that `use` cannot read.
    """
    with kept_errors(file):
        try:
            data = file.read_bytes()
        except FileNotFoundError:
            return None
        value = parse_json(data)
        use(value)
    return value


@contextmanager
def kept_errors(place: Path) -> Iterator[None]:
    """Raises KeptError, with the place and what to do, for values that cannot be read as results."""
    try:
        yield
    except (OSError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError, StopIteration) as error:
        found = f"no {error}" if isinstance(error, KeyError) else f"{type(error).__name__}: {error}".splitlines()[0]
        raise KeptError(
            f"{place}: expected results that this command wrote, got others or damaged ones ({found}): move it away "
            "and give the same command again, or choose another --out"
        ) from None
