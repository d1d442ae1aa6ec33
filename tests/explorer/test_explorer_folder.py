"""The folder of a page: whole or not at all, what a former page had is kept or removed, nobody else's files."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from htaf.concepts.codes import ConceptError
from htaf.explorer import build, folder
from htaf.explorer.build import build_page
from htaf.explorer.shown import Shown
from made_pages import coloured, contents, made_codes, read_page

pytestmark = pytest.mark.usefixtures("stand_in")


def gone(ids: object) -> np.ndarray:
    raise FileNotFoundError("they are gone")


def test_without_images_there_are_no_thumbnails(tmp_path: Path) -> None:
    out = tmp_path / "p"
    build_page(made_codes(), out, pixels=coloured)
    made = build_page(made_codes(), out, pixels=gone)
    assert (made["sprites"], read_page(out)["page"]["sprites"]) == (0, None)
    assert not list(out.glob("data/sprite-*"))
    assert "no thumbnails: they are gone" in made["notes"]


def large(one: str) -> np.ndarray:
    return np.full((3, 120, 150), int(one) % 256, np.uint8)


def small_ones(ids: list[str]) -> np.ndarray:
    return np.stack([large(one)[:, ::10, ::10] for one in ids])


def gone_one(one: str) -> np.ndarray:
    raise OSError("they are gone")


def test_some_images_are_there_at_full_size(tmp_path: Path) -> None:
    out, codes = tmp_path / "p", made_codes(200)
    made = build_page(codes, out, pixels=small_ones, original=large, shown=Shown(detailed=10), seconds=0.0)
    found = read_page(out)["page"]
    assert made["originals"] == len(found["originals"]["rows"]) == 10
    assert found["example"] in found["originals"]["rows"]
    for row in found["originals"]["rows"]:
        image = Image.open(io.BytesIO((out / "data" / "full" / f"{row:06d}.webp").read_bytes()))
        assert image.size == (150, 120)
        assert abs(int(np.asarray(image).mean()) - int(codes.part("test").ids[row]) % 256) <= 2
    before = contents(out)
    (out / "data" / "full" / ".000001.webp.abc").write_text("left")
    build_page(codes, out, pixels=small_ones, original=large, shown=Shown(detailed=10), seconds=0.0)
    assert contents(out) == before
    made = build_page(codes, out, pixels=small_ones, original=gone_one, shown=Shown(detailed=10), seconds=0.0)
    assert made["originals"] == 0
    assert "no pictures at full size: they are gone" in made["notes"]
    build_page(codes, out, pixels=small_ones, original=large, shown=Shown(detailed=0), seconds=0.0)
    assert not (out / "data" / "full").exists()


def test_no_time_leaves_flips_to_the_page(tmp_path: Path) -> None:
    made = build_page(made_codes(), tmp_path / "p", seconds=0)
    assert read_page(tmp_path / "p")["images"]["flips"] == {}
    assert any("counterfactuals were looked for in 0 of " in note for note in made["notes"])
    made = build_page(made_codes(), tmp_path / "p")
    assert read_page(tmp_path / "p")["images"]["flips"]
    assert not any("counterfactuals" in note for note in made["notes"])


def test_the_same_bytes_again_and_elsewhere(tmp_path: Path) -> None:
    for name in ("a", "b", "a"):
        build_page(made_codes(), tmp_path / name, pixels=coloured)
    assert contents(tmp_path / "a") == contents(tmp_path / "b")


def test_what_a_former_page_had_is_removed(tmp_path: Path) -> None:
    out = tmp_path / "p"
    build_page(made_codes(2000), out, pixels=coloured)
    assert len(list(out.glob("data/sprite-*"))) == 3
    (out / "data" / ".bits-0000.js.abc123").write_text("left")
    (out / "data" / "bits-0007.js").write_text("of a larger page")
    (out / "data" / ".sprite-0000.webp.abc123").write_text("left")
    (out / ".index.html.abc123").write_text("left")
    (out / "names.csv").write_text("mine")
    build_page(made_codes(), out, pixels=coloured)
    assert sorted(contents(out)) == sorted(
        [
            *(".htaf-explorer", "app.css", "app.js", "index.html", "names.csv", "data/sprite-0000.webp"),
            *(f"data/{name}.js" for name in ("arrays", "bits-0000", "concepts", "flips", "ids-0000", "page", "rows")),
        ]
    )
    build_page(made_codes(), out)
    assert not list(out.glob("data/sprite-*"))


@pytest.mark.parametrize("content", ["", 'htafData("page", {"format": 4});\n', "htafData(", "[" * 10_000, "\xff"])
def test_a_folder_of_others_is_left_alone(tmp_path: Path, content: str) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "page.js").write_text(content)
    with pytest.raises(ConceptError, match=r"expected a new or empty folder, .* holds 'data'"):
        build_page(made_codes(), tmp_path)
    assert set(contents(tmp_path)) == {"data/page.js"}
    with pytest.raises(ConceptError, match="is or lies in a file"):
        build_page(made_codes(), tmp_path / "data" / "page.js")
    with pytest.raises(ConceptError, match="is or lies in a file"):
        build_page(made_codes(), tmp_path / "data" / "page.js" / "below")


@pytest.mark.parametrize("at", ["sprite-0000.webp", "bits-0000.js", "page.js"])
@pytest.mark.parametrize("former", [False, True])
def test_a_build_that_was_killed_is_no_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: str, former: bool
) -> None:
    out = tmp_path / "p"
    if former:
        build_page(made_codes(seed=1), out, pixels=coloured)
    write = build.write_atomic

    def killed(path: Path, data: bytes | str) -> None:
        if path.name == at:
            raise KeyboardInterrupt
        write(path, data)

    monkeypatch.setattr(build, "write_atomic", killed)
    with pytest.raises(KeyboardInterrupt):
        build_page(made_codes(), out, pixels=coloured)
    monkeypatch.setattr(build, "write_atomic", write)
    assert not (out / "data" / "page.js").exists()
    build_page(made_codes(), out, pixels=coloured)
    build_page(made_codes(), tmp_path / "q", pixels=coloured)
    assert contents(out) == contents(tmp_path / "q")


def test_two_processes_do_not_write_one_folder(tmp_path: Path) -> None:
    with folder.claimed(tmp_path / "p"), pytest.raises(ConceptError, match="another process writes"):
        build_page(made_codes(), tmp_path / "p")
