"""Many trainings as one study: cells keyed by content, candidates searched through Optuna, chosen on validation.

A study folder holds `cells/<key>.json`, one record a finished cell, written whole; `work/<key>/`, run folders of cells
that are not finished; `runs/<key>/`, those that are kept; `search.db`, Optuna's trials; `plan.json`; `report.json` and
`report.md`. A folder is of one study, by its name. A finished cell is kept, also where the plan changes.

With a store the cells are tasks of a queue, which workers on any machine compute (`htaf.training.queue`).
"""

from __future__ import annotations

import functools
import json
import multiprocessing
import os
import shutil
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import optuna
import torch
from sqlalchemy.exc import SQLAlchemyError

from htaf._console import progress as progress_of
from htaf._console import say_notes
from htaf._errors import first_line
from htaf._files import LOCK, BusyError, check_output_folder, hold, parse_json
from htaf.data import images, tabular
from htaf.data.attributes import Attributes
from htaf.data.named import is_named
from htaf.data.parts import Data
from htaf.data.reading import DataError
from htaf.names import is_outside
from htaf.runs import are_metrics, content_hash, environment, locked, open_run, to_json, write_atomic
from htaf.runs.metrics import LOWER_IS_BETTER
from htaf.training.coordinator import Coordinator, coordinated
from htaf.training.families import make_recipe
from htaf.training.fit import check, fit, run_identity
from htaf.training.plan import Plan, PlanError, Source
from htaf.training.problems import headline_of, supervision
from htaf.training.queue import KINDS, Leasing, OtherMachineError, Place, Task
from htaf.training.recipe import ImageData, Recipe, TableData
from htaf.training.report import SearchResult, comparison, markdown, overall, score, summary_row
from htaf.training.results import Results, StudyError
from htaf.training.running import Running
from htaf.training.store import PATIENCE, shown
from htaf.training.worker import Work, leave_with_parent


@dataclass(frozen=True)
class Cell:
    """One training of a study: a recipe, a seed (of split, weights and batches) and where the data come from."""

    recipe: Recipe
    seed: int
    source: Source
    data_dir: str | None = None
    test: bool = True
    device: str = "cpu"

    @property
    def data(self) -> Data:
        """What it trains on, loaded once a process."""
        return data_of(self.source, isinstance(self.recipe.data, TableData), self.data_dir)

    @property
    def attributes(self) -> Attributes | None:
        """Of the classes, where the recipe learns them."""
        return supervision(self.recipe, self.data_dir)

    def key(self) -> str:
        """The key of its run: the data count by their fingerprint, not by where they lie."""
        split, known = self.source.mode, self.attributes
        return content_hash(run_identity(self.recipe, self.data, self.seed, split, test=self.test, attributes=known))

    def __str__(self) -> str:
        return f"{self.source.label}, {self.recipe.activation.method}, seed {self.seed}"


@functools.lru_cache(maxsize=8)
def data_of(source: Source, table: bool, data_dir: str | None) -> Data:
    """The table or the images of a source."""
    if not table:
        return images.load(source.name, size=source.size, data_dir=data_dir)
    return tabular.load(source.name, data_dir=data_dir, **source.arguments())


