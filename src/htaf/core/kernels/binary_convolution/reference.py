"""Convolution of bits with binary weights: exact integers, by xor and popcount where it is fast.

Activations are 0 and 1, or -1 and 1 (`bipolar`); weights are -1 and 1. Padding adds zeros in both conventions: with -1
and 1 a tap outside the image counts nothing, neither +1 nor -1.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from htaf.core.kernels.layers import Epilogue, Geometry, Outputs, bind_of
from htaf.core.kernels.packed_maps import reference as maps


class Weights(NamedTuple):
    """Made by `prepare`: what `forward` of the same file takes."""

    signs: Tensor
    bipolar: bool


def prepare(signs: Tensor, geometry: Geometry, *, bipolar: bool) -> Weights:
    """From bits uint8 [outputs, kernel height, kernel width, row_bytes(channels / groups)], 1 for +1."""
    return Weights(signs, bipolar)


def forward(bits: Tensor, weights: Weights, geometry: Geometry, epilogue: Epilogue) -> Outputs:
    """Bits [batch, height, width, row_bytes(channels)] -> y [batch, out height, out width, outputs] and its bits."""
    g = geometry
    images = maps.unpack(bits, g.channels, bipolar=weights.bipolar).permute(0, 3, 1, 2)
    kernels = maps.unpack(weights.signs, g.channels // g.groups, bipolar=True).permute(0, 3, 1, 2)
    # integers up to 2^24, which float32 adds exactly
    sums = torch.nn.functional.conv2d(images, kernels, None, g.stride, g.padding, g.dilation, g.groups)
    return maps.finish(sums.permute(0, 2, 3, 1).contiguous(), epilogue)


bind = bind_of(forward)
