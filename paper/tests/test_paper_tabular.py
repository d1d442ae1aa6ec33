"""The plan of the table of tabular results: the paper's grids, equal budgets, the paper's figures."""

from __future__ import annotations

import pytest

from htaf.training.families import ready_recipe
from htaf.training.recipe import Recipe
from htaf_paper.tabular import exact, plan

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
    expected = {}
    for line in PRINTED.split("\n")[1:-1]:
        data, _, *figures = line.replace("(", "").replace(")", "").split()
        for i, method in enumerate(("relu", "htaf", "ss", "ste")):
            expected[data.lower(), method] = (float(figures[2 * i]), float(figures[2 * i + 1]))
    assert plan().reference == expected


def test_data_sets_and_splits() -> None:
    made = plan()
    assert [source.label for source in made.sources] == ["abalone", "wine", "churn", "fico", "wine (grouped)"]
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
    assert made.number(method) == len(recipes(method)) == tried
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


def test_equal_budgets_of_the_exact_networks() -> None:
    made = exact()
    for row in made.methods:
        drawn = [made.recipe(row, candidate) for candidate in made.draw(row)]
        count = 1 if row.endswith(" fixed") else 2 if row == "relu" else 8
        assert len({str(recipe.identity()) for recipe in drawn}) == count
        assert {(r.optimization.epochs, r.optimization.patience, r.network.batch_norm) for r in drawn} == {
            (30, 0, True)
        }
        assert {recipe.activation.method for recipe in drawn} == {row.split()[0]}
        assert {recipe.optimization.lr for recipe in drawn} == ({3e-3} if count == 1 else {1e-3, 3e-3})
    assert len(made.sources) == 12
    assert made.splits == 5
    assert {made.recipe("ste", candidate).activation.slope for candidate in made.draw("ste")} == {
        "sigmoid", "tanh", "rectangular", "approx_sign", "htaf",
    }  # fmt: skip


def test_untuned_rows_are_the_ready_recipes() -> None:
    made = exact()
    (candidate,) = made.draw("htaf fixed")
    ready = ready_recipe("mlp", "tabular-exact")
    assert made.recipe("htaf fixed", candidate).replace(start=None).effective() == ready.effective()


def test_rows_with_and_without_every_part() -> None:
    made = exact()
    parts = {row: made.recipe(row, made.draw(row)[0]).hardening for row in made.methods}
    for curve in ("htaf", "ss"):
        rows = [curve, f"{curve} finish"]
        assert [(parts[r].refit, parts[r].recalibrate) for r in rows] == [(False, False), (True, True)]
        first, second = ({str(made.recipe(row, c).activation) for c in made.draw(row)} for row in rows)
        assert first == second
    assert (parts["ste"].refit, parts["ste finish"].refit) == (False, True)


def test_both_curves_move_with_the_same_slopes() -> None:
    made = exact()
    pairs = zip(made.recipes("htaf"), made.recipes("ss"), strict=True)
    for htaf, ss in pairs:
        ways = [recipe.activation.sharpening() for recipe in (htaf, ss)]
        assert (ways[0] is None) == (ways[1] is None)
        if ways[0] is None or ways[1] is None:
            continue
        for share in (0.0, 0.2, 1.0):
            (alpha0, alpha1), (beta,) = ways[0].at(share), ways[1].at(share)
            assert alpha0 * alpha1 / 4 == pytest.approx(beta / 4)
