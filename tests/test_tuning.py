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
from htaf import surrogates
from htaf.activations import HTAF, ScaledSigmoid, StraightThrough, sharpen
from htaf.convert import replace
from htaf.diagnostics import GradientNorms, layer_statistics
from htaf.models.mlp import MLP
from htaf.sharpening import set_sharpness
from htaf.spiking.neurons import IF
from htaf.tuning import tune

STEPS = [HTAF, ScaledSigmoid, partial(HTAF, bipolar=True)]


def normal(scale: float, rows: int = 200, columns: int = 8) -> torch.Tensor:
    return scale * torch.randn(rows, columns, generator=torch.Generator().manual_seed(0))


@settings(max_examples=12)
@given(scale=st.floats(1e-2, 1e2), step=st.sampled_from(STEPS), binarity=st.floats(0.2, 0.95), gain=st.floats(1.05, 3))
def test_start_and_end_do_what_they_promise(
    scale: float, step: Callable[[], nn.Module], binarity: float, gain: float
) -> None:
    """Figures worked out again from the parameters, through closed forms and `layer_statistics`."""
    x = normal(scale)
    net, tuning = tune(nn.Sequential(step()), x, binarity=binarity, gain=gain)
    (layer,) = tuning.layers
    assert isinstance(net, nn.Sequential)
    assert not layer.initialised
    assert layer.std == pytest.approx(x.std().item(), rel=1e-5)
    assert all(start <= end for start, end in zip(layer.start, layer.end, strict=True))
    softer = math.prod(layer.start) < 0.999 * math.prod(layer.end)
    assert layer.gain == pytest.approx(gain, rel=1e-3) or not softer
    if isinstance(net[0], HTAF):
        alpha0, alpha1 = layer.start
        assert alpha0 == pytest.approx(math.sqrt(alpha0 * alpha1 / 2 / x.abs().quantile(0.95).item()), rel=1e-6)
        at = [derivatives(v, alpha0, alpha1) for v in x.flatten().tolist()]
        values = torch.tensor([d.value for d in at], dtype=torch.float64)
        slopes = torch.tensor([d.x for d in at], dtype=torch.float64)
        again = x.double().var() * slopes.square().mean() / values.var()
        assert layer.gain == pytest.approx(again.item(), rel=1e-3)
        alive = (slopes >= 0.01 * alpha0 * alpha1 / 4).double().mean().item()
        assert layer.alive == pytest.approx(alive, abs=0.002)
    schedule = tuning.schedule(0.5)
    assert schedule is not None
    set_sharpness(net, schedule.at(1.0))
    (measured,) = layer_statistics(net, None, [x])
    assert measured.binarity == pytest.approx(layer.binarity, abs=0.002)
    assert measured.binarity == pytest.approx(binarity, abs=0.003)


@settings(max_examples=12)
@given(mean=st.floats(-1, 1), end=st.sampled_from([(0.1, 220.0), (2.0, 11.0), (0.5, 2.0), (5.0, 4.4)]))
def test_no_curve_has_a_gain_below_one_on_normal_inputs(mean: float, end: tuple[float, float]) -> None:
    """Var h <= Var(x) E[h'^2], the inequality of Poincare and Chernoff: so gain = 1 is what a line has."""
    grid = torch.linspace(-8, 8, 2001, dtype=torch.float64)
    weights = torch.exp(-grid.square() / 2)
    weights /= weights.sum()
    at = [derivatives(v + mean, *end) for v in grid.tolist()]
    h = torch.tensor([d.value for d in at], dtype=torch.float64)
    slope = torch.tensor([d.x for d in at], dtype=torch.float64)
    variance = (weights * (h - (weights * h).sum()).square()).sum()
    assert (weights * slope.square()).sum() >= variance * (1 - 1e-6)


@settings(max_examples=8)
@given(
    rate=st.one_of(st.none(), st.floats(1e-4, 1e-1)),
    hidden=st.lists(st.integers(8, 64), min_size=1, max_size=3),
    scale=st.floats(0.1, 10),
)
def test_units_are_centred_and_a_step_of_adam_is_small(rate: float | None, hidden: list[int], scale: float) -> None:
    torch.manual_seed(0)
    x = normal(scale) + 1
    net, tuning = tune(MLP(8, 1, hidden, HTAF), x, rate=rate)
    h = x
    for block, layer in zip(net.hidden, tuning.layers, strict=True):  # pyright: ignore[reportArgumentType]
        z = block.linear(h)
        assert torch.allclose(z.mean(0), torch.zeros(()), atol=2e-4 * layer.std)
        expected = max(1.0, (rate or 0) * h.abs().sum(1).mean().item() / 0.1)
        assert layer.initialised
        assert z.square().mean().sqrt().item() == pytest.approx(expected, rel=1e-3)
        before, moved = z, copy.deepcopy(block.linear)
        if rate is not None:  # the largest step of Adam: every weight of a unit the same way
            with torch.no_grad():
                moved.weight += rate * h.sign().mean(0).sign()
            assert (moved(h) - before).abs().mean() <= 0.1001 * z.square().mean().sqrt()
        h = block.act(z)


