"""The families of networks that are trained by name: every `Family` of a file here."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from typing import Any

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
