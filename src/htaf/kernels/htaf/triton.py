# pyright: reportMissingImports=false, reportIndexIssue=false
"""HTAF in Triton, with the signatures and the formulas of reference.py, as csrc/activations.hpp arranges them."""

from __future__ import annotations

from typing import no_type_check

import triton
import triton.language as tl
from torch import Tensor

from htaf.kernels._plain import Scalar
from htaf.kernels._triton import (
    at_least,
    at_most,
    exp2,
    fma,
    quotient,
    reciprocal,
    split_exp2,
    split_exp2_rough,
    split_expm1,
    times,
)
from htaf.kernels._triton_maps import run_backward, run_forward, supports

__all__ = ["backward", "backward_all", "forward", "supports"]


@triton.jit
@no_type_check
def derive(alpha0, alpha1, scale):
    """-2 a0 log2(e) and -a1 log2(e) as pairs, and the factor of the slope."""
    rate0, rest0 = times(-alpha0, 2.88539004, 3.851926e-8)
    rate1, rest1 = times(-alpha1, 1.44269502, 1.925963e-8)
    return rate0, rest0, rate1, rest1, scale * alpha0 * alpha1


@triton.jit
@no_type_check
def value(x, constants, scale, shift, HALF: tl.constexpr):
    """scale / (1 + f) + shift with f = exp(-a1 t), t = tanh(a0 x) = -E / (E + 2), E = exp(-2 a0 x) - 1."""
    rate0, rest0, rate1, _, _ = constants
    if HALF:  # once the processor's exp2, once a polynomial: of exp2 and reciprocals it has few a cycle
        t = fma(reciprocal(exp2(x * rate0) + 1.0), 2.0, -1.0)
        t = at_least(at_most(t, -127.0 / rate1), 128.0 / rate1)  # f is 0 or infinite from there on
        f = split_exp2_rough(t, rate1)
    else:
        limit = at_most(-30.0 / rate0, 3e38)  # t is 1 to the last bit from 2^25 on
        e = split_expm1(at_least(at_most(x, limit), -limit), rate0, rest0)
        f = exp2(-quotient(e, e + 2.0) * rate1)
    return fma(reciprocal(f + 1.0), scale, shift)


@triton.jit
@no_type_check
def gradient(grad, x, constants, HALF: tl.constexpr):
    """slope = a0 a1 e f ((1 + t) / (1 + f))^2 with e = exp(-2 a0 |x|), t = tanh(a0 |x|), f = exp(-a1 t).

    e and f are kept times 2^32: each may be below the smallest normal number when the slope is not.
    """
    rate0, rest0, rate1, rest1, factor = constants
    z = tl.abs(x)
    if HALF:
        e = exp2(fma(z, rate0, 32.0))
        w = 2.0 * reciprocal(fma(e, 2.0**-32, 1.0))
        t = w - 1.0
        f = exp2(fma(t, rate1, 32.0))
    else:
        e = split_exp2(at_most(z, at_most(-158.9 / rate0, 3e38)), rate0, rest0, 159)  # 0 from there on
        t = quotient(fma(e, -(2.0**-32), 1.0), fma(e, 2.0**-32, 1.0))
        w = t + 1.0
        f = split_exp2(at_most(t, -158.9 / rate1), rate1, rest1, 159)
    q = reciprocal(f + 2.0**32)
    wq = w * q
    gx = grad * (e * factor * f * (wq * wq))
    term0 = gx * at_least(at_most(x, 2.0**63), -(2.0**63))  # 0 at infinity
    term1 = tl.where(x < 0, -t, t) * (f * q * (q * 2.0**32)) * grad
    return gx, term0, term1


def forward(x: Tensor, alpha0: Scalar, alpha1: Scalar, *, bipolar: bool = False) -> Tensor:
    """HTAF(x), 2 HTAF(x) - 1 when bipolar."""
    return run_forward(x, (alpha0, alpha1), bipolar, derive, value)


def backward(grad: Tensor, x: Tensor, alpha0: Scalar, alpha1: Scalar, *, bipolar: bool = False) -> Tensor:
    """The gradient of x."""
    return run_backward(grad, x, (alpha0, alpha1), 2.0 if bipolar else 1.0, derive, gradient)[0]


def backward_all(
    grad: Tensor, x: Tensor, alpha0: Tensor, alpha1: Tensor, *, bipolar: bool = False
) -> tuple[Tensor, ...]:
    """The gradients of x, alpha0 and alpha1."""
    scale = 2.0 if bipolar else 1.0

    def finish(sums: Tensor, alpha0: Tensor, alpha1: Tensor) -> tuple[Tensor, ...]:
        return sums[0] / alpha0, sums[1] * scale

    return run_backward(grad, x, (alpha0, alpha1), scale, derive, gradient, finish)
