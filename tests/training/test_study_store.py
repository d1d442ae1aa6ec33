"""Studies on a store: the same report as without one, by workers that come and go."""

from __future__ import annotations

import dataclasses
import errno
import re
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from htaf.training import coordinator
from htaf.training.coordinator import coordinated
from htaf.training.plan import Source
from htaf.training.queue import Leasing, Owner, Queue, Task, queues
from htaf.training.report import differing
from htaf.training.results import Results, StudyError
from htaf.training.store import open_store
from htaf.training.study import TRAINING, Cell, run_study
from htaf.training.worker import Work, WorkerError, compute_all
from made_cells import KINDS, made
from made_trainings import small_plan, timeless, write_csv

LEASING = Leasing(0.2, 5.0)


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Helper:
    """A worker in a thread of this process, as one on another machine."""

    def __init__(self, work: Work) -> None:
        self.found: Counter[str] = Counter()
        self.error: Exception | None = None
        self.notes: list[str] = []
        self._work = work
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.found = compute_all(self._work, lambda what, text: self.notes.append(text))
        except Exception as error:
            self.error = error

    def join(self) -> Helper:
        self._thread.join(600)
        assert not self._thread.is_alive()
        return self


@pytest.mark.slow
def test_the_report_is_that_without_a_store(tmp_path: Path) -> None:
    """One machine plans, another one trains; planned again, nothing is computed."""
    write_csv(tmp_path / "left" / "made.csv")
    write_csv(tmp_path / "right" / "made.csv")
    store, plan = f"journal:{tmp_path / 'a.journal'}", small_plan()
    options = {"data_dir": str(tmp_path / "left"), "store": store, "workers": 0, "leasing": LEASING}
    helper = Helper(Work(store, data_dir=str(tmp_path / "right"), work=tmp_path / "work", wait=False, leasing=LEASING))
    helper.join()
    assert "there is no store" in str(helper.error)
    open_store(store)
    found: list[Any] = []
    planning = threading.Thread(target=lambda: found.append(run_study(plan, tmp_path / "out", **options)))
    planning.start()
    while not any(queue.busy(Owner("c")) for queue in queues(open_store(store)).values()):
        planning.join(0.1)
    helper = Helper(Work(store, data_dir=str(tmp_path / "right"), work=tmp_path / "work", leasing=LEASING)).join()
    planning.join(600)
    assert helper.error is None
    assert helper.found == {"computed": 6}  # three candidates, two splits of each row; split 0 of relu was a candidate
    (report,) = found
    plain = run_study(plan, tmp_path / "plain", data_dir=str(tmp_path / "left"))
    assert timeless(report) == timeless(plain)
    assert (tmp_path / "out" / "report.md").exists()
    assert run_study(plan, tmp_path / "out", **options) == report
    assert not list((tmp_path / "work").rglob("*.json"))


def task_of(tmp_path: Path, **source: Any) -> tuple[Cell, Task]:
    cell = Cell(small_plan().base, 0, Source("made.csv", target="y", **source), data_dir=str(tmp_path / "left"))
    return cell, TRAINING.task(cell, cell.key(), keep=False)


def filled(tmp_path: Path, tasks: list[Task]) -> Queue:
    store = open_store(str(tmp_path / "store"))
    results = Results(tmp_path / "out")
    queue = Queue.made(store, "s", {"results": results.place, "token": results.token("t")}, LEASING)
    queue.put(tasks)
    return queue


def worked(queue: Queue, tmp_path: Path, data: str, **more: Any) -> Counter[str]:
    own = {"work": tmp_path / "work", "leasing": LEASING, "kinds": KINDS, "data_dir": data} | more
    return compute_all(Work(queue.store.address, **own))


def test_data_that_differ_are_named_and_the_cell_goes_back(tmp_path: Path) -> None:
    write_csv(tmp_path / "left" / "made.csv")
    write_csv(tmp_path / "right" / "made.csv", rows=61)
    _, task = task_of(tmp_path)
    queue = filled(tmp_path, [task])
    for folder, words in (
        (tmp_path / "right", r"made.csv differ: expected 60 rows with .*, got 61 rows with .*right"),
        (tmp_path / "none", r"no such file"),
    ):
        assert worked(queue, tmp_path, str(folder)) == {"given back": 1}
        reasons = queue.overview().refused.values()
        assert any(re.search(words, reason) for reason in reasons), reasons
    assert worked(queue, tmp_path, str(tmp_path / "left")) == {"computed": 1}
    assert queue.counts() == {"given back": 2, "computed": 1}


