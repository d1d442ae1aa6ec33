"""The compiled kernels of csrc/floats.cpp; results lie in channels_last."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from htaf.core.kernels.float_layers.reference import Rounded
from htaf.core.kernels.layers import Geometry
from htaf.core.kernels.native import address, extension
from htaf.core.kernels.packed_native import CPU, Shape2d, check_floats, check_weights

BLOCK = 64  # outputs that lie side by side, as in csrc/floats.hpp
NO_WINDOW = ((0, 0), (1, 1), (0, 0))  # kernel, stride, padding of a maximum over windows: none is taken


def prepare(weight: Tensor) -> Tensor:
    """float32 [outputs, channels, height, width] -> [blocks of 64 outputs, height, width, channels, 64]."""
    outputs, channels, height, width = weight.shape
    blocks = (outputs + BLOCK - 1) // BLOCK
    filled = torch.zeros(blocks * BLOCK, channels, height, width, dtype=torch.float32, device=CPU)
    filled[:outputs] = weight
    return filled.view(blocks, BLOCK, channels, height, width).permute(0, 3, 4, 2, 1).contiguous()


def convolution(x: Tensor, weights: Tensor, bias: Tensor | None, geometry: Geometry) -> Tensor:
    """x [batch, channels, height, width] in any layout; weights as `prepare` gives them.

    Raises:
        TypeError: not float32 on the CPU.
        ValueError: sizes that do not fit, several groups, or a kernel larger than the padded image.
    """
    g = geometry
    g.check()
    if x.dtype != torch.float32 or x.device.type != "cpu":
        raise TypeError(f"x must be float32 on the CPU, got {x.dtype} on {x.device}")
    if x.ndim != 4 or x.shape[1] != g.channels or g.groups != 1:
        raise ValueError(f"expected images of {g.channels} channels in one group, got {tuple(x.shape)} and {g}")
    weights = check_floats("weights", weights, ((g.outputs + BLOCK - 1) // BLOCK, *g.kernel, g.channels, BLOCK))
    return _layer(extension().float_convolution, x, weights.data_ptr(), bias, g)


def _layer(run: Callable[..., None], x: Tensor, held: Any, bias: Tensor | None, g: Geometry) -> Tensor:
    """A kernel over images, whose weights have these addresses."""
    bias = None if bias is None else check_floats("bias", bias, (g.outputs,))  # named, so that a dense copy stays
    y = torch.empty(x.shape[0], *g.out_size(*x.shape[2:]), g.outputs, dtype=torch.float32, device=CPU)
    ends = (0, address(bias), 0, y.data_ptr(), 0, 0, 0, 0, 0)
    run(shape_of(x, g), x.data_ptr(), strides_of(x), held, NO_WINDOW, ends, torch.get_num_threads())
    return y.permute(0, 3, 1, 2)


class Laid(NamedTuple):
    """Integers of weights as csrc/floats.hpp has them: [blocks, height, pairs, 64, 2]; unit [64 blocks]."""

    values: Tensor
    unit: Tensor
    steps: float
    most: float

    def held(self) -> tuple[int, int, float, float]:
        """As csrc/bind_packed.hpp reads it."""
        return self.values.data_ptr(), self.unit.data_ptr(), self.steps, self.most


def prepare_rounded(weights: Rounded) -> Laid:
    """Raises ValueError as `Rounded.check`."""
    weights.check()
    outputs, channels, height, width = weights.values.shape
    blocks, pairs = (outputs + BLOCK - 1) // BLOCK, (channels * width + 1) // 2
    rows = torch.zeros(blocks * BLOCK, height, 2 * pairs, dtype=torch.int16, device=CPU)
    rows[:outputs, :, : channels * width] = weights.values.permute(0, 2, 3, 1).flatten(2)
    unit = torch.zeros(blocks * BLOCK, dtype=torch.float32, device=CPU)
    unit[:outputs] = weights.unit * 2.0**-weights.exponent
    values = rows.view(blocks, BLOCK, height, pairs, 2).permute(0, 2, 3, 1, 4).contiguous()
    return Laid(values, unit, 2.0**weights.exponent, float(weights.limit))


def rounded(x: Tensor, weights: Laid, geometry: Geometry) -> Tensor:
    """As `convolution`, in integers of 16 bits. Raises as that; ValueError for taps of a row that lie apart too."""
    g = geometry
    g.check()
    if x.dtype != torch.float32 or x.device.type != "cpu":
        raise TypeError(f"x must be float32 on the CPU, got {x.dtype} on {x.device}")
    if x.ndim != 4 or x.shape[1] != g.channels or g.groups != 1 or g.dilation[1] != 1:
        raise ValueError(f"expected images of {g.channels} channels, one group, no dilation, got {tuple(x.shape)}, {g}")
    blocks, pairs = (g.outputs + BLOCK - 1) // BLOCK, (g.channels * g.kernel[1] + 1) // 2
    check_weights("weights", weights.values, torch.int16, (blocks, g.kernel[0], pairs, BLOCK, 2))
    check_floats("unit", weights.unit, (blocks * BLOCK,))
    return _layer(extension().rounded_convolution, x, weights.held(), None, g)


def shape_of(x: Tensor, geometry: Geometry) -> Shape2d:
    """Of images [batch, channels, height, width], as csrc/bind_packed.hpp reads it."""
    g = geometry
    batch, _, height, width = x.shape
    return (batch, height, width, g.channels, g.outputs), g.kernel, g.stride, g.padding, g.dilation, g.groups


def strides_of(x: Tensor) -> tuple[int, int, int, int]:
    """From one image, row, pixel and channel to the next. Those of one channel lie side by side."""
    image, channel, row, pixel = x.stride()
    return image, row, pixel, 1 if x.shape[1] == 1 else channel


def windows(x: Tensor, kernel: tuple[int, int], stride: tuple[int, int], padding: tuple[int, int]) -> Geometry:
    """Of windows over images. Raises ValueError where there is none, or a border of more than half of one."""
    geometry = Geometry(x.shape[1], x.shape[1], kernel, stride, padding)
    geometry.check()
    if any(2 * p > k for p, k in zip(padding, kernel, strict=True)):
        raise ValueError(f"padding must be at most half of the kernel {kernel}, got {padding}")
    geometry.out_size(*x.shape[2:])
    return geometry


def average(x: Tensor, kernel: tuple[int, int], stride: tuple[int, int]) -> Tensor:
    """The means of windows, each summed row by row. Raises as `convolution`."""
    x, geometry = _dense(x), windows(x, kernel, stride, (0, 0))
    batch, channels, height, width = x.shape
    y = torch.empty(batch, *geometry.out_size(height, width), channels, dtype=torch.float32, device=CPU)
    extension().average_windows(x.data_ptr(), y.data_ptr(), shape_of(x, geometry), torch.get_num_threads())
    return y.permute(0, 3, 1, 2)


def maximum(x: Tensor, kernel: tuple[int, int], stride: tuple[int, int], padding: tuple[int, int]) -> Tensor:
    """The largest numbers of windows, NaN where one is NaN. Raises as `convolution`."""
    x, geometry = _dense(x), windows(x, kernel, stride, padding)
    batch, channels, height, width = x.shape
    y = torch.empty(batch, *geometry.out_size(height, width), channels, dtype=torch.float32, device=CPU)
    finishing = (0, 0, 0, y.data_ptr(), 0, 0, 0, 0, 0)
    extension().max_windows(x.data_ptr(), shape_of(x, geometry), finishing, torch.get_num_threads())
    return y.permute(0, 3, 1, 2)


def _dense(x: Tensor) -> Tensor:
    if x.dtype != torch.float32 or x.device.type != "cpu" or x.ndim != 4:
        raise TypeError(
            f"x must be float32 [batch, channels, height, width] on the CPU, got {x.dtype} {tuple(x.shape)}"
        )
    return x.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)