def test_gradients_reach_the_first_of_twelve_layers() -> None:
    """Measured by GradientNorms on a loss of its own, in units of each layer's scale."""
    torch.manual_seed(0)
    x, y = normal(1.0), torch.randn(200, 1)

    def norms(net: nn.Module) -> list[float]:
        with GradientNorms(net) as recorder:
            nn.functional.mse_loss(net(x), y).backward()
            return [g.norm for g in recorder.read().values()]

    plain = MLP(8, 1, (48,) * 12, partial(HTAF, 0.4, 5.0))
    net, tuning = tune(plain, x)
    assert norms(plain)[0] < 1e-4 * norms(plain)[-1]
    first, *_, last = norms(net)
    assert last / 10 < first < 10 * last
    reported = [layer.gradient for layer in tuning.layers]
    assert reported[-1] / 10 < reported[0] < 10 * reported[-1]
    assert all(layer.alive > 0.9 for layer in tuning.layers)


def test_the_model_is_not_changed_and_statistics_are_kept() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(2, 6, 3, bias=False), nn.BatchNorm2d(6), HTAF(), nn.Conv2d(6, 4, 3), HTAF())
    model = nn.Sequential(*model, nn.Dropout(), nn.Flatten(), nn.Linear(4 * 16, 3))
    model[0].weight.requires_grad_(False)  # pyright: ignore[reportArgumentType, reportCallIssue]
    before = copy.deepcopy(model.state_dict())
    x = torch.randn(32, 2, 8, 8)
    torch.manual_seed(1)
    net, tuning = tune(model, x)
    assert isinstance(net, nn.Sequential)
    drawn = torch.rand(1)
    torch.manual_seed(1)
    assert torch.equal(drawn, torch.rand(1))  # dropout drew nothing that others see
    assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())
    assert all(torch.equal(before[k], v) for k, v in net.state_dict().items() if "running" in k or "num" in k)
    assert torch.equal(net.state_dict()["0.weight"], before["0.weight"])  # a norm stands between
    assert [layer.initialised for layer in tuning.layers] == [False, True]
    assert (net.training, net[1].training) == (True, True)
    assert [p.requires_grad for p in net.parameters()][:2] == [False, True]
    assert all(p.grad is None for p in net.parameters())
    h = net.eval()[:3].train()(x)  # with the norms of the batch
    z = net[3](h)
    assert torch.allclose(z.mean((0, 2, 3)), torch.zeros(4), atol=1e-4)
    assert z.std().item() == pytest.approx(1, rel=0.01)
    kept, _ = tune(model, x, init=False)
    assert all(torch.equal(before[k], v) for k, v in kept.state_dict().items())


def test_layers_that_keep_their_weights() -> None:
    """Frozen ones, one used twice (after its first use), one to whose output a shortcut is added in place."""
    torch.manual_seed(0)

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.frozen, self.twice, self.short = (
                nn.Linear(8, 8).requires_grad_(False),
                nn.Linear(8, 8),
                nn.Linear(8, 8),
            )
            self.acts = nn.ModuleList(HTAF() for _ in range(4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            h = self.acts[1](self.twice(self.acts[0](self.frozen(x))))
            h = self.acts[2](self.twice(h))
            z = self.short(h)
            z += h
            return self.acts[3](z)

    model = Net()
    net, tuning = tune(model, normal(1.0))
    assert [layer.initialised for layer in tuning.layers] == [False, True, False, False]
    changed = [k for k, v in net.state_dict().items() if not torch.equal(v, model.state_dict()[k])]
    assert changed == ["twice.weight", "twice.bias"]
    assert tuning.layers[1].std == pytest.approx(1, rel=0.01)


def test_straight_through_gets_a_width() -> None:
    torch.manual_seed(0)
    for slope in (surrogates.sigmoid, surrogates.rectangular):
        net, tuning = tune(MLP(8, 1, (32, 32), partial(StraightThrough, slope)), normal(1.0), rate=0.01)
        assert tuning.schedule() is None
        assert [layer.gain for layer in tuning.layers] == [pytest.approx(1.2, rel=0.05)] * 2
        assert "width" in str(tuning)
        for block, layer in zip(net.hidden, tuning.layers, strict=True):  # pyright: ignore[reportArgumentType]
            assert layer.width is not None
            assert block.act.width == layer.width


def test_what_a_training_left_of_the_width_does_not_count() -> None:
    net, x = nn.Sequential(nn.Linear(4, 8), StraightThrough(), nn.Linear(8, 1)), torch.randn(200, 4)
    wanted, _ = tune(net, x, init=False)
    sharpen(net, 0.0)
    found, _ = tune(net, x, init=False)
    assert found.get_submodule("1").width == wanted.get_submodule("1").width
    assert found.get_submodule("1").stretch == 1


def test_neurons_and_own_steps() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 16), IF(HTAF()), nn.Linear(16, 2))
    _, tuning = tune(net, torch.randn(4, 32, 8))
    (layer,) = tuning.layers
    assert (layer.path, layer.initialised) == ("1.spike", False)  # the neuron stands between
    assert layer.binarity == pytest.approx(0.8, abs=0.1)


