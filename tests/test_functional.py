"""Gradients that survive floating point, against closed forms written here in float64 and mpmath."""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Callable
from typing import NamedTuple

import mpmath
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck
from torch.autograd.graph import saved_tensors_hooks

from htaf import surrogates
from htaf.core.activations import HTAF, ScaledSigmoid
from htaf.core.functional import heaviside, htaf, scaled_sigmoid, sign
from htaf.core.surrogates import straight_through
from htaf.training.families import make_recipe
from htaf.transform.spiking.neurons import IF

PAIRS = [(0.1, 220.0), (0.5, 44.0), (1.0, 22.0), (2.0, 11.0), (3.0, 7.3), (5.0, 4.4)]
SMOOTH = {htaf: (2.0, 11.0), scaled_sigmoid: (22.0,)}  # every smooth activation, with numbers for its parameters
DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
X = torch.linspace(-6, 6, 4001)
pytestmark = pytest.mark.filterwarnings("ignore:float16 gradients underflow")


class Figures(NamedTuple):
    error: float  # largest relative error where the true gradient is a normal number
    zeros: float  # share of those points that come back as 0
    symmetric: bool


def rounded(value: float) -> float:
    """A parameter as float32 arithmetic sees it."""
    return torch.tensor(value, dtype=torch.float32).item()


def true_slope(x: Tensor, alpha0: float, alpha1: float) -> Tensor:
    """In float64 by the route e, t, f, which the library does not take."""
    z = alpha0 * x.double().abs()
    e = torch.exp(-2 * z)
    f = torch.exp(alpha1 * torch.expm1(-2 * z) / (1 + e))
    return alpha0 * alpha1 * (f / (1 + f) ** 2) * (4 * e / (1 + e) ** 2)


def true_value(x: Tensor, alpha0: float, alpha1: float) -> Tensor:
    u = alpha1 * torch.tanh(alpha0 * x.double())
    return torch.where(u < 0, u.exp() / (1 + u.exp()), 1 / (1 + (-u).exp()))


def true_sigmoid_slope(x: Tensor, beta: float) -> Tensor:
    f = torch.exp(-beta * x.double().abs())
    return beta * f / (1 + f) ** 2


def units(found: Tensor, truth: Tensor) -> float:
    """The largest error where the truth is a normal number, in units in the last place of the dtype of `found`."""
    info = torch.finfo(found.dtype)
    normal = truth.abs() >= info.tiny
    unit = info.eps * torch.exp2(truth.abs().log2().floor())
    return ((found.double() - truth).abs() / unit)[normal].max().item()


def once_rounded(dtype: torch.dtype, alpha1: float) -> float:
    """How far from the truth, in units of a 16-bit type, one rounding of a result with the error of float32 may be."""
    return 0.54 if dtype == torch.float16 and alpha1 > 100 else 0.51


def naive(x: Tensor, alpha0: float, alpha1: float) -> Tensor:
    return torch.sigmoid(alpha1 * torch.tanh(alpha0 * x))


def gradient(function: Callable[..., Tensor], x: Tensor, *parameters: object) -> Tensor:
    leaf = x.detach().clone().requires_grad_()
    function(leaf, *parameters).sum().backward()
    assert leaf.grad is not None
    assert leaf.grad.dtype == x.dtype
    return leaf.grad


def figures(found: Tensor, at_minus_x: Tensor, truth: Tensor) -> Figures:
    normal = truth >= torch.finfo(found.dtype).tiny
    error = ((found.double() - truth).abs() / truth)[normal].max().item()
    return Figures(error, (found[normal] == 0).double().mean().item(), torch.equal(found, at_minus_x))


