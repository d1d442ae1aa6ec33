"""`htaf paper binarise|leakage`: what the bits of a run are compared with."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from htaf.concepts.store import open_codes
from made_runs import PLAIN, digits, made_run


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root, images = tmp_path_factory.mktemp("verbs"), digits()
    made_run(root / "run", images, concepts=21, shares={"train_images": 300, "validation_images": 100})
    made_run(root / "plain", images, PLAIN)
    return root


def test_leakage(htaf, folder: Path) -> None:
    for words in (("extract", folder / "run", "--out", folder / "soft", "--keep", "features"),
                  ("extract", folder / "run", "--out", folder / "hard", "--parts", "test", "train"),
                  ("name", folder / "soft", "--attributes", "digits", "--out", folder / "names.json")):  # fmt: skip
        code, _, err = htaf("concepts", *words)
        assert code == 0, err
    words = ("paper", "leakage", folder / "soft", "--names", folder / "names.json")
    code, text, err = htaf(*words, "--attributes", "digits", "--json")
    assert code == 0, err
    found = json.loads(text)
    assert len(found["soft"]["per_concept"]["ctl"]) == 21
    names = json.loads((folder / "names.json").read_text())
    assert found["named"]["verified"] == [entry["concept"] for entry in names if entry["verified"]]
    assert len(found["named"]["beyond"]) == len(found["named"]["verified"])
    code, text, err = htaf(*words)
    assert code == 0, err
    assert "leakage of soft values (CTL)" in text
    code, _, err = htaf("paper", "leakage", folder / "hard", "--attributes", "digits")
    assert (code, "--attributes needs --names" in err) == (2, True)
    code, _, err = htaf("paper", "leakage", folder / "hard")
    assert code == 2
    assert "has no pre-activations" in " ".join(err.split())


def test_the_plain_network_binarised(htaf, folder: Path, tmp_path: Path) -> None:
    codes = tmp_path / "codes"
    assert htaf("concepts", "extract", folder / "run", "--out", codes)[0] == 0
    code, out, err = htaf("concepts", "extract", folder / "plain", "--out", tmp_path / "f", "--json")
    assert code == 0, err
    assert all(row["exact"] is None for row in json.loads(out)["parts"])
    assert "features: accuracy" in htaf("concepts", "extract", folder / "plain", "--out", tmp_path / "f")[1]
    code, out, err = htaf("paper", "binarise", tmp_path / "f", "--out", tmp_path / "bm")
    assert code == 0, err
    assert "concepts: accuracy" in out
    np.testing.assert_allclose(open_codes(tmp_path / "bm").part("train").unpack().mean(0), 0.5)
    words = ("paper", "binarise", tmp_path / "f", "--out", tmp_path / "rates", "--how", "rates", "--like", codes)
    code, out, err = htaf(*words, "--sorted", "--json")
    assert code == 0, err
    rates = [np.sort(open_codes(path).part("train").unpack().mean(0)) for path in (tmp_path / "rates", codes)]
    np.testing.assert_allclose(rates[0], rates[1], atol=0.01)
    code, _, err = htaf("concepts", "score", tmp_path / "f")
    assert code == 1
    assert "htaf paper binarise" in " ".join(err.split())
    for words, said in (
        (("--how", "rates"), "--how rates needs --like CODES"),
        (("--sorted",), "--sorted are for --how rates alone"),
    ):
        code, _, err = htaf("paper", "binarise", codes, "--out", tmp_path / "x", *words)
        assert (code, said in " ".join(err.split())) == (2, True)
