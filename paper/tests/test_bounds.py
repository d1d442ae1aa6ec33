"""Bounds and networks of closed form against high-precision arithmetic, and errata that can be computed."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from decimal import ROUND_CEILING, Decimal

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mpmath import mpf

from htaf_paper import bounds, networks

mpmath.mp.dps = 50
PAIRS = bounds.PAPER_PAIRS


def curve(x, alpha0, alpha1):
    return 1 / (1 + mpmath.exp(-mpf(alpha1) * mpmath.tanh(mpf(alpha0) * x)))


def slope(x: np.ndarray, alpha0: float, alpha1: float) -> np.ndarray:
    """The gradient in float64 by the route e, t, f, which the library does not take."""
    e = np.exp(-2 * alpha0 * np.abs(x))
    f = np.exp(-alpha1 * -np.expm1(-2 * alpha0 * np.abs(x)) / (1 + e))
    return alpha0 * alpha1 * f / (1 + f) ** 2 * 4 * e / (1 + e) ** 2


def normal_grid(n: int = 50_001) -> np.ndarray:
    inverse = statistics.NormalDist().inv_cdf
    return np.array([inverse((i + 0.5) / n) for i in range(n)])


@pytest.mark.parametrize("eps", [0.01, 0.05, 0.1, 0.3])
@pytest.mark.parametrize("factor", [1.01, 2.0, 10.0, 1000.0])
def test_proposition_bound_holds_and_is_tight(eps: float, factor: float) -> None:
    alpha1 = factor * bounds.alpha1_lower_bound(eps)
    alpha0 = bounds.alpha0_lower_bound(alpha1, eps)
    for k in (1, 1.001, 1.1, 2, 10, 1000):
        x = mpf(eps) * k
        assert 1 - curve(x, alpha0, alpha1) <= mpf(eps) * (1 + mpf("1e-11"))
        assert curve(-x, alpha0, alpha1) <= mpf(eps) * (1 + mpf("1e-11"))
    assert 1 - curve(mpf(eps), alpha0 * (1 - 1e-8), alpha1) > eps


@pytest.mark.parametrize("eps", [0.01, 0.1, 0.4])
def test_alpha1_bound_is_where_no_alpha0_is_enough(eps: float) -> None:
    bound = bounds.alpha1_lower_bound(eps)
    assert bound == pytest.approx(float(mpmath.log((1 - mpf(eps)) / mpf(eps))), rel=1e-14)
    assert 1 - curve(mpf(eps), 1e9, bound * 0.999) > eps  # tanh = 1, the best any alpha0 gives
    assert 1 - curve(mpf(eps), 1e9, bound * 1.001) < eps
    assert bounds.logit_bound(eps) == bound


@pytest.mark.parametrize(("eps", "figure"), [(0.1, "21.972"), (0.05, "58.9"), (0.01, "459.5")])
def test_erratum_the_product_is_a_function_of_eps(eps: float, figure: str) -> None:
    limit = bounds.product_limit(eps)
    assert f"{limit:.{len(figure.split('.')[1])}f}" == figure
    gaps = [alpha1 * bounds.alpha0_lower_bound(alpha1, eps) - limit for alpha1 in (10.0, 100.0, 1000.0)]
    assert gaps[0] > 50 * gaps[1] > 2500 * gaps[2] > 0  # from above, as 1 / alpha1^2


@pytest.mark.parametrize("pair", PAIRS)
def test_achieved_eps_is_the_fixed_point(pair: tuple[float, float]) -> None:
    root = mpmath.findroot(lambda eps: 1 - curve(eps, *pair) - eps, 0.1)
    assert bounds.achieved_eps(*pair) == pytest.approx(float(root), rel=1e-13)


def test_erratum_the_table_is_rounded_up() -> None:
    rows = bounds.bounds_table()
    assert [row["alpha1"] for row in rows] == [5, 10, 20, 30, 40, 50, 100, 500, 1000, 5000]
    printed = ["4.72", "2.24", "1.11", "0.74", "0.55", "0.44", "0.22", "0.05", "0.022", "0.005"]
    level = mpmath.log(9)
    for row, figure in zip(rows, printed, strict=True):
        exact = 5 * mpmath.log((row["alpha1"] + level) / (row["alpha1"] - level))
        assert row["alpha0"] == pytest.approx(float(exact), rel=1e-13)
        up = Decimal(mpmath.nstr(exact, 30)).quantize(Decimal(figure), rounding=ROUND_CEILING)
        assert str(up) == figure == row["paper"] == row["rounded_up"]
        assert row["product"] == pytest.approx(float(row["alpha1"] * exact), rel=1e-13)
    nearest = [f"{row['alpha0']:.{len(figure) - 2}f}" for row, figure in zip(rows, printed, strict=True)]
    assert [n for n, p in zip(nearest, printed, strict=True) if n != p] == [
        "2.23",
        "1.10",
        "0.73",
        "0.04",
        "0.004",
    ]


@pytest.mark.parametrize("pair", PAIRS)
def test_erratum_the_tail_constant_has_a_four(pair: tuple[float, float]) -> None:
    alpha0, alpha1 = map(mpf, pair)
    x = 40 / alpha0
    with mpmath.workdps(120):
        limit = mpmath.diff(lambda v: curve(v, *pair), x) * mpmath.exp(2 * alpha0 * x)
    assert bounds.tail_constant(*pair) == pytest.approx(float(limit), rel=1e-11)
    at_one, below = 1 / (1 + mpmath.exp(-alpha1)), 1 / (1 + mpmath.exp(alpha1))
    assert bounds.tail_constant(*pair) / float(alpha0 * alpha1 * at_one * below) == pytest.approx(4)


@pytest.mark.parametrize("pair", PAIRS)
def test_erratum_the_lipschitz_constant_is_a_quarter_of_the_product(pair: tuple[float, float]) -> None:
    least = bounds.lipschitz_constant(*pair)
    x = np.linspace(-6, 6, 20_001)
    assert slope(x, *pair).max() <= least * (1 + 1e-15)
    h = mpf("1e-20")
    quotient = (curve(h, *pair) - curve(-h, *pair)) / (2 * h)
    assert float(quotient) == pytest.approx(least, rel=1e-12)  # attained, so nothing smaller will do
    assert least == pytest.approx(math.prod(pair) / 4)


@pytest.mark.parametrize(("scale", "figure"), [(1.0, "3.3"), (2.0, "2.3"), (3.0, "1.9")])
def test_erratum_the_best_alpha0_is_not_small(scale: float, figure: str) -> None:
    best = bounds.best_alpha0(22.0, scale)
    assert f"{best:.1f}" == figure
    alpha0 = np.geomspace(0.05, 20, 4001)
    gradients = np.array([slope(np.array(scale), a, 22 / a) for a in alpha0])
    assert best == pytest.approx(alpha0[gradients.argmax()], rel=0.02)
    assert gradients.max() > 1e3 * gradients[0]


@pytest.mark.parametrize(
    ("pair", "percent"), [((0.1, 220.0), 56), ((1.0, 22.0), 65), ((2.0, 11.0), 93), ((3.0, 7.3), 93), ((5.0, 4.4), 83)]
)
def test_gradient_share(pair: tuple[float, float], percent: int) -> None:
    share = bounds.gradient_share(*pair)
    assert round(100 * share) == percent
    assert share == pytest.approx((slope(normal_grid(), *pair) > 1e-6).mean(), abs=1e-4)


@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize("x", [-5.0, -1.3, -0.01, 0.0, 0.02, 0.7, 4.5])
def test_derivatives_against_mpmath(pair: tuple[float, float], x: float) -> None:
    d = bounds.derivatives(x, *pair)
    point = (mpf(x), *map(mpf, pair))
    exact = {
        "value": curve(*point),
        "x": mpmath.diff(curve, point, (1, 0, 0)),
        "alpha0": mpmath.diff(curve, point, (0, 1, 0)),
        "alpha1": mpmath.diff(curve, point, (0, 0, 1)),
        "xx": mpmath.diff(curve, point, (2, 0, 0)),
    }
    for name, value in exact.items():
        tolerance = mpf("1e-13") * (abs(value) + mpf("1e-25"))
        assert abs(getattr(d, name) - value) <= tolerance * 100, name


def test_derivatives_far_out_are_their_limits() -> None:
    for x in (math.inf, -math.inf, 1e300, -1e300):
        d = bounds.derivatives(x, 2.0, 11.0)
        side = math.copysign(1, x)
        assert d.value == pytest.approx(1 / (1 + math.exp(-11 * side)), rel=1e-12)
        assert (d.x, d.alpha0, d.xx) == (0, 0, 0)
        assert d.alpha1 == pytest.approx(side * math.exp(-11) / (1 + math.exp(-11)) ** 2, rel=1e-12)
    assert bounds.derivatives(-5.0, 100.0, 2000.0).value == 0  # below the least float64, not an OverflowError


def test_network_error_bound_by_monte_carlo() -> None:
    rng = np.random.default_rng(0)
    eps, alpha1, width, inputs = 0.1, 11.0, 16, 4
    alpha0 = bounds.alpha0_lower_bound(alpha1, eps)
    w0, w1 = rng.normal(size=(width, inputs)), rng.uniform(-2, 2, size=width)
    h = rng.normal(size=(40_000, inputs)) @ w0.T
    density = 2 / (np.linalg.norm(w0, axis=1).min() * math.sqrt(2 * math.pi))  # normal densities, largest at 0
    gap = np.abs(((h >= 0) - 1 / (1 + np.exp(-alpha1 * np.tanh(alpha0 * h)))) @ w1).mean()
    bound = bounds.network_error_bound(width, float(np.abs(w1).max()), float(density), eps)
    assert 0 < gap <= bound
    assert bound == pytest.approx(width * np.abs(w1).max() * (1 + density) * eps)


@pytest.mark.parametrize(
    ("width", "weight", "density"), [(0, 1.0, 1.0), (1, -1.0, 1.0), (1, 1.0, -1.0), (1, math.nan, 1.0)]
)
def test_network_error_bound_refuses(width: int, weight: float, density: float) -> None:
    expected = f"^width >= 1, weight_bound >= 0 and density >= 0 expected, got {width}, {weight}, {density}$"
    with pytest.raises(ValueError, match=expected):
        bounds.network_error_bound(width, weight, density, 0.1)


# ---- networks of closed form ----

alphas0 = st.floats(0.05, 20)
alphas1 = st.floats(0.2, 300)
above_one = st.floats(1.05, 300)
sizes = st.floats(2, 1e4)
units = st.floats(-1, 1)


def exact(network: networks.Shallow, *x: float):
    """The network's output in 40 digits."""
    with mpmath.workdps(40):
        return network.offset + sum(
            mpf(v)
            * curve(mpf(b) + sum(mpf(a) * mpf(c) for a, c in zip(w, x, strict=True)), network.alpha0, network.alpha1)
            for w, b, v in zip(network.weight, network.bias, network.outer, strict=True)
        )


