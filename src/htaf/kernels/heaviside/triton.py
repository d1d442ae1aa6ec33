# pyright: reportMissingImports=false, reportIndexIssue=false
"""The step and its bits in Triton, with the signatures of reference.py, which says where a bit lies."""

from __future__ import annotations

import math
from typing import no_type_check

import torch
import triton
import triton.language as tl
from torch import Tensor

from htaf.kernels.triton_device import block_start, narrow, widen
from htaf.kernels.triton_maps import OPTIONS, block_size, on_device, run_forward, supports

__all__ = ["forward", "pack", "supports", "unpack"]


@triton.jit
@no_type_check
def derive(below, _, scale):
    return below


@triton.jit
@no_type_check
def value(x, below, scale, shift, HALF: tl.constexpr):
    """1 where x >= 0, `below` where x < 0, x where it is NaN."""
    return tl.where(x >= 0.0, 1.0, tl.where(x < 0.0, below, x))


@triton.jit
@no_type_check
def places(program, columns, row_bytes, all_bytes, RAGGED: tl.constexpr, SIZE: tl.constexpr):
    """Of the SIZE bytes of a program and their 8 values each: bytes, which bytes exist, values, which values exist.

    Rows are ragged when they end inside a byte; else all values follow one another as their bits do.
    """
    byte = block_start(program, SIZE) + tl.arange(0, SIZE)
    bit = tl.arange(0, 8)
    inside = byte < all_bytes
    if RAGGED:
        row = byte // row_bytes
        first = (byte - row * row_bytes) * 8
        values = (row * columns + first)[:, None] + bit[None, :]
        exist = inside[:, None] & (first[:, None] + bit[None, :] < columns)
    else:
        values = byte[:, None] * 8 + bit[None, :]
        exist = inside[:, None] & (bit[None, :] < 8)
    return byte, inside, values, exist


@triton.jit
@no_type_check
def pack_kernel(x, bits, found_nan, columns, row_bytes, all_bytes, RAGGED: tl.constexpr, SIZE: tl.constexpr):
    """Writes the bits, and 1 to found_nan[0] where a value is NaN."""
    byte, inside, values, exist = places(tl.program_id(0), columns, row_bytes, all_bytes, RAGGED, SIZE)
    v = widen(tl.load(x + values, mask=exist, other=-1.0))
    bit = tl.arange(0, 8)[None, :]
    word = tl.sum(((v >= 0.0).to(tl.int32) << bit) | ((v != v).to(tl.int32) << (bit + 8)), 1)  # NaNs in the upper byte
    tl.store(bits + byte, (word & 255).to(tl.uint8), mask=inside)
    tl.store(found_nan + byte * 0, 1, mask=inside & (word > 255))


@triton.jit
@no_type_check
def unpack_kernel(bits, y, columns, row_bytes, all_bytes, below, RAGGED: tl.constexpr, SIZE: tl.constexpr):
    """1 where a bit is set, else `below`."""
    byte, inside, values, exist = places(tl.program_id(0), columns, row_bytes, all_bytes, RAGGED, SIZE)
    word = tl.load(bits + byte, mask=inside, other=0).to(tl.int32)
    is_set = ((word[:, None] >> tl.arange(0, 8)[None, :]) & 1) != 0
    v = tl.where(is_set, 1.0, tl.cast(below, tl.float32))
    tl.store(y + values, narrow(v, y.dtype.element_ty), mask=exist)


def forward(x: Tensor, *, bipolar: bool = False) -> Tensor:
    """H(x), 2 H(x) - 1 when bipolar; NaN stays NaN."""
    return run_forward(x, (-1.0 if bipolar else 0.0,), False, derive, value)


def pack(x: Tensor) -> Tensor:
    """uint8 [..., ceil(n / 8)] from x [..., n]; ValueError where x holds a NaN, for which it waits for the device."""
    x = x.contiguous()
    columns = x.shape[-1]
    row_bytes = (columns + 7) // 8
    bits = torch.empty((*x.shape[:-1], row_bytes), dtype=torch.uint8, device=x.device)
    if not bits.numel():
        return bits
    found_nan = torch.zeros(1, dtype=torch.int32, device=x.device)
    size = block_size(x) // 8
    with on_device(x):
        pack_kernel[(triton.cdiv(bits.numel(), size),)](
            x, bits, found_nan, columns, row_bytes, bits.numel(), columns % 8 != 0, size, **OPTIONS
        )
    if found_nan.item():
        raise ValueError("cannot pack NaN to bits: the input holds NaN")
    return bits


def unpack(bits: Tensor, size: int, dtype: torch.dtype, *, bipolar: bool = False) -> Tensor:
    """The inverse: dtype [..., size] of 0 and 1 (-1 and 1 when bipolar) from uint8 [..., ceil(size / 8)]."""
    bits = bits.contiguous()
    values = torch.empty((*bits.shape[:-1], size), dtype=dtype, device=bits.device)
    row_bytes = (size + 7) // 8
    all_bytes = math.prod(bits.shape[:-1]) * row_bytes
    if not values.numel():
        return values
    block = block_size(values) // 8
    with on_device(values):
        unpack_kernel[(triton.cdiv(all_bytes, block),)](
            bits, values, size, row_bytes, all_bytes, -1.0 if bipolar else 0.0, size % 8 != 0, block, **OPTIONS
        )
    return values
