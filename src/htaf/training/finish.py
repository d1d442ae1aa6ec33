"""The end of a training: norms and head fitted to the bits that they see, a threshold, and notes on what came out."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from htaf._ground.names import is_outside
from htaf.core.contract import SmoothStep, sharpness_of
from htaf.data.images import ImagePreprocessor
from htaf.data.notes import Note
from htaf.data.parts import Part
from htaf.data.preprocess import Preprocessor, Target
from htaf.models.icbm import ICBM
from htaf.training.problems import FEWEST, Problem
from htaf.training.recipe import DataOptions, Recipe, TableData
from htaf.training.runs.metrics import decided, loss_function, metrics, threshold_for
from htaf.training.runs.predictions import measure
from htaf.transform import hardening
from htaf.transform.convert.modes import evaluating
from htaf.transform.hardening.finishing import Make, kept_where_better

MANY_DEAD = 0.5  # of a hidden layer; of concepts one is worth a word
FAR = 10.0  # times the loss of a constant: it diverged


def finished(
    net: nn.Module, posed: Problem, recipe: Recipe, say: Callable[[str], None]
) -> tuple[nn.Module, list[dict[str, Any]]]:
    """Recalibrate and refit a network as its recipe says, and what its family adds; each is kept only where the
    validation loss is better.

    Args:
        net: with exact steps, or real-valued; in eval mode, not changed.
        say: called with a line on each step.

    Returns:
        The network, a new one where something was kept; and of each step its name, the loss before and after, whether
        it was kept, and its report; of one that cannot be done the error.
    """
    loss, options, family = loss_function(posed.task), recipe.hardening, recipe.network
    steps: dict[str, tuple[bool, Make]] = {
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
    """The problem with the threshold that is best for the metric that its recipe names, and notes on it.

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


def best_of(record: Mapping[str, Any]) -> str:
    """Where the exact network of a training comes from, for people, whose epochs count from 1."""
    epoch = record["best_epoch"] + 1
    return f"last epoch, {epoch}" if record["recipe"].get("keep") == "last" else f"best epoch {epoch}"


def activation_of(net: nn.Module, recipe: Recipe) -> dict[str, Any]:
    """The activation as it is at the best epoch: sharpening may not have been over."""
    activation, outside = recipe.final_activation(), is_outside(recipe.activation.method)
    if recipe.activation.sharpening() is None and not outside:
        return activation
    step = next(m for m in net.modules() if isinstance(m, SmoothStep))
    return activation | ({"kind": step.kind} if outside else {}) | sharpness_of(step)


def trained_exact(record: Mapping[str, Any]) -> bool:
    """Whether the weights were trained on behind exact steps (`exact_from`): the smooth network of a run then has
    weights that were not trained for it, and its figures say nothing of the training."""
    first = record.get("hardening", {}).get("exact_from")
    return first is not None and record["best_epoch"] >= first


def result_notes(
    record: Mapping[str, Any],
    posed: Problem,
    net: nn.Module,
    recipe: Recipe,
    kept: Mapping[str, tuple[Tensor, Tensor]],
) -> list[Note | str]:
    """Say what went wrong without an error: nothing learned, a class that is never predicted, dead units; and a smooth
    network that was not trained.

    Args:
        record: with the recipe, metrics and layers of the finished network.
        posed: what it was trained on.
        net: the smooth network.
        recipe: how.
        kept: outputs and targets by part, of the exact network where there is one.
    """
    chosen = record["metrics"]["exact"] or record["metrics"]["smooth"]
    outputs, targets = kept["validation"]
    threshold = None if isinstance(posed.preprocessor, ImagePreprocessor) else posed.preprocessor.target.threshold
    of, found = posed.validation.weights, chosen["validation"]
    if of is not None:  # by what the network was trained on, which the classes' weights are part of
        found = metrics(outputs, targets, posed.task, weights=of, threshold=threshold)
    learned = constant_notes(found, posed.train.targets(), targets, posed.train.weights, of)
    if isinstance(posed.preprocessor, Preprocessor) and not learned:
        weighted = isinstance(recipe.data, TableData) and bool(recipe.data.class_weight)
        learned = never_predicted(outputs, targets, posed.preprocessor.target, weighted)
    dead = dead_notes(record["layers"], isinstance(net, ICBM) and posed.attributes is None)
    overflow = [
        f"WARNING: the loss on the {part} part is not finite: look for outliers in its rows"
        for part, values in chosen.items()
        if part != "validation" and values["loss"] is None
    ]
    apart = []
    if record["metrics"]["exact"] and trained_exact(record):
        apart = [
            f"from epoch {record['hardening']['exact_from'] + 1} on the exact network was trained (exact_from): "
            "the figures of the smooth one with the same weights say nothing of the training"
        ]
    return [*learned, *overflow, *dead, *apart]


