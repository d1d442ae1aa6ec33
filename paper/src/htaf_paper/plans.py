"""Plans of trainings as items of the paper: one round of candidates, one of the chosen recipes."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from htaf.training.families import make_recipe
from htaf.training.recipe import Recipe, Source, TableData
from htaf.training.runs.metrics import LOWER_IS_BETTER
from htaf_paper.computing import Task
from htaf_paper.protocol import Found, Place
from htaf_paper.trainings import Cell, name_of, run_path, score

Grid = Mapping[str, tuple[Any, ...]]


@dataclass(frozen=True)
class Plan:
    """Data sets x methods; per pair candidates from a grid on split 0, then the chosen one on every split.

    sources: the data sets.
    methods: row -> grid: recipe field -> values. Fields that go together share a key: "alpha0,alpha1": ((2, 11), ...).
        A row is a method, or has one in `variants`.
    base: the recipe whose fields the grid replaces.
    candidates: at most so many per method, drawn once (the same for every data set) without repetition.
    splits: seeds 0, 1, ... of the final trainings.
    search_epochs: length of a candidate's training; None: as long as a final one. A shorter one, and any on images, is
        not measured on the test part.
    variants: row -> method, of rows with names of their own, such as a method with another recipe.
    """

    sources: tuple[Source, ...]
    methods: Mapping[str, Grid]
    base: Recipe = field(default_factory=make_recipe)
    candidates: int = 12
    splits: int = 5
    search_epochs: int | None = None
    variants: Mapping[str, str] = field(default_factory=dict)

    def recipe(self, row: str, candidate: Mapping[str, Any]) -> Recipe:
        """The base recipe with the fields of one candidate; raises ValueError when they do not make a recipe."""
        changes: dict[str, Any] = {"method": self.variants.get(row, row)}
        for names, value in candidate.items():
            parts = names.split(",")
            changes |= zip(parts, value, strict=True) if len(parts) > 1 else [(names, value)]
        return self.base.replace(**changes)

    def trial(self, row: str, candidate: Mapping[str, Any]) -> Recipe:
        """The recipe by which a candidate is judged."""
        recipe = self.recipe(row, candidate)
        return recipe if self.search_epochs is None else recipe.replace(epochs=self.search_epochs)

    @property
    def search_sees_test(self) -> bool:
        """Whether a candidate's training is also the final one of split 0, which is measured on the test part."""
        return self.search_epochs is None and isinstance(self.base.data, TableData)

    def draw(self, row: str) -> list[dict[str, Any]]:
        """The candidates of a row."""
        grid = self.methods[row]
        everything = [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]
        order = np.random.default_rng(0).permutation(len(everything))
        return [everything[i] for i in order[: self.candidates]]


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
                recipe = _chosen(plan, source, row, found, place, made)
                if recipe is None:
                    continue
                pair = (name_of(source), row)
                kept = keep(row) if callable(keep) else keep
                made.chosen[pair], made.finals[pair], made.tasks[pair] = recipe, {}, {}
                for seed in range((seeds or {}).get(row, plan.splits)):
                    task = Cell(recipe, seed, source, place.data_dir, device=place.device).task(kept)
                    made.tasks[pair][seed] = task
                    record = found.get(task)
                    if record is None or (kept and again and not run_path(place.out, task.key).is_dir()):
                        made.wanted.append(task)
                    else:
                        made.finals[pair][seed] = record
    return made


def _chosen(plan: Plan, source: Source, row: str, found: Found, place: Place, made: Trained) -> Recipe | None:
    """The recipe of a row that is best on validation, the first of equals; None while candidates are missing.

    One candidate needs no search, which would cost a training.
    """
    candidates, test = plan.draw(row), plan.search_sees_test
    if len(candidates) == 1 and not test:
        return plan.recipe(row, candidates[0])
    tasks = [Cell(plan.trial(row, one), 0, source, place.data_dir, test, place.device).task() for one in candidates]
    missing = [task for task in tasks if found.get(task) is None and task.key not in found.failed]
    made.wanted += missing
    if missing:
        return None
    known: list[tuple[float, int]] = []  # what is to be low, and of which candidate
    for i, task in enumerate(tasks):
        record = found.get(task)
        value = None if record is None else score(record, "validation")
        if record is not None and value is not None:
            known.append((value if record["headline"] in LOWER_IS_BETTER else -value, i))
    return plan.recipe(row, candidates[min(known)[1]]) if known else None