def test_a_payload_that_names_code_is_refused(tmp_path: Path) -> None:
    write_csv(tmp_path / "left" / "made.csv")
    _, task = task_of(tmp_path)
    recipe = task.payload["recipe"] | {"method": "os:system"}
    bad = [
        dataclasses.replace(task, key="a", payload=task.payload | {"recipe": recipe}),
        dataclasses.replace(task, key="b", payload=task.payload | {"source": 5}),
        dataclasses.replace(task, key="c", payload={}),
    ]
    queue = filled(tmp_path, bad)
    assert worked(queue, tmp_path, str(tmp_path / "left")) == {"failed": 3}
    failed = queue.overview().failed
    assert "expected a method of htaf in a store, got the code os:system" in failed["a"]
    assert "a cell that is damaged" in failed["b"]
    assert "a cell that is damaged" in failed["c"]


def test_a_full_disk_stops_one_worker_alone(tmp_path: Path) -> None:
    queue = filled(tmp_path, made(3, full="here"))
    with pytest.raises(WorkerError, match=r"No space left on device; the cell goes back for another machine"):
        worked(queue, tmp_path, "here")
    assert len(queue.overview().waiting) == 3
    assert worked(queue, tmp_path, "elsewhere") == {"computed": 3}


def test_a_full_disk_of_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    queue, real, left = filled(tmp_path, made(2)), Results.write, [1]

    def full(self: Results, key: str, record: dict[str, Any]) -> bool:
        if left[0]:
            left[0] -= 1
            raise OSError(errno.ENOSPC, "No space left on device", self.named(key))
        return real(self, key, record)

    monkeypatch.setattr(Results, "write", full)
    with pytest.raises(WorkerError, match=r"cells/k\d.json: No space left on device"):
        worked(queue, tmp_path, "x")
    assert worked(queue, tmp_path, "x") == {"computed": 2}


def test_results_of_another_study_and_damaged_ones(tmp_path: Path) -> None:
    queue = filled(tmp_path, made(1))
    Results(tmp_path / "other").token("another")
    with pytest.raises(StudyError, match=r"another study than the queue"):
        worked(queue, tmp_path, "x", results=str(tmp_path / "other"))
    assert len(queue.overview().waiting) == 1
    (tmp_path / "out" / "cells").mkdir()
    (tmp_path / "out" / "cells" / "k0.json").write_text("{")
    assert worked(queue, tmp_path, "x") == {"failed": 1}
    assert "k0.json is damaged: delete it" in queue.overview().failed["k0"]
    assert (tmp_path / "out" / "cells" / "k0.json").read_text() == "{"


def test_a_store_that_knows_nothing_of_a_finished_study(tmp_path: Path) -> None:
    """The results stay, and the change of store is said."""
    said: list[str] = []

    def tell(what: str, text: str) -> None:
        said.append(text)

    results = Results(tmp_path / "out")
    for name in ("first", "second", "second"):
        work = Work(str(tmp_path / name), kinds=KINDS, work=tmp_path / "work", leasing=LEASING)
        with coordinated(work, "s", results, {}, 0, tell):
            pass
        assert len(said) == (name == "second")
    assert "has nothing of this study yet; what is finished in" in said[0]


def test_a_worker_says_what_it_waits_for(tmp_path: Path) -> None:
    queue = filled(tmp_path, made(1))
    lease = queue.claim(Owner("a", pid=7, host="left"))  # of a worker that was killed
    assert lease is not None
    lease.beat()
    helper = Helper(Work(queue.store.address, work=tmp_path / "work", leasing=LEASING, kinds=KINDS)).join()
    assert helper.found == {"computed": 1}
    assert len(helper.notes) == 2
    assert helper.notes[0].startswith("no cell is free; 1 cell is with process 7 on left: waiting, and taking over")
    assert helper.notes[1].startswith("cell 0: ")


def test_failures_and_a_second_call(tmp_path: Path) -> None:
    work = Work(str(tmp_path / "store"), kinds=KINDS, work=tmp_path / "work", leasing=LEASING)
    results, tasks = Results(tmp_path / "out"), [*made(2), Task("k9", "made", {"number": 9, "fails": "too few rows"})]
    for _ in range(2):  # the second one tries again what failed
        with coordinated(work, "s", results, {}, 0, lambda what, text: None) as study:
            helper = Helper(dataclasses.replace(work, only="s", run="other"))
            records, failures = study.compute(tasks)
        helper.join()
        assert records == {"k0": {"square": 0}, "k1": {"square": 1}}
        assert failures == {"k9": "ValueError: too few rows"}
    assert helper.found == {"failed": 1}


