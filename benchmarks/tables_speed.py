"""Time of one row and of many: a run of htaf, packed, ONNX in onnxruntime, and histogram boosting; one thread.

    python benchmarks/tables_speed.py RUN --json tables_speed.json

Raw data frames in, predictions out, for all; the preparation counts. Ratios are over htaf's run in the same round.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"

import numpy as np
import pandas as pd
import torch
from measuring import (
    Sample,
    alternate,
    at_least_one,
    one_line,
    parser,
    ratio,
    spread,
    test_first,
    warn_when_busy,
    write,
)

from htaf.data.tabular import Table, split
from htaf.export import onnx_table
from htaf.runs import Run, export_run, open_packed, open_run, pack_run
from htaf.runs.predictions import of_rows


def networks(run: Run, data: Table, folder: Path) -> dict[str, Callable[[pd.DataFrame], Any]]:
    """What predicts raw rows, by name; models are read before they are timed."""
    model, preprocessor = run.model(), run.preprocessor()
    pack_run(run, folder / "run.packed", data=data)
    export_run(run, folder / "run.onnx", to="onnx", data=data)
    packed = open_packed(folder / "run.packed").model
    made: dict[str, Callable[[pd.DataFrame], Any]] = {
        "htaf": lambda rows: of_rows(model, preprocessor, rows),  # pyright: ignore[reportArgumentType]
        "again": lambda rows: of_rows(model, preprocessor, rows),  # pyright: ignore[reportArgumentType]
        "packed": lambda rows: of_rows(packed, preprocessor, rows),  # pyright: ignore[reportArgumentType]
        "onnxruntime": onnx_table(folder / "run.onnx", threads=1),
    }
    return made | trees(data, split(data, run.record["seed"], mode=run.record["data"]["split"]).train)


def trees(data: Table, train: np.ndarray) -> dict[str, Callable[[pd.DataFrame], Any]]:
    """Boosted trees at their defaults, fitted on the training part; CatBoost where it is installed."""
    from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

    classes = data.task == "classification"
    texts = [name for name in data.features if data.features[name].dtype == object]

    def typed(rows: pd.DataFrame) -> pd.DataFrame:
        kinds = {name: pd.CategoricalDtype(sorted(data.features[name].dropna().unique())) for name in texts}
        return rows.astype(kinds) if kinds else rows

    boosting = (HistGradientBoostingClassifier if classes else HistGradientBoostingRegressor)(random_state=0)
    boosting.fit(typed(data.features.iloc[train]), data.target[train])
    told = boosting.predict_proba if isinstance(boosting, HistGradientBoostingClassifier) else boosting.predict
    made: dict[str, Callable[[pd.DataFrame], Any]] = {"histogram boosting": lambda rows: told(typed(rows))}
    if find_spec("catboost") is not None:
        import catboost  # pyright: ignore[reportMissingImports]

        kind = catboost.CatBoostClassifier if classes else catboost.CatBoostRegressor
        cat = kind(thread_count=1, verbose=False, random_seed=0, cat_features=texts)
        cat.fit(data.features.iloc[train].fillna(dict.fromkeys(texts, "")), data.target[train])
        said = cat.predict_proba if classes else cat.predict
        made["catboost"] = lambda rows: said(rows.fillna(dict.fromkeys(texts, "")), thread_count=1)
    return made


def timed(predict: Callable[[pd.DataFrame], Any], rows: pd.DataFrame, repeats: int) -> Callable[[], Sample]:
    def sample() -> Sample:
        begin = time.perf_counter()
        for _ in range(repeats):
            predict(rows)
        return ((time.perf_counter() - begin) / repeats,)

    return sample


def main() -> None:
    made = parser(__doc__, rounds=5)
    made.add_argument("run", type=Path, help="run folder of a table")
    made.add_argument("--rows", type=at_least_one, default=1_000_000, help="default: 1,000,000")
    given = made.parse_args()
    if not given.no_test:
        test_first("test_export_tables.py", "test_predict_rows.py")
    warn_when_busy()
    torch.set_num_threads(1)
    run = open_run(given.run)
    data = run.data()
    if not isinstance(data, Table):
        made.error(f"expected a run of a table, {given.run} was trained on images")
    drawn = np.random.default_rng(0).integers(0, len(data.features), given.rows)
    many = data.features.iloc[drawn].reset_index(drop=True)
    found: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        predictors = networks(run, data, Path(folder))
        for rows, repeats in ((many.iloc[:1], 20), (many, 1)):
            times = alternate({name: timed(f, rows, repeats) for name, f in predictors.items()}, given.rounds)
            for name, samples in times.items():
                seconds, over = spread(s[0] for s in samples), ratio(samples, times["htaf"])
                row = {"data": data.name, "rows": len(rows), "columns": data.features.shape[1], "threads": 1}
                found.append(row | {"network": name, "seconds": seconds._asdict(), "over_htaf": over._asdict()})
                print(f"{len(rows):>9,} rows  {name:20} {seconds.median * 1e3:10.2f} ms  {over} of htaf", flush=True)
    print(one_line())
    write(given.json, found)


if __name__ == "__main__":
    main()
