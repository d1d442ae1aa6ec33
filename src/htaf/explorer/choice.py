"""Which images a page shows, and the counterfactuals of those that the network gets wrong."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
from jaxtyping import Bool, Int64

from htaf.concepts.codes import Codes, PartName
from htaf.concepts.counterfactuals import Counterfactual, counterfactual
from htaf.concepts.counts import in_turn

MOST_SECONDS = 2.0  # for the proof of a single image


def chosen_rows(
    codes: Codes, part: PartName, most: int, *, seed: int = 0
) -> tuple[Int64[np.ndarray, " rows"], Bool[np.ndarray, " rows"]]:
    """Rows of a part: all, or `most` of them, half of which at least are drawn at random, evenly over the classes.

    The random ones know nothing of what the network predicts. Then come those that the exact network gets wrong, up
    to the other half, evenly over the classes too; further ones fill up where these are few.

    Args:
        codes: with the part.
        most: >= 1.
        seed: of the choice.

    Returns:
        int64, ascending; and which of them were drawn at random: a function of labels, `most` and seed alone. All,
        where all rows are chosen.
    """
    rows = codes.rows(part)
    if len(rows) <= most:
        return rows, np.ones(len(rows), dtype=bool)
    labels, exact = np.asarray(codes.labels)[rows], np.asarray(codes.exact)[rows]
    wrong = (labels >= 0) & (labels != exact)
    order = in_turn(np.random.default_rng(seed).permutation(len(rows)), labels)
    drawn, left = np.split(order, [most - most // 2])
    missed = in_turn(left[wrong[left]], labels)
    added = np.concatenate([missed, left[~wrong[left]]])[: most // 2]
    chosen = np.sort(np.concatenate([drawn, added]))
    return rows[chosen], np.isin(chosen, drawn)


def counterfactuals_of(
    shown: Codes, seconds: float, *, advance: Callable[[int], Any] = lambda _: None
) -> tuple[dict[str, dict[str, Any]], int]:
    """The counterfactuals with the label as target, for images that the exact network gets wrong.

    First the bounds of all, then proofs, the nearest bounds first, until the time is up.

    Args:
        shown: the images.
        seconds: for all of them together, about.
        advance: is told of each image that is done.

    Returns:
        by the row as text: "target", "concepts" (None: none found), "proven", "lower", "feasible"; and how many wrong
        images there are, which can be more.
    """
    end = time.monotonic() + seconds
    found: dict[int, Counterfactual] = {}
    wrong = np.flatnonzero((shown.labels >= 0) & (shown.labels != shown.exact)).tolist()
    for row in wrong:
        if time.monotonic() >= end:
            break
        found[row] = counterfactual(shown, row, time_limit=0)
        if _settled(found[row]):
            advance(1)
    for row in sorted((row for row in found if not _settled(found[row])), key=lambda row: _open(shown, found[row])):
        left = end - time.monotonic()
        if left <= 0:
            break
        found[row] = counterfactual(shown, row, time_limit=min(left, MOST_SECONDS))
        advance(1)
    return {str(row): _plain(flips) for row, flips in found.items()}, len(wrong)


def _settled(flips: Counterfactual) -> bool:
    return flips.proven or flips.feasible is False


def _open(shown: Codes, flips: Counterfactual) -> tuple[int, int]:
    """How far the bounds lie apart, and the upper one."""
    upper = shown.concepts + 1 if flips.upper is None else flips.upper
    return upper - flips.lower, upper


def _plain(flips: Counterfactual) -> dict[str, Any]:
    concepts = None if flips.concepts is None else list(flips.concepts)
    return {"concepts": concepts, **{key: getattr(flips, key) for key in ("target", "proven", "lower", "feasible")}}
