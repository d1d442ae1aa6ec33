"""How often bits are set, by class and in pairs, and what that says: groups of classes, concepts that say the same.

Counting streams: a part of the rows is read, turned on its side (one row of bits a concept) and counted by
`htaf.functional.count_common_bits`, so that memory does not grow with the number of images. Counts are exact integers.

A sorting is a number for each class or image: 1 where the first label of a name was chosen, 0 where the second, 0.5
where it was left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import comb
from typing import Any, TypeVar

import numpy as np
import torch
from jaxtyping import Bool, Float64, Int8, Int32, Int64

from htaf._ground.errors import counted
from htaf.concepts.codes import PARTS, Codes, ConceptError, MissingPartError, PartName
from htaf.concepts.store import Features
from htaf.core.functional import count_common_bits, transpose_bits

OfImages = TypeVar("OfImages", bound=Codes | Features)
CHUNK = 65_536  # images at once, a multiple of 8: 4 MiB of 512 concepts
AGREEMENT, CORRELATION = 0.99, 0.9
FEW = 8  # distinct bits: fewer are divisions of the classes
IN_A, IN_B, MIXED, EMPTY = 1, 0, -1, -2
LOW, HIGH = 0.2, 0.8  # bounds of the groups
LEVEL = 0.05  # of the p-value
FEWEST_CLASSES = 10  # half of them check: C(6, 3) = 20 groups of three, so that the right sorting has p = 1 / 20


def class_counts(codes: Codes) -> Int64[np.ndarray, "concepts classes"]:
    """How many images of class k have bit c: int64 [C, K]. Images without a label are not counted.

    Raises:
        ConceptError: a label that is no class.
    """
    _check(codes)
    counts = np.zeros((codes.concepts, len(codes.classes)), dtype=np.int64)
    for start, columns in _columns(codes):
        members = _members(codes.labels[start : start + CHUNK], len(codes.classes))
        counts += count_common_bits(columns, members).numpy()
    return counts


def class_sizes(codes: Codes) -> Int64[np.ndarray, " classes"]:
    """How many images each class has: int64 [K]. Images without a label are not counted.

    Raises:
        ConceptError: a label that is no class.
    """
    _check(codes)
    return np.bincount(codes.labels[codes.labels >= 0], minlength=len(codes.classes)).astype(np.int64)


def pair_counts(codes: Codes) -> Int64[np.ndarray, "concepts concepts"]:
    """How many images, labelled or not, have both bits: int64 [C, C]. The diagonal counts single bits.

    Raises:
        ConceptError: a label that is no class.
    """
    _check(codes)
    counts = np.zeros((codes.concepts, codes.concepts), dtype=np.int64)
    for _, columns in _columns(codes):
        counts += count_common_bits(columns, columns).numpy()
    return counts


def proportions(codes: Codes) -> Float64[np.ndarray, "concepts classes"]:
    """Share of the images of class k that have bit c: float64 [C, K], nan for a class without images.

    Raises:
        ConceptError: a label that is no class.
    """
    return shares(class_counts(codes), class_sizes(codes))


def part_counts(
    codes: Codes, part: PartName
) -> tuple[Int64[np.ndarray, "concepts classes"], Int64[np.ndarray, " classes"]]:
    """`class_counts` and `class_sizes` of the labelled images of a part; 0 throughout where there are none.

    Raises:
        ConceptError: a label that is no class.
    """
    rows = labelled_rows(codes, part)
    if not len(rows):
        return np.zeros((codes.concepts, len(codes.classes)), np.int64), np.zeros(len(codes.classes), np.int64)
    images = taken(codes, rows)
    return class_counts(images), class_sizes(images)


def part_proportions(codes: Codes, part: PartName) -> Float64[np.ndarray, "concepts classes"]:
    """`proportions` of the labelled images of a part; nan throughout where there are none.

    Raises:
        ConceptError: a label that is no class.
    """
    return shares(*part_counts(codes, part))


def shares(
    counts: Int64[np.ndarray, "concepts classes"], sizes: Int64[np.ndarray, " classes"]
) -> Float64[np.ndarray, "concepts classes"]:
    """counts / sizes, nan for a class without images: `proportions` for those who have the counts."""
    return counts / np.where(sizes > 0, sizes, np.nan)


def _check(codes: Codes) -> None:
    expected = (len(codes.labels), (codes.concepts + 7) // 8)
    if codes.bits.shape != expected:
        raise ConceptError(
            f"expected bits of shape {expected} for {len(codes.labels)} labels and {codes.concepts} concepts, "
            f"got {codes.bits.shape}"
        )
    wrong = codes.labels[(codes.labels < -1) | (codes.labels >= len(codes.classes))]
    if len(wrong):
        raise ConceptError(
            f"expected labels from 0 to {len(codes.classes) - 1}, or -1 for none, "
            f"got {sorted(set(wrong[:1000].tolist()))[:5]}"
        )


def _columns(codes: Codes) -> Iterator[tuple[int, torch.Tensor]]:
    """The first row of each part, and its bits on their side: uint8 [C, ceil(rows / 8)]."""
    for start in range(0, len(codes.bits), CHUNK):
        rows = np.array(codes.bits[start : start + CHUNK])  # a copy: a memory map may be read-only, a tensor never is
        yield start, transpose_bits(torch.from_numpy(rows), codes.concepts)


def _members(labels: Int32[np.ndarray, " images"], classes: int) -> torch.Tensor:
    """uint8 [K, ceil(images / 8)]: bit n of row k is set where image n has label k."""
    return torch.from_numpy(np.packbits(labels == np.arange(classes)[:, None], axis=1, bitorder="little"))


def labelled_rows(codes: Codes | Features, part: PartName) -> Int64[np.ndarray, " rows"]:
    """Row numbers, ascending, of the images of a part whose class is known."""
    rows = codes.rows(part)
    return rows[np.asarray(codes.labels)[rows] >= 0]


def labelled(codes: OfImages, part: PartName) -> OfImages:
    """The images of a part whose class is known, without their ids; a view where they lie in one piece,
    else a copy.

    Raises:
        MissingPartError: there are none.
    """
    rows = labelled_rows(codes, part)
    if not len(rows):
        raise MissingPartError(part, [name for name in PARTS if len(labelled_rows(codes, name))], labelled=True)
    return taken(codes, rows)


def taken(codes: OfImages, rows: Int64[np.ndarray, " rows"]) -> OfImages:
    """The images of these row numbers, ascending and at least one, without their ids; a view where they lie in one
    piece, else a copy."""
    whole = rows[-1] - rows[0] + 1 == len(rows)
    index = slice(int(rows[0]), int(rows[-1]) + 1) if whole else rows
    return replace(codes, **{name: getattr(codes, name)[index] for name in codes.arrays}, ids=())


def correlations(
    pairs: Int64[np.ndarray, "concepts concepts"], images: int
) -> Float64[np.ndarray, "concepts concepts"]:
    """Pearson's (phi) of every two bits: (n n_ij - n_i n_j) / sqrt(n_i (n - n_i) n_j (n - n_j)).

    Args:
        pairs: n_ij, images with both bits; n_i on the diagonal. images: n.

    Returns:
        float64 [C, C]; 0 where a bit is the same in every image.
    """
    ones = np.diagonal(pairs).astype(np.float64)
    spread = np.sqrt(ones * (images - ones))
    scale = np.outer(spread, spread)
    above = float(images) * pairs - np.outer(ones, ones)
    return np.clip(np.divide(above, scale, out=np.zeros_like(scale), where=scale > 0), -1, 1)


@dataclass(frozen=True)
class Same:
    """Which bits are one concept, found by `same_bits`.

    Attributes:
        of: int64 [C], of each bit the one that stands for it, often itself; -1 where it never changes.
        opposite: bool [C], whether it is the opposite of that one; of a bit that never changes whether it is 1.
    """

    of: Int64[np.ndarray, " concepts"]
    opposite: Bool[np.ndarray, " concepts"]

    @property
    def distinct(self) -> Bool[np.ndarray, " concepts"]:
        """bool [C]: the bits that stand for themselves."""
        return self.of == np.arange(len(self.of))

    def folded(
        self, weight: Float64[np.ndarray, "classes concepts"], bias: Float64[np.ndarray, " classes"]
    ) -> tuple[Float64[np.ndarray, "classes concepts"], Float64[np.ndarray, " classes"]]:
        """A head with weights on distinct bits alone; the same logits where the bits of a concept agree."""
        told, made = self.of >= 0, np.zeros_like(weight)
        signed = np.where(self.opposite, -weight, weight)
        np.add.at(made.T, self.of[told], signed.T[told])
        return made, bias + weight[:, self.opposite].sum(1)

    def about(self, kind: str = "image") -> str:
        """Return a sentence if the concepts only separate classes, else "". kind: of the items."""
        distinct = int(self.distinct.sum())
        if distinct >= FEW:
            return ""
        return (
            f"there are no concepts beyond the classes: the {counted(len(self.of), 'bit')} only separate groups of "
            f"classes, in {counted(distinct, 'way')}; use fewer concepts, more classes, or more varied "
            f"{kind}s within a class"
        )


def same_bits(pairs: Int64[np.ndarray, "concepts concepts"], images: int) -> Same:
    """Bits that correlate by 0.9 or more, or by -0.9 or less: one concept, whatever their number.

    Greedy: the first bit that is not yet in a group stands for all that correlate with it and are not yet in one.

    Args: as of `correlations`, of training images.
    """
    ones, related = np.diagonal(pairs), correlations(pairs, images)
    of, opposite = np.full(len(pairs), -1), (ones == images) & (images > 0)
    free = (ones > 0) & (ones < images)
    for first in range(len(pairs)):
        if free[first]:
            members = free & (np.abs(related[first]) >= CORRELATION)
            of[members], opposite[members] = first, related[first, members] < 0
            free &= ~members
    return Same(of, opposite)


def redundancy(pairs: Int64[np.ndarray, "concepts concepts"], images: int) -> dict[str, Any]:
    """Find duplicate and complementary concepts among the live ones, and count those that are left in effect.

    A pair is duplicate when it agrees on >= 99% of images and correlates by >= 0.9, complementary when it agrees on
    <= 1% and correlates by <= -0.9. The correlation is asked for because two unrelated bits that are both 1 on 0.4%
    of images agree on 99% too. The effective number is exp(-sum p_i ln p_i), p the eigenvalues of the correlation
    matrix over their sum (Roy and Vetterli 2007): C when all are uncorrelated, 1 when all are the same.

    Args:
        pairs: images with both bits; with one on the diagonal. images: how many in all.

    Returns:
        "duplicates" and "complementary", each {"count"}, and "effective".
    """
    ones = np.diagonal(pairs)
    live = (ones > 0) & (ones < images)
    differ = ones[:, None] + ones[None, :] - 2 * pairs
    related = correlations(pairs, images)
    both = np.triu(np.outer(live, live), 1)
    most = (1 - AGREEMENT) * images + 1e-9
    found = {
        "duplicates": both & (differ <= most) & (related >= CORRELATION),
        "complementary": both & (images - differ <= most) & (related <= -CORRELATION),
    }
    effective = 0.0
    if live.any():
        values = np.clip(np.linalg.eigvalsh(related[np.ix_(live, live)]), 0, None)
        share = values[values > 0] / values.sum()
        effective = float(np.exp(-(share * np.log(share)).sum()))
    return {name: {"count": int(which.sum())} for name, which in found.items()} | {"effective": effective}


@dataclass(frozen=True, eq=False)
class Groups:
    """For each concept, the group of each class.

    Attributes:
        member: int8 [C, K]: 1 in group A (most images of the class have the bit), 0 in B (few have it), -1 mixed,
            -2 a class without images.
        proportions: float64 [C, K]: the share of the class's images that have the bit.
        classes: K names.
        held: float64 [C, K]: the same share of images that no one learned from; nan for a class without any.
    """

    member: Int8[np.ndarray, "concepts classes"]
    proportions: Float64[np.ndarray, "concepts classes"]
    classes: tuple[str, ...]
    held: Float64[np.ndarray, "concepts classes"]

    def on_test(self, concept: int) -> dict[str, float | None]:
        """ "test_a" and "test_b": the mean of `held` over the classes of A and of B; None where they have no images."""
        found: dict[str, float | None] = {}
        for key, code in (("test_a", IN_A), ("test_b", IN_B)):
            some = self.held[concept][(self.member[concept] == code) & ~np.isnan(self.held[concept])]
            found[key] = float(some.mean()) if len(some) else None
        return found

    def counts(self, concept: int) -> dict[str, Any]:
        """How many classes are in "group_a", "group_b", "mixed" and "empty", and `on_test`."""
        codes = {"group_a": IN_A, "group_b": IN_B, "mixed": MIXED, "empty": EMPTY}
        return {key: int((self.member[concept] == code).sum()) for key, code in codes.items()} | self.on_test(concept)

    def reversal(self, concept: int) -> str:
        """What speaks against a name for these groups: test images do not tell them apart, or say the opposite. Empty
        where they do tell them apart, or where there are none."""
        a, b = self.on_test(concept).values()
        if a is None or b is None or a > b:
            return ""
        return f"not so on test images: {a:.0%} of group A and {b:.0%} of group B have it"

    def note(self, concept: int) -> str:
        """Why there is nothing to name; empty where both groups have classes."""
        member, used = self.member[concept], self.proportions[concept][self.member[concept] != EMPTY]
        if (member == IN_A).any() and (member == IN_B).any():
            return ""
        if used[0] in (0, 1) and (used == used[0]).all():
            return f"dead: always {used[0]:.0f}"
        a, b, mixed = (int((member == code).sum()) for code in (IN_A, IN_B, MIXED))
        sizes = f"{a} classes with a share of {HIGH:.0%} or more, {b} of {LOW:.0%} or less, {mixed} between"
        return f"a group is empty: {sizes}"


def groups(
    proportions: Float64[np.ndarray, "concepts classes"],
    *,
    classes: Sequence[str] = (),
    held: Float64[np.ndarray, "concepts classes"] | None = None,
) -> Groups:
    """Each class in group A when a share >= 0.8 of its images has the bit, in B when <= 0.2, else mixed.

    Args:
        proportions: float64 [C, K] in [0, 1], of the training images (`htaf.concepts.counts.proportions`); nan for a
            class without images, which is left out.
        classes: K names; default: the numbers.
        held: float64 [C, K], proportions of images that were not trained on, nan for a class without any; None: there
            are none.

    Raises:
        ConceptError: proportions that are none.
    """
    values = np.asarray(proportions, dtype=np.float64)
    names = tuple(classes) or tuple(map(str, range(values.shape[-1] if values.ndim else 0)))
    if values.ndim != 2 or values.shape[1] != len(names) or not values.shape[1]:
        raise ConceptError(f"expected proportions [concepts, {len(names) or 'classes'}], got {values.shape}")
    empty = np.isnan(values)
    if not (empty | ((values >= 0) & (values <= 1))).all():
        raise ConceptError(f"expected proportions in [0, 1], got {values.min()} to {values.max()}")
    if empty.all(1).any():
        raise ConceptError("expected images of one class or more, got none")
    member = np.select([empty, values >= HIGH, values <= LOW], [EMPTY, IN_A, IN_B], MIXED).astype(np.int8)
    return Groups(member, values, names, np.full_like(values, np.nan) if held is None else held)


def balanced(inside: Bool[np.ndarray, " n"], said: Float64[np.ndarray, " n"]) -> float:
    """Give (mean of s over A + mean of 1 - s over B) / 2 of a sorting s; what is left out counts as half right."""
    return float(said[inside].mean() + (1 - said[~inside]).mean()) / 2


def chance(inside: Bool[np.ndarray, " n"], said: Float64[np.ndarray, " n"]) -> float:
    """Give the p-value of a sorting: the share of all groups as large as A that it fits as well as A, or better.

    The sum of s over a random group is counted exactly: k of the ones and j of the halves make 2 k + j halves.
    """
    zeros, halves, ones = (int((said == value).sum()) for value in (0, 0.5, 1))
    size, reached = int(inside.sum()), round(2 * said[inside].sum())
    ways = sum(
        comb(ones, k) * comb(halves, j) * comb(zeros, size - k - j)
        for k in range(ones + 1)
        for j in range(halves + 1)
        if k + j <= size and 2 * k + j >= reached
    )
    return ways / comb(len(inside), size)
