"""Bits that anyone gets from a backbone's features without HTAF: what the bits of a network are compared with.

Each is a function of the images, of how many bits there are to be and of a seed, and gives bool [N, C]. What it learns
it learns from the training images.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any, cast

import numpy as np
import torch
from jaxtyping import Bool, Float32, Float64, Int64
from sklearn.cluster import KMeans
from sklearn.decomposition import PCA
from sklearn.exceptions import ConvergenceWarning
from torch import nn

from htaf.concepts.codes import ConceptError
from htaf.concepts.store import Features
from htaf.models.concept_terms import RATE
from htaf.transform.hardening.linear import LinearFit, Weights

STRENGTHS = (1.0, 0.1, 0.01)  # of the probe's L2 penalty
ROTATIONS = 50  # steps of ITQ, as its source has it
STEPS, BATCH, PACE = 700, 128, 1e-3  # of the autoencoder

Bits = Bool[np.ndarray, "images concepts"]


class Backbone:
    """Features of images, standardised by the training images, with their classes.

    Attributes:
        values: float32 [N, F], as they are. standard: the same with mean 0 and variance 1; a dead feature is 0.
        labels: int [N]. classes: K. train, validation: row numbers.
    """

    def __init__(self, features: Features) -> None:
        self.values: Float32[np.ndarray, "images features"] = np.asarray(features.values, np.float32)
        self.labels = np.asarray(features.labels)
        self.classes = len(features.classes)
        self.train, self.validation = features.rows("train"), features.rows("validation")
        if not len(self.train) or not len(self.validation):
            raise ConceptError("expected features of training and validation images, got none of one of them")
        mean, scale = self.values[self.train].mean(0), self.values[self.train].std(0)
        alive = scale > 1e-6 * np.abs(mean)
        self.standard: Float32[np.ndarray, "images features"] = np.where(
            alive, (self.values - mean) / np.where(alive, scale, 1), 0
        ).astype(np.float32)

    @functools.cached_property
    def probabilities(self) -> Float64[np.ndarray, "images classes"]:
        """Of a linear probe, logistic regression, its L2 penalty chosen by validation; 0 for an absent class."""
        known, codes = np.unique(self.labels[self.train], return_inverse=True)
        standard, right = torch.from_numpy(self.standard), self.labels[self.validation]
        fit = LinearFit(standard[self.train], torch.from_numpy(codes))

        def logits(weights: Weights) -> torch.Tensor:
            weight, bias = fit.raw(weights)
            return standard.double() @ weight.T + bias

        def accuracy(weights: Weights) -> float:
            return float((known[logits(weights)[self.validation].argmax(1)] == right).mean())

        found = np.zeros((len(self.values), self.classes))
        found[:, known] = logits(fit.best(accuracy, STRENGTHS, fit.constant(len(known)))[2]).softmax(1)
        return found


def random_hyperplanes(images: Backbone, concepts: int, seed: int) -> Bits:
    """Random directions of the standardised features, half of the training images on either side of each.

    Source: Charikar 2002 (random hyperplane rounding).
    """
    directions = np.random.default_rng(seed).standard_normal((images.values.shape[1], concepts)).astype(np.float32)
    projected = images.standard @ directions
    return projected >= np.median(projected[images.train], axis=0)


def median_cut(images: Backbone, concepts: int, seed: int) -> Bits:
    """Features drawn at random (all, where there are no more), each cut at its median."""
    size = images.values.shape[1]
    drawn = np.sort(np.random.default_rng(seed).permutation(size)[:concepts])
    values = images.values[:, drawn]
    return values > np.median(values[images.train], axis=0)


def itq(images: Backbone, concepts: int, seed: int) -> Bits:
    """Iterative quantisation: principal components, turned so that they lie near their signs. At most F bits.

    Source: Gong and Lazebnik 2011.
    """
    train = images.standard[images.train]
    size = min(concepts, *train.shape)
    pca = PCA(size, random_state=seed).fit(train)
    components = pca.transform(train)
    turn = np.linalg.qr(np.random.default_rng(seed).standard_normal((size, size)))[0]
    for _ in range(ROTATIONS):
        signs = np.where(components @ turn >= 0, 1.0, -1.0)
        left, _, right = np.linalg.svd(components.T @ signs)
        turn = left @ right
    return pca.transform(images.standard) @ turn >= 0


def nearest_centroids(images: Backbone, concepts: int, seed: int) -> Bits:
    """k-means with a centroid a bit, at most as many as images; an image has the bits of its nearest 15%."""
    train = images.values[images.train]
    size = min(concepts, len(train))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # fewer distinct images than centroids
        means = KMeans(size, n_init=cast(Any, 2), random_state=seed).fit(train)
    nearness = -means.transform(images.values)
    return largest(nearness, size)


def largest(values: Float32[np.ndarray, "images concepts"], concepts: int) -> Bits:
    """Which values of a row are among its largest 15%, one at least."""
    count = max(1, round(RATE * concepts))
    order = np.argsort(-values, axis=1, kind="stable")[:, :count]
    bits = np.zeros(values.shape, dtype=bool)
    np.put_along_axis(bits, order, values=True, axis=1)
    return bits


class TopKAutoencoder(nn.Module):
    """x ~ D relu(top_k(E (x - b))) + b: of each row's hidden values the k largest alone are kept.

    Source: Makhzani and Frey 2013; Gao et al. 2024 (decoder begun as the encoder's transpose).
    """

    def __init__(self, size: int, hidden: int, k: int) -> None:
        super().__init__()
        self.k = k
        self.encoder, self.decoder = nn.Linear(size, hidden), nn.Linear(hidden, size)
        with torch.no_grad():
            self.encoder.weight.copy_(nn.functional.normalize(self.encoder.weight, dim=1))
            self.decoder.weight.copy_(self.encoder.weight.T)
            self.encoder.bias.zero_()
            self.decoder.bias.zero_()

    def hidden(self, x: torch.Tensor) -> torch.Tensor:
        """What is kept, [n, hidden]: >= 0, at most k of a row above 0."""
        values = self.encoder(x - self.decoder.bias)
        kept = values.topk(self.k, dim=1)
        return torch.zeros_like(values).scatter(1, kept.indices, kept.values.relu())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.decoder(self.hidden(x))


def sparse_autoencoder(images: Backbone, concepts: int, seed: int) -> Bits:
    """A top-k sparse autoencoder of the standardised features, k 15% of C: a bit is on where its value is kept."""
    values = torch.from_numpy(images.standard)
    train = values[torch.from_numpy(images.train)]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        net = TopKAutoencoder(values.shape[1], concepts, max(1, round(RATE * concepts)))
        optimizer = torch.optim.Adam(net.parameters(), lr=PACE)
        for _ in range(STEPS):
            batch = train[torch.randint(len(train), (BATCH,))]
            loss = nn.functional.mse_loss(net(batch), batch)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    with torch.no_grad():
        return (net.hidden(values) > 0).numpy()


def class_splits(images: Backbone, concepts: int, seed: int) -> Bits:
    """Random halves of the classes: a bit is on where a linear probe gives its half 1/2 or more. They mean nothing."""
    rng, k = np.random.default_rng(seed), images.classes
    halves: Int64[np.ndarray, "concepts some"] = np.stack([rng.permutation(k)[: k // 2] for _ in range(concepts)])
    member = np.zeros((k, concepts))
    np.put_along_axis(member, halves.T, 1.0, axis=0)
    return images.probabilities @ member >= 0.5


BASELINES: dict[str, Callable[[Backbone, int, int], Bits]] = {
    "random hyperplanes": random_hyperplanes,
    "median cut": median_cut,
    "ITQ": itq,
    "k-means": nearest_centroids,
    "sparse autoencoder": sparse_autoencoder,
    "random class splits": class_splits,
}
