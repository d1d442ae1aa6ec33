"""`htaf demo --data FOLDER`: from a folder to the page, on a small backbone with weights from a file."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from htaf._ground.errors import HtafError
from htaf.concepts.discovery import discover
from htaf.concepts.known import open_known
from htaf.training.runs import open_run


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two classes that a colour tells apart."""
    place, rng = tmp_path_factory.mktemp("photos"), np.random.default_rng(0)
    for name, channel in (("red", 0), ("blue", 2)):
        (place / name).mkdir()
        for row in range(24):
            pixels = rng.integers(0, 90, (32, 32, 3)).astype(np.uint8)
            pixels[:, :, channel] += 120
            Image.fromarray(pixels).save(place / name / f"{row}.png")
    return place


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import timm  # once htaf is there: see docs/architecture.md

    file = tmp_path_factory.mktemp("weights") / "w.pth"
    with torch.random.fork_rng():
        torch.manual_seed(0)
        torch.save(timm.create_model("resnet10t").state_dict(), file)
    return file


def test_a_folder_becomes_a_page(htaf, folder: Path, weights: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.delenv("OPENAI_MODEL", raising=False)
    words = ("demo", "--data", folder, "--pretrained", weights, "--backbone", "resnet10t", "--out", tmp_path / "d")
    words = (*words, "--concepts", "8", "--epochs", "30")
    code, out, err = htaf(*words, "--json")
    assert code == 0, err
    found = json.loads(out)
    assert [line for line in err.splitlines() if line.startswith("epoch ")]  # with --json too
    assert found["exact"] > 0.9
    assert found["concepts"] == 8
    assert found["weights"]["file"] == "w.pth"
    assert {"read", "train", "heads", "extract", "score", "page"} == found["steps"].keys()
    assert [row["target"] for row in found["heads"]["rows"]] == [None, 5, None]
    assert Path(found["page"]).is_file()
    assert (tmp_path / "d/concepts/scores.json").is_file()
    run = open_run(tmp_path / "d/icbm")
    assert run.record["weights"]["sha256"] == found["weights"]["sha256"]
    assert run.preprocessor().mean == (0.485, 0.456, 0.406)  # pyright: ignore[reportAttributeAccessIssue]
    assert run.evaluate("test")["exact"]["accuracy"] == pytest.approx(found["exact"])
    before = (tmp_path / "d/icbm/record.json").read_bytes()
    code, out, err = htaf(*words)  # again: what is finished is kept
    assert code == 0
    assert "2 classes: names of the concepts cannot be checked on classes" in " ".join(err.split())
    assert "there are no concepts beyond the classes" in " ".join(err.split())
    assert "page: open" in out
    assert "How many concepts a class draws on" in out
    assert (tmp_path / "d/icbm/record.json").read_bytes() == before
    options = {"pretrained": str(weights), "backbone": "resnet10t", "concepts": 8, "epochs": 30}
    made = discover(folder, tmp_path / "d", **options)  # the same from Python: nothing is trained again
    assert (tmp_path / "d/icbm/record.json").read_bytes() == before
    assert made.summary | {"steps": 0} == found | {"steps": 0}
    assert (str(made.page), made.codes.concepts, made.run.path) == (found["page"], 8, tmp_path / "d/icbm")
    assert len(repr(made)) < 400, repr(made)
    sparse = discover(folder, tmp_path / "e", per_class=2, **options | {"epochs": 2})
    assert "heads" in sparse.run.record
    assert open_known(sparse.run) is not None, "of the run with its sparse head"
    with pytest.raises(HtafError, match="out must lie outside the images"):
        discover(folder, folder / "new", **options)
    with pytest.raises(HtafError, match="concept"):
        discover(folder, tmp_path / "new", concept=8)
    assert not (tmp_path / "new").exists()
    (took,) = re.findall(r"^seconds: (.*); (\d+) in all$", out, re.MULTILINE)
    steps = [int(part.split()[-1]) for part in took[0].split(", ")]
    assert abs(sum(steps) - int(took[1])) <= len(steps)  # as all are rounded
    lines = [shlex.split(line, comments=True)[1:] for line in out.splitlines() if line.startswith("  htaf ")]
    assert [line[0] for line in lines] == ["predict", "evaluate", "concepts"]
    for line in lines:  # as they stand
        code, out, err = htaf(*line)
        assert code == 0, err
    assert (tmp_path / "d/classes/confusion.png").is_file()
    assert (tmp_path / "d/where/index.jsonl").is_file()
    assert htaf(*words, "--json")[0] == 0  # what they wrote is in the way of nothing

    code, _, err = htaf("evaluate", tmp_path / "d")
    assert code == 1
    assert f"found none at {tmp_path / 'd'}; {tmp_path / 'd' / 'icbm'} has one" in " ".join(err.split())
    sides = ("--with", folder / "red", "--without", folder / "blue")
    code, out, err = htaf("concepts", "find", tmp_path / "d/icbm", *sides, "--json")
    assert code == 0, err
    assert json.loads(out)["follows"] == "bit"


def test_a_training_keeps_a_head_that_can_be_read(htaf, folder: Path, weights: Path, tmp_path: Path) -> None:
    words = ("train", "icbm", "--data", folder, "--backbone", "resnet10t", "--pretrained", weights, "--freeze", "True")
    words = (*words, "--concepts", "12", "--epochs", "5")
    code, out, err = htaf(*words, "--out", tmp_path / "run")
    assert code == 0, err
    assert "How many concepts a class draws on" in out
    rows = open_run(tmp_path / "run").record["heads"]["rows"]
    assert [row["target"] for row in rows] == [None, 5, 10, None]
    code, out, err = htaf(*words, "--out", tmp_path / "run")
    assert (code, "already done" in err, "How many concepts" in out) == (0, True, True)
    code, _, err = htaf(*words, "--out", tmp_path / "run", "--concepts-per-class", "0")
    assert code == 1
    assert "--concepts-per-class auto, not 0: choose another --out" in " ".join(err.split())
    code, out, err = htaf(*words, "--out", tmp_path / "dense", "--concepts-per-class", "0")
    assert (code, "How many concepts" in out) == (0, False), err
    code, out, err = htaf(*words, "--out", tmp_path / "dense")  # what is there stays as it is
    assert (code, "How many concepts" in out) == (0, False), err
    for more, said in (
        (("--concepts-per-class", "-1"), "must be auto or >= 0, got -1"),
        (("--concepts-per-class", "5", "--method", "relu"), "does not go with method relu"),
    ):
        code, _, err = htaf(*words, "--out", tmp_path / "bad", *more)
        assert code == 2
        assert said in " ".join(err.split())


def test_what_a_demonstration_refuses(htaf, folder: Path, weights: Path, tmp_path: Path) -> None:
    before = sorted(folder.rglob("*"))
    words = ("demo", "--data", folder, "--backbone", "resnet10t")
    for out in (folder, folder / "new", folder / "red" / "new"):
        code, _, err = htaf(*words, "--pretrained", weights, "--out", out)
        assert code == 2
        assert "--out must lie outside the images of --data" in " ".join(err.split())
        code, _, err = htaf("train", "icbm", "--data", folder, "--out", out)
        assert code == 2
        assert "--out must lie outside the images of --data" in " ".join(err.split())
    code, _, err = htaf("train", "icbm", "--data", folder, "--out", tmp_path / "run", "--concepts", "0")
    assert code == 2
    assert "--concepts must be >= 1" in " ".join(err.split())
    for more, said in (
        (("--pretrained", ""), "--pretrained: expected hub, a file, a package"),
        (("--concepts", "0"), "--concepts must be >= 1, got 0"),
        (("--epochs", "0"), "--epochs must be >= 1, got 0"),
        (("--enlarge", "-1"), "--enlarge must be >= 0, got -1"),
    ):
        code, _, err = htaf(*words, *more, "--out", tmp_path / "out")
        assert code == 2
        assert said in " ".join(err.split())
    assert sorted(folder.rglob("*")) == before
    assert not (tmp_path / "out").exists()
