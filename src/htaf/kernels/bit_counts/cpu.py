"""The compiled kernels of csrc/bit_counts.hpp and csrc/nearest.hpp, with the signatures of reference.py."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from htaf.kernels import native

__all__ = ["common", "nearest", "transpose"]


def transpose(bits: Tensor, size: int) -> Tensor:
    return native.transpose(bits, size)


def common(a: Tensor, b: Tensor) -> Tensor:
    return native.count_common(a, b)


def nearest(bits: np.ndarray, queries: np.ndarray, first: int, distances: np.ndarray, rows: np.ndarray) -> None:
    native.nearest(bits, queries, first, distances, rows)
