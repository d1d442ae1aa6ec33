"""ONNX files of tables with the preparation inside: onnxruntime on raw columns equals `htaf predict`."""

from __future__ import annotations

import json
import string
from dataclasses import replace
from datetime import date, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from htaf import HTAF, HtafClassifier, harden
from htaf.data import reading
from htaf.data.cells import BLANKS
from htaf.data.preprocess import Preprocessor
from htaf.data.reading import DataError
from htaf.models.mlp import MLP, Thermometer
from htaf.program.export import ExportError, onnx_network, onnx_table, raw_columns, table_to_onnx, tables, to_onnx
from htaf.training import runs
from htaf.training.runs.predictions import forward, of_rows
from quick import slow_but

onnx = pytest.importorskip("onnx")
runtime = pytest.importorskip("onnxruntime")

CODES = (-7.0, -8.0, -9.0)
NUMBERS = st.one_of(st.none(), st.floats(-1e6, 1e6), st.floats(-1e-3, 1e-3), st.integers(-9, 9).map(float))
TEXTS = st.one_of(st.none(), st.sampled_from(["a", "b", "True", "é", "1", "x y", "", "None", "\u2028"]))
OTHER_TEXTS = st.one_of(TEXTS, st.sampled_from([*sorted(BLANKS), "NaN", "N/a", "NULL", "unseen", "A"]))
DATES = st.one_of(st.none(), st.datetimes(min_value=datetime(1, 1, 1)), st.dates(date(1995, 1, 1), date(2005, 1, 1)))


