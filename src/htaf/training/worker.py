"""Workers: processes on any machine that claim cells from a store, compute them and write their results."""

from __future__ import annotations

import contextlib
import errno
import multiprocessing
import multiprocessing.connection
import os
import random
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from htaf._errors import HtafError, first_line
from htaf._files import BusyError, cache_folder, to_json
from htaf.training.queue import Lease, Leasing, OtherMachineError, Owner, Place, Queue, kind_named, new_run, queues
from htaf.training.results import Results, StudyError
from htaf.training.store import PATIENCE, Store, StoreError, open_store, quiet

GOODBYE = 10.0  # seconds for which a store may be away when a process that was stopped puts its cell back
LONGEST_WAIT = 10.0  # seconds between two looks of a worker that has nothing to do
SHORT_WAIT = 2.0  # seconds without a cell after which a worker says, once, what it waits for
RESTARTS = 20  # of worker processes of one command
OWN_TROUBLE = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.EMFILE, errno.ENFILE}  # not the cell's fault


class WorkerError(HtafError):
    """A worker that must stop, while others may go on: says what to mend on this machine."""


@dataclass(frozen=True)
class Work:
    """What workers are told by the one who starts them; nothing of it is read from a store.

    store: its address. results: a folder or an address of fsspec; None: what the queue says. data_dir: of the named
    data sets. device, threads: of each process. work: folder of checkpoints; on a shared disk another machine resumes
    what was begun. wait: stay when there is nothing to do. leasing, patience: see `Leasing` and `open_store`.
    only: the name of the one queue to serve. run: of this command. kinds: more kinds, as module:object.
    """

    store: str
    results: str | None = None
    data_dir: str | None = None
    device: str = "cpu"
    threads: int = 1
    work: Path = field(default_factory=lambda: cache_folder() / "work")
    wait: bool = False
    leasing: Leasing = field(default_factory=Leasing)
    patience: float = PATIENCE
    only: str | None = None
    run: str = field(default_factory=new_run)
    kinds: tuple[tuple[str, str], ...] = ()


Tell = Callable[[str, str], None]  # hears what a worker does: ("cell", its title and seconds), ("note", a sentence)


def compute_all(work: Work, tell: Tell = lambda what, text: None) -> Counter[str]:
    """Claim and compute cells in this process until there are none, or for ever with `wait`.

    Returns:
        how many cells were computed, found to be there, failed, given back, and lost to another worker.

    Raises:
        StoreError: the store cannot be used, or has been away for too long. WorkerError: this machine cannot go on,
        such as with a full disk. KeyboardInterrupt: stopped; the cell goes back at once.
    """
    with quiet():
        return _computed(work, tell)


def _computed(work: Work, tell: Tell) -> Counter[str]:
    store, owner = open_store(work.store, patience=work.patience, new=work.wait), Owner(work.run)
    store.tell = lambda note: tell("note", note)
    known = _queues(store, work, {})
    places: dict[str, Place] = {}
    found, pause, idle, told = Counter[str](), 0.2, time.monotonic(), work.only is not None
    while True:
        claimed = _claim(known, owner)
        if claimed is None:
            busy = sum(queue.busy(owner) for queue in known.values())  # asks all: each looks after its leases
            if not busy and not work.wait:
                return found
            if not told and time.monotonic() - idle > SHORT_WAIT:
                told = True
                tell("note", _waiting(known, work.leasing))
            time.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(1.5 * pause, LONGEST_WAIT, work.leasing.heartbeat)
            known = _queues(store, work, known)
            continue
        name, lease = claimed
        pause = 0.2
        with lease:
            try:
                where = to_json(known[name].about)
                if where not in places:
                    places[where] = _place(work, known[name])
                found[_compute(lease, places[where], dict(work.kinds), tell)] += 1
            except (StoreError, WorkerError):
                raise
            except BaseException:  # results of another study; stopped
                store.patience = min(store.patience, GOODBYE)
                with contextlib.suppress(HtafError):
                    lease.give_back()
                raise
        idle = time.monotonic()
        if lease.lost.is_set():
            found["lost"] += 1
            tell("note", f"{_title(lease)}: another worker had taken this cell, for this process did not answer")


