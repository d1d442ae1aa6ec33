"""Workers on every store, killed at random, their server restarted: the same results, and nothing computed twice but
what was in flight."""

from __future__ import annotations

import contextlib
import multiprocessing
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from htaf.training.coordinator import coordinated
from htaf.training.queue import Leasing, Owner, Queue
from htaf.training.results import Results
from htaf.training.store import open_store
from htaf.training.study import run_study
from htaf.training.worker import Work, compute_all, leave_with_parent
from made_cells import KINDS, made
from made_stores import Postgres, Proxy, postgres
from made_trainings import LOGGED, small_plan, timeless, write_csv

LEASING = Leasing(0.5, 6.0)
CELLS, WORKERS, KILLS = 32, 4, 5


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    with postgres() as one:
        yield one


@contextlib.contextmanager
def store_of(kind: str, folder: Path, request: pytest.FixtureRequest) -> Iterator[tuple[str, Callable[[], None]]]:
    """A store's address, and what restarts its server."""
    if kind == "journal":
        yield f"journal:{folder / 'store.journal'}", lambda: None
        return
    if kind == "folder":
        yield str(folder / "store"), lambda: None
        return
    server: Postgres = request.getfixturevalue("server")
    if kind == "postgres":

        def restart() -> None:
            server.stop()
            time.sleep(1.0)
            server.start()

        yield server.fresh(), restart
        return
    proxy = Proxy(server.fresh())

    def restart_proxy() -> None:
        proxy.stop()
        time.sleep(1.0)
        proxy.start()

    try:
        yield proxy.address, restart_proxy
    finally:
        proxy.stop()


def serve(work: Work) -> None:
    """A worker process."""
    leave_with_parent()
    compute_all(work)


class Crowd:
    """Worker processes that are killed at random."""

    def __init__(self, work: Work, seed: int) -> None:
        self._context = multiprocessing.get_context("forkserver")  # starts at once: all is imported there
        self._context.set_forkserver_preload(["made_trainings", "made_cells", "optuna.storages", "grpc"])
        self._work, self._random, self.killed = work, random.Random(seed), list[int]()
        self.there = [self._start() for _ in range(WORKERS)]

    def _start(self) -> Any:
        process = self._context.Process(target=serve, args=(self._work,), daemon=True)
        process.start()
        return process

    def kill_one(self) -> None:
        one = self._random.randrange(len(self.there))
        self.there[one].kill()
        self.there[one].join()
        self.killed.append(self.there[one].pid)
        self.there[one] = self._start()

    def disturb(self, restart: Callable[[], None], log: Path, over: threading.Event) -> None:
        """Kills spread over the work, and one restart in the middle."""
        for count in range(KILLS):
            while not over.is_set() and (len(log.read_text().split("\n")) if log.exists() else 0) < 3 + 4 * count:
                time.sleep(0.05)
            time.sleep(self._random.uniform(0.0, 0.3))
            if over.is_set():
                return  # fewer kills than expected, which the tests refuse
            self.kill_one()
            if count == KILLS // 2:
                restart()

    def end(self) -> None:
        for process in self.there:
            process.kill()
            process.join()


def computed(log: Path, killed: list[int]) -> set[str]:
    """The keys in a log; none twice, but where the process that had it was killed."""
    begun: dict[str, list[int]] = {}
    for line in log.read_text().splitlines():
        key, pid = line.split()
        begun.setdefault(key, []).append(int(pid))
    for key, pids in begun.items():
        assert set(pids[:-1]) <= {*killed}, f"{key} was computed twice: {pids}, killed {killed}"
    return {*begun}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["postgres", "journal", "grpc", "folder"])
