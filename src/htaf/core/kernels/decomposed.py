"""The exact operators in terms of PyTorch's own, for exporters that know no others, such as ONNX's."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def heaviside(x: Tensor, bipolar: bool) -> Tensor:
    return torch.where(torch.isnan(x), x, compared(x, bipolar))


def compared(x: Tensor, bipolar: bool) -> Tensor:
    """The step of numbers: a NaN gives what a negative number gives."""
    step = (x >= 0).to(x.dtype)
    return 2 * step - 1 if bipolar else step


def levels(x: Tensor, thresholds: list[float], bipolar: bool) -> Tensor:
    return torch.where(torch.isnan(x), x, compared_levels(x, thresholds, bipolar))


def compared_levels(x: Tensor, thresholds: list[float], bipolar: bool) -> Tensor:
    """The levels of numbers: a NaN gives the lowest."""
    wide = x.to(torch.float64 if x.dtype == torch.float64 else torch.float32)
    count = (wide >= thresholds[0]).to(x.dtype)
    for threshold in thresholds[1:]:
        count = count + (wide >= threshold).to(x.dtype)
    most = len(thresholds)
    return (2 * count - most if bipolar else count) / most


def spikes(x: Tensor, leak: float, gain: float, threshold: float, soft: bool) -> Tensor:
    v, found = None, []
    for now in x.to(torch.float64 if x.dtype == torch.float64 else torch.float32).unbind(0):
        h = now if gain == 1 else now * gain
        h = h if v is None else h + (v if leak == 1 else v * leak)
        spike = heaviside(h - threshold, False)
        v = h - spike * threshold if soft else h - spike * h
        found.append(spike)
    return torch.stack(found).to(x.dtype)


def pack_bits(x: Tensor) -> Tensor:
    bits = nn.functional.pad((x >= 0).to(torch.int32), (0, -x.shape[-1] % 8)).unflatten(-1, (-1, 8))
    places = (2.0 ** torch.arange(8)).to(torch.int32)  # a constant tensor or a shift does not pass the translation
    return (bits * places).sum(-1).to(torch.uint8)
