"""Integrate-and-fire neurons over a sequence. Plain PyTorch, the only formulas.

h = leak v + gain x            the charged membrane potential (leak = gain = 1 without a leak)
s = fire(h - threshold)        the spike
v = h - r h  or  h - r threshold       hard and soft reset, by r = s or by the exact step of h - threshold
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from htaf.core.kernels.formulas import as_laid_out, compute_dtype
from htaf.core.kernels.heaviside import reference as step
from htaf.core.kernels.htaf import reference as htaf
from htaf.core.kernels.scaled_sigmoid import reference as scaled_sigmoid
from htaf.core.kernels.straight_through.reference import SLOPES


class Neuron(NamedTuple):
    """What the kernels are told.

    Attributes:
        spike: "htaf", "scaled_sigmoid" or "step".
        slope: of the step, a name of `straight_through`'s SLOPES; "" for none and for the smooth spikes.
        parameters: of the smooth spike, or of the slope.
        attached: gradients pass through r.
    """

    spike: str
    slope: str
    parameters: tuple[float, ...]
    leak: float
    gain: float
    threshold: float
    soft: bool
    exact_reset: bool
    attached: bool


def charge(x: Tensor, v: Tensor | None, leak: float, gain: float) -> Tensor:
    """The potential before the spike; v None is rest, 0."""
    x = x if gain == 1 else x * gain
    return x if v is None else torch.add(x, v, alpha=leak)


def reset(h: Tensor, r: Tensor, threshold: float, soft: bool) -> Tensor:
    """The potential after it."""
    return torch.sub(h, r, alpha=threshold) if soft else torch.addcmul(h, r, h, value=-1)


def forward(x: Tensor, v: Tensor | None, neuron: Neuron) -> tuple[Tensor, Tensor]:
    """Spikes, like x [T, ...], and the last potential [...], in at least float32."""
    spikes, potentials, resets = _run(x, v, neuron)
    return as_laid_out(torch.stack(spikes), x), reset(potentials[-1], resets[-1], neuron.threshold, neuron.soft)


def backward(
    gs: Tensor | None, gv: Tensor | None, x: Tensor, v: Tensor | None, neuron: Neuron
) -> tuple[Tensor, Tensor]:
    """The gradients of x and v from those of the spikes and of the last potential; None is zero."""
    _, potentials, resets = _run(x, v, neuron)
    back = torch.zeros_like(potentials[0]) if gv is None else gv
    found = []
    for t in reversed(range(len(x))):
        h, r = potentials[t], resets[t]
        g = torch.zeros_like(h) if gs is None else gs[t].to(h.dtype)
        if neuron.attached:
            g = g - back * (neuron.threshold if neuron.soft else h)
        gh = g * slope(h - neuron.threshold, neuron) + (back if neuron.soft else back * (1 - r))
        found.append(neuron.gain * gh)
        back = neuron.leak * gh
    return as_laid_out(torch.stack(found[::-1]), x), back


def fire(u: Tensor, neuron: Neuron) -> Tensor:
    """The spike at u = h - threshold."""
    if neuron.spike == "step":
        return step.forward(u)
    smooth = htaf if neuron.spike == "htaf" else scaled_sigmoid
    return smooth.forward(u, *neuron.parameters, bipolar=False)


def slope(u: Tensor, neuron: Neuron) -> Tensor:
    """What stands for the derivative of the spike."""
    if neuron.spike == "step":
        return SLOPES[neuron.slope].value(u, *neuron.parameters) if neuron.slope else torch.isnan(u).to(u.dtype)
    return (htaf if neuron.spike == "htaf" else scaled_sigmoid).slope(u, *neuron.parameters)


def _run(x: Tensor, v: Tensor | None, neuron: Neuron) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
    """Spikes, charged potentials and what resets them."""
    spikes, potentials, resets = [], [], []
    for now in x.to(compute_dtype(x)).unbind(0):
        h = charge(now, v, neuron.leak, neuron.gain)
        u = h - neuron.threshold
        s = fire(u, neuron)
        r = step.forward(u) if neuron.exact_reset else s
        spikes.append(s)
        potentials.append(h)
        resets.append(r)
        v = reset(h, r, neuron.threshold, neuron.soft)
    return spikes, potentials, resets
