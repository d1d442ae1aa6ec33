"""How far images are from those that a run learned from."""

from __future__ import annotations

import csv
import io
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from htaf.concepts import known as known_room
from htaf.concepts.codes import ConceptError
from htaf.concepts.known import FILE, Known, keep_known, open_known
from htaf.data.image_sets import load
from htaf.data.images import Images
from htaf.training.runs import Run
from htaf.training.runs.run import rows_of
from made_runs import made_run

SHARES: dict[str, float] = {"train_images": 75, "validation_images": 30}


def birds(folder: Path) -> Images:
    """Grass below and sky above, with a spot: of two colours, one a class."""
    rng = np.random.default_rng(0)
    for name, colour in (("red", (200, 40, 40)), ("white", (230, 230, 220))):
        (folder / name).mkdir(parents=True)
        for number in range(75):
            pixels = rng.integers(0, 60, (16, 16, 3)) + np.array([90, 140, 190])
            pixels[10:] = rng.integers(0, 60, (6, 16, 3)) + np.array([60, 110, 40])
            top, left = rng.integers(2, 10, 2)
            pixels[top : top + 5, left : left + 5] = colour
            Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(folder / name / f"{number:02}.png")
    return load(folder)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("known")


@pytest.fixture(scope="module")
def images(folder: Path) -> Images:
    return birds(folder / "birds")


@pytest.fixture(scope="module")
def run(folder: Path, images: Images) -> Run:
    made = made_run(folder / "run", images, shares=SHARES)
    keep_known(made, images)
    return made


@pytest.fixture(scope="module")
def pictures(folder: Path, images: Images, run: Run) -> Path:
    known = open_known(run)
    assert known is not None
    (folder / "new").mkdir()
    shutil.copy(folder / "birds" / known.ids[7], folder / "new" / "learned.png")
    assert images.test.names is not None
    shutil.copy(folder / "birds" / images.test.names[3], folder / "new" / "test.png")
    Image.new("RGB", (1, 1), (0, 0, 255)).save(folder / "new" / "blue.png")
    (folder / "new" / "broken.png").write_bytes(b"no picture")
    return folder / "new"


def rows(out: str) -> dict[str, dict[str, str]]:
    return {Path(row["image"]).stem: row for row in csv.DictReader(io.StringIO(out))}


def test_a_blue_pixel_is_far_and_a_training_image_is_at_0(htaf: Any, run: Run, pictures: Path) -> None:
    code, out, err = htaf("predict", run.path, pictures)
    assert code == 3  # a file could not be read
    found = rows(out)
    assert {name: row["unlike"] for name, row in found.items() if name != "test"} == {
        "blue": "1.0", "broken": "", "learned": "0.0",
    }  # fmt: skip
    assert 0 < float(found["test"]["unlike"]) <= 0.97
    said = (
        "note: 1 of 4 images is farther from the training images than 99% of 105 other images of the training, so the"
    )
    assert said in err
    assert err.count("blue.png") == 1
    assert rows(htaf("predict", run.path, pictures / "blue.png", "--smooth")[1])["blue"]["unlike"] == "1.0"


def test_the_nearest_training_images_are_named(htaf: Any, run: Run, pictures: Path) -> None:
    known = open_known(run)
    assert known is not None
    words = ("predict", run.path, pictures, "--explain")
    of_csv, of_json = rows(htaf(*words)[1]), json.loads(htaf(*words, "--json")[1])
    nearest = {Path(row["image"]).stem: row["nearest"] for row in of_json}
    assert nearest["learned"][0]["image"] == known.ids[7]
    assert nearest["learned"][0]["distance"] < 1e-5
    assert nearest["broken"] == []
    assert not of_csv["broken"]["nearest"]
    for name in ("learned", "test", "blue"):
        assert of_csv[name]["nearest"].split("; ") == [one["image"] for one in nearest[name]]
        far = [one["distance"] for one in nearest[name]]
        assert len(far) == 3
        assert far == sorted(far)


def test_distances_are_those_of_the_angles(run: Run, images: Images) -> None:
    known, net, preprocessor = open_known(run), run.model(), run.preprocessor()
    assert known is not None
    with torch.no_grad():
        of: Any = net
        seen = of.features(preprocessor.normalise(images.test.batch(torch.arange(5)))).numpy()  # pyright: ignore
    distances, found = known.nearest(seen, 100)
    assert distances.shape == found.shape == (5, 75)
    for row in range(5):
        other = known.features[found[row]]
        angle = seen[row] @ other.T / np.linalg.norm(seen[row]) / np.linalg.norm(other, axis=1)
        np.testing.assert_allclose(distances[row], 1 - angle, atol=1e-3)
    near = known.features @ known.features.T - 2 * np.eye(75)
    own = np.sort(np.r_[1 - near.max(1), _held(run, images, known)])
    np.testing.assert_allclose(known.distances, own, atol=1e-3, err_msg="of 30 validation images and of 75 others")
    assert known.unlike(np.array([-1.0, 9.0], np.float32)).tolist() == [0, 1]


def _held(run: Run, images: Images, known: Known) -> np.ndarray:
    net: Any = run.model()
    rows = rows_of(run, images)["validation"][1]
    with torch.no_grad():
        seen = net.features(run.preprocessor().normalise(images.train.batch(rows))).numpy()  # pyright: ignore
    return known.nearest(seen)[0][:, 0]


def test_with_few_images_nothing_is_said_to_mean_nothing(
    htaf: Any, run: Run, pictures: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(known_room, "ENOUGH", 200)
    err = htaf("predict", run.path, pictures / "blue.png")[2]
    assert "105 other images of the training, which are too few to tell anything: it takes 200" in " ".join(err.split())
    assert "mean nothing" not in err


def test_a_run_without_its_file_says_how_to_have_it(htaf: Any, run: Run, pictures: Path, tmp_path: Path) -> None:
    without = tmp_path / "run"
    shutil.copytree(run.path, without)
    (without / FILE).unlink()
    code, out, err = htaf("predict", without, pictures / "test.png")
    assert code == 0
    assert "unlike" not in out
    assert f"{without} has no {FILE}" in err
    (without / FILE).write_bytes(b"no tensors")
    code, _, err = htaf("predict", without, pictures / "test.png")
    assert code == 1
    assert "is damaged: delete it, and give the command of the training again" in err


def test_a_file_of_another_training_is_not_read(run: Run, folder: Path, images: Images, tmp_path: Path) -> None:
    other = made_run(tmp_path / "other", images, shares=SHARES, seed=1)
    shutil.copy(run.path / FILE, other.path / FILE)
    assert open_known(other) is None
    keep_known(other, images)
    assert open_known(other) is not None
    (other.path / FILE).write_bytes((other.path / FILE).read_bytes()[:-40])
    with pytest.raises(ConceptError, match="is damaged"):
        open_known(other)
