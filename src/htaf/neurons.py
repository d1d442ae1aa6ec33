"""Spiking neurons whose spike is an argument: integrate-and-fire and its leaky variant, state in the open.

    charge   IF:  v <- v + x          LIF: v <- v + (x - v) / tau, or v (1 - 1 / tau) + x
    fire     s = spike(v - threshold)
    reset    hard: v <- (1 - s) v     soft: v <- v - threshold s

Rest is v = 0. With HTAF as the spike the network is smooth and has an ordinary gradient; `htaf.harden` makes it exact.
A neuron never mixes two values of a time step and keeps nothing between calls. The membrane potential is float32 at
least, whatever the input: it is a running sum, from which bfloat16 loses what is below 1/256 of it.
"""

from __future__ import annotations

from typing import Literal, final, get_args

import torch
from jaxtyping import Float
from torch import Tensor, nn

from htaf.activations import HTAF
from htaf.functional import check_floating, check_positive, heaviside
from htaf.kernels._plain import compute_dtype

Reset = Literal["hard", "soft"]


@final
class IF(nn.Module):
    """Integrate-and-fire neuron: v <- v + x, s = spike(v - threshold), then the reset of v.

    Gradient: that of the formulas, through the spike as it is; no surrogate unless the spike is one.

    Args:
        spike: module that maps v - threshold to a spike in [0, 1], such as HTAF, ScaledSigmoid, StraightThrough or
            Heaviside, not bipolar; None: HTAF(). It is the child `spike`, which `htaf.harden` and `htaf.replace` see.
        threshold: > 0.
        reset: "hard" to 0, v <- (1 - s) v, or "soft" by subtraction, v <- v - threshold s.
        detach_reset: no gradient through the s of the reset.
        exact_reset: the reset takes the exact step of v - threshold (which has no gradient) in place of s.

    Shape: x [T, N, ...] of T time steps -> spikes of the same shape and dtype.

    Raises:
        ValueError: an argument out of range, or a bipolar spike.
        TypeError: spike is not a module.

    Source: Fang et al. 2021, arXiv:2102.04159, for the hard reset with `detach_reset`.

    Example:
        >>> IF(Heaviside())(torch.tensor([[0.6], [0.6], [0.6]])).T
        tensor([[0., 1., 0.]])
    """

    spike: nn.Module
    threshold: float
    reset: Reset
    detach_reset: bool
    exact_reset: bool

    def __init__(
        self,
        spike: nn.Module | None = None,
        *,
        threshold: float = 1.0,
        reset: Reset = "hard",
        detach_reset: bool = True,
        exact_reset: bool = False,
    ) -> None:
        super().__init__()
        _keep(self, spike, threshold, reset, detach_reset, exact_reset)

    def forward(self, x: Float[Tensor, " steps *shape"]) -> Float[Tensor, " steps *shape"]:
        return self.run(x)[0]

    def run(
        self, x: Float[Tensor, " steps *shape"], v: Float[Tensor, "*shape"] | None = None
    ) -> tuple[Float[Tensor, " steps *shape"], Float[Tensor, "*shape"]]:
        """Spikes [T, N, ...] and the last membrane potential [N, ...]; v is the first one, None for rest."""
        return _run(self, x, v)

    def step(
        self, x: Float[Tensor, "*shape"], v: Float[Tensor, "*shape"] | None = None
    ) -> tuple[Float[Tensor, "*shape"], Float[Tensor, "*shape"]]:
        """One time step: the spike and the membrane potential after the reset, both of the shape of x."""
        return _step(self, x, v)

    def charge(self, x: Tensor, v: Tensor | None) -> Tensor:
        """The membrane potential before the spike."""
        return x if v is None else v + x

    def extra_repr(self) -> str:
        return _show(self)


