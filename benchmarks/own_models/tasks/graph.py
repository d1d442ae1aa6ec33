"""Graph convolutions on a stochastic block model with noisy features; accuracy on the nodes without a label."""

from __future__ import annotations

import torch
from benchmarks.own_models.problem import Activation, Supervised, accuracy
from torch import Tensor, nn

NODES, CLASSES, FEATURES = 800, 5, 40


class Graph(nn.Module):
    def __init__(self, act: Activation, edges: Tensor, width: int = 64) -> None:
        super().__init__()
        self.register_buffer("edges", edges)
        self.layers = nn.ModuleList([nn.Linear(FEATURES, width), nn.Linear(width, width), nn.Linear(width, width)])
        self.acts = nn.ModuleList([act() for _ in self.layers])
        self.drop, self.head = nn.Dropout(0.3), nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        for layer, act in zip(self.layers, self.acts, strict=True):
            x = act(layer(self.edges @ self.drop(x)))
        return self.head(x)


def make(seed: int) -> Supervised:
    generator = torch.Generator().manual_seed(8000 + seed)
    y = torch.randint(0, CLASSES, (NODES,), generator=generator)
    same = y[:, None] == y
    linked = torch.rand(NODES, NODES, generator=generator) < torch.where(same, 0.02, 0.005)
    linked = (linked.triu(1) | linked.triu(1).T | torch.eye(NODES, dtype=torch.bool)).float()
    root = linked.sum(1).rsqrt()
    edges = root[:, None] * linked * root
    centres = torch.randn(CLASSES, FEATURES, generator=generator)
    x = 0.4 * centres[y] + torch.randn(NODES, FEATURES, generator=generator)
    order = torch.randperm(NODES, generator=generator)
    parts = []
    for rows in order.split([150, 150, 500]):
        codes = torch.full_like(y, -1)
        codes[rows] = y[rows]
        parts.append((x, codes))

    def loss(outputs: Tensor, codes: Tensor) -> Tensor:
        return nn.functional.cross_entropy(outputs, codes, ignore_index=-1)

    return Supervised(
        lambda act: Graph(act, edges), *parts, loss, accuracy, "accuracy, %", "higher",
        epochs=200, batch=NODES, rate=5e-3, seed=seed, cosine=False,
    )  # fmt: skip
