"""Studies: chosen on validation, nothing computed twice, everything told after a stop."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.stats
import torch

from htaf._errors import HtafError
from htaf.data.reading import DataError
from htaf.runs import open_run, to_json, write_atomic
from htaf.training.cells import Computing, OtherSharesError, Place, StudyError, cell_folder, compute, engine_of
from htaf.training.families import make_recipe
from htaf.training.plan import Plan, Source, read_plan
from htaf.training.records import read_records
from htaf.training.report import SearchResult, markdown, summary_row
from htaf.training.study import Cell, run_path
from htaf.training.study import run_study as study_of
from quick import slow_but

STUDY = sys.modules["htaf.training.study"]
BASE = make_recipe(hidden=(4,), epochs=1, batch_size=64, patience=0)
LRS = (0.01, 0.02, 0.03, 0.04)
HERE = Computing(workers=0)


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    """Small trainings on many threads only wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Source:
    return Source(str(write_csv(tmp_path_factory.mktemp("data") / "made.csv")), target="y")


def write_csv(path: Path) -> Path:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"a": rng.normal(size=60), "b": rng.normal(size=60)})
    frame["y"] = 10 * (frame["a"] > 0) + frame["b"]
    frame["t"] = np.where(frame["y"] > 5, "high", "low")
    frame.to_csv(path, index=False)
    return path


def plan_of(source: Source, methods: Any = None, **options: Any) -> Plan:
    methods = {"relu": {"lr": LRS}} if methods is None else methods
    return Plan("s", (source,), methods, base=BASE, **{"candidates": 4, "splits": 2, **options})


def run_study(plan: Plan, out: Path, computing: Computing = HERE, **options: Any) -> dict[str, Any]:
    """In this process, with no time for starting others."""
    return study_of(plan, out, computing, **options)


def record_file(out: Path, cell: Cell) -> Path:
    return cell_folder(out, cell.key()) / "record.json"


def fabricated(validation: float, test: float, *, smooth: float = 0.0, headline: str = "rmse", seconds: float = 1.5):
    def parts(v: float, t: float) -> dict[str, Any]:
        return {"validation": {headline: v}, "test": {headline: t}}

    return {
        "headline": headline,
        "seconds": seconds,
        "commit": "abc",
        "versions": {"torch": "2"},
        "platform": "any",
        "threads": 1,
        "device": "cpu",
        "metrics": {"exact": parts(validation, test), "smooth": parts(smooth, smooth)},
    }


class Computed:
    """Stands for the training of a cell: a record from a function of the cell, and a list of what was computed."""

    def __init__(self, patch: pytest.MonkeyPatch, record: Callable[[Cell], Any]) -> None:
        self.record, self.cells = record, list[Cell]()
        patch.setattr(STUDY, "_trained", self)

    def __call__(self, cell: Cell, keep: bool, place: Place) -> Any:
        self.cells.append(cell)
        return self.record(cell)


def by_lr(cell: Cell) -> dict[str, Any]:
    return fabricated(1 + cell.recipe.optimization.lr, 5 - cell.recipe.optimization.lr + cell.seed)


# ---- one real study, in this process and by worker processes ----


@pytest.fixture(scope="module", params=slow_but(["here", "processes"], "here"))
def real(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, source: Source
) -> tuple[Path, Plan, dict[str, Any]]:
    methods = {
        "htaf": {"alpha0,alpha1": ((2.0, 11.0),)},
        "ste": {"slope": ("sigmoid", "tanh")},
        "ss": {"beta": (10.0,)},
        "relu": {"lr": (0.01,)},
    }
    out, plan = tmp_path_factory.mktemp("study"), plan_of(source, methods, candidates=2, splits=1)
    return out, plan, run_study(plan, out, HERE if request.param == "here" else Computing(2))


