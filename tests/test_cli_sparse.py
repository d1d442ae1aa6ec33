"""`htaf concepts sparse`: a result file, bits of the backbone beside it, and a run with the sparse head."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from htaf.concepts.store import open_codes, open_features
from htaf.runs import open_run
from made_runs import PLAIN, digits, made_run


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root, images = tmp_path_factory.mktemp("sparse"), digits()
    made_run(root / "run", images, concepts=21, shares={"train_images": 300, "validation_images": 100})
    made_run(root / "plain", images, PLAIN)
    return root


def test_a_result_with_baselines_and_a_run(htaf, folder: Path) -> None:
    out, saved = folder / "result", folder / "saved"
    words = ("concepts", "sparse", folder / "run", "--out", out, "--nec", 3, "--baseline", "random", "median",
             "--seeds", 2, "--shuffled", "--save-run", saved)  # fmt: skip
    code, text, err = htaf(*words, "--json")
    assert code == 0, err
    found = json.loads(text)
    kept = json.loads((out / "sparse.json").read_text())
    assert {name: found[name] for name in kept} == kept
    assert "| random | 3 |" in (out / "sparse.md").read_text()
    summary = {(row["bits"], row["target"]): row for row in found["summary"]}
    assert {row["concepts"] for row in found["rows"]} == {21}
    assert summary["random", 3]["seeds"] == summary["shuffled labels", None]["seeds"] == 2
    assert summary["these", 3]["nec"] <= 3
    assert summary["these", None]["accuracy"] > 0.5 > 0.25 > summary["shuffled labels", None]["accuracy"]
    codes, features = open_codes(out / "codes"), open_features(out / "backbone")
    assert list(codes.ids) == list(features.ids)
    assert features.values.shape[1] == 64
    run = open_run(saved)
    assert run.record["new_head"]["target"] == 3
    head = run.model().get_submodule("head").weight.detach().numpy()
    assert (head != 0).sum(1).max() <= 3
    row = next(row for row in found["rows"] if (row["bits"], row["target"]) == ("these", 3))
    assert run.record["metrics"]["exact"]["test"]["accuracy"] == pytest.approx(row["accuracy"])
    assert found["save_run"] == run.record["metrics"]
    assert run.record["key"] != open_run(folder / "run").record["key"]
    # again, with codes at hand: the same figures, as a table
    again = folder / "again"
    code, text, err = htaf("concepts", "sparse", folder / "run", "--out", again, "--nec", 3, "--codes", out / "codes")
    assert code == 0, err
    assert "own head" in text
    assert "elastic net of strength" in err
    rows = [row for row in found["rows"] if row["bits"] == "these"]
    assert json.loads((again / "sparse.json").read_text())["rows"] == rows
    assert not (again / "codes").exists()


def test_codes_of_another_network_beside_them(htaf, folder: Path) -> None:
    for words in (("extract", folder / "run", "--out", folder / "codes"),
                  ("extract", folder / "run", "--keep", "backbone", "--out", folder / "features"),
                  ("binarise", folder / "features", "--how", "random", "--concepts", 9, "--seed", 2,
                   "--out", folder / "nine")):  # fmt: skip
        code, _, err = htaf("concepts", *words)
        assert code == 0, err
    nine = open_codes(folder / "nine")
    assert (nine.concepts, nine.info["seed"]) == (9, 2)
    words = ("concepts", "sparse", folder / "run", "--codes", folder / "codes", "--out", folder / "beside")
    code, text, err = htaf(*words, "--nec", 2, "--baseline", folder / "nine", "--json")
    assert code == 0, err
    rows = json.loads(text)["rows"]
    assert {(row["bits"], row["concepts"]) for row in rows} == {("these", 21), (f"codes {folder / 'nine'}", 9)}
    made_run(folder / "four", digits(), concepts=4, shares={"train_images": 100, "validation_images": 50})
    code, text, err = htaf("concepts", "sparse", folder / "four", "--out", folder / "of-four", "--json")
    assert code == 0, err
    assert json.loads(text)["targets"] == [4, None]  # 5 and 10 are more than there are
    assert "too high" not in err
    code, _, err = htaf(*words, "--nec", 2, "--part", "validation", "--json")
    assert code == 0, err
    assert "the validation part chooses the heads: its accuracy is too high" in " ".join(err.split())
    code, _, err = htaf(*words[:3], "--codes", folder / "nine", "--out", folder / "other")
    assert code == 2
    assert "expected codes of the run" in err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--nec", "0"), "--nec must be numbers >= 1, got 0"),
        (("--nec", "2", "22"), "--nec must be in 1 to 21, the number of concepts, got 22"),
        (("--seeds", "0"), "--seeds must be in 1 to 1000, got 0"),
        (("--baseline", "random", "random"), "expected different names for --baseline"),
        (("--baseline", "no-such"), "expected random, median or a folder of codes, got 'no-such'"),
        (("--save-run", "{run}"), "--save-run"),
        (("--out", "{run}"), "--out"),
    ],
)
def test_bad_words_leave_nothing_behind(htaf, folder: Path, words: tuple[str, ...], said: str) -> None:
    before = sorted(folder.iterdir())
    given = [word.replace("{run}", str(folder / "run")) for word in words]
    base = () if "--out" in given else ("--out", folder / "bad")
    code, _, err = htaf("concepts", "sparse", folder / "run", *base, *given)
    assert code != 0
    assert said in " ".join(err.split())
    assert "Traceback" not in err
    assert sorted(folder.iterdir()) == before


def test_a_plain_run_has_no_bits(htaf, folder: Path) -> None:
    code, _, err = htaf("concepts", "sparse", folder / "plain", "--out", folder / "none")
    assert code == 1
    assert "which has no bits" in " ".join(err.split())
    code, _, err = htaf("concepts", "extract", folder / "run", "--keep", "backbone", "features", "--out", folder / "x")
    assert code == 1
    assert "the backbone's features alone" in " ".join(err.split())
    assert np.all([not (folder / name).exists() for name in ("none", "x")])


def test_scores_say_sparsity_and_leakage(htaf, folder: Path) -> None:
    for words in (("extract", folder / "run", "--out", folder / "soft", "--keep", "features"),
                  ("name", folder / "soft", "--attributes", "digits", "--out", folder / "names.json")):  # fmt: skip
        code, _, err = htaf("concepts", *words)
        assert code == 0, err
    words = ("concepts", "score", folder / "soft", "--leakage", "--names", folder / "names.json")
    code, text, err = htaf(*words, "--attributes", "digits", "--out", folder / "scores", "--json")
    assert code == 0, err
    scores = json.loads(text)
    codes = open_codes(folder / "soft")
    assert scores["sparsity"]["nec"] == pytest.approx(np.count_nonzero(codes.weight, axis=1).mean())
    assert 1 <= scores["sparsity"]["ncc"] <= scores["sparsity"]["nec"]
    soft, named = scores["leakage"]["soft"], scores["leakage"]["named"]
    assert len(soft["per_concept"]["ctl"]) == 21
    names = json.loads((folder / "names.json").read_text())
    assert named["verified"] == [entry["concept"] for entry in names if entry["verified"]]
    assert len(named["beyond"]) == len(named["verified"])
    report = (folder / "scores" / "scores.md").read_text()
    assert "| Leakage | |" in report
    assert "of a class, NEC" in report
    code, text, err = htaf(*words)
    assert code == 0, err
    for said in ("concepts of a class (NEC)", "leakage of soft values (CTL)"):
        assert said in text
    code, _, err = htaf("concepts", "score", folder / "codes-without", "--names", folder / "names.json")
    assert code == 2
    assert "--names needs --leakage" in err
    code, _, err = htaf("concepts", "extract", folder / "run", "--out", folder / "hard", "--parts", "test", "train")
    assert code == 0, err
    code, _, err = htaf("concepts", "score", folder / "hard", "--leakage")
    assert code == 2
    assert "has no pre-activations" in " ".join(err.split())
