"""Bounds of the gap between a smooth network and its exact one, and ReLU networks copied within a bound."""

from __future__ import annotations

import itertools
import math
import warnings
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import htaf
from htaf.core.activations import HTAF
from htaf.models.mlp import MLP
from htaf_paper import bounds, gap_bound, networks
from htaf_paper.expressivity import ReluCopy, as_module, copy_relu
from htaf_paper.gap_bound import GapBound, dhn_gap_bound


def network(hidden: tuple[int, ...], seed: int = 0, pair: tuple[float, float] = (2.0, 11.0), norm: bool = False) -> MLP:
    torch.manual_seed(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = MLP(4, 2, hidden, partial(htaf.HTAF, *pair), batch_norm=norm)
    if norm:
        model.train()
        model(3 * torch.randn(200, 4) + 1)
        for module in model.modules():
            if isinstance(module, nn.BatchNorm1d):
                nn.init.normal_(module.weight)
                nn.init.normal_(module.bias)
    return model.eval()


def rows(seed: int = 1, count: int = 500) -> Tensor:
    return 3 * torch.randn(count, 4, generator=torch.Generator().manual_seed(seed))


@settings(max_examples=30)
@given(
    st.sampled_from([(6,), (5, 4), (4, 3, 5)]),
    st.integers(0, 10**6),
    st.sampled_from(bounds.PAPER_PAIRS),
    st.booleans(),
    st.floats(0.1, 20),
)
def test_every_bound_holds(
    hidden: tuple[int, ...], seed: int, pair: tuple[float, float], norm: bool, scale: float
) -> None:
    model, x = network(hidden, seed, pair, norm), scale * rows(seed, 200)
    found = dhn_gap_bound(model, x)
    double = network(hidden, seed, pair, norm).double()
    with torch.no_grad():
        gap = (htaf.harden(double)(x.double()) - double(x.double())).abs().mean(0)
    slack = 1 + 1e-9
    for output in range(2):
        assert found.measured[output] == pytest.approx(gap[output].item(), rel=1e-9, abs=1e-12)
        assert found.measured[output] <= found.triangle[output] * slack + 1e-12
        assert found.triangle[output] <= found.certified[output] * slack + 1e-12
        if found.by_neuron is not None and found.paper is not None:
            assert found.certified[output] == pytest.approx(found.triangle[output], rel=1e-9)
            assert found.certified[output] <= found.by_neuron[output] * slack <= found.paper[output] * slack**2
    assert (found.paper is None) == (found.by_neuron is None) == (len(hidden) > 1)
    for layer in found.layers:
        assert layer.flipped <= layer.undecided <= 1
    assert found.layers[0].undecided == 0
    assert all(layer.eps == pytest.approx(bounds.achieved_eps(*pair), rel=1e-9) for layer in found.layers)


def test_one_hidden_layer_spelled_out() -> None:
    model, x = network((6,)), rows()
    found = dhn_gap_bound(model, x)
    with torch.no_grad():
        h = model.hidden[0].linear.double()(x.double())  # pyright: ignore[reportAttributeAccessIssue, reportCallIssue]
        weight = model.head.weight.double()
    distance = ((h >= 0).double() - torch.sigmoid(11 * torch.tanh(2 * h))).abs()
    eps = bounds.achieved_eps(2.0, 11.0)
    near = (h.abs() < eps).double().mean(0)
    density = near.max().item() / eps
    assert found.layers[0].density == pytest.approx(density)
    assert found.layers[0].difference == pytest.approx(distance.mean().item())
    for output, w in enumerate(weight):
        assert found.triangle[output] == pytest.approx((w.abs() @ distance.mean(0)).item())
        assert found.by_neuron is not None
        assert found.by_neuron[output] == pytest.approx((w.abs() @ (eps + near / 2)).item())
        assert found.paper is not None
        largest = w.abs().max().item()
        assert found.paper[output] == pytest.approx(bounds.network_error_bound(6, largest, density, eps))


def test_two_hidden_layers_spelled_out() -> None:
    """Row by row, with plain floats."""
    model, x = network((3, 2), seed=3, pair=(1.0, 5.0), norm=True).double(), rows(count=60).double()
    found = dhn_gap_bound(model, x)
    total = torch.zeros(2, dtype=torch.float64)
    open_bits = 0
    with torch.no_grad():
        for row in x:
            h = model.hidden[0][:-1](row[None])[0]  # pyright: ignore[reportIndexIssue]
            y = torch.sigmoid(5 * torch.tanh(h))
            d = [abs(float(a >= 0) - float(b)) for a, b in zip(h, y, strict=True)]
            linear, norm, act = model.hidden[1]  # pyright: ignore[reportGeneralTypeIssues]
            second = norm(linear(y[None]))[0]
            result = []
            for j in range(2):
                factor = abs(float(norm.weight[j])) / math.sqrt(float(norm.running_var[j]) + norm.eps)
                r = factor * sum(abs(float(w)) * v for w, v in zip(linear.weight[j], d, strict=True))
                value, s = float(second[j]), float(act(second[None])[0, j])
                open_bits += r > abs(value)
                result.append(max(s, 1 - s) if r > abs(value) else abs(float(value >= 0) - s))
            total += model.head.weight.abs() @ torch.tensor(result, dtype=torch.float64)
    assert found.certified == pytest.approx((total / len(x)).tolist(), rel=1e-9)
    assert found.layers[1].undecided == pytest.approx(open_bits / (2 * len(x)))
    assert 0 < open_bits < 2 * len(x)


def test_the_model_and_its_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = network((5, 4)), rows()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    found = dhn_gap_bound(model.train(), x)
    assert model.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not any(module._forward_pre_hooks for module in model.modules())
    monkeypatch.setattr(gap_bound, "ROWS", 33)

    def numbers(bound: GapBound) -> list[float]:
        return [*bound.measured, *bound.triangle, *bound.certified, *(layer.undecided for layer in bound.layers)]

    assert numbers(dhn_gap_bound(model, x)) == pytest.approx(numbers(found), rel=1e-9)


def test_what_may_stand_around_the_layers() -> None:
    torch.manual_seed(0)
    thermometer = MLP(4, 1, (6,), partial(htaf.HTAF, 2.0, 11.0), thresholds=(1, 2, 0, 1), dropout=0.5)
    assert dhn_gap_bound(thermometer, rows()).paper is not None
    image = nn.Sequential(nn.Flatten(), nn.Linear(12, 5), htaf.ScaledSigmoid(22.0), nn.Linear(5, 3))
    found = dhn_gap_bound(image, torch.randn(50, 3, 2, 2))
    assert len(found.measured) == 3
    eps = found.layers[0].eps
    assert 1 / (1 + math.exp(-22 * eps)) == pytest.approx(1 - eps)
    tail = nn.Sequential(nn.Linear(4, 5), htaf.HTAF(2.0, 11.0), nn.Linear(5, 3), nn.Linear(3, 1))
    found = dhn_gap_bound(tail, rows())
    assert found.paper is None
    assert found.by_neuron is not None
    assert found.measured[0] <= found.certified[0] <= found.by_neuron[0]


class Shortcut(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.act = nn.Linear(4, 4), htaf.HTAF(2.0, 11.0)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.act(self.linear(x))


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (nn.Sequential(nn.Linear(4, 2)), "^expected a smooth step in Sequential, got none that runs$"),
        (nn.Sequential(htaf.HTAF(2.0, 11.0)), "^expected a Linear layer in Sequential, got none that runs$"),
        (nn.Sequential(htaf.HTAF(2.0, 11.0), nn.Linear(4, 2)), "got HTAF at 0$"),
        (nn.Sequential(nn.Linear(4, 2), htaf.HTAF(2.0, 11.0, bipolar=True)), "got bipolar HTAF at 1$"),
        (nn.Sequential(nn.Linear(4, 2), nn.ReLU(), htaf.HTAF(2.0, 11.0)), "got ReLU at 1$"),
        (Shortcut(), "^expected a chain of layers, got Shortcut, which does more than its layers$"),
    ],
    ids=["no step", "no linear", "step first", "bipolar", "relu", "shortcut"],
)
def test_other_networks_are_refused(model: nn.Module, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        dhn_gap_bound(model, rows())


def test_rows_are_wanted() -> None:
    with pytest.raises(ValueError, match=r"^expected rows of finite numbers, got none$"):
        dhn_gap_bound(network((3,)), torch.zeros(0, 4))
    with pytest.raises(ValueError, match=r"^expected rows of finite numbers, got others$"):
        dhn_gap_bound(network((3,)), torch.full((2, 4), float("nan")))


# ---- ReLU networks copied ----


def relu_network(sizes: tuple[int, ...], seed: int, bias: bool = True) -> nn.Sequential:
    torch.manual_seed(seed)
    layers = [m for a, b in itertools.pairwise(sizes) for m in (nn.Linear(a, b, bias=bias), nn.ReLU())]
    return nn.Sequential(*layers[:-1])


def measured(copy: ReluCopy, network: nn.Sequential, radius: float, seed: int) -> torch.Tensor:
    """Largest error by output, over random inputs, corners and points near the first layer's kinks."""
    inputs = network[0].in_features
    assert isinstance(inputs, int)
    generator = torch.Generator().manual_seed(seed)
    x = radius * (2 * torch.rand(3000, inputs, generator=generator, dtype=torch.float64) - 1)
    corners = radius * torch.randint(0, 2, (200, inputs), generator=generator).double().mul(2).sub(1)
    line = torch.linspace(-radius, radius, 2001, dtype=torch.float64)[:, None].expand(-1, inputs)
    x = torch.cat([x, corners, line, x / 100])
    with torch.no_grad():
        return (copy.network(x) - network.double()(x)).abs().amax(0)


@settings(max_examples=25)
@given(
    st.sampled_from([(1, 4, 1), (3, 6, 2), (2, 5, 4, 1), (2, 3, 3, 3, 2)]),
    st.integers(0, 10**6),
    st.floats(1e-4, 0.5),
    st.floats(0.1, 10),
    st.floats(0.05, 20),
    st.floats(0.2, 200),
)
def test_a_relu_network_is_copied(
    sizes: tuple[int, ...], seed: int, eps: float, radius: float, alpha0: float, alpha1: float
) -> None:
    network = relu_network(sizes, seed, bias=seed % 4 != 0)
    copy = copy_relu(network, eps, radius=radius, alpha0=alpha0, alpha1=alpha1)
    found = measured(copy, network, radius, seed)
    assert max(copy.error) <= eps
    assert (found <= torch.tensor(copy.error, dtype=torch.float64) + eps * copy.rounding / copy.share).all()
    hidden = [m.out_features for m in copy.network if isinstance(m, nn.Linear)][:-1]
    steps = [m for m in copy.network if isinstance(m, HTAF)]
    assert hidden == [times * n for n in sizes[1:-1] for times in (2, 3)]  # depth 2 L, width at most 3 N
    assert {(m.alpha0, m.alpha1) for m in steps} == {(alpha0, alpha1)}
    assert copy.largest == max(float(p.detach().abs().max()) for p in copy.network.parameters())


def test_outside_the_radius_the_copy_is_bounded() -> None:
    copy = copy_relu(nn.Sequential(nn.Linear(1, 1), nn.ReLU(), nn.Linear(1, 1)), 0.1)
    with torch.no_grad():
        first, second = copy.network(torch.tensor([[1e6], [1e9]], dtype=torch.float64))
    assert torch.isfinite(first).all()
    assert first == second


def test_an_affine_network_and_a_dead_neuron_are_copied_too() -> None:
    affine = nn.Sequential(nn.Linear(2, 3))
    copy = copy_relu(affine, 0.1)
    assert copy.error == (0.0, 0.0, 0.0)
    assert measured(copy, affine, 1.0, 0).max() == 0
    dead = relu_network((2, 3, 1), 0)
    with torch.no_grad():
        for parameter in dead[0].parameters():
            parameter[1] = 0
    assert measured(copy_relu(dead, 0.01), dead, 1.0, 0).item() <= 0.01


def test_networks_of_closed_form_as_modules() -> None:
    x = torch.linspace(-1, 1, 21, dtype=torch.float64)[:, None]
    for network in (networks.square_network(2.0, 11.0, 30.0), networks.square_network(0.3, 0.5, 30.0, "central")):
        expected = torch.tensor([network(v) for v in x[:, 0].tolist()], dtype=torch.float64)
        with torch.no_grad():
            assert torch.allclose(as_module(network)(x)[:, 0], expected, rtol=0, atol=1e-10)
    product = networks.product_network(2.0, 11.0, 30.0)
    pairs = torch.rand(100, 2, dtype=torch.float64) * 2 - 1
    with torch.no_grad():
        assert ((as_module(product)(pairs)[:, 0] - pairs.prod(1)).abs() <= product.error).all()
        assert as_module(product, torch.float32)(pairs.float()).dtype == torch.float32


@pytest.mark.parametrize(
    "network",
    [
        nn.Sequential(),
        nn.Sequential(nn.ReLU()),
        nn.Sequential(nn.Linear(2, 2), nn.ReLU()),
        nn.Sequential(nn.Linear(2, 2), nn.Tanh(), nn.Linear(2, 2)),
        nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 2)),
    ],
    ids=["empty", "no linear", "ends with relu", "tanh", "linear thrice"],
)
def test_other_networks_are_not_copied(network: nn.Sequential) -> None:
    with pytest.raises(ValueError, match=r"^expected Linear and ReLU in turn, a Linear first and last, got "):
        copy_relu(network, 0.1)


@pytest.mark.parametrize("bad", [0.0, -1.0, float("nan"), float("inf")])
def test_numbers_out_of_range_are_refused(bad: float) -> None:
    network = relu_network((1, 2, 1), 0)
    with pytest.raises(ValueError, match=f"^eps must be > 0 and finite, got {bad}$"):
        copy_relu(network, bad)
    with pytest.raises(ValueError, match=f"^radius must be > 0 and finite, got {bad}$"):
        copy_relu(network, 0.1, radius=bad)
    with pytest.raises(ValueError, match=f"^alpha0 must be > 0 and finite, got {bad}$"):
        copy_relu(network, 0.1, alpha0=bad)
