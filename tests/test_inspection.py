"""Importance and reasons of a row: what is said of a planted network is true."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.inspection import permutation_importance

from htaf.data import tabular
from htaf.data.reading import DataError
from htaf.data.table_files import read_frame
from htaf.tables import inspection
from htaf.tables.inspection import OTHERS, InspectionError, drawn
from htaf.training.families.mlp import tabular_members
from htaf.training.runs import Run, RunError
from htaf.training.runs.run import table_rows
from made_runs import digits
from made_runs import made_run as image_run
from made_table import Kind, made_run, table

KINDS: tuple[Kind, ...] = ("two", "three", "number")
QUICK = tabular_members().replace(members=2, hidden=(64,), thresholds=24, epochs=3, batch_size=64, lr=0.01)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[Kind, Run]:
    folder = tmp_path_factory.mktemp("tables")
    return {kind: made_run(folder, kind) for kind in KINDS}


def rows_of(run: Run) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The raw rows of the training and the test part."""
    data: Any = run.data()
    parts = table_rows(run, data)
    return data.features.iloc[parts.train], data.features.iloc[parts.test]


@pytest.mark.parametrize("kind", KINDS)
def test_a_column_that_only_the_linear_part_reads_is_seen(tmp_path: Path, kind: Kind) -> None:
    run = made_run(tmp_path, kind, linear=True)
    row = rows_of(run)[1].iloc[[3]]
    shuffled = inspection.importance(run).columns["worse"]
    assert {name for name, of in shuffled.items() if of} == {"weight"}
    assert inspection.reasons(run, row).columns.index[0] == "weight"


@pytest.mark.parametrize("kind", KINDS)
def test_what_the_columns_of_a_row_add(made: dict[Kind, Run], kind: Kind) -> None:
    """Beside predictions of the row with the values of the same training rows."""
    run = made[kind]
    train, test = rows_of(run)
    row = test.iloc[[7]]
    reasons = inspection.reasons(run, row)
    of_columns = reasons.columns
    adds = of_columns["adds"].to_dict()
    assert {*adds} == {"color", "size", "weight"}
    assert [abs(value) for value in adds.values()] == sorted(map(abs, adds.values()), reverse=True)
    no_bit_reads_it = (adds["weight"], of_columns["std"].to_dict()["weight"])
    assert no_bit_reads_it == pytest.approx((0, 0), abs=1e-4)  # as the decision of one row and of many are rounded
    predicted = run.predict(row)["prediction"].iloc[0]
    assert reasons.prediction == (pytest.approx(predicted) if kind == "number" else predicted)
    chosen = train.iloc[drawn(np.arange(len(train)), OTHERS)]
    for name in ("color", "size"):
        others = pd.concat([row] * len(chosen), ignore_index=True).assign(**{name: chosen[name].to_numpy()})
        predicted = run.predict(others)
        if kind == "number":
            decided = predicted["prediction"].to_numpy()
        else:
            one, other = (predicted[f"probability_{c}"].to_numpy() for c in (reasons.prediction, reasons.instead))
            decided = np.log(one / other)
        assert adds[name] == pytest.approx(reasons.decision - decided.mean(), abs=1e-4)


# ---- importance ----


@pytest.mark.parametrize("kind", KINDS)
def test_importance_of_columns(made: dict[Kind, Run], kind: Kind) -> None:
    found = inspection.importance(made[kind])
    assert found.metric == {"two": "auroc", "three": "accuracy", "number": "rmse"}[kind]
    assert found.value == pytest.approx(made[kind].evaluate("test")["exact"][found.metric])
    assert sorted(found.columns.index) == ["color", "size", "weight"]  # a constant column is none
    assert [found.columns[name].to_dict()["weight"] for name in ("worse", "std")] == [0.0, 0.0]  # no bit reads it
    assert min(found.columns["std"].to_dict()[name] for name in ("size", "color")) > 0
    assert json.dumps(found.to_json())
    assert found.columns.equals(inspection.importance(made[kind]).columns)


class Predictor(RegressorMixin, BaseEstimator):
    """A run of numbers as an estimator over raw rows, against which row numbers are held."""

    def __init__(self, run: Run) -> None:
        self.run = run

    def __sklearn_is_fitted__(self) -> bool:
        return True

    def fit(self) -> None: ...

    def predict(self, x: pd.DataFrame) -> np.ndarray:
        return self.run.predict(x)["prediction"].to_numpy()


