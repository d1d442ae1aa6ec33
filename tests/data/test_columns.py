"""Dates, many and rare categories: what a column is, and the inputs that it gives."""

import datetime
import json
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from htaf.data.dates import Dates, find, numbers, read
from htaf.data.notes import told
from htaf.data.preprocess import Preprocessor
from htaf.data.reading import DataError, to_text, typed
from htaf.data.tabular import load, load_like, split


def texts(values: list) -> pd.Series:
    return pd.Series(values, dtype=object)


def dates(values: list) -> Dates | None:
    column = texts(values)
    found = find("when", *pd.factorize(to_text(column)))
    return found if isinstance(found, Dates) else None


def again(preprocessor: Preprocessor) -> Preprocessor:
    return Preprocessor.from_json(json.loads(json.dumps(preprocessor.to_json(), allow_nan=False)))


def saved(folder: Path, frame: pd.DataFrame, name: str = "table.csv") -> Path:
    path = folder / name
    frame.to_parquet(path) if name.endswith("parquet") else frame.to_csv(path, index=False)
    return path


# --- dates -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "order", "first"),
    [
        (["2012-01-31", None, "2012-02-01 13:45"], "year-month-day", "2012-01-31"),
        (["2012/01/31", "2012/2/1"], "year-month-day", "2012-01-31"),
        (["2012-01-31T23:30:00.25+02:00", "2012-01-31T21:30:00Z"], "year-month-day", "2012-01-31T21:30:00.25"),
        (["2012-03", "2012-04"], "year-month-day", "2012-03-01"),
        (["31.12.2012", "1.2.2013"], "day-month-year", "2012-12-31"),
        (["01/02/2012", "12/31/2012 1:05 pm"], "month-day-year", "2012-01-02"),
        (["13/1/99", "1/2/01"], "day-month-year", "1999-01-13"),
        (["31-Jan-2012", "1 february 2012"], "month by name", "2012-01-31"),
        (["Tuesday, January 31, 2012 12:30 AM", "Sept. 1st 2012"], "month by name", "2012-01-31T00:30"),
    ],
)
def test_dates_are_found(values: list, order: str, first: str) -> None:
    found = dates(values)
    assert found is not None
    assert (found.order, found.values[0]) == (order, np.datetime64(first, "us"))
    assert np.isnat(found.values).tolist() == [value is None for value in values]
    np.testing.assert_array_equal(read("when", texts(values), order, found.zoned > 0), found.values)


@pytest.mark.parametrize(
    "values",
    [
        ["20120131", "20120201"],
        ["2012", "2013"],
        ["2012.01", "2012.05", "x"],
        ["1.2.3", "1.10.0"],
        ["2011-12 season", "2012-13 season"],
        ["2012-13", "2013-14"],
        ["10-20", "20-30", "30+"],
        ["555-1234", "555-9999"],
        ["12:30", "13:45"],
        ["a", "2012-01-31", "b"],
        [None, None],
        [],
        ["32/01/2012", "40/01/2012"],
        ["192.168.0.1", "10.0.0.1"],
    ],
)
def test_what_is_no_date_stays_what_it_is(values: list) -> None:
    assert dates(values) is None


@settings(max_examples=60, deadline=None)
@given(
    days=st.lists(st.dates(datetime.date(1900, 1, 1), datetime.date(2200, 1, 1)), min_size=1, max_size=30),
    form=st.sampled_from(["%Y-%m-%d", "%Y/%m/%d", "%d.%m.%Y", "%m/%d/%Y", "%d-%b-%Y", "%B %d, %Y"]),
)
def test_what_is_written_is_read(days: list[datetime.date], form: str) -> None:
    decided = [*days, datetime.date(2001, 10, 31)]  # which of day and month comes first
    found = dates([day.strftime(form) for day in decided])
    assert found is not None
    assert not found.open
    assert found.values.astype("M8[D]").tolist() == decided


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            ["13/01/2012", "01/13/2012"],
            "row 2: expected dates of one form, got '01/13/2012' after '13/01/2012', one with the day",
        ),
        (["1/2/2012", "2012-01-31"], "row 2: expected dates of one form, got '2012-01-31' after '1/2/2012': write"),
        (
            [f"2012-01-{d:02}" for d in range(1, 31)] + ["soon"],
            "row 31: expected a date as in 96.8% of the rows, got 'so",
        ),
        (
            [f"2012-01-{d:02}" for d in range(1, 31)] + ["2012-02-31"],
            "row 31: expected a date (year-month-day), got '2",
        ),
    ],
)
def test_dates_that_mix_forms_are_refused(values: list, message: str) -> None:
    with pytest.raises(DataError, match=re.escape(message)) as caught:
        dates(values)
    assert "\n" not in str(caught.value)


