"""A share of the cells of a study, for several processes or machines."""

from __future__ import annotations

import argparse

HELP = "I/N: every Nth cell from the Ith, 1/N to N/N, for several processes"


def share(text: str) -> slice:
    """Which cells I/N stands for: `cells[share("1/2")]` and `cells[share("2/2")]` are all of them.

    Raises:
        argparse.ArgumentTypeError: not I/N with 1 <= I <= N.
    """
    first, _, count = text.partition("/")
    if not (first.isdecimal() and count.isdecimal() and 1 <= int(first) <= int(count)):
        raise argparse.ArgumentTypeError(f"expected I/N with I from 1 to N, such as 1/2, got {text!r}")
    return slice(int(first) - 1, None, int(count))
