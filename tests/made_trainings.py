"""Small studies for tests of stores: a table, a plan, and cells that write down who trained them."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from htaf.training.families import make_recipe
from htaf.training.plan import Plan, Source
from htaf.training.queue import Place
from htaf.training.study import TrainingCells

LOGGED = (("training", "made_trainings:LOGGED_CELLS"),)


class LoggedCells(TrainingCells):
    """The cells of a study; each training is noted in the file `log` of the folder of work, and lasts for a while."""

    def compute(self, payload: Mapping[str, Any], key: str, place: Place) -> dict[str, Any]:
        with (place.work / "log").open("a") as file:
            file.write(f"{key} {os.getpid()}\n")
        time.sleep(0.3)
        return super().compute(payload, key, place)


LOGGED_CELLS = LoggedCells()


def write_csv(path: Path, rows: int = 60) -> Path:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"a": rng.normal(size=rows), "b": rng.normal(size=rows)})
    frame["y"] = 10 * (frame["a"] > 0) + frame["b"]
    path.parent.mkdir(exist_ok=True)
    frame.to_csv(path, index=False)
    return path


def small_plan(candidates: int = 3, splits: int = 2) -> Plan:
    """A row with a search over so many rates, and a row without one."""
    base = make_recipe(hidden=(4,), epochs=1, batch_size=64, patience=0)
    rates = tuple(0.01 * (i + 1) for i in range(candidates))
    methods = {"relu": {"lr": rates}, "htaf": {"alpha0,alpha1": ((2.0, 11.0),)}}
    return Plan("s", (Source("made.csv", target="y"),), methods, base=base, candidates=candidates, splits=splits)


def timeless(report: Any) -> Any:
    """A report without what differs from one run to the next."""
    if isinstance(report, dict):
        return {k: timeless(v) for k, v in report.items() if k not in ("seconds", "cpu_seconds", "commit")}
    return [timeless(one) for one in report] if isinstance(report, list) else report
