"""The images whose concepts differ in the fewest bits: exact Hamming distances by faiss (`htaf[search]`)."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch  # before faiss, so that both take one OpenMP runtime and one pool of threads
from jaxtyping import Int32, Int64, UInt8

from htaf.concepts.codes import Codes, ConceptError, expect_bits


class NearestImages:
    """An exact index over the bits of N images; it holds a copy of them, N * ceil(C / 8) bytes.

    The distance of two images is the number of concepts in which they differ. Results are ordered by distance, and by
    row number where distances are equal, also where the k-th distance cuts through equals: faiss reads the rows in
    order and replaces a result only by a smaller distance, then by the smaller number. So they do not depend on the
    number of threads, which is that of `torch.get_num_threads()`; queries are spread over them, one query takes one.

    Args:
        codes: the images to be found.

    Raises:
        ConceptError: faiss is not installed, or there are no images or no concepts.
    """

    def __init__(self, codes: Codes) -> None:
        if not len(codes) or not codes.concepts:
            raise ConceptError(f"expected images with concepts, got {len(codes)} images of {codes.concepts} concepts")
        self._faiss = faiss_module()
        self._concepts, self._codes = codes.concepts, codes.bits
        self._index = self._faiss.IndexBinaryFlat(8 * codes.bits.shape[1])
        self._index.add(np.ascontiguousarray(codes.bits))

    def __len__(self) -> int:
        """N."""
        return self._index.ntotal

    def query(
        self, bits: UInt8[np.ndarray, "queries bytes"], k: int
    ) -> tuple[Int32[np.ndarray, "queries k"], Int64[np.ndarray, "queries k"]]:
        """The k nearest images of each query.

        Args:
            bits: uint8 [q, ceil(C / 8)] as `Codes.bits`: unused bits are 0.
            k: 1 to N.

        Returns:
            distances int32 [q, k] in bits, ascending, and rows int64 [q, k].

        Raises:
            ConceptError: bits of another shape or dtype, unused bits that are not 0, or a k out of range.
        """
        expect_bits(bits, self._concepts)
        _check_k(k, len(self))
        if not len(bits):
            return np.empty((0, k), dtype=np.int32), np.empty((0, k), dtype=np.int64)
        self._faiss.omp_set_num_threads(torch.get_num_threads())
        return self._index.search(np.ascontiguousarray(bits), k)

    def of(self, row: int, k: int) -> tuple[Int32[np.ndarray, " k"], Int64[np.ndarray, " k"]]:
        """The k nearest images of an image of the index, without itself.

        Args:
            row: 0 to N - 1.
            k: 1 to N - 1.

        Returns:
            distances int32 [k] in bits, ascending, and rows int64 [k].

        Raises:
            ConceptError: a row or k out of range.
        """
        if not 0 <= row < len(self):
            raise ConceptError(f"expected a row from 0 to {len(self) - 1}, got {row}")
        _check_k(k, len(self) - 1)
        distances, rows = self.query(np.array(self._codes[row : row + 1]), k + 1)
        others = np.flatnonzero(rows[0] != row)[:k]  # itself is missing where more than k equal images come before it
        return distances[0, others], rows[0, others]


def _check_k(k: int, most: int) -> None:
    if not 1 <= k <= most:
        raise ConceptError(f"expected k from 1 to {most}, got {k}")


def faiss_module() -> Any:
    """faiss. Raises ConceptError: it is not installed."""
    try:
        import faiss
    except ImportError as error:
        raise ConceptError(
            f"the search for similar images needs faiss: pip install 'htaf[search]' (import faiss: {error})"
        ) from error
    return faiss
