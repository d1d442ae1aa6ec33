"""The images whose concepts differ in the fewest bits, exactly: one pass over the codes for many queries."""

from __future__ import annotations

import numpy as np
from jaxtyping import Int32, Int64, UInt8

from htaf.concepts.codes import Codes, ConceptError, expect_bits
from htaf.kernels import native
from htaf.kernels.registration import implementation

AT_ONCE = 2**18  # rows between two looks at Ctrl-C
QUERIES = 1024  # that go over the codes together; more go over them again


def nearest(
    codes: Codes, bits: UInt8[np.ndarray, "queries bytes"], k: int
) -> tuple[Int32[np.ndarray, "queries k"], Int64[np.ndarray, "queries k"]]:
    """The k images of each query that differ from it in the fewest concepts; ties in the order of row numbers.

    Each code is read once for up to 1,024 queries. A query takes ceil(C / 64) words of exclusive or and popcount an
    image (`csrc/nearest.hpp`; without compiled kernels NumPy's bitwise_count, many times slower). The result does not
    depend on the number of threads, which is that of `torch.get_num_threads()`.

    Args:
        codes: the N images to be found.
        bits: uint8 [q, ceil(C / 8)] as `Codes.bits`: unused bits are 0.
        k: 1 to N.

    Returns:
        distances int32 [q, k] in bits, ascending, and rows int64 [q, k].

    Raises:
        ConceptError: bits of another shape or dtype, unused bits that are not 0, or a k out of range.
    """
    expect_bits(bits, codes.concepts)
    if not 1 <= k <= len(codes):
        raise ConceptError(f"expected k from 1 to {len(codes)}, got {k}")
    kernel = implementation("bit_counts", "cpu" if native.available() else "reference")
    distances, rows = np.full((len(bits), k), -1, np.int32), np.full((len(bits), k), -1, np.int64)
    for batch in range(0, len(bits), QUERIES):
        asked = np.ascontiguousarray(bits[batch : batch + QUERIES])
        found = distances[batch : batch + QUERIES], rows[batch : batch + QUERIES]
        for first in range(0, len(codes), AT_ONCE):
            kernel.nearest(np.ascontiguousarray(codes.bits[first : first + AT_ONCE]), asked, first, *found)
    return distances, rows


def nearest_to(codes: Codes, row: int, k: int) -> tuple[Int32[np.ndarray, " k"], Int64[np.ndarray, " k"]]:
    """The k nearest images of an image among them, without itself: distances int32 [k] and rows int64 [k].

    Raises:
        ConceptError: a row out of range, or a k that is not in 1 to N - 1.
    """
    if not 0 <= row < len(codes):
        raise ConceptError(f"expected a row of the {len(codes):,} images, got {row}")
    if not 1 <= k <= len(codes) - 1:
        raise ConceptError(f"expected k from 1 to {len(codes) - 1}, got {k}")
    distances, rows = nearest(codes, np.array(codes.bits[row : row + 1]), k + 1)
    others = np.flatnonzero(rows[0] != row)[:k]  # itself is missing where more than k equal images come before it
    return distances[0, others], rows[0, others]