@pytest.mark.parametrize("limit", [6, 20])
@pytest.mark.parametrize("pair", PAIRS)
def test_float32_gradient_keeps_its_relative_accuracy(pair: tuple[float, float], limit: int) -> None:
    pair = (rounded(pair[0]), rounded(pair[1]))
    x = X * (limit / 6)
    truth = true_slope(x, *pair)
    good = figures(gradient(htaf, x, *pair), gradient(htaf, -x, *pair), truth)
    assert good.error <= 2e-5
    assert good.zeros == 0
    assert good.symmetric
    bad = figures(gradient(naive, x, *pair), gradient(naive, -x, *pair), truth)  # why the closed form is needed
    assert bad.error >= 1
    assert bad.zeros > 0.2
    assert not bad.symmetric


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("pair", PAIRS)
def test_half_gradient_is_rounded_once(pair: tuple[float, float], dtype: torch.dtype) -> None:
    pair = (rounded(pair[0]), rounded(pair[1]))
    x = X.to(dtype)
    found, truth = gradient(htaf, x, *pair), true_slope(x, *pair)
    assert units(found, truth) <= once_rounded(dtype, pair[1])
    assert (found != truth.to(dtype)).double().mean() < 5e-3  # only where the truth is near a rounding boundary
    assert torch.equal(found, gradient(htaf, -x, *pair))
    normal = truth >= torch.finfo(dtype).tiny
    assert (found[normal] != 0).all()
    if dtype == torch.bfloat16:
        bad = figures(gradient(naive, x, *pair), gradient(naive, -x, *pair), truth)
        assert bad.error >= 1
        assert bad.zeros > 0.3


# a1 from 1e4 on: with x times a0 in the range where tanh is linear; the last: a0 x is no normal number for |x| < 1
WIDE = [
    (1e-3, 1e4),
    (1e-7, 1e7),
    (1e-8, 1e8),
    (1e-20, 1e20),
    (1e-37, 1e37),
    (1e37, 1e-37),
    (1e37, 1e37),
    (1e-37, 1e-37),
]


