"""Straight-through estimation: the exact step forward, a chosen slope backward. A surrogate is only its slope.

A slope is a function x -> tensor that stands for dH/dx; set its parameters with `functools.partial`. The slopes
here follow the paper (appendix D.4), SpikingJelly and Bi-Real Net.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from htaf.functional import check_floating, heaviside
from htaf.kernels.htaf import reference as htaf_reference
from htaf.kernels.scaled_sigmoid import reference as sigmoid_reference

Slope = Callable[[Tensor], Tensor]


def straight_through(x: Float[Tensor, "*shape"], slope: Slope) -> Float[Tensor, "*shape"]:
    """The exact step H(x) whose gradient is taken to be slope(x).

    Args:
        x: floating-point tensor of any shape.
        slope: function from a float32 or float64 tensor to a tensor of the same shape, such as `sigmoid` below.
            The gradient grad * slope(x) is computed in at least float32 and rounded once to the dtype of x.

    Returns:
        Tensor of 0 and 1, same shape and dtype as x.

    Raises:
        TypeError: x is not a floating-point tensor, or slope is not callable.

    Source: Bengio et al. 2013, arXiv:1308.3432.
    """
    check_floating(x)
    if not callable(slope):
        raise TypeError(f"slope must be a function from a tensor to a tensor, got {type(slope).__name__}")
    return _StraightThrough.apply(x, slope)  # pyright: ignore[reportReturnType]


class _StraightThrough(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x, slope):
        return heaviside(x)

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, ctx.slope = inputs
        ctx.save_for_backward(x)

    @staticmethod
    def backward(ctx, grad):  # pyright: ignore[reportIncompatibleMethodOverride]
        (x,) = ctx.saved_tensors
        wide = torch.float64 if x.dtype == torch.float64 else torch.float32
        return (grad.to(wide) * ctx.slope(x.to(wide))).to(x.dtype), None


def sigmoid(x: Tensor, beta: float = 1.0) -> Tensor:
    """beta sigma(beta x) (1 - sigma(beta x)); the paper's g_sigmoid at beta = 1. Area 1."""
    return sigmoid_reference.slope(x, beta)


def tanh(x: Tensor) -> Tensor:
    """1 - tanh(x)^2, the paper's g_tanh. Area 2."""
    return 4 * sigmoid_reference.half_sech(x) ** 2


def rectangular(x: Tensor) -> Tensor:
    """1 where |x| < 1, else 0, the paper's g_rect. Area 2."""
    return (x.abs() < 1).to(x.dtype)


def atan(x: Tensor, alpha: float = 2.0) -> Tensor:
    """(alpha / 2) / (1 + (pi alpha x / 2)^2), the slope of SEW-ResNet at alpha = 2. Area 1."""
    return (alpha / 2) / (1 + (math.pi / 2 * alpha * x) ** 2)


def approx_sign(x: Tensor) -> Tensor:
    """max(0, 1 - |x|): with sign = 2 H - 1 it becomes Bi-Real Net's 2 - 2 |x| on [-1, 1). Area 1."""
    return (1 - x.abs()).clamp(min=0)


def htaf(x: Tensor, alpha0: float = 2.0, alpha1: float = 11.0) -> Tensor:
    """HTAF's own slope, alpha0 alpha1 (sech(alpha0 x) sech(alpha1 tanh(alpha0 x) / 2) / 2)^2.

    Area sigma(alpha1) - sigma(-alpha1).
    """
    return htaf_reference.slope(x, alpha0, alpha1)
