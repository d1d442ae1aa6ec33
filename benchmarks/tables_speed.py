"""Time of one row and of a million: a run of htaf, packed, ONNX in onnxruntime, and boosted trees; one thread.

    python benchmarks/tables_speed.py [RUN ...] [--data fico] [--rows 1000000] [--peers PYTHON] [--json FILE]

RUN: folders of `htaf train tabular`, all of one table. Without one the recipes `tabular-mlp` and `tabular-members`
are trained for one epoch on --data: times do not depend on what was learned. --peers: an environment with catboost or
lightgbm (benchmarks/peers/trees/predict.py); one that is missing there is left out, with a line.

Raw data frames in, predictions out, for all; the preparation counts. Trees have their libraries' defaults. Each side
predicts once before it is timed. Then every round takes a sample of each side, in reversed order every other round. A
side that would take longer than --most seconds for all rows predicts as many as it can in that time, and the table says
how many. Ratios are of seconds a row over those of histogram boosting in the same round.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"

import measuring
import numpy as np
import pandas as pd
import torch
from measuring import Sample, at_least_one

from htaf.data import tabular
from htaf.data.reading import is_date
from htaf.data.tabular import Table
from htaf.program.export import onnx_table
from htaf.training.families.mlp import FAMILY
from htaf.training.fit import fit
from htaf.training.runs import Run, export_run, open_packed, open_run, pack_run
from htaf.training.runs.predictions import of_rows
from htaf.training.runs.run import table_rows

HERE = Path(__file__).parent
RECIPES = ("tabular-mlp", "tabular-members")
BASE = "histogram boosting"
PILOT, ONE = 2_000, 20  # rows of the first prediction; times that one row is predicted for a sample
Timed = Callable[[int, int], float]  # rows, repeats -> seconds of one time


def timed(predict: Callable[[pd.DataFrame], Any], many: pd.DataFrame, rows: int, repeats: int) -> float:
    """Seconds of one time."""
    some = many.iloc[:rows]
    return measuring.once(lambda: predict(some), repeats)


def networks(run: Run, data: Table, folder: Path) -> dict[str, Callable[[pd.DataFrame], Any]]:
    """What predicts raw rows, by name; models are read before they are timed."""
    model, preprocessor = run.model(), run.preprocessor()
    folder.mkdir()
    pack_run(run, folder / "run.packed", data=data)
    export_run(run, folder / "run.onnx", to="onnx", data=data)
    packed = open_packed(folder / "run.packed").model
    return {
        "predict": lambda rows: of_rows(model, preprocessor, rows),  # pyright: ignore[reportArgumentType]
        "packed": lambda rows: of_rows(packed, preprocessor, rows),  # pyright: ignore[reportArgumentType]
        "onnxruntime": onnx_table(folder / "run.onnx", threads=1),
    }


def of_trees(rows: pd.DataFrame) -> pd.DataFrame:
    """Dates as days since 1970, which trees take."""
    dates = [name for name in rows if is_date(rows[name])]
    return rows.assign(**{str(n): (rows[n] - pd.Timestamp(0)) / pd.Timedelta(days=1) for n in dates}) if dates else rows


def boosting(data: Table, train: np.ndarray) -> Callable[[pd.DataFrame], Any]:
    """scikit-learn's histogram boosting at its defaults, fitted on the training part; texts as its categories."""
    from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

    texts = [name for name in data.features if data.features[name].dtype == object]
    kinds = {name: pd.CategoricalDtype(sorted(data.features[name].dropna().unique())) for name in texts}
    made = HistGradientBoostingClassifier if data.task == "classification" else HistGradientBoostingRegressor
    known = made(random_state=0).fit(of_trees(data.features.iloc[train]).astype(kinds), data.target[train])
    told = known.predict_proba if isinstance(known, HistGradientBoostingClassifier) else known.predict
    return lambda rows: told(of_trees(rows).astype(kinds))


class Trees(measuring.Peer):
    """Trees of another library in their own process."""

    def __init__(self, python: str, folder: Path, name: str) -> None:
        super().__init__(python, HERE / "peers" / "trees" / "predict.py", folder, name)
        self.version = self.told["version"]
        self.name = f"{name} {self.version}"

    def __call__(self, rows: int, repeats: int) -> float:
        return self.ask(rows=rows, repeats=repeats)


