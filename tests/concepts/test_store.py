"""A folder of codes: what is written is read back, other programs read it, and damage is refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
import safetensors.numpy
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from htaf._ground.files import sealed
from htaf.cli.concepts import accuracies_of
from htaf.concepts import store
from htaf.concepts.codes import PARTS, Codes, ConceptError
from htaf.concepts.store import Features, open_codes, open_folder

SIZE = 8


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "PART_IMAGES", SIZE)
    monkeypatch.setattr(store, "environment", dict)  # it asks git, hundreds of times here


def made(n: int = 20, c: int = 11, k: int = 3) -> tuple[Codes, np.ndarray]:
    """Codes, and their pre-activations."""
    rng = np.random.default_rng(n * 1000 + c)
    values = rng.normal(size=(n, c)).astype(np.float32)
    smooth, exact, saturated = (rng.integers(0, end, n).astype(np.int32) for end in (k, k, c + 1))
    codes = Codes(
        bits=np.packbits(values >= 0, axis=1, bitorder="little"),
        concepts=c,
        classes=tuple(f"class {i}" for i in range(k)),
        labels=rng.integers(-1, k, n).astype(np.int32),
        parts=rng.integers(0, 4, n).astype(np.uint8),
        ids=[f"bilder/ä{i}.png" for i in range(n)],
        weight=rng.normal(size=(k, c)).astype(np.float32),
        bias=rng.normal(size=k).astype(np.float32),
        smooth=smooth,
        exact=exact,
        saturated=saturated,
    )
    return codes, values


def write(path: Path, codes: Codes, values: np.ndarray, **settings: Any) -> None:
    more = {"features": values, "margins": values.astype(np.float16), "info": {"notes": ["a note"]}}
    store.write_codes(path, codes, {"run": "r"} | settings, **more)  # pyright: ignore[reportArgumentType]


def content(path: Path) -> dict[str, bytes]:
    return {str(p.relative_to(path)): p.read_bytes() for p in sorted(path.rglob("*")) if p.is_file()}


def same(found: Codes, codes: Codes, rows: Any = slice(None)) -> None:
    for name in ("bits", "labels", "parts", "smooth", "exact", "saturated"):
        np.testing.assert_array_equal(getattr(found, name), getattr(codes, name)[rows])
    if len(found.ids):
        assert list(found.ids) == np.array(codes.ids, object)[rows].tolist()
    np.testing.assert_array_equal(found.weight, codes.weight)
    np.testing.assert_array_equal(found.bias, codes.bias)


@settings(deadline=None, max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(n=st.integers(1, 3 * SIZE), c=st.integers(1, 70))
def test_what_is_written_is_read_back(tmp_path: Path, n: int, c: int) -> None:
    codes, values = made(n, c)
    path = tmp_path / f"{n}-{c}"
    shutil.rmtree(path, ignore_errors=True)
    write(path, codes, values)
    folder = open_folder(path)
    assert (len(folder), folder.concepts, folder.classes) == (n, c, codes.classes)
    found = folder.codes()
    same(found, codes)
    np.testing.assert_array_equal(found.unpack(), values >= 0)
    assert list(found.ids[1:]) == codes.ids[1:]
    np.testing.assert_array_equal(folder.features().values, values)
    np.testing.assert_array_equal(folder.margins(), values.astype(np.float16))  # pyright: ignore[reportArgumentType]
    np.testing.assert_array_equal(folder.read("label")["label"], codes.labels)
    known = codes.labels >= 0
    for row in accuracies_of(folder):
        ours = known & (codes.parts == PARTS.index(row["part"]))
        for which in ("smooth", "exact"):
            right = (getattr(codes, which) == codes.labels)[ours]
            assert row[which] == (pytest.approx(right.mean()) if ours.any() else None)


def test_other_programs_read_the_parts(tmp_path: Path) -> None:
    codes, values = made()
    write(tmp_path / "a", codes, values)
    table = pd.read_parquet(tmp_path / "a" / "parts")
    assert list(table.columns) == [
        "id", "label", "part", "smooth", "exact", "saturated", "bits", "margins", "features",
    ]  # fmt: skip
    assert table["id"].tolist() == codes.ids
    assert table["part"].tolist() == [PARTS[i] for i in codes.parts]
    assert table["label"].tolist() == codes.labels.tolist()
    arrays = {name: getattr(codes, name) for name in ("smooth", "exact", "saturated", "bits")}
    for name, array in (arrays | {"features": values, "margins": values.astype(np.float16)}).items():
        column: Any = table[name]
        if name in store.DTYPES:
            column = np.frombuffer(b"".join(column), array.dtype).reshape(array.shape)
        np.testing.assert_array_equal(column, array)
    head = safetensors.numpy.load_file(tmp_path / "a" / "head.safetensors")
    np.testing.assert_array_equal(head["weight"], codes.weight)
    assert json.loads((tmp_path / "a" / "concepts.json").read_text())["notes"] == ["a note"]


class Killed(BaseException):
    """Stands in for the end of the process."""


def interrupted(path: Path, moment: int, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Write, but stop at the so-and-so-manieth operation on a file; whether it came to that."""
    count = 0

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
        patch.setattr(pq, "write_table", stopping(pq.write_table))
        patch.setattr(store, "write_atomic", stopping(store.write_atomic))
        patch.setattr(Path, "unlink", stopping(Path.unlink))
        patch.setattr(Path, "mkdir", stopping(Path.mkdir))
        try:
            write(path, *made())
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
        (path / "parts").mkdir(parents=True, exist_ok=(path / "concepts.json").exists() or path.exists())
        if not (path / "concepts.json").exists():
            (path / "parts").rmdir()
        else:
            (path / "parts" / ".part-00001.parquet.half").write_text("{")  # as a kill would leave it
        (path / ".concepts.json.half").write_text("{")
        write(path, *made())
        assert content(path) == expected, moment
    assert moment > 20


