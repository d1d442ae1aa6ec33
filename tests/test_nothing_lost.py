"""What a column says by its blanks, its units or its dates reaches the network, and what is wrong with it is said."""

from __future__ import annotations

import inspect
import json
import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import roc_auc_score

from htaf import HtafClassifier, HtafRegressor
from htaf.data.cells import to_number, unit_of
from htaf.data.notes import Note, to_record, told
from htaf.data.preprocess import Preprocessor, learn_target, read_values
from htaf.data.reading import DataError
from htaf.data.tabular import frame_like, from_frame, load
from htaf.program.export import raw_columns
from htaf.sharing import load as read_estimator
from htaf.tables.estimators import fit as htaf_fit
from htaf.tables.report.contents import fit_baselines, left_out, read_as
from htaf.training.problems import divided_notes
from htaf.training.runs import open_run

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
    inputs, notes = found.transform_with_notes(frame)
    assert inputs[:, 1].tolist() == frame["ended"].isna().astype(float).tolist()
    assert [note.kind for note in notes if note.column == "income"] == ["missing"], "an input of its own, no median"
    assert Preprocessor.from_json(found.to_json()).feature_names == found.feature_names
    assert "one input for missing" in read_as(found.columns[1])


def test_blanks_by_chance_are_no_inputs() -> None:
    rng = np.random.default_rng(0)
    values = np.where(rng.random((4_000, 40)) < 0.3, np.nan, rng.normal(size=(4_000, 40)))
    frame, y = pd.DataFrame(values).add_prefix("c"), rng.integers(0, 100, 4_000)
    made = Preprocessor.fit(frame, y, task="classification", classes=[f"k{code}" for code in range(100)])
    assert not [column.name for column in made.columns if column.missing]


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
        HtafClassifier(recipe="tabular-members", **TINY, lr=1e9).fit(frame, np.arange(200) % 2)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        HtafClassifier(**QUICK).fit(frame, frame["x"] > np.random.default_rng(1).normal(size=200))


@pytest.fixture(scope="module")
def people(tmp_path_factory: pytest.TempPathFactory) -> tuple[HtafClassifier, Path]:
    """A model of ages and dates, and its run folder."""
    frame = ages()
    model = HtafClassifier(**TINY).fit(frame.drop(columns="y"), frame["y"])
    return model, model.save(tmp_path_factory.mktemp("people") / "run")


def ages(rows: int = 100) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    age = rng.integers(18, 90, rows).astype(float)
    seen: Any = pd.to_datetime("2020-01-01") + pd.to_timedelta(rng.integers(0, 700, rows), unit="D")
    return pd.DataFrame({"age": age, "seen": seen, "y": (age > 50).astype(int)})


def test_a_word_among_numbers_is_missing_where_that_is_asked(
    people: tuple[HtafClassifier, Path], tmp_path: Path, htaf
) -> None:
    model, run = people
    words, blank = (ages(6).drop(columns="y").astype(object) for _ in range(2))
    words.loc[1, "age"], words.loc[2, "seen"] = "unknown", "soon"
    blank.loc[1, "age"], blank.loc[2, "seen"] = None, None
    expected = model.predict_proba(blank)
    with pytest.raises(DataError, match="expected a number, got 'unknown'"):
        model.predict_proba(words)
    model.set_params(text_as_missing=True)
    try:
        with pytest.warns(UserWarning, match="read as missing") as told:
            assert (model.predict_proba(words) == expected).all()
        assert len(told) == 1, "of both columns"
    finally:
        model.set_params(text_as_missing=False)
    found, notes = model.run_.predict_with_notes(words, text_as_missing=True)
    assert found["prediction"].tolist() == model.run_.predict(blank)["prediction"].tolist()
    assert [note.values for note in notes if note.kind == "text as missing"] == [("unknown",), ("soon",)]
    words.to_csv(tmp_path / "words.csv", index=False)
    code, _, err = htaf("predict", run, tmp_path / "words.csv")
    assert code == 1
    assert "got 'unknown'; --text-as-missing would lose" in err
    code, out, err = htaf("predict", run, tmp_path / "words.csv", "--text-as-missing")
    assert code == 0
    assert "read as missing ('unknown')" in err
    assert len(out.splitlines()) == 7


