"""`htaf concepts`: from a run to codes, scores, names and edits; bad input as one clear line."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from htaf._ground.files import sealed
from htaf.concepts.extract import extract
from htaf.concepts.store import open_codes
from htaf.data.image_sets import load
from htaf.data.images import ImagePreprocessor
from htaf.models.icbm import ICBM
from htaf.training.runs import open_run
from made_runs import digits, made_run
from quick import one_line

FEWER: dict[str, float] = {"train_images": 150, "validation_images": 50}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run, on digits."""
    root, images = tmp_path_factory.mktemp("concepts"), digits()
    made_run(root / "run", images)
    return root


@pytest.fixture(scope="module")
def codes(folder: Path) -> Path:
    """Codes of the run: validation and test images, and the training images."""
    return extract(open_run(folder / "run"), digits(), folder / "codes", keep=["features"]).path


def test_extract_says_parts_and_accuracies(htaf, folder: Path, tmp_path: Path) -> None:
    words = ("concepts", "extract", folder / "run", "--out", tmp_path / "a", "--parts", "test", "other")
    code, out, err = htaf(*words, "--json", "--batch", 100)
    assert code == 0, err
    found, opened = json.loads(out), open_codes(tmp_path / "a")
    assert [(row["part"], row["images"]) for row in found["parts"]] == [("test", 359), ("other", 538)]
    test = opened.part("test")
    assert found["parts"][0]["exact"] == float((test.logits().argmax(1) == test.labels).mean())
    assert (found["concepts"], found["images"]) == (21, 897)
    code, out, err = htaf(*words)
    assert code == 0, err
    assert "897 images, 21 concepts" in out
    code, _, err = htaf("concepts", "extract", folder / "run", "--out", tmp_path / "a")
    assert code == 1
    assert "holds other codes (" in one_line(err)
    assert "parts: ['test', 'other'] there" in one_line(err)


