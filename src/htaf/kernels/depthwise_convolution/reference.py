"""Convolution of bits or small integers where every channel has weights of its own and one output.

    sum[c] = sum over taps inside the image of level[c] weight[c, tap]

The level is the bit, or -1 and 1 (bipolar), or the sum of 2^i times the bits of plane i. Padding adds nothing. Sums are
float32, tap by tap; of integer weights they are exact while they stay below 2^24.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from htaf.kernels.layers import Epilogue, Geometry, Outputs, bind_of, row_bytes
from htaf.kernels.packed_maps import reference as maps

MOST_PLANES = 7
COLUMNS = 24  # of the output that a part of the work has, see csrc/depthwise.cpp


def scratch_bytes(geometry: Geometry) -> int:
    """The most memory that the compiled kernel takes for its weights, or a thread for rows of floats."""
    height, width = geometry.kernel
    weights = 4 * height * width * 8 * row_bytes(geometry.channels)
    return max(weights, 4 * 64 * height * max(2 * COLUMNS + width, COLUMNS * width))


class Weights(NamedTuple):
    """Made by `prepare`: what `forward` of the same file takes. error: float64 [outputs], of exact tables: 0."""

    values: Tensor
    planes: int
    bipolar: bool
    error: Tensor


def depthwise(geometry: Geometry) -> bool:
    """Whether every channel, of several, is a group with one output."""
    return 1 < geometry.groups == geometry.channels == geometry.outputs


def prepare(weight: Tensor, geometry: Geometry, *, planes: int = 1, bipolar: bool = False) -> Weights:
    """From float32 [channels, 1, kernel height, kernel width].

    Args:
        planes: of bits of the inputs. bipolar: bits are -1 and 1; of one plane.

    Raises:
        TypeError, ValueError: another type or shape, weights that are not finite, another number of planes.
    """
    check(weight, geometry, planes, bipolar)
    return Weights(weight, planes, bipolar, torch.zeros(geometry.outputs, dtype=torch.float64, device=weight.device))


def check(weight: Tensor, geometry: Geometry, planes: int, bipolar: bool) -> None:
    """Raises TypeError or ValueError as `prepare` says."""
    g = geometry
    g.check()
    if not depthwise(g):
        raise ValueError(f"expected as many groups and outputs as channels, 2 or more, got {g}")
    if weight.dtype != torch.float32 or weight.device.type != "cpu":
        raise TypeError(f"weight must be float32 on the CPU, got {weight.dtype} on {weight.device}")
    if tuple(weight.shape) != (expected := (g.outputs, 1, *g.kernel)):
        raise ValueError(f"expected weight {expected}, got {tuple(weight.shape)}")
    if not bool(weight.isfinite().all()):
        raise ValueError("expected finite weights, got NaN or inf")
    if not 1 <= planes <= MOST_PLANES or (bipolar and planes > 1):
        raise ValueError(f"expected 1 to {MOST_PLANES} planes, 1 of -1 and 1, got {planes}")


def forward(bits: Tensor, weights: Weights, geometry: Geometry, epilogue: Epilogue) -> Outputs:
    """Bits [batch, height, width, planes row_bytes(channels)] -> y [batch, out height, out width, outputs], bits."""
    g, width = geometry, row_bytes(geometry.channels)
    planes = bits.unflatten(-1, (weights.planes, width)).unbind(-2)
    levels = torch.zeros(())
    for i, plane in enumerate(planes):
        levels = levels + 2.0**i * maps.unpack(plane.contiguous(), g.channels)
    if weights.bipolar:
        levels = 2 * levels - 1
    sums = torch.nn.functional.conv2d(
        levels.permute(0, 3, 1, 2), weights.values, None, g.stride, g.padding, g.dilation, g.groups
    )
    return maps.finish(sums.permute(0, 2, 3, 1).contiguous(), epilogue)


bind = bind_of(forward)