def run_cells(
    cells: Sequence[Cell],
    out: Path,
    *,
    workers: int = 1,
    threads: int = 1,
    progress: bool = False,
    title: str = "cells",
    keep: bool = False,
) -> tuple[dict[Cell, dict[str, Any]], dict[Cell, str]]:
    """Compute the cells that are not there yet.

    Args:
        cells: what is wanted; repeated ones count once.
        out: study folder.
        workers: processes; threads: of each.
        progress: show a bar on a terminal, else a line a cell. title: its text.
        keep: leave the run folder of each cell in runs/<key>, the network included.

    Returns:
        Records by cell, and error messages of cells that failed; those are not stored, so the next call tries them
        again.

    Raises:
        StudyError: a worker process died. RunError: a run folder that was kept is damaged. KeyboardInterrupt: stopped;
            what is finished is stored, what was running resumes from its last checkpoint.
    """
    keys = {cell: cell.key() for cell in cells}
    there = {key: read_cell(out, key) for key in keys.values() if not keep or run_path(out, key).is_dir()}
    records = {cell: record for cell, key in keys.items() if (record := there.get(key)) is not None}
    for key in {keys[cell] for cell in records} if keep else ():
        open_run(run_path(out, key))  # raises RunError for one that has lost its weights
    first_of = {key: cell for cell, key in reversed(keys.items()) if cell not in records}
    failures: dict[Cell, str] = {}
    others = set(multiprocessing.active_children())  # the caller's own, not to be touched
    total = len(set(keys.values()))
    done = total - len(first_of)
    with (
        progress_of(f"{title}, cells", total, shown=progress, done=done, every=0) as advance,
        _pool(min(workers, len(first_of)), threads) as pool,
    ):
        futures = (
            {pool.submit(compute_cell, cell, out, key, keep): key for key, cell in first_of.items()} if pool else {}
        )
        try:
            for future in as_completed(futures):
                key = futures[future]
                try:
                    record = future.result()
                    records |= {cell: record for cell, other in keys.items() if other == key}
                except BrokenProcessPool:
                    raise StudyError(
                        f"a worker process died (out of memory?); {done} of {total} cells are done and kept: "
                        "run the same command again"
                    ) from None
                except Exception as error:  # one bad cell must not stop the others
                    reason = f"{type(error).__name__}: {error}"
                    failures |= {cell: f"{cell}: {reason}" for cell, other in keys.items() if other == key}
                done += 1
                advance(1, str(first_of[key]))
        except KeyboardInterrupt:
            for child in set(multiprocessing.active_children()) - others:
                child.kill()  # lightning answers SIGTERM by going on; work folders keep whole checkpoints only
            raise
    return records, failures


def compute_cell(cell: Cell, out: Path, key: str, keep: bool = False) -> dict[str, Any]:
    """Train one cell in its work folder, store its record, drop or keep the folder. Runs in a worker."""
    work = out / "work" / key
    record = _trained(cell, work, run_path(out, key) if keep else None)
    write_atomic(cell_path(out, key), to_json(record))
    shutil.rmtree(work, ignore_errors=True)
    return record


def _trained(cell: Cell, work: Path, kept: Path | None) -> dict[str, Any]:
    """The record of a cell, trained in a folder, which becomes `kept` if that is given."""
    if kept is not None and kept.is_dir():  # a kill before the record was written
        return open_run(kept).record
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        mode, test = cell.source.mode, cell.test
        of_images = isinstance(cell.recipe.data, ImageData)
        source = {"name": cell.source.name, "size": cell.source.size} if of_images else _source(cell) if kept else None
        run = fit(
            cell.recipe, cell.data, work, seed=cell.seed, split=mode, source=source, test=test,
            attributes=cell.attributes, running=Running(cell.device),
        )  # fmt: skip
    if kept is not None:
        kept.parent.mkdir(parents=True, exist_ok=True)
        _moved(work, kept)
    return run.record


def _moved(work: Path, kept: Path) -> None:
    """Move a run folder whole, from another disk too."""
    if work.stat().st_dev == kept.parent.stat().st_dev:
        work.rename(kept)
        return
    beside = kept.with_name(f".{kept.name}.{os.getpid()}")
    try:
        shutil.copytree(work, beside)
        beside.rename(kept)
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def _source(cell: Cell) -> dict[str, Any]:
    """Where the table of a cell came from, as a run remembers it: whole paths."""
    known = {name: v for name, v in cell.source.arguments().items() if name not in ("shares", "group", "time")}
    known |= {"test": os.path.realpath(tabular.located(cell.source.test, cell.data_dir))} if cell.source.test else {}
    named = is_named(cell.source.name)
    place = cell.source.name if named else os.path.realpath(tabular.located(cell.source.name, cell.data_dir))
    return {"name": place, "data_dir": cell.data_dir and os.path.realpath(cell.data_dir), **known}


def run_path(out: Path, key: str) -> Path:
    """Where the run folder of a cell is kept, if it is."""
    return out / "runs" / key


def cell_path(out: Path, key: str) -> Path:
    return out / "cells" / f"{key}.json"


def read_cell(out: Path, key: str) -> dict[str, Any] | None:
    """The record of a finished cell; None when there is none. A damaged one raises StudyError, nothing is
    overwritten."""
    return Results(out, _is_cell).read(key)