def error_of(network: networks.Shallow, target: float, *x: float) -> float:
    """Its error without that of weights of 53 bits, which grows with their size."""
    return abs(float(exact(network, *x) - target)) - 8 * 2**-53 * network.largest


@pytest.mark.parametrize("pair", [*PAIRS, (1.0, 4.0), (0.7, 0.5)])
@pytest.mark.parametrize("x", [-1.3, -0.02, 0.0, 0.03, 0.4, 2.0])
def test_the_third_derivative_is_the_papers(pair: tuple[float, float], x: float) -> None:
    with mpmath.workdps(60):
        found = mpmath.diff(lambda v: curve(v, *pair), mpf(x), 3)
    assert networks.third_derivative(x, *pair) == pytest.approx(float(found), rel=1e-11, abs=1e-250)
    alpha0, alpha1 = pair
    u, p = math.tanh(alpha0 * x), float(curve(x, *pair))
    bracket = 6 * u**2 - 2 - 6 * alpha1 * u * (1 - 2 * p) * (1 - u**2)
    bracket += alpha1**2 * (1 - 6 * p + 6 * p**2) * (1 - u**2) ** 2
    printed = alpha0**3 * alpha1 * (1 - u**2) * p * (1 - p) * bracket
    assert networks.third_derivative(x, *pair) == pytest.approx(printed, rel=1e-6, abs=1e-9)