def test_a_column_of_numbers_that_becomes_a_category_is_warned_of() -> None:
    frame = ages()
    frame["age"] = (frame["age"] // 10).astype(int).astype(object)
    frame.loc[5, "age"] = "unknown"
    frame["age"] = frame["age"].astype(str).astype(object)
    with pytest.warns(UserWarning, match=r"'age' mixes 99 numbers with 1 text \(first 'unknown', row 6\)"):
        HtafClassifier(**TINY).fit(frame[["age", "seen"]], frame["y"])


@pytest.mark.parametrize("task", ["regression", "classification"])
def test_a_column_that_gives_the_target_away_is_named_before_the_training(task: str, tmp_path: Path, htaf) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=300)
    y = np.exp(3 * (x + rng.normal(size=300)))
    if task == "classification":
        y = (y > np.quantile(y, 0.9)).astype(int)
    paid = y * 1.19 + rng.normal(size=300) * 1e-9
    frame = pd.DataFrame({"x": x, "paid": paid, "text": [f"t{v}" for v in np.argsort(np.argsort(y)) // 100], "y": y})
    found = divided_notes(from_frame(frame, "y"), 0, "random")
    noted = {note.column: note.kind for note in found if isinstance(note, Note)}
    assert noted == {"paid": "gives the target away"}
    with pytest.warns(UserWarning, match="WARNING: column 'paid' alone predicts the target 'y' almost perfectly"):
        htaf_fit(frame, "y", **TINY)
    frame.to_csv(tmp_path / "t.csv", index=False)
    words = ("--epochs", 1, "--hidden", 4, "--baselines", "False", "--out", tmp_path / "run")
    code, _, err = htaf("train", "tabular", "--data", tmp_path / "t.csv", "--target", "y", *words)
    assert code == 0
    assert err.count("column 'paid' alone predicts") == 1


def test_dates_and_parts_drawn_by_chance() -> None:
    """Each row has a date of its own: the test rows lie between training rows."""
    rng = np.random.default_rng(0)
    days: Any = pd.to_datetime("2020-01-01") + pd.to_timedelta(np.arange(200), unit="D")
    frame = pd.DataFrame({"day": days, "x": rng.normal(size=200), "y": rng.normal(size=200)})
    table = from_frame(frame, "y")
    said = told(divided_notes(table, 0, "random"))
    assert any("time='day') measures it" in line for line in said), said
    frame["day"] = np.repeat(days[:20], 10)
    assert not told(divided_notes(from_frame(frame, "y"), 0, "random"))


@pytest.mark.parametrize("kind", [HtafClassifier, HtafRegressor])
@pytest.mark.parametrize("missing", [None, np.nan])
def test_missing_labels_are_named_by_the_first_row(kind: Any, missing: Any) -> None:
    y = (np.arange(40) % 2).astype(object)
    y[[3, 7]] = missing
    with pytest.raises(DataError, match=r"got none in 2, the first is row 4 \(from 1\): leave these rows out"):
        kind(**TINY).fit(pd.DataFrame({"x": np.arange(40.0)}), y)
    assert "epochs" in inspect.signature(kind).parameters


def test_a_class_that_is_not_in_training_is_named() -> None:
    with pytest.raises(DataError, match=r"got 'no' only \('yes' has its rows in other parts\).*stratified"):
        learn_target(np.zeros(30, dtype=np.int64), "classification", "y", ("no", "yes"), [])


def test_dates_among_junk_are_said() -> None:
    days = [f"2012-01-{1 + row % 28:0>2}" if row % 7 else "n.n." for row in range(100)]
    table = from_frame(pd.DataFrame({"day": days, "x": np.arange(100.0), "y": np.arange(100) % 2}), "y")
    (note,) = [note for note in table.notes if note.column == "day"]
    assert str(note) == (
        "column 'day' mixes 85 dates with 15 texts (first 'n.n.', row 1): read as a category; correct "
        "them or leave them blank to have dates"
    )


def test_the_report_lists_every_column_left_out(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"x": rng.normal(size=60), "same": 1, "none": np.nan, "name": [f"n{i}" for i in range(60)]})
    frame = frame.assign(late=0.0, row=range(60), key=range(60), y=rng.integers(0, 2, 60))
    frame.to_csv(tmp_path / "t.csv")  # with the index as a column without a name
    table = load(tmp_path / "t.csv", target="y", exclude=["row"], ids=["key"])
    source = {"exclude": ["row"], "ids": ["key"]}
    record = {"notes": to_record(table.notes), "source": source, "data": {}}
    assert {one["name"]: one["why"] for one in left_out(record)} == {
        "row": "excluded",
        "key": "names the rows",
        "column 1": "has no name",
        "same": "one value in every row",
        "late": "one value in every row",
        "none": "all values are missing",
        "name": "text with 60 distinct values in 60 rows",
    }


@pytest.mark.parametrize(
    ("texts", "unit", "first"),
    [
        (["$336.46", "$1,234.50", "$7"], "$#", 336.46),
        (["-$5", "$-6", "$7"], "$#", -5),
        (["-$-5"], None, 0),
        (["--5 kg"], None, 0),
        (["- 5 kg"], None, 0),
        (["12 %", "3.5%", "-1 %"], "#%", 12),
        (["5 kg", "0.5kg", ".5 kg"], "#kg", 5),
        (["100 km/h", "20 km/h"], "#km/h", 100),
        (["US$ 5", "US$1'000"], "US$#", 5),
        (["5 kg", "5 lb"], None, 0),
        (["5 kg", "5"], None, 0),
        (["1", "2"], None, 0),
        (["flat 7", "flat 8"], None, 0),
        (["12:30", "13:30"], "#:#", 12.5),
        (["75-AB", "76-AB"], None, 0),  # the minus is none
        (["5 kilograms", "6 kilograms"], None, 0),
        ([None], None, 0),
    ],
)
def test_units_that_all_texts_have(texts: list[str | None], unit: str | None, first: float) -> None:
    assert unit_of(texts) == unit
    if unit is not None:
        values, wrong = to_number(pd.Series(texts, dtype=object), unit)
        assert not wrong.any()
        assert values[0] == first


def test_numbers_with_a_unit_are_numbers_everywhere(tmp_path: Path) -> None:
    """In training, prediction, rules, ONNX; another unit is refused."""
    rng = np.random.default_rng(0)
    weight = rng.integers(1, 100, 120)
    frame = pd.DataFrame({"weight": [f"{one} kg" for one in weight], "z": rng.normal(size=120)})
    frame["y"] = (weight + rng.normal(size=120) * 20 > 50).astype(int)
    table = from_frame(frame, "y")
    assert "column 'weight': numbers in '#kg', '85 kg' read as 85; # is the number" in told(table.notes)
    made = Preprocessor.from_json(json.loads(json.dumps(table.fit_preprocessor(np.arange(120)).to_json())))
    expected = made.transform(table.features)
    inputs, notes = made.transform_with_notes(frame)
    assert inputs.tobytes() == expected.tobytes()
    assert [note.kind for note in notes] == ["ignored target"]
    plain = frame.assign(weight=[*frame["weight"][:100], *map(str, weight[100:])])
    inputs, notes = made.transform_with_notes(plain)
    assert inputs.tobytes() == expected.tobytes()
    assert "column 'weight': 20 rows without the unit '#kg' of the training, read as if it were there" in told(notes)
    with pytest.raises(DataError, match=r"expected a number, got '5 lb': write numbers as 1234\.5kg"):
        made.transform(frame.assign(weight="5 lb"))
    assert read_values(made.columns[0], frame["weight"]).tolist() == weight.tolist()
    assert "in '#kg'" in read_as(made.columns[0])
    assert raw_columns(frame, [{"name": "weight", "dtype": "float64", "unit": "#kg"}])["weight"][0] == weight[0]


def test_durations_are_refused() -> None:
    waited: Any = pd.to_timedelta(range(60), unit="min")
    with pytest.raises(DataError, match=r"got durations: frame\['waited'\]\.dt\.total_seconds\(\) makes numbers"):
        from_frame(pd.DataFrame({"waited": waited, "y": range(60)}), "y")


# --- words, units and row numbers in the training ----------------------------------------------------


def test_words_among_numbers_of_the_training_are_missing_where_asked(tmp_path: Path, htaf) -> None:
    rng = np.random.default_rng(0)
    age = rng.integers(18, 80, 120).astype(object)
    frame = pd.DataFrame({"age": age, "x": rng.normal(size=120)})
    frame["y"] = np.where((age > 40) ^ (frame["x"] > 1), "yes", "no")
    frame.loc[[3, 7], "age"] = ["unknown", "n.k."]
    with pytest.raises(DataError, match=r"got 'unknown' .*say that they are missing \(text_as_missing="):
        htaf_fit(frame, "y", **TINY)
    said = "column 'age': 2 rows with a text that is no number or date read as missing ('unknown', 'n.k.')"
    with pytest.warns(UserWarning, match=re.escape(said)):
        made = htaf_fit(frame, "y", text_as_missing=True, **TINY)
    assert made._preprocessor.columns[0].kind == "number"
    frame.to_csv(tmp_path / "a.csv", index=False)
    words = ("train", "tabular", "--data", tmp_path / "a.csv", "--target", "y", "--epochs", "1", "--hidden", "4")
    code, _, error = htaf(*words, "--out", tmp_path / "no")
    assert (code, "--text-as-missing" in error) == (1, True), error
    code, _, error = htaf(*words, "--text-as-missing", "--out", tmp_path / "run")
    assert code == 0, error
    assert said in " ".join(error.split())
    run = open_run(tmp_path / "run")
    assert run.record["source"]["text_as_missing"] is True
    assert len(run.part("test", run.data())) == 24, "its data are read in the same way"


def test_few_words_among_few_numbers_are_missing_too_where_asked() -> None:
    frame = pd.DataFrame({"a": [*map(str, range(9)), "?", "unknown"] * 3, "y": [*range(33)]})
    numbers = from_frame(frame, "y", text_as_missing=True)
    assert numbers.features["a"].dtype == np.float64
    assert from_frame(frame, "y").features["a"].dtype == object, "a category by itself"
    mostly = from_frame(frame.assign(a=["1", "b", "c"] * 11), "y", text_as_missing=True)
    assert mostly.features["a"].dtype == object, "words are no exception there"


@pytest.mark.parametrize(("texts", "task"), [(True, None), (True, "regression"), (False, None)])
def test_a_target_in_one_unit_is_numbers(texts: bool, task: Any, tmp_path: Path) -> None:
    price = np.round(np.random.default_rng(0).random(40) * 1e4, 2)
    frame = pd.DataFrame({"x": price + 1, "price": [f"${p:,.2f}" for p in price] if texts else price})
    table = from_frame(frame, "price", task=task)
    assert table.task == "regression"
    np.testing.assert_allclose(table.target, price)
    assert any("price" in note and "'$#'" in note for note in told(table.notes)) == texts
    made = htaf_fit(frame, "price", task=task, **TINY)
    assert made._preprocessor.target.unit == ("$#" if texts else "")
    made.save(tmp_path / "run")
    like = frame_like(frame.iloc[:5], target=read_estimator(tmp_path / "run")._preprocessor.target)
    np.testing.assert_allclose(like.target, price[:5])
    if texts:
        with pytest.raises(DataError, match=r"row 1: expected a number in the target .*'5 €': write numbers as \$1234"):
            frame_like(pd.DataFrame({"x": [1.0], "price": ["5 €"]}), target=made._preprocessor.target)


def test_few_texts_with_a_unit_are_classes() -> None:
    frame = pd.DataFrame({"x": range(40), "size": ["5 kg", "10 kg"] * 20})
    assert from_frame(frame, "size").classes == ("10 kg", "5 kg")
    assert from_frame(frame, "size", task="regression").target.tolist()[:2] == [5, 10]
    many = pd.DataFrame({"x": range(40), "size": [f"{i % 15} kg" for i in range(40)]})
    assert from_frame(many, "size", task="classification").task == "classification"


def test_another_value_of_a_flag_is_told() -> None:
    """The network reads whether there is a value: a 0 in place of a blank would be the 1 of training."""
    frame = blanks(200)[["flag", "height", "y"]]
    run = htaf_fit(frame, "y", **TINY).run_
    rows = frame.head(4).assign(flag=[0.0, 0.0, 1.0, np.nan])
    _, notes = run.preprocessor().transform_with_notes(rows)
    assert "flag (2 rows, down to 0 where training had 1 to 1)" in " ".join(told(notes))
    _, notes = run.preprocessor().transform_with_notes(frame)
    assert not any(note.kind == "outside" and note.column == "flag" for note in notes)
