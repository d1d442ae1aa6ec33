"""Batch norms and steps as intervals; stacks of layers of any shape."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from packed_nets import packed_beside, settled
from torch import nn

import htaf
from htaf.program.packed.affine import interval
from quick import slow_but

numbers = st.floats(-4, 4, width=32)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(numbers, numbers), min_size=1, max_size=8), st.booleans())
def test_intervals_decide_as_float64_does(maps, integer: bool) -> None:
    scale, shift = torch.tensor(maps, dtype=torch.float64).T
    lower, upper = interval(scale, shift, integer=integer)
    y = torch.arange(-40.0, 41) if integer else torch.linspace(-9, 9, 301)
    z = y.double()[:, None] * scale + shift
    wanted = z >= 0
    got = (lower <= y[:, None]) & (y[:, None] <= upper)
    near = z.abs() < 1e-7 * (1 + y.abs()[:, None]) * (1 + scale.abs())  # where float64 itself cannot tell
    assert torch.equal(got | near, wanted | near)


def test_a_bound_at_an_integer_counts_it() -> None:
    scale = torch.tensor([0.1, -0.1], dtype=torch.float64)
    lower, upper = interval(scale, -3 * scale, integer=True)
    assert (lower[0], upper[1]) == (2.5, 3.5)
    assert torch.isneginf(lower[1])
    lower, upper = interval(torch.zeros(3).double(), torch.tensor([1.0, 0.0, -1.0]).double(), integer=True)
    assert ((lower <= 5) & (upper >= 5)).tolist() == [True, True, False]
    lower, upper = interval(torch.full((1,), torch.nan).double(), torch.zeros(1).double(), integer=False)
    assert not ((lower <= 0) & (upper >= 0)).any()


@pytest.mark.parametrize("seed", slow_but(range(6), 0, 1))
def test_stacks_of_any_shape_agree(seed: int) -> None:
    torch.manual_seed(seed)

    def pick(*choices: int) -> int:
        return choices[int(torch.randint(len(choices), ()))]

    channels, layers = 3, []
    for _ in range(3):
        outputs, bipolar = pick(5, 64, 66), bool(pick(0, 1))
        conv = htaf.BinaryConv2d if pick(0, 1) else nn.Conv2d
        sizes = {"stride": pick(1, 2), "padding": pick(0, 1, 2), "dilation": pick(1, 2), "bias": bool(pick(0, 1))}
        layers += [conv(channels, outputs, pick(1, 3), **sizes), nn.BatchNorm2d(outputs), htaf.HTAF(bipolar=bipolar)]
        channels = outputs
    x = torch.randn(6, 3, 23, 19)
    layers += [nn.Flatten()]
    with torch.no_grad():
        size = nn.Sequential(*layers)(x).shape[1]
    model = nn.Sequential(*layers, nn.Linear(size, 3))
    hard = settled(model, x)
    for norm in hard.modules():
        if isinstance(norm, nn.BatchNorm2d):
            norm.weight.data[:2] = 0  # one bit always
    _, found = packed_beside(hard, x)
    assert found.ok, found
    assert found.count <= 4, found
