from __future__ import annotations

import sys

import pytest
from torch import nn

from htaf.packed import graph, packing
from htaf.packed.verify import compare


@pytest.fixture
def exported_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """`pack` and `verify` of one model share its export, which takes most of the time of a test."""
    kept: dict[int, tuple[nn.Module, graph.Traced]] = {}

    def trace(model: nn.Module, example, *, dynamic_batch: bool = True) -> graph.Traced:
        if id(model) not in kept:
            kept[id(model)] = model, graph.trace(model, example, dynamic_batch=dynamic_batch)
        return kept[id(model)][1]

    monkeypatch.setattr(packing, "trace", trace)
    monkeypatch.setattr(sys.modules[compare.__module__], "trace", trace)  # the name `verify` is a function