def test_files_without_labels(htaf, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for i in range(3):
        Image.fromarray(np.full((9, 9), 50 * i, np.uint8)).save(tmp_path / "in" / f"{i}.png")
    (tmp_path / "in" / "3.png").touch()
    words = ("concepts", "extract", folder / "run", "--out", tmp_path / "a", "--files", tmp_path / "in")
    code, out, err = htaf(*words)
    assert code == 3, "done, but for some"
    assert f"not read: {tmp_path / 'in' / '3.png'} (an empty file)" in err
    assert "1 of 4 files cannot be read" in one_line(err)
    assert "3 images, 21 concepts" in out
    assert htaf(*words)[0] == 3, "a finished folder too"


def written(out: Path, rows: range) -> Path:
    """Some of the digits as a folder of files for each class."""
    digit = load("digits")
    for i in rows:
        label = digit.classes[int(digit.train.labels[i])]
        (out / label).mkdir(parents=True, exist_ok=True)
        Image.fromarray(digit.train.batch(torch.tensor([i]))[0, 0].numpy()).save(out / label / f"{i}.png")
    return out


def test_labelled_images_of_another_folder(htaf, tmp_path: Path) -> None:
    run = made_run(tmp_path / "run", load(written(tmp_path / "own", range(400))), shares=FEWER)
    other = written(tmp_path / "other", range(400, 520))
    code, out, err = htaf("concepts", "extract", run.path, "--out", tmp_path / "a", "--data", other, "--json")
    assert code == 0, err
    opened, images = open_codes(tmp_path / "a"), load(other)
    assert json.loads(out)["images"] == len(opened) == 120
    files = {name: (part, row) for part in (images.train, images.test) for row, name in enumerate(part.names or ())}
    places = [files[name] for name in opened.ids]
    assert len(set(opened.ids)) == 120
    assert all((other / name).is_file() for name in opened.ids), "an id leads back to its file"
    assert opened.labels.tolist() == [int(part.labels[row]) for part, row in places]
    preprocessor, model = run.preprocessor(), run.model()
    assert isinstance(preprocessor, ImagePreprocessor)
    assert isinstance(model, ICBM)
    pixels = torch.cat([part.batch(torch.tensor([row])) for part, row in places])
    with torch.no_grad():
        bits = model.concepts(preprocessor.normalise(pixels))
    assert np.mean(opened.unpack() == bits.numpy()) > 0.999  # sums in another order may turn a bit


def test_runs_without_images(htaf, folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder / "run", tmp_path / "table")
    record = json.loads((tmp_path / "table" / "record.json").read_text())
    table = record | {"model": {"kind": "mlp", "in_features": 5, "out_features": 3, "hidden": [6]}}
    (tmp_path / "table" / "record.json").write_text(sealed(table))
    extract = ("extract", tmp_path / "table", "--out", tmp_path / "a")
    for words in (extract, (*extract, "--data", tmp_path), (*extract, "--files", tmp_path)):
        code, _, err = htaf("concepts", *words)
        assert code == 2
        assert one_line(err).endswith("table was trained on a table")
    del record["source"]
    (tmp_path / "table" / "record.json").write_text(sealed(record))
    edit = ("edit", tmp_path / "table", "--off", "0:0", "--out", tmp_path / "e")
    for words, instead in ((extract, "give --data"), (edit, "run_heads.edit_run")):
        code, _, err = htaf("concepts", *words)
        assert code == 2
        assert "does not say where its images came from: " in one_line(err)
        assert one_line(err).endswith(instead)


def test_scores(htaf, codes: Path, tmp_path: Path) -> None:
    code, out, err = htaf("concepts", "score", codes)
    assert code == 0, err
    test = open_codes(codes).part("test")
    assert f"{100 * (test.exact == test.labels).mean():.1f}%" in out
    assert "Concepts of a class (NEC)" in out
    code, found, err = htaf("concepts", "score", codes, "--out", tmp_path / "scores", "--json")
    assert code == 0, err
    assert json.loads((tmp_path / "scores" / "scores.json").read_text()) == json.loads(found)


def test_an_edited_run(htaf, folder: Path, codes: Path, tmp_path: Path) -> None:
    opened = open_codes(codes)
    off = [f"{k}:{c}" for k in (3, 4) for c in range(10)]
    code, out, err = htaf("concepts", "edit", folder / "run", "--off", *off, "--out", tmp_path / "e", "--json")
    assert code == 0, err
    weight = opened.weight.copy()
    weight[3:5, :10] = 0
    test = opened.part("test")
    accuracy = float(((test.unpack() @ weight.T + opened.bias).argmax(1) == test.labels).mean())
    assert json.loads(out)["metrics"]["exact"]["test"]["accuracy"] == pytest.approx(accuracy)
    assert (opened.exact != (opened.unpack() @ weight.T + opened.bias).argmax(1)).any()
    head = open_run(tmp_path / "e").model().state_dict()["head.weight"].numpy()
    np.testing.assert_array_equal(head, weight)
    code, out, err = htaf("concepts", "edit", folder / "run", "--off", *off, "--out", tmp_path / "e")
    assert code == 0, err
    assert f"{accuracy:.4f}" in out


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("extract", "{}/run", "--out", "{}/x", "--batch", "0"), 2, "--batch must be >= 1"),
        (
            ("extract", "{}/run", "--out", "{}/x", "--parts", "test", "--data", "digits"),
            2,
            "expected at most one of --data",
        ),
        (("extract", "{}/run", "--out", "{}/x", "--part-images", "0"), 2, "--part-images must be >= 1"),
        (("extract", "{}/nothing", "--out", "{}/x"), 1, "expected a run folder"),
        (("extract", "{}/run", "--out", "{}/x", "--files", "{}/nothing"), 1, "expected image files, folders of them"),
        (("score", "{}/run"), 1, "expected a folder of codes with concepts.json, found none"),
        (("score", "{}/nothing"), 1, "expected a folder of codes with concepts.json, found none"),
        (("score", "{}/codes", "--part", "other"), 1, "part 'other'"),
        (("edit", "{}/run", "--off", "3", "--out", "{}/x"), 2, "expected CLASS:CONCEPT"),
        (("name", "{}/codes", "--attributes", "birds"), 1, "'birds': expected"),
    ],
)
def test_bad_use_is_one_line(htaf, folder: Path, codes: Path, words: tuple[str, ...], code: int, message: str) -> None:
    got, _, err = htaf("concepts", *(word.format(folder) for word in words))
    assert message in one_line(err)
    assert got == code
    assert not (folder / "x").exists()


def put(folder: Path, images: np.ndarray, *, marked: bool, first: int = 0) -> Path:
    """Images of digits as files, with a white corner or without."""
    folder.mkdir(parents=True)
    for number, pixels in enumerate(images.copy(), first):
        if marked:
            pixels[:3, :3] = 255
        Image.fromarray(pixels).save(folder / f"{number}.png")
    return folder


@pytest.fixture
def marked(tmp_path: Path) -> tuple[Path, Path]:
    """Ten digits with a white corner, and without, under the same names."""
    images = digits().test.batch(torch.arange(10))[:, 0].numpy()
    return put(tmp_path / "with", images, marked=True), put(tmp_path / "without", images, marked=False)


