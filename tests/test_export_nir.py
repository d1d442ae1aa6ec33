"""NIR graphs of hardened spiking networks: read back, stepped through time by an interpreter, compared with PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from htaf import HTAF, IF, LIF, Heaviside, harden
from htaf.models.sew_resnet import SEWResNet
from htaf.program.export import ExportError, to_nir
from quick import slow_but

nir = pytest.importorskip("nir")


class Simulator:
    """The equations of nir 1.0's docstrings by Euler's method; knows nothing of htaf."""

    def __init__(self, path: Path) -> None:
        self.graph = nir.read(path)
        self.dt, self.steps = (float(self.graph.metadata[k]) for k in ("dt", "steps"))
        self.before: dict[str, list[str]] = {name: [] for name in self.graph.nodes}
        for a, b in self.graph.edges:
            self.before[b].append(a)

    def __call__(self, x: Tensor) -> Tensor:
        self.v: dict[str, Tensor] = {}
        outputs = []
        for _ in range(int(self.steps)):
            self.now: dict[str, Tensor] = {}
            outputs.append(self.of(self.graph.outputs and next(iter(self.graph.outputs)), x))
        return torch.stack(outputs).mean(0)

    def of(self, name: str, x: Tensor) -> Tensor:
        if name not in self.now:
            node = self.graph.nodes[name]
            value = x if isinstance(node, nir.Input) else sum(self.of(b, x) for b in self.before[name])
            self.now[name] = self.node(name, node, value)
        return self.now[name]

    def node(self, name: str, node: Any, x: Any) -> Tensor:
        def tensor(value: Any) -> Tensor:
            return torch.as_tensor(np.asarray(value))

        def pair(value: Any) -> tuple[int, ...]:
            return tuple(int(v) for v in np.atleast_1d(value))

        match node:
            case nir.Input() | nir.Output():
                return x
            case nir.Conv2d():
                places = {k: pair(getattr(node, k)) for k in ("stride", "padding", "dilation")}
                return F.conv2d(x, tensor(node.weight), tensor(node.bias), **places, groups=int(node.groups))
            case nir.Affine():
                return F.linear(x, tensor(node.weight), tensor(node.bias))
            case nir.Linear():
                return F.linear(x, tensor(node.weight))
            case nir.Scale():
                return x * tensor(node.scale)
            case nir.AvgPool2d():
                return F.avg_pool2d(x, pair(node.kernel_size), pair(node.stride), pair(node.padding))
            case nir.Flatten():
                start = int(node.start_dim)
                return x.flatten(start + 1 if start >= 0 else start)
            case nir.IF() | nir.LIF():
                v = self.v.get(name, torch.zeros_like(x))
                if isinstance(node, nir.IF):
                    v = v + self.dt * tensor(node.r) * x
                else:
                    v = v + self.dt / tensor(node.tau) * (tensor(node.v_leak) - v + tensor(node.r) * x)
                z = v > tensor(node.v_threshold)
                self.v[name] = torch.where(z, tensor(node.v_reset), v)
                return z.float()
        raise AssertionError(f"unknown node {node}")


def images(rows: int = 30) -> Tensor:
    from sklearn.datasets import load_digits

    x = torch.tensor(load_digits().images, dtype=torch.float32)[:, None]
    return ((x - x.mean()) / x.std())[:rows]


def dyadic(net: nn.Module) -> nn.Module:
    """Multiples of small powers of two in place of all weights, so that no sum is rounded in any order."""
    for module in net.modules():
        if isinstance(module, (nn.Conv2d, nn.Linear)):
            module.weight.data = torch.randint(-2, 3, module.weight.shape) / 4
            if module.bias is not None:
                module.bias.data = torch.randint(-2, 3, module.bias.shape) / 4
        elif isinstance(module, nn.BatchNorm2d):
            module.eps, size = 0.0, module.weight.shape
            module.running_mean = torch.randint(-1, 2, size) / 4
            module.running_var = 4.0 ** torch.randint(0, 2, size)
            module.weight.data, module.bias.data = 2.0 ** torch.randint(-1, 2, size), torch.randint(-1, 4, size) / 4
    return harden(net).eval()


NEURONS: dict[str, Any] = {
    "if": IF,
    "if, threshold": partial(IF, threshold=0.75),
    "lif": partial(LIF, tau=2.0),
    "lif, whole input": partial(LIF, tau=4.0, decay_input=False),
}


PAIRS = [*zip(NEURONS, (2.0**-13, 1.0, 2.0**-13, 1.0), strict=True)]


@pytest.mark.parametrize(("neuron", "dt"), slow_but(PAIRS, PAIRS[1], PAIRS[2], rows=True))
def test_sew_resnets_exactly(neuron: str, dt: float, tmp_path: Path) -> None:
    torch.manual_seed(0)
    x = images().mul(4).round() / 4
    net = dyadic(SEWResNet(18, 10, NEURONS[neuron], width=4, stem="cifar", in_channels=1))
    to_nir(net, x[:2], tmp_path / "net.nir", dt=dt)
    simulator = Simulator(tmp_path / "net.nir")
    assert (simulator.dt, simulator.steps) == (dt, 4)
    kinds = [type(node).__name__ for node in simulator.graph.nodes.values()]
    assert kinds.count("IF" if neuron.startswith("if") else "LIF") == 20
    assert kinds.count("Conv2d") == 20, "batch norms are in the convolutions"
    with torch.no_grad():
        found, expected = simulator(x), net(x)
    assert torch.equal(found, expected)
    assert len(expected.unique(dim=0)) > 20, "a network that says the same of every image compares nothing"


class Exact(nn.Module):
    """All that can be written, of small whole numbers, so that nothing is rounded."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 4, 3, stride=2, padding=1)
        self.same = nn.Conv2d(4, 4, 3, padding="same", dilation=2)
        self.norm, self.norm1 = nn.BatchNorm2d(4), nn.BatchNorm1d(6)
        self.first, self.second = IF(Heaviside()), LIF(Heaviside(), tau=2.0, decay_input=False)
        self.pool, self.drop = nn.AvgPool2d(2), nn.Dropout(0.5)
        self.hidden, self.head = nn.Linear(16, 6), nn.Linear(6, 3, bias=False)
        for parameter in self.parameters():
            parameter.data = torch.randint(-2, 3, parameter.shape).float()
        for norm in (self.norm, self.norm1):
            norm.eps, norm.running_var, norm.weight.data = 0.0, torch.full_like(norm.weight, 4.0), 2 * norm.weight.data

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x)
        spikes = self.first(x.expand(3, *x.shape))
        y = self.same(spikes.flatten(0, 1)) + spikes.flatten(0, 1)
        y = self.norm(y + y)
        y = self.second(y.unflatten(0, (3, -1)))
        y = self.pool((y + spikes).flatten(0, 1) * 4.0)
        y = self.norm1(self.hidden(self.drop(y).flatten(1)))
        return self.head(y).unflatten(0, (3, -1)).mean(0)


