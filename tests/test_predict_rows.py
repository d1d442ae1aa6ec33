"""`htaf predict` of tables: ids, the standard input, Parquet, values out of range, and large files in pieces."""

from __future__ import annotations

import gzip
import io
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

import made_runs
from htaf import HTAF, harden
from htaf.data import image_sets, images, table_files, tabular
from htaf.data.notes import together, told
from htaf.data.preprocess import Preprocessor
from htaf.data.reading import DataError
from htaf.data.table_files import read_frame, read_pieces
from htaf.models.build import build
from htaf.models.mlp import MLP
from htaf.training import runs
from htaf.training.runs.predictions import RowPredictions, of_rows
from made_runs import FEW, digits, made_run


def table(rows: int = 60) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"id": [f"{i:04d}" for i in range(rows)], "a": rng.normal(size=rows).round(3)})
    frame["age"] = rng.integers(18, 95, rows)
    frame["kind"] = rng.choice(["red", "blue"], rows)
    frame.loc[0, "age"], frame.loc[1, "age"] = 18, 95
    return frame


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run that nobody trained; predicts yes or no."""

    from htaf.models.build import build
    from htaf.training import runs

    rows = table()
    preprocessor = Preprocessor.fit(
        rows.drop(columns="id"), np.arange(60) % 2, task="classification", target_name="t", classes=("no", "yes")
    )
    model = {"kind": "mlp", "in_features": len(preprocessor.feature_names), "out_features": 2, "hidden": [6]}
    model |= {"batch_norm": True, "activation": made_runs.HTAF}
    out = tmp_path_factory.mktemp("runs") / "run"
    identity = {"recipe": {"method": "htaf", "family": "mlp"}, "seed": 0, "data": {"name": "t", "task": None}}
    record = runs.start_run(out, identity)
    metrics = {part: {"accuracy": 0.5} for part in ("validation", "test")}
    record |= {"model": model, "metrics": {"smooth": metrics, "exact": metrics}, "headline": "accuracy", "rows": {}}
    torch.manual_seed(0)
    runs.finish_run(out, record | {"best_epoch": 0, "notes": []}, build(model).eval(), preprocessor)
    return out


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_files, "ROWS", 7)
    monkeypatch.setattr(table_files, "PIECE", 64)
    monkeypatch.setattr(table_files, "WIDE", 0)


def whole(path: Path) -> tuple[pd.DataFrame, list[str]]:
    pieces = [*read_pieces(path)]
    return pd.concat([frame for frame, _ in pieces], ignore_index=True).astype(object), told(
        n for _, notes in pieces for n in notes
    )


TEXTS = {
    "plain": "a,b\n1,x\n2,y\n",
    "blank lines": "\n\na,b\n1,x\n\n , \n2,y\n,\n\n",
    "quotes": 'a,"b c"\n"1,5","line\nbreak"\n"say ""so""",y\n',
    "semicolons, commas": "a;b;c\n" + "1,5;x;1.000,5\n2;y;3\n" * 9 + "3,25;z;1\n",
    "commas in later pieces": "a;b;c\n" + "1.234;5;1.5\n" * 20 + "1,5;x,y;2\n" + "2.000;7,5;1,5\n" * 3,
    "no name": "a,,b\n1,2,3\n4,5,6\n",
    "numbers for names": "1,2\n3,4\n",
    "one column": "a\n1\n2\n",
    "latin": "a,b\n1,\xe9\n",
    "blanks": "a,b\nNA,?\n, x \nnan,None\n",
}


@pytest.mark.parametrize(
    ("name", "kind"), [*((name, "csv") for name in TEXTS), *(("quotes", kind) for kind in ("csv.gz", "utf-16", "mark"))]
)
def test_pieces_are_the_rows_of_the_file(name: str, kind: str, small_pieces: None, tmp_path: Path) -> None:
    encoding = {"utf-16": "utf-16", "mark": "utf-8-sig"}.get(kind, "latin-1" if name == "latin" else "utf-8")
    data = TEXTS[name].encode(encoding)
    path = tmp_path / ("rows.csv.gz" if kind == "csv.gz" else "rows.csv")
    path.write_bytes(gzip.compress(data) if kind == "csv.gz" else data)
    expected, notes = read_frame(path)
    found, said = whole(path)
    pd.testing.assert_frame_equal(found, expected.astype(object))
    assert said == told(notes)


