"""The benchmark of sixteen models of one's own: its tasks need no htaf and take its steps; its table counts rightly."""

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
from quick import slow_but

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))
from benchmarks.own_models.methods import StraightThrough  # noqa: E402
from benchmarks.own_models.problem import MissingDataError  # noqa: E402
from benchmarks.own_models.tasks import NAMES  # noqa: E402


def posed(task: str, seed: int = 0) -> Any:
    return importlib.import_module(f"benchmarks.own_models.tasks.{task}").make(seed)


MADE = [name for name in NAMES if name not in ("mixer", "resnet")]  # which read real images


@pytest.mark.parametrize("task", slow_but(MADE, "waves", "graph"))
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