@pytest.mark.parametrize("seed", range(2))
def test_every_layer_exactly(seed: int, tmp_path: Path) -> None:
    torch.manual_seed(seed)
    net, x = Exact().eval(), torch.randint(-3, 4, (20, 2, 8, 8)).float()
    to_nir(net, x[:2], tmp_path / "net.nir", dt=1.0)
    with torch.no_grad():
        expected = net(x)
        torch.testing.assert_close(Simulator(tmp_path / "net.nir")(x), expected, rtol=0, atol=1e-6)
    assert expected.unique().numel() > 3


@pytest.mark.parametrize("threshold", [1.0, 0.1, 0.3, 1e-30])
def test_a_potential_at_the_threshold_fires(threshold: float, tmp_path: Path) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.neuron = IF(Heaviside(), threshold=threshold)

        def forward(self, x: Tensor) -> Tensor:
            return self.neuron(x.expand(1, *x.shape)).mean(0)

    at = torch.tensor(threshold)
    around = [at, torch.nextafter(at, torch.tensor(-1.0)), torch.nextafter(at, torch.tensor(2.0))]
    x = torch.stack(around)[None].expand(2, 3).contiguous()
    net = Net().eval()
    to_nir(net, x, tmp_path / "net.nir", dt=1.0)
    assert torch.equal(Simulator(tmp_path / "net.nir")(x), net(x))


class Calls(nn.Module):
    """A function of a convolution, a batch norm and an exact step."""

    def __init__(self, call: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__()
        self.call = call
        self.conv, self.norm, self.step, self.fire = nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), Heaviside(), IF(Heaviside())
        self.norm.running_mean, self.norm.weight.data = torch.tensor([1.0, -1.0]), torch.tensor([2.0, -1.0])
        self.batch, self.grouped = nn.BatchNorm2d(2, track_running_stats=False), nn.Conv2d(2, 2, 1, groups=2)

    def forward(self, x: Tensor) -> Tensor:
        return self.call(self, x)


def in_place(net: Any, x: Tensor) -> Tensor:
    y = net.conv(x)
    return y.contiguous().add_(net.norm(y)) + y


def reread(net: Any, x: Tensor) -> Tensor:
    y = net.conv(x)
    return net.norm(y.contiguous()) + y


