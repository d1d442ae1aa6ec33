"""What is done to a network once its steps are exact: norms and last layer fitted to the bits that they see."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from htaf import hardening
from htaf.hardening.finishing import Make, kept_where_better
from htaf.runs.metrics import loss_function
from htaf.training.problems import Problem
from htaf.training.progressive import loss_of
from htaf.training.recipe import Hardening


def finished(
    net: nn.Module, posed: Problem, options: Hardening, say: Callable[[str], None], mean: Mapping[str, Tensor]
) -> tuple[nn.Module, list[dict[str, Any]]]:
    """Average, recalibrate and refit a network as its recipe says, each kept only where the validation loss is better.

    Args:
        net: with exact steps, or real-valued; in eval mode, not changed.
        mean: of its weights, by name; empty: none was taken.
        say: called with a line on each step.

    Returns:
        The network, a new one where something was kept; and of each step its name, the loss before and after, whether
        it was kept, and its report; of one that cannot be done the error.
    """
    loss = loss_function(posed.task)
    asked = {"average": bool(mean), "recalibrate": options.recalibrate, "refit": options.refit}
    steps: dict[str, Make] = {
        "average": lambda net: _averaged(net, mean, posed),
        "recalibrate": lambda net: hardening.recalibrate(net, posed.fitting()),
        "refit": lambda net: hardening.refit_head(net, posed.fitting(), validation=posed.choosing()),
    }
    todo = [(name, make) for name, make in steps.items() if asked[name]]
    made, taken = kept_where_better(
        net, todo, lambda net: loss_of(net, posed.validation, loss), lambda one: say(one.of_loss())
    )
    return made, [one.entry() for one in taken]


def _averaged(net: nn.Module, mean: Mapping[str, Tensor], posed: Problem) -> tuple[nn.Module, hardening.Report]:
    """The network with the mean of its weights, and the norms that belong to these."""
    begin, made = time.perf_counter(), copy.deepcopy(net)
    with torch.no_grad():
        for name, value in mean.items():
            made.get_parameter(name).copy_(value)
    if any(isinstance(module, nn.modules.batchnorm._NormBase) for module in made.modules()):
        made, _ = hardening.recalibrate(made, posed.fitting(), everywhere=True)
    return made, hardening.Report("average", time.perf_counter() - begin, None, None)
