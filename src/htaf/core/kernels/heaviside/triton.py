# pyright: reportMissingImports=false, reportIndexIssue=false
"""The step in Triton, with the signatures of reference.py, whose formula packs its bits."""

from __future__ import annotations

from typing import no_type_check

import triton
import triton.language as tl
from torch import Tensor

from htaf.core.kernels.heaviside.reference import pack
from htaf.core.kernels.triton import run_forward, supports

__all__ = ["forward", "pack", "supports"]


@triton.jit
@no_type_check
def derive(below, _, scale):
    return below


@triton.jit
@no_type_check
def value(x, below, scale, shift, HALF: tl.constexpr):
    """1 where x >= 0, `below` where x < 0, x where it is NaN."""
    return tl.where(x >= 0.0, 1.0, tl.where(x < 0.0, below, x))


def forward(x: Tensor, *, bipolar: bool = False) -> Tensor:
    """H(x), 2 H(x) - 1 when bipolar; NaN stays NaN."""
    return run_forward(x, (-1.0 if bipolar else 0.0,), False, derive, value)
