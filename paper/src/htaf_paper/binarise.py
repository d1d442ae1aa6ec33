"""Bits of a plain network by thresholds: the baselines that a network trained with a step is compared with."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from jaxtyping import Float32, Float64, Int64, UInt8

from htaf._console import progress as progress_of
from htaf._errors import expect_memory, expect_seed
from htaf.concepts.codes import PARTS, Codes, ConceptError
from htaf.concepts.counts import labelled, training_means
from htaf.concepts.heads import Fit, Head
from htaf.concepts.store import CHUNK, Features, open_features
from htaf.concepts.writing import write_codes

How = Literal["median", "rates", "random"]
MEMORY = 2**28  # bytes of features that are sorted at once
ROWS = 65_536  # images read at once
MOST = 20_000  # random hyperplanes: beyond them a head takes minutes, and says no more than their number
STRENGTH = 1e-3  # of a fitted head's L2 penalty, where no validation part chooses it


def binarise(
    source: str | Path,
    out: str | Path,
    how: How = "median",
    *,
    like: Codes | None = None,
    sorted: bool = False,
    concepts: int | None = None,
    seed: int = 0,
    progress: bool = False,
) -> Codes:
    """Codes from features: bit = feature >= threshold, one threshold for each node, from the training images.

    "median": the node's median, so that it fires for half of them. The paper's binarisation by median, BM.
    "rates": the quantile at which the node fires as often as the concept of the same number in `like`. Where features
    repeat, the nearest rate that a threshold can give; concepts.json has the largest difference, "rate_error".
    "random": no nodes but random hyperplanes, `random_hyperplanes`: what any C bits of these features are worth.

    Args:
        source: a folder with features, that `htaf.concepts.extract` wrote.
        out: a new folder, or the same one.
        like: codes of an ICBM with as many concepts and with training images, for "rates".
        sorted: for "rates": pair the nodes in the order of how often they are > 0 (then of their mean) with the
            concepts in the order of their rate, instead of by number.
        concepts: how many: for "random" (None: as many as nodes), and for "median", where so many nodes are drawn
            (None: all of them). Of "random" at most 20,000.
        seed: of hyperplanes and of nodes drawn.
        progress: show a bar on the error stream.

    Returns:
        the codes. The head is the plain network's: `exact` is what it predicts from the bits, `smooth`
        from the features, `saturated` is -1. The thresholds are in head.safetensors. Bits of hyperplanes, of drawn
        nodes and of a backbone have no head: a logistic one is fitted to the training part, its L2 strength chosen on
        the validation part where there is one.

    Raises:
        ConceptError: a folder without features or without training images; other numbers of concepts.

    Source: Park et al. 2026, class specificity and the table before and after binarisation.
    """
    features = open_features(source)
    rows = np.flatnonzero(features.parts == PARTS.index("train"))
    if not len(rows):
        raise ConceptError(f"{source}: expected training images, whose features set the thresholds, got none")
    made = bits_of(features, rows, how, like=like, sorted=sorted, concepts=concepts, seed=seed, progress=progress)
    bits, thresholds, info = made.bits, made.thresholds, made.info
    settings = {
        "what": "binarisation",
        "features": features.info["key"],
        **{name: value for name, value in info.items() if name != "rate_error"},
        "thresholds": hashlib.sha256(thresholds.tobytes()).hexdigest()[:16],
    }
    weight, bias = features.weight, features.bias
    if not made.own_head:
        with progress_of(f"head on {len(thresholds):,} bits", None, shown=progress):
            head = _fitted(made.codes(features))
        weight, bias = head.weight.astype(np.float32), head.bias.astype(np.float32)
    exact = np.empty(len(features), np.int32)
    for some in (slice(first, first + CHUNK) for first in range(0, len(features), CHUNK)):
        values = np.unpackbits(bits[some], axis=1, count=len(thresholds), bitorder="little")
        exact[some] = (values.astype(np.float32) @ weight.T + bias).argmax(1)
    codes = replace(made.codes(features), weight=weight, bias=bias, smooth=features.smooth, exact=exact)
    told = {name: features.info[name] for name in ("run", "method", "model", "notes") if name in features.info}
    return write_codes(out, codes, settings, thresholds=thresholds, info=told | info).codes()


@dataclass(frozen=True, eq=False)
class MadeBits:
    """Bits of features.

    Attributes:
        bits: uint8 [N, ceil(C / 8)], packed. thresholds: float32 [C].
        info: how they were made.
        own_head: whether the head of the features reads them.
    """

    bits: UInt8[np.ndarray, "images bytes"]
    thresholds: Float32[np.ndarray, " concepts"]
    info: dict[str, Any]
    own_head: bool

    def codes(self, features: Features) -> Codes:
        """The bits as codes in memory, with a head of zeros and no predictions."""
        nothing = np.full(len(self.bits), -1, np.int32)
        k, c = len(features.classes), len(self.thresholds)
        fields = (features.classes, features.labels, features.parts, features.ids)
        head = (np.zeros((k, c), np.float32), np.zeros(k, np.float32))
        return Codes(self.bits, c, *fields, *head, nothing, nothing, nothing, info=self.info)


def bits_of(
    features: Features,
    rows: Int64[np.ndarray, " rows"],
    how: How,
    *,
    like: Codes | None = None,
    sorted: bool = False,
    concepts: int | None = None,
    seed: int = 0,
    progress: bool = False,
) -> MadeBits:
    """The bits that `binarise` writes, in memory; arguments as there.

    Args:
        rows: the training images.
    """
    if how != "rates" and (like is not None or sorted):
        raise ConceptError("like and sorted are for how='rates'")
    info: dict[str, Any] = {"how": how}
    centre = directions = nodes = None
    if how == "rates":
        if concepts is not None:
            raise ConceptError("concepts is for how='median' and how='random'")
        wanted = _wanted(features, rows, like, sorted)
        thresholds, achieved = rate_thresholds(features, rows, wanted)
        info |= {"sorted": sorted, "rate_error": float(np.abs(achieved - wanted).max() / len(rows))}
    elif how == "random":
        centre, directions, thresholds = random_hyperplanes(features, rows, concepts, seed, progress=progress)
        info |= {"seed": seed}
    else:
        thresholds = median_thresholds(features, rows)
        if concepts is not None:
            nodes = drawn_nodes(features.values.shape[1], concepts, seed)
            thresholds, info = thresholds[nodes], info | {"seed": seed}
    bits = np.zeros((len(features), (len(thresholds) + 7) // 8), np.uint8)
    for first in range(0, len(features), CHUNK):
        part = slice(first, first + CHUNK)
        read = np.asarray(features.values[part])
        values = read if nodes is None else read[:, nodes]
        if directions is not None:
            values = (read - centre) @ directions
        bits[part] = np.packbits(values >= thresholds, axis=1, bitorder="little")
    own = directions is None and nodes is None and features.info.get("settings", {}).get("layer") != "backbone"
    return MadeBits(bits, thresholds, info, own)


def random_hyperplanes(
    features: Features,
    rows: Int64[np.ndarray, " rows"],
    concepts: int | None,
    seed: int,
    *,
    progress: bool = False,
) -> tuple[
    Float32[np.ndarray, " features"], Float32[np.ndarray, "features concepts"], Float32[np.ndarray, " concepts"]
]:
    """Hyperplanes in random directions, each with half of these images on either side: bit = (x - m) @ d >= t.

    d_j = g_j / sd, with g standard normal and sd the nodes' standard deviations over these images, so that every node
    has the same say; a node that never changes has none. m: their means. t_j is the median of (x - m) @ d_j.

    Args:
        rows: the training images.
        concepts: C, at most 20,000; None: as many as nodes.
        seed: of g.
        progress: show a bar on the error stream.

    Returns:
        m float32 [F], d float32 [F, C] and t float32 [C].

    Raises:
        ConceptError: fewer than one concept or more than 20,000, or a seed out of range.
        TooLargeError: more than fit into memory.

    Source: Charikar 2002 (random hyperplane rounding).
    """
    expect_seed(seed, ConceptError)
    size = features.values.shape[1]
    count = size if concepts is None else concepts
    if not 1 <= count <= MOST:
        raise ConceptError(f"concepts must be in 1 to {MOST:,} for random bits, got {count:,}: choose fewer")
    # directions in three forms; bits, packed and as a head's inputs
    needed = count * (20.0 * size + 5.0 * len(features))
    expect_memory(needed, f"{count:,} random bits of {len(features):,} images", "choose fewer")
    total, squares = np.zeros(size), np.zeros(size)
    shift = np.asarray(features.values[rows[0]], np.float64)  # against cancellation in the squares
    for some in _chunks(rows):
        block = features.values[some].astype(np.float64) - shift
        total += block.sum(0)
        squares += (block * block).sum(0)
    variance = squares / len(rows) - (total / len(rows)) ** 2
    alive = variance > 1e-12 * (squares / len(rows))
    scale = np.where(alive, 1 / np.sqrt(np.where(alive, variance, 1)), 0)
    normal = np.random.default_rng(seed).standard_normal((size, count))
    directions, centre = (normal * scale[:, None]).astype(np.float32), (shift + total / len(rows)).astype(np.float32)
    thresholds, width = [], max(1, min(count, MEMORY // (4 * len(rows))))
    with progress_of("hyperplanes", count, shown=progress) as advance:
        for first in range(0, count, width):
            some = directions[:, first : first + width]
            projected = np.concatenate([(features.values[part] - centre) @ some for part in _chunks(rows)])
            thresholds.append(np.median(projected, axis=0).astype(np.float32))
            advance(some.shape[1])
    return centre, directions, np.concatenate(thresholds)


def drawn_nodes(size: int, concepts: int, seed: int) -> Int64[np.ndarray, " concepts"]:
    """Numbers of `concepts` of `size` nodes, drawn at random, ascending.

    Raises:
        ConceptError: more than there are, fewer than one, or a seed out of range.
    """
    expect_seed(seed, ConceptError)
    if not 1 <= concepts <= size:
        raise ConceptError(f"concepts must be in 1 to {size}, the number of features, got {concepts}")
    return np.sort(np.random.default_rng(seed).permutation(size)[:concepts]).astype(np.int64)


def _fitted(codes: Codes) -> Head:
    """A logistic head on all bits."""
    train, every = labelled(codes, "train"), np.arange(codes.concepts)
    fit = Fit(train, training_means(codes), len(train), 0)
    if ((codes.parts == PARTS.index("validation")) & (codes.labels >= 0)).any():
        return fit.choose(every, labelled(codes, "validation"))[1]
    return fit.head(every, STRENGTH)


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
