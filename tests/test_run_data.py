"""The data of a run and its parts, from Python: where the training found them, split as it split them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

from htaf import runs
from htaf.data import images, tabular
from htaf.data.preprocess import Preprocessor
from htaf.data.reading import DataError
from htaf.models.build import build
from made_runs import FEW, HTAF, digits, made_run


@pytest.fixture(scope="module")
def of_images(tmp_path_factory: pytest.TempPathFactory) -> runs.Run:
    """A run on the digits, of which the recipe leaves some out."""
    out = tmp_path_factory.mktemp("images") / "run"
    made_run(out, digits(), kind="wide_resnet")
    return runs.open_run(out)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"a": rng.normal(size=60), "b": np.arange(60) // 2, "t": rng.normal(size=60)})
    frame.to_csv(path := tmp_path_factory.mktemp("rows") / "rows.csv", index=False)
    return path


@pytest.fixture(scope="module")
def of_a_table(file: Path, tmp_path_factory: pytest.TempPathFactory) -> runs.Run:
    """A run on a table, with the split of seed 3."""
    table = tabular.load(file, target="t")
    preprocessor = table.fit_preprocessor(tabular.split(table, 3).train)
    description = {"kind": "mlp", "in_features": 2, "out_features": 1, "hidden": [4], "batch_norm": False}
    identity = {
        "recipe": {"method": "htaf"},
        "seed": 3,
        "data": {"name": table.name, "fingerprint": table.fingerprint, "task": table.task, "split": "random"},
    }
    out = tmp_path_factory.mktemp("table") / "run"
    record = runs.start_run(out, identity) | {"model": description | {"activation": HTAF}, "metrics": {}}
    record |= {"headline": "rmse", "rows": {}, "best_epoch": 0, "notes": []}
    record |= {"source": {"name": str(file), "data_dir": None, "target": "t", "task": None}}
    return runs.finish_run(out, record, build(record["model"]), preprocessor)


def joined(part: runs.RunPart) -> tuple[torch.Tensor, torch.Tensor]:
    inputs, targets = zip(*part, strict=True)
    return torch.cat(inputs), torch.cat(targets)


def test_the_images_of_a_run_and_their_parts(of_images: runs.Run) -> None:
    data = of_images.data()
    assert isinstance(data, images.Images)
    assert data.fingerprint == digits().fingerprint
    rows = images.split(data, train=int(FEW["train_images"]), validation=int(FEW["validation_images"]))
    preprocessor = of_images.preprocessor()
    assert isinstance(preprocessor, images.ImagePreprocessor)
    for part, expected in (("train", rows.train), ("validation", rows.validation)):
        inputs, labels = joined(of_images.part(part, data))
        assert torch.equal(inputs, preprocessor.normalise(data.train.batch(expected)))
        assert torch.equal(labels, data.train.labels[expected])
    assert torch.equal(joined(of_images.part())[1], data.test.labels)
    assert len(of_images.part("all", data)) == len(joined(of_images.part("all", data))[0]) == 1797


def test_the_rows_of_a_run_and_their_parts(of_a_table: runs.Run, file: Path) -> None:
    table, raw = of_a_table.data(), pd.read_csv(file)
    assert isinstance(table, tabular.Table)
    rows, preprocessor = tabular.split(table, 3), of_a_table.preprocessor()
    assert isinstance(preprocessor, Preprocessor)
    for part in ("train", "validation", "test"):
        inputs, targets = joined(of_a_table.part(part))
        chosen = raw.iloc[getattr(rows, part)]
        np.testing.assert_array_equal(inputs.numpy(), preprocessor.transform(chosen[["a", "b"]]))
        np.testing.assert_allclose(preprocessor.inverse(targets[:, 0].double().numpy()), chosen["t"], rtol=1e-6)
    assert len(of_a_table.part("all")) == 60


def test_a_run_measures_itself(of_images: runs.Run) -> None:
    found = of_images.evaluate()
    assert (found["headline"], found["part"], found["rows"]) == ("accuracy", "test", 359)
    inputs, labels = joined(of_images.part())
    with torch.no_grad():
        smooth, exact = (
            (of_images.model(exact=exact)(inputs).argmax(1) == labels).double().mean().item() for exact in (False, True)
        )
    assert found["smooth"]["accuracy"] == pytest.approx(smooth)
    assert found["exact"]["accuracy"] == pytest.approx(exact)
    assert found["gap"] == pytest.approx(exact - smooth, abs=1e-6)


def test_data_at_another_place(of_a_table: runs.Run, file: Path, tmp_path: Path) -> None:
    """The run's own are known by their content; other data have no parts but all."""
    moved = tmp_path / "moved.csv"
    moved.write_bytes(file.read_bytes())
    assert len(of_a_table.part("test", of_a_table.data(moved))) == 12
    changed = tmp_path / "changed.csv"
    pd.read_csv(file).head(25).to_csv(changed, index=False)
    other = of_a_table.other_data(changed)
    assert len(of_a_table.part("all", other)) == 25
    with pytest.raises(runs.RunError, match=r"trained on other data than changed.csv"):
        of_a_table.part("test", other)


def test_images_are_read_at_the_size_of_the_training(of_images: runs.Run, tmp_path: Path) -> None:
    """Whatever size `load` would choose for them now; own ones, moved ones and others."""
    rng = np.random.default_rng(0)
    for name in digits().classes:
        (tmp_path / "photos" / name).mkdir(parents=True)
        for place in range(10):
            pixels = rng.integers(0, 255, (40, 50), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "photos" / name / f"{place}.png")
    assert images.load(tmp_path / "photos").train.size == (40, 50)
    record = of_images.record | {"source": {"name": str(tmp_path / "photos"), "data_dir": None, "size": None}}
    for found in (
        runs.Run(of_images.path, record).data(),
        of_images.data(tmp_path / "photos"),
        of_images.other_data(tmp_path / "photos"),
    ):
        assert isinstance(found, images.Images)
        assert found.train.size == (8, 8)
        assert len(found.train) + len(found.test) == 100
    with pytest.raises(DataError):
        of_images.other_data(tmp_path / "nothing")


def test_a_run_that_does_not_know_its_data(of_images: runs.Run, of_a_table: runs.Run) -> None:
    for run, what in ((of_images, "images"), (of_a_table, "data")):
        bare = runs.Run(run.path, json.loads(json.dumps(run.record | {"source": {}})))
        with pytest.raises(runs.UnknownSourceError, match=f"does not say where its {what} came from: give their place"):
            bare.part("test")


def test_no_such_part_and_the_wrong_kind(of_images: runs.Run, of_a_table: runs.Run) -> None:
    part: Any = "tset"
    with pytest.raises(runs.RunError, match="expected a part of train, validation, test, all, got 'tset'"):
        of_images.part(part)
    with pytest.raises(DataError, match="expected a table for"):
        of_a_table.part("all", digits())
    with pytest.raises(DataError, match="expected images for"):
        of_images.part("all", of_a_table.data())
