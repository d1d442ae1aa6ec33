"""The compiled kernels of csrc/bit_counts.hpp, with the signatures of reference.py."""

from __future__ import annotations

from torch import Tensor

from htaf.kernels import native

__all__ = ["common", "transpose"]


def transpose(bits: Tensor, size: int) -> Tensor:
    return native.transpose(bits, size)


def common(a: Tensor, b: Tensor) -> Tensor:
    return native.count_common(a, b)
