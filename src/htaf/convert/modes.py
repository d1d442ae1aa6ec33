"""A network in eval mode for a while."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn


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
