"""CatBoost, RealMLP and TabM on the rows of `htaf paper run tables`, at their defaults.

    python -m htaf_paper.many_tables DIR                                  # in htaf's environment
    python compare.py DIR/inputs DIR/peers [--methods catboost ...]    # in an environment with requirements.txt

A cell is a set, a method and a split; OUT/SET-METHOD-SPLIT.json is its record, in the format of htaf's own. A cell that
is there is not computed again. The first split of every set comes before the second of any, small sets first.

All learn from the training rows. The validation rows choose the number of trees (CatBoost, as it does when it is given
some) or the epoch (RealMLP, TabM). Numbers that are missing are the median of the training rows to RealMLP and TabM,
which take none; categories that no training row has are one more category.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import platform
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

FORMAT = 1
PACKAGES = ("catboost", "pytabkit", "torch", "scikit-learn", "pandas", "numpy")
Fit = Callable[[pd.DataFrame, np.ndarray, pd.DataFrame, np.ndarray, list[str], dict[str, Any]], Any]


def catboost(
    x: pd.DataFrame, y: np.ndarray, vx: pd.DataFrame, vy: np.ndarray, categories: list[str], info: dict[str, Any]
) -> Any:
    """CatBoost: 1,000 trees, of which the best number on validation rows is kept."""
    from catboost import CatBoostClassifier, CatBoostRegressor

    of = CatBoostRegressor if info["task"] == "regression" else CatBoostClassifier
    model = of(random_seed=0, thread_count=1, verbose=False, allow_writing_files=False, cat_features=categories)
    return model.fit(x, y, eval_set=(vx, vy))


def _pytabkit(name: str) -> Fit:
    def fit(
        x: pd.DataFrame, y: np.ndarray, vx: pd.DataFrame, vy: np.ndarray, categories: list[str], info: dict[str, Any]
    ) -> Any:
        import torch

        for noisy in ("lightning.pytorch", "lightning.fabric", "pytorch_lightning", "lightning_fabric"):
            logging.getLogger(noisy).setLevel(logging.ERROR)
        from pytabkit.models.sklearn import sklearn_interfaces

        torch.set_num_threads(1)
        kind = "Regressor" if info["task"] == "regression" else "Classifier"
        # of two classes the epoch is chosen by what is reported; else by their default, RMSE or the error rate
        more = {"val_metric_name": "1-auc_ovr"} if info["metric"] == "auroc" else {}
        model = getattr(sklearn_interfaces, f"{name}_{kind}")(device="cpu", random_state=0, n_threads=1, **more)
        return model.fit(x, y, vx, vy, cat_col_names=categories)

    return fit


MODELS: dict[str, Fit] = {"catboost": catboost, "realmlp": _pytabkit("RealMLP_TD"), "tabm": _pytabkit("TabM_D")}
FILLED = ("realmlp", "tabm")


def frame_of(held: Mapping[str, Any], train: np.ndarray, *, filled: bool) -> pd.DataFrame:
    """All rows: numbers n0, n1, ... and categories c0, c1, ... as text.

    Args:
        held: numbers and codes. train: row numbers. filled: no missing numbers.
    """
    numbers = np.array(held["numbers"], np.float64)
    if filled:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a column without a value
            medians = np.nan_to_num(np.nanmedian(numbers[train], axis=0)) if numbers.shape[1] else np.zeros(0)
        numbers = np.where(np.isnan(numbers), medians, numbers)
    made = {f"n{place}": numbers[:, place] for place in range(numbers.shape[1])}
    for place in range(held["codes"].shape[1]):
        codes = held["codes"][:, place]
        texts = np.where(np.isin(codes, codes[train]), codes.astype(str), "new")
        made[f"c{place}"] = pd.Series(texts, dtype=object)
    return pd.DataFrame(made)


def scores(outputs: np.ndarray, target: np.ndarray, task: str, classes: int, known: Any = None) -> dict[str, Any]:
    """RMSE; or accuracy and, for two classes, AUROC. As `htaf_paper.many_tables.scores`."""
    from sklearn.metrics import roc_auc_score

    if task == "regression":
        return {"rmse": float(np.sqrt(np.mean((np.asarray(outputs, np.float64).ravel() - target) ** 2)))}
    shares = np.zeros((len(target), classes))
    shares[:, np.arange(classes) if known is None else np.asarray(known, np.int64)] = outputs
    found: dict[str, Any] = {"accuracy": float((shares.argmax(1) == target).mean())}
    if classes == 2:
        found["auroc"] = float(roc_auc_score(target, shares[:, 1])) if len(np.unique(target)) == 2 else None
    return found


def compute(held: Mapping[str, Any], info: dict[str, Any], method: str, split: int, fit: Fit) -> dict[str, Any]:
    """One cell: fit, predict, measure; its record."""
    part = held["parts"][split]
    rows = {name: np.flatnonzero(part == place) for place, name in enumerate(("train", "validation", "test"))}
    frame = frame_of(held, rows["train"], filled=method in FILLED)
    target = held["target"] if info["task"] == "regression" else held["target"].astype(np.int64)
    categories = [name for name in frame if name.startswith("c")]
    began = time.process_time(), time.perf_counter()
    given = [each for name in ("train", "validation") for each in (frame.iloc[rows[name]], target[rows[name]])]
    model = fit(*given, categories, info)
    train = {"cpu": time.process_time() - began[0], "wall": time.perf_counter() - began[1]}
    values, predict = {}, {}
    for name in ("validation", "test"):
        began = time.process_time(), time.perf_counter()
        outputs = (model.predict if info["task"] == "regression" else model.predict_proba)(frame.iloc[rows[name]])
        predict = {"cpu": time.process_time() - began[0], "wall": time.perf_counter() - began[1]}
        known = None if info["task"] == "regression" else model.classes_
        values[name] = scores(outputs, target[rows[name]], info["task"], info["classes"], known)
    versions = {}
    for package in PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return {
        "format": FORMAT, "set": info["set"], "method": method, "split": split, "task": info["task"],
        "classes": info["classes"], "metric": info["metric"], "columns": info["columns"],
        "rows": {name: len(numbers) for name, numbers in rows.items()}, "rows_key": info["rows_keys"][split],
        "values": values, "smooth": None,
        "train": {name: round(value, 4) for name, value in train.items()},
        "predict": {name: round(value, 4) for name, value in predict.items()},
        "versions": {"python": platform.python_version(), **versions}, "platform": platform.platform(),
    }  # fmt: skip


def write(path: Path, record: dict[str, Any]) -> None:
    """Whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    with os.fdopen(handle, "w") as file:
        json.dump(record, file, indent=1, sort_keys=True, allow_nan=False)
        file.write("\n")
    os.chmod(name, 0o644)
    os.replace(name, path)


