"""Residual network with basic blocks, of any width."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import final

from jaxtyping import Float
from torch import Tensor, nn

from htaf.models.stem import Stem, residual_stages, stem_layers
from htaf.transform.grid import Mean

_BLOCKS = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3)}


@final
class ResNet(nn.Module):
    """ResNet-18 or -34: stem, four stages of basic blocks, global average pooling, linear classifier.

    A block is 3x3 conv -> norm -> act -> 3x3 conv -> norm, added to its input (where the shape changes, to its 1x1
    conv and norm), -> act. The stages have 1, 2, 4 and 8 times `width` channels and strides 1, 2, 2 and 2. Weights
    start as in the source: convolutions N(0, 2 / fan_out), norms 1 and 0.

    Args:
        depth: 18 or 34.
        classes: columns of the output.
        act: makes one activation module a site.
        width: channels of the stem and the first stage.
        stem: "imagenet" (7x7 conv of stride 2, norm, act, 3x3 max pooling of stride 2) or "cifar" (3x3 conv of stride
            1, norm, act).
        in_channels: channels of the images.

    Shape: [batch, in_channels, height, width], any size -> [batch, classes].

    Raises:
        ValueError: another depth or stem, or a size is not positive.

    Source: He et al. 2015, arXiv:1512.03385; torchvision's resnet18 and resnet34 at width 64 are the same network.
    """

    def __init__(
        self,
        depth: int,
        classes: int,
        act: Callable[[], nn.Module] = nn.ReLU,
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
        self.stem = stem_layers(stem, in_channels, width, act)
        widths = [width << i for i in range(4)]
        self.stages = residual_stages(_BLOCKS[depth], width, widths, partial(_Block, act=act))
        self.mean = Mean((2, 3))
        self.head = nn.Linear(widths[-1], classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Float[Tensor, "batch in_channels height width"]) -> Float[Tensor, "batch classes"]:
        return self.head(self.mean(self.stages(self.stem(x))))


@final
class _Block(nn.Module):
    def __init__(self, in_channels: int, out_channels: int, stride: int, act: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, out_channels, 3, stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(out_channels)
        self.act1 = act()
        self.conv2 = nn.Conv2d(out_channels, out_channels, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(out_channels)
        self.shortcut = None
        if stride > 1 or in_channels != out_channels:
            self.shortcut = nn.Sequential()
            self.shortcut.add_module("conv", nn.Conv2d(in_channels, out_channels, 1, stride, bias=False))
            self.shortcut.add_module("norm", nn.BatchNorm2d(out_channels))
        self.act2 = act()

    def forward(self, x: Float[Tensor, "batch _ _ _"]) -> Float[Tensor, "batch _ _ _"]:
        out = self.norm2(self.conv2(self.act1(self.norm1(self.conv1(x)))))
        return self.act2(out + (x if self.shortcut is None else self.shortcut(x)))
