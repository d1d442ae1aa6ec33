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
    """From int8 [outputs, channels / groups, kernel height, kernel width]. Args, raises: as reference.py."""
    check(weight, geometry, planes)
    return Weights(lay(weight, geometry), planes, torch.zeros(geometry.outputs, dtype=torch.float64, device="cpu"))


def lay(weight: Tensor, g: Geometry) -> Tensor:
    """int8 [groups, blocks, taps, words, 64, 4], the channels of a group four a word; what fills these up is 0."""
    inner, channels, taps = g.outputs // g.groups, g.channels // g.groups, g.kernel[0] * g.kernel[1]
    laid = weight.permute(0, 2, 3, 1).reshape(g.groups, inner, taps, channels)
    laid = torch.nn.functional.pad(laid, (0, -channels % 4, 0, 0, 0, -inner % BLOCK))
    return laid.view(g.groups, -1, BLOCK, taps, (channels + 3) // 4, 4).permute(0, 1, 3, 4, 2, 5).contiguous()


def check_laid(values: Tensor, g: Geometry) -> Tensor:
    """The weights as `lay` gives them. Raises ValueError where they are for another geometry."""
    taps, words = g.kernel[0] * g.kernel[1], (g.channels // g.groups + 3) // 4
    blocks = (g.outputs // g.groups + BLOCK - 1) // BLOCK
    return check_weights("values", values, torch.int8, (g.groups, blocks, taps, words, BLOCK, 4))


def bind(weights: Weights, geometry: Geometry, epilogue: Epilogue) -> Bound:
    """The layer with its weights and constants, checked once. Raises as `forward`."""
    geometry.check()
    values = check_laid(weights.values, geometry)
    held, run = (values.data_ptr(), weights.planes), extension().integer_convolution

    return bound("integer", run, held, (values,), geometry, epilogue, planes=weights.planes)


forward = forward_of(bind)
