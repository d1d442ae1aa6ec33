"""The estimators: scikit-learn's own checks, frames of every dtype, and the same run as the command's."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.utils.estimator_checks import parametrize_with_checks

import htaf
from htaf import HtafClassifier, HtafRegressor
from htaf.data.notes import told
from htaf.data.reading import DataError, in_pandas
from htaf.data.tabular import Split, Table, from_frame, load
from htaf.tables.estimators import fit as fit_frame
from htaf.tables.estimators import parts
from htaf.tables.inspection import InspectionError, importance, reasons
from htaf.training.families import ready_recipe
from htaf.training.fit import fit
from htaf.training.runs import RunError, open_run

SMALL = {"hidden": (16,), "epochs": 4, "lr": 0.03, "batch_size": 32}
TINY = {"hidden": (4,), "epochs": 1}


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked")  # constructors may get anything, says one of the checks
@parametrize_with_checks(
    [HtafClassifier(**SMALL), HtafRegressor(**SMALL)],
    expected_failed_checks=lambda estimator: {
        "check_sample_weight_equivalence_on_dense_data": "a row of weight 2 is in one batch, two rows are drawn apart: "
        "validation rows and batches are others. Weight 0 is as if the row were not there: tests/test_weights.py"
    },
)
def test_checks_of_scikit_learn(estimator, check) -> None:
    """One is expected to fail, of every estimator that draws validation rows and batches."""
    check(estimator)


def frame(rows: int = 60) -> pd.DataFrame:
    """Columns of every dtype."""
    rng = np.random.default_rng(0)
    number = rng.normal(size=rows)
    made = pd.DataFrame(
        {
            "number": np.where(rng.random(rows) < 0.1, np.nan, number),
            "whole": pd.array([None if i % 7 == 0 else i % 5 for i in range(rows)], dtype="Int64"),
            "truth": rng.random(rows) < 0.5,
            "maybe": pd.array([None, True, False] * (rows // 3), dtype="boolean"),
            "kind": pd.Categorical(rng.choice([10, 20, 30], rows)),
            "code": pd.Series(rng.choice(["01", "1", "02"], rows), dtype="str"),
            "arrow": pd.Series(rng.choice(["red", "green", None], rows), dtype="string[pyarrow]"),
            "mixed": pd.Series([None if i % 9 == 0 else i % 4 for i in range(rows)], dtype=object),
            "number of arrow": pd.Series(rng.integers(0, 9, rows), dtype="int32[pyarrow]"),
            "constant": 1.0,
        }
    )
    return made.set_axis(range(100, 100 + rows))


LABELS = np.where(np.nan_to_num(frame()["number"]) + frame()["truth"] > 0.5, "yes", "no")
AMOUNTS = np.nan_to_num(frame()["number"].to_numpy()) * 3 + 5


@pytest.fixture(scope="module")
def classifier() -> HtafClassifier:
    return HtafClassifier(**SMALL).fit(frame(), LABELS)


@pytest.fixture(scope="module")
def regressor() -> HtafRegressor:
    return HtafRegressor(**SMALL).fit(frame(), AMOUNTS)


def test_import_htaf_stays_quick() -> None:
    code = "import sys, htaf; print([m for m in ('torch', 'sklearn', 'pandas', 'numpy') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "[]"


# --- data frames -------------------------------------------------------------------------------------


def test_the_dtypes_of_a_frame_decide() -> None:
    table = from_frame(frame(), (LABELS == "yes").astype(np.int64), task="classification", classes=("no", "yes"))
    numbers = {name for name in table.features if table.features[name].dtype == np.float64}
    assert numbers == {"number", "whole", "mixed", "number of arrow"}
    assert {*table.features} - numbers == {"truth", "maybe", "kind", "code", "arrow"}
    assert {*table.features["code"]} == {"01", "1", "02"}, "text that reads as a number stays text"
    assert {*table.features["kind"]} == {"10", "20", "30"}
    assert int(table.features["whole"].isna().sum()) == 9
    assert any("'constant' dropped" in note for note in told(table.notes))


def test_a_frame_with_its_target_column_is_read_as_a_file(tmp_path: Path) -> None:
    rows = frame()[["number", "truth"]].assign(y=AMOUNTS)
    rows.loc[rows.index[:3], "y"] = np.nan
    rows.to_csv(tmp_path / "a.csv", index=False)
    read, given = load(tmp_path / "a.csv", target="y"), from_frame(rows, "y")
    assert read.fingerprint == given.fingerprint
    assert (given.task, len(given.target)) == ("regression", 57)
    with pytest.raises(DataError, match=r"target column 'yy' \(did you mean 'y'\?\)"):
        from_frame(rows, "yy")
    with pytest.raises(DataError, match="expected a task and 60 target values, got None and 60"):
        from_frame(rows, AMOUNTS)
    with pytest.raises(DataError, match="distinct column names, got 'y'"):
        from_frame(pd.concat([rows, rows[["y"]]], axis=1), "y")
    clash = from_frame(rows, AMOUNTS, task="regression", target_name="y")
    assert (clash.target_name, list(clash.features)) == ("y_", ["number", "truth", "y"])


@given(st.lists(st.integers(0, 4), min_size=3, max_size=80), st.floats(0.01, 0.9), st.integers(0, 2**31))
def test_parts_keep_every_class_in_training(codes: list[int], share: float, seed: int) -> None:
    _, target = np.unique(codes, return_inverse=True)
    table = Table("t", pd.DataFrame({"x": range(len(codes))}), target, "classification", "y", (), (), "")
    got = parts(table, share, seed)
    assert {*target[got.train]} == {*target}
    assert len(got.train) >= 3 or len(codes) - len(got.validation) == 2
    if np.array_equal(got.train, got.validation):
        assert len({*codes}) == len(codes)
    else:
        assert sorted([*got.train, *got.validation]) == list(range(len(codes)))
        assert 1 <= len(got.validation) <= max(1, round(share * len(codes)))
        counts, held = np.bincount(target), np.bincount(target[got.validation], minlength=len({*codes}))
        if len(got.validation) == round(share * len(codes)):
            assert np.all(held <= np.ceil(counts * share + 1)), "in proportion"


# --- fitted estimators -------------------------------------------------------------------------------


def test_attributes(classifier: HtafClassifier, regressor: HtafRegressor) -> None:
    assert classifier.classes_.tolist() == ["no", "yes"]
    assert classifier.n_features_in_ == 10
    assert list(classifier.feature_names_in_) == list(frame())
    assert classifier.n_iter_ == 4
    assert any("'constant' dropped" in note for note in classifier.notes_)
    assert classifier.score(frame(), LABELS) > 0.8
    assert regressor.score(frame(), AMOUNTS) > 0.1
    assert not hasattr(regressor, "classes_")
    with pytest.raises(NotFittedError):
        HtafClassifier().notes_  # noqa: B018


def test_predictions_are_those_of_the_run(classifier: HtafClassifier, regressor: HtafRegressor) -> None:
    expected = classifier.run_.predict(frame())
    assert classifier.predict(frame()).tolist() == expected["prediction"].tolist()
    probability = classifier.predict_proba(frame())
    np.testing.assert_allclose(probability, expected[["probability_no", "probability_yes"]], atol=1e-6)
    decision = classifier.decision_function(frame())
    np.testing.assert_allclose(1 / (1 + np.exp(-decision)), probability[:, 1], atol=1e-12)
    np.testing.assert_allclose(regressor.predict(frame()), regressor.run_.predict(frame())["prediction"], rtol=1e-6)


def test_rows_unlike_those_of_training_are_told_in_one_warning_once_an_estimator() -> None:
    rows = frame()[["whole", "kind", "code"]].assign(name=[f"n{i}" for i in range(60)], y=LABELS)
    model = fit_frame(rows, "y", **TINY)
    new = rows.head(3).assign(whole=9, kind=40, more=1)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        model.predict(rows)
        assert not caught, "a column of training is none that is new, be it left out"
        for number in (9, 11):
            model.predict(new.assign(whole=number))
    assert [str(one.message) for one in caught] == [
        "rows unlike those of training: column 'kind': 3 rows with categories not seen in training ('40'), all inputs "
        "0; values outside the range of training: whole (3 rows, up to 9 where training had 0 to 4); ignored, not used "
        "in training: 'more'"
    ]
    assert caught[0].filename == __file__


def test_rows_outside_the_range_of_training_are_told_where_a_random_part_has_no_such() -> None:
    rng = np.random.default_rng(0)
    rows = pd.DataFrame(rng.normal(size=(400, 20))).add_prefix("c")
    rows["day"] = pd.Timestamp("2020-01-01") + pd.to_timedelta(rng.integers(0, 1000, 400), "D")
    rows["y"] = rng.normal(size=400)
    train, held = rows[:300], rows[300:]
    model = htaf.fit(train, "y", **TINY)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.predict(held)
        model.predict(held.head(1).assign(c3=1.2 * train["c3"].max()))
    for unlike, said in (
        (held.assign(c3=held["c3"] + 2), r"c3 \(\d+ rows, up to"),  # many
        (held.head(1).assign(c3=6 * train["c3"].max()), r"c3 \(1 row, up to"),  # far
        (held.assign(day=held["day"] + pd.Timedelta(days=400)), r"day \(\d+ rows, up to 2023"),
    ):
        with pytest.warns(UserWarning, match="rows unlike those of training: values outside the range.*" + said):
            copy.deepcopy(model).predict(unlike)  # which has not warned yet


def test_pickle_and_copies_predict_the_same(classifier: HtafClassifier) -> None:
    data = pickle.dumps(classifier)
    assert not any(name in data for name in (b"torch.", b"htaf.models", b"_rebuild")), "tensors as safetensors"
    expected = classifier.predict_proba(frame())
    for other in (pickle.loads(data), copy.deepcopy(classifier)):
        np.testing.assert_array_equal(other.predict_proba(frame()), expected)
    assert pickle.loads(pickle.dumps(HtafClassifier(**TINY))).get_params()["hidden"] == (4,)


def test_a_saved_estimator_is_a_run_of_the_command(classifier: HtafClassifier, tmp_path: Path, htaf) -> None:
    folder = classifier.save(tmp_path / "run")
    assert {path.name for path in folder.iterdir()} >= {"record.json", "model.safetensors", "metrics.csv"}
    rows = frame()
    rows.to_parquet(tmp_path / "rows.parquet")
    code, _, error = htaf("predict", folder, tmp_path / "rows.parquet", "--out", tmp_path / "out.csv")
    assert code == 0, error
    assert pd.read_csv(tmp_path / "out.csv")["prediction"].tolist() == classifier.predict(frame()).tolist()
    again = load_estimator(folder)
    np.testing.assert_array_equal(again.predict_proba(rows), classifier.predict_proba(rows))
    assert again.n_features_in_ == 10
    fresh = clone(again).fit(frame(), LABELS)
    np.testing.assert_array_equal(fresh.predict_proba(rows), classifier.predict_proba(rows))
    assert classifier.save(folder) == folder, "the same training may be written again"
    with pytest.raises(RunError, match="holds another run: choose another one"):
        HtafClassifier(**TINY).fit(frame(), LABELS).save(folder)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").write_text("mine")
    with pytest.raises(RunError, match="holds other files: choose another one"):
        classifier.save(tmp_path / "other")
    with pytest.raises(RunError, match="does not say which rows it was trained on"):
        open_run(folder).part("validation", classifier_table())


def test_a_run_on_a_frame_is_packed_exported_and_explained_by_any_rows(
    classifier: HtafClassifier, tmp_path: Path, htaf
) -> None:
    folder, rows = classifier.save(tmp_path / "run"), frame().assign(target=LABELS)
    rows.to_parquet(tmp_path / "rows.parquet")
    data = ("--data", tmp_path / "rows.parquet")
    for words in (("pack",), ("export", "--to", "onnx"), ("explain",)):
        code, _, error = htaf(words[0], folder, *words[1:], *(("--out", tmp_path / words[0]) if words[1:] else ()))
        assert (code, "give --data" in error or "--out" in error) == (2, True), error
    assert htaf("pack", folder, *data, "--out", tmp_path / "run.packed")[0] == 0
    assert htaf("export", folder, *data, "--to", "onnx", "--out", tmp_path / "run.onnx")[0] == 0
    code, _, error = htaf("explain", folder, *data)
    assert code == 0, error
    assert "the rows of the training are not known" in error
    row = frame().head(1)
    found, told = reasons(classifier.run_, row, rows), reasons(open_run(folder), row, rows)
    assert found.columns.equals(told.columns)
    assert {*importance(classifier.run_, rows).columns.index} == {*frame()} - {"constant"}
    with pytest.raises(InspectionError, match="give data=, a data frame with the column 'target'"):
        importance(classifier.run_)
    with pytest.raises(DataError, match="expected a target column 'target'"):
        importance(classifier.run_, frame())
    with pytest.raises(DataError, match="expected distinct column names, got 'truth' more than once"):
        importance(classifier.run_, pd.concat([rows, rows["truth"]], axis=1))
    code, _, error = htaf("pack", folder, *data, "--part", "validation", "--out", tmp_path / "other.packed")
    assert (code, "expected part 'all', got 'validation'" in " ".join(error.split())) == (1, True), error


def test_columns_that_are_dropped_are_warned_of() -> None:
    rows = frame().assign(target=LABELS)
    rows["blanks"] = [" " if i == 3 else f"{i + 0.5}" for i in range(len(rows))]  # read as a file's: numbers
    rows["texts"] = pd.Series([None if i == 3 else f"{i + 0.5}" for i in range(len(rows))], dtype="str").to_numpy()
    with pytest.warns(UserWarning, match="'texts' dropped: text with .* numbers: pandas.to_numeric") as told:
        made = fit_frame(rows, "target", **TINY)
    assert [str(one.message) for one in told] == [note for note in made.notes_ if " dropped: " in note]
    assert "blanks" in made.feature_names_in_


def load_estimator(folder: Path) -> HtafClassifier:
    found = htaf.load(folder)
    assert isinstance(found, HtafClassifier)
    return found


def classifier_table() -> Table:
    codes = (LABELS == "yes").astype(np.int64)
    return from_frame(frame(), codes, task="classification", classes=("no", "yes"))


@pytest.mark.parametrize(
    ("texts", "labels"),
    [
        (("Good", "Bad"), ["Bad", "Good"]),
        (("0", "1"), [0, 1]),
        (("True", "False"), [False, True]),
        (("01", "1"), ["01", "1"]),
    ],
)
def test_a_run_of_the_command_is_loaded(texts: tuple[str, str], labels: list[object], tmp_path: Path) -> None:
    codes = np.arange(40) % 2
    rows = pd.DataFrame({"x": codes + np.linspace(0, 0.5, 40), "z": np.arange(40) % 3})
    table = from_frame(rows, codes, task="classification", classes=texts)
    run = fit(ready_recipe("mlp", "tabular-mlp").replace(**TINY), table, tmp_path / "run", seed=3)
    found = load_estimator(tmp_path / "run")
    assert found.classes_.tolist() == labels
    expected = run.predict(rows)
    assert found.predict(rows).tolist() == expected["prediction"].tolist()
    for place, label in enumerate(found.classes_):
        np.testing.assert_allclose(found.predict_proba(rows)[:, place], expected[f"probability_{label}"], atol=1e-6)
    assert (
        found.get_params()
        == HtafClassifier(recipe=ready_recipe("mlp", "tabular-mlp").replace(**TINY), random_state=3).get_params()
    )


def test_fit_and_load_in_a_line(tmp_path: Path) -> None:
    rows = frame().assign(y=(LABELS == "yes").astype(int), id=[f"row {i}" for i in range(60)])
    model = htaf.fit(rows, "y", **TINY)
    assert isinstance(model, HtafClassifier)
    assert model.classes_.tolist() == [0, 1]
    assert "id" not in model.feature_names_in_
    assert "y" not in model.feature_names_in_
    assert 0 <= model.score(rows, rows["y"]) <= 1
    model.save(tmp_path / "run")
    assert htaf.load(tmp_path / "run").predict(rows).tolist() == model.predict(rows).tolist()
    texts = htaf.fit(rows.assign(y=rows["y"].astype(str)), "y", **TINY)
    assert isinstance(texts, HtafClassifier)
    assert texts.classes_.tolist() == ["0", "1"], "text stays text"
    assert isinstance(htaf.fit(rows, "number", **TINY), HtafRegressor)


def test_recipes_and_what_they_do_not_read() -> None:
    recipe = ready_recipe("mlp", "tabular-mlp").replace(method="ste", slope="sigmoid")
    made = HtafClassifier(recipe=recipe, lr=np.float64(0.5))._recipe()
    assert (made.activation.method, made.optimization.lr, made.optimization.epochs) == ("ste", 0.5, 100)
    for bad, said in (
        ({"recipe": {"method": "ste", "alpha0": 2.0}}, "method ste does not read alpha0"),
        ({"recipe": {"droput": 0.1}}, r"family mlp does not read droput \(did you mean 'dropout'\?\)"),
        ({"recipe": {"epochs": "5"}}, "epochs must be an integer, got '5'"),
        ({"recipe": {"sample_weight": 1}}, "family mlp does not read sample_weight"),
        ({"epochs": 0}, "epochs must be >= 1, got 0"),
        ({"recipe": "tabular-member"}, r"got 'tabular-member' \(did you mean 'tabular-members'\?\)"),
        ({"recipe": ready_recipe("dhn", "quick")}, "expected a recipe of family mlp: .*DHN"),
        ({"validation_fraction": 1.0}, r"validation_fraction must lie in \(0, 1\), got 1.0"),
        ({"random_state": -1}, "random_state must be >= 0"),
    ):
        with pytest.raises(ValueError, match=said):
            HtafClassifier(**bad).fit(frame(), LABELS)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    "options",
    [
        {"recipe": {"leaves": 0, "members": 2, "thresholds": 8}, "hidden": (4,), "class_weight": "balanced"},
        {"recipe": ready_recipe("mlp", "tabular-members").replace(members=2, dropout=0.1), "text_as_missing": True},
        {"recipe": "tabular-mlp", "hidden": (4,), "threshold": "f1", "class_weight": {"no": 1.0, "yes": 2.5}},
        {"hidden": (4,), "batch_size": 16, "lr": 0.01, "validation_fraction": 0.2, "random_state": 3, "device": "cpu"},
    ],
)
def test_a_saved_estimator_has_its_recipe_again(options: dict[str, Any], tmp_path: Path) -> None:
    made = HtafClassifier(epochs=1, **options).fit(frame(), LABELS)
    for other in (pickle.loads(pickle.dumps(made)), clone(made)):
        assert other.get_params() == made.get_params()
        assert other._recipe() == made._recipe()
    loaded = load_estimator(made.save(tmp_path / "run"))
    assert loaded._recipe() == made._recipe()
    for name in ("validation_fraction", "text_as_missing", "random_state"):
        assert loaded.get_params()[name] == made.get_params()[name]


def test_an_argument_overrides_the_recipe() -> None:
    recipe = ready_recipe("mlp", "tabular-members")
    for base in ({"epochs": 3, "members": 8}, recipe.replace(epochs=3)):
        made = HtafClassifier(recipe=base, epochs=np.int64(5))._recipe()
        assert (made.optimization.epochs, made.network.values()["members"]) == (5, 8)


def test_fit_takes_fields_of_the_recipe_as_arguments() -> None:
    rows = frame()[["number", "truth"]].assign(y=LABELS)
    made = htaf.fit(rows, "y", **TINY, recipe={"members": 2}, leaves=0, thresholds=4)
    assert made.get_params()["recipe"] == {"leaves": 0, "members": 2, "thresholds": 4}
    assert made.run_.record["recipe"]["leaves"] == 0


def frames() -> pd.DataFrame:
    """Numbers, dates and texts."""
    rng = np.random.default_rng(0)
    when = pd.date_range("2020-01-01", periods=40)
    return pd.DataFrame({"x": rng.normal(size=40), "when": when, "c": rng.choice(["a", "b"], 40)})


def test_numbers_for_names_of_columns(tmp_path: Path) -> None:
    rows = pd.DataFrame(np.random.default_rng(0).normal(size=(40, 3))).assign(y=["a", "b"] * 20)
    model = htaf.fit(rows, "y", **TINY)
    predicted = model.predict(rows).tolist()
    assert model.predict(rows[[2, 1, 0]]).tolist() == predicted
    model.save(tmp_path / "run")
    assert load_estimator(tmp_path / "run").predict(rows).tolist() == predicted
    assert open_run(tmp_path / "run").predict(rows)["prediction"].tolist() == predicted
    assert reasons(model.run_, rows.head(1), rows).prediction == predicted[0]
    assert htaf.fit(rows.rename(columns={"y": 3}), 3, **TINY).predict(rows).tolist() == predicted
    spaced = rows.rename(columns={0: " 0", 1: "1 "})
    assert model.predict(spaced).tolist() == predicted
    with pytest.raises(DataError, match="expected the columns '0', '1' too, got only '2', 'y'"):
        model.predict(rows[[2, "y"]])


@pytest.mark.parametrize("kind", ["polars", "pyarrow", "dtypes of pyarrow"])
def test_frames_of_others(kind: str) -> None:
    rows = frames().assign(y=np.where(frames()["x"] > 0, "up", "down"))
    given: Any = rows.convert_dtypes(dtype_backend="pyarrow")
    if kind == "polars":
        given = pytest.importorskip("polars").from_pandas(rows)
    elif kind == "pyarrow":
        given = pyarrow.Table.from_pandas(rows)
    table, wanted = from_frame(given, "y"), from_frame(rows, "y")
    assert (table.fingerprint, table.notes) == (wanted.fingerprint, wanted.notes)
    assert table.features.dtypes.map(str).tolist() == ["float64", "datetime64[us]", "object"]
    if kind == "pyarrow":
        model = htaf.fit(given, "y", **TINY)
        expected = model.predict(rows).tolist()
        assert model.predict(given).tolist() == expected
        assert model.run_.predict(given)["prediction"].tolist() == expected
        features = given.drop(["y"])
        assert len(HtafClassifier(**TINY).fit(features, given["y"]).predict(features)) == 40


def test_labels_that_are_dates_come_back_as_dates(tmp_path: Path) -> None:
    rows = frames()[["x", "c"]]
    days = pd.Series(np.where(rows["x"] > 0, "2020-01-01", "2021-05-05T03:00")).astype("datetime64[s]")
    for place, model in enumerate((htaf.fit(rows.assign(y=days), "y", **TINY), HtafClassifier(**TINY).fit(rows, days))):
        assert isinstance(model, HtafClassifier)
        assert model.classes_.dtype.kind == "M"
        assert [*model.classes_] == sorted({*days.to_numpy()})
        model.save(tmp_path / str(place))
        again = load_estimator(tmp_path / str(place)).predict(rows)
        assert again.dtype == model.classes_.dtype
        assert again.tolist() == model.predict(rows).tolist()
    fine = days.astype("datetime64[us]").where(rows["x"] > 0, pd.Timestamp("2021-05-05T03:00:00.5"))
    for others in (days.dt.tz_localize("UTC"), fine):
        model = htaf.fit(rows.assign(y=others), "y", **TINY)
        assert isinstance(model, HtafClassifier)
        assert [*model.classes_] == sorted({*others.dt.tz_localize(None).to_numpy()})


def test_columns_that_were_dropped_are_neither_asked_for_nor_refused(tmp_path: Path, htaf) -> None:
    rng = np.random.default_rng(0)
    rows = pd.DataFrame({"x": rng.normal(size=60), "z": rng.normal(size=60), "name": [f"n{i}" for i in range(60)]})
    rows = rows.assign(left=1.0, y=np.where(rows["x"] > 0, "up", "down"))
    made = fit_frame(rows, "y", **TINY)
    made.save(tmp_path / "saved")
    rows.to_csv(tmp_path / "rows.csv", index=False)
    flags = ("--target", "y", "--id", "name", "--exclude", "z", "--hidden", "4", "--epochs", "1")
    words = ("--data", tmp_path / "rows.csv", "--out", tmp_path / "run", *flags)
    assert htaf("train", "tabular", *words, "--baselines", "False")[0] == 0
    for model, read in ((made, ["x", "z"]), (load_estimator(tmp_path / "saved"), ["x", "z"]),
                        (load_estimator(tmp_path / "run"), ["x"])):  # fmt: skip
        assert [*model.feature_names_in_] == read
        assert model.predict(rows[read]).tolist() == model.predict(rows).tolist()
        with pytest.raises(DataError, match="expected the columns 'x' too, got only 'z', 'name'"):
            model.predict(rows.drop(columns="x"))
        assert pickle.loads(pickle.dumps(model)).predict(rows).tolist() == model.predict(rows).tolist()


def test_a_column_that_does_not_vary_in_training_is_not_asked_for(tmp_path: Path) -> None:
    codes = np.arange(40) % 2
    rows = pd.DataFrame({"x": codes + np.linspace(0, 0.5, 40), "late": 0.0})
    table = from_frame(rows.assign(late=np.arange(40) == 39), codes, task="classification", classes=("a", "b"))
    parts_of = Split(np.arange(30), np.arange(30, 35), np.arange(35, 40))
    fit(ready_recipe("mlp", "tabular-mlp").replace(**TINY), table, tmp_path / "run", split=parts_of)
    model = load_estimator(tmp_path / "run")
    assert [*model.feature_names_in_] == ["x"]
    assert len(model.predict(rows[["x"]])) == 40


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("frame", "options", "message"),
    [
        ("customers.csv", {}, "got 'customers.csv': read it first"),
        ([[1, 2]], {}, "expected a pandas data frame, got list"),
        (pd.DataFrame({"a": [1j] * 12, "t": ["x", "y"] * 6}), {}, "'a': expected real numbers"),
        (None, {"epoch": 5}, r"^HtafClassifier got an unexpected keyword argument 'epoch' \(did you mean 'epochs'\?\)"),
        (None, {"recipe": "tabular-mlp", "dropout": "much"}, "dropout must be a number, got 'much'"),
        (None, {"recipe": "tabular-mpl", "dropout": 0.1}, "tabular-mlp"),
        (None, {"dropout": "much"}, "dropout must be a number, got 'much'"),
        (None, {"hidden": 16}, "hidden must be several numbers, got 16"),
        (None, {"epochs": "5"}, "must be an integer, got '5'"),
        (None, {"target": ("a", "t")}, "name of the target column as text"),
    ],
)
def test_what_fit_refuses(frame, options: dict, message: str) -> None:
    frame = pd.DataFrame({"a": range(12), "t": ["x", "y"] * 6}) if frame is None else frame
    with pytest.raises((TypeError, ValueError, DataError), match=message):
        htaf.fit(**{"frame": frame, "target": "t"} | options)


def test_texts_in_the_target_of_a_regression_are_refused_but_read_in_a_frame() -> None:
    rows, texts = pd.DataFrame({"a": range(24)}), ["1", "1,352"] * 12
    for y in (texts, np.array(texts), pd.Series(texts)):
        with pytest.raises(ValueError, match="1,352"):
            HtafRegressor(**TINY).fit(rows, y)
    assert len(htaf.fit(rows.assign(y=texts), "y", task="regression", **TINY).predict(rows)) == 24


@pytest.mark.usefixtures("unchecked")
@pytest.mark.filterwarnings("error")
def test_figures_of_an_estimator_are_of_the_rows_that_it_is_given() -> None:
    rows = pd.DataFrame(np.random.default_rng(0).normal(size=(160, 2)), columns=["a", "b"])
    rows["y"] = np.where(rows["a"] + rows["b"] > 0, "yes", "no")
    train, held = rows[:120], rows[120:]
    model = htaf.fit(train, "y", **TINY)
    assert importance(model, held).rows == 40
    with pytest.raises(InspectionError, match="expected a run or a fitted HtafClassifier or HtafRegressor, got str"):
        importance("model")  # pyright: ignore[reportArgumentType]
    with pytest.raises(InspectionError, match="got HtafClassifier, not fitted"):
        importance(HtafClassifier(), held)
    for column in ("a", "y"):  # not read as missing values, nor as no rows
        with pytest.raises(DataError, match=f"'{column}'"):
            importance(model, held.drop(columns=column))


def test_small_data() -> None:
    X, y = np.array([[0.0], [1.0], [2.0]]), np.array([0, 1, 1])
    assert HtafClassifier(**TINY).fit(X, y).predict(X).shape == (3,)
    assert HtafClassifier(**TINY).fit(X, [0, 1, 2]).predict_proba(X).shape == (3, 3)
    assert HtafRegressor(**TINY).fit(X, X[:, 0]).predict(X).shape == (3,)
    with pytest.raises(ValueError, match=r"with 2 sample\(s\) .* minimum of 3 is required by HtafRegressor"):
        HtafRegressor(**TINY).fit(X[:2], y[:2])
    with pytest.raises(ValueError, match="needs at least 2 classes, got 1 class"):
        HtafClassifier(**TINY).fit(X, y * 0)
    with pytest.raises(ValueError, match="Unknown label type: continuous"):
        HtafClassifier(**TINY).fit(X, y + 0.5)
    with pytest.raises(ValueError, match=r"Found array with 0 sample\(s\)"):
        HtafClassifier(**TINY).fit(frame().iloc[:0], [])


def test_labels_that_a_file_would_make_one_are_told() -> None:
    labels = ["Yes", "no", " yes", "yes", "m", "M"] * 4
    rows = pd.DataFrame({"a": range(24)})
    said = r"target 'y': each spelling is a class of its own: ' yes' = 'Yes' = 'yes'\. If they are one"
    with pytest.warns(UserWarning, match=said):
        model = HtafClassifier(**TINY).fit(rows, pd.Series(labels, name="y"))
    assert len(model.classes_) == 6
    assert any("each spelling is a class of its own" in note for note in model.notes_)
    read = htaf.fit(rows.assign(y=labels), "y", **TINY)
    assert read.classes_.tolist() == ["M", "m", "no", "yes"]
    assert "column 'y': one category each: 'yes' = 'Yes'" in read.notes_
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*class of its own")
        HtafClassifier(**TINY).fit(rows, ["m", "M", "no", "yes"] * 6)


def test_arrays_of_text_and_lists() -> None:
    X = [["red", "1.5"], ["green", "2.5"], ["red", "3"], ["green", "4"]] * 3
    model = HtafRegressor(**TINY).fit(np.array(X), range(12))
    assert [column.kind for column in model.run_.preprocessor().columns] == ["category", "number"]
    assert model.predict(X).shape == (12,)
    assert not hasattr(model, "feature_names_in_")


def test_texts_of_an_array_are_read_as_in_the_training() -> None:
    X = np.array([["01", "1.5"], ["a", "2.5"], ["02", "3"], ["a", "4"]] * 3)
    model = HtafRegressor(**TINY).fit(X, [5, 1, 9, 1] * 3)
    np.testing.assert_array_equal(model.predict(X)[[0, 2]], model.predict(X[[0, 2]]))  # here all are numbers


class LazyFrame:
    """As that of Polars: it has columns, and no rows yet."""

    columns = ("a",)

    def collect(self) -> pd.DataFrame:
        return pd.DataFrame({"a": [1.0]})


def test_a_query_that_is_not_run_is_told() -> None:
    with pytest.raises(ValueError, match=r"got a LazyFrame, which is yet to be computed: call its collect\(\)"):
        in_pandas(LazyFrame())


def test_sizes_of_numpy_are_numbers() -> None:
    assert type(HtafClassifier(hidden=(np.int64(8),))._recipe().flat()["hidden"][0]) is int
