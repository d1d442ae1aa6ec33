"""Forecasting: 12 hours from the 48 before, of series with seasons, drifts and bursts, by an MLP; squared error."""

from __future__ import annotations

import math

import torch
from benchmarks.own_models.problem import Activation, Pair, Supervised, error
from torch import nn

PAST, FUTURE = 48, 12


def network(act: Activation) -> nn.Module:
    layers: list[nn.Module] = []
    for i in range(4):
        layers += [nn.Linear(96 if i else PAST, 96), act()]
    return nn.Sequential(*layers, nn.Linear(96, FUTURE))


def series(count: int, generator: torch.Generator) -> Pair:
    def draw(low: float, high: float) -> torch.Tensor:
        return low + (high - low) * torch.rand(count, 1, generator=generator)

    t = torch.arange(PAST + FUTURE).float()
    day = draw(0.5, 1.5) * torch.sin(2 * math.pi * (t / 24 + draw(0, 1)))
    half = draw(0, 0.8) * torch.sin(2 * math.pi * (t / 12 + draw(0, 1)))
    drift = draw(-0.02, 0.02) * t
    strong = 1 + draw(0, 0.5) * torch.sign(torch.sin(2 * math.pi * (t / 36 + draw(0, 1))))
    noise = torch.randn(count, PAST + FUTURE, generator=generator)
    for i in range(1, PAST + FUTURE):
        noise[:, i] = 0.7 * noise[:, i - 1] + 0.5 * noise[:, i]
    x = strong * (day + half) + drift + 0.3 * noise
    return x[:, :PAST], x[:, PAST:]


def make(seed: int) -> Supervised:
    generator = torch.Generator().manual_seed(10_000 + seed)
    training, validation, test = (series(count, generator) for count in (6000, 1500, 3000))
    return Supervised(
        network, training, validation, test, nn.functional.mse_loss, error, "MSE", "lower",
        epochs=25, batch=64, rate=1e-3, seed=seed,
    )  # fmt: skip