def test_an_open_order_is_said() -> None:
    for values, order in ((["1/2/2012", "3/4/2012"], "month-day-year"), (["1.2.2012", "3.4.2012"], "day-month-year")):
        found = dates(values)
        assert found is not None
        assert (found.order, found.open) == (order, True)
    _, notes = typed(pd.DataFrame({"when": ["1/2/2012", "3/4/2012"]}, dtype=object))
    assert told(notes) == [
        "column 'when': dates, 2012-01-02 to 2012-03-04, '1/2/2012' read as month-day-year; no row says whether day or "
        "month comes first, write 2012-01-31 to be sure",
    ]


@pytest.mark.parametrize(
    ("zones", "said"),
    [(("Z", "+02:00"), "; times are UTC"), (("", "Z"), "; times are UTC, those without a zone too"), (("", ""), "")],
)
def test_time_zones_are_said(zones: tuple[str, str], said: str) -> None:
    texts = [f"2024-01-{1 + i:02}T06:30:00{zones[i % 2]}" for i in range(28)]
    read, (note,) = typed(pd.DataFrame({"when": texts}))
    assert str(note).endswith("read as year-month-day" + said)
    moment = pd.Timestamp("2024-01-02 04:30" if "+02:00" in zones else "2024-01-02 06:30")
    assert read["when"][1] == (moment.tz_localize("UTC") if said else moment)


def test_the_parts_of_a_date() -> None:
    when = np.array(["2012-01-01T00:00", "2012-03-04T06:30", "NaT"], dtype="M8[us]")
    found = numbers(when, when[0])
    assert {name: part[1] for name, part in found.items()} == {
        "year": 2012, "month": 3, "weekday": 6, "day of year": 64, "hour": 6.5, "elapsed days": 63 + 6.5 / 24,
    }  # fmt: skip
    assert all(np.isnan(part[2]) for part in found.values())


def test_a_column_of_dates_gives_the_parts_that_vary() -> None:
    when = pd.Series(pd.date_range("2012-01-01", periods=60, freq="D"))
    when[3] = pd.NaT
    features = pd.DataFrame({"when": when, "x": np.arange(60.0)})
    fitted = Preprocessor.fit(features, np.arange(60.0), task="regression", written={"when": "day-month-year"})
    preprocessor = again(fitted)
    assert preprocessor.columns == fitted.columns
    parts = ("month", "weekday", "day of year", "elapsed days")
    assert preprocessor.feature_names == ("x", *(f"when: {part}" for part in parts))
    assert preprocessor.calendar == (1, 2, 3)
    seconds = features.assign(when=pd.date_range("2012-01-01", periods=60, freq="7001s"))
    timed = Preprocessor.fit(seconds, np.arange(60.0), task="regression")
    assert [timed.feature_names[place] for place in timed.calendar] == ["when: weekday", "when: day of year"]
    inputs = preprocessor.transform(features)
    assert inputs.tobytes() == fitted.transform(features).tobytes()
    np.testing.assert_allclose(inputs[[0, 59], 1:], [[0, 1, 0, 0], [1, 2 / 6, 59 / 59, 1]], atol=1e-6)
    as_text = features.assign(when=when.dt.strftime("%d/%m/%Y").where(when.notna(), None))
    raw, notes = preprocessor.transform_with_notes(as_text)
    assert raw.tobytes() == inputs.tobytes()
    assert told(notes) == ["missing values set to the training median: 1 in 'when' (2012-01-31)"]
    with pytest.raises(DataError, match=re.escape("column 'when', row 1: expected a date (day-month-year, as in")):
        preprocessor.transform(as_text.assign(when="01/13/2012"))


def test_times_are_of_the_zone_of_training_or_refused() -> None:
    """Other zones are converted. Times without a zone are refused where training had one, and the other way round."""
    when = pd.Series(pd.date_range("2012-01-01", periods=60, freq="7001s"))
    naive = pd.DataFrame({"when": when})
    zoned = pd.DataFrame({"when": when.dt.tz_localize("Europe/Berlin")})
    fitted = again(Preprocessor.fit(zoned, np.arange(60.0), task="regression"))
    inputs = fitted.transform(zoned)
    assert fitted.transform(zoned.assign(when=zoned["when"].dt.tz_convert("Asia/Tokyo"))).tobytes() == inputs.tobytes()
    as_text = zoned["when"].map(str).astype(object)
    assert fitted.transform(zoned.assign(when=as_text)).tobytes() == inputs.tobytes()
    one = fitted.transform_with_notes(zoned.assign(when=as_text.where(as_text.index > 0, "2012-01-01 00:00")))[1]
    assert "column 'when': 1 row without the time zone of the training, read as UTC" in told(one)
    for rows in (naive, naive.astype(str).astype(object)):
        with pytest.raises(DataError, match="row 1: expected times with a time zone"):
            fitted.transform(rows)
    plain = Preprocessor.fit(naive, np.arange(60.0), task="regression")
    for rows in (zoned, zoned.assign(when=as_text)):
        with pytest.raises(DataError, match="row 1: expected times without a time zone"):
            plain.transform(rows)