def test_workers_are_killed_and_the_server_restarted(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    log, over = tmp_path / "log", threading.Event()
    tasks = made(CELLS, seconds=0.3, log=str(log))
    with store_of(kind, tmp_path, request) as (address, restart):
        work = Work(address, kinds=KINDS, leasing=LEASING, work=tmp_path / "work", patience=120.0, wait=True)
        crowd: Crowd | None = None
        try:
            with coordinated(work, "s", Results(tmp_path / "out"), {}, 0, lambda what, text: None) as coordinator:
                crowd = Crowd(work, seed=7)
                thread = threading.Thread(target=crowd.disturb, args=(restart, log, over))
                thread.start()
                records, failures = coordinator.compute(tasks)
                over.set()
                thread.join()
                counts = coordinator.queue.counts()
        finally:
            over.set()
            if crowd is not None:
                crowd.end()
    assert failures == {}
    assert records == {f"k{i}": {"square": i**2} for i in range(CELLS)}
    assert computed(log, crowd.killed) == {*records}
    assert len(crowd.killed) == KILLS
    assert counts["computed"] + counts["found"] >= CELLS
    assert counts["failed"] == 0


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["postgres", "journal", "grpc"])
def test_the_report_of_a_study_is_that_of_an_undisturbed_one(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Four processes train, some are killed, the server restarts once: every figure is that of one process alone."""
    write_csv(tmp_path / "data" / "made.csv")
    plan, data, work = small_plan(candidates=12, splits=8), str(tmp_path / "data"), tmp_path / "work"
    work.mkdir()
    over, restarts = threading.Event(), []
    with store_of(kind, tmp_path, request) as (address, restart):
        told = Work(address, data_dir=data, kinds=LOGGED, leasing=LEASING, work=work, patience=120.0, wait=True)
        crowd = Crowd(told, seed=11)
        thread = threading.Thread(target=crowd.disturb, args=(lambda: restarts.append(restart()), work / "log", over))
        try:
            thread.start()
            report = run_study(
                plan, tmp_path / "out", data_dir=data, store=address, workers=0, leasing=LEASING, patience=120.0
            )
            over.set()
            thread.join()
        finally:
            over.set()
            crowd.end()
    assert report["failures"] == []
    assert timeless(report) == timeless(run_study(plan, tmp_path / "plain", data_dir=data))
    assert len(crowd.killed) == KILLS
    assert len(restarts) == 1
    cells = {file.stem for file in (tmp_path / "out" / "cells").iterdir()}
    assert computed(work / "log", crowd.killed) == cells
    assert len(cells) == 12 + 2 * 8 - 1  # split 0 of the chosen candidate was trained in the search


def test_a_server_that_is_not_there_and_one_that_comes_back(server: Postgres) -> None:
    """Nothing is lost while it restarts; its database holds the queues of several studies."""
    store = open_store(server.fresh(), patience=60.0)
    first, second = (Queue.made(store, name, {"results": "x", "token": name}) for name in ("a", "b"))
    first.put(made(2))
    server.stop()
    told: list[str] = []
    store.tell = told.append
    again = threading.Timer(2.0, server.start)
    again.start()
    second.put(made(3))  # waits
    again.join()
    assert store.retries > 0
    assert "does not answer" in told[0]
    assert (len(first.overview().waiting), len(second.overview().waiting)) == (2, 3)
    lease = first.claim(Owner("a"))
    assert lease is not None
    assert lease.complete(1.0)


def test_the_proxy_has_a_deadline(server: Postgres, monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy that hangs is as one that is away; Optuna's client alone would wait for ever."""
    import os
    import signal

    from htaf.training import store as module

    proxy = Proxy(server.fresh())
    try:
        monkeypatch.setattr(module, "DEADLINE", 0.5)
        store = open_store(proxy.address, patience=1.0)
        queue = Queue.made(store, "a", {"results": "x", "token": "t"})
        assert queue.put(made(2)) == 2
        assert proxy.process.pid is not None
        os.kill(proxy.process.pid, signal.SIGSTOP)
        try:
            with pytest.raises(module.StoreError, match=r"has not answered for \d s \(DEADLINE_EXCEEDED"):
                queue.trials()
        finally:
            os.kill(proxy.process.pid, signal.SIGCONT)
        assert Counter(trial.state.name for trial in queue.trials()) == {"WAITING": 2}
    finally:
        proxy.stop()
