"""Bi-Real Net: binary activations, binary convolutions, real shortcuts. The activation is an argument."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import final

from jaxtyping import Float
from torch import Tensor, nn

from htaf.core.activations import HTAF
from htaf.core.binary import BinaryConv2d
from htaf.models.stem import Stem, residual_stages, stem_layers
from htaf.transform.grid import Mean

_BLOCKS = {18: (4, 4, 4, 4), 34: (6, 8, 12, 6)}
_BIPOLAR_HTAF = partial(HTAF, bipolar=True)


@final
class BiRealNet(nn.Module):
    """Bi-Real Net: real stem, four stages of one-convolution blocks, global average pooling, real linear classifier.

    A block is act -> binary 3x3 conv -> norm, added to its input; there is no ReLU. Where the resolution halves, the
    shortcut is average pooling by 2, real 1x1 conv and norm. The pooling rounds odd sizes up, as the convolution
    beside it does (the source rounds down and takes even sizes only). Binary convolutions start uniform in [0, 0.001),
    as in the source, everything else as PyTorch has it.

    Args:
        depth: 18 (4, 4, 4 and 4 blocks) or 34 (6, 8, 12 and 6); one activation site a block.
        classes: columns of the output.
        act: makes one activation module a site, with values in [-1, 1]: `partial(HTAF, 2.0, 11.0, bipolar=True)`.
        width: channels of the first stage; the others have 2, 4 and 8 times as many.
        stem: "imagenet" (7x7 conv of stride 2, norm, 3x3 max pooling of stride 2) or "cifar" (3x3 conv of stride 1,
            norm).
        in_channels: channels of the images.

    Shape: [batch, in_channels, height, width], any size -> [batch, classes].

    Raises:
        ValueError: another depth or stem, or a size is not positive.

    Source: Liu et al. 2018, arXiv:1808.00278; the code is liuzechun/Bi-Real-net, pytorch_implementation/BiReal18_34.
    """

    def __init__(
        self,
        depth: int,
        classes: int,
        act: Callable[[], nn.Module] = _BIPOLAR_HTAF,
        *,
        width: int = 64,
        stem: Stem = "imagenet",
        in_channels: int = 3,
    ) -> None:
        super().__init__()
        if depth not in _BLOCKS:
            raise ValueError(f"depth must be one of {tuple(_BLOCKS)}, got {depth}")
        if min(classes, width, in_channels) < 1:
            raise ValueError(f"sizes must be positive, got {classes=}, {width=}, {in_channels=}")
        self.stem = stem_layers(stem, in_channels, width)
        widths = [width << i for i in range(4)]
        self.stages = residual_stages(_BLOCKS[depth], width, widths, partial(_Block, act=act))
        self.mean = Mean((2, 3))
        self.head = nn.Linear(widths[-1], classes)

    def forward(self, x: Float[Tensor, "batch in_channels height width"]) -> Float[Tensor, "batch classes"]:
        return self.head(self.mean(self.stages(self.stem(x))))


@final
class _Block(nn.Module):
    def __init__(self, in_channels: int, out_channels: int, stride: int, act: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.act = act()
        self.conv = BinaryConv2d(in_channels, out_channels, 3, stride, padding=1)
        nn.init.uniform_(self.conv.weight, 0.0, 0.001)  # near 0, so that signs flip from the first steps of Adam on
        self.norm = nn.BatchNorm2d(out_channels)
        self.shortcut = None
        if stride > 1:
            self.shortcut = nn.Sequential()
            self.shortcut.add_module("pool", nn.AvgPool2d(2, ceil_mode=True))
            self.shortcut.add_module("conv", nn.Conv2d(in_channels, out_channels, 1, bias=False))
            self.shortcut.add_module("norm", nn.BatchNorm2d(out_channels))

    def forward(self, x: Float[Tensor, "batch _ _ _"]) -> Float[Tensor, "batch _ _ _"]:
        out = self.norm(self.conv(self.act(x)))
        return out + (x if self.shortcut is None else self.shortcut(x))  # not in place, which backward hooks forbid
