"""Predicts with boosted trees of other libraries for benchmarks/tables_speed.py: a line in, seconds out.

    pip install catboost==1.2.10 lightgbm pandas numpy    # an environment apart from htaf's
    python predict.py FOLDER catboost|lightgbm

FOLDER holds train.csv, rows.csv, target.npy and about.json: the task, and which columns are text. The model is fitted
at its defaults. Each line of input is JSON {"rows": n, "repeats": k}: the first n rows are predicted k times, on one
thread, from a data frame; out come the seconds of one time.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd


def read(path: Path, texts: list[str]) -> pd.DataFrame:
    frame = pd.read_csv(path, dtype=dict.fromkeys(texts, str), keep_default_na=False, na_values={}, low_memory=False)
    for name in frame:
        frame[name] = frame[name].astype(object) if name in texts else pd.to_numeric(frame[name], errors="coerce")
    return frame


def catboost(train: pd.DataFrame, target: np.ndarray, classes: bool, texts: list[str]) -> Callable[[pd.DataFrame], Any]:
    library: Any = importlib.import_module("catboost")
    kind = library.CatBoostClassifier if classes else library.CatBoostRegressor
    model = kind(thread_count=1, verbose=False, random_seed=0, cat_features=texts, allow_writing_files=False)
    model.fit(train, target)
    told = model.predict_proba if classes else model.predict
    return lambda rows: told(rows, thread_count=1)


def lightgbm(train: pd.DataFrame, target: np.ndarray, classes: bool, texts: list[str]) -> Callable[[pd.DataFrame], Any]:
    library: Any = importlib.import_module("lightgbm")
    kinds = {name: pd.CategoricalDtype(sorted(train[name].unique())) for name in texts}
    model = (library.LGBMClassifier if classes else library.LGBMRegressor)(n_jobs=1, random_state=0, verbose=-1)
    model.fit(train.astype(kinds), target)
    told = model.predict_proba if classes else model.predict
    return lambda rows: told(rows.astype(kinds), num_threads=1)


def main() -> None:
    folder, name = Path(sys.argv[1]), sys.argv[2]
    try:
        version = importlib.import_module(name).__version__
    except ImportError:
        print(json.dumps({"version": None}), flush=True)
        return
    about = json.loads((folder / "about.json").read_text())
    train, rows = (read(folder / f"{part}.csv", about["texts"]) for part in ("train", "rows"))
    fit = {"catboost": catboost, "lightgbm": lightgbm}[name]
    predict = fit(train, np.load(folder / "target.npy"), about["task"] == "classification", about["texts"])
    many = rows.iloc[np.load(folder / "drawn.npy")].reset_index(drop=True)
    predict(many.iloc[:100])
    print(json.dumps({"version": version}), flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        some = many.iloc[: asked["rows"]]
        began = time.perf_counter()
        for _ in range(asked["repeats"]):
            predict(some)
        print(json.dumps((time.perf_counter() - began) / asked["repeats"]), flush=True)


if __name__ == "__main__":
    main()
