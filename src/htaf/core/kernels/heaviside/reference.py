"""The step function and its bits: the one place that decides what 0, -0.0 and NaN give, and where a bit lies.

Bits: along the last dimension, value 8 i + j of a row is bit j (counted from the least significant) of byte i of that
row, 1 where x >= 0. A row of n values takes ceil(n / 8) bytes; the unused bits of its last byte are 0. As NumPy's
`packbits(..., bitorder="little")`; read as little-endian 64-bit words where n is a multiple of 64.
"""

from __future__ import annotations

import torch
from torch import Tensor

from htaf.core.kernels.formulas import as_laid_out


def forward(x: Tensor, *, bipolar: bool = False) -> Tensor:
    """H(x) = 1 where x >= 0 (-0.0 counts as 0), else 0, or -1 when bipolar; NaN stays NaN. Shape and dtype of x."""
    step = (x >= 0).to(x.dtype)
    return as_laid_out(torch.where(torch.isnan(x), x, 2 * step - 1 if bipolar else step), x)


def pack(x: Tensor) -> Tensor:
    """uint8 [..., ceil(n / 8)] from x [..., n]; ValueError where x holds a NaN."""
    if torch.isnan(x).any():
        raise ValueError("cannot pack NaN to bits: the input holds NaN")
    bits = torch.nn.functional.pad((x >= 0).to(torch.uint8), (0, -x.shape[-1] % 8))
    weights = 1 << torch.arange(8, dtype=torch.uint8, device=x.device)
    return (bits.unflatten(-1, (bits.shape[-1] // 8, 8)) * weights).sum(-1, dtype=torch.uint8)


def unpack(bits: Tensor, size: int, dtype: torch.dtype, *, bipolar: bool = False) -> Tensor:
    """The inverse: dtype [..., size] of 0 and 1 (-1 and 1 when bipolar) from uint8 [..., ceil(size / 8)]."""
    places = torch.arange(8, dtype=torch.uint8, device=bits.device)
    values = ((bits.unsqueeze(-1) >> places) & 1).flatten(-2)[..., :size].to(dtype)
    return 2 * values - 1 if bipolar else values
