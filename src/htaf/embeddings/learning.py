"""Bits of a feature matrix, learned as an ICBM over a frozen backbone learns its own."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
import torch
from jaxtyping import Float64, Int64, Shaped, UInt8
from torch import nn
from torch.nn import functional as F

from htaf.activations import HTAF
from htaf.models.concept_terms import concept_terms
from htaf.sharpening import set_sharpness
from htaf.training.families.icbm import ICBMNetwork, frozen

FEWEST_STEPS, MOST_EPOCHS = 1000, 300
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
    rate: float,
    neighbours: float,
    epochs: int | None,
    seed: int,
) -> Bits:
    """Bits for classification: standardised features, linear layer, batch norm, sharpened HTAF, linear head.

    Loss, optimizer, dropout and sharpening are those of the recipe `frozen` of an ICBM. The head is thrown away: one is
    fitted to the exact bits afterwards. `htaf.training.fit` takes tables and images; what it would add here
    (checkpoints, processes, loggers) a minute on a matrix does not need.

    Args:
        x: of the training rows, whose means and deviations standardise. y: class numbers from 0.
        concepts: C. rate: wanted share of the rows in which a bit is on; 0: as it comes. neighbours: weight, 0: none.
        epochs: None: 60, or as many as make 1,000 steps, at most 300.
        seed: of weights, batches and dropout.
    """
    recipe = frozen()
    network, training, sharpening = recipe.network, recipe.optimization, recipe.activation.sharpening()
    assert isinstance(network, ICBMNetwork)
    assert sharpening is not None
    means, scales = x.mean(0, dtype=np.float64), x.std(0, dtype=np.float64)
    scales[scales <= ROUNDING * np.abs(means)] = np.inf  # constant but for rounding: such a column tells nothing
    z, labels = torch.from_numpy(((x - means) / scales).astype(np.float32)), torch.from_numpy(y)
    each = max(1, len(z) // training.batch_size)
    epochs = epochs or min(MOST_EPOCHS, max(training.epochs, math.ceil(FEWEST_STEPS / each)))
    classes = int(y.max()) + 1
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        linear, norm = nn.Linear(z.shape[1], concepts, bias=False), nn.BatchNorm1d(concepts)
        nn.init.constant_(norm.bias, NormalDist().inv_cdf(rate or 0.5))  # so many are on from the start
        dropout = nn.Dropout(network.feature_dropout * min(1.0, z.shape[1] / MANY))
        layers = nn.Sequential(dropout, linear, norm, HTAF())
        head = nn.Linear(concepts, classes)
        parameters = [*layers.parameters(), *head.parameters()]
        optimizer = torch.optim.AdamW(parameters, training.lr, weight_decay=training.weight_decay)
        steps = epochs * each
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, training.lr, total_steps=steps + 1)
        order = torch.arange(len(z))
        for step in range(steps):
            if step % each == 0:
                order = torch.randperm(len(z))
            rows = order[step % each :: each]
            set_sharpness(layers, sharpening.at(step / steps))
            h = layers(z[rows])
            terms = concept_terms(h, z[rows], rate=rate, neighbours=neighbours)
            loss = F.cross_entropy(head(h), labels[rows]) + terms
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
        return _folded(linear, norm, z, means, scales)


@torch.no_grad()
def _folded(linear: nn.Linear, norm: nn.BatchNorm1d, z: torch.Tensor, means: np.ndarray, scales: np.ndarray) -> Bits:
    """The layers as one affine map of raw features, with the statistics of all training rows in the norm."""
    weight, gain, shift = (p.double().numpy() for p in (linear.weight, norm.weight, norm.bias))
    pre = Bits(weight, np.zeros(len(weight))).pre_activations(z.numpy())
    slope = gain / np.sqrt(pre.var(0) + norm.eps)
    directions = slope[:, None] * weight / scales
    return Bits(directions, shift - slope * pre.mean(0) - directions @ means)
