"""Recipes: what they refuse, what makes two of them the same, what the presets are."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from typing import Any

import pytest

from htaf.sharpening import Geometric
from htaf.training.recipe import FAMILY_FIELDS, Recipe
from htaf.training.recipes import TABULAR, image_recipe


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
        ({"hidden": ()}, r"hidden sizes must be integers in 1 to 2,147,483,647, got \(\)"),
        ({"hidden": (8, 0)}, r"hidden sizes must be integers in 1 to 2,147,483,647, got \(8, 0\)"),
        ({"sharpen_fraction": 0.0}, r"fraction must lie in \(0, 1\], got 0.0"),
        ({"start": (1.0,)}, "equally many"),
        ({"method": "ss", "start": (1.0, 2.0)}, "equally many"),
        ({"nesterov": True, "momentum": 0.0}, "momentum must be > 0 with nesterov, got 0.0"),
        ({"clip": -1.0}, "clip must be >= 0 and finite, got -1.0"),
        ({"label_smoothing": 1.0}, r"label_smoothing must lie in \[0, 1\), got 1.0"),
        ({"lr": 0.1, "lr_end": 0.2}, r"lr_end must lie in \[0, lr = 0.1\], got 0.2"),
        ({"family": "dhn", "depth": 18}, "depth for dhn must be 6 n . 4 in 10 to 1204, got 18"),
        ({"family": "bnn", "depth": 50}, r"depth for bnn must be one of \(18, 34\), got 50"),
        ({"family": "snn", "depth": 20}, r"depth for snn must be one of \(18, 34, 50\), got 20"),
        ({"family": "bnn", "method": "relu"}, "method for bnn must be htaf, ste or ss, got 'relu'"),
        ({"family": "snn", "steps": 0}, "steps must be >= 1, got 0"),
        ({"family": "snn", "tau": 1.0}, "tau must be > 1 and finite, got 1.0"),
        ({"family": "bnn", "validation_images": 1.5}, "validation_images must be a number of images or a share"),
        ({"family": "bnn", "validation_images": 0}, "validation_images must be a number of images or a share"),
        ({"family": "bnn", "train_images": -1}, "train_images must be >= 0, got -1"),
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
        "schedule='step'": "schedule must be one of ('one_cycle', 'cosine', 'linear', 'constant'), got 'step'",
        "family='cnn'": "family must be one of ('mlp', 'dhn', 'bnn', 'snn', 'icbm'), got 'cnn'",
        "sharpen=1": "sharpen must be true or false, got 1",
        "epochs=2.5": "epochs must be an integer, got 2.5",
        "batch_size=32.0": "batch_size must be an integer, got 32.0",
        "patience=1.5": "patience must be an integer, got 1.5",
        "hidden=(8.0,)": "hidden sizes must be integers in 1 to 2,147,483,647, got (8.0,)",
        "hidden=(True,)": "hidden sizes must be integers in 1 to 2,147,483,647, got (True,)",
        "hidden=8": "hidden must be several numbers, got 8",
        "start=3": "start must be several numbers, got 3",
        "lr=True": "lr must be a number, got True",
        "lr='fast'": "lr must be a number, got 'fast'",
        "backbone=5": "backbone must be text, got 5",
        "augment='mirror'": "got 'mirror'",
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
    assert set(TABULAR) == {"tabular-mlp", "tabular-paper", "tabular-quick"}
    mlp, paper, quick = (TABULAR[name]() for name in ("tabular-mlp", "tabular-paper", "tabular-quick"))
    assert (mlp.hidden, mlp.batch_norm, mlp.sharpen, mlp.epochs) == ((256, 256, 128), True, True, 100)
    assert (paper.lr, paper.schedule, paper.sharpen, paper.batch_norm) == (1e-3, "constant", False, False)
    assert (paper.epochs, paper.patience, paper.hidden) == (1000, 0, (256, 256, 128))
    assert quick.epochs == 30
    assert all(recipe.method == "htaf" and (recipe.alpha0, recipe.alpha1) == (2, 11) for recipe in (mlp, paper, quick))


def test_a_key_of_before_there_were_images() -> None:
    """The fields that came later do not change what a training of an MLP is called, so older records are found."""
    assert Recipe(method="ste").identity() == {
        "method": "ste", "slope": "sigmoid", "hidden": (256, 256, 128), "batch_norm": True, "epochs": 100,
        "batch_size": 128, "lr": 3e-3, "weight_decay": 0.0, "schedule": "one_cycle", "patience": 25,
    }  # fmt: skip
    assert Recipe(clip=1.0).identity() == Recipe().identity() | {"clip": 1.0}


@pytest.mark.parametrize("family", ["dhn", "bnn", "snn"])
def test_fields_of_other_families_are_not_identity(family: Any) -> None:
    recipe = image_recipe(family, "reduced")
    others = {name for names in FAMILY_FIELDS.values() for name in names} - set(FAMILY_FIELDS[family])
    assert "hidden" in others
    assert not others & recipe.identity().keys()
    assert set(FAMILY_FIELDS[family]) - {"tau"} <= recipe.identity().keys()
    assert "tau" not in recipe.identity()  # integrate-and-fire does not leak
    assert dataclasses.replace(recipe, width=3).identity() != recipe.identity()


def test_full_scale_recipes() -> None:
    """recipes.md: the official codes' settings."""
    dhn, small, bnn, snn = (
        image_recipe(family, name)
        for family, name in (("dhn", "cifar10"), ("dhn", "cifar100"), ("bnn", "cifar10"), ("snn", "cifar10"))
    )
    assert (dhn.depth, dhn.width, small.depth, small.width) == (40, 6, 28, 6)
    assert (dhn.optimizer, dhn.nesterov, dhn.lr, dhn.lr_end, dhn.weight_decay) == ("sgd", True, 0.1, 1e-6, 5e-4)
    assert (dhn.epochs, dhn.batch_size, dhn.schedule, dhn.augment) == (100, 128, "cosine", "crop-flip")
    assert (bnn.optimizer, bnn.lr, bnn.lr_end, bnn.schedule, bnn.epochs) == ("adam", 1e-3, 0.0, "linear", 256)
    assert (bnn.batch_size, bnn.label_smoothing, bnn.weight_decay, bnn.slope) == (512, 0.1, 0.0, "approx_sign")
    assert (snn.optimizer, snn.lr, snn.momentum, snn.weight_decay, snn.epochs) == ("sgd", 0.1, 0.9, 0.0, 320)
    assert (snn.steps, snn.schedule, snn.connect, snn.reset, snn.detach_reset) == (4, "cosine", "add", "hard", True)
    with pytest.raises(ValueError, match="expected a family of"):
        image_recipe("mlp", "cifar10")