@st.composite
def frames(draw: st.DrawFn, rows: int = 9) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Rows to learn from and others, in the same columns."""
    train, other = {}, {}
    names = draw(st.lists(st.text(string.ascii_letters + " =/_é0", min_size=1), min_size=1, max_size=4, unique=True))
    for name in names:
        kinds = [(NUMBERS, NUMBERS, np.float64), (TEXTS, OTHER_TEXTS, object), (DATES, DATES, "datetime64[us]")]
        known, given, dtype = draw(st.sampled_from(kinds))
        train[name] = pd.Series(draw(st.lists(known, min_size=rows, max_size=rows)), dtype=dtype)
        other[name] = pd.Series(draw(st.lists(given, min_size=rows, max_size=rows)), dtype=dtype)
    train["steady row"], other["steady row"] = np.arange(rows, dtype=float), np.full(rows, np.nan)
    return pd.DataFrame(train), pd.DataFrame(other)


def fitted(train: pd.DataFrame, codes: tuple[float, ...] = ()) -> Preprocessor:
    target = np.arange(len(train), dtype=np.float64)
    return Preprocessor.fit(train, target, task="regression", special_codes=codes)


def preparation(preprocessor: Preprocessor) -> Any:
    """The preparation alone: raw columns in, `inputs` out."""
    graph, features = tables._prepared(preprocessor)
    helper = graph.onnx.helper
    graph.nodes.append(helper.make_node("Identity", [features], ["inputs"]))
    shape = [tables.BATCH, len(preprocessor.feature_names)]
    shown = [helper.make_tensor_value_info("inputs", graph.onnx.TensorProto.FLOAT, shape)]
    body = helper.make_graph(graph.nodes, "preparation", graph.inputs, shown, graph.constants)
    versions = [helper.make_opsetid("", 18), helper.make_opsetid(tables.ML, tables.ML_VERSION)]
    made = helper.make_model_gen_version(body, opset_imports=versions)
    helper.set_model_props(made, {"columns": json.dumps(graph.columns)})
    return made


def tables_columns(preprocessor: Preprocessor) -> list[dict[str, Any]]:
    (said,) = (entry.value for entry in preparation(preprocessor).metadata_props if entry.key == "columns")
    return json.loads(said)


def prepared(preprocessor: Preprocessor, rows: pd.DataFrame, *, folded: bool = True) -> np.ndarray:
    """Network inputs by onnxruntime. folded: `raw_columns` may change spellings."""
    proto = preparation(preprocessor)
    onnx.checker.check_model(proto, full_check=True)
    session = runtime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    columns = tables_columns(preprocessor)
    columns = columns if folded else [column | {"categories": []} for column in columns]
    return session.run(None, raw_columns(rows, columns))[0]


@settings(max_examples=40, deadline=None)
@given(both=frames(), codes=st.sampled_from([(), CODES]))
def test_the_preparation_gives_the_same_bits(both: tuple[pd.DataFrame, ...], codes: tuple[float, ...]) -> None:
    train, other = both
    assume(not {*train} & {*tables.OUTPUTS})  # the file has these names itself
    preprocessor = fitted(train, codes)
    for rows in (train, other, train.iloc[:1], train.iloc[:0]):
        found = prepared(preprocessor, rows)
        assert found.dtype == np.float32
        expected = preprocessor.transform(rows)
        assert found.shape == expected.shape
        assert found.tobytes() == expected.tobytes()


CITIES = [f"{name} {i}" for name in ("Łódź", "Straße", "York", "ΑΘΗΝΑΣ") for i in range(8)]
WAYS = {"as it is": str, "upper": str.upper, "lower": str.lower, "title": str.title, "swapped": str.swapcase}


def every_kind(rows: int, seed: int) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    moments = np.datetime64("1969-06-01", "us") + rng.integers(0, 1000 * 86_400_000_000, rows)
    frame = pd.DataFrame({"native": moments, "signed": pd.Series(moments).dt.strftime("%d.%m.%Y %H:%M")})
    frame["city"] = rng.choice(np.array([*CITIES, None], dtype=object), rows)
    frame["answer"] = rng.choice(np.array(["Yes", "no", "YES", "maybe", "Öl"], dtype=object), rows)
    frame["rare"] = rng.choice(np.array(["x1", "X2"], dtype=object), rows)
    frame.loc[[5, 6, 7], "rare"] = [*"ABC"]
    frame["sex"], frame["n"] = rng.choice(np.array(["M", "m", "f", ""], dtype=object), rows), rng.normal(size=rows)
    frame.loc[::17, "native"], frame.loc[::19, "signed"] = pd.NaT, ""
    return frame


@pytest.mark.parametrize("classes", [(), ("no", "yes"), ("a", "b", "c")])
def test_every_kind_of_column_gives_the_same_bits(classes: tuple[str, ...]) -> None:
    train, other = every_kind(600, 0), every_kind(300, 1)
    typed, _ = reading.typed(train)
    target = np.arange(600) % len(classes) if classes else np.random.default_rng(2).normal(size=600)
    task: Any = "classification" if classes else "regression"
    preprocessor = Preprocessor.fit(typed, target, task=task, classes=classes, written=typed.attrs["written"])
    kinds = {column.name: column.kind for column in preprocessor.columns}
    assert kinds == {
        "native": "date", "signed": "date", "city": "encoded", "answer": "category", "rare": "category",
        "sex": "category", "n": "number",
    }  # fmt: skip
    assert any(column.other for column in preprocessor.columns)
    rng = np.random.default_rng(3)
    for name in ("city", "answer", "rare", "sex"):  # other spellings, and what was never seen
        ways = rng.choice([*WAYS], len(other))
        other[name] = [
            WAYS[way](text) if isinstance(text, str) else text for way, text in zip(ways, other[name], strict=True)
        ]
        other.loc[rng.choice(len(other), 12), name] = np.array(["new", "NA", "?", "ss", "K"] + ["y", "t"] * 3 + ["é"])
    other.loc[:3, "signed"] = ["0001-01-01", "9999-12-31", "29.2.2000 23:59:59.123456", "1.1.1900"]
    for rows in (train, other, other.iloc[:1], other.iloc[:0]):
        found, expected = prepared(preprocessor, rows), preprocessor.transform(rows)
        wrong = np.array(preprocessor.feature_names)[(found != expected).any(0)]
        assert not len(wrong), wrong
        assert found.tobytes() == expected.tobytes()
    # the graph alone, on texts that `raw_columns` did not see
    assert prepared(preprocessor, other, folded=False).tobytes() == preprocessor.transform(other).tobytes()


@pytest.mark.parametrize("columns", [["n", "on", "flag", "once"], ["once"], ["flag"], ["sex"]])
def test_missing_values_that_are_told_give_the_same_bits(columns: list[str]) -> None:
    rng = np.random.default_rng(5)
    target, frame = rng.normal(size=300), pd.DataFrame({"sex": rng.choice([*"ab"], 300)}, dtype=object)
    gone = target + rng.normal(size=300) > 0
    frame["n"], frame["flag"] = np.where(gone, np.nan, rng.normal(size=300)), np.where(gone, np.nan, 7.0)
    for name, days in (("on", rng.integers(0, 900, 300)), ("once", np.zeros(300, int))):
        frame[name] = pd.Series(np.datetime64("2020-01-01", "us") + days * np.timedelta64(1, "D")).mask(gone)
    preprocessor = Preprocessor.fit(frame[columns], target, task="regression")
    told = [name for name in preprocessor.feature_names if name.endswith(" is missing")]
    assert sorted(told) == sorted(f"{name} is missing" for name in columns if name != "sex")
    assert prepared(preprocessor, frame).tobytes() == preprocessor.transform(frame).tobytes()


def test_spellings_of_many_letters_are_seen_to_before_the_graph() -> None:
    names = ["ПЕРЕПОДГОТОВКА", "другое", "Straße"]
    preprocessor = fitted(pd.DataFrame({"k": names * 7, "n": np.arange(21.0)}))
    rows = pd.DataFrame({"k": ["пеРЕподготОВКА", "ДруГое", "STRASSE", "straSSe", "Peter", "K"], "n": 0.0})
    assert prepared(preprocessor, rows).tobytes() == preprocessor.transform(rows).tobytes()
    assert prepared(preprocessor, rows, folded=False)[:, 1:].sum(1).tolist() == [0, 1, 1, 1, 0, 0]


def test_single_letters_keep_their_case_but_for_yes_and_no() -> None:
    preprocessor = fitted(pd.DataFrame({"k": ["m", "f", "Y"] * 7}))
    found = prepared(preprocessor, pd.DataFrame({"k": ["M", "F", "y", "m"]}))
    assert preprocessor.feature_names == ("k=Y", "k=f", "k=m")
    assert found.tolist() == [[0, 0, 0], [0, 1, 0], [1, 0, 0], [0, 0, 1]]


def test_every_day_of_two_eras() -> None:
    rng = np.random.default_rng(0)
    days = np.arange("1599-01-01", "2401-01-01", dtype="M8[D]").astype("M8[us]")
    days += rng.integers(0, 86_400_000_000, len(days)) * (np.arange(len(days)) % 2)
    rows = pd.DataFrame({"when": days})
    preprocessor = fitted(rows)
    assert len(preprocessor.feature_names) == 6
    assert prepared(preprocessor, rows).tobytes() == preprocessor.transform(rows).tobytes()


def test_dates_in_the_metadata_and_as_numbers() -> None:
    rows = pd.DataFrame({"when": np.array(["2020-02-29T12:00", "2021-03-01", "NaT"], "M8[us]")})
    columns = tables_columns(fitted(rows))
    assert columns == [
        {
            "name": "when", "kind": "date", "dtype": "int64", "unit": "microseconds since 1970-01-01T00:00 UTC",
            "missing": -(2**63), "order": "year-month-day", "zoned": False, "first": "2020-02-29T12:00:00.000000",
            "parts": {
                "year": [2020, 2021], "month": [2, 3], "weekday": [0, 5], "hour": [0, 12], "elapsed days": [0, 365.5]
            },
        }
    ]  # fmt: skip
    found = raw_columns(rows, columns)["when"]
    assert found.ravel().tolist() == [1_582_977_600_000_000, 1_614_556_800_000_000, -(2**63)]
    with pytest.raises(DataError, match=r"column 'when', row 1: expected a date \(year-month-day"):
        raw_columns(pd.DataFrame({"when": ["1.2.2020"]}), columns)


def test_inputs_that_have_one_name() -> None:
    """A number called k=x beside a category k with x: the order is that of the preprocessor."""
    frame = pd.DataFrame({"k": ["x", "y", "x"] * 7, "k=x": np.arange(21.0), "k=y": np.arange(21.0) ** 2})
    preprocessor = fitted(frame)
    assert preprocessor.feature_names == ("k=x", "k=y", "k=x", "k=y")
    assert prepared(preprocessor, frame).tobytes() == preprocessor.transform(frame).tobytes()


def table(rows: int = 300) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    a = rng.normal(size=rows)
    a[::9] = np.nan
    codes = rng.choice([-9.0, -8.0, 1.0, 2.5, 70.0], rows)
    kinds = rng.choice(np.array(["red", "blue", "", None], dtype=object), rows)
    return pd.DataFrame({"a": a, "code": codes, "kind": kinds, "constant": 3.0})


def network(preprocessor: Preprocessor, outputs: int) -> torch.nn.Module:
    """Of random weights; its batch norms have seen the rows, so that bits are neither all 0 nor all 1."""
    torch.manual_seed(0)
    net = MLP(len(preprocessor.feature_names), outputs, (32, 16), HTAF, batch_norm=True)
    inputs = torch.from_numpy(preprocessor.transform(table()))
    with torch.no_grad():
        for _ in range(30):
            net.train()(inputs)
    return harden(net.eval())


def made(task: Any) -> tuple[torch.nn.Module, Preprocessor]:
    classes = ("no", "yes", 'a "third", é') if task == "classification" else ()
    target = np.arange(300) % 3 if classes else 1000 + np.random.default_rng(1).normal(size=300)
    preprocessor = Preprocessor.fit(
        table(), target, task=task, classes=classes, target_name="t", special_codes=(-9.0, -8.0)
    )
    return network(preprocessor, len(classes) or 1), preprocessor


@pytest.mark.parametrize("task", ["classification", "regression"])
def test_a_linear_part_beside_members_is_in_the_file(task: str, tmp_path: Path) -> None:
    """As the default has it; on the network's inputs too, where onnxruntime gives the same bits."""
    _, preprocessor = made(task)
    inputs, outputs = torch.from_numpy(preprocessor.transform(table())), 3 if task == "classification" else 1
    thresholds = [min(3, len(column.unique()) - 1) for column in inputs.T]
    torch.manual_seed(0)
    net = MLP(len(thresholds), outputs, (16,), HTAF, batch_norm=True, members=2, thresholds=thresholds, direct=True)
    assert isinstance(net.thermometer, Thermometer)
    assert net.direct is not None
    net.thermometer.place(inputs)
    torch.nn.init.normal_(net.direct.weight)
    torch.nn.init.normal_(net.direct.bias)
    with torch.no_grad():
        net.train()(inputs)
    exact = harden(net.eval())
    to_onnx(exact, inputs[:2], tmp_path / "net.onnx")
    found, expected = onnx_network(tmp_path / "net.onnx")(inputs), forward(exact, inputs)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
    table_to_onnx(exact, preprocessor, tmp_path / "t.onnx")
    rows = of_rows(exact, preprocessor, table())[0]
    pd.testing.assert_frame_equal(onnx_table(tmp_path / "t.onnx")(table()), rows, check_dtype=False, rtol=1e-6)
    (linear,) = (of for name, of in exact.named_parameters() if name == "direct.weight")
    linear.data.zero_()
    assert (forward(exact, inputs) - expected).abs().max() > 0.1


