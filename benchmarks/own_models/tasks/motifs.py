"""Transformer encoder on four letters: which of two noisy motifs comes first, or which is alone; accuracy."""

from __future__ import annotations

import torch
from benchmarks.own_models.problem import Activation, Pair, Supervised, accuracy
from torch import Tensor, nn

LENGTH, WIDTH = 40, 48
MOTIFS = torch.tensor([[0, 2, 3, 1, 0, 3], [3, 3, 1, 0, 2, 1]])


class Encoder(nn.Module):
    def __init__(self, act: Activation) -> None:
        super().__init__()
        self.embed, self.places = nn.Embedding(4, WIDTH), nn.Parameter(0.1 * torch.randn(LENGTH, WIDTH))
        self.local, self.act = nn.Conv1d(WIDTH, WIDTH, 5, padding=2), act()
        self.layers = nn.Sequential(
            *(
                nn.TransformerEncoderLayer(WIDTH, 4, 96, dropout=0.0, activation=act(), batch_first=True)  # pyright: ignore[reportArgumentType]
                for _ in range(2)
            )
        )
        self.head = nn.Linear(WIDTH, 4)

    def forward(self, letters: Tensor) -> Tensor:
        x = self.embed(letters) + self.places
        x = x + self.act(self.local(x.transpose(1, 2)).transpose(1, 2))
        return self.head(self.layers(x).mean(1))


def sequences(count: int, generator: torch.Generator) -> Pair:
    x = torch.randint(0, 4, (count, LENGTH), generator=generator)
    y = torch.randint(0, 4, (count,), generator=generator)
    first = torch.randint(0, 12, (count,), generator=generator)
    second = torch.randint(20, 34, (count,), generator=generator)
    for row, kind in enumerate(y.tolist()):
        begins = (first[row], second[row])
        placed = ((0, 0), (1, 1)) if kind == 0 else ((0, 1), (1, 0)) if kind == 1 else ((row % 2, kind - 2),)
        for place, motif in placed:
            letters = MOTIFS[motif].clone()
            if torch.rand((), generator=generator) < 0.3:
                at = torch.randint(0, 6, (), generator=generator)
                letters[at] = torch.randint(0, 4, (), generator=generator)
            x[row, begins[place] : begins[place] + 6] = letters
    return x, y


def make(seed: int) -> Supervised:
    generator = torch.Generator().manual_seed(13_000 + seed)
    training, validation, test = (sequences(count, generator) for count in (4000, 1000, 2000))
    return Supervised(
        Encoder, training, validation, test, nn.functional.cross_entropy, accuracy, "accuracy, %", "higher",
        epochs=3, batch=64, rate=1.5e-3, seed=seed,
    )  # fmt: skip
