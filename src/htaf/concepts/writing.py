"""Writing a folder of codes: a part is there whole or not at all; the same command makes those that are missing."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import safetensors.numpy
from jaxtyping import Float16, Float32

from htaf._ground.files import expect_folder, parse_json, regular, sealed, written_whole
from htaf.concepts import store
from htaf.concepts.codes import PARTS, Codes, ConceptError
from htaf.concepts.store import DTYPES, FOLDER, FORMAT, HEAD, RECORD, CodesFolder, Features, read_record, schema_of
from htaf.training.runs import LOCK, content_hash, environment, locked, shown, to_json, write_atomic

METADATA = b"htaf"  # in the metadata of a part: key and number, and what else is to be said of it


@dataclass(frozen=True)
class Head:
    """What a folder is to hold beside its images.

    settings: what makes two folders the same, flat and JSON. columns: of each part, as `htaf.concepts.store` has them.
    weight, bias: as in `Codes`. thresholds: float32 [C] or None. info: more for concepts.json.
    """

    settings: Mapping[str, Any]
    classes: tuple[str, ...]
    columns: tuple[str, ...]
    weight: Float32[np.ndarray, "classes concepts"]
    bias: Float32[np.ndarray, " classes"]
    thresholds: Float32[np.ndarray, " concepts"] | None = None
    info: Mapping[str, Any] = field(default_factory=dict)


def part_file(path: Path, number: int) -> Path:
    """Where part `number` of a folder is."""
    return path / FOLDER / f"part-{number:05d}.parquet"


@dataclass
class OpenFolder:
    """A folder that is being written.

    record: concepts.json, "running" or "finished"; with it other processes write parts, by `write_part`.
    """

    path: Path
    record: dict[str, Any]

    def there(self) -> dict[int, dict[str, Any]]:
        """Of each whole part, by its number, its images, and what is said of it. Files that are no parts are removed.

        Raises:
            ConceptError: a part of other codes.
        """
        known = {entry["file"]: entry["sha256"] for entry in self.record.get("parts", ())}
        found: dict[int, dict[str, Any]] = {}
        for file in (self.path / FOLDER).glob("part-*.parquet"):
            if not file.stem.removeprefix("part-").isdecimal():
                continue
            said = self._metadata_of(file)
            if said is None or known.get(file.name, said["sha256"]) != said["sha256"]:
                file.unlink()
            elif said["key"] != self.record["key"]:
                raise ConceptError(f"{file} holds other codes: choose another --out")
            else:
                found[said["number"]] = said
        return found

    def _metadata_of(self, file: Path) -> dict[str, Any] | None:
        """What a part says of itself; None where it cannot be read."""
        try:
            data = regular(file).read_bytes()
            source = store.opened(data, file, self.record)
            said = parse_json((source.schema_arrow.metadata or {}).get(METADATA, b"{}"))
            if file != part_file(self.path, said["number"]) or "key" not in said:
                return None
        except (ConceptError, OSError, ValueError, LookupError, TypeError):
            return None
        return said | {"images": source.metadata.num_rows, "sha256": hashlib.sha256(data).hexdigest()}

    def finish(self, **info: Any) -> None:
        """The record of the parts that are there, which makes the folder whole. info: more for it."""
        there = [(part_file(self.path, number).name, said) for number, said in sorted(self.there().items())]
        parts = [{"file": name, "images": said["images"], "sha256": said["sha256"]} for name, said in there]
        record = {**self.record, "images": sum(part["images"] for part in parts), "parts": parts}
        record |= {**info, "status": "finished"}
        if record != self.record:
            self.record = record
            write_atomic(self.path / RECORD, sealed(record))


@contextmanager
def writing_folder(path: Path, head: Head) -> Iterator[OpenFolder]:
    """Hold a folder while the block runs: a new one, or one of the same settings, which is continued.

    Raises:
        ConceptError: the folder holds codes of other settings (the message names them) or other files, or another
            process writes it; no concepts, or names of other classes than the head has.
    """
    classes, concepts = head.weight.shape
    if classes != len(head.classes) or not concepts:
        raise ConceptError(f"expected concepts, and {classes} classes, as the head has, got {len(head.classes)}")
    expect_folder(path, "the codes", ConceptError)
    with locked(path, "another process writes", ConceptError):
        for folder in (path, path / FOLDER):  # of processes that were killed while they wrote
            for left in (*folder.glob(f".{RECORD}.*"), *folder.glob(f".{HEAD}.*"), *folder.glob(".part-*")):
                left.unlink(missing_ok=True)
        yield OpenFolder(path, _record(path, head))


def _record(path: Path, head: Head) -> dict[str, Any]:
    """That of the folder, or a new one."""
    key, settings = content_hash(head.settings), json.loads(to_json(head.settings))
    record = read_record(path)
    if record is not None and record["key"] != key:
        there = record["settings"]
        differences = [
            f"{name}: {shown(there.get(name))} there, {shown(settings.get(name))} here"
            for name in sorted(there.keys() | settings.keys())
            if there.get(name) != settings.get(name)
        ]
        raise ConceptError(f"{path} holds other codes ({'; '.join(differences[:4])}): choose another --out")
    if record is not None and record["status"] == "finished":
        return record
    if record is None and (others := sorted(p.name for p in path.iterdir() if p.name != LOCK)):
        raise ConceptError(f"expected a new or empty folder, {path} holds {others[0]!r}: choose another --out")
    tensors = {"weight": head.weight, "bias": head.bias}
    if head.thresholds is not None:
        tensors["thresholds"] = head.thresholds
    data = safetensors.numpy.save({name: np.ascontiguousarray(values) for name, values in tensors.items()})
    record = {
        "format": FORMAT,
        "status": "running",
        "key": key,
        "settings": settings,
        "concepts": head.weight.shape[1],
        "classes": list(head.classes),
        "columns": list(head.columns),
        "head": hashlib.sha256(data).hexdigest(),
        **head.info,
        **environment(),
    }
    write_atomic(path / RECORD, sealed(record))
    write_atomic(path / HEAD, data)
    (path / FOLDER).mkdir(exist_ok=True)
    return record


def write_part(path: Path, record: Mapping[str, Any], number: int, values: Mapping[str, Any], **said: Any) -> None:
    """A part, whole or not at all, by any process that knows the record.

    Args:
        path: the folder. number: of the part, which sets its place among the others.
        values: of each column the values as `CodesFolder.read` has them; of ids texts.
        said: JSON that is kept with it.

    Raises:
        ValueError: other columns, or arrays of other shapes and dtypes.
        OSError: it cannot be written.
    """
    if set(values) != set(record["columns"]):
        raise ValueError(f"expected the columns {sorted(record['columns'])}, got {sorted(values)}")
    schema, rows = schema_of(record), len(values["label"])
    arrays = [_column(field, values[field.name], rows) for field in schema]
    metadata = {METADATA: to_json({"key": record["key"], "number": number, **said}).encode()}
    table = pa.Table.from_arrays(arrays, schema=schema.with_metadata(metadata))
    compression: Any = {field.name: "none" if field.name in DTYPES else "zstd" for field in schema}
    with written_whole(part_file(path, number)) as new:
        pq.write_table(
            table,
            new,
            compression=compression,
            use_dictionary=False,
            write_statistics=False,
        )


def _column(of: pa.Field, values: Any, rows: int) -> pa.Array:
    if of.name == "id":
        return pa.array(map(_plain, values), of.type, size=len(values))
    if of.name == "part":
        return pa.array(PARTS, of.type).take(pa.array(values, pa.uint8()))
    expected, shape = np.dtype(np.int32), (rows,)
    if of.name in DTYPES:
        expected = DTYPES[of.name]
        shape = (rows, of.type.byte_width // expected.itemsize)
    if values.dtype != expected or values.shape != shape:
        raise ValueError(f"{of.name}: expected {expected} {shape}, got {values.dtype} {values.shape}")
    return pa.Array.from_buffers(of.type, rows, [None, pa.py_buffer(np.ascontiguousarray(values))])


def _plain(name: str) -> str:
    """A file's name as valid text: some systems allow names that are not."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def write_codes(
    path: str | Path,
    codes: Codes | Features,
    settings: Mapping[str, Any],
    *,
    features: Float32[np.ndarray, "images concepts"] | None = None,
    margins: Float16[np.ndarray, "images concepts"] | None = None,
    thresholds: Float32[np.ndarray, " concepts"] | None = None,
    info: Mapping[str, Any] | None = None,
    files: Mapping[str, bytes] | None = None,
) -> CodesFolder:
    """A folder of codes, or of features, that are at hand; parts that a stopped call has written are kept.

    Args:
        path: a new folder, or one of the same settings.
        settings, thresholds, info: as in `Head`.
        features, margins: of codes, to be kept beside them.
        files: by name, what else the folder is to hold before it is whole.

    Raises:
        ConceptError: no images; and as `writing_folder`.
    """
    if not len(codes):
        raise ConceptError("expected images, got none")
    columns: dict[str, Any] = {"id": codes.ids, "label": codes.labels, "part": codes.parts, "smooth": codes.smooth}
    if isinstance(codes, Codes):
        columns |= {"exact": codes.exact, "saturated": codes.saturated, "bits": codes.bits}
    else:
        features = codes.values
    columns |= {"margins": margins} if margins is not None else {}
    columns |= {"features": features} if features is not None else {}
    head = Head(settings, codes.classes, tuple(columns), codes.weight, codes.bias, thresholds, info or {})
    with writing_folder(Path(path), head) as folder:
        there, size = folder.there(), store.PART_IMAGES
        for number, first in enumerate(range(0, len(codes), size)):
            if number not in there:
                some = {name: column[first : first + size] for name, column in columns.items()}
                write_part(folder.path, folder.record, number, some)
        for name, data in (files or {}).items():
            write_atomic(folder.path / name, data)
        folder.finish()
    return store.open_folder(path)
