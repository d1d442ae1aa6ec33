"""The images whose concepts differ in the fewest bits, exactly: one pass over the codes for many queries."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from jaxtyping import Int32, Int64, UInt8

from htaf._console import progress as progress_of
from htaf.concepts.codes import Codes, ConceptError, expect_bits
from htaf.concepts.store import CodesFolder
from htaf.kernels import native
from htaf.kernels.registration import implementation

AT_ONCE = 2**18  # rows between two looks at Ctrl-C and two steps of the bar
QUERIES = 1024  # that go over the codes together; more go over them again


class NearestImages:
    """An exact search over codes in memory, or over a folder, of which some thousands of images are read at a time.

    The distance of two images is the number of concepts in which they differ. Results are ordered by distance, and by
    row number where distances are equal, also where the k-th distance cuts through equals. They do not depend on the
    number of threads, which is that of `torch.get_num_threads()`, nor on how the images are cut into parts.

    Each code is read once for up to 1,024 queries. A query takes ceil(C / 64) words of exclusive or and popcount an
    image (`csrc/nearest.hpp`; without compiled kernels NumPy's bitwise_count, many times slower).

    Args:
        codes: the images to be found.

    Raises:
        ConceptError: there are no images or no concepts.
    """

    def __init__(self, codes: CodesFolder | Codes) -> None:
        if not len(codes) or not codes.concepts:
            raise ConceptError(f"expected images with concepts, got {len(codes)} images of {codes.concepts} concepts")
        self.concepts, self._length, self._codes = codes.concepts, len(codes), codes

    def _pieces(self) -> Iterator[tuple[int, UInt8[np.ndarray, "images bytes"]]]:
        """The row number of the first image, and bits of some."""
        if isinstance(self._codes, Codes):
            for start in range(0, len(self), AT_ONCE):
                yield start, self._codes.bits[start : start + AT_ONCE]
        else:
            for first, found in self._codes.pieces("bits"):
                yield first, found["bits"]

    def __len__(self) -> int:
        """N."""
        return self._length

    def query(
        self, bits: UInt8[np.ndarray, "queries bytes"], k: int, *, progress: bool = False
    ) -> tuple[Int32[np.ndarray, "queries k"], Int64[np.ndarray, "queries k"]]:
        """The k nearest images of each query.

        Args:
            bits: uint8 [q, ceil(C / 8)] as `Codes.bits`: unused bits are 0.
            k: 1 to N.
            progress: show a bar on the error stream.

        Returns:
            distances int32 [q, k] in bits, ascending, and rows int64 [q, k], as they count through the parts.

        Raises:
            ConceptError: bits of another shape or dtype, unused bits that are not 0, or a k out of range.
        """
        expect_bits(bits, self.concepts)
        if not 1 <= k <= len(self):
            raise ConceptError(f"expected k from 1 to {len(self)}, got {k}")
        kernel = implementation("bit_counts", "cpu" if native.available() else "reference")
        distances, rows = np.full((len(bits), k), -1, np.int32), np.full((len(bits), k), -1, np.int64)
        batches = range(0, len(bits), QUERIES)
        with progress_of("images", len(self) * len(batches), shown=progress) as advance:
            for batch in batches:
                asked = np.ascontiguousarray(bits[batch : batch + QUERIES])
                found = distances[batch : batch + QUERIES], rows[batch : batch + QUERIES]
                for first, codes in self._pieces():
                    kernel.nearest(np.ascontiguousarray(codes), asked, first, *found)
                    advance(len(codes))
        return distances, rows

    def of(
        self, row: int, k: int, *, progress: bool = False
    ) -> tuple[Int32[np.ndarray, " k"], Int64[np.ndarray, " k"]]:
        """The k nearest images of an image among them, without itself.

        Args:
            row: its number.
            k: 1 to N - 1.
            progress: show a bar on the error stream.

        Returns:
            distances int32 [k] in bits, ascending, and rows int64 [k].

        Raises:
            ConceptError: a row or k out of range.
        """
        if not 1 <= k <= len(self) - 1:
            raise ConceptError(f"expected k from 1 to {len(self) - 1}, got {k}")
        own = self._own(row)
        distances, rows = self.query(own, k + 1, progress=progress)
        others = np.flatnonzero(rows[0] != row)[:k]  # itself is missing where more than k equal images come before it
        return distances[0, others], rows[0, others]

    def _own(self, row: int) -> UInt8[np.ndarray, "1 bytes"]:
        if isinstance(self._codes, CodesFolder):
            return self._codes.rows([row]).bits
        if not 0 <= row < len(self):
            raise ConceptError(f"expected a row of the {len(self):,} images, got {row}")
        return np.array(self._codes.bits[row : row + 1])
