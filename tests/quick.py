"""Which rows of a table of parameters `make test` runs; the others are slow."""

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
