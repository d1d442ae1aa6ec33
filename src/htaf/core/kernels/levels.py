"""Steps of several thresholds, the mean over f(x - t_k), in one pass of the compiled kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from htaf.core.kernels import native
from htaf.core.kernels.formulas import Scalar
from htaf.core.kernels.registration import is_plain

# by the names of activations and of slopes
KINDS = {"htaf": native.HTAF, "scaled_sigmoid": native.SCALED_SIGMOID, "sigmoid": native.SCALED_SIGMOID}


def supports(x: Tensor, parameters: tuple[Scalar, ...]) -> bool:
    """Whether the kernels take these: an ordinary tensor in eager mode, and numbers for parameters."""
    if torch.compiler.is_compiling() or any(isinstance(value, Tensor) for value in parameters):
        return False
    return is_plain((x,)) and native.available() and native.supports(x)


def mean(
    name: str,
    x: Tensor,
    parameters: tuple[float, ...],
    thresholds: tuple[float, ...],
    bipolar: bool,
    formula: Callable[[Tensor], Tensor],
    *,
    exact: bool = False,
) -> Tensor:
    """The mean of the activation `name` over its thresholds.

    Args:
        formula: the same function of x from operators that know all derivatives, for the second ones.
        exact: the exact step instead, with the gradient of that mean.
    """
    kind = KINDS[name]

    def run(z: Tensor) -> Tensor:
        if exact:
            return native.step_levels(z, list(thresholds), bipolar)
        return native.levels_forward(kind, z, parameters, thresholds, bipolar)

    if torch.is_grad_enabled() and x.requires_grad:
        return _Mean.apply(x, run, kind, parameters, thresholds, bipolar, formula)  # pyright: ignore[reportReturnType]
    return run(x)


class _Mean(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, run: Any, *rest: Any) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx.save_for_backward(x)
        ctx.kind, ctx.parameters, ctx.thresholds, ctx.bipolar, ctx.formula = rest
        return run(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        (x,) = ctx.saved_tensors
        nothing = (None,) * 6
        if not torch.is_grad_enabled() and is_plain((grad, x)):
            return native.levels_backward(ctx.kind, grad, x, ctx.parameters, ctx.thresholds, ctx.bipolar), *nothing
        again = torch.is_grad_enabled()
        with torch.enable_grad():  # to be differentiated again, or for several gradients at once
            x = x if again else x.detach().requires_grad_(True)
            (found,) = torch.autograd.grad(ctx.formula(x), x, grad, create_graph=again)
        return found, *nothing
