"""An operator of PyTorch, of those that operators.py allows."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, final

import torch
from torch import Tensor

from htaf.packed import operators
from htaf.packed.errors import PackedError
from htaf.packed.instructions.contract import Instruction, Machine, Ready, Run, Seen, Values
from htaf.packed.instructions.schema import Field, Made, items, mapping
from htaf.packed.instructions.sizes import BATCH

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
# operators whose result never lies in the memory of an argument
_FRESH = {"add.Tensor", "avg_pool2d.default", "conv2d.default", "max_pool2d.default", "mean.dim"}


def references(written: Any, key: str) -> Iterator[Any]:
    """The values ("v") or tensors ("t") in arguments as `operators.encode` writes them."""
    if isinstance(written, list):
        for item in written:
            yield from references(item, key)
    elif isinstance(written, dict):
        if key in written and len(written) == 1:
            yield written[key]
        else:
            for item in written.values():
                yield from references(item, key)


def _values_in(written: Any) -> Iterator[Any]:
    return references(written, "v")


def _tensors_in(written: Any) -> Iterator[Any]:
    return references(written, "t")


Arguments = Annotated[list[Any], Field(items, reads=_values_in, tensors=_tensors_in)]
Keywords = Annotated[dict[str, Any], Field(mapping, reads=_values_in, tensors=_tensors_in)]


@final
@dataclass(frozen=True)
class Call(Instruction):
    """An operator of PyTorch on floats, or on bytes that hold bits; arguments as operators.encode writes them."""

    opcode = "call"

    name: str
    operator: str
    args: Arguments
    kwargs: Keywords
    y: Made

    def sizes(self, values: Sequence[Any], tensors: Mapping[str, Tensor], most: int) -> list[Any]:
        function = operators.allowed(self.operator)
        if function is None:
            raise PackedError(f"expected an operator of a packed model, got {self.operator!r:.40}")
        if any(not k.isidentifier() for k in self.kwargs):
            raise PackedError("expected names of arguments, got others")

        def given(written: Any) -> Any:
            argument = operators.decode(written, tensors)
            return argument.get(values, BATCH) if isinstance(argument, operators.Pending) else argument

        args = [given(a) for a in self.args]
        operators.check_arguments(function, args, self.kwargs)
        named = {k: given(a) for k, a in self.kwargs.items()}
        where = {"device": "meta"} if operators.makes(function) else {}
        return [function(*args, **named, **where)]

    def prepare(self, machine: Machine) -> Ready:
        return Ready(_run(self, machine.tensors))

    def bounds(self, seen: Seen) -> list[float]:
        return [_bound(self, seen.errors, seen.tensors)]

    def decided(self) -> None:
        return None

    def holds(self) -> tuple[int, ...]:
        return () if self.operator in _FRESH else self.reads


# ---- execution ----


def _run(call: Call, tensors: Mapping[str, Tensor]) -> Run:
    function = operators.allowed(call.operator)
    assert function is not None  # `sizes` has seen to it
    args = [operators.decode(a, tensors) for a in call.args]
    kwargs = {k: operators.decode(a, tensors) for k, a in call.kwargs.items()}
    pending = [(i, a) for i, a in enumerate(args) if isinstance(a, operators.Pending)]
    named = [(k, a) for k, a in kwargs.items() if isinstance(a, operators.Pending)]
    if call.operator == "where.Scalar" and float in map(type, args[1:]):  # or their dtype is PyTorch's default
        function = torch.where
        args[1:] = [torch.tensor(level, dtype=torch.float32, device="cpu") for level in args[1:]]
    if operators.makes(function):
        kwargs["device"] = "cpu"
    y = call.y
    if "conv2d" in call.operator and len(call.args) > 1 and isinstance(args[1], Tensor):
        args[1] = args[1].contiguous(memory_format=torch.channels_last)  # then so is the output
        if (pointwise := _pointwise(call, args)) is not None:
            return pointwise

    def run(values: Values, batch: int) -> None:
        given = args.copy()
        for i, argument in pending:
            given[i] = argument.get(values, batch)
        if named:
            values[y] = function(*given, **kwargs | {k: a.get(values, batch) for k, a in named})
        else:
            values[y] = function(*given, **kwargs)

    return run


def _pointwise(call: Call, args: list[Any]) -> Run | None:
    """A convolution of 1 x 1 over floats as a matrix product of its pixels, which starts sooner; None for another."""
    usual: list[Any] = [None, None, None, [1, 1], [0, 0], [1, 1], 1]
    source, weight, bias, stride, padding, _, groups = args + usual[len(args) :]
    if (tuple(weight.shape[2:]), stride, padding, groups) != ((1, 1), [1, 1], [0, 0], 1) or call.kwargs:
        return None
    if not isinstance(source, operators.Pending) or not (bias is None or isinstance(bias, Tensor)):
        return None
    matrix, y = weight.flatten(1).contiguous(), call.y

    def run(values: Values, batch: int) -> None:
        pixels = source.get(values, batch).permute(0, 2, 3, 1)
        values[y] = torch.nn.functional.linear(pixels, matrix, bias).permute(0, 3, 1, 2)

    return run


# ---- the error bound ----


def _bound(call: Call, errors: Mapping[int, float], tensors: Mapping[str, Tensor]) -> float:
    bounds = [errors[v] for v in call.reads]
    if not any(bounds):
        return 0.0
    if call.operator == "avg_pool2d.default" and (divisor := _divisor(call)) is not None:
        kernel = call.args[1] * 2 if len(call.args[1]) == 1 else call.args[1]
        return max(bounds) * math.prod(kernel) / abs(divisor)
    if call.operator in _KEEPING or call.operator == "getitem":
        return max(bounds)
    if call.operator in ("add.Tensor", "sub.Tensor") and len(call.args) == 2:
        left, right = (sum(errors[v] for v in references(a, "v")) for a in call.args)
        return left + right * abs(call.kwargs.get("alpha", 1))
    constants = [_constant(a, tensors) for a in call.args]
    if call.operator in ("linear.default", "conv1d.default", "conv2d.default") and constants[1] is not None:
        return bounds[0] * float(constants[1].double().abs().flatten(1).sum(1).max())
    if call.operator == "batch_norm.default" and constants[4] is not None:
        weight = torch.ones(()) if constants[1] is None else constants[1]
        return bounds[0] * float((weight.double() * (constants[4].double() + call.args[7]).rsqrt()).abs().max())
    return math.inf


def _divisor(call: Call) -> int | None:
    return call.args[6] if len(call.args) > 6 else call.kwargs.get("divisor_override")


def _constant(written: Any, tensors: Mapping[str, Tensor]) -> Tensor | None:
    return tensors[written["t"]] if isinstance(written, dict) and "t" in written else None
