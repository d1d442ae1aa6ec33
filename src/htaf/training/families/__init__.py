"""The families of networks that are trained by name: every `Family` of a file here."""

from __future__ import annotations

import dataclasses
import importlib
import pkgutil
from collections.abc import Iterator, Mapping
from typing import Any

from htaf._ground.names import is_outside
from htaf.training.recipe import Family, Recipe


def _found() -> Iterator[Family]:
    for file in pkgutil.iter_modules(__path__):
        module = importlib.import_module(f"{__name__}.{file.name}")
        yield from (one for one in vars(module).values() if isinstance(one, Family))


FAMILIES = {family.name: family for family in sorted(_found(), key=lambda family: family.name)}


def family_of(name: str) -> Family:
    """A family by its name.

    Raises:
        ValueError: there is none of this name.
    """
    if name not in [*FAMILIES]:  # of a file it may be anything
        raise ValueError(f"family must be one of {tuple(FAMILIES)}, got {name!r}")
    return FAMILIES[name]


def ready_recipe(family: str, name: str) -> Recipe:
    """A ready recipe of a family, as `htaf train VERB --help` lists them.

    Of an MLP tabular-residual, tabular-members, tabular-mlp, readable; on images small, reduced,
    quick (not icbm), cifar10 and cifar100 at full scale; of icbm also finetune and frozen.

    Raises:
        ValueError: no such family or recipe.
    """
    return family_of(family).ready(name)


def make_recipe(family: str = "mlp", **fields: Any) -> Recipe:
    """A recipe from flat fields, as records and plans hold them; the others have the defaults of their parts,
    which for an MLP are those of tabular-mlp.

    Raises:
        ValueError: no such family or field, or a bad value.
    """
    return family_of(family).make(**fields)


def continuing(record: Mapping[str, Any]) -> Recipe:
    """The recipe of a run, to go on from its weights with a new schedule: the activation starts as it was left.

    Args:
        record: of a finished run.

    Raises:
        ValueError: the record holds no such recipe.
    """
    try:
        recipe = make_recipe(**record["recipe"])
        recipe = dataclasses.replace(recipe, network=recipe.network.continued())
        if recipe.activation.sharpening() is None:
            return recipe
        if is_outside(recipe.activation.method):  # at its final values: the record does not say the order of its names
            return recipe.replace(start=None)
        names = ("alpha0", "alpha1") if recipe.activation.method == "htaf" else ("beta",)
        return recipe.replace(start=tuple(record["model"]["activation"][name] for name in names))
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"the record holds no recipe of this version: {error}") from None
