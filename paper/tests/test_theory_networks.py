"""Networks of closed form against high-precision arithmetic, and what the paper's proof prints about them."""

from __future__ import annotations

import itertools
import math

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mpmath import mpf

from htaf_paper import bounds, networks

PAIRS = bounds.PAPER_PAIRS
alphas0 = st.floats(0.05, 20)
alphas1 = st.floats(0.2, 300)
above_one = st.floats(1.05, 300)
sizes = st.floats(2, 1e4)
units = st.floats(-1, 1)


def phi(x, alpha0, alpha1):
    return 1 / (1 + mpmath.exp(-mpf(alpha1) * mpmath.tanh(mpf(alpha0) * x)))


def exact(network: networks.Shallow, *x: float):
    """The network's output in 40 digits."""
    with mpmath.workdps(40):
        return network.offset + sum(
            mpf(v)
            * phi(mpf(b) + sum(mpf(a) * mpf(c) for a, c in zip(w, x, strict=True)), network.alpha0, network.alpha1)
            for w, b, v in zip(network.weight, network.bias, network.outer, strict=True)
        )


def error_of(network: networks.Shallow, target: float, *x: float) -> float:
    """Its error without that of weights of 53 bits, which grows with their size."""
    return abs(float(exact(network, *x) - target)) - 8 * 2**-53 * network.largest


@pytest.mark.parametrize("pair", [*PAIRS, (1.0, 4.0), (0.7, 0.5)])
@pytest.mark.parametrize("x", [-1.3, -0.02, 0.0, 0.03, 0.4, 2.0])
def test_the_third_derivative_is_the_papers(pair: tuple[float, float], x: float) -> None:
    with mpmath.workdps(60):
        found = mpmath.diff(lambda v: phi(v, *pair), mpf(x), 3)
    assert networks.third_derivative(x, *pair) == pytest.approx(float(found), rel=1e-11, abs=1e-250)
    alpha0, alpha1 = pair
    u, p = math.tanh(alpha0 * x), float(phi(x, *pair))
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


@pytest.mark.parametrize("pair", PAIRS)
def test_the_bound_of_the_third_derivative_is_its_value_at_zero(pair: tuple[float, float]) -> None:
    assert -networks.third_derivative(0.0, *pair) == pytest.approx(networks.third_derivative_bound(*pair), rel=1e-14)


@pytest.mark.parametrize("alpha1", [0.2, 2.0, 11.0, 1e4])
def test_the_bound_of_the_fourth_derivative_is_close(alpha1: float) -> None:
    z = np.linspace(0, 4, 4001) / max(1, alpha1 / 2)
    third = np.array([networks.third_derivative(v, 1.0, alpha1) for v in z])
    largest = np.abs(np.diff(third)).max() / (z[1] - z[0])
    assert largest <= networks.fourth_derivative_bound(1.0, alpha1) <= (1.005 if alpha1 > 1e3 else 2) * largest


@given(alphas0, alphas1)
def test_the_curvature_point_is_the_largest_curvature(alpha0: float, alpha1: float) -> None:
    t = networks.curvature_point(alpha0, alpha1)
    least = bounds.derivatives(t, alpha0, alpha1).xx
    assert least < 0
    for x in np.linspace(0, 4 * t, 41).tolist():
        assert bounds.derivatives(x, alpha0, alpha1).xx >= least * (1 + 1e-12)
    below, above = (networks.third_derivative(t * (1 + s), alpha0, alpha1) for s in (-1e-6, 1e-6))
    assert below < 0 < above


@pytest.mark.parametrize("pair", PAIRS)
def test_errata_of_the_papers_point(pair: tuple[float, float]) -> None:
    """HTAF there is sigma(1), as printed; its second derivative is of the order P^2 and negative."""
    at = bounds.derivatives(networks.paper_point(*pair), *pair)
    assert at.value == pytest.approx(1 / (1 + math.exp(-1)), rel=1e-13)
    assert -0.12 < at.xx / math.prod(pair) ** 2 < -0.09
    limit = bounds.derivatives(networks.paper_point(1e-3, 1e6), 1e-3, 1e6).xx / 1e6
    assert limit == pytest.approx(-0.0909, abs=1e-4)


