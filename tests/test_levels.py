"""Steps of several thresholds: values and gradients against closed forms, and transforms of models that have them."""

from __future__ import annotations

import math
from functools import partial
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from torch import Tensor, nn
from torch.autograd import gradcheck, gradgradcheck

import htaf
from htaf.core.activations import level_of
from htaf.core.contract import ContractError, lacking
from htaf.core.functional import heaviside, scaled_sigmoid, sign, thresholds
from htaf.core.kernels import native
from htaf.core.surrogates import straight_through
from htaf.models.icbm import ICBM
from htaf.transform.diagnostics import layer_statistics
from htaf.transform.grid import on_grid

LEVELS, SPACINGS = st.integers(2, 5), st.floats(0.05, 4)
FLOATS = hnp.arrays(np.float32, st.integers(0, 70), elements=st.floats(-10, 10, width=32, allow_subnormal=False))


def by_hand(levels: int, spacing: float) -> list[float]:
    """Thresholds from the middle outwards, as float32 holds them."""
    middle = sum(range(1, levels + 1)) / levels
    return [float(np.float32((k - middle) * spacing)) for k in range(1, levels + 1)]


def true_mean(x: np.ndarray, at: list[float], alpha0: float, alpha1: float) -> Any:
    return sum(1 / (1 + np.exp(-alpha1 * np.tanh(alpha0 * (x.astype(np.float64) - t)))) for t in at) / len(at)


@given(LEVELS, SPACINGS)
def test_thresholds_lie_evenly_around_0(levels: int, spacing: float) -> None:
    assert list(thresholds(levels, spacing)) == by_hand(levels, spacing)
    assert thresholds(1, spacing) == (0.0,)
    assert list(thresholds(levels)) == by_hand(levels, 2.8 / levels)


