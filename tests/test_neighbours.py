"""SpikingJelly's neurons exchanged in place.

The library itself runs in benchmarks/peers/spiking; here stand the equations of SpikingJelly.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from htaf import HTAF, IF, LIF
from htaf.transform.spiking import from_spikingjelly


class BaseNode(nn.Module):
    """SpikingJelly 2.0's equations of its multi-step neurons from rest (activation_based/functional/neuron.py)."""

    def __init__(
        self, v_threshold: float = 1.0, v_reset: float | None = 0.0, tau: float = 2.0, decay_input: bool = True,
        step_mode: str = "s", detach_reset: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        self.v_threshold, self.v_reset, self.tau, self.decay_input = v_threshold, v_reset, tau, decay_input
        self.step_mode, self.detach_reset = step_mode, detach_reset

    def forward(self, x: Tensor) -> Tensor:
        v, spikes = torch.zeros_like(x[0]), []
        for now in x:
            v = self.charge(now, v)
            spike = (v - self.v_threshold >= 0).to(x)
            v = v - spike * self.v_threshold if self.v_reset is None else (1.0 - spike) * v
            spikes.append(spike)
        return torch.stack(spikes)

    def charge(self, x: Tensor, v: Tensor) -> Tensor:
        tau = self.tau
        return v + (x - v) / tau if self.decay_input else v * (1.0 - 1.0 / tau) + x


class LIFNode(BaseNode):
    pass


class ParametricLIFNode(BaseNode):
    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.w = nn.Parameter(torch.tensor(-1.0986123))  # sigmoid is 1 / 4
        self.tau = 4.0


class IFNode(BaseNode):
    def charge(self, x: Tensor, v: Tensor) -> Tensor:
        return v + x


class IzhikevichNode(BaseNode):
    pass


THEIRS = (IFNode, LIFNode, ParametricLIFNode, IzhikevichNode)


@pytest.fixture
def _spikingjelly(monkeypatch: pytest.MonkeyPatch) -> None:
    """The stand-ins where SpikingJelly has its own."""
    for kind in THEIRS:
        monkeypatch.setattr(kind, "__module__", "spikingjelly.activation_based.neuron")


@pytest.mark.usefixtures("_spikingjelly")
@pytest.mark.parametrize("v_reset", [0.0, None])
@pytest.mark.parametrize(
    "node", [IFNode, LIFNode, partial(LIFNode, tau=4.0, decay_input=False), ParametricLIFNode], ids=str
)
def test_neurons_of_spikingjelly(node: Callable[..., nn.Module], v_reset: float | None) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 8), node(v_threshold=0.5, v_reset=v_reset, step_mode="m")).eval()
    net[0].weight.data = torch.randint(-4, 5, (8, 6)) / 8
    x = torch.randint(-4, 9, (6, 50, 6)) / 4
    ours = from_spikingjelly(net)
    assert isinstance(net[1], BaseNode), "the model is not changed"
    assert isinstance(ours[1], IF if node is IFNode else LIF)
    with torch.no_grad():
        expected = net(x)
        assert torch.equal(ours(x), expected)
    assert 0.05 < expected.mean() < 0.95
    assert isinstance(from_spikingjelly(net[1]), (IF, LIF)), "a neuron alone"
    for detach in (False, True):
        net[1].detach_reset = detach
        assert from_spikingjelly(net)[1].detach_reset == detach
    assert type(from_spikingjelly(net, HTAF)[1].spike) is HTAF


@pytest.mark.usefixtures("_spikingjelly")
def test_neurons_that_are_not_taken() -> None:
    class Own(LIFNode):
        pass

    shared = IFNode(step_mode="m")
    for net, message in (
        (nn.Sequential(IFNode(step_mode="m"), Own(step_mode="m")), "1: expected an IFNode, LIFNode or .*, got Own"),
        (nn.Sequential(shared, shared), "1: expected its own neuron, got that of 0, which"),
        (IFNode(), r'the model: expected step_mode "m", got "s": functional.set_step_mode'),
        (IFNode(v_reset=0.5, step_mode="m"), "v_reset=0 or None"),
        (nn.Sequential(IzhikevichNode(step_mode="m")), "0: expected an IFNode, LIFNode or .*, got IzhikevichNode"),
        (nn.Linear(2, 2), "expected neurons of SpikingJelly in Linear, got none"),
    ):
        with pytest.raises(ValueError, match=message):
            from_spikingjelly(net)
