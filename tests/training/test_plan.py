"""Plans: candidates drawn once and without repetition, and errors before hours of work."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

import pytest

from htaf.training.families import make_recipe
from htaf.training.plan import Plan, PlanError, Source, _source, read_plan

GRID: dict[str, tuple[Any, ...]] = {
    "alpha0,alpha1": ((2.0, 11.0), (1.0, 22.0), (0.5, 44.0)),
    "lr": (1e-3, 3e-3),
    "batch_norm": (False, True),
}


def plan(methods: Any = None, **options: Any) -> Plan:
    return Plan("p", (Source("wine"),), {"htaf": GRID} if methods is None else methods, **options)


@pytest.mark.parametrize("candidates", [1, 5, 12, 50])
def test_draw(candidates: int) -> None:
    drawn = plan(candidates=candidates).draw("htaf")
    assert len(drawn) == min(candidates, 12) == plan(candidates=candidates).number("htaf")
    texts = [json.dumps(c, sort_keys=True) for c in drawn]
    assert len(set(texts)) == len(texts)
    for candidate in drawn:
        for names, value in candidate.items():
            assert json.loads(value) in [list(v) if isinstance(v, tuple) else v for v in GRID[names]]


def test_draw_depends_on_the_seed_alone() -> None:
    assert plan(candidates=5).draw("htaf") == plan(candidates=5, splits=2).draw("htaf")
    assert any(plan(candidates=5).draw("htaf") != plan(candidates=5, seed=seed).draw("htaf") for seed in (1, 2, 3))
    assert plan(candidates=5).draw("htaf") == plan(candidates=9).draw("htaf")[:5]  # more candidates keep the first


def test_candidates_are_recipes_with_joint_fields() -> None:
    base = make_recipe(epochs=7, hidden=(8,))
    made = plan(base=base)
    recipes = [made.recipe("htaf", candidate) for candidate in made.draw("htaf")]
    pairs = {(recipe.activation.alpha0, recipe.activation.alpha1) for recipe in recipes}
    assert pairs == {(2.0, 11.0), (1.0, 22.0), (0.5, 44.0)}  # never crossed
    assert {(recipe.optimization.epochs, recipe.network.hidden, recipe.activation.method) for recipe in recipes} == {
        (7, (8,), "htaf")
    }
    assert {(recipe.optimization.lr, recipe.network.batch_norm) for recipe in recipes} == {
        (1e-3, False),
        (1e-3, True),
        (3e-3, False),
        (3e-3, True),
    }


def test_lists_become_tuples() -> None:
    made = plan({"ste": {"hidden": ((8,), (8, 4))}})
    assert {made.recipe("ste", c).network.hidden for c in made.draw("ste")} == {(8,), (8, 4)}


def test_an_empty_grid_is_one_candidate() -> None:
    assert plan({"relu": {}}).draw("relu") == [{}]


@pytest.mark.parametrize(
    ("methods", "options", "words"),
    [
        ({}, {}, "at least one data set and one method"),
        ({"tanh": {}}, {}, "expected the methods .*, got 'tanh'"),
        ({"htaf": {"alpha": (1.0,)}}, {}, r"expected fields of a recipe .*got 'alpha' \(did you mean 'alpha[01]'"),
        ({"htaf": {"alpha0,alpha2": ((1.0, 2.0),)}}, {}, "got 'alpha2'"),
        ({"htaf": {"method": ("ste",)}}, {}, "got 'method'"),
        ({"htaf": {"lr": ()}}, {}, r"expected a list of values for 'lr', got \(\)"),
        ({"htaf": {"alpha0": (-1.0,)}}, {}, "htaf: alpha0 must be > 0 and finite, got -1.0"),
        ({"htaf": {"alpha0,alpha1": ((1.0,),)}}, {}, r"expected 2 values for 'alpha0,alpha1', got \[1.0\]"),
        ({"htaf": {"alpha0,alpha1": (1.0,)}}, {}, "expected 2 values for 'alpha0,alpha1', got 1.0"),
        ({"ste": {"slope": ("steep",)}}, {}, "ste: "),
        ({"ste": {"lr": (1e-3, "fast")}}, {}, "ste: "),
        ({"relu": {}}, {"candidates": 0}, "candidates must be a whole number >= 1, got 0"),
        ({"relu": {}}, {"seed": -1}, "seed must be a whole number >= 0, got -1"),
        ({"relu": {"lr": (0.1, 0.1)}}, {}, "different values"),
        ({"relu": {}}, {"splits": 0}, "splits must be a whole number >= 1, got 0"),
    ],
)
def test_plans_that_make_no_sense(methods: Any, options: dict[str, Any], words: str) -> None:
    with pytest.raises(PlanError, match=words):
        plan(methods, **options)


def test_labels() -> None:
    assert Source("/data/churn.csv").label == "churn"
    assert Source("wine", split="grouped").label == "wine (grouped)"


def test_a_source_with_the_flags_of_the_command() -> None:
    made = _source({"name": "a.csv", "exclude": ["b"], "shares": [0.5, 0.25, 0.25], "group": "g"})
    assert (made.mode, made.label, hash(made)) == ("grouped", "a (grouped)", hash(made))
    assert made.arguments() == {"exclude": ("b",), "shares": (0.5, 0.25, 0.25), "group": "g"}
    assert Source("a.csv", time="t", ids=("i",), test="b.csv").describe() == {
        "name": "a.csv", "target": None, "task": None, "drop_empty": False, "text_as_missing": False,
        "split": "random", "size": None,
        "exclude": [], "ids": ["i"], "test": "b.csv", "shares": [], "group": None, "time": "t", "weight": None,
    }  # fmt: skip
    for options, words in (
        ({"split": "stratified", "group": "g"}, "does not go with split stratified"),
        ({"split": "grouped", "time": "t"}, "goes with no other split"),
    ):
        with pytest.raises(PlanError, match=words):
            Source("a.csv", **options)  # pyright: ignore[reportArgumentType]
    with pytest.raises(PlanError, match="have no exclude"):
        Plan("x", (Source("photos", exclude=("y",)),), {"ste": {}}, make_recipe(family="dhn", depth=10))


def test_the_example_of_the_docstring(tmp_path: Path) -> None:
    lines = inspect.cleandoc(read_plan.__doc__ or "").splitlines()
    example = "\n".join(line.strip() for line in lines if line.startswith("    ") and "PlanError" not in line)
    (tmp_path / "mine.toml").write_text(example)
    made = read_plan(tmp_path / "mine.toml")
    assert (made.name, made.candidates, made.splits) == ("mine", 6, 3)
    assert made.sources == (Source("churn.csv", target="Churn"), Source("wine"))
    assert made.base == make_recipe(epochs=50)
    assert {k: tuple(v) for k, v in made.methods["htaf"].items()} == {
        "alpha0,alpha1": ([2, 11], [1, 22]),
        "lr": (1e-3, 3e-3),
    }
    assert made.methods["ste"] == {"slope": ("sigmoid", "tanh")}
    assert (made.variants, made.compare) == ({"htaf, short": "htaf"}, ("ste",))
    assert [recipe.activation.sharpen_fraction for recipe in made.recipes("htaf, short")] == [0.3]
    recipes = [made.recipe("htaf", c) for c in made.draw("htaf")]
    assert {(r.activation.alpha0, r.activation.alpha1, r.optimization.lr) for r in recipes} == {
        (a, b, lr) for a, b in ((2.0, 11.0), (1.0, 22.0)) for lr in (1e-3, 3e-3)
    }
    json.dumps(made.describe(), allow_nan=False)


GOOD = 'data = [{name = "wine"}]\n[methods.relu]\n'


def test_rows_of_one_method_with_other_recipes() -> None:
    rows = {"htaf": GRID, "htaf, fixed": {"sharpen": (False,), **GRID}, "ste": {}}
    made = plan(rows, variants={"htaf, fixed": "htaf"}, compare=("ste",))
    assert {made.method_of(row) for row in rows} == {"htaf", "ste"}
    for row, sharpen in (("htaf", True), ("htaf, fixed", False)):
        recipes = [made.recipe(row, candidate) for candidate in made.draw(row)]
        assert {(r.activation.method, r.activation.sharpen) for r in recipes} == {("htaf", sharpen)}
    same = [made.recipe("htaf, fixed", c).replace(sharpen=True) for c in made.draw("htaf, fixed")]
    assert {str(r.identity()) for r in same} == {str(made.recipe("htaf", c).identity()) for c in made.draw("htaf")}


def test_what_is_compared_is_no_part_of_the_search() -> None:
    two = {"ste": {}, "relu": {}}
    assert plan(two).describe() == plan(two, compare=("ste",), variants={}).describe()
    rows = {"a": {}, "relu": {}}
    kinds = [plan(rows, variants={"a": method}).describe() for method in ("htaf", "ste")]
    assert kinds[0] != kinds[1]


def test_name_of_the_file_is_the_default(tmp_path: Path) -> None:
    (tmp_path / "small.toml").write_text("seed = 4\n" + GOOD)
    made = read_plan(tmp_path / "small.toml")
    assert (made.name, made.seed, made.candidates) == ("small", 4, 12)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("name = ", "is not TOML"),
        (b"\xff\xfe", "is not TOML"),
        ("colour = 1\n" + GOOD, "expected the keys .*, got 'colour'"),
        ('data = [{name = "wine", kind = "red"}]\n[methods.relu]\n', "kind"),
        ('data = [{target = "x"}]\n[methods.relu]\n', "name"),
        ('data = "wine"\n[methods.relu]\n', "bad.toml: "),
        ('data = [{name = "wine"}]\n', "at least one data set and one method"),
        ('data = [{name = "wine"}]\n[methods.htaf]\nalpha0 = [-1.0]\n', "alpha0 must be > 0 and finite, got -1.0"),
        ('data = [{name = "wine"}]\n[methods.htaf]\nlr = 0.1\n', "bad.toml: "),
        (GOOD + "[recipe]\nepochz = 3\n", "epochz"),
        (GOOD + "[recipe]\nlr = -1.0\n", "lr must be > 0"),
        (GOOD + "[recipe]\nepochs = 2.5\n", "epochs"),
        ('data = ["wine"]\n[methods.relu]\nalpha0 = [2.0]\n', r"methods.relu: method relu does not read alpha0"),
        ('data = ["wine"]\n[methods.ste]\n[recipe]\nalpha0 = 2.0\n', "method ste does not read alpha0"),
        ('data = ["wine"]\n[methods.htaf]\n[recipe]\ndepth = 10\n', "family mlp does not read depth"),
        ('data = ["wine"]\n[methods.htaf]\nsharpen = [false]\nstart = [[1, 2]]\n', "sharpen false does not read start"),
        ('data = ["wine"]\n[methods.htaf]\n[recipe]\nmethod = "ste"\n', "recipe: expected no method"),
        ('data = ["wine"]\n[methods.htaf]\n[recipe]\nlr = true\n', "lr must be a number, got True"),
        ('data = [{name = "wine", size = 32}]\n[methods.htaf]\n', "the data of family mlp have no size"),
        ('data = [{name = "wine", drop_empty = 1}]\n[methods.htaf]\n', "drop_empty"),
        ("adaptive = true\n" + GOOD, "expected the keys .*, got 'adaptive'"),
        ("splits = true\n" + GOOD, "splits must be a whole number >= 1, got True"),
        ("search_epochs = 1.5\n" + GOOD, "search_epochs"),
        ("candidates = 0\n" + GOOD, "candidates must be a whole number >= 1"),
        ('candidates = "many"\n' + GOOD, "bad.toml: "),
        ('data = ["wine"]\n[methods.fast]\n', "got 'fast'; a row with another name needs a method"),
        ('data = ["wine"]\n[methods.fast]\nmethod = "hta"\n', r"got 'hta' \(did you mean 'htaf'\?\)$"),
        ('data = ["wine"]\n[methods.fast]\nmethod = ["htaf"]\n', r"methods.fast: expected a text for method, got \["),
        ('data = ["wine"]\n[methods.ste]\nmethod = "htaf"\n', "ste: expected a row of method htaf to have a name"),
        ('data = ["wine"]\n[methods.fast]\nmethod = "ste"\nbeta = [1.0]\n', "method ste does not read beta"),
        ('compare = ["ste"]\n' + GOOD, "compare: expected rows of methods, got 'ste'"),
        ('compare = "relu"\n' + GOOD, "expected a list for compare, got 'relu'"),
        ('data = ["wine"]\nrecipe = 5\n', "expected a table .*got 5"),
        ('data = ["wine"]\nmethods = 5\n', "expected a table .*got 5"),
        ('data = ["wine"]\nmethods = {htaf = 5}\n', "expected a table .*got 5"),
        ('data = ["wine"]\nname = 5\n[methods.relu]\n', "expected a text for name, got 5"),
        ('data = [{name = "wine", task = "both"}]\n[methods.relu]\n', "wine: task must be one of .*, got 'both'"),
        (
            'data = [{name = "wine", exclude = [1]}]\n[methods.relu]\n',
            r"wine: exclude must be several texts, got \[1\]",
        ),
        ('data = [{name = "wine", size = 0}]\n[methods.relu]\n', "wine: size must be >= 1, got 0"),
        (None, "No such file"),
    ],
)
def test_bad_files(tmp_path: Path, text: str | bytes | None, words: str) -> None:
    path = tmp_path / "bad.toml"
    if text is not None:
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(PlanError, match=words) as caught:
        read_plan(path)
    assert "bad.toml" in str(caught.value)


def test_a_field_that_one_method_reads_may_stand_for_all(tmp_path: Path) -> None:
    text = 'data = ["wine"]\n[methods.htaf]\nsharpen = [true, false]\nstart = [[1, 2]]\n[methods.relu]\n'
    (tmp_path / "plan.toml").write_text(text + "[recipe]\nalpha0 = 1.5\n")
    assert read_plan(tmp_path / "plan.toml").base.activation.alpha0 == 1.5
    with pytest.raises(PlanError, match="the data of family dhn have no target and no split"):
        Plan("x", (Source("photos", target="y", split="grouped"),), {"ste": {}}, make_recipe(family="dhn", depth=10))