@given(FLOATS, LEVELS, SPACINGS)
def test_the_exact_step_counts_the_thresholds_that_are_reached(x: np.ndarray, levels: int, spacing: float) -> None:
    at = by_hand(levels, spacing)
    reached = np.searchsorted(at, x.astype(np.float64), side="right")
    given = torch.from_numpy(x)
    expected = torch.tensor(reached / levels, dtype=torch.float32)
    assert torch.equal(heaviside(given, levels=levels, spacing=spacing), expected)
    expected = torch.tensor((2 * reached - levels) / levels, dtype=torch.float32)
    assert torch.equal(sign(given, levels=levels, spacing=spacing), expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_a_value_at_a_threshold_reaches_it_and_nan_stays(dtype: torch.dtype) -> None:
    at = torch.tensor(thresholds(3), dtype=torch.float64)
    assert at.tolist() == [-by_hand(3, 2.8 / 3)[2], 0.0, by_hand(3, 2.8 / 3)[2]]
    x = torch.tensor([-9.0, -0.0, math.nan, 9.0], dtype=dtype)
    found = heaviside(x, levels=3)
    assert found.dtype == dtype
    assert found[2].isnan()
    assert torch.equal(found[[0, 1, 3]].double().mul(3).round(), torch.tensor([0.0, 2, 3]).double())
    if dtype in (torch.float32, torch.float64):
        exact = torch.tensor(by_hand(3, 2.8 / 3), dtype=dtype)
        assert heaviside(exact, levels=3).mul(3).round().tolist() == [1, 2, 3]
        below = torch.nextafter(exact, torch.full_like(exact, -9))
        assert heaviside(below, levels=3).mul(3).round().tolist() == [0, 1, 2]


@pytest.mark.parametrize("bipolar", [False, True])
@given(x=FLOATS, levels=LEVELS, spacing=SPACINGS)
def test_values_and_gradients_are_the_mean_of_those_at_the_thresholds(
    bipolar: bool, x: np.ndarray, levels: int, spacing: float
) -> None:
    at = by_hand(levels, spacing)
    leaf = torch.from_numpy(x).requires_grad_()
    y = htaf.functional.htaf(leaf, 0.7, 5.0, levels=levels, spacing=spacing, bipolar=bipolar)
    value = true_mean(x, at, 0.7, 5.0)
    np.testing.assert_allclose(y.detach().numpy(), 2 * value - 1 if bipolar else value, atol=1e-6)
    y.sum().backward()
    shifted = [x.astype(np.float64) - t for t in at]
    slope = [0.7 * 5 / (np.cosh(0.7 * z) * 2 * np.cosh(2.5 * np.tanh(0.7 * z))) ** 2 for z in shifted]
    expected = (2 if bipolar else 1) * sum(slope) / levels
    assert leaf.grad is not None
    np.testing.assert_allclose(leaf.grad.numpy(), expected, rtol=2e-5, atol=1e-12)


def test_derivatives_of_all_orders_by_everything() -> None:
    x = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    pair = [torch.tensor(v, dtype=torch.float64, requires_grad=True) for v in (0.6, 3.0)]

    def step(x: Tensor, a: Tensor, b: Tensor) -> Tensor:
        return htaf.functional.htaf(x, a, b, levels=3)

    assert gradcheck(step, (x, *pair))
    assert gradgradcheck(step, (x, *pair))
    assert gradgradcheck(lambda x: scaled_sigmoid(x, 2.0, levels=2, bipolar=True), (x,))
    assert gradcheck(lambda x: htaf.functional.htaf(x, 0.6, 3.0, levels=2), (x,), check_forward_ad=True)


@pytest.mark.skipif(native.load()[0] is None, reason="compares the compiled kernels")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.filterwarnings("ignore:float16 gradients")
def test_the_kernels_give_what_the_operators_give(dtype: torch.dtype) -> None:
    from htaf.core.kernels import levels as kernel

    x = torch.randn(2, 37, 5, 5, generator=torch.Generator().manual_seed(0)).to(dtype)
    x = x.to(memory_format=torch.channels_last)
    slope = partial(htaf.surrogates.htaf, alpha0=0.4, alpha1=5.0)
    steps = (
        htaf.HTAF(0.4, 5.0, levels=3), htaf.ScaledSigmoid(2.0, levels=2, bipolar=True),
        htaf.StraightThrough(slope, levels=3, width=1.5), htaf.StraightThrough(levels=2, bipolar=True),
    )  # fmt: skip
    for step in steps:
        found = []
        for fast in (True, False):
            leaf = x.clone().requires_grad_()
            with pytest.MonkeyPatch.context() as patch:
                if not fast:
                    patch.setattr(kernel, "supports", lambda *_: False)
                patch.setattr(native, "levels_backward", passes := Mock(wraps=native.levels_backward))
                y = step(leaf)
                (once,) = torch.autograd.grad(y.float().sum(), leaf, retain_graph=True)
                assert passes.call_count == fast
                (first,) = torch.autograd.grad(y.float().sum(), leaf, create_graph=True)
                (second,) = torch.autograd.grad(y.float().square().sum(), leaf, create_graph=True)
                (again,) = torch.autograd.grad(second.float().sum(), leaf)
                assert y.stride() == x.stride()
                assert torch.equal(step(x), y)
            found.append([t.detach().float() for t in (y, once, first, second, again)])
        rounding = {torch.float32: 2e-5, torch.bfloat16: 2e-2, torch.float16: 2e-3}[dtype]
        torch.testing.assert_close(*found, rtol=rounding, atol=rounding)


@given(FLOATS, LEVELS)
@settings(max_examples=30)
def test_straight_through_is_the_exact_step_with_the_mean_slope(x: np.ndarray, levels: int) -> None:
    leaf = torch.from_numpy(x).requires_grad_()
    y = straight_through(leaf, htaf.surrogates.atan, levels=levels)
    assert torch.equal(y.detach(), heaviside(leaf.detach(), levels=levels))
    y.sum().backward()
    expected = (
        sum(1 / (1 + (math.pi * (x.astype(np.float64) - t)) ** 2) for t in by_hand(levels, 2.8 / levels)) / levels
    )
    assert leaf.grad is not None
    np.testing.assert_allclose(leaf.grad.numpy(), expected, rtol=1e-5, atol=1e-9)


STEPS = [
    lambda: htaf.HTAF(0.5, 5.0, levels=2),
    lambda: htaf.HTAF(0.5, 5.0, levels=3, spacing=0.9, bipolar=True, learnable=True),
    lambda: htaf.ScaledSigmoid(2.0, levels=2),
    lambda: htaf.StraightThrough(levels=2),
]


@pytest.mark.parametrize("make", STEPS)
def test_state_dicts_have_the_same_keys_and_keep_spacing_and_levels(make: Any) -> None:
    smooth: Any = make()
    exact = smooth.hardened()
    assert smooth.state_dict().keys() == exact.state_dict().keys()
    assert (exact.levels, exact.spacing, exact.bipolar) == (smooth.levels, smooth.spacing, smooth.bipolar)
    wide = make()
    wide.spacing = 2.5
    exact.load_state_dict(wide.state_dict())
    assert exact.spacing == 2.5
    other, levels = make(), smooth.levels
    other.levels += 1
    for step in (smooth, exact):
        with pytest.raises(RuntimeError, match=rf"expected levels={levels}, got a state dict with levels={levels + 1}"):
            step.load_state_dict(other.state_dict())
    assert f"levels={smooth.levels}, spacing={smooth.spacing:g}" in repr(smooth)


def network(step: Any) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 32), nn.BatchNorm1d(32), step(), nn.Linear(32, 16), step(), nn.Linear(16, 3))


