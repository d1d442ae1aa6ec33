"""Maps over pictures: which images and concepts, the pictures and the index, and a command that goes on."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from htaf._ground.errors import HtafError
from htaf.concepts.codes import ConceptError, codes_of
from htaf.concepts.extract import extract
from htaf.concepts.pixels import Pictures
from htaf.concepts.regions import Map
from htaf.concepts.store import open_codes, open_margins
from htaf.concepts.where import framed, ordered, strongest, write_where
from htaf.data.images import Images, load
from htaf.training.runs import Run
from made_runs import PLAIN, digits, made_run


@pytest.fixture(scope="module")
def images() -> Images:
    return digits()


@pytest.fixture(scope="module")
def run(images: Images, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return made_run(tmp_path_factory.mktemp("where") / "run", images)


@pytest.fixture(scope="module")
def codes(run: Run, images: Images, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("where") / "codes"
    extract(run, images, out, parts=["test"])
    return out


def content(path: Path) -> dict[str, bytes]:
    return {str(p.relative_to(path)): p.read_bytes() for p in path.rglob("*") if p.is_file() and p.name != ".lock"}


def test_ordered_and_strongest() -> None:
    margins = np.array([[5.0], [-1.0], [0.0], [3.0], [1.0], [2.0], [-2.0]])
    made = codes_of(margins >= 0, [0] * 7, np.zeros((2, 1)), np.zeros(2), parts="test")
    assert ordered(made, margins, 0, count=9).tolist() == [0, 3, 5, 4, 2]
    assert ordered(made, margins, 0, count=3).tolist() == [0, 5, 2]
    assert ordered(made, margins, 0, count=1).tolist() == [0]
    with pytest.raises(ConceptError, match="no train image has concept 0"):
        ordered(made, margins, 0, part="train")
    weight = np.array([[0, 0, 0, 0], [3, 9, -1, 4]])
    several = codes_of(np.array([[1, 0, 1, 1]]), [0], weight, np.array([0, 1]), parts="test")
    assert strongest(several, 0).tolist() == [3, 0, 2]
    assert strongest(several, 0, 1).tolist() == [3]


def test_framed() -> None:
    picture = np.full((40, 60, 3), 100, np.uint8)
    values = np.zeros((4, 6))
    values[1, 2], values[3, 5] = 2.0, -2.0
    found = Map(0, values, 0.0, 0.0, (20, 30))
    drawn = framed(picture, found)
    assert drawn.shape == picture.shape
    red, _, blue = drawn[15, 25].tolist()
    assert red > 150 > 60 > blue  # orange where it speaks for the bit
    red, _, blue = drawn[39, 59].tolist()
    assert red < 60 < 130 < blue
    assert drawn[0, 0].tolist() == [100, 100, 100]
    assert drawn[10, 20].tolist() == drawn[19, 29].tolist() == [255, 255, 255]
    assert not (framed(picture, Map(0, -np.ones((4, 6)), -24.0, 0.0, (20, 30))) == 255).all(2).any()


def test_the_images_of_concepts(htaf, run: Run, codes: Path, tmp_path: Path) -> None:
    out = tmp_path / "maps"
    words = ("concepts", "where", run.path, "--codes", codes, "--out", out, "--concept", 3, 5, "--count", 4)
    code, said, err = htaf(*words, "--json")
    assert code == 0, err
    lines = [json.loads(line) for line in (out / "index.jsonl").read_text().splitlines()]
    assert lines == json.loads(said)
    assert [line["concept"] for line in lines] == [3] * 4 + [5] * 4
    opened, margins = open_codes(codes), open_margins(codes)
    assert margins is not None
    for concept in (3, 5):
        of = [line for line in lines if line["concept"] == concept]
        kept = margins[margins[:, concept] >= 0, concept]
        assert of[0]["margin"] == pytest.approx(kept.max(), abs=2e-3)
        assert of[-1]["margin"] == pytest.approx(kept.min(), abs=2e-3)
        assert [line["margin"] for line in of] == sorted((line["margin"] for line in of), reverse=True)
        for line in of:
            assert (line["bit"], line["size"]) == (1, [8, 8])
            assert opened.ids[line["row"]] == line["image"]
            left, top, right, bottom = line["box"]
            assert 0 <= left < right <= 8
            assert 0 <= top < bottom <= 8
            assert 0 < line["share"] <= 1
            with Image.open(out / line["map"]) as drawn:
                assert drawn.size == (192, 192)
    code, said, err = htaf(*words)
    assert code == 0, err
    assert f"index: {out / 'index.jsonl'}" in said
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "note").touch()
    code, _, err = htaf(*words[:6], tmp_path / "mine", *words[7:])
    assert code == 1
    assert "expected a new or empty folder" in err


def test_the_concepts_of_an_image(htaf, run: Run, codes: Path, tmp_path: Path) -> None:
    out = tmp_path / "maps"
    words = ("concepts", "where", run.path, "--codes", codes, "--out", out, "--image", "test/5", "--json")
    code, said, err = htaf(*words, "--count", 3)
    assert code == 0, err
    lines = json.loads(said)
    opened = open_codes(codes)
    assert [line["concept"] for line in lines] == strongest(opened, 5, 3).tolist()
    assert all(line["bit"] == 1 and line["row"] == 5 for line in lines)
    assert (out / f"image-5/concept-{lines[0]['concept']}-map.png").exists()
    off = np.flatnonzero(opened.unpack()[5] == 0)[:2].tolist()
    code, said, err = htaf(*words[:6], tmp_path / "off", *words[7:], "--concept", *off)
    assert code == 0, err
    assert [(line["concept"], line["bit"]) for line in json.loads(said)] == [(off[0], 0), (off[1], 0)]
    for bad, why in (
        (("--image", "nobody"), "expected the id of an image"),
        (("--concept", 99), "from 0 to 20, got 99"),
        (("--concept", 1, "--count", 0), "--count must be >= 1"),
    ):
        code, _, err = htaf(*words[:6], tmp_path / "bad", *bad)
        assert code in (1, 2)
        assert why in err


def test_codes_without_margins(run: Run, images: Images, codes: Path, tmp_path: Path) -> None:
    extract(run, images, tmp_path / "bits", parts=["test"], keep=["bits"])
    with pytest.raises(ConceptError, match="--keep margins"):
        write_where(run, images, tmp_path / "bits", tmp_path / "a", concepts=[3], count=6)
    same = write_where(run, images, codes, tmp_path / "b", concepts=[3], count=6)
    extract(run, images, tmp_path / "features", parts=["test"], keep=["features"])
    found = write_where(run, images, tmp_path / "features", tmp_path / "c", concepts=[3], count=6)
    np.testing.assert_allclose([line["margin"] for line in found], [line["margin"] for line in same], atol=1e-3)


def test_codes_of_another_network_are_refused(run: Run, images: Images, codes: Path, tmp_path: Path) -> None:
    other = made_run(tmp_path / "other", images, seed=1)
    with pytest.raises(ConceptError, match="expected codes of this run"):
        write_where(other, images, codes, tmp_path / "a", concepts=list(range(6)))
    with pytest.raises(HtafError, match="test/"):
        write_where(run, None, codes, tmp_path / "d", concepts=[3])  # ids that are no files
    smaller = made_run(tmp_path / "smaller", images, concepts=9)
    with pytest.raises(ConceptError, match=r"another network: .* \[10, 9\], got \[10, 21\]"):
        write_where(smaller, images, codes, tmp_path / "b", concepts=[0])
    plain = made_run(tmp_path / "plain", images, PLAIN)
    with pytest.raises(ConceptError, match="plain network"):
        write_where(plain, images, codes, tmp_path / "c", concepts=[0])


def test_files_are_drawn_as_large_as_they_are(htaf, run: Run, images: Images, tmp_path: Path) -> None:
    for i in range(6):
        small = Image.fromarray(images.test.batch(torch.tensor([i]))[0, 0].numpy())
        small.resize((240, 200), Image.Resampling.BILINEAR).save(tmp_path / f"{i}.png")
    paths = sorted(tmp_path.glob("*.png"))
    found = extract(run, paths, tmp_path / "codes").codes()
    words = ("concepts", "where", run.path, "--codes", tmp_path / "codes", "--out", tmp_path / "maps")
    code, said, err = htaf(*words, "--image", paths[2], "--count", 2, "--json")
    assert code == 0, err
    lines = json.loads(said)
    assert [line["concept"] for line in lines] == strongest(found, 2, 2).tolist()
    assert lines[0]["label"] is None
    with Image.open(tmp_path / "maps" / lines[0]["map"]) as drawn:
        assert drawn.size == (200, 200)  # the middle, which the network sees, in 25 times its 8 x 8


def test_images_in_memory() -> None:
    digits = load("digits")
    found = Pictures(digits)
    expected = torch.stack([digits.test.pixels[3], digits.train.pixels[0], digits.test.pixels[0]])  # pyright: ignore
    assert torch.equal(found.pixels(["test/3", "train/0", "test/0"]), expected)
    assert found.pixels([]).shape == (0, 1, 8, 8)
    assert found.file("test/3") is None
    np.testing.assert_array_equal(found.original("test/3"), expected[0])
    with pytest.raises(ConceptError, match=r"expected ids of digits, such as 'train/0', got 'test/9999'"):
        found.pixels(["test/9999"])


@pytest.mark.parametrize("side", [80, 8])
def test_images_in_files(tmp_path: Path, side: int) -> None:
    """Small ones are read into memory, and keep their names."""
    for name, level in (("a", 10), ("b", 200)):
        (tmp_path / name).mkdir()
        for number in range(5):
            Image.fromarray(np.full((side, side + 1, 3), level + number, np.uint8)).save(
                tmp_path / name / f"{number}.png"
            )
    images = load(tmp_path, size=80) if side == 80 else load(tmp_path)
    names = [*images.train.names, *images.test.names]  # pyright: ignore
    assert sorted(names) == [f"{name}/{number}.png" for name in "ab" for number in range(5)]
    levels = [{"a": 10, "b": 200}[name[0]] + int(name[2]) for name in names]
    found = Pictures(images)
    assert found.pixels(names)[:, 0, 0, 0].tolist() == levels
    assert found.file(names[0]) == (tmp_path / names[0] if side == 80 else None)
    assert found.original(names[0]).shape == (3, side, side + 1)
    with pytest.raises(ConceptError, match=f"such as '{names[0]}', got 'a/9.png'"):
        found.pixels(["a/9.png"])
