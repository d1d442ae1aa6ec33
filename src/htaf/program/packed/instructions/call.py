"""An operator of PyTorch, of those that operators.py allows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple, final

import torch
from torch import Tensor

from htaf.core.kernels.float_layers.cpu import NO_WINDOW, shape_of, windows
from htaf.core.kernels.layers import Geometry
from htaf.program.packed import operators
from htaf.program.packed.errors import PackedError
from htaf.program.packed.instructions.contract import (
    Field,
    Instruction,
    Machine,
    Made,
    Ready,
    Run,
    Values,
    items,
    mapping,
    references,
)
from htaf.program.packed.planning import At, Ends, Planning

Arguments = Annotated[list[Any], Field(items, "arguments")]
Keywords = Annotated[dict[str, Any], Field(mapping, "arguments")]


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
        batch = values[0].shape[0]

        def given(written: Any) -> Any:
            argument = operators.decode(written, tensors)
            return argument.get(values, batch) if isinstance(argument, operators.Pending) else argument

        args = [given(a) for a in self.args]
        named = {k: given(a) for k, a in self.kwargs.items()}
        operators.check_arguments(function, args, named)
        where = {"device": "meta"} if operators.makes(function) else {}
        return [_as_float32(self, function, args, "meta")(*args, **named, **where)]

    def prepare(self, machine: Machine) -> Ready:
        if machine.floats is not None and (layer := _layer(self, machine)) is not None:
            return Ready(layer.run, layer)
        return Ready(_run(self, machine.tensors))

    def plan(self, planning: Planning, ready: Ready) -> bool:
        if isinstance(ready.layer, _Layer):
            return ready.layer.plan(planning)
        return _plan(self, planning)


# ---- layers over floats that have a kernel ----

MOST_INPUTS = 1024  # of an output: the weights of 64 outputs stay in a cache of the second level


class _Layer(NamedTuple):
    run: Run
    plan: Callable[[Planning], bool]


def _layer(call: Call, machine: Machine) -> _Layer | None:
    """The kernel of csrc/floats.cpp for this call; None where PyTorch runs it."""
    makers = {"conv2d.default": _weighted, "linear.default": _weighted, "mean.dim": _mean}
    maker = makers.get(call.operator)
    return None if maker is None or call.kwargs else maker(call, machine)


def _constants(call: Call, machine: Machine, weight_dimensions: int) -> tuple[int, Tensor, Tensor | None] | None:
    """The number of the input, weight and bias; None where they are no constants in float32."""
    source, weight, bias = [*call.args, None, None][:3]
    values, found = list(references(source, "v")), _constant(weight, machine.tensors)
    if source != {"v": values[0] if values else None} or found is None or len(call.reads) != 1:
        return None
    added = None if bias is None else _constant(bias, machine.tensors)
    if (bias is None) != (added is None) or found.ndim != weight_dimensions or found.dtype != torch.float32:
        return None
    if added is not None and (added.dtype != torch.float32 or added.shape != found.shape[:1]):
        return None
    if not found.numel() or found[0].numel() > MOST_INPUTS:
        return None
    return values[0], found, added


def _weighted(call: Call, machine: Machine) -> _Layer | None:
    """A convolution, or a linear layer as one of 1 x 1 over one image of one row."""
    is_linear = call.operator == "linear.default"
    constants = _constants(call, machine, 2 if is_linear else 4)
    usual: list[Any] = [[1, 1], [0, 0], [1, 1], 1]
    stride, padding, dilation, groups = [*call.args[3:], *usual[max(len(call.args) - 3, 0) :]]
    strides, border, apart = _pair(stride), _pair(padding), _pair(dilation)
    if constants is None or groups != 1 or strides is None or border is None or apart is None:
        return None
    source, weight, bias = constants
    weight = weight[..., None, None] if is_linear else weight
    outputs, channels, height, width = weight.shape
    g = Geometry(channels, outputs, (height, width), strides, border, apart)
    fallback, floats, laid, y = _run(call, machine.tensors), machine.floats, machine.floats.prepare(weight), call.y
    added = None if bias is None else bias.contiguous()

    def images(x: Tensor) -> Tensor:
        if not is_linear:
            return x
        return x.reshape(1, 1, x.numel() // max(x.shape[-1], 1), x.shape[-1]).permute(0, 3, 1, 2)

    def run(values: Values, batch: int) -> None:
        x = values[source]
        if not is_linear and x.ndim != 4:
            fallback(values, batch)
            return
        made = floats.convolution(images(x), laid, added, g)
        values[y] = made.permute(0, 2, 3, 1).view(*x.shape[:-1], outputs) if is_linear else made

    def plan(planning: Planning) -> bool:
        x = planning.example(source)
        if not x.is_contiguous() if is_linear else x.ndim != 4:
            return False
        x = images(x)
        where = floats.shape_of(x, g), At(source), floats.strides_of(x), planning.address(laid)
        planning.step("floats", *where, NO_WINDOW, ends=Ends(shift=planning.address(added), y=y))
        return True

    return _Layer(run, plan)


def _pair(written: Any) -> tuple[int, int] | None:
    """Two integers, given as a list of one or two; None for what is none."""
    if not isinstance(written, list) or len(written) not in (1, 2) or not all(type(n) is int for n in written):
        return None
    return written[0], written[-1]


def _in_rows_of_channels(x: Tensor) -> bool:
    return x.ndim == 4 and x.dtype == torch.float32 and x.permute(0, 2, 3, 1).is_contiguous()


def _mean(call: Call, machine: Machine) -> _Layer | None:
    """Of all pixels of images."""
    dims, kept = call.args[1] if len(call.args) in (2, 3) else None, call.args[2:] == [True]
    if call.args[2:] not in ([], [True], [False]) or call.args[0] != {"v": call.reads[0]}:
        return None
    if not isinstance(dims, list) or sorted(d % 4 for d in dims if isinstance(d, int)) != [2, 3] or len(dims) != 2:
        return None
    fallback, floats, source, y = _run(call, machine.tensors), machine.floats, call.reads[0], call.y

    def run(values: Values, batch: int) -> None:
        x = values[source]
        if not _in_rows_of_channels(x):
            fallback(values, batch)
        else:
            means = floats.average(x, tuple(x.shape[2:]), (1, 1))
            values[y] = means if kept else means.flatten(1)

    def plan(planning: Planning) -> bool:
        x = planning.example(source)
        if not _in_rows_of_channels(x):
            return False
        shape = floats.shape_of(x, floats.windows(x, tuple(x.shape[2:]), (1, 1), (0, 0)))
        planning.step("average", shape, At(source), At(y), makes=[y])
        return True

    return _Layer(run, plan)


_BITWISE = {"bitwise_and.Tensor": 0, "bitwise_or.Tensor": 1, "bitwise_xor.Tensor": 2}  # the order of csrc/bind_plan.cpp


def _plan(call: Call, planning: Planning) -> bool:
    """Calls whose closure is PyTorch's operator and that give the same in a plan."""
    y, reads = call.y, call.reads
    if planning.alias(y):
        return True
    made = planning.example(y)
    if call.operator in _BITWISE and len(reads) == 2 and call.args == [{"v": v} for v in reads]:
        both = [planning.example(v) for v in reads]
        alike = all(x.dtype == torch.uint8 and x.shape == made.shape and x.is_contiguous() for x in both)
        if alike and made.numel() % 8 == 0:
            places = [At(v) for v in (*reads, y)]
            planning.step("bitwise", _BITWISE[call.operator], *places, made.numel() // 8, makes=[y])
            return True
    if call.operator == "cat.default" and call.args == [[{"v": v} for v in reads], -1] and not call.kwargs:
        parts = [planning.example(v) for v in reads]
        if all(x.dtype == torch.uint8 and x.is_contiguous() and x.shape[-1] % 8 == 0 for x in parts):
            sizes = [(At(v), x.shape[-1] // 8) for v, x in zip(reads, parts, strict=True)]
            planning.step("join", sizes, At(y), made.numel() // made.shape[-1], makes=[y])
            return True
    if call.operator == "add.Tensor" and call.args == [{"v": v} for v in reads] and len(reads) == 2 and not call.kwargs:
        both = [planning.example(v) for v in reads]
        alike = all(x.dtype == torch.float32 and x.shape == made.shape and x.stride() == made.stride() for x in both)
        if alike and made.numel() * 4 == planning.layouts[y].bytes():
            planning.step("sum", *(At(v) for v in (*reads, y)), made.numel(), makes=[y])
            return True
    if call.operator == "max_pool2d.default" and not call.kwargs:
        return _plan_maximum(call, planning)
    return False


def _plan_maximum(call: Call, planning: Planning) -> bool:
    kernel = call.args[1] if len(call.args) > 1 else None
    stride = (call.args[2] if len(call.args) > 2 else None) or kernel
    padding, dilation, ceiling = [*call.args[3:], *[[0], [1], False][max(len(call.args) - 3, 0) :]]
    source, y = call.reads[0], call.y
    x = planning.example(source)
    pairs = [_pair(kernel), _pair(stride), _pair(padding)]
    if ceiling or _pair(dilation) != (1, 1) or None in pairs or call.args[0] != {"v": source}:
        return False
    if not _in_rows_of_channels(x) or not _in_rows_of_channels(planning.example(y)):
        return False
    window: Any = tuple(pairs)
    if planning.with_maximum(source, window, y):
        return True
    planning.step("maximum", shape_of(x, windows(x, *window)), At(source), ends=Ends(y=y))
    return True


# ---- execution ----


def _run(call: Call, tensors: Mapping[str, Tensor]) -> Run:
    function = operators.allowed(call.operator)
    assert function is not None  # `sizes` has seen to it
    args = [operators.decode(a, tensors) for a in call.args]
    kwargs = {k: operators.decode(a, tensors) for k, a in call.kwargs.items()}
    pending = [(i, a) for i, a in enumerate(args) if isinstance(a, operators.Pending)]
    named = [(k, a) for k, a in kwargs.items() if isinstance(a, operators.Pending)]
    function = _looked_up if call.operator == "embedding.default" else _as_float32(call, function, args, "cpu")
    if operators.makes(function):
        kwargs["device"] = "cpu"
    y = call.y
    if "conv2d" in call.operator and len(call.args) > 1 and isinstance(args[1], Tensor):
        args[1] = args[1].contiguous(memory_format=torch.channels_last)  # then so is the output

    def run(values: Values, batch: int) -> None:
        given = args.copy()
        for i, argument in pending:
            given[i] = argument.get(values, batch)
        if named:
            values[y] = function(*given, **kwargs | {k: a.get(values, batch) for k, a in named})
        else:
            values[y] = function(*given, **kwargs)

    return run


def _as_float32(call: Call, function: Callable[..., Any], args: list[Any], device: str) -> Callable[..., Any]:
    """The operator; of levels that are numbers, whose dtype would be PyTorch's default, they become float32."""
    if call.operator != "where.Scalar" or float not in map(type, args[1:]):
        return function
    args[1:] = [torch.tensor(level, dtype=torch.float32, device=device) for level in args[1:]]
    return torch.where


def _looked_up(weight: Tensor, ids: Tensor, *more: Any) -> Tensor:
    """Rows of a table. Raises PackedError for ids that it does not have, of which PyTorch says neither range nor id."""
    try:
        return torch.ops.aten.embedding.default(weight, ids, *more)
    except IndexError:
        got = f"{int(ids.min())} to {int(ids.max())}"
        raise PackedError(f"expected ids from 0 to {len(weight) - 1} for an embedding, got {got}") from None


def _constant(written: Any, tensors: Mapping[str, Tensor]) -> Tensor | None:
    return tensors[written["t"]] if isinstance(written, dict) and "t" in written else None