def test_pieces_of_many_rows(small_pieces: None, tmp_path: Path) -> None:
    table().to_csv(tmp_path / "rows.csv", index=False)
    table().to_parquet(tmp_path / "rows.parquet")
    assert [len(frame) for frame, _ in read_pieces(tmp_path / "rows.parquet")] == [7] * 8 + [4]
    assert len([*read_pieces(tmp_path / "rows.csv")]) > 8
    for name in ("rows.csv", "rows.parquet"):
        found, _ = whole(tmp_path / name)
        pd.testing.assert_frame_equal(found, read_frame(tmp_path / name)[0].astype(object))


def test_a_line_without_an_end(small_pieces: None, tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_bytes(b"a,b\n1,2\n" + b"3," * 2000)
    with pytest.raises(DataError, match="expected lines of less than 64 characters, got a longer one"):
        list(read_pieces(tmp_path / "rows.csv"))


def outside(preprocessor: Preprocessor, *pieces: pd.DataFrame) -> list[str]:
    notes = together(note for piece in pieces for note in preprocessor.transform_with_notes(piece)[1])
    return told(note for note in notes if note.kind == "outside")


def test_outside_the_range() -> None:
    rows = table()
    preprocessor = Preprocessor.fit(
        rows.assign(code=np.where(np.arange(60) % 3, 5.0, -9.0) + (np.arange(60) % 2)).drop(columns="id"),
        np.arange(60.0), task="regression", special_codes=(-9.0, -8.0),
    )  # fmt: skip
    new = rows.assign(code=-9.0).astype({"age": float})
    assert outside(preprocessor, new) == []
    new.loc[[3, 4, 5], "age"] = [131, 2, np.nan]
    new.loc[3, "a"] = 50.0
    low, high = rows["a"].min(), rows["a"].max()
    assert outside(preprocessor, new.iloc[:4], new.iloc[4:]) == [
        f"values outside the range of training: a (1 row, up to 50 where training had {low:g} to {high:g}), "
        "age (2 rows, down to 2 and up to 131 where training had 18 to 95)"
    ]


def many_kinds(rows: int) -> pd.DataFrame:
    rng = np.random.default_rng(rows)
    days = np.datetime64("2020-01-01", "us") + rng.integers(0, 900, rows) * np.timedelta64(1, "D")
    frame = pd.DataFrame({f"n{i}": rng.normal(size=rows) for i in range(12)} | {"signed": days})
    frame["kind"], frame["city"] = rng.choice(["red", "blue"], rows), rng.choice([f"city {i}" for i in range(30)], rows)
    frame.loc[:1, "signed"] = np.array(["2020-01-01", "2022-06-30"], "M8[us]")
    return frame


def test_pieces_predict_and_are_noted_as_the_whole() -> None:
    """Of unknown categories, dates and missing values in many columns, in pieces in which they differ."""
    rows = many_kinds(300)
    preprocessor = Preprocessor.fit(rows, np.random.default_rng(0).normal(size=300), task="regression")
    torch.manual_seed(0)
    net = harden(MLP(len(preprocessor.feature_names), 1, (8,), HTAF).eval())
    new = many_kinds(60).assign(more=1)
    new["signed"] = new["signed"].dt.strftime("%Y-%m-%d").astype(object)
    new.loc[[2, 50], "signed"] = [None, ""]
    new.loc[[51, 52], "signed"] = ["2026-05-01 10:00", "2019-12-31"]
    new.loc[[40, 41, 42, 43], "city"] = ["it's", 'a "b"', "new (2), all", "it's"]
    new.loc[[3, 30], "kind"] = ["green", "city (1)"]
    for place in range(11):
        new.loc[5 * place : 5 * place + 1, f"n{11 - place}"] = np.nan

    def said(size: int) -> list[str]:
        predictions = RowPredictions(net, preprocessor)
        pieces = [new.iloc[begin : begin + size].reset_index(drop=True) for begin in range(0, len(new), size)]
        found = pd.concat([predictions.predict(piece) for piece in pieces], ignore_index=True)
        pd.testing.assert_frame_equal(found, of_rows(net, preprocessor, new)[0])
        return told(predictions.notes())

    whole = said(60)
    assert whole == told(of_rows(net, preprocessor, new)[1])
    assert whole[0] == "ignored, not used in training: 'more'"
    assert whole[1].startswith("column 'kind': 2 rows with categories not seen in training ('green', 'city (1)')")
    assert whole[2] == (
        "column 'city': 4 rows with categories not seen in training "
        """("it's", 'a "b"', 'new (2), all'), the target's mean"""
    )
    assert whole[3].endswith("and 2 more columns")
    assert (
        "signed (2 rows, down to 2019-12-31 and up to 2026-05-01 where training had 2020-01-01 to 2022-06-30)"
        in whole[4]
    )
    for size in (7, 25):
        assert said(size) == whole
    new.loc[:9, "kind"] = [f"kind {i}" for i in range(10)]
    assert "'kind 2' and 8 more), all inputs 0" in "\n".join(said(25))
    new.loc[33, "signed"] = "1.2.2020"
    with pytest.raises(DataError, match=r"column 'signed', row 34: expected a date .* got '1\.2\.2020'"):
        said(25)


def test_dates_outside_the_range() -> None:
    rows = pd.DataFrame({"at": np.array(["2020-01-01T06:00", "2020-03-01T12:30", "2020-02-01"], "M8[us]")})
    preprocessor = Preprocessor.fit(rows, np.arange(3.0), task="regression")
    assert outside(preprocessor, rows, pd.DataFrame({"at": ["", "NA", "2020-03-01 12:30"]})) == []
    assert outside(preprocessor, pd.DataFrame({"at": ["2020-03-01 12:31", "2020-03-01"]})) == [
        "values outside the range of training: at (1 row, up to 2020-03-01T12:31:00 where training had "
        "2020-01-01T06:00:00 to 2020-03-01T12:30:00)"
    ]


def read(text: str) -> pd.DataFrame:
    return pd.read_csv(io.StringIO(text), dtype={"id": str})


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch):
    """Gives bytes on the standard input."""

    def give(data: bytes) -> None:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))

    return give


