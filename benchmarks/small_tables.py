"""The default network for tables where there are few rows, beside changes of its recipe and linear models.

python benchmarks/small_tables.py --out compared.csv        # 8 tables, 400 rows each, 5 CPU minutes

Tables on which the defaults were chosen (`htaf_paper.many_tables.CHOSE`); the others are never read. Of the training
part of split 0 `--rows` are drawn: 7 of 8 train, the rest choose the epoch. What is measured is the exact network on
the validation part of the split; its test part is not looked at. Beside it scikit-learn's linear or logistic
regression and histogram boosting on the same rows. Loss: RMSE in percent above the linear model, AUROC and accuracy in
points below; at the end its mean over the tables, less that of the recipe as it is, with the 95% interval of Student's
t over the tables.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from htaf.data import tabular
from htaf.data.tabular import Split
from htaf.tables.report.contents import fit_baselines
from htaf.training.families.mlp import tabular_members
from htaf.training.fit import fit
from htaf.training.recipe import Running
from htaf_paper.many_tables import CHOSE, loaded
from htaf_paper.many_tables_report import mean_interval

SETS = ("wine", "abalone", "churn", "fico", "credit", "cells", "flchain", "monica")
WAYS: dict[str, dict[str, Any]] = {
    "as it is": {},
    "epochs 15": {"epochs": 15},
    "lr 0.001": {"lr": 1e-3},
    "dropout 0.5": {"dropout": 0.5},
    "hidden 32": {"hidden": (32,)},
    "thresholds 4": {"thresholds": 4},
    "no thermometer": {"thresholds": 0},
    "dropout 0.5, hidden 32": {"dropout": 0.5, "hidden": (32,)},
}


def drawn(table: tabular.Table, rows: int, draw: int) -> Split:
    """`rows` of the training part, to train and to choose the epoch; the validation part, to measure."""
    whole = tabular.split(table, 0)
    some = np.random.default_rng([draw, 11]).permutation(whole.train)[:rows]
    cut = len(some) * 7 // 8
    return Split(np.sort(some[:cut]), np.sort(some[cut:]), whole.validation)


def measured(name: str, rows: int, draw: int, ways: list[str], data_dir: str | None) -> list[dict[str, Any]]:
    """A row for each way and each model beside it; `test` of a record is the validation part of the split."""
    table = loaded(name, data_dir)
    parts = drawn(table, rows, draw)
    metric, found = "", []
    for way in ways:
        recipe, begin = tabular_members().replace(**WAYS[way]), time.process_time()
        with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            run = fit(recipe, table, Path(folder) / "run", seed=draw, split=parts, running=Running())
        metric = run.record["headline"]
        value = run.record["metrics"]["exact"]["test"][metric]
        found.append({"way": way, "value": value, "seconds": time.process_time() - begin})
    beside = fit_baselines(table, {"train": parts.train, "test": parts.test}, table.fit_preprocessor(parts.train))
    found += [{"way": one.name, "value": one.metrics["test"][metric], "seconds": one.seconds} for one in beside[1:]]
    linear = beside[1].metrics["test"][metric]
    assert linear is not None
    for one in found:
        loss = 100 * (one["value"] / linear - 1) if metric == "rmse" else linear - one["value"]
        one |= {"set": name, "draw": draw, "metric": metric, "loss": loss}
        one["way"] = "linear" if one["way"] == "logistic" else one["way"]
    return found


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--sets", nargs="+", choices=CHOSE, default=list(SETS), metavar="SET")
    words.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS), metavar="WAY")
    words.add_argument("--rows", type=int, default=400)
    words.add_argument("--draws", type=int, default=1)
    words.add_argument("--data-dir", default=os.environ.get("HTAF_DATA"))
    words.add_argument("--out", type=Path, required=True)
    given = words.parse_args()
    found: list[dict[str, Any]] = []
    for draw in range(given.draws):
        for name in given.sets:
            found += measured(name, given.rows, draw, given.ways, given.data_dir)
            pd.DataFrame(found).to_csv(given.out, index=False)
            print(name, draw, " ".join(f"{one['way']}: {one['value']:.4g};" for one in found if one["set"] == name
                                       and one["draw"] == draw), flush=True)  # fmt: skip
    print(pd.DataFrame(compared(pd.DataFrame(found))).to_string(index=False))


def compared(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """By metric and way: the mean loss, and the mean difference to the first way with its interval."""
    rows: list[dict[str, Any]] = []
    for metric, some in frame.groupby("metric"):
        losses = some.pivot_table(index="set", columns="way", values="loss", sort=False)
        for way in losses:
            found = mean_interval((losses[way] - losses.iloc[:, 0]).tolist())
            rows.append({
                "metric": metric, "way": way, "tables": len(losses), "loss": round(float(losses[way].mean()), 4),
                "difference": round(found["mean"], 4),
                "interval": found["interval"] and [round(end, 4) for end in found["interval"]],
                "seconds": round(float(some.loc[some["way"] == way, "seconds"].median()), 2),
            })  # fmt: skip
    return rows


if __name__ == "__main__":
    main()
