"""The hardened network as an exported program, from which every file is written."""

from __future__ import annotations

import copy
import importlib
from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor, nn

from htaf._ground.errors import HtafError
from htaf.core.binary import BinaryConv2d, BinaryLinear, binary_weight
from htaf.transform.convert.exported import check_hardened, export_program
from htaf.transform.grid import settled

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
