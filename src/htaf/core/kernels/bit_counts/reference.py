"""Counting packed bits: which are set in two rows at once, and a matrix of bits turned on its side.

Where a bit lies in a byte: kernels/heaviside/reference.py.
"""

from __future__ import annotations

import torch
from torch import Tensor

from htaf.core.kernels.heaviside.reference import pack, unpack

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
