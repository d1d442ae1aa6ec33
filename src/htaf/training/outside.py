"""A recipe whose method is a smooth step from outside htaf: its numbers come from the class, which the user gives."""

from __future__ import annotations

from typing import Any

from htaf.contract import SmoothStep, StepFactory, from_outside, made, sharpness_of
from htaf.names import is_outside
from htaf.training.distributed import TrainingError
from htaf.training.recipe import Recipe

RESERVED = ("method", "kind", "bipolar", "levels")  # what else stands beside the sharpness parameters in a record


def with_step(recipe: Recipe, method: StepFactory | None) -> Recipe:
    """The recipe with the sharpness parameters of its step, where it leaves them to the class.

    Args:
        method: the class, where the recipe's method is an import path; else None.

    Raises:
        TrainingError: it is not given, keeps no contract (`htaf.SmoothStep`), or takes other parameters; or it is given
            for a method of htaf.
    """
    chosen = recipe.activation
    if not is_outside(chosen.method):
        if method is not None:
            raise TrainingError(f"expected no class beside method {chosen.method}, which is htaf's own, got {method}")
        return recipe
    try:
        numbers = sharpness_of(_one(recipe, method))
        if wrong := [name for name in numbers if name in RESERVED]:
            raise ValueError(f"expected other names of sharpness parameters than {', '.join(wrong)}")
        if chosen.sharpness is None:
            return recipe.replace(sharpness=tuple(numbers.values()))
        if len(chosen.sharpness) != len(numbers):
            raise ValueError(
                f"expected sharpness of {len(numbers)} numbers ({', '.join(numbers)}), got {chosen.sharpness}"
            )
        return recipe
    except (ValueError, TypeError) as error:
        raise TrainingError(f"method {chosen.method}: {error}") from None


def described(recipe: Recipe, method: StepFactory | None) -> dict[str, Any]:
    """The activation of a recipe that `with_step` gave, as `models.build.activation` takes it and records keep it."""
    activation = recipe.final_activation()
    if method is None:
        return activation
    module = _one(recipe, method)
    assert isinstance(module, SmoothStep)
    return activation | {
        "kind": module.kind,
        **dict(zip(sharpness_of(module), recipe.activation.sharpness or (), strict=True)),
    }


def _one(recipe: Recipe, method: StepFactory | None) -> Any:
    return made(
        from_outside(recipe.activation.method, method),
        {},
        bipolar=recipe.network.bipolar,
        levels=recipe.activation.levels,
    )
