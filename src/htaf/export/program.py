"""The hardened network as an exported program, from which every file is written."""

from __future__ import annotations

import copy
import importlib
import warnings
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from htaf._errors import HtafError
from htaf.activations import HTAF, ScaledSigmoid, StraightThrough
from htaf.binary import BinaryConv2d, BinaryLinear, binary_weight

Example = Tensor | tuple[Tensor, ...]


class ExportError(HtafError):
    """A model that cannot be written as asked, or a library that is missing."""


def exported(model: nn.Module, example: Example, operators: Collection[Any]) -> torch.export.ExportedProgram:
    """The hardened model in eval mode as an exported program whose first dimension is dynamic.

    Args:
        operators: those of htaf that the writer knows.

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
        raise ExportError(f"torch.export does not take {type(model).__name__}: {first_line(error)}") from None
    ours = {str(node.target) for node in program.graph.nodes if str(node.target).startswith("htaf.")}
    if unknown := ours - {str(op) for op in operators}:
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


def require(library: str) -> Any:
    """A library that only exports need."""
    try:
        return importlib.import_module(library)
    except ImportError as error:
        raise ExportError(f"this needs {library}: pip install 'htaf[export]' ({error})") from None


@contextmanager
def quiet() -> Iterator[None]:
    """Without the exporters' own warnings, which say nothing of the model."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def first_line(error: BaseException) -> str:
    """The first line of the cause, which PyTorch's exporters hide below their own."""
    while error.__cause__ is not None:
        error = error.__cause__
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
