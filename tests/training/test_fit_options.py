"""Recipes' precision, clip and compile, and the memory layout of images."""

from __future__ import annotations

import csv
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from htaf.data.images import Images, load
from htaf.models.build import build
from htaf.training.families import ready_recipe
from htaf.training.fit import fit
from htaf.training.module import Training
from htaf.training.running import Running

SMALL = {"depth": 10, "width": 1, "train_images": 60, "validation_images": 40, "batch_size": 30, "epochs": 1}
TINY = ready_recipe("dhn", "reduced").replace(**SMALL, precision="float32")

# Dynamo cannot trace the functions that jaxtyping's test hook checks, so that compiling runs in a process without it
COMPILED = """
import dataclasses, json, sys
from pathlib import Path
import torch
from htaf.data.images import load
from htaf.training.fit import fit
from htaf.training.module import Training
from htaf.training.families import ready_recipe
from htaf.training.running import Running

small = json.loads(sys.argv[2])
recipe = ready_recipe("dhn", "reduced").replace(precision="float32", **small)
eager_backend, calls = torch.compile, []

def compiled(net):  # aot_eager traces forward and backward as the default does, without minutes of a C++ compiler
    def counting(graph, inputs):
        calls.append(1)
        return graph
    from torch._dynamo.backends.common import aot_autograd
    return eager_backend(net, backend=aot_autograd(fw_compiler=counting))

torch.compile = compiled
out, runs = Path(sys.argv[1]), []
for flag in (False, True):
    runs.append(fit(recipe.replace(compile=flag), load("digits"), out / str(flag), running=Running("cpu")))
assert calls, "nothing was compiled"
eager, other = runs
assert list(eager.model(exact=False).state_dict()) == list(other.model(exact=False).state_dict())
for network in ("smooth", "exact"):
    for part in ("validation", "test"):
        a, b = (run.record["metrics"][network][part]["loss"] for run in runs)
        assert abs(a - b) < 1e-3 * abs(a), (network, part, a, b)
assert eager.record["model"] == other.record["model"]
"""


@pytest.fixture(scope="module")
def digits() -> Images:
    return load("digits")


@pytest.mark.slow
def test_a_compiled_training_is_the_eager_one(tmp_path: Path) -> None:
    import json

    words = [sys.executable, "-c", COMPILED, str(tmp_path), json.dumps(SMALL)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr


def test_what_members_say_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loss is of the members' outputs, so that is what compile must take."""
    called: list[Any] = []

    def compiled(function: Any) -> Any:
        def traced(x: torch.Tensor) -> torch.Tensor:
            called.append(function)
            return function(x)

        return traced

    monkeypatch.setattr(torch, "compile", compiled)
    x, y = torch.rand(6, 3), torch.tensor([0, 1, 0, 1, 1, 0])
    for members in (1, 4):
        recipe = ready_recipe("mlp", "tabular-exact").replace(hidden=(5,), members=members, compile=True)
        net = build(recipe.model({"in_features": 3, "levels": [6, 6, 6], "discrete": []}, 2))
        losses = [
            Training(net, one, "classification", 10).objective(x, y) for one in (recipe, recipe.replace(compile=False))
        ]
        assert called.pop() == (net if members == 1 else net.member_outputs)  # pyright: ignore[reportAttributeAccessIssue]
        assert not called
        assert torch.equal(*losses)


def spied(patch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the first training step saw."""
    seen: dict[str, Any] = {}
    original, after = Training.training_step, Training.on_train_batch_end

    def step(self: Training, batch: Any, i: int) -> Any:
        loss = original(self, batch, i)
        seen["autocast"] = torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu")
        seen["layouts"] = {
            p.is_contiguous(memory_format=torch.channels_last) for p in self.net.parameters() if p.dim() == 4
        }
        seen["dtypes"] = {p.dtype for p in self.net.parameters()}
        return loss

    def end(self: Training, *args: Any) -> None:
        gradients = [p.grad.flatten() for p in self.net.parameters() if p.grad is not None]
        seen["norm"] = torch.cat(gradients).norm().item() if gradients else seen.get("norm")
        after(self, *args)

    patch.setattr(Training, "training_step", step)
    patch.setattr(Training, "on_train_batch_end", end)
    return seen


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_precision_and_layout(digits: Images, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, precision: Any) -> None:
    seen = spied(monkeypatch)
    run = fit(TINY.replace(precision=precision), digits, tmp_path / "run", running=Running("cpu"))
    assert seen["autocast"] == (torch.bfloat16 if precision == "bfloat16" else False)
    assert seen["layouts"] == {True}
    assert seen["dtypes"] == {torch.float32}  # the weights
    assert {value.dtype for value in run.model().state_dict().values()} <= {torch.float32, torch.int64}
    with open(run.path / "metrics.csv") as file:
        best = list(csv.DictReader(file))[run.record["best_epoch"]]
    result = run.record["metrics"]["exact"]["validation"]["loss"]
    assert float(best["val_loss"]) == pytest.approx(result, rel=1e-6), "the epoch's line and the result are one network"


def test_clip_bounds_the_gradient(digits: Images, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = spied(monkeypatch)
    fit(TINY, digits, tmp_path / "free", running=Running("cpu"))
    free = seen["norm"]
    fit(TINY.replace(clip=1e-3), digits, tmp_path / "clipped", running=Running("cpu"))
    assert seen["norm"] == pytest.approx(1e-3, rel=1e-3)
    assert free > 2e-3
