"""Bits of a feature matrix, learned as an ICBM over a frozen backbone learns its own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from jaxtyping import Float64, Int64, Shaped, UInt8
from torch import nn

from htaf.models.icbm import ICBM
from htaf.training.families.icbm import ICBMNetwork, frozen

if TYPE_CHECKING:
    from htaf.training.module import EpochBatches

MANY = 256  # features: of fewer, which repeat each other less, fewer are dropped
ROUNDING = 1e-6  # deviation of a column, as a share of its mean
ROWS = 8192  # whose bits are computed at once


@dataclass(frozen=True, eq=False)
class Bits:
    """Bit j of features x is 1 where directions_j . x + offsets_j >= 0.

    Attributes:
        directions: float64 [C, F]. offsets: float64 [C].
    """

    directions: Float64[np.ndarray, "concepts features"]
    offsets: Float64[np.ndarray, " concepts"]

    def pre_activations(self, x: Shaped[np.ndarray, "rows features"]) -> Float64[np.ndarray, "rows concepts"]:
        """In float64, so that a bit does not depend on the rows beside it."""
        made = np.empty((len(x), len(self.offsets)))
        for first in range(0, len(x), ROWS):
            rows = slice(first, first + ROWS)
            made[rows] = x[rows].astype(np.float64) @ self.directions.T + self.offsets
        return made

    def of(self, x: Shaped[np.ndarray, "rows features"]) -> UInt8[np.ndarray, "rows concepts"]:
        """0 and 1."""
        return (self.pre_activations(x) >= 0).astype(np.uint8)


def learn(
    x: Shaped[np.ndarray, "rows features"],
    y: Int64[np.ndarray, " rows"],
    *,
    concepts: int,
    rate: float | Literal["auto"],
    neighbours: float,
    epochs: int | None,
    seed: int,
) -> Bits:
    """Bits for classification: standardised features, linear layer, batch norm, sharpened HTAF, linear head.

    The network, its loss, optimizer, batches and sharpening are those of the recipe `frozen` of an ICBM. What
    `htaf.training.fit` has beside these (a run folder, checkpoints, processes, loggers) a minute on a matrix does not
    need. The head is thrown away: one is fitted to the exact bits afterwards.

    Args:
        x: of the training rows, whose means and deviations standardise. y: class numbers from 0.
        concepts: C. rate: wanted share of the rows in which a bit is on, 0: as it comes; "auto": see `shared_rate`.
        neighbours: weight, 0: none.
        epochs: None: 60, or as many as make 600 steps, at most 150.
        seed: of weights, batches and dropout.
    """
    from htaf.training.fit import long_enough
    from htaf.training.module import EpochBatches, Training

    recipe = frozen().replace(concept_rate=rate, neighbours=neighbours)
    recipe = long_enough(recipe, len(x))[0] if epochs is None else recipe.replace(epochs=epochs)
    network = recipe.network
    assert isinstance(network, ICBMNetwork)
    means, scales = x.mean(0, dtype=np.float64), x.std(0, dtype=np.float64)
    scales[scales <= ROUNDING * np.abs(means)] = np.inf  # constant but for rounding: such a column tells nothing
    z, labels = torch.from_numpy(((x - means) / scales).astype(np.float32)), torch.from_numpy(y)
    dropout = network.feature_dropout * min(1.0, z.shape[1] / MANY)
    batches = EpochBatches(len(z), recipe.optimization.batch_size, seed)
    steps = recipe.optimization.epochs * len(batches)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        example = z[:2, :, None, None]
        net = ICBM(nn.Flatten(), int(y.max()) + 1, example=example, concepts=concepts, norm=True, dropout=dropout)
        net.projection = nn.Linear(z.shape[1], concepts, bias=False)  # also where there are as many features
        network.begin_at_rate(net)
        module = Training(net, recipe, "classification", steps)
        made = module.configure_optimizers()
        optimizer, schedule = made["optimizer"], made["lr_scheduler"]["scheduler"]
        for step, rows in enumerate(_rows(batches, recipe.optimization.epochs)):
            module.sharpen(step / steps)
            optimizer.zero_grad()
            module.objective(z[rows], labels[rows]).backward()
            optimizer.step()
            schedule.step()
    assert isinstance(net.norm, nn.BatchNorm1d)
    return _folded(net.projection, net.norm, z, means, scales)


def _rows(batches: EpochBatches, epochs: int) -> Iterator[torch.Tensor]:
    """Row numbers of all batches."""
    for epoch in range(epochs):
        batches.set_epoch(epoch)
        for rows, _, _ in batches:
            yield rows


@torch.no_grad()
def _folded(linear: nn.Linear, norm: nn.BatchNorm1d, z: torch.Tensor, means: np.ndarray, scales: np.ndarray) -> Bits:
    """The layers as one affine map of raw features, with the statistics of all training rows in the norm."""
    weight, gain, shift = (p.double().numpy() for p in (linear.weight, norm.weight, norm.bias))
    pre = Bits(weight, np.zeros(len(weight))).pre_activations(z.numpy())
    slope = gain / np.sqrt(pre.var(0) + norm.eps)
    directions = slope[:, None] * weight / scales
    return Bits(directions, shift - slope * pre.mean(0) - directions @ means)