def read(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The arrays and the description of a set."""
    with np.load(path, allow_pickle=False) as opened:
        held = {name: opened[name] for name in opened.files}
    return held, json.loads(str(held.pop("info")))


def run(given: argparse.Namespace, models: Mapping[str, Fit] = MODELS) -> int:
    """Compute the cells that are not there; how many failed."""
    paths = [path for path in sorted(given.inputs.glob("*.npz")) if not given.sets or path.stem in given.sets]
    if not paths or (absent := {*(given.sets or ())} - {path.stem for path in paths}):
        sys.exit(f"{given.inputs}: expected files SET.npz{f' of {sorted(absent)}' if paths else ''}, got none")  # pyright: ignore[reportPossiblyUnboundVariable]
    size = {path: read(path)[0]["target"].size for path in paths}
    cells = [
        (path, method, split)
        for split in given.splits
        for path in sorted(paths, key=lambda path: size[path])
        for method in given.methods
        if size[path] <= given.most_rows
    ]
    failed = 0
    for number, (path, method, split) in enumerate(cells):
        place = given.out / f"{path.stem}-{method}-{split}.json"
        if place.exists():
            continue
        held, info = read(path)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                record = compute(held, info, method, split, models[method])
        except Exception as error:  # of any library: the others go on
            failed += 1
            print(f"{place.stem}: failed: {type(error).__name__}: {str(error)[:200]}", flush=True)
            continue
        write(place, record)
        value, seconds = record["values"]["test"][record["metric"]], record["train"]["cpu"]
        print(f"{number + 1}/{len(cells)} {place.stem}: {record['metric']} {value}, {seconds:.1f} CPU s", flush=True)
    return failed


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("inputs", type=Path, help="folder of SET.npz")
    parser.add_argument("out", type=Path, help="folder of the records")
    parser.add_argument("--methods", nargs="+", choices=[*MODELS], default=[*MODELS])
    parser.add_argument("--sets", nargs="+")
    parser.add_argument("--splits", nargs="+", type=int, default=[0, 1, 2, 3, 4])
    parser.add_argument("--most-rows", type=int, default=10**9, help="leave out larger sets")
    if failed := run(parser.parse_args(arguments)):
        sys.exit(f"{failed} cells failed")


if __name__ == "__main__":
    main()
