"""Straight-through estimation: the exact step forward, a chosen slope backward. A surrogate is only its slope.

A slope is a function x -> tensor that stands for dH/dx; set its parameters with `functools.partial`. The slopes
here follow the paper (appendix D.4), SpikingJelly and Bi-Real Net.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from htaf._ground.errors import check_positive
from htaf.core.functional import check_floating, heaviside, mean_of_levels, sign, thresholds
from htaf.core.kernels import levels as kernel
from htaf.core.kernels import operators
from htaf.core.kernels.formulas import compute_dtype
from htaf.core.kernels.htaf import reference as htaf_reference
from htaf.core.kernels.registration import transformed
from htaf.core.kernels.scaled_sigmoid import reference as sigmoid_reference
from htaf.core.kernels.straight_through import reference

Slope = Callable[[Tensor], Tensor]


def straight_through(
    x: Float[Tensor, "*shape"],
    slope: Slope,
    *,
    bipolar: bool = False,
    levels: int = 1,
    spacing: float | None = None,
    threshold: float = 0.0,
) -> Float[Tensor, "*shape"]:
    """The exact step H(x) whose gradient is taken to be slope(x).

    Args:
        x: floating-point tensor of any shape.
        slope: function from a float32 or float64 tensor to a tensor of the same shape, such as `sigmoid` below.
            The gradient grad * slope(x) is computed in at least float32 and rounded once to the dtype of x.
            The slopes of this module, also through functools.partial, run as one fused kernel; over several levels
            `sigmoid` and `htaf` do, the others level by level.
        bipolar: the sign 2 H(x) - 1, whose gradient is 2 slope(x).
        levels, spacing, threshold: the exact step as `htaf.functional.heaviside` has it with these, whose gradient is
            the mean of slope(x - t_k) over its thresholds.

    Returns:
        Tensor of 0 and 1, or of the levels, same shape and dtype as x.

    Raises:
        TypeError: x is not a floating-point tensor, or slope is not callable. TypeError, ValueError: as
            `htaf.functional.thresholds`.

    Source: Bengio et al. 2013, arXiv:1308.3432.
    """
    check_floating(x)
    if not callable(slope):
        raise TypeError(f"slope must be a function from a tensor to a tensor, got {type(slope).__name__}")
    one = functools.partial(_estimated, slope=slope, bipolar=bipolar)
    formula = functools.partial(mean_of_levels, one, levels=levels, spacing=spacing, threshold=threshold)
    plain = levels == 1 and threshold == 0
    if not plain and (known := kernel_of(slope)) and known[0] in kernel.KINDS and kernel.supports(x, ()):
        places = thresholds(levels, spacing, threshold)
        return kernel.mean(known[0], x, tuple(known[1]), places, bipolar, formula, exact=True)
    return formula(x)


def _estimated(x: Tensor, slope: Slope, bipolar: bool) -> Tensor:
    known = kernel_of(slope)
    if known is None and transformed():  # the slope as a tensor brings its own derivatives with it
        return operators.surrogate(x, slope(x.to(compute_dtype(x))), bipolar)
    if known is None:
        return _StraightThrough.apply(x, slope, bipolar)  # pyright: ignore[reportReturnType]
    return operators.straight_through(x, *known, bipolar)


def kernel_of(slope: Slope) -> tuple[str, list[float]] | None:
    """The name and parameters of a slope that has a kernel: one of this module, or a partial of one that sets them."""
    given: dict[str, float] = {}
    if isinstance(slope, functools.partial) and not slope.args:
        slope, given = slope.func, slope.keywords
    if not isinstance(slope, types.FunctionType) or slope not in _KNOWN:
        return None
    name, defaults = _KNOWN[slope]
    if not all(key in defaults and isinstance(value, (int, float)) and value > 0 for key, value in given.items()):
        return None
    return name, [check_positive(key, given.get(key, default)) for key, default in defaults.items()]


class _StraightThrough(torch.autograd.Function):
    """For a slope of the user's own."""

    @staticmethod
    def forward(x, slope, bipolar):
        return sign(x) if bipolar else heaviside(x)

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, ctx.slope, bipolar = inputs
        ctx.scale = 2 if bipolar else 1
        ctx.save_for_backward(x)

    @staticmethod
    def backward(ctx, grad):  # pyright: ignore[reportIncompatibleMethodOverride]
        (x,) = ctx.saved_tensors
        wide = compute_dtype(x)
        return (ctx.scale * grad.to(wide) * ctx.slope(x.to(wide))).to(x.dtype), None, None


