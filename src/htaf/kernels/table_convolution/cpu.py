"""The compiled kernels of csrc/tables.cpp, with the signatures of reference.py."""

from __future__ import annotations

import math
from typing import overload

import torch
from torch import Tensor

from htaf.kernels.layers import Epilogue, Geometry, Outputs, row_bytes
from htaf.kernels.native import extension
from htaf.kernels.table_convolution.reference import ENTRIES, Kind, Weights, check_geometry, prepare

__all__ = ["Kind", "Weights", "forward", "peak", "prepare"]

KINDS: dict[Kind, int] = {"float32": 0, "int16": 1, "int8": 2}  # the order of TableKind in csrc/tables.hpp


def forward(bits: Tensor, weights: Weights, geometry: Geometry, epilogue: Epilogue) -> Outputs:
    """Bits [batch, height, width, row_bytes(channels)] -> y [batch, out height, out width, outputs] and its bits.

    Raises:
        TypeError, ValueError: tensors of another type or shape.
    """
    g, e, w = geometry, epilogue, weights
    check_geometry(g)
    if bits.ndim != 4 or bits.shape[-1] != row_bytes(g.channels):
        raise ValueError(f"expected bits [batch, height, width, {row_bytes(g.channels)}], got {tuple(bits.shape)}")
    bits = _dense(bits, "bits", torch.uint8, bits.shape)
    if bits.data_ptr() % 8:  # it is read by words
        bits = bits.clone()
    batch, height, width = bits.shape[:3]
    shape = (batch, *g.out_size(height, width), g.outputs)
    _check_weights(w, g)
    outputs, f32 = (g.outputs,), torch.float32
    if (e.lower is None) != (e.upper is None):
        raise ValueError("expected lower and upper or neither, got one of them")
    y = torch.empty(shape, dtype=f32) if e.keep else None
    found = None if e.lower is None else torch.empty((*shape[:3], row_bytes(g.outputs)), dtype=torch.uint8)
    held = (  # what is copied must live until the end
        _dense(e.scale, "scale", f32, outputs),
        _dense(e.shift, "shift", f32, outputs),
        _dense(e.residual, "residual", f32, shape),
        y,
        _dense(e.lower, "lower", f32, outputs),
        _dense(e.upper, "upper", f32, outputs),
        found,
    )
    extension().table_forward(
        bits.data_ptr(),
        (KINDS[w.kind], w.values.data_ptr(), w.unit.data_ptr(), w.bias.data_ptr()),
        (batch, height, width, g.channels, g.outputs, *g.kernel, *g.stride, *g.padding, *g.dilation, g.groups),
        tuple([0 if x is None else x.data_ptr() for x in held]),
        torch.get_num_threads(),
    )
    return y, found


def peak(kind: Kind) -> float:
    """Operations a second (two a multiply-add) of independent lookups and additions on registers, 0 where there are none."""
    return extension().permute_peak(KINDS[kind])


@overload
def _dense(x: Tensor, name: str, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor: ...
@overload
def _dense(x: Tensor | None, name: str, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor | None: ...
def _dense(x: Tensor | None, name: str, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor | None:
    """A tensor whose address can be handed over."""
    if x is None:
        return None
    if x.dtype != dtype or not x.is_cpu:
        raise TypeError(f"{name} must be {dtype} on the CPU, got {x.dtype} on {x.device}")
    if x.shape != shape:
        raise ValueError(f"expected {name} {(*shape,)}, got {(*x.shape,)}")
    return x if x.is_contiguous() else x.contiguous()


def _check_weights(w: Weights, g: Geometry) -> None:
    per_group, taps = g.channels // g.groups, math.prod(g.kernel)
    if w.kind == "float32":
        dtype, shape = torch.float32, (g.outputs, taps, (per_group + 31) // 32, 32)
    else:
        dtype, shape = ENTRIES[w.kind], (g.outputs, taps, per_group // 64 * 11 + (per_group % 64 + 5) // 6, 2, 8)
    if w.values.dtype != dtype or w.values.shape != shape or not (w.values.is_cpu and w.values.is_contiguous()):
        raise ValueError(
            f"expected weights prepared for {g}: {dtype} {shape}, got {w.values.dtype} {(*w.values.shape,)}"
        )
    for x, kept in ((w.unit, torch.float32), (w.bias, torch.int32)):
        if x.dtype != kept or x.shape != (g.outputs,) or not (x.is_cpu and x.is_contiguous()):
            raise ValueError(f"expected {kept} [{g.outputs}] beside the weights, got {x.dtype} {(*x.shape,)}")
