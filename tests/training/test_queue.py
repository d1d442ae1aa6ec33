"""The queue of a store: one winner of each claim, leases that end by the watcher's clock, nothing lost."""

from __future__ import annotations

import multiprocessing
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from optuna.trial import TrialState

from htaf.training.queue import DEATHS, Leasing, Owner, Queue, Task, Watch
from htaf.training.results import Results, StudyError
from htaf.training.store import Store, StoreError, open_store
from htaf.training.worker import Work, compute_all
from made_cells import KINDS, made

ABOUT = {"results": "x", "token": "t"}


@pytest.fixture(params=["folder", "journal"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path / "store") if request.param == "folder" else f"journal:{tmp_path / 'store.journal'}"


@pytest.fixture
def queue(address: str) -> Queue:
    return Queue.made(open_store(address), "s", ABOUT)


class Clock:
    """A clock that is moved by hand."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def claimed_by(address: str, start: Any, out: Any) -> None:
    """A process that claims all that it can; the first and last state change of each task belong to one process."""
    queue = Queue(open_store(address), "s")
    start.wait()
    owner, won = Owner("r"), []
    while (lease := queue.claim(owner)) is not None:
        won.append(lease.task.key)
        lease.complete(1.0)
    out.put(won)


def race(address: str, target: Callable[..., None], processes: int = 4) -> list[list[str]]:
    """What each of several processes got, which all begin at once."""
    context = multiprocessing.get_context("spawn")
    start, out = context.Barrier(processes), context.Queue()
    all_ = [context.Process(target=target, args=(address, start, out)) for _ in range(processes)]
    for process in all_:
        process.start()
    found = [out.get(timeout=300) for _ in all_]
    for process in all_:
        process.join()
    return found


def expired_by(address: str, start: Any, out: Any) -> None:
    """A process that takes every lease away."""
    queue = Queue(open_store(address), "s")
    trials = [trial for trial in queue.trials() if trial.state == TrialState.RUNNING]
    start.wait()
    out.put([trial.user_attrs["key"] for trial in trials if queue._expire(trial)])


@pytest.mark.slow
def test_each_task_is_claimed_once_by_processes(queue: Queue) -> None:
    queue.put(made(40))
    won = race(queue.store.address, claimed_by)
    assert Counter(key for one in won for key in one) == Counter(f"k{i}" for i in range(40))


@pytest.mark.slow
def test_each_lease_is_taken_away_once_by_processes(queue: Queue) -> None:
    queue.put(made(20))
    leases = [queue.claim(Owner("dead")) for _ in range(20)]
    assert None not in leases
    won = race(queue.store.address, expired_by)
    assert Counter(key for one in won for key in one) == Counter(f"k{i}" for i in range(20))
    assert len(queue.overview().waiting) == 20
    assert [trial.state for trial in queue.trials()].count(TrialState.WAITING) == 20


def test_put_claim_complete(queue: Queue) -> None:
    assert queue.put(made(3)) == 3
    assert queue.put(made(4)) == 1
    owner = Owner("a")
    lease = queue.claim(owner)
    assert lease is not None
    assert lease.task.payload == {"number": int(lease.task.key[1:])}
    with lease:
        now = queue.overview()
        assert (len(now.waiting), list(now.running)) == (3, [lease.task.key])
        assert str(owner) in now.running.values()
        assert lease.complete(1.0)
    assert not lease.complete(1.0)  # it has ended: the second time is noticed
    assert lease.lost.is_set()
    failing = queue.claim(owner)
    assert failing is not None
    failing.fail("too few rows")
    now = queue.overview()
    assert (now.done, now.failed) == ({lease.task.key}, {failing.task.key: "too few rows"})
    assert queue.overview(queue.ended()).failed == {}


def test_a_lease_ends_when_its_counter_stays(address: str) -> None:
    """By the watcher's own clock alone; a heartbeat in between begins anew."""
    store, clock = open_store(address), Clock()
    queue = Queue.made(store, "s", ABOUT)
    watcher = Queue(store, "s", Leasing(15, 90), clock=clock)
    queue.put(made(1))
    lease = queue.claim(Owner("a"))
    assert lease is not None
    lease.beat()
    for step in range(7):
        clock.now = 15.0 * step
        assert watcher.watch() == (step == 6)
        assert lease.complete(1.0) is False if step == 6 else True
    again = watcher.claim(Owner("b"))
    assert again is not None
    assert again.task == lease.task
    for step in range(7, 30):
        clock.now = 15.0 * step
        again.beat()
        assert watcher.watch() == 0
    assert again.complete(1.0)


def test_time_in_which_nobody_looked_does_not_count(queue: Queue) -> None:
    """A store that was away, or a watcher that slept for an hour: the owners could not move their counters."""
    clock = Clock()
    watch, trial = Watch(Leasing(15, 90), clock), None
    queue.put(made(1))
    lease = queue.claim(Owner("a"))
    assert lease is not None
    (trial,) = queue.trials()
    assert watch.stale([trial]) == []
    clock.now = 3600.0
    assert watch.stale([trial]) == []
    clock.now = 7200.0
    assert watch.stale([trial]) == []
    clock.now = 10800.0
    assert watch.stale([trial]) == [trial]


@pytest.mark.parametrize("hours", [1, -1])
def test_wrong_wall_clocks_change_nothing(queue: Queue, monkeypatch: pytest.MonkeyPatch, hours: int) -> None:
    """An hour ahead or behind where the task is claimed: the watcher reads no time that another wrote."""
    import datetime as module

    class Wrong(module.datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return module.datetime.now(tz) + module.timedelta(hours=hours)

    queue.put(made(2))
    for storage in ("optuna.storages._rdb.storage", "optuna.storages.journal._storage"):
        monkeypatch.setattr(f"{storage}.datetime", Wrong)
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + 3600 * hours)
    lease = queue.claim(Owner("a"))
    assert lease is not None
    lease.beat()
    monkeypatch.undo()
    watcher = Queue(queue.store, "s", Leasing(0.05, 0.3))
    assert watcher.watch() == 0
    assert watcher.watch() == 0
    assert lease.complete(1.0)


def test_who_kills_every_worker_fails(queue: Queue) -> None:
    queue.put(made(1))
    for death in range(DEATHS):
        assert queue.claim(Owner(f"r{death}")) is not None
        (trial,) = [trial for trial in queue.trials() if trial.state == TrialState.RUNNING]
        assert queue._expire(trial)
    assert "its worker died 5 times" in queue.overview().failed["k0"]
    assert queue.claim(Owner("b")) is None


def test_a_cell_goes_back_for_another_machine(queue: Queue) -> None:
    queue.put(made(1))
    here, other = Owner("here", host="left"), Owner("other")
    lease = queue.claim(here)
    assert lease is not None
    assert lease.give_back("no such file")
    assert queue.claim(here) is None
    assert queue.overview().refused == {"here": "left: no such file"}
    assert queue.claim(other) is not None


def test_one_coordinator(address: str) -> None:
    store = open_store(address)
    queue, said = Queue.made(store, "s", ABOUT, Leasing(0.2, 3.0)), []
    first = queue.coordinate(Owner("a", pid=7, host="left"), said.append)
    with first:
        second = Queue(open_store(address), "s", Leasing(0.2, 3.0))
        with pytest.raises(StudyError, match=r"another command runs this study .*process 7 on left.*htaf study worker"):
            second.coordinate(Owner("b"), said.append)
        assert queue.busy(Owner("c"))
    again = second.coordinate(Owner("b"), said.append)  # the first one was killed: its counter stays
    assert any("process 7 on left had this study" in line for line in said)
    assert not first.complete(0.0)
    assert again.complete(0.0)
    assert not queue.busy(Owner("c"))


def test_what_a_store_holds_is_data_alone(queue: Queue, tmp_path: Path) -> None:
    """A kind that is a path to code is not imported, and a payload that is no JSON fails alone."""
    queue.describe({"results": str(tmp_path), "token": Results(tmp_path).token("t")})
    queue.put([Task("a", "os:system", {"number": 1}), Task("b", "made", {"number": 2})])
    (trial,) = [trial for trial in queue.trials() if trial.user_attrs["key"] == "b"]
    queue.store.set_trial_user_attr(trial._trial_id, "payload", "{1")
    found = compute_all(Work(queue.store.address, kinds=KINDS, work=tmp_path / "work", only="s"))
    assert found == {"given back": 1}
    now = queue.overview()
    assert "damaged" in now.failed["b"]
    assert "expected a kind of cells that is installed" in next(iter(now.refused.values()))


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("grpc://localhost", "expected grpc://host:port"),
        ("what://x", r"expected a folder, journal:PATH, postgresql://user@host/database"),
        ("postgresql://me:secret@127.0.0.1:1/x", r"postgresql://me:\*\*\*@127.0.0.1:1/x cannot be used.*refused"),
    ],
)
def test_addresses_that_cannot_be_used(address: str, words: str) -> None:
    with pytest.raises(StoreError, match=words) as caught:
        open_store(address)
    assert "secret" not in str(caught.value)