@pytest.mark.parametrize("task", ["classification", "regression"])
def test_the_file_predicts_as_the_network(task: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    net, preprocessor = made(task)
    table_to_onnx(net, preprocessor, tmp_path / "t.onnx", about={"run": "abc"})
    predict = onnx_table(tmp_path / "t.onnx", threads=1)
    rows = table().assign(more="ignored")
    rows.loc[5:8, "kind"] = ["green", "NA", " red ", "Red"]
    rows.index += 10
    for some in (rows, rows.iloc[:1], rows.iloc[:0]):
        found, expected = predict(some), of_rows(net, preprocessor, some)[0]
        assert found.index.equals(expected.index)
        if task == "regression":
            np.testing.assert_allclose(found["prediction"], expected["prediction"], rtol=1e-6)
        else:
            assert (found["prediction"] == expected["prediction"]).all()
            pd.testing.assert_frame_equal(found, expected, check_dtype=False, rtol=0, atol=1e-6)
    assert predict(rows)["prediction"].nunique() > 2
    whole = predict(rows)
    monkeypatch.setattr("htaf.program.export.tables.CHUNK", 7)
    pd.testing.assert_frame_equal(predict(rows), whole, rtol=1e-6)

    proto = onnx.load(tmp_path / "t.onnx")
    onnx.checker.check_model(proto, full_check=True)
    assert {node.domain for node in proto.graph.node} == {"", "ai.onnx.ml"}
    shapes = {
        one.name: [d.dim_param or d.dim_value for d in one.type.tensor_type.shape.dim]
        for one in [*proto.graph.input, *proto.graph.output]
    }
    assert shapes == {"a": ["batch", 1], "code": ["batch", 1], "kind": ["batch", 1], "prediction": ["batch"]} | (
        {"probabilities": ["batch", 3]} if task == "classification" else {}
    )
    said = {entry.key: entry.value for entry in proto.metadata_props}
    assert (said["task"], said["target"], said["run"]) == (task, "t", "abc")
    assert tuple(json.loads(said["classes"])) == preprocessor.target.classes
    columns = json.loads(said["columns"])
    assert [(c["name"], c["kind"], c["dtype"]) for c in columns] == [
        ("a", "number", "float64"), ("code", "number", "float64"), ("kind", "category", "string"),
    ]  # fmt: skip
    assert (columns[1]["low"], columns[1]["high"], columns[2]["categories"]) == (1.0, 70.0, ["", "blue", "red"])


def test_what_cannot_be_written_or_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    net, preprocessor = made("regression")
    out = tmp_path / "t.onnx"
    columns = list(preprocessor.columns)
    with monkeypatch.context() as patch:
        patch.delitem(tables.KINDS, "category")  # as a kind that was added to the preprocessor alone
        with pytest.raises(
            ExportError, match=r"kind category cannot be written as ONNX yet \('kind'\); those that can:"
        ):
            table_to_onnx(net, preprocessor, out)
    named = Preprocessor([replace(columns[0], name="prediction"), *columns[1:]], preprocessor.target)
    with pytest.raises(ExportError, match=r"other names than prediction, .* got 'prediction': rename"):
        table_to_onnx(net, named, out)
    assert list(tmp_path.iterdir()) == []
    table_to_onnx(net, preprocessor, out)
    with pytest.raises(DataError, match="expected the columns 'kind' too"):
        onnx_table(out)(table().drop(columns="kind"))
    with pytest.raises(DataError, match="column 'a', row 2: expected a number, got 'x'"):
        onnx_table(out)(table().astype({"a": object}).assign(a=["1", "x", *["2"] * 298]))
    out.write_bytes(b"no network")
    with pytest.raises(ExportError, match="onnxruntime does not run"):
        onnx_table(out)


@pytest.mark.data
@pytest.mark.parametrize("recipe", slow_but(["tabular-mlp", "tabular-members"], "tabular-mlp"))
@pytest.mark.parametrize("name", slow_but(["digits", "wine", "abalone", "churn", "fico"], "wine"))
def test_every_row_of_a_set(name: str, recipe: str, data_dir: Path, tmp_path: Path, htaf) -> None:
    """One epoch; raw columns in onnxruntime against the run on all rows, and the packed file too."""
    hidden = ("48", "32") if recipe == "tabular-mlp" else ("48",)
    words = ("--data", name, "--recipe", recipe, "--epochs", "1", "--hidden", *hidden, "--out", tmp_path / "run")
    code, _, err = htaf("train", "tabular", *words)
    assert code == 0, err
    run = runs.open_run(tmp_path / "run")
    data = run.data()
    runs.export_run(run, tmp_path / "t.onnx", to="onnx", data=data)
    runs.pack_run(run, tmp_path / "t.packed", data=data)
    rows = data.features  # pyright: ignore[reportAttributeAccessIssue]
    expected = run.predict(rows)
    # a pre-activation within rounding of 0 may step the other way, which changes a number or a probability
    for found in (
        onnx_table(tmp_path / "t.onnx", threads=1)(rows),
        runs.open_packed(tmp_path / "t.packed").predict(rows),
    ):
        numbers = expected.select_dtypes("number")
        scale = numbers.abs().max().max()
        away = (found[numbers.columns] - numbers).abs().max(axis=1) / scale
        assert (away > 1e-5).sum() <= 1 + len(rows) // 1000
        if run.preprocessor().target.classes:  # pyright: ignore[reportAttributeAccessIssue]
            assert (found["prediction"] == expected["prediction"]).all()


@pytest.mark.parametrize(("labels", "kind"), [([False, True], np.bool_), ([1, 0], np.integer), (["0", "1"], str)])
def test_every_form_gives_labels_of_the_targets_type_and_warns_of_the_same(
    labels: list[Any], kind: type, tmp_path: Path
) -> None:
    rows = table()
    frame = rows.assign(y=pd.Series([labels[i % 2] for i in range(300)], dtype=None if kind is not str else object))
    model = HtafClassifier(epochs=1, hidden=(8,)).fit(rows, frame["y"])
    expected = model.predict(rows)
    assert all(isinstance(value, kind) for value in expected)
    frame.to_csv(tmp_path / "t.csv", index=False)
    runs.pack_run(model.run_, tmp_path / "t.packed", data=tmp_path / "t.csv")
    runs.export_run(model.run_, tmp_path / "t.onnx", to="onnx", data=tmp_path / "t.csv")
    forms = (runs.open_packed(tmp_path / "t.packed").predict, onnx_table(tmp_path / "t.onnx"))
    for predict in (model.run_.predict, *forms):
        assert predict(rows)["prediction"].tolist() == expected.tolist()
    for predict in forms:
        with pytest.warns(UserWarning, match="a shape nobody saw"):
            predict(rows.assign(kind="a shape nobody saw"))


def test_a_table_that_nir_cannot_say_is_told_of_onnx(htaf, tmp_path: Path) -> None:
    pytest.importorskip("nir")
    table().assign(y=np.arange(300) % 2).to_csv(tmp_path / "rows.csv", index=False)
    words = ("--data", tmp_path / "rows.csv", "--target", "y", "--epochs", "1", "--hidden", "8")
    assert htaf("train", "tabular", *words, "--thresholds", "4", "--out", tmp_path / "run")[0] == 0
    code, _, err = htaf("export", tmp_path / "run", "--to", "nir", "--out", tmp_path / "t.nir")
    assert code == 1
    assert "got one of a table with thresholds of its columns" in err
    assert "give --to onnx" in err
    assert not (tmp_path / "t.nir").exists()


def test_export_with_and_without_the_preparation(htaf, tmp_path: Path) -> None:
    table().assign(y=np.arange(300) % 2).to_csv(tmp_path / "rows.csv", index=False)
    words = ("--data", tmp_path / "rows.csv", "--target", "y", "--epochs", "1", "--hidden", "8")
    assert htaf("train", "tabular", *words, "--out", tmp_path / "run")[0] == 0
    code, text, err = htaf("export", tmp_path / "run", "--to", "onnx", "--out", tmp_path / "t.onnx")
    assert code == 0, err
    assert "60 of 60 test rows predicted as by the run's exact network" in text
    names = {one.name for one in onnx.load(tmp_path / "t.onnx").graph.input}
    assert names == {"a", "code", "kind"}
    code, text, err = htaf("export", tmp_path / "run", "--to", "onnx", "--out", tmp_path / "n.onnx", "--raw", "False")
    assert code == 0, err
    assert [one.name for one in onnx.load(tmp_path / "n.onnx").graph.input] == ["input"]
    with pytest.raises(ExportError, match="expected a file with raw columns"):
        onnx_table(tmp_path / "n.onnx")
