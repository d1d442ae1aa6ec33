"""Recipes and where data come from: what they refuse, what makes two of them the same, what the presets are."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any
from unittest.mock import ANY

import pytest

from htaf.training.families import FAMILIES, make_recipe, ready_recipe
from htaf.training.recipe import Source


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"alpha0": -1.0}, "alpha0 must be > 0 and finite, got -1.0"),
        ({"lr": float("nan")}, "lr must be > 0 and finite, got nan"),
        ({"weight_decay": -0.1}, "weight_decay must be >= 0 and finite, got -0.1"),
        ({"epochs": 0}, "epochs must be >= 1, got 0"),
        ({"batch_size": 0}, "batch_size must be >= 1, got 0"),
        ({"batch_size": 1}, "batch_size must be >= 2 with batch_norm, got 1"),
        ({"patience": -1}, "patience must be >= 0, got -1"),
        ({"hidden": (8, 0)}, r"hidden sizes must be integers in 1 to 2,147,483,647, got \(8, 0\)"),
        ({"sharpen_fraction": 0.0}, r"fraction must lie in \(0, 1\], got 0.0"),
        ({"start": (1.0,)}, "equally many"),
        ({"nesterov": True, "momentum": 0.0}, "momentum must be > 0 with nesterov, got 0.0"),
        ({"label_smoothing": 1.0}, r"label_smoothing must lie in \[0, 1\), got 1.0"),
        ({"lr": 0.1, "lr_end": 0.2}, r"lr_end must lie in \[0, lr = 0.1\], got 0.2"),
        ({"family": "dhn", "depth": 18}, "depth for dhn must be 6 n . 4 in 10 to 1204, got 18"),
        ({"family": "snn", "depth": 20}, r"depth for snn must be one of \(18, 34, 50\), got 20"),
        ({"family": "bnn", "method": "relu"}, "method for bnn must be htaf, ste or ss, got 'relu'"),
        ({"family": "snn", "steps": 0}, "steps must be in 1 to 4,096, got 0"),
        ({"family": "snn", "tau": 1.0}, "tau must be > 1 and finite, got 1.0"),
        ({"family": "bnn", "validation_images": 1.5}, "validation_images must be a number of images or a share"),
        ({"exact_from": 1.5}, "exact_from must lie"),
        ({"family": "icbm", "depth": 18}, "depth for wide_resnet must be 6 n"),
        ({"family": "icbm", "backbone": "resnet", "depth": 50}, r"depth for resnet must be one of \(18, 34\), got 50"),
        ({"family": "icbm", "pretrained": "hub"}, "pretrained must be a path"),
        ({"family": "icbm", "bottleneck": "joint", "concepts": 3}, "concepts must be 0 for bottleneck joint"),
        ({"family": "icbm", "backbone_lr": 0.0}, "backbone_lr must be > 0"),
        ({"family": "icbm", "backbone": ""}, "backbone must be the name"),
    ],
)
def test_bad_values(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        make_recipe(**changes)


def test_values_of_a_wrong_kind() -> None:
    """In a process of its own: here the types of arguments are checked before the recipe sees them."""
    cases = {
        "method='tanh'": "method must be one of ('htaf', 'ste', 'ss', 'relu'), or package.module:Class, got 'tanh'",
        "schedule='step'": "schedule must be one of ('one_cycle', 'cosine', 'linear', 'constant'), got 'step'",
        "family='cnn'": f"family must be one of {tuple(FAMILIES)}, got 'cnn'",
        "sharpen=1": "sharpen must be true or false, got 1",
        "epochs=2.5": "epochs must be an integer, got 2.5",
        "hidden=(8.0,)": "hidden sizes must be integers in 1 to 2,147,483,647, got (8.0,)",
        "hidden=8": "hidden must be several numbers, got 8",
        "start=3": "start must be several numbers, got 3",
        "lr=True": "lr must be a number, got True",
        "family='icbm', backbone=5": "backbone must be text, got 5",
        "family='dhn', augment='mirror'": "got 'mirror'",
    }
    code = f"""
from htaf.training.families import make_recipe
for case in {list(cases)!r}:
    try:
        eval(f"make_recipe({{case}})")
    except ValueError as error:
        print(error)
    else:
        print("accepted")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    for words, line in zip(cases.values(), done.stdout.splitlines(), strict=True):
        assert words in line