def test_find_a_mark(htaf, folder: Path, marked: tuple[Path, Path], tmp_path: Path) -> None:
    words = ("concepts", "find", folder / "run", "--with", marked[0], "--without", marked[1], "--out", tmp_path / "out")
    code, out, err = htaf(*words, "--json")
    assert code == 0, err
    found = json.loads(out)
    assert json.loads((tmp_path / "out" / "found.json").read_text()) == found
    assert (found["with"], found["without"], found["paired"]) == (10, 10, True)
    assert found["follows"] is not None
    assert found["direction"]["p"] < 0.01
    assert found["direction"]["auc"] > 0.9
    for row in found["images"]:
        assert row["with"] == row["image"].startswith(f"{marked[0]}/")
    predicted = open_run(folder / "run").predict_images([row["image"] for row in found["images"]])["prediction"]
    assert [row["prediction"] for row in found["images"]] == list(predicted)
    pairs = np.reshape(list(predicted), (2, -1))
    assert found["pairs"]["changed"] == (pairs[0] != pairs[1]).mean()
    assert "10 pairs of images" in found["answers"]["found"]
    code, out, err = htaf(*words)
    assert code == 0, err
    assert out.startswith("found: ")
    assert found["follows"] == "bit"
    assert not found["bit"]["on"], "the mark turns a bit off"
    least = min(found["bit"]["weights"], key=found["bit"]["weights"].__getitem__)
    assert f"it speaks most for {least} (" in out
    assert f"\nused: of 10 pairs {(pairs[0] != pairs[1]).sum()} have another prediction with it" in out
    assert "\nused, as a bit: of 20 predictions" in out


def test_an_edit_shows_what_it_removes(htaf, folder: Path, marked: tuple[Path, Path], tmp_path: Path) -> None:
    sides = ("--with", marked[0], "--without", marked[1])
    code, out, err = htaf("concepts", "find", folder / "run", *sides, "--json")
    assert code == 0, err
    before = json.loads(out)
    off = [f"{k}:{row['concept']}" for row in before["direction"]["bits"] for k in range(5)]
    words = ("concepts", "edit", folder / "run", "--off", *off, "--out", tmp_path / "e", *sides)
    code, out, err = htaf(*words, "--json")
    assert code == 0, err
    found = json.loads(out)["found"]
    assert found[0] == before
    files = [row["image"] for row in before["images"]]
    predicted = np.reshape(list(open_run(tmp_path / "e").predict_images(files)["prediction"]), (2, -1))
    assert found[1]["pairs"]["changed"] == (predicted[0] != predicted[1]).mean()
    gains = [{row["class"]: row["gain"] for row in one["pairs"]["classes"]} for one in found]
    assert gains[0] != gains[1]
    code, out, err = htaf(*words)
    assert code == 0, err
    shown = re.findall(r"score of (\d)[^-+]+([-+][.\d]+)[^-+]+([-+][.\d]+)", out)
    assert sorted(shown) == [(str(k), *(f"{gain[str(k)]:+.2f}" for gain in gains)) for k in range(5)]
    code, _, err = htaf(*words[:-2])
    assert code == 2
    assert "both of --with and --without" in one_line(err)


def test_is_it_the_background(htaf, folder: Path, tmp_path: Path) -> None:
    words = ("concepts", "find", folder / "run", "--background")
    code, out, err = htaf(*words, "middle", "--out", tmp_path / "out", "--json")
    assert code == 0, err
    found = json.loads(out)
    assert json.loads((tmp_path / "out" / "found.json").read_text()) == found
    assert found["background"] == (found["interval"][0] > 0.05)
    assert 0.4 < found["area"] < 0.6
    rows = {row["image"]: row for row in found["images"]}
    assert len(rows) == 359
    images = digits().test.batch(torch.arange(359))
    inside = torch.zeros(8, 8, dtype=torch.bool)
    inside[1:7, 1:7] = True
    files = [tmp_path / "swapped" / f"{row}.png" for row in range(20)]
    files[0].parent.mkdir()
    for row, file in enumerate(files):
        donor = int(rows[f"test/{row}"]["surroundings"].split("/")[1])
        Image.fromarray(torch.where(inside, images[row, 0], images[donor, 0]).numpy()).save(file)
    predicted = open_run(folder / "run").predict_images([str(file) for file in files])["prediction"]
    assert [rows[f"test/{row}"]["swapped"] for row in range(20)] == list(predicted)
    taken = sum(row["swapped"] == rows[row["surroundings"]]["as it is"] for row in rows.values())
    assert f"{taken} of 359 images are taken for" in found["answers"]["background"]
    masks = tmp_path / "masks" / "test"
    masks.mkdir(parents=True)
    for row in range(30):
        Image.fromarray(inside.numpy().astype(np.uint8) * 255).save(masks / f"{row}.png")
    code, out, err = htaf(*words, masks.parent)
    assert code == 0, err
    assert "of 30 images are taken for" in out
    assert "without a mask of a part of them: 329 images" in " ".join(err.split())
    code, _, err = htaf(*words, "middle", "--with", masks)
    assert code == 2
    assert "leave --with and --without out" in one_line(err)


