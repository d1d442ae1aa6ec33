"""The compiled kernels of csrc/tables.cpp, with the signatures of reference.py."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from htaf.core.kernels.float_layers import cpu as float_layers
from htaf.core.kernels.layers import Bound, Epilogue, Geometry, Outputs
from htaf.core.kernels.native import extension
from htaf.core.kernels.packed_native import bound, check_weights
from htaf.core.kernels.table_convolution import reference
from htaf.core.kernels.table_convolution.reference import ENTRIES, Entries, Kind, Weights, fours, prepare

__all__ = ["Kind", "Weights", "bind", "forward", "peak", "prepare", "prepare_whole"]

KINDS: dict[str, int] = {"float32": 0, "int16": 1, "int8": 2, "fours": 3}  # the order of TableKind in csrc/tables.hpp
FEW_INPUTS, FEW_OUTPUTS = 64, 16  # of a group: below, int16 sums and repairs are not faster than float32 ones
DEPTH = 64  # and one for every 32 inputs: at least as many additions as a float32 weight goes through
TINY = 2.0**-126  # what an operation loses where denormal numbers are flushed to 0


def bind(weights: Weights, geometry: Geometry, epilogue: Epilogue) -> Bound:
    """The layer with its weights and constants, checked once. Raises as `forward`.

    float32 that leaves bits alone: they come from sums of int16, those near an end of the interval from float32 ones.
    """
    return _bind(weights, geometry, epilogue, rough=True)


def forward(bits: Tensor, weights: Weights, geometry: Geometry, epilogue: Epilogue) -> Outputs:
    """Bits [batch, height, width, row_bytes(channels)] -> y [batch, out height, out width, outputs] and its bits.

    Raises:
        TypeError, ValueError: tensors whose type or shape is not that of `Geometry` and `Epilogue`.
    """
    return _bind(weights, geometry, epilogue._replace(residual=None), rough=False)(bits, epilogue.residual)


def prepare_whole(weight: Tensor, geometry: Geometry) -> Weights | None:
    made = fours(weight, geometry) if extension().tables_take_fours() else None
    return made or reference.prepare_whole(weight, geometry)


def _bind(weights: Weights, geometry: Geometry, epilogue: Epilogue, rough: bool) -> Bound:
    g, w = geometry, weights
    g.check()
    per_group, taps, dtype = g.channels // g.groups, math.prod(g.kernel), torch.float32
    shape = (g.outputs, taps, (per_group + 31) // 32, 32)
    if w.kind == "fours":
        dtype, shape = torch.uint8, (g.outputs, taps, (per_group + 15) // 16, 4, 16)
    elif w.kind != "float32":
        dtype, shape = ENTRIES[w.kind], (g.outputs, taps, per_group // 64 * 11 + (per_group % 64 + 5) // 6, 2, 8)
    values = check_weights("weights", w.values, dtype, shape)
    unit = check_weights("unit", w.unit, torch.float32, (g.outputs,))
    bias = check_weights("bias", w.bias, torch.int32, (g.outputs,))
    also = _rough(w, g, epilogue) if rough and w.kind == "float32" else None
    columns = _columns(w, g) if rough and w.kind == "float32" else None
    kept = (values, unit, bias, *(also or ()), *(() if columns is None else (columns,)))
    held = (
        KINDS[w.kind], values.data_ptr(), unit.data_ptr(), bias.data_ptr(),
        *((0, 0, 0, 0) if also is None else (x.data_ptr() for x in also)), 0 if columns is None else columns.data_ptr(),
    )  # fmt: skip

    return bound("table", extension().table_forward, held, kept, g, epilogue)


def _rough(weights: Weights, g: Geometry, e: Epilogue) -> tuple[Tensor, Tensor, Tensor, Tensor] | None:
    """int16 values, unit and bias of float32 weights, and ends float32 [4, outputs] as csrc/tables.hpp has them.

    y of float32 sums and y of int16 differ by at most |scale| (error + r) + s: r is the rounding of as many additions
    as a weight goes through in float32, by tables or without, s that of everything after both sums. None where this is
    not worth it or not sure.
    """
    lower, upper, inputs = e.lower, e.upper, g.channels // g.groups * math.prod(g.kernel)
    if lower is None or upper is None or e.keep or not extension().tables_take_rough():
        return None
    if inputs < FEW_INPUTS or g.outputs // g.groups < FEW_OUTPUTS:
        return None
    given = [x for x in (e.scale, e.shift, lower, upper) if x is not None]
    if any(x.shape != (g.outputs,) or x.device.type != "cpu" for x in given):  # which `bound` refuses
        return None
    weight = weights.values.flatten(2)[..., : g.channels // g.groups].unflatten(1, g.kernel).permute(0, 3, 1, 2)
    try:
        made = prepare(weight, g, "int16")
    except ValueError:  # units that float32 does not hold
        return None
    size = weight.double().abs().sum((1, 2, 3)) + made.error
    scale = torch.ones_like(size) if e.scale is None else e.scale.double().abs()
    shift = torch.zeros_like(size) if e.shift is None else e.shift.double().abs()
    reach, n = scale * size + shift, inputs + 8
    if not (reach < 1e37).all() or n > 2**20:
        return None
    deep = DEPTH + weights.values[0].numel() // 32
    rounding = deep * 2.0**-24 / (1 - deep * 2.0**-24) * size + n * TINY
    apart = scale * (made.error * (1 + 1e-6) + rounding) + 8 * 2.0**-24 * reach + n * TINY
    inside = _outward(lower.double() + apart, torch.inf), _outward(upper.double() - apart, -torch.inf)
    outside = _outward(lower.double() - apart, -torch.inf), _outward(upper.double() + apart, torch.inf)
    return made.values, made.unit, made.bias, torch.stack((*inside, *outside))


def _columns(weights: Weights, g: Geometry) -> Tensor | None:
    """The weights of a linear layer as csrc/tables.hpp has its columns; None of another layer."""
    if g._replace(channels=1, outputs=1) != Geometry(1, 1):
        return None
    return float_layers.prepare(weights.values.flatten(1)[:, : g.channels, None, None])


def _outward(x: Tensor, to: float) -> Tensor:
    """float32 beyond float64, in that direction; infinities stay."""
    rounded = x.float()
    return torch.where(x.isinf(), rounded, rounded.nextafter(torch.tensor(to)))


def peak(kind: Entries) -> float:
    """Operations a second (two a multiply-add) of lookups and additions on registers, 0 where there are none."""
    return extension().permute_peak(KINDS[kind])
