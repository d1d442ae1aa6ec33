"""Maps between floats and bits of images, and of bits: the form in which they lie is that of kernels/layers.py."""

from __future__ import annotations

import torch
from torch import Tensor

from htaf.kernels.heaviside import reference
from htaf.kernels.layers import Epilogue, Outputs, row_bytes


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
    bits: Tensor, kernel: tuple[int, int], stride: tuple[int, int], padding: tuple[int, int], dilation: tuple[int, int]
) -> Tensor:
    """Bits [batch, height, width, bytes] -> the or of every window, for 0, 1 and for -1, 1. Padding never counts."""
    channels = 8 * bits.shape[-1]
    images = unpack(bits, channels).permute(0, 3, 1, 2)
    pooled = torch.nn.functional.max_pool2d(images, kernel, stride, padding, dilation)
    return pack(pooled.permute(0, 2, 3, 1) > 0)


def spikes(
    x: Tensor,
    scale: Tensor | None,
    shift: Tensor | None,
    *,
    leak: float,
    gain: float,
    threshold: float,
    soft: bool,
) -> Tensor:
    """Exact neurons over time: float32 [steps, ..., channels] -> bits [steps, ..., bytes].

    With z = scale x + shift: h = leak v + gain z, spike = h - threshold >= 0, then v = h - threshold spike (soft) or
    (1 - spike) h, from rest.
    """
    v, found = torch.zeros_like(x[0]), []
    for now in x:
        z = now if scale is None else now * scale
        z = z if shift is None else z + shift
        h = leak * v + gain * z
        fired = h - threshold >= 0
        v = h - threshold * fired if soft else torch.where(fired, 0.0, h)
        found.append(pack(fired))
    return torch.stack(found)
