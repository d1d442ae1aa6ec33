"""The folder of a page: whole or not at all, what a former page had is kept or removed, nobody else's files."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from htaf.concepts.codes import ConceptError
from htaf.concepts.explorer import build, folder
from htaf.concepts.explorer.build import build_page, sheets
from htaf.concepts.explorer.shown import Shown
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
    made = build_page(codes, out, pixels=small_ones, original=large, shown=Shown(detailed=10))
    found = read_page(out)["page"]
    assert made["originals"] == len(found["originals"]["rows"]) == 10
    assert found["example"] in found["originals"]["rows"]
    for row in found["originals"]["rows"]:
        image = Image.open(io.BytesIO((out / "data" / "full" / f"{row:06d}.webp").read_bytes()))
        assert image.size == (150, 120)
        assert abs(int(np.asarray(image).mean()) - int(codes.part("test").ids[row]) % 256) <= 2
    before = contents(out)
    (out / "data" / "full" / ".000001.webp.abc").write_text("left")
    build_page(codes, out, pixels=small_ones, original=large, shown=Shown(detailed=10))
    assert contents(out) == before
    made = build_page(codes, out, pixels=small_ones, original=gone_one, shown=Shown(detailed=10))
    assert made["originals"] == 0
    assert "no pictures at full size: they are gone" in made["notes"]
    build_page(codes, out, pixels=small_ones, original=large, shown=Shown(detailed=0))
    assert not (out / "data" / "full").exists()


def test_the_same_bytes_again_and_elsewhere(tmp_path: Path) -> None:
    for name in ("a", "b", "a"):
        build_page(made_codes(), tmp_path / name, pixels=coloured)
    assert contents(tmp_path / "a") == contents(tmp_path / "b")


def test_what_a_former_page_had_is_removed(tmp_path: Path) -> None:
    out = tmp_path / "p"
    build_page(made_codes(2000), out, pixels=coloured)
    assert len(list(out.glob("data/sprite-0*"))) == 3
    (out / "data" / ".bits-0000.js.abc123").write_text("left")
    (out / "data" / "bits-0007.js").write_text("of a larger page")
    (out / "data" / ".sprite-0000.webp.abc123").write_text("left")
    (out / ".index.html.abc123").write_text("left")
    (out / "names.csv").write_text("mine")
    build_page(made_codes(), out, pixels=coloured)
    assert sorted(name for name in contents(out) if "sprite-d" not in name) == sorted(
        [
            *(".htaf-explorer", "app.css", "app.js", "index.html", "names.csv", "data/sprite-0000.webp"),
            *(
                f"data/{name}.js"
                for name in ("arrays", "bits-0000", "concepts", "doubtful", "ids-0000", "page", "rows")
            ),
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


def of_shape(channels: int, height: int, width: int):
    """Images by number, every one different; and how many were asked for at once."""
    asked: list[int] = []

    def pixels(ids: Sequence[str]) -> np.ndarray:
        asked.append(len(ids))
        drawn = [np.random.default_rng(int(one)).integers(0, 256, (channels, height, width)) for one in ids]
        return np.array(drawn, dtype=np.uint8)

    return pixels, asked


def cell(data: bytes, form, number: int) -> np.ndarray:
    sheet = np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))
    assert sheet.shape == (form.rows * form.height, form.columns * form.width, 3)
    down, right = divmod(number, form.columns)
    return sheet[down * form.height :, right * form.width :][: form.height, : form.width]


@pytest.mark.parametrize("channels", [1, 3])
def test_small_images_are_kept_to_the_bit(channels: int) -> None:
    pixels, asked = of_shape(channels, 8, 11)
    made = list(sheets([str(i) for i in range(300)], pixels))
    assert len(made) == 2
    assert max(asked) == 256
    for number in (0, 1, 16, 255, 256, 299):
        form, data = made[number // 256]
        image = pixels([str(number)])[0].transpose(1, 2, 0)
        np.testing.assert_array_equal(cell(data, form, number % 256), np.broadcast_to(image, (8, 11, 3)))
    assert not cell(*made[1][::-1], 300 % 256).any()  # unused cells are black


def test_large_images_are_scaled() -> None:
    def pixels(ids: Sequence[str]) -> np.ndarray:
        colours = np.array([[int(one) * 20, 255 - int(one) * 20, 90] for one in ids], dtype=np.uint8)
        return np.broadcast_to(colours[:, :, None, None], (len(ids), 3, 300, 200))

    ((form, data),) = sheets([str(i) for i in range(10)], pixels)
    assert (form.width, form.height, form.columns, form.rows) == (64, 96, 16, 16)
    for number in range(10):
        colour = cell(data, form, number)[2:-2, 2:-2].reshape(-1, 3).astype(int)  # at the edges colours run
        assert np.abs(colour - pixels([str(number)])[0, :, 0, 0]).max() < 16
