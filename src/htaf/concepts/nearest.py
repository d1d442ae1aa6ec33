"""The images whose concepts differ in the fewest bits, exactly: one pass over the codes for many queries."""

from __future__ import annotations

import numpy as np
from jaxtyping import Int32, Int64, UInt8

from htaf.concepts.codes import Codes, ConceptError, expect_bits
from htaf.core.kernels import native
from htaf.core.kernels.registration import implementation

ROWS = 2**18  # rows between two looks at Ctrl-C
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
        for first in range(0, len(codes), ROWS):
            kernel.nearest(np.ascontiguousarray(codes.bits[first : first + ROWS]), asked, first, *found)
    return distances, rows
