"""Many trainings as one study: cells keyed by content, candidates chosen on validation, one report.

A study folder holds `cells/<key>/`, a folder a training with `record.json`, and with `run/` where it is kept
(`htaf.training.cells`); `cells.jsonl`, all records in one file; `plan.json`; `report.json` and `report.md`. A folder is
of one study, by its name. A finished cell is kept, also where the plan changes.
"""

from __future__ import annotations

import functools
import json
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from htaf._files import check_output_folder, parse_json
from htaf.data import images
from htaf.data.attributes import Attributes
from htaf.data.parts import Data
from htaf.runs import are_metrics, content_hash, open_run, to_json, write_atomic
from htaf.runs.metrics import LOWER_IS_BETTER
from htaf.training.cells import (
    Computing,
    Place,
    StudyError,
    Task,
    cell_folder,
    compute,
    engine_of,
    expect_all,
    gather,
)
from htaf.training.fit import check, fit, run_identity
from htaf.training.plan import Plan, Source
from htaf.training.problems import supervision
from htaf.training.recipe import ImageData, Recipe, TableData
from htaf.training.report import SearchResult, comparison, markdown, overall, score, summary_row
from htaf.training.running import Running

RUN = "run"  # of a cell: its run folder


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

    def task(self, keep: bool = False) -> Task:
        """As a cell of `htaf.training.cells`. keep: its run folder stays, the network included."""
        payload = {
            "recipe": self.recipe.flat(),
            "seed": self.seed,
            "source": self.source.describe(),
            "test": self.test,
            "data": {"fingerprint": self.data.fingerprint},
        }
        train = functools.partial(_trained, self, keep)
        return Task(self.key(), "training", payload, str(self), train, (RUN,) if keep else (), is_record)

    def __str__(self) -> str:
        return f"{self.source.label}, {self.recipe.activation.method}, seed {self.seed}"


@functools.lru_cache(maxsize=8)
def data_of(source: Source, table: bool, data_dir: str | None) -> Data:
    """The table or the images of a source."""
    if not table:
        return images.load(source.name, size=source.size, data_dir=data_dir)
    return source.table(data_dir)


