"""The benchmark of fifteen models of one's own: its tasks need no htaf and take its steps; its table counts rightly."""

from __future__ import annotations

import importlib
import math
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import htaf

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))
from benchmarks.own_models import grid  # noqa: E402
from benchmarks.own_models.methods import StraightThrough  # noqa: E402
from benchmarks.own_models.problem import MissingDataError, optimizers  # noqa: E402
from benchmarks.own_models.tasks import NAMES  # noqa: E402


def posed(task: str, seed: int = 0) -> Any:
    return importlib.import_module(f"benchmarks.own_models.tasks.{task}").make(seed)


@pytest.mark.parametrize("task", [name for name in NAMES if name not in ("mixer", "resnet")])
def test_a_task_gives_the_same_network_for_every_activation_and_takes_steps(task: str) -> None:
    assert "htaf" not in (ROOT / "benchmarks" / "own_models" / "tasks" / f"{task}.py").read_text().replace(
        "HTAF_DATA", ""
    )
    problem = posed(task)
    net = problem.net(nn.ReLU)
    other = problem.net(lambda: StraightThrough("tanh"))
    assert all(torch.equal(a, b) for a, b in zip(net.state_dict().values(), other.state_dict().values(), strict=True))
    steps = htaf.replace(net, where=problem.where, example=problem.example)
    count = sum(isinstance(m, StraightThrough) for m in other.modules())
    assert sum(isinstance(m, htaf.StraightThrough) for m in steps.modules()) == count >= 1
    assert math.isfinite(problem.measure(steps.eval()))
    assert posed(task).measure(steps) == problem.measure(steps)


def test_missing_data_say_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HTAF_DATA", str(tmp_path))
    with pytest.raises(MissingDataError, match="data_batch_1 is missing: set HTAF_DATA"):
        posed("mixer")


def test_every_optimizer_takes_every_parameter_once() -> None:
    net = nn.Sequential(nn.Conv1d(2, 4, 3), nn.BatchNorm1d(4), nn.Flatten(), nn.Linear(8, 2))
    for name in ("adamw", "sgd", "muon"):
        held = [p for one in optimizers(net, name, 1e-3) for group in one.param_groups for p in group["params"]]
        assert sorted(map(id, held)) == sorted(map(id, net.parameters()))


def test_the_table_compares_with_the_slope_that_validation_chose() -> None:
    def row(method: str, seed: int, measure: float, score: float) -> dict[str, Any]:
        of = {"task": "waves", "method": method, "optimizer": "adamw", "seed": seed, "metric": "accuracy"}
        return of | {"better": "higher", "measure": measure, "score": score}

    rows = [row("ste-tanh", s, 1.0, 90.0 + s) for s in range(3)] + [row("ste-sigmoid", s, 2.0, 99.0) for s in range(3)]
    rows += [row("default", s, 0.5, 92.0 + s) for s in range(3)] + [row("htaf-2-11", s, 3.0, 80.0) for s in range(3)]
    said = grid.table(rows).splitlines()
    (found,) = (line for line in said if line.startswith("adamw default"))
    assert "+2.20% over ste, ahead in 1, behind by more than its standard error in 0 of 1" in found
    (found,) = (line for line in said if line.startswith("adamw htaf-2-11"))
    assert "ahead in 0, behind by more than its standard error in 1 of 1" in found


def test_what_is_done_is_not_done_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    out = tmp_path / "rows.jsonl"
    out.write_text('{"task": "graph", "method": "relu", "optimizer": "adamw", "seed": 0}\n')
    words = ["own_models", "--out", str(out), "--tasks", "graph", "--methods", "relu", "--seeds", "0"]
    monkeypatch.setattr(sys, "argv", words)
    grid.main()
    assert capsys.readouterr().out == ""
    assert len(out.read_text().splitlines()) == 1
