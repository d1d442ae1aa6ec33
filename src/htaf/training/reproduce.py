"""The command that trains a run of a table again."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from htaf.training.families import family_of, make_recipe
from htaf.training.recipe import Recipe

_READ = ("name", "data_dir", "target", "task", "ids")  # of a source; all else are flags of their own


def command(record: Mapping[str, Any]) -> str:
    """`htaf train VERB` with the flags that make the run of a record again; "" where it cannot be said.

    The recipe is the ready one that differs least, with a flag for each field that differs. Of a file only its name is
    given, so that a report says nothing of folders: the command is for the folder of the file, and of its test rows.

    Args:
        record: of a finished run of a table, whose source is known.
    """
    source = record.get("source") or {}
    if not source.get("name"):
        return ""
    try:
        recipe = make_recipe(**record["recipe"])
        family = family_of(recipe.family)
        changes = {name: _changes(family.ready(name), recipe) for name in family.recipes}
    except (ValueError, KeyError, TypeError):  # a record of another version
        return ""
    ready = min(changes, key=lambda name: len(changes[name]))
    first = next(iter(family.recipes))
    words = ["htaf", "train", family.verb, "--data", Path(str(source["name"])).name]
    words += [word for name in ("target", "task") if source.get(name) for word in (f"--{name}", str(source[name]))]
    for name, value in sorted(source.items()):
        if name not in _READ and value not in (None, False, [], ()):
            words += [_flag(name), *([] if value is True else _words(value))]
    if source.get("ids"):
        words += ["--id", *_words(source["ids"])]
    known = record["data"]
    for name in ("shares", "group", "time", "weight"):
        if known.get(name):
            words += [_flag(name), *_words(known[name])]
    if known.get("split", "random") != "random" and not (known.get("group") or known.get("time")):
        words += ["--split", str(known["split"])]
    if ready != first:
        words += ["--recipe", ready]
    for name, value in changes[ready].items():
        words += [_flag(name), *_words(value)]
    words += ["--seed", str(record["seed"]), "--threads", str(record["threads"]), "--out", "runs/again"]
    return shlex.join(words)


def _changes(base: Recipe, recipe: Recipe) -> dict[str, Any]:
    """The fields of a recipe that another one has to be given."""
    method = recipe.activation.method
    if method != base.activation.method:
        base = base.replace(method=method, start=None, sharpness=None)
        changed = {"method": method}
    else:
        changed = {}
    known, unread = base.flat(), recipe.unread()
    if recipe.optimization.optimizer != base.optimization.optimizer:
        known = known | {"lr": None}  # the command takes another one with another optimizer
    for name, value in recipe.flat().items():
        if name not in unread and name != "family" and value is not None and value != known.get(name):
            changed[name] = value
    return changed


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _words(value: Any) -> list[str]:
    if isinstance(value, list | tuple):
        return [word for one in value for word in _words(one)]
    return [f"{value:.17g}" if isinstance(value, float) and float(f"{value:g}") != value else _plain(value)]


def _plain(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
