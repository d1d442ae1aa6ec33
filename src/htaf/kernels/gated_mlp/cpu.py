"""The compiled kernel of csrc/gated.cpp, with the signatures of reference.py."""

from __future__ import annotations

import torch
from torch import Tensor

from htaf.kernels.gated_mlp.reference import Weights, rounded
from htaf.kernels.native import TYPES, extension
from htaf.kernels.packed_native import CPU

__all__ = ["Weights", "gated_mlp", "rounded"]


def gated_mlp(weights: Weights, x: Tensor, *, dense: bool = False) -> tuple[Tensor, Tensor]:
    """dense: read the rows of closed gates too, as a dense layer does; for comparisons."""
    neurons, inputs = weights.gate.shape
    outputs = weights.down.shape[1]
    held = [weights.gate, weights.up, weights.down, weights.threshold]
    held += [weights.rounded, weights.step, weights.rest, weights.norm] if weights.rounded is not None else []
    shapes = [
        (neurons, inputs),
        (neurons, inputs),
        (neurons, outputs),
        (neurons,),
        (neurons, inputs),
        *[(neurons,)] * 3,
    ]
    for tensor, shape in zip(held, shapes, strict=False):
        if tensor is None or tuple(tensor.shape) != shape or not tensor.is_cpu or not tensor.is_contiguous():
            raise ValueError(f"expected dense weights of shape {shape} on the CPU")
    if x.ndim != 2 or x.shape[1] != inputs or not x.is_cpu:
        raise ValueError(f"x must be [tokens, {inputs}] on the CPU, got {tuple(x.shape)} on {x.device}")
    x = x.to(torch.float32).contiguous()
    y = torch.empty(len(x), outputs, dtype=torch.float32, device=CPU)
    opened = torch.empty(len(x), neurons, dtype=torch.bool, device=CPU)
    places = [0 if tensor is None else tensor.data_ptr() for tensor in held] + [0] * (8 - len(held))
    extension().gated_mlp(
        TYPES[weights.gate.dtype], places, (inputs, neurons, outputs), x.data_ptr(), y.data_ptr(), opened.data_ptr(),
        len(x), dense, torch.get_num_threads(),
    )  # fmt: skip
    return y, opened
