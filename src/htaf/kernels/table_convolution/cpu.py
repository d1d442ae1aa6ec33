"""The compiled kernels of csrc/tables.cpp, with the signatures of reference.py."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from htaf.kernels._packed_native import Shape2d, bound, check_weights
from htaf.kernels.layers import Bound, Epilogue, Geometry, Outputs
from htaf.kernels.native import extension
from htaf.kernels.table_convolution.reference import ENTRIES, Kind, Weights, prepare

__all__ = ["Kind", "Weights", "bind", "forward", "peak", "prepare"]

KINDS: dict[Kind, int] = {"float32": 0, "int16": 1, "int8": 2}  # the order of TableKind in csrc/tables.hpp


def bind(weights: Weights, geometry: Geometry, epilogue: Epilogue) -> Bound:
    """The layer with its weights and constants, checked once. Raises as `forward`."""
    g, w = geometry, weights
    g.check()
    per_group, taps, dtype = g.channels // g.groups, math.prod(g.kernel), torch.float32
    shape = (g.outputs, taps, (per_group + 31) // 32, 32)
    if w.kind != "float32":
        dtype, shape = ENTRIES[w.kind], (g.outputs, taps, per_group // 64 * 11 + (per_group % 64 + 5) // 6, 2, 8)
    values = check_weights("weights", w.values, dtype, shape)
    unit = check_weights("unit", w.unit, torch.float32, (g.outputs,))
    bias = check_weights("bias", w.bias, torch.int32, (g.outputs,))
    held, native = (KINDS[w.kind], values.data_ptr(), unit.data_ptr(), bias.data_ptr()), extension().table_forward

    def run(
        bits: int, shape: Shape2d, finishing: tuple[int, ...], threads: int, kept: object = (values, unit, bias)
    ) -> None:
        native(shape, bits, held, finishing, threads)

    return bound(run, g, epilogue)


def forward(bits: Tensor, weights: Weights, geometry: Geometry, epilogue: Epilogue) -> Outputs:
    """Bits [batch, height, width, row_bytes(channels)] -> y [batch, out height, out width, outputs] and its bits.

    Raises:
        TypeError, ValueError: tensors whose type or shape is not that of `Geometry` and `Epilogue`.
    """
    return bind(weights, geometry, epilogue._replace(residual=None))(bits, epilogue.residual)


def peak(kind: Kind) -> float:
    """Operations a second (two a multiply-add) of lookups and additions on registers, 0 where there are none."""
    return extension().permute_peak(KINDS[kind])
