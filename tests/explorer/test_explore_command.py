"""`htaf explore`: from a run to a page; bad input as one clear line."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
from PIL import Image

from htaf._ground.files import sealed
from htaf.concepts.codes import ConceptError, codes_key
from htaf.concepts.explorer import folder as room
from htaf.concepts.explorer.run_page import build_run_page
from htaf.concepts.explorer.shown import Shown
from htaf.concepts.extract import extract
from htaf.concepts.naming.files import write_names
from htaf.concepts.store import open_codes
from htaf.data.image_sets import load
from htaf.training import runs
from made_pages import contents, read_page
from made_runs import PLAIN, digits, made_run
from quick import one_line

PAGE = ("index.html", "app.js", "app.css")


@pytest.fixture(scope="module")
def runs_of(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run, another one and a plain one, on digits; and what stands in for the page."""
    root, images = tmp_path_factory.mktemp("explore"), digits()
    made_run(root / "run", images)
    made_run(root / "second", images, seed=1)
    made_run(root / "plain", images, PLAIN)
    (root / "page").mkdir()
    for name in PAGE:
        (root / "page" / name).write_text(name)
    return root


@pytest.fixture
def folder(runs_of: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(room, "PAGE", runs_of / "page")
    return runs_of


@pytest.fixture(scope="module")
def codes(runs_of: Path) -> Path:
    return extract(runs.open_run(runs_of / "run"), digits(), runs_of / "codes").path


def test_a_run_becomes_a_page(htaf, folder: Path, codes: Path, tmp_path: Path) -> None:
    words = ("explore", folder / "run", "--codes", codes, "--out", tmp_path / "page")
    code, out, err = htaf(*words)
    assert code == 0, err
    assert "359 test images, 21 concepts (0 named, 0 of them verified), 10 classes" in out
    assert f"page: {tmp_path / 'page' / 'index.html'} (open it in a browser)" in out
    assert "note: concepts have numbers, not names" in err
    found, test = read_page(tmp_path / "page"), open_codes(codes).part("test")
    head, arrays = found["page"], found["arrays"]
    bits = np.unpackbits(arrays["bits"], axis=1, count=21, bitorder="little")
    np.testing.assert_allclose(bits @ arrays["weight"].astype(float).T + arrays["bias"], test.logits(), atol=1e-5)
    exact = runs.open_run(folder / "run")
    images = load("digits").test
    torch_logits = runs.forward(exact.model(), exact.preprocessor().normalise(images.pixels))
    np.testing.assert_allclose(bits @ arrays["weight"].astype(float).T + arrays["bias"], torch_logits, atol=1e-4)
    assert head["title"] == "digits"
    about = dict(head["about"])
    assert (about["Run"], about["Data"], about["Seed"]) == ("run", "digits", "0")
    assert about["Method"] == "htaf"
    assert about["Images as the network sees them"] == "8 x 8 pixels"
    assert about["Network"] == "wide_resnet"
    assert not any("/" in value for value in about.values())
    assert head["sprites"]["files"] == ["data/sprite-0000.webp", "data/sprite-0001.webp"]
    sheet = np.asarray(Image.open(tmp_path / "page" / head["sprites"]["files"][0]).convert("L"))
    np.testing.assert_array_equal(sheet[8:16, 16:24], images.pixels[18, 0])  # row 1, column 2
    before = {file: file.read_bytes() for file in (tmp_path / "page" / "data").iterdir()}
    code, out, err = htaf(*words, "--json")
    assert code == 0, err
    assert json.loads(out)["images"] == 359
    assert {file: file.read_bytes() for file in (tmp_path / "page" / "data").iterdir()} == before


def test_codes_names_part_and_number(htaf, folder: Path, codes: Path, tmp_path: Path) -> None:
    names = tmp_path / "n.json"
    names.write_text(json.dumps([{"concept": 3, "name": "[red]stroke"}]))
    words = ("explore", folder / "run", "--out", tmp_path / "p", "--codes", codes, "--names", names, "--detailed", 0)
    code, out, err = htaf(*words, "--part", "validation", "--images", "50")
    assert code == 0, err
    assert "50 validation images, 21 concepts (1 named, 0 of them verified)" in out
    found = read_page(tmp_path / "p")
    assert (found["page"]["part"], found["page"]["images"]) == ("validation", 50)
    assert (found["concepts"][3]["name"], found["concepts"][3]["source"]) == ("[red]stroke", "hand")


def test_the_page_of_a_run_from_python(htaf, folder: Path, codes: Path, tmp_path: Path) -> None:
    made = build_run_page(runs.open_run(folder / "run"), codes, tmp_path / "a", shown=Shown(images=40, detailed=9))
    assert (made["images"], made["concepts"], made["maps"]) == (40, 21, 9)
    words = ("explore", folder / "run", "--out", tmp_path / "b", "--codes", codes, "--images", 40, "--detailed", 9)
    assert htaf(*words)[0] == 0
    assert contents(tmp_path / "a") == contents(tmp_path / "b")
    with pytest.raises(ConceptError, match="expected a new or empty folder"):
        build_run_page(runs.open_run(folder / "run"), codes, folder / "run")


def test_a_plain_network_by_its_binarised_codes(htaf, folder: Path, tmp_path: Path) -> None:
    assert htaf("concepts", "extract", folder / "plain", "--out", tmp_path / "f")[0] == 0
    assert htaf("paper", "binarise", tmp_path / "f", "--out", tmp_path / "b")[0] == 0
    words = ("explore", folder / "plain", "--out", tmp_path / "p", "--codes", tmp_path / "b", "--images", 50)
    code, out, err = htaf(*words)
    assert code == 0, err
    assert "50 test images" in out
    assert read_page(tmp_path / "p")["page"]["sprites"] is not None
    code, _, err = htaf("explore", folder / "second", "--out", tmp_path / "q", "--codes", tmp_path / "b")
    assert code == 1
    assert "of a network with another head" in one_line(err)


def test_other_weights_of_a_run(htaf, folder: Path, codes: Path, tmp_path: Path) -> None:
    edit = ("concepts", "edit", folder / "run", "--off", "3:1", "--out", tmp_path / "edited")
    assert htaf(*edit)[0] == 0
    for run in (folder / "second", tmp_path / "edited"):
        code, _, err = htaf("explore", run, "--out", tmp_path / "p", "--codes", codes)
        assert code == 1
        assert f"expected codes of {run}, {codes} holds those of {folder / 'run'}" in one_line(err)
    again = shutil.copytree(folder / "run", tmp_path / "again")
    weights = safetensors.torch.load_file(again / "model.safetensors")
    data = safetensors.torch.save({name: tensor * 2 for name, tensor in weights.items()})
    (again / "model.safetensors").write_bytes(data)
    record = json.loads((again / "record.json").read_text()) | {"model_sha256": hashlib.sha256(data).hexdigest()}
    (again / "record.json").write_text(sealed(record))
    code, _, err = htaf("explore", again, "--out", tmp_path / "p", "--codes", codes)
    assert code == 1
    assert "holds codes of other weights of it" in one_line(err)
    assert not (tmp_path / "p").exists()


def test_images_that_moved_leave_a_page_without_thumbnails(htaf, folder: Path, tmp_path: Path) -> None:
    pixels = digits()
    for side in ("train", "test"):
        part = getattr(pixels, side)
        for row in range(0, len(part), 4):
            file = tmp_path / "photos" / side / pixels.classes[part.labels[row]] / f"{row}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(part.pixels[row, 0].numpy()).save(file)
    photos = load(tmp_path / "photos")
    run = made_run(tmp_path / "run", photos, shares={"train_images": 150, "validation_images": 50})
    record = run.record | {"source": {"name": str(tmp_path / "photos"), "data_dir": None, "size": None}}
    runs.write_atomic(run.path / "record.json", runs.to_json(record))
    extract(run, photos, tmp_path / "codes")
    words = ("explore", run.path, "--codes", tmp_path / "codes", "--out", tmp_path / "p", "--detailed", 0)
    code, _, err = htaf(*words)
    assert code == 0, err
    assert read_page(tmp_path / "p")["page"]["sprites"] is not None
    (tmp_path / "photos").rename(tmp_path / "moved")
    for source, why in ((None, f"{tmp_path / 'run'} does not say where its images came from"), (record["source"], "")):
        runs.write_atomic(run.path / "record.json", runs.to_json(record | {"source": source}))
        code, _, err = htaf(*words)
        assert code == 0, err
        assert f"note: no thumbnails: {why}" in err
        assert read_page(tmp_path / "p")["page"]["sprites"] is None
    (tmp_path / "moved").rename(tmp_path / "photos")
    next((tmp_path / "photos" / "test" / "3").iterdir()).unlink()
    code, _, err = htaf(*words)
    assert code == 0, err
    assert "are not those of the codes" in err


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("{}/nothing", "--out", "{}/x"), 1, "expected a run folder"),
        (("{}/second", "--out", "{}/x"), 1, "expected codes of"),
        (("{}/run", "--out", "{}/run"), 1, "expected a new or empty folder"),
        (("{}/run", "--out", "{}/x", "--names", "{}/nothing.json"), 1, "nothing.json: No such file"),
        (("{}/run", "--out", "{}/x", "--names", "{}/n.json"), 1, "got 99: are these the names of another network"),
        (("{}/run", "--out", "{}/x", "--images", "0"), 2, "expected --images >= 1"),
        (("{}/run", "--out", "{}/x", "--detailed", "-1"), 2, "--detailed >= 0"),
    ],
)
def test_bad_use_is_one_line(htaf, folder: Path, codes: Path, words: tuple[str, ...], code: int, message: str) -> None:
    (folder / "n.json").write_text('[{"concept": 99, "name": "a"}]')
    got, _, err = htaf("explore", *(word.format(folder) for word in words), "--codes", codes)
    assert message in one_line(err)
    assert got == code
    assert not (folder / "x").exists()


def test_names_of_another_run_are_refused(htaf, folder: Path, codes: Path, tmp_path: Path) -> None:
    own, other = tmp_path / "own.json", tmp_path / "other.json"
    write_names([{"concept": 3, "name": "x"}], own, codes=codes_key(open_codes(codes)))
    write_names([{"concept": 3, "name": "x"}], other, codes="abcdefghijkl")
    words = ("explore", folder / "run", "--codes", codes, "--out", tmp_path / "p", "--images", 9, "--names")
    code, _, err = htaf(*words, other)
    assert code == 1
    assert "got those of another network (abcdefghijkl)" in one_line(err)
    assert not (tmp_path / "p").exists()
    code, out, err = htaf(*words, own)
    assert code == 0, err
    assert "(1 named" in out
    assert read_page(tmp_path / "p")["page"]["codes"] == codes_key(open_codes(codes))
