"""One training: what its folder holds, that it resumes to the last bit, and what stops it."""

from __future__ import annotations

import csv
import errno
import json
import os
import pickle
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from htaf._ground.files import SEAL
from htaf.core.activations import HTAF
from htaf.data.notes import from_record, told
from htaf.data.tabular import Table, load, split
from htaf.training import problems
from htaf.training.families import make_recipe
from htaf.training.finish import best_of, constant_notes, dead_notes
from htaf.training.fit import fit
from htaf.training.module import _WHOLE, AtomicCheckpoint, History, Training, TrainingError, last_checkpoint
from htaf.training.recipe import Recipe, Running
from htaf.training.runs import Run, RunError, open_run
from htaf.transform import hardening

FIT = sys.modules["htaf.training.fit"]
QUICK = make_recipe(hidden=(8,), epochs=4, batch_size=16, lr=0.02)
FILES = ["metrics.csv", "model.safetensors", "preprocessing.json", "record.json"]


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Table:
    """A regression with numbers and a category."""
    return load(write_csv(tmp_path_factory.mktemp("data") / "made.csv"), target="y")


def write_csv(path: Path, seed: int = 2) -> Path:
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame({"a": rng.normal(size=80), "b": rng.normal(size=80), "kind": rng.choice(["u", "v"], 80)})
    frame["y"] = 50 + 10 * (frame["a"] > 0) + 5 * frame["b"] + rng.normal(size=80)
    frame.to_csv(path, index=False)
    return path


def train(out: Path, table: Table, recipe: Recipe = QUICK, **options: Any) -> Run:
    """As `fit`; `options` are those of `Running` too."""
    own = {name: options.pop(name) for name in [*options] if name in Running.__dataclass_fields__}
    running = Running(**{"device": "cpu", "checkpoint_seconds": 0.0, **own})
    return fit(recipe, table, out, running=running, **options)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, table: Table) -> Callable[[Any], Run]:
    """Finished runs by method, trained when first asked for."""
    made: dict[str, Run] = {}

    def run(method: Any) -> Run:
        if method not in made:
            recipe = make_recipe(method=method, hidden=(8,), epochs=4, batch_size=16, lr=0.02)
            made[method] = train(tmp_path_factory.mktemp("runs") / method, table, recipe)
        return made[method]

    return run


def outcome(run: Run) -> tuple[Any, ...]:
    """What has to be bit-identical."""
    record = run.record
    names = ("metrics", "layers", "model", "model_sha256", "best_epoch", "epochs_run", "key")
    return (*(record[name] for name in names), (run.path / "metrics.csv").read_bytes())


class Stopped(Exception):
    """What stands for a kill."""


def stop_at(patch: pytest.MonkeyPatch, owner: type, name: str, epoch: int, *, after: bool = False) -> None:
    """Raise from a method of a callback or of the module, once, in an epoch; before or after what it does."""
    original = getattr(owner, name)

    def stopping(self: Any, *args: Any) -> Any:
        current = args[0].current_epoch if hasattr(args[0], "current_epoch") else self.current_epoch
        if current == epoch and not after:
            raise Stopped
        result = original(self, *args)
        if current == epoch:
            raise Stopped
        return result

    patch.setattr(owner, name, stopping)


def validation_losses(patch: pytest.MonkeyPatch, loss: Callable[[int], float]) -> None:
    """Let the validation loss of the exact network be a function of the epoch."""

    def validation_step(self: Training, batch: Any, batch_idx: int) -> None:
        self.log("val_loss_smooth", 0.0, batch_size=1)
        self.log("val_loss", loss(self.current_epoch), batch_size=1)

    patch.setattr(Training, "validation_step", validation_step)


# ---- what a run holds ----