@given(alphas0, alphas1, st.floats(-4, 4))
def test_bounds_of_derivatives(alpha0: float, alpha1: float, z: float) -> None:
    """At any point; z in units of the curve's own width."""
    x = z / (alpha0 * max(1, alpha1 / 2))
    assert abs(networks.third_derivative(x, alpha0, alpha1)) <= networks.third_derivative_bound(alpha0, alpha1) * (
        1 + 1e-12
    )
    h = 1e-4 / (alpha0 * max(1, alpha1))
    third = [networks.third_derivative(x + s, alpha0, alpha1) for s in (-h, h)]
    fourth = abs(third[1] - third[0]) / (2 * h)  # a mean of the fourth derivative
    assert fourth <= networks.fourth_derivative_bound(alpha0, alpha1) * (1 + 1e-6)


@given(alphas0, alphas1)
def test_the_curvature_point_is_the_largest_curvature(alpha0: float, alpha1: float) -> None:
    t = networks.curvature_point(alpha0, alpha1)
    least = bounds.derivatives(t, alpha0, alpha1).xx
    assert least < 0
    for x in np.linspace(0, 4 * t, 41).tolist():
        assert bounds.derivatives(x, alpha0, alpha1).xx >= least * (1 + 1e-12)
    below, above = (networks.third_derivative(t * (1 + s), alpha0, alpha1) for s in (-1e-6, 1e-6))
    assert below < 0 < above