@final
class LIF(nn.Module):
    """Leaky integrate-and-fire neuron: v <- v + (x - v) / tau, s = spike(v - threshold), then the reset of v.

    Args:
        tau: > 1, the time constant in time steps.
        decay_input: False: v <- v (1 - 1 / tau) + x, so that the input is not divided by tau.
        spike, threshold, reset, detach_reset, exact_reset: as for `IF`.

    Shape, raises: as `IF`; ValueError for tau <= 1 too.
    """

    spike: nn.Module
    threshold: float
    reset: Reset
    detach_reset: bool
    exact_reset: bool

    def __init__(
        self,
        spike: nn.Module | None = None,
        *,
        tau: float = 2.0,
        threshold: float = 1.0,
        reset: Reset = "hard",
        decay_input: bool = True,
        detach_reset: bool = True,
        exact_reset: bool = False,
    ) -> None:
        super().__init__()
        _keep(self, spike, threshold, reset, detach_reset, exact_reset)
        self.tau, self.decay_input = check_positive("tau", tau), decay_input
        if self.tau <= 1:
            raise ValueError(f"tau must be > 1, got {tau} (without a leak: IF)")

    def forward(self, x: Float[Tensor, " steps *shape"]) -> Float[Tensor, " steps *shape"]:
        return self.run(x)[0]

    def run(
        self, x: Float[Tensor, " steps *shape"], v: Float[Tensor, "*shape"] | None = None
    ) -> tuple[Float[Tensor, " steps *shape"], Float[Tensor, "*shape"]]:
        """As `IF.run`."""
        return _run(self, x, v)

    def step(
        self, x: Float[Tensor, "*shape"], v: Float[Tensor, "*shape"] | None = None
    ) -> tuple[Float[Tensor, "*shape"], Float[Tensor, "*shape"]]:
        """As `IF.step`."""
        return _step(self, x, v)

    def charge(self, x: Tensor, v: Tensor | None) -> Tensor:
        """The membrane potential before the spike."""
        if v is None:
            return x / self.tau if self.decay_input else x
        return torch.lerp(v, x, 1 / self.tau) if self.decay_input else torch.add(x, v, alpha=1 - 1 / self.tau)

    def extra_repr(self) -> str:
        return f"tau={self.tau:g}, {_show(self)}" + ("" if self.decay_input else ", decay_input=False")


Neuron = IF | LIF


def _keep(
    neuron: Neuron, spike: nn.Module | None, threshold: float, reset: Reset, detach_reset: bool, exact_reset: bool
) -> None:
    """The arguments that all neurons share, checked."""
    if spike is None:
        spike = HTAF()
    if not isinstance(spike, nn.Module):
        raise TypeError(f"spike must be a module such as HTAF(), got {spike!r}")
    if getattr(spike, "bipolar", False):
        raise ValueError(f"spike must be 0 or 1, got {spike}, whose outputs are -1 or 1")
    if reset not in get_args(Reset):
        raise ValueError(f"reset must be one of {get_args(Reset)}, got {reset!r}")
    neuron.spike = spike
    neuron.threshold, neuron.reset = check_positive("threshold", threshold), reset
    neuron.detach_reset, neuron.exact_reset = detach_reset, exact_reset


def _run(neuron: Neuron, x: Tensor, v: Tensor | None) -> tuple[Tensor, Tensor]:
    check_floating(x)
    if x.ndim == 0 or x.shape[0] == 0:
        raise ValueError(f"x must be [T, N, ...] with T >= 1 time steps, got shape {tuple(x.shape)}")
    spikes = []
    for now in x.unbind(0):
        spike, v = neuron.step(now, v)
        spikes.append(spike)
    assert v is not None
    # concatenated along the batch, not stacked: this keeps the channels_last of an image
    return (torch.cat(spikes).unflatten(0, (len(spikes), -1)) if v.ndim else torch.stack(spikes)), v


def _step(neuron: Neuron, x: Tensor, v: Tensor | None) -> tuple[Tensor, Tensor]:
    check_floating(x)
    dtype = compute_dtype(x)
    if v is not None:
        check_floating(v)
        if v.shape != x.shape:
            raise ValueError(f"v must have the shape of a time step, {tuple(x.shape)}, got {tuple(v.shape)}")
        v = v.to(dtype)
    v = neuron.charge(x.to(dtype), v)
    above = v - neuron.threshold
    spike = neuron.spike(above)
    by = heaviside(above.detach()) if neuron.exact_reset else spike.detach() if neuron.detach_reset else spike
    v = torch.addcmul(v, by, v, value=-1) if neuron.reset == "hard" else torch.sub(v, by, alpha=neuron.threshold)
    return spike.to(x.dtype), v


def _show(neuron: Neuron) -> str:
    flags = {"detach_reset": True, "exact_reset": False}
    changed = "".join(f", {k}={getattr(neuron, k)}" for k, usual in flags.items() if getattr(neuron, k) != usual)
    return f"threshold={neuron.threshold:g}, reset={neuron.reset}{changed}"
