"""The step that `replace` puts in by itself, and its width from the pre-activations of an example."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from htaf import surrogates
from htaf.activations import StraightThrough
from htaf.convert.finding import arguments
from htaf.convert.modes import evaluating, first_of, hooked
from htaf.functional import spacing_of

_SPREAD = 3.0  # of the scales of one step beyond which its width fits some of its calls badly
LEAST = 1.0  # weights that are drawn as PyTorch does give less at first, and grow by then


def trained_step(levels: int = 1) -> StraightThrough:
    """The exact step with the gradient of HTAF(0.7, 4), whose slope at 0 is 0.7."""
    return StraightThrough(partial(surrogates.htaf, alpha0=0.7, alpha1=4.0), levels=levels)


def fit_widths(model: nn.Module, steps: Sequence[StraightThrough], example: Any) -> None:
    """Give each step the width max(1, root mean square of its pre-activations), changed in place; thresholds of one
    that has several are set 2.8 / levels standard deviations apart.

    In eval mode with batch norms on the statistics of the batch, which keep theirs (of one value a channel, on their
    own). Of a step that runs several times the widest call decides; one that does not run keeps its width.

    Raises:
        ValueError: pre-activations that are not finite.
    """
    names = {module: name for name, module in model.named_modules()}
    scales, least = dict.fromkeys(steps, 0.0), dict.fromkeys(steps, float("inf"))

    def look(step: nn.Module, args: tuple[Tensor, ...], kwargs: dict[str, Tensor]) -> None:
        assert isinstance(step, StraightThrough)
        x = first_of(args, kwargs).double()
        scale = x.square().mean().sqrt().item() if x.numel() else 0.0
        if not scale < float("inf"):
            raise ValueError(
                f"{names[step] or 'the model'}: expected finite pre-activations of the example, got {scale}"
            )
        least[step] = min(least[step], scale)
        if scale <= scales[step]:
            return
        scales[step], step.width = scale, max(LEAST, scale)
        if step.levels > 1 and (spread := x.std().item()) > 0:
            step.spacing, step.fitted = spacing_of(step.levels) * spread, True

    def on_batch(norm: nn.Module, args: tuple[Tensor, ...], kwargs: dict[str, Tensor]) -> None:
        x = first_of(args, kwargs)
        norm.training = x.numel() > x.shape[1]

    args, kwargs = arguments(example)
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
    for step in steps:
        if scales[step] > _SPREAD * max(LEAST, least[step]):
            warnings.warn(
                f"{names[step] or 'the model'}: it runs in several places, whose pre-activations have scales from "
                f"{least[step]:.3g} to {scales[step]:.3g}, and has the width of the widest: give each place an "
                "activation of its own",
                stacklevel=4,
            )