def test_the_papers_point_needs_alpha1_above_one() -> None:
    with pytest.raises(ValueError, match=r"^alpha1 must be > 1, where atanh\(1 / alpha1\) exists, got 1.0$"):
        networks.square_network(2.0, 1.0, 10.0)
    assert networks.square_network(2.0, 1.0, 10.0, "central").error < 0.03


@pytest.mark.parametrize("pair", PAIRS)
def test_erratum_the_printed_coefficients_give_minus_x_squared(pair: tuple[float, float]) -> None:
    """sum_k (-1)^(k - 1) K^2 / phi''(t) binom(2, k) phi(k x / K + t), as printed."""
    t, k = networks.paper_point(*pair), 1e4 * math.prod(pair)
    curvature = bounds.derivatives(t, *pair).xx
    with mpmath.workdps(40):
        for x in (0.25, 1.0):
            values = [(-1) ** (j - 1) * math.comb(2, j) * phi(mpf(j) * x / k + mpf(t), *pair) for j in range(3)]
            assert float(sum(values)) * k * k / curvature == pytest.approx(-x * x, rel=1e-3)
    assert networks.square_network(*pair, 1e4)(0.5) == pytest.approx(0.25, abs=1e-4)


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


@pytest.mark.parametrize("pair", PAIRS)
def test_the_error_does_not_depend_on_the_pair(pair: tuple[float, float]) -> None:
    """For a given m: what the theorem says. It falls as 1 / m in the paper's form, as 1 / m^2 in the central one."""
    for form, power in (("paper", 1), ("central", 2)):
        small, large = (networks.square_network(*pair, m, form) for m in (10.0, 100.0))  # pyright: ignore[reportArgumentType]
        assert small.error == pytest.approx(10**power * large.error, rel=1e-9)
        assert small.error * 10**power < {1: 1.5, 2: 0.22}[power]
        assert large.largest == pytest.approx(100 * small.largest, rel=1e-9)  # of the order m^2
        assert small.largest < 22.1 * 100
        found = [abs(float(exact(network, 1.0) - 1)) for network in (small, large)]
        assert found[0] / found[1] == pytest.approx(10**power, rel=0.5)
    assert networks.square_network(0.001, 1e6, 1.0).error == pytest.approx(1.376, abs=1e-3)


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


def test_what_the_functions_refuse() -> None:
    calls = [networks.square_network, networks.product_network]
    for call, bad in itertools.product(calls, (0.0, -1.0, math.nan, math.inf)):
        with pytest.raises(ValueError, match=f"^m must be > 0 and finite, got {bad}$"):
            call(2.0, 11.0, bad)
    with pytest.raises(ValueError, match=r"^unit must be > 0 and finite, got 0.0$"):
        networks.best_m(2.0, 11.0, 0.0)
    for call in (
        networks.third_derivative_bound,
        networks.fourth_derivative_bound,
        networks.curvature_point,
        networks.paper_point,
        networks.step_distance,
    ):
        with pytest.raises(ValueError, match=r"^alpha0 must be > 0 and finite, got 0.0$"):
            call(0.0, 11.0)
    with pytest.raises(ValueError, match=r"^neurons >= 0 and a finite spread >= 0 expected, got -1, 1.0$"):
        networks.step_network(-1)


def test_another_form_is_refused() -> None:
    unchecked = getattr(networks.square_network, "__wrapped__", networks.square_network)
    with pytest.raises(ValueError, match=r"^form must be 'paper' or 'central', got 'forward'$"):
        unchecked(2.0, 11.0, 10.0, "forward")
