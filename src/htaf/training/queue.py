"""A queue of cells in a store that many machines share.

A task is JSON: a key, a kind and a payload. The kind is looked up in a table of kinds that are installed; nothing that
is read from a store runs code. A task is a trial of Optuna: WAITING; RUNNING while a worker has a lease on it; then
COMPLETE, or FAIL with the reason. Both steps, WAITING to RUNNING and RUNNING to the end, are taken by one process only,
which Optuna's storages see to.

A lease has an owner and a counter that the owner moves every `heartbeat` seconds. One who sees for `timeout` seconds of
its own clock that the counter stays takes the lease away and puts the task back. So no two clocks are compared.
"""

from __future__ import annotations

import os
import random
import socket
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from optuna.exceptions import DuplicatedStudyError, UpdateFinishedTrialError
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState, create_trial

from htaf._errors import HtafError, suggestion
from htaf._files import parse_json, to_json
from htaf.training.results import Results, StudyError
from htaf.training.store import Store

HEARTBEAT, TIMEOUT = 15.0, 90.0  # seconds
DEATHS = 5  # so many workers may die over one cell before it counts as failed
MISSES = 4  # claims that others were first with, before the list is read again
PREFIX, FORMAT = "htaf-queue/", 1
COORDINATOR = "coordinator"  # the key of a lease that is no cell: of the process that plans and reports
_OPEN = (TrialState.WAITING, TrialState.RUNNING)
_ENDED = (TrialState.COMPLETE, TrialState.FAIL)


class OtherMachineError(HtafError):
    """A cell that another machine may compute, and this one cannot: says what differs."""


@dataclass(frozen=True)
class Place:
    """Where a worker computes.

    data_dir: folder of the named data sets. device, threads: of a training. work: folder of checkpoints. results: of
    cells.
    """

    data_dir: str | None
    device: str
    threads: int
    work: Path
    results: Results


@runtime_checkable
class CellKind(Protocol):
    """What a worker must know of a kind of cells. An entry point in the group `htaf.cells` names one."""

    def key(self, payload: Mapping[str, Any], place: Place) -> str:
        """The key of a cell, from this machine's own data.

        Raises:
            OtherMachineError: the data differ from what the payload says, or are not there. ValueError: the payload
            makes no sense.
        """
        ...

    def compute(self, payload: Mapping[str, Any], key: str, place: Place) -> dict[str, Any]:
        """The result, as JSON."""
        ...

    def there(self, payload: Mapping[str, Any], key: str, results: Results) -> bool:
        """Whether the result is there and whole; raises StudyError for a damaged one."""
        ...


# kinds of this package; others are entry points
KINDS = {"training": "htaf.training.study:TRAINING"}


def kind_named(name: str, more: Mapping[str, str] | None = None) -> CellKind:
    """A kind of cells by its name: one of htaf's, of `more` (name -> module:object), or an entry point.

    Raises:
        OtherMachineError: none of that name is installed here.
    """
    known = {entry.name: entry.value for entry in metadata.entry_points(group="htaf.cells")} | KINDS | {**(more or {})}
    if name not in known:
        raise OtherMachineError(
            f"expected a kind of cells that is installed ({', '.join(sorted(known))}), got {name!r}"
            f"{suggestion(name, [*known])}"
        )
    return metadata.EntryPoint(name, known[name], "htaf.cells").load()


@dataclass(frozen=True)
class Task:
    """A cell to be computed. title: for people."""

    key: str
    kind: str
    payload: dict[str, Any]
    title: str = ""


@dataclass(frozen=True)
class Owner:
    """Who has a lease. run: one command, which may have several processes; worker: one of them."""

    run: str
    worker: str = field(default_factory=lambda: uuid.uuid4().hex[:12])
    host: str = field(default_factory=socket.gethostname)
    pid: int = field(default_factory=os.getpid)

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"


def new_run() -> str:
    """A name for one command and the workers that it starts."""
    return uuid.uuid4().hex[:12]


@dataclass(frozen=True)
class Leasing:
    """How leases are kept. heartbeat: seconds between two moves of the counter. timeout: seconds after which a counter
    that stays has no owner."""

    heartbeat: float = HEARTBEAT
    timeout: float = TIMEOUT

    def __post_init__(self) -> None:
        if not 0 < self.heartbeat <= self.timeout / 3:
            raise StudyError(
                "expected a heartbeat above 0 s and a time-out of at least three heartbeats, got "
                f"{self.heartbeat:g} s and {self.timeout:g} s"
            )


