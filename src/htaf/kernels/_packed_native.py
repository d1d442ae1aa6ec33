"""What the compiled layers over packed bits share: tensors checked, and handed over as addresses.

The kernels read and write memory as these say, so nothing passes unchecked.
"""

from __future__ import annotations

import torch
from torch import Tensor

from htaf.kernels.layers import Epilogue, Geometry, row_bytes


def check_bits(bits: Tensor, channels: int) -> Tensor:
    """Dense bits of images.

    Raises:
        TypeError: not uint8 on the CPU.
        ValueError: not [batch, height, width, row_bytes(channels)].
    """
    if bits.dtype != torch.uint8 or bits.device.type != "cpu":
        raise TypeError(f"bits must be uint8 on the CPU, got {bits.dtype} on {bits.device}")
    if bits.ndim != 4 or bits.shape[-1] != row_bytes(channels):
        raise ValueError(
            f"bits of {channels} channels must be [batch, height, width, {row_bytes(channels)}], "
            f"got {tuple(bits.shape)}"
        )
    return aligned(bits.contiguous())


def aligned(bits: Tensor) -> Tensor:
    """The same bits at an address that is a multiple of a word's size."""
    return bits if bits.data_ptr() % 8 == 0 else bits.clone()


def check_floats(name: str, x: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Dense float32 of that shape. Raises TypeError or ValueError."""
    if x.dtype != torch.float32 or x.device.type != "cpu":
        raise TypeError(f"{name} must be float32 on the CPU, got {x.dtype} on {x.device}")
    if tuple(x.shape) != shape:
        raise ValueError(f"{name} must have the shape {shape}, got {tuple(x.shape)}")
    return x.contiguous()


class Finishing:
    """The tensors of an epilogue: those given, checked, and the results, y and bits, None where not wanted."""

    def __init__(self, epilogue: Epilogue, shape: tuple[int, ...]) -> None:
        e, channels = epilogue, shape[-1]
        if (e.lower is None) != (e.upper is None):
            raise ValueError("expected both lower and upper or neither, got one of them")
        given = [
            x if x is None else check_floats(name, x, (channels,))
            for name, x in (("scale", e.scale), ("shift", e.shift), ("lower", e.lower), ("upper", e.upper))
        ]
        residual = None if e.residual is None else check_floats("residual", e.residual, shape)
        self.y = torch.empty(shape) if e.keep else None
        self.bits = None if e.lower is None else torch.empty(*shape[:-1], row_bytes(channels), dtype=torch.uint8)
        self.kept = (*given[:2], residual, self.y, *given[2:], self.bits)  # alive while the kernel runs

    def addresses(self) -> tuple[int, ...]:
        return tuple(0 if x is None else x.data_ptr() for x in self.kept)


Shape2d = tuple[tuple[int, int, int, int, int], tuple[int, int], tuple[int, int], tuple[int, int], tuple[int, int], int]


def shape2d(bits: Tensor, geometry: Geometry) -> Shape2d:
    """As csrc/bind_packed.hpp reads it."""
    g = geometry
    batch, height, width, _ = bits.shape
    return (batch, height, width, g.channels, g.outputs), g.kernel, g.stride, g.padding, g.dilation, g.groups
