"""Images from Parquet files, tar shards and addresses: planned without reading, cut anywhere, decoded as files are."""

from __future__ import annotations

import io
import json
import os
import tarfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from htaf.data import image_sources
from htaf.data.image_reading import decode
from htaf.data.image_sources import Decoded, are_sources, blocks, read_block, source
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


def write_tar(file: Path, members: dict[str, bytes]) -> None:
    with tarfile.open(file, "w") as tar:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))


def read_all(*addresses: object, images: int = 3, **options: Any) -> tuple[list[Decoded], list[str]]:
    found, notes = source([str(a) for a in addresses], column=options.pop("column", None))
    return [read_block(block, 3, SIZE, CLASSES, 3, **options) for block in blocks(found, images)], notes


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
    write_tar(tmp_path / "c.tar", {f"photos/{n:03d}.PNG": c for n, c in enumerate(content)})
    for one in ("files", "a.parquet", "b.parquet", "c.tar"):
        parts, notes = read_all(tmp_path / one, images=images)
        assert [len(part.ids) for part in parts] == [min(images, 11 - first) for first in range(0, 11, images)]
        np.testing.assert_array_equal(joined(parts, "pixels"), expected)
        np.testing.assert_array_equal(joined(parts, "parts"), np.full(11, 3))
        assert notes == []
        assert len(set(joined(parts, "ids"))) == 11
    assert joined(read_all(tmp_path / "files")[0], "ids") == [str(file) for file in files]
    assert joined(read_all(tmp_path / "a.parquet")[0], "ids")[10] == f"{tmp_path / 'a.parquet'}/10"
    assert joined(read_all(tmp_path / "c.tar")[0], "ids")[10] == f"{tmp_path / 'c.tar'}/photos/010.PNG"


def test_a_block_goes_over_places_and_planning_reads_no_image(tmp_path: Path, expected: np.ndarray) -> None:
    files = write_files(tmp_path / "files", 11)
    write_parquet(tmp_path / "a.parquet", [b"not yet", *[file.read_bytes() for file in files[4:7]]])
    write_tar(tmp_path / "b.tar", {file.name: file.read_bytes() for file in files[7:]})
    found, _ = source([*map(str, files[:4]), str(tmp_path / "a.parquet"), str(tmp_path / "b.tar")])
    assert list(map(len, found)) == [4, 4, 4]
    cut = blocks(found, 5)
    assert [[len(one) for one in block] for block in cut] == [[4, 1], [3, 2], [2]]
    parts = [read_block(block, 3, SIZE, CLASSES) for block in cut]
    np.testing.assert_array_equal(joined(parts, "pixels"), expected)
    assert joined(parts, "problems") == [f"{tmp_path / 'a.parquet'}/0 (a file of another kind)"]


def test_labels_are_numbers_or_names_of_the_classes(tmp_path: Path) -> None:
    content = [png(n) for n in range(6)]
    write_parquet(tmp_path / "a.parquet", content, label=pa.array([0, 2, None, 3, -1, 1]))
    write_parquet(tmp_path / "b.parquet", content, cls=pa.array(["dog", "bird", None, "0", "7", ""]))
    labels = {
        "0.cls": b"1\n", "1.json": b'{"label": "cat", "other": 3}', "2.json": b'{"cls": 2}', "3.json": b"[1]",
        "4.cls": b"bird", "5.json": b"{",
    }  # fmt: skip
    members = {name: data for n, c in enumerate(content) for name, data in [(f"{n}.png", c)]} | labels
    write_tar(tmp_path / "c.tar", members | {"1.cls": b"dog"})
    for name, numbers, unknown in (
        ("a.parquet", [0, 2, -1, -1, -1, 1], 1),
        ("b.parquet", [1, -1, -1, 0, 2, -1], 2),
        ("c.tar", [1, 1, 2, -1, -1, -1], 1),
    ):
        parts, _ = read_all(tmp_path / name)
        assert joined(parts, "labels").tolist() == numbers, name
        assert sum(part.unknown for part in parts) == unknown, name


