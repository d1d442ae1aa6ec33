"""What a column says by its blanks, its units or its dates reaches the network, and what is wrong with it is said."""

from __future__ import annotations

import json
import warnings
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import roc_auc_score

from htaf import HtafClassifier
from htaf.data.preprocess import Preprocessor
from htaf.data.tabular import from_frame
from htaf.report import fit_baselines
from htaf.report.contents import read_as

TINY: dict[str, Any] = {"hidden": (4,), "epochs": 1}
QUICK: dict[str, Any] = {"hidden": (16,), "epochs": 10, "lr": 0.03, "batch_size": 64}


def blanks(rows: int = 800, seed: int = 0) -> pd.DataFrame:
    """A flag of 1 and blanks, a number whose blanks say something, one whose blanks do not, and a date of an end."""
    rng = np.random.default_rng(seed)
    y = rng.random(rows) < 0.5
    flag = np.where(rng.random(rows) < np.where(y, 0.7, 0.15), 1.0, np.nan)
    income = np.where(rng.random(rows) < np.where(y, 0.35, 0.1), np.nan, rng.integers(0, 4, rows))
    height = np.where(rng.random(rows) < 0.2, np.nan, rng.normal(size=rows))
    ended: Any = pd.to_datetime("2020-01-01") + pd.to_timedelta(rng.integers(0, 700, rows), unit="D")
    ended = pd.Series(ended).where(rng.random(rows) < np.where(y, 0.6, 0.3))
    return pd.DataFrame({"flag": flag, "income": income, "height": height, "ended": ended, "y": y.astype(int)})


def fitted(frame: pd.DataFrame, columns: list[str]) -> Preprocessor:
    table = from_frame(frame[[*columns, "y"]], "y")
    return table.fit_preprocessor(np.arange(len(table.target)))


def test_blanks_that_say_something_are_inputs() -> None:
    """Without these inputs the AUROC is 0.6: the flag was one value, and the blanks of the number are its median."""
    frame = blanks()
    found = fitted(frame, ["flag", "income", "height", "ended"])
    assert [name for name in found.feature_names if "is missing" in name] == [
        *("flag is missing", "income is missing", "ended is missing"),
    ]
    kinds = {note.column: note.kind for note in found.notes}
    assert kinds == {
        "flag": "flag", "income": "missing told", "height": "missing in training", "ended": "missing told"
    }  # fmt: skip
    again = Preprocessor.from_json(json.loads(json.dumps(found.to_json())))
    assert again.transform(frame).tobytes() == found.transform(frame).tobytes()
    other, columns = blanks(seed=1), ["flag", "income"]
    model = HtafClassifier(**QUICK).fit(frame[columns], frame["y"])
    assert roc_auc_score(other["y"], model.predict_proba(other[columns])[:, 1]) > 0.77


def test_a_date_or_nothing_is_a_flag() -> None:
    frame = blanks()
    frame["ended"] = pd.Series(pd.Timestamp("2020-05-17"), index=frame.index).where(frame["ended"].notna())
    found = fitted(frame, ["ended", "income"])
    assert found.feature_names == ("income", "ended is missing", "income is missing")
    assert found.transform(frame)[:, 1].tolist() == frame["ended"].isna().astype(float).tolist()
    assert Preprocessor.from_json(found.to_json()).feature_names == found.feature_names
    assert "one input for missing" in read_as(found.columns[1])


def test_a_few_blanks_are_no_flag() -> None:
    frame = blanks()
    frame["flag"] = np.where(np.arange(len(frame)) < 4, np.nan, 1.0)
    assert [column.kind for column in fitted(frame, ["flag", "height"]).columns] == ["dropped", "number"]


def test_baselines_see_columns_that_the_network_drops() -> None:
    frame = blanks()
    rng = np.random.default_rng(0)
    table = from_frame(frame[["flag", "y"]].assign(noise=rng.normal(size=800)), "y")
    rows = {"train": np.arange(400), "test": np.arange(400, 800)}
    dropped = Preprocessor.fit(
        table.features[["noise"]].iloc[:400], table.target[:400], task="classification", classes=table.classes
    )
    _, logistic, boosting = fit_baselines(table, rows, dropped)
    assert (logistic.metrics["test"]["auroc"] or 0) > 0.7
    assert (boosting.metrics["test"]["auroc"] or 0) > 0.7


def test_a_network_that_learned_nothing_is_warned_of() -> None:
    frame = pd.DataFrame({"x": np.random.default_rng(0).normal(size=200)})
    with pytest.warns(UserWarning, match="it has learned nothing"):
        HtafClassifier(**TINY, lr=1e9).fit(frame, np.arange(200) % 2)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        HtafClassifier(**QUICK).fit(frame, frame["x"] > 0)
