"""What is done to a network once its steps are exact: norms and last layer fitted to the bits that they see."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from htaf import hardening
from htaf.convert.modes import evaluating
from htaf.data.images import ImagePreprocessor
from htaf.data.notes import Note
from htaf.data.parts import Part
from htaf.hardening.finishing import Make, kept_where_better
from htaf.runs.metrics import decided, loss_function, threshold_for
from htaf.runs.predictions import measure
from htaf.training.problems import FEWEST, Problem
from htaf.training.recipe import DataOptions, Recipe, TableData


def finished(
    net: nn.Module, posed: Problem, recipe: Recipe, say: Callable[[str], None], mean: Mapping[str, Tensor]
) -> tuple[nn.Module, list[dict[str, Any]]]:
    """Average, recalibrate and refit a network as its recipe says, and what its family adds; each is kept only where
    the validation loss is better.

    Args:
        net: with exact steps, or real-valued; in eval mode, not changed.
        mean: of its weights, by name; empty: none was taken.
        say: called with a line on each step.

    Returns:
        The network, a new one where something was kept; and of each step its name, the loss before and after, whether
        it was kept, and its report; of one that cannot be done the error.
    """
    loss, options, family = loss_function(posed.task), recipe.hardening, recipe.network
    steps: dict[str, tuple[bool, Make]] = {
        "average": (bool(mean), lambda net: _averaged(net, mean, posed)),
        "recalibrate": (options.recalibrate, lambda net: hardening.recalibrate(net, posed.fitting())),
        "refit": (options.refit and family.refits(posed.task), lambda net: refitted(net, posed)),
    }
    todo = [(name, make) for name, (asked, make) in steps.items() if asked] + [*family.finishing(net, posed).items()]
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


def threshold_on_test(kept: Mapping[str, tuple[Tensor, Tensor]], posed: Problem, options: DataOptions) -> list[Note]:
    """What the threshold of two classes, where there is one, does to the F1 of the second on the test part.

    Args:
        kept: outputs and targets by part, of the exact network where there is one.
    """
    known, asked = posed.preprocessor, isinstance(options, TableData) and options.threshold
    if isinstance(known, ImagePreprocessor) or (at := known.target.threshold) is None or "test" not in kept:
        return []
    from sklearn.metrics import f1_score

    (outputs, targets), weights = kept["test"], posed.weights.get("test")
    of: Any = {"sample_weight": weights, "zero_division": 0.0}
    with_it, without = (float(f1_score(targets, decided(outputs, by), **of)) for by in (at, None))
    how = f"the best {asked} on the validation part" if isinstance(asked, str) else "as asked"
    values = (at, how, known.target.classes[1], with_it, without)
    return [Note("threshold on test", known.target.name, len(targets), values)]


def _averaged(net: nn.Module, mean: Mapping[str, Tensor], posed: Problem) -> tuple[nn.Module, hardening.Report]:
    """The network with the mean of its weights, and the norms that belong to these."""
    begin, made = time.perf_counter(), copy.deepcopy(net)
    with torch.no_grad():
        for name, value in mean.items():
            made.get_parameter(name).copy_(value)
    if any(isinstance(module, nn.modules.batchnorm._NormBase) for module in made.modules()):
        made, _ = hardening.recalibrate(made, posed.fitting(), everywhere=True)
    return made, hardening.Report("average", time.perf_counter() - begin, None, None)


@torch.no_grad()
def loss_of(net: nn.Module, batches: Iterable[Any], loss: Callable[..., Tensor]) -> float:
    """The mean loss over the rows of all batches, in eval mode; infinite where it is not a number.

    Rows of a `Part` with weights count by these: its loss takes them third.
    """
    total, rows = 0.0, 0
    device = next(net.parameters()).device
    weights = batches.weights if isinstance(batches, Part) else None
    with evaluating(net):
        for x, y in batches:
            of = [] if weights is None else [weights[rows : rows + len(x)].to(device)]
            total += loss(net(x.to(device)), y.to(device), *of).item() * len(x)
            rows += len(x)
    return total / rows if math.isfinite(total) else math.inf
