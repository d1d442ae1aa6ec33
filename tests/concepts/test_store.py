"""A folder of codes: what is written is read back, whatever interrupts the writing, and damage is refused."""

from __future__ import annotations

import hashlib
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import safetensors.numpy
from filelock import FileLock
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from htaf._files import sealed
from htaf.concepts import store, writing
from htaf.concepts.codes import PARTS, ConceptError
from htaf.concepts.store import open_codes, open_features
from htaf.concepts.writing import Contents

CHUNK = 8


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "CHUNK", CHUNK)
    monkeypatch.setattr(writing, "CHUNK", CHUNK)
    monkeypatch.setattr(writing, "environment", dict)  # it asks git, hundreds of times here


def made(n: int = 20, c: int = 11, k: int = 3, *, features: bool = True, codes: bool = True) -> tuple[Contents, Any]:
    """What a folder is to hold, and its arrays in whole."""
    rng = np.random.default_rng(n * 1000 + c)
    contents = Contents(
        {"run": "r", "parts": ["train"], "features": features},
        tuple(f"class {i}" for i in range(k)),
        rng.integers(-1, k, n).astype(np.int32),
        rng.integers(0, 4, n).astype(np.uint8),
        [f"bilder/ä{i}.png" for i in range(n)],
        rng.normal(size=(k, c)).astype(np.float32),
        rng.normal(size=k).astype(np.float32),
        codes=codes,
        features=features,
        info={"notes": ["a note"]},
    )
    values = rng.normal(size=(n, c)).astype(np.float32)
    ends = {"smooth": k, "exact": k, "saturated": c + 1}
    arrays = {name: rng.integers(0, end, n).astype(np.int32) for name, end in ends.items()}
    arrays |= {"codes": np.packbits(values >= 0, axis=1, bitorder="little"), "features": values}
    wanted = ["smooth", *(["codes", "exact", "saturated"] if codes else []), *(["features"] if features else [])]
    return contents, {name: arrays[name] for name in wanted}


def write(path: Path, contents: Contents, arrays: dict[str, np.ndarray]) -> None:
    with writing.writing(path, contents) as writer:
        for chunk in list(writer.pending):
            writer.write(chunk, {name: a[chunk * CHUNK : (chunk + 1) * CHUNK] for name, a in arrays.items()})
        writer.finish()


def content(path: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in path.iterdir()}


