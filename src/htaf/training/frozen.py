"""A training in which a part of the network is fixed: what it gives is computed once, and the rest learns from that."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from htaf.data.images import ImagePreprocessor, Images
from htaf.data.parts import Part, TableBatches
from htaf.models.icbm import ICBM
from htaf.models.mlp import MLP
from htaf.runs.features import FeatureBatches, FeatureStore, fill, key_of
from htaf.training.problems import Problem
from htaf.training.recipe import ImageData, Recipe

CHUNK = 8192  # rows of features at once where nothing is learned


def learns_from_features(recipe: Recipe) -> bool:
    """Whether a training asks for the features of a frozen backbone on images that are the same in every epoch.

    Args:
        recipe: with an augment that is settled, see `htaf.training.problems.resolved`.
    """
    return recipe.network.frozen and isinstance(recipe.data, ImageData) and recipe.data.augment == "none"


@runtime_checkable
class Fixed(Protocol):
    """What is put aside while the rest of a network learns."""

    def restore(self, net: nn.Module, /) -> None:
        """Give it back to a network."""
        ...


@dataclass(frozen=True)
class Frozen:
    """What is put aside while the rest of an ICBM learns.

    Attributes:
        backbone: of the network. computed: images whose features were not at hand. folder: where those of the training
            images are kept.
    """

    backbone: nn.Module
    computed: int
    folder: Path

    def restore(self, net: nn.Module) -> None:
        """Give the backbone back to a network."""
        assert isinstance(net, ICBM)
        net.backbone = self.backbone


def on_features(
    posed: Problem,
    images: Images,
    net: ICBM,
    model: dict[str, Any],
    *,
    device: str = "cpu",
    progress: bool = False,
) -> tuple[Problem, Frozen]:
    """The same problem, whose inputs are what the backbone gives of the images; the network loses the backbone.

    Args:
        posed: the problem on images. images: the set.
        net: changed in place: until `Frozen.restore` it takes features alone.
        model: its description. device: where the features are computed.

    Raises:
        RunError: the backbone gives NaN. DataError: an image is gone.
    """
    preprocessor = posed.preprocessor
    assert isinstance(preprocessor, ImagePreprocessor)
    with torch.no_grad():
        training = net.training
        width = net.eval().features(torch.zeros(1, net.channels, *net.image_size)).shape[1]
        net.train(training)  # dropout and the norm of the concepts learn in training mode
    known = {side: key_of(net, model, preprocessor, part, part.fingerprint()) for side, part in _sides(images, posed)}
    computed = 0

    def stored(side: str, rows: Tensor) -> FeatureBatches:
        nonlocal computed
        store, part = FeatureStore(known[side], width), getattr(images, side)
        what = f"features of {side} images"
        computed += fill(store, net, part, preprocessor, rows, device=device, progress=progress, label=what)
        return FeatureBatches(store, part.labels)

    learned, held = posed.train.rows, posed.validation.rows
    plain = stored("train", torch.cat([learned, held]).sort().values)
    validation = Part(plain, held, CHUNK)
    posed = replace(
        posed,
        train=Part(plain, learned, CHUNK),
        validation=validation,
        statistics=validation,
        plain=Part(plain, (posed.plain or posed.train).rows, CHUNK),
    )
    if posed.test is not None:
        posed = replace(posed, test=Part(stored("test", posed.test.rows), posed.test.rows, CHUNK))
    aside = Frozen(net.backbone, computed, plain.store.folder)
    net.backbone = nn.Identity()
    return posed, aside


class Given:
    """Of an MLP: what it adds to the outputs of its bits is not computed, but comes with its inputs."""

    def restore(self, net: nn.Module) -> None:
        """Let a network compute it."""
        assert isinstance(net, MLP)
        net.given = False


def given_once(posed: Problem, net: MLP) -> tuple[Problem, Given]:
    """The same problem, in which what is added to the outputs of the bits follows the columns of the inputs.

    Args:
        net: with a thermometer and a linear layer, leaves, or both, that do not learn; changed in place: until
            `Given.restore` it takes such inputs alone.
    """
    seen: dict[int, TableBatches] = {}

    @torch.no_grad()
    def wider(part: Part) -> Part:
        data = part.data
        assert isinstance(data, TableBatches)
        if id(data) not in seen:
            found = (net.beside(x, net.thermometer(x)) for x in map(net.columns, data.x.split(CHUNK)))
            added = torch.cat([outputs.to(data.x) for outputs in found if outputs is not None])
            seen[id(data)] = replace(data, beside=added)
        return replace(part, data=seen[id(data)])

    parts = {name: getattr(posed, name) for name in ("train", "validation", "test", "statistics", "plain")}
    posed = replace(posed, **{name: wider(part) for name, part in parts.items() if part is not None})
    net.given = True
    return posed, Given()


def _sides(images: Images, posed: Problem) -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = [("train", images.train)]
    return found if posed.test is None else [*found, ("test", images.test)]