def test_a_table_with_dates_in_every_form_is_one_table(tmp_path: Path) -> None:
    days = pd.date_range("2012-01-01", periods=40, freq="D")
    native = pd.DataFrame({"when": days, "x": np.arange(40.0) % 7, "y": np.arange(40.0)})
    tables = [
        load(saved(tmp_path, native, "native.parquet"), target="y"),
        load(saved(tmp_path, native, "iso.csv"), target="y"),
        load(saved(tmp_path, native.assign(when=days.strftime("%d.%m.%Y")), "german.csv"), target="y"),
    ]
    assert len({table.fingerprint for table in tables}) == 1
    assert all(table.features["when"].dtype.kind == "M" for table in tables)
    assert [table.written["when"] for table in tables] == ["year-month-day", "year-month-day", "day-month-year"]
    german = tables[2]
    preprocessor = german.fit_preprocessor(split(german, 0).train)
    again_read = load_like(tmp_path / "german.csv", target=preprocessor.target)
    inputs = preprocessor.transform(german.features)
    assert preprocessor.transform(again_read.features).tobytes() == inputs.tobytes()
    assert preprocessor.transform(native).tobytes() == inputs.tobytes()


# --- categories ------------------------------------------------------------------------------------------


def many(rows: int = 400, names: int = 40, seed: int = 0) -> tuple[pd.DataFrame, np.ndarray]:
    """Categories with nothing to say of the target."""
    rng = np.random.default_rng(seed)
    place = rng.integers(0, names, rows)
    features = pd.DataFrame({"c": texts([f"name {p}" for p in place]), "x": rng.random(rows)})
    return features, rng.normal(size=rows)


def test_many_categories_are_means_of_the_target() -> None:
    features, target = many()
    target = target + 3 * (features["c"] == "name 7").to_numpy()
    fitted = Preprocessor.fit(features, target, task="regression", target_name="price")
    preprocessor = again(fitted)
    assert preprocessor.feature_names[:2] == ("x", "c: mean price")
    inputs = preprocessor.transform(features)
    assert inputs.tobytes() == fitted.transform(features).tobytes()
    assert features["c"][inputs[:, 1].argmax()] == "name 7"
    column = preprocessor.columns[0]
    new, notes = preprocessor.transform_with_notes(pd.DataFrame({"c": ["new", None, "NAME 7"], "x": 0.5}))
    mean = (column.otherwise[0] - column.lows[0]) / (column.highs[0] - column.lows[0])
    np.testing.assert_allclose(new[:, 1], [mean, mean, 1], atol=1e-6)
    assert told(notes) == [
        "column 'c': 2 rows with categories not seen in training ('new', 'missing'), the target's mean"
    ]


def test_the_encoding_is_that_of_scikit_learn() -> None:
    from sklearn.preprocessing import TargetEncoder

    features, _ = many()
    target = (np.arange(400) % 3 == 0).astype(np.int64)
    preprocessor = Preprocessor.fit(features, target, task="classification", classes=("no", "yes"))
    assert preprocessor.feature_names[:2] == ("x", "c: share of yes")
    column = preprocessor.columns[0]
    found = preprocessor.transform(features)[:, 1] * (column.highs[0] - column.lows[0]) + column.lows[0]
    encoder = TargetEncoder(target_type="binary").fit(features[["c"]], target)
    np.testing.assert_allclose(found, np.asarray(encoder.transform(features[["c"]]))[:, 0], atol=1e-6)


def test_training_rows_are_not_encoded_by_their_own_target() -> None:
    features, target = many(rows=300, names=150)
    preprocessor = Preprocessor.fit(features, target, task="regression")
    plain, cross = preprocessor.transform(features)[:, 1], preprocessor.transform(features, trained=target)[:, 1]
    assert np.corrcoef(plain, target)[0, 1] > 0.4  # each row's own target is in its category's mean
    assert abs(np.corrcoef(cross, target)[0, 1]) < 0.2
    assert preprocessor.transform(features, trained=target)[:, 1].tobytes() == cross.tobytes()
    flipped = target.copy()
    flipped[0] = -5.0
    moved = preprocessor.transform(features, trained=flipped)[:, 1]
    assert moved[0] == cross[0]
    assert (moved != cross).any()