def _is_cell(record: Any) -> bool:
    """Whether it holds what a report is made of."""
    names = {"metrics", "headline", "seconds", "commit", "versions", "platform", "threads", "device"}
    if not isinstance(record, dict) or not record.keys() >= names or not isinstance(record["versions"], dict):
        return False
    seconds = (record["seconds"], record.get("cpu_seconds") or 0.0)
    return all(type(value) in (int, float) for value in seconds) and are_metrics(record["metrics"], record["headline"])


def _start_worker(threads: int) -> None:
    """Set the number of threads, and leave when the study's process is gone, however it went."""
    torch.set_num_threads(threads)
    leave_with_parent()


@contextmanager
def _pool(workers: int, threads: int) -> Iterator[ProcessPoolExecutor | None]:
    if workers < 1:
        yield None
        return
    context = multiprocessing.get_context("spawn")  # fork would copy a process whose torch has threads
    pool = ProcessPoolExecutor(workers, mp_context=context, initializer=_start_worker, initargs=(threads,))
    try:
        yield pool
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


class TrainingCells:
    """The kind of cells of a study, for workers: a recipe, a seed and where the data come from, as JSON."""

    def task(self, cell: Cell, key: str, keep: bool) -> Task:
        """A cell as a task of a queue."""
        payload = {
            "recipe": cell.recipe.flat(),
            "seed": cell.seed,
            "source": cell.source.describe(),
            "test": cell.test,
            "data": {"fingerprint": cell.data.fingerprint, "rows": _rows(cell.data)},
            "keep": keep,
        }
        return Task(key, "training", payload, str(cell))

    def key(self, payload: Mapping[str, Any], place: Place) -> str:
        cell, said = self._cell(payload, place), payload["data"]
        try:
            data = cell.data
        except DataError as error:
            raise OtherMachineError(str(error)) from None
        if data.fingerprint != said["fingerprint"]:
            folder = place.data_dir or os.environ.get("HTAF_DATA") or "the working folder"
            raise OtherMachineError(
                f"the data {cell.source.name} differ: expected {said['rows']} rows with fingerprint "
                f"{said['fingerprint'][:12]}, got {_rows(data)} rows with {data.fingerprint[:12]} ({folder})"
            )
        return cell.key()

    def compute(self, payload: Mapping[str, Any], key: str, place: Place) -> dict[str, Any]:
        torch.set_num_threads(place.threads)
        folder, cell = place.results.folder, self._cell(payload, place)
        kept = None if not payload["keep"] or folder is None else run_path(folder, key)
        work = place.work / key
        with hold(place.work / f"{key}{LOCK}", "another process trains", BusyError):
            record = _trained(cell, work, kept)
            shutil.rmtree(work, ignore_errors=True)
        return record

    def there(self, payload: Mapping[str, Any], key: str, results: Results) -> bool:
        folder = results.folder
        if payload.get("keep") and folder is not None:
            if not run_path(folder, key).is_dir():
                return False
            open_run(run_path(folder, key))  # raises RunError for one that has lost its weights
        return results.read(key, _is_cell) is not None

    def _cell(self, payload: Mapping[str, Any], place: Place) -> Cell:
        """Raises ValueError for a payload that makes no sense, or that names code."""
        try:
            given: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in payload["source"].items()}
            recipe, seed, test = make_recipe(**payload["recipe"]), payload["seed"], payload["test"]
            source, said = Source(**given), payload["data"]
            if type(seed) is not int or type(test) is not bool or not isinstance(said["fingerprint"], str):
                raise ValueError(f"seed {seed!r}, test {test!r}, data {said!r}")
        except (KeyError, TypeError, AttributeError, PlanError) as error:
            raise ValueError(f"the store holds a cell that is damaged: {type(error).__name__}: {error}") from None
        if is_outside(recipe.activation.method):
            raise ValueError(f"expected a method of htaf in a store, got the code {recipe.activation.method}")
        return Cell(recipe, seed, source, place.data_dir, test, place.device)


TRAINING = TrainingCells()
assert KINDS["training"] == f"{__name__}:TRAINING"


def _rows(data: Data) -> int:
    return len(data.target) if isinstance(data, tabular.Table) else len(data.train) + len(data.test)