def _queues(store: Store, work: Work, known: dict[str, Queue]) -> dict[str, Queue]:
    if work.only is None:
        return queues(store, work.leasing, known)
    return known or {work.only: Queue(store, work.only, work.leasing)}


def _waiting(known: Mapping[str, Queue], leasing: Leasing) -> str:
    """Why a worker has nothing to do, as a sentence."""
    running = [(key, who) for queue in known.values() for key, who in queue.overview().running.items()]
    who = ", ".join(sorted({who for _, who in running}))
    if running:
        cells = "1 cell is" if len(running) == 1 else f"{len(running)} cells are"
        return (
            f"no cell is free; {cells} with {who}: waiting, and taking over what shows no sign of life for "
            f"{leasing.timeout:.0f} s"
        )
    return "no cell is free: waiting for more"


def _claim(known: Mapping[str, Queue], owner: Owner) -> tuple[str, Lease] | None:
    return next(((name, lease) for name, queue in known.items() if (lease := queue.claim(owner)) is not None), None)


def _place(work: Work, queue: Queue) -> Place:
    """Where this machine computes the cells of a queue, after a look that its results belong to it."""
    results = Results(work.results or queue.about["results"])
    results.expect_same(str(queue.about.get("token")), str(queue.store))
    return Place(work.data_dir, work.device, work.threads, work.work, results)


def _title(lease: Lease) -> str:
    return lease.task.title or lease.task.key


def _compute(lease: Lease, place: Place, kinds: Mapping[str, str], tell: Tell) -> str:
    """One cell; what became of it."""
    task, begun = lease.task, time.monotonic()
    try:
        kind = kind_named(task.kind, kinds)
        if kind.there(task.payload, task.key, place.results):
            lease.complete(0.0)
            return "found"
        key = kind.key(task.payload, place)
        if key != task.key:
            raise OtherMachineError(f"expected a cell of key {task.key}, its payload and the data here give {key}")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            record = kind.compute(task.payload, task.key, place)
        wrote = place.results.write(task.key, record)
        seconds = time.monotonic() - begun
        lease.complete(max(seconds, 1e-3) if wrote else 0.0)
        tell("cell", f"{_title(lease)}: {seconds:.1f} s")
        return "computed" if wrote else "found"
    except OtherMachineError as error:
        lease.give_back(first_line(error))
        tell("note", f"{_title(lease)} goes back for another machine: {error}")
        return "given back"
    except BusyError as error:  # a process that lost this cell still computes it on this machine
        time.sleep(1.0)
        lease.give_back()
        tell("note", f"{_title(lease)} goes back: {error}")
        return "given back"
    except StoreError:
        raise
    except OSError as error:
        if error.errno not in OWN_TROUBLE:
            return _failed(lease, error, tell)
        lease.give_back()
        where = f"{error.filename}: " if error.filename else ""
        raise WorkerError(
            f"{_title(lease)}: {where}{error.strerror}; the cell goes back for another machine. Mend it and start this "
            "worker again"
        ) from None
    except Exception as error:  # one bad cell must not stop the others
        return _failed(lease, error, tell)


def _failed(lease: Lease, error: Exception, tell: Tell) -> str:
    reason = f"{type(error).__name__}: {error}"
    lease.fail(reason)
    tell("note", f"{_title(lease)} failed: {reason}")
    return "failed"


# ---- several processes ----