def _trained(cell: Cell, keep: bool, place: Place) -> dict[str, Any]:
    """Train in the folder of the cell; a training that was stopped there resumes, one that had ended is read."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        of_images = isinstance(cell.recipe.data, ImageData)
        named = {"name": cell.source.name, "size": cell.source.size} if of_images else None
        source = cell.source.remembered(cell.data_dir, images=of_images) if keep else named
        return fit(
            cell.recipe, cell.data, place.folder / RUN, seed=cell.seed, split=cell.source.mode, source=source,
            test=cell.test, attributes=cell.attributes, running=Running(cell.device),
        ).record  # fmt: skip


def run_path(out: Path, key: str) -> Path:
    """Where the run folder of a cell is kept, if it is."""
    return cell_folder(out, key) / RUN


def is_record(record: Any) -> bool:
    """Whether it holds what a report is made of."""
    names = {"metrics", "headline", "seconds", "commit", "versions", "platform", "threads", "device"}
    if not isinstance(record, dict) or not record.keys() >= names or not isinstance(record["versions"], dict):
        return False
    seconds = (record["seconds"], record.get("cpu_seconds") or 0.0)
    return all(type(value) in (int, float) for value in seconds) and are_metrics(record["metrics"], record["headline"])


@dataclass(frozen=True)
class Search:
    """The candidates of a row on one data set, in the order in which they were drawn."""

    plan: Plan
    source: Source
    row: str
    data_dir: str | None = None
    device: str = "cpu"

    @functools.cached_property
    def drawn(self) -> list[tuple[dict[str, str], Cell]]:
        """Candidates with their trainings; none where one candidate needs no search, which would cost a training."""
        plan = self.plan
        if plan.number(self.row) == 1 and not plan.search_sees_test:
            return []
        return [
            (one, Cell(plan.trial(self.row, one), 0, self.source, self.data_dir, plan.search_sees_test, self.device))
            for one in plan.draw(self.row)
        ]

    def result(self, read: Callable[[Cell], dict[str, Any] | None]) -> SearchResult | None:
        """The candidate that is best on validation, the first of equals; None where none has a record.

        read: the record of a cell, None of one that failed.
        """
        if not self.drawn:
            return SearchResult(self.plan.recipe(self.row, self.plan.draw(self.row)[0]), None, ())
        known: list[tuple[float, float, dict[str, str]]] = []  # what is to be low, the value, the candidate
        for candidate, cell in self.drawn:
            record = read(cell)
            value = None if record is None else score(record, "validation")
            if record is not None and value is not None:
                known.append((value if record["headline"] in LOWER_IS_BETTER else -value, value, candidate))
        if not known:
            return None
        _, best, chosen = min(known, key=lambda one: one[0])
        trials = [
            {"values": {names: json.loads(text) for names, text in candidate.items()}, "validation": value}
            for _, value, candidate in known
        ]
        return SearchResult(self.plan.recipe(self.row, chosen), best, tuple(sorted(trials, key=to_json)))

    def final(self, recipe: Recipe, seed: int) -> Cell:
        """The training of the chosen recipe on one split."""
        return Cell(recipe, seed, self.source, self.data_dir, device=self.device)


def run_study(
    plan: Plan,
    out: str | Path,
    computing: Computing | None = None,
    *,
    data_dir: str | None = None,
    device: str = "cpu",
    keep_runs: bool = False,
) -> dict[str, Any]:
    """Search candidates on the validation part of split 0, then train the chosen recipe on every split.

    The same call may run at the same time elsewhere, with the same folder on a shared disk: each computes what no other
    has or holds, and each ends with the report.

    Args:
        plan: data sets, methods with their grids, number of candidates and splits.
        out: study folder; started again, it goes on where it was.
        computing: processes, threads, share, engine, and whether progress is shown.
        data_dir: where named data sets lie, before HTAF_DATA.
        device: where they train; see `fit`.
        keep_runs: leave the run folders of the final trainings in cells/<key>/run.

    Returns:
        The report, also written to report.json and report.md: per data set and method mean, standard error and single
        values of the test metric for the exact and the smooth network, the chosen recipe, failures, and the plan's
        reference values.

    Raises:
        DataError: a data set cannot be loaded. StudyError: no candidate of a search succeeded, a record is damaged, or
            the folder is that of a study of another name. RunError: a run folder that was kept is damaged.
            OtherSharesError: this share is done, others are not.
    """
    out, computing = Path(out), computing or Computing()
    check_output_folder(out, own="study")
    for method in plan.methods:  # what can be said before data are read
        for recipe in plan.recipes(method):
            check(recipe, Running(device=device))
    for source in plan.sources:
        data_of(source, isinstance(plan.base.data, TableData), data_dir)
    _expect_plan(plan, out)
    searches = [Search(plan, source, row, data_dir, device) for source in plan.sources for row in plan.methods]
    keys, failures = dict[Cell, str](), dict[str, str]()
    with engine_of(computing, device) as engine:

        def computed(cells: Iterable[Cell], title: str, keep: bool = False) -> dict[Cell, dict[str, Any]]:
            tasks = {cell: cell.task(keep) for cell in cells}
            keys.update({cell: task.key for cell, task in tasks.items()})
            found, failed = compute([*tasks.values()], out, engine, computing, title=title)
            failures.update(failed)
            expect_all(tasks.values(), {*found, *failed}, computing.share, out)
            return {cell: found[task.key] for cell, task in tasks.items() if task.key in found}

        tried = computed((cell for one in searches for _, cell in one.drawn), "search")
        choices = [_chosen(one, tried, failures.values()) for one in searches]
        cells = [
            [one.final(choice.recipe, seed) for seed in range(plan.splits)]
            for one, choice in zip(searches, choices, strict=True)
        ]
        finals = computed((cell for own in cells for cell in own), "splits", keep_runs)
    for cell in finals if keep_runs else ():
        open_run(run_path(out, keys[cell]))  # raises RunError for one that has lost its weights
    rows, found = [], {}
    for one, choice, own in zip(searches, choices, cells, strict=True):
        pair = (one.source, one.row)
        found[pair] = {cell.seed: finals[cell] for cell in own if cell in finals}
        trained = {keys[cell]: (tried | finals).get(cell) for cell in (*(cell for _, cell in one.drawn), *own)}
        spent = [record for _, record in sorted(trained.items()) if record is not None]
        rows.append(summary_row(plan, *pair, choice, [*found[pair].values()], spent))
    report = {
        "study": plan.name,
        "plan": plan.describe(),
        "rows": rows,
        "overall": [overall(plan, method, rows) for method in plan.methods],
        "compared": [comparison(plan, reference, found) for reference in plan.compare],
        "failures": sorted({*failures.values()}),
        "measured": _provenance(finals.values()),
    }
    gather(out)
    write_atomic(out / "report.json", to_json(report))
    write_atomic(out / "report.md", markdown(report))
    return report


def _chosen(search: Search, tried: Mapping[Cell, dict[str, Any]], failures: Iterable[str]) -> SearchResult:
    """Raises StudyError where no candidate succeeded."""
    result = search.result(tried.get)
    if result is None:
        reasons = "; ".join(sorted({*failures})[:2])
        raise StudyError(f"no candidate of {search.row} on {search.source.label} succeeded: {reasons}")
    return result


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


def _provenance(records: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The different commits, versions and machines that the cells were measured by, most cells first."""
    seen = Counter(to_json({k: r[k] for k in ("commit", "versions", "platform", "threads", "device")}) for r in records)
    return [{"cells": count, **json.loads(text)} for text, count in seen.most_common()]
