"""The preprocessor: exact after JSON, learned from the training part only, clear about bad rows."""

import copy
import json
import re

import numpy as np
import pandas as pd
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from sklearn.impute import SimpleImputer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler, OneHotEncoder

from htaf.data.notes import told
from htaf.data.preprocess import Preprocessor, category_values
from htaf.data.reading import DataError

NUMBERS = st.one_of(st.none(), st.floats(-1e6, 1e6), st.integers(-9, 9).map(float))
TEXTS = st.one_of(st.none(), st.sampled_from(["a", "b", "True", "é", "1", "x y"]))


@st.composite
def frames(draw: st.DrawFn, rows: int = 12) -> pd.DataFrame:
    columns = {}
    for place in range(draw(st.integers(1, 4))):
        cells = draw(st.lists(draw(st.sampled_from([NUMBERS, TEXTS])), min_size=rows, max_size=rows))
        number = all(cell is None or isinstance(cell, float) for cell in cells)
        columns[f"column {place}"] = pd.Series(cells, dtype=np.float64 if number else object)
    columns["steady"] = pd.Series(np.arange(rows, dtype=np.float64))
    return pd.DataFrame(columns)


def fit(features: pd.DataFrame, **options) -> Preprocessor:
    target = np.arange(len(features), dtype=np.float64)
    return Preprocessor.fit(features, target, task="regression", **options)


def again(preprocessor: Preprocessor) -> Preprocessor:
    return Preprocessor.from_json(json.loads(json.dumps(preprocessor.to_json(), allow_nan=False)))


@settings(max_examples=40, deadline=None)
@given(train=frames(), codes=st.sampled_from([(), (-7.0, -8.0, -9.0)]))
def test_json_keeps_every_bit(train: pd.DataFrame, codes: tuple[float, ...]) -> None:
    first = fit(train, special_codes=codes)
    second = again(first)
    rows = train.iloc[::-1]
    one, two = first.transform(rows), second.transform(rows)
    assert one.dtype == np.float32
    assert one.tobytes() == two.tobytes()
    assert first.notes == second.notes
    assert first.transform_with_notes(rows)[1] == second.transform_with_notes(rows)[1]
    assert first.feature_names == second.feature_names
    assert (first.columns, first.target, first.special_codes) == (second.columns, second.target, second.special_codes)


def by_scikit_learn(preprocessor: Preprocessor, rows: pd.DataFrame) -> np.ndarray:
    """The same inputs by its transformers, whose learned numbers come from three rows: low, fill, high."""
    scaled = [c for c in preprocessor.columns if c.kind == "number" and c.high > c.low]
    coded = [(c, code) for c in preprocessor.columns for code in c.codes]
    texts = [c for c in preprocessor.columns if c.kind == "category"]
    blocks = [np.zeros((len(rows), 0))]
    if scaled:
        learned = np.array([[c.low, c.fill, c.high] for c in scaled]).T
        values = rows[[c.name for c in scaled]].to_numpy(np.float64)
        values = np.where(np.isin(values, preprocessor.special_codes), np.nan, values)
        blocks.append(make_pipeline(SimpleImputer(strategy="median"), MinMaxScaler()).fit(learned).transform(values))
    blocks += [(rows[[c.name]] == code).to_numpy(np.float64) for c, code in coded]
    blocks += [rows[[c.name]].isna().to_numpy(np.float64) for c in preprocessor.columns if c.missing]
    for column in texts:
        encoder = OneHotEncoder(
            categories=[np.array(column.categories, dtype=object)], handle_unknown="ignore", sparse_output=False
        )
        values = np.array([[text or ""] for text in category_values(rows[column.name])], dtype=object)
        blocks.append(encoder.fit(np.array([[column.categories[0]]], dtype=object)).transform(values))
    return np.concatenate(blocks, axis=1).astype(np.float32)


