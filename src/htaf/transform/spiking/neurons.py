"""Spiking neurons whose spike is an argument: integrate-and-fire and its leaky variant, state in the open.

    charge   IF:  v <- v + x          LIF: v <- v + (x - v) / tau, or v (1 - 1 / tau) + x
    fire     s = spike(v - threshold)
    reset    hard: v <- (1 - s) v     soft: v <- v - threshold s

Rest is v = 0. With HTAF as the spike the network is smooth and has an ordinary gradient; `htaf.harden` makes it exact.
Each value of a time step has its own neuron, and nothing is kept between calls. The membrane potential is at least
float32, whatever the input: it is a running sum, and bfloat16 would lose what is below 1/256 of it.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Literal, final, get_args

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.modules.module import _has_any_global_hook

from htaf._ground.errors import check_positive
from htaf.core import surrogates
from htaf.core.activations import HTAF, Heaviside, Remembering, ScaledSigmoid, StraightThrough, warn_untrained
from htaf.core.contract import expect_one_level
from htaf.core.functional import check_floating, heaviside
from htaf.core.kernels import native, operators
from htaf.core.kernels.formulas import compute_dtype
from htaf.core.kernels.neuron import cpu, reference
from htaf.core.kernels.registration import is_plain

Reset = Literal["hard", "soft"]


class Neuron(Remembering, ABC):
    """What `IF` and `LIF` share: v <- a v + b x with their `weights` a and b, s = spike(v - threshold), the reset."""

    spike: nn.Module
    threshold: float
    reset: Reset
    detach_reset: bool
    exact_reset: bool
    numbers, settings = ("threshold",), ("reset", "exact_reset")

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
        if spike is None:
            spike = HTAF()
        if not isinstance(spike, nn.Module):
            raise TypeError(f"spike must be a module such as HTAF(), got {spike!r}")
        _check_spike(spike)
        if reset not in get_args(Reset):
            raise ValueError(f"reset must be one of {get_args(Reset)}, got {reset!r}")
        self.spike = spike
        self.threshold, self.reset = check_positive("threshold", threshold), reset
        self.detach_reset, self.exact_reset = detach_reset, exact_reset

    def forward(self, x: Float[Tensor, " steps *shape"]) -> Float[Tensor, " steps *shape"]:
        return _run(self, x, None, last=False)[0]

    def run(
        self, x: Float[Tensor, " steps *shape"], v: Float[Tensor, "*shape"] | None = None
    ) -> tuple[Float[Tensor, " steps *shape"], Float[Tensor, "*shape"]]:
        """Spikes [T, N, ...] and the last membrane potential [N, ...]; v is the first one, None for rest."""
        spikes, last = _run(self, x, v)
        assert last is not None
        return spikes, last

    def step(
        self, x: Float[Tensor, "*shape"], v: Float[Tensor, "*shape"] | None = None
    ) -> tuple[Float[Tensor, "*shape"], Float[Tensor, "*shape"]]:
        """One time step: the spike and the membrane potential after the reset, both of the shape of x."""
        check_floating(x)
        _check_spike(self.spike)
        return _step(self, x, _checked(v, x))

    @property
    @abstractmethod
    def weights(self) -> tuple[float, float]:
        """Of potential and input in the charge."""

    def extra_repr(self) -> str:
        flags = {"detach_reset": True, "exact_reset": False}
        changed = "".join(f", {k}={getattr(self, k)}" for k, usual in flags.items() if getattr(self, k) != usual)
        return f"threshold={self.threshold:g}, reset={self.reset}{changed}"


@final
class IF(Neuron):
    """Integrate-and-fire neuron: v <- v + x, s = spike(v - threshold), then the reset of v.

    Gradient: that of the formulas, through the spike as it is; no surrogate unless the spike is one.

    Args:
        spike: module that maps v - threshold to a spike in [0, 1], such as HTAF, ScaledSigmoid, StraightThrough or
            Heaviside, not bipolar; None: HTAF(). It is the child `spike`, which `htaf.harden` and `htaf.replace` see.
        threshold: > 0.
        reset: "hard" to 0, v <- (1 - s) v, or "soft" by subtraction, v <- v - threshold s.
        detach_reset: no gradient through the s of the reset.
        exact_reset: the reset uses the exact step of v - threshold, which has no gradient, instead of s.

    Shape: x [T, N, ...] of T time steps -> spikes of the same shape and dtype.

    Raises:
        ValueError: an argument out of range, or a spike that is bipolar or has several levels.
        TypeError: spike is not a module.

    Source: Fang et al. 2021, arXiv:2102.04159, for the hard reset with `detach_reset`.

    Example:
        >>> IF(Heaviside())(torch.tensor([[0.6], [0.6], [0.6]])).T
        tensor([[0., 1., 0.]])
    """

    @property
    def weights(self) -> tuple[float, float]:
        """Of potential and input in the charge."""
        return 1.0, 1.0


@final
class LIF(Neuron):
    """Leaky integrate-and-fire neuron: v <- v + (x - v) / tau, s = spike(v - threshold), then the reset of v.

    Args:
        tau: > 1, the time constant in time steps.
        decay_input: False: v <- v (1 - 1 / tau) + x, so that the input is not divided by tau.
        spike, threshold, reset, detach_reset, exact_reset: as for `IF`.

    Shape, raises: as `IF`; ValueError for tau <= 1 too.
    """

    numbers, settings = ("threshold", "tau"), ("reset", "exact_reset", "decay_input")

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
        super().__init__(spike, threshold=threshold, reset=reset, detach_reset=detach_reset, exact_reset=exact_reset)
        self.tau, self.decay_input = check_positive("tau", tau), decay_input
        if self.tau <= 1:
            raise ValueError(f"tau must be > 1, got {tau} (without a leak: IF)")

    @property
    def weights(self) -> tuple[float, float]:
        """Of potential and input in the charge."""
        return 1 - 1 / self.tau, 1 / self.tau if self.decay_input else 1.0

    def extra_repr(self) -> str:
        return f"tau={self.tau:g}, {super().extra_repr()}" + ("" if self.decay_input else ", decay_input=False")


def _check_spike(spike: nn.Module) -> None:
    if getattr(spike, "bipolar", False):
        raise ValueError(f"spike must be 0 or 1, got {spike}, whose outputs are -1 or 1")
    expect_one_level(spike, "the spike of a neuron", "its spikes over time are its levels")


def _run(neuron: Neuron, x: Tensor, v: Tensor | None, last: bool = True) -> tuple[Tensor, Tensor | None]:
    """Spikes and, if wanted, the last potential."""
    check_floating(x)
    if x.ndim == 0 or x.shape[0] == 0:
        raise ValueError(f"x must be [T, N, ...] with T >= 1 time steps, got shape {tuple(x.shape)}")
    _check_spike(neuron.spike)  # it may have been replaced since the neuron was made
    v = _checked(v, x[0])
    if v is None and not last and torch.compiler.is_exporting() and _exact(neuron):
        leak, gain = neuron.weights
        return operators.spikes(x, leak, gain, neuron.threshold, neuron.reset == "soft"), None
    told = _told(neuron) if _fusible(neuron, x, v) else None
    if told is None or not cpu.supports(x, v, told):
        return _loop(neuron, x, v)
    if type(neuron.spike) is Heaviside:  # which is not called
        warn_untrained(neuron.spike, x)
    if torch.is_grad_enabled() and (x.requires_grad or (v is not None and v.requires_grad)):
        return _Fused.apply(x, v, neuron, told, last)  # pyright: ignore[reportReturnType]
    return cpu.forward(x, v, told, last=last)


def _loop(neuron: Neuron, x: Tensor, v: Tensor | None) -> tuple[Tensor, Tensor]:
    spikes = []
    for now in x.unbind(0):
        spike, v = _step(neuron, now, v)
        spikes.append(spike)
    assert v is not None
    # concatenated along the batch, not stacked: this keeps the channels_last of an image
    return (torch.cat(spikes).unflatten(0, (len(spikes), -1)) if v.ndim else torch.stack(spikes)), v


def _step(neuron: Neuron, x: Tensor, v: Tensor | None) -> tuple[Tensor, Tensor]:
    h = reference.charge(x.to(compute_dtype(x)), v, *neuron.weights)
    above = h - neuron.threshold
    spike = neuron.spike(above)
    by = heaviside(above.detach()) if neuron.exact_reset else spike.detach() if neuron.detach_reset else spike
    return spike.to(x.dtype), reference.reset(h, by, neuron.threshold, neuron.reset == "soft")


def _checked(v: Tensor | None, x: Tensor) -> Tensor | None:
    """The first potential in the dtype of the computation."""
    if v is None:
        return None
    if not isinstance(v, Tensor) or not v.is_floating_point():
        raise TypeError(f"v must be a floating-point tensor or None, got {v!r}")
    if v.shape != x.shape:
        raise ValueError(f"v must have the shape of a time step, {tuple(x.shape)}, got {tuple(v.shape)}")
    return v.to(compute_dtype(x))


class _Fused(torch.autograd.Function):
    """The compiled kernel; x and the first potential are saved."""

    @staticmethod
    def forward(ctx, x, v, neuron, told, last):  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x, v)
        ctx.neuron, ctx.told = neuron, told
        return cpu.forward(x, v, told, last=last)

    @staticmethod
    def backward(ctx, gs, gv):  # pyright: ignore[reportIncompatibleMethodOverride]
        x, v = ctx.saved_tensors
        if not torch.is_grad_enabled() and is_plain((gs, gv)):
            return *cpu.backward(gs, gv, x, v, ctx.told, first=ctx.needs_input_grad[1]), None, None, None
        again = torch.is_grad_enabled()
        with torch.enable_grad():  # to be differentiated again, or for several gradients at once: through the loop
            pairs = zip(_loop(_as_it_was(ctx.neuron, ctx.told), x, v), (gs, gv), strict=True)
            outputs, grads = zip(*((y, g) for y, g in pairs if g is not None), strict=True)
            inputs = [t for t, needed in zip((x, v), ctx.needs_input_grad, strict=False) if needed]
            found = iter(torch.autograd.grad(outputs, inputs, grads, create_graph=again))
        return *(next(found) if needed else None for needed in ctx.needs_input_grad[:2]), None, None, None


def _as_it_was(neuron: Neuron, told: reference.Neuron) -> Neuron:
    """The neuron with the parameters of the forward pass: sharpening may have moved them since."""
    neuron = copy.copy(neuron)
    neuron._modules = {"spike": copy.copy(neuron.spike)}
    if isinstance(neuron.spike, StraightThrough):
        neuron.spike.slope = surrogates.slope_of(told.slope, told.parameters)
        neuron.spike.width = neuron.spike.stretch = 1.0
    for name, value in zip(getattr(neuron.spike, "sharpness", ()), told.parameters, strict=False):
        setattr(neuron.spike, name, value)
    return neuron


def _fusible(neuron: Neuron, x: Tensor, v: Tensor | None) -> bool:
    """Whether nobody would miss the calls of the spike module and of the operators in it."""
    if torch.compiler.is_compiling() or not is_plain((x, v)) or not native.available():
        return False
    return not _watched(neuron.spike)


def _exact(neuron: Neuron) -> bool:
    """Whether its spike is the plain step, so that an exported program can hold the neuron as one operator."""
    # not its type: torch.export derives a class of a module that is shared
    return isinstance(neuron.spike, Heaviside) and not _watched(neuron.spike)


def _watched(spike: nn.Module) -> bool:
    """Whether its calls matter: a hook, a forward put in its place, or a threshold of its own."""
    hooked = spike._forward_hooks or spike._forward_pre_hooks or spike._backward_hooks or spike._backward_pre_hooks
    own = "forward" in vars(spike) or getattr(spike, "threshold", 0.0) != 0
    return bool(hooked or _has_any_global_hook() or own)


def _told(neuron: Neuron) -> reference.Neuron | None:
    """The neuron as the kernels take it, None where its spike is none of theirs."""
    spike, name, slope = neuron.spike, "step", ""
    parameters: Sequence[object] = ()
    if type(spike) is HTAF or type(spike) is ScaledSigmoid:  # of all smooth ones these have a kernel
        name, parameters = spike.kind, [getattr(spike, name, None) for name in spike.sharpness]
    elif type(spike) is StraightThrough:
        known = surrogates.kernel_of(spike.current_slope())
        if known is None:
            return None
        slope, parameters = known
    elif type(spike) is not Heaviside:
        return None
    numbers = tuple(float(p) for p in parameters if isinstance(p, (float, int)))
    if len(numbers) < len(parameters):  # the others are tensors
        return None
    attached = not neuron.detach_reset and not neuron.exact_reset
    soft = neuron.reset == "soft"
    return reference.Neuron(name, slope, numbers, *neuron.weights, neuron.threshold, soft, neuron.exact_reset, attached)