def test_a_proxy_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("htaf.training.store.CONNECT", 0.3)
    with pytest.raises(StoreError, match=r"grpc://127.0.0.1:1 does not answer within 0 s: is the proxy started\?"):
        open_store("grpc://127.0.0.1:1")


def test_files_that_are_no_store(tmp_path: Path) -> None:
    (tmp_path / "search.db").write_text("no database")
    with pytest.raises(StoreError, match=r"store .* cannot be used: file is not a database"):
        open_store(str(tmp_path))
    (tmp_path / "a.journal").write_text("no journal\n{}\n")
    with pytest.raises(StoreError, match=r"cannot be used"):
        open_store(str(tmp_path / "a.journal"))
    with pytest.raises(StoreError, match=r"expected a folder, .* is a file"):
        open_store(str(tmp_path / "search.db"))


def test_half_a_line_of_a_journal_is_dropped(tmp_path: Path) -> None:
    """A machine lost its power, or the disk was full, while it wrote."""
    address = str(tmp_path / "a.journal")
    queue = Queue.made(open_store(address), "s", ABOUT)
    queue.put(made(2))
    with open(address, "ab") as file:
        file.write(b'{"op_code":4,"wor')
    again = Queue(open_store(address), "s")
    again.put(made(4))
    assert len(queue.trials()) == len(Queue(open_store(address), "s").trials()) == 4


