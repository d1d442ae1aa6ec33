"""Offsets of the Triton kernels beyond 2^31, in the interpreter; run by test_triton.py."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from htaf.core.kernels.triton import block_start, first_tile


@triton.jit
def far_blocks(out, program, SIZE: tl.constexpr):
    tl.store(out, block_start(tl.cast(program, tl.int32), SIZE))


@triton.jit
def far_tiles(out, program, across, units, BY_ROW: tl.constexpr):
    row, column, columns = first_tile(program, across, units, BY_ROW, 16, 16, 1, 1024)
    tl.store(out, tl.max(row[:, None] * columns + column[None, :]))


def test_indices_beyond_32_bits() -> None:
    out = torch.zeros(1, dtype=torch.int64)
    far_blocks[(1,)](out, 3_000_000, 2048)
    assert out.item() == 3_000_000 * 2048
    far_tiles[(1,)](out, 300_000, 300_001, 2**28 + 2**27, True)  # one row of 6e9 columns
    assert out.item() == 300_000 * 16 * 1024 + 1023
    far_tiles[(1,)](out, 7 * 3_000_000 + 5, 7, 448, False)  # 48 million rows of 7168 columns
    assert out.item() == 3_000_000 * 16 * 7168 + 5 * 1024 + 1023
