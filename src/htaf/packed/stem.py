"""Convolutions that take the input itself, in integers of 16 bits."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, Literal

import torch

from htaf.kernels.layers import Geometry, row_bytes
from htaf.packed.checking import check
from htaf.packed.errors import PackedError
from htaf.packed.instructions import Call, Instruction, Layer, Rounded, Transposed
from htaf.packed.program import Program
from htaf.packed.report import Report

Stem = Literal["float32", "int16"]


def rounded_stem(program: Program, report: Report) -> tuple[Program, Report]:
    """The program with these convolutions as `Rounded`, and what the report says of them.

    Raises:
        PackedError: there is none: no convolution of one group takes an input of the network.
    """
    made = [_rounded(i, program) for i in program.instructions]
    names = {new.name for new, old in zip(made, program.instructions, strict=True) if new is not old}
    if not names:
        raise PackedError(
            "expected a convolution that takes the input as it is, for a stem of int16, got a network without one; "
            "with weights on a grid the stem is exact already"
        )
    values = check(program)
    work = {i.name: _products(i, program, values) for i in program.instructions}
    share = sum(work[name] for name in names) / sum(work.values())
    said = f"in int16: {100 * share:.2g}% of all products"  # with few of them it is hardly faster
    rows = tuple(replace(r, how=f"{r.how}, {said}") if r.name in names else r for r in report.rows)
    return replace(program, instructions=tuple(made)), replace(report, rows=rows)


def _products(instruction: Instruction, program: Program, values: list[Any]) -> int:
    """The products of a convolution or linear layer; 0 of another instruction."""
    if isinstance(instruction, Layer):
        g, made = instruction.geometry, values[instruction.makes[-1]]
        pixels = made.numel() // (g.outputs if instruction.bits is None else row_bytes(g.outputs))
        return pixels * g.outputs * g.channels // g.groups * math.prod(g.kernel)
    if isinstance(instruction, Transposed):
        g, taken = instruction.geometry, values[instruction.input]
        return taken.numel() // taken.shape[-1] * g.outputs * g.channels * math.prod(g.kernel)
    layers = ("conv1d.default", "conv2d.default", "linear.default")
    if not isinstance(instruction, Call) or instruction.operator not in layers:
        return 0
    weights = [program.tensors[name] for name in instruction.tensors if program.tensors[name].ndim > 1]
    return values[instruction.y].numel() * weights[0][0].numel() if weights else 0


def _rounded(instruction: Instruction, program: Program) -> Instruction:
    if not isinstance(instruction, Call) or instruction.operator != "conv2d.default" or instruction.kwargs:
        return instruction
    usual: list[Any] = [None, [1, 1], [0, 0], [1, 1], 1]
    source, weight, bias, stride, padding, dilation, groups = [
        *instruction.args, *usual[max(len(instruction.args) - 2, 0) :],
    ]  # fmt: skip
    value = source.get("v") if isinstance(source, dict) else None
    tensor = program.tensors.get(weight["t"]) if isinstance(weight, dict) and "t" in weight else None
    named = bias is None or (isinstance(bias, dict) and "t" in bias)
    if value is None or value >= len(program.inputs) or tensor is None or not named or groups != 1:
        return instruction
    if tensor.dtype != torch.float32 or any(not isinstance(p, list) for p in (stride, padding, dilation)):
        return instruction
    (s0, s1), (p0, p1), (d0, d1) = (p if len(p) == 2 else p * 2 for p in (stride, padding, dilation))
    outputs, channels, height, width = tensor.shape
    if d1 != 1:
        return instruction
    g = Geometry(channels, outputs, (height, width), (s0, s1), (p0, p1), (d0, d1))
    return Rounded(instruction.name, value, g, weight["t"], None if bias is None else bias["t"], instruction.y)
