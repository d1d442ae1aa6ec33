"""A plain convolutional network behind a whitening layer, which trains in minutes. The activation is an argument."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from htaf.core.activations import HTAF
from htaf.transform.grid import Mean

PATCH = 2  # pixels on a side of what is whitened
EPS = 5e-4  # added to the variances of the patches, as in the source


@final
class WhitenedConvNet(nn.Module):
    """Whitening, then a block for each entry of `widths`, then the mean over pixels (and time), linear.

    A block is 3x3 conv -> 2x2 max pooling -> norm -> act -> 3x3 conv -> norm -> act, without shortcuts. The whitening
    is a fixed 2x2 convolution to 4 `in_channels` channels; see `whiten`. Its output is real, so the first convolution
    is, in a binary network too. All convolutions with real weights start as the identity on their first channels.

    Args:
        classes: columns of the output.
        act: makes one activation module a site, two a block, such as `partial(HTAF, 0.5, 2.0)`; with `steps` a spiking
            neuron.
        keep_first: how many of the first activations are ReLU in its place.
        widths: channels of each block.
        conv: class of all convolutions but the first, such as `htaf.BinaryConv2d`.
        steps: T, time steps of spiking neurons, [T, N, C, H, W] -> same shape; the layers before the first one run
            once. None: no time.
        in_channels: channels of the images.

    Shape: [batch, in_channels, height, width] of at least 2^blocks + 1 pixels on a side -> [batch, classes].

    Raises:
        ValueError: a size is not positive.

    Source: Jordan 2024, "94% on CIFAR-10 in 3.29 seconds on a single GPU", arXiv:2404.00498, and its code
        (KellerJordan/cifar10-airbench). It has GELU behind the whitening and ends with max pooling; here nothing but
        steps is not linear, and the head reads how often a bit is 1.
    """

    def __init__(
        self,
        classes: int,
        act: Callable[[], nn.Module] = HTAF,
        *,
        keep_first: int = 0,
        widths: Sequence[int] = (64, 256, 256),
        conv: Callable[..., nn.Module] = nn.Conv2d,
        steps: int | None = None,
        in_channels: int = 3,
    ) -> None:
        super().__init__()
        if not widths or min(classes, in_channels, *widths) < 1 or (steps is not None and steps < 1):
            raise ValueError(f"sizes must be positive, got {classes=}, {in_channels=}, {widths=}, {steps=}")
        self.steps = steps
        channels = in_channels * PATCH**2
        self.whitening = nn.Conv2d(in_channels, channels, PATCH, bias=False).requires_grad_(False)
        self.blocks = nn.Sequential()
        for i, width in enumerate(widths):
            act1, act2 = (nn.ReLU if site < keep_first else act for site in (2 * i, 2 * i + 1))
            self.blocks.append(_Block(channels, width, act1, act2, conv if i else nn.Conv2d, conv))
            channels = width
        self.mean = Mean((2, 3) if steps is None else (0, 3, 4))
        self.head = nn.Linear(channels, classes)

    def forward(self, x: Float[Tensor, "batch in_channels height width"]) -> Float[Tensor, "batch classes"]:
        x = self.whitening(x)
        if self.steps is None:
            return self.head(self.mean(self.blocks(x)))
        for i, block in enumerate(self.blocks):
            x = block(x, self.steps if i == 0 else None)
        return self.head(self.mean(x))

    @torch.no_grad()
    def whiten(self, images: Float[Tensor, "n in_channels height width"]) -> None:
        """Set the whitening from images as the network takes them: on their patches its outputs are uncorrelated, with
        variance near 1.

        W = (C + 5e-4)^(-1/2) in the basis of C's eigenvectors, where C is the second moment of all 2x2 patches.

        Args:
            images: some thousands are enough.
        """
        patches = nn.functional.unfold(images.float(), PATCH).transpose(1, 2).flatten(0, 1).double()
        values, vectors = torch.linalg.eigh(patches.T @ patches / len(patches))
        vectors = vectors * torch.where(vectors.sum(0) < 0, -1.0, 1.0)  # eigenvectors have no sign of their own
        found = (vectors / (values.clamp_min(0) + EPS).sqrt()).T.flip(0)  # largest variance first
        self.whitening.weight.copy_(found.reshape(self.whitening.weight.shape))

    def extra_repr(self) -> str:
        return "" if self.steps is None else f"steps={self.steps}"


@final
class _Block(nn.Module):
    def __init__(
        self,
        n_in: int,
        n_out: int,
        act1: Callable[[], nn.Module],
        act2: Callable[[], nn.Module],
        conv1: Callable[..., nn.Module],
        conv2: Callable[..., nn.Module],
    ) -> None:
        super().__init__()
        self.conv1 = conv1(n_in, n_out, 3, padding=1, bias=False)
        self.pool = nn.MaxPool2d(2)
        self.norm1 = nn.BatchNorm2d(n_out)
        self.act1 = act1()
        self.conv2 = conv2(n_out, n_out, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(n_out)
        self.act2 = act2()
        for layer in (self.conv1, self.conv2):
            if type(layer) is nn.Conv2d:
                nn.init.dirac_(layer.weight[: layer.in_channels])

    def forward(self, x: Tensor, begins: int | None = None) -> Tensor:
        """begins: time steps, where time begins in this block; None: x has time already, or there is none."""
        steps = len(x) if x.ndim == 5 else None
        x = self.norm1(self.pool(self.conv1(x if steps is None else x.flatten(0, 1))))
        if begins is not None:
            x, steps = x.expand(begins, *x.shape), begins
        elif steps is not None:
            x = x.unflatten(0, (steps, -1))
        x = self.act1(x)
        if steps is None:
            return self.act2(self.norm2(self.conv2(x)))
        return self.act2(self.norm2(self.conv2(x.flatten(0, 1))).unflatten(0, (steps, -1)))
