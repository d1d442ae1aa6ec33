"""Run folders: nothing half there, clear errors for everything damaged, predictions for raw rows."""

from __future__ import annotations

import errno
import json
import multiprocessing
import os
import re
import shutil
import stat
import subprocess
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from filelock import FileLock
from torch import nn

from htaf._ground.files import OutputError, check_output, check_output_folder, sealed
from htaf.core.activations import HTAF, Heaviside
from htaf.data.preprocess import Preprocessor
from htaf.data.reading import DataError
from htaf.models.backbone_weights import read_weights
from htaf.models.build import build
from htaf.training import runs
from htaf.training.runs import (
    LOCK,
    Run,
    RunError,
    finish_run,
    forward,
    locked,
    open_run,
    read_record,
    start_run,
    write_atomic,
)
from htaf.training.runs.folder import claim
from htaf.training.runs.predictions import Joined, of_rows

IDENTITY: dict[str, Any] = {"recipe": {"method": "htaf", "lr": 0.1, "hidden": [6]}, "seed": 0, "data": {"name": "made"}}
ROWS = pd.DataFrame({"a": np.linspace(0, 10, 24), "b": [1.0, 5.0, 2.0] * 8, "kind": ["x", "y", "z", "x"] * 6})


def make_run(path: Path, task: Any = "classification", method: str = "htaf") -> Run:
    """A run folder without any training: fresh weights are as good as trained ones here."""
    target = np.arange(24) % 3 if task == "classification" else np.linspace(100.0, 200.0, 24)
    preprocessor = Preprocessor.fit(
        ROWS, target, task=task, target_name="t", classes=("no", "yes", "maybe") if task == "classification" else ()
    )
    activation = {"method": "htaf", "alpha0": 2.0, "alpha1": 11.0} if method == "htaf" else {"method": method}
    model = {"kind": "mlp", "in_features": 5, "out_features": 3 if task == "classification" else 1, "hidden": [6]}
    model |= {"batch_norm": True, "activation": activation}
    torch.manual_seed(0)
    net = build(model).eval()
    identity = IDENTITY | {"recipe": IDENTITY["recipe"] | {"method": method}}
    record = start_run(path, identity) | {"model": model, "metrics": {}}
    record |= {"headline": "rmse", "rows": {}, "best_epoch": 0, "notes": []}
    return finish_run(path, record, net, preprocessor)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "classes"
    make_run(path)
    return path


