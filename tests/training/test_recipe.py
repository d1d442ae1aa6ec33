"""Recipes: what they refuse, what makes two of them the same, what the presets are."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from typing import Any

import pytest

from htaf.sharpening import Geometric
from htaf.training.recipe import RECIPES, Recipe


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"alpha0": -1.0}, "alpha0 must be > 0 and finite, got -1.0"),
        ({"alpha1": float("inf")}, "alpha1 must be > 0 and finite, got inf"),
        ({"beta": 0.0}, "beta must be > 0 and finite, got 0.0"),
        ({"lr": float("nan")}, "lr must be > 0 and finite, got nan"),
        ({"weight_decay": -0.1}, "weight_decay must be >= 0 and finite, got -0.1"),
        ({"epochs": 0}, "epochs must be >= 1, got 0"),
        ({"batch_size": 0}, "batch_size must be >= 1, got 0"),
        ({"batch_size": 1}, "batch_size must be >= 2 with batch_norm, got 1"),
        ({"patience": -1}, "patience must be >= 0, got -1"),
        ({"hidden": ()}, r"hidden sizes must be integers >= 1, got \(\)"),
        ({"hidden": (8, 0)}, r"hidden sizes must be integers >= 1, got \(8, 0\)"),
        ({"sharpen_fraction": 0.0}, r"fraction must lie in \(0, 1\], got 0.0"),
        ({"start": (1.0,)}, "equally many"),
        ({"method": "ss", "start": (1.0, 2.0)}, "equally many"),
    ],
)
def test_bad_values(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Recipe(**changes)


def test_values_of_a_wrong_kind() -> None:
    """In a process of its own: here the types of arguments are checked before the recipe sees them."""
    cases = {
        "method='tanh'": "method must be one of ('htaf', 'ste', 'ss', 'relu'), got 'tanh'",
        "slope='steep'": "got 'steep'",
        "schedule='linear'": "schedule must be one of ('one_cycle', 'cosine', 'constant'), got 'linear'",
        "epochs=2.5": "epochs must be an integer, got 2.5",
        "batch_size=32.0": "batch_size must be an integer, got 32.0",
        "patience=1.5": "patience must be an integer, got 1.5",
        "hidden=(8.0,)": "hidden sizes must be integers >= 1, got (8.0,)",
    }
    code = f"""
from htaf.training.recipe import Recipe
for case in {list(cases)!r}:
    try:
        eval(f"Recipe({{case}})")
    except ValueError as error:
        print(error)
    else:
        print("accepted")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    for words, line in zip(cases.values(), done.stdout.splitlines(), strict=True):
        assert words in line


def test_integers_and_floats_are_one_recipe() -> None:
    ours, theirs = Recipe(alpha0=2, alpha1=11, lr=1, start=(1, 2)), Recipe(alpha0=2.0, lr=1.0, start=(1.0, 2.0))
    assert ours == theirs
    assert json.dumps(ours.identity()) == json.dumps(theirs.identity())


@pytest.mark.parametrize(
    ("method", "ignored"),
    [
        ("htaf", {"beta": 5.0, "slope": "tanh"}),
        ("ss", {"alpha0": 1.0, "alpha1": 5.0, "slope": "tanh"}),
        ("ste", {"alpha0": 1.0, "beta": 5.0, "sharpen": False, "sharpen_fraction": 0.5}),
        ("relu", {"alpha0": 1.0, "beta": 5.0, "slope": "atan", "sharpen": False, "start": (1.0, 2.0)}),
    ],
)
def test_unused_fields_are_not_identity(method: Any, ignored: dict[str, Any]) -> None:
    assert Recipe(method=method, **ignored).identity() == Recipe(method=method).identity()


@pytest.mark.parametrize(
    ("base", "change"),
    [
        ({}, {"alpha0": 1.0}),
        ({}, {"alpha1": 22.0}),
        ({}, {"sharpen": False}),
        ({}, {"sharpen_fraction": 0.5}),
        ({}, {"start": (0.5, 4.0)}),
        ({"method": "ss"}, {"beta": 10.0}),
        ({"method": "ste"}, {"slope": "tanh"}),
        ({"method": "relu"}, {"method": "ste"}),
        *(({}, {name: value}) for name, value in {"hidden": (8,), "epochs": 3, "batch_size": 7, "lr": 0.1}.items()),
        *(({}, {name: value}) for name, value in {"weight_decay": 0.1, "schedule": "cosine", "patience": 3}.items()),
        ({}, {"batch_norm": False}),
    ],
)
def test_used_fields_are_identity(base: dict[str, Any], change: dict[str, Any]) -> None:
    recipe = Recipe(**base)
    assert dataclasses.replace(recipe, **change).identity() != recipe.identity()


def test_start_counts_only_with_sharpening() -> None:
    off = Recipe(sharpen=False)
    assert dataclasses.replace(off, start=(1.0, 2.0), sharpen_fraction=0.2).identity() == off.identity()


def test_sharpening() -> None:
    assert Recipe().sharpening() == Geometric((1.0, 2.0), (2.0, 11.0), 0.7)
    assert Recipe(method="ss", beta=10.0, sharpen_fraction=0.5).sharpening() == Geometric((2.0,), (10.0,), 0.5)
    assert Recipe(start=(0.5, 3.0)).sharpening() == Geometric((0.5, 3.0), (2.0, 11.0), 0.7)
    assert Recipe(sharpen=False).sharpening() is None
    assert Recipe(method="ste").sharpening() is None
    assert Recipe(method="relu").sharpening() is None


def test_activation() -> None:
    assert Recipe().activation() == {"method": "htaf", "alpha0": 2.0, "alpha1": 11.0}
    assert Recipe(method="ss").activation() == {"method": "ss", "beta": 22.0}
    assert Recipe(method="ste", slope="atan").activation() == {"method": "ste", "slope": "atan"}
    assert Recipe(method="relu").activation() == {"method": "relu"}


def test_presets() -> None:
    assert set(RECIPES) == {"tabular-mlp", "tabular-paper", "tabular-quick"}
    mlp, paper, quick = (RECIPES[name]() for name in ("tabular-mlp", "tabular-paper", "tabular-quick"))
    assert (mlp.hidden, mlp.batch_norm, mlp.sharpen, mlp.epochs) == ((256, 256, 128), True, True, 100)
    assert (paper.lr, paper.schedule, paper.sharpen, paper.batch_norm) == (1e-3, "constant", False, False)
    assert (paper.epochs, paper.patience, paper.hidden) == (1000, 0, (256, 256, 128))
    assert quick.epochs == 30
    assert all(recipe.method == "htaf" and (recipe.alpha0, recipe.alpha1) == (2, 11) for recipe in (mlp, paper, quick))
