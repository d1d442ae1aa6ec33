"""The compiled kernels of csrc/kernels.cpp, with the signatures of reference.py."""

from __future__ import annotations

import torch
from torch import Tensor

from htaf.kernels import native
from htaf.kernels.native import supports

__all__ = ["forward", "pack", "supports", "unpack"]


def forward(x: Tensor, *, bipolar: bool = False) -> Tensor:
    return native.heaviside(x, bipolar)


def pack(x: Tensor) -> Tensor:
    return native.pack(x)


def unpack(bits: Tensor, size: int, dtype: torch.dtype, *, bipolar: bool = False) -> Tensor:
    return native.unpack(bits, size, dtype, bipolar)