class Watch:
    """Judges leases by this process's own clock.

    Only time in which this process looked counts: while the store is away nobody can move a counter, and between two
    looks at most two heartbeats are counted.
    """

    def __init__(self, leasing: Leasing, clock: Callable[[], float] = time.monotonic) -> None:
        self._leasing, self._clock = leasing, clock
        self._seen: dict[int, tuple[Any, float]] = {}
        self._last: float | None = None

    def stale(self, running: Iterable[FrozenTrial]) -> list[FrozenTrial]:
        """Those whose counter has stayed for the time-out. running: as the store has them now."""
        now = self._clock()
        passed = 0.0 if self._last is None else min(now - self._last, 2 * self._leasing.heartbeat)
        self._last, before, self._seen, found = now, self._seen, {}, []
        for trial in running:
            count, stayed = trial.user_attrs.get("beat"), 0.0
            known = before.get(trial._trial_id)
            if known is not None and known[0] == count:
                stayed = known[1] + passed
            self._seen[trial._trial_id] = (count, stayed)
            own = count.get("every") if isinstance(count, dict) else None  # the owner's heartbeat may be slower
            slowest = 3 * own if isinstance(own, int | float) else 0.0
            if stayed >= max(self._leasing.timeout, slowest):
                found.append(trial)
        return found


class Lease:
    """A task that this process computes. The counter moves while the block runs; `lost` says that another took it."""

    def __init__(self, queue: Queue, trial_id: int, task: Task, owner: Owner, deaths: int, refused: dict[str, str]):
        self.task, self.lost = task, threading.Event()
        self._queue, self._trial_id, self._owner = queue, trial_id, owner
        self._deaths, self._refused = deaths, refused
        self._count, self._stop, self._one_at_a_time = 0, threading.Event(), threading.Lock()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Lease:
        self.beat()
        self._thread = threading.Thread(target=self._run, daemon=True, name="htaf-heartbeat")
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        if self._thread is not None:  # a move that is under way; one that waits for its store is not waited for
            self._thread.join(1.0)

    def beat(self) -> None:
        """Move the counter."""
        every = self._queue.leasing.heartbeat
        self._count += 1
        owner = {"run": self._owner.run, "worker": self._owner.worker, "host": self._owner.host, "pid": self._owner.pid}
        beat = {**owner, "count": self._count, "every": every}
        with self._one_at_a_time:  # one that comes behind this process's own end must not say that the lease was lost
            if not self._stop.is_set():
                self._note("beat", beat)

    def _run(self) -> None:
        while not self._stop.wait(self._queue.leasing.heartbeat * random.uniform(0.8, 1.0)):
            try:
                self.beat()
            except HtafError:
                return  # the store is away for good; the main thread is told when it asks
            if self.lost.is_set():
                return

    def complete(self, seconds: float) -> bool:
        """Say that the result is there. seconds: that it took; 0 where it was there before. False: the lease was
        lost."""
        return self._end(TrialState.COMPLETE, [seconds])

    def fail(self, reason: str) -> bool:
        """Say why there is no result; the study reports it."""
        return self._end(TrialState.FAIL, error=reason)

    def give_back(self, why: str | None = None) -> bool:
        """Put the task back for another machine. why: this one cannot compute it, and is not to claim it again."""
        refused = self._refused | ({} if why is None else {self._owner.run: f"{self._owner.host}: {why}"})
        with self._one_at_a_time:
            self._stop.set()
            return self._note("back", why or "stopped") and self._queue._again(
                self._trial_id, self.task, self._deaths, refused
            )

    def _note(self, name: str, value: Any) -> bool:
        try:
            self._queue.store.set_trial_user_attr(self._trial_id, name, value)
        except (UpdateFinishedTrialError, KeyError):
            self.lost.set()
        return not self.lost.is_set()

    def _end(self, state: TrialState, values: Sequence[float] | None = None, error: str | None = None) -> bool:
        with self._one_at_a_time:
            self._stop.set()
            if error is not None and not self._note("error", error):
                return False
            try:
                self._queue.store.set_trial_state_values(self._trial_id, state, values)
            except (UpdateFinishedTrialError, KeyError):
                self.lost.set()
            return not self.lost.is_set()


