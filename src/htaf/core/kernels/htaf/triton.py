# pyright: reportMissingImports=false, reportIndexIssue=false
"""HTAF in Triton, with the signatures and the formulas of reference.py, as csrc/activations.hpp arranges them."""

from __future__ import annotations

from typing import no_type_check

import triton
import triton.language as tl
from torch import Tensor

from htaf.core.kernels.formulas import Scalar
from htaf.core.kernels.triton import (
    at_least,
    at_most,
    exp2,
    fma,
    quotient,
    reciprocal,
    run_backward,
    run_forward,
    split_exp2,
    split_exp2_rough,
    split_expm1,
    split_expm1_parts,
    supports,
    times,
)

__all__ = ["backward", "backward_all", "forward", "supports"]


@triton.jit
@no_type_check
def derive(alpha0, alpha1, scale):
    """-2 a0 log2(e) and -a1 log2(e) as pairs, and the factor of the slope.

    Beyond 2^20 alpha1 stays there and alpha0 takes the rest: see `Pair` in csrc/activations.hpp.
    """
    less = at_most(alpha1, 2.0**20)
    rate0, rest0 = times(-at_most(alpha0 * (alpha1 / less), 1e38), 2.88539004, 3.851926e-8)
    rate1, rest1 = times(-less, 1.44269502, 1.925963e-8)
    return rate0, rest0, rate1, rest1, at_most(scale * alpha0 * alpha1, 3e38)


@triton.jit
@no_type_check
def value(x, constants, scale, shift, HALF: tl.constexpr):
    """scale / (1 + f) + shift with f = exp(-a1 t), t = tanh(a0 x) = -E / (E + 2), E = exp(-2 a0 x) - 1."""
    rate0, rest0, rate1, _, _ = constants
    limit = at_most(-30.0 / rate0, 3e38)  # t is 1 to the last bit from 2^25 on
    e = split_expm1(at_least(at_most(x, limit), -limit), rate0, rest0)
    if HALF:  # of exp2 and reciprocals the processor has few a cycle, so both exponentials are polynomials
        t = -e * reciprocal(e + 2.0)
        t = at_least(at_most(t, -127.0 / rate1), 128.0 / rate1)  # f is 0 or infinite from there on
        f = split_exp2_rough(t, rate1)
    else:
        f = exp2(-quotient(e, e + 2.0) * rate1)
    return fma(reciprocal(f + 1.0), scale, shift)


@triton.jit
@no_type_check
def gradient(grad, x, constants, HALF: tl.constexpr):
    """slope = a0 a1 e f ((1 + t) / (1 + f))^2 with e = exp(-2 a0 |x|), t = tanh(a0 |x|), f = exp(-a1 t).

    e and f are kept times 2^32: each may be below the smallest normal number when the slope is not.
    """
    rate0, rest0, rate1, rest1, factor = constants
    z = at_most(tl.abs(x), at_most(-158.9 / rate0, 3e38))  # e is 0 from there on
    h, s = split_expm1_parts(z, rate0, rest0, 159)
    e = s + h
    above = fma(h, -(2.0**-32), fma(s, -(2.0**-32), 1.0))  # 1 - e without cancellation
    if HALF:
        t = above * reciprocal(2.0 - above)
        f = exp2(fma(t, rate1, 32.0))
    else:
        t = quotient(above, 2.0 - above)
        f = split_exp2(at_most(t, -158.9 / rate1), rate1, rest1, 159)
    w = t + 1.0
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
        return sums[0] / alpha0, sums[1] * scale / (alpha1 / alpha1.clamp(max=2.0**20))

    return run_backward(grad, x, (alpha0, alpha1), scale, derive, gradient, finish)
