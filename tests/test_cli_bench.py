"""`htaf concepts score --beside`: the bits of a run beside those that anyone gets from the same features."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from htaf.concepts.baselines import BASELINES
from htaf.concepts.extract import extract
from htaf.concepts.store import open_features
from htaf.runs import open_run
from made_runs import digits, made_run


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root, images = tmp_path_factory.mktemp("bench"), digits()
    made_run(root / "run", images, concepts=12, shares={"train_images": 200, "validation_images": 60})
    extract(open_run(root / "run"), images, root / "codes")
    return root


def test_a_run_beside_the_baselines(htaf, folder: Path) -> None:
    out = folder / "scores"
    words = ("concepts", "score", folder / "run", "--beside", folder / "run", "--attributes", "digits", "--out", out)
    code, text, err = htaf(*words, "--seeds", 1)
    assert code == 0, err
    assert "these: better by over two standard errors are, in accuracy, %: " in " ".join(text.split())
    assert "stable" not in text, "a column of dashes"
    assert all(len(line) <= 80 for line in text.splitlines() if line[0] in "│┃")
    assert "k-means, seed 0: accuracy" in err
    result = json.loads((out / "scores.json").read_text())["beside"]
    rows = {row["bits"]: row for row in result["rows"]}
    assert list(rows) == ["these", *BASELINES]
    assert result["images"]["test"] == 359
    assert result["attributes"] == 11
    assert result["features"] == open_features(out / "backbone").values.shape[1] == 64
    assert rows["these"]["mean"]["accuracy"] > 0.3
    assert rows["these"]["mean"]["stability"] is None
    assert {row["concepts"] for row in rows.values()} == {12.0}
    assert "linear head on all bits" in result["columns"]["accuracy"]["shows"]
    table = (out / "beside.md").read_text()
    assert all(f"| {name} |" in table for name in rows)
    assert "which mean nothing, can win here" in table
    lines = list(csv.DictReader((out / "beside.csv").read_text().splitlines()))
    assert float(lines[0]["accuracy"]) == rows["these"]["mean"]["accuracy"]


def test_more_rows_and_seeds_of_one_training(htaf, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in set(BASELINES) - {"median cut", "random class splits"}:
        monkeypatch.delitem(BASELINES, name)
    words = ("concepts", "score", folder / "codes", "--beside", folder / "features", "--json")
    code, _, err = htaf("concepts", "extract", folder / "run", "--keep", "backbone", "--out", folder / "features")
    assert code == 0, err
    code, text, err = htaf(*words, "--baseline", f"these={folder / 'codes'}", f"other={folder / 'codes'}",
                        "--seeds", 2)  # fmt: skip
    assert code == 0, err
    found = json.loads(text)
    rows = {row["bits"]: row for row in found["beside"]["rows"]}
    assert list(rows)[:2] == ["these", "other"]
    assert rows["these"]["mean"]["stability"] == pytest.approx(1)
    assert rows["these"]["mean"]["attributes"] is None
    assert 0 < rows["median cut"]["mean"]["stability"] < 1
    assert rows["median cut"]["sd"]["accuracy"] is not None
    assert set(found["class_specificity"]["baselines"]) == {"these (2)", "other"}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--beside", "{}/run"), "--beside RUN needs --out"),
        (("--attributes", "digits"), "--attributes needs --beside"),
        (("--seeds", "3"), "--seeds needs --beside"),
        (("--beside", "{}/run", "--out", "{}/bad", "--seeds", "0"), "--seeds must be in 1 to 100, got 0"),
        (
            ("--beside", "{}/codes"),
            "expected a run, or what its backbone gives, from htaf concepts extract RUN --keep backbone, got codes",
        ),
        (("--beside", "{}/soft"), "got pre-activations of concepts"),
        (("--beside", "{}/run", "--out", "{}/bad", "--attributes", "birds"), "expected 'cub', 'digits' or a CSV"),
        (("--baseline", "{}/codes", "{}/codes"), "give NAME=CODES"),
        (("--baseline", "{}/run"), "--baseline: expected codes, from htaf concepts extract RUN, got the run"),
    ],
)
def test_bad_words(htaf, folder: Path, words: tuple[str, ...], said: str) -> None:
    if "{}/soft" in words and not (folder / "soft").exists():
        extract(open_run(folder / "run"), digits(), folder / "soft", keep=["features"])
    code, _, err = htaf("concepts", "score", folder / "codes", *(word.format(folder) for word in words))
    assert code != 0
    assert said in " ".join(err.split())
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "is a run: expected --out, where its codes are made"),
        (("--out", "{}/new", "--beside", "{}/codes"), "expected a run, or what its backbone gives"),
        (("--out", "{}/new", "--beside", "{}/run", "--attributes", "{}/birds.csv"), "expected attributes of all"),
        (("--out", "{}/new", "--part", "other"), "expected images of the part 'other', got only train, validation"),
        (("--out", "{}/new", "--baseline", "{}/none"), "found none at"),
    ],
)
def test_nothing_is_made_of_a_run_before_all_is_checked(htaf, folder: Path, words: tuple[str, ...], said: str) -> None:
    (folder / "birds.csv").write_text("class,red\nwren,1\nrobin,0\n")
    code, _, err = htaf("concepts", "score", folder / "run", *(word.format(folder) for word in words))
    assert code != 0
    assert said in " ".join(err.split())
    assert not (folder / "new").exists()
