"""`htaf train tabular` with columns that are no inputs, and rows divided as asked: evaluate finds the same parts."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from htaf.runs import open_run

SMALL = ("--epochs", "1", "--hidden", "8", "--members", "1", "--thresholds", "0")
QUICK = (*SMALL, "--target", "y", "--baselines", "False")


def frame(rows: int = 120) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    x = rng.normal(size=rows)
    return pd.DataFrame(
        {
            "customer": [f"k{row}" for row in range(rows)],
            "when": pd.date_range("2012-01-01", periods=rows, freq="D").strftime("%d.%m.%Y"),
            "shop": rng.choice([f"shop {i}" for i in range(30)], rows),
            "x": x,
            "y": np.where(x > 0, "Yes", "no"),
        }
    )


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "table.csv"
    frame().to_csv(path, index=False)
    return path


def test_rows_of_few_categories_are_alike_by_chance(htaf, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for name in ("table.csv", "more.csv"):
        rows = pd.DataFrame({"a": rng.choice(list("xyz"), 200), "b": rng.choice(list("uv"), 200)})
        rows.assign(y=np.where(rng.random(200) < 0.5, "no", "yes")).to_csv(tmp_path / name, index=False)
    run, table, more = (tmp_path / name for name in ("run", "table.csv", "more.csv"))
    assert htaf("train", "tabular", "--data", table, "--out", run, *QUICK)[0] == 0
    assert "training part too" not in " ".join(htaf("evaluate", run, "--data", more)[2].split())
    table.unlink()
    assert htaf("evaluate", run, "--data", more)[0] == 0, "the training rows are elsewhere"


@pytest.mark.parametrize(
    ("flags", "rows"),
    [
        (("--time", "when", "--id", "customer"), [84, 12, 24]),
        (("--split", "stratified", "--shares", "0.5", "0.25", "0.25", "--exclude", "customer", "when"), [60, 30, 30]),
        (("--test", "other.csv", "--shares", "0.8", "0.2", "--group", "shop"), None),
    ],
)
def test_evaluate_finds_the_parts_of_the_training(
    htaf, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: tuple[str, ...], rows: list[int] | None
) -> None:
    monkeypatch.chdir(tmp_path)
    frame(30).assign(x=lambda rows: rows.x + 0.001).to_csv("other.csv", index=False)
    out = tmp_path / "run"
    code, _, err = htaf("train", "tabular", "--data", file, "--out", out, *QUICK, *flags)
    assert code == 0, err
    run = open_run(out)
    if rows is not None:
        assert [run.record["rows"][part] for part in ("train", "validation", "test")] == rows
    if "--test" in flags:
        assert run.record["rows"]["test"] == 30
    monkeypatch.chdir("/")  # the record holds whole paths
    seen = "rows are in the training part too"
    noted = htaf("evaluate", out, "--data", file)[2]
    assert " ".join(noted.split()).count(f"{run.record['rows']['train']} of 120 {seen}") == 1
    others = frame(40).assign(x=np.linspace(-1, 1, 40))
    others.to_csv(tmp_path / "others.csv", index=False)
    assert seen not in " ".join(htaf("evaluate", out, "--data", tmp_path / "others.csv")[2].split())
    for part in ("validation", "test"):
        code, shown, err = htaf("evaluate", out, "--part", part, "--json")
        assert code == 0, err
        assert json.loads(shown)["exact"] == pytest.approx(run.record["metrics"]["exact"][part])
    assert len(run.part("train")) == run.record["rows"]["train"]
    if "--time" in flags:
        code, shown, err = htaf("report", out, "--baselines", "False")
        assert code == 0, err
    told = htaf("train", "tabular", "--data", file, "--out", out, *QUICK)[2]  # without the flags it is another run
    assert "already done" not in told
    code, printed, err = htaf("predict", out, file)
    assert code == 0, err
    assert printed.splitlines()[0].startswith("customer,prediction") == ("--id" in flags)


def test_a_file_of_the_data_folder_is_found_again(
    htaf, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    frame(30).to_csv(tmp_path / "other.csv", index=False)
    monkeypatch.setenv("HTAF_DATA", str(tmp_path))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    words = ("train", "tabular", "--data", file.name, "--test", "other.csv", "--out", "run", *QUICK)
    code, _, err = htaf(*words)
    assert code == 0, err
    monkeypatch.delenv("HTAF_DATA")
    code, _, err = htaf("evaluate", "run")
    assert code == 0, err


def test_out_is_no_input_and_in_no_run(htaf, file: Path, tmp_path: Path) -> None:
    code, _, err = htaf("train", "tabular", "--data", file, "--out", file, *QUICK)
    assert (code, f"{file} is a file" in err) == (2, True)
    assert file.read_text() == frame().to_csv(index=False)
    out = tmp_path / "run"
    out.mkdir()
    (out / "record.json").write_text("{}")
    code, _, err = htaf("train", "tabular", "--data", file, "--out", out / "checkpoints" / "new", *QUICK)
    assert (code, f"of the run in {out}" in err) == (2, True)


def test_few_groups_are_said_before_the_training(htaf, tmp_path: Path) -> None:
    made = frame().assign(ward=np.repeat(["a", "b", "c"], (34, 26, 60)))
    made.to_csv(tmp_path / "table.csv", index=False)
    words = ("--data", tmp_path / "table.csv", "--out", tmp_path / "run", "--group", "ward", *QUICK)
    code, _, err = htaf("train", "tabular", *words)
    assert code == 0, err
    note = next(one for one in open_run(tmp_path / "run").record["notes"] if "stay together" in one)
    assert " ".join(err.split()).count(note) == 1


def test_other_columns_beside_the_predictions_are_another_run(htaf, file: Path, tmp_path: Path) -> None:
    words = ("train", "tabular", "--data", file, "--out", tmp_path / "run", *QUICK)
    assert htaf(*words, "--exclude", "customer")[0] == 0
    code, _, err = htaf(*words, "--id", "customer")
    assert code == 1
    said = "which keeps no column beside predictions, not 'customer': choose another --out"
    assert said in " ".join(err.split())
    code, _, err = htaf(*words, "--exclude", "customer")
    assert (code, "already done" in err) == (0, True)


def test_the_positive_class_is_named(htaf, file: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    code, shown, err = htaf("train", "tabular", "--data", file, "--out", out, *QUICK)
    assert code == 0, err
    assert "auroc of class 'no' (htaf" in shown  # "Yes" comes before "no", as in scikit-learn
    assert "class 1 (positive) is 'no', class 0 is 'Yes'" in err
    assert open_run(out).record["positive"] == "no"
    assert "positive class 'no'" in htaf("evaluate", out)[1]
    assert json.loads(htaf("evaluate", out, "--json")[1])["positive"] == "no"
    assert "the positive class is no" in (out / "report.html").read_text()