@pytest.mark.parametrize("dtype", DTYPES[:3])
@pytest.mark.parametrize("pair", WIDE)
def test_pairs_up_to_the_ends_of_float32(pair: tuple[float, float], dtype: torch.dtype) -> None:
    pair = (rounded(pair[0]), rounded(pair[1]))
    x, single = torch.linspace(-12, 12, 2001).to(dtype), dtype == torch.float32
    truth = true_value(x, *pair)
    for found in (htaf(x, *pair), htaf(x, *map(torch.tensor, pair))):
        if single:
            assert (found.double() - truth).abs().max() <= 2.5e-7
        else:
            assert units(found, truth) <= 0.51
    slope = true_slope(x, *pair)
    for found in (gradient(htaf, x, *pair), gradient(htaf, x, *map(torch.tensor, pair))):
        flat = (slope > torch.finfo(dtype).max) & (found > 1e37 if single else found.isinf())
        if (fine := ~flat & (slope >= torch.finfo(dtype).tiny)).any():
            assert units(found[fine], slope[fine]) <= (260 if single else 0.51)  # 3e-5
        assert (found[slope < 1e-38] <= 1e-38).all()
        assert not found.isnan().any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_derivatives_by_tiny_and_huge_alphas(dtype: torch.dtype) -> None:
    x, alpha0, alpha1 = torch.linspace(-9, 9, 31, dtype=dtype), torch.tensor(1e-20), torch.tensor(1e20)
    p = [a.to(dtype).requires_grad_() for a in (alpha0, alpha1)]
    found = torch.autograd.grad(htaf(x, *p), p, x)
    s = true_sigmoid_slope(x, 1.0)  # HTAF is sigmoid(x) here
    truth = ((x * x * s).sum() * 1e20, (x * x * s).sum() * 1e-20)
    for v, w in zip(found, truth, strict=True):
        assert v.item() == pytest.approx(w.item(), rel=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_incoming_gradient_is_not_rounded_again(dtype: torch.dtype) -> None:
    x = X.to(dtype).requires_grad_()
    incoming = torch.linspace(-3, 3, 4001).to(dtype)
    (found,) = torch.autograd.grad(htaf(x, 1.0, 22.0), x, incoming)
    once = (incoming.float() * gradient(htaf, x.detach().float(), 1.0, 22.0)).to(dtype)
    twice = incoming * gradient(htaf, x.detach(), 1.0, 22.0)
    assert torch.equal(found, once)
    assert not torch.equal(found, twice)


@pytest.mark.parametrize("beta", [1.0, 10.0, 22.0, 100.0])
def test_scaled_sigmoid_gradient(beta: float) -> None:
    truth = true_sigmoid_slope(X, beta)
    good = figures(gradient(scaled_sigmoid, X, beta), gradient(scaled_sigmoid, -X, beta), truth)
    assert good.error <= 2e-5
    assert good.zeros == 0
    assert good.symmetric
    half = X.bfloat16()
    assert units(gradient(scaled_sigmoid, half, beta), true_sigmoid_slope(half, beta)) <= 0.51
    if beta >= 10:
        assert (gradient(lambda x: torch.sigmoid(beta * x), X)[truth >= 1.2e-38] == 0).any()


@pytest.mark.parametrize("pair", PAIRS)
def test_forward_accuracy(pair: tuple[float, float]) -> None:
    pair = (rounded(pair[0]), rounded(pair[1]))
    truth = true_value(X, *pair)
    y = htaf(X, *pair).double()
    assert (y - truth).abs().max() < 2e-7
    normal = truth >= torch.finfo(torch.float32).tiny
    assert ((y - truth).abs() / truth)[normal].max() < 2e-5
    for dtype in (torch.bfloat16, torch.float16):
        assert units(htaf(X.to(dtype), *pair), true_value(X.to(dtype), *pair)) <= once_rounded(dtype, pair[1])


SHAPES = {
    "scalars": ((), ()),
    "per channel": ((3, 1), (3, 1)),
    "full": ((2, 3, 4), (2, 3, 4)),
    "mixed": ((1,), (2, 1, 4)),
}


@pytest.mark.parametrize("shapes", SHAPES.values(), ids=SHAPES.keys())
@pytest.mark.parametrize("pair", [(2.0, 3.0)])
def test_gradcheck_and_gradgradcheck(pair: tuple[float, float], shapes: tuple[tuple[int, ...], ...]) -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 3, 4, dtype=torch.float64, requires_grad=True)
    alphas = [
        (value * (0.5 + torch.rand(shape, dtype=torch.float64))).requires_grad_()
        for value, shape in zip(pair, shapes, strict=True)
    ]
    assert gradcheck(htaf, (x, *alphas))
    assert gradgradcheck(htaf, (x, *alphas))
    assert gradcheck(scaled_sigmoid, (x, alphas[1]))
    assert gradgradcheck(scaled_sigmoid, (x, alphas[1]))


@pytest.mark.parametrize(("function", "parameters"), SMOOTH.items())
def test_derivatives_and_limits(function: Callable[..., Tensor], parameters: tuple[float, ...]) -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 3, 4, dtype=torch.float64, requires_grad=True)
    given = [torch.tensor(value / 4, dtype=torch.float64, requires_grad=True) for value in parameters]
    assert gradcheck(function, (x, *given))
    assert gradgradcheck(function, (x, *given))
    for dtype in DTYPES:
        largest = torch.finfo(dtype).max
        far = torch.tensor([math.inf, -math.inf, largest, -largest], dtype=dtype, requires_grad=True)
        values = function(far, *parameters)
        assert (values[::2] > 0.5).all(), values
        assert (values[1::2] < 0.5).all(), values
        tensors = [torch.tensor(value, requires_grad=True) for value in parameters]
        first = torch.autograd.grad(function(far, *tensors).sum(), [far, *tensors], create_graph=True)
        assert (first[0] == 0).all(), first
        second = torch.autograd.grad(sum(g.sum() for g in first), [far, *tensors], allow_unused=True)
        assert all(g.isfinite().all() for g in [*first, *second] if g is not None)
    assert function(torch.tensor(math.nan), *parameters).isnan()


def count_saved(function: Callable[[], Tensor]) -> list[Tensor]:
    saved: list[Tensor] = []
    with saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        function()
    return saved


