"""Codes in parts: what is written is read back as one, whatever interrupts it; damaged and foreign parts are named."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from htaf import runs
from htaf._files import sealed
from htaf.concepts import extract as extraction
from htaf.concepts import sharded_writing, store, writing
from htaf.concepts.codes import PARTS, Codes, ConceptError
from htaf.concepts.extract import extract, extract_features, extract_parts
from htaf.concepts.sharded import MANIFEST, ROWS, ShardedCodes, open_sharded, read_manifest
from htaf.concepts.sharded_writing import part_name, slice_of, write_manifest, writing_parts
from htaf.concepts.store import accuracies, open_codes, open_features, open_margins
from htaf.concepts.writing import Contents
from htaf.data.images import Images
from made_runs import PLAIN, digits, made_run

CHUNK = 8


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (store, writing):
        monkeypatch.setattr(module, "CHUNK", CHUNK)
    for module in (writing, sharded_writing):
        monkeypatch.setattr(module, "environment", dict)  # it asks git, hundreds of times here


def made(n: int, c: int, k: int = 3, *, seed: int = 0) -> tuple[Contents, dict[str, np.ndarray]]:
    """What a folder is to hold, and its arrays in whole."""
    rng = np.random.default_rng([n, c, seed])
    contents = Contents(
        {"run": "r", "what": "extraction"},
        tuple(f"class {i}" for i in range(k)),
        rng.integers(-1, k, n).astype(np.int32),
        rng.integers(0, 4, n).astype(np.uint8),
        [f"bilder/ä{i}.png" for i in range(n)],
        rng.normal(size=(k, c)).astype(np.float32),
        rng.normal(size=k).astype(np.float32),
        margins=True,
        info={"notes": ["a note"], "run": "runs/r"},
    )
    values = rng.normal(size=(n, c)).astype(np.float32)
    ends = {"smooth": k, "exact": k, "saturated": c + 1}
    arrays = {name: rng.integers(0, end, n).astype(np.int32) for name, end in ends.items()}
    return contents, arrays | {
        "codes": np.packbits(values >= 0, axis=1, bitorder="little"),
        "margins": values.astype(np.float16),
    }


def write(folder: Path, contents: Contents, arrays: dict[str, np.ndarray]) -> None:
    with writing.writing(folder, contents) as writer:
        for chunk in list(writer.pending):
            writer.write(chunk, {name: a[chunk * CHUNK : (chunk + 1) * CHUNK] for name, a in arrays.items()})
        writer.finish()


def write_parts(path: Path, sizes: list[int], c: int = 11) -> tuple[Contents, dict[str, np.ndarray]]:
    contents, arrays = made(sum(sizes), c)
    with writing_parts(path, contents.settings) as parts:
        for number, size in enumerate(sizes):
            first = sum(sizes[:number])
            rows = slice(first, first + size)
            write(
                parts.folder(number), slice_of(contents, first, first + size), {k: a[rows] for k, a in arrays.items()}
            )
        parts.finish(len(sizes))
    return contents, arrays


def same(codes: Codes, contents: Contents, arrays: dict[str, np.ndarray], rows: Any = slice(None)) -> None:
    np.testing.assert_array_equal(codes.bits, arrays["codes"][rows])
    for name in ("smooth", "exact", "saturated"):
        np.testing.assert_array_equal(getattr(codes, name), arrays[name][rows])
    np.testing.assert_array_equal(codes.labels, contents.labels[rows])
    np.testing.assert_array_equal(codes.parts, contents.parts[rows])
    assert list(codes.ids) == np.array(contents.ids)[rows].tolist()
    np.testing.assert_array_equal(codes.weight, contents.weight)


@settings(deadline=None, max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(sizes=st.lists(st.integers(1, 3 * CHUNK), min_size=1, max_size=4), c=st.integers(1, 70), data=st.data())
def test_parts_are_read_back_as_one(tmp_path: Path, sizes: list[int], c: int, data: st.DataObject) -> None:
    path = tmp_path / "codes"
    shutil.rmtree(path, ignore_errors=True)
    contents, arrays = write_parts(path, sizes, c)
    found = open_sharded(path, verify=True)
    assert (len(found), found.concepts, found.classes) == (sum(sizes), c, contents.classes)
    same(open_codes(path), contents, arrays)
    np.testing.assert_array_equal(open_margins(path), arrays["margins"])  # pyright: ignore
    rows = data.draw(st.lists(st.integers(0, sum(sizes) - 1), min_size=1, max_size=20))
    same(found.rows(rows), contents, arrays, rows)
    for number, part in enumerate(found.parts):
        first = sum(sizes[:number])
        same(part, contents, arrays, slice(first, first + sizes[number]))
        same(open_codes(path / part_name(number)), contents, arrays, slice(first, first + sizes[number]))
    assert [bits.shape for _, bits in found.bits()] == [(size, (c + 7) // 8) for size in sizes]
    row = rows[0]
    whole = open_codes(path)
    assert (whole.ids.index(contents.ids[row]), whole.row(contents.ids[row])) == (row, row)
    assert whole.ids[row : row + 9] == contents.ids[row : row + 9]
    assert whole.ids[-1] == contents.ids[-1]
    for one, other in zip(found.accuracies(), accuracies(whole), strict=True):
        assert one == pytest.approx(other)


def test_rows_are_a_table_for_other_programs(tmp_path: Path) -> None:
    contents, arrays = write_parts(tmp_path, [9, 20, 3])
    table = pd.concat([pd.read_parquet(file) for file in sorted(tmp_path.glob(f"part-*/{ROWS}"))])
    assert list(table.columns) == ["id", "label", "part", "exact", "row"]
    assert table["row"].tolist() == list(range(32))
    assert table["id"].tolist() == contents.ids
    assert table["part"].tolist() == [PARTS[number] for number in contents.parts]
    np.testing.assert_array_equal(table["exact"], arrays["exact"])
    np.testing.assert_array_equal(table["label"], contents.labels)
    before = {file: file.stat().st_mtime_ns for file in tmp_path.glob(f"part-*/{ROWS}")}
    write_manifest(tmp_path, settings=contents.settings)
    assert before == {file: file.stat().st_mtime_ns for file in before}, "written again"
    (tmp_path / "part-00001" / ROWS).write_bytes(b"PAR1")
    write_manifest(tmp_path, ["part-00001", "part-00000"], settings=contents.settings)
    assert pd.read_parquet(tmp_path / "part-00001" / ROWS)["row"].tolist() == list(range(20))
    assert pd.read_parquet(tmp_path / "part-00000" / ROWS)["row"].tolist() == list(range(20, 29))


def flip(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)


DAMAGE: dict[str, tuple[Callable[[Path], object], bool, str]] = {  # what, whether only verify sees it, what is said
    "no folder": (lambda p: shutil.rmtree(p), False, r"part-00001/concepts\.json is missing"),
    "no record": (lambda p: (p / "concepts.json").unlink(), False, r"part-00001/concepts\.json is missing"),
    "no codes": (lambda p: (p / "codes.npy").unlink(), False, r"part-00001/codes\.npy is missing"),
    "no images": (lambda p: (p / "images.arrow").unlink(), False, r"part-00001/images\.arrow is missing"),
    "cut off": (lambda p: (p / "exact.npy").write_bytes(b"\x93NUMPY"), False, r"part-00001/exact\.npy is damaged"),
    "another record": (lambda p: flip(p / "concepts.json"), False, r"part-00001/concepts\.json is damaged"),
    "a record of its own": (
        lambda p: (p / "concepts.json").write_text((p / "concepts.json").read_text() + " "),
        False,
        r"part-00001/concepts\.json is damaged: its SHA-256 differs from the one in manifest\.json",
    ),
    "a bit": (lambda p: flip(p / "codes.npy"), True, r"part-00001/codes\.npy is damaged: its SHA-256"),
    "an id": (lambda p: flip(p / "images.arrow"), True, r"part-00001/images\.arrow is damaged: its SHA-256"),
}


@pytest.mark.parametrize("what", DAMAGE)
def test_a_damaged_part_is_named_and_the_others_are_usable(tmp_path: Path, what: str) -> None:
    damage, unseen, said = DAMAGE[what]
    contents, arrays = write_parts(tmp_path, [9, 20, 3])
    damage(tmp_path / "part-00001")
    if unseen:
        assert len(open_sharded(tmp_path)) == 32
    with pytest.raises(ConceptError, match=said):
        open_sharded(tmp_path, verify=True)
    with pytest.raises(ConceptError, match=said):
        open_codes(tmp_path)
    found = open_sharded(tmp_path, verify=True, skip_damaged=True)
    assert (len(found), len(found.parts), len(found.left_out)) == (12, 2, 1)
    assert found.left_out[0].startswith("part-00001: ")
    rows = [*range(9), *range(29, 32)]  # row numbers stay
    same(found.whole(), contents, arrays, rows)
    same(found.rows([30, 8, 29]), contents, arrays, [30, 8, 29])
    with pytest.raises(ConceptError, match=r"row numbers from 0 to 31 of usable parts of .*, got 12"):
        found.rows([3, 12])


@pytest.mark.parametrize("row", [-1, 32])
def test_rows_that_are_not_there(tmp_path: Path, row: int) -> None:
    write_parts(tmp_path, [9, 20, 3])
    with pytest.raises(ConceptError, match=f"row numbers from 0 to 31 .*, got {row}"):
        open_sharded(tmp_path).rows([0, row])


def test_no_part_is_usable(tmp_path: Path) -> None:
    write_parts(tmp_path, [9])
    shutil.rmtree(tmp_path / "part-00000")
    with pytest.raises(ConceptError, match=r"no part is usable, part-00000: .*concepts\.json is missing"):
        open_sharded(tmp_path, skip_damaged=True)


def edit(path: Path, **changes: Any) -> None:
    record = json.loads((path / MANIFEST).read_text())
    (path / MANIFEST).write_text(sealed(record | changes))


PART = {"folder": "part-00000", "images": 9, "sha256": "0"}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"format": 2}, r"expected format 1, got 2"),
        ({"kind": "a web page"}, r"expected the manifest of codes in parts, got 'a web page'"),
        ({"status": "running"}, r"is not finished: give the command that makes it again"),
        ({"key": 3}, r"is damaged: it lacks key"),
        ({"parts": None}, r"is damaged: it lacks parts"),
        ({"parts": []}, r"is damaged: expected parts in folders of different names, got 0"),
        ({"parts": [PART, PART]}, r"is damaged: expected parts in folders of different names, got 2"),
        ({"parts": [PART]}, r"is damaged: its parts do not have the 12 images that it says"),
        ({"parts": [3]}, r"is damaged: expected folder, images and sha256 of each part"),
        ({"parts": [PART | {"folder": "../part-00000"}]}, r"is damaged: expected a folder beside it with images, got"),
        ({"parts": [PART | {"images": -9}]}, r"is damaged: expected a folder beside it with images"),
        ({"classes": ["a", "b", "c"]}, r"part-00000: its classes differ from those of manifest\.json"),
        ({"classes": [1]}, r"is damaged: expected names of classes and arrays"),
        ({"concepts": 12}, r"part-00000: its concepts differ from those of manifest\.json"),
    ],
)
def test_a_wrong_manifest_is_refused(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    write_parts(tmp_path, [9, 3])
    edit(tmp_path, **changes)
    with pytest.raises(ConceptError, match=said):
        open_sharded(tmp_path)
    with pytest.raises(ConceptError):
        open_codes(tmp_path)


def test_there_is_no_manifest(tmp_path: Path) -> None:
    with pytest.raises(ConceptError, match=r"expected a folder of codes in parts with manifest\.json, found none"):
        open_sharded(tmp_path)


def test_parts_must_be_of_one_network(tmp_path: Path) -> None:
    contents, arrays = made(9, 11)
    write(tmp_path / "a", contents, arrays)
    others = {
        "the setting run to be 'r', got 'other'": replace(contents, settings={**contents.settings, "run": "other"}),
        "classes": replace(contents, classes=("x", "y", "z")),
        "the head": replace(contents, bias=contents.bias + 1),
    }
    for said, other in others.items():
        shutil.rmtree(tmp_path / "b", ignore_errors=True)
        write(tmp_path / "b", other, arrays)
        with pytest.raises(ConceptError, match=f"b is of other codes than a: expected {said}"):
            write_manifest(tmp_path)
    assert read_manifest(tmp_path) is None
    shutil.rmtree(tmp_path / "b")
    write(tmp_path / "b", *made(9, 12))
    with pytest.raises(ConceptError, match="expected concepts to be 11, got 12"):
        write_manifest(tmp_path, ["a", "b"])
    with pytest.raises(ConceptError, match=r"found none at .*/c"):
        write_manifest(tmp_path, ["a", "c"])
    with pytest.raises(ConceptError, match="expected different names of folders directly in"):
        write_manifest(tmp_path, ["a", "../a"])
    with pytest.raises(ConceptError, match=r"expected folders of codes in .*, found none"):
        write_manifest(tmp_path / "a")
    with writing.writing(tmp_path / "d", contents):
        pass
    with pytest.raises(ConceptError, match=r"d is not finished"):
        write_manifest(tmp_path, ["a", "d"])


def test_what_does_not_fit_names_the_functions_that_stream(tmp_path: Path) -> None:
    write_parts(tmp_path, [9, 3])
    found = open_sharded(tmp_path)
    assert found.nbytes == 12 * (2 + 17)
    assert len(found.whole(most=found.nbytes)) == 12
    with pytest.raises(ConceptError, match=r"holds 12 images, .* expected at most .*open_sharded"):
        found.whole(most=found.nbytes - 1)
    with pytest.raises(ConceptError, match="expected at most"):
        found.whole_features(most=1)


def test_a_folder_of_parts_is_not_written_over(tmp_path: Path) -> None:
    contents, arrays = write_parts(tmp_path / "parts", [9, 3])
    with pytest.raises(ConceptError, match="holds codes in parts: give --part-images"):
        write(tmp_path / "parts", contents, arrays)
    with (
        pytest.raises(ConceptError, match="holds other codes \\(run: 'r' there, 'q' here"),
        writing_parts(tmp_path / "parts", {**contents.settings, "run": "q"}),
    ):
        pass
    write(tmp_path / "one", contents, {k: a[:9] for k, a in made(12, 11)[1].items()} | arrays)
    with (
        pytest.raises(ConceptError, match="expected a new or empty folder"),
        writing_parts(tmp_path / "one", contents.settings),
    ):
        pass


@pytest.fixture(scope="module")
def images() -> Images:
    return digits()


@pytest.fixture(scope="module")
def run(images: Images, tmp_path_factory: pytest.TempPathFactory) -> runs.Run:
    return made_run(tmp_path_factory.mktemp("runs") / "run", images)


def arrays_of(path: Path) -> dict[str, np.ndarray]:
    codes = open_codes(path)
    names = ("bits", "labels", "parts", "smooth", "exact", "saturated")
    return {name: getattr(codes, name) for name in names} | {"ids": np.array(list(codes.ids))}


@pytest.fixture
def chunks_of_100(monkeypatch: pytest.MonkeyPatch, small_chunks: None) -> None:
    for module in (store, writing, extraction):
        monkeypatch.setattr(module, "CHUNK", 100)


@pytest.mark.usefixtures("chunks_of_100")
@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_extraction_in_parts_gives_the_same_bytes(
    run: runs.Run, images: Images, tmp_path: Path, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    extract(run, images, tmp_path / "one", features=True, batch=100)
    found = extract_parts(run, images, tmp_path / "parts", 300, features=True, batch=100, workers=workers)
    assert isinstance(found, ShardedCodes)
    assert [part.images for part in found.folders] == [300, 300, 300, 300, 59]
    expected, came = arrays_of(tmp_path / "one"), arrays_of(tmp_path / "parts")
    for name, array in expected.items():
        np.testing.assert_array_equal(came[name], array, name)
    if workers == 1:  # other threads may turn a last bit
        np.testing.assert_array_equal(open_features(tmp_path / "parts").values, open_features(tmp_path / "one").values)
        one, parts = open_margins(tmp_path / "one"), open_margins(tmp_path / "parts")
        assert one is not None
        assert parts is not None
        np.testing.assert_array_equal(parts, one)
    assert found.info["run"] == str(run.path.resolve())


@pytest.mark.usefixtures("chunks_of_100")
def test_extraction_in_parts_is_continued(
    run: runs.Run, images: Images, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    extract_parts(run, images, tmp_path / "whole", 250)

    class StoppedError(Exception):
        pass

    write, left = writing.Writer.write, [4]  # a part is whole, one is begun

    def stops(self: Any, chunk: int, values: Any) -> None:
        if not left[0]:
            raise StoppedError
        left[0] -= 1
        write(self, chunk, values)

    monkeypatch.setattr(writing.Writer, "write", stops)
    with pytest.raises(StoppedError):
        extract_parts(run, images, tmp_path / "again", 250)
    with pytest.raises(ConceptError, match="is not finished"):
        open_codes(tmp_path / "again")
    assert len(open_codes(tmp_path / "again" / "part-00000")) == 250
    kept = (tmp_path / "again" / "part-00000" / "codes.npy").stat().st_mtime_ns
    with pytest.raises(ConceptError, match="holds other codes \\(part_images: 250 there, 300 here"):
        extract_parts(run, images, tmp_path / "again", 300)
    left[0] = 1000
    extract_parts(run, images, tmp_path / "again", 250)
    assert left[0] == 1000 - (1259 // 250 * 3 + 1 - 4), "chunks that are there were written again"
    assert (tmp_path / "again" / "part-00000" / "codes.npy").stat().st_mtime_ns == kept
    whole, again = (
        {str(f.relative_to(p)): f.read_bytes() for f in sorted(p.rglob("*")) if f.is_file()}
        for p in (tmp_path / "whole", tmp_path / "again")
    )
    assert whole == again
    extract_parts(run, images, tmp_path / "again", 250)
    assert left[0] == 1000 - 12


@pytest.mark.usefixtures("chunks_of_100")
def test_features_of_a_plain_network_in_parts(images: Images, tmp_path: Path) -> None:
    plain = made_run(tmp_path / "run", images, PLAIN)
    one = extract_features(plain, images, tmp_path / "one")
    found = extract_parts(plain, images, tmp_path / "parts", 500)
    np.testing.assert_array_equal(open_features(tmp_path / "parts").labels, one.labels)
    np.testing.assert_allclose(open_features(tmp_path / "parts").values, one.values, atol=1e-5)
    assert [row["exact"] for row in found.accuracies()] == [None] * 3
    with pytest.raises(ConceptError, match="holds features of a plain network, not codes"):
        open_codes(tmp_path / "parts")


@pytest.mark.usefixtures("chunks_of_100")
def test_the_command_writes_and_reads_parts(run: runs.Run, tmp_path: Path, htaf: Callable[..., Any]) -> None:
    words = ("concepts", "extract", run.path, "--out", tmp_path / "parts", "--part-images")
    assert htaf(*words, 0)[0] == 2
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runs.Run, "data", lambda *_, **__: digits())
        code, out, _ = htaf(*words, 400, "--json")
        assert code == 0
        assert (json.loads(out)["images"], json.loads(out)["concepts"]) == (1259, 21)
        assert [row["part"] for row in json.loads(out)["parts"]] == ["train", "validation", "test"]
        assert "1,259 images, 21 concepts" in htaf(*words, 400)[1]
    one, whole = htaf("concepts", "score", tmp_path / "parts", "--json")[1], open_codes(tmp_path / "parts")
    assert json.loads(one)["accuracy"]["test"]["images"] == (whole.parts == 2).sum()
