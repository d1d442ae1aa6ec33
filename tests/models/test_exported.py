"""Hardened networks as exported programs with a dynamic batch: equal to the network, one operator a step or neuron."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor, nn

from htaf import HTAF, IF, LIF, Heaviside, harden
from htaf.models.bireal import BiRealNet
from htaf.models.build import backbone
from htaf.models.icbm import ICBM
from htaf.models.mlp import MLP
from htaf.models.sew_resnet import SEWResNet
from htaf.models.wide_resnet import WideResNet
from quick import slow_but

IMAGES = torch.randn(4, 3, 16, 16, generator=torch.Generator().manual_seed(1))
ROWS = torch.randn(4, 5, generator=torch.Generator().manual_seed(2))
PLAIN = {"kind": "wide_resnet", "depth": 10, "width": 1, "dropout": 0.0}

# name -> (network, steps in it, operator of a step)
FAMILIES: dict[str, tuple[Callable[[], nn.Module], int, str]] = {
    "mlp": (partial(MLP, 5, 3, (8, 8), batch_norm=True), 2, "heaviside"),
    "wide resnet": (partial(WideResNet, 10, 1, 3), 7, "heaviside"),
    "bireal": (partial(BiRealNet, 18, 3, width=4), 16, "heaviside"),
    "sew resnet": (partial(SEWResNet, 18, 3, IF, width=4, stem="cifar"), 20, "spikes"),
    "sew resnet, and": (partial(SEWResNet, 18, 3, partial(IF, reset="soft"), width=4, connect="and"), 20, "spikes"),
    "sew resnet, leaky": (partial(SEWResNet, 18, 3, LIF, width=4, connect="iand"), 20, "spikes"),
    "icbm": (lambda: ICBM(backbone(PLAIN, 3, (16, 16)), 3, HTAF, example=IMAGES, concepts=9), 1, "heaviside"),
}


def made(family: str) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    net, x = FAMILIES[family][0](), ROWS if family == "mlp" else IMAGES
    with torch.no_grad():
        for _ in range(3):
            net.train()(x + torch.randn_like(x))
    return harden(net).eval(), x


def check(family: str, *, strict: bool = False, layout: torch.memory_format = torch.contiguous_format) -> None:
    net, x = made(family)
    if x.ndim == 4:
        net, x = net.to(memory_format=layout), x.to(memory_format=layout)  # pyright: ignore[reportCallIssue]
    program = torch.export.export(net, (x,), dynamic_shapes=({0: torch.export.Dim("n")},), strict=strict)
    called = Counter(str(node.target) for node in program.graph.nodes if node.op == "call_function")
    _, steps, operator = FAMILIES[family]
    binary_weights = 16 if family == "bireal" else 0  # the sign of a weight is an operator too
    ours = {name: n for name, n in called.items() if name.startswith("htaf.")}
    assert ours == {f"htaf.{operator}.default": steps + binary_weights}
    for n in (1, 2, 7):
        batch = torch.randn(n, *x.shape[1:])
        assert torch.equal(program.module()(batch), net(batch))


@pytest.mark.parametrize("family", slow_but(FAMILIES, "mlp", "wide resnet", "sew resnet, leaky", "icbm"))
def test_a_dynamic_batch(family: str) -> None:
    check(family)


@pytest.mark.parametrize("family", slow_but(["sew resnet", "sew resnet, leaky"], "sew resnet"))
def test_channels_last(family: str) -> None:
    check(family, layout=torch.channels_last)


class Neurons(nn.Module):
    def __init__(self, *neurons: nn.Module) -> None:
        super().__init__()
        self.neurons = nn.ModuleList(neurons)

    def forward(self, x: Tensor) -> list[Tensor]:
        return [neuron(x) for neuron in self.neurons]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_every_kind_of_neuron(dtype: torch.dtype) -> None:
    steps = [Heaviside() for _ in range(5)]
    net = Neurons(
        IF(steps[0]), IF(steps[1], threshold=0.3, reset="soft"), LIF(steps[2], tau=3.0, detach_reset=False),
        LIF(steps[3], decay_input=False, exact_reset=True), IF(steps[4]),
    )  # fmt: skip
    x = torch.randn(6, 50, generator=torch.Generator().manual_seed(0)).to(dtype)
    x[2, 3], x[3, 4], x[0, 5] = torch.nan, torch.inf, 1.0
    program = torch.export.export(net, (x,), dynamic_shapes=({1: torch.export.Dim("n")},))
    assert len([n for n in program.graph.nodes if n.target is torch.ops.htaf.spikes.default]) == 5
    for found, neuron in zip(program.module()(x), net.neurons, strict=True):
        torch.testing.assert_close(found, neuron(x), rtol=0, atol=0, equal_nan=True)
        assert set(found[~found.isnan()].unique().tolist()) == {0.0, 1.0}


def test_gradients_are_those_of_the_neuron() -> None:
    x, grad = torch.randn(4, 9, requires_grad=True), torch.randn(4, 9)
    neuron = LIF(Heaviside(), tau=4.0)
    spikes = torch.ops.htaf.spikes(x, *neuron.weights, neuron.threshold, False)
    found, expected = (torch.autograd.grad(y, x, grad)[0] for y in (spikes, neuron(x)))
    assert torch.equal(found, expected)
    assert not found.any()
    with torch.no_grad():
        x[-1, 2] = torch.nan
    (found,) = torch.autograd.grad(torch.ops.htaf.spikes(x, 1.0, 1.0, 1.0, True), x, grad)
    assert found[-1, 2] == grad[-1, 2]  # so that a NaN stays one


def test_vmap_and_bad_shapes() -> None:
    x = torch.randn(3, 5, 4)
    neuron = IF(Heaviside())
    over = torch.vmap(lambda part: torch.ops.htaf.spikes(part, 1.0, 1.0, 1.0, False), in_dims=2, out_dims=2)
    assert torch.equal(over(x), neuron(x))
    for empty in (torch.zeros(0, 3), torch.zeros(())):
        with pytest.raises(ValueError, match=r"x must be \[T, \.\.\.\] with T >= 1 time steps"):
            torch.ops.htaf.spikes(empty, 1.0, 1.0, 1.0, False)
