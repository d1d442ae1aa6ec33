"""The one process that plans a study on a store: it puts cells into the queue, waits for their results, and may start
workers of its own."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from htaf._console import progress as progress_of
from htaf._errors import HtafError
from htaf.training.queue import Lease, Overview, Owner, Queue, Task, kind_named
from htaf.training.results import Results, StudyError
from htaf.training.store import Store, StoreError, open_store, quiet
from htaf.training.worker import GOODBYE, Processes, Tell, Work, helpers

LONGEST_WAIT = 5.0  # seconds between two looks
UNSEEN = 60.0  # seconds for which a result may stay unseen on a shared disk
LONELY = 30.0  # seconds without any worker before a word
QUIET = 10.0  # seconds without a line before one says what is under way


class Coordinator:
    """Plans and waits; made by `coordinated`."""

    def __init__(
        self, store: Store, queue: Queue, results: Results, work: Work, lease: Lease, processes: Processes, tell: Tell
    ) -> None:
        self.store, self.queue, self.results, self.processes = store, queue, results, processes
        self._work, self._lease, self._tell = work, lease, tell
        self._told = set[str]()

    def compute(
        self, tasks: Sequence[Task], *, progress: bool = False, title: str = "cells"
    ) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
        """Have the tasks computed by whoever claims them.

        Args:
            tasks: each key once. progress: show a bar on a terminal, else a line a cell, and one of what is under way
                where cells take long. title: its text.

        Returns:
            results by key, and error messages by key of tasks that failed; the next call tries those again.

        Raises:
            StudyError: a result is damaged; another process took this study over; no worker is left.
            StoreError: the store has been away for too long.
        """
        records = {task.key: record for task in tasks if (record := self._result(task)) is not None}
        left, failures, done = {t.key: t for t in tasks if t.key not in records}, dict[str, str](), len(records)
        if not left:
            return records, failures
        before = self.queue.ended()
        self.queue.put(left.values())
        unseen, alone, pause = dict[str, float](), time.monotonic(), 0.1
        heard, said = alone, list[str]()
        with progress_of(f"{title}, cells", len(tasks), shown=progress, done=done, every=0) as advance:
            while left:
                begun, had = time.monotonic(), len(left)
                now = self.queue.overview(before)
                self._notes(now.refused)
                for task in [*left.values()]:
                    if self._ended(task, now, unseen, records, failures):
                        advance(1, left.pop(task.key).title)
                        heard = begun
                running = sorted(left[key].title for key in now.running if key in left)
                if running and running != said and begun - heard > QUIET:
                    advance(0, f"under way: {'; '.join(running)}")
                    heard, said = begun, running
                if now.running or self.processes.alive:
                    alone = begun
                elif begun - alone > LONELY and left:
                    alone = begun
                    self._tell("note", f"{len(left)} cells wait for a worker: htaf study worker --store {self.store}")
                self._expect_going(bool(now.running))
                if left:
                    cost = time.monotonic() - begun
                    pause = 0.1 if len(left) < had else min(1.5 * pause, LONGEST_WAIT, self.queue.leasing.heartbeat)
                    self.processes.look(self.store, max(pause, 5 * cost))
        return records, failures

    def _result(self, task: Task) -> dict[str, Any] | None:
        """The result of a task; None where it is not there."""
        kind = kind_named(task.kind, dict(self._work.kinds))
        return self.results.read(task.key) if kind.there(task.payload, task.key, self.results) else None

    def _ended(
        self,
        task: Task,
        now: Overview,
        unseen: dict[str, float],
        records: dict[str, dict[str, Any]],
        failures: dict[str, str],
    ) -> bool:
        """Whether a task has its result, or failed: noted then. One that is nowhere is put into the queue again.

        unseen: since when a task is in neither state, by key.
        """
        key, at = task.key, time.monotonic()
        under_way = key in now.waiting or key in now.running
        if key in now.done:
            if (record := self._result(task)) is not None:
                records[key] = record
                return True
            if at - unseen.setdefault(key, at) > UNSEEN:
                raise StudyError(
                    f"a worker has finished a cell, but {self.results.named(key)} is not there: expected one place of "
                    "results for all machines"
                )
        elif key in now.failed and not under_way:
            failures[key] = now.failed[key]
            return True
        elif not under_way and at - unseen.setdefault(key, at) > LONGEST_WAIT:
            unseen.pop(key)  # a process was killed between the two steps of putting it back
            self.queue.put([task])
        return False

    def _notes(self, refused: Mapping[str, str]) -> None:
        for reason in refused.values():
            if reason not in self._told:
                self._told.add(reason)
                self._tell("note", f"a cell went back for another machine: {reason}")

    def _expect_going(self, running: bool) -> None:
        """Raises StudyError where nothing can go on."""
        if self._lease.lost.is_set():
            raise StudyError(
                f"another command took this study over in {self.store}: this one had not been heard of for "
                f"{self.queue.leasing.timeout:.0f} s"
            )
        if self.processes.troubles and not self.processes.alive and not running:
            troubles = "; ".join(dict.fromkeys(self.processes.troubles))
            raise StudyError(f"no worker of this command is left: {troubles}; what is finished is kept")


@contextmanager
def coordinated(
    work: Work, name: str, results: Results, about: Mapping[str, Any], workers: int, tell: Tell
) -> Iterator[Coordinator]:
    """Hold a study on a store while the block runs.

    Args:
        work: what this command's own workers do; `store` is its address. name: of the study, the same in every call.
        results: where the results of its cells lie. about: what workers may read of the study.
        workers: processes of this command; 0: others compute. tell: hears notes.

    Raises:
        StoreError: the store cannot be used. StudyError: another process holds the study.
    """
    with quiet():
        store = open_store(work.store, patience=work.patience)
        store.tell = lambda note: tell("note", note)
        about = {**about, "results": results.place, "token": results.token(work.run)}
        queue = Queue.made(store, name, about, work.leasing)
        if about["token"] != work.run and not queue.trials():
            tell("note", f"the store {store} has nothing of this study yet; what is finished in {results.place} counts")
        lease = queue.coordinate(Owner(work.run), lambda note: tell("note", note))
        try:
            with lease:
                queue.describe(about)
                own = _for(work, name, results)
                with helpers(own, workers, store, tell) as processes:
                    try:
                        yield Coordinator(store, queue, results, own, lease, processes, tell)
                    except BaseException as error:  # what is still to be told a store may not take as long again
                        store.patience = 0.0 if isinstance(error, StoreError) else min(store.patience, GOODBYE)
                        raise
        finally:
            with contextlib.suppress(HtafError):
                lease.complete(0.0)


def _for(work: Work, name: str, results: Results) -> Work:
    return dataclasses.replace(work, results=results.place, only=name, wait=True)
