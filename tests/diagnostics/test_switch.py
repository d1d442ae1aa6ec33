"""What each layer's switch costs: scores of networks that are exact in part, spelled out by hand."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import Tensor, nn

from htaf.activations import HTAF
from htaf.convert import harden
from htaf.diagnostics import GradientNorms, layer_statistics, switch_profile
from htaf.functional import heaviside, htaf
from htaf.models.mlp import MLP
from htaf.spiking.neurons import IF


def batches(regression: bool = False) -> list[tuple[Tensor, Tensor]]:
    draws = torch.Generator().manual_seed(0)
    x = torch.randn(60, 4, generator=draws)
    y = torch.randn(60, 1, generator=draws) if regression else torch.randint(0, 3, (60,), generator=draws)
    return [(x[:40], y[:40]), (x[40:], y[40:])]


def network(**options: bool) -> MLP:
    torch.manual_seed(0)
    return MLP(4, 3, (7, 6, 5), partial(HTAF, 1.0, 5.0), **options)


def test_networks_exact_in_part() -> None:
    net, data = network(), batches()
    profile = switch_profile(net, data)
    x, y = (torch.cat(parts) for parts in zip(*data, strict=True))

    def loss(exact: tuple[int, ...]) -> float:
        h = x
        for i, block in enumerate(net.hidden):
            z = block.linear(h)  # pyright: ignore[reportAttributeAccessIssue, reportCallIssue]
            h = heaviside(z) if i in exact else htaf(z, 1.0, 5.0)
        return nn.functional.cross_entropy(net.head(h), y).item()

    assert [layer.path for layer in profile.layers] == ["hidden.0.act", "hidden.1.act", "hidden.2.act"]
    assert [layer.up_to["loss"] for layer in profile.layers] == pytest.approx(
        [loss((0,)), loss((0, 1)), loss((0, 1, 2))]
    )
    assert [layer.only["loss"] for layer in profile.layers] == pytest.approx([loss((0,)), loss((1,)), loss((2,))])
    assert profile.smooth["loss"] == pytest.approx(loss(()))
    assert profile.exact == profile.layers[-1].up_to
    assert profile.smooth["accuracy"] == (net(x).argmax(1) == y).double().mean().item()


def test_statistics_and_gradients_are_those_of_the_diagnostics() -> None:
    net, data = network(batch_norm=True), batches(regression=True)
    net.head = nn.Linear(5, 1)
    net.hidden[0].requires_grad_(False)  # frozen layers have a gradient at their outputs too
    net.train()
    before = {k: v.clone() for k, v in net.state_dict().items()}
    profile = switch_profile(net, data)
    assert net.training
    assert all(torch.equal(before[k], v) for k, v in net.state_dict().items())
    assert not any(p.requires_grad for p in net.hidden[0].parameters())
    assert all(p.grad is None for p in net.parameters())
    expected = layer_statistics(net, harden(net), [x for x, _ in data])
    for layer, other in zip(profile.layers, expected, strict=True):
        assert (layer.path, layer.std, layer.binarity, layer.flip_rate) == (
            other.path,
            other.std,
            other.binarity,
            other.flip_rate,
        )
    net.requires_grad_(True).eval()
    norms = []
    with GradientNorms(net) as recorder:
        for x, y in data:
            nn.functional.mse_loss(net(x), y).backward()
            norms.append([g.norm for g in recorder.read().values()])
    mean = [sum(values) / 2 for values in zip(*norms, strict=True)]
    assert [layer.gradient for layer in profile.layers] == pytest.approx(mean, rel=1e-5)
    assert "accuracy" not in profile.smooth


def test_shared_steps_neurons_and_one_step_alone() -> None:
    torch.manual_seed(0)
    shared = HTAF(1.0, 5.0)
    net = nn.Sequential(nn.Linear(4, 6), shared, nn.Linear(6, 6), shared, nn.Linear(6, 3))
    profile = switch_profile(net, batches())
    assert [layer.path for layer in profile.layers] == ["1"]  # one module, exact at both places
    x, y = batches()[0]
    assert profile.exact["loss"] != profile.smooth["loss"]
    assert switch_profile(net, [(x, y)]).exact["loss"] == pytest.approx(
        nn.functional.cross_entropy(harden(net.eval())(x), y).item()
    )

    class Spiking(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.neuron, self.head = nn.Linear(4, 6), IF(HTAF(1.0, 5.0)), nn.Linear(6, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.neuron(self.first(x).expand(4, -1, -1)).mean(0))

    assert [layer.path for layer in switch_profile(Spiking(), batches()).layers] == ["neuron.spike"]


def test_own_scores_and_errors() -> None:
    profile = switch_profile(network(), batches(), score=lambda outputs, y: {"rows": float(len(y)), "none": None})
    assert profile.layers[0].only == {"rows": 60.0, "none": None}
    for net in (nn.Sequential(nn.Linear(4, 3)), nn.Sequential(nn.Linear(4, 3), nn.ReLU())):
        with pytest.raises(ValueError, match="at least one batch and one smooth step that runs, found none"):
            switch_profile(net, batches())
    with pytest.raises(ValueError, match="at least one batch"):
        switch_profile(network(), [])
