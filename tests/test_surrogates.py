"""Exact step forward, the chosen slope backward; each slope against its formula."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from htaf import StraightThrough, surrogates
from htaf.core.functional import heaviside
from htaf.core.surrogates import straight_through

DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


def logistic(v: float) -> float:
    return 1 / (1 + math.exp(-v))


def htaf_slope(v: float, alpha0: float, alpha1: float) -> float:
    y = logistic(alpha1 * math.tanh(alpha0 * v))
    return alpha0 * alpha1 * y * (1 - y) / math.cosh(alpha0 * v) ** 2


# name -> slope, its formula on floats
SLOPES: dict[str, tuple[surrogates.Slope, Callable[[float], float]]] = {
    "sigmoid": (surrogates.sigmoid, lambda v: logistic(v) * (1 - logistic(v))),
    "sigmoid 4": (functools.partial(surrogates.sigmoid, beta=4.0), lambda v: 4 * logistic(4 * v) * logistic(-4 * v)),
    "tanh": (surrogates.tanh, lambda v: 1 - math.tanh(v) ** 2),
    "rectangular": (surrogates.rectangular, lambda v: 1.0 if abs(v) < 1 else 0.0),
    "atan": (surrogates.atan, lambda v: 1 / (1 + (math.pi * v) ** 2)),
    "atan 5": (functools.partial(surrogates.atan, alpha=5.0), lambda v: 2.5 / (1 + (2.5 * math.pi * v) ** 2)),
    "approx_sign": (surrogates.approx_sign, lambda v: max(0.0, 1 - abs(v))),
    "htaf": (surrogates.htaf, lambda v: htaf_slope(v, 2, 11)),
    "htaf 1 2": (functools.partial(surrogates.htaf, alpha0=1.0, alpha1=2.0), lambda v: htaf_slope(v, 1, 2)),
    "lambda": (lambda x: torch.exp(-x.square()), lambda v: math.exp(-v * v)),
}
NAMES = list(SLOPES)


def gradient(x: Tensor, slope: surrogates.Slope, incoming: Tensor | None = None) -> Tensor:
    leaf = x.detach().clone().requires_grad_()
    y = straight_through(leaf, slope)
    return torch.autograd.grad(y, leaf, torch.ones_like(y) if incoming is None else incoming)[0]


@pytest.mark.parametrize("name", NAMES)
def test_slope_is_its_formula(name: str) -> None:
    slope, formula = SLOPES[name]
    x = torch.tensor([-7.0, -1.0, -0.99, -0.4, -1e-3, 0.0, 0.1, 0.5, 0.999, 1.0, 1.5, 3.0], dtype=torch.float64)
    exact = torch.tensor([formula(v) for v in x.tolist()], dtype=torch.float64)
    torch.testing.assert_close(slope(x), exact, rtol=1e-6, atol=1e-12)
    assert torch.equal(gradient(x, slope), slope(x))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", NAMES)
def test_forward_is_exact_and_backward_is_rounded_once(name: str, dtype: torch.dtype) -> None:
    slope = SLOPES[name][0]
    x = torch.linspace(-3, 3, 301, dtype=torch.float64).to(dtype)
    y = straight_through(x, slope)
    assert y.dtype == dtype
    assert torch.equal(y, (x >= 0).to(dtype))
    incoming = torch.linspace(-2, 5, 301, dtype=torch.float64).to(dtype)
    wide = torch.promote_types(dtype, torch.float32)
    found, exact = gradient(x, slope, incoming), incoming.double() * slope(x.double())
    if dtype == torch.float64 or name == "lambda":
        assert torch.equal(found, (incoming.to(wide) * slope(x.to(wide))).to(dtype))
    else:  # half a unit of a 16-bit type and the error of float32
        error = 2e-6 if dtype == torch.float32 else 0.51 * torch.finfo(dtype).eps
        assert ((found.double() - exact).abs() <= error * exact.abs() + torch.finfo(dtype).smallest_normal).all()


def test_conventions_at_the_edge_are_those_of_heaviside() -> None:
    x = torch.tensor([0.0, -0.0, 1e-45, -1e-45, math.inf, -math.inf, math.nan])
    torch.testing.assert_close(straight_through(x, surrogates.sigmoid), heaviside(x), rtol=0, atol=0, equal_nan=True)
    for name in NAMES:
        assert (gradient(x[4:6], SLOPES[name][0]) == 0).all(), name


def test_bipolar_approx_sign_is_bi_real() -> None:
    x = torch.linspace(-1.5, 1.5, 61, requires_grad=True)
    y = StraightThrough(surrogates.approx_sign, bipolar=True)(x)
    assert torch.equal(y, torch.where(x >= 0, 1.0, -1.0))
    y.sum().backward()
    assert torch.equal(x.grad, torch.where(x.detach().abs() < 1, 2 - 2 * x.detach().abs(), 0.0))


@pytest.mark.parametrize("name", [n for n in NAMES if n not in {"rectangular", "approx_sign"}])
def test_double_backward_is_the_slope_of_the_slope(name: str) -> None:
    slope, formula = SLOPES[name]
    x = torch.tensor([-2.0, -0.3, 0.4, 1.7], dtype=torch.float64, requires_grad=True)
    (first,) = torch.autograd.grad(straight_through(x, slope).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x)
    h = 1e-5
    exact = [(formula(v + h) - formula(v - h)) / (2 * h) for v in x.tolist()]
    assert second.tolist() == pytest.approx(exact, rel=1e-6, abs=1e-9)


@pytest.mark.usefixtures("unchecked")
def test_errors_say_what_came() -> None:
    with pytest.raises(TypeError, match=r"^x must be a torch.Tensor, got list$"):
        straight_through([1.0], surrogates.sigmoid)  # pyright: ignore[reportArgumentType]
    with pytest.raises(TypeError, match=r"^x must be a real floating-point tensor, got dtype torch.int64$"):
        straight_through(torch.tensor([1]), surrogates.sigmoid)
    for make in (lambda: straight_through(torch.zeros(1), "sigmoid"), lambda: StraightThrough("sigmoid")):
        with pytest.raises(TypeError, match=r"^slope must be a function from a tensor to a tensor, got str$"):
            make()


@pytest.mark.parametrize("name", NAMES)
def test_stretched(name: str) -> None:
    """slope(x / w) / w, by the kernel of the slope where its own parameter can take the width."""
    slope = SLOPES[name][0]
    x = torch.linspace(-5, 5, 101, dtype=torch.float64)
    wide = surrogates.stretched(slope, 2.5)
    assert torch.allclose(wide(x), slope(x / 2.5) / 2.5)
    own = surrogates.kernel_of(slope)
    assert (surrogates.kernel_of(wide) is not None) == (own is not None and own[0] in ("sigmoid", "atan", "htaf"))
    with pytest.raises(ValueError, match="width"):
        surrogates.stretched(slope, 0.0)
