"""What a reader of a record must know of the network that a training left behind."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from htaf.activations import SATURATION
from htaf.contract import SmoothStep, sharpness_of
from htaf.data.columns import Target
from htaf.data.images import ImagePreprocessor
from htaf.data.notes import Note
from htaf.data.preprocess import Preprocessor
from htaf.models.icbm import ICBM
from htaf.names import is_outside
from htaf.runs.metrics import decided, loss_function, metrics
from htaf.training.problems import Problem
from htaf.training.recipe import ImageData, Recipe, TableData

MANY_DEAD = 0.5  # of a hidden layer; of concepts one is worth a word
SAMPLE, ENOUGH, BETTER = 1000, 0.95, 0.02
FAR = 10.0  # times the loss of a constant: it diverged


def best_of(record: Mapping[str, Any]) -> str:
    """Where the exact network of a training comes from, for people, whose epochs count from 1."""
    epoch = record["best_epoch"] + 1
    return f"last epoch, {epoch}" if record["recipe"].get("keep") == "last" else f"best epoch {epoch}"


def pair_notes(net: nn.Module, recipe: Recipe) -> list[str]:
    """What a reader must know of the activation's parameters: not the recipe's, or too small to ever be binary."""
    notes, used, schedule = [], activation_of(net, recipe), recipe.activation.sharpening()
    names = next((m.sharpness for m in net.modules() if isinstance(m, SmoothStep)), ())
    final = {} if schedule is None else dict(zip(names, schedule.end, strict=True))
    alpha1, asked = used.get("alpha1", math.inf), final.get("alpha1", -math.inf)
    if alpha1 <= SATURATION < asked:
        notes.append(
            f"the best epoch came before sharpening ended: alpha1 had not yet passed ln 99 = {SATURATION:.3f} on its "
            f"way to {asked:g}, so no smooth output passes 0.99 and binarity is 0; the exact network has 0 and 1 anyway"
        )
    elif alpha1 <= SATURATION:
        notes.append(
            f"alpha1 is {alpha1:.4g}, and no smooth output passes 0.99 unless it is above ln 99 = {SATURATION:.3f}: "
            "binarity is 0. Choose a larger alpha1 if smooth outputs near 0 and 1 matter; the exact network has them "
            "anyway"
        )
    return notes


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
    of = record.get("hardening", {})
    first = of.get("exact_from")
    if record.get("recipe", {}).get("straight_through") and of.get("stages"):  # evidence of before
        first = of["stages"][0]["epoch"]
    return first is not None and record["best_epoch"] >= first


def result_notes(
    record: Mapping[str, Any],
    posed: Problem,
    net: nn.Module,
    exact: nn.Module | None,
    recipe: Recipe,
    kept: Mapping[str, tuple[Tensor, Tensor]],
) -> list[Note | str]:
    """What went wrong without an error: nothing learned, a class that is never predicted, dead units, an augmentation
    that does harm; and a smooth network that was not trained.

    Args:
        record: with the recipe, metrics and layers of the finished network.
        posed: what it was trained on.
        net, exact: the smooth and the exact network, in eval mode.
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
    harm, apart = [], []
    on, which = (exact, "exact") if exact is not None and trained_exact(record) else (net, "smooth")
    if isinstance(recipe.data, ImageData) and not learned:
        harm = augment_notes(on, posed, record["metrics"][which], recipe.data.augment)
    if on is exact:
        apart = [
            f"from epoch {record['hardening']['exact_from'] + 1} on the exact network was trained (exact_from): "
            "the figures of the smooth one with the same weights say nothing of the training"
        ]
    return [*learned, *overflow, *dead, *harm, *apart]


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
        said = f"loss {loss:.4g}, the training mean {constant:.4g}" if loss is not None else "its loss is not finite"
    else:
        counts = torch.bincount(train, of_train, minlength=int(validation.max()) + 1)
        shares = (counts / counts.sum()).float().clamp_min(1e-9)
        hits = (validation == counts.argmax()).double()
        always = (hits if of_validation is None else hits * of_validation).mean().item()
        accuracy, same = found["accuracy"] or 0.0, shares.log().expand(len(validation), -1)
        entropy = loss_function("classification")(same, validation, of_validation).item()
        better = loss is not None and loss < entropy
        said = f"accuracy {accuracy:.1%}, the most frequent class {always:.1%}"
        ordered = (found.get("auroc") or 0.0) > by_chance(torch.bincount(validation))
        if ordered:  # a rare class can be told apart and yet never be the likelier one
            said += f", AUROC {found['auroc']:.3f}"
        if not better and (accuracy > always or ordered):
            far = loss is None or loss > FAR * entropy
            shown = (
                "is not finite"
                if loss is None
                else f"is {loss:.4g}, that of always giving the classes' shares {entropy:.4g}"
            )
            return [Note("diverged" if far else "loss above a constant", values=(shown, said))]
    if better:
        return []
    return [Note("learned nothing", values=(said,))]


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
    rows, said = (torch.bincount(codes, minlength=classes) for codes in (targets, decided(outputs, target.threshold)))
    absent = ((rows > 0) & (said == 0)).nonzero()[:, 0].tolist()
    if not absent:
        return []
    names = tuple(target.classes[code] for code in absent)
    ways = () if weighted else (("class_weight", "balanced"),)
    if classes == 2 and target.threshold is None:
        ways += (("threshold", "f1"),)
    return [Note("never predicted", target.name, int(rows[absent].sum()), (names, ways))]


def dead_notes(layers: Sequence[Mapping[str, Any]], concepts: bool) -> list[str]:
    """Layers with many units that give the same bit for every input, as `htaf.diagnostics.layer_statistics` saw them.

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


@torch.no_grad()
def augment_notes(net: nn.Module, posed: Problem, metrics: Mapping[str, Any], augment: str) -> list[str]:
    """Whether the augmentation does harm: augmented training images are no easier than validation images as they are,
    so that there is no overfitting that it could have prevented.

    Args:
        net: the network that was trained, in eval mode. metrics: its.
    """
    validation = metrics["validation"]["accuracy"]
    if augment == "none" or validation >= ENOUGH:
        return []
    device, right, seen = next(net.parameters()).device, 0, 0
    rows = torch.linspace(0, len(posed.train) - 1, min(SAMPLE, len(posed.train))).long()
    for key, chosen in enumerate(rows.split(posed.validation.chunk)):
        x, y = posed.train[chosen, key]
        right += int((net(x.to(device)).argmax(1).cpu() == y).sum())
        seen += len(y)
    if right / seen >= validation + BETTER:
        return []
    return [
        f"training images as augmented by {augment} (accuracy {right / seen:.1%}) are no easier than validation "
        f"images as they are ({validation:.1%}): nothing is overfitted, and the augmentation may cost accuracy; "
        "compare with augment none"
    ]
