"""Running the steps of a packed model: everything is resolved once, a run calls one closure a step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from htaf.kernels import native
from htaf.kernels.binary_convolution import cpu as binary
from htaf.kernels.binary_convolution import reference as binary_formulas
from htaf.kernels.layers import Epilogue, Spare, row_bytes
from htaf.kernels.packed_maps import cpu as maps
from htaf.kernels.packed_maps import reference as maps_formulas
from htaf.kernels.table_convolution import cpu as tables
from htaf.kernels.table_convolution import reference as tables_formulas
from htaf.packed import operators
from htaf.packed.layers import widened
from htaf.packed.program import Call, Layer, Pool, Program, Spikes, Step, Threshold, Unpack, made, read

Values = list[Any]
Run = Callable[[Values, int], None]
Prepared = dict[str, Any]  # by name of the weight


def kernels() -> tuple[Any, Any, Any]:
    """binary_convolution, table_convolution, packed_maps: the compiled ones where they are there, else the formulas."""
    if native.available():
        return binary, tables, maps
    return binary_formulas, tables_formulas, maps_formulas


class Execution:
    """The closures of a program. `prepared`: weights as the kernels hold them, by the step's number."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.binary, self.tables, self.maps = kernels()
        self.count = 1 + max([len(program.inputs) - 1, *(v for step in program.steps for v in made(step))])
        last: dict[int, int] = {}
        for i, step in enumerate(program.steps):
            last |= dict.fromkeys((*made(step), *read(step)), i)
        for value in values_of(program.outputs):
            last[value] = len(program.steps)
        self.prepared: dict[int, Any] = {}
        self.spare: Spare = {}  # of the batch size that ran last
        self.batch = 0
        reusable = _reusable(program) if native.available() else set()  # the formulas take none
        self.runs: list[tuple[Run, tuple[int, ...], tuple[int, ...]]] = []
        for i, step in enumerate(program.steps):
            done = {v for v in (*made(step), *read(step)) if last[v] == i}
            self.runs.append((self._closure(i, step), tuple(done - reusable), tuple(done & reusable)))
        self.outputs = _gather(program.outputs)

    def __call__(self, inputs: tuple[Tensor, ...], *, after: Callable[[Step, Values], None] | None = None) -> Any:
        """The outputs. `after` sees the values after every step, and may change them; none are freed then."""
        values: Values = [None] * self.count
        values[: len(inputs)] = inputs
        batch = inputs[0].shape[0]
        if after is not None:
            for step, (run, _, _) in zip(self.program.steps, self.runs, strict=True):
                run(values, batch)
                after(step, values)
            return self.outputs(values)
        if batch != self.batch:
            self.batch = batch
            self.spare.clear()
        spare = self.spare
        for run, done, reused in self.runs:
            run(values, batch)
            for value in done:
                values[value] = None
            for value in reused:
                y, values[value] = values[value].permute(0, 2, 3, 1), None
                spare.setdefault(tuple(y.shape), []).append(y)
        return self.outputs(values)

    def _closure(self, index: int, step: Step) -> Run:
        if isinstance(step, Layer):
            return self._layer(index, step)
        if isinstance(step, Threshold):
            return self._threshold(step)
        if isinstance(step, Spikes):
            return self._spikes(step)
        if isinstance(step, Pool):
            return self._pool(step)
        if isinstance(step, Unpack):
            return self._unpack(step)
        return _call(step, self.program.tensors)

    def _layer(self, index: int, step: Layer) -> Run:
        t, g, form = self.program.tensors, step.geometry, step.form
        if step.weights == "binary":
            kernel, self.prepared[index] = self.binary, self.binary.prepare(t[step.weight], g, bipolar=step.bipolar)
        else:
            kernel, self.prepared[index] = (
                self.tables,
                self.tables.prepare(widened(t[step.weight], g, step.planes), g, step.tables),
            )
        scale, shift, lower, upper = (
            None if n is None else t[n] for n in (step.scale, step.shift, step.lower, step.upper)
        )
        source, residual, y_at, bits_at = step.input, step.residual, step.y, step.bits
        layer = kernel.bind(self.prepared[index], g, Epilogue(scale, shift, None, lower, upper, step.y is not None))
        outputs, width = g.outputs, row_bytes(g.outputs)
        take, lay, give = FORMS[form]
        spare = self.spare

        def run(values: Values, batch: int) -> None:
            bits = values[source]
            y, out = layer(take(bits), None if residual is None else lay(values[residual]), spare)
            if y_at is not None:
                values[y_at] = give(y, bits, outputs, True)
            if bits_at is not None:
                values[bits_at] = give(out, bits, width, False)

        return run

    def _threshold(self, step: Threshold) -> Run:
        lower, upper = self.program.tensors[step.lower], self.program.tensors[step.upper]
        epilogue = Epilogue(None, None, None, lower, upper, False)
        finish, source, axis, bits = self.maps.finish, step.input, step.axis, step.bits

        def run(values: Values, batch: int) -> None:
            values[bits] = finish(values[source].movedim(axis, -1).contiguous(), epilogue)[1]

        return run

    def _spikes(self, step: Spikes) -> Run:
        spikes, source, axis, bits = self.maps.spikes, step.input, step.axis, step.bits
        numbers = {"leak": step.leak, "gain": step.gain, "threshold": step.threshold, "soft": step.soft}

        def run(values: Values, batch: int) -> None:
            values[bits] = spikes(values[source].movedim(axis, -1), None, None, **numbers)

        return run

    def _pool(self, step: Pool) -> Run:
        pool, source, bits = self.maps.max_pool, step.input, step.bits
        sizes = (step.kernel, step.stride, step.padding, step.dilation)

        def run(values: Values, batch: int) -> None:
            values[bits] = pool(values[source], *sizes)

        return run

    def _unpack(self, step: Unpack) -> Run:
        unpack, source, channels, axis, y = self.maps.unpack, step.input, step.channels, step.axis, step.y
        low, high = step.low, step.high
        bipolar = (low, high) == (-1.0, 1.0)
        plain = bipolar or (low, high) == (0.0, 1.0)
        levels = torch.tensor([low, high], dtype=torch.float32, device="cpu")

        def run(values: Values, batch: int) -> None:
            found = unpack(values[source], channels, bipolar=bipolar)
            if not plain:
                found = torch.where(found > 0, levels[1], levels[0])
            values[y] = found.movedim(-1, axis)

        return run


