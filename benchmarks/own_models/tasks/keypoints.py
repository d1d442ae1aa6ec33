"""Keypoints: where a blob and a ring lie in a noisy picture, by convolutions that end in a sigmoid; mean distance."""

from __future__ import annotations

import torch
from benchmarks.own_models.problem import Activation, Pair, Supervised
from torch import Tensor, nn

SIZE = 28


def network(act: Activation) -> nn.Module:
    layers: list[nn.Module] = []
    for inputs, outputs, size, stride in ((1, 16, 5, 2), (16, 32, 3, 2), (32, 32, 3, 1)):
        layers += [nn.Conv2d(inputs, outputs, size, stride, size // 2), nn.BatchNorm2d(outputs), act()]
    flat = [nn.Flatten(), nn.Linear(32 * 49, 64), nn.BatchNorm1d(64), act()]
    return nn.Sequential(*layers, *flat, nn.Linear(64, 4), nn.Sigmoid())


def pictures(count: int, generator: torch.Generator) -> Pair:
    at = torch.arange(SIZE) + 0.5
    middle = 4 + 20 * torch.rand(count, 4, 1, generator=generator)
    blob = (at - middle[:, 0])[:, None].square() + (at - middle[:, 1])[:, :, None].square()
    ring = (at - middle[:, 2])[:, None].square() + (at - middle[:, 3])[:, :, None].square()
    x = (-blob / 5).exp() + (-(ring.sqrt() - 3).square()).exp()
    x = x + 0.25 * torch.randn(x.shape, generator=generator)
    return x[:, None], middle[:, :, 0] / SIZE


def distance(net: nn.Module, x: Tensor, y: Tensor) -> float:
    return SIZE * (net(x) - y).unflatten(1, (2, 2)).norm(dim=2).mean().item()


def make(seed: int) -> Supervised:
    generator = torch.Generator().manual_seed(16_000 + seed)
    training, validation, test = (pictures(count, generator) for count in (3000, 800, 1200))
    return Supervised(
        network, training, validation, test, nn.functional.mse_loss, distance, "distance, px", "lower",
        epochs=8, batch=64, rate=2e-3, seed=seed,
    )  # fmt: skip
