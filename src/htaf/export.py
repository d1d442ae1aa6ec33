"""Hardened networks for other software: ONNX files, which any runtime runs, and NIR graphs, for spiking hardware.

Both go through `torch.export`, so that any model that it takes can be written. What the operators of htaf do stands in
the file in terms of its own format: nothing of htaf is needed to run it.
"""

from __future__ import annotations

import copy
import importlib
import os
import re
import tempfile
import warnings
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from htaf._errors import HtafError
from htaf.activations import HTAF, ScaledSigmoid, StraightThrough
from htaf.binary import BinaryConv2d, BinaryLinear, binary_weight

if TYPE_CHECKING:
    from collections.abc import Iterator

OPSET = 18
Example = Tensor | tuple[Tensor, ...]


class ExportError(HtafError):
    """A model that cannot be written as asked, or a library that is missing."""


def to_onnx(model: nn.Module, example: Example, path: str | Path, *, opset: int = OPSET) -> None:
    """Write a hardened model as an ONNX file with a dynamic batch.

    Inputs are named input (input_0, input_1, ... where there are several), outputs output; their first dimension is
    `batch`. The step is GreaterOrEqual with 0, so that 0 and -0.0 give 1, and NaN gives NaN. Neurons are unrolled over
    their time steps. Weights are float32, of binary layers too: ONNX has no others that its runtimes multiply by.

    Args:
        model: hardened, on the CPU; not changed. It is written as in eval mode.
        example: inputs of at least two rows, or a tuple of them.
        path: of the file, which is written whole or not at all.
        opset: >= 18, of ONNX's operators.

    Raises:
        ExportError: the model is not hardened, `torch.export` or the translation fails, or onnx is not installed.

    Example:
        >>> to_onnx(harden(net), images[:2], "net.onnx")
    """
    if opset < OPSET:
        raise ExportError(f"opset must be >= {OPSET}, got {opset}")
    for library in ("onnx", "onnxscript"):
        require(library)
    program = exported(model, example)
    try:
        with quiet(), torch.no_grad():
            program = program.run_decompositions(STEPS)
            inputs = [node.name for node in program.graph.nodes if node.op == "placeholder"]
            inputs = [name for name in inputs if name in program.graph_signature.user_inputs]
            outputs = program.graph_signature.user_outputs
            written: Any = torch.onnx.export(
                program, dynamo=True, opset_version=opset, verbose=False,
                input_names=_numbered("input", len(inputs)), output_names=_numbered("output", len(outputs)),
            )  # fmt: skip
    except Exception as error:  # of many kinds: an operator that ONNX does not have, a version that it does not know
        raise ExportError(f"{type(model).__name__} cannot be written as ONNX: {_line(error)}") from None
    proto = written.model_proto
    if [one.version for one in proto.opset_import if one.domain in ("", "ai.onnx")] != [opset]:
        raise ExportError(f"expected ONNX's operators of opset {opset}, got those of another: choose one near {OPSET}")
    _name_batch(proto.graph)
    with replacing(Path(path)) as temporary:
        temporary.write_bytes(proto.SerializeToString())


@dataclass(frozen=True)
class Agreement:
    """How the outputs of a written network agree with those of the model.

    Attributes:
        rows: compared.
        predictions: rows whose highest output is the same; of one output, rows within the tolerance.
        difference: largest |difference| of outputs, over the largest |output| of the model.
    """

    rows: int
    predictions: int
    difference: float

    @property
    def equal(self) -> bool:
        """Whether every prediction is the same."""
        return self.predictions == self.rows


def agreement(found: Tensor, expected: Tensor, *, tolerance: float = 1e-4) -> Agreement:
    """Compare outputs [rows, outputs] of a written network with those of the model."""
    difference = (found.double() - expected.double()).abs()
    largest = expected.abs().max().item() if expected.numel() else 0.0
    scale = largest or 1.0
    if expected.shape[1] == 1:
        same = (difference <= tolerance * scale).flatten()
    else:
        same = found.argmax(1) == expected.argmax(1)
    worst = difference.max().item() / scale if difference.numel() else 0.0
    return Agreement(len(expected), int(same.sum()), worst)


def run_onnx(path: str | Path, x: Tensor, *, chunk: int = 256) -> Tensor:
    """The outputs of an ONNX file for inputs x [rows, ...], by onnxruntime on the CPU.

    Raises:
        ExportError: onnxruntime is not installed, or does not take the file.
    """
    runtime = require("onnxruntime")
    try:
        session = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        name = session.get_inputs()[0].name
        parts = [torch.from_numpy(session.run(None, {name: part.numpy()})[0]) for part in x.split(chunk)]
    except Exception as error:  # its exceptions have no base of their own
        raise ExportError(f"onnxruntime does not run {path}: {_line(error)}") from None
    return torch.cat(parts)