def test_what_is_under_way_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The log of a job tells of cells that take long before the first one ends."""
    monkeypatch.setattr(coordinator, "QUIET", 0.05)
    work = Work(str(tmp_path / "store"), kinds=KINDS, work=tmp_path / "work", leasing=LEASING)
    tasks = made(1, log=str(tmp_path / "log"), seconds=1.0)
    with coordinated(work, "s", Results(tmp_path / "out"), {}, 0, lambda what, text: None) as study:
        helper = Helper(dataclasses.replace(work, only="s", run="other"))
        study.compute(tasks, progress=True, title="made")
    helper.join()
    lines = [re.sub(r" in [^;]*", "", line) for line in capsys.readouterr().err.splitlines()]
    assert lines == ["made, cells: 0 of 1; under way: cell 0", "made, cells: 1 of 1; cell 0"]


def test_a_second_write_is_counted(tmp_path: Path) -> None:
    """The lease was taken while this worker slept, and another one was faster."""
    queue = filled(tmp_path, made(1, log=str(tmp_path / "log"), until=str(tmp_path / "go")))
    slow = Helper(Work(queue.store.address, work=tmp_path / "a", leasing=LEASING, kinds=KINDS))
    while not (tmp_path / "log").exists():
        slow._thread.join(0.05)
    (trial,) = queue.trials()
    assert queue._expire(trial)
    assert Results(tmp_path / "out").write("k0", {"square": 0})
    (tmp_path / "go").touch()
    slow.join()
    assert slow.found == {"found": 2, "lost": 1}
    assert any("another worker had taken this cell" in note for note in slow.notes)


def test_versions_that_differ_are_said() -> None:
    one = {"versions": {"torch": "2.13.0", "python": "3.11"}, "platform": "a", "commit": "c", "threads": 1, "cells": 3}
    other = one | {"versions": {"torch": "2.12.0", "python": "3.11"}, "platform": "b"}
    assert differing({"measured": [one]}) == []
    assert differing({"measured": [one, other]}) == ["version of torch (2.12.0, 2.13.0)", "platform (a, b)"]


def test_the_command(htaf: Any, tmp_path: Path) -> None:
    address = tmp_path / "a.journal"
    worker = ("study", "worker", "--store", address)
    code, _, told = htaf(*worker)
    assert (code, "there is no store at" in told, "htaf study PLAN --store" in told) == (1, True, True)
    assert not address.exists()
    address.touch()
    assert htaf(*worker)[:2] == (0, "no cell waits\n")
    for words, expected in (
        ((*worker, "--heartbeat", "60"), "a time-out of at least three heartbeats, got 60 s and 90 s"),
        ((*worker, "--workers", "0"), "must be >= 1, got 0"),
        (("study", "tabular", "--out", tmp_path / "o", "--workers", "0"), "or with --store --workers 0"),
        (("study", "tabular", "--out", tmp_path / "o", "--results", "x"), "--results and --work need --store"),
    ):
        code, _, told = htaf(*words)
        assert (code, expected in told) == (2, True), told
    write_csv(tmp_path / "data" / "made.csv")
    (tmp_path / "plan.toml").write_text(
        'candidates = 1\nsplits = 1\ndata = [{name = "made.csv", target = "y"}]\n'
        "[recipe]\nhidden = [4]\nepochs = 1\n[methods.relu]\nlr = [0.01]\n"
    )
    own = ("--data-dir", tmp_path / "data", "--storage", tmp_path / "store", "--workers", "0")
    plan = ("study", tmp_path / "plan.toml", "--out", tmp_path / "out", *own, "--heartbeat", "0.2", "--timeout", "5")
    stopping = threading.Event()

    def help_until_told() -> None:
        open_store(str(tmp_path / "store"))
        while not stopping.wait(0.1):
            compute_all(Work(str(tmp_path / "store"), data_dir=str(tmp_path / "data"), work=tmp_path / "work"))

    helper = threading.Thread(target=help_until_told)
    helper.start()
    code, out, told = htaf(*plan)
    stopping.set()
    helper.join()
    assert code == 0, told
    assert "| made | rmse | relu |" in out
