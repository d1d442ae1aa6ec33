"""Layers over floats that stand between those over bits: PyTorch's own. Images as PyTorch has them."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from htaf.core.kernels.layers import EXACT, Geometry

Images = Float[Tensor, "_ _ _ _"]
WIDEST = 2**15 - 1  # of an integer of 16 bits


def convolution(x: Images, weight: Images, bias: Float[Tensor, " outputs"] | None, geometry: Geometry) -> Images:
    """As torch.nn.functional.conv2d."""
    g = geometry
    return torch.nn.functional.conv2d(x, weight, bias, g.stride, g.padding, g.dilation, g.groups)


def average(x: Images, kernel: tuple[int, int], stride: tuple[int, int]) -> Images:
    """As torch.nn.functional.avg_pool2d without padding."""
    return torch.nn.functional.avg_pool2d(x, kernel, stride)


def maximum(x: Images, kernel: tuple[int, int], stride: tuple[int, int], padding: tuple[int, int]) -> Images:
    """As torch.nn.functional.max_pool2d."""
    return torch.nn.functional.max_pool2d(x, kernel, stride, padding)


class Rounded(NamedTuple):
    """Weights that are integers, and how inputs become integers.

    values: int16 [outputs, channels, height, width]; a weight is unit[output] values. An input is round(x 2^exponent),
    half to even, clipped to +-limit, in units of 2^-exponent.
    """

    values: Tensor
    unit: Float[Tensor, " outputs"]
    exponent: int
    limit: int

    def check(self) -> None:
        """Raises ValueError for integers beyond 16 bits, and for sums that float32 does not hold."""
        if self.values.dtype != torch.int16 or self.values.ndim != 4 or not 1 <= self.limit <= WIDEST:
            got = f"{self.values.dtype} {tuple(self.values.shape)} and {self.limit}"
            raise ValueError(f"expected weights int16 of 4 dimensions and inputs up to {WIDEST} at most, got {got}")
        most = int(self.values.long().abs().flatten(1).sum(1).max()) * self.limit if self.values.numel() else 0
        if most > EXACT:
            raise ValueError(f"expected sums of at most {EXACT:,}, which float32 holds, got {most:,}")
        if not -100 <= self.exponent <= 100:
            raise ValueError(f"expected an exponent of -100 to 100, got {self.exponent}")


def rounded(x: Images, weights: Rounded, geometry: Geometry) -> Images:
    """A convolution of integers times 2^-exponent and unit, see `Rounded`; float32 holds every sum.

    An image that holds NaN gives NaN everywhere.
    """
    g, w = geometry, weights
    q = (x * 2.0**w.exponent).round().clamp(-w.limit, w.limit).nan_to_num()
    sums = torch.nn.functional.conv2d(q.double(), w.values.double(), None, g.stride, g.padding, g.dilation, g.groups)
    wrong = x.isnan().flatten(1).any(1).reshape(-1, 1, 1, 1)
    return torch.where(wrong, torch.nan, sums.float() * (w.unit * 2.0**-w.exponent).reshape(1, -1, 1, 1))
