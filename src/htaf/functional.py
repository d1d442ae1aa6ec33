"""Pure functions on tensors: the step, its smooth stand-ins, and their exact gradients.

Every function computes in at least float32 and rounds once to the dtype of x. Gradients are closed forms that
keep their relative accuracy in the tails; second derivatives too. All work on any device, under `torch.compile`,
`torch.func.grad`, `torch.func.vmap` and autocast (forward mode, `torch.func.jvp`, is not there). With float parameters
one tensor, x, is saved for the backward pass.
"""

from __future__ import annotations

import math
import warnings

import torch
from jaxtyping import Float
from torch import Tensor

from htaf.kernels.heaviside import reference as heaviside_reference
from htaf.kernels.htaf import reference as htaf_reference
from htaf.kernels.scaled_sigmoid import reference as sigmoid_reference

Scalar = float | Tensor


def heaviside(x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """The exact step, H(x) = 1 if x >= 0 else 0.

    -0.0 counts as 0, so H(-0.0) = 1. NaN gives NaN. The gradient is 0, and 1 at NaN, so that a NaN stays one.

    Args:
        x: floating-point tensor of any shape.

    Returns:
        Tensor of 0 and 1, same shape and dtype as x.

    Raises:
        TypeError: x is not a floating-point tensor.

    Example:
        >>> heaviside(torch.tensor([-1.0, -0.0, 2.0]))
        tensor([0., 1., 1.])
    """
    check_floating(x)
    return heaviside_reference.forward(x)


def sign(x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """The exact sign, sign(x) = 2 H(x) - 1, so sign(0) = +1 (unlike `torch.sign`). NaN gives NaN.

    Args, returns, raises: as `heaviside`, with values -1 and +1.
    """
    return 2 * heaviside(x) - 1


def htaf(x: Float[Tensor, "*shape"], alpha0: Scalar = 2.0, alpha1: Scalar = 11.0) -> Float[Tensor, "*shape"]:
    """Heavy-Tailed Activation Function, HTAF(x) = sigma(alpha1 tanh(alpha0 x)).

    Gradient: alpha0 alpha1 (sech(alpha0 x) sech(alpha1 tanh(alpha0 x) / 2) / 2)^2, evaluated without cancellation;
    likewise for alpha0 and alpha1 when they are tensors. Range: from sigma(-alpha1) to sigma(alpha1).

    Args:
        x: floating-point tensor of any shape.
        alpha0: > 0, width of the tails: they decay as exp(-2 alpha0 |x|). A float, or a floating-point tensor that
            broadcasts to x (its values are not checked here: the module `HTAF` does).
        alpha1: > 0, a float or a tensor as alpha0. The slope at 0 is alpha0 alpha1 / 4.

    Returns:
        Tensor of the shape and dtype of x.

    Raises:
        TypeError: x or a tensor parameter is not floating-point.
        ValueError: a float parameter is not > 0 and finite, or a tensor does not broadcast to x.

    Source: the paper, equation (1); the stable gradient is this library's.

    Example:
        >>> htaf(torch.tensor([-1.0, 0.0, 1.0]))
        tensor([2.4785e-05, 5.0000e-01, 9.9998e-01])
    """
    check_floating(x)
    _warn_float16(x)
    return _HTAF.apply(x, _parameter("alpha0", alpha0, x), _parameter("alpha1", alpha1, x))  # pyright: ignore[reportReturnType]


def scaled_sigmoid(x: Float[Tensor, "*shape"], beta: Scalar = 22.0) -> Float[Tensor, "*shape"]:
    """Scaled sigmoid (SS), sigma(beta x): the limit of HTAF for alpha0 -> 0 with alpha0 alpha1 = beta.

    Gradient: beta (sech(beta x / 2) / 2)^2, evaluated without cancellation; likewise for beta when it is a tensor.

    Args:
        x: floating-point tensor of any shape.
        beta: > 0, a float, or a floating-point tensor that broadcasts to x. The slope at 0 is beta / 4.

    Returns, raises: as `htaf`.
    """
    check_floating(x)
    _warn_float16(x)
    return _ScaledSigmoid.apply(x, _parameter("beta", beta, x))  # pyright: ignore[reportReturnType]


def check_floating(x: object) -> None:
    """Raise TypeError unless x is a real floating-point tensor."""
    if not isinstance(x, Tensor):
        raise TypeError(f"x must be a torch.Tensor, got {type(x).__name__}")
    if not x.is_floating_point():
        raise TypeError(f"x must be a real floating-point tensor, got dtype {x.dtype}")


def check_positive(name: str, value: float) -> float:
    """The value as a float; ValueError unless it is > 0 and finite."""
    if isinstance(value, (str, bytes)) or value is None:
        raise TypeError(f"{name} must be a number or a tensor, got {value!r}")
    if not 0.0 < value < math.inf:  # also False for NaN
        raise ValueError(f"{name} must be > 0 and finite, got {value}")
    return float(value)


def _warn_float16(x: Tensor) -> None:
    if x.dtype == torch.float16 and x.requires_grad and not torch.compiler.is_compiling():
        warnings.warn(
            "float16 gradients underflow below 6e-8: train with a loss scale (torch.amp.GradScaler)", stacklevel=3
        )


def _parameter(name: str, value: Scalar, x: Tensor) -> Scalar:
    """A checked float, or a tensor in the dtype of the arithmetic, expanded to x (so its gradient sums by itself)."""
    if not isinstance(value, Tensor):
        return check_positive(name, value)
    if not value.is_floating_point():
        raise TypeError(f"{name} must be a float or a floating-point tensor, got dtype {value.dtype}")
    try:
        return value.to(_compute_dtype(x)).expand(x.shape)
    except RuntimeError:
        raise ValueError(
            f"{name} of shape {tuple(value.shape)} does not broadcast to x of shape {tuple(x.shape)}"
        ) from None


def _compute_dtype(x: Tensor) -> torch.dtype:
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def _save(ctx, x: Tensor, *parameters: Scalar) -> None:
    """Save the tensors for backward and keep the floats on ctx: one saved tensor when all parameters are floats."""
    ctx.save_for_backward(x, *(p if isinstance(p, Tensor) else None for p in parameters))
    ctx.floats = [None if isinstance(p, Tensor) else p for p in parameters]


def _saved(ctx) -> tuple:
    x, *parameters = ctx.saved_tensors
    return x, *(t if t is not None else f for t, f in zip(parameters, ctx.floats, strict=True))


class _HTAF(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x, alpha0, alpha1):
        return htaf_reference.forward(x.to(_compute_dtype(x)), alpha0, alpha1).to(x.dtype)

    @staticmethod
    def setup_context(ctx, inputs, output):
        _save(ctx, *inputs)

    @staticmethod
    def backward(ctx, grad):  # pyright: ignore[reportIncompatibleMethodOverride]
        x, alpha0, alpha1 = _saved(ctx)
        wide, grad = x.to(_compute_dtype(x)), grad.to(_compute_dtype(x))
        need_x, need0, need1 = ctx.needs_input_grad
        slope = _HTAFSlope.apply(wide, alpha0, alpha1) if need_x or need0 else None
        return (
            (grad * slope).to(x.dtype) if need_x else None,
            grad * htaf_reference.d_alpha0(wide, alpha0, slope) if need0 else None,  # pyright: ignore[reportArgumentType]
            grad * _HTAFAlpha1.apply(wide, alpha0, alpha1) if need1 else None,
        )


class _HTAFSlope(torch.autograd.Function):
    """The slope as a function of its own, so that its derivative is a closed form as well."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x, alpha0, alpha1):
        return htaf_reference.slope(x, alpha0, alpha1)

    @staticmethod
    def setup_context(ctx, inputs, output):
        _save(ctx, *inputs)

    @staticmethod
    def backward(ctx, grad):  # pyright: ignore[reportIncompatibleMethodOverride]
        return _products(grad, htaf_reference.slope_gradients(*_saved(ctx)), ctx.needs_input_grad)


class _HTAFAlpha1(torch.autograd.Function):
    """dHTAF/dalpha1 as a function of its own, for the same reason."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x, alpha0, alpha1):
        return htaf_reference.d_alpha1(x, alpha0, alpha1)

    @staticmethod
    def setup_context(ctx, inputs, output):
        _save(ctx, *inputs)

    @staticmethod
    def backward(ctx, grad):  # pyright: ignore[reportIncompatibleMethodOverride]
        return _products(grad, htaf_reference.d_alpha1_gradients(*_saved(ctx)), ctx.needs_input_grad)


class _ScaledSigmoid(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x, beta):
        return sigmoid_reference.forward(x.to(_compute_dtype(x)), beta).to(x.dtype)

    @staticmethod
    def setup_context(ctx, inputs, output):
        _save(ctx, *inputs)

    @staticmethod
    def backward(ctx, grad):  # pyright: ignore[reportIncompatibleMethodOverride]
        x, beta = _saved(ctx)
        wide, grad = x.to(_compute_dtype(x)), grad.to(_compute_dtype(x))
        need_x, need_beta = ctx.needs_input_grad
        slope = _ScaledSigmoidSlope.apply(wide, beta)
        return (
            (grad * slope).to(x.dtype) if need_x else None,
            grad * sigmoid_reference.d_beta(wide, beta, slope) if need_beta else None,  # pyright: ignore[reportArgumentType]
        )


class _ScaledSigmoidSlope(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x, beta):
        return sigmoid_reference.slope(x, beta)

    @staticmethod
    def setup_context(ctx, inputs, output):
        _save(ctx, *inputs)

    @staticmethod
    def backward(ctx, grad):  # pyright: ignore[reportIncompatibleMethodOverride]
        return _products(grad, sigmoid_reference.slope_gradients(*_saved(ctx)), ctx.needs_input_grad)


def _products(grad: Tensor, partials: tuple[Tensor, ...], needed: tuple[bool, ...]) -> tuple[Tensor | None, ...]:
    return tuple(grad * p if need else None for p, need in zip(partials, needed, strict=True))
