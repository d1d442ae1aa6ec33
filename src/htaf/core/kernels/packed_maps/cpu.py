"""The compiled kernels of csrc/maps.cpp, with the signatures of reference.py."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from htaf.core.kernels.layers import Epilogue, Geometry, Outputs, row_bytes
from htaf.core.kernels.native import address, extension
from htaf.core.kernels.packed_maps.reference import LinearOfMeans, pack
from htaf.core.kernels.packed_native import CPU, aligned, check_bits, check_floats, check_weights, constants, shape2d

__all__ = ["finish", "max_pool", "means", "pack", "prepare_means", "spikes", "unpack"]


def unpack(bits: Tensor, channels: int, *, bipolar: bool = False, dtype: torch.dtype = torch.float32) -> Tensor:
    if bits.dtype != torch.uint8 or not bits.is_cpu or bits.ndim == 0 or bits.shape[-1] != row_bytes(channels):
        expected = f"uint8 [..., {row_bytes(channels)}] for {channels} channels on the CPU"
        raise ValueError(f"bits must be {expected}, got {bits.dtype} {tuple(bits.shape)} on {bits.device}")
    bits = aligned(bits.contiguous())
    values = torch.empty(*bits.shape[:-1], channels, dtype=torch.float32, device=CPU)
    below = -1.0 if bipolar else 0.0
    pixels = math.prod(bits.shape[:-1])
    extension().unpack_pixels(bits.data_ptr(), values.data_ptr(), pixels, channels, below, torch.get_num_threads())
    return values.to(dtype)


def finish(sums: Tensor, epilogue: Epilogue) -> Outputs:
    sums = check_floats("sums", sums, tuple(sums.shape))
    e, channels, lead = epilogue, sums.shape[-1], sums.shape[:-1]
    _kept, (scale, shift, lower, upper, *wide) = constants(e, channels)  # alive while the kernel runs
    residual = None if e.residual is None else check_floats("residual", e.residual, tuple(sums.shape))
    y = torch.empty_like(sums) if e.keep else None
    bits = None if e.lower is None else torch.empty(*lead, row_bytes(channels), dtype=torch.uint8, device=CPU)
    ends = (scale, shift, address(residual), address(y), lower, upper, address(bits), *wide)
    extension().finish(sums.data_ptr(), math.prod(lead), channels, ends, torch.get_num_threads())
    return y, bits


def max_pool(
    bits: Tensor,
    kernel: tuple[int, int],
    stride: tuple[int, int],
    padding: tuple[int, int],
    smallest: Tensor | None = None,
) -> Tensor:
    channels = 8 * bits.shape[-1]
    bits = check_bits(bits, channels)
    geometry = Geometry(channels, channels, kernel, stride, padding)
    if any(2 * p > k for p, k in zip(padding, kernel, strict=True)):
        raise ValueError(f"padding must be at most half of the kernel {kernel}, got {padding}")
    size = geometry.out_size(*bits.shape[1:3])
    found = torch.empty(bits.shape[0], *size, bits.shape[-1], dtype=torch.uint8, device=CPU)
    shape = shape2d(bits, geometry)
    if smallest is not None:
        smallest = aligned(check_weights("smallest", smallest, torch.uint8, (bits.shape[-1],)))
    extension().max_pool_bits(bits.data_ptr(), found.data_ptr(), shape, address(smallest), torch.get_num_threads())
    return found


class Laid(NamedTuple):
    """A `LinearOfMeans` as csrc/maps.hpp has it: weights [channels, outputs filled up to 8]."""

    weights: Tensor
    bias: Tensor
    unit: float

    def held(self) -> tuple[int, int, float, int, int]:
        """As csrc/bind_packed.hpp reads it."""
        return self.weights.data_ptr(), self.bias.data_ptr(), self.unit, len(self.weights), len(self.bias)


def prepare_means(layer: LinearOfMeans) -> Laid:
    """Raises ValueError as `LinearOfMeans.check`."""
    layer.check()
    outputs, channels = layer.weight.shape
    wide = torch.zeros(channels, (outputs + 7) // 8 * 8, dtype=torch.int32, device=CPU)
    wide[:, :outputs] = layer.weight.T
    return Laid(wide, layer.bias.contiguous(), layer.unit)


def means(bits: Tensor, layer: Laid) -> Tensor:
    bits = check_bits(bits, len(layer.weights))
    steps, images, pixels, _ = bits.shape
    y = torch.empty(images, len(layer.bias), dtype=torch.float32, device=CPU)
    sizes = (steps, images, pixels)
    extension().linear_of_means(bits.data_ptr(), y.data_ptr(), sizes, layer.held(), torch.get_num_threads())
    return y


def spikes(x: Tensor, *, leak: float, gain: float, threshold: float, soft: bool) -> Tensor:
    if x.dtype != torch.float32 or x.device.type != "cpu" or x.ndim < 2:
        raise TypeError(f"x must be float32 [steps, ..., channels] on the CPU, got {x.dtype} {tuple(x.shape)}")
    if x.numel() and not x[0].is_contiguous():
        x = x.contiguous()
    steps, channels = len(x), x.shape[-1]
    bits = torch.empty(*x.shape[:-1], row_bytes(channels), dtype=torch.uint8, device=CPU)
    neuron = (0, 0, leak, gain, threshold, soft)  # no scale and no shift
    pixels = math.prod(x.shape[1:-1])
    extension().spikes(
        x.data_ptr(), x.stride(0), bits.data_ptr(), steps, pixels, channels, neuron, torch.get_num_threads()
    )
    return bits
