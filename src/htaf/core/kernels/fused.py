"""The references of activations and steps as one kernel each, which torch.compile makes; for CUDA.

Shapes are forgotten: a kernel takes x as [outer, channels, inner], in memory order, so that few serve all tensors.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cache
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from htaf.core.kernels.formulas import Scalar, compute_dtype
from htaf.core.kernels.native import TYPES, along_one_dimension, in_order_of, layout

OPERATORS = ("heaviside", "htaf", "scaled_sigmoid", "straight_through")
FUNCTIONS = ("forward", "backward", "backward_all")


@cache
def fused(reference: ModuleType) -> SimpleNamespace:
    """The functions of a reference.py with the same signatures: those of FUNCTIONS fused, others as they are."""
    made = {name: _fused(getattr(reference, name)) for name in FUNCTIONS if hasattr(reference, name)}
    return SimpleNamespace(**vars(reference) | made, supports=supports)


def supports(x: Tensor, *parameters: Scalar) -> bool:
    """Whether x has 32 or 16 bits, and the parameters are floats or tensors that vary along one dimension of it."""
    return x.dtype in TYPES and (
        not any(isinstance(p, Tensor) for p in parameters) or along_one_dimension(x, parameters)
    )


def _fused(function: Callable[..., Any]) -> Callable[..., Any]:
    run = torch.compile(function, dynamic=True)
    count = 2 if "grad" in inspect.signature(function).parameters else 1  # tensors like x

    @torch.no_grad()
    def call(*inputs: Any, **options: Any) -> Any:
        x, parameters = inputs[count - 1], inputs[count:]
        if x.numel() < 2:  # a size of 0 or 1 would be a kernel of its own
            return function(*inputs, **options)
        like = torch.empty_like(x)
        tensors = [p for p in parameters if isinstance(p, Tensor)]
        shape = layout(like, tensors[0]) if tensors else (1, 1, like.numel())
        flat = [in_order_of(t, like).as_strided(shape, (shape[1] * shape[2], shape[2], 1)) for t in inputs[:count]]
        # a float would be a constant of its kernel, which is made anew for every other value
        columns = tree_map_only(Tensor, lambda p: p.reshape(-1, 1), parameters)
        columns = tree_map_only(float, lambda p: x.new_full((), p, dtype=compute_dtype(x)), columns)
        found = run(*flat, *columns, **options)
        if isinstance(found, Tensor):
            return found.as_strided(x.shape, like.stride())
        return found[0].as_strided(x.shape, like.stride()), *(
            d.reshape(p.shape) for d, p in zip(found[1:], tensors, strict=True)
        )

    return call