def test_a_store_that_goes_away_is_asked_again(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    inner, left, told = queue.store._inner, [4], []
    real = inner.get_all_trials

    def away(*args: Any, **named: Any) -> Any:
        if left[0] > 0:
            left[0] -= 1
            raise OSError("no route to host")
        return real(*args, **named)

    monkeypatch.setattr(inner, "get_all_trials", away)
    monkeypatch.setattr("htaf.training.store.time.sleep", lambda seconds: None)
    queue.store.tell = told.append
    assert queue.trials() == []
    assert queue.store.retries == 4
    assert len(told) == 1
    assert "does not answer (no route to host)" in told[0]
    left[0] = 10**9
    queue.store.patience = 0.2
    with pytest.raises(StoreError, match=r"has not answered for 0 s \(no route to host\).*same command again"):
        queue.trials()


def test_few_calls_for_each_cell(queue: Queue, tmp_path: Path) -> None:
    """No call of the store while a cell is computed but heartbeats; none for each epoch."""
    queue.describe({"results": str(tmp_path), "token": Results(tmp_path).token("t")})
    queue.put(made(50))
    before = Counter(queue.store.calls)
    assert before["create_new_trial"] == 50
    stores: list[Store] = []
    real = open_store
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("htaf.training.worker.open_store", lambda *a, **k: stores.append(real(*a, **k)) or stores[0])
        assert compute_all(Work(queue.store.address, kinds=KINDS, work=tmp_path, only="s")) == {"computed": 50}
    calls = stores[0].calls
    assert calls["set_trial_state_values"] == 100  # claimed and completed
    assert calls["set_trial_user_attr"] == 50  # the first heartbeat
    assert sum(calls.values()) < 50 * 3 + 10
    assert queue.counts() == {"computed": 50}