class Processes:
    """Worker processes of this command; one that dies is replaced, and its cell put back at once.

    Args:
        work: what they do. count: of them. tell: hears what they do, in `look`.
    """

    def __init__(self, work: Work, count: int, tell: Tell = lambda what, text: None) -> None:
        self.found, self.troubles = Counter[str](), list[str]()
        self._work, self._tell, self._restarts, self._said = work, tell, 0, ""
        self._context = multiprocessing.get_context("spawn")  # fork would copy a process whose torch has threads
        self._others = [self._start() for _ in range(count)]

    def _start(self) -> tuple[Any, Any]:
        ours, theirs = self._context.Pipe(duplex=False)
        process = self._context.Process(target=_serve, args=(self._work, theirs), daemon=True)
        process.start()
        theirs.close()
        return process, ours

    @property
    def alive(self) -> int:
        """How many there are."""
        return len(self._others)

    @property
    def pids(self) -> list[int]:
        """Their process numbers."""
        return [process.pid for process, _ in self._others]

    def look(self, store: Store, seconds: float) -> None:
        """Wait so long, or until something is told; replace those that died.

        Raises:
            StudyError: too many have died.
        """
        ready = multiprocessing.connection.wait([pipe for _, pipe in self._others], seconds) if self._others else []
        if not self._others:
            time.sleep(seconds)
        for process, pipe in [(p, c) for p, c in self._others if c in ready]:
            try:
                what, text = pipe.recv()
            except (EOFError, OSError):
                self._ended(store, process, pipe)
                continue
            if what == "found":
                self.found += Counter(text)
            elif what == "trouble":
                self.troubles.append(text)
            elif what != "note" or text != self._said:  # several processes may wait for the same
                self._said = text if what == "note" else self._said
                self._tell(what, text)

    def _ended(self, store: Store, process: Any, pipe: Any) -> None:
        process.join()
        pipe.close()
        self._others = [other for other in self._others if other[0] is not process]
        if process.exitcode == 0:
            return
        self._tell("note", f"a worker process died (exit code {process.exitcode}; out of memory?); its cell goes back")
        for queue in _queues(store, self._work, {}).values():
            queue.release(pid=process.pid, run=self._work.run, died=True)
        self._restarts += 1
        if self._restarts > RESTARTS:
            raise StudyError(f"{self._restarts} worker processes have died on this machine (out of memory?)")
        self._others.append(self._start())

    def stop(self, store: Store | None = None) -> None:
        """End them; what they had goes back at once."""
        for process, _ in self._others:
            process.kill()  # lightning answers SIGTERM by going on; work folders keep whole checkpoints only
        for process, pipe in self._others:
            process.join()
            pipe.close()
        if store is not None and self._others:
            with contextlib.suppress(HtafError):
                for queue in _queues(store, self._work, {}).values():
                    queue.release(run=self._work.run, died=False)
        self._others = []


def _serve(work: Work, pipe: Any) -> None:
    """A worker process."""
    leave_with_parent()

    def tell(what: str, text: Any) -> None:
        with contextlib.suppress(OSError):
            pipe.send((what, text))

    try:
        tell("found", dict(compute_all(work, tell)))
    except HtafError as error:
        tell("trouble", str(error))
    except KeyboardInterrupt:  # the one who started this process is told too, and says it
        pass


def leave_with_parent() -> None:
    """Leave when the process that started this one is gone, however it went."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        multiprocessing.connection.wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def run_workers(work: Work, count: int, tell: Tell = lambda what, text: None) -> Counter[str]:
    """`compute_all` by several processes; one by this process itself.

    Raises:
        WorkerError: all had to stop, such as with a full disk.
    """
    if count == 1:
        return compute_all(work, tell)
    store = open_store(work.store, patience=work.patience, new=work.wait)
    processes = Processes(work, count, tell)
    try:
        while processes.alive:
            processes.look(store, 1.0)
    finally:
        processes.stop(store)
    if processes.troubles:
        raise WorkerError("; ".join(dict.fromkeys(processes.troubles)))
    return processes.found


@contextlib.contextmanager
def helpers(work: Work, count: int, store: Store, tell: Tell) -> Iterator[Processes]:
    """Worker processes while the block runs."""
    processes = Processes(work, count, tell)
    try:
        yield processes
    finally:
        processes.stop(store)
