# pyright: reportMissingImports=false, reportIndexIssue=false
"""Straight-through slopes in Triton, with the signatures and the formulas of reference.py."""

from __future__ import annotations

from collections.abc import Sequence
from typing import no_type_check

import triton
import triton.language as tl
from torch import Tensor

from htaf.core.kernels.htaf import triton as htaf
from htaf.core.kernels.scaled_sigmoid import triton as scaled_sigmoid
from htaf.core.kernels.triton import at_least, fma, reciprocal, run_backward, supports

__all__ = ["backward", "supports"]


@triton.jit
@no_type_check
def derive_scale(p0, p1, scale):
    return scale


@triton.jit
@no_type_check
def rectangular(grad, x, scale, HALF: tl.constexpr):
    """scale where |x| < 1, else 0."""
    gx = grad * tl.where(tl.abs(x) < 1.0, scale, 0.0)
    return gx, gx, gx


@triton.jit
@no_type_check
def approx_sign(grad, x, scale, HALF: tl.constexpr):
    """scale max(0, 1 - |x|)."""
    gx = grad * (at_least(1.0 - tl.abs(x), 0.0) * scale)
    return gx, gx, gx


@triton.jit
@no_type_check
def derive_atan(alpha, _, scale):
    """pi alpha / 2 and scale alpha / 2."""
    return alpha * 1.57079633, alpha * (0.5 * scale)


@triton.jit
@no_type_check
def atan(grad, x, constants, HALF: tl.constexpr):
    """(scale alpha / 2) / (1 + (pi alpha x / 2)^2)."""
    rate, height = constants
    z = x * rate
    gx = grad * (height * reciprocal(fma(z, z, 1.0)))
    return gx, gx, gx


KERNELS = {
    "sigmoid": (scaled_sigmoid.derive, scaled_sigmoid.gradient),
    "tanh": (scaled_sigmoid.derive, scaled_sigmoid.gradient),
    "rectangular": (derive_scale, rectangular),
    "atan": (derive_atan, atan),
    "approx_sign": (derive_scale, approx_sign),
    "htaf": (htaf.derive, htaf.gradient),
}


def backward(grad: Tensor, x: Tensor, slope: str, parameters: Sequence[float], *, bipolar: bool = False) -> Tensor:
    """grad * slope(x), twice that when bipolar."""
    scale = 2.0 if bipolar else 1.0
    if slope == "tanh":  # sech(x)^2 is twice the slope of sigma(2 x)
        parameters, scale = (2.0,), 2 * scale
    return run_backward(grad, x, tuple(parameters) or (0.0,), scale, *KERNELS[slope])[0]
