"""What a recipe is called: the keys of the committed records, and those of every published recipe and plan.

A key that moves makes finished cells of a study be computed again, and a run refuse to be resumed. Where one must move,
`python tests/training/test_recipe_keys.py` writes the file anew.
"""

from __future__ import annotations

import json
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest

from htaf.runs import content_hash
from htaf.training.families import FAMILIES, make_recipe
from htaf.training.plan import Plan
from htaf.training.recipe import Recipe

RESULTS, KEYS = Path(__file__).parents[2] / "paper" / "results", Path(__file__).with_name("recipe_keys.json")

# what a network is told of its data
TABLE: dict[str, Any] = {"in_features": 5, "levels": [2, 3, 40, 100, 2], "calendar": []}
IMAGES: dict[str, Any] = {"in_channels": 3}
INPUTS = {"mlp": TABLE, "icbm": IMAGES | {"image_size": [32, 32]}}


def records() -> dict[str, list[dict[str, Any]]]:
    """The committed records of trainings, by the folder of their study."""
    found: dict[str, list[dict[str, Any]]] = {}
    for cell in sorted(RESULTS.rglob("cells/*.json")):
        record = json.loads(cell.read_text())
        if "recipe" in record:
            found.setdefault(str(cell.parents[1].relative_to(RESULTS)), []).append(record)
    return found


def recipes() -> dict[str, Recipe]:
    """Every published recipe by its name."""
    return {f"{family.name} {name}": make() for family in FAMILIES.values() for name, make in family.recipes.items()}


def plans() -> list[Plan]:
    """The published plans."""
    found: dict[str, Plan] = {}
    for point in entry_points(group="htaf.studies"):
        made = point.load()()
        found |= {plan.name: plan for plan in (made if isinstance(made, tuple) else (made,))}
    return [found[name] for name in sorted(found)]


def keys_of(recipe: Recipe) -> dict[str, str]:
    """Hashes of all that a recipe says of itself."""
    model = recipe.model(INPUTS.get(recipe.family, IMAGES), 10)
    found = {"identity": recipe.identity(), "effective": recipe.effective(), "model": model}
    return {name: content_hash(value) for name, value in found.items()}


def keys() -> dict[str, Any]:
    """As `recipe_keys.json` holds them."""
    return {
        "recipes": {name: keys_of(recipe) for name, recipe in recipes().items()},
        "plans": {
            plan.name: {
                method: [
                    content_hash([plan.recipe(method, one).identity(), plan.trial(method, one).identity()])
                    for one in plan.draw(method)
                ]
                for method in plan.methods
            }
            for plan in plans()
        },
    }


@pytest.mark.parametrize("study", sorted(records()))
def test_committed_records_keep_their_keys(study: str) -> None:
    for record in records()[study]:
        known = {name: record[name] for name in ("seed", "data", "test") if name in record}
        recipe = make_recipe(**record["recipe"])
        if "bottleneck" not in record["recipe"]:  # with given attributes the key is of their values too
            assert content_hash({"recipe": recipe.identity(), **known}) == record["key"]
        assert content_hash(recipe.identity()) == content_hash(record["recipe"])


def test_records_of_every_family_are_committed() -> None:
    found = [record for study in records().values() for record in study]
    assert len(found) >= 454
    assert {record["recipe"].get("family", "mlp") for record in found} >= {"mlp", "dhn", "bnn", "snn", "icbm"}


@pytest.mark.parametrize("kind", ["recipes", "plans"])
def test_published_recipes_and_plans_keep_their_keys(kind: str) -> None:
    frozen, now = json.loads(KEYS.read_text())[kind], keys()[kind]
    assert frozen.keys() == now.keys()
    for name in frozen:
        assert now[name] == frozen[name], name


if __name__ == "__main__":
    KEYS.write_text(json.dumps(keys(), indent=1) + "\n")
