"""Where accuracy is lost at the switch: the network with some layers exact, layer by layer, and what goes with it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from htaf.contract import SmoothStep
from htaf.convert import harden
from htaf.convert.modes import evaluating, hooked
from htaf.diagnostics.gradients import GradientNorms, mean_by_layer
from htaf.diagnostics.layers import layer_statistics

Scores = dict[str, float | None]
Batches = Iterable[tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class SwitchedLayer:
    """One smooth step, in eval mode.

    path: module path. std: of the smooth network's pre-activations.
    binarity: share of smooth outputs > 0.99 or < 0.01.
    flip_rate: share of its bits in which the exact network differs from the smooth one.
    gradient: mean over the batches of the L2 norm of the loss's gradient by the pre-activations, smooth network.
    up_to: scores of the network in which this layer and all that run before it are exact, the others smooth.
    only: scores of the network in which this layer alone is exact.
    """

    path: str
    std: float
    binarity: float | None
    flip_rate: float | None
    gradient: float
    up_to: Scores
    only: Scores


@dataclass(frozen=True)
class SwitchProfile:
    """Layers in order of first run; the scores of the smooth and of the exact network."""

    layers: tuple[SwitchedLayer, ...]
    smooth: Scores
    exact: Scores


def switch_profile(
    smooth: nn.Module, batches: Batches, *, score: Callable[[Tensor, Tensor], Mapping[str, float | None]] | None = None
) -> SwitchProfile:
    """Measure what each layer's switch to the exact step costs: the scores of 2 L networks, for L layers.

    Args:
        smooth: with smooth steps (`htaf.SmoothStep`); not changed. It maps a batch of inputs to one tensor.
        batches: (inputs, targets), iterated several times: a list or a DataLoader. Targets are int64 class codes
            [rows], or floats of the shape of the outputs.
        score: of all outputs and targets; None: "loss" (cross-entropy, or mean squared error of float targets) and, of
            classes, "accuracy".

    Returns:
        The profile. The loss of its gradients is that of the default scores.

    Raises:
        ValueError: no smooth step ran, or there are no batches.
    """
    score = score or _scores
    with evaluating(smooth):
        order, gradients = _gradients(smooth, batches)
        if not order:
            raise ValueError("expected at least one batch and one smooth step that runs, found none")
        exact = _partly_exact(smooth, order)
        statistics = {layer.path: layer for layer in layer_statistics(smooth, exact, (x for x, _ in batches))}
        up_to = [_measured(_partly_exact(smooth, order[: i + 1]), batches, score) for i in range(len(order) - 1)]
        up_to.append(_measured(exact, batches, score))
        only = [_measured(_partly_exact(smooth, [path]), batches, score) for path in order[1:]]
        only.insert(0, up_to[0])
        of_smooth = _measured(smooth, batches, score)
    layers = []
    for path, first, alone in zip(order, up_to, only, strict=True):
        found = statistics[path]
        layers.append(
            SwitchedLayer(path, found.std, found.binarity, found.flip_rate, gradients.get(path, 0.0), first, alone)
        )
    return SwitchProfile(tuple(layers), of_smooth, up_to[-1])


def _gradients(smooth: nn.Module, batches: Batches) -> tuple[list[str], dict[str, float]]:
    """Paths of the smooth steps in order of first run, and the mean norm of each."""
    steps = {path: module for path, module in smooth.named_modules() if isinstance(module, SmoothStep)}
    steps = {path: m for path, m in steps.items() if not any(path.startswith(f"{other}.") for other in steps)}
    if not steps:
        return [], {}
    order: dict[str, None] = {}
    handles = [
        smooth.get_submodule(path).register_forward_pre_hook(lambda *_, path=path: order.setdefault(path))
        for path in steps
    ]
    found, frozen = [], [p for p in smooth.parameters() if not p.requires_grad and p.is_floating_point()]
    wanted = [p for p in smooth.parameters() if p.is_floating_point()]
    try:
        for parameter in frozen:  # a gradient reaches the steps behind them too
            parameter.requires_grad_(True)
        with torch.enable_grad(), hooked(handles), GradientNorms(smooth) as norms:
            for x, y in batches:
                torch.autograd.grad(_loss(smooth(x), y), wanted, allow_unused=True)
                found.append(norms.read())
    finally:
        for parameter in frozen:
            parameter.requires_grad_(False)
    return list(order), {path: layer.norm for path, layer in mean_by_layer(found).items()}


def _partly_exact(smooth: nn.Module, paths: Collection[str]) -> nn.Module:
    """The network with its own tensors, in which the steps at these paths are exact."""
    return harden(smooth, where=lambda site: any(path in paths for path in (site.path, *site.aliases)), share=True)


def _measured(net: nn.Module, batches: Batches, score: Callable[[Tensor, Tensor], Mapping[str, Any]]) -> Scores:
    outputs, targets = [], []
    for x, y in batches:
        outputs.append(net(x))
        targets.append(y)
    return dict(score(torch.cat(outputs), torch.cat(targets)))


def _loss(outputs: Tensor, targets: Tensor) -> Tensor:
    if targets.is_floating_point():
        return nn.functional.mse_loss(outputs, targets)
    return nn.functional.cross_entropy(outputs, targets)


def _scores(outputs: Tensor, targets: Tensor) -> Scores:
    found: Scores = {"loss": _loss(outputs, targets).item()}
    if not targets.is_floating_point():
        found["accuracy"] = (outputs.argmax(1) == targets).double().mean().item()
    return found
