"""Counts of bits by class and in pairs, against sums over the unpacked values; groups of classes and their bounds."""

from __future__ import annotations

import dataclasses
import warnings
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import balanced_accuracy_score

from htaf.concepts import counts
from htaf.concepts.codes import Codes, ConceptError, codes_of
from htaf.concepts.counts import EMPTY, IN_A, IN_B, MIXED, balanced, chance, correlations, groups, redundancy, same_bits


def made(images: int, concepts: int, classes: int, seed: int = 0, lowest: int = -1) -> tuple[np.ndarray, Codes]:
    """bool [N, C] and its codes; classes from `lowest`, so that some images have no label."""
    draw = np.random.default_rng(seed)
    values = draw.random((images, concepts)) < draw.random(concepts)
    labels = draw.integers(lowest, classes, images)
    return values, codes_of(values, labels, np.zeros((classes, concepts)), np.zeros(classes))


def check(values: np.ndarray, codes: Codes) -> None:
    """Every count, one image at a time."""
    concepts, classes = values.shape[1], len(codes.classes)
    by_class, sizes = np.zeros((concepts, classes), int), np.zeros(classes, int)
    pairs = np.zeros((concepts, concepts), int)
    for row, label in zip(values, codes.labels, strict=True):
        pairs += np.outer(row, row)
        if label >= 0:
            by_class[:, label] += row
            sizes[label] += 1
    for found, expected in (
        (counts.class_counts(codes), by_class),
        (counts.class_sizes(codes), sizes),
        (counts.pair_counts(codes), pairs),
    ):
        assert found.dtype == np.int64
        assert np.array_equal(found, expected)


