"""Event files and offline folders, read back."""

from __future__ import annotations

import builtins
import csv
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from htaf.data.tabular import Table, load
from htaf.training.distributed import TrainingError
from htaf.training.families import make_recipe
from htaf.training.fit import fit
from htaf.training.loggers import loggers, sharpness
from htaf.training.module import Training
from htaf.training.running import Running

QUICK = make_recipe(hidden=(4,), epochs=3, batch_size=256, lr=0.02)


@pytest.fixture(scope="module")
def table() -> Table:
    return load("digits")


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    accumulators = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    events = accumulators.EventAccumulator(str(folder))
    events.Reload()
    return {tag: [(event.step, event.value) for event in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def test_tensorboard_holds_what_the_csv_holds(table: Table, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")

    class Stopped(Exception):
        pass

    original = Training.training_step

    def stop(self: Training, batch: Any, i: int) -> Any:
        if self.current_epoch == 2:
            raise Stopped
        return original(self, batch, i)

    def train() -> Any:
        return fit(
            QUICK, table, tmp_path / "run", running=Running("cpu", checkpoint_seconds=0.0, logger=("tensorboard",))
        )

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Training, "training_step", stop)
        with pytest.raises(Stopped):
            train()
    run = train()  # resumed beside the folder of the first session
    assert run.record["status"] == "finished"
    found = scalars(run.path / "tensorboard")
    with (run.path / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    for name in ("train_loss", "val_loss", "val_loss_smooth", "lr"):
        assert found[name] == [(int(r["epoch"]), pytest.approx(float(r[name]), rel=1e-6)) for r in rows], name
    assert [step for step, _ in found["val_accuracy"]] == [0, 1, 2]
    best = found["val_accuracy"][run.record["best_epoch"]][1]
    assert best == pytest.approx(run.record["metrics"]["exact"]["validation"]["accuracy"], abs=1e-6)
    assert [value for _, value in found["alpha0"]] == pytest.approx([2 ** (min(1, k / 3 / 0.7)) for k in (1, 2, 3)])
    assert found["alpha1"][-1][1] == pytest.approx(11.0)


@pytest.mark.slow
def test_wandb_without_a_network(table: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    run = fit(QUICK, table, tmp_path / "run", running=Running("cpu", logger=("wandb",)))
    assert list((run.path / "wandb").glob("offline-run-*/*.wandb"))
    assert wandb.run is None  # ended: the next training has its own
    assert run.record["status"] == "finished"


@pytest.mark.parametrize("name", ["tensorboard", "wandb"])
def test_a_missing_package_names_its_extra(
    table: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: Any
) -> None:
    real = builtins.__import__

    def missing(module: str, *args: Any, **kwargs: Any) -> Any:
        if module.split(".")[0] == name:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return real(module, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", missing)
    monkeypatch.setattr("lightning.pytorch.loggers.wandb._WANDB_AVAILABLE", False)
    with pytest.raises(TrainingError, match=rf"logger {name} needs a package: pip install 'htaf\[{name}\]'"):
        fit(QUICK, table, tmp_path / "run", running=Running("cpu", logger=(name,)))
    assert not (tmp_path / "run").exists()  # said before anything is written


def test_no_logger_no_folder(table: Table, tmp_path: Path) -> None:
    assert loggers((), tmp_path, "key") == []
    assert len(loggers(("tensorboard", "tensorboard"), tmp_path, "key")) == 1
    assert list(tmp_path.iterdir()) == []


def test_sharpness() -> None:
    from htaf.activations import HTAF, ScaledSigmoid

    assert sharpness(torch.nn.Sequential(torch.nn.Linear(1, 1), HTAF(1.5, 4.0))) == {"alpha0": 1.5, "alpha1": 4.0}
    assert sharpness(torch.nn.Sequential(ScaledSigmoid(7.0))) == {"beta": 7.0}
    assert sharpness(torch.nn.ReLU()) == {}
    assert sharpness(HTAF(torch.ones(3), torch.ones(3))) == {}


def test_wandb_without_a_key_leaves_no_folder(table: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wandb = pytest.importorskip("wandb")

    def login() -> None:
        raise wandb.errors.UsageError("No API key configured. Use `wandb login` to log in.")

    monkeypatch.setattr(wandb, "login", login)
    online = SimpleNamespace(settings=SimpleNamespace(mode="online"))  # an earlier test may have set it up offline
    monkeypatch.setattr(wandb, "setup", lambda: online)
    with pytest.raises(TrainingError, match=r"logger wandb: No API key .* WANDB_API_KEY"):
        fit(QUICK, table, tmp_path / "run", running=Running("cpu", logger=("wandb",)))
    assert list(tmp_path.iterdir()) == []