def test_find_takes_the_pairs_that_are_there(htaf, folder: Path, marked: tuple[Path, Path]) -> None:
    with_, without = marked
    for file in with_.iterdir():  # another ending
        Image.open(file).save(file.with_suffix(".bmp"))
        file.unlink()
    (without / "3.png").unlink()
    code, out, err = htaf("concepts", "find", folder / "run", "--with", with_, "--without", without)
    assert code == 0, err
    assert "9 pairs of images" in out
    assert "name is not on both sides are left out, as the others are pairs: 1" in " ".join(err.split())
    for number in (4, 5, 6):
        (without / f"{number}.png").unlink()
    code, out, err = htaf("concepts", "find", folder / "run", "--with", with_, "--without", without)
    assert code == 0, err
    assert "10 images with it, 6 without" in out


def test_find_takes_numbered_images_of_other_things_for_no_pairs(htaf, folder: Path, tmp_path: Path) -> None:
    images = digits().test.batch(torch.arange(40))[:, 0].numpy()
    one, two = (put(tmp_path / name, images[at::2], marked=False) for at, name in enumerate("ab"))
    code, out, err = htaf("concepts", "find", folder / "run", "--with", one, "--without", two)
    assert code == 0, err
    assert "no more alike than others, so they are not taken as pairs" in " ".join(err.split())
    assert "20 images with it, 20 without" in out


def test_find_nothing_in_equal_sides(htaf, folder: Path, tmp_path: Path) -> None:
    images = digits().test.batch(torch.arange(40))[:, 0].numpy()
    one, two = (put(tmp_path / name, images[at::2], marked=False, first=100 * at) for at, name in enumerate("ab"))
    (tmp_path / "out").mkdir()
    code, out, err = htaf(
        "concepts", "find", folder / "run", "--with", one, "--without", two, "--out", tmp_path / "out"
    )
    assert code == 0, err
    assert "found: nothing follows it in these images" in out
    assert "used" not in out


def test_find_says_what_is_wrong_with_the_images(
    htaf, folder: Path, marked: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_, without = marked

    def said(*words: object, run: Path = folder / "run", code: int = 1) -> str:
        got, _, err = htaf("concepts", "find", run, *words)
        assert got == code, err
        return one_line(err)

    assert "got one on both sides" in said("--with", with_, "--without", with_)
    copy = tmp_path / "copy"
    shutil.copytree(with_, copy)
    assert "expected other images without the concept than with it, got one on both sides: " in said(
        "--with", with_, "--without", copy
    )
    some = sorted(without.iterdir())
    assert "at least 5 images with the concept and as many without, got 10 and 4" in said(
        "--with", with_, "--without", *some[:4]
    )
    shutil.copy(some[0], without / "again.png")
    code, out, err = htaf("concepts", "find", folder / "run", "--with", with_, "--without", without)
    assert code == 0, err
    assert f"left out, as equal to others of their side: '{without / 'again.png'}'" in err
    (without / "0.png").unlink()
    (without / "again.png").unlink()
    (with_ / "1.png").write_bytes(b"x")
    code, out, err = htaf("concepts", "find", folder / "run", "--with", with_, "--without", without)
    assert code == 3, err
    assert f"not read: {with_ / '1.png'}: " in err
    assert "8 pairs of images" in out
    assert "expected image files or folders for --without, got none" in said("--with", with_, "--without", code=2)
    assert "same folder as the input" in said("--with", with_, "--without", without, "--out", with_, code=2)
    inside = said("--with", with_, "--without", without, "--out", without / "out", code=2)
    assert "--out must lie outside the images of --without" in inside
    monkeypatch.chdir(shutil.copytree(without, tmp_path / "sets" / "digits").parent)
    assert "--out must lie outside" in said("--with", with_, "--without", "digits", "--out", "digits/out", code=2)
