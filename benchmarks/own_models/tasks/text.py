"""Convolutions over words on synthetic reviews: praise and blame, turned round by a "not" before it; accuracy."""

from __future__ import annotations

import torch
from benchmarks.own_models.problem import Activation, Pair, Supervised, accuracy
from torch import Tensor, nn

WORDS, LENGTH = 200, 24  # word 0 is "not"; 1 to 30 praise, 31 to 60 blame


class Text(nn.Module):
    def __init__(self, act: Activation, width: int = 64) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, 32)
        self.body = nn.Sequential(
            nn.Conv1d(32, width, 3, padding=1), act(), nn.Conv1d(width, width, 3, padding=1), act()
        )
        self.hidden, self.act, self.head = nn.Linear(width, 64), act(), nn.Linear(64, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.act(self.hidden(self.body(self.words(x).transpose(1, 2)).mean(2))))


def reviews(count: int, generator: torch.Generator) -> Pair:
    x = torch.randint(61, WORDS, (count, LENGTH), generator=generator)
    told = torch.rand(count, LENGTH, generator=generator) < 0.4
    x = torch.where(told, torch.randint(1, 61, x.shape, generator=generator), x)
    x = torch.where(torch.rand(x.shape, generator=generator) < 0.15, 0, x)
    mood = ((x >= 1) & (x <= 30)).float() - ((x >= 31) & (x <= 60)).float()
    turned = torch.cat([torch.zeros(count, 1), (x[:, :-1] == 0).float()], 1)
    total = (mood * (1 - 2 * turned)).sum(1) + 0.3 * torch.randn(count, generator=generator)
    return x, (total > 0).long()


def make(seed: int) -> Supervised:
    generator = torch.Generator().manual_seed(9000 + seed)
    training, validation, test = (reviews(count, generator) for count in (5000, 1000, 3000))
    return Supervised(
        Text, training, validation, test, nn.functional.cross_entropy, accuracy, "accuracy, %", "higher",
        epochs=8, batch=64, rate=2e-3, seed=seed,
    )  # fmt: skip
