# pyright: reportMissingImports=false, reportIndexIssue=false
"""The scaled sigmoid in Triton, with the signatures and the formulas of reference.py."""

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
    reciprocal,
    run_backward,
    run_forward,
    split_exp2,
    supports,
    times,
)

__all__ = ["backward", "backward_all", "forward", "supports"]


@triton.jit
@no_type_check
def derive(beta, _, scale):
    """-beta log2(e) as a pair, and the factor of the slope."""
    rate, rest = times(-beta, 1.44269502, 1.925963e-8)
    return rate, rest, scale * beta


@triton.jit
@no_type_check
def value(x, constants, scale, shift, HALF: tl.constexpr):
    """scale / (1 + exp(-beta x)) + shift."""
    rate, _, _ = constants
    return fma(reciprocal(exp2(x * rate) + 1.0), scale, shift)


@triton.jit
@no_type_check
def gradient(grad, x, constants, HALF: tl.constexpr):
    """slope = beta e / (1 + e)^2 with e = exp(-beta |x|), kept times 2^32: it may be less than the slope."""
    rate, rest, factor = constants
    z = tl.abs(x)
    if HALF:  # noqa: SIM108
        e = exp2(fma(z, rate, 32.0))
    else:
        e = split_exp2(at_most(z, at_most(-158.9 / rate, 3e38)), rate, rest, 159)  # 0 from there on
    q = reciprocal(fma(e, 2.0**-16, 2.0**16))  # 2^-16 / (1 + e)
    gx = grad * (e * factor * (q * q))
    term = gx * at_least(at_most(x, 2.0**63), -(2.0**63))  # 0 at infinity
    return gx, term, term


def forward(x: Tensor, beta: Scalar, *, bipolar: bool = False) -> Tensor:
    """sigma(beta x), 2 sigma(beta x) - 1 when bipolar."""
    return run_forward(x, (beta,), bipolar, derive, value)


def backward(grad: Tensor, x: Tensor, beta: Scalar, *, bipolar: bool = False) -> Tensor:
    """The gradient of x."""
    return run_backward(grad, x, (beta,), 2.0 if bipolar else 1.0, derive, gradient)[0]


def backward_all(grad: Tensor, x: Tensor, beta: Tensor, *, bipolar: bool = False) -> tuple[Tensor, ...]:
    """The gradients of x and beta."""

    def finish(sums: Tensor, beta: Tensor) -> tuple[Tensor, ...]:
        return (sums[0] / beta,)

    return run_backward(grad, x, (beta,), 2.0 if bipolar else 1.0, derive, gradient, finish)
