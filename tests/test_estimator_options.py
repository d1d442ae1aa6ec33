"""What `fit` is told: rows to validate on, when to stop; and what a fitted estimator says of its columns."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from sklearn.model_selection import KFold, cross_val_predict

import htaf
from htaf import HtafClassifier, HtafRegressor
from htaf._ground.errors import said_by_command
from htaf.data.notes import Note
from htaf.data.reading import DataError
from htaf.tables.estimators import _fields
from htaf.training.families.mlp import tabular_members

SMALL: dict[str, Any] = {"hidden": (16,), "epochs": 3, "lr": 0.03, "batch_size": 32}
ROWS, TRAINED = 120, 90
RNG = np.random.default_rng(0)
X = pd.DataFrame({"a": RNG.normal(size=ROWS), "b": RNG.normal(size=ROWS), "kind": RNG.choice(list("xyz"), ROWS)})
Y = np.where(X["a"] + (X["kind"] == "x") + RNG.normal(size=ROWS) / 3 > 0, "yes", "no")
AMOUNT = X["a"] * 3 + RNG.normal(size=ROWS)
FRAME = X.assign(y=Y)


def classifier(**options: Any) -> HtafClassifier:
    return HtafClassifier(**SMALL | options)


def held() -> tuple[pd.DataFrame, Any]:
    return X[TRAINED:], Y[TRAINED:]


@pytest.fixture(scope="module")
def validated() -> HtafClassifier:
    return classifier().fit(X[:TRAINED], Y[:TRAINED], eval_set=held())


# --- rows to validate on -----------------------------------------------------------------------------


def test_an_eval_set_chooses_the_epoch_and_is_not_trained_on(validated: HtafClassifier) -> None:
    assert validated.run_.record["rows"] == {"train": TRAINED, "validation": ROWS - TRAINED}
    found = validated.run_.record["metrics"]["exact"]["validation"]["accuracy"]
    assert found == pytest.approx(validated.score(*held()))
    turned = (held()[0].iloc[:, ::-1].assign(more=1), pd.Series(Y[TRAINED:]))
    again = classifier().fit(X[:TRAINED], Y[:TRAINED], eval_set=turned)
    np.testing.assert_array_equal(again.predict_proba(X), validated.predict_proba(X))
    other = classifier(epochs=1).fit(X[:TRAINED], Y[:TRAINED], eval_set=(held()[0].assign(b=1e6), held()[1]))
    plain = classifier(epochs=1).fit(X[:TRAINED], Y[:TRAINED], eval_set=held())
    columns = [one.run_.preprocessor().to_json()["columns"] for one in (other, plain)]
    assert columns[0] == columns[1], "no range is learned from them"


def test_an_eval_set_of_arrays_numbers_and_categories() -> None:
    array = X[["a", "b"]].to_numpy()
    made = HtafRegressor(**SMALL).fit(array[:TRAINED], AMOUNT[:TRAINED], eval_set=(array[TRAINED:], AMOUNT[TRAINED:]))
    assert made.run_.record["rows"]["validation"] == ROWS - TRAINED
    kinds = X.assign(kind=X["kind"].astype("category"))
    first, last = kinds[:TRAINED], kinds[TRAINED:].assign(kind=pd.Categorical(["new"] * (ROWS - TRAINED)))
    assert classifier(epochs=1).fit(first, Y[:TRAINED], eval_set=(last, Y[TRAINED:])).n_iter_ == 1


def of_eval(change: Callable[[pd.DataFrame, Any], Any]) -> Callable[[], Any]:
    return lambda: classifier().fit(X[:TRAINED], Y[:TRAINED], eval_set=change(*held()))


BAD: dict[str, tuple[Callable[[], Any], str]] = {
    "a column less": (of_eval(lambda x, y: (x.drop(columns="b"), y)), "eval_set: .*yet now missing:\n- b"),
    "labels of another task": (of_eval(lambda x, y: (x, X["a"][TRAINED:])), "eval_set: expected labels of y, 'no', "),
    "a label that is new": (of_eval(lambda x, y: (x, ["maybe", *y[1:]])), "got 'maybe' too"),
    "no label": (of_eval(lambda x, y: (x, [None, *y[1:]])), r"eval_set: Input y contains NaN: .* row 1 "),
    "empty": (of_eval(lambda x, y: (x[:0], y[:0])), "eval_set: expected at least one row to validate on, got none"),
    "another length": (of_eval(lambda x, y: (x, y[1:])), r"eval_set: .*inconsistent numbers of samples: \[30, 29\]"),
    "no pair": (of_eval(lambda x, y: x), r"expected a pair \(X, y\) of validation rows, got DataFrame"),
    "a word": (
        of_eval(lambda x, y: (x.assign(a=["lots", *"1" * 29]), y)),
        "eval_set, column 'a', row 1: expected float64 as in X, got",
    ),
    "infinite": (
        of_eval(lambda x, y: (x.assign(b=np.inf), y)),
        "eval_set, column 'b', row 1: expected a finite number",
    ),
    "text in a regression": (
        lambda: HtafRegressor(**SMALL).fit(X[:TRAINED], AMOUNT[:TRAINED], eval_set=held()),
        "eval_set: could not convert string to float",
    ),
    "no such time": (
        lambda: htaf.fit(FRAME, "y", time="aa", **SMALL),
        r"expected a column \(did you mean 'a'\?\), got",
    ),
    "text as time": (lambda: htaf.fit(FRAME, "y", time="kind", **SMALL), "time: expected a column of dates or numbers"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_eval_set_is_refused_by_name(name: str) -> None:
    call, said = BAD[name]
    with pytest.raises(ValueError, match=f"(?s){said}"):
        call()


def test_a_frame_is_validated_on_its_last_rows() -> None:
    dated = FRAME.assign(day=pd.date_range("2024-01-01", periods=ROWS))
    with pytest.warns(UserWarning, match=r"column 'day': 120 different dates.*htaf.fit\(..., time='day'\)"):
        drawn = htaf.fit(dated, "y", **SMALL)
    last = htaf.fit(dated.sample(frac=1, random_state=0), "y", time="day", validation_fraction=0.25, **SMALL)
    assert drawn.run_.record["rows"]["validation"] == 12
    assert last.run_.record["rows"] == {"train": 90, "validation": 30}
    assert not any("split at random" in note for note in last.notes_)
    found = last.run_.record["metrics"]["exact"]["validation"]["accuracy"]
    assert found == pytest.approx(last.score(dated[TRAINED:], Y[TRAINED:])), "on the last 30 days"


def test_patience_ends_a_training() -> None:
    fields = {"patience": 2, "sharpen_fraction": 0.1}
    assert classifier(epochs=60, lr=0.5, recipe=fields).fit(X, Y).n_iter_ < 60


WORDS = [*HtafClassifier._get_param_names(), *_fields()]


@given(word=st.sampled_from(WORDS), edit=st.sampled_from([str.upper, "{}s".format, "my_{}".format]))
def test_a_hint_names_an_argument_or_a_field(word: str, edit: Callable[[str], str]) -> None:
    wrong = edit(word)
    assume(wrong not in WORDS)
    for call in (lambda: HtafClassifier(**{wrong: 1}), lambda: HtafClassifier(recipe={wrong: 1})._recipe()):
        with pytest.raises((TypeError, ValueError)) as refused:
            call()
        found = re.search(r"did you mean '(\w+)'", str(refused.value))
        assert found is None or found[1] in WORDS


def test_hints_of_columns_leave_out_the_target() -> None:
    for call in (
        lambda: htaf.fit(FRAME.rename(columns={"y": "aim"}), "aim", time="aimed", **SMALL),
        lambda: htaf.fit(FRAME, "y", time="y", **SMALL),
    ):
        with pytest.raises(DataError, match=r"time: expected a(nother)? column") as refused:
            call()
        assert "did you mean" not in str(refused.value)


# --- rows to predict ---------------------------------------------------------------------------------

FRAMES: dict[str, Callable[[pd.DataFrame], Any]] = {
    "in another order": lambda rows: rows.iloc[:, ::-1],
    "one more": lambda rows: rows.assign(more="x"),
    "one more, twice": lambda rows: pd.concat([rows, rows.assign(m=1)[["m"]], rows.assign(m=2)[["m"]]], axis=1),
    "other labels of rows": lambda rows: rows.set_axis(rows.index[::-1]),
}


@pytest.fixture(scope="module")
def by_frame() -> HtafClassifier:
    return htaf.fit(FRAME, "y", **SMALL)


@pytest.mark.parametrize("name", FRAMES)
def test_columns_of_rows_to_predict_are_found_by_name(
    validated: HtafClassifier, by_frame: HtafClassifier, name: str
) -> None:
    for model in (validated, by_frame):
        given = FRAMES[name](X)
        before = given.copy()
        np.testing.assert_array_equal(model.predict(given), model.predict(X))
        pd.testing.assert_frame_equal(given, before)


def test_rows_to_predict_without_a_column_or_with_one_twice_are_refused(
    validated: HtafClassifier, by_frame: HtafClassifier
) -> None:
    for model, missing in ((validated, "yet now missing:\n- b"), (by_frame, "expected the columns 'b' too, got only")):
        with pytest.raises(ValueError, match=missing):
            model.predict(X.drop(columns="b"))
        with pytest.raises(DataError, match="expected each column once, got 'a' more than once"):
            model.predict(pd.concat([X, X[["a"]]], axis=1))
        assert model.predict(X[:0]).shape == (0,)
    with pytest.raises(DataError, match="eval_set: expected each column once, got 'a' more than once"):
        of_eval(lambda x, y: (pd.concat([x, x[["a"]]], axis=1), y))()
    with pytest.raises(DataError, match="expected each column once, got 'a' more than once"):
        classifier().fit(pd.concat([X, X[["a"]]], axis=1), Y)


def test_a_class_that_is_missing_from_a_fold_is_told_by_scikit_learn() -> None:
    few = np.array(["rare", "rare", *Y[2:]])
    with pytest.warns(RuntimeWarning, match="Number of classes in training fold"):
        found = cross_val_predict(classifier(epochs=1), X, few, cv=KFold(3), method="predict_proba")
    assert found.shape == (ROWS, 3)
    np.testing.assert_array_equal(found[:40, sorted({*few}).index("rare")], 0)


@pytest.mark.parametrize(
    ("note", "flag", "python"),
    [
        (Note("rows in time", "day", 90), "--time 'day'", "htaf.fit(..., time='day')"),
        (Note("trained on", count=5, values=(9,)), "--data", "other data"),
        (Note("never predicted", "y", 9, (("a",), (("threshold", "f1"),))), "--threshold f1", "threshold='f1'"),
    ],
)
def test_flags_are_named_to_those_alone_who_gave_a_command(note: Note, flag: str, python: str) -> None:
    assert python in str(note)
    assert "--" not in str(note)
    with said_by_command():
        assert flag in str(note)


def test_warnings_point_at_the_line_that_called() -> None:
    numbers = FRAME.assign(a=[*X["a"][1:], "lots"], empty=np.nan)
    calls: tuple[Callable[[], Any], ...] = (
        lambda: htaf.fit(numbers, "y", text_as_missing=True, **SMALL),
        lambda: classifier(text_as_missing=True).fit(numbers.drop(columns="y"), Y),
        lambda: classifier(text_as_missing=True, epochs=1).fit(X, Y).predict(X.assign(a="lots")),
        lambda: classifier(text_as_missing=True, epochs=1).fit(X, Y).score(X.assign(b="lots"), Y),
    )
    for call in calls:
        with pytest.warns(UserWarning, match="read as missing") as told:
            call()
        places = {(one.filename, one.lineno) for one in told if "read as missing" in str(one.message)}
        assert len(places) == 1
        (file, line) = places.pop()
        if file != __file__:  # the mixin's own call of predict
            assert file.endswith("sklearn/base.py"), (file, line)


def test_many_columns_have_fewer_thresholds_each_and_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    network = tabular_members().network
    for columns, most in ((341, 48), (1_000, 16), (10_000, 1), (20_000, 1)):
        inputs = {"in_features": columns, "levels": [300] * columns, "discrete": []}
        assert {*network.model(inputs, 2, {})["thresholds"]} == {most}
        assert bool(network.reads(inputs)) == (most < 48)
    inputs = {"in_features": 200, "rows": 210, "levels": [210] * 200, "discrete": []}
    assert {*network.model(inputs, 2, {})["thresholds"]} == {16}
    (told,) = network.reads(inputs)
    assert "bits are at most 3,360 in all, 16 for each of 210 training rows, or one each" in told
    flags = {"in_features": 20_000, "levels": [2] * 20_000, "discrete": []}
    assert network.reads(flags) == (), "a bit each is all there is"
    monkeypatch.setattr("htaf.training.families.mlp.MOST_BITS", 50)
    made = classifier(recipe="tabular-members", hidden=(4,), epochs=1).fit(X, Y)
    assert any(note.startswith("5 inputs: at most 23 thresholds each instead of 48") for note in made.notes_)
    assert made.run_.record["model"]["thresholds"] == [23, 23, 1, 1, 1]
