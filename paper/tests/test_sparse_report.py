"""Sparse heads beside those on other bits: the figures restated, and which images are compared."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binomtest

from htaf.concepts.codes import Codes, ConceptError, codes_of
from htaf.concepts.counts import labelled
from htaf.concepts.heads import correct
from htaf.concepts.sparse import sparse_heads, wilson
from htaf_paper.sparse_report import aligned, compare, paired, permuted, table

SIZES = (300, 150, 200)


def told(seed: int = 0, share: float = 0.9, concepts: int = 24) -> Codes:
    """Six classes, each with four concepts that `share` of its images have; the labels are the same for every seed."""
    labels = np.random.default_rng(9).integers(0, 6, sum(SIZES))
    r = np.random.default_rng(seed)
    own = np.arange(concepts) % 6
    bits = r.random((len(labels), concepts)) < np.where(labels[:, None] == own, share, 0.2)
    weight = np.where(own == np.arange(6)[:, None], 1.0, -0.3) + r.normal(0, 0.01, (6, concepts))
    return codes_of(bits, labels, weight, np.zeros(6), parts=np.repeat(np.arange(3, dtype=np.uint8), SIZES))


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 500), st.floats(0, 1))
def test_wilsons_interval_is_scipys(images: int, share: float) -> None:
    hits = round(share * images)
    low, high = binomtest(hits, images).proportion_ci(method="wilson")
    assert wilson(hits, images) == pytest.approx((low, high), abs=1e-6)


def test_the_paired_interval_covers_the_mean() -> None:
    r, covered = np.random.default_rng(0), 0
    for _ in range(300):
        one, two = r.random(200) < 0.8, r.random(200) < 0.7
        low, high = paired(one.astype(float) - two)["interval"]
        covered += low <= 0.1 <= high
    assert 0.9 <= covered / 300 <= 0.99


def test_figures_of_every_row() -> None:
    codes, noise = told(), [told(seed, share=0.35) for seed in (1, 2)]
    result = compare(codes, {"poor": noise}, targets=(3, None), shuffles=2, seed=4)
    test = codes.part("test")
    exact = test.unpack().astype(float) @ codes.weight.T.astype(float)
    own = result["own_head"]
    assert own["accuracy"] == pytest.approx((exact.argmax(1) == test.labels).mean())
    assert own["nec"] == 24
    assert own["interval"] == pytest.approx(wilson(round(200 * own["accuracy"]), 200))
    rows = {(row["bits"], row["seed"], row["target"]): row for row in result["rows"]}
    assert set(rows) == {
        (name, seed, target)
        for name, seeds in (("these", (4,)), ("poor", (4, 5)), ("shuffled labels", (4, 5)))
        for seed in seeds
        for target in (3, None)
    }
    (three,) = sparse_heads(codes, (3,), seed=4)
    hits = (test.unpack().astype(float) @ three.head.weight.T + three.head.bias).argmax(1) == test.labels
    assert rows["these", 4, 3]["accuracy"] == pytest.approx(hits.mean())
    assert rows["these", 4, 3]["nec"] <= 3
    assert rows["these", 4, 3]["ncc"] <= rows["these", 4, 3]["nec"]
    summary = {(row["bits"], row["target"]): row for row in result["summary"]}
    poor = [rows["poor", seed, 3]["accuracy"] for seed in (4, 5)]
    assert summary["poor", 3]["accuracy"] == pytest.approx(np.mean(poor))
    assert summary["poor", 3]["sd"] == pytest.approx(np.std(poor, ddof=1))
    assert summary["these", 3]["sd"] is None
    apart = {(row["bits"], row["target"]): row for row in result["differences"]}
    assert apart["poor", 3]["difference"] == pytest.approx(hits.mean() - np.mean(poor))
    low, high = apart["poor", 3]["interval"]
    assert 0.1 < low < apart["poor", 3]["difference"] < high
    assert summary["shuffled labels", 3]["accuracy"] < 0.35
    assert summary["these", None]["accuracy"] > 0.8
    shown = {row[:2]: row for row in table(result).rows}
    assert str(shown["these", "3"][2]).startswith(f"{100 * hits.mean():.1f} (")
    assert shown["poor", "all"][5:] == (f"{summary['poor', None]['nec']:.1f}", f"{summary['poor', None]['ncc']:.1f}")


def test_permuted_labels_reach_chance() -> None:
    codes = permuted(told(), 0)
    for part in range(3):
        rows = codes.parts == part
        assert sorted(codes.labels[rows]) == sorted(told().labels[rows])
    (five,) = sparse_heads(codes, (5,))
    assert correct(labelled(codes, "test"), five.head).mean() < 0.35


def test_names_that_are_taken_are_refused() -> None:
    with pytest.raises(ConceptError, match="expected other names for other bits, got 'these'"):
        compare(told(), {"these": [told()]})


def test_images_are_found_by_their_ids() -> None:
    codes = told()
    turned = codes.take(np.arange(len(codes))[::-1])
    np.testing.assert_array_equal(aligned(turned, codes, "x").bits, codes.bits)
    more = codes.take(np.concatenate([np.arange(5), np.arange(len(codes))]))
    ids = [f"more {i}" for i in range(5)] + list(codes.ids)
    np.testing.assert_array_equal(aligned(replace(more, ids=ids), codes, "x").bits, codes.bits)
    assert aligned(codes, codes, "x") is codes
    with pytest.raises(ConceptError, match="x: expected codes of the same images, got none of '0'"):
        aligned(codes.take(np.arange(5, 100)), codes, "x")
    with pytest.raises(ConceptError, match="x: expected the classes"):
        aligned(replace(codes, classes=tuple("abcdef")), codes, "x")
    for field in ("labels", "parts"):
        other = replace(codes, **{field: np.zeros_like(getattr(codes, field))})
        with pytest.raises(ConceptError, match="got other labels or parts"):
            aligned(other, codes, "x")