def test_ids_and_the_standard_input(htaf, run: Path, tmp_path: Path, given) -> None:
    rows = table()
    rows.loc[7, "age"] = 131
    rows.to_csv(tmp_path / "rows.csv", index=False)
    rows.to_parquet(tmp_path / "rows.parquet")
    code, text, err = htaf("predict", run, tmp_path / "rows.csv", "--id", "id", "age")
    assert code == 0, err
    assert err == ("note: values outside the range of training: age (1 row, up to 131 where training had 18 to 95)\n")
    plain = read(htaf("predict", run, tmp_path / "rows.csv")[1])
    found = read(text)
    assert [*found] == ["id", "age", "prediction", "probability_no", "probability_yes"]
    pd.testing.assert_frame_equal(found[["id", "age"]], rows[["id", "age"]], check_dtype=False)
    pd.testing.assert_frame_equal(found[[*plain]], plain)
    for data in ((tmp_path / "rows.csv").read_bytes(), gzip.compress((tmp_path / "rows.csv").read_bytes())):
        given(data)
        assert htaf("predict", run, "-", "--id", "id", "age")[1] == text
    given((tmp_path / "rows.parquet").read_bytes())
    code, _, err = htaf("predict", run, "-", "--id", "id", "age", "--out", tmp_path / "out.parquet")
    assert code == 0, err
    written = pd.read_parquet(tmp_path / "out.parquet")
    pd.testing.assert_frame_equal(written[["id", "age"]], rows[["id", "age"]])
    np.testing.assert_array_equal(written["probability_no"], plain["probability_no"])
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_ids_that_the_run_knows_may_be_asked_for(run: Path) -> None:
    from htaf.training import runs

    finished = runs.open_run(run)
    known: Any = finished.preprocessor()
    known = Preprocessor(known.columns, known.target, ids=["id"])
    found = RowPredictions(finished.model(), known, ["id", "age"]).predict(table())
    assert [*found] == ["age", "id", "prediction", "probability_no", "probability_yes"]
    with pytest.raises(DataError, match="--id: expected other columns than those of the predictions"):
        RowPredictions(finished.model(), known, ["prediction"]).predict(table().assign(prediction=1))


