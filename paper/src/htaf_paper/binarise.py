"""Bits of a plain network by thresholds: the baselines that a network trained with a step is compared with."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from jaxtyping import Float32, Float64, Int64

from htaf._ground.console import progress as progress_of
from htaf.concepts.codes import PARTS, Codes, ConceptError
from htaf.concepts.counts import labelled
from htaf.concepts.heads import Head, fit_of, head_of, sparse_heads
from htaf.concepts.store import CHUNK, Features, open_folder, write_codes

How = Literal["median", "rates"]
MEMORY = 2**28  # bytes of features that are sorted at once
ROWS = 65_536  # images read at once
STRENGTH = 1e-3  # of a fitted head's L2 penalty, where no validation part chooses it


def binarise(
    source: str | Path,
    out: str | Path,
    how: How = "median",
    *,
    like: Codes | None = None,
    sorted: bool = False,
    progress: bool = False,
) -> Codes:
    """Codes from features: bit = feature >= threshold, one threshold for each node, from the training images.

    "median": the node's median, so that it fires for half of them. The paper's binarisation by median, BM.
    "rates": the quantile at which the node fires as often as the concept of the same number in `like`. Where features
    repeat, the nearest rate that a threshold can give; concepts.json has the largest difference, "rate_error".

    Args:
        source: a folder with features, that `htaf.concepts.extract` wrote.
        out: a new folder, or the same one.
        like: codes of an ICBM with as many concepts and with training images, for "rates".
        sorted: for "rates": pair the nodes in the order of how often they are > 0 (then of their mean) with the
            concepts in the order of their rate, instead of by number.
        progress: show a bar on the error stream.

    Returns:
        the codes. The head is the plain network's: `exact` is what it predicts from the bits, `smooth`
        from the features, `saturated` is -1. The thresholds are in head.safetensors. Bits of a backbone
        have no head: a logistic one is fitted to the training part, its L2 strength chosen on the validation part where
        there is one.

    Raises:
        ConceptError: a folder without features or without training images; other numbers of concepts.

    Source: Park et al. 2026, class specificity and the table before and after binarisation.
    """
    features = open_folder(source).features()
    rows = np.flatnonzero(features.parts == PARTS.index("train"))
    if not len(rows):
        raise ConceptError(f"{source}: expected training images, whose features set the thresholds, got none")
    if how != "rates" and (like is not None or sorted):
        raise ConceptError("like and sorted are for how='rates'")
    info: dict[str, Any] = {"how": how}
    if how == "rates":
        wanted = _wanted(features, rows, like, sorted)
        thresholds, achieved = rate_thresholds(features, rows, wanted)
        info |= {"sorted": sorted, "rate_error": float(np.abs(achieved - wanted).max() / len(rows))}
    else:
        thresholds = median_thresholds(features, rows)
    bits = np.zeros((len(features), (len(thresholds) + 7) // 8), np.uint8)
    for first in range(0, len(features), CHUNK):
        part = slice(first, first + CHUNK)
        bits[part] = np.packbits(np.asarray(features.values[part]) >= thresholds, axis=1, bitorder="little")
    settings = {
        "what": "binarisation",
        "features": features.info["key"],
        **{name: value for name, value in info.items() if name != "rate_error"},
        "thresholds": hashlib.sha256(thresholds.tobytes()).hexdigest()[:16],
    }
    told = {name: features.info[name] for name in ("run", "method", "model", "notes") if name in features.info}
    unknown = np.full(len(features), -1, np.int32)
    fields = (features.classes, features.labels, features.parts, features.ids)
    codes = Codes(
        bits, len(thresholds), *fields, features.weight, features.bias, features.smooth, unknown, unknown, info=info
    )
    if features.info.get("settings", {}).get("layer") == "backbone":  # which has no head
        with progress_of(f"head on {len(thresholds):,} bits", None, shown=progress):
            head = _fitted(codes)
        codes = replace(codes, weight=head.weight.astype(np.float32), bias=head.bias.astype(np.float32))
    codes = replace(codes, exact=codes.predictions())
    return write_codes(out, codes, settings, thresholds=thresholds, info=told | info).codes()


def _fitted(codes: Codes) -> Head:
    """A logistic head on all bits."""
    train = labelled(codes, "train")
    if ((codes.parts == PARTS.index("validation")) & (codes.labels >= 0)).any():
        return sparse_heads(codes, (None,), cap=len(train))[0].head
    fit = fit_of(train, len(train))
    return head_of(fit, fit.logistic(fit.constant(len(codes.classes)), STRENGTH))


def median_thresholds(features: Features, rows: Int64[np.ndarray, " rows"]) -> Float32[np.ndarray, " concepts"]:
    """The median of each node over these images: float32 [C]."""
    return np.concatenate([np.median(block, axis=0).astype(np.float32) for block in _blocks(features, rows)])


def rate_thresholds(
    features: Features, rows: Int64[np.ndarray, " rows"], wanted: Int64[np.ndarray, " concepts"]
) -> tuple[Float32[np.ndarray, " concepts"], Int64[np.ndarray, " concepts"]]:
    """Thresholds at which each node fires for as many of these images as wanted, or as near as ties allow.

    Returns:
        thresholds float32 [C], infinite where a node never fires, and how many images each then fires for, int64 [C].
    """
    thresholds, achieved = [], []
    for block in _blocks(features, rows):
        block.sort(axis=0)
        for column in block.T:
            count = int(wanted[len(thresholds)])
            # of the values at the border, equal ones fire all or not at all
            border = column[len(column) - count] if count else np.float32(np.inf)
            low, high = np.searchsorted(column, border, "left"), np.searchsorted(column, border, "right")
            more, fewer = len(column) - int(low), len(column) - int(high)
            if count - fewer < more - count:
                border, more = (column[high] if fewer else np.float32(np.inf)), fewer
            thresholds.append(border)
            achieved.append(more)
    return np.array(thresholds, np.float32), np.array(achieved, np.int64)


def _wanted(
    features: Features, rows: Int64[np.ndarray, " rows"], like: Codes | None, sorted: bool
) -> Int64[np.ndarray, " concepts"]:
    """For how many training images each node is to fire."""
    if like is None:
        raise ConceptError("how='rates' needs like: the codes whose rates the nodes are to have")
    if like.concepts != features.values.shape[1]:
        raise ConceptError(f"expected {features.values.shape[1]} concepts, as many as features, got {like.concepts}")
    theirs = like.rows("train")
    if not len(theirs):
        raise ConceptError("expected training images among the codes to be like, got none")
    fired = sum(like.unpack(some).sum(axis=0, dtype=np.int64) for some in _chunks(theirs))
    wanted = np.rint(fired * (len(rows) / len(theirs))).astype(np.int64)
    if not sorted:
        return wanted
    above, total = (np.concatenate(found) for found in zip(*map(_activity, _blocks(features, rows)), strict=True))
    paired = np.empty_like(wanted)
    paired[np.lexsort((total, above))] = np.sort(wanted)
    return paired


def _activity(
    block: Float32[np.ndarray, "rows some"],
) -> tuple[Int64[np.ndarray, " some"], Float64[np.ndarray, " some"]]:
    return (block > 0).sum(axis=0), block.sum(axis=0, dtype=np.float64)


def _blocks(features: Features, rows: Int64[np.ndarray, " rows"]) -> Iterator[Float32[np.ndarray, "rows some"]]:
    """The features of these images, so many nodes at a time as memory allows; copies."""
    concepts = features.values.shape[1]
    width = max(1, min(concepts, MEMORY // (4 * len(rows))))
    for first in range(0, concepts, width):
        block = np.empty((len(rows), min(width, concepts - first)), np.float32)
        place = 0
        for some in _chunks(rows):
            block[place : place + len(some)] = features.values[some, first : first + width]
            place += len(some)
        yield block


def _chunks(rows: Int64[np.ndarray, " rows"]) -> Iterator[Int64[np.ndarray, " some"]]:
    return (rows[first : first + ROWS] for first in range(0, len(rows), ROWS))