def test_other_settings_are_refused_by_name(tmp_path: Path) -> None:
    codes, values = made()
    head = store.Head({"run": "r"}, codes.classes, ("id", "label", "part", "smooth"), codes.weight, codes.bias)
    with store.writing_folder(tmp_path / "a", head):
        pass
    before = content(tmp_path / "a")
    with pytest.raises(ConceptError, match=r"holds other codes \(run: 'r' there, 'another' here\)"):
        write(tmp_path / "a", codes, values, run="another")
    assert content(tmp_path / "a") == before
    other = store.write_codes(tmp_path / "b", codes, {"run": "another"}, margins=values.astype(np.float16))
    head = replace(head, columns=other.columns)
    with store.writing_folder(tmp_path / "c", head) as folder:
        shutil.copy(other.parts[0].file, tmp_path / "c" / "parts")
        with pytest.raises(ConceptError, match=r"part-00000\.parquet holds other codes: choose another --out"):
            folder.there()


def test_what_a_folder_does_not_hold(tmp_path: Path) -> None:
    codes, values = made()
    folder = store.write_codes(tmp_path / "a", codes, {"run": "r"})
    assert open_folder(tmp_path / "a").margins() is None
    with pytest.raises(ConceptError, match=r"has no features: extract them with htaf concepts extract --keep features"):
        open_folder(tmp_path / "a").features()
    with pytest.raises(ConceptError, match=r"has no margins, it has id, label, "):
        folder.read("margins")
    fields = (codes.classes, codes.labels, codes.parts, codes.ids, codes.weight, codes.bias, codes.smooth)
    plain = store.write_codes(tmp_path / "c", Features(values, *fields, {}), {"run": "r"})
    np.testing.assert_array_equal(plain.features().values, values)
    with pytest.raises(ConceptError, match=r"holds features of a plain network, not codes: .* htaf paper binarise"):
        plain.codes()
    assert [row["exact"] for row in accuracies_of(plain)] == [None] * 4
    with pytest.raises(ConceptError, match=r"expected a folder of codes with concepts\.json, found none at"):
        open_codes(tmp_path / "nothing")


def flip(file: Path, place: int = -1) -> None:
    data = bytearray(file.read_bytes())
    data[place] ^= 1
    file.write_bytes(data)


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "no file": (lambda p: p.unlink(), "is missing"),
    "empty": (lambda p: p.write_bytes(b""), "is damaged: its SHA-256 differs"),
    "cut off": (lambda p: p.write_bytes(p.read_bytes()[:-3]), "is damaged: its SHA-256 differs"),
    "its footer": (
        lambda p: flip(p, -20),
        r"is damaged: its SHA-256 differs from the one in .*; put back a",
    ),
    "another part": (lambda p: shutil.copy(p.with_name("part-00000.parquet"), p), "is damaged: its SHA-256 differs"),
}


