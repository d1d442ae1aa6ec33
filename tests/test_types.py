"""Transforms return the type that they are given. Pyright checks this file (`make lint`); pytest runs it."""

from __future__ import annotations

from typing import assert_type

import torch
from torch import Tensor, nn

import htaf
from htaf.transform import hardening
from htaf.transform.grid import on_grid


class Net(nn.Module):
    """A model with a method of its own, which an IDE should still offer."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.act, self.norm, self.head = nn.Linear(3, 8), nn.ReLU(), nn.BatchNorm1d(8), nn.Linear(8, 2)

    def features(self, x: Tensor) -> Tensor:
        return self.act(self.norm(self.hidden(x)))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x))


def test_transforms_keep_the_type_of_the_model() -> None:
    torch.manual_seed(0)
    x, y = torch.randn(64, 3), torch.randn(64, 2)
    batches = [(x, y)]
    smooth = assert_type(htaf.replace(Net(), htaf.HTAF, example=x), Net)
    exact = assert_type(htaf.harden(smooth), Net)
    repaired = assert_type(hardening.repair(exact, smooth, batches)[0], Net)
    recalibrated = assert_type(hardening.recalibrate(exact, batches)[0], Net)
    refitted = assert_type(hardening.refit_head(exact, batches)[0], Net)
    grid = assert_type(on_grid(smooth, x), Net)
    for net in (smooth, exact, repaired, recalibrated, refitted, grid):
        assert isinstance(net, Net)
        assert net.features(x).shape == (64, 8)


def test_a_sequential_stays_one_and_an_activation_alone_does_not() -> None:
    plain = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1))
    net = assert_type(htaf.replace(plain, htaf.HTAF, example=torch.zeros(2, 3)), nn.Sequential)
    assert len(assert_type(htaf.harden(net), nn.Sequential)) == 3
    assert isinstance(htaf.harden(htaf.HTAF()), htaf.Heaviside)  # whatever the annotation says
