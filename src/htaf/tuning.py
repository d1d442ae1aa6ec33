"""Tuning: the sharpness of every smooth step from the scale of its pre-activations, layer by layer, before training.

Three things make a deep network without batch norm fail, and each has its own remedy here:

- The rows of a batch become alike: with PyTorch's initial weights the pre-activations of one unit vary less over the
  rows than their means vary over the units. Weights and biases are rescaled, so that every unit has mean 0 and its
  layer a given scale (`init`).
- The curve is too steep or too flat for that scale, so that gradients grow or die with depth. The start is as sharp as
  keeps the *gain* of a layer below a limit (`gain`).
- Outputs of a step are never negative, so one step of Adam moves all pre-activations of a unit the same way, by about
  rate ||h||_1. Once that is as large as their scale, all rows stand on one side of 0, where the curve is flat. The
  scale is chosen larger than that (`rate`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd
from torch.utils import _pytree as pytree
from torch.utils.hooks import RemovableHandle

from htaf.activations import StraightThrough, share_binary
from htaf.contract import SmoothStep, levels_of, sharpness_of
from htaf.convert.finding import arguments
from htaf.convert.functional_sites import duplicate
from htaf.convert.modes import evaluating, hooked
from htaf.convert.widths import of_first_process
from htaf.diagnostics import GradientNorms
from htaf.functional import spacing_of
from htaf.sharpening import ByLayer, Geometric

STEP = 0.1  # of a layer's scale: the most that one step of an Adam-like optimiser may move its pre-activations
SAMPLE = 16_384  # pre-activations of a layer from which its pair is chosen
SOFTEST, SHARPEST = 1e-3, 1e4  # products that are tried, over 1 / std of the pre-activations
ALIKE = 1e-6  # of the largest: rounding
TAIL = 0.95  # the quantile of |x| at which HTAF's tail gradient is made largest


@dataclass(frozen=True)
class TunedLayer:
    """One smooth step. The figures are of the tuned network on the batch, eval mode with the norms of the batch.

    path: module path. kind: of the step.
    before: standard deviation of its pre-activations in the model as it came.
    mean, std: of its pre-activations, over rows and units.
    initialised: whether the layer in front was rescaled.
    start, end: sharpness parameters at the start and at the end of the training; () for straight-through.
    width: by which the slope of a straight-through step was stretched; None for others.
    alive: share of pre-activations whose gradient is at least 1% of the largest, at the start.
    gain: Var(x) E[h'(x)^2] / Var(h(x)) at the start, by which a layer multiplies the square of a gradient while it
        keeps the scale; for normal x at least 1, and 1 for a linear h.
    binarity: share of outputs > 0.99 or < 0.01 with the end parameters, on these pre-activations; None for
        straight-through.
    gradient: scale-free norm std ||dL/dx|| at the start, of one backward pass from random directions at the outputs.
    """

    path: str
    kind: str
    before: float
    mean: float
    std: float
    initialised: bool
    start: tuple[float, ...]
    end: tuple[float, ...]
    width: float | None
    alive: float
    gain: float
    binarity: float | None
    gradient: float


@dataclass(frozen=True)
class Tuning:
    """What `tune` found, in the order of first run."""

    layers: tuple[TunedLayer, ...]

    def schedule(self, fraction: float = 0.7) -> ByLayer | None:
        """Each layer's way from its start to its end, for `set_sharpness`; None where there is nothing to move."""
        paths = {layer.path: Geometric(layer.start, layer.end, fraction) for layer in self.layers if layer.start}
        return ByLayer(paths) if paths else None

    def __str__(self) -> str:
        lines = ["layer: scale before -> now, start -> end, gradient alive, gain, binarity at the end, gradient norm"]
        for layer in self.layers:
            moved = f"{_shown(layer.start)} -> {_shown(layer.end)}" if layer.start else f"width {layer.width:.3g}"
            binarity = "" if layer.binarity is None else f"{layer.binarity:.0%}"
            lines.append(
                f"  {layer.path} ({layer.kind}): {layer.before:.3g} -> {layer.std:.3g}, {moved}, {layer.alive:.0%}, "
                f"{layer.gain:.2f}, {binarity or '-'}, {layer.gradient:.1e}"
            )
        return "\n".join(lines)


def tune(
    model: nn.Module,
    batch: Any,
    *,
    init: bool = True,
    rate: float | None = None,
    gain: float = 1.2,
    binarity: float = 0.8,
) -> tuple[nn.Module, Tuning]:
    """A new model whose smooth steps fit the scale of their pre-activations, and the sharpening that belongs to it.

        net, tuning = htaf.tune(net, x, rate=1e-3)
        schedule = tuning.schedule()
        ... in the loop: htaf.sharpening.set_sharpness(net, schedule.at(step / steps))

    From the inputs on, one layer after the other, with x the pre-activations of a layer and h its step:

    - init: a linear layer or convolution directly in front of a step gets W <- g W, b <- g (b - mean x), so that every
      unit has mean 0 and the layer the standard deviation max(1, rate ||input||_1 / 0.1). (Without a bias the mean
      stays.) It overwrites what was trained, so it is for new networks. Layers that are frozen or have a norm behind
      them stay as they are.
    - start: the sharpest with Var(x) E[h'(x)^2] / Var(h(x)) <= gain, so that gradients keep their size with depth.
    - end: the softest with `binarity` of the outputs beyond 0.01 and 0.99. Of HTAF's pairs with one product P it is
      that with the largest gradient in the tail, alpha0 = sqrt(P / (2 t)), t the 95% quantile of |x|.
    - levels: the thresholds of a step that has several are set 2.8 / levels standard deviations apart.
    - straight-through: its width, the least with that gain, of the steps of `htaf.replace` at least 1; its threshold is
      0 behind a layer that was rescaled.

    Of a step that runs several times, as in a spiking neuron, the first call decides. Returned is the model at its
    start. In a process group every process calls this, and all take the numbers of the first.

    Args:
        model: with smooth steps whose sharpness parameters are numbers; not changed.
        batch: inputs, some hundred rows of the training part: a tensor, a tuple of arguments or a mapping of keywords
            to them.
        init: rescale weights and biases.
        rate: learning rate of an optimiser whose steps have about its size (Adam, AdamW, Lion); None: scale 1. It is
            for `init` alone.
        gain: > 1.
        binarity: in (0, 1).

    Returns:
        The model and its `Tuning`.

    Raises:
        ValueError: no smooth step ran, the batch has a single row, pre-activations of a step are the same in all rows,
            all 0 or not finite, or cannot become as binary as asked for (many are exactly 0), a step has tensors or
            more than one number for its sharpness (other than HTAF), or an argument is out of range.

    Source: the gain is chi of Schoenholz et al. 2017, arXiv:1611.01232, at kept variance; the rescaling is that of
    Mishkin and Matas 2016, arXiv:1511.06422, with means; errata of Theorem 3.2 for alpha0.
    """
    if not (gain > 1 and 0 < binarity < 1 and (rate is None or 0 < rate < math.inf)):
        raise ValueError(f"expected gain > 1, 0 < binarity < 1 and rate > 0, got {gain}, {binarity} and {rate}")
    new = duplicate(model)
    steps = {path: new.get_submodule(path) for path, m in new.named_modules() if isinstance(m, SmoothStep)}
    for path, step in steps.items():
        _check(path, step)
    args, kwargs = arguments(batch)
    _expect_rows((args, kwargs))
    kept = {buffer: buffer.clone() for buffer in new.buffers()}  # running statistics are for the training
    work = _Work(new, steps, rate if init else None, init, gain, binarity)
    with evaluating(new), torch.random.fork_rng():
        for module in new.modules():
            module.training = isinstance(module, _BatchNorm)
        with hooked(work.hooks()):
            new(*args, **kwargs)
        found = work.measured(lambda: new(*args, **kwargs))
        for buffer, value in kept.items():
            buffer.copy_(value)
    found, spacings = of_first_process((found, [getattr(steps[layer.path], "spacing", None) for layer in found]))
    for layer, spacing in zip(found, spacings, strict=True):
        step = _with(steps[layer.path], layer.start)
        given = {"width": layer.width, "spacing": spacing}
        vars(step).update({name: value for name, value in given.items() if value is not None})
    return new, Tuning(found)


def _expect_rows(inputs: Any) -> None:
    """Raises ValueError for one row of a table. One image or text has many places, and is judged by its layers."""
    tensors = [x for x in pytree.tree_leaves(inputs) if isinstance(x, Tensor)]
    if tensors and all(x.ndim == 2 and len(x) == 1 and x.is_floating_point() for x in tensors):
        raise ValueError(f"expected a batch of many rows, some hundred, got one of shape {tuple(tensors[0].shape)}")


def _check(path: str, step: nn.Module) -> None:
    assert isinstance(step, SmoothStep)
    if isinstance(step, StraightThrough):
        return
    numbers = len(sharpness_of(step))
    if numbers != len(step.sharpness) or (numbers != 1 and step.kind != "htaf"):
        raise ValueError(
            f"{path or 'the model'}: expected HTAF, straight-through or a step with one number for its sharpness, got "
            f"{type(step).__name__} with {len(step.sharpness)} parameters, {numbers} of them plain numbers"
        )


@dataclass
class _Chosen:
    """What was decided about a step when it ran first."""

    before: float
    initialised: bool
    start: tuple[float, ...]
    end: tuple[float, ...]
    width: float | None


@dataclass(frozen=True)
class _Made:
    """An output and how often it had been written to when its layer returned it: a shortcut may be added in place."""

    module: nn.Module
    inputs: Tensor
    output: Tensor
    version: int


@dataclass
class _Work:
    model: nn.Module
    steps: dict[str, nn.Module]
    rate: float | None
    init: bool
    gain: float
    binarity: float
    chosen: dict[str, _Chosen] = field(default_factory=dict)
    made: dict[int, _Made] = field(default_factory=dict)  # by where the output lies
    rescaled: set[nn.Module] = field(default_factory=set)

    def hooks(self) -> list[RemovableHandle]:
        handles = [
            module.register_forward_hook(self._keep_output)
            for module in self.model.modules()
            if isinstance(module, nn.Linear | _ConvNd)
        ]
        for path, step in self.steps.items():
            handles.append(step.register_forward_pre_hook(partial(self._choose, path)))
        return handles

    def _keep_output(self, module: nn.Module, args: tuple[Any, ...], output: Tensor) -> None:
        self.made[output.data_ptr()] = _Made(module, args[0], output, output._version)

    def _choose(self, path: str, step: nn.Module, args: tuple[Tensor, ...]) -> None:
        if path in self.chosen:
            return  # a later call, such as a time step
        x = args[0]
        before = _spread(path, x)
        layer = self._in_front(x) if self.init else None
        initialised = layer is not None and _rescale(layer, self.rate)
        if layer is not None:
            self.rescaled.add(layer.module)
        sample = _sample(x)
        if (levels := levels_of(step)) > 1:
            setattr(step, "spacing", spacing_of(levels) * sample.std().item())  # noqa: B010
        if isinstance(step, StraightThrough):
            step.threshold = 0.0 if initialised else step.threshold
            self.chosen[path] = _Chosen(before, initialised, (), (), _stretch(step, sample, self.gain))
            return
        way = _way(step, sample)
        unit = 1 / sample.std().item()
        if (most := _binarity(_with(step, way(SHARPEST * unit)), sample)) < self.binarity:
            zeros = (sample == 0).double().mean().item()
            raise ValueError(
                f"{path or 'the model'}: expected pre-activations of which a share of {self.binarity:g} can become "
                f"binary, got {most:.2g} with the sharpest curve ({zeros:.0%} are exactly 0): give a lower binarity"
            )
        end = _bisect(lambda product: _binarity(_with(step, way(product)), sample) < self.binarity, unit)
        start = min(_bisect(lambda product: _gain(_with(step, way(product)), sample) <= self.gain, unit), end)
        _with(step, way(start))
        self.chosen[path] = _Chosen(before, initialised, way(start), way(end), None)

    def _in_front(self, x: Tensor) -> _Made | None:
        """The layer whose output, as it came, is x, if its weights are its own, to be trained and used here first."""
        layer = self.made.get(x.data_ptr())
        if layer is None or layer.output.numel() != x.numel() or layer.output._version != layer.version:
            return None
        weight = layer.module._parameters.get("weight")
        return layer if weight is not None and weight.requires_grad and layer.module not in self.rescaled else None

    def measured(self, run: Callable[[], Any]) -> tuple[TunedLayer, ...]:
        """The layers as they are now: a pass without the gradient that batch statistics would carry."""
        if not self.chosen:
            none = f"expected a smooth step that runs in {type(self.model).__name__}, got none: call htaf.replace first"
            raise ValueError(none)
        seen: dict[str, list[Tensor]] = {path: [] for path in self.chosen}

        def see(path: str, module: nn.Module, args: tuple[Tensor, ...]) -> None:
            seen[path].append(_sample(args[0].detach()))

        handles = [self.steps[path].register_forward_pre_hook(partial(see, path)) for path in seen]
        wanted = [(p, p.requires_grad) for p in self.model.parameters() if p.is_floating_point()]
        with hooked(handles), torch.enable_grad(), GradientNorms(self.model) as norms:
            for parameter, _ in wanted:
                parameter.requires_grad_(True)
            try:
                outputs = [y for y in pytree.tree_leaves(run()) if isinstance(y, Tensor) and y.requires_grad]
                generator = torch.Generator().manual_seed(0)
                loss: list[Tensor] = []
                for y in outputs:
                    weights = torch.randn(y.shape, generator=generator).to(y)
                    loss.append((y * weights).sum() / math.sqrt(y.shape[0] if y.ndim else 1))
                parameters = [parameter for parameter, _ in wanted]
                if loss:
                    torch.autograd.grad(torch.stack(loss).sum(), parameters, allow_unused=True)
            finally:
                for parameter, required in wanted:
                    parameter.requires_grad_(required)
            gradients = norms.read()
        return tuple(self._layer(path, torch.cat(seen[path]), gradients) for path in self.chosen)

    def _layer(self, path: str, x: Tensor, gradients: Mapping[str, Any]) -> TunedLayer:
        step, chosen, std = self.steps[path], self.chosen[path], x.std().item()
        assert isinstance(step, SmoothStep)
        assert isinstance(step, nn.Module)
        _, slope = _curve(step, x)
        _, at_zero = _curve(step, torch.full((1,), getattr(step, "threshold", 0.0)))
        binarity = None
        if chosen.end:
            binarity = _binarity(_with(step, chosen.end), x)
            _with(step, chosen.start)
        return TunedLayer(
            path=path,
            kind=step.kind,
            before=chosen.before,
            mean=x.mean().item(),
            std=std,
            initialised=chosen.initialised,
            start=chosen.start,
            end=chosen.end,
            width=chosen.width,
            alive=(slope >= 0.01 * at_zero).double().mean().item(),
            gain=_gain(step, x),
            binarity=binarity,
            gradient=std * gradients[path].norm if path in gradients else 0.0,
        )


def _spread(path: str, x: Tensor) -> float:
    """The standard deviation of pre-activations. Raises ValueError where it says nothing of the data."""
    z = x.double()
    rows = z.reshape(-1, z.shape[-1]) if z.ndim > 1 else z.reshape(-1, 1)
    by_channel = z.movedim(1, -1).reshape(-1, z.shape[1]) if z.ndim > 2 else rows
    why = ""
    if not z.numel():
        why = "none"
    elif not bool(z.isfinite().all()):
        why = "some that are NaN or infinite"
    elif not bool(z.any()):
        why = "zeros alone: the layer in front, or its inputs, are all 0"
    elif min(len(rows), len(by_channel)) == 1:
        why = "a single row: give some hundred"
    elif any(bool((r - r[0]).abs().max() <= ALIKE * r.abs().max()) for r in (rows, by_channel)):
        why = f"the same in all {len(z)} rows"
    if why:
        raise ValueError(f"{path or 'the model'}: expected finite pre-activations that vary over the rows, got {why}")
    return z.std().item()


def _sample(x: Tensor) -> Tensor:
    """At most SAMPLE of the values, evenly spaced, as float64 on the CPU."""
    flat = x.flatten()
    return flat[:: math.ceil(len(flat) / SAMPLE) | 1].cpu().double()  # an odd stride: no column is left out


def _rescale(made: _Made, rate: float | None) -> bool:
    """Every unit to mean 0 and the layer to its scale, in its parameters and, in place, in its output."""
    layer, output = made.module, made.output
    assert isinstance(layer, nn.Linear | _ConvNd)
    unit = output.ndim - 1 if isinstance(layer, nn.Linear) else output.ndim - layer.weight.ndim + 1
    others = [i for i in range(output.ndim) if i != unit]
    mean = output.mean(others)
    std = (output - _along(mean, output, unit)).square().mean().sqrt().item()
    if std == 0:
        return False  # the same for every row: no factor helps
    fan_in = layer.weight[0].numel()
    step = 0.0 if rate is None else rate * made.inputs.abs().mean().item() * fan_in
    factor = max(1.0, step / STEP) / std
    layer.weight.mul_(factor)
    if layer.bias is not None:
        output.sub_(_along(mean, output, unit))
        layer.bias.sub_(mean).mul_(factor)
    output.mul_(factor)
    return True


def _along(values: Tensor, x: Tensor, dim: int) -> Tensor:
    return values.reshape([-1 if i == dim else 1 for i in range(x.ndim)])


def _way(step: nn.Module, x: Tensor) -> Callable[[float], tuple[float, ...]]:
    """Sharpness parameters as a function of the slope's factor: HTAF's product, or the one number."""
    if len(_names(step)) == 1:
        return lambda product: (product,)
    tail = x.abs().quantile(TAIL).item()  # > 0: x varies

    def pair(product: float) -> tuple[float, ...]:
        alpha0 = math.sqrt(product / (2 * tail))
        return alpha0, product / alpha0

    return pair


def _names(step: nn.Module) -> tuple[str, ...]:
    assert isinstance(step, SmoothStep)
    return step.sharpness


def _with(step: nn.Module, values: tuple[float, ...]) -> nn.Module:
    for name, value in zip(_names(step), values, strict=True):
        setattr(step, name, value)
    return step


def _bisect(holds: Callable[[float], bool], unit: float) -> float:
    """The last value, between SOFTEST and SHARPEST units, up to which a condition holds."""
    low, high = math.log(SOFTEST * unit), math.log(SHARPEST * unit)
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if holds(math.exp(middle)) else (low, middle)
    return math.exp(low)


def _curve(step: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    """Values and gradients of a step, without its hooks."""
    with torch.enable_grad():
        x = x.detach().clone().requires_grad_(True)
        y = step.forward(x)
        (slope,) = torch.autograd.grad(y.sum(), x)
    return y.detach(), slope


def _gain(step: nn.Module, x: Tensor) -> float:
    y, slope = _curve(step, x)
    return (x.var() * slope.square().mean() / y.var().clamp_min(1e-300)).item()


def _binarity(step: nn.Module, x: Tensor) -> float:
    return share_binary(step, step.forward(x)).double().mean().item()


def _stretch(step: StraightThrough, x: Tensor, gain: float) -> float:
    """Give a step the least width that it may have whose gain is not above the limit."""

    step.stretch = 1.0  # of a training before

    def too_steep(width: float) -> bool:
        step.width = width
        return _gain(step, x) > gain

    step.width = max(step.least, _bisect(too_steep, x.std().item()))
    return step.width


def _shown(values: tuple[float, ...]) -> str:
    return f"({', '.join(f'{value:.3g}' for value in values)})"
