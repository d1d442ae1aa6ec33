"""Counting packed bits: which are set in two rows at once, and a matrix of bits turned on its side; nearest rows.

Where a bit lies in a byte: kernels/heaviside/reference.py.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from htaf.core.kernels.heaviside.reference import pack, unpack

ROWS = 65_536  # compared at once
CHUNK = 2**23  # values unpacked at once; up to 2^24 a float32 counts exactly


def transpose(bits: Tensor, size: int) -> Tensor:
    """uint8 [size, ceil(rows / 8)] from uint8 [rows, ceil(size / 8)]: bit c of row n becomes bit n of row c."""
    rows = len(bits)
    result = torch.empty((size, (rows + 7) // 8), dtype=torch.uint8, device=bits.device)
    step = max(CHUNK // max(size, 1), 8) // 8 * 8  # whole bytes of the result
    for start in range(0, rows, step):
        values = unpack(bits[start : start + step], size, torch.float16, bipolar=True)
        result[:, start // 8 : (start + step) // 8 if start + step < rows else None] = pack(values.t())
    return result


def common(a: Tensor, b: Tensor) -> Tensor:
    """int64 [m, n] from uint8 [m, B] and [n, B]: how many bits are set in both rows, popcount(a_i & b_j)."""
    counts = torch.zeros((len(a), len(b)), dtype=torch.int64, device=a.device)
    step = max(CHUNK // (8 * max(len(a), len(b), 1)), 1)
    with torch.autocast(a.device.type, enabled=False):
        for start in range(0, a.shape[1], step):
            left, right = (_floats(x[:, start : start + step]) for x in (a, b))
            counts += (left @ right.t()).long()
    return counts


def _floats(bits: Tensor) -> Tensor:
    return unpack(bits, 8 * bits.shape[1], torch.float32)


def nearest(bits: np.ndarray, queries: np.ndarray, first: int, distances: np.ndarray, rows: np.ndarray) -> None:
    """The k rows that differ in the fewest bits from each query, by distance, then row number, of those that stand in
    `distances` int32 and `rows` int64 [q, k] (-1: none yet, at the end) and of `bits` uint8 [n, B], row `first` and
    those behind it. Both are written over; queries uint8 [q, B]."""
    k = distances.shape[1]
    for start in range(0, len(bits) if k else 0, ROWS):
        some = bits[start : start + ROWS]
        numbers = np.arange(first + start, first + start + len(some))
        for q, query in enumerate(queries):
            known = rows[q] >= 0
            far = np.concatenate([distances[q][known], np.bitwise_count(some ^ query).sum(1, dtype=np.int32)])
            all_rows = np.concatenate([rows[q][known], numbers])
            order = np.lexsort((all_rows, far))[:k]
            distances[q, : len(order)], rows[q, : len(order)] = far[order], all_rows[order]