def run_study(
    plan: Plan,
    out: str | Path,
    *,
    data_dir: str | None = None,
    workers: int = 1,
    threads: int = 1,
    device: str = "cpu",
    store: str | None = None,
    results: str | Path | None = None,
    work: str | Path | None = None,
    leasing: Leasing | None = None,
    patience: float = PATIENCE,
    parallel: int | None = None,
    progress: bool = False,
    keep_runs: bool = False,
) -> dict[str, Any]:
    """Search candidates on the validation part of split 0, then train the chosen recipe on every split.

    Args:
        plan: data sets, methods with their grids, number of candidates and splits.
        out: study folder; started again, it goes on where it was.
        data_dir: where named data sets lie, before HTAF_DATA.
        workers, threads: processes, and threads of each. 0 processes only with a store: others compute.
        device: where they train; see `fit`.
        store: where trials and a queue of cells are kept, for workers on other machines too; see
            `htaf.training.store`. None: search.db in the folder, and this process's own workers alone.
        results: with a store: a folder that all machines share, or an address of fsspec; None: `out`.
        work: with a store: folder of checkpoints; None: a local one.
        leasing, patience: with a store: see `Leasing` and `open_store`.
        parallel: candidates of an adaptive plan at the same time; None: as many as `workers`.
        progress: show bars, and notes.
        keep_runs: leave the run folders of the final trainings in runs/<key>.

    Returns:
        The report, also written to report.json and report.md: per data set and method mean, standard error and single
        values of the test metric for the exact and the smooth network, the chosen recipe, failures, and the plan's
        reference values.

    Raises:
        DataError: a data set cannot be loaded. StudyError: a worker died, no candidate of a search succeeded, another
            process runs a study in the folder or with the store, or the folder is that of a study of another name.
            StoreError: the store cannot be used.
    """
    out = Path(out)
    check_output_folder(out, own="study")
    if store is None and (workers < 1 or results is not None or work is not None):
        raise StudyError("0 workers, a place of results and a place of work need a store")
    for method in plan.methods:  # what can be said before data are read
        for recipe in plan.recipes(method):
            check(recipe, Running(device=device))
    found = Results(results or out, _is_cell)
    if keep_runs and found.folder is None:
        raise StudyError(f"runs can be kept in a folder alone, got {found.place}: choose a folder for the results")
    tell = _told if progress else lambda what, text: None
    with locked(out, "another study runs in", StudyError):  # its own workers are of the process that holds it
        _expect_plan(plan, out)
        at_once = max(1, workers if parallel is None else parallel)
        if store is None:
            run = functools.partial(run_cells, out=out, workers=workers, threads=threads, progress=progress)
            return _study(plan, out, f"sqlite:///{out / 'search.db'}", data_dir, device, at_once, run, found, keep_runs)
        more: dict[str, Any] = {} if work is None else {"work": Path(work)}
        told = Work(
            store, data_dir=data_dir, device=device, threads=threads, leasing=leasing or Leasing(), patience=patience,
            **more,
        )  # fmt: skip
        name = f"{plan.name}/{content_hash(plan.describe())}"
        with coordinated(told, name, found, environment(), workers, tell) as coordinator:
            run = functools.partial(_queued, coordinator=coordinator, progress=progress)
            return _study(plan, out, coordinator.store, data_dir, device, at_once, run, found, keep_runs)


def _expect_plan(plan: Plan, out: Path) -> None:
    """Write the plan into plan.json of a study folder, which is of one study: a later one would replace its report.

    Raises:
        StudyError: the folder is that of a study of another name.
    """
    for name in ("plan.json", "report.json"):
        try:
            found = parse_json((out / name).read_bytes())["study"]
        except (OSError, ValueError, TypeError, KeyError):  # not there, or damaged: it is written anew
            continue
        if found != plan.name:
            raise StudyError(
                f"{out} is the folder of the study {found!r}, got the plan {plan.name!r}, whose report would replace "
                "that one: choose another folder by --out"
            )
    write_atomic(out / "plan.json", to_json({"study": plan.name, "plan": plan.describe()}))


def _told(what: str, text: str) -> None:
    if what == "note":
        say_notes([text])