def test_what_cannot_be_decoded_is_named_or_refused(tmp_path: Path) -> None:
    files = write_files(tmp_path / "files", 3)
    files[1].write_bytes(b"")
    struct = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    write_parquet(tmp_path / "a.parquet", [{"bytes": png(0), "path": ""}, {"bytes": None, "path": "p"}, None], struct)
    write_tar(tmp_path / "b.tar", {"0.png": png(0), "1.png": b"text"})
    for name, problems in (
        ("files", [f"{files[1]} (an empty file)"]),
        ("a.parquet", [f"{tmp_path / 'a.parquet'}/{row} (an empty file)" for row in (1, 2)]),
        ("b.tar", [f"{tmp_path / 'b.tar'}/1.png (a file of another kind)"]),
    ):
        parts, _ = read_all(tmp_path / name)
        assert joined(parts, "problems") == problems
        np.testing.assert_array_equal(joined(parts, "pixels")[0], decode(png(0), 3, SIZE))
        with pytest.raises(DataError, match="expected an image"):
            read_all(tmp_path / name, strict=True)
    missing = str(tmp_path / "none.png")
    parts, _ = read_all(files[0], missing)
    assert joined(parts, "problems") == [f"{missing} (No such file or directory)"]
    with pytest.raises(DataError, match=r"none\.png: expected image files, folders of them, .*, got neither"):
        source([missing])


def test_contents_that_would_run_another_program_are_refused(tmp_path: Path) -> None:
    stream = io.BytesIO()
    Image.new("RGB", SIZE).save(stream, "EPS")
    write_tar(tmp_path / "a.tar", {"0.png": stream.getvalue(), "1.png": png(1)})
    assert joined(read_all(tmp_path / "a.tar")[0], "problems") == [
        f"{tmp_path / 'a.tar'}/0.png (a file of another kind)"
    ]


def test_a_file_that_is_gone_is_no_bad_image(tmp_path: Path) -> None:
    files = write_files(tmp_path / "files", 3)
    found, _ = source([str(tmp_path / "files")])
    files[1].unlink()
    with pytest.raises(DataError, match=r"001\.png was there when the images were listed .*where every node sees"):
        read_block(blocks(found, 3)[0], 3, SIZE, CLASSES)
    write_tar(tmp_path / "a.tar", {"0.png": png(0)})
    found, _ = source([str(tmp_path / "a.tar")])
    (tmp_path / "a.tar").unlink()
    with pytest.raises(DataError, match=r"a\.tar cannot be read: No such file"):
        read_block(blocks(found, 3)[0], 3, SIZE, CLASSES)