@given(
    images=st.integers(0, 70), concepts=st.integers(0, 40), classes=st.integers(1, 20), seed=st.integers(0, 99),
    chunk=st.sampled_from([8, 24, 64, 65_536]),
)  # fmt: skip
def test_counts_of_any_size_in_chunks_of_any_size(
    images: int, concepts: int, classes: int, seed: int, chunk: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(counts, "CHUNK", chunk)
        check(*made(images, concepts, classes, seed))


def test_a_memory_map_is_read_in_parts_and_without_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    values, codes = made(500, 21, 4)
    np.save(tmp_path / "bits.npy", codes.bits)
    mapped = np.load(tmp_path / "bits.npy", mmap_mode="r")
    sizes: list[int] = []

    class Watched(np.memmap):
        def __getitem__(self, key):  # type: ignore[no-untyped-def]
            part = super().__getitem__(key)
            sizes.append(len(part))
            return part

    monkeypatch.setattr(counts, "CHUNK", 128)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check(values, dataclasses.replace(codes, bits=mapped.view(Watched)))
    assert max(sizes) == 128
    assert sum(sizes) == 2 * 500  # once by class, once in pairs


def test_columns_of_a_larger_array() -> None:
    values, codes = made(100, 30, 3)
    wide = np.zeros((200, 9), dtype=np.uint8)
    wide[::2, 3:7] = codes.bits
    check(values, dataclasses.replace(codes, bits=wide[::2, 3:7]))


def test_proportions() -> None:
    values, codes = made(300, 6, 4)
    codes = dataclasses.replace(codes, labels=np.where(codes.labels == 2, -1, codes.labels).astype(np.int32))
    found = counts.proportions(codes)
    assert found.shape == (6, 4)
    assert np.isnan(found[:, 2]).all()  # nobody there
    for k in (0, 1, 3):
        np.testing.assert_allclose(found[:, k], values[codes.labels == k].mean(0), rtol=1e-15)


@pytest.mark.parametrize(("label", "shown"), [(3, "3"), (-2, "-2")])
def test_a_label_that_is_no_class(label: int, shown: str) -> None:
    _, codes = made(20, 5, 3)
    codes.labels[7] = label
    for function in (counts.class_counts, counts.class_sizes, counts.proportions):
        with pytest.raises(ConceptError, match=rf"^expected labels from 0 to 2, or -1 for none, got \[{shown}\]$"):
            function(codes)


@pytest.mark.usefixtures("unchecked")
def test_bits_that_do_not_fit() -> None:
    _, codes = made(20, 17, 3)
    with pytest.raises(
        ConceptError, match=r"^expected bits of shape \(20, 3\) for 20 labels and 17 concepts, got \(20, 2\)"
    ):
        counts.pair_counts(dataclasses.replace(codes, bits=codes.bits[:, :2]))
    with pytest.raises(ConceptError, match=r"^expected bits of shape \(20, 3\) .* got \(19, 3\)"):
        counts.class_counts(dataclasses.replace(codes, bits=codes.bits[:19]))


def pairs(bits: np.ndarray) -> np.ndarray:
    return bits.astype(np.int64).T @ bits.astype(np.int64)


def found(bits: np.ndarray) -> dict[str, Any]:
    return redundancy(pairs(bits), len(bits))


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 40), st.integers(1, 9))
def test_correlations_are_pearsons(seed: int, n: int, concepts: int) -> None:
    r = np.random.default_rng(seed)
    bits = r.random((n, concepts)) < r.random(concepts)
    result = correlations(pairs(bits), n)
    live = np.ptp(bits.astype(int), axis=0) > 0
    for i in range(concepts):
        for j in range(concepts):
            expected = np.corrcoef(bits[:, i], bits[:, j])[0, 1] if live[i] and live[j] else 0
            assert result[i, j] == pytest.approx(expected, abs=1e-9)


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 10**6), st.integers(20, 300), st.integers(1, 8), st.integers(0, 4))
def test_pairs_are_those_that_agree(seed: int, n: int, concepts: int, copies: int) -> None:
    r = np.random.default_rng(seed)
    bits = r.random((n, concepts)) < r.random(concepts)
    for _ in range(copies):
        wrong = r.random(n) < r.choice([0, 0.005, 0.02])
        bits = np.column_stack([bits, bits[:, r.integers(bits.shape[1])] ^ wrong ^ r.choice([False, True])])
    counts = {"duplicates": 0, "complementary": 0}
    for i in range(bits.shape[1]):
        for j in range(i + 1, bits.shape[1]):
            alive = 0 < bits[:, i].sum() < n and 0 < bits[:, j].sum() < n
            same, other = int((bits[:, i] == bits[:, j]).sum()), int((bits[:, i] != bits[:, j]).sum())
            phi = np.corrcoef(bits[:, i], bits[:, j])[0, 1] if alive else 0
            counts["duplicates"] += alive and 100 * same >= 99 * n and phi >= 0.9 - 1e-12
            counts["complementary"] += alive and 100 * other >= 99 * n and phi <= -0.9 + 1e-12
    result = found(bits)
    assert {name: result[name]["count"] for name in counts} == counts


def test_copies_and_complements_are_found_and_dead_ones_left_out() -> None:
    r = np.random.default_rng(0)
    a, b = r.random((2, 1000)) < 0.5
    bits = np.stack([a, b, ~a, a, np.ones(1000, dtype=bool), np.zeros(1000, dtype=bool)], 1)
    result = found(bits)
    assert result["duplicates"] == {"count": 1}
    assert result["complementary"] == {"count": 2}


def test_the_effective_number() -> None:
    every = np.array(list(np.ndindex(2, 2, 2, 2)), dtype=bool)  # exactly uncorrelated
    assert found(every)["effective"] == pytest.approx(4)
    assert found(every[:, [0, 0, 0]])["effective"] == pytest.approx(1)
    assert found(np.column_stack([every[:, 0], ~every[:, 0], every[:, 1]]))["effective"] == pytest.approx(
        np.exp(-(2 / 3 * np.log(2 / 3) + 1 / 3 * np.log(1 / 3)))
    )
    assert found(np.ones((5, 3), dtype=bool))["effective"] == 0