@settings(max_examples=40, deadline=None)
@given(train=frames(), data=st.data())
def test_every_bit_as_by_scikit_learn(train: pd.DataFrame, data: st.DataObject) -> None:
    numbers = [name for name in train if train[name].dtype == np.float64]
    seen = train[numbers[0]].dropna() if numbers else []
    codes = (float(data.draw(st.sampled_from(list(seen)))),) if len(seen) else ()
    try:
        preprocessor = fit(train, special_codes=codes)
    except DataError:
        assume(False)
        raise
    inputs = preprocessor.transform(train)
    assert inputs.tobytes() == by_scikit_learn(preprocessor, train).tobytes()


def small() -> pd.DataFrame:
    return pd.DataFrame(
        {
            "age": [10.0, 20.0, np.nan, 40.0],
            "sex": pd.Series(["M", "F", None, "M"], dtype=object),
            "flat": [3.0, 3.0, 3.0, np.nan],
            "code": [-9.0, -8.0, 1.0, 5.0],
        }
    )


def test_worked_example() -> None:
    preprocessor = fit(small(), special_codes=(-7.0, -8.0, -9.0))
    assert preprocessor.feature_names == (
        *("age", "code", "code is -8", "code is -9"),
        *("sex=missing", "sex=F", "sex=M"),
    )
    expected = [
        [0, 0.5, 0, 1, 0, 0, 1],
        [1 / 3, 0.5, 1, 0, 0, 1, 0],
        [1 / 3, 0, 0, 0, 1, 0, 0],
        [1, 1, 0, 0, 0, 0, 1],
    ]
    inputs, notes = preprocessor.transform_with_notes(small())
    np.testing.assert_allclose(inputs, expected, atol=1e-7)
    assert told(notes) == ["missing values set to the training median: 1 in 'age' (20)"]
    assert told(preprocessor.notes) == ["column 'flat' dropped: one value, 3, in the training part"]


def test_only_the_training_part_is_learned_from() -> None:
    train = pd.DataFrame({"x": [0.0, 1.0, 2.0, 4.0], "code": [0.0, 1.0, 2.0, 3.0]})
    preprocessor = fit(train, special_codes=(-9.0,))
    assert preprocessor.feature_names == ("x", "code")
    later, notes = preprocessor.transform_with_notes(pd.DataFrame({"x": [8.0, -4.0], "code": [-9.0, 6.0]}))
    np.testing.assert_allclose(later, [[2, 0.5], [-1, 2]])  # no clipping; an unseen code is only missing
    assert told(notes) == [
        "values outside the range of training: x (2 rows, down to -4 and up to 8 where training had 0 to 4), "
        "code (1 row, up to 6 where training had 0 to 3)",
        "missing values set to the training median: 1 in 'code' (1.5)",
    ]
    assert preprocessor.notes == ()


def test_raw_rows_by_name_in_any_order_and_dtype() -> None:
    preprocessor = fit(small())
    expected = preprocessor.transform(small())
    raw = pd.DataFrame(
        {
            "extra": ["?"] * 4,
            "code": ["-9", " -8", "1e0", "5.0"],
            "flat": ["not even read"] * 4,
            "sex": pd.Categorical(["M", "F", None, "M"]),
            "age": [" 10", "20", "NA", "40"],
        },
        index=[7, 7, 7, 7],
    )
    inputs, notes = preprocessor.transform_with_notes(raw)
    np.testing.assert_array_equal(inputs, expected)
    assert "ignored, not used in training: 'extra'" in told(notes)
    np.testing.assert_array_equal(preprocessor.transform(raw.drop(columns="flat")), expected)


def test_whole_numbers_name_one_category_in_every_dtype() -> None:
    train = pd.DataFrame({"c": pd.Series(["1", "2", "abc", "2"], dtype=object)})
    preprocessor = fit(train)
    for column in ([1, 2], [1.0, 2.0], ["1", "2"]):
        inputs = preprocessor.transform(pd.DataFrame({"c": column}))
        np.testing.assert_array_equal(inputs, [[1, 0, 0], [0, 1, 0]])


