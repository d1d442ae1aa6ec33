"""The step that `replace` puts in by itself; its width and threshold from the pre-activations of an example."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.func import debug_unwrap
from torch.nn.modules.batchnorm import _BatchNorm

from htaf.core import surrogates
from htaf.core.activations import StraightThrough
from htaf.core.functional import spacing_of
from htaf.transform.convert.finding import rows_of
from htaf.transform.convert.modes import evaluating, first_of, hooked

Arguments = tuple[tuple[Any, ...], dict[str, Any]]  # of a forward, by place and by name
_SPREAD = 3.0  # of the scales of one step beyond which its width fits some of its calls badly
_LEAST = 1.0  # weights that are drawn as PyTorch does give less at first, and grow by then
_FLOOR = 0.05  # of the pre-activations: so many at the least value are zeros of another step
_RARE = 1e-3  # of the pre-activations: so few below 0 may be rounding, as of an interpolation


def trained_step(levels: int = 1) -> StraightThrough:
    """The exact step with the gradient of HTAF(0.7, 4), whose slope at 0 is 0.7."""
    step = StraightThrough(partial(surrogates.htaf, alpha0=0.7, alpha1=4.0), levels=levels)
    step.least = _LEAST
    return step


def fit_step(step: StraightThrough, x: Tensor) -> None:
    """Set the width max(1, root mean square of x - threshold), for pre-activations x; changed in place.

    Thresholds of a step that has several are set 2.8 / levels standard deviations apart.
    """
    step.width = max(step.least, _scale(step, x))
    if step.levels > 1 and (spread := x.std().item()) > 0:
        step.spacing, step.fitted = spacing_of(step.levels) * spread, step.fitted | {"spacing"}


def fit_widths(model: nn.Module, steps: Sequence[StraightThrough], example: Arguments) -> tuple[str, ...]:
    """Give each step its width by `fit_step`, and a threshold where it would give one value; changed in place.

    A step whose pre-activations of the example are all >= 0, or all < 0, gives one value and passes nothing on. Its
    threshold becomes the point that parts them most evenly, near their median: 1/2 for bits. Of a step that ran before
    in the same forward, with values on both sides, it stays as near to these as it can.

    In eval mode with batch norms on the statistics of the batch, which keep theirs (of one value a channel, on their
    own). Of a step that runs several times the widest call decides; one that does not run keeps its width. In a process
    group all take what the first process found, as each has an example of its own. A warning tells of a single row.

    Returns:
        Which steps have a threshold, and which give one value all the same, in words.

    Raises:
        ValueError: pre-activations that are not finite.
    """
    if rows_of(example) == 1:
        warnings.warn(
            "expected an example of some hundred rows, from which steps take their widths, got one", stacklevel=4
        )
    names = {module: name or "the model" for name, module in model.named_modules()}
    scales: dict[StraightThrough, list[float]] = {}  # of every call
    constant: set[StraightThrough] = set()

    def look(step: nn.Module, args: tuple[Tensor, ...], kwargs: dict[str, Tensor]) -> None:
        assert isinstance(step, StraightThrough)
        x, before = debug_unwrap(first_of(args, kwargs)).double(), scales.setdefault(step, [])  # within vmap: all rows
        if not _scale(step, x) < float("inf"):
            raise ValueError(f"{names[step]}: expected finite pre-activations of the example, got {_scale(step, x)}")
        if _one_sided(step, x):
            if step.threshold == 0 and (threshold := _parting(x, lowest=bool(before))) is not None:
                step.threshold, step.fitted = threshold, step.fitted | {"threshold"}
                late.update([step] * len(before))
            else:
                constant.add(step)
        if (scale := _scale(step, x)) > max(before, default=0.0):
            fit_step(step, x)
        before.append(scale)

    for _ in range(2):
        late = set[StraightThrough]()  # steps whose first calls had another threshold: these run again
        scales.clear()
        constant.clear()
        _run(model, steps, example, look)
        if not late:
            break
    found = of_first_process([(step.width, step.spacing, step.threshold, step.fitted) for step in steps])
    for step, numbers in zip(steps, found, strict=True):
        step.width, step.spacing, step.threshold, step.fitted = numbers
    for step, of_calls in scales.items():
        if max(of_calls) > _SPREAD * max(step.least, min(of_calls)):
            warnings.warn(
                f"{names[step]}: it runs in several places, whose pre-activations have scales from {min(of_calls):.3g} "
                f"to {max(of_calls):.3g}, and has the width of the widest: give each place an activation of its own",
                stacklevel=4,
            )
    still = [f"{names[step]}: it gives one value for all of the example" for step in steps if step in constant]
    if still:
        warnings.warn(f"{'; '.join(still[:3])}: nothing is learned through such a step", stacklevel=4)
    moved = [step for step in steps if step.threshold != 0]
    return (*(f"{names[step]}: threshold {step.threshold:.6g}, as at 0 it gives one value" for step in moved), *still)


def of_first_process(value: Any) -> Any:
    """What the first process of a group has for this value, where a group runs; all of them must call. A warning tells
    of a group that is to be and is not there yet."""
    if not (distributed.is_available() and distributed.is_initialized()):
        if (size := os.environ.get("WORLD_SIZE", "1")) != "1":
            text = (
                f"this is one of {size} processes, whose group is not there yet: every one takes the widths of its own"
            )
            warnings.warn(f"{text} example. Give all the same, or replace after init_process_group", stacklevel=4)
        return value
    held = [value]
    distributed.broadcast_object_list(held)
    return held[0]


def _run(model: nn.Module, steps: Sequence[nn.Module], example: Arguments, look: Callable[..., None]) -> None:
    """Run the example with `look` in front of every step; buffers are as they were afterwards."""

    def on_batch(norm: nn.Module, args: tuple[Tensor, ...], kwargs: dict[str, Tensor]) -> None:
        x = first_of(args, kwargs)
        norm.training = x.numel() > x.shape[1]

    args, kwargs = example
    norms = [module for module in model.modules() if isinstance(module, _BatchNorm)]
    handles = [
        *(step.register_forward_pre_hook(look, with_kwargs=True) for step in steps),
        *(norm.register_forward_pre_hook(on_batch, with_kwargs=True) for norm in norms),
    ]
    buffers = [(module, name, held) for module in model.modules() for name, held in module._buffers.items()]
    values = [None if held is None else held.clone() for _, _, held in buffers]
    with evaluating(model), torch.random.fork_rng(), hooked(handles):
        model(*args, **kwargs)
        for (module, name, held), value in zip(buffers, values, strict=True):
            module._buffers[name] = held
            if held is not None and value is not None:
                held.copy_(value)


def _scale(step: StraightThrough, x: Tensor) -> float:
    return (x - step.threshold).square().mean().sqrt().item() if x.numel() else 0.0


def _one_sided(step: StraightThrough, x: Tensor) -> bool:
    """Whether a step gives one value for x, but for what may be rounding."""
    below = (x < step.threshold).double().mean().item()
    return below <= _RARE or below == 1


def _parting(x: Tensor, *, lowest: bool) -> float | None:
    """Between the two neighbouring values of x that part it most evenly; None where all are equal.

    lowest: above its least value instead, where a twentieth of x has that.
    """
    least = x.min()
    median = least if lowest and (x == least).double().mean() >= _FLOOR else x.median()
    less, more = x[x < median], x[x > median]
    if not len(less) and not len(more):
        return None
    low, high = (less.max(), median) if len(less) and len(less) >= len(more) else (median, more.min())
    between = ((low + high) / 2).float().double()
    return (between if low < between <= high else high).item()