def test_the_papers_point_needs_alpha1_above_one() -> None:
    with pytest.raises(ValueError, match=r"^alpha1 must be > 1, where atanh\(1 / alpha1\) exists, got 1.0$"):
        networks.square_network(2.0, 1.0, 10.0)
    assert networks.square_network(2.0, 1.0, 10.0, "central").error < 0.03


@given(alphas0, above_one, sizes, units)
def test_the_papers_squaring_network(alpha0: float, alpha1: float, m: float, x: float) -> None:
    network = networks.square_network(alpha0, alpha1, m)
    assert len(network.weight) == 3
    assert max(error_of(network, mpf(v) ** 2, v) for v in (x, 1.0)) <= network.error  # at 1 it is largest
    curvature = abs(bounds.derivatives(network.bias[0], alpha0, alpha1).xx)
    k = m * alpha0 * alpha1  # the constant of the paper's bound is 1
    assert network.error == pytest.approx(networks.third_derivative_bound(alpha0, alpha1) / (k * curvature), rel=1e-9)


@given(alphas0, alphas1, sizes, units)
def test_the_central_squaring_network(alpha0: float, alpha1: float, m: float, x: float) -> None:
    network = networks.square_network(alpha0, alpha1, m, "central")
    assert len(network.weight) == 2
    assert max(error_of(network, mpf(v) ** 2, v) for v in (x, 1.0)) <= network.error  # at 1 it is largest


@pytest.mark.parametrize("pair", [PAIRS[0], PAIRS[3], PAIRS[5]])
@pytest.mark.parametrize("form", ["paper", "central"])
def test_the_best_m_in_floating_point(pair: tuple[float, float], form: networks.SquareForm) -> None:
    """In float64 the largest error over [0, 1] is within a factor of 3 of the least on a grid of m."""

    def error(m: float) -> float:
        network = networks.square_network(*pair, m, form)
        return max(abs(network(x) - x * x) for x in np.linspace(0, 1, 101).tolist())

    best = networks.best_m(*pair, 2**-53, form)
    least = min(error(best * 2**j) for j in range(-5, 6))
    assert error(best) <= 3 * least
    assert least < error(best / 32) / 5
    assert least < error(best * 32) / 5


@given(alphas0, alphas1, sizes, units, units)
def test_the_product_network(alpha0: float, alpha1: float, m: float, x: float, y: float) -> None:
    network = networks.product_network(alpha0, alpha1, m)
    assert len(network.weight) == 3
    assert max(error_of(network, mpf(v) * mpf(w), v, w) for v, w in ((x, y), (1.0, 1.0))) <= network.error


@pytest.mark.parametrize("pair", [*PAIRS, (0.3, 0.5), (1.0, 4.0)])
def test_step_distance(pair: tuple[float, float]) -> None:
    x = np.geomspace(1e-5, 1e3, 100_001)
    alpha0, alpha1 = pair
    low = 1 / (1 + np.exp(alpha1))
    s = (1 / (1 + np.exp(-alpha1 * np.tanh(alpha0 * x))) - low) / (1 - 2 * low)
    largest = (x * (1 - s)).max()
    assert largest <= networks.step_distance(*pair) <= 1.006 * largest


