"""HTAF and its derivatives in float64, written out without the library."""

from __future__ import annotations

import math
from typing import NamedTuple


class Derivatives(NamedTuple):
    """At one point."""

    value: float
    x: float
    alpha0: float
    alpha1: float
    xx: float


def derivatives(x: float, alpha0: float, alpha1: float) -> Derivatives:
    """With respect to x, alpha0, alpha1 and x twice, without cancellation."""
    t, sech2 = math.tanh(alpha0 * x), _sech(alpha0 * x) ** 2
    u = alpha1 * t
    ds, h = _sech(u / 2) ** 2 / 4, math.tanh(u / 2)
    slope = alpha0 * alpha1 * sech2 * ds
    return Derivatives(
        value=1 / (1 + math.exp(-u)) if u > -700 else math.exp(u),
        x=slope,
        alpha0=x * alpha1 * sech2 * ds,
        alpha1=t * ds,
        xx=-slope * alpha0 * (2 * t + alpha1 * sech2 * h),
    )


def _sech(x: float) -> float:
    r = math.exp(-abs(x))
    return 2 * r / (1 + r * r)