def _call(step: Call, tensors: dict[str, Tensor]) -> Run:
    function = operators.allowed(step.operator)
    assert function is not None  # `check` has seen to it
    args = [operators.decode(a, tensors) for a in step.args]
    kwargs = {k: operators.decode(a, tensors) for k, a in step.kwargs.items()}
    pending = [(i, a) for i, a in enumerate(args) if isinstance(a, operators.Pending)]
    named = [(k, a) for k, a in kwargs.items() if isinstance(a, operators.Pending)]
    if step.operator == "where.Scalar" and float in map(type, args[1:]):  # or their dtype is PyTorch's default
        function = torch.where
        args[1:] = [torch.tensor(level, dtype=torch.float32, device="cpu") for level in args[1:]]
    if operators.makes(function):
        kwargs["device"] = "cpu"
    y = step.y
    if "conv2d" in step.operator and len(step.args) > 1 and isinstance(args[1], Tensor):
        args[1] = args[1].contiguous(memory_format=torch.channels_last)  # then so is the output
        if (pointwise := _pointwise(step, args)) is not None:
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


def _pointwise(step: Call, args: list[Any]) -> Run | None:
    """A convolution of 1 x 1 over floats as a matrix product of its pixels, which starts sooner; None for another."""
    usual: list[Any] = [None, None, None, [1, 1], [0, 0], [1, 1], 1]
    source, weight, bias, stride, padding, _, groups = args + usual[len(args) :]
    if (tuple(weight.shape[2:]), stride, padding, groups) != ((1, 1), [1, 1], [0, 0], 1) or step.kwargs:
        return None
    if not isinstance(source, operators.Pending) or not (bias is None or isinstance(bias, Tensor)):
        return None
    matrix, y = weight.flatten(1).contiguous(), step.y

    def run(values: Values, batch: int) -> None:
        pixels = source.get(values, batch).permute(0, 2, 3, 1)
        values[y] = torch.nn.functional.linear(pixels, matrix, bias).permute(0, 3, 1, 2)

    return run


# operators whose result never lies in the memory of an argument
_FRESH = {"add.Tensor", "avg_pool2d.default", "conv2d.default", "max_pool2d.default", "mean.dim"}


def _reusable(program: Program) -> set[int]:
    """The sums of layers over images that nothing holds after their last reader."""
    found = {s.y for s in program.steps if isinstance(s, Layer) and s.form == "image" and s.y is not None}
    for step in program.steps:
        if isinstance(step, Call) and step.operator not in _FRESH:
            found -= set(read(step))
    return found - set(values_of(program.outputs))


# ---- how values lie: what a kernel takes, its residual, and what it gives ----


def _image_residual(x: Tensor) -> Tensor:
    return x.permute(0, 2, 3, 1).contiguous()


def _image_give(out: Tensor, bits: Tensor, last: int, floats: bool) -> Tensor:
    return out.permute(0, 3, 1, 2) if floats else out


def _line_give(out: Tensor, bits: Tensor, last: int, floats: bool) -> Tensor:
    return out.squeeze(1).transpose(1, 2) if floats else out.squeeze(1)


def _row_give(out: Tensor, bits: Tensor, last: int, floats: bool) -> Tensor:
    return out.view(*bits.shape[:-1], last)


def _rows(x: Tensor) -> Tensor:
    x = x.contiguous()
    return x.view(1, 1, x.numel() // max(x.shape[-1], 1), x.shape[-1])


def _whole_give(out: Tensor, bits: Tensor, last: int, floats: bool) -> Tensor:
    return out.view(out.shape[0], last)


FORMS: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor], Callable[..., Tensor]]] = {
    "image": (lambda bits: bits, _image_residual, _image_give),
    "line": (lambda bits: bits.unsqueeze(1), lambda x: x.transpose(1, 2).contiguous().unsqueeze(1), _line_give),
    "row": (_rows, _rows, _row_give),
    "whole": (
        lambda bits: bits.view(bits.shape[0], -1, *bits.shape[-2:]),
        lambda x: x.contiguous().view(x.shape[0], 1, 1, x.shape[1]),
        _whole_give,
    ),
}


def values_of(written: Any) -> list[int]:
    """The values in a structure of outputs."""
    ((key, content),) = written.items()
    if key == "v":
        return [content]
    items = content.values() if key == "dict" else content or []
    return [value for item in items for value in values_of(item)]


def _gather(written: Any) -> Callable[[Values], Any]:
    """A function from the values of a run to the outputs, structured as the model gives them."""
    ((key, content),) = written.items()
    if key == "v":
        return lambda values: values[content]
    if key == "none":
        return lambda values: None
    if key == "dict":
        parts = {k: _gather(item) for k, item in content.items()}
        return lambda values: {k: part(values) for k, part in parts.items()}
    items = [_gather(item) for item in content]
    if key == "list":
        return lambda values: [part(values) for part in items]
    return lambda values: tuple(part(values) for part in items)
