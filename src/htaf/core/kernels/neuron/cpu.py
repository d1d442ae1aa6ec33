"""The compiled kernels of csrc/neurons.cpp, with the signatures of reference.py."""

from __future__ import annotations

import torch
from torch import Tensor

from htaf.core.kernels.native import TYPES, address, extension
from htaf.core.kernels.neuron.reference import Neuron

__all__ = ["backward", "forward", "supports"]

# of Fire in csrc/kernels.hpp: spike and slope -> its number
FIRE = {
    ("htaf", ""): 0,
    ("scaled_sigmoid", ""): 1,
    ("step", ""): 2,
    ("step", "htaf"): 3,
    ("step", "sigmoid"): 4,
    ("step", "tanh"): 4,  # sech(x)^2 is twice the slope of sigma(2 x)
    ("step", "rectangular"): 5,
    ("step", "atan"): 6,
    ("step", "approx_sign"): 7,
}


def supports(x: Tensor, v: Tensor | None, neuron: Neuron) -> bool:
    """Whether the compiled kernels take these."""
    here = x.device.type == "cpu" and (v is None or v.device == x.device)
    return here and x.dtype in TYPES and (neuron.spike, neuron.slope) in FIRE


def forward(x: Tensor, v: Tensor | None, neuron: Neuron, *, last: bool = True) -> tuple[Tensor, Tensor | None]:
    """Without `last` the last potential, which costs time, is None."""
    x, v, spikes = _laid_out(x, v)
    end = torch.empty_like(spikes[0], dtype=torch.float32) if last else None
    extension().neuron_forward(
        _description(neuron), TYPES[x.dtype], x.data_ptr(), x.stride(0), address(v), spikes.data_ptr(), address(end),
        len(x), spikes[0].numel(), torch.get_num_threads(),
    )  # fmt: skip
    return spikes, end


def backward(
    gs: Tensor | None, gv: Tensor | None, x: Tensor, v: Tensor | None, neuron: Neuron, *, first: bool = True
) -> tuple[Tensor, Tensor | None]:
    """Without `first` the gradient of v is None."""
    x, v, gx = _laid_out(x, v)
    gs = torch.zeros_like(gx) if gs is None else _in_order_of(gs, gx)
    gv = None if gv is None else _in_order_of(gv.float(), gx[0])
    start = torch.empty_like(gx[0], dtype=torch.float32) if first else None
    extension().neuron_backward(
        _description(neuron), TYPES[x.dtype], gs.data_ptr(), address(gv), x.data_ptr(), x.stride(0), address(v),
        gx.data_ptr(), address(start), len(x), gx[0].numel(), torch.get_num_threads(),
    )  # fmt: skip
    return gx, start


def _laid_out(x: Tensor, v: Tensor | None) -> tuple[Tensor, Tensor | None, Tensor]:
    """x and v so that every time step is walked through in memory order, and an empty tensor for the results.

    x itself where its time steps are dense; they may lie anywhere, or all at one place (an expanded x).
    """
    step = torch.empty_like(x[0])
    result = torch.empty_strided((len(x), *step.shape), (step.numel(), *step.stride()), dtype=x.dtype, device=x.device)
    if x.stride()[1:] != step.stride():
        x = torch.empty_like(result).copy_(x)
    return x, None if v is None else _in_order_of(v.float(), step), result


def _in_order_of(x: Tensor, like: Tensor) -> Tensor:
    return x if x.stride() == like.stride() else torch.empty_like(like, dtype=x.dtype).copy_(x)


def _description(neuron: Neuron) -> tuple[int, float, float, float, float, float, float, bool, bool, bool]:
    p0, p1 = (*neuron.parameters, 0.0, 0.0)[:2]
    if neuron.slope == "tanh":
        p0 = 2.0
    scale = 2.0 if neuron.slope == "tanh" else 1.0
    fire = FIRE[neuron.spike, neuron.slope]
    rest = (neuron.soft, neuron.exact_reset, neuron.attached)
    return fire, p0, p1, scale, neuron.leak, neuron.gain, neuron.threshold, *rest