def test_a_column_of_the_input_named_as_a_prediction_gives_it_no_type(htaf, run: Path, tmp_path: Path) -> None:
    table().assign(prediction=1, probability_no=0).to_parquet(tmp_path / "rows.parquet")
    out = tmp_path / "out.parquet"
    code, _, err = htaf("predict", run, tmp_path / "rows.parquet", "--id", "id", "--out", out)
    assert code == 0, err
    found = pd.read_parquet(out)
    assert found["prediction"].isin(["no", "yes"]).all()
    assert ((found["probability_no"] > 0) & (found["probability_no"] < 1)).any()


def test_parquet_in_pieces_keeps_types(htaf, run: Path, tmp_path: Path, small_pieces: None) -> None:
    rows = table().assign(number=pd.array([2**53 + 1, None] * 30, dtype="Int64"))
    rows.loc[:20, "number"] = None  # the first pieces have none
    rows.to_parquet(tmp_path / "rows.parquet")
    out = tmp_path / "out.parquet"
    code, text, err = htaf("predict", run, tmp_path / "rows.parquet", "--id", "number", "--out", out)
    assert code == 0, err
    assert "60 rows" in text
    found = pd.read_parquet(out, dtype_backend="numpy_nullable")
    assert found["number"].equals(rows["number"])
    assert len(found) == 60


def test_bad_words(htaf, run: Path, tmp_path: Path, given) -> None:
    table().to_csv(tmp_path / "rows.csv", index=False)
    table().rename(columns={"id": "prediction"}).to_csv(tmp_path / "named.csv", index=False)
    rows = tmp_path / "rows.csv"
    before = rows.read_bytes()
    for words, wanted, message in (
        ((rows, "--id", "idd"), 1, "--id: expected a column of the input, got 'idd' (did you mean 'id'?); it has 'id'"),
        ((rows, "--id", "id", "id"), 2, "--id: expected each column once, got 'id' twice"),
        ((tmp_path / "named.csv", "--id", "prediction"), 1, "other columns than those of the predictions"),
    ):
        code, text, err = htaf("predict", run, *words)
        assert (code, text) == (wanted, ""), words
        assert message in err.replace("\n", " ")
        assert err.count("htaf: error:") == 1
    for data, message in (
        (b"", "the standard input: expected a table, got an empty file"),
        (b"a,age,kind\n", "the standard input: expected rows below the column names"),
        (b"\n".join(before.splitlines()[1:]), "expected the columns 'a', 'age', 'kind' too, got only '0000'"),
        (b"0,1,2\n3,4,5\n", "note: the first line looks like data"),
        (b"a,kind\n1,red\n", "expected the columns 'age' too, got only 'a', 'kind'"),
    ):
        given(data)
        code, text, err = htaf("predict", run, "-", "--out", tmp_path / "out.csv")
        assert (code, text) == (1, ""), err
        assert message in err
    assert rows.read_bytes() == before
    assert {path.name for path in tmp_path.iterdir()} == {"rows.csv", "named.csv"}


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_nothing_is_left_of_a_file_that_fails_late(
    suffix: str, htaf, run: Path, tmp_path: Path, small_pieces: None
) -> None:
    rows = table().astype({"a": object})
    rows.loc[50, "a"] = "oops"
    rows.to_csv(tmp_path / "rows.csv", index=False)
    (tmp_path / f"out.{suffix}").write_text("former")
    code, _, err = htaf("predict", run, tmp_path / "rows.csv", "--out", tmp_path / f"out.{suffix}")
    assert code == 1
    assert "column 'a', row 51: expected a number, got 'oops'" in err
    assert (tmp_path / f"out.{suffix}").read_text() == "former"
    assert len([*tmp_path.iterdir()]) == 2