def test_integers_and_floats_are_one_recipe() -> None:
    ours, theirs = (
        make_recipe(alpha0=2, alpha1=11, lr=1, start=(1, 2)),
        make_recipe(alpha0=2.0, lr=1.0, start=(1.0, 2.0)),
    )
    assert ours == theirs
    assert json.dumps(ours.identity()) == json.dumps(theirs.identity())


@pytest.mark.parametrize("family", FAMILIES)
def test_all_fields_are_identity(family: str) -> None:
    """Those too that a training does not read: what is read may change, the fields stay told apart."""
    recipe = make_recipe(family)
    assert recipe.identity() == recipe.flat() == {"family": family, **dict.fromkeys(recipe.fields, ANY)}
    assert recipe.replace(beta=5.0).identity() != recipe.identity()


def test_inputs_told_by_each_value_have_a_threshold_for_each() -> None:
    inputs = {"in_features": 4, "levels": [365, 365, 2, 7], "discrete": [1, 3]}
    model = ready_recipe("mlp", "tabular-members").model(inputs, 1)
    assert model["thresholds"] == [48, 364, 1, 6]


def test_the_network_of_a_family() -> None:
    inputs = {"in_channels": 3}
    found = {family: ready_recipe(family, "reduced").model(inputs, 10) for family in ("dhn", "bnn", "snn")}
    assert [d["kind"] for d in found.values()] == ["wide_resnet", "bireal", "sew_resnet"]
    assert found["bnn"]["activation"] == {"method": "htaf", "alpha0": 2.0, "alpha1": 11.0, "bipolar": True}
    assert found["snn"]["neuron"] == {"kind": "if", "reset": "hard", "detach_reset": True, "exact_reset": False}
    assert found["snn"]["steps"] == 4
    real = ready_recipe("snn", "reduced").replace(method="relu").model(inputs, 10)
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
    recipe = make_recipe(**changes)
    with pytest.raises(ValueError, match=f"{why} does not read --{field}"):
        recipe.refuse_unread(["epochs", field], lambda name: f"--{name}")
    recipe.refuse_unread(["epochs", "lr"])
    assert field not in recipe.effective()


def test_effective_values() -> None:
    assert make_recipe(beta=8.0, method="ss").effective()["start"] == (2.0,)
    assert make_recipe(method="ss", start=(3.0,)).effective() | {"start": None} == make_recipe(
        method="ss"
    ).effective() | {"start": None}
    recipe = ready_recipe("snn", "reduced")
    assert make_recipe(**recipe.effective()).effective() == recipe.effective()


@pytest.mark.parametrize("method", ["htaf", "ss", "ste"])
def test_ready_recipes_take_every_method(method: str) -> None:
    for family in FAMILIES.values():
        for name in family.recipes:
            family.ready(name).replace(method=method)


def test_another_method_begins_at_its_own_start() -> None:
    recipe = ready_recipe("icbm", "frozen")
    assert recipe.activation.start == (0.5, 2.0)
    assert recipe.replace(method="ss").activation.start is None
    assert recipe.replace(method="ss", start=(3.0,)).activation.start == (3.0,)
    assert recipe.replace(epochs=3).activation.start == (0.5, 2.0)


# ---- where data come from: what goes together, and what a run remembers of it ----


def test_arguments_and_split() -> None:
    made = Source("a.csv", exclude=["b"], shares=[0.5, 0.25, 0.25], group="g")  # pyright: ignore[reportArgumentType]
    assert (made.mode, hash(made)) == ("grouped", hash(made))
    assert made.arguments() == {"exclude": ("b",), "shares": (0.5, 0.25, 0.25), "group": "g"}
    assert Source("a.csv", time="t").mode == "time"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"split": "stratified", "group": "g"}, "does not go with split stratified"),
        ({"split": "grouped", "time": "t"}, "goes with no other split"),
        ({"task": "both"}, "task must be one of .*, got 'both'"),
        ({"exclude": [1]}, r"exclude must be several texts, got \[1\]"),
        ({"size": 0}, "size must be >= 1, got 0"),
    ],
)
def test_what_makes_no_sense(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Source("a.csv", **options)
