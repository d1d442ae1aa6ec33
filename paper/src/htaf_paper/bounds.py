"""The paper's bounds and constants as functions of floats, with its errata. No torch.

Notation: HTAF(x) = sigma(alpha1 tanh(alpha0 x)), sigma the logistic function, P = alpha0 alpha1 the product that sets
the slope at 0. Where this page differs from the paper, the docstring says "Erratum".
"""

from __future__ import annotations

import math
from typing import NamedTuple

# The paper's Table "Lower bounds of alpha0" for eps = 0.1: alpha1 -> printed bound, rounded up to its digits.
PAPER_BOUNDS: dict[float, str] = {
    5: "4.72", 10: "2.24", 20: "1.11", 30: "0.74", 40: "0.55",
    50: "0.44", 100: "0.22", 500: "0.05", 1000: "0.022", 5000: "0.005",
}  # fmt: skip


# The paper's candidates for (alpha0, alpha1), appendix D.4: all with a product of about 22.
PAPER_PAIRS = ((0.1, 220.0), (0.5, 44.0), (1.0, 22.0), (2.0, 11.0), (3.0, 7.3), (5.0, 4.4))


class Derivatives(NamedTuple):
    """HTAF and its derivatives at one point."""

    value: float
    x: float
    alpha0: float
    alpha1: float
    xx: float


def logit_bound(eps: float) -> float:
    """ln((1 - eps) / eps), the pre-activation at which sigma is eps away from 1. Raises ValueError outside (0, 1/2)."""
    if not 0.0 < eps < 0.5:
        raise ValueError(f"eps must lie in (0, 1/2), got {eps}")
    return math.log1p(-eps) - math.log(eps)


def alpha1_lower_bound(eps: float) -> float:
    """Proposition 3.1: alpha1 must be greater than ln((1 - eps) / eps); 2.197 at eps = 0.1."""
    return logit_bound(eps)


def alpha0_lower_bound(alpha1: float, eps: float) -> float:
    """Proposition 3.1: the least alpha0 with |HTAF - H| <= eps for |x| >= eps.

    (1 / (2 eps)) ln((alpha1 + l) / (alpha1 - l)) = atanh(l / alpha1) / eps, with l = ln((1 - eps) / eps).

    Erratum: the paper's table rounds it up throughout (2.2336 is printed as 2.24).

    Raises:
        ValueError: eps outside (0, 1/2), or alpha1 <= l, where no alpha0 is enough.
    """
    bound = logit_bound(eps)
    if not bound < alpha1 < math.inf:
        raise ValueError(f"alpha1 must be > ln((1 - eps) / eps) = {bound:.6g} and finite, got {alpha1}")
    return math.atanh(bound / alpha1) / eps


def achieved_eps(alpha0: float, alpha1: float) -> float:
    """The eps that a pair achieves: the fixed point 1 - HTAF(eps) = eps, the least with |HTAF - H| <= eps for
    |x| >= eps.

    Erratum: four of the paper's six pairs miss its eps = 0.1: (1, 22) 0.1001, (2, 11) 0.1008, (3, 7.3) 0.1023,
    (5, 4.4) 0.1059.
    """
    positive(alpha0=alpha0, alpha1=alpha1)
    low, high = 0.0, 0.5
    while True:  # 1 - HTAF falls with eps and eps rises, so bisection meets the one crossing
        middle = (low + high) / 2
        if middle in (low, high):
            return high
        if sigmoid(-alpha1 * math.tanh(alpha0 * middle)) > middle:
            low = middle
        else:
            high = middle


def product_limit(eps: float) -> float:
    """The limit of alpha0 alpha1 at the bound for alpha1 -> infinity, ln((1 - eps) / eps) / eps.

    Erratum: the paper gives "22", true at eps = 0.1 only (21.972); 58.9 at 0.05, 459.5 at 0.01.
    """
    return logit_bound(eps) / eps


def slope_at_zero(alpha0: float, alpha1: float) -> float:
    """Theorem 3.2 (b): dHTAF/dx at 0 is alpha0 alpha1 / 4, its largest value."""
    positive(alpha0=alpha0, alpha1=alpha1)
    return alpha0 * alpha1 / 4


def lipschitz_constant(alpha0: float, alpha1: float) -> float:
    """The least Lipschitz constant of HTAF, alpha0 alpha1 / 4.

    Erratum: the paper's appendix takes alpha0 alpha1, four times too much.
    """
    return slope_at_zero(alpha0, alpha1)


def tail_constant(alpha0: float, alpha1: float) -> float:
    """Theorem 3.2 (a): lim of dHTAF/dx exp(2 alpha0 |x|) = 4 alpha0 alpha1 sigma(alpha1) (1 - sigma(alpha1)).

    Erratum: the paper's C drops the 4 that its own proof has.
    """
    positive(alpha0=alpha0, alpha1=alpha1)
    return 4 * alpha0 * alpha1 * sigmoid(alpha1) * sigmoid(-alpha1)