@pytest.mark.parametrize("neurons", [0, 1, 7, 50])
def test_the_best_step_network(neurons: int) -> None:
    thresholds, outer, offset = networks.step_network(neurons)
    x = np.union1d(np.linspace(0, 1, 1001), [v + s for v in thresholds for s in (-1e-12, 0)])
    y = offset + outer * (x[:, None] >= np.array(thresholds)).sum(1)
    assert np.abs(y - x).max() == pytest.approx(1 / (2 * (neurons + 1)), rel=1e-9)
    assert networks.step_network_error(neurons) == 1 / (2 * (neurons + 1))


@given(st.lists(st.floats(-2, 2), min_size=1, max_size=6), st.integers(0, 2**31))
def test_no_step_network_is_better(thresholds: list[float], seed: int) -> None:
    """Any depth behind the first layer: another value for every pattern of its bits, here the best one."""
    weight = np.random.default_rng(seed).choice([-1.0, 1.0], len(thresholds))
    x = np.linspace(0, 1, 2001)
    bits = weight * x[:, None] >= weight * np.array(thresholds)
    _, pattern = np.unique(bits, axis=0, return_inverse=True)
    errors = [np.ptp(x[pattern == p]) / 2 for p in set(pattern.ravel().tolist())]
    assert max(errors) >= networks.step_network_error(len(thresholds)) - 1e-3


def test_another_form_or_number_is_refused() -> None:
    with pytest.raises(ValueError, match="got -1"):
        networks.step_network(-1)
    unchecked = getattr(networks.square_network, "__wrapped__", networks.square_network)
    with pytest.raises(ValueError, match=r"^form must be 'paper' or 'central', got 'forward'$"):
        unchecked(2.0, 11.0, 10.0, "forward")


BAD = (0.0, -1.0, math.nan, math.inf)
OF_A_PAIR = (
    bounds.achieved_eps, bounds.slope_at_zero, bounds.lipschitz_constant, bounds.tail_constant, bounds.gradient_share,
    lambda alpha0, alpha1: bounds.derivatives(0.5, alpha0, alpha1), networks.third_derivative_bound,
    networks.fourth_derivative_bound, networks.curvature_point, networks.paper_point, networks.step_distance,
)  # fmt: skip
OF_EPS = (
    bounds.logit_bound, bounds.alpha1_lower_bound, bounds.product_limit, bounds.bounds_table,
    lambda eps: bounds.alpha0_lower_bound(11.0, eps), lambda eps: bounds.network_error_bound(1, 1.0, 1.0, eps),
)  # fmt: skip
REFUSED = [
    *(("eps", call, (0.5, 1.0, *BAD)) for call in OF_EPS),
    *(("alpha0", lambda bad, call=call: call(bad, 11.0), BAD) for call in OF_A_PAIR),
    *(("alpha1", lambda bad, call=call: call(2.0, bad), BAD) for call in OF_A_PAIR),
    ("alpha1", lambda bad: bounds.alpha0_lower_bound(bad, 0.1), (2.19, *BAD)),
    ("product", lambda bad: bounds.best_alpha0(bad, 1.0), BAD),
    ("scale", lambda bad: bounds.best_alpha0(22.0, bad), BAD),
    ("threshold", lambda bad: bounds.gradient_share(2.0, 11.0, threshold=bad), BAD),
    ("m", lambda bad: networks.square_network(2.0, 11.0, bad), BAD),
    ("m", lambda bad: networks.product_network(2.0, 11.0, bad), BAD),
    ("unit", lambda bad: networks.best_m(2.0, 11.0, bad), BAD),
]


@pytest.mark.parametrize(("name", "call", "values"), REFUSED)
def test_numbers_out_of_range_are_refused(
    name: str, call: Callable[[float], object], values: tuple[float, ...]
) -> None:
    for bad in values:
        with pytest.raises(ValueError, match=rf"^{name} must .*got {bad}$"):
            call(bad)