def test_several_classes_have_an_input_each() -> None:
    features, _ = many()
    target = np.arange(400) % 3
    preprocessor = again(Preprocessor.fit(features, target, task="classification", classes=("a", "b", "c", "d")))
    assert preprocessor.feature_names[:4] == ("x", "c: share of a", "c: share of b", "c: share of c")
    assert preprocessor.feature_names[4].startswith("c: is name ")


def test_frequent_ones_of_many_categories_have_an_input_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("htaf.data.preprocess.MOST_FREQUENT", 3)
    counts = {"often": 40, "Missing": 30, "ten": 10, "nine": 9} | {f"name {i}": 2 for i in range(30)}
    names = [name for name, count in counts.items() for _ in range(count)] + [None] * 20
    features = pd.DataFrame({"c": texts(names), "x": np.arange(len(names), dtype=float)})
    target = np.sin(np.arange(len(names)))
    fitted = Preprocessor.fit(features, target, task="regression", target_name="y")
    preprocessor = again(fitted)
    assert preprocessor.feature_names == ("x", "c: mean y", "c: has no value", "c: is Missing", "c: is often")
    wanted = np.stack([features["c"].isna(), features["c"] == "Missing", features["c"] == "often"], axis=1)
    for inputs in (preprocessor.transform(features), preprocessor.transform(features, trained=target)):
        np.testing.assert_array_equal(inputs[:, 2:], wanted)
    new = preprocessor.transform(pd.DataFrame({"c": ["new", "OFTEN"], "x": 0.0}))
    np.testing.assert_array_equal(new[:, 2:], [[0, 0, 0], [0, 0, 1]])


def test_rare_categories_are_one_input() -> None:
    column = texts(["a"] * 60 + ["b"] * 40 + ["p"] * 2 + ["q"] * 4 + [None])
    features = pd.DataFrame({"c": column, "x": np.arange(len(column), dtype=float)})
    preprocessor = again(Preprocessor.fit(features, features["x"].to_numpy(), task="regression"))
    assert preprocessor.feature_names == ("x", "c=a", "c=b", "c=other")
    inputs, notes = preprocessor.transform_with_notes(pd.DataFrame({"c": ["b", "p", "new", None], "x": 1.0}))
    np.testing.assert_array_equal(inputs[:, 1:], [[0, 1, 0], [0, 0, 1], [0, 0, 1], [0, 0, 1]])
    assert told(notes) == [
        "column 'c': 3 rows with categories rare in training or not seen ('p', 'new', 'missing'), input c=other"
    ]
    one = Preprocessor.fit(features[:102], features["x"].to_numpy()[:102], task="regression")
    assert one.feature_names == ("x", "c=a", "c=b", "c=p")  # one rare category stays


def test_spellings_of_one_category() -> None:
    column = texts(["Yes", "yes", "YES", "no", "No", "No", "m", "M"] * 2)
    features = pd.DataFrame({"c": column, "x": np.arange(16.0)})
    preprocessor = again(Preprocessor.fit(features, features["x"].to_numpy(), task="regression"))
    assert preprocessor.feature_names == ("x", "c=M", "c=No", "c=YES", "c=m")
    assert told(preprocessor.notes) == ["column 'c': one category each: 'No' = 'no', 'YES' = 'Yes' = 'yes'"]
    inputs, notes = preprocessor.transform_with_notes(pd.DataFrame({"c": ["yEs", "NO", "M", "m"], "x": 1.0}))
    np.testing.assert_array_equal(inputs[:, 1:], [[0, 0, 1, 0], [0, 1, 0, 0], [1, 0, 0, 0], [0, 0, 0, 1]])
    assert notes == []
    truth = Preprocessor.fit(pd.DataFrame({"c": [True, False] * 4}), np.arange(8.0), task="regression")
    np.testing.assert_array_equal(truth.transform(pd.DataFrame({"c": ["true", "FALSE"]})), [[0, 1], [1, 0]])


