"""Redundancy against numpy's corrcoef and planted copies."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from htaf.concepts.redundancy import Redundancy, correlations, redundancy, same_bits


def pairs(bits: np.ndarray) -> np.ndarray:
    return bits.astype(np.int64).T @ bits.astype(np.int64)


def found(bits: np.ndarray, order: np.ndarray | None = None) -> Redundancy:
    return redundancy(pairs(bits), len(bits), order)


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
    result = found(bits)
    for i in range(bits.shape[1]):
        for j in range(bits.shape[1]):
            alive = 0 < bits[:, i].sum() < n and 0 < bits[:, j].sum() < n and i != j
            same, other = int((bits[:, i] == bits[:, j]).sum()), int((bits[:, i] != bits[:, j]).sum())
            phi = np.corrcoef(bits[:, i], bits[:, j])[0, 1] if alive else 0
            assert result.duplicates[i, j] == (alive and 100 * same >= 99 * n and phi >= 0.9 - 1e-12)
            assert result.complementary[i, j] == (alive and 100 * other >= 99 * n and phi <= -0.9 + 1e-12)
    led = sorted(j for cluster in result.clusters for j in cluster)
    assert led == [j for j in range(bits.shape[1]) if 0 < bits[:, j].sum() < n]


def test_copies_and_complements_cluster_and_dead_ones_are_left_out() -> None:
    r = np.random.default_rng(0)
    a, b = r.random((2, 1000)) < 0.5
    bits = np.stack([a, b, ~a, a, np.ones(1000, dtype=bool), np.zeros(1000, dtype=bool)], 1)
    result = found(bits)
    assert result.clusters == [[0, 2, 3], [1]]
    report = result.report()
    assert report["duplicates"] == {"count": 1, "pairs": [[0, 3]]}
    assert report["complementary"] == {"count": 2, "pairs": [[0, 2], [2, 3]]}
    assert report["clusters"] == [[0, 2, 3]]
    assert report["distinct"] == 2
    assert found(bits, np.array([3, 4, 5, 1, 0, 2])).clusters == [[3, 0, 2], [1]]


def test_the_effective_number() -> None:
    every = np.array(list(np.ndindex(2, 2, 2, 2)), dtype=bool)  # exactly uncorrelated
    assert found(every).effective == pytest.approx(4)
    assert found(every[:, [0, 0, 0]]).effective == pytest.approx(1)
    assert found(np.column_stack([every[:, 0], ~every[:, 0], every[:, 1]])).effective == pytest.approx(
        np.exp(-(2 / 3 * np.log(2 / 3) + 1 / 3 * np.log(1 / 3)))
    )
    assert found(np.ones((5, 3), dtype=bool)).effective == 0


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