@pytest.mark.parametrize("suffix", ["csv", "parquet", "stdout", "json"])
def test_ids_that_a_spreadsheet_would_run(suffix: str, run: Path, htaf, tmp_path: Path) -> None:
    """In CSV with a ' in front; a phone number is a number; elsewhere as they are."""
    rows = table().head(4).astype({"id": object})
    rows["id"] = ["=1+1", "-rf", "+4917012", "plain"]
    rows.to_parquet(tmp_path / "rows.parquet")
    out = tmp_path / f"out.{suffix}"
    flags = ("--json",) if suffix == "json" else () if suffix == "stdout" else ("--out", out)
    code, printed, err = htaf("predict", run, tmp_path / "rows.parquet", "--id", "id", *flags)
    assert code == 0, err
    if suffix == "parquet":
        found = pd.read_parquet(out)["id"].tolist()
    elif suffix == "json":
        found = [row["id"] for row in json.loads(printed)]
    else:
        text = out.read_text() if suffix == "csv" else printed
        found = pd.read_csv(io.StringIO(text), dtype=str)["id"].tolist()
    guarded = suffix in ("csv", "stdout")
    assert found == (["'=1+1", "'-rf", "+4917012", "plain"] if guarded else rows["id"].tolist())


# ---- the data of a run and its parts, from python ----


@pytest.fixture(scope="module")
def of_images(tmp_path_factory: pytest.TempPathFactory) -> runs.Run:
    """A run on the digits, of which the recipe leaves some out."""
    out = tmp_path_factory.mktemp("images") / "run"
    made_run(out, digits(), kind="wide_resnet")
    return runs.open_run(out)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"a": rng.normal(size=60), "b": np.arange(60) // 2, "t": rng.normal(size=60)})
    frame.to_csv(path := tmp_path_factory.mktemp("rows") / "rows.csv", index=False)
    return path


@pytest.fixture(scope="module")
def of_a_table(file: Path, tmp_path_factory: pytest.TempPathFactory) -> runs.Run:
    """A run on a table, with the split of seed 3."""
    table = tabular.load(file, target="t")
    preprocessor = table.fit_preprocessor(tabular.split(table, 3).train)
    description = {"kind": "mlp", "in_features": 2, "out_features": 1, "hidden": [4], "batch_norm": False}
    identity = {
        "recipe": {"method": "htaf"},
        "seed": 3,
        "data": {"name": table.name, "fingerprint": table.fingerprint, "task": table.task, "split": "random"},
    }
    out = tmp_path_factory.mktemp("table") / "run"
    record = runs.start_run(out, identity) | {"model": description | {"activation": made_runs.HTAF}, "metrics": {}}
    record |= {"headline": "rmse", "rows": {}, "best_epoch": 0, "notes": []}
    record |= {"source": {"name": str(file), "data_dir": None, "target": "t", "task": None}}
    return runs.finish_run(out, record, build(record["model"]), preprocessor)


def joined(part: runs.RunPart) -> tuple[torch.Tensor, torch.Tensor]:
    inputs, targets = zip(*part, strict=True)
    return torch.cat(inputs), torch.cat(targets)