def test_replace_harden_and_measure() -> None:
    x = torch.randn(200, 6, generator=torch.Generator().manual_seed(1))
    net: Any = htaf.replace(network(nn.ReLU), lambda: htaf.HTAF(1.0, 8.0, levels=2, spacing=0.6), example=x)
    net(x)
    exact: Any = htaf.harden(net.eval())
    seen: list[Tensor] = []
    exact[2].register_forward_hook(lambda m, given, y: seen.append(y))
    exact(x)
    assert set(seen[0].unique().tolist()) == {0.0, 0.5, 1.0}
    assert htaf.replace(exact, lambda: htaf.HTAF(levels=2), where=htaf.Heaviside) is not None
    first = layer_statistics(net, exact, [x])[0]
    z = net[1](net[0](x))
    bits = torch.stack([z >= t for t in thresholds(2, 0.6)]).double()
    assert first.flip_rate == 0
    assert first.firing_rate == pytest.approx(bits.mean().item())
    y = net[2](z)
    near = torch.minimum((2 * y) % 1, 1 - (2 * y) % 1) < 0.01
    assert first.binarity == pytest.approx(near.double().mean().item(), abs=1e-3)
    constant = bits.sum(0).amax(0) == bits.sum(0).amin(0)
    assert first.dead == pytest.approx(constant.double().mean().item())


def test_flips_of_levels_are_counted_by_threshold() -> None:
    smooth: Any = nn.Sequential(nn.Identity(), htaf.HTAF(1.0, 8.0, levels=2, spacing=2.0))
    exact: Any = nn.Sequential(nn.Identity(), htaf.Heaviside(levels=2, spacing=2.0))
    exact[0].register_forward_hook(lambda m, given, y: torch.tensor([[-3.0, 3.0, 0.0, 0.0]]))
    (found,) = layer_statistics(smooth, exact, [torch.tensor([[3.0, 0.0, 0.0, 0.0]])])
    assert found.flip_rate == pytest.approx(3 / 8)  # two thresholds of the first, one of the second
    assert level_of(smooth[1], torch.tensor([-3.0, 0.0, 3.0])).tolist() == [0, 1, 2]


def test_grids_take_levels_whose_shares_float32_holds() -> None:
    x = torch.randn(50, 6)
    net: Any = on_grid(network(lambda: htaf.HTAF(levels=2)), x)
    assert [type(m).__name__ for m in net if hasattr(m, "weight")] == [
        "GridLinear",
        "WideBatchNorm1d",
        "GridLinear",
        "GridLinear",
    ]
    with pytest.raises(ValueError, match="got levels=3"):
        on_grid(network(lambda: htaf.HTAF(levels=3)), x)


def test_places_of_bits_alone_refuse_levels() -> None:
    with pytest.raises(
        ContractError, match=r"spike of a neuron: expected a step with levels=1, got HTAF with levels=2"
    ):
        htaf.IF(htaf.HTAF(levels=2))
    with pytest.raises(ContractError, match=r"concepts of an ICBM: expected a step with levels=1"):
        ICBM(nn.Flatten(), 2, lambda: htaf.HTAF(levels=2), example=torch.zeros(2, 3, 2, 2), concepts=4)


@pytest.mark.parametrize(
    ("given", "message"),
    [({"levels": 0}, "levels must lie in 1 to 127, got 0"), ({"levels": 2.0}, "levels must be an integer, got 2.0"),
     ({"levels": True}, "got True"), ({"levels": 2, "spacing": 0.0}, "spacing")],
)  # fmt: skip
def test_bad_numbers_are_refused(given: dict[str, Any], message: str) -> None:
    for step in (htaf.HTAF, htaf.ScaledSigmoid, htaf.StraightThrough, htaf.Heaviside):
        with pytest.raises((TypeError, ValueError), match=message):
            step(**given)


def test_a_step_from_outside_may_have_levels() -> None:
    class Mine(nn.Module):
        kind, sharpness, bipolar, levels, spacing = "mine", (), False, 2, 1.0

        def forward(self, x: Tensor) -> Tensor:
            return htaf.functional.htaf(x, levels=2, spacing=1.0)

        def hardened(self) -> nn.Module:
            return htaf.Heaviside.of(self)

    assert not lacking(Mine())
    assert htaf.harden(nn.Sequential(Mine())).get_submodule("0").levels == 2
    step: Any = Mine()
    step.levels = 2.5
    assert "levels must be an integer" in lacking(step)
    step.levels, step.spacing = 2, None
    assert "spacing must be a float" in lacking(step)
