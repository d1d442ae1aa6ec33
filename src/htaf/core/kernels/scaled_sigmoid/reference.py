"""Scaled sigmoid sigma(beta x) and its derivatives, without cancellation. Plain PyTorch, the only formula.

`value`, `gradients` and `hessian` take x in the dtype to compute in (float32 or float64) and beta as a float or a
tensor that broadcasts to x. sigma'(z) = (sech(z / 2) / 2)^2 keeps its relative accuracy in the tails, where autograd's
y (1 - y) cancels to 0.
"""

from __future__ import annotations

import torch
from torch import Tensor

from htaf.core.kernels.formulas import Scalar, functions


def half_sech(z: Tensor) -> Tensor:
    """sech(z) / 2 = r / (1 + r^2) with r = exp(-|z|); its square at z = u / 2 is the slope of the sigmoid at u."""
    r = torch.exp(-z.abs())
    return r / (1 + r * r)


def finite(x: Tensor) -> Tensor:
    """x with its infinities made finite, so that x * slope is 0 there (the limit) and not NaN."""
    largest = torch.finfo(x.dtype).max ** 0.5  # its square and small multiples stay finite
    return x.clamp(-largest, largest)


def value(x: Tensor, beta: Scalar) -> Tensor:
    """sigma(beta x)."""
    return torch.sigmoid(beta * x)


def slope(x: Tensor, beta: Scalar) -> Tensor:
    """d sigma(beta x) / dx = beta (sech(beta x / 2) / 2)^2."""
    k = half_sech(0.5 * (beta * x))
    return (beta * k) * k  # in this order nothing underflows before the result does


def gradients(x: Tensor, beta: Scalar) -> tuple[Tensor, Tensor]:
    """Derivatives with respect to x and beta: the slope, and x slope / beta."""
    s = slope(x, beta)
    return s, finite(x) * s / beta


def hessian(x: Tensor, beta: Scalar) -> tuple[tuple[Tensor, ...], ...]:
    """Second derivatives, in the order x, beta; the slope times those of its logarithm."""
    s, h, far = slope(x, beta), torch.tanh(0.5 * (beta * x)), finite(x)
    mixed = s * (1 / beta - far * h)
    return (-s * h * beta, mixed), (mixed, -far * (far * s) * h / beta)


forward, backward, backward_all = functions(value, gradients)
