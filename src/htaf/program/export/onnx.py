"""Hardened networks as ONNX files."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from htaf._ground.files import check_output, write_atomic
from htaf.core.kernels.operators import COMPARISONS, DECOMPOSITIONS
from htaf.program.export.program import Example, ExportError, exported, require
from htaf.transform.convert.exported import cause_of, quiet

OPSET = 18


def to_onnx(model: nn.Module, example: Example, path: str | Path, *, finite: bool = False) -> None:
    """Write a hardened model as an ONNX file of opset 18 with a dynamic batch.

    Inputs are named input (input_0, input_1, ... where there are several), outputs output; their first dimension is
    `batch`. The step is GreaterOrEqual with 0, so that 0 and -0.0 give 1, and NaN gives NaN; of several levels it is
    the mean of one for each threshold. Neurons are unrolled over their time steps. Weights are float32, also of binary
    layers: ONNX has no others that its runtimes multiply by.

    Args:
        model: hardened, on the CPU; not changed. It is written as in eval mode.
        example: inputs of at least two rows, or a tuple of them.
        path: of the file, which is written whole or not at all.
        finite: inputs will hold neither NaN nor infinite numbers, as pixels do not. A step is then
            GreaterOrEqual and Cast alone, and a NaN, if one came, would give the lowest level.

    Raises:
        ExportError: the model is not hardened, `torch.export` or the translation fails, or onnx is not installed.

    Example:
        >>> to_onnx(harden(net), images[:2], "net.onnx")
    """
    check_output(Path(path), flag="path")
    write_atomic(Path(path), network_proto(model, example, finite=finite).SerializeToString())


def network_proto(model: nn.Module, example: Example, *, finite: bool = False) -> Any:
    """What `to_onnx` writes, as an onnx.ModelProto. Takes and raises as it does."""
    require("onnxscript")
    program = exported(model, example, DECOMPOSITIONS)
    try:
        with quiet(), torch.no_grad():
            program = program.run_decompositions({**(COMPARISONS if finite else DECOMPOSITIONS)})
            inputs = [node.name for node in program.graph.nodes if node.op == "placeholder"]
            inputs = [name for name in inputs if name in program.graph_signature.user_inputs]
            outputs = program.graph_signature.user_outputs
            written: Any = torch.onnx.export(
                program, dynamo=True, opset_version=OPSET, verbose=False,
                input_names=_numbered("input", len(inputs)), output_names=_numbered("output", len(outputs)),
            )  # fmt: skip
    except Exception as error:  # of many kinds, as of an operator that ONNX does not have
        raise ExportError(f"{type(model).__name__} cannot be written as ONNX: {cause_of(error)}") from None
    proto = written.model_proto  # made anew whenever it is asked for
    _name_batch(proto.graph)
    return proto


def onnx_network(path: str | Path) -> Callable[[Tensor], Tensor]:
    """An ONNX file as a function of inputs [rows, ...], run by onnxruntime on the CPU.

    Raises:
        ExportError: onnxruntime is not installed, or does not take the file or, when called, the inputs.
    """
    runtime = require("onnxruntime")

    def tried(function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        try:
            return function(*arguments, **options)
        except Exception as error:  # its exceptions have no base of their own
            raise ExportError(f"onnxruntime does not run {path}: {cause_of(error)}") from None

    session = tried(runtime.InferenceSession, str(path), providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    return lambda x: torch.from_numpy(tried(session.run, None, {name: x.contiguous().numpy()})[0])


def _name_batch(graph: Any) -> None:
    """The dynamic dimension as `batch` in place of torch's name, wherever shapes are noted."""
    dims = [one.type.tensor_type.shape.dim for one in (*graph.input, *graph.output, *graph.value_info)]
    symbol = dims[0][0].dim_param
    for dim in (dim for shape in dims for dim in shape):
        if symbol and dim.dim_param:
            dim.dim_param = re.sub(rf"\b{re.escape(symbol)}\b", "batch", dim.dim_param)


def _numbered(name: str, count: int) -> list[str]:
    return [name] if count == 1 else [f"{name}_{i}" for i in range(count)]
