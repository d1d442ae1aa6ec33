"""Tabular regression: a plain MLP on Friedman's first function with interactions and noise; root mean squared error."""

from __future__ import annotations

import torch
from benchmarks.own_models.problem import Activation, Pair, Supervised, error
from torch import Tensor, nn


def network(act: Activation) -> nn.Module:
    return nn.Sequential(
        nn.Linear(12, 128), act(), nn.Linear(128, 128), act(), nn.Linear(128, 128), act(), nn.Linear(128, 1)
    )


def table(count: int, generator: torch.Generator) -> Pair:
    x = torch.rand(count, 12, generator=generator)
    y = 10 * (torch.pi * x[:, 0] * x[:, 1]).sin() + 20 * (x[:, 2] - 0.5).square() + 10 * x[:, 3] + 5 * x[:, 4]
    y = y + 4 * (x[:, 5] > 0.5) * x[:, 6] + torch.randn(count, generator=generator)
    return (x - 0.5) / 0.29, ((y - 14.5) / 5)[:, None]


def rmse(net: nn.Module, x: Tensor, y: Tensor) -> float:
    return error(net, x, y) ** 0.5


def make(seed: int) -> Supervised:
    generator = torch.Generator().manual_seed(12_000 + seed)
    training, validation, test = (table(count, generator) for count in (3000, 1000, 3000))
    return Supervised(
        network, training, validation, test, nn.functional.mse_loss, rmse, "RMSE", "lower",
        epochs=40, batch=64, rate=1e-3, seed=seed,
    )  # fmt: skip
