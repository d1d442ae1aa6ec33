"""The functions of a smooth activation from its formulas: dtypes, bipolar outputs, sums over broadcast parameters."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

Scalar = float | Tensor


class Functions(NamedTuple):
    """What an implementation of a smooth activation offers. Parameters are floats, or tensors that broadcast to x."""

    forward: Callable[..., Tensor]
    backward: Callable[..., Tensor]
    backward_all: Callable[..., tuple[Tensor, ...]]


def compute_dtype(x: Tensor) -> torch.dtype:
    """float64 for float64, else float32: half precision is rounded once, at the end."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def as_laid_out(result: Tensor, x: Tensor) -> Tensor:
    """The result in the dtype of x, with the strides that every implementation gives it: those of `empty_like(x)`."""
    like = torch.empty_like(x)
    return result.to(x.dtype) if result.stride() == like.stride() else like.copy_(result)


def _positive(parameters: tuple[Scalar, ...]) -> list[Scalar]:
    """The formulas hold for positive, finite parameters only: others in a tensor become NaN."""
    return [torch.where((p > 0) & p.isfinite(), p, torch.nan) if isinstance(p, Tensor) else p for p in parameters]


def functions(value: Callable[..., Tensor], gradients: Callable[..., tuple[Tensor, ...]]) -> Functions:
    """From f(x, *p) and its first derivatives (d/dx, d/dp...), both without regard to dtype."""

    def forward(x: Tensor, *parameters: Scalar, bipolar: bool) -> Tensor:
        y = value(x.to(compute_dtype(x)), *_positive(parameters))
        return as_laid_out(2 * y - 1 if bipolar else y, x)

    def backward(grad: Tensor, x: Tensor, *parameters: Scalar, bipolar: bool) -> Tensor:
        return backward_all(grad, x, *parameters, bipolar=bipolar, only_x=True)[0]

    def backward_all(
        grad: Tensor, x: Tensor, *parameters: Scalar, bipolar: bool, only_x: bool = False
    ) -> tuple[Tensor, ...]:
        wide = compute_dtype(x)
        slope, *others = gradients(x.to(wide), *_positive(parameters))
        scaled = (2 if bipolar else 1) * grad.to(wide)
        sums = (
            ()
            if only_x
            else tuple(
                as_laid_out((scaled * d).sum_to_size(p.shape), p)
                for d, p in zip(others, parameters, strict=True)
                if isinstance(p, Tensor)
            )
        )
        return as_laid_out(scaled * slope, x), *sums

    return Functions(forward, backward, backward_all)
