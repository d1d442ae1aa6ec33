"""The plan of the table of tabular results: the paper's grids, equal budgets, the paper's figures."""

from __future__ import annotations

import pytest

from htaf.training.recipe import Recipe
from htaf_paper.tabular import PAPER, plan
from htaf_paper.trainings import name_of

# As printed: data set, measure, then DNN, DNN + HTAF, DNN + SS, DHN + STE
PRINTED = """
Wine RMSE 0.693 (0.01) 0.730 (0.01) 0.745 (0.01) 0.794 (0.01)
Abalone RMSE 2.003 (0.02) 2.106 (0.02) 2.403 (0.08) 2.620 (0.07)
Churn AUROC 0.831 (0.01) 0.828 (0.01) 0.828 (0.02) 0.816 (0.01)
FICO AUROC 0.787 (0.01) 0.778 (0.01) 0.778 (0.01) 0.773 (0.01)
"""


def recipes(method: str) -> list[Recipe]:
    made = plan()
    return [made.recipe(method, candidate) for candidate in made.draw(method)]


def test_figures_of_the_paper() -> None:
    expected: dict[str, dict[str, tuple[float, float]]] = {}
    for line in PRINTED.split("\n")[1:-1]:
        data, _, *figures = line.replace("(", "").replace(")", "").split()
        for i, method in enumerate(("relu", "htaf", "ss", "ste")):
            expected.setdefault(data.lower(), {})[method] = (float(figures[2 * i]), float(figures[2 * i + 1]))
    assert expected == PAPER


def test_data_sets_and_splits() -> None:
    made = plan()
    assert [name_of(source) for source in made.sources] == ["abalone", "wine", "churn", "fico", "wine (grouped)"]
    assert made.splits == 5
    assert made.base.network.hidden == (256, 256, 128)


@pytest.mark.parametrize(
    ("method", "grid", "tried"),
    [
        ("htaf", 6 * 2 * 2 * 2, 12),  # pairs x sharpening x learning rates x batch norm
        ("ste", 3 * 2 * 2, 12),
        ("ss", 4 * 2 * 2 * 2, 12),
        ("relu", 2 * 2, 4),
    ],
)
def test_budgets(method: str, grid: int, tried: int) -> None:
    made, size = plan(), 1
    for values in made.methods[method].values():
        size *= len(values)
    assert size == grid
    assert len(recipes(method)) == tried
    assert len({str(recipe.identity()) for recipe in recipes(method)}) == tried


def test_the_candidates_of_the_paper() -> None:
    methods = plan().methods
    assert set(methods) == {"htaf", "ste", "ss", "relu"}
    assert methods["htaf"]["alpha0,alpha1"] == ((0.1, 220), (0.5, 44), (1, 22), (2, 11), (3, 7.3), (5, 4.4))
    assert methods["ss"]["beta"] == (10, 22, 50, 100)
    assert len(methods["ste"]["slope"]) == 3
    for method, grid in methods.items():
        assert grid["lr"] == (1e-3, 3e-3)
        assert set(grid["batch_norm"]) == {False, True}
        assert ("sharpen" in grid) == (method in ("htaf", "ss"))


def test_the_draw_is_varied() -> None:
    """A draw that left out sharpening or a learning rate would not be the budget that the table claims."""
    for method in ("htaf", "ss"):
        drawn = recipes(method)
        for name in ("sharpen", "lr", "batch_norm"):
            assert len({recipe.flat()[name] for recipe in drawn}) == 2
    assert {recipe.activation.slope for recipe in recipes("ste")} == {"sigmoid", "tanh", "rectangular"}
