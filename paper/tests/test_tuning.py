"""Tuning: pairs that fit the scale of the pre-activations, weights that keep it, gradients that keep theirs."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from closed_form import derivatives
from htaf.core.activations import HTAF, ScaledSigmoid
from htaf.models.mlp import MLP
from htaf.transform.diagnostics import layer_statistics
from htaf_paper.tuning import tune
from htaf_paper.vanishing import GradientNorms

STEPS = [HTAF, ScaledSigmoid, partial(HTAF, bipolar=True)]


def normal(scale: float, rows: int = 200, columns: int = 8) -> torch.Tensor:
    return scale * torch.randn(rows, columns, generator=torch.Generator().manual_seed(0))


@settings(max_examples=12)
@given(scale=st.floats(1e-2, 1e2), step=st.sampled_from(STEPS), binarity=st.floats(0.2, 0.95), gain=st.floats(1.05, 3))
def test_start_and_end_do_what_they_promise(
    scale: float, step: Callable[[], nn.Module], binarity: float, gain: float
) -> None:
    """Figures worked out again from the parameters, through closed forms and `layer_statistics`."""
    torch.manual_seed(0)
    x = normal(scale)
    net, tuning = tune(MLP(8, 1, (8,), step), x, rate=1e-3, binarity=binarity, gain=gain)
    (layer,) = tuning.layers
    block = net.hidden[0]
    z = block.linear(x).detach()  # pyright: ignore[reportCallIssue, reportAttributeAccessIssue]
    assert layer.std == pytest.approx(z.std().item(), rel=1e-4)
    assert all(start <= end for start, end in zip(layer.start, layer.end, strict=True))
    softer = math.prod(layer.start) < 0.999 * math.prod(layer.end)
    assert layer.gain == pytest.approx(gain, rel=1e-3) or not softer
    if len(layer.start) == 2:
        alpha0, alpha1 = layer.start
        assert alpha0 == pytest.approx(math.sqrt(alpha0 * alpha1 / 2 / z.abs().quantile(0.95).item()), rel=1e-4)
        at = [derivatives(v, alpha0, alpha1) for v in z.flatten().tolist()]
        values = torch.tensor([d.value for d in at], dtype=torch.float64)
        slopes = torch.tensor([d.x for d in at], dtype=torch.float64)
        again = z.double().var() * slopes.square().mean() / values.var()
        assert layer.gain == pytest.approx(again.item(), rel=1e-3)
    tuning.sharpen(net, 1.0)
    (measured,) = layer_statistics(net, None, [x])
    assert measured.binarity == pytest.approx(layer.binarity, abs=0.002)
    assert measured.binarity == pytest.approx(binarity, abs=0.003)


@settings(max_examples=8)
@given(
    rate=st.floats(1e-4, 1e-1),
    hidden=st.lists(st.integers(8, 64), min_size=1, max_size=3),
    scale=st.floats(0.1, 10),
)
def test_units_are_centred_and_a_step_of_adam_is_small(rate: float, hidden: list[int], scale: float) -> None:
    torch.manual_seed(0)
    h = normal(scale) + 1
    model = MLP(8, 1, hidden, HTAF)
    before = copy.deepcopy(model.state_dict())
    net, tuning = tune(model, h, rate=rate)
    assert all(torch.equal(before[k], v) for k, v in model.state_dict().items()), "the model itself stays"
    for block, layer in zip(net.hidden, tuning.layers, strict=True):  # pyright: ignore[reportArgumentType]
        z = block.linear(h)
        assert torch.allclose(z.mean(0), torch.zeros(()), atol=2e-4 * layer.std)
        expected = max(1.0, rate * h.abs().sum(1).mean().item() / 0.1)
        assert z.square().mean().sqrt().item() == pytest.approx(expected, rel=1e-3)
        moved = copy.deepcopy(block.linear)  # by the largest step of Adam: every weight of a unit the same way
        with torch.no_grad():
            moved.weight += rate * h.sign().mean(0).sign()
        assert (moved(h) - z).abs().mean() <= 0.1001 * z.square().mean().sqrt()
        h = block.act(z)


def test_gradients_reach_the_first_of_twelve_layers() -> None:
    torch.manual_seed(0)
    x, y = normal(1.0), torch.randn(200, 1)

    def norms(net: nn.Module) -> list[float]:
        with GradientNorms(net) as recorder:
            nn.functional.mse_loss(net(x), y).backward()
            return [g.norm for g in recorder.read().values()]

    plain = MLP(8, 1, (48,) * 12, partial(HTAF, 0.4, 5.0))
    net, _ = tune(plain, x, rate=1e-3)
    assert norms(plain)[0] < 1e-4 * norms(plain)[-1]
    first, *_, last = norms(net)
    assert last / 10 < first < 10 * last


def test_a_batch_that_says_nothing_is_refused() -> None:
    net = MLP(8, 1, (4,), HTAF)
    for batch in (torch.ones(5, 8), normal(1.0)[:1], torch.full((5, 8), math.nan)):
        with pytest.raises(ValueError, match="expected finite pre-activations that vary over the rows"):
            tune(net, batch, rate=1e-3)
