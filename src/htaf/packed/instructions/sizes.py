"""Sizes without content: what instructions expect of the tensors that they take, before anything runs."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from htaf.kernels.layers import row_bytes
from htaf.packed.errors import PackedError

BATCH = 2  # for which sizes are checked
_ENTRIES = 1 << 33


def empty(sizes: list[int], dtype: torch.dtype) -> Tensor:
    """A tensor of these sizes on the device "meta". Raises PackedError for negative or huge ones."""
    if any(size < 0 for size in sizes) or math.prod(sizes) > _ENTRIES:
        raise PackedError(f"expected values of at most {_ENTRIES:,} entries, got {sizes}")
    return torch.empty(sizes, dtype=dtype, device="meta")


def expect(tensor: Any, sizes: list[int], dtype: torch.dtype) -> None:
    """Raises PackedError for other sizes or another dtype."""
    if not isinstance(tensor, Tensor) or tensor.dtype != dtype or list(tensor.shape) != sizes:
        got = f"{tensor.dtype} {list(tensor.shape)}" if isinstance(tensor, Tensor) else type(tensor).__name__
        raise PackedError(f"expected {dtype} {sizes}, got {got}")


def expect_channels(tensor: Tensor, channels: int) -> None:
    """Raises PackedError where there is not a number of every channel, or one for all."""
    expect(tensor, [1] if list(tensor.shape) == [1] else [channels], torch.float32)


def expect_bits(x: Any, rank: int | None, channels: int | None) -> Tensor:
    """The bits [..., bytes], of this rank and of so many channels. Raises PackedError for others."""
    x = expect_tensor(x)
    fits = x.dtype == torch.uint8 and x.ndim >= 1 and (rank is None or x.ndim == rank)
    if not fits or (x.shape[-1] % 8 if channels is None else x.shape[-1] != row_bytes(channels)):
        wanted = "whole words" if channels is None else f"{row_bytes(channels)} bytes"
        raise PackedError(f"expected bits of {wanted} a pixel, got {x.dtype} {list(x.shape)}")
    return x


def expect_floats(x: Any, axis: int) -> Tensor:
    """The floats, which have a dimension `axis`. Raises PackedError for others."""
    x = expect_tensor(x)
    if x.dtype != torch.float32 or axis >= x.ndim:
        raise PackedError(f"expected floats with a dimension {axis}, got {x.dtype} {list(x.shape)}")
    return x


def expect_tensor(x: Any) -> Tensor:
    """The tensor. Raises PackedError for what a `split` makes, a list of them."""
    if not isinstance(x, Tensor):
        raise PackedError("expected a tensor, got a list of them")
    return x


def packed_along(x: Tensor, axis: int) -> Tensor:
    """The sizes of the bits of floats whose channels lie in dimension `axis`."""
    sizes = list(x.shape)
    channels = sizes.pop(axis)
    return empty([*sizes, row_bytes(channels)], torch.uint8)
