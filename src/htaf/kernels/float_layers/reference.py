"""Layers over floats that stand between those over bits: PyTorch's own. Images as PyTorch has them."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from htaf.kernels.layers import Geometry

Images = Float[Tensor, "_ _ _ _"]


def convolution(x: Images, weight: Images, bias: Float[Tensor, " outputs"] | None, geometry: Geometry) -> Images:
    """As torch.nn.functional.conv2d."""
    g = geometry
    return torch.nn.functional.conv2d(x, weight, bias, g.stride, g.padding, g.dilation, g.groups)


def average(x: Images, kernel: tuple[int, int], stride: tuple[int, int]) -> Images:
    """As torch.nn.functional.avg_pool2d without padding."""
    return torch.nn.functional.avg_pool2d(x, kernel, stride)


def maximum(x: Images, kernel: tuple[int, int], stride: tuple[int, int], padding: tuple[int, int]) -> Images:
    """As torch.nn.functional.max_pool2d."""
    return torch.nn.functional.max_pool2d(x, kernel, stride, padding)


MOST = 8191  # of an integer input, as in csrc/floats.hpp
LIMIT = (2**31 - 1) // MOST  # of the sum of an output's |integers|, so that sums fit in 32 bits
LEAST = 2.0**-126  # of the unit of an image's integers, so that its inverse is finite; as in csrc/floats.hpp


class Rounded(NamedTuple):
    """Weights as integers, from `rounding`: weight = unit values, values int32 [outputs, channels, height, width]."""

    values: Tensor
    unit: Float[Tensor, " outputs"]


def rounding(weight: Images) -> Rounded:
    """The finest integers of 16 bits of which no sum with inputs of at most 8191 leaves 32 bits.

    Raises:
        ValueError: weights that are not finite, or more than 2^17 inputs of an output.
    """
    w, inputs = weight.double(), weight[0].numel()
    if not w.isfinite().all():
        raise ValueError(f"expected finite weights, got {int((~w.isfinite()).sum())} of {w.numel()} not")
    if inputs > 2**17:
        raise ValueError(f"expected weights of at most {2**17} inputs, got {inputs}")
    flat = w.flatten(1).abs()
    unit = torch.maximum(flat.amax(1) / 32767, flat.sum(1) / (LIMIT - inputs)).clamp(min=2.0**-100)
    unit = unit.float().nextafter(torch.tensor(torch.inf))  # or sums might be a little too large
    return Rounded((w / unit.double().reshape(-1, 1, 1, 1)).round().int(), unit)


def steps(x: Images) -> Float[Tensor, " batch"]:
    """The unit of each image's integers, max |x| / 8191 and at least `LEAST`; NaN where a number is not finite."""
    largest = x.abs().flatten(1).amax(1)
    return torch.where(largest < torch.inf, (largest / MOST).clamp(min=LEAST), torch.nan)


def rounded(x: Images, weights: Rounded, bias: Float[Tensor, " outputs"] | None, geometry: Geometry) -> Images:
    """A convolution of integers, round(x / step) with the step of each image, times both units, plus bias.

    An image that holds NaN or inf gives NaN everywhere.
    """
    g, step = geometry, steps(x).reshape(-1, 1, 1, 1)
    q = (x * (1 / step)).round().clamp(-MOST, MOST)
    sums = torch.nn.functional.conv2d(
        q.double(), weights.values.double(), None, g.stride, g.padding, g.dilation, g.groups
    )
    y = sums.float() * (weights.unit.reshape(1, -1, 1, 1) * step)
    return y if bias is None else y + bias.reshape(1, -1, 1, 1)


def rounding_error(x: Images, weight: Images, weights: Rounded) -> Float[Tensor, " outputs"]:
    """How far `rounded` may lie from the convolution, of each output, float64. x: finite."""
    flat, inputs = weight.double().abs().flatten(1).sum(1), weight[0].numel()
    largest = x.double().abs().max() if x.numel() else torch.zeros((), dtype=torch.float64)
    half = 0.5 * (1 + 2.0**-10)  # x times a rounded inverse, beside a half
    error = half * (largest / MOST).clamp(min=LEAST) * flat + half * weights.unit.double() * inputs * largest
    return error + 8 * 2.0**-24 * flat * largest + 2.0**-118  # 2^31 times the product of units below normal numbers
