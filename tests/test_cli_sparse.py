"""`htaf concepts sparse`: a result file, and a run with the sparse head."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from htaf.concepts.extract import extract
from htaf.concepts.run_heads import keep_readable
from htaf.training.runs import open_run
from made_runs import digits, made_run


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root, images = tmp_path_factory.mktemp("sparse"), digits()
    run = made_run(root / "run", images, concepts=21, shares={"train_images": 300, "validation_images": 100})
    extract(run, images, root / "codes")
    return root


def test_a_result_and_a_run(htaf, folder: Path) -> None:
    out, saved = folder / "result", folder / "saved"
    words = ("concepts", "sparse", folder / "run", "--codes", folder / "codes", "--out", out, "--nec", 3)
    code, text, err = htaf(*words, "--save-run", saved, "--json")
    assert code == 0, err
    found = json.loads(text)
    kept = json.loads((out / "sparse.json").read_text())
    assert {name: found[name] for name in kept} == kept
    assert found["concepts"] == 21
    few, every = found["rows"]
    assert (few["target"], every["target"]) == (3, None)
    assert few["nec"] <= 3
    assert every["accuracy"] > 0.4
    run = open_run(saved)
    assert run.record["new_head"]["target"] == 3
    head = run.model().get_submodule("head").weight.detach().numpy()
    assert (head != 0).sum(1).max() <= 3
    assert run.record["metrics"]["exact"]["test"]["accuracy"] == pytest.approx(few["accuracy"])
    assert found["save_run"] == run.record["metrics"]
    assert run.record["key"] != open_run(folder / "run").record["key"]
    code, text, err = htaf(*words)
    assert code == 0, err
    assert "own head" in text
    assert "elastic net of strength" in err
    assert json.loads((out / "sparse.json").read_text())["rows"] == found["rows"]


def test_codes_and_sizes(htaf, folder: Path) -> None:
    four = made_run(folder / "four", digits(), concepts=4, shares={"train_images": 100, "validation_images": 50})
    codes = extract(four, digits(), folder / "codes-of-four").path
    of_four = ("concepts", "sparse", folder / "four", "--codes", codes, "--out", folder / "of-four")
    code, text, err = htaf(*of_four, "--json")
    assert code == 0, err
    assert json.loads(text)["targets"] == [4, None]  # 5 and 10 are more than there are
    assert "too high" not in err
    words = ("concepts", "sparse", folder / "run", "--codes", folder / "codes", "--out", folder / "chosen")
    code, _, err = htaf(*words, "--nec", 2, "--part", "validation", "--json")
    assert code == 0, err
    assert "the validation part chooses the heads: its accuracy is too high" in " ".join(err.split())
    code, _, err = htaf(*words[:3], "--codes", codes, "--out", folder / "other")
    assert code == 2
    assert "codes of the run" in err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--nec", "0"), "--nec must be numbers >= 1, got 0"),
        (("--nec", "2", "22"), "--nec must be in 1 to 21, the number of concepts, got 22"),
        (("--save-run", "{run}"), "--save-run"),
        (("--out", "{run}"), "--out"),
    ],
)
def test_bad_words_leave_nothing_behind(htaf, folder: Path, words: tuple[str, ...], said: str) -> None:
    before = sorted(folder.iterdir())
    given = [word.replace("{run}", str(folder / "run")) for word in words]
    base = ("--codes", folder / "codes", *(() if "--out" in given else ("--out", folder / "bad")))
    code, _, err = htaf("concepts", "sparse", folder / "run", *base, *given)
    assert code != 0
    assert said in " ".join(err.split())
    assert "Traceback" not in err
    assert sorted(folder.iterdir()) == before


def test_codes_of_weights_that_the_run_no_longer_has(htaf, folder: Path, tmp_path: Path) -> None:
    images = digits()
    run = made_run(tmp_path / "run", images, concepts=8, shares={"train_images": 100, "validation_images": 50})
    codes = extract(run, images, tmp_path / "codes").path
    keep_readable(run, images, 1)
    code, _, err = htaf("concepts", "sparse", run.path, "--codes", codes, "--out", tmp_path / "out")
    assert code == 1
    assert "codes of other weights of it: extract them again" in " ".join(err.split())
