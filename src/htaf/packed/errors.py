"""How far values lie from what exact tables would give: bounds that follow a program step by step."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from htaf.packed.model import PackedModel
from htaf.packed.program import Call, Layer, Step, Threshold, references

# |f(x) - f(y)| <= |x - y| for the largest entry, with their inputs' bounds added up or not
_KEEPING = {
    "relu.default", "max_pool2d.default", "avg_pool2d.default", "adaptive_avg_pool2d.default", "mean.dim",
    "reshape.default", "permute.default", "transpose.int", "unsqueeze.default", "squeeze.dim", "squeeze.dims",
    "unflatten.int", "expand.default", "slice.Tensor", "select.int", "cat.default", "neg.default", "hardtanh.default",
    "constant_pad_nd.default", "clone.default", "t.default", "relu6.default", "sigmoid.default", "tanh.default",
    "pad.default", "max_pool1d.default", "max_pool3d.default", "adaptive_max_pool1d.default",
    "adaptive_max_pool2d.default", "adaptive_avg_pool1d.default", "avg_pool1d.default", "amax.default", "amin.default",
    "maximum.default", "minimum.default", "slice_scatter.default", "select_scatter.default", "split.Tensor",
    "split_with_sizes.default", "chunk.default", "unbind.int", "stack.default", "flip.default", "roll.default",
    "repeat.default", "pixel_shuffle.default", "pixel_unshuffle.default", "upsample_nearest1d.vec",
    "upsample_nearest2d.vec", "upsample_linear1d.vec", "upsample_bilinear2d.vec", "abs.default", "sin.default",
    "cos.default", "_adaptive_avg_pool2d.default", "copy.default", "mean.default",
}  # fmt: skip


def follow(step: Step, packed: PackedModel, errors: dict[int, float]) -> None:
    """Add the bounds of what a step makes to `errors`, by number of the value; of bits: of the pre-activation.

    Bits themselves are taken to be right; a value that is not in `errors` is exact but for the rounding of float32.
    """
    tensors = packed.program.tensors
    if isinstance(step, Layer):
        bound = 0.0
        if step.weights == "table":
            error = packed.table_error(step)
            bound = float((error * (1 if step.scale is None else tensors[step.scale].abs().double())).max())
        bound += 0.0 if step.residual is None else errors.get(step.residual, 0.0)
        if step.y is not None:
            errors[step.y] = bound
        if step.bits is not None:
            errors[step.bits] = bound * step.slope
    elif isinstance(step, Threshold):
        errors[step.bits] = errors.get(step.input, 0.0) * step.slope
    elif isinstance(step, Call):
        errors[step.y] = _of_call(step, tensors, errors)


def _of_call(step: Call, tensors: dict[str, Tensor], errors: dict[int, float]) -> float:
    bounds = [errors.get(v, 0.0) for v in references([step.args, step.kwargs], "v")]
    if not any(bounds):
        return 0.0
    if step.operator == "avg_pool2d.default" and (divisor := _divisor(step)) is not None:
        kernel = step.args[1] * 2 if len(step.args[1]) == 1 else step.args[1]
        return max(bounds) * math.prod(kernel) / abs(divisor)
    if step.operator in _KEEPING or step.operator == "getitem":
        return max(bounds)
    if step.operator in ("add.Tensor", "sub.Tensor") and len(step.args) == 2:
        left, right = (sum(errors.get(v, 0.0) for v in references(a, "v")) for a in step.args)
        return left + right * abs(step.kwargs.get("alpha", 1))
    constants = [_constant(a, tensors) for a in step.args]
    if step.operator in ("linear.default", "conv1d.default", "conv2d.default") and constants[1] is not None:
        return bounds[0] * float(constants[1].double().abs().flatten(1).sum(1).max())
    if step.operator == "batch_norm.default" and constants[4] is not None:
        weight = torch.ones(()) if constants[1] is None else constants[1]
        return bounds[0] * float((weight.double() * (constants[4].double() + step.args[7]).rsqrt()).abs().max())
    return math.inf


def _divisor(step: Call) -> int | None:
    return step.args[6] if len(step.args) > 6 else step.kwargs.get("divisor_override")


def _constant(written: Any, tensors: dict[str, Tensor]) -> Tensor | None:
    return tensors[written["t"]] if isinstance(written, dict) and "t" in written else None
