"""The bounds against high-precision arithmetic, and each erratum that can be computed."""

from __future__ import annotations

import math
import statistics
from decimal import ROUND_CEILING, Decimal

import mpmath
import numpy as np
import pytest
from mpmath import mpf

from htaf_paper import bounds

mpmath.mp.dps = 50
PAIRS = [(0.1, 220.0), (0.5, 44.0), (1.0, 22.0), (2.0, 11.0), (3.0, 7.3), (5.0, 4.4)]


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


def test_alpha1_bound_at_a_tenth() -> None:
    assert f"{bounds.alpha1_lower_bound(0.1):.3f}" == "2.197"


@pytest.mark.parametrize(("eps", "figure"), [(0.1, "21.972"), (0.05, "58.9"), (0.01, "459.5")])
def test_erratum_the_product_is_a_function_of_eps(eps: float, figure: str) -> None:
    limit = bounds.product_limit(eps)
    assert f"{limit:.{len(figure.split('.')[1])}f}" == figure
    gaps = [alpha1 * bounds.alpha0_lower_bound(alpha1, eps) - limit for alpha1 in (10.0, 100.0, 1000.0)]
    assert gaps[0] > 50 * gaps[1] > 2500 * gaps[2] > 0  # from above, as 1 / alpha1^2


def test_erratum_four_of_six_pairs_miss_a_tenth() -> None:
    achieved = {pair: bounds.achieved_eps(*pair) for pair in PAIRS}
    shown = [f"{achieved[pair]:.4f}" for pair in PAIRS[2:]]
    assert shown == ["0.1001", "0.1008", "0.1023", "0.1059"]
    assert [eps > 0.1 for eps in achieved.values()] == [False, False, True, True, True, True]


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


def test_table_for_another_eps_has_no_paper_column() -> None:
    (row,) = bounds.bounds_table(0.05, (10.0,))
    exact = 10 * mpmath.log((10 + mpmath.log(19)) / (10 - mpmath.log(19)))
    assert row["paper"] is None
    assert row["alpha0"] == pytest.approx(float(exact))
    assert row["rounded_up"] == f"{math.ceil(float(exact) * 1e4) / 1e4:.4f}"


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
def test_slope_at_zero(pair: tuple[float, float]) -> None:
    assert bounds.slope_at_zero(*pair) == pytest.approx(float(mpmath.diff(lambda v: curve(v, *pair), 0)), rel=1e-12)


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


def test_gradient_share_of_the_scaled_sigmoid_is_its_limit() -> None:
    x = normal_grid()
    f = np.exp(-22 * np.abs(x))
    scaled = (22 * f / (1 + f) ** 2 > 1e-6).mean()
    assert round(100 * scaled) == 56
    assert bounds.gradient_share(1e-4, 22e4) == pytest.approx(scaled, abs=1e-4)


def test_gradient_share_is_zero_when_the_threshold_is_never_passed() -> None:
    assert bounds.gradient_share(1.0, 4.0, threshold=1.0) == 0
    assert bounds.gradient_share(1.0, 4.0, threshold=0.999) == pytest.approx(
        (slope(normal_grid(), 1.0, 4.0) > 0.999).mean(), abs=1e-4
    )


def test_erratum_binarity_follows_the_scale_of_the_inputs() -> None:
    def binarity(pair: tuple[float, float], scale: float) -> float:
        y = 1 / (1 + np.exp(-pair[1] * np.tanh(pair[0] * scale * normal_grid())))
        return float(((y > 0.99) | (y < 0.01)).mean())

    shares = [binarity(pair, 1.0) for pair in PAIRS]
    assert all(0.80 <= share <= 0.84 for share in shares[:5])
    assert shares[5] == 0
    across_curves = max(shares[:5]) - min(shares[:5])
    assert binarity(PAIRS[3], 3.0) - binarity(PAIRS[3], 0.3) > 5 * across_curves


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


def test_erratum_the_network_error_grows_with_the_width() -> None:
    h = normal_grid()
    one = np.abs((h >= 0) - 1 / (1 + np.exp(-11 * np.tanh(2 * h)))).mean()
    for width in (1, 10, 1000):  # equal nodes with equal weights: the error is the width times one node's
        assert bounds.network_error_bound(width, 1.0, 0.8, 0.1009) >= width * one
    single = bounds.network_error_bound(1, 1.0, 0.8, 0.1)
    assert bounds.network_error_bound(1000, 1.0, 0.8, 0.1) == pytest.approx(1000 * single)


@pytest.mark.parametrize("eps", [0.0, 0.5, -0.1, 1.0, math.nan, math.inf])
def test_eps_outside_the_open_interval_raises(eps: float) -> None:
    calls = [
        lambda: bounds.logit_bound(eps),
        lambda: bounds.alpha1_lower_bound(eps),
        lambda: bounds.alpha0_lower_bound(11.0, eps),
        lambda: bounds.product_limit(eps),
        lambda: bounds.network_error_bound(1, 1.0, 1.0, eps),
        lambda: bounds.bounds_table(eps),
    ]
    for call in calls:
        with pytest.raises(ValueError, match=rf"^eps must lie in \(0, 1/2\), got {eps}$"):
            call()


@pytest.mark.parametrize("alpha1", [2.19, -1.0, math.inf, math.nan])
def test_alpha1_below_its_bound_raises(alpha1: float) -> None:
    expected = rf"^alpha1 must be > ln\(\(1 - eps\) / eps\) = 2.19722 and finite, got {alpha1}$"
    with pytest.raises(ValueError, match=expected):
        bounds.alpha0_lower_bound(alpha1, 0.1)


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf])
def test_parameters_must_be_positive_and_finite(bad: float) -> None:
    calls = [
        bounds.achieved_eps,
        bounds.slope_at_zero,
        bounds.lipschitz_constant,
        bounds.tail_constant,
        bounds.gradient_share,
        lambda alpha0, alpha1: bounds.derivatives(0.5, alpha0, alpha1),
    ]
    for call in calls:
        with pytest.raises(ValueError, match=rf"^alpha0 must be > 0 and finite, got {bad}$"):
            call(bad, 11.0)
        with pytest.raises(ValueError, match=rf"^alpha1 must be > 0 and finite, got {bad}$"):
            call(2.0, bad)
    with pytest.raises(ValueError, match=rf"^product must be > 0 and finite, got {bad}$"):
        bounds.best_alpha0(bad, 1.0)
    with pytest.raises(ValueError, match=rf"^scale must be > 0 and finite, got {bad}$"):
        bounds.best_alpha0(22.0, bad)
    with pytest.raises(ValueError, match=rf"^threshold must be > 0 and finite, got {bad}$"):
        bounds.gradient_share(2.0, 11.0, threshold=bad)


@pytest.mark.parametrize(
    ("width", "weight", "density"), [(0, 1.0, 1.0), (1, -1.0, 1.0), (1, 1.0, -1.0), (1, math.nan, 1.0)]
)
def test_network_error_bound_refuses(width: int, weight: float, density: float) -> None:
    expected = f"^width >= 1, weight_bound >= 0 and density >= 0 expected, got {width}, {weight}, {density}$"
    with pytest.raises(ValueError, match=expected):
        bounds.network_error_bound(width, weight, density, 0.1)


def test_integers_are_fine(unchecked: None) -> None:
    assert bounds.achieved_eps(2, 11) == bounds.achieved_eps(2.0, 11.0)
    assert bounds.best_alpha0(22, 1) == bounds.best_alpha0(22.0, 1.0)