def test_unseen_categories_are_counted() -> None:
    preprocessor = fit(pd.DataFrame({"c": pd.Series(["a", "b", "b"], dtype=object)}))
    inputs, notes = preprocessor.transform_with_notes(pd.DataFrame({"c": ["z", "a", None, "z"]}))
    np.testing.assert_array_equal(inputs, [[0, 0], [1, 0], [0, 0], [0, 0]])
    assert told(notes) == ["column 'c': 3 rows with categories not seen in training ('z', 'missing'), all inputs 0"]
    assert preprocessor.transform_with_notes(pd.DataFrame({"c": ["a"]}))[1] == []


def test_no_rows_give_no_inputs() -> None:
    preprocessor = fit(small())
    assert preprocessor.transform(small().iloc[:0]).shape == (0, len(preprocessor.feature_names))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"age": ["1", "2", "old", "4"]}, "column 'age', row 3: expected a number, got 'old'"),
        ({"age": ["1", "2", "1_0", "4"]}, "column 'age', row 3: expected a number, got '1_0'"),
        ({"age": [1, -np.inf, 3, 4]}, "column 'age', row 2: expected a finite number, got '-inf'"),
        ({"age": ["1", "2", "3", "inf"]}, "column 'age', row 4: expected a finite number, got 'inf'"),
        ({"age": [1, 2, 1e300, 4]}, "column 'age', row 3: the value is too far outside the training range"),
    ],
)
def test_bad_raw_rows(change: dict[str, list], message: str) -> None:
    with pytest.raises(DataError, match=re.escape(message)) as caught:
        fit(small()).transform(small().assign(**change))
    assert "\n" not in str(caught.value)


def test_an_error_counts_the_rows_of_the_whole() -> None:
    features = pd.DataFrame({"x": [0.0, 1.0, 2.0, 1e300]})
    preprocessor = Preprocessor.fit(features, np.arange(3.0), task="regression", rows=np.arange(3))
    with pytest.raises(DataError, match="column 'x', row 4: the value is too far outside"):
        preprocessor.transform(features, np.array([2, 3]))


def test_missing_and_repeated_columns() -> None:
    preprocessor = fit(small())
    with pytest.raises(DataError, match="expected the columns 'age', 'sex' too, got only 'flat', 'code'"):
        preprocessor.transform(small()[["flat", "code"]])
    twice = pd.concat([small(), small()[["age"]]], axis=1)
    with pytest.raises(DataError, match="expected each column once, got 'age' more than once"):
        preprocessor.transform(twice)
    with pytest.raises(DataError, match="expected distinct column names"):
        fit(twice)


def test_ranges_that_cannot_be_scaled() -> None:
    base = np.array([0.0, 1.0, 2.0])
    preprocessor = fit(pd.DataFrame({"good": base, "tiny": base * 1e-20, "offset": 1e12 + base}))
    assert preprocessor.feature_names == ("good",)
    assert "column 'tiny' dropped: too narrow a range (0 to " in told(preprocessor.notes)[0]
    assert "column 'offset' dropped: too narrow a range" in told(preprocessor.notes)[1]
    with pytest.raises(DataError, match="column 'wide': expected a range within float64"):
        fit(pd.DataFrame({"wide": [-1.7e308, 1.7e308]}))
    with pytest.raises(DataError, match="column 'x', row 2: expected a finite number, got 'inf'"):
        fit(pd.DataFrame({"x": [0.0, np.inf]}))
    with pytest.raises(DataError, match="expected at least one column that varies"):
        fit(pd.DataFrame({"x": [1.0, 1.0], "y": [np.nan, np.nan]}))


