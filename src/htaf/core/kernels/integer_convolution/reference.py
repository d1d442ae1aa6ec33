"""Convolution of small integers with integer weights: exact sums, by products of bytes where it is fast.

The inputs are bits, or sums of 2^i times the bits of plane i; weights are integers in -127 to 127. Padding adds zeros.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from htaf.core.kernels.layers import EXACT, Epilogue, Geometry, Outputs, bind_of, row_bytes
from htaf.core.kernels.packed_maps import reference as maps

MOST = 127  # of a weight
LARGEST_INPUT = 128  # so that two products fit 16 bits


class Weights(NamedTuple):
    """Made by `prepare`: what `forward` of the same file takes. error: of the sums, as tables have one; 0."""

    values: Tensor
    planes: int
    error: Tensor


def prepare(weight: Tensor, geometry: Geometry, *, planes: int = 1) -> Weights:
    """From int8 [outputs, channels / groups, kernel height, kernel width].

    Args:
        planes: of bits of the inputs; each holds the geometry's channels.

    Raises:
        TypeError, ValueError: another type or shape, weights of -128, planes beyond 7 or in groups, or sums that may
            reach 2^24.
    """
    check(weight, geometry, planes)
    return Weights(weight, planes, torch.zeros(geometry.outputs, dtype=torch.float64))


def check(weight: Tensor, geometry: Geometry, planes: int) -> None:
    """Raises TypeError or ValueError as `prepare` says."""
    g = geometry
    g.check()
    expected = (g.outputs, g.channels // g.groups, *g.kernel)
    if weight.dtype != torch.int8 or weight.device.type != "cpu":
        raise TypeError(f"weight must be int8 on the CPU, got {weight.dtype} on {weight.device}")
    if tuple(weight.shape) != expected:
        raise ValueError(f"expected weight {expected}, got {tuple(weight.shape)}")
    if not 1 <= planes <= LARGEST_INPUT.bit_length() - 1 or (planes > 1 and g.groups > 1):
        raise ValueError(f"expected 1 to 7 planes, 1 of layers in groups, got {planes} and {g.groups} groups")
    check_exact(weight, planes)


def check_exact(weight: Tensor, planes: int) -> None:
    """Raises ValueError for int8 weights [outputs, ...] of -128, or sums over so many planes that float32 rounds."""
    if weight.numel() and bool((weight == -128).any()):
        raise ValueError("expected weights of -127 to 127, got -128")
    sums = weight.int().abs().flatten(1).sum(1) * (2**planes - 1)
    if len(sums) and int(sums.max()) >= EXACT:
        raise ValueError(f"expected sums below 2^24, got up to {int(sums.max())}")


def forward(bits: Tensor, weights: Weights, geometry: Geometry, epilogue: Epilogue) -> Outputs:
    """Bits [batch, height, width, planes row_bytes(channels)] -> y [batch, out height, out width, outputs], bits."""
    g, width = geometry, row_bytes(geometry.channels)
    planes = bits.unflatten(-1, (weights.planes, width)).unbind(-2)
    images = sum(
        (2.0**i * maps.unpack(plane.contiguous(), g.channels) for i, plane in enumerate(planes)), start=torch.zeros(())
    )
    sums = torch.nn.functional.conv2d(
        images.double().permute(0, 3, 1, 2), weights.values.double(), None, g.stride, g.padding, g.dilation, g.groups
    )
    return maps.finish(sums.float().permute(0, 2, 3, 1).contiguous(), epilogue)


bind = bind_of(forward)