def test_spellings_of_one_class(tmp_path: Path) -> None:
    frame = pd.DataFrame({"x": np.arange(40.0), "y": ["Yes", "no", "yes", "No", "No"] * 8})
    path = saved(tmp_path, frame)
    table = load(path, target="y")
    assert (table.classes, table.target[:5].tolist()) == (("No", "Yes"), [1, 0, 1, 0, 0])
    assert "column 'y': one category each: 'No' = 'no', 'Yes' = 'yes'" in told(table.notes)
    target = table.fit_preprocessor(np.arange(40)).target
    assert load_like(path, target=target).target.tolist() == table.target.tolist()


@pytest.mark.parametrize("cell", [[1, 2], {"a": 1}, np.arange(3), b"raw"])
def test_cells_that_hold_several_values_are_refused(cell: object) -> None:
    column = pd.Series([None, cell, cell], dtype=object)
    with pytest.raises(DataError, match=r"column 'c', row 2: expected numbers, text or dates, got a .*frame.drop"):
        typed(pd.DataFrame({"c": column}))


# --- the format ------------------------------------------------------------------------------------------


def fitted() -> dict:
    features, target = many(rows=60)
    features["when"] = pd.date_range("2012-01-01", periods=60, freq="D")
    return Preprocessor.fit(features, target, task="regression").to_json()


@pytest.mark.parametrize(
    ("place", "key", "value", "message"),
    [
        (0, "values", 3, "columns[0] values: expected tuple[tuple[float, ...], ...], got 3"),
        (0, "values", [[1.0]], "columns[0]: expected values for each of"),
        (0, "otherwise", [], "columns[0]: expected 1 lows <= highs, and as many values"),
        (2, "outputs", ["decade", "month", "weekday", "elapsed days"], "expected parts of a date"),
        (2, "highs", [0.0] * 4, "columns[2]: expected 4 lows <= highs"),
        (2, "order", "backwards", "columns[2]: expected parts of a date, its order and two dates"),
        (2, "first", "today", "columns[2]: expected parts of a date, its order and two dates"),
        (2, "filled", "NaT", "columns[2]: expected parts of a date, its order and two dates"),
    ],
)
def test_damaged_columns_are_refused(place: int, key: str, value: object, message: str) -> None:
    data = fitted()
    data["columns"][place][key] = value
    with pytest.raises(DataError, match=re.escape(message)):
        Preprocessor.from_json(data)


# --- large files -----------------------------------------------------------------------------------------


def test_decimal_commas_far_down_a_large_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [f"1.{row % 1000:03d};{row % 7};{row / 7:.3f}" for row in range(150)]
    text = "a;b;y\n" + "\n".join([*rows, "2,5;x, y;1", *rows[:30]])
    (tmp_path / "table.csv").write_text(text)
    usual = load(tmp_path / "table.csv", target="y")
    assert usual.features["a"].iloc[[3, 150]].tolist() == [1003.0, 2.5]
    monkeypatch.setattr("htaf.data.table_files.PIECE", 200)
    monkeypatch.setattr("htaf.data.table_files.WIDE", 0)
    large = load(tmp_path / "table.csv", target="y")
    assert (large.fingerprint, large.notes) == (usual.fingerprint, usual.notes)
    assert "column 'a': decimal commas read as points" in told(large.notes)


# --- bounds ----------------------------------------------------------------------------------------------


def test_categories_times_classes_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    features, _ = many()
    target = np.arange(400) % 4
    options: dict = {"task": "classification", "classes": ("a", "b", "c", "d")}
    every = Preprocessor.fit(features, target, **options)
    monkeypatch.setattr("htaf.data.preprocess.MOST_CELLS", 60)
    monkeypatch.setattr("htaf.data.preprocess.MOST_CELLS", 60)
    fitted = Preprocessor.fit(features, target, **options)
    preprocessor = again(fitted)
    column, before = preprocessor.columns[0], every.columns[0]
    assert len(column.categories) == 15
    kept = features["c"].isin(column.categories).to_numpy()
    counts = features["c"].value_counts()
    assert counts[[*column.categories]].min() >= counts.drop([*column.categories]).max()
    at = [before.categories.index(name) for name in column.categories]
    assert [row[:4] for row in column.values] == [before.values[place][:4] for place in at]
    lows, highs = np.array(column.lows[:4]), np.array(column.highs[:4])
    mean = ((np.array(column.otherwise[:4]) - lows) / (highs - lows)).astype(np.float32)
    for inputs in (preprocessor.transform(features), preprocessor.transform(features, trained=target)):
        np.testing.assert_allclose(inputs[~kept, 1:5], np.tile(mean, ((~kept).sum(), 1)), rtol=1e-6)
    _, notes = preprocessor.transform_with_notes(features)
    assert any("with categories rare in training or not seen" in note for note in told(notes))
