"""Anomaly detection: an autoencoder of even digits, odd ones are to be rebuilt worse; AUROC of the error."""

from __future__ import annotations

import torch
from benchmarks.own_models.problem import Activation, Supervised
from sklearn.datasets import load_digits
from sklearn.metrics import roc_auc_score
from torch import Tensor, nn


def network(act: Activation) -> nn.Module:
    return nn.Sequential(
        nn.Linear(64, 96), act(), nn.Linear(96, 48), act(), nn.Linear(48, 96), act(), nn.Linear(96, 64)
    )


def make(seed: int) -> Supervised:
    held = load_digits()
    x, digit = torch.from_numpy(held.data).float() / 16, torch.from_numpy(held.target)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(11_000 + seed))
    x, digit = x[order], digit[order]
    even, odd = x[digit % 2 == 0], x[digit % 2 == 1]
    training, validation, normal = even[:500], even[500:600], even[600:]
    test = torch.cat([normal, odd])
    strange = torch.cat([torch.zeros(len(normal)), torch.ones(len(odd))])

    def scored(net: nn.Module, x: Tensor, y: Tensor) -> float:
        return float(roc_auc_score(y.numpy(), (net(x) - x).square().mean(1).numpy()))

    return Supervised(
        network, (training, training), (validation, validation), (test, strange), nn.functional.mse_loss, scored,
        "AUROC", "higher", epochs=150, batch=50, rate=2e-3, seed=seed, cosine=False,
    )  # fmt: skip