def _queued(
    cells: Sequence[Cell], *, coordinator: Coordinator, progress: bool, title: str, keep: bool = False
) -> tuple[dict[Cell, dict[str, Any]], dict[Cell, str]]:
    """As `run_cells`, by the workers of a store."""
    keys = {cell: cell.key() for cell in cells}
    first_of = {key: cell for cell, key in reversed(keys.items())}
    tasks = [TRAINING.task(cell, key, keep) for key, cell in first_of.items()]
    records, failed = coordinator.compute(tasks, progress=progress, title=title)
    found = {cell: records[key] for cell, key in keys.items() if key in records}
    return found, {cell: f"{cell}: {failed[key]}" for cell, key in keys.items() if key in failed}


def _study(
    plan: Plan,
    out: Path,
    storage: str | optuna.storages.BaseStorage,
    data_dir: str | None,
    device: str,
    at_once: int,
    run: Callable[..., tuple[dict[Cell, dict[str, Any]], dict[Cell, str]]],
    results: Results,
    keep_runs: bool,
) -> dict[str, Any]:
    """Search, train and report, with `run` to compute cells."""
    pairs = [(source, method) for source in plan.sources for method in plan.methods]
    with _optuna(storage):
        choices, tried, failures = _search(plan, pairs, storage, data_dir, device, at_once, run)
    cells = {
        (*pair, seed): Cell(choices[pair].recipe, seed, pair[0], data_dir, device=device)
        for pair in pairs
        for seed in range(plan.splits)
    }
    records, failed = run(list(cells.values()), title="splits", keep=keep_runs)
    rows, found = [], {}
    for pair in pairs:
        finals = {seed: cells[(*pair, seed)] for seed in range(plan.splits)}
        found[pair] = {seed: records[cell] for seed, cell in finals.items() if cell in records}
        keys = {cell.key() for cell in (*tried[pair], *finals.values())}
        spent = [record for key in sorted(keys) if (record := results.read(key)) is not None]
        rows.append(summary_row(plan, *pair, choices[pair], [*found[pair].values()], spent))
    report = {
        "study": plan.name,
        "plan": plan.describe(),
        "rows": rows,
        "overall": [overall(plan, method, rows) for method in plan.methods],
        "compared": [comparison(plan, reference, found) for reference in plan.compare],
        "failures": sorted({*failures.values(), *failed.values()}),
        "measured": _provenance(records.values()),
    }
    write_atomic(out / "report.json", to_json(report))
    write_atomic(out / "report.md", markdown(report))
    return report


@contextmanager
def _optuna(storage: str | optuna.storages.BaseStorage) -> Iterator[None]:
    """Optuna without its chatter, and with its storage's errors as one sentence."""
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        yield
    except (
        optuna.exceptions.OptunaError,
        SQLAlchemyError,
        ImportError,
        UnicodeDecodeError,
        json.JSONDecodeError,
    ) as error:
        raise StudyError(f"Optuna's storage {shown(str(storage))} cannot be used: {first_line(error)}") from None
    finally:
        optuna.logging.set_verbosity(before)