def exported(model: nn.Module, example: Example) -> torch.export.ExportedProgram:
    """The hardened model in eval mode as an exported program whose first dimension is dynamic.

    Raises:
        ExportError: the model is not hardened, or `torch.export` does not take it.
    """
    smooth = [
        name or type(m).__name__ for name, m in model.named_modules()
        if isinstance(m, (HTAF, ScaledSigmoid, StraightThrough))
    ]  # fmt: skip
    if smooth:
        shown = ", ".join(smooth[:3]) + (", ..." if len(smooth) > 3 else "")
        raise ExportError(
            f"expected a hardened model, got {type(model).__name__} with {len(smooth)} smooth activations ({shown}): "
            "give htaf.harden(model)"
        )
    inputs = (example,) if isinstance(example, Tensor) else tuple(example)
    if not all(isinstance(x, Tensor) and x.ndim and len(x) for x in inputs):
        raise ExportError(f"example must be a tensor [rows, ...], or a tuple of them, got {example!r:.100}")
    batches = tuple({0: torch.export.Dim.DYNAMIC} for _ in inputs)
    if any(len(x) == 1 for x in inputs):  # a dimension of 1 cannot be told from one that is always 1
        inputs = tuple(torch.cat([x, x]) for x in inputs)
    try:
        with quiet(), torch.no_grad():
            program = torch.export.export(_constant_weights(model).eval(), inputs, dynamic_shapes=(*batches,))
    except Exception as error:  # whatever the model's own code raises under tracing
        raise ExportError(f"torch.export does not take {type(model).__name__}: {_line(error)}") from None
    ours = {str(node.target) for node in program.graph.nodes if str(node.target).startswith("htaf.")}
    if unknown := ours - {str(op) for op in STEPS}:
        raise ExportError(f"expected a hardened model, got {type(model).__name__} with {', '.join(sorted(unknown))}")
    return program


def _constant_weights(model: nn.Module) -> nn.Module:
    """A copy whose binary layers are plain ones with the weights that they multiply by."""
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


# ---- what htaf's operators are in terms of PyTorch's ----


def _heaviside(x: Tensor, bipolar: bool) -> Tensor:
    step = (x >= 0).to(x.dtype)
    return torch.where(torch.isnan(x), x, 2 * step - 1 if bipolar else step)


def _spikes(x: Tensor, leak: float, gain: float, threshold: float, soft: bool) -> Tensor:
    v, found = None, []
    for now in x.to(torch.float64 if x.dtype == torch.float64 else torch.float32).unbind(0):
        h = now if gain == 1 else now * gain
        h = h if v is None else h + (v if leak == 1 else v * leak)
        spike = _heaviside(h - threshold, False)
        v = h - spike * threshold if soft else h - spike * h
        found.append(spike)
    return torch.stack(found).to(x.dtype)


def _pack(x: Tensor) -> Tensor:
    bits = nn.functional.pad((x >= 0).to(torch.int32), (0, -x.shape[-1] % 8)).unflatten(-1, (-1, 8))
    return (bits * _places()).sum(-1).to(torch.uint8)


def _unpack(bits: Tensor, size: int, dtype: torch.dtype, bipolar: bool) -> Tensor:
    values = (bits.to(torch.int32).unsqueeze(-1) // _places() % 2).flatten(-2)[..., :size].to(dtype)
    return 2 * values - 1 if bipolar else values


def _places() -> Tensor:
    return (2.0 ** torch.arange(8)).to(torch.int32)  # a constant tensor or a shift does not pass the translation


STEPS: dict[Any, Callable[..., Tensor]] = {
    torch.ops.htaf.heaviside.default: _heaviside,
    torch.ops.htaf.spikes.default: _spikes,
    torch.ops.htaf.pack_bits.default: _pack,
    torch.ops.htaf.unpack_bits.default: _unpack,
}


# ---- files ----


def require(library: str) -> Any:
    """A library that only exports need."""
    try:
        return importlib.import_module(library)
    except ImportError as error:
        raise ExportError(f"this needs {library}: pip install 'htaf[export]' ({error})") from None


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary file beside `path`, which takes its place when the block ends well."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    os.close(handle)
    try:
        yield Path(name)
        os.chmod(name, 0o644)
        os.replace(name, path)
    finally:
        Path(name).unlink(missing_ok=True)


@contextmanager
def quiet() -> Iterator[None]:
    """Without the exporters' own warnings, which say nothing of the model."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _name_batch(graph: Any) -> None:
    """The dynamic dimension as `batch` in place of torch's name, wherever shapes are noted."""
    dims = [one.type.tensor_type.shape.dim for one in (*graph.input, *graph.output, *graph.value_info)]
    symbol = dims[0][0].dim_param
    for dim in (dim for shape in dims for dim in shape):
        if symbol and dim.dim_param:
            dim.dim_param = re.sub(rf"\b{re.escape(symbol)}\b", "batch", dim.dim_param)


def _numbered(name: str, count: int) -> list[str]:
    return [name] if count == 1 else [f"{name}_{i}" for i in range(count)]


def _line(error: BaseException) -> str:
    """The first line of the cause, which PyTorch's exporters hide below their own."""
    while error.__cause__ is not None:
        error = error.__cause__
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
