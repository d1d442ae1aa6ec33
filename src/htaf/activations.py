"""Modules over `functional` and `surrogates`: three that train, and the exact step that replaces them.

`HTAF`, `ScaledSigmoid` and `StraightThrough` each have `.hardened()`, which makes the `Heaviside` that holds the same
state-dict entries. Switching is separate from `train()` and `eval()`: see `htaf.harden`.
"""

from __future__ import annotations

import math
import warnings
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from htaf import functional, surrogates
from htaf.functional import check_floating, check_positive

SATURATION = math.log(99)  # sigma(alpha1) > 0.99 needs alpha1 above this


@final
class HTAF(nn.Module):
    """HTAF(x) = sigma(alpha1 tanh(alpha0 x)), the smooth stand-in for the step; 2 HTAF(x) - 1 with `bipolar`.

    Gradient: `htaf.functional.htaf`. Range: sigma(-alpha1) to sigma(alpha1), so alpha1 <= ln 99 = 4.595 never
    passes 0.99 (a warning says so).

    Args:
        alpha0: > 0, float or tensor. Floats are plain attributes, not in the state dict; tensors are buffers.
        alpha1: > 0, float or tensor, likewise.
        learnable: make both trainable; their logarithms are the parameters (`log_alpha0`, `log_alpha1`), so they
            stay positive.
        dim: the dimension of the input along which one-dimensional alphas lie (1 for images [N, C, H, W], -1 for
            tokens); None: they broadcast as they are.
        bipolar: outputs in (-1, 1), hardened to {-1, +1}.

    Shape: any, output equal to input; dtype kept.

    Raises:
        ValueError: an alpha is not > 0 or not from 1e-37 to 1e37, or `dim` is given with a
            tensor that is not one-dimensional.

    Source: the paper, equation (1).
    """

    def __init__(
        self,
        alpha0: float | Tensor = 2.0,
        alpha1: float | Tensor = 11.0,
        *,
        learnable: bool = False,
        dim: int | None = None,
        bipolar: bool = False,
    ) -> None:
        super().__init__()
        self.learnable, self.dim, self.bipolar = learnable, dim, bipolar
        _register(self, "alpha0", alpha0)
        _register(self, "alpha1", alpha1)
        if _least(alpha1) <= SATURATION:
            warnings.warn(
                f"alpha1 = {_show(alpha1)} <= ln 99 = {SATURATION:.3f}: no output passes 0.99 or falls below 0.01, "
                "so binarity is 0 however well the network trains",
                stacklevel=2,
            )

    @property
    def alphas(self) -> tuple[float | Tensor, float | Tensor]:
        """The current (alpha0, alpha1), whatever they are stored as."""
        return _current(self, "alpha0"), _current(self, "alpha1")

    def forward(self, x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        alpha0, alpha1 = self.alphas
        return functional.htaf(x, _along(alpha0, x, self.dim), _along(alpha1, x, self.dim), bipolar=self.bipolar)

    def hardened(self) -> Heaviside:
        """The exact step with the same state-dict entries."""
        return _hardened(self, self.bipolar)

    def extra_repr(self) -> str:
        alpha0, alpha1 = self.alphas
        return f"alpha0={_show(alpha0)}, alpha1={_show(alpha1)}{_flags(self)}"


@final
class ScaledSigmoid(nn.Module):
    """Scaled sigmoid (SS), sigma(beta x); 2 sigma(beta x) - 1 with `bipolar`. The limit of HTAF for alpha0 -> 0.

    Args:
        beta: > 0, float (an attribute) or tensor (a buffer).
        learnable, dim, bipolar: as for `HTAF`.

    Raises:
        ValueError: beta is not > 0 and finite.
    """

    def __init__(
        self, beta: float | Tensor = 22.0, *, learnable: bool = False, dim: int | None = None, bipolar: bool = False
    ) -> None:
        super().__init__()
        self.learnable, self.dim, self.bipolar = learnable, dim, bipolar
        _register(self, "beta", beta)

    def forward(self, x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        return functional.scaled_sigmoid(x, _along(_current(self, "beta"), x, self.dim), bipolar=self.bipolar)

    def hardened(self) -> Heaviside:
        """The exact step with the same state-dict entries."""
        return _hardened(self, self.bipolar)

    def extra_repr(self) -> str:
        return f"beta={_show(_current(self, 'beta'))}{_flags(self)}"


@final
class StraightThrough(nn.Module):
    """The exact step forward, `slope` backward (STE); sign and 2 slope with `bipolar`.

    Args:
        slope: function x -> dH/dx; see `htaf.surrogates` (sigmoid, tanh, rectangular, atan, approx_sign, htaf).
            Set parameters with functools.partial.
        bipolar: outputs in {-1, +1}.

    Source: Bengio et al. 2013, arXiv:1308.3432.
    """

    def __init__(self, slope: surrogates.Slope = surrogates.sigmoid, *, bipolar: bool = False) -> None:
        super().__init__()
        if not callable(slope):
            raise TypeError(f"slope must be a function from a tensor to a tensor, got {type(slope).__name__}")
        self.slope, self.bipolar = slope, bipolar

    def forward(self, x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        return surrogates.straight_through(x, self.slope, bipolar=self.bipolar)

    def hardened(self) -> Heaviside:
        """The exact step with the same (empty) state dict."""
        return _hardened(self, self.bipolar)

    def extra_repr(self) -> str:
        return f"slope={getattr(self.slope, '__name__', self.slope)}{', bipolar=True' if self.bipolar else ''}"


@final
class Heaviside(nn.Module):
    """The exact step, 1 if x >= 0 else 0; with `bipolar` the sign in {-1, +1}.

    What 0, -0.0 and NaN give: `htaf.functional.heaviside`.
    """

    def __init__(self, *, bipolar: bool = False) -> None:
        super().__init__()
        self.bipolar = bipolar

    def forward(self, x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        return functional.sign(x) if self.bipolar else functional.heaviside(x)

    def extra_repr(self) -> str:
        return "bipolar=True" if self.bipolar else ""


def _register(module: nn.Module, name: str, value: float | Tensor) -> None:
    """Keep a parameter as a float attribute, a buffer, or (learnable) a parameter holding its logarithm."""
    if isinstance(value, Tensor):
        if not value.is_floating_point():
            raise ValueError(f"{name} must be a float or a floating-point tensor, got dtype {value.dtype}")
        for entry in [] if value.is_meta else value.flatten().tolist():  # a meta tensor has no values to check
            check_positive(name, entry)
        if getattr(module, "dim", None) is not None and value.ndim > 1:
            raise ValueError(f"{name} must be one-dimensional when dim is given, got shape {tuple(value.shape)}")
        value = value.detach().clone()
    else:
        value = check_positive(name, value)
    if module.learnable:
        module.register_parameter(f"log_{name}", nn.Parameter(torch.as_tensor(value, dtype=None).log()))
    elif isinstance(value, Tensor):
        module.register_buffer(name, value)
    else:
        setattr(module, name, value)


def _current(module: nn.Module, name: str) -> float | Tensor:
    return getattr(module, f"log_{name}").exp() if module.learnable else getattr(module, name)


def _along(value: float | Tensor, x: Tensor, dim: int | None) -> float | Tensor:
    """A one-dimensional tensor laid along dimension `dim` of x."""
    if dim is None or not isinstance(value, Tensor) or value.ndim == 0:
        return value
    check_floating(x)
    if not -x.ndim <= dim < x.ndim:
        raise ValueError(f"dim must be a dimension of x of shape {tuple(x.shape)}, got {dim}")
    shape = [1] * x.ndim
    shape[dim] = -1
    return value.reshape(shape)


def _hardened(module: nn.Module, bipolar: bool) -> Heaviside:
    step = Heaviside(bipolar=bipolar)
    for name, tensor in module.named_buffers():
        step.register_buffer(name, tensor)
    for name, parameter in module.named_parameters():
        step.register_parameter(name, parameter)
    return step.train(module.training)


def _least(value: float | Tensor) -> float:
    if not isinstance(value, Tensor):
        return value
    return math.inf if value.is_meta else value.min().item()


def _show(value: float | Tensor) -> str:
    if isinstance(value, Tensor) and (value.numel() > 1 or value.is_meta):
        return f"tensor{tuple(value.shape)}"
    return f"{value.item() if isinstance(value, Tensor) else value:g}"


def _flags(module: nn.Module) -> str:
    flags = {"learnable": False, "dim": None, "bipolar": False}
    return "".join(f", {k}={getattr(module, k)}" for k, default in flags.items() if getattr(module, k) != default)
