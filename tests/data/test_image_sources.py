"""Images from files and Parquet files: planned without reading, cut anywhere, decoded as files are."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from htaf.data.image_reading import decode
from htaf.data.image_sets import Decoded, read_block, source
from htaf.data.image_sets import Image as Listed
from htaf.data.reading import DataError

CLASSES = ("cat", "dog", "7")
SIZE = (8, 8)


def png(number: int) -> bytes:
    pixels = np.random.default_rng(number).integers(0, 256, (9, 8, 3), dtype=np.uint8)
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "PNG")
    return stream.getvalue()


def write_files(folder: Path, count: int) -> list[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        (folder / f"{number:03d}.png").write_bytes(png(number))
    return sorted(folder.iterdir())


def write_parquet(file: Path, images: list[Any], kind: pa.DataType | None = None, group: int = 4, **more: Any) -> None:
    table = pa.table({"image": pa.array(images, kind or pa.binary()), **more})
    pq.write_table(table, file, row_group_size=group)


def read_all(*paths: object, images: int = 3) -> tuple[list[Decoded], list[str]]:
    found, notes = source([str(a) for a in paths])
    return [read_block(block, 3, SIZE, CLASSES, 3) for block in cut(found, images)], notes


def cut(found: list[Listed], images: int) -> list[list[Listed]]:
    return [found[at : at + images] for at in range(0, len(found), images)]


def joined(parts: list[Decoded], name: str) -> Any:
    values = [getattr(part, name) for part in parts]
    return np.concatenate(values) if isinstance(values[0], np.ndarray) else [v for value in values for v in value]


@pytest.fixture
def expected(tmp_path: Path) -> np.ndarray:
    return np.stack([decode(file, 3, SIZE) for file in write_files(tmp_path / "expected", 11)])


@pytest.mark.parametrize("images", [1, 3, 4, 11, 100])
def test_each_kind_gives_the_pixels_of_the_files_however_it_is_cut(
    tmp_path: Path, expected: np.ndarray, images: int
) -> None:
    files = write_files(tmp_path / "files", 11)
    content = [file.read_bytes() for file in files]
    write_parquet(tmp_path / "a.parquet", content)
    struct = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    write_parquet(tmp_path / "b.parquet", [{"bytes": c, "path": "x"} for c in content], struct)
    for one in ("files", "a.parquet", "b.parquet"):
        parts, notes = read_all(tmp_path / one, images=images)
        assert [len(part.ids) for part in parts] == [min(images, 11 - first) for first in range(0, 11, images)]
        np.testing.assert_array_equal(joined(parts, "pixels"), expected)
        np.testing.assert_array_equal(joined(parts, "parts"), np.full(11, 3))
        assert notes == []
        assert len(set(joined(parts, "ids"))) == 11
    assert joined(read_all(tmp_path / "files")[0], "ids") == [str(file) for file in files]
    assert joined(read_all(tmp_path / "a.parquet")[0], "ids")[10] == f"{tmp_path / 'a.parquet'}/10"


def test_a_block_goes_over_places_and_planning_reads_no_image(tmp_path: Path, expected: np.ndarray) -> None:
    files = write_files(tmp_path / "files", 11)
    write_parquet(tmp_path / "a.parquet", [b"not yet", *[file.read_bytes() for file in files[4:7]]])
    found, _ = source([*map(str, files[:4]), str(tmp_path / "a.parquet"), *map(str, files[7:])])
    parts = [read_block(block, 3, SIZE, CLASSES) for block in cut(found, 5)]
    np.testing.assert_array_equal(joined(parts, "pixels"), expected)
    assert joined(parts, "problems") == [f"{tmp_path / 'a.parquet'}/0 (a file of another kind)"]


def test_labels_are_numbers_or_names_of_the_classes(tmp_path: Path) -> None:
    content = [png(n) for n in range(6)]
    write_parquet(tmp_path / "a.parquet", content, label=pa.array([0, 2, None, 3, -1, 1]))
    write_parquet(tmp_path / "b.parquet", content, cls=pa.array(["dog", "bird", None, "0", "7", ""]))
    for name, numbers, unknown in (
        ("a.parquet", [0, 2, -1, -1, -1, 1], 1),
        ("b.parquet", [1, -1, -1, 0, 2, -1], 2),
    ):
        parts, _ = read_all(tmp_path / name)
        assert joined(parts, "labels").tolist() == numbers, name
        assert sum(part.unknown for part in parts) == unknown, name


def test_what_cannot_be_decoded_is_named(tmp_path: Path) -> None:
    files = write_files(tmp_path / "files", 3)
    files[1].write_bytes(b"")
    struct = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    write_parquet(tmp_path / "a.parquet", [{"bytes": png(0), "path": ""}, {"bytes": None, "path": "p"}, None], struct)
    for name, problems in (
        ("files", [f"{files[1]} (an empty file)"]),
        ("a.parquet", [f"{tmp_path / 'a.parquet'}/{row} (an empty file)" for row in (1, 2)]),
    ):
        parts, _ = read_all(tmp_path / name)
        assert joined(parts, "problems") == problems
        np.testing.assert_array_equal(joined(parts, "pixels")[0], decode(png(0), 3, SIZE))
    missing = str(tmp_path / "none.png")
    parts, _ = read_all(files[0], missing)
    assert joined(parts, "problems") == [f"{missing} (No such file or directory)"]
    with pytest.raises(DataError, match=r"none\.png: expected image files, folders .* or Parquet files, got neither"):
        source([missing])


def test_a_file_that_is_gone_is_no_bad_image(tmp_path: Path) -> None:
    files = write_files(tmp_path / "files", 3)
    found, _ = source([str(tmp_path / "files")])
    files[1].unlink()
    with pytest.raises(DataError, match=r"001\.png was there when the images were listed .*where every node sees"):
        read_block(found[:3], 3, SIZE, CLASSES)
    write_parquet(tmp_path / "a.parquet", [png(0)])
    found, _ = source([str(tmp_path / "a.parquet")])
    (tmp_path / "a.parquet").unlink()
    with pytest.raises(DataError, match=r"a\.parquet cannot be read: No such file"):
        read_block(found[:3], 3, SIZE, CLASSES)


BAD: dict[str, tuple[Callable[[Path], object], str]] = {
    "missing.parquet": (lambda p: None, r"missing\.parquet: expected image files, .* got neither"),
    "text.parquet": (lambda p: p.write_text("PAR1"), r"expected a Parquet file, got a damaged one"),
    "numbers.parquet": (lambda p: pq.write_table(pa.table({"a": [1]}), p), r"one column of images as bytes, got none"),
    "two.parquet": (
        lambda p: pq.write_table(pa.table({"a": [b"x"], "b": [b"x"]}), p),
        r"got the columns of bytes 'a', 'b': call that",
    ),
    "none.parquet": (lambda p: write_parquet(p, []), r"expected images, got none in"),
}


@pytest.mark.parametrize("name", BAD)
def test_parquet_files_that_cannot_be_used(tmp_path: Path, name: str) -> None:
    make, said = BAD[name]
    make(tmp_path / name)
    with pytest.raises(DataError, match=said):
        source([str(tmp_path / name)])


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes with names")
def test_a_parquet_file_that_is_a_pipe_is_refused(tmp_path: Path) -> None:
    (tmp_path / "more").mkdir()
    os.mkfifo(tmp_path / "more" / "0.parquet")
    held = os.open(tmp_path / "more" / "0.parquet", os.O_RDWR | os.O_NONBLOCK)  # who opens it does not wait
    (tmp_path / "1.parquet").symlink_to("/dev/zero")
    for place in (tmp_path / "more", tmp_path / "more" / "0.parquet", tmp_path / "1.parquet"):
        with pytest.raises(DataError, match=r"\.parquet cannot be read: expected a file, got a (named pipe|device)"):
            source([str(place)])
    os.close(held)


def test_of_several_columns_of_bytes_image_is_taken(tmp_path: Path) -> None:
    table = pa.table({"thumbnail": [png(1)], "image": [png(2)], "photo": [png(3)]})
    pq.write_table(table, tmp_path / "a.parquet")
    parts, _ = read_all(tmp_path / "a.parquet")
    np.testing.assert_array_equal(parts[0].pixels[0], decode(png(2), 3, SIZE))


def test_a_folder_of_parquet_files_stands_for_them(tmp_path: Path, expected: np.ndarray) -> None:
    (tmp_path / "many").mkdir()
    for name, some in (("0.parquet", range(5)), ("1.PARQUET", range(5, 11))):
        write_parquet(tmp_path / "many" / name, [png(n) for n in some])
    (tmp_path / "many" / "notes.txt").write_text("text")
    parts, notes = read_all(tmp_path / "many")
    np.testing.assert_array_equal(joined(parts, "pixels"), expected)
    assert notes == []
