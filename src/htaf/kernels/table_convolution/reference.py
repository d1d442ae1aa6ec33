"""Convolution of activations 0 and 1 with real weights: sums of subsets of the weights, looked up in tables."""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from htaf.kernels.layers import Epilogue, Geometry, Outputs
from htaf.kernels.packed_maps import reference as maps

Kind = Literal["float32", "int16", "int8"]


class Weights(NamedTuple):
    """Made by `prepare`: what `forward` of the same file takes.

    error: float64 [outputs], a bound of |sum - exact sum| over all activations, rounding of float32 left aside.
    """

    weight: Tensor
    kind: Kind
    error: Tensor


def prepare(weight: Tensor, geometry: Geometry, kind: Kind) -> Weights:
    """From float32 [outputs, channels / groups, kernel height, kernel width]."""
    return Weights(weight, kind, torch.zeros(geometry.outputs, dtype=torch.float64))


def forward(bits: Tensor, weights: Weights, geometry: Geometry, epilogue: Epilogue) -> Outputs:
    """Bits [batch, height, width, row_bytes(channels)] -> y [batch, out height, out width, outputs] and its bits."""
    g = geometry
    images = maps.unpack(bits, g.channels).permute(0, 3, 1, 2)
    sums = torch.nn.functional.conv2d(images, weights.weight, None, g.stride, g.padding, g.dilation, g.groups)
    return maps.finish(sums.permute(0, 2, 3, 1).contiguous(), epilogue)