def test_a_column_of_one_value_and_codes_keeps_the_codes() -> None:
    preprocessor = fit(pd.DataFrame({"x": [-9.0, 2.0, 2.0], "y": [-9.0, -9.0, -9.0]}), special_codes=(-9.0,))
    assert preprocessor.feature_names == ("x is -9",)
    again(preprocessor)
    np.testing.assert_array_equal(preprocessor.transform(pd.DataFrame({"x": [-9, 7]})), [[1], [0]])


def test_regression_target() -> None:
    target = np.array([3.0, 5.0, 10.0])
    preprocessor = again(Preprocessor.fit(pd.DataFrame({"x": [1.0, 2, 3]}), target, task="regression"))
    encoded = preprocessor.encode_target(target)
    assert encoded.dtype == np.float32
    np.testing.assert_allclose([encoded.mean(), encoded.std()], [0, 1], atol=1e-6)
    np.testing.assert_allclose(preprocessor.inverse(encoded), target, rtol=1e-6)
    with pytest.raises(DataError, match="target 'target': expected values that vary in the training part, got 2"):
        Preprocessor.fit(pd.DataFrame({"x": [1.0, 2]}), np.array([2.0, 2.0]), task="regression")


def test_classification_target() -> None:
    options = {"task": "classification", "target_name": "kind", "classes": ("a", "b", "c")}
    features = pd.DataFrame({"x": [1.0, 2, 3]})
    preprocessor = again(Preprocessor.fit(features, np.array([0, 1, 0]), **options))
    assert told(preprocessor.notes) == ["target 'kind': no training rows of 'c'"]
    np.testing.assert_array_equal(preprocessor.encode_target(np.array([2, 0])), [2, 0])
    assert preprocessor.inverse(np.array([2, 0])).tolist() == ["c", "a"]
    for codes in ([1, 1, 1], [0, 1, 3]):
        with pytest.raises(DataError, match="target 'kind': expected at least two of 3 classes"):
            Preprocessor.fit(features, np.array(codes), **options)
    with pytest.raises(DataError, match="expected as many rows as targets, got 3 and 2"):
        Preprocessor.fit(features, np.array([0, 1]), **options)


def damaged(path: list, value: object) -> dict:
    data = copy.deepcopy(fit(small(), special_codes=(-8.0,)).to_json())
    place = data
    for step in path[:-1]:
        place = place[step]
    if value is None:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    return data


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (["columns"], None, "preprocessing: expected the keys"),
        (["version"], 2, "expected format 'htaf-tabular' version 7, got 'htaf-tabular' version 2"),
        (["columns"], {}, "preprocessing columns: expected a list, got {}"),
        (
            ["columns", 0],
            [],
            "columns[0]: expected typing.Literal['number', 'category', 'encoded', 'date', 'dropped'], got",
        ),
        (["columns", 0, "low"], float("nan"), "columns[0] low: expected a finite float, got nan"),
        (["columns", 0, "high"], 9.0, "columns[0]: expected low <= fill <= high"),
        (["columns", 0, "name"], "sex", "expected distinct names"),
        (["columns", 1, "categories"], [], "columns[1]: expected distinct categories"),
        (["columns", 1, "categories"], ["a", "a"], "columns[1]: expected distinct categories"),
        (["columns", 3, "codes"], [-8, -8], "columns[3]: expected distinct codes"),
        (["target", "std"], 0.0, "target: expected std > 0"),
        (
            ["target", "task"],
            "ranking",
            "target task: expected typing.Literal['regression', 'classification'], got 'ranking'",
        ),
        (["notes"], ["read before"], "notes: expected a note, got 'read before'"),
        (["notes"], [{"kind": "mixed", "count": "1"}], "notes: expected the fields of a note, got 'count': '1'"),
        (["columns"], [], "expected at least one column"),
    ],
)
def test_damaged_json_is_refused(path: list, value: object, message: str) -> None:
    with pytest.raises(DataError, match=re.escape(message)):
        Preprocessor.from_json(damaged(path, value))