@pytest.mark.parametrize("what", DAMAGE)
def test_a_damaged_part_is_named(tmp_path: Path, what: str) -> None:
    damage, said = DAMAGE[what]
    codes, values = made()
    write(tmp_path, codes, values)
    damage(tmp_path / "parts" / "part-00001.parquet")
    with pytest.raises(ConceptError, match=rf"part-00001\.parquet {said}"):
        open_codes(tmp_path)


def test_every_changed_byte_is_seen(tmp_path: Path) -> None:
    write(tmp_path / "a", *made())
    file = tmp_path / "a" / "parts" / "part-00000.parquet"
    whole = file.read_bytes()
    for place in range(0, len(whole), 5):
        file.write_bytes(whole[:place] + bytes([whole[place] ^ 0x41]) + whole[place + 1 :])
        with pytest.raises(ConceptError, match="SHA-256 differs"):
            open_codes(tmp_path / "a")


@pytest.mark.parametrize(
    ("field", "value"), [("labels", 3), ("smooth", -2), ("exact", 3), ("saturated", 12), ("bits", 255)]
)
def test_values_that_cannot_be(tmp_path: Path, field: str, value: int) -> None:
    """By somebody who writes whole files."""
    codes, values = made()
    write(tmp_path / "a", replace(codes, **{field: np.full_like(getattr(codes, field), value)}), values)
    with pytest.raises(ConceptError, match=r"part-00000\.parquet is damaged: expected "):
        open_codes(tmp_path / "a")


def edit(path: Path, **changes: Any) -> None:
    record = json.loads((path / "concepts.json").read_text())
    (path / "concepts.json").write_text(sealed(record | changes))


PART = {"file": "part-00000.parquet", "images": 8, "sha256": "0"}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"format": 2}, r"expected format 3, got 2"),
        ({"status": "running"}, r"is not finished: give the command that makes it again"),
        ({"key": 3}, r"is damaged: it lacks key"),
        ({"parts": None}, r"is damaged: it lacks parts"),
        ({"parts": []}, r"is damaged: expected different parts of 20 images in all"),
        ({"parts": [PART, PART]}, r"is damaged: expected different parts of 20 images in all"),
        ({"parts": [3]}, r"is damaged: expected file, images and SHA-256 of each part"),
        ({"parts": [PART | {"file": "../x.parquet"}]}, r"is damaged: expected a file in parts with images, got"),
        ({"parts": [PART | {"images": -9}]}, r"is damaged: expected a file in parts with images"),
        ({"classes": [1]}, r"is damaged: expected concepts, and names of classes and columns"),
        ({"columns": ["id", "label", "part", "smooth", "x"]}, r"expected columns of .*, got 'x'"),
        ({"columns": ["id", "label", "part", "smooth"]}, "holds features of a plain network, not codes"),
        ({"concepts": 17}, r"head\.safetensors is damaged: it differs from what concepts\.json says"),
        ({"classes": ["a"]}, r"head\.safetensors is damaged: it differs from what concepts\.json says"),
    ],
)
def test_a_wrong_record_is_refused(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    write(tmp_path, *made())
    edit(tmp_path, **changes)
    with pytest.raises(ConceptError, match=said):
        open_codes(tmp_path)


def test_a_changed_record_and_a_changed_head_are_seen(tmp_path: Path) -> None:
    write(tmp_path / "a", *made())
    file = tmp_path / "a" / "concepts.json"
    whole = file.read_text()
    file.write_text(whole.replace('"run": "r"', '"run": "q"', 1))
    with pytest.raises(ConceptError, match=r"concepts\.json was changed or is damaged: .*; put back a copy of it"):
        open_codes(tmp_path / "a")
    file.write_text(whole)
    flip(tmp_path / "a" / "head.safetensors")
    with pytest.raises(ConceptError, match=r"head\.safetensors is damaged: its SHA-256 differs"):
        open_codes(tmp_path / "a")


def test_names_that_are_no_text(tmp_path: Path) -> None:
    codes, values = made(2)
    write(tmp_path / "a", replace(codes, ids=["good", "bad\udcff.png"]), values)
    assert list(open_codes(tmp_path / "a").ids) == ["good", "bad\ufffd.png"]