@dataclass
class Overview:
    """What a queue holds at one moment, by key. failed: with the reason. gone: a worker died, and nobody has put the
    task back. running: with who has it."""

    waiting: set[str] = field(default_factory=set)
    running: dict[str, str] = field(default_factory=dict)
    done: set[str] = field(default_factory=set)
    failed: dict[str, str] = field(default_factory=dict)
    gone: set[str] = field(default_factory=set)
    refused: dict[str, str] = field(default_factory=dict)


class Queue:
    """The tasks of one study in a store.

    Args:
        store: where it is kept. name: of the study. leasing: see there.
        clock: of this process, in seconds.
    """

    def __init__(
        self, store: Store, name: str, leasing: Leasing | None = None, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.store, self.name, self.leasing = store, name, leasing or Leasing()
        try:
            self._id: int = store.get_study_id_from_name(PREFIX + name)
        except KeyError:
            raise StudyError(f"the store {store} has no queue {name!r}") from None
        self.about = self._about()
        self._watch = Watch(self.leasing, clock)
        self._known: list[FrozenTrial] = []
        self._misses, self._random = 0, random.Random(uuid.uuid4().int)

    @classmethod
    def made(cls, store: Store, name: str, about: Mapping[str, Any], leasing: Leasing | None = None) -> Queue:
        """The queue of a study, made where there is none yet. about: results and token; see `Results.token`."""
        try:
            new = store.create_new_study([StudyDirection.MINIMIZE], PREFIX + name)
        except DuplicatedStudyError:
            new = store.get_study_id_from_name(PREFIX + name)
        if "about" not in store.get_study_user_attrs(new):
            store.set_study_user_attr(new, "about", {"format": FORMAT, **about})
        return cls(store, name, leasing)

    def _about(self) -> dict[str, Any]:
        return checked_about(self.store.get_study_user_attrs(self._id).get("about"), self)

    def describe(self, about: Mapping[str, Any]) -> None:
        """Say anew where the results are; for the one who plans."""
        self.store.set_study_user_attr(self._id, "about", {"format": FORMAT, **about})
        self.about = self._about()

    def trials(self) -> list[FrozenTrial]:
        """All tasks as Optuna's trials; for reading only."""
        return self.store.get_all_trials(self._id, deepcopy=False)

    # ---- the one who plans ----

    def put(self, tasks: Iterable[Task]) -> int:
        """Add tasks that are neither waiting nor running; returns how many."""
        there = {trial.user_attrs.get("key") for trial in self.trials() if trial.state in _OPEN}
        new = [task for task in tasks if task.key not in there]
        for task in new:
            self._put(task, 0, {})
        return len(new)

    def _put(self, task: Task, deaths: int, refused: Mapping[str, str]) -> None:
        attrs = {"key": task.key, "kind": task.kind, "payload": to_json(task.payload), "title": task.title}
        more = ({"deaths": deaths} if deaths else {}) | ({"refused": dict(refused)} if refused else {})
        self.store.create_new_trial(self._id, create_trial(state=TrialState.WAITING, user_attrs=attrs | more))

    def overview(self, ignored: Iterable[int] = ()) -> Overview:
        """What there is now, after a look at the leases. ignored: numbers of tasks that ended before: they do not
        count."""
        found, skipped, trials = Overview(), set(ignored), self.trials()
        self.watch(trials)
        for trial in trials:
            key = trial.user_attrs.get("key")
            if not isinstance(key, str) or key == COORDINATOR:
                continue
            found.refused |= _texts(trial.user_attrs.get("refused"))
            if trial.state == TrialState.WAITING:
                found.waiting.add(key)
            elif trial.state == TrialState.RUNNING:
                found.running[key] = _owner_of(trial)
            elif trial.number in skipped:
                continue
            elif trial.state == TrialState.COMPLETE:
                found.done.add(key)
            elif isinstance(trial.user_attrs.get("error"), str):
                found.failed[key] = trial.user_attrs["error"]
            else:
                found.gone.add(key)
        found.gone -= found.waiting | found.running.keys() | found.done | found.failed.keys()
        return found

    def ended(self) -> set[int]:
        """The numbers of tasks that have ended."""
        return {trial.number for trial in self.trials() if trial.state in _ENDED}

    def counts(self) -> Counter[str]:
        """How often a task was computed, was found to be there, was lost by its worker, and failed."""
        found = Counter[str]()
        for trial in self.trials():
            if trial.user_attrs.get("key") == COORDINATOR:
                continue
            if trial.state == TrialState.COMPLETE:
                found["computed" if trial.value else "found"] += 1
            elif trial.state == TrialState.FAIL:
                attrs = trial.user_attrs
                found["failed" if "error" in attrs else "given back" if "back" in attrs else "lost"] += 1
        return found

    def coordinate(self, owner: Owner, tell: Callable[[str], None]) -> Lease:
        """The lease of the one process that plans this study.

        Raises:
            StudyError: another process has it, and its counter moves.
        """
        told = False
        while True:
            own = [trial for trial in self.trials() if trial.user_attrs.get("key") == COORDINATOR]
            there = next((trial for trial in own if trial.state in _OPEN), None)  # in the order of their numbers
            if there is None:
                self._put(Task(COORDINATOR, COORDINATOR, {}), 0, {})
                continue
            if there.state == TrialState.WAITING:
                if self._taken(there._trial_id):
                    return Lease(self, there._trial_id, Task(COORDINATOR, COORDINATOR, {}), owner, 0, {})
                continue
            first, begun = there.user_attrs.get("beat"), time.monotonic()
            watch, every = Watch(self.leasing), min(1.0, self.leasing.heartbeat / 2)
            while True:
                now = next((t for t in self.trials() if t.number == there.number), there)
                if now.state != TrialState.RUNNING:
                    break
                if first is not None and now.user_attrs.get("beat") != first:
                    raise StudyError(
                        f"another command runs this study with the store {self.store} ({_owner_of(now)}): wait for it, "
                        "or help it with htaf study worker"
                    )
                first = now.user_attrs.get("beat")
                if watch.stale([now]):
                    self._fail(now._trial_id)
                    break
                if not told and time.monotonic() - begun > 2 * every:
                    tell(
                        f"{_owner_of(now)} had this study: waiting up to {self.leasing.timeout:.0f} s to see whether "
                        "it still runs"
                    )
                    told = True
                time.sleep(every)

    # ---- those who compute ----

    def claim(self, owner: Owner) -> Lease | None:
        """A lease on a task, or None where none waits for this worker."""
        fresh = False
        while True:
            if not self._known or self._misses >= MISSES:
                if fresh and self._misses < MISSES:
                    return None
                self._read(owner)
                fresh, self._misses = True, 0
                if not self._known:
                    return None
            trial = self._known.pop()
            if not self._taken(trial._trial_id):
                self._misses += 1
                continue
            self._misses = 0
            attrs = trial.user_attrs
            deaths, refused = attrs.get("deaths", 0), _texts(attrs.get("refused"))
            task = _task_of(attrs)
            lease = Lease(self, trial._trial_id, task or Task(str(attrs.get("key")), "", {}), owner, deaths, refused)
            if task is None:
                lease.fail("the store holds a task that is damaged: expected a key, a kind and a payload in JSON")
                continue
            return lease

    def _read(self, owner: Owner) -> None:
        """The tasks that wait and are for this worker, each key once, in an order of this worker's own."""
        trials = self.trials()
        self.watch(trials)
        running = {trial.user_attrs.get("key") for trial in trials if trial.state == TrialState.RUNNING}
        waiting: dict[Any, FrozenTrial] = {}
        for trial in trials:
            key = trial.user_attrs.get("key")
            free = trial.state == TrialState.WAITING and key != COORDINATOR and key not in running
            if free and owner.run not in _texts(trial.user_attrs.get("refused")):
                waiting.setdefault(key, trial)
        self._known = [*waiting.values()]
        self._random.shuffle(self._known)

    def _taken(self, trial_id: int) -> bool:
        try:
            return self.store.set_trial_state_values(trial_id, TrialState.RUNNING)
        except (UpdateFinishedTrialError, KeyError):
            return False

    def busy(self, owner: Owner) -> bool:
        """Whether more may come for a worker: a cell waits that it has not given back, one runs, or the one who plans
        is at work."""
        trials = self.trials()
        self.watch(trials)
        return any(
            trial.state == TrialState.RUNNING
            or (
                trial.state == TrialState.WAITING
                and trial.user_attrs.get("key") != COORDINATOR
                and owner.run not in _texts(trial.user_attrs.get("refused"))
            )
            for trial in trials
        )

    def watch(self, trials: Sequence[FrozenTrial] | None = None) -> int:
        """Take leases away whose counter has stayed for the time-out, and put their tasks back; returns how many."""
        trials = self.trials() if trials is None else trials
        stale = self._watch.stale(trial for trial in trials if trial.state == TrialState.RUNNING)
        return sum(self._expire(trial) for trial in stale)

    def release(self, run: str, *, pid: int | None = None, died: bool) -> int:
        """Put back what a command, or one process of it, had and which is known to be gone; returns how many."""
        count = 0
        for trial in self.trials():
            beat = trial.user_attrs.get("beat")
            if trial.state == TrialState.RUNNING and isinstance(beat, dict) and beat.get("run") == run:
                own = trial.user_attrs.get("key") == COORDINATOR or (pid is not None and beat.get("pid") != pid)
                count += 0 if own else self._expire(trial, died=died)
        return count

    def _expire(self, trial: FrozenTrial, *, died: bool = True) -> bool:
        """Take a lease away; False where another process was first, or the owner ended it."""
        attrs, task = trial.user_attrs, _task_of(trial.user_attrs)
        if task is None or task.key == COORDINATOR:
            return self._fail(trial._trial_id)
        deaths = int(attrs.get("deaths", 0)) + died
        if deaths >= DEATHS:
            try:
                reason = f"its worker died {deaths} times (out of memory?), at last {_owner_of(trial)}"
                self.store.set_trial_user_attr(trial._trial_id, "error", reason)
            except (UpdateFinishedTrialError, KeyError):
                return False
            return self._fail(trial._trial_id)
        return self._again(trial._trial_id, task, deaths, _texts(attrs.get("refused")))

    def _again(self, trial_id: int, task: Task, deaths: int, refused: Mapping[str, str]) -> bool:
        """End a lease and put its task back; only the one who ends it does."""
        if not self._fail(trial_id):
            return False
        self._put(task, deaths, refused)
        return True

    def _fail(self, trial_id: int) -> bool:
        """End a lease; False where another process was first, or the owner ended it."""
        try:
            self.store.set_trial_state_values(trial_id, TrialState.FAIL)
        except (UpdateFinishedTrialError, KeyError):
            return False
        return True


def queues(store: Store, leasing: Leasing | None = None, known: Mapping[str, Queue] | None = None) -> dict[str, Queue]:
    """The queues in a store by name; those of `known` stay as they are."""
    found: dict[str, Queue] = {}
    for study in store.get_all_studies():
        name = study.study_name.removeprefix(PREFIX)
        # one that is just being made does not say yet where its results are
        if study.study_name.startswith(PREFIX) and "about" in study.user_attrs:
            queue = (known or {}).get(name) or Queue(store, name, leasing)
            queue.about = checked_about(study.user_attrs["about"], queue)
            found[name] = queue
    return found


def checked_about(about: Any, queue: Queue) -> dict[str, Any]:
    """What a queue says of its study; StudyError where that is damaged or of another version of htaf."""
    if not isinstance(about, dict) or about.get("format") != FORMAT or not isinstance(about.get("results"), str):
        found = about.get("format") if isinstance(about, dict) else type(about).__name__
        raise StudyError(f"the queue {queue.name} in {queue.store}: expected format {FORMAT} with results, got {found}")
    return about


def _task_of(attrs: Mapping[str, Any]) -> Task | None:
    """The task that a trial holds; None where it is damaged."""
    try:
        payload = parse_json(attrs["payload"])
        task = Task(attrs["key"], attrs["kind"], payload, str(attrs.get("title", "")))
    except (KeyError, ValueError, TypeError):
        return None
    return task if isinstance(task.key, str) and isinstance(task.kind, str) and isinstance(payload, dict) else None


def _texts(value: Any) -> dict[str, str]:
    return {str(k): str(v) for k, v in value.items()} if isinstance(value, dict) else {}


def _owner_of(trial: FrozenTrial) -> str:
    beat = trial.user_attrs.get("beat")
    return f"process {beat.get('pid')} on {beat.get('host')}" if isinstance(beat, dict) else "a process"