@pytest.mark.parametrize("method", ["htaf", "ste", "ss", "relu"])
def test_run_folder(runs: Callable[[str], Run], table: Table, method: str) -> None:
    run = runs(method)
    assert sorted(p.name for p in run.path.iterdir()) == FILES

    def refuse(constant: str) -> None:
        pytest.fail(f"{constant} is no JSON")

    record = json.loads((run.path / "record.json").read_text(), parse_constant=refuse)
    del record[SEAL]
    assert record == run.record == open_run(run.path).record
    assert record["recipe"]["method"] == method
    assert record["seed"] == 0
    assert record["data"]["fingerprint"] == table.fingerprint
    assert (record["data"]["name"], record["data"]["task"], record["data"]["split"]) == (
        "made.csv",
        "regression",
        "random",
    )
    assert record["versions"]["torch"] == torch.__version__
    assert {"python", "lightning", "numpy"} <= record["versions"].keys()
    assert "commit" in record
    assert (record["device"], record["threads"], record["headline"]) == ("cpu", 1, "rmse")
    assert record["rows"] == {"train": 56, "validation": 8, "test": 16}
    assert record["seconds"] > 0
    assert (record["metrics"]["exact"] is None) == (method == "relu")
    for network in record["metrics"].values():
        assert network is None or set(network) == {"validation", "test"}
    (layer,) = record["layers"]
    assert (layer["path"], layer["units"]) == ("hidden.0.act", 8)
    assert (layer["binarity"] is None) == (method == "relu")
    rows = list(csv.DictReader((run.path / "metrics.csv").open()))
    assert [row["epoch"] for row in rows] == ["0", "1", "2", "3"]
    assert [row["epoch"] for row in rows if float(row["val_loss"]) == min(float(r["val_loss"]) for r in rows)] == [
        str(record["best_epoch"])
    ]


@pytest.mark.parametrize("method", ["htaf", "ste", "ss", "relu"])
def test_the_stored_networks_give_the_recorded_metrics(runs: Callable[[str], Run], table: Table, method: str) -> None:
    run = open_run(runs(method).path)
    parts, preprocessor = split(table, 0), run.preprocessor()
    for network, exact in (("smooth", False), ("exact", True)):
        recorded = run.record["metrics"][network]
        if recorded is None:
            continue
        for part in ("validation", "test"):
            rows = getattr(parts, part)
            assert run.evaluate(part, table)[network] == recorded[part]
            predicted = run.predict(table.features.iloc[rows], exact=exact)["prediction"].to_numpy()
            rmse = float(np.sqrt(np.mean((predicted - table.target[rows]) ** 2)))
            assert recorded[part]["rmse"] == pytest.approx(rmse, rel=1e-5)
            assert recorded[part]["mae"] == pytest.approx(np.abs(predicted - table.target[rows]).mean(), rel=1e-5)
    assert preprocessor.target.mean == pytest.approx(table.target[parts.train].mean())


def test_smooth_and_exact_differ_but_for_ste(runs: Callable[[str], Run]) -> None:
    for method, same in (("htaf", False), ("ss", False), ("ste", True)):
        metrics = runs(method).record["metrics"]
        assert (metrics["smooth"] == metrics["exact"]) == same


