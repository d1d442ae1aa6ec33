"""What many tests use: rows of a table of parameters that `make test` runs, and the one line of an error."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def slow_but(values: Iterable[Any], *quick: Any, rows: bool = False) -> list[Any]:
    """The values as parameters, all slow but those named. rows: each value is a row of several parameters."""
    values = list(values)
    assert all(value in values for value in quick), f"expected some of {values}, got {quick}"
    slow = [pytest.param(*(value if rows else (value,)), marks=pytest.mark.slow) for value in values]
    return [value if value in quick else marked for value, marked in zip(values, slow, strict=True)]


def one_line(err: str) -> str:
    """The only error line; there must be no traceback."""
    assert "Traceback" not in err, err
    (line,) = [line for line in err.splitlines() if line.startswith("htaf: error:")]
    return line
