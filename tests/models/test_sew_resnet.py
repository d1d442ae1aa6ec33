"""SEW-ResNet against its published forward, written out over the state dict, and torchvision's names and sizes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from htaf import StraightThrough, surrogates
from htaf.models.sew_resnet import SEWResNet
from htaf.transform.spiking.neurons import IF

exact_if = partial(IF, StraightThrough(surrogates.atan))


@pytest.mark.parametrize(("depth", "parameters"), [(18, 11_689_512), (34, 21_797_672), (50, 25_557_032)])
def test_sizes_and_names_are_those_of_torchvision(depth: int, parameters: int) -> None:
    import torchvision

    with torch.device("meta"):
        net = SEWResNet(depth, 1000)
        resnet = getattr(torchvision.models, f"resnet{depth}")()
    assert sum(p.numel() for p in net.parameters()) == parameters
    assert [(k, v.shape) for k, v in net.state_dict().items()] == [(k, v.shape) for k, v in resnet.state_dict().items()]


def published(
    w: dict[str, Tensor], x: Tensor, depth: int, steps: int, connect: str, stem: str, fire: Callable[[Tensor], Tensor]
) -> Tensor:
    """The forward of the official ImageNet code in training mode, from a state dict."""

    def norm(name: str, y: Tensor) -> Tensor:  # batch statistics over time and images
        mean, var = y.mean((0, 2, 3), keepdim=True), y.var((0, 2, 3), keepdim=True, unbiased=False)
        scale, shift = w[f"{name}.weight"][:, None, None], w[f"{name}.bias"][:, None, None]
        return (y - mean) / (var + 1e-5).sqrt() * scale + shift

    def site(conv: str, bn: str, y: Tensor, stride: int) -> Tensor:
        t, n = y.shape[:2]
        weight = w[f"{conv}.weight"]
        y = F.conv2d(y.flatten(0, 1), weight, stride=stride, padding=weight.shape[-1] // 2)
        return fire(norm(bn, y).unflatten(0, (t, n)))

    y = norm(
        "bn1", F.conv2d(x, w["conv1.weight"], stride=1 if stem == "cifar" else 2, padding=1 if stem == "cifar" else 3)
    )
    y = fire(torch.stack([y] * steps))
    if stem == "imagenet":
        y = torch.stack([F.max_pool2d(now, 3, 2, 1) for now in y])
    for stage, blocks in enumerate({18: [2, 2, 2, 2], 34: [3, 4, 6, 3], 50: [3, 4, 6, 3]}[depth]):
        for block in range(blocks):
            name, stride = f"layer{stage + 1}.{block}", 2 if stage and not block else 1
            strides = [1, stride, 1] if depth == 50 else [stride, 1]
            out = y
            for i, s in enumerate(strides, 1):
                out = site(f"{name}.conv{i}", f"{name}.bn{i}", out, s)
            identity = y
            if f"{name}.downsample.0.weight" in w:
                identity = site(f"{name}.downsample.0", f"{name}.downsample.1", y, stride)
            y = {"add": out + identity, "and": out * identity, "iand": identity * (1 - out)}[connect]
    return y.mean((3, 4)).mean(0) @ w["fc.weight"].T + w["fc.bias"]


def integrate_and_fire(x: Tensor) -> Tensor:
    v, spikes = torch.zeros_like(x[0]), []
    for now in x:
        v = v + now
        spikes.append((v >= 1).to(x.dtype))
        v = v * (1 - spikes[-1])
    return torch.stack(spikes)


@pytest.mark.parametrize(
    ("depth", "connect", "stem", "steps"),
    [
        (18, "add", "cifar", 4), (18, "and", "imagenet", 2), (18, "iand", "cifar", 3),
        (34, "add", "imagenet", 4), (50, "add", "cifar", 2), (50, "iand", "imagenet", 3),
    ],
)  # fmt: skip
@pytest.mark.parametrize("spiking", [True, False])
def test_the_published_architecture(depth: int, connect: Any, stem: Any, steps: int, spiking: bool) -> None:
    torch.manual_seed(0)
    neuron, fire = (exact_if, integrate_and_fire) if spiking else (nn.ReLU, torch.relu)
    steps = steps if spiking else 1
    net = SEWResNet(depth, 7, neuron, steps=steps, width=4, connect=connect, stem=stem, in_channels=2).double()
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):  # so that neurons fire
            nn.init.uniform_(module.weight, 0.8, 2.0)
            nn.init.uniform_(module.bias, 0.0, 0.6)
    x = torch.randn(3, 2, 32, 40, dtype=torch.float64)
    expected = published(net.state_dict(), x, depth, steps, connect, stem, fire)
    torch.testing.assert_close(net(x), expected)
    assert expected.std() > 1e-3