def test_the_best_epoch_is_kept_with_its_sharpness(
    table: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[int, tuple[Any, Any]] = {}
    validation_losses(monkeypatch, lambda epoch: float(abs(epoch - 1)))  # the second epoch is the best
    ends = Training.on_validation_epoch_end

    def look(self: Training) -> None:
        module = next(m for m in self.net.modules() if isinstance(m, HTAF))
        seen[self.current_epoch] = (module.alphas, {k: v.clone() for k, v in self.net.state_dict().items()})
        ends(self)

    monkeypatch.setattr(Training, "on_validation_epoch_end", look)
    run = train(tmp_path / "run", table, make_recipe(hidden=(8,), epochs=5, batch_size=16, lr=0.02))
    assert run.record["best_epoch"] == 1
    share = (2 / 5) / 0.7
    expected = tuple(s ** (1 - share) * e**share for s, e in ((1.0, 2.0), (2.0, 11.0)))
    values, weights = seen[1]
    stored = tuple(run.record["model"]["activation"][name] for name in ("alpha0", "alpha1"))
    assert stored == values == pytest.approx(expected)
    for name, value in run.model(exact=False).state_dict().items():
        assert torch.equal(value, weights[name])
    assert any(not torch.equal(weights[name], seen[4][1][name]) for name in weights)
    assert run.evaluate("test", table)["smooth"] == run.record["metrics"]["smooth"]["test"]


@pytest.mark.parametrize(
    ("method", "best", "patience", "epochs_run"),
    [
        ("htaf", 0, 2, 7),  # sharpening ends with epoch 4
        ("ste", 3, 1, 5),
        ("ste", 0, 0, 10),
    ],
)
def test_early_stopping_counts_from_the_end_of_sharpening(
    table: Table,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    method: Any,
    best: int,
    patience: int,
    epochs_run: int,
) -> None:
    validation_losses(monkeypatch, lambda epoch: float(abs(epoch - best)))
    recipe = make_recipe(method=method, hidden=(4,), epochs=10, batch_size=64, sharpen_fraction=0.5, patience=patience)
    record = train(tmp_path / "run", table, recipe, checkpoint_seconds=100.0).record
    assert (record["best_epoch"], record["epochs_run"]) == (best, epochs_run)


def test_the_last_epoch_is_kept_where_the_recipe_says_so(
    table: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    validation_losses(monkeypatch, float)  # worse with each epoch
    recipe = make_recipe(hidden=(4,), epochs=5, batch_size=64, sharpen_fraction=0.5, patience=1, keep="last")
    record = train(tmp_path / "run", table, recipe, checkpoint_seconds=100.0).record
    assert (record["best_epoch"], record["epochs_run"]) == (4, 5)
    assert record["model"]["activation"]["alpha0"] == recipe.activation.alpha0  # sharpening is over
    assert best_of(record) == "last epoch, 5"
    best = train(tmp_path / "best", table, recipe.replace(keep="best"), checkpoint_seconds=100.0).record
    assert best["best_epoch"] == 0
    assert best["key"] != record["key"]


# ---- the same again ----


def test_same_seed_same_bits(runs: Callable[[str], Run], table: Table, tmp_path: Path) -> None:
    torch.manual_seed(12345)  # the global generator has no say
    np.random.seed(3)  # noqa: NPY002
    again = train(tmp_path / "again", table)
    assert outcome(again) == outcome(runs("htaf"))
    other = train(tmp_path / "other", table, seed=1)
    assert other.record["model_sha256"] != again.record["model_sha256"]
    assert other.record["metrics"] != again.record["metrics"]


def test_a_finished_run_is_not_trained_again(
    runs: Callable[[str], Run], table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = runs("htaf")
    times = {p.name: p.stat().st_mtime_ns for p in run.path.iterdir()}
    monkeypatch.setattr(FIT, "_train", lambda *args: pytest.fail("trained again"))
    (run.path / "checkpoints").mkdir()  # of a process that was killed as it ended
    assert train(run.path, table).record == run.record
    assert {p.name: p.stat().st_mtime_ns for p in run.path.iterdir()} == times


# ---- stopped and resumed ----


@pytest.mark.parametrize(
    ("owner", "name", "epoch", "after"),
    [
        (Training, "training_step", 0, False),  # before the first step: nothing to resume from
        (Training, "training_step", 2, True),  # in the middle of an epoch
        (History, "on_train_epoch_end", 1, True),  # before its checkpoint
        (AtomicCheckpoint, "on_train_epoch_end", 3, True),  # after the last one
    ],
)
def test_resumed_is_uninterrupted(
    runs: Callable[[str], Run], table: Table, tmp_path: Path, owner: type, name: str, epoch: int, after: bool
) -> None:
    out = tmp_path / "run"
    with pytest.MonkeyPatch.context() as patch:
        stop_at(patch, owner, name, epoch, after=after)
        with pytest.raises(Stopped):
            train(out, table)
    with pytest.raises(RunError, match="not finished"):
        open_run(out)
    torch.manual_seed(999)
    assert outcome(train(out, table)) == outcome(runs("htaf"))
    assert sorted(p.name for p in out.iterdir()) == FILES


def test_resumed_twice_by_another_recipe(table: Table, tmp_path: Path) -> None:
    recipe = make_recipe(method="ste", hidden=(8, 4), epochs=5, batch_size=16, schedule="cosine", weight_decay=0.1)
    for epoch in (1, 3):
        with pytest.MonkeyPatch.context() as patch:
            stop_at(patch, Training, "training_step", epoch, after=True)
            with pytest.raises(Stopped):
                train(tmp_path / "run", table, recipe)
    assert outcome(train(tmp_path / "run", table, recipe)) == outcome(train(tmp_path / "whole", table, recipe))


def test_stopped_between_early_stop_and_the_record(table: Table, tmp_path: Path) -> None:
    recipe = make_recipe(method="ste", hidden=(4,), epochs=9, batch_size=64, patience=2)
    with pytest.MonkeyPatch.context() as losses:
        validation_losses(losses, lambda epoch: float(epoch))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(FIT, "finish_run", lambda *args, **named: (_ for _ in ()).throw(Stopped))
            with pytest.raises(Stopped):
                train(tmp_path / "run", table, recipe)
        assert train(tmp_path / "run", table, recipe).record["epochs_run"] == 3


class Canary:
    """Its pickle makes a folder when it is read by something that runs what a pickle says."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (self.path,)


def test_checkpoints_that_are_none_run_no_code_and_are_passed_over(tmp_path: Path) -> None:
    """A flipped bit in a tensor too: torch.load itself gives back the other value."""
    whole = dict.fromkeys(_WHOLE, 0) | {"state_dict": {"weight": torch.zeros(1000)}}
    evil = Canary(tmp_path / "ran")
    for number, content in enumerate((whole, whole | {"epoch": evil}, {"epoch": 1}, [evil], whole)):
        torch.save(content, tmp_path / f"epoch-{number:06d}.ckpt")
    data = bytearray((tmp_path / "epoch-000004.ckpt").read_bytes())
    data[len(data) // 2] ^= 1
    (tmp_path / "epoch-000004.ckpt").write_bytes(data)
    (tmp_path / "epoch-000005.ckpt").write_bytes(pickle.dumps(evil))
    with pytest.warns(UserWarning, match="is damaged") as warned:
        assert last_checkpoint(tmp_path) == tmp_path / "epoch-000000.ckpt"
    assert len(warned) == 5
    assert not (tmp_path / "ran").exists()


def test_a_checkpoint_does_not_say_where_files_go(tmp_path: Path) -> None:
    history = History(tmp_path, 0, -1)
    state = history.state_dict() | {"folder": "elsewhere", "best_epoch": 3, "write": None}
    history.load_state_dict(state)
    assert (history.folder, history.best_epoch) == (tmp_path, 3)
    assert callable(history.write)


@pytest.mark.parametrize("damaged", [1, 2])
def test_a_damaged_checkpoint_is_passed_over(
    runs: Callable[[str], Run], table: Table, tmp_path: Path, damaged: int
) -> None:
    out = tmp_path / "run"
    with pytest.MonkeyPatch.context() as patch:
        stop_at(patch, Training, "training_step", 3)
        with pytest.raises(Stopped):
            train(out, table)
    for path in sorted((out / "checkpoints").iterdir())[-damaged:]:
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.warns(UserWarning, match="is damaged") as warned:
        run = train(out, table)
    told = [str(w.message) for w in warned if "is damaged" in str(w.message)]
    assert len(told) == damaged
    assert all("going back to the one before" in line for line in told)
    assert outcome(run) == outcome(runs("htaf"))


def test_resumed_with_the_threads_it_began_with(table: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = QUICK.replace(epochs=2, batch_size=64)  # two threads mostly wait for each other
    torch.set_num_threads(2)
    try:
        with pytest.MonkeyPatch.context() as patch:
            stop_at(patch, Training, "training_step", 1)
            with pytest.raises(Stopped):
                train(tmp_path / "run", table, recipe)
    finally:
        torch.set_num_threads(1)
    seen: dict[str, int] = {}
    for owner, name in ((Training, "training_step"), (FIT, "measure"), (FIT, "layer_statistics")):
        original = getattr(owner, name)

        def spy(*args: Any, name: str = name, original: Any = original, **more: Any) -> Any:
            seen[name] = torch.get_num_threads()
            return original(*args, **more)

        monkeypatch.setattr(owner, name, spy)
    run = train(tmp_path / "run", table, recipe)
    assert seen == {"training_step": 2, "measure": 2, "layer_statistics": 2}
    assert run.record["threads"] == 2
    assert torch.get_num_threads() == 1


@pytest.fixture
def interruptible() -> Iterator[Any]:
    """Ctrl-C raises, also in a shell's background job, which ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield signal.default_int_handler
    signal.signal(signal.SIGINT, before)


def test_control_c(runs: Callable[[str], Run], table: Table, tmp_path: Path, interruptible: Any) -> None:
    sigterm = signal.getsignal(signal.SIGTERM)
    with pytest.MonkeyPatch.context() as patch:
        original = Training.training_step

        def interrupted(self: Training, batch: Any, i: int) -> Any:
            assert signal.getsignal(signal.SIGTERM) is sigterm, "not Lightning's, which goes on"
            if self.current_epoch == 2:
                signal.raise_signal(signal.SIGINT)
            return original(self, batch, i)

        patch.setattr(Training, "training_step", interrupted)
        with pytest.raises(KeyboardInterrupt):
            train(tmp_path / "run", table)
    assert signal.getsignal(signal.SIGINT) is interruptible
    assert outcome(train(tmp_path / "run", table)) == outcome(runs("htaf"))


# ---- what goes wrong ----


def test_a_loss_that_is_no_number_names_the_epoch(table: Table, tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match=r"training loss became (nan|inf) at step \d+ \(epoch [12]\): lower lr"):
        train(tmp_path / "run", table, make_recipe(method="relu", hidden=(8,), epochs=2, lr=1e30, batch_norm=False))
    assert not (tmp_path / "run" / "model.safetensors").exists()


def test_no_finite_validation_loss(table: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    validation_losses(monkeypatch, lambda epoch: float("nan"))
    with pytest.raises(TrainingError, match=r"no epoch of .* had a finite validation loss"):
        train(tmp_path / "run", table)


def test_weights_that_are_not_finite_leave_no_checkpoint(
    runs: Callable[[str], Run], table: Table, tmp_path: Path
) -> None:
    """The loss of the last step of an epoch was finite; what that step made of the weights is not."""

    def poison(self: Training, outputs: Any, batch: Any, batch_idx: int) -> None:
        if self.current_epoch == 1 and batch_idx + 1 == self.trainer.num_training_batches:
            with torch.no_grad():
                next(self.net.parameters()).fill_(float("nan"))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Training, "on_train_batch_end", poison)
        with pytest.raises(TrainingError, match=r"became nan at step \d+ \(epoch 3\)"):
            train(tmp_path / "run", table)
    assert [p.name for p in (tmp_path / "run" / "checkpoints").iterdir()] == ["epoch-000000.ckpt"]
    assert outcome(train(tmp_path / "run", table)) == outcome(runs("htaf"))


def test_resumed_in_another_number_of_processes_is_noted(table: Table, tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        kept = History.state_dict
        patch.setattr(History, "state_dict", lambda self: {**kept(self), "devices": 2})
        stop_at(patch, Training, "training_step", 2)
        with pytest.raises(Stopped):
            train(tmp_path / "run", table)
    with pytest.warns(UserWarning, match="began with devices 2, continues with devices 1"):
        run = train(tmp_path / "run", table)
    assert run.record["devices"] == 1
    assert [note for note in run.record["notes"] if str(note).startswith("began with devices 2")]


def test_checkpoints_go_straight_into_the_run(table: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not through the folder of temporary files, which is often small and in memory."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "nowhere"))
    stop_at(monkeypatch, Training, "training_step", 2)
    with pytest.raises(Stopped):
        train(tmp_path / "run", table)
    assert last_checkpoint(tmp_path / "run" / "checkpoints") is not None


def test_a_checkpoint_for_which_there_is_no_room(table: Table, tmp_path: Path) -> None:
    resource = pytest.importorskip("resource", reason="no limits of files here")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, before[1]))  # bytes of a file; the system then says EFBIG
    try:
        with pytest.raises(OSError, match="File too large") as caught:
            train(tmp_path / "run", table, make_recipe(hidden=(64, 64), epochs=2, batch_size=64))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert caught.value.filename == str(tmp_path / "run" / "checkpoints" / "epoch-000000.ckpt")
    assert [p.name for p in (tmp_path / "run" / "checkpoints").iterdir()] == []


@pytest.fixture(scope="module")
def two_epochs(table: Table, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """What no full disk has disturbed."""
    return train(tmp_path_factory.mktemp("runs") / "two", table, make_recipe(hidden=(4,), epochs=2, batch_size=64))


@pytest.mark.parametrize("call", [1, 3, 9])
def test_disk_full(table: Table, two_epochs: Run, tmp_path: Path, call: int) -> None:
    """The files of two epochs in order: record, then checkpoint and metrics twice; metrics, weights,
    preprocessing, record."""
    out, recipe = tmp_path / "run", make_recipe(hidden=(4,), epochs=2, batch_size=64)
    original, calls = os.fsync, 0

    def full(handle: int) -> None:
        nonlocal calls
        calls += 1
        if calls >= call:
            raise OSError(errno.ENOSPC, "No space left on device")
        original(handle)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space left on device"):
            train(out, table, recipe)
    left = [p.name for p in out.rglob("*")]
    assert not [name for name in left if name.startswith(".") or name.endswith(".tmp")]
    if call == 1:
        assert left == []
    else:
        assert json.loads((out / "record.json").read_text())["status"] == "running"
        for path in (out / "checkpoints").glob("*.ckpt"):
            torch.load(path, weights_only=True)
    run = train(out, table, recipe)
    assert outcome(run) == outcome(two_epochs)
    assert sorted(p.name for p in out.iterdir()) == FILES


# ---- evaluating other data ----


def test_evaluate_other_data(runs: Callable[[str], Run], table: Table, tmp_path: Path) -> None:
    run = runs("htaf")
    other = load(write_csv(tmp_path / "made.csv", seed=9), target="y")
    with pytest.raises(RunError, match="trained on other data"):
        run.evaluate("test", other)
    result = run.evaluate("all", other)
    assert result["rows"] == 80
    predicted = run.predict(other.features)["prediction"].to_numpy()
    assert result["exact"]["rmse"] == pytest.approx(np.sqrt(np.mean((predicted - other.target) ** 2)), rel=1e-5)
    with pytest.raises(ValueError, match="expected a table for regression, got one for classification"):
        run.evaluate("all", load("digits"))


def test_other_data_may_lack_a_class(tmp_path: Path) -> None:
    """Codes follow the classes that a table holds: q and r are 1 and 2 in one table, 0 and 1 in the other."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"t": np.array(["p", "q", "r"] * 40), "a": np.array([-1.0, 0.0, 1.0] * 40)})
    frame["a"] += 0.1 * rng.normal(size=120)
    frame.to_csv(tmp_path / "three.csv", index=False)
    frame[frame["t"] != "p"].to_csv(tmp_path / "two.csv", index=False)
    three, two = load(tmp_path / "three.csv", target="t"), load(tmp_path / "two.csv", target="t")
    recipe = make_recipe(method="relu", hidden=(16,), epochs=20, batch_size=16, lr=0.05)
    run = train(tmp_path / "run", three, recipe, checkpoint_seconds=100.0)
    result = run.evaluate("all", two)
    predicted = run.predict(two.features)["prediction"].to_numpy()
    truth = np.array(two.classes, dtype=object)[two.target]
    assert result["smooth"]["accuracy"] == pytest.approx((predicted == truth).mean(), abs=1e-6)
    assert result["smooth"]["accuracy"] > 0.8


# --- what went wrong without an error ---


def test_a_network_that_learned_nothing_is_said(runs: Callable[[str], Run], table: Table, tmp_path: Path) -> None:
    run = train(tmp_path / "run", table, QUICK.replace(lr=1e9, epochs=1))
    (note,) = [note for note in told(from_record(run.record["notes"])) if note.startswith("WARNING")]
    assert "on the validation part the network is no better than a constant (loss" in note
    assert "Lower lr" in note
    assert not [note for note in told(from_record(runs("relu").record["notes"])) if "WARNING" in note]


def test_better_than_a_constant() -> None:
    """Classification: accuracy above the most frequent class's, or a loss below that of the classes' shares."""
    target = torch.tensor([0, 0, 0, 1, 0, 0, 0, 1, 1, 0])
    entropy = -(0.7 * np.log(0.7) + 0.3 * np.log(0.3))
    cases = [
        (0.8, entropy - 0.01, ""),
        (0.7, entropy - 0.01, ""),
        (
            0.7,
            entropy + 0.01,
            "WARNING: on the validation part the network is no better than a constant (accuracy 70.0%",
        ),
        (
            0.8,
            entropy + 0.01,
            "on the validation part the loss is 0.6209, that of always giving the classes' shares 0.61",
        ),
        (0.8, 1e9, "WARNING: on the validation part the loss is 1e+09"),
        (0.8, None, "WARNING: on the validation part the loss is not finite"),
        (0.3, None, "WARNING: on the validation part the network is no better than a constant (accuracy 30.0%"),
    ]
    for accuracy, loss, words in cases:
        notes = constant_notes({"accuracy": accuracy, "loss": loss}, target, target)
        assert "".join(map(str, notes)).startswith(words), notes
        assert len(notes) == bool(words), notes


def test_a_rare_class_that_is_told_apart_is_something_learned() -> None:
    target = (torch.arange(1000) % 50 == 0).long()
    found = {"accuracy": 0.98, "loss": 0.2, "auroc": 0.93}
    (note,) = constant_notes(found, target, target)
    assert note.kind == "loss above a constant"
    assert "AUROC 0.930" in str(note)
    (note,) = constant_notes(found | {"auroc": 0.6}, target, target)  # of 20 rows chance gives as much
    assert note.kind == "learned nothing"


def test_dead_units_are_said() -> None:
    layers = [
        {"path": "block.act", "units": 16, "dead": 0.75},
        {"path": "other.act", "units": 16, "dead": 0.25},
        {"path": "act", "units": 32, "dead": 1.0},
    ]
    concepts, hidden = dead_notes(layers, True)
    assert concepts.startswith("WARNING: 32 of 32 concepts are dead")
    assert "block.act 12 of 16; " in hidden
    (few,) = dead_notes([{"path": "act", "units": 32, "dead": 1 / 32}], True)
    assert few.startswith("1 of 32 concepts are dead")
    assert dead_notes(layers[1:2], False) == dead_notes([], True) == []


# --- progress ---


def test_what_is_said_without_a_terminal(table: Table, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train(tmp_path / "run", table, progress=True)
    head, *_ = capsys.readouterr().err.splitlines()
    assert head == (
        "made.csv, mlp htaf: 56 rows to train on, 8 to validate; 4 epochs, adamw, lr 0.02 (one_cycle), batches of 16; "
        "1 thread"
    )


def test_norms_and_head_of_many_rows_are_fitted_on_some(
    table: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert problems.FITTED_ROWS == 65_536
    monkeypatch.setattr(problems, "FITTED_ROWS", 40)
    seen: list[tuple[int, int]] = []
    original = hardening.refit_head

    def refit_head(net: Any, batches: Any, *, validation: Any, **more: Any) -> Any:
        seen.append((sum(len(y) for _, y in batches), sum(len(y) for _, y in validation)))
        return original(net, batches, validation=validation, **more)

    monkeypatch.setattr(hardening, "refit_head", refit_head)
    run = train(tmp_path / "run", table, QUICK.replace(epochs=1, recalibrate=True, refit=True))
    rows = run.record["rows"]
    assert rows["train"] > 40
    assert seen == [(40, min(40, rows["validation"]))]
    refit = run.record["hardening"]["finish"][1]
    assert (refit["name"], refit["report"]["layers"][0]["rows"]) == ("refit", 40)
    assert (
        "norms, the last layer, the linear part and the leaves of trees are fitted on 40 rows, evenly spread"
        in run.record["notes"]
    )
