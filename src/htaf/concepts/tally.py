"""What the scores of codes need, as sums over images: counted part by part, in any process, and added.

A `Tally` of some images is made by `tally`; of more images by adding those of parts, in any order and by any tree:
all that is in it are exact integers, and images that a hash of their row number chooses. So the scores do not depend on
how the images are cut into parts, nor on which machine counts which.

    tallies = [tally(codes, first=first) for first, codes in open_folder(path).codes_in_pieces()]      # anywhere
    scores = htaf.concepts.scores.score_tally(functools.reduce(operator.add, tallies), weight, bias)
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import numpy as np
from jaxtyping import Float32, Int32, Int64, UInt8, UInt64

from htaf.concepts.codes import PARTS, Codes, ConceptError, PartName
from htaf.concepts.counts import both_counts, class_counts, class_sizes, labelled_rows, taken

IMAGES, LABELLED, SMOOTH_KNOWN, EXACT_KNOWN, SMOOTH_RIGHT, EXACT_RIGHT, DIFFERENT = range(7)  # of `Tally.predictions`
SAMPLE = 131_072  # images that the completeness and the number of contributing concepts are taken of


@dataclass(frozen=True, eq=False)
class Tally:
    """Sums over some images of one network with C concepts and K classes.

    Attributes:
        concepts, classes: C, and names of the K classes.
        fitted, scored: the parts that scores are fitted and scored on.
        predictions: int64 [4, 7], of each of PARTS: images; those with a label; and of these how many have a class
            from the smooth network, have one from the exact network, are right by the smooth one, by the exact one, and
            how many the two give different classes.
        counts: int64 [2, C, K], how many labelled images of class k of the fitted and the scored part have bit c.
        sizes: int64 [2, K], how many labelled images of class k these have.
        pairs: int64 [C, C], how many labelled images of the fitted part have both bits.
        saturated: smooth outputs > 0.99 or < 0.01 of the labelled images of the scored part.
        unsaturated: of how many of these images it is not known.
        sample: at most `limit` labelled images of the scored part: those of the smallest hashes of their row numbers.
        limit: how many.
    """

    concepts: int
    classes: tuple[str, ...]
    fitted: PartName
    scored: PartName
    predictions: Int64[np.ndarray, "parts 7"]
    counts: Int64[np.ndarray, "2 concepts classes"]
    sizes: Int64[np.ndarray, "2 classes"]
    pairs: Int64[np.ndarray, "concepts concepts"]
    saturated: int
    unsaturated: int
    sample: Sample
    limit: int

    def __add__(self, other: Tally) -> Tally:
        """The tally of the images of both, which must be different ones.

        Raises:
            ConceptError: they are of other concepts, classes, parts or limits.
        """
        for name in ("concepts", "classes", "fitted", "scored", "limit"):
            here, there = getattr(self, name), getattr(other, name)
            if here != there:
                raise ConceptError(f"expected tallies of the same {name}, got {here!r:.80} and {there!r:.80}")
        names = ("predictions", "counts", "sizes", "pairs", "saturated", "unsaturated")
        sums = {name: getattr(self, name) + getattr(other, name) for name in names}
        return replace(self, **sums, sample=self.sample.joined(other.sample, self.limit))


@dataclass(frozen=True, eq=False)
class Sample:
    """Labelled images of the scored part, by row number: rows int64 [S], bits as in `Codes`, labels int32 [S]."""

    rows: Int64[np.ndarray, " images"]
    bits: UInt8[np.ndarray, "images bytes"]
    labels: Int32[np.ndarray, " images"]

    def codes(
        self, of: Tally, weight: Float32[np.ndarray, "classes concepts"], bias: Float32[np.ndarray, " classes"]
    ) -> Codes:
        """Codes without ids and predictions."""
        none = np.full(len(self.rows), -1, np.int32)
        return Codes(
            bits=self.bits,
            concepts=of.concepts,
            classes=of.classes,
            labels=self.labels,
            parts=np.full(len(self.rows), PARTS.index(of.scored), np.uint8),
            ids=(),
            weight=weight,
            bias=bias,
            smooth=none,
            exact=none,
            saturated=none,
        )

    def joined(self, other: Sample, limit: int) -> Sample:
        """Of both those of the smallest hashes."""
        arrays = [np.concatenate([getattr(self, f.name), getattr(other, f.name)]) for f in fields(self)]
        kept = chosen(arrays[0], limit)
        order = kept[np.argsort(arrays[0][kept])]
        return Sample(*(array[order] for array in arrays))


def tally(
    codes: Codes,
    *,
    first: int = 0,
    fitted: PartName = "train",
    scored: PartName = "test",
    limit: int = SAMPLE,
    baseline: bool = False,
) -> Tally:
    """The tally of some images.

    Memory does not grow with their number, but for a copy of the packed bits where the labelled images of a part do not
    lie in one piece.

    Args:
        codes: such as one part of several.
        first: the row number of their first image in the whole.
        fitted, scored: parts as in `htaf.concepts.scores.score`.
        limit: images in the sample.
        baseline: only what is asked of a baseline is counted, the classes of the scored part.

    Raises:
        ConceptError: a label that is no class, or an unknown part.
    """
    c, k = codes.concepts, len(codes.classes)
    counts, sizes = np.zeros((2, c, k), np.int64), np.zeros((2, k), np.int64)
    pairs, saturated, unsaturated = np.zeros((c, c), np.int64), 0, 0
    sample = Sample(np.empty(0, np.int64), np.empty((0, codes.bits.shape[1]), np.uint8), np.empty(0, np.int32))
    if len(fit := labelled_rows(codes, fitted)) and not baseline:
        images = taken(codes, fit)
        counts[0], pairs = both_counts(images)
        sizes[0] = class_sizes(images)
    if len(test := labelled_rows(codes, scored)):
        images = taken(codes, test)
        again = fitted == scored and not baseline
        counts[1], sizes[1] = (counts[0], sizes[0]) if again else (class_counts(images), class_sizes(images))
        known = np.asarray(images.saturated) >= 0
        saturated, unsaturated = int(images.saturated[known].sum(dtype=np.int64)), int((~known).sum())
        kept = chosen(test + first, limit)
        every = len(kept) == len(test)
        sample = Sample(
            test[kept] + first,
            images.bits if every else np.ascontiguousarray(images.bits[kept]),
            images.labels if every else np.ascontiguousarray(images.labels[kept]),
        )
    return Tally(
        concepts=c,
        classes=tuple(codes.classes),
        fitted=fitted,
        scored=scored,
        predictions=_predictions(codes),
        counts=counts,
        sizes=sizes,
        pairs=pairs,
        saturated=saturated,
        unsaturated=unsaturated,
        sample=sample,
        limit=limit,
    )


def _predictions(codes: Codes) -> Int64[np.ndarray, "parts 7"]:
    """See `Tally`."""
    found = np.zeros((len(PARTS), 7), np.int64)
    labels, smooth, exact = (np.asarray(values) for values in (codes.labels, codes.smooth, codes.exact))
    known = labels >= 0
    columns = {
        IMAGES: np.ones_like(known),
        LABELLED: known,
        SMOOTH_KNOWN: known & (smooth >= 0),
        EXACT_KNOWN: known & (exact >= 0),
        SMOOTH_RIGHT: known & (smooth == labels),
        EXACT_RIGHT: known & (exact == labels),
        DIFFERENT: known & (smooth != exact),
    }
    for column, images in columns.items():
        found[:, column] = np.bincount(codes.parts[images], minlength=len(PARTS))
    return found


def chosen(rows: Int64[np.ndarray, " rows"], limit: int) -> Int64[np.ndarray, " chosen"]:
    """Places, ascending, of the `limit` row numbers of the smallest hashes; of all where there are no more."""
    if len(rows) <= limit:
        return np.arange(len(rows))
    return np.sort(np.lexsort((rows, mixed(rows)))[:limit])


def mixed(rows: Int64[np.ndarray, " rows"]) -> UInt64[np.ndarray, " rows"]:
    """A hash of row numbers, one to one. Source: the finaliser of SplitMix64 (Steele, Lea and Flood 2014)."""
    x = np.asarray(rows).astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
