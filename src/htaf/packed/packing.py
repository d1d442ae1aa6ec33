"""From a hardened model to a packed one."""

from __future__ import annotations

from typing import Any, Literal

from torch import nn

from htaf.packed.graph import arguments_of, trace
from htaf.packed.lowering import lower
from htaf.packed.model import PackedModel
from htaf.packed.program import Kind, PackedError


def pack(
    model: nn.Module,
    example: Any,
    *,
    tables: Kind | Literal["auto"] = "float32",
    budget: float = 1e-3,
    dynamic_batch: bool = True,
) -> PackedModel:
    traced = trace(model, arguments_of(example), dynamic_batch=dynamic_batch)
    program, report = lower(traced, "float32" if tables == "auto" else tables)
    if not report.packed:
        raise PackedError("expected layers over outputs of steps, got none: no step is followed by a layer")
    return PackedModel(program, report)
