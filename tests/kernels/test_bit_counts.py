"""Bits turned on their side and counted in common, every implementation against NumPy's own bits and integers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import ModuleType

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from instruction_sets import INSTRUCTION_SETS, threads
from torch import Tensor

from htaf import functional
from htaf.core.kernels import native, operators
from htaf.core.kernels.bit_counts import reference
from htaf.core.kernels.registration import implementation

SIZES = st.one_of(st.integers(0, 40), st.sampled_from([63, 64, 65, 127, 128, 500, 511, 512, 513, 1030]))


@pytest.fixture(params=["reference", *INSTRUCTION_SETS])
def kernels(request: pytest.FixtureRequest) -> Iterator[ModuleType]:
    """The implementation, the compiled kernels set to one instruction set."""
    if request.param == "reference":
        yield implementation("bit_counts", "reference")
        return
    before = native.extension().instruction_set()
    native.extension().use_instruction_set(request.param)
    yield implementation("bit_counts", "cpu")
    native.extension().use_instruction_set(before)


def drawn(rows: int, columns: int, seed: int = 0) -> tuple[np.ndarray, Tensor]:
    """bool [rows, columns] and its bits; some columns and rows are rare, some nearly always set."""
    draw = np.random.default_rng(seed)
    values = draw.random((rows, columns)) < draw.random(columns) * draw.random((rows, 1)) ** 0.3
    return values, torch.from_numpy(np.packbits(values, axis=1, bitorder="little"))


def turned(values: np.ndarray) -> np.ndarray:
    return np.packbits(np.ascontiguousarray(values.T), axis=1, bitorder="little")


def common(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return a.astype(np.int64) @ b.astype(np.int64).T


LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {  # from bits [rows, bytes], bits [rows, bytes]
    "contiguous": lambda v: v,
    "transposed": lambda v: v.t().contiguous().t(),
    "every other": lambda v: torch.stack([v, 255 - v], 2).flatten(1)[:, ::2],
    "unaligned": lambda v: torch.cat([v.new_full((1,), 255), v.flatten()])[1:].view(v.shape),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_transpose(kernels: ModuleType, layout: str) -> None:
    small = ((0, 0), (0, 9), (9, 0), (1, 1), (7, 9), (8, 8), (9, 7))
    for rows, columns in (*small, (64, 64), (65, 63), (513, 70), (1100, 17), (30, 1500)):
        values, bits = drawn(rows, columns)
        found = kernels.transpose(LAYOUTS[layout](bits), columns)
        assert found.dtype == torch.uint8
        assert np.array_equal(found.numpy(), turned(values)), (rows, columns)


def test_transpose_does_not_read_unused_bits(kernels: ModuleType) -> None:
    values, bits = drawn(70, 13)
    bits = bits.clone()
    bits[:, -1] |= 0b11100000
    assert np.array_equal(kernels.transpose(bits, 13).numpy(), turned(values))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_common(kernels: ModuleType, layout: str) -> None:
    other = LAYOUTS["transposed" if layout == "contiguous" else layout]
    small = ((0, 0, 0), (0, 3, 9), (3, 0, 9), (2, 3, 0), (1, 1, 1))
    for m, n, columns in (*small, (5, 3, 129), (33, 34, 65), (4, 70, 512), (3, 5, 70001)):
        a, left = drawn(m, columns, 1)
        b, right = drawn(n, columns, 2)
        found = kernels.common(LAYOUTS[layout](left), other(right))
        assert found.dtype == torch.int64
        assert np.array_equal(found.numpy(), common(a, b)), (m, n, columns)


@pytest.mark.parametrize("name", INSTRUCTION_SETS)
@given(rows=SIZES, columns=SIZES, seed=st.integers(0, 99))
def test_transposing_any_shape(name: str, rows: int, columns: int, seed: int) -> None:
    values, bits = drawn(rows, columns, seed)
    native.extension().use_instruction_set(name)
    found = native.transpose(bits, columns)
    back = native.transpose(found, rows)
    native.extension().use_instruction_set(INSTRUCTION_SETS[0])
    assert np.array_equal(found.numpy(), turned(values))
    assert torch.equal(back, bits)


@pytest.mark.parametrize("name", INSTRUCTION_SETS)
@given(m=st.integers(0, 70), n=st.integers(0, 70), columns=SIZES, seed=st.integers(0, 99))
def test_counting_any_shape(name: str, m: int, n: int, columns: int, seed: int) -> None:
    a, left = drawn(m, columns, seed)
    b, right = drawn(n, columns, seed + 1)
    native.extension().use_instruction_set(name)
    found, same = native.count_common(left, right), native.count_common(left, left)
    native.extension().use_instruction_set(INSTRUCTION_SETS[0])
    assert np.array_equal(found.numpy(), common(a, b))
    assert np.array_equal(same.numpy(), common(a, a))


def test_the_reference_counts_exactly_under_autocast() -> None:
    values, bits = drawn(3, 5000)
    with torch.autocast("cpu", torch.bfloat16):
        assert np.array_equal(reference.common(bits, bits).numpy(), common(values, values))


@pytest.mark.skipif(not INSTRUCTION_SETS, reason="no compiled kernels")
def test_the_result_does_not_depend_on_the_threads() -> None:
    _, bits = drawn(1300, 200)
    found = []
    for number in (1, 2, 5):
        with threads(number):
            counts = native.count_common(bits, bits), native.count_common(bits, bits[7:])
            found.append((native.transpose(bits, 200), *counts))
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(other, found[0], strict=True))


def test_without_the_extension_the_reference_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    values, bits = drawn(20, 30)
    monkeypatch.setattr(native, "available", lambda: False)
    monkeypatch.setattr(native, "extension", lambda: pytest.fail("the extension was called"))
    assert np.array_equal(functional.transpose_bits(bits, 30).numpy(), turned(values))
    assert np.array_equal(functional.count_common_bits(bits, bits).numpy(), common(values, values))


BITS = torch.zeros(3, 2, dtype=torch.uint8)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("function", "inputs", "error", "message"),
    [
        ("transpose", (torch.zeros(3, 2), 9), TypeError, r"^bits must be a uint8 tensor, got torch.float32$"),
        ("transpose", ([1], 9), TypeError, r"^bits must be a uint8 tensor, got list$"),
        ("transpose", (BITS[0], 9), ValueError, r"^bits must have two dimensions, got a tensor of shape \(2,\)$"),
        ("transpose", (BITS, 17), ValueError, r"^bits must have a last dimension of 3 for n = 17, got \(3, 2\)$"),
        ("transpose", (BITS, 8), ValueError, r"^bits must have a last dimension of 1 for n = 8"),
        ("transpose", (BITS, -1), ValueError, r"^n must be an integer >= 0, got -1$"),
        ("transpose", (BITS, 9.0), ValueError, r"^n must be an integer >= 0, got 9.0$"),
        ("count", (BITS, BITS.int()), TypeError, r"^b must be a uint8 tensor, got torch.int32$"),
        ("count", (BITS[None], BITS), ValueError, r"^a must have two dimensions, got a tensor of shape \(1, 3, 2\)$"),
        (
            "count", (BITS, BITS[:, :1]), ValueError,
            r"^a and b must have rows of equally many bytes on one device, got \(3, 2\) on cpu and \(3, 1\) on cpu$",
        ),
        ("count", (BITS, BITS.to("meta")), ValueError, r"on cpu and \(3, 2\) on meta$"),
    ],
)  # fmt: skip
def test_what_is_not_bits(function: str, inputs: tuple[object, ...], error: type[Exception], message: str) -> None:
    call = {"transpose": functional.transpose_bits, "count": functional.count_common_bits}[function]
    with pytest.raises(error, match=message):
        call(*inputs)


def test_the_operators_check_their_inputs_too() -> None:
    with pytest.raises(ValueError, match=r"^bits must be uint8 of shape \[rows, 3\] for 17 columns, got torch.uint8"):
        operators.transpose_bits(BITS, 17)
    with pytest.raises(ValueError, match=r"^a and b must be uint8 of shapes \[m, bytes\] and \[n, bytes\], got"):
        operators.count_common_bits(BITS, BITS[:, :1])
    with pytest.raises(ValueError, match=r"^a and b must be on one device, got cpu and meta$"):
        operators.count_common_bits(BITS, BITS.to("meta"))
