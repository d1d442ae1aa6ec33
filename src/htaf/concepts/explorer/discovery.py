"""What a page shows and leads to: which images, orders of concepts and classes, typical images, concepts that go
together, one good example, and the counterfactuals of mistakes."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from typing import Any

import numpy as np
from jaxtyping import Bool, Float64, Int64
from scipy.cluster.hierarchy import leaves_list, linkage
from scipy.spatial.distance import pdist

from htaf.concepts.codes import Codes, PartName
from htaf.concepts.counterfactuals import Counterfactual, counterfactual
from htaf.concepts.counts import class_counts, class_sizes, in_turn, pair_counts
from htaf.concepts.redundancy import correlations

CLUSTERED = 2048  # rows at most: the distances of all pairs are kept
TURNED = 600  # rows up to which neighbouring leaves are turned to each other, which takes long
LOOKED_AT = 2000  # images among which an example is looked for
REASONS = 3  # concepts that should explain it
MOST_SECONDS = 2.0  # for the proof of a single counterfactual

RELATIONS = ("similar", "opposite", "together")


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


def clustered_order(profiles: Float64[np.ndarray, "rows columns"]) -> Int64[np.ndarray, " rows"]:
    """An order of rows in which similar ones stand together: the leaves of average linkage of Euclidean distances.

    Args:
        profiles: such as the share of each class's images with a concept; nan counts as 0.5.

    Returns:
        int64 [rows], a permutation; more than 2,048 rows stay as they are.
    """
    values = np.nan_to_num(np.asarray(profiles, dtype=np.float64), nan=0.5)
    rows = len(values)
    if rows < 3 or not values.shape[1] or rows > CLUSTERED:
        return np.arange(rows)
    tree = linkage(pdist(values), method="average", optimal_ordering=rows <= TURNED)
    return leaves_list(tree).astype(np.int64)


def relations(
    codes: Codes, count: int = 6
) -> tuple[Int64[np.ndarray, "3 concepts count"], Float64[np.ndarray, "3 concepts count"]]:
    """For every concept those that are similar, opposite, and together with it beyond what the class explains.

    Similar and opposite: the highest and the lowest correlation phi of two bits over all images. Together: the highest
    correlation within classes, (n_ij / n - sum_k q_k p_ik p_jk) / sqrt(v_i v_j) with v_i = sum_k q_k p_ik (1 - p_ik),
    where q_k is the share of images of class k and p_ik the share of those that have concept i. Two concepts of the
    same birds are similar; two that come and go together among images of one bird are together.

    Args:
        codes: labelled images; others are left out.
        count: how many of each kind at most.

    Returns:
        int64 [3, C, count], concepts in the order of `RELATIONS`, the strongest first, ties by number; -1 where there
        is none: only similar ones above 0, opposite ones below 0, together ones above 0. And float64 of that shape,
        their correlation; nan where there is none.
    """
    concepts, count = codes.concepts, max(1, min(count, codes.concepts - 1))
    numbers = np.full((len(RELATIONS), concepts, count), -1, dtype=np.int64)
    values = np.full(numbers.shape, np.nan)
    rows = np.flatnonzero(np.asarray(codes.labels) >= 0)
    if len(rows) < 2 or not 2 <= concepts <= CLUSTERED:
        return numbers, values
    known = codes.take(rows)
    pairs, sizes = pair_counts(known), class_sizes(known)
    phi = correlations(pairs, len(rows))
    share = class_counts(known) / np.maximum(sizes, 1)
    weighted = share * (sizes / sizes.sum())
    within = pairs / len(rows) - weighted @ share.T
    spread = np.sqrt((weighted * (1 - share)).sum(1))
    scale = np.outer(spread, spread)
    within = np.divide(within, scale, out=np.zeros_like(within), where=scale > 1e-9)
    for kind, strength in enumerate((phi, -phi, within)):
        np.fill_diagonal(strength, -np.inf)
        order = np.argsort(-strength, axis=1, kind="stable")[:, :count]
        found = np.take_along_axis(strength, order, axis=1)
        there = found > 1e-9
        numbers[kind][there] = order[there]
        values[kind][there] = np.clip(found[there], -1, 1) * (-1 if RELATIONS[kind] == "opposite" else 1)
    return numbers, values


def typical_images(
    shown: Codes, shares: Float64[np.ndarray, "concepts classes"], count: int = 8
) -> Int64[np.ndarray, "classes count"]:
    """The images of each class whose bits are nearest to the shares of the class: int64 [K, count], rows, -1 for none.

    Nearest: the smallest sum over concepts of |bit - share|, ties by row. Classes without shares have none.

    Args:
        shown: the images. shares: of the training images of a class that have a concept; nan without any.
    """
    found = np.full((len(shown.classes), count), -1, dtype=np.int64)
    labels = np.asarray(shown.labels)
    order = np.argsort(labels, kind="stable")
    starts = np.searchsorted(labels[order], np.arange(len(found) + 1))
    for k in range(len(found)):
        rows = order[starts[k] : starts[k + 1]]
        if len(rows) and not np.isnan(shares[:, k]).any():
            far = np.abs(shown.unpack(rows) - shares[:, k]).sum(1)
            best = rows[np.argsort(np.round(far, 9), kind="stable")[:count]]
            found[k, : len(best)] = best
    return found


def sample_images(
    shown: Codes, drawn: Bool[np.ndarray, " images"], count: int = 8, seed: int = 0
) -> Int64[np.ndarray, "concepts count"]:
    """Images with each concept, drawn at random: int64 [C, count], rows, -1 for none.

    Args:
        shown: the images. drawn: those that may be chosen. seed: of the choice.
    """
    found = np.full((shown.concepts, count), -1, dtype=np.int64)
    rows = np.flatnonzero(drawn)
    for concept in range(shown.concepts):
        on = rows[shown.has(concept, rows)]
        if len(on):
            rng = np.random.default_rng([seed, concept])
            chosen = on[rng.choice(len(on), min(count, len(on)), replace=False)]
            found[concept, : len(chosen)] = chosen
    return found


def strongest_images(
    shown: Codes, margins: np.ndarray, drawn: Bool[np.ndarray, " images"], count: int = 8
) -> Int64[np.ndarray, "3 concepts count"]:
    """By the margin of a bit: images that have the concept most strongly, barely, and those that barely lack it.

    Args:
        shown: the images. margins: [images, C] float, how far above its threshold a bit's pre-activation lies.
        drawn: those images that may be chosen.

    Returns:
        int64 [3, C, count], rows, ties by row; -1 for none.
    """
    found = np.full((3, shown.concepts, count), -1, dtype=np.int64)
    rows = np.flatnonzero(drawn)
    for concept in range(shown.concepts):
        values = np.asarray(margins[rows, concept], dtype=np.float32)
        on = shown.has(concept, rows)
        for kind, (members, key) in enumerate(((on, -values), (on, values), (~on, -values))):
            order = np.flatnonzero(members & ~np.isnan(values))
            best = rows[order[np.argsort(key[order], kind="stable")[:count]]]
            found[kind, concept, : len(best)] = best
    return found


def example_row(
    shown: Codes,
    drawn: Bool[np.ndarray, " images"],
    rates: Float64[np.ndarray, " concepts"],
    named: Collection[int] = (),
) -> int | None:
    """The row of an image whose decision a few concepts explain; None where there is nothing to tell apart.

    Among the images that were drawn and are classified right (without any: all drawn ones), 2,000 at most: the one in
    which the three concepts that add most to the lead of the predicted class over the second have the largest share of
    all that speaks for or against it, counting those with a name four times. What a concept adds is
    (bit - its rate) * (difference of its two weights). Ties go to the first.
    """
    rows = np.flatnonzero(drawn)
    if not len(rows) or len(shown.classes) < 2 or not shown.concepts:
        return None
    right = np.asarray(shown.labels)[rows] == np.asarray(shown.exact)[rows]
    rows = (rows[right] if right.any() else rows)[:LOOKED_AT]
    weight = shown.weight.astype(np.float64)
    gain = np.ones(shown.concepts)
    gain[list(named)] = 4
    best, most = int(rows[0]), -1.0
    for start in range(0, len(rows), 256):
        some = rows[start : start + 256]
        bits = shown.unpack(some).astype(np.float64)
        order = np.argsort(-(bits @ weight.T + shown.bias), axis=1, kind="stable")
        adds = (bits - rates) * (weight[order[:, 0]] - weight[order[:, 1]])
        top = -np.sort(-np.clip(adds, 0, None) * gain, axis=1)[:, :REASONS].sum(1)
        share = np.round(top / np.maximum(np.abs(adds).sum(1), 1e-12), 9)
        if share.max() > most:
            best, most = int(some[share.argmax()]), float(share.max())
    return best
