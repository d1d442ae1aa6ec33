"""Which images a page shows, and how few flips would mend those that the network gets wrong."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
from jaxtyping import Int64

from htaf.concepts.codes import Codes, PartName
from htaf.concepts.fewest_flips import Flips, fewest_flips

MOST_SECONDS = 2.0  # for the proof of a single image


def chosen_rows(codes: Codes, part: PartName, most: int, *, seed: int = 0) -> Int64[np.ndarray, " rows"]:
    """Rows of a part: all, or `most` of them, evenly over the classes.

    Of more images than that, those that the exact network gets wrong come first, up to half; the others fill up.

    Args:
        codes: with the part.
        most: >= 1.
        seed: of the choice.

    Returns:
        int64, ascending.
    """
    rows = codes.rows(part)
    if len(rows) <= most:
        return rows
    labels, exact = np.asarray(codes.labels)[rows], np.asarray(codes.exact)[rows]
    wrong = (labels >= 0) & (labels != exact)
    order = np.random.default_rng(seed).permutation(len(rows))
    turn = _turns(labels[order], wrong[order])  # the how-manyth of its class and kind
    first = order[np.lexsort((turn, ~wrong[order]))]  # wrong ones, each class in turn, then right ones likewise
    kept = first[: min(int(wrong.sum()), most // 2)]
    rest = first[int(wrong.sum()) :][: most - len(kept)]
    more = first[len(kept) : int(wrong.sum())][: most - len(kept) - len(rest)]
    return np.sort(rows[np.concatenate([kept, rest, more])])


def _turns(labels: np.ndarray, wrong: np.ndarray) -> np.ndarray:
    """For each image how many before it are of the same label and kind."""
    key = labels.astype(np.int64) * 2 + wrong
    order = np.argsort(key, kind="stable")
    starts = np.flatnonzero(np.r_[True, key[order][1:] != key[order][:-1]])
    place = np.arange(len(key)) - np.repeat(starts, np.diff(np.r_[starts, len(key)]))
    turns = np.empty(len(key), dtype=np.int64)
    turns[order] = place
    return turns


def flips_of(
    shown: Codes, seconds: float, *, advance: Callable[[int], Any] = lambda _: None
) -> tuple[dict[str, dict[str, Any]], int]:
    """The fewest flips towards the label, for images that the exact network gets wrong.

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
    found: dict[int, Flips] = {}
    wrong = np.flatnonzero((shown.labels >= 0) & (shown.labels != shown.exact)).tolist()
    for row in wrong:
        if time.monotonic() >= end:
            break
        found[row] = fewest_flips(shown, row, time_limit=0)
        if _settled(found[row]):
            advance(1)
    for row in sorted((row for row in found if not _settled(found[row])), key=lambda row: _open(shown, found[row])):
        left = end - time.monotonic()
        if left <= 0:
            break
        found[row] = fewest_flips(shown, row, time_limit=min(left, MOST_SECONDS))
        advance(1)
    return {str(row): _plain(flips) for row, flips in found.items()}, len(wrong)


def _settled(flips: Flips) -> bool:
    return flips.proven or flips.feasible is False


def _open(shown: Codes, flips: Flips) -> tuple[int, int]:
    """How far the bounds lie apart, and the upper one."""
    upper = shown.concepts + 1 if flips.upper is None else flips.upper
    return upper - flips.lower, upper


def _plain(flips: Flips) -> dict[str, Any]:
    concepts = None if flips.concepts is None else list(flips.concepts)
    return {"concepts": concepts, **{key: getattr(flips, key) for key in ("target", "proven", "lower", "feasible")}}