def test_the_images_of_a_run_and_their_parts(of_images: runs.Run) -> None:
    data = of_images.data()
    assert isinstance(data, images.Images)
    assert data.fingerprint == digits().fingerprint
    rows = images.split(data, train=int(FEW["train_images"]), validation=int(FEW["validation_images"]))
    preprocessor = of_images.preprocessor()
    assert isinstance(preprocessor, images.ImagePreprocessor)
    for part, expected in (("train", rows.train), ("validation", rows.validation)):
        inputs, labels = joined(of_images.part(part, data))
        assert torch.equal(inputs, preprocessor.normalise(data.train.batch(expected)))
        assert torch.equal(labels, data.train.labels[expected])
    assert torch.equal(joined(of_images.part())[1], data.test.labels)
    assert len(of_images.part("all", data)) == len(joined(of_images.part("all", data))[0]) == 1797


def test_the_rows_of_a_run_and_their_parts(of_a_table: runs.Run, file: Path) -> None:
    table, raw = of_a_table.data(), pd.read_csv(file)
    assert isinstance(table, tabular.Table)
    rows, preprocessor = tabular.split(table, 3), of_a_table.preprocessor()
    assert isinstance(preprocessor, Preprocessor)
    for part in ("train", "validation", "test"):
        inputs, targets = joined(of_a_table.part(part))
        chosen = raw.iloc[getattr(rows, part)]
        np.testing.assert_array_equal(inputs.numpy(), preprocessor.transform(chosen[["a", "b"]]))
        np.testing.assert_allclose(preprocessor.inverse(targets[:, 0].double().numpy()), chosen["t"], rtol=1e-6)
    assert len(of_a_table.part("all")) == 60


def test_data_at_another_place(of_a_table: runs.Run, file: Path, tmp_path: Path) -> None:
    """The run's own are known by their content; other data have no parts but all."""
    moved = tmp_path / "moved.csv"
    moved.write_bytes(file.read_bytes())
    assert len(of_a_table.part("test", of_a_table.data(moved))) == 12
    changed = tmp_path / "changed.csv"
    pd.read_csv(file).head(25).to_csv(changed, index=False)
    other = of_a_table.other_data(changed)
    assert len(of_a_table.part("all", other)) == 25
    with pytest.raises(runs.RunError, match=r"trained on other data than changed.csv"):
        of_a_table.part("test", other)


def test_images_are_read_at_the_size_of_the_training(of_images: runs.Run, tmp_path: Path) -> None:
    """Whatever size `load` would choose for them now; own ones, moved ones and others."""
    rng = np.random.default_rng(0)
    for name in digits().classes:
        (tmp_path / "photos" / name).mkdir(parents=True)
        for place in range(10):
            pixels = rng.integers(0, 255, (40, 50), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "photos" / name / f"{place}.png")
    assert image_sets.load(tmp_path / "photos").train.size == (40, 50)
    record = of_images.record | {"source": {"name": str(tmp_path / "photos"), "data_dir": None, "size": None}}
    for found in (
        runs.Run(of_images.path, record).data(),
        of_images.data(tmp_path / "photos"),
        of_images.other_data(tmp_path / "photos"),
    ):
        assert isinstance(found, images.Images)
        assert found.train.size == (8, 8)
        assert len(found.train) + len(found.test) == 100
    with pytest.raises(DataError):
        of_images.other_data(tmp_path / "nothing")


def test_a_run_that_does_not_know_its_data(of_images: runs.Run, of_a_table: runs.Run) -> None:
    for run, what in ((of_images, "images"), (of_a_table, "data")):
        bare = runs.Run(run.path, json.loads(json.dumps(run.record | {"source": {}})))
        with pytest.raises(runs.UnknownSourceError, match=f"does not say where its {what} came from: give their place"):
            bare.part("test")


def test_no_such_part_and_the_wrong_kind(of_images: runs.Run, of_a_table: runs.Run) -> None:
    part: Any = "tset"
    with pytest.raises(runs.RunError, match="expected a part of train, validation, test, all, got 'tset'"):
        of_images.part(part)
    with pytest.raises(DataError, match="expected a table for"):
        of_a_table.part("all", digits())
    with pytest.raises(DataError, match="expected images for"):
        of_images.part("all", of_a_table.data())