def _provenance(records: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The different commits, versions and machines that the cells were measured by, most cells first."""
    seen = Counter(to_json({k: r[k] for k in ("commit", "versions", "platform", "threads", "device")}) for r in records)
    return [{"cells": count, **json.loads(text)} for text, count in seen.most_common()]


def _search(
    plan: Plan,
    pairs: list[tuple[Source, str]],
    storage: str | optuna.storages.BaseStorage,
    data_dir: str | None,
    device: str,
    workers: int,
    run: Any,
) -> tuple[dict[tuple[Source, str], SearchResult], dict[tuple[Source, str], list[Cell]], dict[Cell, str]]:
    """All searches side by side: ask, compute, tell. A trial that was running when the study stopped is asked again.
    A row of one candidate needs no search, where that would cost a training.

    Returns:
        what was chosen and the cells of all candidates, by data set and row; error messages of cells that failed.
    """

    def cell_of(pair: tuple[Source, str], trial: optuna.trial.FrozenTrial | optuna.trial.Trial) -> Cell:
        recipe = plan.trial(pair[1], trial.params)
        return Cell(recipe, 0, pair[0], data_dir, plan.search_sees_test, device)

    studies, failures, failed_before, choices, tried = {}, {}, {}, {}, {}
    for source, method in pairs:
        if plan.number(method) == 1 and not plan.search_sees_test:
            choices[source, method] = SearchResult(plan.recipes(method)[0], None, ())
            tried[source, method] = []
            continue
        data = data_of(source, isinstance(plan.base.data, TableData), data_dir)
        study = optuna.create_study(
            study_name=f"{plan.name}/{source.label}/{method}/{content_hash([plan.describe(), data.fingerprint])}",
            storage=storage,
            sampler=plan.sampler(method),
            direction="minimize" if headline_of(data) in LOWER_IS_BETTER else "maximize",
            load_if_exists=True,
        )
        failed_before[source, method] = _prepare(plan, method, study)
        studies[source, method] = study
    while True:
        asked = [
            (pair, trial)
            for pair, study in studies.items()
            for trial in _ask(plan, pair[1], study, workers, failed_before[pair])
        ]
        if not asked:
            break
        cells = [cell_of(pair, trial) for pair, trial in asked]
        records, failed = run(cells, title="search")
        failures |= failed
        for (pair, trial), cell in zip(asked, cells, strict=True):
            value = score(records[cell], "validation") if cell in records else None
            if value is None:
                studies[pair].tell(trial.number, state=optuna.trial.TrialState.FAIL, skip_if_finished=True)
            else:
                studies[pair].tell(trial.number, value, skip_if_finished=True)
    for pair, study in studies.items():
        done = study.get_trials(states=(optuna.trial.TrialState.COMPLETE,))
        if not done:
            reasons = "; ".join(sorted(set(failures.values()))[:2])
            raise StudyError(f"no candidate of {pair[1]} on {pair[0].label} succeeded: {reasons}")
        best = study.best_trial
        trials = [{"values": {k: json.loads(v) for k, v in t.params.items()}, "validation": t.value} for t in done]
        choices[pair] = SearchResult(
            plan.recipe(pair[1], best.params), float(best.value or 0.0), tuple(sorted(trials, key=to_json))
        )
        tried[pair] = [cell_of(pair, trial) for trial in done]
    return choices, tried, failures


def _prepare(plan: Plan, method: str, study: optuna.Study) -> int:
    """Enqueue what was drawn and what failed in an earlier call, where it is not yet; returns how many had failed."""
    states = optuna.trial.TrialState
    _ask_again(plan, method, study)
    for candidate in plan.draw(method):
        study.enqueue_trial(candidate, skip_if_exists=True)
    failed = study.get_trials(states=(states.FAIL,))
    others = study.get_trials(states=(states.COMPLETE, states.RUNNING, states.WAITING))
    there = [_candidate(trial) for trial in others]
    for candidate in map(_candidate, failed):
        if candidate not in there:
            there.append(candidate)
            study.enqueue_trial(candidate)
    return sum(_is_whole(plan, method, trial) for trial in failed)


def _ask_again(plan: Plan, method: str, study: optuna.Study) -> None:
    """Enqueue anew what trials without all their parameters were to try: who asked was killed, or a server went
    away in between."""
    for trial in study.get_trials(states=(optuna.trial.TrialState.RUNNING,)):
        if not _is_whole(plan, method, trial):
            study.tell(trial.number, state=optuna.trial.TrialState.FAIL)
            if "fixed_params" in trial.system_attrs:
                study.enqueue_trial(trial.system_attrs["fixed_params"], skip_if_exists=False)


def _is_whole(plan: Plan, method: str, trial: optuna.trial.FrozenTrial) -> bool:
    return trial.params.keys() == plan.methods[method].keys()


def _candidate(trial: optuna.trial.FrozenTrial) -> dict[str, Any]:
    return trial.system_attrs.get("fixed_params", trial.params)


def _ask(plan: Plan, method: str, study: optuna.Study, workers: int, failed_before: int) -> list[Any]:
    """The next trials of a search: all drawn candidates at once, or as many as there are workers for an adaptive
    one."""
    states = optuna.trial.TrialState
    _ask_again(plan, method, study)
    running = study.get_trials(states=(states.RUNNING,))
    ended = sum(_is_whole(plan, method, t) for t in study.get_trials(states=(states.COMPLETE, states.FAIL)))
    ended -= failed_before
    left = plan.number(method) - ended - len(running)
    fresh = max(0, min(left, max(1, workers - len(running))) if plan.adaptive else left)
    return [*running, *(study.ask(plan.distributions(method)) for _ in range(fresh))]