@pytest.mark.parametrize(
    ("model", "options", "words"),
    [
        (lambda: nn.Sequential(nn.ReLU()), {}, "expected a smooth step that runs in Sequential, got none"),
        (lambda: nn.Sequential(HTAF()), {"gain": 1.0}, r"expected gain > 1, .* got 1.0"),
        (lambda: nn.Sequential(HTAF()), {"binarity": 1.0}, "binarity"),
        (lambda: nn.Sequential(HTAF()), {"rate": -1.0}, "rate > 0"),
        (lambda: nn.Sequential(HTAF(learnable=True)), {}, r"0: expected .* got HTAF with 2 parameters, 0 of them"),
    ],
)
def test_what_cannot_be_tuned(model: Callable[[], nn.Module], options: dict[str, float], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        tune(model(), normal(1.0), **options)  # pyright: ignore[reportArgumentType]


def dead() -> nn.Module:
    net = nn.Sequential(nn.Linear(8, 16), HTAF())
    nn.init.zeros_(net[0].weight)  # pyright: ignore[reportArgumentType]
    nn.init.zeros_(net[0].bias)  # pyright: ignore[reportArgumentType]
    return net


def layers() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), HTAF(), nn.Linear(16, 16), HTAF())


VARY = "expected finite pre-activations that vary over the rows, got"


@pytest.mark.parametrize(
    ("model", "batch", "words"),
    [
        (lambda: nn.Sequential(HTAF()), torch.ones(5, 3), f"0: {VARY} the same in all 5 rows"),
        (lambda: nn.Sequential(nn.Linear(8, 16), HTAF()), torch.ones(5, 8), f"1: {VARY} the same in all 5 rows"),
        (lambda: nn.Sequential(nn.Conv2d(2, 4, 3), HTAF()), torch.zeros(5, 2, 6, 6), f"1: {VARY} the same in all"),
        (lambda: nn.Sequential(HTAF()), torch.zeros(5, 3), f"0: {VARY} zeros alone"),
        (dead, normal(1.0), f"1: {VARY} zeros alone: the layer in front, or its inputs, are all 0"),
        (lambda: nn.Sequential(HTAF()), torch.full((5, 3), math.nan), f"0: {VARY} some that are NaN or infinite"),
        (layers, normal(1.0)[:1], r"expected a batch of many rows, some hundred, got one of shape \(1, 8\)"),
        (lambda: nn.Sequential(nn.Flatten(), HTAF()), torch.randn(1, 2, 3), f"1: {VARY} a single row"),
        (lambda: nn.Sequential(HTAF()), torch.ones(0, 3), f"0: {VARY} none"),
    ],
)
def test_a_batch_that_says_nothing(model: Callable[[], nn.Module], batch: torch.Tensor, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        tune(model(), batch)


def test_one_image_has_many_places() -> None:
    torch.manual_seed(0)
    assert tune(nn.Sequential(nn.Conv2d(2, 4, 3), HTAF()), torch.randn(1, 2, 9, 9))[1].layers[0].initialised
    steps = torch.randn(1, 50, 8).expand(4, -1, -1)  # a constant current, the same at each time step
    assert tune(nn.Sequential(nn.Linear(8, 16), HTAF()), steps)[1].layers[0].initialised


def test_the_first_call_of_a_step_decides() -> None:
    class Twice(nn.Module):
        def __init__(self, factor: float) -> None:
            super().__init__()
            self.layer, self.act, self.factor = nn.Linear(8, 16), HTAF(2.0, 11.0), factor

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            now = self.layer(x)
            return self.act(now) + self.act(self.factor * now)

    torch.manual_seed(0)
    net, x = Twice(1.0), torch.randn(200, 8)
    once = tune(net, x)[1].layers[0]
    net.factor = 50.0
    twice = tune(net, x)[1].layers[0]
    assert (twice.start, twice.end) == (once.start, once.end)


def test_a_binarity_that_cannot_be_reached_is_refused() -> None:
    x = normal(1.0)
    x[:, :4] = 0.0
    with pytest.raises(ValueError, match=r"0: expected .* share of 0.8 .* got 0.5 .* \(50% are exactly 0\)"):
        tune(nn.Sequential(HTAF()), x)
    assert tune(nn.Sequential(HTAF()), x, binarity=0.4)[1].layers[0].binarity == pytest.approx(0.4, abs=0.003)


def test_the_steps_of_replace_keep_their_least_width() -> None:
    x = normal(1.0)
    net = replace(MLP(8, 1, (32, 32), nn.ReLU), example=x)
    assert all(layer.width == 1 for layer in tune(net, x)[1].layers)
