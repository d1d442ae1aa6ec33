"""What comparisons with published networks share."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn


def randomise(model: nn.Module) -> None:
    """Give every norm scales, shifts and statistics of its own."""
    for m in model.modules():
        if isinstance(m, nn.BatchNorm2d):
            for tensor, low in ((m.weight, 0.5), (m.bias, -0.5), (m.running_mean, -0.5), (m.running_var, 0.5)):
                assert tensor is not None
                nn.init.uniform_(tensor, low, low + 1)


def outputs_and_gradients(models: Any, x: Tensor, train: bool) -> tuple[list[Tensor], list[list[Any]]]:
    """Of each model in training or in eval mode, by the squares of its outputs."""
    outputs, grads = [], []
    for model in models:
        outputs.append(model.train(train)(x))
        outputs[-1].square().sum().backward()
        grads.append([p.grad for p in model.parameters()])
    return outputs, grads
