"""Compute cells: each is a key, a folder and a record, and is computed by whoever holds the lock of its folder.

A folder of results holds `cells/<key>/record.json` of every finished cell, written whole. A cell that has its record is
never computed again; one whose lock another process holds is left to that process, here or on any machine that shares
the disk. The system ends a lock with its process, so the same command, given anywhere and as often as one likes, goes
on with what is left.
"""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import os
import shutil
import signal
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from htaf._ground.console import progress as progress_of
from htaf._ground.console import say_notes
from htaf._ground.errors import HtafError
from htaf._ground.files import LOCK, BusyError, hold, holder, parse_json, to_json, write_atomic
from htaf_paper.records import FILE, write_records

RECORD = "record.json"
DEATHS = 3  # so many processes may die over one cell before it counts as failed
PAUSE = 1.0  # seconds before a cell that another process holds is looked at again


class StudyError(HtafError):
    """Cells that cannot be computed or read."""


@dataclass(frozen=True)
class Place:
    """Where a cell is computed.

    folder: its own, in the folder of results; what a killed process left in it is still there. data_dir: of the named
    data sets. device: of trainings.
    """

    folder: Path
    data_dir: str | None = None
    device: str = "cpu"

    @property
    def study(self) -> Path:
        """The folder of results."""
        return self.folder.parents[1]


def is_object(record: Any) -> bool:
    """Whether a record is one, as far as any cell's is."""
    return isinstance(record, dict)


@dataclass(frozen=True)
class Task:
    """A cell to be computed.

    Args:
        key: of what it is a function of. payload: what that is, as JSON. title: for people.
        compute: gives the record, as JSON; a function of a module, or a partial one, so that other processes can have
            it. It may raise BusyError where it must wait for another process.
        keeps: what a finished cell has in its folder beside its record; all else goes when the record is written.
        valid: whether an object is such a record; others are damaged.
    """

    key: str
    payload: dict[str, Any]
    title: str
    compute: Callable[[Place], dict[str, Any]] = field(compare=False)
    keeps: tuple[str, ...] = ()
    valid: Callable[[Any], bool] = is_object


@dataclass(frozen=True)
class Computing:
    """How cells are computed.

    Args:
        workers: processes of this machine, a cell at a time each; 0: this process. threads: of each.
        progress: show a bar on a terminal, else a line a cell; and notes.
    """

    workers: int = 1
    threads: int = 1
    progress: bool = False


@dataclass(frozen=True)
class Ended:
    """What became of a cell: its record; or why it failed; or neither, as another process holds it."""

    record: dict[str, Any] | None = None
    error: str | None = None


def cell_folder(study: Path, key: str) -> Path:
    """The folder of a cell."""
    return study / "cells" / key


def read_cell(study: Path, key: str, valid: Callable[[Any], bool] = is_object) -> dict[str, Any] | None:
    """The record of a finished cell; None where there is none.

    Raises:
        StudyError: it is damaged. Nothing is overwritten.
    """
    file = cell_folder(study, key) / RECORD
    try:
        record = parse_json(file.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError):
        record = None
    if not valid(record):
        raise StudyError(f"{file} is damaged: delete it to compute the cell again")
    return record


def finished(task: Task, study: Path) -> dict[str, Any] | None:
    """The record of a cell whose folder has all that it keeps; None of one that is to be computed."""
    record = read_cell(study, task.key, task.valid)
    return record if all((cell_folder(study, task.key) / name).exists() for name in task.keeps) else None


def gather(study: Path) -> None:
    """Write the records of all finished cells into one sorted file of lines."""
    keys = sorted(file.parent.name for file in study.glob(f"cells/*/{RECORD}"))
    write_records(study / FILE, (record for key in keys if (record := read_cell(study, key)) is not None))


def attempt(task: Task, place: Place) -> Ended:
    """Compute a cell in its folder and write its record, unless it is there or another process is at it."""
    try:
        place.folder.mkdir(parents=True, exist_ok=True)
        with hold(place.folder / LOCK, "another process computes this cell"):
            record = finished(task, place.study)
            if record is None:
                record = task.compute(place)
                write_atomic(place.folder / RECORD, to_json(record))
            for other in place.folder.iterdir():
                if other.name not in (RECORD, LOCK, *task.keeps):
                    shutil.rmtree(other) if other.is_dir() else other.unlink()
            return Ended(record)
    except BusyError:
        return Ended()
    except Exception as error:  # one bad cell must not stop the others
        return Ended(error=f"{type(error).__name__}: {error}")


class ThisProcess:
    """Cells one after the other, here."""

    at_once = 1

    def submit(self, task: Task, place: Place) -> Future[Ended]:
        """Compute a cell."""
        future: Future[Ended] = Future()
        future.set_result(attempt(task, place))
        return future


