"""Which columns are inputs, and how the rows of a table are divided."""

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from htaf.data.notes import told
from htaf.data.reading import DataError
from htaf.data.tabular import Table, load, split


def frame(rows: int = 60) -> pd.DataFrame:
    rng = np.random.default_rng(1)
    return pd.DataFrame(
        {
            "customer": [f"k{row}" for row in range(rows)],
            "shop": [f"shop {row % 7}" for row in range(rows)],
            "when": pd.date_range("2012-01-01", periods=rows, freq="D")[rng.permutation(rows)].strftime("%Y-%m-%d"),
            "x": rng.random(rows),
            "y": rng.random(rows),
        }
    )


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "table.csv"
    frame().to_csv(path, index=False)
    return path


def sizes(table: Table, seed: int = 0, mode="random") -> list[int]:
    parts = split(table, seed, mode=mode)
    assert sorted([*parts.train, *parts.validation, *parts.test]) == list(range(len(table.target)))
    return [len(parts.train), len(parts.validation), len(parts.test)]


def test_columns_that_are_no_inputs(file: Path) -> None:
    table = load(file, target="y", exclude=["when"], ids=["customer"], group="shop")
    assert list(table.features) == ["x"]
    assert table.ids["customer"].tolist() == frame()["customer"].tolist()
    (line,) = [one for one in told(table.notes) if one.startswith("no inputs, as asked")]
    for said in ("'customer' (names the rows)", "'when' (excluded)", "'shop' (divides the rows: equal ones are in one"):
        assert said in line
    preprocessor = table.fit_preprocessor(np.arange(60))
    assert preprocessor.ids == ("customer",)
    assert preprocessor.transform_with_notes(frame()[["customer", "x"]])[1] == []
    again = load(file, target="y", ids=["customer"])  # kept, not dropped as text that identifies rows
    assert not any("customer' dropped: text" in note for note in told(again.notes))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"exclude": ["z"]}, "exclude: expected a column, got 'z'; columns: 'customer'"),
        ({"ids": ["custmer"]}, "id: expected a column (did you mean 'customer'?), got 'custmer'"),
        ({"group": "y"}, "group: expected another column than the target, got 'y'"),
        ({"time": "shop"}, "time: expected a column of dates or numbers, got 'shop' ('shop 0')"),
        ({"time": "when", "group": "shop"}, "expected a group or a time, got both: 'shop' and 'when'"),
        ({"shares": [0.5, 0.5]}, "shares: expected those of training, validation and test rows, each above 0"),
        ({"shares": [0.5, 0.6, 0.1]}, "together 1, got 0.5 0.6 0.1"),
        ({"exclude": ["customer", "shop", "when", "x"]}, "expected at least one usable column beside 'y', got none"),
    ],
)
def test_wrong_columns_and_shares_are_refused(file: Path, options: dict, message: str) -> None:
    with pytest.raises(DataError, match=re.escape(message)):
        load(file, target="y", **options)


def test_other_shares(file: Path) -> None:
    assert sizes(load(file, target="y", shares=[0.5, 0.2, 0.3])) == [30, 12, 18]
    assert sizes(load(file, target="y")) == [42, 6, 12]
    table = load(file, target="y", shares=[0.5, 0.2, 0.3])
    assert table.parting.identity() == {"shares": [0.5, 0.2, 0.3]}
    assert load(file, target="y").parting.identity() == {}


def test_a_group_stays_together(file: Path) -> None:
    table = load(file, target="y", group="shop")
    shops = frame()["shop"].to_numpy()
    for seed in range(5):
        parts = split(table, seed, mode="grouped")
        found = [set(shops[rows]) for rows in (parts.train, parts.validation, parts.test)]
        assert not (found[0] & found[1])
        assert not (found[0] & found[2])
        assert not (found[1] & found[2])
    with pytest.raises(DataError, match="expected mode 'grouped' with the group 'shop', got 'random'"):
        split(table, 0)


def test_a_part_without_a_group_or_a_time_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    frame().assign(ward=["a", "b"] * 30, year=[2012] * 30 + [2013] * 30).to_csv(path, index=False)
    with pytest.raises(DataError, match="at least 3 groups in 'ward', one for each part, got 2"):
        split(load(path, target="y", group="ward"), 0, mode="grouped")
    with pytest.raises(DataError, match="at least 3 times in 'year', one for each part, got 2"):
        split(load(path, target="y", time="year"), 0, mode="time")
    frame().assign(x=[1.0, 2.0] * 30)[["x", "y"]].to_csv(path, index=False)
    with pytest.raises(DataError, match="at least 3 distinct rows to split by groups, one for each part, got 2"):
        split(load(path, target="y"), 0, mode="grouped")


def test_time_tests_on_the_last_rows(file: Path) -> None:
    table = load(file, target="y", time="when")
    parts, when = split(table, 3, mode="time"), pd.to_datetime(frame()["when"]).to_numpy()
    assert [len(rows) for rows in (parts.train, parts.validation, parts.test)] == [42, 6, 12]
    assert when[parts.train].max() < when[parts.validation].min()
    assert when[parts.validation].max() < when[parts.test].min()
    assert "when" in table.features
    with pytest.raises(DataError, match="expected mode 'time' with the time 'when', got 'random'"):
        split(table, 0)
    with pytest.raises(DataError, match="expected a table with a column of times"):
        split(load(file, target="y"), 0, mode="time")


def test_rows_of_one_time_stay_together(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    frame().assign(year=np.arange(60) // 10).to_csv(path, index=False)
    parts = split(load(path, target="y", time="year"), 0, mode="time")
    assert [len(rows) for rows in (parts.train, parts.validation, parts.test)] == [40, 10, 10]
    frame().assign(year=[None, *range(59)]).to_csv(path, index=False)
    with pytest.raises(
        DataError, match=r"table\.csv, column 'year', row 1: time: expected a value in every row, got none"
    ):
        load(path, target="y", time="year")


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32), counts=st.lists(st.integers(10, 60), min_size=2, max_size=5))
def test_stratified_parts_have_the_shares_of_the_classes(seed: int, counts: list[int]) -> None:
    target = np.repeat(np.arange(len(counts)), counts)
    names = tuple(map(str, range(len(counts))))
    features = pd.DataFrame({"x": np.arange(len(target), dtype=float)})
    table = Table("made", features, target, "classification", "y", names, (), "")
    parts = split(table, seed, mode="stratified")
    assert sorted([*parts.train, *parts.validation, *parts.test]) == list(range(len(target)))
    for rows, share in ((parts.train, 0.7), (parts.validation, 0.1), (parts.test, 0.2)):
        found = np.bincount(target[rows], minlength=len(counts))
        assert (np.abs(found - np.array(counts) * share) <= 2).all()


def test_a_stratified_regression_has_low_and_high_targets_in_each_part() -> None:
    target = np.arange(200.0)
    table = Table("made", pd.DataFrame({"x": target}), target, "regression", "y", (), (), "")
    for rows in vars(split(table, 1, mode="stratified")).values():
        assert abs(target[rows].mean() - 99.5) < 6


def test_fingerprints_see_how_rows_are_divided(file: Path) -> None:
    plain = load(file, target="y", exclude=["shop"]).fingerprint
    grouped = load(file, target="y", group="shop").fingerprint
    assert len({plain, grouped, load(file, target="y", exclude=["shop"], time="when").fingerprint}) == 3
