"""Records are evidence: found by what they say of themselves, whatever they are called and whatever else they hold."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from htaf.training.families import make_recipe
from htaf.training.recipe import Recipe, Source
from htaf_paper import icbm, images, tabular, theory, vanishing
from htaf_paper.computing import Place, Task
from htaf_paper.evidence import Evidence
from htaf_paper.plans import Plan
from htaf_paper.records import RecordsError, write_records

RESULTS, WINE = Path(__file__).parents[1] / "results", Source("wine")


def not_to_be_computed(place: Place) -> dict[str, Any]:
    raise AssertionError(place)


def training(recipe: Recipe, seed: int = 0, source: Source = WINE, *, test: bool = True) -> Task:
    """As a study asks for it."""
    asked = {"recipe": recipe.flat(), "seed": seed, "source": source.values(), "test": test}
    return Task("any", asked, "", compute=not_to_be_computed)


def cell(function: str, **settings: Any) -> Task:
    return Task("any", {"function": function, "settings": settings}, "", compute=not_to_be_computed)


def record(recipe: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"recipe": recipe, "seed": 0, "data": {"name": "wine", "split": "random"}, "key": "any", **more}


def test_a_training_is_found_by_what_it_reads(tmp_path: Path) -> None:
    recipe = make_recipe(method="ste", slope="tanh", epochs=3)
    write_records(tmp_path / "a" / "cells.jsonl", [record(recipe.effective())])
    found = Evidence([tmp_path])
    assert found.of(training(recipe)) == json.loads(json.dumps(record(recipe.effective())))
    assert found.of(training(recipe.replace(alpha0=1.0))) is not None, "which straight-through does not read"
    for other in ({"slope": "sigmoid"}, {"epochs": 4}, {"method": "relu"}, {"lr": 0.5}, {"refit": True}):
        assert found.of(training(recipe.replace(**other))) is None
    assert found.of(training(recipe, seed=1)) is None
    assert found.of(training(recipe, source=Source("churn"))) is None
    assert found.of(training(recipe, source=Source("wine", split="grouped"))) is None
    assert found.of(training(recipe, test=False)) is None


def test_a_field_that_a_record_does_not_name_is_at_its_default(tmp_path: Path) -> None:
    write_records(tmp_path / "cells.jsonl", [record({"family": "mlp", "method": "relu"}, test=False)])
    found = Evidence([tmp_path])
    assert found.of(training(make_recipe(method="relu"), test=False)) is not None
    assert found.of(training(make_recipe(method="relu", dropout=0.5), test=False)) is None


def test_images_are_of_one_size_and_augmentation_may_be_left_to_them(tmp_path: Path) -> None:
    recipe = make_recipe("dhn", augment="crop-flip")
    about = {"data": {"name": "cub", "split": "official"}, "source": {"name": "cub", "size": 112}}
    write_records(tmp_path / "cells.jsonl", [record(recipe.effective(), **about)])
    found = Evidence([tmp_path])
    for augment, there in (("crop-flip", True), ("auto", True), ("none", False)):
        asked = training(recipe.replace(augment=augment), source=Source("cub", size=112))
        assert (found.of(asked) is not None) == there
    assert found.of(training(recipe, source=Source("cub", size=224))) is None


def test_another_cell_is_found_by_its_settings(tmp_path: Path) -> None:
    write_records(tmp_path / "cells.jsonl", [{"function": "theory", "settings": {"kind": "gap", "hidden": [8]}}])
    found = Evidence([tmp_path])
    assert found.of(cell("theory", kind="gap", hidden=(8,))) is not None
    assert found.of(cell("theory", kind="gap", hidden=(9,))) is None
    assert found.of(cell("vanishing", kind="gap", hidden=(8,))) is None


@pytest.mark.parametrize(
    "bad", [{"function": "theory"}, record({"method": "none"}), record({"alpha9": 1}), {"recipe": {}, "seed": 0}]
)
def test_a_record_that_does_not_say_what_it_is_of(tmp_path: Path, bad: dict[str, Any]) -> None:
    write_records(tmp_path / "study" / "cells.jsonl", [bad])
    with pytest.raises(RecordsError, match=r"study: a record does not say what it is of: ."):
        Evidence([tmp_path])


# ---- the committed records ----


@pytest.fixture(scope="module")
def committed() -> Evidence:
    return Evidence([RESULTS])


ICBM = (icbm.cifar10_wide_resnet, icbm.cifar10_resnet, icbm.cub_resnet)
PLANS = {
    "tabular": tabular.plan,
    **{f"{family}-reduced": partial(images.plan, family) for family in ("dhn", "bnn", "snn")},
    **{f"{family}-quick": partial(images.quick, family) for family in ("dhn", "bnn", "snn")},
    **{plan.__name__: plan for plan in ICBM},
}


@pytest.mark.parametrize("plan", [make() for make in PLANS.values()], ids=PLANS)
def test_a_search_and_its_finals_are_on_record(committed: Evidence, plan: Plan) -> None:
    for source in plan.sources:
        for row in plan.methods:
            candidates = plan.draw(row)
            if len(candidates) > 1 or plan.search_sees_test:
                tried = [
                    committed.of(training(plan.trial(row, one), source=source, test=plan.search_sees_test))
                    for one in candidates
                ]
                assert None not in tried, (source.name, row)
            finals = [
                [committed.of(training(plan.recipe(row, one), seed, source)) for seed in range(plan.splits)]
                for one in candidates
            ]
            assert any(None not in own for own in finals), (source.name, row)


def test_all_cells_of_theory_and_vanishing_are_on_record(committed: Evidence) -> None:
    for one in theory.cells():
        assert committed.of(cell("theory", **one)) is not None, one
    for one in vanishing.cells():
        assert committed.of(cell("vanishing", **one.settings("abalone"))) is not None, one
