"""The compiled kernels of csrc/binary.cpp, with the signatures of reference.py."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from htaf.core.kernels.integer_convolution.cpu import BLOCK, check_laid, lay
from htaf.core.kernels.layers import EXACT, Bound, Epilogue, Geometry, forward_of, row_bytes
from htaf.core.kernels.native import address, extension
from htaf.core.kernels.packed_maps.reference import unpack
from htaf.core.kernels.packed_native import bound, check_weights

__all__ = ["Weights", "bind", "forward", "prepare"]


class Weights(NamedTuple):
    """Made by `prepare` for one geometry.

    signs: int32 [groups, blocks, taps, words, 64]; ones: int32 [taps, groups, blocks, 64], how many signs of a tap are
    1. A group's outputs are in blocks of 64, its channels in words of 32; what fills these up is 0. values: for tiles,
    the signs as bytes -1 and 1, laid as integer weights.
    """

    signs: Tensor
    ones: Tensor
    bipolar: bool
    values: Tensor | None = None


def prepare(signs: Tensor, geometry: Geometry, *, bipolar: bool, tiles: bool = False) -> Weights:
    """From bits uint8 [outputs, kernel height, kernel width, row_bytes(channels / groups)], 1 for +1.

    tiles: the kernel is the one on tiles, where the instruction set has these.

    Raises:
        ValueError: another type or shape, or sums of more than 2^24 products.
    """
    g = geometry
    g.check()
    channels, taps = g.channels // g.groups, g.kernel[0] * g.kernel[1]
    signs = check_weights("signs", signs, torch.uint8, (g.outputs, *g.kernel, row_bytes(channels)))
    if channels * taps > EXACT:
        raise ValueError(f"expected sums of at most 2^24 products, got {channels * taps}")
    inner, words = g.outputs // g.groups, (channels + 31) // 32
    whole = unpack(signs, channels, bipolar=True, dtype=torch.int8).permute(0, 3, 1, 2) if tiles else None
    signs = signs.reshape(g.groups, inner, taps, -1)[..., : 4 * words]
    counts = sum(
        ((signs >> bit & 1).sum(-1, dtype=torch.int32) for bit in range(8)),
        start=torch.zeros((), dtype=torch.int32, device="cpu"),
    )
    filled = (0, 0, 0, -inner % BLOCK)
    laid = torch.nn.functional.pad(signs, (0, 0, *filled)).view(torch.int32)
    laid = laid.view(g.groups, -1, BLOCK, taps, words).permute(0, 1, 3, 4, 2)
    ones = torch.nn.functional.pad(counts, filled).view(g.groups, -1, BLOCK, taps).permute(3, 0, 1, 2)
    return Weights(laid.contiguous(), ones.contiguous(), bipolar, None if whole is None else lay(whole, g))


def bind(weights: Weights, geometry: Geometry, epilogue: Epilogue) -> Bound:
    """The layer with its weights and constants, checked once. Raises as `forward`."""
    g = geometry
    g.check()
    taps, words = g.kernel[0] * g.kernel[1], (g.channels // g.groups + 31) // 32
    blocks = (g.outputs // g.groups + BLOCK - 1) // BLOCK
    signs = check_weights("signs", weights.signs, torch.int32, (g.groups, blocks, taps, words, BLOCK))
    ones = check_weights("ones", weights.ones, torch.int32, (taps, g.groups, blocks, BLOCK))
    values = None if weights.values is None else check_laid(weights.values, g)
    held = signs.data_ptr(), ones.data_ptr(), weights.bipolar, address(values)
    kept = (signs, ones) if values is None else (signs, ones, values)

    return bound("binary", extension().binary_convolution, held, kept, g, epilogue)


forward = forward_of(bind)
