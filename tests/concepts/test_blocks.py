"""Extraction in blocks: the same bytes as one process, whatever the images come from and whatever interrupts it."""

from __future__ import annotations

import errno
import io
import json
import os
import shutil
import tarfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

from htaf import runs
from htaf.concepts import blocks, extract, store, writing
from htaf.concepts.blocks import Block, InProcess, Job, Outcome, extract_blocks
from htaf.concepts.codes import ConceptError
from htaf.concepts.extract import extract_files, extract_parts
from htaf.concepts.sharded import open_sharded
from htaf.concepts.store import open_codes, open_features
from htaf.data.images import Images
from htaf.data.reading import DataError
from made_runs import PLAIN, digits, made_run

COUNT = 220


@pytest.fixture(scope="module", autouse=True)
def small_chunks() -> Iterator[None]:
    """A tenth of the images in each chunk, so that there are several parts of few images."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (store, writing, extract, blocks):
            patch.setattr(module, "CHUNK", 100)
        yield


@pytest.fixture(scope="module")
def images() -> Images:
    return digits()


@pytest.fixture(scope="module")
def run(images: Images, tmp_path_factory: pytest.TempPathFactory) -> runs.Run:
    return made_run(tmp_path_factory.mktemp("runs") / "run", images)


@pytest.fixture(scope="module")
def photos(images: Images, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("photos")
    for number in range(COUNT):
        pixels = images.train.batch(torch.tensor([number]))[0, 0].numpy()
        Image.fromarray(np.roll(pixels, number // 50, 0)).save(folder / f"{number:05d}.png")
    return folder


@pytest.fixture(scope="module")
def one(run: runs.Run, photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder, by one process."""
    out = tmp_path_factory.mktemp("one") / "codes"
    extract_files(run, sorted(photos.iterdir()), out, features=True)
    return out


def arrays(path: Path) -> dict[str, np.ndarray]:
    codes = open_codes(path)
    names = ("bits", "labels", "parts", "smooth", "exact", "saturated")
    return {name: np.asarray(getattr(codes, name)) for name in names}


def files(path: Path) -> dict[str, bytes]:
    return {str(f.relative_to(path)): f.read_bytes() for f in sorted(path.rglob("*")) if f.is_file()}


def test_the_folder_is_that_of_one_process(run: runs.Run, photos: Path, one: Path, tmp_path: Path) -> None:
    found = extract_blocks(run, [str(photos)], tmp_path / "a", 100, features=True)
    assert [part.images for part in found.folders] == [100, 100, 20]
    for name, array in arrays(one).items():
        np.testing.assert_array_equal(arrays(tmp_path / "a")[name], array, name)
    assert list(open_codes(tmp_path / "a").ids) == list(open_codes(one).ids)
    np.testing.assert_array_equal(open_features(tmp_path / "a").values, open_features(one).values)
    extract_parts(run, sorted(photos.iterdir()), tmp_path / "b", 100, features=True)
    assert files(tmp_path / "a") == files(tmp_path / "b"), "the two engines do not continue each other"


def test_a_set_in_blocks(run: runs.Run, images: Images, tmp_path: Path) -> None:
    extract_blocks(run, images, tmp_path / "a", 100)
    extract_parts(run, images, tmp_path / "b", 100)
    assert files(tmp_path / "a") == files(tmp_path / "b")
    plain = made_run(tmp_path / "run", images, PLAIN)
    extract_blocks(plain, images, tmp_path / "c", 100, parts=["test"])
    extract_parts(plain, images, tmp_path / "d", 100, parts=["test"])
    assert files(tmp_path / "c") == files(tmp_path / "d")