@settings(deadline=None, max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(n=st.integers(1, 3 * CHUNK), c=st.integers(1, 70))
def test_what_is_written_is_read_back(tmp_path: Path, n: int, c: int) -> None:
    contents, arrays = made(n, c)
    path = tmp_path / f"{n}-{c}"
    shutil.rmtree(path, ignore_errors=True)
    write(path, contents, arrays)
    codes = open_codes(path, verify=True)
    assert (len(codes), codes.concepts, codes.classes) == (n, c, contents.classes)
    np.testing.assert_array_equal(codes.unpack(), arrays["features"] >= 0)
    for name in ("smooth", "exact", "saturated"):
        np.testing.assert_array_equal(getattr(codes, name), arrays[name])
    for name in ("labels", "parts", "weight", "bias"):
        np.testing.assert_array_equal(getattr(codes, name), getattr(contents, name))
    assert list(codes.ids) == contents.ids
    assert list(codes.ids[1:]) == contents.ids[1:]
    np.testing.assert_array_equal(open_features(path).values, arrays["features"])


def test_the_files_are_plain_numpy_arrow_and_safetensors(tmp_path: Path) -> None:
    contents, arrays = made()
    write(tmp_path / "a", contents, arrays)
    for name, array in arrays.items():
        np.testing.assert_array_equal(np.load(tmp_path / "a" / f"{name}.npy"), array)
    table = pa.ipc.open_file(tmp_path / "a" / "images.arrow").read_all()
    assert table["part"].to_pylist() == [PARTS[i] for i in contents.parts]
    assert table["label"].to_pylist() == contents.labels.tolist()
    head = safetensors.numpy.load_file(tmp_path / "a" / "head.safetensors")
    np.testing.assert_array_equal(head["weight"], contents.weight)
    assert not (tmp_path / "a" / "done.npy").exists()
    assert json.loads((tmp_path / "a" / "concepts.json").read_text())["notes"] == ["a note"]


def test_bits_stay_on_disk(tmp_path: Path) -> None:
    write(tmp_path / "a", *made())
    codes = open_codes(tmp_path / "a")
    assert isinstance(codes.bits, np.memmap)
    assert isinstance(open_features(tmp_path / "a").values, np.memmap)
    with pytest.raises(ValueError, match="read-only"):
        codes.bits[0] = 0


class Killed(BaseException):
    """Stands in for the end of the process."""


def interrupted(path: Path, moment: int, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Write, but stop at the so-and-so-manieth operation on a file; whether it came to that."""
    count, contents = 0, made()

    def stopping(function: Any) -> Any:
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            nonlocal count
            count += 1
            if count == moment:
                raise Killed
            result = function(*args, **kwargs)
            count += 1
            if count == moment:
                raise Killed
            return result

        return wrapped

    with monkeypatch.context() as patch:
        patch.setattr(writing, "write_rows", stopping(writing.write_rows))
        patch.setattr(writing, "write_atomic", stopping(writing.write_atomic))
        patch.setattr(np.lib.format, "open_memmap", stopping(np.lib.format.open_memmap))
        patch.setattr(Path, "unlink", stopping(Path.unlink))
        try:
            write(path, *contents)
        except Killed:
            return True
    return False


def test_stopped_anywhere_it_goes_on_and_ends_with_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "whole", *made())
    expected, moment = content(tmp_path / "whole"), 0
    while True:
        moment += 1
        path = tmp_path / "stopped"
        shutil.rmtree(path, ignore_errors=True)
        if not interrupted(path, moment, monkeypatch):
            break
        path.mkdir(exist_ok=True)  # an exception before there is anything leaves no folder, a kill does
        (path / ".concepts.json.half").write_text("{")  # as a kill would leave it
        write(path, *made())
        assert content(path) == expected, moment
    assert moment > 40


def test_a_chunk_that_was_being_written_is_written_again(tmp_path: Path) -> None:
    contents, arrays = made()
    with writing.writing(tmp_path / "a", contents) as writer:
        assert writer.pending == [0, 1, 2]
        writer.write(1, {name: a[CHUNK : 2 * CHUNK] for name, a in arrays.items()})
    with pytest.raises(ConceptError, match="not finished: give the command that makes it again"):
        open_codes(tmp_path / "a")
    codes = tmp_path / "a" / "codes.npy"
    data = bytearray(codes.read_bytes())
    data[-5:] = b"\xff" * 5
    codes.write_bytes(data)
    with writing.writing(tmp_path / "a", contents) as writer:
        assert writer.pending == [0, 2]
    write(tmp_path / "a", contents, arrays)
    np.testing.assert_array_equal(open_codes(tmp_path / "a").bits, arrays["codes"])


def test_an_unfinished_folder_that_lost_a_file_starts_over(tmp_path: Path) -> None:
    contents, arrays = made()
    for name in ("codes.npy", "done.npy", "head.safetensors", "images.arrow"):
        shutil.rmtree(tmp_path / "a", ignore_errors=True)
        with writing.writing(tmp_path / "a", contents) as writer:
            writer.write(0, {k: a[:CHUNK] for k, a in arrays.items()})
        (tmp_path / "a" / name).unlink()
        with writing.writing(tmp_path / "a", contents) as writer:
            assert writer.pending == [0, 1, 2]
        write(tmp_path / "a", contents, arrays)
        open_codes(tmp_path / "a", verify=True)


def test_a_full_disk_is_an_error_and_resumable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(writing, "write_rows", full)
        with pytest.raises(OSError, match="No space"):
            write(tmp_path / "a", *made())
    write(tmp_path / "a", *made())
    open_codes(tmp_path / "a", verify=True)


@pytest.mark.parametrize("finished", [False, True])
def test_other_settings_are_refused_by_name(tmp_path: Path, finished: bool) -> None:
    contents, arrays = made()
    if finished:
        write(tmp_path / "a", contents, arrays)
    else:
        with writing.writing(tmp_path / "a", contents):
            pass
    before = content(tmp_path / "a")
    other = replace(contents, settings={**contents.settings, "run": "another"})
    with pytest.raises(ConceptError, match=r"holds other codes \(run: 'r' there, 'another' here\)"):
        write(tmp_path / "a", other, arrays)
    assert content(tmp_path / "a") == before


def test_a_folder_with_other_files_a_file_and_a_held_folder_are_refused(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").touch()
    with pytest.raises(ConceptError, match=r"holds 'thesis\.tex'"):
        write(tmp_path / "mine", *made())
    for path in (tmp_path / "mine" / "thesis.tex", tmp_path / "mine" / "thesis.tex" / "deep"):
        with pytest.raises(ConceptError, match="expected a folder"):
            write(path, *made())
    (tmp_path / "held").mkdir()
    with FileLock(tmp_path / "held" / ".lock"), pytest.raises(ConceptError, match="another process writes"):
        write(tmp_path / "held", *made())


def test_no_images_and_wrong_arrays_are_refused(tmp_path: Path) -> None:
    contents, arrays = made()
    none = np.zeros(0, np.int32)
    with pytest.raises(ConceptError, match="got 0 and 11"):
        write(tmp_path / "a", replace(contents, labels=none, parts=none.astype(np.uint8), ids=[]), arrays)
    with pytest.raises(ConceptError, match="expected 3 classes, as the head has, got 1"):
        write(tmp_path / "b", replace(contents, classes=("one",)), arrays)
    with writing.writing(tmp_path / "c", contents) as writer:
        with pytest.raises(ValueError, match="expected the arrays"):
            writer.write(0, {"codes": arrays["codes"][:CHUNK]})
        with pytest.raises(ValueError, match=r"smooth: expected int32 \(8,\), got int32 \(20,\)"):
            writer.write(0, arrays)
        with pytest.raises(ValueError, match="3 are not"):
            writer.finish()


FILES = ("codes.npy", "smooth.npy", "exact.npy", "saturated.npy", "images.arrow", "head.safetensors")


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("how", ["missing", "truncated", "empty", "longer"])
def test_a_damaged_file_is_refused(tmp_path: Path, name: str, how: str) -> None:
    write(tmp_path / "a", *made())
    file = tmp_path / "a" / name
    data = file.read_bytes()
    if how == "missing":
        file.unlink()
    else:
        file.write_bytes({"truncated": data[:-3], "empty": b"", "longer": data + b"x"}[how])
    with pytest.raises(ConceptError, match=name):
        open_codes(tmp_path / "a")


def test_features_too(tmp_path: Path) -> None:
    write(tmp_path / "a", *made())
    file = tmp_path / "a" / "features.npy"
    whole = file.read_bytes()
    file.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(ConceptError, match=r"features\.npy is damaged: its SHA-256 differs"):
        open_features(tmp_path / "a")
    file.write_bytes(whole[:-1])
    open_codes(tmp_path / "a", verify=True).unpack()
    with pytest.raises(ConceptError, match=r"features\.npy"):
        open_features(tmp_path / "a")
    write(tmp_path / "b", *made(features=False))
    with pytest.raises(ConceptError, match=r"has no features\.npy"):
        open_features(tmp_path / "b")
    write(tmp_path / "c", *made(codes=False))
    with pytest.raises(ConceptError, match="htaf concepts binarise"):
        open_codes(tmp_path / "c")


def test_a_changed_record_is_seen(tmp_path: Path) -> None:
    write(tmp_path / "a", *made())
    file = tmp_path / "a" / "concepts.json"
    file.write_text(file.read_text().replace('"run": "r"', '"run": "q"', 1))
    with pytest.raises(ConceptError, match=r"concepts\.json was changed or is damaged: .*; put back a copy of it"):
        open_codes(tmp_path / "a")


def test_a_turned_bit_is_seen(tmp_path: Path) -> None:
    write(tmp_path / "a", *made())
    for name in FILES:
        file = tmp_path / "a" / name
        whole = file.read_bytes()
        file.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
        with pytest.raises(ConceptError, match=rf"{name} is damaged: .* put back a copy of it, or delete"):
            open_codes(tmp_path / "a")
        if name in ("images.arrow", "head.safetensors"):  # what a reader could stumble over is always compared
            with pytest.raises(ConceptError, match=rf"{name} is damaged"):
                open_codes(tmp_path / "a", verify=False)
        file.write_bytes(whole)


def rewrite(folder: Path, name: str, data: bytes) -> None:
    """Change a file as somebody who knows of the digests."""
    (folder / name).write_bytes(data)
    record = json.loads((folder / "concepts.json").read_text())
    record["files"][name] = hashlib.sha256(data).hexdigest()
    (folder / "concepts.json").write_text(sealed(record))


def test_no_changed_byte_ends_the_process(tmp_path: Path) -> None:
    """An offset or index that points elsewhere, with a digest that fits: Arrow alone follows it."""
    write(tmp_path / "a", *made())
    whole = (tmp_path / "a" / "images.arrow").read_bytes()
    refused = 0
    for place in range(0, len(whole), 7):
        rewrite(tmp_path / "a", "images.arrow", whole[:place] + bytes([whole[place] ^ 0x80]) + whole[place + 1 :])
        try:
            codes = open_codes(tmp_path / "a")
        except ConceptError:
            refused += 1
        else:
            assert len(list(codes.ids)) == len(codes)
    assert refused > 100


HEADERS = {
    "unfinished": b"{'descr': '|u1', 'fortran_order': False, 'shape': (20, 2), ",
    "nested": b"(" * 200,
    "objects": b"{'descr': '|O', 'fortran_order': False, 'shape': (20, 2)}",
    "another type": b"{'descr': '<f8', 'fortran_order': False, 'shape': (20, 2)}",
    "a call": b"{'descr': print(1), 'fortran_order': False, 'shape': (20, 2)}",
}


@pytest.mark.parametrize("header", HEADERS)
def test_headers_of_arrays_that_make_no_sense(tmp_path: Path, header: str) -> None:
    write(tmp_path / "a", *made())
    text = HEADERS[header].ljust(117) + b"\n"
    rewrite(tmp_path / "a", "codes.npy", b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + bytes(40))
    with pytest.raises(ConceptError, match=r"codes\.npy"):
        open_codes(tmp_path / "a")


@pytest.mark.parametrize("name", ["smooth", "exact", "saturated", "codes"])
def test_values_that_cannot_be(tmp_path: Path, name: str) -> None:
    contents, arrays = made()
    write(tmp_path / "a", contents, {**arrays, name: arrays[name] * 0 + (255 if name == "codes" else 99)})
    with pytest.raises(ConceptError, match=rf"{name}\.npy is damaged: expected"):
        open_codes(tmp_path / "a")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": 1}, "expected format 2, got 1: make it again with this version"),
        ({"images": "20"}, "damaged: it lacks images"),
        ({"images": 21}, r"codes\.npy: expected uint8 \(21, 2\), got uint8 \(20, 2\)"),
        ({"concepts": 30}, r"expected uint8 \(20, 4\)"),
        ({"classes": ["a", "b", "c", "d"]}, "head.safetensors is damaged"),
        ({"classes": ["a", "b", 3]}, "is damaged: expected images, concepts and names of classes"),
        ({"images": True}, "it lacks images"),
        ({"concepts": -1}, "is damaged: expected images"),
        ({"status": "running"}, "not finished"),
    ],
)
def test_a_record_that_does_not_fit_is_refused(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    write(tmp_path / "a", *made(features=False))
    file = tmp_path / "a" / "concepts.json"
    file.write_text(sealed(json.loads(file.read_text()) | change))
    with pytest.raises(ConceptError, match=message):
        open_codes(tmp_path / "a")


def test_no_folder_and_no_json(tmp_path: Path) -> None:
    with pytest.raises(ConceptError, match=r"expected a folder of codes with concepts\.json, found none"):
        open_codes(tmp_path / "nothing")
    (tmp_path / "concepts.json").write_text("{")
    with pytest.raises(ConceptError, match="damaged"):
        open_codes(tmp_path)
    (tmp_path / "concepts.json").write_text("[]")
    with pytest.raises(ConceptError, match="expected format 2, got list"):
        open_codes(tmp_path)


def test_names_that_are_no_text_are_kept_as_far_as_can_be(tmp_path: Path) -> None:
    contents, arrays = made(2)
    write(tmp_path / "a", replace(contents, ids=["good", "bad\udcff.png"]), arrays)
    assert list(open_codes(tmp_path / "a").ids) == ["good", "bad\ufffd.png"]
