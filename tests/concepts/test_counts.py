"""Counts of bits by class and in pairs, against sums over the unpacked values."""

from __future__ import annotations

import dataclasses
import warnings
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from htaf.concepts import counts
from htaf.concepts.codes import Codes, ConceptError, codes_of


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
