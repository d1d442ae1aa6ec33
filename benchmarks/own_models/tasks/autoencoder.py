"""Autoencoder with a binary latent on scikit-learn's digits: the latent alone is to be bits; mean squared error."""

from __future__ import annotations

import torch
from benchmarks.own_models.problem import Activation, Supervised, error
from sklearn.datasets import load_digits
from torch import Tensor, nn


class Autoencoder(nn.Module):
    def __init__(self, act: Activation, latent: int = 24) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, latent))
        self.code = act()
        self.decoder = nn.Sequential(nn.Linear(latent, 128), nn.ReLU(), nn.Linear(128, 64))

    def forward(self, x: Tensor) -> Tensor:
        return self.decoder(self.code(self.encoder(x)))


def make(seed: int) -> Supervised:
    x = torch.from_numpy(load_digits().data).float() / 16
    x = x[torch.randperm(len(x), generator=torch.Generator().manual_seed(3000 + seed))]
    training, validation, test = ((part, part) for part in x.split([1100, 297, 400]))
    return Supervised(
        Autoencoder, training, validation, test, nn.functional.mse_loss, error, "MSE", "lower",
        epochs=100, batch=64, rate=2e-3, seed=seed, cosine=False, where="code",
    )  # fmt: skip