@pytest.mark.parametrize("family", ["dhn", "bnn", "snn"])
def test_small_recipes_take_any_set(family: Any) -> None:
    recipe = image_recipe(family, "small")
    assert (recipe.train_images, recipe.validation_images, recipe.epochs) == (0, 0.1, 20)
    assert (recipe.depth, recipe.width) == ((16, 1) if family == "dhn" else (18, 16))


@pytest.mark.parametrize("family", ["dhn", "bnn", "snn"])
def test_reduced_recipes(family: Any) -> None:
    recipe = image_recipe(family, "reduced")
    assert (recipe.train_images, recipe.validation_images) == (5000, 1000)
    assert (recipe.depth, recipe.width) == ((16, 1) if family == "dhn" else (18, 16))


def test_the_network_of_a_family() -> None:
    inputs = {"in_channels": 3}
    found = {family: image_recipe(family, "reduced").model(inputs, 10) for family in ("dhn", "bnn", "snn")}
    assert [d["kind"] for d in found.values()] == ["wide_resnet", "bireal", "sew_resnet"]
    assert found["bnn"]["activation"] == {"method": "htaf", "alpha0": 2.0, "alpha1": 11.0, "bipolar": True}
    assert found["snn"]["neuron"] == {"kind": "if", "reset": "hard", "detach_reset": True, "exact_reset": False}
    assert found["snn"]["steps"] == 4
    real = dataclasses.replace(image_recipe("snn", "reduced"), method="relu").model(inputs, 10)
    assert real["steps"] == 1


@pytest.mark.parametrize(
    ("changes", "field", "why"),
    [
        ({"method": "relu"}, "alpha0", "method relu"),
        ({"sharpen": False}, "start", "sharpen false"),
        ({}, "momentum", "optimizer adamw"),
        ({}, "lr_end", "schedule one_cycle"),
        ({}, "depth", "family mlp"),
        ({"family": "snn"}, "tau", "neuron if"),
        ({"family": "icbm", "backbone": "resnet18"}, "depth", "backbone resnet18"),
        ({"family": "icbm", "depth": 10}, "attributes", "bottleneck implicit"),
        ({"family": "icbm", "depth": 10, "freeze": True}, "backbone_lr", "freeze true"),
    ],
)
def test_fields_that_are_not_read(changes: dict[str, Any], field: str, why: str) -> None:
    recipe = Recipe(**changes)
    with pytest.raises(ValueError, match=f"{why} does not read --{field}"):
        recipe.refuse_unread(["epochs", field], lambda name: f"--{name}")
    recipe.refuse_unread(["epochs", "lr"])
    assert field not in recipe.effective()


def test_effective_values() -> None:
    assert Recipe(beta=8.0, method="ss").effective()["start"] == (2.0,)
    assert Recipe(method="ss", start=(3.0,)).effective() | {"start": None} == Recipe(method="ss").effective() | {
        "start": None
    }
    recipe = image_recipe("snn", "reduced")
    assert Recipe(**recipe.effective()).identity() == recipe.identity() | {"start": (1.0, 2.0)}