def best_alpha0(product: float, scale: float) -> float:
    """The alpha0 with the largest tail gradient at |x| = scale among pairs of one product, sqrt(P / (2 |x|)).

    The tail gradient is about 4 P exp(-alpha1 - 2 alpha0 |x|). Erratum: "choose a small alpha0 and a large alpha1"
    holds in the limit only; for P = 22 the best alpha0 is 3.3 at |x| = 1, 2.3 at 2 and 1.9 at 3.
    """
    positive(product=product, scale=scale)
    return math.sqrt(product / (2 * scale))


def derivatives(x: float, alpha0: float, alpha1: float) -> Derivatives:
    """HTAF and its derivatives with respect to x, alpha0, alpha1 and x twice, in float64 without cancellation."""
    positive(alpha0=alpha0, alpha1=alpha1)
    z = alpha0 * x
    t, sech2 = math.tanh(z), sech(z) ** 2
    u = alpha1 * t
    ds, h = sech(u / 2) ** 2 / 4, math.tanh(u / 2)
    slope = alpha0 * alpha1 * sech2 * ds
    finite = math.copysign(min(abs(x), 1e150), x)  # x times a slope of 0 is 0 at infinity too
    return Derivatives(
        value=sigmoid(u),
        x=slope,
        alpha0=finite * alpha1 * sech2 * ds,
        alpha1=t * ds,
        xx=-slope * alpha0 * (2 * t + alpha1 * sech2 * h),
    )


def gradient_share(alpha0: float, alpha1: float, threshold: float = 1e-6) -> float:
    """Share of N(0, 1) inputs whose gradient is above `threshold`; the slope falls with |x|, so it is erf(x* / sqrt 2).

    (1, 22) 65%, (2, 11) 93%, (3, 7.3) 93%, (5, 4.4) 83%, (0.1, 220) 56%, as the scaled sigmoid with beta = 22.
    """
    if not 0.0 < threshold < math.inf:
        raise ValueError(f"threshold must be > 0 and finite, got {threshold}")
    if slope_at_zero(alpha0, alpha1) <= threshold:
        return 0.0
    low, high = 0.0, 1.0
    while derivatives(high, alpha0, alpha1).x > threshold:
        low, high = high, 2 * high
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if derivatives(middle, alpha0, alpha1).x > threshold else (low, middle)
    return math.erf(high / math.sqrt(2))


def network_error_bound(width: int, weight_bound: float, density: float, eps: float) -> float:
    """Theorem on one-hidden-layer networks: E|f - g| <= n1 ||W1||_inf (1 + C) eps, hardened f against smooth g.

    Args:
        width: n1, the number of hidden nodes. (Remark: so the "O(eps)" grows with the width through n1 ||W1||_inf.)
        weight_bound: the largest absolute output weight.
        density: C with P(|pre-activation| < eps) <= C eps for every node.
        eps: in (0, 1/2), with a pair that meets Proposition 3.1.
    """
    logit_bound(eps)
    if width < 1 or not (0 <= weight_bound < math.inf and 0 <= density < math.inf):
        raise ValueError(
            f"width >= 1, weight_bound >= 0 and density >= 0 expected, got {width}, {weight_bound}, {density}"
        )
    return width * weight_bound * (1 + density) * eps


def bounds_table(
    eps: float = 0.1, alpha1s: tuple[float, ...] = tuple(PAPER_BOUNDS)
) -> list[dict[str, float | str | None]]:
    """Rows of the paper's table: alpha1, the least alpha0, it rounded up as in the paper, the paper's figure, P."""
    rows = []
    for alpha1 in map(float, alpha1s):
        exact = alpha0_lower_bound(alpha1, eps)
        paper = PAPER_BOUNDS.get(alpha1) if eps == 0.1 else None
        digits = len(paper.split(".")[1]) if paper else 4
        rows.append(
            {
                "alpha1": alpha1,
                "alpha0": exact,
                "rounded_up": f"{math.ceil(exact * 10**digits) / 10**digits:.{digits}f}",
                "paper": paper,
                "product": exact * alpha1,
            }
        )
    return rows


def positive(**values: float) -> None:
    """Raises ValueError for a value that is not > 0 and finite."""
    for name, value in values.items():
        if not 0.0 < value < math.inf:
            raise ValueError(f"{name} must be > 0 and finite, got {value}")


def sigmoid(x: float) -> float:
    """The logistic function."""
    return 1 / (1 + math.exp(-x)) if x > -700 else math.exp(x)


def sech(x: float) -> float:
    """1 / cosh(x), which does not overflow."""
    r = math.exp(-abs(x))
    return 2 * r / (1 + r * r)
