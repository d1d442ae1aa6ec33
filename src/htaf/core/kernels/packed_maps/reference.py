"""Maps between floats and bits of images, and of bits: the form in which they lie is that of kernels/layers.py."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from htaf.core.kernels.heaviside import reference
from htaf.core.kernels.layers import Epilogue, Outputs, row_bytes

MOST_WEIGHT, MOST_BIAS = 2**16, 2**28  # with which sums over 2^24 bits are exact in float64


def pack(values: Tensor) -> Tensor:
    """uint8 [..., 8 words] from booleans [..., channels]."""
    bits = reference.pack(values.float() - 0.5)
    return torch.nn.functional.pad(bits, (0, row_bytes(values.shape[-1]) - bits.shape[-1]))


def unpack(bits: Tensor, channels: int, *, bipolar: bool = False, dtype: torch.dtype = torch.float32) -> Tensor:
    """[..., channels] of 0 and 1, or of -1 and 1."""
    return reference.unpack(bits, channels, dtype, bipolar=bipolar)


def finish(sums: Tensor, epilogue: Epilogue) -> Outputs:
    """y = scale sum + shift + residual and bit = lower <= y <= upper (0 where y is NaN) of float32 [..., channels]."""
    e, y = epilogue, sums
    if e.wide is not None:
        y = (y.double() * e.wide[0] + e.wide[1]).float()
    if e.scale is not None:
        y = y * e.scale
    if e.shift is not None:
        y = y + e.shift
    if e.residual is not None:
        y = y + e.residual
    bits = None
    if e.lower is not None and e.upper is not None:
        bits = pack((e.lower <= y) & (y <= e.upper))
    return y if e.keep else None, bits


def max_pool(
    bits: Tensor,
    kernel: tuple[int, int],
    stride: tuple[int, int],
    padding: tuple[int, int],
    smallest: Tensor | None = None,
) -> Tensor:
    """Bits [batch, height, width, bytes] -> the or of every window, for 0, 1 and for -1, 1. Padding never counts.

    smallest: [bytes], the channels of which it is the and.
    """
    if smallest is not None:
        return max_pool(bits ^ smallest, kernel, stride, padding) ^ smallest
    channels = 8 * bits.shape[-1]
    images = unpack(bits, channels).permute(0, 3, 1, 2)
    pooled = torch.nn.functional.max_pool2d(images, kernel, stride, padding)
    return pack(pooled.permute(0, 2, 3, 1) > 0)


def spikes(x: Tensor, *, leak: float, gain: float, threshold: float, soft: bool) -> Tensor:
    """Exact neurons over time: float32 [steps, ..., channels] -> bits [steps, ..., bytes].

    h = leak v + gain x, spike = h - threshold >= 0, then v = h - threshold spike (soft) or (1 - spike) h, from rest.
    """
    v, found = torch.zeros_like(x[0]), []
    for now in x:
        h = leak * v + gain * now
        fired = h - threshold >= 0
        v = h - threshold * fired if soft else torch.where(fired, 0.0, h)
        found.append(pack(fired))
    return torch.stack(found)


class LinearOfMeans(NamedTuple):
    """A linear layer over the means of bits: y = unit (weight mean + bias), integers; exact but for one rounding.

    weight: int32 [outputs, channels] of at most 2^16; bias: int64 [outputs].
    """

    weight: Tensor
    bias: Tensor
    unit: float

    def check(self) -> None:
        """Raises ValueError for other integers."""
        shapes = (self.weight.dtype, self.bias.dtype, self.weight.ndim, tuple(self.bias.shape))
        if shapes != (torch.int32, torch.int64, 2, tuple(self.weight.shape[:1])):
            raise ValueError(f"expected weight int32 [outputs, channels] and bias int64 [outputs], got {shapes}")
        largest = [int(x.abs().max()) if x.numel() else 0 for x in (self.weight.long(), self.bias)]
        if largest[0] > MOST_WEIGHT or not 0 <= largest[1] <= MOST_BIAS:
            raise ValueError(f"expected weights up to {MOST_WEIGHT:,} and a bias up to {MOST_BIAS:,}, got {largest}")


def prepare_means(layer: LinearOfMeans) -> LinearOfMeans:
    """Itself, checked."""
    layer.check()
    return layer


def means(bits: Tensor, layer: LinearOfMeans) -> Tensor:
    """Bits [steps, images, pixels, bytes] -> float32 [images, outputs]: the layer over the means of each image."""
    steps, _, pixels, _ = bits.shape
    counts = unpack(bits, layer.weight.shape[1], dtype=torch.float64).sum((0, 2))
    n = steps * pixels
    sums = counts @ layer.weight.double().T + n * layer.bias.double()
    return (sums * layer.unit / n).float()
