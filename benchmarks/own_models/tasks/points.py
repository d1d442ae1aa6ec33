"""PointNet on clouds of six kinds of bodies, turned and noisy; accuracy."""

from __future__ import annotations

import math

import torch
from benchmarks.own_models.problem import Activation, Pair, Supervised, accuracy
from torch import Tensor, nn

POINTS = 96


class PointNet(nn.Module):
    def __init__(self, act: Activation) -> None:
        super().__init__()
        self.points = nn.Sequential(
            nn.Conv1d(3, 64, 1), nn.BatchNorm1d(64), act(), nn.Conv1d(64, 64, 1), nn.BatchNorm1d(64), act(),
            nn.Conv1d(64, 128, 1), nn.BatchNorm1d(128),
        )  # fmt: skip
        self.head = nn.Sequential(nn.Linear(128, 64), nn.BatchNorm1d(64), act(), nn.Linear(64, 6))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.points(x).amax(2))


def clouds(count: int, generator: torch.Generator) -> Pair:
    def draw(*shape: int) -> Tensor:
        return torch.rand(count, *shape, generator=generator)

    y = torch.randint(0, 6, (count,), generator=generator)
    turn, height = 2 * math.pi * draw(POINTS), 2 * draw(POINTS) - 1
    ring = torch.stack([turn.cos(), turn.sin()], -1)
    round_ = (1 - height.square()).sqrt()[..., None] * ring
    cube = 2 * draw(POINTS, 3) - 1
    side = torch.randint(0, 3, (count, POINTS, 1), generator=generator)
    cube = cube.scatter(2, side, cube.gather(2, side).sign())
    across = (height * math.pi)[..., None]
    bodies = torch.stack(
        [
            torch.cat([round_, height[..., None]], -1),  # ball
            cube,
            torch.cat([ring, height[..., None]], -1),  # tube
            torch.cat([(1 - height)[..., None] / 2 * ring, height[..., None]], -1),  # cone
            torch.cat([(1 + 0.4 * across.cos()) * ring, 0.4 * across.sin()], -1),  # torus
            torch.cat([round_, height[..., None]], -1) * torch.tensor([1.0, 0.6, 0.6]),
        ]
    )
    x = bodies[y, torch.arange(count)] * (0.8 + 0.4 * draw(1, 3))
    x = x + 0.08 * torch.randn(x.shape, generator=generator)
    turned, _ = torch.linalg.qr(torch.randn(count, 3, 3, generator=generator))
    return (x @ turned * (0.8 + 0.4 * draw(1, 1))).transpose(1, 2).contiguous(), y


def make(seed: int) -> Supervised:
    generator = torch.Generator().manual_seed(14_000 + seed)
    training, validation, test = (clouds(count, generator) for count in (2500, 800, 1200))
    return Supervised(
        PointNet, training, validation, test, nn.functional.cross_entropy, accuracy, "accuracy, %", "higher",
        epochs=6, batch=64, rate=2e-3, seed=seed,
    )  # fmt: skip