def test_row_numbers_give_what_raw_rows_give(made: dict[Kind, Run]) -> None:
    """The same shuffles of the rows themselves."""
    run = made["number"]
    data = run.data()
    assert isinstance(data, tabular.Table)
    rows = tabular.split(data, 0).test

    own = inspection.importance(run)
    theirs: Any = permutation_importance(
        Predictor(run),
        data.features.iloc[rows],
        data.target[rows],
        scoring="neg_root_mean_squared_error",
        n_repeats=own.repeats,
        random_state=0,
    )
    for name, of in own.columns.iterrows():
        place = data.features.columns.get_loc(name)
        assert of["worse"] == pytest.approx(theirs.importances_mean[place], abs=1e-5)
        assert of["std"] == pytest.approx(theirs.importances_std[place], abs=1e-5)


# ---- which runs, which rows ----


def test_a_network_without_a_step_is_read_as_it_is(tmp_path: Path) -> None:
    run = made_run(tmp_path, "two", {"method": "relu"})
    row = rows_of(run)[1].iloc[[0]]
    assert inspection.reasons(run, row).prediction == run.predict(row)["prediction"].iloc[0]


def test_runs_that_are_refused(made: dict[Kind, Run], tmp_path: Path) -> None:
    row = table(rows=1).drop(columns="y")
    with pytest.raises(InspectionError, match=r"trained on images.*predict --explain"):
        inspection.reasons(image_run(tmp_path / "images", digits()), row)
    other = table("two", seed=5)
    other.to_csv(tmp_path / "other.csv", index=False)
    elsewhere = tabular.load(tmp_path / "other.csv", target="y")
    with pytest.raises(RunError, match="trained on other data"):
        inspection.reasons(made["two"], row, elsewhere)
    with pytest.raises(RunError, match="trained on other data"):
        inspection.importance(made["two"], elsewhere)
    with pytest.raises(InspectionError, match="expected one row, got 2"):
        inspection.reasons(made["two"], table(rows=2))
    with pytest.raises(InspectionError, match="train, validation, test, got 'tset'"):
        inspection.importance(made["two"], part="tset")
    with pytest.raises(DataError, match="expected the columns 'color' too"):
        inspection.reasons(made["two"], row.drop(columns="color"))


# ---- the command ----


@pytest.fixture
def rows_csv(tmp_path: Path) -> Path:
    table("two", rows=3).drop(columns="y").to_csv(tmp_path / "rows.csv", index=False)
    return tmp_path / "rows.csv"


def test_explain_command(made: dict[Kind, Run], htaf) -> None:
    run = made["two"]
    code, out, _ = htaf("explain", run.path)
    assert (code, "Importance: each column shuffled" in out, "color" in out) == (0, True, True)
    code, out, _ = htaf("explain", run.path, "--json")
    assert code == 0
    assert json.loads(out)["importance"] == json.loads(json.dumps(inspection.importance(run).to_json()))


def test_explain_command_of_a_row(made: dict[Kind, Run], htaf, rows_csv: Path) -> None:
    for run in [*made.values()][1:]:
        code, out, _ = htaf("explain", run.path, rows_csv, "--row", "2")
        assert code == 0
        assert "row 2: y = " in out
        assert "What its values add" in out
        found = json.loads(htaf("explain", run.path, rows_csv, "--json")[1])
        first = read_frame(rows_csv)[0].iloc[[0]]
        assert found["reasons"]["decision"] == inspection.reasons(run, first).decision


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("ROWS", "--row", "4"), 2, "--row must be in 1 to 3"),
        (("--row", "2"), 2, "--row is one of ROWS"),
        (("SHORT",), 1, "expected the columns 'color' too"),
    ],
)
def test_explain_command_refuses(
    made: dict[Kind, Run], htaf, rows_csv: Path, words: tuple[str, ...], code: int, said: str
) -> None:
    short = rows_csv.with_name("short.csv")
    pd.read_csv(rows_csv).drop(columns="color").to_csv(short, index=False)
    given = [{"ROWS": rows_csv, "SHORT": short}.get(word, word) for word in words]
    found, _, error = htaf("explain", made["two"].path, *given)
    assert (found, said in error) == (code, True), error


def test_explain_command_refuses_other_runs(htaf, tmp_path: Path) -> None:
    images = image_run(tmp_path / "images", digits())
    code, _, error = htaf("explain", images.path)
    assert (code, "htaf predict --explain" in error) == (1, True)
    (tmp_path / "net.packed").write_bytes(b"")
    code, _, error = htaf("explain", tmp_path / "net.packed")
    assert (code, "got the file" in error) == (2, True)
    moved_from = tmp_path / "again"
    moved_from.mkdir()
    moved = made_run(moved_from, "two")
    (moved_from / "two.csv").rename(moved_from / "moved.csv")
    assert htaf("explain", moved.path)[0] == 1
    assert htaf("explain", moved.path, "--data", moved_from / "moved.csv")[0] == 0
