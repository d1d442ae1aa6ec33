"""Temporal convolutions with batch norm on synthetic waves: six shapes in noise; accuracy."""

from __future__ import annotations

import math

import torch
from benchmarks.own_models.problem import Activation, Pair, Supervised, accuracy
from torch import Tensor, nn


class Waves(nn.Module):
    def __init__(self, act: Activation, width: int = 32) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for i, dilation in enumerate((1, 2, 4, 8)):
            layers += [
                nn.Conv1d(width if i else 1, width, 5, padding=2 * dilation, dilation=dilation, bias=False),
                nn.BatchNorm1d(width),
                act(),
            ]
        self.body, self.head = nn.Sequential(*layers), nn.Linear(width, 6)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x).mean(2))


def waves(count: int, generator: torch.Generator) -> Pair:
    y = torch.randint(0, 6, (count,), generator=generator)

    def draw(low: float, high: float) -> Tensor:
        return low + (high - low) * torch.rand(count, 1, generator=generator)

    t = torch.linspace(0, 1, 96)
    phase = draw(2, 6) * t + draw(0, 1)
    share = phase % 1
    kinds = torch.stack(
        [
            torch.sin(2 * math.pi * phase),
            torch.sign(share - 0.5),
            2 * share - 1,
            4 * (share - 0.5).abs() - 1,
            torch.sin(2 * math.pi * phase * (1 + t)),
            torch.sin(2 * math.pi * phase) * (1 + torch.sin(2 * math.pi * draw(1, 3) * t)) / 2,
        ]
    )
    x = draw(0.5, 2) * kinds[y, torch.arange(count)] + 0.5 * torch.randn(count, 96, generator=generator)
    return x[:, None], y


def make(seed: int) -> Supervised:
    generator = torch.Generator().manual_seed(1000 + seed)
    training, validation, test = (waves(count, generator) for count in (2000, 1000, 3000))
    return Supervised(
        Waves, training, validation, test, nn.functional.cross_entropy, accuracy, "accuracy, %", "higher",
        epochs=15, batch=64, rate=2e-3, seed=seed,
    )  # fmt: skip
