"""`htaf paper bench`: codes beside the bits that anyone gets from the same features."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from htaf.concepts.extract import extract
from htaf_paper.other_bits import BASELINES
from made_runs import digits, made_run


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root, images = tmp_path_factory.mktemp("bench"), digits()
    run = made_run(root / "run", images, concepts=12, shares={"train_images": 200, "validation_images": 60})
    extract(run, images, root / "codes")
    extract(run, images, root / "features", keep=["backbone"])
    return root


def test_codes_beside_the_baselines(htaf, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in set(BASELINES) - {"median cut", "random class splits"}:
        monkeypatch.delitem(BASELINES, name)
    words = ("paper", "bench", folder / "codes", "--features", folder / "features", "--attributes", "digits")
    more = ("--others", f"these={folder / 'codes'}", f"other={folder / 'codes'}", "--seeds", 2)
    code, text, err = htaf(*words, *more, "--out", folder / "out")
    assert code == 0, err
    result = json.loads((folder / "out" / "bench.json").read_text())
    rows = {row["bits"]: row for row in result["rows"]}
    assert list(rows) == ["these", "other", *BASELINES]
    assert (result["images"]["test"], result["features"]) == (359, 64)
    assert rows["these"]["mean"]["accuracy"] > 0.3
    assert rows["these"]["mean"]["stability"] == pytest.approx(1)
    assert rows["other"]["mean"]["stability"] is None
    assert 0 < rows["median cut"]["mean"]["stability"] < 1
    assert (folder / "out" / "bench.md").read_text().strip() == text.strip()
    assert "| random class splits |" in text
    code, text, err = htaf(*words, "--seeds", 1, "--out", folder / "out", "--json")
    assert code == 0, err
    written = json.loads((folder / "out" / "bench.json").read_text())
    assert {name: json.loads(text)[name] for name in written} == written


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--others", "{}/codes"), "--others: expected NAME=CODES"),
        (("--seeds", "0"), "expected bits and 1 or more seeds, got 1 and 0"),
        (("--attributes", "birds"), "expected 'cub', 'digits' or a CSV"),
        (("--features", "{}/codes"), "features"),
    ],
)
def test_bad_words(htaf, folder: Path, words: tuple[str, ...], said: str) -> None:
    given = {"--features": folder / "features"} | {words[0]: words[1].format(folder)}
    flat = [word for pair in given.items() for word in pair]
    code, _, err = htaf("paper", "bench", folder / "codes", "--out", folder / "bad", *flat)
    assert code != 0
    assert said in " ".join(err.split())
    assert "Traceback" not in err
