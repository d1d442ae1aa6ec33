"""ReLU networks and products copied by HTAF networks: the bound beside the measured error."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from htaf.activations import HTAF
from htaf_paper import networks
from htaf_paper.expressivity import ReluCopy, as_module, copy_relu


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


def test_a_smaller_error_down_to_the_rounding_of_float64() -> None:
    network = relu_network((3, 16, 16, 1), 0).double()
    found = {}
    for eps in (1e-1, 1e-3, 1e-5, 1e-9):
        copy = copy_relu(network, eps)
        found[eps] = measured(copy, network, 1.0, 1).item()
        assert copy.rounding / copy.share < 0.1 or eps == 1e-9
    assert found[1e-1] > 50 * found[1e-3] > 2500 * found[1e-5]
    assert all(eps / 100 < found[eps] <= eps for eps in (1e-1, 1e-3, 1e-5))
    assert found[1e-9] > 1e-8, "weights of 1e14 cancel: float64 has nothing left to say"


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
def test_other_networks_are_refused(network: nn.Sequential) -> None:
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
