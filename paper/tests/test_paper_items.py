"""Items of the paper: a protocol that all keep, cells that are content, rounds of a search, verdicts by their rules."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest
from pydantic import TypeAdapter

from htaf._ground.console import running
from htaf.training.families import make_recipe
from htaf.training.recipe import Source
from htaf_paper import cells, command, engine, plans, verdicts
from htaf_paper.computing import Computing, StudyError, Task, attempt, cell_folder
from htaf_paper.computing import Place as CellPlace
from htaf_paper.engine import Records, run
from htaf_paper.items import ITEMS, items
from htaf_paper.outcomes import OUTCOMES
from htaf_paper.plans import Plan
from htaf_paper.protocol import (
    Drawing,
    Figure,
    Found,
    MissingError,
    Outcome,
    Panel,
    PaperError,
    Place,
    Scale,
    Series,
    Setting,
    Table,
)  # fmt: skip
from htaf_paper.records import read_lines, write_records

NOTHING = Found(lambda task: None)


def test_items_by_name() -> None:
    assert [study.id for study in items(("all",))] == list(ITEMS)
    assert [study.id for study in items(("bounds", "activation", "bounds"))] == ["activation", "bounds"]
    assert [study.id for study in items(("table 7",))] == [study.id for study in items(("Figure 8",))] == ["vanishing"]
    with pytest.raises(PaperError, match=r"got 'tabulr' \(did you mean 'tabular'\?\)"):
        items(("tabulr",))


def test_an_outcome_is_data() -> None:
    figure = Figure.of([1.0, None, 3.0], 2.5, digits=2, paper_error=0.5)
    assert (figure.mean, figure.error, figure.count) == (2.0, 1.0, 2)
    assert figure.text() == "2.00 (1.00) [2.50]"
    assert figure.difference() == "-0.50 (1.12)"
    assert Figure(note="not run: GPU", paper=3.0).text() == "not run: GPU [3.0]"
    drawing = Drawing("d", "t", "a", (Panel("p", "x", "y", (Series("s", (0.0, 1.0), (1.0, 2.0)),)),))
    claim = verdicts.true("c", "p", True, "e")
    table = Table("t", ("a", "b"), (("x", figure),))
    outcome = Outcome((table,), (drawing,), (claim,), ("e",), ("d",), (("r", "why", "how"),), ("n",))
    assert TypeAdapter(Outcome).validate_json(json.dumps(outcome.to_json())) == outcome
    with pytest.raises(ValueError, match="expected 2 cells in a row, got 1"):
        Table("t", ("a", "b"), (("x",),))


def test_verdicts() -> None:
    assert verdicts.better("c", "p", [1.0, 1.1, 0.9], "cpu").verdict == "holds"
    assert verdicts.better("c", "p", [-1.0, -1.1, -0.9], "cpu").verdict == "does not hold"
    assert verdicts.better("c", "p", [-1.0, 1.0, 0.1], "cpu").verdict == "not settled"
    small = verdicts.better("c", "p", [0.1, -0.1, 0.05], "cpu", paper=5.3)
    assert small.verdict == "does not hold"  # the interval's upper end is below half of the paper's difference
    assert "the paper has +5.30" in small.evidence
    assert verdicts.better("c", "p", [5.0], "cpu").verdict == "not settled"
    assert verdicts.better("c", "p", [], "cpu").verdict == "not run"
    assert verdicts.better("c", "p", [1.0, 1.1], "smoke").verdict == "not testable at this scale"
    for values, said in (([0.1, 0.0, -0.1], "holds"), ([-2.0, -2.1, -1.9], "does not hold"), ([-2, 2], "not settled")):
        assert verdicts.no_worse("c", "p", values, "full", margin=0.5).verdict == said
    level = verdicts.no_worse("c", "p", [0.1, 0.0, -0.1], "full", margin=0.5, unit=" points")
    assert level.rule.startswith("holds if the 95% interval of the difference lies above -0.5 points")
    assert level.evidence.startswith("+0.00 points [")  # of the differences, not of what is left of the margin
    mean, low, high = verdicts.interval([1.0, 2.0, 3.0])  # t of 2 degrees: 4.303
    assert (mean, low, high) == (2.0, pytest.approx(2 - 4.3027 / 3**0.5, rel=1e-4), pytest.approx(4.4841, rel=1e-4))


def test_cells_that_items_share_cost_once(capsys: pytest.CaptureFixture[str]) -> None:
    def cost(*names: str) -> float:
        with running("paper cost", keeps=True, json=True):
            command.cost(names, scale="reduced", speed=1.0, json=True)
        return json.loads(capsys.readouterr().out)["result"]["cpu_seconds"]

    first, second = cost("icbm-methods"), cost("binarisation")
    assert max(first, second) <= cost("icbm-methods", "binarisation") < 0.6 * (first + second)
    assert cost("icbm-methods", "pairs") == first + cost("pairs")


def test_a_search_is_two_rounds(tmp_path: Path) -> None:
    """Candidates first; then, of what is best on validation, the finals of every split."""
    rows = {"htaf": {"lr": (1e-3, 3e-3)}, "relu": {}}
    plan = Plan((Source("digits"),), rows, make_recipe(epochs=2, hidden=(8,)), candidates=2, splits=2)
    place, records = Place(tmp_path), dict[str, dict[str, Any]]()
    found = Found(lambda task: records.get(task.key))
    first = plans.trained([plan], found, place)
    assert len(first.wanted) == 3  # both candidates of HTAF; the one of ReLU, which also is its final of split 0
    assert not first.finals

    def made(task: Task, value: float) -> None:
        scores = {"validation": {"accuracy": value}, "test": {"accuracy": value - 0.1}}
        records[task.key] = {"headline": "accuracy", "metrics": {"exact": scores, "smooth": scores}}

    for task in first.wanted:
        recipe = task.payload["recipe"]
        made(task, 0.9 if (recipe["method"], recipe["lr"]) == ("htaf", 3e-3) else 0.5)
    second = plans.trained([plan], found, place)
    assert second.chosen["digits", "htaf"].optimization.lr == 3e-3
    assert [task.payload["seed"] for task in second.wanted] == [1, 1]  # split 0 was trained in the search
    for task in second.wanted:
        made(task, 0.8)
    last = plans.trained([plan], found, place)
    assert not last.wanted
    assert last.values("digits", "htaf") == [pytest.approx(0.8), pytest.approx(0.7)]
    assert last.differences("digits", "htaf", "relu", 100.0) == [pytest.approx(40.0), pytest.approx(0.0)]


def test_a_failed_candidate_is_left_out(tmp_path: Path) -> None:
    rows = {"htaf": {"lr": (1e-3, 3e-3)}}
    plan = Plan((Source("digits"),), rows, make_recipe(epochs=2, hidden=(8,)), candidates=2, splits=1)
    failed, records = dict[str, str](), dict[str, dict[str, Any]]()
    found = Found(lambda task: records.get(task.key), failed)
    one, other = plans.trained([plan], found, Place(tmp_path)).wanted
    failed[one.key] = "no"
    scores = {"validation": {"accuracy": 0.5}, "test": {"accuracy": 0.5}}
    records[other.key] = {"headline": "accuracy", "metrics": {"exact": scores, "smooth": scores}}
    made = plans.trained([plan], found, Place(tmp_path))
    assert made.chosen["digits", "htaf"].optimization.lr == other.payload["recipe"].get("lr", 3e-3)
    assert not made.wanted


def test_a_cell_is_a_function_and_its_settings(tmp_path: Path) -> None:
    with pytest.raises(PaperError, match=r"expected a function of htaf_paper .* got 'theorie' \(did you mean 'theory'"):
        cells.Made("theorie", {}, "t").task(None)
    settings = {"kind": "product", "alpha0": 2.0, "alpha1": 11.0}
    task = cells.Made("theory", settings, "t").task(None)
    record = task.compute(CellPlace(tmp_path))
    assert task.valid(record)
    assert record["cell"] == {"experiment": "theory", **settings, "fingerprint": None}


HERE = Computing(workers=0)


def outcome(out: Path, scale: str = "smoke") -> dict[str, Any]:
    """Of the made item, as a folder keeps it."""
    (found,) = [one for one in read_lines(out / OUTCOMES) if (one["id"], one["scale"]) == ("made", scale)]
    return found


class One:
    """An item of made cells: two rounds, as a search has."""

    id, title, paper = "made", "Made", "nowhere"
    settings: ClassVar = {"smoke": Setting("two rounds", 0.0), "full": Setting("on a GPU", 1.0, gpu=True)}

    def tasks(self, scale: Scale, found: Found, place: Place) -> Sequence[Task]:
        first = [self.task(10.0**k) for k in range(2)]
        return first if any(task not in found for task in first) else [*first, self.task(100.0)]

    def task(self, alpha1: float) -> Task:
        settings = {"kind": "product", "alpha0": 2.0, "alpha1": alpha1}
        return cells.Made("theory", settings, f"product {alpha1:g}").task(None)

    def read(self, scale: Scale, found: Found, place: Place) -> Outcome:
        return Outcome(notes=tuple(sorted(task.key for task in self.tasks(scale, found, place) if task in found)))


def test_an_item_is_computed_once(tmp_path: Path) -> None:
    study, out = One(), tmp_path / "out"
    (ran,) = run([study], "smoke", out, HERE)
    assert (ran.status, ran.cells) == ("finished", 3)
    stored = {file.parent.name: file for file in out.glob("cells/*/record.json")}
    assert len(stored) == 3
    assert len(read_lines(out / "cells.jsonl")) == 3
    assert outcome(out)["measured"][0]["cells"] == 3
    again = tmp_path / "again"  # the records of a finished study count, wherever they lie below a folder
    (ran,) = run([study], "smoke", again, records=[tmp_path])
    assert ran.cells == 3
    assert not (again / "cells").exists()
    (ran,) = run([study], "full", again)
    assert (ran.status, ran.message) == (
        "not run: GPU",
        "htaf paper run made --scale full --device cuda --out DIR: on a GPU",
    )
    assert outcome(again, "full")["status"] == "not run: GPU"
    next(iter(stored.values())).write_text("{")
    with pytest.raises(StudyError, match="damaged"):
        run([study], "smoke", out)


@pytest.mark.parametrize(("item", "said"), [("language", "htaf train llm --model"), ("ann-to-snn", "htaf train snn")])
def test_what_has_no_cells_names_commands_that_make_it(tmp_path: Path, item: str, said: str) -> None:
    """Also on a machine with a GPU."""
    (ran,) = run(items((item,)), "full", tmp_path, device="cuda")
    assert ran.status == "not run: GPU"
    assert ran.message.startswith(said)
    assert "--scale full" not in ran.message


def test_which_of_two_records_counts(tmp_path: Path) -> None:
    """That of a finished study, and of two the one whose path comes first: what is trained again changes no table."""
    task = One().task(10.0)
    for place in ("b", "a"):
        write_records(tmp_path / place / "cells.jsonl", [{**task.payload, "from": place}])
    attempt(task, CellPlace(cell_folder(tmp_path / "out", task.key)))
    for folders, counts in (([tmp_path / "b", tmp_path], "b"), ([tmp_path / "a", tmp_path], "a"), ([], None)):
        record = Records(tmp_path / "out", folders).read(task)
        assert record is not None
        assert record.get("from") == counts


def test_missing_data_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study = One()
    monkeypatch.setattr(study, "tasks", _no_data, raising=False)
    (ran,) = run([study], "smoke", tmp_path / "out")
    assert (ran.status, ran.message) == ("not run: data", "put it there")


def _no_data(*args: Any) -> None:
    raise MissingError("data", "put it there")


def test_outcomes_of_what_is_there(tmp_path: Path) -> None:
    """Nothing is computed; what is missing is named, and of too little nothing is shown."""
    study, out = One(), tmp_path / "out"
    (ran,) = run([study], "smoke", out, compute=False)
    assert (ran.status, ran.cells) == ("not run: time", 0)
    value = outcome(out)
    assert value["message"] == "htaf paper run made --scale smoke --out DIR: 2 cells are missing"
    assert value["outcome"] == json.loads(json.dumps(Outcome().to_json()))
    for task in study.tasks("smoke", NOTHING, Place(out)):
        attempt(task, CellPlace(cell_folder(out, task.key)))
    (ran,) = run([study], "smoke", out, compute=False)
    assert (ran.status, ran.cells) == ("finished", 2)
    value = outcome(out)
    command = "htaf paper run made --scale smoke --out DIR"
    assert value["outcome"]["missing"] == [["1 cell is missing: product 100", "not run: time", command]]


def test_an_item_that_cannot_be_read_stops_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither one that lacks what it reads, nor one of whose cells one failed; what was said earlier does not stay."""
    first, other = One(), One()
    other.id = "other"
    assert {ran.status for ran in run([first], "smoke", tmp_path / "out", HERE)} == {"finished"}

    def unread(*args: Any) -> None:
        raise MissingError("time", "the network is missing")

    monkeypatch.setattr(first, "read", unread, raising=False)
    one, two = run([first, other], "smoke", tmp_path / "out", compute=False)
    assert (one.status, one.message, two.status) == ("not run: time", "the network is missing", "finished")
    assert outcome(tmp_path / "out")["status"] == "not run: time"
    place = Place(tmp_path / "out")
    found = Found(Records(place.out).read, {"k": "killed"})
    monkeypatch.setattr(first, "read", lambda *args: {}["k"], raising=False)
    ran, kept = engine._finished(first, "smoke", found, place, None)
    assert (ran.status, kept["message"]) == ("failed", "killed")


# ---- plans ----

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
