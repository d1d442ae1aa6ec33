"""The sharpness of every step of an MLP without norms from the scale of its pre-activations, before training.

Three things make a deep network without batch norm fail, and each has its own remedy here:

- The rows of a batch become alike: with PyTorch's initial weights the pre-activations of one unit vary less over the
  rows than their means vary over the units. Weights and biases are rescaled, so that every unit has mean 0 and its
  layer a given scale.
- The curve is too steep or too flat for that scale, so that gradients grow or die with depth. The start is as sharp as
  keeps the *gain* of a layer below a limit.
- Outputs of a step are never negative, so one step of Adam moves all pre-activations of a unit the same way, by about
  rate ||h||_1. Once that is as large as their scale, all rows stand on one side of 0, where the curve is flat. The
  scale is chosen larger than that (`rate`).
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from htaf.core.activations import share_binary
from htaf.core.sharpening import Geometric
from htaf.models.mlp import MLP

STEP = 0.1  # of a layer's scale: the most that one step of an Adam-like optimiser may move its pre-activations
SAMPLE = 16_384  # pre-activations of a layer from which its pair is chosen
SOFTEST, SHARPEST = 1e-3, 1e4  # products that are tried, over 1 / std of the pre-activations
ALIKE = 1e-6  # of the largest: rounding
TAIL = 0.95  # the quantile of |x| at which HTAF's tail gradient is made largest


@dataclass(frozen=True)
class TunedLayer:
    """One step. The figures are of the tuned network on the batch.

    path: module path. before, std: standard deviation of its pre-activations with the initial weights, and now.
    start, end: sharpness parameters at the start and at the end of the training.
    gain: Var(x) E[h'(x)^2] / Var(h(x)) at the start, by which a layer multiplies the square of a gradient while it
        keeps the scale; for normal x at least 1, and 1 for a linear h.
    binarity: share of outputs > 0.99 or < 0.01 with the end parameters.
    """

    path: str
    before: float
    std: float
    start: tuple[float, ...]
    end: tuple[float, ...]
    gain: float
    binarity: float


@dataclass(frozen=True)
class Tuning:
    """What `tune` found, from the first layer on."""

    layers: tuple[TunedLayer, ...]

    def sharpen(self, model: nn.Module, progress: float, fraction: float = 0.7) -> None:
        """Give every step its sharpness where the share `progress` of the training is done; the end from `fraction`."""
        for layer in self.layers:
            _with(model.get_submodule(layer.path), Geometric(layer.start, layer.end, fraction).at(progress))


@torch.no_grad()
def tune(model: MLP, x: Tensor, *, rate: float, gain: float = 1.2, binarity: float = 0.8) -> tuple[MLP, Tuning]:
    """Fit the weights and the sharpness of every hidden layer to a batch, and find how to sharpen it.

    From the first layer on, with x the pre-activations of a layer and h its step:

    - Its weights get W <- g W, b <- g (b - mean x), so that every unit has mean 0 and the layer the standard deviation
      max(1, rate ||input||_1 / 0.1).
    - start: the sharpest with Var(x) E[h'(x)^2] / Var(h(x)) <= gain, so that gradients keep their size with depth.
    - end: the softest with `binarity` of the outputs beyond 0.01 and 0.99. Of HTAF's pairs with one product P it is
      that with the largest gradient in the tail, alpha0 = sqrt(P / (2 t)), t the 95% quantile of |x|.

    Args:
        model: new, without norms, with HTAF or scaled sigmoids; not changed.
        x: [rows, in_features], some hundred rows of the training part.
        rate: learning rate of an optimiser whose steps have about its size (Adam, AdamW, Lion).
        gain: > 1.
        binarity: in (0, 1).

    Returns:
        The model at its start and its `Tuning`.

    Raises:
        ValueError: pre-activations of a step do not vary over the rows, or cannot become as binary as asked for.

    Source: the gain is chi of Schoenholz et al. 2017, arXiv:1611.01232, at kept variance; the rescaling is that of
    Mishkin and Matas 2016, arXiv:1511.06422, with means; errata of Theorem 3.2 for alpha0.
    """
    new = copy.deepcopy(model)
    found, h = list[TunedLayer](), x
    for place, block in enumerate(new.hidden):
        linear: Any = block.linear
        step: Any = block.act
        path, z = f"hidden.{place}.act", linear(h)
        before = z.double().std().item()
        _rescale(path, linear, h, z, rate)
        sample = _sample(z)
        unit, way = 1 / sample.std().item(), _way(step, sample)
        most = _binarity(_with(step, way(SHARPEST * unit)), sample)
        if most < binarity:
            raise ValueError(
                f"{path}: expected pre-activations of which a share of {binarity:g} can become binary, got {most:.2g}"
            )
        end = _bisect(lambda product: _binarity(_with(step, way(product)), sample) < binarity, unit)  # noqa: B023
        start = _bisect(lambda product: _gain(_with(step, way(product)), sample) <= gain, unit)  # noqa: B023
        starts, ends = way(min(start, end)), way(end)
        reached = _binarity(_with(step, ends), sample)
        steepness = _gain(_with(step, starts), sample)
        found.append(TunedLayer(path, before, sample.std().item(), starts, ends, steepness, reached))
        h = step(z)
    return new, Tuning(tuple(found))


def _rescale(path: str, layer: nn.Linear, inputs: Tensor, output: Tensor, rate: float) -> None:
    """Bring every unit to mean 0 and the layer to its scale, in its parameters and, in place, in its output."""
    mean = output.mean(0)
    std = (output - mean).square().mean().sqrt().item()
    if not std > ALIKE * output.abs().max().item():  # nor where it is NaN
        raise ValueError(f"{path}: expected finite pre-activations that vary over the rows, got a deviation of {std}")
    step = rate * inputs.abs().mean().item() * layer.weight[0].numel()
    factor = max(1.0, step / STEP) / std
    layer.weight.mul_(factor)
    layer.bias.sub_(mean).mul_(factor)
    output.sub_(mean).mul_(factor)


def _sample(x: Tensor) -> Tensor:
    """Take at most SAMPLE of the values, evenly spaced, as float64."""
    flat = x.flatten()
    return flat[:: math.ceil(len(flat) / SAMPLE) | 1].double()  # an odd stride: no column is left out


def _way(step: Any, x: Tensor) -> Callable[[float], tuple[float, ...]]:
    """Make sharpness parameters a function of the slope's factor: HTAF's product, or the one number."""
    if len(step.sharpness) == 1:
        return lambda product: (product,)
    tail = x.abs().quantile(TAIL).item()  # > 0: x varies

    def pair(product: float) -> tuple[float, ...]:
        alpha0 = math.sqrt(product / (2 * tail))
        return alpha0, product / alpha0

    return pair


def _with(step: Any, values: tuple[float, ...]) -> Any:
    for name, value in zip(step.sharpness, values, strict=True):
        setattr(step, name, value)
    return step


def _bisect(holds: Callable[[float], bool], unit: float) -> float:
    """Find the last value, between SOFTEST and SHARPEST units, up to which a condition holds."""
    low, high = math.log(SOFTEST * unit), math.log(SHARPEST * unit)
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if holds(math.exp(middle)) else (low, middle)
    return math.exp(low)


def _gain(step: nn.Module, x: Tensor) -> float:
    with torch.enable_grad():
        x = x.detach().clone().requires_grad_(True)
        y = step(x)
        (slope,) = torch.autograd.grad(y.sum(), x)
    return (x.var() * slope.square().mean() / y.var().clamp_min(1e-300)).item()


def _binarity(step: nn.Module, x: Tensor) -> float:
    return share_binary(step, step(x)).double().mean().item()
