"""Recipes' precision and clip, and the memory layout of images."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest
import torch

from htaf.data.images import Images, load
from htaf.training.families import ready_recipe
from htaf.training.fit import fit
from htaf.training.module import Training
from htaf.training.recipe import Running

SMALL = {"depth": 10, "width": 1, "train_images": 60, "validation_images": 40, "batch_size": 30, "epochs": 1}
TINY = ready_recipe("dhn", "reduced").replace(**SMALL, precision="float32")


@pytest.fixture(scope="module")
def digits() -> Images:
    return load("digits")


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