def slope_of(name: str, parameters: Sequence[float]) -> Slope:
    """The slope of a name and its parameters: what `kernel_of` takes apart."""
    function, defaults = next((function, own[1]) for function, own in _KNOWN.items() if own[0] == name)
    return functools.partial(function, **dict(zip(defaults, parameters, strict=True)))


def sigmoid(x: Tensor, beta: float = 1.0) -> Tensor:
    """beta sigma(beta x) (1 - sigma(beta x)); the paper's g_sigmoid at beta = 1. Area 1."""
    return sigmoid_reference.slope(x, beta)


def tanh(x: Tensor) -> Tensor:
    """1 - tanh(x)^2, the paper's g_tanh. Area 2."""
    return reference.tanh(x)


def rectangular(x: Tensor) -> Tensor:
    """1 where |x| < 1, else 0, the paper's g_rect. Area 2."""
    return reference.rectangular(x)


def atan(x: Tensor, alpha: float = 2.0) -> Tensor:
    """(alpha / 2) / (1 + (pi alpha x / 2)^2), the slope of SEW-ResNet at alpha = 2. Area 1."""
    return reference.atan(x, alpha)


def approx_sign(x: Tensor) -> Tensor:
    """max(0, 1 - |x|): with sign = 2 H - 1 it becomes Bi-Real Net's 2 - 2 |x| on [-1, 1). Area 1."""
    return reference.approx_sign(x)


def htaf(x: Tensor, alpha0: float = 2.0, alpha1: float = 11.0) -> Tensor:
    """HTAF's own slope, alpha0 alpha1 (sech(alpha0 x) sech(alpha1 tanh(alpha0 x) / 2) / 2)^2.

    Area sigma(alpha1) - sigma(-alpha1).
    """
    return htaf_reference.slope(x, alpha0, alpha1)


def stretched(slope: Slope, width: float) -> Slope:
    """slope(x / width) / width, of the same area; for pre-activations whose scale is `width` and not 1.

    `sigmoid`, `atan` and `htaf` with numbers keep their kernels: their own parameter is divided. Others have none then,
    and take some ten times as long.

    Raises:
        ValueError: width is not > 0 and finite.
    """
    width = check_positive("width", width)
    known = kernel_of(slope)
    if known is not None and (name := {"sigmoid": "beta", "atan": "alpha", "htaf": "alpha0"}.get(known[0])):
        function = slope.func if isinstance(slope, functools.partial) else slope
        given = dict(zip(_KNOWN[function][1], known[1], strict=True))
        return functools.partial(function, **(given | {name: given[name] / width}))
    return functools.partial(_stretched, slope=slope, width=width)


def _stretched(x: Tensor, slope: Slope, width: float) -> Tensor:
    return slope(x / width) / width


# What the fused kernels know: slope -> its name, its parameters and their defaults.
_KNOWN: dict[Slope, tuple[str, dict[str, float]]] = {
    sigmoid: ("sigmoid", {"beta": 1.0}),
    tanh: ("tanh", {}),
    rectangular: ("rectangular", {}),
    atan: ("atan", {"alpha": 2.0}),
    approx_sign: ("approx_sign", {}),
    htaf: ("htaf", {"alpha0": 2.0, "alpha1": 11.0}),
}
