"""What residual networks share: the first layers, and stages of blocks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, get_args

from torch import nn

Stem = Literal["imagenet", "cifar"]


def stem_layers(stem: Stem, in_channels: int, width: int, act: Callable[[], nn.Module] | None = None) -> nn.Sequential:
    """conv, norm, act where there is one, and for "imagenet" pool.

    Args:
        stem: "imagenet" (7x7 conv of stride 2, 3x3 max pooling of stride 2) or "cifar" (3x3 conv of stride 1).
        in_channels: channels of the images. width: channels of the result.
        act: makes the activation module.

    Raises:
        ValueError: another stem.
    """
    if stem not in get_args(Stem):
        raise ValueError(f"stem must be one of {get_args(Stem)}, got {stem!r}")
    layers = nn.Sequential()
    size, stride = (7, 2) if stem == "imagenet" else (3, 1)
    layers.add_module("conv", nn.Conv2d(in_channels, width, size, stride, padding=size // 2, bias=False))
    layers.add_module("norm", nn.BatchNorm2d(width))
    if act is not None:
        layers.add_module("act", act())
    if stem == "imagenet":
        layers.add_module("pool", nn.MaxPool2d(3, 2, padding=1))
    return layers


def residual_stages(
    blocks: Sequence[int], channels: int, widths: Sequence[int], make: Callable[[int, int, int], nn.Module]
) -> nn.Sequential:
    """A stage for each width, of so many blocks; from the second one on each halves the resolution.

    Args:
        channels: of the input. make: makes a block from its input channels, output channels and stride.
    """
    stages = nn.Sequential()
    for i, (count, width) in enumerate(zip(blocks, widths, strict=True)):
        stage = nn.Sequential()
        for j in range(count):
            stage.append(make(channels, width, 2 if i > 0 and j == 0 else 1))
            channels = width
        stages.append(stage)
    return stages
