"""Slopes that stand for dH/dx in straight-through estimation, and their derivatives. Plain PyTorch, the only formulas.

Each takes x in the dtype to compute in (float32 or float64), then its parameters as floats.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from htaf.core.kernels.formulas import as_laid_out, compute_dtype
from htaf.core.kernels.htaf import reference as htaf_reference
from htaf.core.kernels.scaled_sigmoid import reference as sigmoid_reference


class Slope(NamedTuple):
    value: Callable[..., Tensor]
    derivative: Callable[..., Tensor]
    parameters: int


def tanh(x: Tensor) -> Tensor:
    """1 - tanh(x)^2 = sech(x)^2."""
    return 4 * sigmoid_reference.half_sech(x) ** 2


def rectangular(x: Tensor) -> Tensor:
    """1 where |x| < 1, else 0."""
    return (x.abs() < 1).to(x.dtype)


def atan(x: Tensor, alpha: float) -> Tensor:
    """(alpha / 2) / (1 + (pi alpha x / 2)^2)."""
    return (alpha / 2) / (1 + (math.pi / 2 * alpha * x) ** 2)


def atan_derivative(x: Tensor, alpha: float) -> Tensor:
    rate, s = math.pi / 2 * alpha, atan(x, alpha)
    z = sigmoid_reference.finite(rate * x)
    return -2 * rate * s * (z / (1 + z * z))


def approx_sign(x: Tensor) -> Tensor:
    """max(0, 1 - |x|)."""
    return (1 - x.abs()).clamp(min=0)


SLOPES = {
    "sigmoid": Slope(sigmoid_reference.slope, lambda x, beta: sigmoid_reference.hessian(x, beta)[0][0], 1),
    "tanh": Slope(tanh, lambda x: -2 * torch.tanh(x) * tanh(x), 0),
    "rectangular": Slope(rectangular, torch.zeros_like, 0),
    "atan": Slope(atan, atan_derivative, 1),
    "approx_sign": Slope(approx_sign, lambda x: torch.where(x.abs() < 1, -torch.sign(x), torch.zeros_like(x)), 0),
    "htaf": Slope(htaf_reference.slope, lambda x, a0, a1: htaf_reference.hessian(x, a0, a1)[0][0], 2),
}


def backward(grad: Tensor, x: Tensor, slope: str, parameters: Sequence[float], *, bipolar: bool = False) -> Tensor:
    """grad * slope(x), twice that when bipolar (the step is then 2 H - 1), rounded once to the dtype of x."""
    wide = compute_dtype(x)
    scaled = (2 if bipolar else 1) * grad.to(wide)
    return as_laid_out(scaled * SLOPES[slope].value(x.to(wide), *parameters), x)
