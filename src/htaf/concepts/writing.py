"""Writing a folder of codes: a kill at any moment costs one chunk; the same command continues it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import safetensors.numpy
from jaxtyping import Float32, Int32, UInt8

from htaf._files import expect_folder, naming, sealed
from htaf.concepts.codes import PARTS, ConceptError
from htaf.concepts.store import (
    CHUNK,
    DONE,
    FORMAT,
    HEAD,
    IMAGES,
    RECORD,
    array_shapes,
    chunk_count,
    in_parts,
    map_array,
    read_record,
    sha256,
)
from htaf.runs import LOCK, content_hash, environment, locked, shown, to_json, write_atomic


@dataclass(frozen=True)
class Contents:
    """What a folder is to hold.

    settings: what makes two folders the same, flat and JSON. info: more for concepts.json.
    codes, features, margins: which arrays it has.
    labels, parts, ids, weight, bias: as in `Codes`. thresholds: float32 [C] or None.
    """

    settings: Mapping[str, Any]
    classes: tuple[str, ...]
    labels: Int32[np.ndarray, " images"]
    parts: UInt8[np.ndarray, " images"]
    ids: Sequence[str]
    weight: Float32[np.ndarray, "classes concepts"]
    bias: Float32[np.ndarray, " classes"]
    codes: bool = True
    features: bool = False
    margins: bool = False
    thresholds: Float32[np.ndarray, " concepts"] | None = None
    info: Mapping[str, Any] = field(default_factory=dict)


@dataclass
class Writer:
    """An open folder. `pending` holds the numbers of the chunks that are still to be written."""

    path: Path
    record: dict[str, Any]
    pending: list[int]

    def write(self, chunk: int, values: Mapping[str, np.ndarray]) -> None:
        """The arrays of one chunk, by name without `.npy`; on disk before the chunk counts as done."""
        shapes = array_shapes(self.record)
        if values.keys() != shapes.keys():
            raise ValueError(f"expected the arrays {sorted(shapes)}, got {sorted(values)}")
        first = chunk * CHUNK
        rows = min(CHUNK, self.record["images"] - first)
        for name, (dtype, shape) in shapes.items():
            expected, array = (rows, *shape[1:]), values[name]
            if array.shape != expected or array.dtype != dtype:
                raise ValueError(f"{name}: expected {dtype} {expected}, got {array.dtype} {array.shape}")
            write_rows(self.path / f"{name}.npy", first, array)
        write_rows(self.path / DONE, chunk, np.ones(1, dtype=np.uint8))
        self.pending.remove(chunk)

    def finish(self) -> None:
        """Mark the folder as whole, once no chunk is pending."""
        if self.pending:
            raise ValueError(f"expected all chunks to be written, {len(self.pending)} are not")
        if self.record["status"] != "finished":
            names = [IMAGES, HEAD, *(f"{name}.npy" for name in array_shapes(self.record))]
            files = {name: sha256(self.path / name) for name in names}
            self.record = {**self.record, "status": "finished", "files": files}
            write_atomic(self.path / RECORD, sealed(self.record))
        (self.path / DONE).unlink(missing_ok=True)


@contextmanager
def writing(path: Path, contents: Contents) -> Iterator[Writer]:
    """Hold a folder while the block runs: a new one, or one of the same settings, which is continued.

    Raises:
        ConceptError: the folder holds codes of other settings (the message names them) or other files, or another
            process writes it.
    """
    expect_folder(path, "the codes", ConceptError)
    with locked(path, "another process writes", ConceptError):
        yield _open(path, contents)


def _open(path: Path, contents: Contents) -> Writer:
    for left in path.glob(f".{RECORD}.*"):  # of a process that was killed while it wrote the record
        left.unlink(missing_ok=True)
    record = read_record(path)
    if record is None:
        if in_parts(path):
            raise ConceptError(
                f"{path} holds codes in parts: give --part-images to continue it, or choose another --out"
            )
        if others := sorted(p.name for p in path.iterdir() if p.name != LOCK):
            raise ConceptError(f"expected a new or empty folder, {path} holds {others[0]!r}: choose another --out")
        record = _new_record(contents)
        write_atomic(path / RECORD, sealed(record))
    elif record["key"] != content_hash(contents.settings):
        there, here = record["settings"], json.loads(to_json(contents.settings))
        differences = [
            f"{name}: {shown(there.get(name))} there, {shown(here.get(name))} here"
            for name in sorted(there.keys() | here.keys())
            if there.get(name) != here.get(name)
        ]
        raise ConceptError(f"{path} holds other codes ({'; '.join(differences[:4])}): choose another --out")
    if record["status"] == "finished":
        return Writer(path, record, [])
    for name in (IMAGES, HEAD, DONE):
        for left in path.glob(f".{name}.*"):
            left.unlink(missing_ok=True)
    if not _whole(path, record):
        _create(path, record, contents)
    done = map_array(path / DONE, np.dtype("u1"), (chunk_count(record),))
    return Writer(path, record, np.flatnonzero(done == 0).tolist())


def _new_record(contents: Contents) -> dict[str, Any]:
    classes, concepts = contents.weight.shape
    if not len(contents.labels) or not concepts:
        raise ConceptError(f"expected images and concepts, got {len(contents.labels)} and {concepts}")
    if classes != len(contents.classes):
        raise ConceptError(f"expected {classes} classes, as the head has, got {len(contents.classes)}")
    return {
        "format": FORMAT,
        "status": "running",
        "key": content_hash(contents.settings),
        "settings": json.loads(to_json(contents.settings)),
        "images": len(contents.labels),
        "concepts": concepts,
        "classes": list(contents.classes),
        "arrays": [name for name in ("codes", "features", "margins") if getattr(contents, name)],
        **contents.info,
        **environment(),
    }


def _whole(path: Path, record: Mapping[str, Any]) -> bool:
    """Whether every file of an unfinished folder is there; `done.npy` is made last."""
    try:
        map_array(path / DONE, np.dtype("u1"), (chunk_count(record),))
        for name, (dtype, shape) in array_shapes(record).items():
            map_array(path / f"{name}.npy", dtype, shape)
    except ConceptError:
        return False
    return (path / IMAGES).exists() and (path / HEAD).exists()


def _create(path: Path, record: Mapping[str, Any], contents: Contents) -> None:
    (path / DONE).unlink(missing_ok=True)
    for name, (dtype, shape) in array_shapes(record).items():
        np.lib.format.open_memmap(path / f"{name}.npy", mode="w+", dtype=dtype, shape=shape)
    numbers = pa.array(contents.parts, pa.uint8())
    table = pa.table(
        {
            "id": pa.array(map(_plain, contents.ids), pa.large_string(), size=len(contents.ids)),
            "label": pa.array(contents.labels, pa.int32()),
            "part": pa.DictionaryArray.from_arrays(numbers, pa.array(PARTS)),
        }
    )
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema) as file:
        file.write_table(table)
    write_atomic(path / IMAGES, sink.getvalue().to_pybytes())
    tensors = {"weight": contents.weight, "bias": contents.bias}
    if contents.thresholds is not None:
        tensors["thresholds"] = contents.thresholds
    write_atomic(path / HEAD, safetensors.numpy.save({k: np.ascontiguousarray(v) for k, v in tensors.items()}))
    sink = pa.BufferOutputStream()
    np.save(sink, np.zeros(chunk_count(record), dtype=np.uint8))
    write_atomic(path / DONE, sink.getvalue().to_pybytes())


def _plain(name: str) -> str:
    """A file's name as valid text: some systems allow names that are not."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def write_rows(file: Path, first: int, values: np.ndarray) -> None:
    """Rows of an npy file. By file operations: on a full disk a memory map would end the process instead of raising."""
    with naming(file), file.open("r+b") as stream:
        np.lib.format.read_magic(stream)
        np.lib.format.read_array_header_1_0(stream)
        stream.seek(first * values[:1].nbytes, os.SEEK_CUR)
        stream.write(np.ascontiguousarray(values).data)
        stream.flush()
        os.fsync(stream.fileno())
