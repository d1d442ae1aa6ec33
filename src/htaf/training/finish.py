"""What is done to a network once its steps are exact: norms and last layer fitted to the bits that they see."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from htaf import hardening
from htaf.data.images import ImagePreprocessor
from htaf.data.notes import Note
from htaf.hardening.finishing import Make, kept_where_better
from htaf.models.mlp import MLP
from htaf.runs.evaluation import measure
from htaf.runs.metrics import loss_function, threshold_for
from htaf.training.problems import FEWEST, Problem
from htaf.training.progressive import loss_of
from htaf.training.recipe import DataOptions, Hardening, TableData


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
    # of classes beside a linear model the fit takes half of the time and brings nothing (docs/log.md)
    asked = {
        "average": bool(mean),
        "recalibrate": options.recalibrate,
        "refit": options.refit and not (has_direct(net) and posed.task == "classification"),
        "shrink": has_direct(net),
    }
    steps: dict[str, Make] = {
        "average": lambda net: _averaged(net, mean, posed),
        "recalibrate": lambda net: hardening.recalibrate(net, posed.fitting()),
        "refit": lambda net: refitted(net, posed),
        "shrink": lambda net: _shrunk(net, posed),
    }
    todo = [(name, make) for name, make in steps.items() if asked[name]]
    made, taken = kept_where_better(
        net, todo, lambda net: loss_of(net, posed.validation, loss), lambda one: say(one.of_loss())
    )
    return made, [one.entry() for one in taken]


def refitted(net: nn.Module, posed: Problem) -> tuple[nn.Module, hardening.Report]:
    """The network with its head fitted anew, each row by its weight; the validation rows choose."""
    fitting, choosing = posed.fitting(), posed.choosing()
    of = None
    if fitting.weights is not None and choosing.weights is not None:
        of = fitting.weights, choosing.weights
    return hardening.refit_head(net, fitting, validation=choosing, weights=of)


def has_direct(net: nn.Module) -> bool:
    """Whether a linear layer of the inputs stands beside the bits."""
    return isinstance(net, MLP) and net.direct is not None


SHARES = tuple(k / 20 for k in range(21))


@torch.no_grad()
def _shrunk(net: nn.Module, posed: Problem) -> tuple[nn.Module, hardening.Report]:
    """The network with what its bits add to what was fitted before them, a linear model and leaves of trees, times a
    share.

    The share is the mean of `SHARES`, each weighted by the likelihood of the validation rows with it, where numbers are
    normal around their predictions: with few rows the choice is soft, and small.
    """
    begin, made, part = time.perf_counter(), copy.deepcopy(net), posed.choosing()
    assert isinstance(made, MLP)
    device, loss = made.head.weight.device, loss_function(posed.task)
    rows = [(x.to(device), y.to(device)) for x, y in part]
    whole = torch.cat([net(x).double() for x, _ in rows])
    learned = torch.cat([made.head(made.hidden(made.thermometer(x))).double() for x, _ in rows])
    plain, y = whole - learned, torch.cat([y for _, y in rows])
    weights = None if part.weights is None else part.weights.to(device)
    of_y = y.double() if y.is_floating_point() else y
    losses = torch.stack([loss(plain + share * (whole - plain), of_y, weights) for share in SHARES]).cpu()
    unit = 2 * float(losses.min()) if posed.task == "regression" else 1.0
    likely = torch.softmax(-losses * len(part) / max(unit, 1e-12), 0)
    share = float(likely @ torch.tensor(SHARES, dtype=torch.float64))
    for parameter in made.head.parameters():
        parameter *= share
    note = (f"what the bits add to what was fitted before them counts {share:.2f}",)
    return made, hardening.Report("shrink", time.perf_counter() - begin, None, None, (), note)


def with_threshold(net: nn.Module, posed: Problem, options: DataOptions) -> tuple[Problem, list[Note]]:
    """The problem with the threshold that is best for the metric that its recipe names, and what is to be said of it.

    Args:
        net: the exact network, or a real-valued one; in eval mode. Its outputs for the validation rows decide, each
            counted by its own weight, without that of its class.
    """
    known, asked = posed.preprocessor, isinstance(options, TableData) and options.threshold
    if not isinstance(asked, str) or isinstance(known, ImagePreprocessor):
        return posed, []
    kept: dict[str, tuple[Tensor, Tensor]] = {}
    measure(net, None, {"validation": posed.validation}, posed.task, kept=kept)
    outputs, targets = kept["validation"]
    if not bool(outputs.isfinite().all()):
        return posed, []  # the loss says so
    chosen, best, half = threshold_for(asked, outputs, targets, posed.weights.get("validation"))
    counts = torch.bincount(targets, minlength=2)
    notes = [Note("threshold", known.target.name, len(targets), (chosen, asked, known.target.classes[1], best, half))]
    rarer = int(counts.argmin())
    if counts[rarer] < FEWEST:
        notes.append(Note("few for a threshold", known.target.classes[rarer], int(counts[rarer])))
    return replace(posed, preprocessor=known.with_threshold(chosen)), notes


def _averaged(net: nn.Module, mean: Mapping[str, Tensor], posed: Problem) -> tuple[nn.Module, hardening.Report]:
    """The network with the mean of its weights, and the norms that belong to these."""
    begin, made = time.perf_counter(), copy.deepcopy(net)
    with torch.no_grad():
        for name, value in mean.items():
            made.get_parameter(name).copy_(value)
    if any(isinstance(module, nn.modules.batchnorm._NormBase) for module in made.modules()):
        made, _ = hardening.recalibrate(made, posed.fitting(), everywhere=True)
    return made, hardening.Report("average", time.perf_counter() - begin, None, None)