class Processes:
    """Processes of this machine, started when there is work. One that dies takes no other with it."""

    def __init__(self, count: int, threads: int) -> None:
        self.at_once, self._threads = count, threads
        self._last: dict[ProcessPoolExecutor, Future[Ended]] = {}  # of each process what it was given last

    def submit(self, task: Task, place: Place) -> Future[Ended]:
        """Compute a cell in a process that is free; the future has an exception where the process died."""
        done = [process for process, future in self._last.items() if future.done()]
        for process in done:
            if self._last[process].exception() is not None:  # it died
                del self._last[process]
                process.shutdown(wait=False)
        process = next((one for one in done if one in self._last), None) or self._new()
        self._last[process] = process.submit(attempt, task, place)
        return self._last[process]

    def _new(self) -> ProcessPoolExecutor:
        context = multiprocessing.get_context("spawn")  # fork would copy a process whose torch has threads
        return ProcessPoolExecutor(1, context, _start_process, (self._threads,))

    def close(self) -> None:
        """Let the processes end."""
        for process in self._last:
            process.shutdown(wait=False, cancel_futures=True)


def _start_process(threads: int) -> None:
    """Set the number of threads, leave Ctrl-C to the command, and end with it, however it ends."""
    torch.set_num_threads(threads)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None

    def leave() -> None:
        multiprocessing.connection.wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=leave, daemon=True).start()


@contextmanager
def engine_of(computing: Computing) -> Iterator[ThisProcess | Processes]:
    """What computes cells while the block runs; where the block is left by an error, what is under way ends with it."""
    if computing.workers == 0:
        before = torch.get_num_threads()
        torch.set_num_threads(computing.threads)
        try:
            yield ThisProcess()
        finally:
            torch.set_num_threads(before)
    else:
        before, engine = set(multiprocessing.active_children()), Processes(computing.workers, computing.threads)
        try:
            yield engine
        except BaseException:
            for child in set(multiprocessing.active_children()) - before:
                child.kill()  # lightning answers SIGTERM by going on; folders of cells keep whole checkpoints only
            raise
        finally:
            engine.close()


def compute(
    tasks: Sequence[Task],
    study: Path,
    engine: ThisProcess | Processes,
    *,
    data_dir: str | None = None,
    device: str = "cpu",
    title: str = "cells",
    progress: bool = False,
) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
    """Compute the cells that are not finished, and wait for those that other processes hold.

    Args:
        tasks: what is wanted; of two with one key the last counts.
        study: folder of results. engine: of `engine_of`.
        data_dir, device: see `Place`. title, progress: of the bar, and whether it is shown.

    Returns:
        Records by key, and error messages by key of cells that failed, which the next call tries again.

    Raises:
        StudyError: a record is damaged. KeyboardInterrupt: stopped; what is finished is kept.
    """
    by_key = {task.key: task for task in tasks}
    records = {key: record for key, task in by_key.items() if (record := finished(task, study)) is not None}
    failures, deaths, told = dict[str, str](), Counter[str](), set[str]()
    left = deque(by_key[key] for key in sorted(by_key.keys() - records.keys()))
    under_way, held = dict[Future[Ended], Task](), deque[tuple[float, Task]]()
    with progress_of(f"{title}, cells", len(by_key), shown=progress, done=len(records), every=0) as advance:
        while left or under_way or held:
            while held and held[0][0] <= time.monotonic():
                left.append(held.popleft()[1])
            while left and len(under_way) < engine.at_once:
                task = left.popleft()
                under_way[engine.submit(task, Place(cell_folder(study, task.key), data_dir, device))] = task
            for future in _first(under_way, PAUSE if held else None):
                task = under_way.pop(future)
                ended = _ended(future, task, deaths)
                if ended is None:
                    left.append(task)
                elif ended.record is not None:
                    records[task.key] = ended.record
                    advance(1, task.title)
                elif ended.error is not None:
                    failures[task.key] = f"{task.title}: {ended.error}"
                    advance(1, task.title)
                else:
                    held.append((time.monotonic() + PAUSE, task))
                    if progress and task.key not in told:
                        told.add(task.key)
                        say_notes(
                            [f"another process computes {task.title}{holder(cell_folder(study, task.key) / LOCK)}"]
                        )
    return records, failures


def _first(under_way: Iterable[Future[Ended]], timeout: float | None) -> set[Future[Ended]]:
    """Those that have ended, once one has or the time is over."""
    there = list(under_way)
    if not there:
        time.sleep(PAUSE / 4)
    return wait(there, timeout, FIRST_COMPLETED).done if there else set()


def _ended(future: Future[Ended], task: Task, deaths: Counter[str]) -> Ended | None:
    """What became of a cell; None where its process died and it is to be tried again."""
    try:
        return future.result()
    except BrokenProcessPool:
        deaths[task.key] += 1
        if deaths[task.key] < DEATHS:
            say_notes([f"a worker process died over {task.title} (out of memory?); it is tried again"])
            return None
        return Ended(error=f"its process died {DEATHS} times (out of memory?)")
    except Exception as error:  # a record that cannot travel
        return Ended(error=f"{type(error).__name__}: {error}")
