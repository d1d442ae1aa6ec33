"""Columns that are no inputs, and rows divided as asked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from htaf.training.runs import open_run

TRAIN = ("train", "tabular", "--data", "digits")


def recipe_of(htaf: Any, *words: str) -> dict[str, Any]:
    code, out, err = htaf(*TRAIN, "--out", "none", "--print-recipe", "--json", *words)
    assert code == 0, err
    return json.loads(out)


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


@pytest.mark.parametrize(
    ("flags", "rows"),
    [
        (("--time", "when", "--id", "customer"), [84, 12, 24]),
        (("--split", "stratified", "--shares", "0.5", "0.25", "0.25", "--exclude", "customer", "when"), [60, 30, 30]),
        (("--group", "shop"), None),
    ],
)
def test_evaluate_finds_the_parts_of_the_training(
    htaf, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: tuple[str, ...], rows: list[int] | None
) -> None:
    monkeypatch.chdir(tmp_path)
    out = tmp_path / "run"
    code, _, err = htaf("train", "tabular", "--data", file, "--out", out, *QUICK, *flags)
    assert code == 0, err
    run = open_run(out)
    if rows is not None:
        assert [run.record["rows"][part] for part in ("train", "validation", "test")] == rows
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
    told = htaf("train", "tabular", "--data", file, "--out", out, *QUICK)[2]  # without the flags it is another run
    assert "already done" not in told
    code, printed, err = htaf("predict", out, file)
    assert code == 0, err
    assert printed.splitlines()[0].startswith("customer,prediction") == ("--id" in flags)


def test_a_file_of_the_data_folder_is_found_again(htaf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    frame(60).to_csv(tmp_path / "other.csv", index=False)
    monkeypatch.setenv("HTAF_DATA", str(tmp_path))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    words = ("train", "tabular", "--data", "other.csv", "--out", "run", *QUICK)
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
