"""The command on images: a folder of class folders in, a run and predictions out; bad input as one clear line."""

from __future__ import annotations

import contextlib
import io
import json
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
    code, _, err = htaf(*words, "--backbone", "resnet", "--concepts", "9", "--out", tmp_path / "a")
    assert code == 0, err
    known = tmp_path / "a" / "known.safetensors"
    kept = safetensors.torch.load_file(known)
    known.unlink()  # as of a run that was trained before there was this file
    assert htaf(*words, "--backbone", "resnet", "--concepts", "9", "--out", tmp_path / "a")[0] == 0
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
        (("dhn", "--continue-from", "none"), "expected a run folder with record.json"),
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
    code, out, err = htaf(*words, "--backbone", "convnext_atto", "--clip", "2")
    assert code == 0, err
    recipe = tomllib.loads(out)["recipe"]
    assert (recipe["optimizer"], recipe["lr"], recipe["clip"], recipe["augment"]) == ("adamw", 1e-3, 2.0, "crop-flip")
    assert recipe["start"] == [1.0, 2.0]
    assert "momentum" not in recipe
    assert "depth" not in recipe
    assert "convnext_atto normalises by layers" in err
    code, out, _ = htaf("train", "dhn", "--data", "digits", "--out", tmp_path / "x", "--print-recipe", "--json")
    assert code == 0
    assert json.loads(out)["augment"] == "none"
    code, out, err = htaf(
        "train", "dhn", "--data", "digits", "--out", tmp_path / "x", "--optimizer", "adam", "--print-recipe"
    )
    assert tomllib.loads(out)["recipe"]["lr"] == 1e-3  # 0.1 is SGD's
    assert "lr 0.001, as the recipe's is for another optimizer than adam" in err
    assert not (tmp_path / "x").exists()


def test_the_command_goes_on_from_a_finished_run(htaf, folder: Path, trained: tuple[Path, str], tmp_path: Path) -> None:
    run, said = trained
    assert "26 images to train on, augment crop-flip, 6 to validate" in said
    words = ("train", "dhn", "--data", folder)
    code, _, err = htaf(*words, "--out", run, *SHAPE, *FEW, "--epochs", "2")
    assert code == 1
    assert f"or train it further with --continue-from {run}" in err
    code, _, err = htaf(*words, "--out", tmp_path / "b", "--continue-from", run, "--lr", "0.01")
    assert code == 0, err
    first, second = (json.loads((out / "record.json").read_text()) for out in (run, tmp_path / "b"))
    assert second["continued"]["key"] == first["key"]
    assert second["recipe"] == first["recipe"] | {"lr": 0.01, "start": second["recipe"]["start"]}
    code, _, err = htaf(*words, "--out", tmp_path / "c", "--continue-from", run, "--recipe", "small")
    assert code == 2
    assert "--recipe small does not go with --continue-from" in err
    code, _, err = htaf("train", "bnn", *words[2:], "--out", tmp_path / "c", "--continue-from", run)
    assert code == 2
    assert "is a run of family dhn, not bnn" in err
