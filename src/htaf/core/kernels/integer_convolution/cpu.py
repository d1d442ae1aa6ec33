"""The compiled kernels of csrc/integers.cpp, with the signatures of reference.py."""

from __future__ import annotations

import torch
from torch import Tensor

from htaf.core.kernels.integer_convolution.reference import Weights, check
from htaf.core.kernels.layers import Bound, Epilogue, Geometry, forward_of
from htaf.core.kernels.native import extension
from htaf.core.kernels.packed_native import bound, check_weights

__all__ = ["Weights", "bind", "forward", "prepare"]

BLOCK = 64  # outputs of a group that lie side by side, as in csrc/integers.hpp


def prepare(weight: Tensor, geometry: Geometry, *, planes: int = 1) -> Weights:
    """From int8 [outputs, channels / groups, kernel height, kernel width]. Args, raises: as reference.py.

    values: int8 [groups, blocks, taps, words, 64, 4], the channels of a group four a word; what fills these up is 0.
    """
    g = geometry
    check(weight, g, planes)
    inner, channels, taps = g.outputs // g.groups, g.channels // g.groups, g.kernel[0] * g.kernel[1]
    laid = weight.permute(0, 2, 3, 1).reshape(g.groups, inner, taps, channels)
    laid = torch.nn.functional.pad(laid, (0, -channels % 4, 0, 0, 0, -inner % BLOCK))
    laid = laid.view(g.groups, -1, BLOCK, taps, (channels + 3) // 4, 4).permute(0, 1, 3, 4, 2, 5)
    return Weights(laid.contiguous(), planes, torch.zeros(g.outputs, dtype=torch.float64, device="cpu"))


def bind(weights: Weights, geometry: Geometry, epilogue: Epilogue) -> Bound:
    """The layer with its weights and constants, checked once. Raises as `forward`."""
    g = geometry
    g.check()
    taps, words = g.kernel[0] * g.kernel[1], (g.channels // g.groups + 3) // 4
    blocks = (g.outputs // g.groups + BLOCK - 1) // BLOCK
    values = check_weights("values", weights.values, torch.int8, (g.groups, blocks, taps, words, BLOCK, 4))
    held, run = (values.data_ptr(), weights.planes), extension().integer_convolution

    return bound("integer", run, held, (values,), g, epilogue, planes=weights.planes)


forward = forward_of(bind)
