"""The compiled kernels of csrc/binary.cpp, with the signatures of reference.py."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from htaf.kernels.layers import Epilogue, Geometry, Outputs, row_bytes
from htaf.kernels.native import extension

__all__ = ["Weights", "forward", "prepare"]

BLOCK = 64  # outputs of a group that lie side by side, as in csrc/binary.hpp
MOST_PRODUCTS = 2**24  # of one sum: up to here float32 holds every integer


class Weights(NamedTuple):
    """Made by `prepare` for one geometry.

    signs: int32 [groups, blocks, taps, words, 64]; ones: int32 [taps, groups, blocks, 64], how many signs of a tap are 1.
    """

    signs: Tensor
    ones: Tensor
    bipolar: bool


def prepare(signs: Tensor, geometry: Geometry, *, bipolar: bool) -> Weights:
    """From bits uint8 [outputs, kernel height, kernel width, row_bytes(channels / groups)], 1 for +1.

    Raises:
        ValueError: another type or shape, or sums of more than 2^24 products.
    """
    g = geometry
    _check_geometry(g)
    channels, taps = g.channels // g.groups, g.kernel[0] * g.kernel[1]
    _check(signs, "signs", torch.uint8, (g.outputs, *g.kernel, row_bytes(channels)))
    if channels * taps > MOST_PRODUCTS:
        raise ValueError(f"expected sums of at most 2^24 products, got {channels * taps}")
    inner, words = g.outputs // g.groups, (channels + 31) // 32
    blocks = (inner + BLOCK - 1) // BLOCK
    laid = signs.new_zeros(g.groups, blocks * BLOCK, taps, 4 * words)
    laid[:, :inner] = signs.reshape(g.groups, inner, taps, -1)[..., : 4 * words]
    counts = torch.zeros(laid.shape[:-1], dtype=torch.int32)
    for bit in range(8):
        counts += (laid >> bit & 1).sum(-1, dtype=torch.int32)
    laid = laid.view(torch.int32).view(g.groups, blocks, BLOCK, taps, words).permute(0, 1, 3, 4, 2)
    ones = counts.view(g.groups, blocks, BLOCK, taps).permute(3, 0, 1, 2)
    return Weights(laid.contiguous(), ones.contiguous(), bipolar)


def forward(bits: Tensor, weights: Weights, geometry: Geometry, epilogue: Epilogue) -> Outputs:
    """Bits [batch, height, width, row_bytes(channels)] -> y [batch, out height, out width, outputs] and its bits.

    Raises:
        ValueError: tensors whose type or shape is not that of `Geometry` and `Epilogue`.
    """
    g, e = geometry, epilogue
    _check_geometry(g)
    if bits.ndim != 4:
        raise ValueError(f"expected bits of 4 dimensions, got {tuple(bits.shape)}")
    batch, height, width, _ = bits.shape
    _check(bits, "bits", torch.uint8, (batch, height, width, row_bytes(g.channels)))
    taps, words = g.kernel[0] * g.kernel[1], (g.channels // g.groups + 31) // 32
    blocks = (g.outputs // g.groups + BLOCK - 1) // BLOCK
    _check(weights.signs, "signs", torch.int32, (g.groups, blocks, taps, words, BLOCK))
    _check(weights.ones, "ones", torch.int32, (taps, g.groups, blocks, BLOCK))
    out = (batch, *g.out_size(height, width))
    for name in ("scale", "shift", "lower", "upper"):
        _check(getattr(e, name), name, torch.float32, (g.outputs,))
    _check(e.residual, "residual", torch.float32, (*out, g.outputs))
    if (e.lower is None) != (e.upper is None):
        raise ValueError("expected both lower and upper or none, got one")
    y = torch.empty(*out, g.outputs, dtype=torch.float32) if e.keep else None
    found = None if e.lower is None else torch.empty(*out, row_bytes(g.outputs), dtype=torch.uint8)
    # kept until the call has returned
    held = [None if x is None else x.contiguous() for x in (e.scale, e.shift, e.residual, y, e.lower, e.upper, found)]
    bits, signs, ones = bits.contiguous(), weights.signs.contiguous(), weights.ones.contiguous()
    sizes = (batch, height, width, g.channels, g.outputs, g.kernel, g.stride, g.padding, g.dilation, g.groups)
    extension().binary_convolution(
        sizes, bits.data_ptr(), signs.data_ptr(), ones.data_ptr(), weights.bipolar,
        tuple(0 if x is None else x.data_ptr() for x in held), torch.get_num_threads(),
    )  # fmt: skip
    return y, found


def _check(x: Tensor | None, name: str, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    if x is not None and (x.dtype != dtype or x.shape != shape or x.device.type != "cpu"):
        got = f"{x.dtype} {tuple(x.shape)} on {x.device}"
        raise ValueError(f"{name}: expected {dtype} {shape} on cpu, got {got}")


def _check_geometry(g: Geometry) -> None:
    if min(g.channels, g.outputs, g.groups, *g.kernel, *g.stride, *g.dilation) < 1 or min(g.padding) < 0:
        raise ValueError(f"expected sizes of 1 or more and padding of 0 or more, got {g}")
    if g.channels % g.groups or g.outputs % g.groups:
        raise ValueError(f"expected channels and outputs that {g.groups} groups divide, got {g.channels}, {g.outputs}")
