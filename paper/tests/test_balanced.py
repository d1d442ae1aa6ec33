"""A ReLU network made spiking: the closed form of one layer, spikingjelly's converter restated, what is refused."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, fx, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from htaf_paper.balanced import BalancedIF, SpikingModel, to_spiking


class Block(nn.Module):
    """A residual block with sums in place."""

    def __init__(self, channels: int, *, inplace: bool) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels)
        self.conv2, self.norm2 = nn.Conv2d(channels, channels, 3, padding=1), nn.BatchNorm2d(channels)
        self.relu1, self.relu2 = nn.ReLU(inplace), nn.ReLU(inplace)

    def forward(self, x: Tensor) -> Tensor:
        out = self.relu1(self.norm1(self.conv1(x)))
        out = self.norm2(self.conv2(out))
        out += x
        return self.relu2(out)


def conv_net(*, inplace: bool = False) -> nn.Sequential:
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(inplace), Block(4, inplace=inplace), nn.AvgPool2d(4)
    )
    net += nn.Sequential(nn.Flatten(), nn.Linear(4 * 2 * 2, 5))
    net.double()
    for _ in range(3):  # running statistics that are not 0 and 1
        net(images(32))
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.uniform_(module.bias, -0.5, 0.5)
    return net.eval()


def images(n: int, seed: int = 1) -> Tensor:
    return torch.randn(n, 2, 8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def layer(threshold: float) -> SpikingModel:
    neuron = BalancedIF()
    neuron.threshold = torch.tensor(threshold, dtype=torch.float64)
    return SpikingModel(neuron).eval()


def converter(model: nn.Module, batches: list[Tensor], mode: str | float, x: Tensor, steps: int) -> Tensor:
    """spikingjelly.activation_based.ann2snn.Converter(momentum=0.1, fuse_flag=True), then the sum over T steps / T."""
    graph = fx.symbolic_trace(copy.deepcopy(model).eval())
    modules = dict(graph.named_modules())
    for node in list(graph.graph.nodes):
        if node.op == "call_module" and isinstance(modules[node.target], nn.BatchNorm2d):
            conv = node.args[0]
            fused = fuse_conv_bn_eval(modules[conv.target], modules[node.target])
            parent, _, name = conv.target.rpartition(".")
            setattr(graph.get_submodule(parent), name, fused)
            node.replace_all_uses_with(conv)
            graph.graph.erase_node(node)
    graph.recompile()
    scale: dict[str, Tensor] = {}

    class Hooked(fx.Interpreter):
        def run_node(self, n: fx.Node) -> Tensor:
            out = super().run_node(n)
            if n.op == "call_module" and isinstance(modules[n.target], nn.ReLU):
                if isinstance(mode, str) and mode.endswith("%"):
                    s = torch.tensor(np.percentile(out.detach().numpy(), float(mode[:-1])))
                else:
                    s = out.max() * (1.0 if mode == "max" else mode)
                scale[n.name] = s.clone() if n.name not in scale else 0.9 * scale[n.name] + 0.1 * s
            return out

    potential: dict[str, Tensor] = {}

    class Spiking(fx.Interpreter):
        def run_node(self, n: fx.Node) -> Tensor:
            if not (n.op == "call_module" and isinstance(modules[n.target], nn.ReLU)):
                return super().run_node(n)
            current = self.fetch_args_kwargs_from_env(n)[0][0] * (1.0 / scale[n.name])
            v = potential.get(n.name, torch.zeros_like(current)) + current
            spike = (v >= 1.0).to(v)
            potential[n.name] = v - spike
            return spike * scale[n.name]

    with torch.no_grad():
        for batch in batches:
            Hooked(graph).run(batch.clone())
        total = sum(Spiking(graph).run(x.clone()) for _ in range(steps))
    assert isinstance(total, Tensor)
    return total / steps


@settings(max_examples=60, deadline=None)
@given(x=st.lists(st.floats(-3, 3), min_size=1, max_size=6), s=st.floats(0.1, 4), steps=st.integers(1, 60))
def test_one_layer_is_a_clipped_relu_to_within_s_over_t(x: list[float], s: float, steps: int) -> None:
    at = torch.tensor([x], dtype=torch.float64)
    error = at.clamp(0, s) - layer(s)(at, steps)
    reached = (at <= 0) | (at >= s)  # a neuron below rest may owe, one above s may keep more than s
    assert (error[~reached] > -1e-9).all()
    assert (error[~reached] < s / steps + 1e-9).all()
    assert (error[reached].abs() <= 1e-9).all()


@pytest.mark.parametrize(("mode", "inplace"), [("max", True), ("80%", False), (0.7, True)])
def test_numbers_of_spikingjelly(mode: str | float, inplace: bool) -> None:
    net, batches, x = conv_net(inplace=inplace), [images(6, seed) for seed in range(4)], images(5, 99)
    how: Any = {"mode": "percentile", "percentile": 80} if mode == "80%" else {"mode": mode}
    spiking, given = to_spiking(net, batches, **how), x.clone()
    for _ in range(2):  # every run begins at rest
        for t, mean in spiking.run(x, (1, 2, 7, 40)):
            torch.testing.assert_close(mean, converter(net, batches, mode, x, t), rtol=0, atol=1e-9)
    assert torch.equal(x, given)


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.relu = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.relu(self.relu(x) - 1)


@pytest.mark.parametrize("last", [nn.Tanh(), nn.MaxPool2d(2), nn.Threshold(9.0, 0.0), Twice()])
def test_what_is_not_affine_is_refused(last: nn.Module) -> None:
    net = nn.Sequential(nn.Conv2d(2, 3, 3), nn.ReLU(), last)
    with pytest.raises(ValueError, match="affine"):
        to_spiking(net, [images(3).float()])


def test_a_dead_activation_has_no_threshold() -> None:
    with pytest.raises(ValueError, match="> 0"):
        to_spiking(nn.Sequential(nn.Identity(), nn.ReLU()), [-torch.ones(2, 3)])
