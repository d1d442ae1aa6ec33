"""Wide residual network whose activation is an argument."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import final

from jaxtyping import Float
from torch import Tensor, nn

from htaf.core.activations import HTAF
from htaf.models.stem import residual_stages
from htaf.transform.grid import Mean


@final
class WideResNet(nn.Module):
    """WRN-depth-width: 3x3 stem, three stages of (depth - 4) / 6 pre-activation blocks, norm, act, global pool, linear.

    A block is norm -> act -> 3x3 conv -> norm -> act -> [dropout] -> 3x3 conv, added to its input; where the channels
    change, to a 1x1 conv of the activated input instead. The stages have 16, 32 and 64 times `width` channels and
    strides 1, 2 and 2. Weights start as in the source: convolutions N(0, 2 / fan_out), norms 1 and 0, linear bias 0.

    Args:
        depth: 6 n + 4, such as 16, 28 or 40. There are depth - 3 activation sites: 37 in WRN-40, 25 in WRN-28.
        width: the widening factor.
        classes: columns of the output.
        act: makes one activation module a site, such as `partial(HTAF, 2.0, 11.0)`.
        in_channels: channels of the images.
        dropout: probability, between the convolutions of a block.

    Shape: [batch, in_channels, height, width], any size -> [batch, classes].

    Raises:
        ValueError: depth is not 6 n + 4 with n >= 1, a size is not positive, or dropout is not in [0, 1).

    Source: Zagoruyko and Komodakis 2016, arXiv:1605.07146; the code is AugMix's (google-research/augmix).
    """

    def __init__(
        self,
        depth: int,
        width: int,
        classes: int,
        act: Callable[[], nn.Module] = HTAF,
        *,
        in_channels: int = 3,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        blocks, rest = divmod(depth - 4, 6)
        if rest or blocks < 1:
            raise ValueError(f"depth must be 6 n + 4 with n >= 1 (10, 16, 22, 28, 34, 40, ...), got {depth}")
        if min(width, classes, in_channels) < 1:
            raise ValueError(f"sizes must be positive, got {width=}, {classes=}, {in_channels=}")
        if not 0.0 <= dropout < 1.0:
            raise ValueError(f"dropout must be in [0, 1), got {dropout}")
        self.stem = nn.Conv2d(in_channels, 16, 3, padding=1, bias=False)
        widths = [16 * width, 32 * width, 64 * width]
        self.stages = residual_stages([blocks] * 3, 16, widths, partial(_Block, act=act, dropout=dropout))
        self.norm = nn.BatchNorm2d(widths[-1])
        self.act = act()
        self.mean = Mean((2, 3))
        self.head = nn.Linear(widths[-1], classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        nn.init.zeros_(self.head.bias)

    def forward(self, x: Float[Tensor, "batch in_channels height width"]) -> Float[Tensor, "batch classes"]:
        out = self.act(self.norm(self.stages(self.stem(x))))
        return self.head(self.mean(out))


@final
class _Block(nn.Module):
    def __init__(
        self, in_channels: int, out_channels: int, stride: int, act: Callable[[], nn.Module], dropout: float
    ) -> None:
        super().__init__()
        self.norm1 = nn.BatchNorm2d(in_channels)
        self.act1 = act()
        self.conv1 = nn.Conv2d(in_channels, out_channels, 3, stride, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(out_channels)
        self.act2 = act()
        self.dropout = nn.Dropout(dropout) if dropout else nn.Identity()
        self.conv2 = nn.Conv2d(out_channels, out_channels, 3, padding=1, bias=False)
        change = in_channels != out_channels
        self.shortcut = nn.Conv2d(in_channels, out_channels, 1, stride, bias=False) if change else None

    def forward(self, x: Float[Tensor, "batch _ _ _"]) -> Float[Tensor, "batch _ _ _"]:
        out = self.act1(self.norm1(x))
        shortcut = x if self.shortcut is None else self.shortcut(out)
        out = self.conv2(self.dropout(self.act2(self.norm2(self.conv1(out)))))
        return out + shortcut  # not in place, which full backward hooks forbid: it is no faster
