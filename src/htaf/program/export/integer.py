"""Integer programs as ONNX files of integer operators, which onnxruntime runs.

An operation is a function of the graph, the tensors that it takes, their values and its own.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from htaf._ground.files import check_output, write_atomic
from htaf.program.export.onnx import require
from htaf.program.integer import ops
from htaf.program.integer.exports import KEY, OPEN, lines, sealed
from htaf.program.integer.ops import WIDEST, Array, Op, Pair, Value, by_channel, sums
from htaf.program.integer.program import IntegerProgram

OPSET = 18
IR = 10  # of ONNX's files: read by onnxruntime from 1.18


def to_integer_onnx(program: IntegerProgram, path: str | Path) -> None:
    """Write a program as ONNX of integer operators alone: input [batch, ...], uint8 pixels or int32 columns; output
    int64 [batch, classes]. A column outside the range of the input counts as the end that is nearer.

    Sums are ConvInteger or MatMulInteger where bytes hold the numbers and no kernel can saturate, else products of
    int64. The metadata hold the program's SHA-256 (program_sha256), its unit, its input, how raw columns become it
    (columns), and the SHA-256 of the file with zeros in its place (file_sha256).

    Raises:
        ExportError: onnx is not installed. HtafError: the path is that of a folder, or of a file of a run.
    """
    graph = Graph()
    check_output(Path(path), flag="path")
    helper, number = graph.onnx.helper, graph.onnx.TensorProto
    graph.op, pixels = "input", program.input.kind == "pixels"
    tensors = [graph.cast("input")]
    if not pixels:
        tensors = [graph.add("Min", graph.add("Max", *tensors, program.input.low), program.input.high)]
    for _, op, value in program:
        graph.op = f"{len(tensors)}.{op.name}"
        values = [program.values[i] for i in op.reads]
        tensors.append(WRITTEN[type(op)](graph, op, [tensors[i] for i in op.reads], values, value))
    graph.op = "output"
    graph.nodes.append(helper.make_node("Identity", [tensors[program.output]], ["output"], "output"))
    kind, last = number.UINT8 if pixels else number.INT32, program.values[program.output]
    given = helper.make_tensor_value_info("input", kind, ["batch", *program.input.shape])
    gives = helper.make_tensor_value_info("output", number.INT64, ["batch", *last.shape])
    proto = helper.make_graph(graph.nodes, "htaf", [given], [gives], graph.constants)
    opsets = [helper.make_opsetid("", OPSET)]
    model = helper.make_model(proto, opset_imports=opsets, ir_version=IR, producer_name="htaf")
    said = {KEY: OPEN, "program_sha256": program.digest, "unit": json.dumps(list(program.unit))}
    said |= {"input": json.dumps(program.described()["input"]), "columns": "\n".join(lines(program))}
    helper.set_model_props(model, said)
    write_atomic(Path(path), sealed(model.SerializeToString()))


class Graph:
    """Nodes and constants of an ONNX graph while it is made; its numbers are int64."""

    def __init__(self) -> None:
        self.onnx: Any = require("onnx")
        self.nodes: list[Any] = []
        self.constants: list[Any] = []
        self.op = ""  # whose nodes are made
        self.taken = frozenset[str]()  # names of inputs

    def _name(self, name: str) -> str:
        while name in self.taken:
            name += "_"
        return name

    def add(self, operator: str, *given: Any, **attributes: Any) -> str:
        """A node with one output, whose name it gives. Numbers among what it takes become constants."""
        made = self._name(f"{self.op}/{operator}_{len(self.nodes)}")
        taken = [one if isinstance(one, str) else self.constant(one) for one in given]
        self.nodes.append(self.onnx.helper.make_node(operator, taken, [made], made, **attributes))
        return made

    def constant(self, value: Any, dtype: Any = np.int64) -> str:
        made = self._name(f"{self.op}/constant_{len(self.constants)}")
        self.constants.append(self.onnx.numpy_helper.from_array(np.asarray(value).astype(dtype), made))
        return made

    def cast(self, x: str, kind: str = "INT64") -> str:
        return self.add("Cast", x, to=getattr(self.onnx.TensorProto, kind))

    def shaped(self, x: str, shape: Sequence[int]) -> str:
        """Of any number of rows."""
        return self.add("Reshape", x, self.constant([-1, *shape]))

    def times(self, x: str, factor: Array, shape: tuple[int, ...]) -> str:
        """By a factor a channel."""
        return x if (factor == 1).all() else self.add("Mul", x, by_channel(factor, shape))

    def halved(self, x: str, times: Array | int) -> str:
        """floor(x / 2 ** times)"""
        by = self.constant(np.int64(1) << np.asarray(times))
        return self.add("Div", self.add("Sub", x, self.add("Mod", x, by)), by)  # Div alone rounds towards 0


Written = Callable[[Graph, Any, list[str], list[Value], Value], str]


def _lookup(graph: Graph, op: ops.Lookup, given: list[str], values: list[Value], made: Value) -> str:
    first = graph.constant(by_channel(np.arange(len(op.table)) * 256, made.shape))
    place = graph.add("Add", given[0], first)
    return graph.add("Gather", op.table.reshape(-1), place, axis=0)


def _take(graph: Graph, op: ops.Take, given: list[str], values: list[Value], made: Value) -> str:
    return graph.add("Gather", given[0], graph.constant(op.index), axis=-1)


def _lut(graph: Graph, op: ops.LUT, given: list[str], values: list[Value], made: Value) -> str:
    tables, inputs = op.index.shape
    bits = graph.add("Gather", given[0], graph.constant(op.index), axis=-1)
    places = graph.add("Mul", bits, 1 << np.arange(inputs))
    address = graph.add("ReduceSum", places, graph.constant([1 + len(made.shape)]), keepdims=0)
    place = graph.add("Add", address, np.arange(tables) << inputs)
    return graph.add("Gather", op.table.reshape(-1), place, axis=0)


def _add(graph: Graph, op: ops.Add, given: list[str], values: list[Value], made: Value) -> str:
    parts = zip(given, (op.left, op.right), strict=True)
    return graph.add("Add", *(graph.times(x, np.int64(1) << by, made.shape) for x, by in parts))


def _count(graph: Graph, op: ops.Count, given: list[str], values: list[Value], made: Value) -> str:
    axes = [1 + axis % len(values[0].shape) for axis in op.axes]  # onnxruntime does not sum no rows over axes below 0
    return graph.add("ReduceSum", given[0], graph.constant(axes), keepdims=0)


def _view(graph: Graph, op: ops.View, given: list[str], values: list[Value], made: Value) -> str:
    return graph.shaped(given[0], op.shape)


def _shift(graph: Graph, op: ops.Shift, given: list[str], values: list[Value], made: Value) -> str:
    x = graph.times(given[0], np.int64(1) << np.maximum(op.shift, 0), made.shape)
    if op.shift.min() < 0:
        right = by_channel(np.maximum(-op.shift, 0), made.shape)
        by = graph.constant(np.int64(1) << right)
        floor, rest = graph.halved(x, right), graph.add("Mod", x, by)
        # above half, or half and odd: 2 rest + (floor mod 2) > by
        twice = graph.add("Add", graph.add("Mul", rest, 2), graph.add("Mod", floor, 2))
        x = graph.add("Add", floor, graph.cast(graph.add("Greater", twice, by)))
    return graph.add("Min", graph.add("Max", x, op.least), op.most)


def _bytes(graph: Graph, weight: Array, x: str, value: Value) -> tuple[str, str, str] | None:
    """Inputs as uint8, weights as int8 (those of rows transposed) and the zero of the inputs; or None where these do
    not hold them, or where kernels that add two products in 16 bits (AVX2) would saturate."""
    low, high = min(value.low, 0), max(value.high, 0)
    most, rows = int(np.abs(weight).max()), weight.reshape(len(weight), -1)
    widest = max(map(abs, sums(rows, None, Value(value.shape, low, high))))
    if high - low > 255 or most > 127 or 2 * (high - low) * most >= 2**15 or widest >= 2**31:
        return None
    shifted = graph.add("Sub", x, low) if low else x
    held = weight.T if weight.ndim == 2 else weight
    return graph.cast(shifted, "UINT8"), graph.constant(held, np.int8), graph.constant(-low, np.uint8)


def _linear(graph: Graph, op: ops.Linear, given: list[str], values: list[Value], made: Value) -> str:
    if (held := _bytes(graph, op.weight, given[0], values[0])) is not None:
        y = graph.cast(graph.add("MatMulInteger", *held))
    else:
        y = graph.add("MatMul", given[0], op.weight.T)
    return y if op.bias is None else graph.add("Add", y, op.bias)


def _conv(graph: Graph, op: ops.Conv, given: list[str], values: list[Value], made: Value) -> str:
    x, shape = given[0], made.shape
    if (held := _bytes(graph, op.weight, x, values[0])) is not None:
        pads = [*op.padding, *op.padding]
        y = graph.cast(graph.add("ConvInteger", *held, strides=op.stride, pads=pads, dilations=op.dilation))
    else:
        outputs, inputs, *kernel = op.weight.shape
        x = _windows(graph, x, values[0], (kernel[0], kernel[1]), op.stride, op.padding, op.dilation, 0)
        x = graph.add("Transpose", x, perm=[0, 2, 4, 1, 3, 5])
        x = graph.shaped(x, (shape[1] * shape[2], inputs * kernel[0] * kernel[1]))
        y = graph.add("MatMul", x, op.weight.reshape(outputs, -1).T)
        y = graph.shaped(graph.add("Transpose", y, perm=[0, 2, 1]), shape)
    return y if op.bias is None else graph.add("Add", y, by_channel(op.bias, shape))


def _windows(
    graph: Graph, x: str, value: Value, kernel: Pair, stride: Pair, padding: Pair, dilation: Pair, border: int
) -> str:
    """The windows [rows, C, H, kernel height, W, kernel width] of images [rows, C, h, w]."""
    if any(padding):
        x = graph.add("Pad", x, graph.constant([0, 0, *padding, 0, 0, *padding]), border)
    for i, axis in enumerate((2, 4)):
        room = value.shape[i - 2] + 2 * padding[i] - (kernel[i] - 1) * dilation[i]
        places = np.arange(0, room, stride[i])[:, None] + np.arange(kernel[i]) * dilation[i]
        x = graph.add("Gather", x, graph.constant(places), axis=axis)
    return x


def _steps(graph: Graph, op: ops.Steps, given: list[str], values: list[Value], made: Value) -> str:
    x = graph.times(given[0], op.sign, made.shape)
    if op.thresholds.shape[1] == 1:
        y = graph.cast(graph.add("GreaterOrEqual", x, by_channel(op.thresholds[:, 0], made.shape)))
    else:
        every = np.stack([by_channel(t, made.shape) for t in op.thresholds.T], -1)
        reached = graph.add("GreaterOrEqual", graph.add("Unsqueeze", x, graph.constant([-1])), every)
        y = graph.add("ReduceSum", graph.cast(reached), graph.constant([1 + len(made.shape)]), keepdims=0)
    y = y if op.unit == 1 else graph.add("Mul", y, op.unit)
    return graph.add("Add", y, op.least) if op.least else y


def _pool(graph: Graph, op: ops.Pool, given: list[str], values: list[Value], made: Value) -> str:
    x = graph.times(given[0], 1 - 2 * op.smallest, made.shape)
    x = _windows(graph, x, values[0], op.kernel, op.stride, op.padding, (1, 1), -WIDEST - 1)
    x = graph.add("ReduceMax", x, graph.constant([3, 5]), keepdims=0)
    return graph.times(x, 1 - 2 * op.smallest, made.shape)


WRITTEN: dict[type[Op], Written] = {
    ops.Lookup: _lookup, ops.Take: _take, ops.Add: _add, ops.LUT: _lut, ops.Count: _count, ops.View: _view,
    ops.Shift: _shift, ops.Linear: _linear, ops.Conv: _conv, ops.Steps: _steps, ops.Pool: _pool,
}  # fmt: skip
