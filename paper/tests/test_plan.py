"""Plans: candidates are drawn once and without repetition; the best on validation is trained on every split."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from htaf.training.families import make_recipe
from htaf.training.source import Source
from htaf_paper import plans, tabular
from htaf_paper.plans import Plan
from htaf_paper.protocol import Found, Place

GRID: dict[str, tuple[Any, ...]] = {
    "alpha0,alpha1": ((2.0, 11.0), (1.0, 22.0), (0.5, 44.0)),
    "lr": (1e-3, 3e-3),
    "batch_norm": (False, True),
}


def plan(methods: Any = None, **options: Any) -> Plan:
    return Plan((Source("digits"),), {"htaf": GRID} if methods is None else methods, **options)


@pytest.mark.parametrize("candidates", [1, 5, 12, 50])
def test_draw(candidates: int) -> None:
    drawn = plan(candidates=candidates).draw("htaf")
    assert len(drawn) == len({str(candidate) for candidate in drawn}) == min(candidates, 12)
    assert all(value in GRID[names] for candidate in drawn for names, value in candidate.items())
    assert drawn == plan(candidates=50, splits=2).draw("htaf")[:candidates]  # more candidates keep the first


def test_candidates_are_recipes_with_joint_fields() -> None:
    made = plan(base=make_recipe(epochs=7, hidden=(8,)))
    recipes = [made.recipe("htaf", candidate) for candidate in made.draw("htaf")]
    pairs = {(recipe.activation.alpha0, recipe.activation.alpha1) for recipe in recipes}
    assert pairs == {(2.0, 11.0), (1.0, 22.0), (0.5, 44.0)}  # never crossed
    assert {(one.optimization.epochs, one.network.hidden, one.activation.method) for one in recipes} == {
        (7, (8,), "htaf")
    }
    assert plan({"relu": {}}).draw("relu") == [{}]
    with pytest.raises(ValueError, match="alpha0 must be > 0 and finite, got -1"):
        made.recipe("htaf", {"alpha0": -1.0})
    with pytest.raises(ValueError, match="shorter"):
        made.recipe("htaf", {"alpha0,alpha1": (1.0,)})


def test_rows_of_one_method_with_other_recipes() -> None:
    made = plan({"htaf": GRID, "htaf, fixed": {"sharpen": (False,), **GRID}}, variants={"htaf, fixed": "htaf"})
    for row, sharpen in (("htaf", True), ("htaf, fixed", False)):
        recipes = [made.recipe(row, candidate) for candidate in made.draw(row)]
        assert {(one.activation.method, one.activation.sharpen) for one in recipes} == {("htaf", sharpen)}


@pytest.mark.parametrize(("headline", "best"), [("rmse", 0.01), ("accuracy", 0.03)])
def test_chosen_on_validation_of_the_exact_network(tmp_path: Path, headline: str, best: float) -> None:
    """Validation, test and the smooth network each prefer another candidate."""
    figures = {0.01: (1.0, 9.0, 7.0), 0.02: (2.0, 0.5, 9.0), 0.03: (3.0, 8.0, 0.1)}
    made = plan({"htaf": {"lr": (*figures,)}}, base=make_recipe(epochs=1, hidden=(4,)), splits=2)

    def record(task: Any) -> dict[str, Any]:
        validation, test, smooth = figures[task.payload["recipe"]["lr"]]
        exact = {"validation": {headline: validation}, "test": {headline: test}}
        return {"headline": headline, "metrics": {"exact": exact, "smooth": {"validation": {headline: smooth}}}}

    found = plans.trained([made], Found(record), Place(tmp_path))
    assert not found.wanted
    assert found.chosen["digits", "htaf"].optimization.lr == best
    assert found.values("digits", "htaf") == 2 * [figures[best][1]]


def test_a_shorter_search_does_not_see_the_test_part(tmp_path: Path) -> None:
    """And one candidate needs none."""
    rows = {"htaf": {"lr": (1e-3, 3e-3)}, "relu": {}}
    made = plan(rows, base=make_recipe(epochs=6, hidden=(4,)), search_epochs=2, splits=2)
    wanted = plans.trained([made], Found(lambda task: None), Place(tmp_path)).wanted
    asked = [task.payload for task in wanted]
    assert [(one["recipe"]["method"], one["recipe"]["epochs"], one["test"]) for one in asked] == [
        ("htaf", 2, False), ("htaf", 2, False), ("relu", 6, True), ("relu", 6, True),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("method", "grid", "tried"),
    [
        ("htaf", 6 * 2 * 2 * 2, 12),  # pairs x sharpening x learning rates x batch norm
        ("ste", 3 * 2 * 2, 12),
        ("ss", 4 * 2 * 2 * 2, 12),
        ("relu", 2 * 2, 4),
    ],
)
def test_budgets_of_the_table_of_tabular_results(method: str, grid: int, tried: int) -> None:
    made = tabular.plan()
    drawn = [made.recipe(method, candidate) for candidate in made.draw(method)]
    assert math.prod(map(len, made.methods[method].values())) == grid
    assert len(drawn) == len({str(recipe.identity()) for recipe in drawn}) == tried