def added(net: Any, x: Tensor) -> Tensor:
    y = net.norm(net.conv(x))
    return y + y


def repeated(net: Any, x: Tensor) -> Tensor:
    y = net.fire(net.conv(x).expand(3, *(x.shape[0], 2, 6, 6)))
    return net.norm(y.flatten(0, 1)).view(3, -1, 2, 6, 6).mean((0, 3, 4))


@pytest.mark.parametrize("call", [reread, repeated, in_place, added])
def test_layers_that_are_read_twice_keep_their_weights(call: Any, tmp_path: Path) -> None:
    torch.manual_seed(0)
    net, x = Calls(call).eval(), images(7)
    to_nir(net, x[:2], tmp_path / "net.nir", dt=1.0)
    with torch.no_grad():
        torch.testing.assert_close(Simulator(tmp_path / "net.nir")(x), net(x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda net, x: net.batch(net.conv(x)), "batch_norm"),
        (lambda net, x: F.dropout(net.conv(x), 0.5, training=True), "dropout"),
        (lambda net, x: net.grouped(net.conv(x)), "without groups, got .*2 groups"),
        (lambda net, x: net.conv(x).transpose(2, 3), "transpose"),
        (lambda net, x: net.conv(x).view(-1, 2, 4, 9), "reshape"),
        (lambda net, x: net.conv(x).view(-1, 6, 12), "reshape"),
        (lambda net, x: net.conv(x) * x.shape[0], "products with constants"),
        (lambda net, x: net.conv(x) * net.conv(x), "products with constants"),
        (lambda net, x: net.conv(x).chunk(2, 1)[0], "chunk|split"),
        (lambda net, x: F.avg_pool2d(net.conv(x), 3, padding=1), "other borders"),
        (lambda net, x: F.adaptive_avg_pool2d(net.conv(x), 4), "adaptive_avg_pool2d"),
        (lambda net, x: net.conv(x).mean(0), "pixels or time"),
        (lambda net, x: net.conv(x).mean(1), "pixels or time"),
        (lambda net, x: net.conv(x).double().mean((2, 3)), "exactly, got"),
        (lambda net, x: net.fire(x.expand(2, *x.shape)), "averaged over time"),
        (lambda net, x: net.fire(net.conv(x).unsqueeze(0).expand(2, -1, -1, -1, -1).flip(0)).mean(0), "exactly, got"),
        (
            lambda net, x: net.fire(x.expand(2, *x.shape)).mean(0) + net.fire(x.expand(3, *x.shape)).mean(0),
            "time steps",
        ),
        (lambda net, x: net.conv(x) + torch.ones(6, 6), "one with a constant"),
        (lambda net, x: 1.0 / net.conv(x), "exactly|inverse"),
        (lambda net, x: net.conv(x).add(net.conv(x), alpha=2), "exactly, got"),
    ],
)
def test_what_would_not_be_exact(call: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=f"cannot be written as NIR: .*({message})"):
        to_nir(Calls(call).eval(), images(2), tmp_path / "net.nir")
    assert list(tmp_path.iterdir()) == []


def test_smooth_networks_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="expected a hardened model"):
        to_nir(SEWResNet(18, 3, IF, width=4, in_channels=1), images(2), tmp_path / "net.nir")
    with pytest.raises(ExportError, match="dt must be > 0"):
        to_nir(nn.Linear(3, 2), torch.zeros(2, 3), tmp_path / "net.nir", dt=0.0)


@pytest.mark.parametrize(
    ("net", "message"),
    [
        (partial(SEWResNet, 18, 3, width=4, in_channels=1, connect="and", stem="cifar"), "products with constants"),
        (partial(SEWResNet, 18, 3, width=4, in_channels=1, connect="iand", stem="cifar"), "products with constants"),
        (partial(SEWResNet, 18, 3, width=4, in_channels=1), "max_pool2d"),
        (partial(SEWResNet, 18, 3, partial(IF, reset="soft"), width=4, in_channels=1, stem="cifar"), "hard reset"),
        (lambda: nn.Sequential(nn.ReLU(), nn.Conv2d(1, 2, 3), HTAF()), "relu"),
        (lambda: nn.Sequential(nn.Conv2d(1, 2, (3, 1)), HTAF()), "square kernels"),
        (lambda: nn.Sequential(nn.Conv2d(1, 2, 3), HTAF(bipolar=True)), "heaviside"),
    ],
)
def test_what_nir_cannot_say(net: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=f"cannot be written as NIR: .*{message}"):
        to_nir(harden(net()).eval(), images(2), tmp_path / "net.nir")
    assert list(tmp_path.iterdir()) == []
