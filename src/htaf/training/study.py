"""Many trainings as one study: cells keyed by content, candidates searched through Optuna, chosen on validation.

A study folder holds `cells/<key>.json`, one record a finished cell, written whole; `work/<key>/`, run folders of cells
that are not finished; `runs/<key>/`, those that are kept; `search.db`, Optuna's trials; `report.json` and `report.md`.
A finished cell is never computed again, by this plan or another one in the same folder.
"""

from __future__ import annotations

import functools
import json
import multiprocessing
import multiprocessing.connection
import os
import shutil
import threading
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
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
from htaf._errors import HtafError, first_line
from htaf._files import check_output_folder, parse_json
from htaf.data import images, tabular
from htaf.data.attributes import Attributes
from htaf.data.named import is_named
from htaf.data.parts import Data
from htaf.runs import are_metrics, content_hash, locked, open_run, to_json, write_atomic
from htaf.runs.metrics import LOWER_IS_BETTER
from htaf.training.fit import check, fit, run_identity
from htaf.training.plan import Plan, Source
from htaf.training.problems import headline_of, supervision
from htaf.training.recipe import ImageData, Recipe, TableData
from htaf.training.report import SearchResult, comparison, markdown, overall, score, summary_row


class StudyError(HtafError):
    """A study that cannot go on."""


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
    work, kept = out / "work" / key, run_path(out, key)
    if keep and kept.is_dir():  # a kill between the two writes below
        record = open_run(kept).record
        write_atomic(cell_path(out, key), to_json(record))
        return record
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        mode, test = cell.source.mode, cell.test
        of_images = isinstance(cell.recipe.data, ImageData)
        source = {"name": cell.source.name, "size": cell.source.size} if of_images else _source(cell) if keep else None
        run = fit(
            cell.recipe, cell.data, work, seed=cell.seed, mode=mode, source=source, device=cell.device, test=test,
            attributes=cell.attributes,
        )  # fmt: skip
    if keep:
        kept.parent.mkdir(exist_ok=True)
        work.rename(kept)
    write_atomic(cell_path(out, key), to_json(run.record))
    shutil.rmtree(work, ignore_errors=True)
    return run.record


def _source(cell: Cell) -> dict[str, Any]:
    """Where the table of a cell came from, as a run remembers it: whole paths."""
    known = {name: v for name, v in cell.source.arguments().items() if name not in ("shares", "group", "time")}
    known |= {"test": str(tabular.located(cell.source.test, cell.data_dir).resolve())} if cell.source.test else {}
    named = is_named(cell.source.name)
    place = cell.source.name if named else str(tabular.located(cell.source.name, cell.data_dir).resolve())
    return {"name": place, "data_dir": cell.data_dir and str(Path(cell.data_dir).resolve()), **known}


def run_path(out: Path, key: str) -> Path:
    """Where the run folder of a cell is kept, if it is."""
    return out / "runs" / key


def cell_path(out: Path, key: str) -> Path:
    return out / "cells" / f"{key}.json"


def read_cell(out: Path, key: str) -> dict[str, Any] | None:
    """The record of a finished cell; None when there is none. A damaged one raises StudyError, nothing is
    overwritten."""
    path = cell_path(out, key)
    try:
        record = parse_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError):
        record = None
    if not _is_cell(record):
        raise StudyError(f"{path} is damaged: delete it to compute the cell again")
    return record


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
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        multiprocessing.connection.wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


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


def run_study(
    plan: Plan,
    out: str | Path,
    *,
    data_dir: str | None = None,
    workers: int = 1,
    threads: int = 1,
    device: str = "cpu",
    storage: str | None = None,
    progress: bool = False,
    keep_runs: bool = False,
) -> dict[str, Any]:
    """Search candidates on the validation part of split 0, then train the chosen recipe on every split.

    Args:
        plan: data sets, methods with their grids, number of candidates and splits.
        out: study folder; started again, it goes on where it was.
        data_dir: where named data sets lie, before HTAF_DATA.
        workers, threads: processes, and threads of each.
        device: where they train; see `fit`.
        storage: Optuna storage URL instead of search.db in the folder, such as a PostgreSQL server that
            optuna-dashboard reads. The trials of one plan belong to one folder: two at a time would both compute them.
        progress: show bars.
        keep_runs: leave the run folders of the final trainings in runs/<key>.

    Returns:
        The report, also written to report.json and report.md: per data set and method mean, standard error and single
        values of the test metric for the exact and the smooth network, the chosen recipe, failures, and the plan's
        reference values.

    Raises:
        DataError: a data set cannot be loaded. StudyError: a worker died, no candidate of a search succeeded, or
            another process runs a study in the folder.
    """
    out = Path(out)
    check_output_folder(out, own="study")
    for method in plan.methods:  # what can be said before data are read
        for recipe in plan.recipes(method):
            check(recipe, device)
    with locked(out, "another study runs in", StudyError):  # its own workers are of the process that holds it
        pairs = [(source, method) for source in plan.sources for method in plan.methods]
        run = functools.partial(run_cells, out=out, workers=workers, threads=threads, progress=progress)
        url = storage or f"sqlite:///{out / 'search.db'}"
        with _optuna(url):
            choices, tried, failures = _search(plan, pairs, url, data_dir, device, workers, run)
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
            spent = [record for key in sorted(keys) if (record := read_cell(out, key)) is not None]
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
def _optuna(url: str) -> Iterator[None]:
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
        raise StudyError(f"Optuna's storage {url} cannot be used: {first_line(error)}") from None
    finally:
        optuna.logging.set_verbosity(before)


def _provenance(records: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The different commits, versions and machines that the cells were measured by, most cells first."""
    seen = Counter(to_json({k: r[k] for k in ("commit", "versions", "platform", "threads", "device")}) for r in records)
    return [{"cells": count, **json.loads(text)} for text, count in seen.most_common()]


def _search(
    plan: Plan, pairs: list[tuple[Source, str]], storage: str, data_dir: str | None, device: str, workers: int, run: Any
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
    for trial in study.get_trials(states=(states.RUNNING,)):
        if trial.params.keys() != plan.methods[method].keys():  # killed while it was asked
            study.tell(trial.number, state=states.FAIL)
    for candidate in plan.draw(method):
        study.enqueue_trial(candidate, skip_if_exists=True)
    failed = study.get_trials(states=(states.FAIL,))
    others = study.get_trials(states=(states.COMPLETE, states.RUNNING, states.WAITING))
    there = [_candidate(trial) for trial in others]
    for candidate in map(_candidate, failed):
        if candidate not in there:
            there.append(candidate)
            study.enqueue_trial(candidate)
    return len(failed)


def _candidate(trial: optuna.trial.FrozenTrial) -> dict[str, Any]:
    return trial.system_attrs.get("fixed_params", trial.params)


def _ask(plan: Plan, method: str, study: optuna.Study, workers: int, failed_before: int) -> list[Any]:
    """The next trials of a search: all drawn candidates at once, or as many as there are workers for an adaptive
    one."""
    states = optuna.trial.TrialState
    running = study.get_trials(states=(states.RUNNING,))
    ended = len(study.get_trials(states=(states.COMPLETE, states.FAIL))) - failed_before
    left = plan.number(method) - ended - len(running)
    fresh = max(0, min(left, max(1, workers - len(running))) if plan.adaptive else left)
    return [*running, *(study.ask(plan.distributions(method)) for _ in range(fresh))]