def test_bits_that_say_the_same_are_one_concept() -> None:
    rng = np.random.default_rng(0)
    kinds = rng.random((200, 3)) < [0.5, 0.3, 0.1]
    bits = np.stack([kinds[:, 0], ~kinds[:, 0], kinds[:, 1], np.ones(200, bool), kinds[:, 0], kinds[:, 2]], 1)
    ones = bits.astype(np.int64)
    same = same_bits(ones.T @ ones, len(ones))
    assert same.of.tolist() == [0, 0, 2, -1, 0, 5]
    assert same.opposite.tolist() == [False, True, False, True, False, False]
    weight, bias = rng.normal(size=(4, 6)), rng.normal(size=4)
    folded, offset = same.folded(weight, bias)
    np.testing.assert_allclose(ones @ folded.T + offset, ones @ weight.T + bias)
    assert not folded[:, ~same.distinct].any()
    assert "no concepts beyond the classes" in same.about()


NAN = float("nan")


def test_the_bounds_belong_to_the_groups() -> None:
    found = groups(np.array([[0.8, 0.79, 0.2, 0.21, NAN, 1.0, 0.0]]), classes=list("abcdefg"))
    assert found.member[0].tolist() == [IN_A, MIXED, IN_B, MIXED, EMPTY, IN_A, IN_B]
    assert found.note(0) == ""


@pytest.mark.parametrize(
    ("shares", "note"),
    [
        ([0.0, 0.0, NAN], "dead: always 0"),
        ([1.0, NAN, 1.0], "dead: always 1"),
        ([0.0, 0.1, 0.5], "a group is empty: 0 classes with a share of 80% or more, 2 of 20% or less, 1 between"),
        ([0.9, 1.0, 0.5], "a group is empty: 2 classes with a share of 80% or more, 0 of 20% or less, 1 between"),
        ([0.5, 0.4, 0.6], "a group is empty: 0 classes with a share of 80% or more, 0 of 20% or less, 3 between"),
    ],
)
def test_one_sided_concepts_say_so(shares: list[float], note: str) -> None:
    found = groups(np.array([shares, [0.0, 1.0, 0.5]]))
    assert (found.note(0), found.note(1)) == (note, "")


@given(st.lists(st.one_of(st.just(NAN), st.floats(0, 1)), min_size=1, max_size=20))
def test_each_class_is_in_one_place(shares: list[float]) -> None:
    if np.isnan(shares).all():
        return
    found = groups(np.array([shares]))
    for share, member in zip(shares, found.member[0].tolist(), strict=True):
        wanted = EMPTY if share != share else IN_A if share >= 0.8 else IN_B if share <= 0.2 else MIXED
        assert member == wanted


def test_proportions_that_are_none() -> None:
    with pytest.raises(ConceptError, match=r"expected proportions in \[0, 1\], got 0.0 to 1.5"):
        groups(np.array([[0.0, 1.5]]))
    with pytest.raises(ConceptError, match=r"expected proportions \[concepts, 3\], got \(1, 2\)"):
        groups(np.array([[0.0, 1.0]]), classes=["a", "b", "c"])
    with pytest.raises(ConceptError, match="images of one class or more"):
        groups(np.array([[NAN, NAN]]))


sortings = st.integers(2, 9).flatmap(
    lambda n: st.tuples(
        st.lists(st.booleans(), min_size=n, max_size=n).filter(lambda inside: 0 < sum(inside) < len(inside)),
        st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=n, max_size=n),
    )
)


@given(sortings)
def test_balanced_accuracy_is_that_of_scikit_learn(made: tuple[list[bool], list[float]]) -> None:
    inside, said = np.array(made[0]), np.array(made[1])
    if not (said == 0.5).any():
        assert balanced(inside, said) == pytest.approx(balanced_accuracy_score(inside, said > 0.5))
    assert balanced(inside, np.full(len(inside), 0.5)) == 0.5


@given(sortings)
def test_chance_counts_all_groups(made: tuple[list[bool], list[float]]) -> None:
    inside, said = np.array(made[0]), np.array(made[1])
    own, fits = balanced(inside, said), []
    for members in combinations(range(len(inside)), int(inside.sum())):
        group = np.isin(np.arange(len(inside)), members)
        fits.append(balanced(group, said) >= own - 1e-12)
    assert chance(inside, said) == pytest.approx(np.mean(fits))
