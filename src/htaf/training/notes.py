"""What a reader of a record must know of the network that a training left behind."""

from __future__ import annotations

from typing import Any

from torch import nn

from htaf.activations import SATURATION
from htaf.training.recipe import Recipe


def start_notes(recipe: Recipe) -> list[str]:
    """Where the first weights came from."""
    return [f"the backbone started from {recipe.pretrained}"] if recipe.pretrained else []


def pair_notes(net: nn.Module, recipe: Recipe) -> list[str]:
    """What a reader must know of the activation's parameters: not the recipe's, or too small to ever be binary."""
    notes, final = [], recipe.activation()
    used = activation_of(net, recipe)
    if used != final:
        shown = ", ".join(f"{k} {used[k]:.4g} instead of {final[k]:g}" for k in final if k != "method")
        notes.append(
            f"the best epoch came before sharpening ended, so the smooth network has {shown}. Where its gap is too "
            "large, "
            "train longer (epochs), sharpen sooner (a smaller sharpen_fraction) or not at all (sharpen False)"
        )
    alpha1 = used.get("alpha1", float("inf"))
    if alpha1 <= SATURATION:
        notes.append(
            f"alpha1 is {alpha1:.4g}, and no smooth output passes 0.99 unless it is above ln 99 = {SATURATION:.3f}: "
            "binarity is 0. Choose a larger alpha1 if smooth outputs near 0 and 1 matter; the exact network has them "
            "anyway"
        )
    return notes


def activation_of(net: nn.Module, recipe: Recipe) -> dict[str, Any]:
    """The activation as it is at the best epoch: sharpening may not have been over."""
    schedule, activation = recipe.sharpening(), recipe.activation()
    if schedule is None:
        return activation
    names = ("alpha0", "alpha1") if recipe.method == "htaf" else ("beta",)
    module = next(m for m in net.modules() if hasattr(m, names[0]))
    return activation | {name: getattr(module, name) for name in names}