BAD: dict[str, tuple[Callable[[Path], object], str]] = {
    "none.parquet": (lambda p: None, r"none\.parquet: expected a file, got none"),
    "text.parquet": (lambda p: p.write_text("PAR1"), r"expected a Parquet file, got a damaged one"),
    "text.tar": (lambda p: p.write_text("no tar" * 200), r"expected a tar file, got a damaged one"),
    "a.tar.gz": (lambda p: p.write_bytes(b""), r"expected an uncompressed tar file"),
    "numbers.parquet": (lambda p: pq.write_table(pa.table({"a": [1]}), p), r"one column of images as bytes, got none"),
    "two.parquet": (
        lambda p: pq.write_table(pa.table({"a": [b"x"], "b": [b"x"]}), p),
        r"got the columns of bytes 'a', 'b': `column` chooses",
    ),
    "none.tar": (lambda p: write_tar(p, {"a.txt": b"x"}), r"expected images, got none in"),
    "twice.tar": (
        lambda p: write_tar(p, {"a/0.png": b"x", "a/0.seg.png": b"", "a/0.jpg": b"y"}),
        r"one image for each basename, got a/0\.png and a/0\.jpg",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_shards_that_cannot_be_used(tmp_path: Path, name: str) -> None:
    make, said = BAD[name]
    make(tmp_path / name)
    with pytest.raises(DataError, match=said):
        source([str(tmp_path / name)])


def test_a_tar_file_that_was_cut_off(tmp_path: Path) -> None:
    write_tar(tmp_path / "data.tar", {"0.png": png(0), "1.png": png(1)})
    found, _ = source([str(tmp_path / "data.tar")])
    content = (tmp_path / "data.tar").read_bytes()
    (tmp_path / "data.tar").write_bytes(content[:1636])  # within the second image
    part = read_block(blocks(found, 3)[0], 3, SIZE, CLASSES)
    assert len(part.ids) == 1
    assert "the tar file is cut off" in part.problems[0]
    with pytest.raises(DataError, match=r"expected a tar file, got a damaged one \(unexpected end of data\)"):
        source([str(tmp_path / "data.tar")])


def test_what_lies_between_the_images_of_a_shard_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A film of 1 GB between two images, and an image that is larger than any: a hole, which takes no room on disk."""
    monkeypatch.setattr(image_sources, "LARGEST_FILE", 2**20, raising=False)
    shard, film = tmp_path / "data.tar", 10**9
    with shard.open("wb") as file:
        for name, content in (("0.png", png(0)), ("1.mp4", film), ("2.png", png(2)), ("3.png", film), ("2.cls", b"1")):
            info = tarfile.TarInfo(name)
            info.size = content if isinstance(content, int) else len(content)
            file.write(info.tobuf())
            begin = file.tell()
            file.write(content if isinstance(content, bytes) else b"")
            file.truncate(begin - -info.size // 512 * 512)
            file.seek(0, os.SEEK_END)
        file.write(bytes(1024))
    opened, taken = image_sources._opened, []

    @contextmanager
    def counting(name: str) -> Iterator[Any]:
        with opened(name) as stream:

            def read(count: int) -> bytes:
                assert count < 10**6, "the film is read"
                taken.append(count)
                return stream.read(count)

            yield SimpleNamespace(seek=stream.seek, tell=stream.tell, read=read)

    found, _ = source([str(shard)])
    monkeypatch.setattr(image_sources, "_opened", counting)
    part = read_block(blocks(found, 3)[0], 3, SIZE, CLASSES)
    assert len(taken) == 3
    assert [Path(name).name for name in part.ids] == ["0.png", "2.png"]
    np.testing.assert_array_equal(part.pixels, [decode(png(n), 3, SIZE) for n in (0, 2)])
    assert part.labels.tolist() == [-1, 1]
    assert part.problems == (f"{shard}/3.png (a file of 1.0 GB, more than 0.0)",)


def test_a_block_holds_no_more_than_so_many_bytes_of_a_shard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Parquet file of 2 kB whose dictionary has one image of 2 MB for 60 rows."""
    monkeypatch.setattr(image_sources, "HELD", 2**23, raising=False)
    image = png(0) + bytes(2**21)
    rows = pa.DictionaryArray.from_arrays(pa.array([0] * 60, pa.int8()), pa.array([image]))
    pq.write_table(pa.table({"image": rows}), tmp_path / "a.parquet", compression="zstd", store_schema=False)
    write_tar(tmp_path / "b.tar", {f"{n}.png": image for n in range(6)})
    assert (tmp_path / "a.parquet").stat().st_size < 2000
    for name in ("a.parquet", "b.tar"):
        found, _ = source([str(tmp_path / name)])
        with pytest.raises(DataError, match=r"at most 0\.0 GB of images in one block, got more: .*--part-images"):
            read_block(blocks(found, 6)[0], 3, SIZE, CLASSES)
        part = read_block(blocks(found, 3)[1], 3, SIZE, CLASSES)
        np.testing.assert_array_equal(part.pixels, [decode(png(0), 3, SIZE)] * 3)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes with names")
def test_a_shard_that_is_a_pipe_is_refused(tmp_path: Path) -> None:
    (tmp_path / "more").mkdir()
    os.mkfifo(tmp_path / "more" / "0.tar")
    held = os.open(tmp_path / "more" / "0.tar", os.O_RDWR | os.O_NONBLOCK)  # who opens it does not wait
    (tmp_path / "1.tar").symlink_to("/dev/zero")
    for place in (tmp_path / "more", tmp_path / "more" / "0.tar", tmp_path / "1.tar"):
        with pytest.raises(DataError, match=r"\.tar( cannot be read)?: expected a file, got a (named pipe|device)"):
            source([str(place)])
    os.close(held)


def test_the_column_is_chosen(tmp_path: Path) -> None:
    table = pa.table({"thumbnail": [png(1)], "image": [png(2)], "photo": [png(3)]})
    pq.write_table(table, tmp_path / "a.parquet")
    for column, number in ((None, 2), ("photo", 3)):
        parts, _ = read_all(tmp_path / "a.parquet", column=column)
        np.testing.assert_array_equal(parts[0].pixels[0], decode(png(number), 3, SIZE))
    with pytest.raises(DataError, match="expected a column 'x' of bytes, got the columns 'thumbnail', 'image'"):
        source([str(tmp_path / "a.parquet")], column="x")


def test_addresses(tmp_path: Path, expected: np.ndarray) -> None:
    fs = fsspec.filesystem("memory")
    for number in range(11):
        fs.pipe(f"/photos/{number:03d}.png", png(number))
    fs.pipe("/photos/notes.txt", b"text")
    write_parquet(tmp_path / "a.parquet", [png(n) for n in range(11)])
    write_tar(tmp_path / "b.tar", {f"{n:03d}.png": png(n) for n in range(11)})
    for name in ("a.parquet", "b.tar"):
        fs.pipe(f"/shards/{name}", (tmp_path / name).read_bytes())
    for address in (
        "memory://photos",
        "memory://shards/a.parquet",
        "memory://shards/*.tar",
        f"file://{tmp_path}/b.tar",
    ):
        parts, notes = read_all(address)
        np.testing.assert_array_equal(joined(parts, "pixels"), expected)
        assert (len(notes) == 1) == (address == "memory://photos")
    fs.rm("/photos", recursive=True)
    fs.rm("/shards", recursive=True)
    for address, said in (
        ("memory://nowhere", "expected image files, Parquet files or tar shards, got none"),
        ("nothing://x/y", "nothing://x/y cannot be read: .*nothing"),
    ):
        with pytest.raises(DataError, match=said):
            source([address])


def test_what_is_more_than_files_of_this_machine(tmp_path: Path) -> None:
    files = write_files(tmp_path / "files", 2)
    write_tar(tmp_path / "shards" / "a.tar", {"0.png": png(0)}) if (tmp_path / "shards").mkdir() is None else None
    assert not are_sources([str(tmp_path / "files"), str(files[0]), "nowhere.png"])
    for one in ("s3://bucket/a.png", "a.TAR", "a.parquet", str(tmp_path / "shards")):
        assert are_sources([str(files[0]), one])
    parts, _ = read_all(tmp_path / "shards")
    assert joined(parts, "ids") == [f"{tmp_path / 'shards' / 'a.tar'}/0.png"]


def test_labels_of_a_file_of_json_run_nothing(tmp_path: Path) -> None:
    deep = ("[" * 5000 + "]" * 5000).encode()
    write_tar(
        tmp_path / "a.tar", {"0.png": png(0), "0.json": deep, "1.png": png(1), "1.json": json.dumps([1]).encode()}
    )
    assert joined(read_all(tmp_path / "a.tar")[0], "labels").tolist() == [-1, -1]