def test_one_saved_tensor_and_it_is_x() -> None:
    for dtype in (torch.float32, torch.bfloat16):
        x = torch.randn(8, dtype=dtype, requires_grad=True)
        for function in (htaf, scaled_sigmoid):
            (saved,) = count_saved(lambda function=function, x=x: function(x))
            assert saved.data_ptr() == x.data_ptr()
    assert len(count_saved(lambda: naive(torch.randn(8, requires_grad=True), 2.0, 11.0))) > 1  # the check can fail


@pytest.mark.parametrize("dtype", DTYPES)
def test_special_values(dtype: torch.dtype) -> None:
    tiny = torch.finfo(dtype).smallest_normal / 4  # a denormal
    x = torch.tensor([0.0, -0.0, math.inf, -math.inf, math.nan, tiny, -tiny], dtype=dtype)
    top = 1 / (1 + math.exp(-11))
    expected = torch.tensor([0.5, 0.5, top, 1 - top, math.nan, 0.5, 0.5], dtype=torch.float64)
    slope = torch.tensor([5.5, 5.5, 0.0, 0.0, math.nan, 5.5, 5.5], dtype=dtype)
    torch.testing.assert_close(htaf(x, 2.0, 11.0), expected.to(dtype), equal_nan=True)
    torch.testing.assert_close(gradient(htaf, x, 2.0, 11.0), slope, rtol=0, atol=0, equal_nan=True)
    sigmoid = torch.tensor([0.5, 0.5, 1.0, 0.0, math.nan, 0.5, 0.5], dtype=dtype)
    torch.testing.assert_close(scaled_sigmoid(x, 22.0), sigmoid, rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(gradient(scaled_sigmoid, x, 22.0), slope, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("function", [*SMOOTH, heaviside, sign])
@pytest.mark.parametrize("dtype", DTYPES)
def test_shapes_layouts_and_dtypes(function: Callable[..., Tensor], dtype: torch.dtype) -> None:
    full = torch.randn(6, 4, 2, dtype=torch.float64).to(dtype)
    flat = function(full.flatten())
    views = [full, full.transpose(0, 2), full[::2, 1:, 0], full[0, 0, 0], full[:0], full[:1].expand(5, 4, 2)]
    for view in views:
        y = function(view)
        assert y.shape == view.shape
        assert y.dtype == dtype
        torch.testing.assert_close(y, function(view.contiguous()))  # vector and scalar code round differently
        assert gradient(function, view).shape == view.shape
    torch.testing.assert_close(function(full).flatten(), flat)


def test_double_parameters_with_float32_input_keep_the_input_dtype() -> None:
    alpha0 = torch.tensor(2.0, dtype=torch.float64, requires_grad=True)
    y = htaf(X, alpha0, 11.0)
    assert y.dtype == torch.float32
    y.sum().backward()
    assert alpha0.grad is not None
    assert alpha0.grad.dtype == torch.float64
    half = torch.full((3, 1), 2.0, dtype=torch.bfloat16, requires_grad=True)
    htaf(torch.randn(2, 3, 4), half, 11.0).sum().backward()
    assert half.grad is not None
    assert half.grad.shape == (3, 1)
    assert half.grad.dtype == torch.bfloat16


def test_autocast() -> None:
    layer = torch.nn.Linear(4, 3)
    alpha0 = torch.tensor(2.0, requires_grad=True)
    x = torch.randn(5, 4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        pre = layer(x)
        y = htaf(pre, alpha0, 11.0)
        assert y.dtype == torch.bfloat16
        assert torch.equal(y, htaf(pre.float(), alpha0, 11.0).bfloat16())
        assert htaf(x).dtype == torch.float32
        (found,) = torch.autograd.grad(y.sum(), pre, retain_graph=True)
    y.sum().backward()
    assert torch.equal(found, gradient(htaf, pre.detach().float(), 2.0, 11.0).bfloat16())
    assert all(p.grad is not None and p.grad.dtype == torch.float32 for p in (layer.weight, alpha0))


def test_func_transforms_with_batched_parameters() -> None:
    x = torch.linspace(-2, 2, 12, dtype=torch.float64).reshape(4, 3)
    alpha0, alpha1 = (torch.linspace(a, b, 4, dtype=torch.float64) for a, b in ((0.5, 2), (2, 6)))
    rows = torch.stack([htaf(x[i], alpha0[i], alpha1[i]) for i in range(4)])
    assert torch.equal(torch.func.vmap(htaf)(x, alpha0, alpha1), rows)
    shared = torch.func.vmap(htaf, in_dims=(None, 0, None))(x[0], alpha0, alpha1[0])
    assert torch.equal(shared, torch.stack([htaf(x[0], a, alpha1[0]) for a in alpha0]))

    def total(x: Tensor, alpha0: Tensor, alpha1: Tensor) -> Tensor:
        return htaf(x, alpha0, alpha1).sum()

    found = torch.func.vmap(torch.func.grad(total, argnums=(0, 1, 2)))(x, alpha0, alpha1)
    curved = torch.func.vmap(torch.func.grad(lambda *a: torch.func.grad(total, argnums=1)(*a), argnums=2))(
        x, alpha0, alpha1
    )
    for i in range(4):
        leaves = [v[i].clone().requires_grad_() for v in (x, alpha0, alpha1)]
        exact = torch.autograd.grad(naive(*leaves).sum(), leaves, create_graph=True)
        for mine, theirs in zip(found, exact, strict=True):
            torch.testing.assert_close(mine[i], theirs)
        torch.testing.assert_close(curved[i], torch.autograd.grad(exact[1], leaves[2])[0])


@pytest.mark.parametrize("dtype", DTYPES)
def test_heaviside_and_sign_conventions(dtype: torch.dtype) -> None:
    tiny = torch.finfo(dtype).smallest_normal / 4
    x = torch.tensor([0.0, -0.0, tiny, -tiny, math.inf, -math.inf, 1.0, -1.0, math.nan], dtype=dtype)
    assert (x[2] > 0).item()
    step = torch.tensor([1, 1, 1, 0, 1, 0, 1, 0, math.nan], dtype=dtype)
    torch.testing.assert_close(heaviside(x), step, rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(sign(x), 2 * step - 1, rtol=0, atol=0, equal_nan=True)
    assert torch.sign(torch.zeros(1)).item() == 0  # where the two conventions part
    for function in (heaviside, sign):
        assert gradient(function, x[:-1]).count_nonzero() == 0


@given(hnp.arrays("float32", hnp.array_shapes(max_dims=3, max_side=8), elements=st.floats(width=32)))
def test_heaviside_is_the_comparison(values) -> None:
    for value, step in zip(values.flat, heaviside(torch.from_numpy(values)).flatten().tolist(), strict=True):
        assert math.isnan(step) if math.isnan(value) else step == (1.0 if value >= 0 else 0.0)


@pytest.mark.parametrize("bad", [1e300, 1e-300, 1e38, 1e-38])
def test_parameters_beyond_float32_are_refused(bad: float) -> None:
    x, wide = torch.zeros(3), torch.tensor(bad, dtype=torch.float64)
    calls: dict[str, list[Callable[[], object]]] = {
        "alpha0": [
            lambda: htaf(x, bad),
            lambda: HTAF(bad),
            lambda: HTAF(wide),
            lambda: make_recipe(alpha0=bad),
        ],
        "alpha1": [lambda: htaf(x.double(), 2.0, bad), lambda: HTAF(2.0, bad, learnable=True)],
        "beta": [lambda: scaled_sigmoid(x, bad), lambda: ScaledSigmoid(wide)],
        "alpha": [lambda: straight_through(x, functools.partial(surrogates.atan, alpha=bad))],
        "threshold": [lambda: IF(threshold=bad)],
    }
    for name, refused in calls.items():
        for call in refused:
            with pytest.raises(ValueError, match=f"^{name} must be from 9.4e-38 to 1.06e[+]37, which float32 can hold"):
                call()


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("function", [*SMOOTH, heaviside, sign])
@pytest.mark.parametrize(
    ("x", "message"),
    [
        ([1.0], r"^x must be a torch.Tensor, got list$"),
        (torch.tensor([1]), r"^x must be a real floating-point tensor, got dtype torch.int64$"),
        (torch.tensor([1j]), r"^x must be a real floating-point tensor, got dtype torch.complex64$"),
    ],
)
def test_input_must_be_a_real_floating_point_tensor(function, x: object, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        function(x)


@pytest.mark.filterwarnings("error")
def test_float16_training_warns() -> None:
    x = torch.zeros(3, dtype=torch.float16, requires_grad=True)
    for function in (htaf, scaled_sigmoid):
        with pytest.warns(UserWarning, match=r"float16 gradients underflow.*loss scale") as caught:
            function(x)
        assert len(caught) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        htaf(x.detach())
        htaf(x.bfloat16())


@pytest.mark.parametrize("pair", PAIRS)
def test_second_derivative_against_mpmath(pair: tuple[float, float]) -> None:
    points = [-5.0, -1.7, -0.3, -0.01, 0.0, 0.02, 0.7, 4.0]
    x = torch.tensor(points, dtype=torch.float64, requires_grad=True)
    (first,) = torch.autograd.grad(htaf(x, *pair).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x)
    with mpmath.workdps(60):
        a0, a1 = map(mpmath.mpf, pair)
        for point, found in zip(points, second.tolist(), strict=True):
            exact = mpmath.diff(lambda v: 1 / (1 + mpmath.exp(-a1 * mpmath.tanh(a0 * v))), point, 2)
            assert found == pytest.approx(float(exact), rel=1e-11, abs=1e-40)


@pytest.mark.parametrize("pair", PAIRS)
def test_parameter_gradients_in_float32(pair: tuple[float, float]) -> None:
    pair = (rounded(pair[0]), rounded(pair[1]))
    alpha0, alpha1 = (torch.full_like(X, value).requires_grad_() for value in pair)
    htaf(X, alpha0, alpha1).sum().backward()
    slope = true_slope(X, *pair)
    x = X.double()
    sech2 = 4 * torch.exp(-2 * pair[0] * x.abs()) / (1 + torch.exp(-2 * pair[0] * x.abs())) ** 2
    exact0 = x * slope / pair[0]
    exact1 = torch.tanh(pair[0] * x) * slope / (pair[0] * pair[1] * sech2)
    for alpha, exact in ((alpha0, exact0), (alpha1, exact1)):
        normal = exact.abs() >= torch.finfo(torch.float32).tiny
        assert ((alpha.grad.double() - exact).abs() / exact.abs())[normal].max() < 2e-5


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("x", [math.inf, -math.inf, "max", "-max"])
def test_parameter_gradients_far_out_are_their_limits(x: float | str, dtype: torch.dtype) -> None:
    far = torch.finfo(dtype).max * (1 if x == "max" else -1) if isinstance(x, str) else x
    side = math.copysign(1, far)
    parameters = [torch.tensor(v, requires_grad=True) for v in (2.0, 11.0, 22.0)]
    point = torch.tensor([far], dtype=dtype, requires_grad=True)
    grads = torch.autograd.grad(htaf(point, *parameters[:2]).sum(), [point, *parameters[:2]], create_graph=True)
    limit = math.exp(-11) / (1 + math.exp(-11)) ** 2
    if dtype != torch.float16:
        assert [g.item() for g in grads] == [0, 0, pytest.approx(side * limit, rel=1e-5)]
    second = torch.autograd.grad(sum(g.sum() for g in grads), [point, *parameters[:2]])
    assert all(g.isfinite().all() for g in second)
    grads = torch.autograd.grad(scaled_sigmoid(point, parameters[2]).sum(), [point, parameters[2]], create_graph=True)
    assert [g.item() for g in grads] == [0, 0]
    second = torch.autograd.grad(sum(g.sum() for g in grads), [point, parameters[2]])
    assert all(g.item() == 0 for g in second)
