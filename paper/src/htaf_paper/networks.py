"""Networks of closed form for x^2, x y and x, with bounds of their errors: the paper on expressivity. No torch.

phi is HTAF(x) = sigma(alpha1 tanh(alpha0 x)). `expressivity` makes modules of these networks. Where this page
differs from the paper, the docstring says "Erratum".
"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

from htaf_paper.bounds import derivatives, positive, sech, sigmoid


class Shallow(NamedTuple):
    """A network of one hidden layer whose weights have a closed form.

    y(x) = offset + sum_j outer_j HTAF(weight_j . x + bias_j | alpha0, alpha1). Calling it gives y in float64.

    Attributes:
        alpha0, alpha1: of its HTAF.
        weight: [neurons][inputs]. bias, outer: [neurons]. offset: the bias of the output.
        error: what |y - target| is at most in exact arithmetic, on the inputs that the function which made it names.
    """

    alpha0: float
    alpha1: float
    weight: tuple[tuple[float, ...], ...]
    bias: tuple[float, ...]
    outer: tuple[float, ...]
    offset: float
    error: float

    def __call__(self, *x: float) -> float:
        total = self.offset
        for weight, bias, outer in zip(self.weight, self.bias, self.outer, strict=True):
            h = bias + sum(w * v for w, v in zip(weight, x, strict=True))
            total += outer * sigmoid(self.alpha1 * math.tanh(self.alpha0 * h))
        return total

    @property
    def largest(self) -> float:
        """The largest absolute parameter."""
        return max(map(abs, (self.offset, *self.bias, *self.outer, *(w for row in self.weight for w in row))))


SquareForm = Literal["paper", "central"]


def third_derivative(x: float, alpha0: float, alpha1: float) -> float:
    """HTAF'''(x) = alpha0^2 HTAF'(x) [6 u^2 - 2 - 6 alpha1 u w v + alpha1^2 v^2 (3 w^2 - 1) / 2].

    u = tanh(alpha0 x), v = 1 - u^2, w = 1 - 2 HTAF(x); the paper's formula, as 1 - 6 p + 6 p^2 = (3 w^2 - 1) / 2.
    """
    slope = derivatives(x, alpha0, alpha1).x
    return alpha0 * alpha0 * slope * _third_bracket(math.tanh(alpha0 * x), sech(alpha0 * x) ** 2, alpha1)


def third_derivative_bound(alpha0: float, alpha1: float) -> float:
    """sup |HTAF'''| = alpha0^3 alpha1 (4 + alpha1^2) / 8, its value at 0.

    Proof: with g = alpha1 tanh(alpha0 x), HTAF''' = sigma'''(g) g'^3 + 3 sigma''(g) g' g'' + sigma'(g) g'''. The middle
    term lies between 0 and 0.166 alpha0^3 alpha1^2. The others are least at 0, and at most alpha0^3 (alpha1^3 / 24 +
    alpha1 / 6); with the middle term that is still less than alpha0^3 (alpha1^3 / 8 + alpha1 / 2).
    """
    positive(alpha0=alpha0, alpha1=alpha1)
    return alpha0**3 * alpha1 * (4 + alpha1 * alpha1) / 8


def fourth_derivative_bound(alpha0: float, alpha1: float) -> float:
    """An upper bound of sup |HTAF''''|: alpha0^4 (0.128 a^4 + 0.358 a^3 + 0.770 a^2 + 1.022 a) with a = alpha1.

    HTAF'''' = sigma'''' g'^4 + 6 sigma''' g'^2 g'' + sigma'' (3 g''^2 + 4 g' g''') + sigma' g'''' with g as in
    `third_derivative_bound`; each term is at most the product of the largest values of its factors.
    """
    positive(alpha0=alpha0, alpha1=alpha1)
    return alpha0**4 * alpha1 * (((0.128 * alpha1 + 0.358) * alpha1 + 0.770) * alpha1 + 1.022)


def paper_point(alpha0: float, alpha1: float) -> float:
    """The paper's t for its squaring network, s0 = atanh(1 / alpha1) / alpha0, where HTAF is sigma(1).

    Errata: HTAF''(s0) is negative, -0.0909 P^2 for alpha1 -> infinity, so "HTAF'' >~ P^2" holds for its absolute value.
    s0 is there for alpha1 > 1 only, though the theorem names no least alpha1; `curvature_point` is there for all.

    Raises:
        ValueError: alpha1 <= 1.
    """
    positive(alpha0=alpha0, alpha1=alpha1)
    if alpha1 <= 1:
        raise ValueError(f"alpha1 must be > 1, where atanh(1 / alpha1) exists, got {alpha1}")
    return math.atanh(1 / alpha1) / alpha0


def curvature_point(alpha0: float, alpha1: float) -> float:
    """The t > 0 with the largest |HTAF''|, where HTAF''' is 0. HTAF'' is negative there.

    HTAF''' is negative at 0 and positive where tanh(alpha0 t)^2 = 1/3; bisection meets its zero between the two.
    """
    positive(alpha0=alpha0, alpha1=alpha1)
    low, high = 0.0, 3**-0.5
    while (middle := (low + high) / 2) not in (low, high):
        if _third_bracket(middle, 1 - middle * middle, alpha1) < 0:
            low = middle
        else:
            high = middle
    return math.atanh(high) / alpha0


def square_network(alpha0: float, alpha1: float, m: float, form: SquareForm = "paper") -> Shallow:
    """A network of at most 3 neurons that approximates x^2 for |x| <= 1; K = m alpha0 alpha1, phi = HTAF.

    "paper", t = `paper_point`: y = K^2 / phi''(t) [phi(t + 2 x / K) - 2 phi(t + x / K) + phi(t)], error at most
        sup |phi'''| / (K |phi''(t)|): the paper's constant c is 1. (A second difference of step h is h^2 times a mean
        of phi'' over points whose mean distance from t is h.) For alpha1 -> infinity that is 1.376 / m.
    "central", t = `curvature_point`: y = K^2 / phi''(t) [phi(t + x / K) - 2 phi(t) + phi(t - x / K)], error at most
        sup |phi''''| / (12 K^2 |phi''(t)|): of the order 1 / m^2, with two neurons, for every alpha1.

    Errata: the paper's coefficients (-1)^(k - 1) binom(2, k) give -x^2; (-1)^k is meant. Its third neuron, k = 0, is a
    constant. Both forms have parameters of the order m^2, as the paper says (22 m^2 and more in its form).

    Args:
        alpha0, alpha1: of HTAF. m: > 0; the error falls as m grows, and rounding grows as m^2: see `best_m`.
        form: "paper" or "central".

    Raises:
        ValueError: a parameter out of range, alpha1 <= 1 in the paper's form, or another form.
    """
    positive(alpha0=alpha0, alpha1=alpha1, m=m)
    k = m * alpha0 * alpha1
    if form == "paper":
        t = paper_point(alpha0, alpha1)
        curvature = derivatives(t, alpha0, alpha1).xx
        scale, error = k * k / curvature, third_derivative_bound(alpha0, alpha1) / (k * abs(curvature))
        weight, outer = ((0.0,), (1 / k,), (2 / k,)), (scale, -2 * scale, scale)
        return Shallow(alpha0, alpha1, weight, (t, t, t), outer, 0.0, error)
    if form == "central":
        t = curvature_point(alpha0, alpha1)
        at = derivatives(t, alpha0, alpha1)
        scale, error = k * k / at.xx, fourth_derivative_bound(alpha0, alpha1) / (12 * k * k * abs(at.xx))
        weight, outer = ((1 / k,), (-1 / k,)), (scale, scale)
        return Shallow(alpha0, alpha1, weight, (t, t), outer, -2 * scale * at.value, error)
    raise ValueError(f"form must be 'paper' or 'central', got {form!r}")


def best_m(alpha0: float, alpha1: float, unit: float, form: SquareForm = "paper") -> float:
    """The m with the least error of `square_network` in floating point, to a factor of about 2.

    It balances the bound of the network with a rounding of unit (|outer_j| HTAF(h_j) + ...), which grows as m^2.

    Args:
        alpha0, alpha1, form: as there. unit: unit roundoff of the arithmetic, 2^-24 in float32, 2^-53 in float64.
    """
    positive(unit=unit)
    network = square_network(alpha0, alpha1, 1.0, form)
    at = derivatives(network.bias[0], alpha0, alpha1)
    size = sum(map(abs, network.outer)) * (at.value + abs(network.bias[0]) * at.x) + abs(network.offset)
    power = 1 if form == "paper" else 2
    return (power * network.error / (2 * unit * size)) ** (1 / (power + 2))


def product_network(alpha0: float, alpha1: float, m: float) -> Shallow:
    """A network of 3 neurons that approximates x y for |x|, |y| <= 1; K = m alpha0 alpha1, t = `curvature_point`.

    y = K^2 / phi''(t) [phi(t + (x + y) / K) - phi(t + x / K) - phi(t + y / K) + phi(t)]: the polarisation identity
    2 x y = (x + y)^2 - x^2 - y^2, whose squares share their linear parts. Its error is at most 7 sup |phi''''| /
    (12 K^2 |phi''(t)|): the difference is a double integral of phi'', and phi''' is 0 at t.
    """
    positive(alpha0=alpha0, alpha1=alpha1, m=m)
    k, t = m * alpha0 * alpha1, curvature_point(alpha0, alpha1)
    at = derivatives(t, alpha0, alpha1)
    scale, error = k * k / at.xx, 7 * fourth_derivative_bound(alpha0, alpha1) / (12 * k * k * abs(at.xx))
    weight = ((1 / k, 1 / k), (1 / k, 0.0), (0.0, 1 / k))
    return Shallow(alpha0, alpha1, weight, (t, t, t), (scale, -scale, -scale), scale * at.value, error)


def step_distance(alpha0: float, alpha1: float) -> float:
    """c = sup over x of |x| |S(x) - H(x)| for S = (HTAF - sigma(-alpha1)) / tanh(alpha1 / 2), at most 0.5% too large.

    S runs from 0 to 1, as HTAF itself does not. As S(k x) is within c / k of H(x) by this measure, x S(k x) is within
    c / k of ReLU(x) for all real x. The sup is bounded over cells by the monotony of x and of S.
    """
    positive(alpha0=alpha0, alpha1=alpha1)

    def missing(x: float) -> float:  # 1 - S(x) without cancellation
        z = alpha0 * x
        less = 2 * alpha1 * math.exp(-2 * z) / (1 + math.exp(-2 * z))  # alpha1 (1 - tanh z)
        return sigmoid(alpha1) * sigmoid(less - alpha1) * -math.expm1(-less) / math.tanh(alpha1 / 2)

    x, ratio = 1e-3 / (alpha0 * (1 + alpha1)), 1.005
    found = x / 2
    while x < 20 / alpha0:  # beyond, x (1 - S) < alpha1 x exp(-2 alpha0 x) / (2 tanh(alpha1 / 2)), which falls
        found = max(found, ratio * x * missing(x))
        x *= ratio
    return max(found, alpha1 * x * math.exp(-2 * alpha0 * x) / (2 * math.tanh(alpha1 / 2)))


def step_network_error(neurons: int, spread: float = 1.0) -> float:
    """The least sup error that a network of exact steps can have, spread / (2 (n + 1)), n neurons in its first layer.

    For a continuous f on a convex set, spread = max f - min f. Proof: on the segment from where f is least to where
    it is largest each neuron of the first layer changes at most once, so the network takes at most n + 1 values there,
    however deep it is. The images of these pieces cover [min f, max f], so on one of them f varies by spread / (n + 1).
    For f(x) = x the bound is attained: `step_network`. Erratum: the paper says "for any non-constant target"; f must be
    continuous, as one neuron is exact for f = H.
    """
    if neurons < 0 or not 0 <= spread < math.inf:
        raise ValueError(f"neurons >= 0 and a finite spread >= 0 expected, got {neurons}, {spread}")
    return spread / (2 * (neurons + 1))


def step_network(neurons: int) -> tuple[tuple[float, ...], float, float]:
    """The best network of n exact steps for f(x) = x on [0, 1]: y = offset + outer sum_j H(x - threshold_j).

    Returns:
        thresholds j / (n + 1), outer 1 / (n + 1), offset 1 / (2 (n + 1)); its error is `step_network_error(n)`.
    """
    error = step_network_error(neurons)
    return tuple(j / (neurons + 1) for j in range(1, neurons + 1)), 2 * error, error


def _third_bracket(u: float, v: float, alpha1: float) -> float:
    w = -math.tanh(alpha1 * u / 2)
    return 6 * u * u - 2 - 6 * alpha1 * u * w * v + alpha1 * alpha1 * v * v * (3 * w * w - 1) / 2
