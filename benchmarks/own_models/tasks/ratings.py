"""Recommender: ratings of 300 things by 400 people, from embeddings and an MLP; root mean squared error."""

from __future__ import annotations

import torch
from benchmarks.own_models.problem import Activation, Supervised
from benchmarks.own_models.tasks.tabular import rmse
from torch import Tensor, nn

PEOPLE, THINGS, KNOWN = 400, 300, 30_000


class Recommender(nn.Module):
    def __init__(self, act: Activation) -> None:
        super().__init__()
        self.people, self.things = nn.Embedding(PEOPLE, 16), nn.Embedding(THINGS, 16)
        self.both = nn.Sequential(nn.Linear(32, 64), act(), nn.Linear(64, 64), act(), nn.Linear(64, 1))
        self.mild, self.liked = nn.Embedding(PEOPLE, 1), nn.Embedding(THINGS, 1)
        for one in (self.people, self.things):
            nn.init.normal_(one.weight, std=0.1)
        for one in (self.mild, self.liked):
            nn.init.zeros_(one.weight)

    def forward(self, pair: Tensor) -> Tensor:
        who, what = pair.unbind(1)
        taste = self.both(torch.cat([self.people(who), self.things(what)], 1))
        return taste + self.mild(who) + self.liked(what)


def make(seed: int) -> Supervised:
    generator = torch.Generator().manual_seed(15_000 + seed)
    people, things = (torch.randn(count, 4, generator=generator) for count in (PEOPLE, THINGS))
    mild, liked = (0.4 * torch.randn(count, generator=generator) for count in (PEOPLE, THINGS))
    cells = torch.randperm(PEOPLE * THINGS, generator=generator)[:KNOWN]
    who, what = cells // THINGS, cells % THINGS
    score = (people[who] * things[what]).sum(1) / 2 + mild[who] + liked[what]
    score = 2 * torch.tanh((score + 0.3 * torch.randn(KNOWN, generator=generator)) / 1.5)
    pairs = torch.stack([who, what], 1)
    parts = list(zip(pairs.split([22_000, 3000, 5000]), score[:, None].split([22_000, 3000, 5000]), strict=True))
    return Supervised(
        Recommender, *parts, nn.functional.mse_loss, rmse, "RMSE", "lower", epochs=10, batch=128, rate=2e-3, seed=seed
    )
