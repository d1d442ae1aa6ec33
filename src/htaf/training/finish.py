"""What is done to a network once its steps are exact: norms and last layer fitted to the bits that they see."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from torch import nn

from htaf import hardening
from htaf.runs.metrics import loss_function
from htaf.training.problems import Problem
from htaf.training.progressive import loss_of
from htaf.training.recipe import Hardening


def finished(
    net: nn.Module, posed: Problem, options: Hardening, say: Callable[[str], None]
) -> tuple[nn.Module, list[dict[str, Any]]]:
    """Recalibrate and refit a network as its recipe says, each kept only where the validation loss is better.

    Args:
        net: with exact steps, or real-valued; in eval mode, not changed.
        say: called with a line on each step.

    Returns:
        The network, a new one where something was kept; and of each step its name, the loss before and after, whether
        it was kept, and its report; of one that cannot be done the error.
    """
    loss, told = loss_function(posed.task), list[dict[str, Any]]()
    best = loss_of(net, posed.validation, loss)
    for name in ("recalibrate", "refit"):
        if not getattr(options, name):
            continue
        try:
            if name == "recalibrate":
                made, report = hardening.recalibrate(net, posed.fitting())
            else:
                made, report = hardening.refit_head(net, posed.fitting(), validation=posed.choosing())
        except ValueError as error:  # a network that this cannot be done to: the training is not lost
            told.append({"name": name, "before": best, "kept": False, "error": str(error)})
            say(f"{name}: left out: {error}")
            continue
        after = loss_of(made.eval(), posed.validation, loss)
        kept = after < best
        told.append({"name": name, "before": best, "after": after, "kept": kept, "report": asdict(report)})
        say(f"{name}: validation loss {best:.4f} -> {after:.4f}{'' if kept else ', not kept'}")
        net, best = (made, after) if kept else (net, best)
    return net, told
