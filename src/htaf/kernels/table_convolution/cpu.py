"""The compiled kernels of csrc/tables.cpp, with the signatures of reference.py."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple, overload

import torch
from torch import Tensor

from htaf.kernels.layers import Epilogue, Geometry, Outputs, row_bytes
from htaf.kernels.native import extension
from htaf.kernels.table_convolution.reference import ENTRIES, Kind, Weights, check_geometry, prepare

__all__ = ["Kind", "Weights", "forward", "peak", "prepare"]

KINDS: dict[Kind, int] = {"float32": 0, "int16": 1, "int8": 2}  # the order of TableKind in csrc/tables.hpp


class _Shapes(NamedTuple):
    """What follows from a geometry and the size of the images."""

    bits: tuple[int, ...]
    outputs: tuple[int, ...]
    packed: tuple[int, ...]
    values: tuple[int, ...]
    dtype: torch.dtype  # of the values
    call: tuple[int, ...]  # as the extension takes it


@lru_cache(maxsize=1024)  # a small layer takes less time than its checks
def _shapes(g: Geometry, kind: Kind, batch: int, height: int, width: int) -> _Shapes:
    check_geometry(g)
    size, per_group = (batch, *g.out_size(height, width)), g.channels // g.groups
    entries = (
        (per_group // 64 * 11 + (per_group % 64 + 5) // 6, 2, 8) if kind in ENTRIES else ((per_group + 31) // 32, 32)
    )
    return _Shapes(
        (batch, height, width, row_bytes(g.channels)),
        (*size, g.outputs),
        (*size, row_bytes(g.outputs)),
        (g.outputs, math.prod(g.kernel), *entries),
        ENTRIES.get(kind, torch.float32),
        (batch, height, width, g.channels, g.outputs, *g.kernel, *g.stride, *g.padding, *g.dilation, g.groups),
    )


def forward(bits: Tensor, weights: Weights, geometry: Geometry, epilogue: Epilogue) -> Outputs:
    """Bits [batch, height, width, row_bytes(channels)] -> y [batch, out height, out width, outputs] and its bits.

    Raises:
        TypeError, ValueError: tensors of another type or shape.
    """
    g, e, w, f32 = geometry, epilogue, weights, torch.float32
    if bits.ndim != 4 or bits.shape[-1] != row_bytes(g.channels):
        raise ValueError(f"expected bits [batch, height, width, {row_bytes(g.channels)}], got {(*bits.shape,)}")
    batch, height, width = bits.shape[:3]
    shapes, channels = _shapes(g, w.kind, batch, height, width), (g.outputs,)
    bits = _dense(bits, "bits", torch.uint8, shapes.bits)
    if bits.data_ptr() % 8:  # it is read by words
        bits = bits.clone()
    _check_weights(w, g, shapes)
    if (e.lower is None) != (e.upper is None):
        raise ValueError("expected lower and upper or neither, got one of them")
    y = torch.empty(shapes.outputs, dtype=f32) if e.keep else None
    found = None if e.lower is None else torch.empty(shapes.packed, dtype=torch.uint8)
    held = (  # what is copied must live until the end
        _dense(e.scale, "scale", f32, channels),
        _dense(e.shift, "shift", f32, channels),
        _dense(e.residual, "residual", f32, shapes.outputs),
        y,
        _dense(e.lower, "lower", f32, channels),
        _dense(e.upper, "upper", f32, channels),
        found,
    )
    extension().table_forward(
        bits.data_ptr(),
        (KINDS[w.kind], w.values.data_ptr(), w.unit.data_ptr(), w.bias.data_ptr()),
        shapes.call,
        tuple([0 if x is None else x.data_ptr() for x in held]),
        torch.get_num_threads(),
    )
    return y, found


def peak(kind: Kind) -> float:
    """Operations a second (two a multiply-add) of independent lookups and additions on registers; 0: not on AVX-512."""
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
        raise ValueError(f"expected {name} {shape}, got {(*x.shape,)}")
    return x if x.is_contiguous() else x.contiguous()


def _check_weights(w: Weights, g: Geometry, expected: _Shapes) -> None:
    v = w.values
    if v.dtype != expected.dtype or v.shape != expected.values or not (v.is_cpu and v.is_contiguous()):
        wanted = f"{expected.dtype} {expected.values}"
        raise ValueError(f"expected weights prepared for {g}: {wanted}, got {v.dtype} {(*v.shape,)}")
    for x, kept in ((w.unit, torch.float32), (w.bias, torch.int32)):
        if x.dtype != kept or x.shape != (g.outputs,) or not (x.is_cpu and x.is_contiguous()):
            raise ValueError(f"expected {kept} [{g.outputs}] beside the weights, got {x.dtype} {(*x.shape,)}")
