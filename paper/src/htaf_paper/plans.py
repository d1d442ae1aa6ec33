"""Studies by `htaf.training.plan.Plan` as items of the paper: one round of candidates, one of the chosen recipes."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from htaf.runs.metrics import LOWER_IS_BETTER
from htaf.training.cells import Task
from htaf.training.plan import Plan
from htaf.training.recipe import Recipe
from htaf.training.report import score
from htaf.training.study import Cell, Search, run_path
from htaf_paper.protocol import Found, Place


@dataclass
class Trained:
    """What plans have so far.

    wanted: cells that are to be computed next. By label of the data set and row: chosen, the recipe; finals, its
    records by seed; tasks, their cells by seed, there or not.
    """

    wanted: list[Task] = field(default_factory=list)
    chosen: dict[tuple[str, str], Recipe] = field(default_factory=dict)
    finals: dict[tuple[str, str], dict[int, dict[str, Any]]] = field(default_factory=dict)
    tasks: dict[tuple[str, str], dict[int, Task]] = field(default_factory=dict)

    def values(
        self, label: str, row: str, part: str = "test", network: str | None = None, times: float = 1.0
    ) -> list[float | None]:
        """The headline of the finals of a row, by seed; of the exact network unless `network` says otherwise."""
        records = self.finals.get((label, row), {})
        scores = [score(records[seed], part, network) for seed in sorted(records)]
        return [None if value is None else times * value for value in scores]

    def differences(self, label: str, row: str, other: str, times: float = 1.0) -> list[float]:
        """How much better a row is than another on the seeds that both have, above 0: better."""
        own, others = self.finals.get((label, row), {}), self.finals.get((label, other), {})
        found = []
        for seed in sorted(own.keys() & others.keys()):
            a, b = score(own[seed], "test"), score(others[seed], "test")
            if a is not None and b is not None:
                sign = -1 if own[seed]["headline"] in LOWER_IS_BETTER else 1
                found.append(times * sign * (a - b))
        return found


def trained(
    plans: Sequence[Plan],
    found: Found,
    place: Place,
    *,
    keep: bool | Callable[[str], bool] = False,
    again: bool = True,
    seeds: Mapping[str, int] | None = None,
) -> Trained:
    """The cells of plans that are wanted next, and what there is.

    Args:
        keep: leave the run folders of the finals, of all rows or of those for which it is true.
        again: want a final too whose record is there and whose run folder should be kept and is not.
        seeds: number of finals of a row, in place of `splits` of its plan.

    Raises:
        DataError: a data set is not here.
    """
    made = Trained()
    for plan in plans:
        for source in plan.sources:
            for row in plan.methods:
                search = Search(plan, source, row, place.data_dir, place.device)
                recipe = _chosen(search, found, made)
                if recipe is None:
                    continue
                pair = (source.label, row)
                kept = keep(row) if callable(keep) else keep
                made.chosen[pair], made.finals[pair], made.tasks[pair] = recipe, {}, {}
                for seed in range((seeds or {}).get(row, plan.splits)):
                    task = _task(search.final(recipe, seed), kept)
                    made.tasks[pair][seed] = task
                    record = found.get(task)
                    if record is None or (kept and again and not run_path(place.out, task.key).is_dir()):
                        made.wanted.append(task)
                    else:
                        made.finals[pair][seed] = record
    return made


def _chosen(search: Search, found: Found, made: Trained) -> Recipe | None:
    """The recipe of a row that is best on validation; None while candidates are missing."""
    tasks = {cell: _task(cell, False) for _, cell in search.drawn}
    missing = [task for task in tasks.values() if found.get(task) is None and task.key not in found.failed]
    made.wanted += missing
    result = None if missing else search.result(lambda cell: found.get(tasks[cell]))
    return None if result is None else result.recipe


def _task(cell: Cell, keep: bool) -> Task:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # pairs that never pass 0.99 are two of the paper's
        return cell.task(keep)
