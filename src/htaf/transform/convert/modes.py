"""A network in eval mode, or with hooks, for a while."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle


@contextmanager
def evaluating(*models: nn.Module) -> Iterator[None]:
    """Eval mode, without gradients; every module's flag is as it was afterwards."""
    flags = [(module, module.training) for model in models for module in model.modules()]
    try:
        for module, _ in flags:
            module.training = False
        with torch.no_grad():
            yield
    finally:
        for module, training in flags:
            module.training = training


def first_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """The input of a module that takes one, by its place or by name, as a hook sees it."""
    return args[0] if args else next(iter(kwargs.values()))


@contextmanager
def hooked(handles: Iterable[RemovableHandle]) -> Iterator[None]:
    """Take hooks off again at the end."""
    handles = list(handles)
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
