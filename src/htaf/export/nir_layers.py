"""Nodes of a NIR graph from the numbers of PyTorch's layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from htaf.export.program import ExportError

DT = 1e-4  # seconds a time step, as snnTorch and SpikingJelly take it


def pair(value: Any) -> tuple[int, int]:
    values = [value] if isinstance(value, int) else list(value)
    return int(values[0]), int(values[-1])


def array(tensor: Tensor) -> np.ndarray:
    return np.ascontiguousarray(tensor.detach().float().numpy())


def convolution(
    nir: Any, shape: Sequence[int], weight: Tensor, bias: Tensor | None, *, stride: Any = (1, 1),
    padding: Any = (0, 0), dilation: Any = (1, 1), groups: int = 1,
) -> tuple[Any, tuple[int, ...]]:  # fmt: skip
    """Of images [channels, height, width]; and the shape of its output."""
    sizes = weight.shape[2:]
    if isinstance(padding, str):
        if padding == "same" and (any(s != 1 for s in stride) or any(k % 2 == 0 for k in sizes)):
            raise ExportError("expected a padding of equal sides, got 'same' over an even kernel")
        sides = [d * (k - 1) // 2 for d, k in zip(pair(dilation), sizes, strict=True)]
        padding = sides if padding == "same" else (0, 0)
    if len(shape) != 3 or len(set(sizes)) != 1:  # nir infers sizes from one side of a kernel
        raise ExportError(f"expected images and square kernels, got {list(shape)} and {list(weight.shape)}")
    layer = nir.Conv2d(
        input_shape=tuple(shape[1:]), weight=array(_ungrouped(weight, groups)), stride=pair(stride),
        padding=pair(padding), dilation=pair(dilation), groups=1,
        bias=array(torch.zeros(len(weight)) if bias is None else bias),
    )  # fmt: skip
    return layer, tuple(int(size) for size in layer.output_type["output"])


def affine(nir: Any, weight: Tensor, bias: Tensor | None) -> Any:
    return nir.Affine(weight=array(weight), bias=array(torch.zeros(len(weight)) if bias is None else bias))


def norm(nir: Any, shape: Sequence[int], scale: Tensor, shift: Tensor) -> Any:
    """y = scale x + shift, of channels [channels] float64."""
    if len(shape) == 1:
        return affine(nir, scale.diag(), shift)
    return convolution(nir, shape, scale.diag()[..., None, None], shift)[0]


def fold(layer: Any, scale: Tensor, shift: Tensor) -> None:
    """The same behind a Conv2d or an Affine, as its own weights."""
    along = scale.view(-1, *(1,) * (layer.weight.ndim - 1)).numpy()
    layer.weight = (layer.weight * along).astype(np.float32)
    layer.bias = (layer.bias * scale.numpy() + shift.numpy()).astype(np.float32)


def neuron(nir: Any, shape: Sequence[int], leak: float, gain: float, threshold: float, dt: float) -> Any:
    """v <- leak v + gain x, with a hard reset to 0."""

    def all_(number: Any) -> np.ndarray:
        return np.full(tuple(shape), number, dtype=np.float32)

    shared = {"v_threshold": all_(below(threshold)), "v_reset": all_(0)}
    if leak == 1:
        return nir.IF(r=all_(gain / dt), **shared)
    steps = 1 / (1 - leak)
    return nir.LIF(tau=all_(steps * dt), r=all_(gain * steps), v_leak=all_(0), **shared)


def step(nir: Any, shape: Sequence[int], threshold: float) -> Any:
    return nir.Threshold(threshold=np.full(tuple(shape), below(threshold)))


def below(threshold: float) -> np.float32:
    """x > this where x >= threshold, for float32."""
    return np.nextafter(np.float32(threshold), np.float32(-np.inf))


def average(
    nir: Any, shape: Sequence[int], kernel: tuple[int, int], stride: tuple[int, int]
) -> tuple[Any, tuple[int, ...]]:
    """Of images [channels, height, width]; and the shape of its output."""
    if len(shape) != 3:
        raise ExportError(f"expected average pooling over images, got {list(shape)}")
    pool = nir.AvgPool2d(kernel_size=np.array(kernel), stride=np.array(stride), padding=np.array((0, 0)))
    sizes = [(size - k) // t + 1 for size, k, t in zip(shape[1:], kernel, stride, strict=True)]
    return pool, (shape[0], *sizes)


def _ungrouped(weight: Tensor, groups: int) -> Tensor:
    """The dense weights of a grouped convolution, whose sizes nir infers wrongly."""
    if groups == 1:
        return weight
    parts = []
    for i, part in enumerate(weight.chunk(groups)):
        width = part.shape[1]
        parts.append(nn.functional.pad(part, (0, 0, 0, 0, i * width, (groups - 1 - i) * width)))
    return torch.cat(parts)
