"""All steps exact from a share of the epochs on, and what is fitted to the bits."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from test_fit import Stopped, train, write_csv
from torch import nn

from htaf.core.activations import HTAF, Heaviside
from htaf.data.image_sets import load as load_images
from htaf.data.images import Images
from htaf.data.tabular import Table, load
from htaf.training.distributed import TrainingError
from htaf.training.families import make_recipe
from htaf.training.finish import trained_exact
from htaf.training.fit import check, fit
from htaf.training.module import ExactValues, Training
from htaf.training.recipe import Running
from htaf.training.runs import open_run
from quick import slow_but

QUICK = make_recipe(hidden=(8, 6), epochs=8, batch_size=16, lr=0.02, sharpen_fraction=0.25, patience=0, exact_from=0.5)


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Table:
    return load(write_csv(tmp_path_factory.mktemp("data") / "made.csv"), target="y")


# ---- hooks ----


@pytest.mark.parametrize("bipolar", [False, True])
def test_exact_values_have_the_smooth_gradient(bipolar: bool) -> None:
    step, hook, x = HTAF(0.5, 3.0, bipolar=bipolar), ExactValues(), torch.randn(4, 50, requires_grad=True)
    smooth = torch.autograd.grad(step(x).sum(), x)
    step.register_forward_hook(hook)
    assert not torch.equal(step(x), Heaviside(bipolar=bipolar)(x))
    hook.on = True
    out = step(x)
    assert torch.equal(out, Heaviside(bipolar=bipolar)(x))
    assert torch.equal(torch.autograd.grad(out.sum(), x)[0], smooth[0])


# ---- trainings ----


def test_all_steps_are_exact_from_an_epoch_on(table: Table, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    run = train(tmp_path / "run", table, QUICK, progress=True)
    assert run.record["hardening"]["exact_from"] == 4
    rows = list(csv.DictReader((run.path / "metrics.csv").open()))
    assert [row["val_loss"] == row["val_loss_smooth"] for row in rows] == [False] * 4 + [True] * 4
    trained = run.record["best_epoch"] >= 4
    assert trained_exact(run.record) == trained
    assert any("the exact network was trained" in note for note in run.record["notes"]) == trained
    assert not trained_exact(run.record | {"best_epoch": 3})
    assert "epoch 5/8: exact from here" in capfd.readouterr().err


def test_resumes_to_the_last_bit(table: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = QUICK.replace(dropout=0.3, recalibrate=True, refit=True, sharpen_fraction=1.0)
    recipe = recipe.replace(precision="bfloat16")
    whole, original = train(tmp_path / "whole", table, recipe), Training.training_step
    stops = {2, 4, 6}  # each once, after some steps of the epoch

    def training_step(self: Training, batch: Any, batch_idx: int) -> Any:
        if batch_idx == 2 and self.current_epoch in stops:
            stops.discard(self.current_epoch)
            raise Stopped
        return original(self, batch, batch_idx)

    monkeypatch.setattr(Training, "training_step", training_step)
    while stops:
        with pytest.raises(Stopped):
            train(tmp_path / "run", table, recipe)
    again = train(tmp_path / "run", table, recipe)
    for name in ("metrics", "layers", "model", "model_sha256", "best_epoch", "epochs_run", "key"):
        assert again.record[name] == whole.record[name], name
    assert (again.path / "metrics.csv").read_bytes() == (whole.path / "metrics.csv").read_bytes()


@pytest.mark.parametrize("method", ["htaf", "relu"])
def test_finishing_is_for_every_method(table: Table, tmp_path: Path, method: str) -> None:
    plain = make_recipe(hidden=(8,), epochs=2, batch_size=16, lr=0.02, method=method)
    before = train(tmp_path / "plain", table, plain).record
    record = train(tmp_path / "run", table, plain.replace(recalibrate=True, refit=True)).record
    assert "hardening" not in before
    network = "smooth" if method == "relu" else "exact"
    kept = [step for step in record["hardening"]["finish"] if step["kept"]]
    loss = record["metrics"][network]["validation"]["loss"]
    assert loss == pytest.approx(kept[-1]["after"] if kept else before["metrics"][network]["validation"]["loss"])
    assert loss <= before["metrics"][network]["validation"]["loss"]
    if method != "relu":
        assert record["metrics"]["smooth"] == before["metrics"]["smooth"]


def test_a_real_valued_network_is_trained_as_ever(table: Table, tmp_path: Path) -> None:
    plain = make_recipe(hidden=(8,), epochs=4, batch_size=16, lr=0.02, method="relu", patience=2, sharpen_fraction=0.1)
    runs = [train(tmp_path / "a", table, plain), train(tmp_path / "b", table, plain.replace(exact_from=0.5))]
    for name in ("metrics.csv", "model.safetensors"):
        assert (runs[0].path / name).read_bytes() == (runs[1].path / name).read_bytes()


def test_a_last_step_that_cannot_be_taken_loses_nothing(
    table: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: Any, **options: Any) -> Any:
        raise ValueError("expected another head")

    monkeypatch.setattr("htaf.transform.hardening.refit_head", refuse)
    run = train(tmp_path / "run", table, QUICK.replace(recalibrate=True, refit=True))
    told = run.record["hardening"]["finish"]
    assert [step["name"] for step in told] == ["recalibrate", "refit"]
    assert (told[1]["error"], told[1]["kept"]) == ("expected another head", False)


def test_errors_before_the_training() -> None:
    with pytest.raises(TrainingError, match="one process, got 2"):
        check(QUICK, Running("cpu", devices=2))


# ---- families ----


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Images:
    """Class folders of small images, of which one is brighter on the left."""
    folder, rng = tmp_path_factory.mktemp("images"), np.random.default_rng(0)
    for name in ("left", "right"):
        (folder / name).mkdir()
        for i in range(20):
            pixels = rng.integers(0, 120, (8, 8, 3), dtype=np.uint8)
            pixels[:, slice(0, 4) if name == "left" else slice(4, 8)] += 120
            Image.fromarray(pixels).save(folder / name / f"{i}.png")
    return load_images(folder, size=8)


FAMILIES: dict[str, dict[str, Any]] = {
    "dhn": {"depth": 10},
    "bnn": {"width": 2},
    "snn": {"width": 2, "steps": 2},
    "icbm": {"depth": 10, "concepts": 4},
}


@pytest.mark.parametrize("family", slow_but(FAMILIES, "dhn", "snn"))
def test_every_family_becomes_exact(images: Images, tmp_path: Path, family: str) -> None:
    recipe = make_recipe(
        family, epochs=2, batch_size=8, exact_from=0.5, recalibrate=True, refit=True, augment="none",
        validation_images=8, **FAMILIES[family],
    )  # fmt: skip
    run = fit(recipe, images, tmp_path / "run", running=Running("cpu", checkpoint_seconds=0.0))
    first, second = csv.DictReader((run.path / "metrics.csv").open())
    assert first["val_loss"] != first["val_loss_smooth"]
    assert second["val_loss"] == second["val_loss_smooth"]
    assert [step["name"] for step in run.record["hardening"]["finish"]] == ["recalibrate", "refit"]


class Own(nn.Module):
    """A step from outside htaf that keeps the contract."""

    kind, sharpness, bipolar = "own", ("steep",), False

    def __init__(self) -> None:
        super().__init__()
        self.steep = 4.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.sigmoid(self.steep * x)

    def hardened(self) -> nn.Module:
        return Heaviside.of(self)


def test_a_step_from_outside_is_exact_too(table: Table, tmp_path: Path) -> None:
    recipe = QUICK.replace(method="somewhere.steps:Own", start=(1.0,), sharpness=(8.0,))
    run = train(tmp_path / "run", table, recipe, method=Own)
    assert run.record["hardening"]["exact_from"] == 4
    assert not [m for m in open_run(run.path, method=Own).model().modules() if isinstance(m, Own)]
