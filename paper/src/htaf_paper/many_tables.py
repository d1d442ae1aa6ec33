"""Networks with 0/1 activations beside boosted trees and other networks, on 45 tables: `htaf paper run tables`.

Tables: the paper's four and those of `htaf_paper.more_tables`. On the first half of them the defaults were chosen, on
`UNSEEN` nothing was. Each is split five times, 70/10/20, by `htaf.data.tabular.split`. On each split one recipe is
trained by HTAF, straight-through (STE), scaled sigmoid (SS) and ReLU; beside it stands HistGradientBoosting at its
defaults, on the same training rows. No hyperparameter is chosen here.

A cell is a set, a method and a split. Records of peers, one a file, are read from `OUT/tables/peers`:

    python -m htaf_paper.many_tables OUT/tables                                        # OUT/tables/inputs/SET.npz
    python benchmarks/peers/tables/compare.py OUT/tables/inputs OUT/tables/peers       # in their own environment
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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float64, Int32, Int64

from htaf._ground.console import plain_errors
from htaf._ground.console import progress as progress_of
from htaf._ground.files import check_output_folder, parse_json, write_atomic
from htaf.data import dates, tabular
from htaf.data.reading import is_date, is_text
from htaf.data.tabular import Split, Table
from htaf.training.distributed import thread_count
from htaf.training.families import ready_recipe
from htaf.training.fit import fit
from htaf.training.recipe import Recipe, Running
from htaf.training.runs import Run, content_hash, forward
from htaf.training.runs.metrics import headline
from htaf_paper import many_tables_report
from htaf_paper.computing import Place
from htaf_paper.experiments import Experiment
from htaf_paper.many_tables_report import NETWORKS, Record
from htaf_paper.more_tables import TABLES, UNSEEN
from htaf_paper.protocol import Outcome, Scale, Setting

NAMED = ("wine", "abalone", "churn", "fico")
CHOSE = (*NAMED, *(member.name for member in TABLES))  # the defaults were chosen on these
SETS = (*CHOSE, *(member.name for member in UNSEEN))
BOOSTING = "boosting"
METHODS = (*NETWORKS, BOOSTING)
RECIPE = "tabular-members"
SPLITS = 5
MOST_CATEGORIES = 254  # of a column that HistGradientBoosting takes; rarer ones are missing to it
SMOKE = "digits"  # the bundled table


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
    if name in (*NAMED, SMOKE):
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


def measured(name: str, method: str, number: int, recipe: Recipe, data_dir: str | None = None) -> Record:
    """Train and measure one method on one split of a set; its record.

    Raises:
        DataError: the set is not there. TrainingError: the loss became NaN or infinite.
    """
    table = loaded(name, data_dir)
    split = tabular.split(table, number)
    chosen = None if method == BOOSTING else method_recipe(recipe, method)
    found = _boosted(table, split) if chosen is None else _trained(chosen, number, table, split)
    return {
        "set": name,
        "method": method,
        "split": number,
        "task": table.task,
        "classes": len(table.classes),
        "metric": headline(table.task, len(table.classes)),
        "rows": {part: len(getattr(split, part)) for part in ("train", "validation", "test")},
        "rows_key": rows_key(table, split),
        "columns": table.features.shape[1],
        **found,
    }


class _Clock:
    """CPU and wall seconds of a block."""

    def __enter__(self) -> _Clock:
        self._began = time.process_time(), time.perf_counter()
        return self

    def __exit__(self, *ignored: object) -> None:
        cpu, wall = time.process_time() - self._began[0], time.perf_counter() - self._began[1]
        self.seconds = {"cpu": round(cpu, 4), "wall": round(wall, 4)}


def _trained(recipe: Recipe, seed: int, table: Table, split: Split) -> Record:
    """A network: `exact` and, where it differs, `smooth`."""
    with tempfile.TemporaryDirectory(prefix="htaf-") as folder, thread_count(1), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with _Clock() as clock:
            place = Path(folder) / "run"
            running = Running("cpu", checkpoint_seconds=1e9)
            made = fit(recipe, table, place, seed=seed, running=running)
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
        "recipe": content_hash(recipe.identity())[:16],
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


def compute(settings: dict[str, Any], place: Place) -> Record:
    """A cell."""
    return measured(settings["set"], settings["method"], settings["split"], recipe(settings), place.data_dir)


def recipe(settings: Mapping[str, Any]) -> Recipe:
    """Of a cell's networks; small on the bundled digits."""
    found = ready_recipe("mlp", settings["recipe"])
    if settings["set"] == SMOKE:
        found = found.replace(epochs=2, hidden=(8,), members=2, thresholds=4)
    return found


def fingerprint(settings: Mapping[str, Any], data_dir: str | None) -> str:
    """Of the table."""
    return loaded(settings["set"], data_dir).fingerprint


def plan(scale: Scale) -> list[dict[str, Any]]:
    """All cells: the first split of every set before the second of any."""
    sets, splits = {"smoke": ((SMOKE,), 1), "reduced": (SETS, 1)}.get(scale, (SETS, SPLITS))
    return [
        {"set": name, "method": method, "split": split, "recipe": RECIPE}
        for split in range(splits)
        for name in sets
        for method in METHODS
    ]


def outcome(records: Sequence[Record], _: Scale) -> Outcome:
    """Losses, ranks, times and values of all tables."""
    chose = (*CHOSE, SMOKE) if any(record["set"] == SMOKE for record in records) else CHOSE
    return many_tables_report.outcome(records, {"chose": chose, "unseen": SETS[len(CHOSE) :]}, SPLITS)


def peers(folder: Path) -> list[Record]:
    """Records of other environments."""
    return [parse_json(file.read_bytes()) for file in sorted((folder / "peers").glob("*.json"))]


STUDY = Experiment(
    "tables",
    "HTAF beside boosted trees and other networks, on many tables",
    {
        "smoke": Setting("the bundled digits, two epochs, one split", 6.0),
        "reduced": Setting("45 tables, one split", 18000.0, data=("tables of `htaf_paper.more_tables`",)),
        "full": Setting("45 tables, five splits", 90000.0, data=("tables of `htaf_paper.more_tables`",)),
    },
    plan,
    compute,
    outcome,
    fingerprint,
    peers,
)


def main(arguments: list[str] | None = None) -> None:
    """Write the inputs of benchmarks/peers/tables."""
    parser = argparse.ArgumentParser(prog="python -m htaf_paper.many_tables", description=main.__doc__)
    parser.add_argument("out", type=Path, help="folder; the inputs lie in OUT/inputs")
    parser.add_argument("--sets", nargs="+", choices=SETS, default=SETS, metavar="SET", help="(default: all)")
    parser.add_argument("--data-dir", default=os.environ.get("HTAF_DATA"), help="of the tables (default: HTAF_DATA)")
    given = parser.parse_args(arguments)
    with plain_errors():
        check_output_folder(given.out / "inputs")
        write_inputs(given.out, given.sets, given.data_dir, shown=True)


if __name__ == "__main__":
    main()