@pytest.fixture(scope="module")
def regression(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "numbers"
    make_run(path, "regression")
    return path


@pytest.fixture
def copy(finished: Path, tmp_path: Path) -> Path:
    """A run that a test may damage."""
    return Path(shutil.copytree(finished, tmp_path / "run"))


# ---- writing ----


def test_write_atomic(tmp_path: Path) -> None:
    path = tmp_path / "new" / "file.txt"
    write_atomic(path, "é\n")
    assert path.read_bytes() == b"\xc3\xa9\n"
    write_atomic(path, b"\0\1")
    assert path.read_bytes() == b"\0\1"
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    assert [p.name for p in path.parent.iterdir()] == ["file.txt"]


@pytest.mark.parametrize("step", ["fsync", "chmod", "replace"])
def test_write_atomic_is_all_or_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    path = tmp_path / "file.txt"
    write_atomic(path, "old")

    def full(*args: object, **kwargs: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, step, full)
        with pytest.raises(OSError, match="No space left") as error:
            write_atomic(path, "new")
    assert error.value.filename == str(path), "the file that was wanted"
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["file.txt"]


def test_flushed_before_renamed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rename that reaches the disk before the content would leave an empty file after a power cut."""
    calls: list[str] = []
    for name in ("fsync", "replace"):
        original = getattr(os, name)
        monkeypatch.setattr(os, name, lambda *a, n=name, f=original: (calls.append(n), f(*a))[1])
    write_atomic(tmp_path / "file.txt", "new")
    assert calls == ["fsync", "replace"]


# ---- claiming a folder ----


def test_start_run_claims_and_finds(tmp_path: Path) -> None:
    record = start_run(tmp_path / "run", IDENTITY)
    assert record["status"] == "running"
    assert {"versions", "commit", "platform", "threads", "key", "recipe", "seed", "data"} <= record.keys()
    assert start_run(tmp_path / "run", IDENTITY) == record


def test_a_record_names_the_commit_of_this_tree(tmp_path: Path) -> None:
    root = Path(__file__).parents[1]
    if not (root / ".git").exists():
        pytest.skip("no clone")
    head = subprocess.run(["git", "-C", root, "rev-parse", "HEAD"], capture_output=True, text=True, check=True)
    assert start_run(tmp_path / "run", IDENTITY)["commit"].removesuffix("+changes") == head.stdout.strip()


def test_another_run_is_named(tmp_path: Path) -> None:
    start_run(tmp_path, IDENTITY)
    other = IDENTITY | {"recipe": IDENTITY["recipe"] | {"lr": 0.5}, "seed": 3}
    with pytest.raises(RunError, match=r"recipe.lr: 0.1 there, 0.5 here; seed: 0 there, 3 here.*choose another folder"):
        start_run(tmp_path, other)


def test_other_files_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(RunError, match="new or empty folder"):
        start_run(tmp_path, IDENTITY)
    with pytest.raises(RunError, match="new or empty folder"):
        start_run(tmp_path / "thesis.tex", IDENTITY)
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.tex"]


def test_what_a_kill_left_does_not_block_the_folder(tmp_path: Path) -> None:
    """A process killed inside `write_atomic` cannot remove its temporary file."""
    (tmp_path / ".record.json.k3j2").write_text("{")
    assert start_run(tmp_path, IDENTITY)["status"] == "running"
    for name in (".record.json.a", ".model.safetensors.b", ".metrics.csv.c", ".preprocessing.json.d"):
        (tmp_path / name).write_text("half")
    make_run(tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["model.safetensors", "preprocessing.json", "record.json"]


# ---- opening ----


def test_a_finished_run_opens(finished: Path) -> None:
    run = open_run(str(finished))
    assert run.path == finished
    assert run.record["status"] == "finished"
    assert run.has_step
    exact, smooth = run.model(), run.model(exact=False)
    assert sum(isinstance(m, Heaviside) for m in exact.modules()) == 1
    assert [m.alphas for m in smooth.modules() if isinstance(m, HTAF)] == [(2.0, 11.0)]
    assert not exact.training
    assert not smooth.training
    for name, value in smooth.state_dict().items():
        assert torch.equal(value, exact.state_dict()[name])


def test_a_smooth_network_with_weights_of_its_own(finished: Path, tmp_path: Path) -> None:
    before = open_run(finished)
    exact, smooth = before.model(exact=False), before.model(exact=False)
    with torch.no_grad():
        exact.get_parameter("head.bias").add_(1.0)
    path = tmp_path / "run"
    record = start_run(path, IDENTITY) | {k: before.record[k] for k in ("model", "metrics", "headline", "rows")}
    record |= {"best_epoch": 0, "notes": []}
    made = finish_run(path, record, exact, before.preprocessor(), smooth=smooth)
    assert made.record["smooth_sha256"] == before.record["model_sha256"]
    run = open_run(path)
    assert run.has_own_smooth
    assert not before.has_own_smooth
    for network, kind in ((exact, True), (smooth, False)):
        found = run.model(exact=kind).state_dict()
        assert all(torch.equal(value, found[name]) for name, value in network.state_dict().items())
    assert torch.equal(read_weights(path)["head.bias"], smooth.get_parameter("head.bias"))
    flip(path / "smooth.safetensors")
    with pytest.raises(RunError, match=r"smooth.safetensors is damaged: its SHA-256 differs"):
        open_run(path)
    finish_run(path, record, smooth, before.preprocessor())
    assert not (path / "smooth.safetensors").exists(), "of another network"
    assert not open_run(path).has_own_smooth


def test_a_real_valued_run_has_no_step(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", method="relu")
    assert not run.has_step
    assert any(isinstance(m, torch.nn.ReLU) for m in run.model().modules())


def edit(change: Callable[[dict[str, Any]], Any]) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        record = json.loads((path / "record.json").read_text())
        change(record)
        (path / "record.json").write_text(sealed(record))

    return damage


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda path: (path / "record.json").unlink(), "expected a run folder with record.json, found none"),
        (lambda path: (path / "record.json").write_text('{"format": 1,'), "record.json is damaged"),
        (lambda path: (path / "record.json").write_text("[]"), "expected format 4, got list"),
        (edit(lambda record: record.update(format=99)), "expected format 4, got 99"),
        (edit(lambda record: record.update(status="running")), "not finished: run the same train command again"),
        (edit(lambda record: record.update(model=None)), "expected model to be an object, got None"),
        (edit(lambda record: record.pop("model_sha256")), "it lacks model_sha256"),
        (edit(lambda record: [record.pop("seed"), record.pop("metrics")]), "it lacks metrics, seed"),
        (edit(lambda record: record["recipe"].pop("method")), "expected recipe.method to be a known method, got None"),
        (edit(lambda record: record.update(seed=True)), "expected seed to be a whole number, got True"),
        (edit(lambda record: record.update(threads=10**6)), "expected threads to be a number in 1 to 1024"),
        (
            edit(lambda record: record.update(source={"size": "9"})),
            "expected source.size to be a whole number, got '9'",
        ),
        (edit(lambda record: record.update(notes=[1])), r"expected notes to be a list of texts and notes, got \[1\]"),
        (edit(lambda record: record.update(metrics={"smooth": 1})), "expected metrics to be figures by network"),
        (lambda path: (path / "record.json").write_text("[" * 10**5), "record.json is damaged: expected at most 100"),
        (lambda path: (path / "record.json").write_text('{"format": NaN}'), "is damaged: expected finite numbers"),
        (lambda path: (path / "record.json").write_text("9" * 999), "is damaged: expected whole numbers of 64 bits"),
        (lambda path: (path / "record.json").write_text('"\\ud800"'), "is damaged: .*surrogates not allowed"),
    ],
)
def test_records_that_cannot_be_read(copy: Path, damage: Callable[[Path], Any], words: str) -> None:
    damage(copy)
    with pytest.raises(RunError, match=words):
        open_run(copy)


def test_no_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for path in (tmp_path / "nowhere", tmp_path, tmp_path / "file"):
        with pytest.raises(RunError, match=f"found none at {re.escape(str(path))}"):
            open_run(path)
        assert read_record(path) is None


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-5] ^= 1  # inside the last tensor: the file still parses
    path.write_bytes(data)


@pytest.mark.parametrize("name", ["model.safetensors", "preprocessing.json"])
@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda file: file.write_bytes(file.read_bytes()[:-100]), "is damaged: its SHA-256 differs"),
        (flip, "is damaged: its SHA-256 differs"),
        (lambda file: file.write_bytes(b""), "is damaged: its SHA-256 differs"),
        (lambda file: file.unlink(), "is missing, .*: put back a copy of it, or delete .* and run the same command"),
    ],
)
def test_damaged_files(copy: Path, name: str, damage: Callable[[Path], Any], words: str) -> None:
    damage(copy / name)
    with pytest.raises(RunError, match=f"{name} {words}"):
        open_run(copy)


@pytest.mark.parametrize(
    "change",
    [
        lambda record: record["model"].update(hidden=[7]),
        lambda record: record["model"].update(hidden=[10**9, 10**9]),
        lambda record: record["model"].update(hidden=[1] * 10**5),
        lambda record: record["model"].update(activation={"method": "ss"}),
        lambda record: record["model"].pop("batch_norm"),
        lambda record: record["model"]["activation"].update(alpha0=-1.0),
    ],
)
def test_weights_that_do_not_fit_the_record(copy: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    edit(change)(copy)
    with pytest.raises(RunError, match=r"model.safetensors cannot be read: "):
        open_run(copy).model()


def test_a_changed_figure_is_told(copy: Path) -> None:
    file = copy / "record.json"
    text = file.read_text()
    for was, now in (('"seed": 0', '"seed": 1'), ('"lr": 0.1', '"lr": 0.3'), ('"headline"', '"headlinf"')):
        assert was in text
        file.write_text(text.replace(was, now, 1))
        with pytest.raises(RunError, match=r"record.json was changed or is damaged: .*; put back a copy of it"):
            open_run(copy)
    file.write_text(sealed(json.loads(text)))
    assert file.read_text() == text


def test_an_edited_kind_is_told(copy: Path) -> None:
    edit(lambda record: record["model"].update(kind="cnn"))(copy)
    with pytest.raises(RunError, match=r"record.json is damaged: expected model.kind to be one of mlp, .*got 'cnn'"):
        open_run(copy)


# ---- predicting ----


def test_classification(finished: Path) -> None:
    rows = ROWS.set_index(np.arange(100, 124))
    frame = open_run(finished).predict(rows)
    names = ["probability_no", "probability_yes", "probability_maybe"]
    assert list(frame.columns) == ["prediction", *names]
    assert list(frame.index) == list(range(100, 124))
    probabilities = frame[names].to_numpy(float)
    np.testing.assert_allclose(probabilities.sum(1), 1, atol=1e-12)
    assert frame["prediction"].tolist() == [["no", "yes", "maybe"][i] for i in probabilities.argmax(1)]
    assert frame["prediction"].nunique() > 1  # otherwise the line above says little


def test_regression_is_in_the_units_of_the_target(regression: Path) -> None:
    run = open_run(regression)
    outputs = forward(run.model(), torch.from_numpy(run.preprocessor().transform(ROWS)))[:, 0].double().numpy()
    target = np.linspace(100.0, 200.0, 24)
    frame = run.predict(ROWS)
    assert list(frame.columns) == ["prediction"]
    np.testing.assert_allclose(frame["prediction"], target.mean() + target.std() * outputs, rtol=1e-12)


def test_prediction_of_a_row_does_not_depend_on_the_others(finished: Path) -> None:
    run = open_run(finished)
    whole, one = run.predict(ROWS), run.predict(ROWS.iloc[[7]])
    np.testing.assert_allclose(one.iloc[0, 1:].to_numpy(float), whole.iloc[7, 1:].to_numpy(float), atol=1e-6)


@pytest.mark.parametrize("which", ["finished", "regression"])
def test_no_rows(which: str, request: pytest.FixtureRequest) -> None:
    run = open_run(request.getfixturevalue(which))
    frame = run.predict(ROWS.iloc[:0])
    assert len(frame) == 0
    assert list(frame.columns) == list(run.predict(ROWS).columns)


@pytest.mark.parametrize("some", [slice(None, 1), (slice(None), slice(None, 1))], ids=["rows", "columns"])
def test_outputs_that_do_not_fit_the_preprocessing(finished: Path, some: Any) -> None:
    run = open_run(finished)
    preprocessor, model = run.preprocessor(), run.model()
    assert isinstance(preprocessor, Preprocessor)

    class Some(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return model(x)[some]

    with pytest.raises(DataError, match=rf"expected a network with outputs \[{len(ROWS)} rows, "):
        of_rows(Some(), preprocessor, ROWS)


def test_exact_is_the_default_and_differs_from_smooth(finished: Path) -> None:
    run = open_run(finished)
    exact, smooth = run.predict(ROWS), run.predict(ROWS, exact=False)
    pd.testing.assert_frame_equal(run.predict(ROWS, exact=True), exact)
    assert not np.allclose(exact.iloc[:, 1:].to_numpy(float), smooth.iloc[:, 1:].to_numpy(float))


def test_forward_in_chunks_is_forward_at_once() -> None:
    model, x = torch.nn.Linear(3, 2), torch.randn(50, 3)
    assert torch.allclose(forward(model, x, chunk=7), model(x), atol=1e-6)
    assert not forward(model, x).requires_grad


def test_who_takes_a_folder_as_it_is_released_keeps_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The release of one must not take away the name of a lock that another holds by then."""
    other, release = FileLock(tmp_path / LOCK, timeout=0), FileLock.release

    def released(lock: FileLock, *args: Any, **options: Any) -> None:
        release(lock, *args, **options)
        if lock is not other:
            other.acquire()

    with monkeypatch.context() as patched:
        patched.setattr(FileLock, "release", released)
        with locked(tmp_path, "another process writes"):
            pass
    assert other.is_locked
    with pytest.raises(RunError, match="another process writes"), locked(tmp_path, "another process writes"):
        pass
    other.release()


def _enter(folder: Path, until: float, counts: Any) -> None:
    entered = overlaps = 0
    while entered < 80 and time.monotonic() < until:
        try:
            with locked(folder, "another process writes"):
                entered += 1
                try:
                    os.close(os.open(folder / "inside", os.O_CREAT | os.O_EXCL))
                except FileExistsError:
                    overlaps += 1
                else:
                    (folder / "inside").unlink()
        except RunError:
            pass
    counts.put((entered, overlaps))


def test_no_two_processes_are_inside_at_once(tmp_path: Path) -> None:
    fork = multiprocessing.get_context("fork")  # nothing to import: all of the time is contention
    counts, until = fork.Queue(), time.monotonic() + 20.0
    children = [fork.Process(target=_enter, args=(tmp_path, until, counts)) for _ in range(4)]
    for child in children:
        child.start()
    found = [counts.get(timeout=60) for _ in children]
    for child in children:
        child.join()
    assert all(entered for entered, _ in found)
    assert sum(overlaps for _, overlaps in found) == 0
    assert list(tmp_path.iterdir()) == []


def test_a_busy_folder_names_its_holder(tmp_path: Path) -> None:
    held = rf"in {re.escape(str(tmp_path))} \(process {os.getpid()} on \S+\): wait for it, or choose another folder"
    study = partial(locked, tmp_path, "another study runs in")
    with study(), pytest.raises(RunError, match=held), study():
        pass


def test_a_training_that_fails_before_it_has_begun_leaves_nothing(tmp_path: Path) -> None:
    out = tmp_path / "new" / "run"

    def fail(after: str = "") -> None:
        with claim(out, IDENTITY):
            (out / "logs").mkdir(exist_ok=True)
            if after:
                write_atomic(out / "checkpoints" / after, "weights")
            raise RunError("no key")

    with pytest.raises(RunError, match="no key"):
        fail()
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(RunError, match="no key"):
        fail("epoch-1.ckpt")
    assert read_record(out) is not None, "there is something to go on from"
    with pytest.raises(RunError, match="no key"):
        fail()
    assert (out / "checkpoints" / "epoch-1.ckpt").is_file()


HARM = [
    ("outcomes.jsonl", "study", "cells/0/record.json"),
    (".htaf-explorer", "page", "data/page.js"),
    ("scores.json", "folder of scores", "scores.json"),
    ("record.json", "run", "checkpoints/epoch-1.ckpt"),
    ("concepts.json", "folder of codes", "head.safetensors"),
]


@pytest.mark.parametrize(("mark", "kind", "name"), HARM)
def test_folders_that_a_verb_writes(tmp_path: Path, mark: str, kind: str, name: str) -> None:
    folder = tmp_path / "made"
    folder.mkdir()
    check_output(folder / name)
    (folder / mark).write_text("")
    (folder / "cells").mkdir()
    with pytest.raises(OutputError, match=f"is a file of the {kind} in {re.escape(str(folder))}: choose another file"):
        check_output(folder / name)
    check_output(folder / "predictions.csv")
    check_output(folder / "mine" / "predictions.csv")
    with pytest.raises(OutputError, match=f"expected a folder of its own, .* holds a {kind}"):
        check_output_folder(folder)
    check_output_folder(folder, own=kind)
    check_output_folder(folder / "mine")
    if "/" in name:
        with pytest.raises(OutputError, match=f"is a folder of the {kind} in"):
            check_output_folder((folder / name).parent)


def test_a_run_in_a_study_is_its_own(tmp_path: Path) -> None:
    for file in ("outcomes.jsonl", "cells/0/run/record.json"):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text("")
    run = tmp_path / "cells" / "0" / "run"
    check_output(run / "net.packed")
    with pytest.raises(OutputError, match="is a file of the run in"):
        check_output(run / "metrics.csv")
    with pytest.raises(OutputError, match="is a folder of the study in"):
        check_output_folder(tmp_path / "cells" / "scores")


def test_outputs_that_would_do_harm(finished: Path, tmp_path: Path) -> None:
    table = tmp_path / "own.csv"
    table.write_text("a\n1\n")
    (tmp_path / "link.csv").symlink_to(table)
    os.link(table, tmp_path / "hard.csv")
    for out in (table, tmp_path / "link.csv", tmp_path / "hard.csv", finished / ".." / finished.name / ".." / "x.csv"):
        given = [finished, table, finished.parent / "x.csv"]
        with pytest.raises(OutputError, match="is the same file as the input"):
            check_output(out, given)
    (tmp_path / "away").symlink_to(finished)
    for out in (finished / "record.json", finished / "MODEL.safetensors", tmp_path / "away" / "metrics.csv"):
        with pytest.raises(OutputError, match="is a file of the run in"):
            check_output(out)
    (tmp_path / "late").symlink_to(finished / "metrics.csv")
    with pytest.raises(OutputError, match="is a file of the run in"):
        check_output(tmp_path / "late")
    for out, said in (
        (tmp_path, "must be a file"),
        (Path("."), "must be a file"),
        (table / "x.csv", "is a file"),
        (Path("a\0b"), "null character"),
        (tmp_path / ("n" * 300), "at most 239 bytes"),
    ):
        with pytest.raises(OutputError, match=said):
            check_output(out)
    check_output(tmp_path / "new.csv", [Path("a\0b")])  # what is read is checked by who reads it
    with pytest.raises(OutputError, match="null character"), locked(Path("a\0b"), "another process writes"):
        pass
    check_output(finished / "predictions.csv", [table])
    check_output(tmp_path / "not" / "there" / "yet.csv", [table])
    with pytest.raises(OutputError, match="holds a run"):
        check_output_folder(finished)
    with pytest.raises(OutputError, match="same folder as the input"):
        check_output_folder(tmp_path, [tmp_path / "." / ".." / tmp_path.name])
    with pytest.raises(OutputError, match="is a file"):
        check_output_folder(table)
    with pytest.raises(runs.RunError, match="null character"):
        runs.read_record(Path("a\0b"))


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(OutputError, match="cannot be written"):
        check_output(tmp_path / "new" / "out.csv")


@pytest.mark.parametrize("rows", [0, 5, 13, 40])
def test_results_joined_as_they_come(rows: int) -> None:
    parts = [torch.randn(4, 3), torch.randn(1, 3), torch.randn(8, 3)]
    found = Joined(rows)
    for part in parts:
        found.add(part)
    assert torch.equal(found.whole(), torch.cat(parts))
    codes = Joined(rows)
    codes.add(torch.tensor([1, 2]))
    assert (codes.whole().dtype, codes.whole().tolist()) == (torch.int64, [1, 2])
