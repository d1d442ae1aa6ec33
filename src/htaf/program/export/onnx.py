"""Hardened networks as ONNX files."""

from __future__ import annotations

import copy
import importlib
import re
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from htaf._ground.errors import HtafError
from htaf._ground.files import check_output, write_atomic
from htaf.core.binary import BinaryConv2d, BinaryLinear, binary_weight
from htaf.core.kernels.operators import COMPARISONS, DECOMPOSITIONS
from htaf.transform.convert.exported import cause_of, check_hardened, export_program, quiet
from htaf.transform.grid import settled

OPSET = 18
Example = Tensor | tuple[Tensor, ...]


class ExportError(HtafError):
    """A model that cannot be written as asked, or a library that is missing."""


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
    """Return what `to_onnx` writes, as an onnx.ModelProto. Takes and raises as it does."""
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
    """Load an ONNX file as a function of inputs [rows, ...], run by onnxruntime on the CPU.

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
    """Name the dynamic dimension `batch` in place of torch's name, wherever shapes are noted."""
    dims = [one.type.tensor_type.shape.dim for one in (*graph.input, *graph.output, *graph.value_info)]
    symbol = dims[0][0].dim_param
    for dim in (dim for shape in dims for dim in shape):
        if symbol and dim.dim_param:
            dim.dim_param = re.sub(rf"\b{re.escape(symbol)}\b", "batch", dim.dim_param)


def _numbered(name: str, count: int) -> list[str]:
    return [name] if count == 1 else [f"{name}_{i}" for i in range(count)]


# ---- the hardened network as an exported program ----


def exported(model: nn.Module, example: Example, operators: Collection[Any]) -> torch.export.ExportedProgram:
    """Export the hardened model in eval mode as a program whose first dimension is dynamic.

    Args:
        operators: those of htaf that the writer knows.

    Raises:
        ExportError: the model is not hardened, or `torch.export` does not take it.
    """
    check_hardened(model, ExportError)
    inputs = (example,) if isinstance(example, Tensor) else tuple(example)
    if not all(isinstance(x, Tensor) and x.ndim and len(x) for x in inputs):
        raise ExportError(f"example must be a tensor [rows, ...], or a tuple of them, got {example!r:.100}")
    program = export_program(_constant_weights(settled(model)).eval(), inputs, ExportError)
    ours = {str(node.target) for node in program.graph.nodes if str(node.target).startswith("htaf.")}
    if unknown := ours - {str(op) for op in operators}:
        raise ExportError(f"expected a hardened model, got {type(model).__name__} with {', '.join(sorted(unknown))}")
    return program


def _constant_weights(model: nn.Module) -> nn.Module:
    """Return a copy whose binary layers are plain ones with the weights that they multiply by."""
    model = copy.deepcopy(model)
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, (BinaryConv2d, BinaryLinear)):
                setattr(parent, name, _plain_layer(child))
    return _plain_layer(model) if isinstance(model, (BinaryConv2d, BinaryLinear)) else model


def _plain_layer(layer: BinaryConv2d | BinaryLinear) -> nn.Module:
    kind = nn.Conv2d if isinstance(layer, BinaryConv2d) else nn.Linear
    plain = kind.__new__(kind)
    plain.__dict__.update(layer.__dict__)
    weight = nn.Parameter(binary_weight(layer.weight).detach(), requires_grad=False)
    plain._parameters = {**layer._parameters, "weight": weight}
    return plain


def require(library: str) -> Any:
    """Import a library that only exports need."""
    try:
        return importlib.import_module(library)
    except ImportError as error:
        raise ExportError(f"this needs {library}: pip install 'htaf[export]' ({error})") from None
