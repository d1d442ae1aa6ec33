"""The command on images: a folder of class folders in, a run and predictions out; bad input as one clear line."""

from __future__ import annotations

import contextlib
import io
import json
import re
import shlex
import sys
import tomllib
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import safetensors.torch
import torch
from PIL import Image

from htaf import cli
from htaf._ground.errors import HtafError
from htaf.concepts.discovery import discover
from htaf.concepts.known import open_known
from htaf.training.runs import open_run

SHAPE = ("--recipe", "reduced", "--depth", "10", "--batch-size", "8")
SMALL = (*SHAPE, "--epochs", "1")
FEW = ("--train-images", "0", "--validation-images", "0.2")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """20 red and 20 blue pictures of 12 pixels."""
    root, rng = tmp_path_factory.mktemp("images") / "colours", np.random.default_rng(0)
    for channel, name in ((0, "red"), (2, "blue")):
        (root / name).mkdir(parents=True)
        for i in range(20):
            pixels = rng.integers(0, 90, (12, 12, 3), dtype=np.uint8)
            pixels[..., channel] += 140
            Image.fromarray(pixels).save(root / name / f"{i}.png")
    return root


@pytest.fixture(scope="module")
def trained(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A run of one epoch, and what was said of it on the error stream."""
    out, said = tmp_path_factory.mktemp("trained") / "run", io.StringIO()
    words = ("train", "dhn", "--data", folder, "--out", out, *SMALL, *FEW)
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stderr(said):
        patch.setattr(sys, "argv", ["htaf", *map(str, words)])
        cli.main()
    return out, said.getvalue()


def test_a_folder_from_training_to_prediction(htaf, folder: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    words = ("train", "dhn", "--data", folder, "--out", run, *SHAPE, *FEW, "--epochs", "6")
    code, out, err = htaf(*words)
    assert code == 0, err
    assert "colours: accuracy (htaf" in out
    assert "20% of each class held out" in err
    hint = f"pretrained backbone is usually far better: htaf demo --pretrained hub --data {folder}"
    assert hint in " ".join(err.split())
    record = json.loads((run / "record.json").read_text())
    assert record["source"] == {"name": str(folder), "data_dir": None, "size": None}

    code, out, err = htaf("evaluate", run, "--json")
    assert code == 0, err
    assert json.loads(out)["exact"] == record["metrics"]["exact"]["test"]
    code, out, err = htaf("evaluate", run, "--data", folder, "--json")
    assert code == 0, err
    assert json.loads(out)["rows"] == 40

    code, out, err = htaf("predict", run, folder / "red")
    assert code == 0, err
    frame = pd.read_csv(io.StringIO(out))
    assert list(frame.columns) == ["image", "prediction", "probability_blue", "probability_red", "error"]
    assert len(frame) == 20
    assert (frame["prediction"] == "red").mean() > 0.5
    code, out, _ = htaf("predict", run, folder / "red" / "0.png", folder / "blue" / "1.png", "--json")
    assert code == 0
    assert [row["image"] for row in json.loads(out)] == [str(folder / "red" / "0.png"), str(folder / "blue" / "1.png")]

    for name in ("red", "blue"):  # of another size
        (tmp_path / "large" / name).mkdir(parents=True)
        for i in range(5):
            Image.open(folder / name / f"{i}.png").resize((30, 20)).save(tmp_path / "large" / name / f"{i}.png")
    code, out, err = htaf("evaluate", run, "--data", tmp_path / "large", "--json")
    assert code == 0, err
    assert json.loads(out)["rows"] == 10
    (folder / "red" / "._0.png").write_text("what macOS leaves beside a file")
    code, out, err = htaf("predict", run, folder / "red")
    assert code == 0, err
    assert len(pd.read_csv(io.StringIO(out))) == 20
    code, _, err = htaf("predict", run, folder / "red" / "none.png")
    assert code == 1
    assert "expected an image file or a folder of images, got neither" in err
    assert "already done: " in htaf(*words)[2]


def test_images_that_lose_much_are_told(htaf, tmp_path: Path) -> None:
    run, rng = tmp_path / "run", np.random.default_rng(0)
    few = ("--train-images", "60", "--validation-images", "30")
    assert htaf("train", "dhn", "--data", "digits", "--out", run, *SMALL, *few)[0] == 0
    Image.new("RGB", (300, 200), (200, 40, 40)).save(tmp_path / "photo.png")
    Image.fromarray(rng.integers(0, 255, (8, 8), dtype=np.uint8)).save(tmp_path / "scan.png")
    code, _, err = htaf("predict", run, tmp_path / "photo.png", tmp_path / "scan.png")
    assert code == 0, err
    said = "of 2 images looked at 1 in colour, read as grey and 1 over 4 times as large, shrunk to 8 x 8"
    assert said in " ".join(err.split())
    code, _, err = htaf("predict", run, tmp_path / "scan.png")
    assert (code, "looked at" in err) == (0, False)


def test_concept_bottlenecks(htaf, folder: Path, tmp_path: Path) -> None:
    words = ("train", "icbm", "--data", folder, "--recipe", "reduced", *FEW, "--epochs", "1", "--batch-size", "8")
    shape = ("--backbone", "resnet", "--depth", "18", "--width", "16")
    code, _, err = htaf(*words, *shape, "--concepts", "9", "--out", tmp_path / "a")
    assert code == 0, err
    known = tmp_path / "a" / "known.safetensors"
    kept = safetensors.torch.load_file(known)
    known.unlink()  # as of a run that was trained before there was this file
    assert htaf(*words, *shape, "--concepts", "9", "--out", tmp_path / "a")[0] == 0
    for name, values in safetensors.torch.load_file(known).items():
        torch.testing.assert_close(values, kept[name], rtol=0, atol=0)
    assert "unlike" in htaf("predict", tmp_path / "a", folder / "red")[1]
    model = json.loads((tmp_path / "a" / "record.json").read_text())["model"]
    assert model["backbone"] == {"kind": "resnet", "depth": 18, "width": 16, "stem": "cifar"}
    assert model["concepts"] == 9
    code, _, err = htaf(*words, "--backbone", "resnet_18", "--out", tmp_path / "b")
    assert code == 1
    assert "expected the name of a timm model, got 'resnet_18'" in err
    code, _, err = htaf(*words, "--depth", "10", "--pretrained", tmp_path / "a", "--out", tmp_path / "c")
    assert code == 1
    assert "another architecture" in err
    table = tmp_path / "table.csv"
    table.write_text("class,warm\nred,1\nblue,0\n")
    given = ("--method", "relu", "--bottleneck", "joint", "--attributes", table)
    code, _, err = htaf(*words, "--depth", "10", *given, "--out", tmp_path / "d")
    assert code == 0, err
    assert json.loads((tmp_path / "d" / "record.json").read_text())["model"]["concepts"] == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("icbm", "--backbone", "resnet99"), "expected the name of a timm model, got 'resnet99'"),
        (("icbm", "--pretrained", "nowhere.safetensors"), "a file of weights (.safetensors, .pth, .pt)"),
        (("dhn", "--device", "mps"), "expected a mps device"),
        (("dhn", "--checkpoint-seconds", "-1"), "checkpoint_seconds must be >= 0"),
        (("dhn", "--workers", "-1"), "workers must be"),
        (("dhn", "--out", "full"), "expected a new or empty folder"),
        (("dhn", "--sharpen", "False", "--start", "1", "2"), "sharpen false does not read --start"),
    ],
)
def test_cheap_checks_come_before_the_images_are_read(
    htaf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], message: str
) -> None:
    def read(*_: object, **__: object) -> None:
        raise AssertionError("the images were read")

    monkeypatch.setattr("htaf.data.image_sets.load", read)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes.txt").write_text("mine")
    out = () if "--out" in words else ("--out", "x")
    code, _, err = htaf("train", words[0], "--data", "photos", *out, *words[1:])
    assert code in (1, 2)
    (line,) = [line for line in err.splitlines() if line.startswith("htaf: error:")]
    assert message in line


def test_the_recipe_is_printed_with_its_effective_values(htaf, folder: Path, tmp_path: Path) -> None:
    words = ("train", "icbm", "--data", folder, "--out", tmp_path / "x", *FEW, "--print-recipe")
    code, out, err = htaf(*words, "--backbone", "convnext_atto", "--clip", "2", "--optimizer", "adamw")
    assert code == 0, err
    recipe = tomllib.loads(out)["recipe"]
    assert (recipe["optimizer"], recipe["lr"], recipe["clip"], recipe["augment"]) == ("adamw", 1e-3, 2.0, "crop-flip")
    assert recipe["start"] == [1.0, 2.0]
    assert "momentum" not in recipe
    assert "depth" not in recipe
    code, out, _ = htaf("train", "dhn", "--data", "digits", "--out", tmp_path / "x", "--print-recipe", "--json")
    assert code == 0
    assert json.loads(out)["augment"] == "none"
    assert not (tmp_path / "x").exists()


def test_a_folder_of_another_run_is_refused(htaf, folder: Path, trained: tuple[Path, str]) -> None:
    run, said = trained
    assert "26 images to train on, augment crop-flip, 6 to validate" in said
    words = ("train", "dhn", "--data", folder)
    code, _, err = htaf(*words, "--out", run, *SHAPE, *FEW, "--epochs", "2")
    assert code == 1
    assert "holds another run (recipe.epochs: 1 there, 2 here)" in err


# ---- `htaf demo --data FOLDER`: from a folder to the page, on a small backbone with weights from a file ----


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
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


def test_a_folder_becomes_a_page(htaf, photos: Path, weights: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.delenv("OPENAI_MODEL", raising=False)
    words = ("demo", "--data", photos, "--pretrained", weights, "--backbone", "resnet10t", "--out", tmp_path / "d")
    words = (*words, "--concepts", "8", "--epochs", "30")
    code, out, err = htaf(*words, "--json")
    assert code == 0, err
    found = json.loads(out)
    assert "images to train on" in err  # with --json too
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
    made = discover(photos, tmp_path / "d", **options)  # the same from Python: nothing is trained again
    assert (tmp_path / "d/icbm/record.json").read_bytes() == before
    assert made.summary | {"steps": 0} == found | {"steps": 0}
    assert (str(made.page), made.codes.concepts, made.run.path) == (found["page"], 8, tmp_path / "d/icbm")
    assert len(repr(made)) < 400, repr(made)
    with pytest.raises(HtafError, match="out must lie outside the images"):
        discover(photos, photos / "new", **options)
    with pytest.raises(HtafError, match="concept"):
        discover(photos, tmp_path / "new", concept=8)
    assert not (tmp_path / "new").exists()
    (took,) = re.findall(r"^seconds: (.*); (\d+) in all$", out, re.MULTILINE)
    steps = [int(part.split()[-1]) for part in took[0].split(", ")]
    assert abs(sum(steps) - int(took[1])) <= len(steps)  # as all are rounded
    lines = [shlex.split(line, comments=True)[1:] for line in out.splitlines() if line.startswith("  htaf ")]
    assert [line[0] for line in lines] == ["predict", "evaluate"]
    for line in lines:  # as they stand
        code, out, err = htaf(*line)
        assert code == 0, err
    assert htaf(*words, "--json")[0] == 0  # what they wrote is in the way of nothing

    code, _, err = htaf("evaluate", tmp_path / "d")
    assert code == 1
    assert f"found none at {tmp_path / 'd'}; {tmp_path / 'd' / 'icbm'} has one" in " ".join(err.split())
    sides = ("--with", photos / "red", "--without", photos / "blue")
    code, out, err = htaf("concepts", "find", tmp_path / "d/icbm", *sides, "--json")
    assert code == 0, err
    found = json.loads(out)
    assert (found["follows"], found["confounded"]) == (None, True), "red and blue are classes"


@pytest.mark.slow
def test_a_page_of_a_sparse_head(photos: Path, weights: Path, tmp_path: Path) -> None:
    options = {"pretrained": str(weights), "backbone": "resnet10t", "concepts": 8, "epochs": 2}
    sparse = discover(photos, tmp_path / "e", per_class=2, **options)
    assert "heads" in sparse.run.record
    assert open_known(sparse.run) is not None, "of the run with its sparse head"


def test_a_training_keeps_a_head_that_can_be_read(htaf, photos: Path, weights: Path, tmp_path: Path) -> None:
    words = ("train", "icbm", "--data", photos, "--backbone", "resnet10t", "--pretrained", weights, "--freeze", "True")
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


def test_what_a_demonstration_refuses(htaf, photos: Path, weights: Path, tmp_path: Path) -> None:
    before = sorted(photos.rglob("*"))
    words = ("demo", "--data", photos, "--backbone", "resnet10t")
    for out in (photos, photos / "new", photos / "red" / "new"):
        code, _, err = htaf(*words, "--pretrained", weights, "--out", out)
        assert code == 2
        assert "--out must lie outside the images of --data" in " ".join(err.split())
        code, _, err = htaf("train", "icbm", "--data", photos, "--out", out)
        assert code == 2
        assert "--out must lie outside the images of --data" in " ".join(err.split())
    code, _, err = htaf("train", "icbm", "--data", photos, "--out", tmp_path / "run", "--concepts", "0")
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
    assert sorted(photos.rglob("*")) == before
    assert not (tmp_path / "out").exists()