def constant_notes(
    found: Mapping[str, float | None],
    train: Tensor,
    validation: Tensor,
    of_train: Tensor | None = None,
    of_validation: Tensor | None = None,
) -> list[Note]:
    """Whether a network beats the same answer for every row: the training part's mean, or its most frequent class.

    Args:
        found: its metrics on the validation part.
        train, validation: targets of the parts: float [rows, 1], or int64 [rows] class codes.
        of_train, of_validation: weights of their rows, of mean 1, by which `found` was measured; None: all alike.
    """
    loss = found["loss"]
    if train.is_floating_point():
        mean = train.mean() if of_train is None else (train[:, 0] * of_train).mean()
        constant = loss_function("regression")(mean.expand_as(validation), validation, of_validation).item()
        better = loss is not None and loss < constant
        text = f"loss {loss:.4g}, the training mean {constant:.4g}" if loss is not None else "its loss is not finite"
    else:
        counts = torch.bincount(train, of_train, minlength=int(validation.max()) + 1)
        shares = (counts / counts.sum()).float().clamp_min(1e-9)
        hits = (validation == counts.argmax()).double()
        always = (hits if of_validation is None else hits * of_validation).mean().item()
        accuracy, same = found["accuracy"] or 0.0, shares.log().expand(len(validation), -1)
        entropy = loss_function("classification")(same, validation, of_validation).item()
        better = loss is not None and loss < entropy
        text = f"accuracy {accuracy:.1%}, the most frequent class {always:.1%}"
        ordered = (found.get("auroc") or 0.0) > by_chance(torch.bincount(validation))
        if ordered:  # a rare class can be told apart and yet never be the likelier one
            text += f", AUROC {found['auroc']:.3f}"
        if not better and (accuracy > always or ordered):
            far = loss is None or loss > FAR * entropy
            shown = (
                "is not finite"
                if loss is None
                else f"is {loss:.4g}, that of always giving the classes' shares {entropy:.4g}"
            )
            return [Note("diverged" if far else "loss above a constant", values=(shown, text))]
    if better:
        return []
    return [Note("learned nothing", values=(text,))]


def by_chance(counts: Tensor) -> float:
    """The AUROC that outputs which say nothing exceed by chance in one of a thousand cases, 3 deviations above 0.5.

    Args:
        counts: rows of each class, of which the rarest decides.
    """
    rows, rarest = int(counts.sum()), int(counts[counts > 0].min())
    pairs = rarest * (rows - rarest)
    return 0.5 + 3 * math.sqrt((rows + 1) / (12 * pairs)) if pairs else math.inf


def never_predicted(outputs: Tensor, targets: Tensor, target: Target, weighted: bool) -> list[Note]:
    """The classes of a table that validation rows have and no prediction is, with what is left to try.

    Args:
        outputs: of the validation part, of the exact network where there is one. targets: class codes.
        target: says the classes, and the threshold. weighted: the classes have weights in the training.
    """
    if not target.classes:
        return []
    classes = len(target.classes)
    predicted = torch.bincount(decided(outputs, target.threshold), minlength=classes)
    rows = torch.bincount(targets, minlength=classes)
    absent = ((rows > 0) & (predicted == 0)).nonzero()[:, 0].tolist()
    if not absent:
        return []
    names = tuple(target.classes[code] for code in absent)
    ways = () if weighted else (("class_weight", "balanced"),)
    if classes == 2 and target.threshold is None:
        ways += (("threshold", "f1"),)
    return [Note("never predicted", target.name, int(rows[absent].sum()), (names, ways))]


def dead_notes(layers: Sequence[Mapping[str, Any]], concepts: bool) -> list[str]:
    """Layers with many units that give the same bit for every input, as `htaf.transform.diagnostics.layer_statistics`
    saw them.

    concepts: the last layer holds the concepts of an ICBM.
    """
    notes = []
    if concepts and layers:
        *layers, last = layers
        dead = round(last["dead"] * last["units"])
        if dead:
            loud = "WARNING: " if 2 * dead >= last["units"] else ""
            notes.append(
                f"{loud}{dead} of {last['units']} concepts are dead, the same for every validation image: they say "
                "nothing. Train for more epochs, lower lr, or take fewer concepts"
            )
    many = [layer for layer in layers if layer["dead"] >= MANY_DEAD]
    if many:
        shown = ", ".join(f"{x['path']} {round(x['dead'] * x['units'])} of {x['units']}" for x in many[:3])
        more = f" and {len(many) - 3} more layers" if len(many) > 3 else ""
        notes.append(f"units that are dead, the same for every input: {shown}{more}; lower lr, or take fewer units")
    return notes