def peers(python: str | None, data: Table, train: np.ndarray, drawn: np.ndarray, folder: Path) -> list[Trees]:
    """Those that the environment has."""
    if python is None:
        print("catboost and lightgbm: left out, give --peers PYTHON")
        return []
    folder.mkdir()
    texts = [name for name in data.features if data.features[name].dtype == object]
    filled = of_trees(data.features).fillna(dict.fromkeys(texts, ""))
    filled.iloc[train].to_csv(folder / "train.csv", index=False)
    filled.to_csv(folder / "rows.csv", index=False)
    np.save(folder / "target.npy", data.target[train])
    np.save(folder / "drawn.npy", drawn)
    (folder / "about.json").write_text(json.dumps({"task": data.task, "texts": texts}))
    found = [Trees(python, folder, name) for name in ("catboost", "lightgbm")]
    for peer in (one for one in found if one.version is None):
        print(f"{peer.name.split()[0]}: left out, it is not in the environment of {python}")
    return [one for one in found if one.version is not None]


def main() -> None:
    made = measuring.parser(__doc__, rounds=3)
    made.add_argument("runs", type=Path, nargs="*", help="run folders of one table")
    made.add_argument("--data", default="fico", help="a table, where no run is given; default: fico")
    made.add_argument("--data-dir", help="default: the folder in HTAF_DATA")
    made.add_argument("--rows", type=at_least_one, default=1_000_000, help="default: 1,000,000")
    made.add_argument("--most", type=float, default=6.0, help="seconds of a prediction; default: 6")
    made.add_argument("--peers", metavar="PYTHON", help="of an environment with catboost or lightgbm")
    given = measuring.begin(made, "test_export_tables.py", "test_predict_rows.py")
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        runs = {str(place): open_run(place) for place in given.runs}
        data = next(iter(runs.values())).data() if runs else tabular.load(given.data, data_dir=given.data_dir)
        if not isinstance(data, Table):
            made.error(f"expected a run of a table, {given.runs[0]} was trained on images")
        if not runs:
            chosen = {recipe: FAMILY.recipes[recipe]().replace(epochs=1) for recipe in RECIPES}
            runs = {recipe: fit(one, data, folder / recipe, seed=0) for recipe, one in chosen.items()}
        first = next(iter(runs.values()))
        train = np.asarray(table_rows(first, data).train)
        drawn = np.random.default_rng(0).integers(0, len(data.features), given.rows)
        many = data.features.iloc[drawn].reset_index(drop=True)
        others = peers(given.peers, data, train, drawn, folder / "peers")
        sides: dict[str, Timed] = {BASE: partial(timed, boosting(data, train), many)}
        sides["again"] = sides[BASE]
        sides |= {peer.name: peer for peer in others}
        for i, (title, run) in enumerate(runs.items()):
            own = networks(run, data, folder / f"files{i}")
            sides |= {f"{title}, {way}": partial(timed, predict, many) for way, predict in own.items()}
        found: list[dict[str, Any]] = []
        for what in ("one", "many"):
            counts, samples = {}, {}
            for side, predict in sides.items():
                pilot = min(PILOT, given.rows)
                slow = predict(pilot, 1) / pilot  # seconds a row, and the side is warm
                counts[side] = 1 if what == "one" else max(pilot, min(given.rows, round(given.most / slow)))
                samples[side] = partial(_sample, predict, counts[side], ONE if what == "one" else 1)
            times = measuring.alternate(samples, given.rounds, warm_up=what == "one")
            for side, some in times.items():
                seconds, over = measuring.spread(s[1] for s in some), measuring.ratio(some, times[BASE])
                row = {"data": data.name, "columns": data.features.shape[1], "threads": 1, "side": side, "what": what}
                row |= {"rows": counts[side], "seconds": seconds._asdict(), "over": over._asdict()}
                found.append(row | {"seconds_a_row": measuring.spread(s[0] for s in some)._asdict()})
                print(
                    f"{counts[side]:>9,} rows  {side:32} {seconds.median * 1e3:10.2f} ms  {over} of {BASE}", flush=True
                )
        for peer in others:
            peer.close()
    measuring.end(given, found)


def _sample(predict: Timed, rows: int, repeats: int) -> Sample:
    seconds = predict(rows, repeats)
    return (seconds / rows, seconds)


if __name__ == "__main__":
    main()
