"""Sharpening: a geometric path that ends exactly, a soft start, and setters that refuse to do nothing."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from htaf.core.activations import HTAF, ScaledSigmoid
from htaf.core.sharpening import Geometric, set_sharpness, soft_start

POSITIVE = st.floats(1e-3, 1e3)


@given(start=POSITIVE, end=POSITIVE, fraction=st.floats(0.05, 1.0), progress=st.floats(0.0, 1.0))
def test_path(start: float, end: float, fraction: float, progress: float) -> None:
    schedule = Geometric((start,), (end,), fraction)
    (value,) = schedule.at(progress)
    assert schedule.at(0.0) == schedule.at(-1.0) == (start,)
    assert schedule.at(2.0) == (end,)
    if progress >= fraction:
        assert value == end  # to the last bit: the stored network must be the one of the recipe
    share = min(progress / fraction, 1.0)
    assert math.log(value) == pytest.approx((1 - share) * math.log(start) + share * math.log(end), abs=1e-9)


@given(end=st.floats(2.1, 1e3), steps=st.lists(st.floats(0.0, 1.0), min_size=2, max_size=8))
def test_monotone(end: float, steps: list[float]) -> None:
    schedule = Geometric((2.0,), (end,), 0.7)
    values = [schedule.at(p)[0] for p in sorted(steps)]
    assert values == sorted(values)
    assert all(2.0 <= v <= end * (1 + 1e-12) for v in values)


@pytest.mark.parametrize(
    ("start", "end", "fraction", "words"),
    [
        ((1.0,), (2.0, 3.0), 0.7, "equally many"),
        ((0.0, 1.0), (2.0, 3.0), 0.7, "> 0"),
        ((1.0, 1.0), (math.inf, 3.0), 0.7, "> 0"),
        ((1.0, math.nan), (1.0, 3.0), 0.7, "> 0"),
        ((1.0,), (2.0,), 0.0, r"fraction must lie in \(0, 1\], got 0"),
        ((1.0,), (2.0,), 1.5, "got 1.5"),
    ],
)
def test_bad_schedules(start: tuple[float, ...], end: tuple[float, ...], fraction: float, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Geometric(start, end, fraction)


def test_soft_start() -> None:
    assert soft_start(2.0, 11.0) == (1.0, 2.0)
    assert soft_start(0.1, 220.0) == pytest.approx((0.05, 40.0))
    assert soft_start(22.0) == (2.0,)
    assert soft_start(1.0, 1.5) == (1.0, 1.5)  # softer than P = 2 already
    assert soft_start(1.5) == (1.5,)


@given(alpha0=st.floats(0.05, 10.0), alpha1=st.floats(0.5, 300.0))
def test_soft_start_has_slope_one_half(alpha0: float, alpha1: float) -> None:
    start = soft_start(alpha0, alpha1)
    if alpha0 * alpha1 <= 2:
        assert start == (alpha0, alpha1)
    else:
        assert math.prod(start) / 4 == pytest.approx(0.5)


def test_set_sharpness_changes_every_module_of_its_kind() -> None:
    model = nn.Sequential(HTAF(1.0, 22.0), nn.Linear(2, 2), HTAF(2.0, 11.0), ScaledSigmoid(5.0))
    assert set_sharpness(model, (0.5, 6.0)) == 2
    assert [m.alphas for m in model if isinstance(m, HTAF)] == [(0.5, 6.0)] * 2
    assert model[3].beta == 5.0
    assert set_sharpness(model, (9.0,)) == 1
    assert model[3].beta == 9.0


def test_set_sharpness_needs_modules_of_its_kind() -> None:
    with pytest.raises(ValueError, match=r"smooth steps of 2 sharpness parameters, got scaled_sigmoid \(beta\)"):
        set_sharpness(nn.Sequential(nn.ReLU(), ScaledSigmoid()), (2.0, 11.0))
    with pytest.raises(ValueError, match=r"smooth steps of 1 sharpness parameters, got htaf \(alpha0, alpha1\)"):
        set_sharpness(nn.Sequential(HTAF()), (22.0,))


@pytest.mark.parametrize("learnable", [False, True])
def test_set_sharpness_leaves_tensors_alone(learnable: bool) -> None:
    module = HTAF(torch.tensor([1.0, 2.0]), torch.tensor([11.0, 11.0]), learnable=learnable)
    with pytest.raises(ValueError, match=r"HTAF.alpha0 must be a float"):
        set_sharpness(nn.Sequential(module), (2.0, 11.0))


def test_nothing_is_set_where_one_value_or_step_is_wrong() -> None:
    held = HTAF(torch.tensor([1.0, 2.0]), torch.tensor([11.0, 11.0]))
    model = nn.Sequential(HTAF(1.0, 22.0), HTAF(1.0, 22.0), held)
    with pytest.raises(ValueError, match="alpha1 must be"):
        set_sharpness(model[:2], (2.0, -1.0))
    with pytest.raises(ValueError, match="must be a float to be sharpened"):
        set_sharpness(model, (2.0, 11.0))
    assert [m.alphas for m in model[:2]] == [(1.0, 22.0)] * 2  # pyright: ignore
