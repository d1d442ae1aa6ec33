"""Exact search over parts: NumPy's brute force, ties included, at any cut and with every implementation."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from instruction_sets import INSTRUCTION_SETS, threads, using

from htaf.concepts import nearest
from htaf.concepts.codes import Codes, ConceptError, codes_of
from htaf.core.kernels import native


def drawn(n: int, c: int, seed: int, *, rate: float = 0.5) -> Codes:
    rng = np.random.default_rng(seed)
    return codes_of(rng.random((n, c)) < rate, np.zeros(n), np.zeros((1, c)), np.zeros(1))


def brute(codes: Codes, queries: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    far = np.bitwise_count(codes.bits[None] ^ queries[:, None]).sum(2, dtype=np.int32)
    rows = np.argsort(far, axis=1, kind="stable")[:, :k]
    return np.take_along_axis(far, rows, 1), rows


@pytest.fixture(params=["reference", *INSTRUCTION_SETS])
def kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    if request.param == "reference":
        monkeypatch.setattr(native, "available", lambda: False)
        yield request.param
        return
    with using(request.param):
        yield request.param


@settings(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    n=st.integers(1, 700),
    c=st.one_of(st.integers(1, 80), st.sampled_from([255, 256, 257, 504, 511, 512, 513, 1024, 2100])),
    q=st.integers(0, 5),
    seed=st.integers(0, 99),
    rate=st.sampled_from([0.0, 0.02, 0.5]),
    data=st.data(),
)
@pytest.mark.parametrize("number", [1, 2])
def test_the_results_are_those_of_brute_force(
    kernels: str, number: int, n: int, c: int, q: int, seed: int, rate: float, data: st.DataObject
) -> None:
    codes = drawn(n, c, seed, rate=rate)  # rare bits: many equal distances
    queries = drawn(q + 1, c, seed + 1, rate=rate).bits[:q]
    k = data.draw(st.integers(1, min(n, 40)))
    with threads(number), pytest.MonkeyPatch.context() as patched:
        patched.setattr(nearest, "ROWS", data.draw(st.integers(1, n)))
        distances, rows = nearest.nearest(codes, queries, k)
    expected = brute(codes, queries, k)
    np.testing.assert_array_equal(distances, expected[0])
    np.testing.assert_array_equal(rows, expected[1])
    assert (distances.dtype, rows.dtype) == (np.int32, np.int64)


def test_many_rows_and_queries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nearest, "ROWS", 3000)
    monkeypatch.setattr(nearest, "QUERIES", 7)
    codes = drawn(20_000, 512, 5)
    queries = codes.bits[::1000] ^ np.uint8(1)
    found = nearest.nearest(codes, queries, 17)
    for came, expected in zip(found, brute(codes, queries, 17), strict=True):
        np.testing.assert_array_equal(came, expected)


def test_all_equal_all_different_and_itself() -> None:
    same = replace(drawn(50, 9, 0), bits=np.zeros((50, 2), np.uint8))
    distances, rows = nearest.nearest(same, same.bits[:1], 50)
    assert not distances.any()
    assert rows[0].tolist() == list(range(50))
    opposite = drawn(9, 512, 1)
    assert nearest.nearest(opposite, ~opposite.bits[:1], 1)[0].max() <= 512
    one = opposite.take(np.arange(1))
    assert nearest.nearest(one, ~opposite.bits[:1], 1)[0].tolist() == [[512]]


@pytest.mark.usefixtures("unchecked")
def test_bad_queries() -> None:
    codes = drawn(5, 12, 0)
    zero = np.zeros((1, 2), np.uint8)
    for bits, said in (
        (zero.astype(np.int32), r"expected bits uint8 \[q, 2\] for 12 concepts, got int32 \[1, 2\]"),
        (zero[:, :1], r"got uint8 \[1, 1\]"),
        (zero + np.uint8(16), r"expected bits from number 12 on to be 0"),
    ):
        with pytest.raises(ConceptError, match=said):
            nearest.nearest(codes, bits, 1)
    for k in (0, 6):
        with pytest.raises(ConceptError, match=f"expected k from 1 to 5, got {k}"):
            nearest.nearest(codes, zero, k)


def test_the_kernel_checks_its_arrays() -> None:
    if native.load()[0] is None:
        pytest.skip("no compiled kernels")
    bits, distances, rows = np.zeros((4, 2), np.uint8), np.full((1, 2), -1, np.int32), np.full((1, 2), -1)
    fixed = rows.copy()
    fixed.flags.writeable = False
    for arguments, said in (
        ((bits.T, bits[:1], 0, distances, rows), "expected contiguous matrices"),
        ((bits, bits[:1], 0, distances.astype(np.int64), rows), "expected contiguous matrices"),
        ((bits, bits[:1, :1].copy(), 0, distances, rows), r"got \(4, 2\), \(1, 1\), \(1, 2\), \(1, 2\)"),
        ((bits, bits[:2], 0, distances, rows), r"got \(4, 2\), \(2, 2\), \(1, 2\), \(1, 2\)"),
        ((bits, bits[:1], 0, distances, fixed), "that can be written"),
    ):
        with pytest.raises(ValueError, match=said):
            native.nearest(*arguments)
