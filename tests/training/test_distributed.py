"""Several processes: shares of a batch, the same losses as one process, and that none is left behind."""

from __future__ import annotations

import copy
import csv
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from htaf.data.tabular import Table, load
from htaf.models.build import build
from htaf.training.distributed import (
    PeerError,
    TrainingError,
    check_processes,
    expect_rows_for_all,
    finished_elsewhere,
    share,
    smallest_batch,
)
from htaf.training.families import make_recipe
from htaf.training.fit import fit
from htaf.training.module import EpochBatches, Training
from htaf.training.problems import problem
from htaf.training.recipe import Running

QUICK = {"hidden": (8,), "epochs": 3, "batch_size": 50, "lr": 0.01, "patience": 0}
ENVIRONMENT = {k: v for k, v in os.environ.items() if k not in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_PORT")}
ENVIRONMENT |= {"OMP_NUM_THREADS": "1"}
SECONDS = 400  # of one command, on a loaded machine


# ---- shares ----


@settings(max_examples=60, deadline=None)
@given(rows=st.integers(8, 90), size=st.integers(8, 30), world=st.integers(1, 4), each=st.integers(1, 2))
def test_the_shares_of_a_batch_are_the_batch(rows: int, size: int, world: int, each: int) -> None:
    least = max(2, world * each)
    whole = [found.tolist() for found, *_ in EpochBatches(rows, size, 3, least=least)]
    parts = [[found.tolist() for found, *_ in EpochBatches(rows, size, 3, r, world, least)] for r in range(world)]
    assert sorted(row for batch in whole for row in batch) == list(range(rows))
    for i, batch in enumerate(whole):
        shares = [part[i] for part in parts]
        assert sorted(row for one in shares for row in one) == sorted(batch)
        assert max(map(len, shares)) - min(map(len, shares)) <= 1
        assert min(map(len, shares)) >= each
    assert {len(part) for part in parts} == {len(whole)}


def test_keys_differ_between_processes() -> None:
    def keys(rank: int, world: int, epoch: int) -> list[int]:
        sampler = EpochBatches(64, 8, 5, rank, world)
        sampler.set_epoch(epoch)
        return [key for _, key, _ in sampler]

    seen = [key for rank in range(3) for epoch in range(10) for key in keys(rank, 3, epoch)]
    assert len(set(seen)) == len(seen)
    assert keys(1, 3, 4) == keys(1, 3, 4)


@settings(max_examples=60, deadline=None)
@given(rows=st.integers(1, 60), world=st.integers(1, 5), chunk=st.integers(2, 20))
def test_validation_shares(rows: int, world: int, chunk: int) -> None:
    if rows < world:
        return
    parts = [share(torch.arange(rows), rank, world, chunk) for rank in range(world)]
    assert sorted(row for part in parts for piece in part for row in piece.tolist()) == list(range(rows))
    assert len({len(part) for part in parts}) == 1  # as many calls of what processes do together
    assert all(0 < len(piece) <= chunk for part in parts for piece in part)


# ---- what cannot be done is said ----


@pytest.mark.parametrize(
    ("running", "text"),
    [
        (Running("cpu", devices=0), "got 0 and 1"),
        (Running("cpu", nodes=-1), "got 1 and -1"),
        (Running("mps", devices=2), "mps"),
        (Running("tpu"), "expected device auto, cpu, cuda or mps"),
    ],
)
def test_impossible_settings(running: Running, text: str) -> None:
    with pytest.raises(TrainingError, match=text):
        check_processes(running)


def test_a_process_without_rows() -> None:
    plain, normed = nn.Linear(2, 2), nn.Sequential(nn.BatchNorm1d(2))
    assert (smallest_batch(4, plain), smallest_batch(4, normed), smallest_batch(1, normed)) == (4, 8, 2)
    expect_rows_for_all(4, plain, 4, 100, 4)
    with pytest.raises(TrainingError, match=r"batch_size must be >= 4 for 4 processes \(1 each\), got 3"):
        expect_rows_for_all(4, plain, 3, 100, 100)
    with pytest.raises(TrainingError, match=r"batch_size must be >= 8 for 4 processes \(2 each\), got 7"):
        expect_rows_for_all(4, normed, 7, 100, 100)
    with pytest.raises(TrainingError, match=r"training part must be >= 8 .* got 6"):
        expect_rows_for_all(4, normed, 32, 6, 100)
    with pytest.raises(TrainingError, match="validation part must be >= 4"):
        expect_rows_for_all(4, plain, 32, 100, 3)
    expect_rows_for_all(1, normed, 2, 1, 1)  # one process takes what there is


def test_a_run_that_others_must_not_write(table: Table, tmp_path: Path) -> None:
    run = fit(make_recipe(**{**QUICK, "epochs": 1}), table, tmp_path / "run", running=Running("cpu"))
    assert finished_elsewhere(tmp_path / "none", run.record["key"]) is None
    assert finished_elsewhere(run.path, run.record["key"]) == run.record
    with pytest.raises(PeerError, match="another run"):
        finished_elsewhere(run.path, "0" * 16)


# ---- two processes ----

SCRIPT = """
import atexit, os, sys
from pathlib import Path
import torch.distributed as dist
from htaf.data.tabular import load
from htaf.data import image_sets
from htaf.training import module
from htaf.training.fit import fit
from htaf.training.families import make_recipe
from htaf.training.recipe import Running

FIT = sys.modules["htaf.training.fit"]
rank, what, out = int(os.environ.get("LOCAL_RANK", 0)), sys.argv[1], Path(sys.argv[2])
QUICK = {quick}
atexit.register(lambda: (out / f"left.{{rank}}").write_text(str(not dist.is_initialized())))  # runs last
original, measure = module.Training.training_step, FIT.measure

def step(self, batch, i):
    if rank == 1 and self.current_epoch == 1:
        if what == "raise":
            raise KeyError("broken in process 1")
        if what == "nan":
            batch[0][0] = float("nan")
    return original(self, batch, i)

def measured(*args, **more):
    if what == "measure":
        raise KeyError("broken while measuring")
    return measure(*args, **more)

module.Training.training_step, FIT.measure = step, measured
table = load("digits")

def train(name, data=table, **changes):
    fields = {{**QUICK, **changes}}
    if "family" in fields:
        del fields["hidden"]  # of an MLP
    running = Running("cpu", devices=2, checkpoint_seconds=0.0)
    run = fit(make_recipe(**fields), data, out / name, running=running)
    assert run.record["status"] == "finished"
    (out / f"{{name}}.{{rank}}").write_text(run.record["model_sha256"])

if what == "all":
    train("plain", batch_norm=False, clip=0.5)
    train("bn")
    small = dict(family="dhn", depth=10, width=1, train_images=103, validation_images=61, batch_size=34, epochs=2)
    train("dhn", image_sets.load("digits"), **small)
    terms = dict(small, family="icbm", concepts=8, concept_rate=0.2, neighbours=0.5, epochs=1)
    train("icbm", image_sets.load("digits"), **terms)  # a step calls a method, not forward
else:
    train("run")
"""


@pytest.fixture(scope="module")
def table() -> Table:
    return load("digits")


def start(folder: Path, what: str, out: Path) -> subprocess.Popen[str]:
    (folder / "script.py").write_text(SCRIPT.format(quick=QUICK))
    words = [sys.executable, str(folder / "script.py"), what, str(out)]
    return subprocess.Popen(words, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def left(marker: str) -> list[str]:
    """Processes whose command names a folder of this test."""
    found = subprocess.run(["ps", "-eo", "pid=,stat=,args="], capture_output=True, text=True, check=True).stdout
    lines = [line for line in found.splitlines() if marker in line and "ps -eo" not in line]
    return [line for line in lines if not line.split()[1].startswith("Z")]


def all_end(marker: str) -> None:
    deadline = time.monotonic() + 60
    while left(marker) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert not left(marker), "no process stays behind"


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of two processes; several trainings in one script."""
    folder = tmp_path_factory.mktemp("two")
    process = start(folder, "all", folder / "runs")
    _, err = process.communicate(timeout=900)
    assert process.returncode == 0, err
    all_end(str(folder))
    for name in ("plain", "bn", "dhn", "icbm"):
        first, second = ((folder / "runs" / f"{name}.{rank}").read_text() for rank in (0, 1))
        assert first == second, "every process has the same run"
    for rank in (0, 1):  # gloo's threads, still there as Python ends, abort a process now and then
        assert (folder / "runs" / f"left.{rank}").read_text() == "True"
    return folder / "runs"


def losses(run: Path) -> list[list[float]]:
    with (run / "metrics.csv").open() as file:
        return [[float(r[n]) for n in ("train_loss", "val_loss_smooth", "val_loss")] for r in csv.DictReader(file)]


def close(found: list[list[float]], expected: list[list[float]], tolerance: float = 1e-5) -> None:
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert one == pytest.approx(other, abs=tolerance)


@pytest.mark.slow
def test_two_processes_train_as_one(two: Path, table: Table, tmp_path: Path) -> None:
    """1,257 rows in batches of 50: the last share of one process has one row less."""
    one = fit(make_recipe(**QUICK, batch_norm=False, clip=0.5), table, tmp_path / "one", running=Running("cpu"))
    close(losses(two / "plain"), losses(one.path))
    record = json.loads((two / "plain" / "record.json").read_text())
    assert (record["devices"], record["device"]) == (2, "cpu")
    assert one.record["devices"] == 1
    assert record["metrics"]["exact"]["test"]["loss"] == pytest.approx(
        one.record["metrics"]["exact"]["test"]["loss"], abs=1e-5
    )
    assert sorted(p.name for p in (two / "plain").iterdir()) == sorted(p.name for p in one.path.iterdir())


@pytest.mark.slow
def test_batch_norm_normalises_each_share(two: Path, table: Table) -> None:
    """One process that normalises the same two half-batches; running means are those of the first half."""
    recipe = make_recipe(**QUICK)
    posed = problem(recipe, table, 0, "random")
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = build(recipe.model(posed.inputs, posed.outputs))
    batches = EpochBatches(len(posed.train), 50, 0, least=4)
    module = Training(net, recipe, posed.task, len(batches) * recipe.optimization.epochs)
    made = module.configure_optimizers()
    optimizer, schedule, number, expected = made["optimizer"], made["lr_scheduler"]["scheduler"], 0, []
    for epoch in range(recipe.optimization.epochs):
        batches.set_epoch(epoch)
        total = 0.0
        net.train()
        for rows, key, _ in batches:
            module.sharpen(number / module.steps)
            x, y = posed.train[rows, key]
            optimizer.zero_grad()
            twin = copy.deepcopy(net)  # whose running means are forgotten
            halves = [(net, x[::2], y[::2]), (twin, x[1::2], y[1::2])]
            for part, inputs, targets in halves:
                loss = nn.functional.cross_entropy(part(inputs), targets, reduction="sum")
                (loss / len(rows)).backward()
                total += loss.item()
            for mine, other in zip(net.parameters(), twin.parameters(), strict=True):
                assert mine.grad is not None
                assert other.grad is not None
                mine.grad += other.grad
            optimizer.step()
            schedule.step()
            number += 1
        module.sharpen(number / module.steps)
        net.eval()
        with torch.no_grad():
            x, y = next(iter(posed.validation))
            smooth = nn.functional.cross_entropy(net(x), y).item()
        expected.append([total / len(posed.train), smooth])
    close([row[:2] for row in losses(two / "bn")], expected)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "text"),
    [
        ("raise", "broken in process 1"),
        ("measure", "broken while measuring"),
        ("nan", "the training loss became nan at step"),
    ],
)
def test_one_fails_all_end(tmp_path: Path, what: str, text: str) -> None:
    process = start(tmp_path, what, tmp_path / "runs")
    _, err = process.communicate(timeout=SECONDS)
    assert process.returncode != 0
    assert text in err
    all_end(str(tmp_path))
    assert not (tmp_path / "runs" / "run" / "model.safetensors").exists()
    record = json.loads((tmp_path / "runs" / "run" / "record.json").read_text())
    assert record["status"] == "running"


FLAGS = (
    "train tabular --data digits --recipe tabular-mlp --hidden 8 --epochs 8 --batch-size 64 --checkpoint-seconds 0 "
    "--baselines False --device cpu --json"
)


def command(out: Path, *, torchrun: bool = False) -> list[str]:
    words = [*FLAGS.split(), "--devices", "2", "--out", str(out)]
    if torchrun:
        launcher = ["torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m"]
        return [sys.executable, "-m", *launcher, "htaf", *words]
    return [sys.executable, "-m", "htaf", *words]


def run(words: list[str]) -> dict[str, Any]:
    done = subprocess.run(words, env=ENVIRONMENT, capture_output=True, text=True, check=False, timeout=SECONDS)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["result"]  # once: only the first process prints


@pytest.mark.slow
def test_a_killed_worker_ends_all_and_resuming_gives_the_same_bits(tmp_path: Path) -> None:
    whole = run(command(tmp_path / "whole"))
    out = tmp_path / "run"
    process = subprocess.Popen(command(out), env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    deadline = time.monotonic() + SECONDS
    while not (out / "checkpoints" / "epoch-000001.ckpt").exists() and time.monotonic() < deadline:
        assert process.poll() is None
        time.sleep(0.005)
    found = subprocess.run(["ps", "-o", "pid=", "--ppid", str(process.pid)], capture_output=True, text=True).stdout
    (worker,) = map(int, found.split())
    os.kill(worker, signal.SIGKILL)
    process.communicate(timeout=60)
    assert process.returncode != 0
    all_end(str(out))
    again = run(command(out, torchrun=True))
    for name in ("model_sha256", "metrics", "layers", "best_epoch", "epochs_run", "notes"):
        assert again[name] == whole[name], name
    assert (out / "metrics.csv").read_bytes() == (tmp_path / "whole" / "metrics.csv").read_bytes()
    assert run(command(out)) == again, "a finished run is read"
    all_end(str(tmp_path))
