"""MLP-Mixer (layer norm, shortcuts) on 4,500 images of CIFAR-10; accuracy on 2,000 of its test images."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import numpy as np
import torch
from benchmarks.own_models.problem import Activation, MissingDataError, Supervised, accuracy
from torch import Tensor, nn


class Block(nn.Module):
    def __init__(self, tokens: int, width: int, act: Activation) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.tokens = nn.Sequential(nn.Linear(tokens, 64), act(), nn.Linear(64, tokens))
        self.channels = nn.Sequential(nn.Linear(width, 128), act(), nn.Linear(128, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.tokens(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.channels(self.norm2(x))


class Mixer(nn.Module):
    def __init__(self, act: Activation, width: int = 64, depth: int = 4) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 8, 8)
        self.blocks = nn.Sequential(*(Block(16, width, act) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x).flatten(2).transpose(1, 2)
        return self.head(self.norm(self.blocks(x)).mean(1))


def read(name: str, count: int, skip: int = 0) -> tuple[Tensor, Tensor]:
    path = Path(os.environ.get("HTAF_DATA", "")) / "cifar-10-batches-py" / name
    if not path.is_file():
        raise MissingDataError(f"{path} is missing: set HTAF_DATA to the folder with cifar-10-batches-py")
    with path.open("rb") as file:
        held = pickle.load(file, encoding="bytes")
    x = torch.from_numpy(held[b"data"][skip : skip + count].astype(np.float32)).reshape(-1, 3, 32, 32)
    return (x / 255 - 0.47) / 0.25, torch.tensor(held[b"labels"][skip : skip + count])


def make(seed: int) -> Supervised:
    training = read("data_batch_1", 4500)
    validation, test = read("data_batch_2", 1000), read("test_batch", 2000)
    return Supervised(
        Mixer, training, validation, test, nn.functional.cross_entropy, accuracy, "accuracy, %", "higher",
        epochs=10, batch=90, rate=2e-3, seed=seed,
    )  # fmt: skip
