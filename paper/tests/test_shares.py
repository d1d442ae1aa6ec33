"""Shares of a study are all of its cells, each once."""

from __future__ import annotations

import argparse

import pytest
from hypothesis import given
from hypothesis import strategies as st

from htaf_paper.shares import share


@given(st.integers(0, 40), st.integers(1, 9))
def test_all_cells_once(cells: int, of: int) -> None:
    taken = [cell for i in range(1, of + 1) for cell in range(cells)[share(f"{i}/{of}")]]
    assert sorted(taken) == list(range(cells))


@pytest.mark.parametrize("text", ["0/1", "2/1", "1", "1/0", "a/b", "", "1/2/3", "-1/2"])
def test_what_is_no_share(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=r"expected I/N .* got"):
        share(text)
