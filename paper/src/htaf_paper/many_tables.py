"""Networks with 0/1 activations beside boosted trees and other networks, on 45 tables.

python -m htaf_paper.many_tables --out DIR              # train what is not there yet
python -m htaf_paper.many_tables --out DIR --inputs     # write DIR/inputs/SET.npz for benchmarks/peers/tables
python -m htaf_paper.many_tables --out DIR --report     # records.jsonl, results.json and report.md

Tables: the paper's four and those of `htaf_paper.more_tables`. On the first half of them the defaults were chosen, on
`UNSEEN` nothing was. Each is split five times, 70/10/20, by `htaf.data.tabular.split`. On each split one recipe is
trained by HTAF, straight-through (STE), scaled sigmoid (SS) and ReLU; beside it stands HistGradientBoosting at its
defaults, on the same training rows. No hyperparameter is chosen here.

A cell is a set, a method and a split; DIR/cells/SET-METHOD-SPLIT.json is its record. A cell that is there is not
computed again. The same command in several processes: `--share 1/2`, `--share 2/2`.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import os
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float64, Int32, Int64
from rich.console import Console

from htaf._console import plain_errors
from htaf._console import progress as progress_of
from htaf._errors import HtafError
from htaf._files import check_output_folder, to_json, write_atomic
from htaf.data import dates, tabular
from htaf.data.reading import is_date, is_text
from htaf.data.tabular import Split, Table
from htaf.runs import Run, content_hash, environment, forward
from htaf.runs.metrics import headline
from htaf.training.distributed import thread_count
from htaf.training.families import ready_recipe
from htaf.training.fit import fit
from htaf.training.recipe import Recipe
from htaf.training.running import Running
from htaf_paper import many_tables_report
from htaf_paper.kept import KeptError, read_kept
from htaf_paper.many_tables_report import NETWORKS, Record, check_record
from htaf_paper.more_tables import TABLES, UNSEEN
from htaf_paper.shares import HELP, share

NAMED = ("wine", "abalone", "churn", "fico")
CHOSE = (*NAMED, *(member.name for member in TABLES))  # the defaults were chosen on these
SETS = (*CHOSE, *(member.name for member in UNSEEN))
BOOSTING = "boosting"
METHODS = (*NETWORKS, BOOSTING)
RECIPE = "tabular-members"
SPLITS = 5
MOST_CATEGORIES = 254  # of a column that HistGradientBoosting takes; rarer ones are missing to it
FORMAT = 1


class TablesError(HtafError):
    """A study over tables that cannot go on."""


@dataclass(frozen=True)
class Cell:
    """One training: a set, a method and a split."""

    name: str
    method: str
    split: int

    def path(self, out: Path) -> Path:
        """Of its record."""
        return out / "cells" / f"{self.name}-{self.method}-{self.split}.json"

    def __str__(self) -> str:
        return f"{self.name}, {self.method}, split {self.split}"


@dataclass(frozen=True, eq=False)
class Columns:
    """The columns of a table as models other than networks of htaf take them.

    Attributes:
        numbers: float64 [rows, d], NaN where missing; a date is those of its parts that vary.
        codes: int32 [rows, c], categories, numbered in the order of their texts; missing is one of them.
        number_names, category_names: of the columns.
    """

    numbers: Float64[np.ndarray, "rows numbers"]
    codes: Int32[np.ndarray, "rows categories"]
    number_names: tuple[str, ...]
    category_names: tuple[str, ...]


@lru_cache(maxsize=2)
def loaded(name: str, data_dir: str | None) -> Table:
    """A set by its name; raises DataError where it is not there."""
    targets = {member.name: member.target for member in (*TABLES, *UNSEEN)}
    if name in NAMED:
        return tabular.load(name, data_dir=data_dir)
    return tabular.load(f"extra/{name}.csv", target=targets[name], data_dir=data_dir)


def columns_of(table: Table) -> Columns:
    """The columns that htaf reads in a table, without what it does to them afterwards.

    Dates are taken apart as htaf does: year, month, weekday, day of year, hour, days. Special codes stay numbers.
    """
    numbers: dict[str, np.ndarray] = {}
    codes: dict[str, np.ndarray] = {}
    for column in table.features:
        values, name = table.features[column], str(column)
        if is_date(values):
            parts = dates.numbers(dates.native(values), np.datetime64(0, "us"))
            numbers |= {f"{name} {part}": known for part, known in parts.items() if len(np.unique(known)) > 1}
        elif is_text(values):
            codes[name] = np.unique(values.fillna("").astype(str).to_numpy(str), return_inverse=True)[1]
        else:
            numbers[name] = values.to_numpy(np.float64, na_value=np.nan)
    rows = len(table.target)
    return Columns(
        np.column_stack([*numbers.values()]) if numbers else np.zeros((rows, 0)),
        np.column_stack([*codes.values()]).astype(np.int32) if codes else np.zeros((rows, 0), np.int32),
        (*numbers,),
        (*codes,),
    )


def rows_key(table: Table, split: Split) -> str:
    """Of the rows of each part and their targets: two methods are compared where theirs are equal."""
    digest = hashlib.sha256(np.ascontiguousarray(table.target, "<f8").tobytes())
    for part in (split.train, split.validation, split.test):
        digest.update(len(part).to_bytes(8, "little") + part.astype("<i8").tobytes())
    return digest.hexdigest()[:16]


def method_recipe(recipe: Recipe, method: str) -> Recipe:
    """The recipe with another activation. The scaled sigmoid starts with the slope at 0 that HTAF starts with."""
    start = recipe.activation.start
    if method == "ss" and start is not None:
        start = (start[0] * start[1],)
    return recipe.replace(method=method, start=start if method in ("htaf", "ss") else None)


def compute(cell: Cell, recipe: Recipe, data_dir: str | None = None) -> Record:
    """Train and measure one cell; its record.

    Raises:
        DataError: the set is not there. TrainingError: the loss became NaN or infinite.
    """
    table = loaded(cell.name, data_dir)
    split = tabular.split(table, cell.split)
    found = _boosted(table, split) if cell.method == BOOSTING else _trained(cell, recipe, table, split)
    return {
        "format": FORMAT,
        "set": cell.name,
        "method": cell.method,
        "split": cell.split,
        "task": table.task,
        "classes": len(table.classes),
        "metric": headline(table.task, len(table.classes)),
        "rows": {part: len(getattr(split, part)) for part in ("train", "validation", "test")},
        "rows_key": rows_key(table, split),
        "columns": table.features.shape[1],
        **found,
        **{name: value for name, value in environment().items() if name != "threads"},
    }


class _Clock:
    """CPU and wall seconds of a block."""

    def __enter__(self) -> _Clock:
        self._began = time.process_time(), time.perf_counter()
        return self

    def __exit__(self, *ignored: object) -> None:
        cpu, wall = time.process_time() - self._began[0], time.perf_counter() - self._began[1]
        self.seconds = {"cpu": round(cpu, 4), "wall": round(wall, 4)}


def _trained(cell: Cell, recipe: Recipe, table: Table, split: Split) -> Record:
    """A network: `exact` and, where it differs, `smooth`."""
    chosen = method_recipe(recipe, cell.method)
    with tempfile.TemporaryDirectory(prefix="htaf-") as folder, thread_count(1), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with _Clock() as clock:
            place = Path(folder) / "run"
            running = Running("cpu", checkpoint_seconds=1e9, plot=False)
            made = fit(chosen, table, place, seed=cell.split, running=running)
        run: Run = made.in_memory()
    preprocessor: Any = run.preprocessor()
    model = run.model(exact=run.has_step)
    raw = table.features.iloc[split.test]
    with thread_count(1), _Clock() as asked:
        forward(model, torch.from_numpy(preprocessor.transform(raw)))
    measured = run.record["metrics"]
    smooth, exact = measured["smooth"], measured["exact"]
    return {
        "values": exact if run.has_step else smooth,
        "smooth": smooth if run.has_step else None,
        "train": clock.seconds,
        "predict": asked.seconds,
        "recipe": content_hash(chosen.identity())[:16],
        "best_epoch": run.record["best_epoch"],
        "parameters": run.record["parameters"],
    }


def boosting_frame(columns: Columns, train: Int64[np.ndarray, " train"]) -> pd.DataFrame:
    """Numbers, and categories as pandas holds them: the 254 most frequent of the training rows."""
    frame = pd.DataFrame(columns.numbers, columns=pd.Index([f"number {name}" for name in columns.number_names]))
    made: dict[str, Any] = {}
    for place, name in enumerate(columns.category_names):
        codes = columns.codes[:, place]
        known, counts = np.unique(codes[train], return_counts=True)
        kept = np.sort(known[np.argsort(-counts, kind="stable")[:MOST_CATEGORIES]])
        places = np.searchsorted(kept, codes).clip(max=len(kept) - 1)
        found = np.where(kept[places] == codes, places, -1)
        made[f"category {name}"] = pd.Categorical.from_codes(found, dtype=pd.CategoricalDtype(kept.tolist()))
    return pd.concat([frame, pd.DataFrame(made)], axis=1)


def _boosted(table: Table, split: Split) -> Record:
    """HistGradientBoosting of scikit-learn at its defaults; it sees no validation rows."""
    from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
    from threadpoolctl import threadpool_limits

    frame = boosting_frame(columns_of(table), split.train)
    of = HistGradientBoostingRegressor if table.task == "regression" else HistGradientBoostingClassifier
    model: Any = of(categorical_features="from_dtype", random_state=0)
    with threadpool_limits(limits=1), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with _Clock() as clock:
            model.fit(frame.iloc[split.train], table.target[split.train])
        outputs = {}
        for part in ("validation", "test"):
            rows = frame.iloc[getattr(split, part)]
            with _Clock() as asked:
                outputs[part] = model.predict(rows) if table.task == "regression" else model.predict_proba(rows)
    known = None if table.task == "regression" else model.classes_
    values = {
        part: scores(given, table.target[getattr(split, part)], table.task, len(table.classes), known)
        for part, given in outputs.items()
    }
    return {"values": values, "smooth": None, "train": clock.seconds, "predict": asked.seconds}  # pyright: ignore[reportPossiblyUnboundVariable]


def scores(
    outputs: np.ndarray, target: np.ndarray, task: str, classes: int, known: Sequence[int] | np.ndarray | None = None
) -> dict[str, float | None]:
    """Metrics of predictions.

    Args:
        outputs: [rows] in the target's units, or probabilities [rows, known classes].
        target: [rows]. known: the class of each column of probabilities; None: all in order.

    Returns:
        rmse; or accuracy and, for two classes, auroc, None where the rows are all of one class.
    """
    from sklearn.metrics import roc_auc_score

    if task == "regression":
        return {"rmse": float(np.sqrt(np.mean((np.asarray(outputs, np.float64).ravel() - target) ** 2)))}
    shares = np.zeros((len(target), classes))
    shares[:, np.arange(classes) if known is None else np.asarray(known)] = outputs
    found: dict[str, float | None] = {"accuracy": float((shares.argmax(1) == target).mean())}
    if classes == 2:
        found["auroc"] = float(roc_auc_score(target, shares[:, 1])) if len(np.unique(target)) == 2 else None
    return found


def write_inputs(out: Path, sets: Sequence[str], data_dir: str | None, *, shown: bool = False) -> None:
    """Write out/inputs/SET.npz: the columns, targets and parts that models outside of htaf learn from.

    Arrays: numbers float64 [rows, d], codes int32 [rows, c], target float64 [rows], parts int8 [splits, rows] (0 train,
    1 validation, 2 test), info: JSON text with set, task, classes, metric, columns, rows_keys and the columns' names.
    """
    with progress_of("inputs", len(sets), shown=shown, every=0) as told:
        for name in sets:
            table = loaded(name, data_dir)
            columns = columns_of(table)
            parts, keys = np.zeros((SPLITS, len(table.target)), np.int8), []
            for number in range(SPLITS):
                split = tabular.split(table, number)
                parts[number, split.validation], parts[number, split.test] = 1, 2
                keys.append(rows_key(table, split))
            info = {
                "set": name, "task": table.task, "classes": len(table.classes), "rows_keys": keys,
                "metric": headline(table.task, len(table.classes)), "columns": table.features.shape[1],
                "numbers": columns.number_names, "categories": columns.category_names,
            }  # fmt: skip
            held = io.BytesIO()
            np.savez_compressed(
                held, numbers=columns.numbers, codes=columns.codes, target=table.target.astype(np.float64),
                parts=parts, info=np.array(json.dumps(info)),
            )  # fmt: skip
            write_atomic(out / "inputs" / f"{name}.npz", held.getvalue())
            told(1, name)


def cells_of(sets: Sequence[str], methods: Sequence[str], splits: Sequence[int]) -> list[Cell]:
    """All cells: the first split of every set before the second of any."""
    return [Cell(name, method, split) for split in splits for name in sets for method in methods]


def run(
    cells: Sequence[Cell],
    out: Path,
    recipe: Recipe,
    data_dir: str | None = None,
    *,
    shown: bool = False,
    computing: Callable[[Cell, Recipe, str | None], Record] = compute,
) -> list[str]:
    """Compute the cells that are not there; the cells that failed, with the reason.

    Raises:
        KeptError: the record of a cell is damaged, or of another recipe.
    """
    missing = [cell for cell in cells if not _there(cell, out, recipe)]
    failed: list[str] = []
    done = len(cells) - len(missing)
    with progress_of("cells", len(cells), shown=shown, done=done, every=0) as told:
        for cell in missing:
            try:
                record = computing(cell, recipe, data_dir)
            except (HtafError, ValueError, ArithmeticError, MemoryError) as error:  # one bad cell must not stop others
                failed.append(f"{cell}: {type(error).__name__}: {error}")
                told(1, failed[-1])
                continue
            write_atomic(cell.path(out), to_json(record))
            value = record["values"]["test"][record["metric"]]
            told(1, f"{cell}: {record['metric']} {value}, {record['train']['cpu']:.1f} CPU s")
    return failed


def _there(cell: Cell, out: Path, recipe: Recipe) -> bool:
    """Whether a cell has a record."""
    path = cell.path(out)
    record = read_kept(path, check_record)
    if record is None:
        return False
    key = None if cell.method == BOOSTING else content_hash(method_recipe(recipe, cell.method).identity())[:16]
    if record.get("recipe") != key:
        raise KeptError(f"{path}: a record of another recipe: move it away, or choose another --out")
    return True


def main(arguments: list[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m htaf_paper.many_tables", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--out", type=Path, required=True, help="folder of the study; it continues where it stopped")
    parser.add_argument("--sets", nargs="+", choices=SETS, default=SETS, metavar="SET", help="(default: all)")
    parser.add_argument("--unseen", action="store_true", help="only sets on which nothing was chosen")
    parser.add_argument(
        "--splits", nargs="+", type=int, choices=range(SPLITS), default=range(SPLITS), help="(default: all five)"
    )
    parser.add_argument("--only", nargs="+", choices=METHODS, default=METHODS, help="methods (default: all)")
    parser.add_argument("--recipe", default=RECIPE, help=f"of `htaf train tabular` (default: {RECIPE})")
    parser.add_argument("--share", type=share, default=slice(None), metavar="I/N", help=HELP)
    parser.add_argument("--inputs", action="store_true", help="write the inputs of benchmarks/peers/tables and end")
    parser.add_argument("--report", action="store_true", help="write the report of the cells that are there and end")
    parser.add_argument(
        "--cells", type=Path, nargs="+", default=[], help="folders with records of others, for the report"
    )
    parser.add_argument("--data-dir", default=os.environ.get("HTAF_DATA"), help="of the tables (default: HTAF_DATA)")
    given = parser.parse_args(arguments)
    with plain_errors():
        check_output_folder(given.out)
        sets = [name for name in given.sets if not given.unseen or name not in CHOSE]
        if given.report:
            folders = [given.out / "cells", *given.cells]
            text = many_tables_report.write(given.out, folders, {"chose": CHOSE, "unseen": SETS[len(CHOSE) :]})
            Console().print(text, markup=False, highlight=False, soft_wrap=True)
            return
        if given.inputs:
            write_inputs(given.out, sets, given.data_dir, shown=True)
            return
        try:
            recipe = ready_recipe("mlp", given.recipe)
        except ValueError as error:
            raise TablesError(str(error)) from None
        cells = cells_of(sets, given.only, given.splits)[given.share]
        if failed := run(cells, given.out, recipe, given.data_dir, shown=True):
            raise TablesError(f"{len(failed)} of {len(cells)} cells failed: {'; '.join(failed)}")


if __name__ == "__main__":
    main()
