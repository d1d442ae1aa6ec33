"""Maps over pictures: which images and concepts, the pictures and the index, and a command that goes on."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from htaf._errors import HtafError
from htaf.concepts import where as module
from htaf.concepts.codes import ConceptError, codes_of
from htaf.concepts.extract import extract
from htaf.concepts.regions import Map
from htaf.concepts.store import open_codes, open_margins
from htaf.concepts.where import cropped, ordered, overlay, strongest, write_where
from htaf.data.images import Images
from htaf.runs import Run
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


def test_overlay_and_crop() -> None:
    picture = np.full((40, 60, 3), 100, np.uint8)
    values = np.zeros((4, 6))
    values[1, 2], values[3, 5] = 2.0, -2.0
    found = Map(0, values, 0.0, 0.0, "exact", (20, 30))
    drawn = overlay(picture, found, frame=False)
    assert drawn.shape == picture.shape
    red, _, blue = drawn[15, 25].tolist()
    assert red > 150 > 60 > blue  # orange where it speaks for the bit
    red, _, blue = drawn[39, 59].tolist()
    assert red < 60 < 130 < blue
    assert drawn[0, 0].tolist() == [100, 100, 100]
    framed = overlay(picture, found)
    assert framed[10, 20].tolist() == framed[19, 29].tolist() == [255, 255, 255]
    assert framed[15, 25].tolist() == drawn[15, 25].tolist()
    crop = cropped(picture, found)
    assert crop is not None
    assert crop.shape == (10, 10, 3)
    assert cropped(picture, Map(0, -np.ones((4, 6)), -24.0, 0.0, "exact", (20, 30))) is None


def test_a_class_whose_name_looks_like_a_formula() -> None:
    line = {"concept": 3, "label": r"$\frac{ a$", "predicted": None, "margin": 0.5, "share": 1.0, "method": "exact"}
    sheet = module._sheet("concept-3", [(line, np.zeros((4, 4, 3), np.uint8), None)], False)
    with Image.open(io.BytesIO(sheet)) as drawn:
        assert drawn.size == (636, 420)


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
            assert (line["bit"], line["method"], line["size"]) == (1, "exact", [8, 8])
            assert opened.ids[line["row"]] == line["image"]
            left, top, right, bottom = line["box"]
            assert 0 <= left < right <= 8
            assert 0 <= top < bottom <= 8
            assert 0 < line["share"] <= 1
            with Image.open(out / line["map"]) as drawn, Image.open(out / line["crop"]) as crop:
                assert drawn.size == (192, 192)
                assert min(crop.size) >= 24
        assert (out / f"concept-{concept}.png").read_bytes().startswith(b"\x89PNG")
    code, said, err = htaf(*words)
    assert code == 0, err
    assert "exact maps" in said
    code, _, err = htaf(*words[:-1], 5)
    assert code == 1
    assert "holds other maps (count differ)" in err


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
    assert (out / "image-5.png").exists()
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


def test_the_image_is_looked_for_before_the_network(
    htaf, run: Run, images: Images, codes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: Any, **__: Any) -> None:
        raise AssertionError("loaded")

    monkeypatch.setattr(module, "Maps", never)
    with pytest.raises(ConceptError, match="got 'nobody'"):
        write_where(run, images, codes, tmp_path / "maps", image="nobody")
    monkeypatch.setattr("htaf.runs.open_run", never)
    code, _, err = htaf("concepts", "where", run.path, "--codes", codes, "--out", tmp_path / "m", "--image", "nobody")
    assert code == 1
    assert "got 'nobody'" in err


def test_a_stopped_command_goes_on(
    run: Run, images: Images, codes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def asked(out: Path) -> list[dict[str, Any]]:
        return write_where(run, images, codes, out, concepts=[1, 2, 4], count=2)

    monkeypatch.setattr(module, "_sheet", lambda name, *_: name.encode())  # which takes longest
    whole = asked(tmp_path / "whole")
    write, left = module.write_atomic, 11

    def stopping(*args: Any) -> None:
        nonlocal left
        left -= 1
        if not left:
            raise KeyboardInterrupt
        write(*args)

    monkeypatch.setattr(module, "write_atomic", stopping)
    with pytest.raises(KeyboardInterrupt):
        asked(tmp_path / "a")
    monkeypatch.setattr(module, "write_atomic", write)
    index = [json.loads(line)["map"] for line in (tmp_path / "a" / "index.jsonl").read_text().splitlines()]
    assert index == ["concept-1/001-map.png", "concept-1/002-map.png", "concept-2/001-map.png"]
    assert index == sorted(str(file.relative_to(tmp_path / "a")) for file in (tmp_path / "a").rglob("*-map.png"))
    drawn: list[str] = []
    one = module._drawn

    def noted(out: Path, name: str, *rest: Any, **more: Any) -> Any:
        drawn.append(name)
        return one(out, name, *rest, **more)

    monkeypatch.setattr(module, "_drawn", noted)
    assert asked(tmp_path / "a") == whole
    assert drawn == ["concept-2", "concept-4"]
    assert content(tmp_path / "a") == content(tmp_path / "whole")
    (tmp_path / "a" / "concept-1" / "002-map.png").unlink()
    assert sorted(asked(tmp_path / "a"), key=lambda line: line["map"]) == whole
    assert drawn[2:] == ["concept-1"]
    good = (tmp_path / "a" / "where.json").read_text()
    for text in ("", "[]", '{"format": 99}', good.replace('"row": ', '"row": 1'), "NaN"):
        (tmp_path / "a" / "where.json").write_text(text)
        with pytest.raises(ConceptError, match=r"where\.json.*choose another --out"):
            asked(tmp_path / "a")
    (tmp_path / "a" / "where.json").write_text('{"format": 2, "key": 3, "settings": 7}')
    with pytest.raises(ConceptError, match="holds other maps"):
        asked(tmp_path / "a")
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "mine").touch()
    with pytest.raises(ConceptError, match="new or empty folder"):
        asked(tmp_path / "b")


def test_codes_without_margins(
    run: Run, images: Images, codes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "TRIED", 60)
    extract(run, images, tmp_path / "bits", parts=["test"], keep=["bits"])
    lines = write_where(run, images, tmp_path / "bits", tmp_path / "a", concepts=[3], count=6)
    same = write_where(run, images, codes, tmp_path / "b", concepts=[3], count=6)
    assert [line["margin"] for line in lines] == sorted((line["margin"] for line in lines), reverse=True)
    assert (lines[0]["row"], lines[-1]["row"]) == (same[0]["row"], same[-1]["row"])  # 360 images hold all that have it
    extract(run, images, tmp_path / "features", parts=["test"], keep=["features"])
    found = write_where(run, images, tmp_path / "features", tmp_path / "c", concepts=[3], count=6)
    np.testing.assert_allclose([line["margin"] for line in found], [line["margin"] for line in same], atol=1e-3)


def test_codes_of_another_network_are_refused(run: Run, images: Images, codes: Path, tmp_path: Path) -> None:
    other = made_run(tmp_path / "other", images, seed=1)
    with pytest.raises(ConceptError, match="expected codes of this run"):
        write_where(other, images, codes, tmp_path / "a", concepts=list(range(6)))
    with pytest.raises(HtafError, match="test/"):
        write_where(run, None, codes, tmp_path / "d", concepts=[3])  # ids that are no files
    assert not (tmp_path / "d").exists()
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