def test_every_method_runs(real: tuple[Path, Plan, dict[str, Any]]) -> None:
    out, _, report = real
    assert report["failures"] == []
    assert [row["method"] for row in report["rows"]] == ["htaf", "ste", "ss", "relu"]
    for row in report["rows"]:
        assert (row["data"], row["metric"], row["candidates"]) == ("made", "rmse", 1 + (row["method"] == "ste"))
        assert (row["exact"] is None) == (row["method"] == "relu")
        assert len(row["smooth"]["values"]) == 1
        assert row["recipe"]["method"] == row["method"]
    assert (out / "report.json").read_text() == to_json(report)
    assert (out / "report.md").read_text() == markdown(report)
    assert len(list((out / "cells").iterdir())) == 5  # the chosen one's split 0 is a cell of the search
    assert {file.name for file in out.glob("cells/*/*")} == {"record.json"}
    records = [json.loads(file.read_bytes()) for file in out.glob("cells/*/record.json")]
    assert sorted(map(to_json, read_records(out))) == sorted(2 * [*map(to_json, records)])


def test_a_real_study_again_computes_nothing(
    real: tuple[Path, Plan, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    out, plan, report = real
    times = {p: p.stat().st_mtime_ns for p in out.glob("cells/*/*")}
    monkeypatch.setattr(STUDY, "fit", lambda *args, **options: pytest.fail("a network was trained"))
    assert run_study(plan, out) == report
    assert {p: p.stat().st_mtime_ns for p in out.glob("cells/*/*")} == times


def computed(cells: list[Cell], study: Path, keep: bool = False) -> Any:
    with engine_of(HERE) as engine:
        return compute([cell.task(keep) for cell in cells], study, engine, HERE)


def test_a_kept_run_of_a_study_reads_its_rows_again(tmp_path: Path) -> None:
    rows = pd.read_csv(write_csv(tmp_path / "made.csv"))
    rows.assign(day=[f"2012-01-{1 + i % 30:02}" for i in range(60)], t=range(60)).to_csv(
        tmp_path / "made.csv", index=False
    )
    source = Source("made.csv", target="y", exclude=("b",), ids=("t",), shares=(0.5, 0.25, 0.25), time="day")
    cell = Cell(BASE, 0, source, data_dir=str(tmp_path))
    records, failures = computed([cell], tmp_path / "study", keep=True)
    assert not failures
    run = open_run(run_path(tmp_path / "study", cell.key()))
    assert [len(run.part(part)) for part in ("train", "validation", "test")] == [30, 14, 16]  # whole days
    assert {"b", "t"}.isdisjoint(run.data().features)
    assert run.evaluate("test")["smooth"] == pytest.approx(records[cell.key()]["metrics"]["smooth"]["test"])


# ---- choosing and reporting ----


def test_chosen_on_validation_of_the_exact_network(source: Source, tmp_path: Path) -> None:
    """Stored cells are read: validation, test and the smooth network each prefer another candidate."""
    plan = plan_of(source, {"htaf": {"lr": LRS[:3]}}, splits=3)
    figures = {LRS[0]: (1.0, 9.0, 7.0), LRS[1]: (2.0, 0.5, 6.0), LRS[2]: (3.0, 8.0, 0.1)}
    for candidate in plan.draw("htaf"):
        recipe = plan.recipe("htaf", candidate)
        validation, test, smooth = figures[recipe.optimization.lr]
        for seed, more in enumerate((0.0, 1.0, 5.0)):
            cell = Cell(recipe, seed, source)
            record = fabricated(validation, test + more, smooth=smooth)
            write_atomic(record_file(tmp_path, cell), to_json(record))
    plan = dataclasses.replace(plan, reference={("made", "htaf"): (2.106, 0.02)})
    report = run_study(plan, tmp_path)
    (row,) = report["rows"]
    assert row["recipe"]["lr"] == LRS[0]
    assert row["validation"] == 1.0
    assert row["exact"]["values"] == [9.0, 10.0, 14.0]
    assert row["exact"]["mean"] == pytest.approx(11.0)
    assert row["exact"]["error"] == pytest.approx((7 / 3) ** 0.5)  # variance (4 + 1 + 9) / 2, over 3 splits
    assert row["smooth"] == {"mean": 7.0, "error": 0.0, "values": [7.0, 7.0, 7.0]}
    assert row["reference"] == {"mean": 2.106, "error": 0.02}
    assert (row["candidates"], row["seconds"]) == (3, 4.5)
    line = next(line for line in (tmp_path / "report.md").read_text().splitlines() if "| htaf |" in line)
    assert line == "| made | rmse | htaf | 11.000 (1.528) | 7.000 (0.000) | 2.106 (0.020) | 3 | lr=0.01 |"


@pytest.mark.parametrize(("target", "headline", "best"), [("y", "rmse", 0.01), ("t", "auroc", 0.04)])
def test_direction(
    source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str, headline: str, best: float
) -> None:
    Computed(monkeypatch, lambda cell: fabricated(cell.recipe.optimization.lr, 0.0, headline=headline))
    report = run_study(plan_of(dataclasses.replace(source, target=target)), tmp_path)
    assert report["rows"][0]["recipe"]["lr"] == best


def test_a_real_valued_network_is_scored_as_it_is(
    source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def record(cell: Cell) -> dict[str, Any]:
        made = fabricated(0.0, 0.0, smooth=cell.recipe.optimization.lr)
        return made | {"metrics": made["metrics"] | {"exact": None}}

    Computed(monkeypatch, record)
    (row,) = run_study(plan_of(source, splits=1), tmp_path)["rows"]
    assert row["exact"] is None
    assert row["smooth"] == {"mean": 0.01, "error": None, "values": [0.01]}
    assert "| relu | - | 0.010 | - |" in (tmp_path / "report.md").read_text()


ROWS = {"htaf, fast": {"lr": LRS[:2]}, "relu": {"lr": LRS[2:]}, "ste": {"lr": LRS[2:]}}
# exact test values by row and seed; the smooth ones are below
EXACT = {"htaf, fast": (2.0, 2.5, 3.5, 3.0), "relu": (1.0, 1.5, 2.5, 2.0), "ste": (2.5, 2.0, 4.5, 4.0)}
SMOOTH = {"htaf, fast": (1.6, 2.5, 3.5, 2.4), "relu": EXACT["relu"], "ste": EXACT["ste"]}


def of_rows(cell: Cell, headline: str = "rmse") -> dict[str, Any]:
    method, lr = cell.recipe.activation.method, cell.recipe.optimization.lr
    row = {"htaf": "htaf, fast"}.get(method, method)
    made = fabricated(lr, EXACT[row][cell.seed], smooth=SMOOTH[row][cell.seed], headline=headline)
    made["cpu_seconds"] = 10.0 + cell.seed + (LRS.index(lr) % 2) * 100
    return made | ({"metrics": {**made["metrics"], "exact": None}} if row == "relu" else {})


def compared_plan(source: Source, **options: Any) -> Plan:
    return plan_of(source, ROWS, variants={"htaf, fast": "htaf"}, compare=("ste",), splits=4, **options)


@pytest.mark.parametrize("headline", ["rmse", "auroc"])
def test_paired_differences(source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, headline: str) -> None:
    Computed(monkeypatch, lambda cell: of_rows(cell, headline))
    (compared,) = run_study(compared_plan(source), tmp_path)["compared"]
    assert compared["reference"] == "ste"
    assert [(row["data"], row["method"]) for row in compared["rows"]] == [("made", "htaf, fast"), ("made", "relu")]
    better = -1 if headline == "rmse" else 1
    for row in compared["rows"]:
        own, other = np.array(EXACT[row["method"]]), np.array(EXACT["ste"])
        assert (row["metric"], row["seeds"]) == (headline, [0, 1, 2, 3])
        for found, values in (("difference", own - other), ("gain", better * 100 * (own / other - 1))):
            expected = scipy.stats.ttest_1samp(values, 0).confidence_interval(0.95)
            assert row[found]["mean"] == pytest.approx(values.mean())
            assert row[found]["interval"] == pytest.approx([expected.low, expected.high])
    smaller = {"better": 1, "worse": 0} if headline == "rmse" else {"better": 0, "worse": 1}
    sure = {f"surely_{name}": count for name, count in smaller.items()}
    fast, relu = compared["overall"]
    mean = compared["rows"][0]["gain"]["mean"]
    assert fast["gain"] == {"mean": mean, "interval": None, "values": [mean]}
    assert {name: fast[name] for name in (*smaller, *sure)} == smaller | dict.fromkeys(sure, 0)
    assert {name: relu[name] for name in (*smaller, *sure)} == smaller | sure
    text = (tmp_path / "report.md").read_text()
    assert "## Compared with ste" in text
    cells = [f"{g['mean']:+.2f} [{g['interval'][0]:+.2f}, {g['interval'][1]:+.2f}]" for g in gains_of(compared)]
    assert f"| made | {headline} | {cells[0]} | {cells[1]} |" in text
    assert (
        "| htaf, fast | " + (f"{mean:+.2f} | 1 : 0 | 0 : 0 |" if headline == "rmse" else f"{mean:+.2f} | 0 : 1 |")
        in text
    )


def gains_of(compared: dict[str, Any]) -> list[dict[str, Any]]:
    return [row["gain"] for row in compared["rows"]]


def test_only_splits_that_both_have_are_paired(source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(cell: Cell) -> dict[str, Any]:
        if (cell.recipe.activation.method, cell.seed) in (("htaf", 1), ("ste", 3)):
            raise OSError("full")
        return of_rows(cell)

    Computed(monkeypatch, failing)
    (compared,) = run_study(compared_plan(source), tmp_path)["compared"]
    fast, relu = compared["rows"]
    assert (fast["seeds"], fast["difference"]["values"]) == ([0, 2], [-0.5, -1.0])
    assert relu["seeds"] == [0, 1, 2]


def test_gap_and_cost(source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Candidates count too, and each training once; a second call, which trains nothing, says the same."""
    Computed(monkeypatch, of_rows)
    report = run_study(compared_plan(source), tmp_path)
    for row in report["rows"]:
        # the chosen lr: the first one; split 0 of it is a candidate
        assert row["spent"] == {"cells": 5, "cpu_seconds": 10 + 110 + 11 + 12 + 13}
    fast, relu, ste = (row["gap"] for row in report["rows"])
    assert fast["values"] == pytest.approx([25, 0, 0, 25])  # (2 - 1.6) / 1.6 and (3 - 2.4) / 2.4
    assert relu is None
    assert ste["mean"] == 0
    fast, relu, ste = report["overall"]
    assert fast == {
        "method": "htaf, fast",
        "gap": {"mean": pytest.approx(12.5), "interval": None, "values": [pytest.approx(12.5)]},
        "largest_gap": pytest.approx(12.5),
        "cells": 5,
        "cpu_seconds": 156.0,
    }
    assert (relu["gap"], relu["largest_gap"], ste["gap"]["mean"]) == (None, None, 0)
    text = (tmp_path / "report.md").read_text()
    assert "| htaf, fast | +12.50 | 12.50 | 5 | 156 |" in text
    assert "| relu | - | - | 5 | 156 |" in text
    assert run_study(compared_plan(source), tmp_path) == report


@pytest.mark.parametrize("first", [2, 4])
def test_no_gap_of_a_network_that_was_trained_exact(source: Source, first: int) -> None:
    plan = Plan("study", (source,), {"htaf": {}})
    metrics = {"exact": {"test": {"rmse": 1.5}}, "smooth": {"test": {"rmse": 1.0}}}
    record = {"metrics": metrics, "headline": "rmse", "seconds": 1.0, "best_epoch": 3}
    record["hardening"] = {"exact_from": first, "finish": []}
    row = summary_row(plan, source, "htaf", SearchResult(plan.base, None, ()), [record])
    assert row["exact"]
    assert bool(row["smooth"]) == bool(row["gap"]) == (first > 3)


def test_a_gap_of_a_metric_that_should_be_high(source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Computed(monkeypatch, lambda cell: of_rows(cell, "auroc"))
    report = run_study(compared_plan(source), tmp_path)
    assert report["rows"][0]["gap"]["values"] == pytest.approx([-25, 0, 0, -25])


def test_over_two_data_sets(source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = Source(str(write_csv(tmp_path / "other.csv")), target="y", split="grouped")

    def record(cell: Cell) -> dict[str, Any]:
        made = of_rows(cell)
        if cell.source == other and cell.recipe.activation.method == "htaf":
            made["metrics"]["exact"]["test"]["rmse"] = EXACT["ste"][cell.seed]  # level
        return made

    Computed(monkeypatch, record)
    plan = dataclasses.replace(compared_plan(source), sources=(source, other))
    report = run_study(plan, tmp_path / "study")
    (compared,) = report["compared"]
    assert [row["data"] for row in compared["rows"]] == ["made", "made", "other (grouped)", "other (grouped)"]
    first = compared["rows"][0]["gain"]["mean"]
    gain = compared["overall"][0]["gain"]
    assert gain["values"] == [first, 0.0]
    expected = scipy.stats.ttest_1samp([first, 0.0], 0).confidence_interval(0.95)
    assert gain["interval"] == pytest.approx([expected.low, expected.high])
    assert (compared["overall"][0]["better"], compared["overall"][0]["worse"]) == (1, 0)
    assert report["overall"][0]["cells"] == 10
    assert report["overall"][0]["largest_gap"] == max(report["overall"][0]["gap"]["values"])


def test_cells_with_one_recipe_are_computed_once(
    source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    computed = Computed(monkeypatch, by_lr)
    grids = {"htaf": {"lr": LRS[:2]}, "again": {"lr": (*reversed(LRS[:2]), LRS[2])}}
    report = run_study(plan_of(source, grids, variants={"again": "htaf"}, splits=1), tmp_path)
    assert sorted(cell.recipe.optimization.lr for cell in computed.cells) == [*LRS[:3]]
    assert [row["candidates"] for row in report["rows"]] == [2, 3]


def test_keys(source: Source, tmp_path: Path) -> None:
    key = Cell(BASE, 0, source).key()
    moved = dataclasses.replace(source, name=str(write_csv(tmp_path / "made.csv")))
    assert Cell(BASE, 0, moved).key() == key  # where the data lie does not matter
    others = [
        Cell(BASE, 1, source),
        Cell(BASE.replace(lr=0.5), 0, source),
        Cell(BASE, 0, dataclasses.replace(source, split="grouped")),
        Cell(BASE, 0, source, test=False),
    ]
    assert len({key, *(cell.key() for cell in others)}) == 5
    target = dataclasses.replace(source, target="t")
    assert Cell(BASE, 0, target).key() != key


# ---- stopped, failed, damaged ----


def test_finished_cells_are_shared_by_plans(source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    computed = Computed(monkeypatch, by_lr)
    run_study(plan_of(source), tmp_path)
    assert len(computed.cells) == 5
    computed.cells.clear()
    run_study(plan_of(source, splits=3), tmp_path)
    assert [cell.seed for cell in computed.cells] == [2]


def test_a_folder_is_of_one_study(source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan of another name must not replace the report, also before there is one or when plan.json is damaged."""
    computed = Computed(monkeypatch, by_lr)
    run_study(plan_of(source), tmp_path)
    before = {file.name: file.read_bytes() for file in tmp_path.glob("*.*")}
    other = dataclasses.replace(plan_of(source), name="other")
    computed.cells.clear()
    for gone in ((), ("report.json",), ("plan.json",)):
        for name, data in before.items():
            (tmp_path / name).write_bytes(data)
        for name in gone:
            (tmp_path / name).write_text("{")
        with pytest.raises(StudyError, match=r"is the folder of the study 's', got the plan 'other'.*--out"):
            run_study(other, tmp_path)
        assert (tmp_path / "report.md").read_bytes() == before["report.md"]
    assert computed.cells == []


class Stopping:
    """A record of every cell until `left` is used up, then Ctrl-C."""

    def __init__(self, left: int) -> None:
        self.left = left

    def __call__(self, cell: Cell) -> dict[str, Any]:
        if self.left == 0:
            raise KeyboardInterrupt
        self.left -= 1
        return by_lr(cell)


@pytest.mark.parametrize("stop", [0, 2, 4])
def test_a_stopped_study_goes_on(source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stop: int) -> None:
    computed = Computed(monkeypatch, Stopping(stop))
    with pytest.raises(KeyboardInterrupt):
        run_study(plan_of(source), tmp_path / "run")
    assert len(list((tmp_path / "run").glob("cells/*/record.json"))) == stop
    computed.record = by_lr
    computed.cells.clear()
    report = run_study(plan_of(source), tmp_path / "run")
    assert len(computed.cells) == 5 - stop
    assert report == run_study(plan_of(source), tmp_path / "whole")


def test_one_candidate_needs_no_search(source: Source, tmp_path: Path) -> None:
    """Only the cells of final trainings are stored, and nothing else is asked for."""
    plan = plan_of(source, {"relu": {"lr": (0.01,)}}, splits=2, search_epochs=1)
    for seed in range(2):
        cell = Cell(plan.recipes("relu")[0], seed, source)
        write_atomic(record_file(tmp_path, cell), to_json(fabricated(1.0, 2.0)))
    (row,) = run_study(plan, tmp_path)["rows"]
    assert (row["candidates"], row["trials"], row["validation"]) == (1, [], None)
    assert row["spent"]["cells"] == 2


def test_failures_are_reported_and_tried_again(source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(cell: Cell) -> dict[str, Any]:
        if cell.recipe.optimization.lr in LRS[:2]:
            raise OSError("No space left on device")
        return by_lr(cell)

    computed = Computed(monkeypatch, failing)
    for _ in range(2):  # the second time it fails once more
        report = run_study(plan_of(source), tmp_path)
        assert report["failures"] == ["made, relu, seed 0: OSError: No space left on device"]
        assert "Failed: made, relu, seed 0: OSError: No space left on device" in (tmp_path / "report.md").read_text()
        assert (report["rows"][0]["recipe"]["lr"], report["rows"][0]["candidates"]) == (LRS[2], 2)
    computed.record = by_lr
    computed.cells.clear()
    report = run_study(plan_of(source), tmp_path)
    assert [
        cell.recipe.optimization.lr
        for cell in computed.cells
        if cell.seed == 0 and cell.recipe.optimization.lr in LRS[2:]
    ] == []
    assert (report["rows"][0]["recipe"]["lr"], report["rows"][0]["candidates"]) == (LRS[0], 4)
    assert report["failures"] == []
    assert report["rows"] == run_study(plan_of(source), tmp_path / "whole")["rows"]
    computed.cells.clear()
    assert run_study(plan_of(source), tmp_path) == report
    assert computed.cells == []


def test_a_failing_split_is_reported_and_tried_again(
    source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(cell: Cell) -> dict[str, Any]:
        if cell.seed == 1:
            raise ValueError("too few rows")
        return by_lr(cell)

    computed = Computed(monkeypatch, failing)
    report = run_study(plan_of(source, splits=3), tmp_path)
    assert report["failures"] == ["made, relu, seed 1: ValueError: too few rows"]
    assert len(report["rows"][0]["exact"]["values"]) == 2
    computed.record = by_lr
    report = run_study(plan_of(source, splits=3), tmp_path)
    assert report["failures"] == []
    assert len(report["rows"][0]["exact"]["values"]) == 3


def test_no_candidate_succeeds(source: Source, tmp_path: Path) -> None:
    """Real trainings, with a learning rate at which every loss overflows."""
    plan = plan_of(source, {"relu": {"lr": (1e30,), "batch_norm": (False,)}})
    plan = dataclasses.replace(plan, base=BASE.replace(epochs=3, batch_size=8))
    for _ in range(2):
        with pytest.raises(
            StudyError, match=r"no candidate of relu on made succeeded: made, relu, seed 0: TrainingError: .*Lower lr"
        ):
            run_study(plan, tmp_path)


def test_a_damaged_cell_is_named_and_kept(source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Computed(monkeypatch, by_lr)
    run_study(plan_of(source), tmp_path)
    path = sorted(tmp_path.glob("cells/*/record.json"))[0]
    path.write_bytes(path.read_bytes()[:-9])
    damaged = path.read_bytes()
    plan = plan_of(source, splits=2, seed=1)  # another search, which reads the same cells
    with pytest.raises(
        StudyError, match=f"{path.parent.name}/record.json is damaged: delete it to compute the cell again"
    ):
        run_study(plan, tmp_path)
    assert path.read_bytes() == damaged
    path.unlink()
    assert run_study(plan, tmp_path)["failures"] == []


def test_data_that_cannot_be_loaded(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such file"):
        run_study(plan_of(Source(str(tmp_path / "none.csv"), target="y")), tmp_path)


def test_a_cell_goes_on_from_its_checkpoint(source: Source, tmp_path: Path) -> None:
    """The folder of a stopped cell has a run folder, which is resumed."""
    cell = Cell(BASE.replace(epochs=2), 0, source)
    fit_module = sys.modules["htaf.training.fit"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fit_module, "finish_run", lambda *args, **named: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            computed([cell], tmp_path)
    assert (run_path(tmp_path, cell.key()) / "metrics.csv").exists()
    records, _ = computed([cell], tmp_path)
    assert json.loads(record_file(tmp_path, cell).read_text()) == records[cell.key()]
    assert not run_path(tmp_path, cell.key()).exists()


def test_a_run_that_ended_before_its_record_was_written(source: Source, tmp_path: Path) -> None:
    cell = Cell(BASE, 0, source)
    computed([cell], tmp_path, keep=True)
    before = record_file(tmp_path, cell).read_bytes()
    record_file(tmp_path, cell).unlink()
    computed([cell], tmp_path)
    assert record_file(tmp_path, cell).read_bytes() == before


def test_a_study_in_shares(source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shares of the search, then of the splits; the report is that of the whole."""
    calls = Computed(monkeypatch, by_lr)
    plan = plan_of(source)
    for _ in range(3):
        calls.cells.clear()
        for i in (1, 2):
            try:
                report = run_study(plan, tmp_path / "s", Computing(0, share=(i, 2)))
            except OtherSharesError as error:
                assert "cells of other shares are not finished" in str(error)  # noqa: PT017
    assert report == run_study(plan, tmp_path / "whole")


def test_a_folder_of_a_run(source: Source, tmp_path: Path) -> None:
    (tmp_path / "record.json").write_text("{}")
    with pytest.raises(HtafError, match="holds a run"):
        run_study(plan_of(source), tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["record.json"]


def timeless(report: Any) -> Any:
    """A report without what differs from one run to the next."""
    if isinstance(report, dict):
        return {k: timeless(v) for k, v in report.items() if k not in ("seconds", "cpu_seconds", "commit")}
    return [timeless(one) for one in report] if isinstance(report, list) else report


@pytest.mark.slow
def test_the_command_twice_and_one_is_killed(tmp_path: Path) -> None:
    """As on two machines: each ends with the report of an undisturbed study."""
    write_csv(tmp_path / "made.csv")
    (tmp_path / "s.toml").write_text(
        'candidates = 6\nsplits = 3\ndata = [{name = "made.csv", target = "y"}]\n[recipe]\nhidden = [4]\nepochs = 3\n'
        "[methods.relu]\nlr = [0.01, 0.02, 0.03, 0.04, 0.05, 0.06]\n[methods.ste]\nlr = [0.01]\n"
    )
    words = [sys.executable, "-m", "htaf", "study", "s.toml", "--out", "out", "--workers", "1", "--json"]

    def started() -> subprocess.Popen[bytes]:
        return subprocess.Popen(words, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    commands = [started(), started()]
    while len(list((tmp_path / "out").glob("cells/*/record.json"))) < 2:
        assert all(one.poll() is None for one in commands)
        time.sleep(0.05)
    commands[0].kill()
    commands[0].communicate()
    commands[0] = started()
    answers = [one.communicate(timeout=600) for one in commands]
    assert [one.returncode for one in commands] == [0, 0], answers
    quiet = run_study(read_plan(tmp_path / "s.toml"), tmp_path / "quiet", data_dir=str(tmp_path))
    for answer, _ in answers:
        assert timeless(json.loads(answer)["result"]) == timeless(json.loads(to_json(quiet)))
    assert timeless(json.loads((tmp_path / "out" / "report.json").read_bytes())) == timeless(quiet)
    assert len(read_records(tmp_path / "out")) == 2 * (6 + 2 + 3)