def test_shards(run: runs.Run, photos: Path, one: Path, tmp_path: Path) -> None:
    names = sorted(photos.iterdir())
    for first in range(0, COUNT, 80):
        content = [name.read_bytes() for name in names[first : first + 80]]
        pq.write_table(
            pa.table({"image": content, "label": [first // 80] * len(content)}), tmp_path / f"{first:05d}.parquet"
        )
        with tarfile.open(tmp_path / f"{first:05d}.tar", "w") as tar:
            for number, data in enumerate(content):
                for suffix, value in (("png", data), ("cls", b"30")):
                    info = tarfile.TarInfo(f"{number:03d}.{suffix}")
                    info.size = len(value)
                    tar.addfile(info, io.BytesIO(value))
    expected = arrays(one)
    for kind in ("parquet", "tar"):
        given = [str(file) for file in sorted(tmp_path.glob(f"*.{kind}"))]
        found = extract_blocks(run, given, tmp_path / kind, 100)
        came = arrays(tmp_path / kind)
        for name in expected.keys() - {"labels"}:
            np.testing.assert_array_equal(came[name], expected[name], name)
        labels = np.arange(COUNT) // 80 if kind == "parquet" else np.full(COUNT, -1)
        np.testing.assert_array_equal(came["labels"], labels)
        said = [note for note in found.info["notes"] if "labels" in note]
        assert said == ([] if kind == "parquet" else ["220 labels are none of the 10 classes of the run: they are -1"])


def test_files_that_cannot_be_read(run: runs.Run, photos: Path, one: Path, tmp_path: Path) -> None:
    bad = tmp_path / "bad"
    shutil.copytree(photos, bad)
    for number in (3, 150, *range(200, 220)):
        (bad / f"{number:05d}.png").write_bytes(b"text")
    found = extract_blocks(run, [str(bad)], tmp_path / "a", 100)
    assert (len(found), len(found.folders), found.info["unreadable"]) == (198, 2, 22)
    assert len(found.info["unreadable_files"]) == 22
    assert found.info["unreadable_files"][0] == f"{bad / '00003.png'} (a file of another kind)"
    assert "22 of 220 files cannot be read and are left out" in found.info["notes"]
    kept = np.setdiff1d(np.arange(200), [3, 150])
    np.testing.assert_array_equal(arrays(tmp_path / "a")["bits"], arrays(one)["bits"][kept])
    before = files(tmp_path / "a")
    assert extract_blocks(run, [str(bad)], tmp_path / "a", 100).info["unreadable"] == 22
    assert files(tmp_path / "a") == before
    with pytest.raises(DataError, match=r"00003\.png: expected an image, got a file of another kind; finished parts"):
        extract_blocks(run, [str(bad)], tmp_path / "b", 100, strict=True)
    with pytest.raises(DataError, match=r"expected image files, got .*200\.png"):
        extract_blocks(run, [str(bad / f"{n:05d}.png") for n in range(200, 210)], tmp_path / "c")


def test_a_shard_that_is_damaged_in_the_middle(run: runs.Run, photos: Path, one: Path, tmp_path: Path) -> None:
    """Its end says what it holds, so that only reading its images finds out."""
    names, shards = sorted(photos.iterdir()), tmp_path / "shards"
    shards.mkdir()
    for number in range(2):
        rows = [name.read_bytes() for name in names[number * 110 : number * 110 + 110]]
        pq.write_table(pa.table({"image": rows}), shards / f"{number}.parquet", row_group_size=90, use_dictionary=False)
    whole, last = (shards / "1.parquet").read_bytes(), pq.read_metadata(shards / "1.parquet").row_group(1).column(0)
    begin, end = last.data_page_offset + 100, last.data_page_offset + last.total_compressed_size - 100
    (shards / "1.parquet").write_bytes(whole[:begin] + bytes(end - begin) + whole[end:])
    with pytest.raises(DataError, match=r"^on .*: .*/1\.parquet: expected a Parquet file, got a damaged one .*kept"):
        extract_blocks(run, [str(shards)], tmp_path / "a", 100)
    assert sorted(p.name for p in (tmp_path / "a").glob("part-*")) == ["part-00000", "part-00001"]
    (shards / "1.parquet").write_bytes(whole)
    engine = Stops(0)
    extract_blocks(run, [str(shards)], tmp_path / "a", 100, engine=engine)
    assert engine.asked == 1
    np.testing.assert_array_equal(arrays(tmp_path / "a")["bits"], arrays(one)["bits"])


class Stops(InProcess):
    """Ends after so many parts."""

    def __init__(self, after: int) -> None:
        super().__init__("cpu")
        self.after, self.asked = after, 0

    def outcomes(self, job: Job, blocks: Sequence[Block]) -> Iterator[Outcome]:
        self.asked = len(blocks)
        for number, outcome in enumerate(super().outcomes(job, blocks)):
            yield outcome
            if number + 1 == self.after:
                raise KeyboardInterrupt


def test_only_what_is_missing_is_made(run: runs.Run, photos: Path, tmp_path: Path) -> None:
    extract_blocks(run, [str(photos)], tmp_path / "whole", 100)
    with pytest.raises(KeyboardInterrupt):
        extract_blocks(run, [str(photos)], tmp_path / "a", 100, engine=Stops(2))
    with pytest.raises(ConceptError, match="is not finished"):
        open_codes(tmp_path / "a")
    (tmp_path / "a" / ".part-00002.left").mkdir()  # of a process that was killed
    data = (tmp_path / "a" / "part-00001" / "codes.npy").read_bytes()
    (tmp_path / "a" / "part-00001" / "codes.npy").write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    kept = (tmp_path / "a" / "part-00000" / "codes.npy").stat().st_mtime_ns
    engine = Stops(0)
    found = extract_blocks(run, [str(photos)], tmp_path / "a", 100, engine=engine)
    assert engine.asked == 2
    assert (tmp_path / "a" / "part-00000" / "codes.npy").stat().st_mtime_ns == kept
    assert "part-00001 was damaged and is made again" in found.info["notes"][0]
    whole, again = files(tmp_path / "whole"), files(tmp_path / "a")
    assert {k: v for k, v in whole.items() if k != "manifest.json"} == {
        k: v for k, v in again.items() if k != "manifest.json"
    }
    engine = Stops(0)
    extract_blocks(run, [str(photos)], tmp_path / "a", 100, engine=engine)
    assert engine.asked == 0
    with pytest.raises(ConceptError, match="holds other codes"):
        extract_blocks(run, [str(photos)], tmp_path / "a", 200)


def test_a_full_disk_is_named_and_other_parts_stay(
    run: runs.Run, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = writing.write_rows

    def full(file: Path, first: int, values: np.ndarray) -> None:
        if ".part-00001" in str(file):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(file))
        write(file, first, values)

    monkeypatch.setattr(writing, "write_rows", full)
    with pytest.raises(
        ConceptError, match=r"^on .*: .*/part-00001 cannot be written: No space left .*, [\d,]+ bytes free"
    ):
        extract_blocks(run, [str(photos)], tmp_path / "a", 100)
    assert sorted(p.name for p in (tmp_path / "a").iterdir()) == ["manifest.json", "part-00000"]
    monkeypatch.undo()
    assert len(extract_blocks(run, [str(photos)], tmp_path / "a", 100)) == COUNT


def test_a_part_that_another_process_wrote_first_is_kept(run: runs.Run, photos: Path, tmp_path: Path) -> None:
    class Twice(InProcess):
        def outcomes(self, job: Job, blocks: Sequence[Block]) -> Iterator[Outcome]:
            list(super().outcomes(job, blocks[:1]))
            (job.out / ".part-00001.dead").mkdir()
            (job.out / "part-00001").mkdir()  # begun, without a record
            (job.out / "part-00001" / "x").touch()
            yield from super().outcomes(job, blocks)

    found = extract_blocks(run, [str(photos)], tmp_path / "a", 100, engine=Twice("cpu"))
    assert len(found) == COUNT
    assert not (tmp_path / "a" / "part-00001" / "x").exists()
    assert not list((tmp_path / "a").glob(".part-*"))
    open_sharded(tmp_path / "a", verify=True)


@pytest.mark.parametrize("size", [0, 99, 101])
def test_blocks_hold_whole_chunks(run: runs.Run, photos: Path, tmp_path: Path, size: int) -> None:
    with pytest.raises(ConceptError, match=f"multiple of 100, .*got {size:,}"):
        extract_blocks(run, [str(photos)], tmp_path / "a", size)


def test_the_size_of_a_block_where_none_is_given(run: runs.Run, monkeypatch: pytest.MonkeyPatch) -> None:
    known: Any = run.preprocessor()
    assert blocks._block_size(None, known) == 100_000
    monkeypatch.setattr(blocks, "DECODED", 64 * 250)
    assert blocks._block_size(None, known) == 200
    monkeypatch.setattr(blocks, "DECODED", 64)
    assert blocks._block_size(None, known) == 100


def test_the_command_takes_shards(run: runs.Run, photos: Path, tmp_path: Path, htaf: Callable[..., Any]) -> None:
    content = [file.read_bytes() for file in sorted(photos.iterdir())[:30]] + [b"text"]
    shard = tmp_path / "a.parquet"
    pq.write_table(pa.table({"image": content, "label": [n % 12 for n in range(31)]}), shard)
    words = ("concepts", "extract", str(run.path), "--files", str(shard), "--out")
    code, out, said = htaf(*words, str(tmp_path / "codes"), "--json")
    assert code == 3
    assert json.loads(out)["images"] == 30
    assert "not read: " in said
    assert "1 of 31 files cannot be read" in said
    assert "4 labels are none of the 10 classes" in said
    for more, expected in (
        (("--workers", "2"), "--workers is for one folder of image files"),
        (("--part-images", "10"), "multiple of 100"),
        (("--address", "auto"), "are for --engine ray"),
        (("--column", "x"), "expected a column 'x' of bytes"),
    ):
        code, _, said = htaf(*words, str(tmp_path / "b"), *more)
        assert code in (1, 2)
        assert expected in said
    code, _, said = htaf("concepts", "extract", str(run.path), "--files", str(photos), "--out", "x", "--column", "y")
    assert (code, "--column is for Parquet files" in said) == (2, True)
