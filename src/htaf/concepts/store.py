"""Codes on disk: Parquet parts and a small record, read by `CodesFolder`, written by `writing_folder`.

A part is there whole or not at all; the same command makes those that are missing.

concepts.json               format, status, settings, run, classes, concepts, columns, SHA-256 of the head; once it is
                            finished images, and of each part its file, images and SHA-256
head.safetensors            weight [K, C], bias [K] and, from `binarise`, thresholds [C]
parts/part-00000.parquet    a row for each image; row numbers count through the parts

A part has these columns, none with empty cells:

id         text, the image's name
label      int32, -1 where the class is not known
part       text, one of `htaf.concepts.codes.PARTS`
smooth     int32, the class that the smooth network predicts, -1: none
exact      int32, the class that the exact network predicts; not there for a plain network, as the next two
saturated  int32, as in `htaf.concepts.codes.Codes`
bits       ceil(C / 8) bytes, packed as in `Codes`
margins    C float16, pre-activations to order images by; where asked for, or where they are small
features   C float32, pre-activations; where asked for

A part is compared with its SHA-256 when it is read. Nothing that is read runs code.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import safetensors.numpy
from jaxtyping import Float16, Float32, Int32, UInt8

from htaf._ground.files import expect_folder, parse_json, regular, sealed, written_whole
from htaf._ground.files import read_record as _read_record
from htaf.concepts.codes import PARTS, Codes, ConceptError, Listed
from htaf.training.runs import LOCK, content_hash, environment, locked, shown, to_json, write_atomic

FORMAT = 3
RECORD, HEAD, FOLDER = "concepts.json", "head.safetensors", "parts"
CHUNK = 1000  # images that go through the network by themselves: a whole number of batches of 250, as evaluation takes
PART_IMAGES = 10_000  # of a part, where nothing else is said
NUMBERS = {"label": "labels", "smooth": "smooth", "exact": "exact", "saturated": "saturated"}  # column: field of Codes
METADATA = b"htaf"  # in the metadata of a part: key and number, and what else is to be said of it
DTYPES = {"bits": np.dtype("u1"), "margins": np.dtype("<f2"), "features": np.dtype("<f4")}


@dataclass(frozen=True, eq=False)
class Features(Listed):
    """Numbers in place of bits, of N images: pre-activations, or what a soft bottleneck's head reads.

    values: float32 [N, C]. The others: as of `Codes`.
    """

    values: Float32[np.ndarray, "images concepts"]
    classes: tuple[str, ...]
    labels: Int32[np.ndarray, " images"]
    parts: UInt8[np.ndarray, " images"]
    ids: Sequence[str]
    weight: Float32[np.ndarray, "classes concepts"]
    bias: Float32[np.ndarray, " classes"]
    smooth: Int32[np.ndarray, " images"]
    info: Mapping[str, Any] = field(default_factory=dict)

    arrays: ClassVar[tuple[str, ...]] = ("values", "labels", "parts", "smooth")

    @property
    def concepts(self) -> int:
        """C."""
        return self.values.shape[1]

    def unpack(self, rows: np.ndarray | slice = slice(None)) -> Float32[np.ndarray, "rows concepts"]:
        """Return what a head reads: float32 [rows, C], a copy."""
        return np.array(self.values[rows])


@dataclass(frozen=True)
class Part:
    """One file of several.

    file: where it is. images: how many it holds. sha256: of the file.
    """

    file: Path
    images: int
    sha256: str


@dataclass(frozen=True, eq=False)
class CodesFolder:
    """The codes, or features, of a finished folder, made by `open_folder`; nothing of the parts is kept in memory.

    Attributes:
        path: the folder.
        info: its record.
        parts: in order.
        weight: float32 [K, C] and
        bias: float32 [K] of the head.
    """

    path: Path
    info: Mapping[str, Any]
    parts: tuple[Part, ...]
    weight: Float32[np.ndarray, "classes concepts"]
    bias: Float32[np.ndarray, " classes"]

    def __len__(self) -> int:
        """Images of all parts."""
        return sum(part.images for part in self.parts)

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the K classes."""
        return tuple(self.info["classes"])

    @property
    def concepts(self) -> int:
        """C."""
        return self.info["concepts"]

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns of each part."""
        return tuple(self.info["columns"])

    def read(self, *columns: str) -> dict[str, Any]:
        """Read columns of all images into memory, every value checked.

        Args:
            columns: names.

        Returns:
            of each column an array: int32 [N], uint8 [N, bytes] of bits, float [N, C], uint8 [N] numbers of parts, and
            of ids a list of texts.

        Raises:
            ConceptError: there is no such column, or what is read is damaged: it names the file.
        """
        if unknown := [name for name in columns if name not in self.columns]:
            raise ConceptError(f"{self.path} has no {unknown[0]}, it has {', '.join(self.columns)}")
        found = [_read(part, self.info, columns) for part in self.parts]
        whole: dict[str, Any] = {}
        for name in columns:
            values = [one[name] for one in found]
            whole[name] = [text for some in values for text in some] if name == "id" else np.concatenate(values)
        return whole

    def codes(self) -> Codes:
        """Return all images, in memory. Raises ConceptError: as `read`; features of a plain network, which has no
        codes."""
        if "bits" not in self.columns:
            raise ConceptError(
                f"{self.path} holds features of a plain network, not codes: make codes of them with htaf paper binarise"
            )
        found = self.read("part", "id", "bits", *NUMBERS)
        return Codes(
            **{field: found[column] for column, field in NUMBERS.items()},
            bits=found["bits"],
            parts=found["part"],
            concepts=self.concepts,
            classes=self.classes,
            ids=found["id"],
            weight=self.weight,
            bias=self.bias,
            info=self.info,
        )

    def features(self) -> Features:
        """Return the pre-activations of all images. Raises ConceptError: as `read`; there are none."""
        if "features" not in self.columns:
            raise ConceptError(
                f"{self.path} has no features: extract them with htaf concepts extract --keep features, into a new "
                "folder"
            )
        found = self.read("label", "part", "smooth", "features", "id")
        return Features(
            values=found["features"],
            classes=self.classes,
            labels=found["label"],
            parts=found["part"],
            ids=found["id"],
            weight=self.weight,
            bias=self.bias,
            smooth=found["smooth"],
            info=self.info,
        )

    def margins(self) -> np.ndarray | None:
        """Pre-activations to order images by, >= 0 just where the bit is 1: float [N, C]; None where there are none.

        Raises:
            ConceptError: as `read`.
        """
        kept = [name for name in ("margins", "features") if name in self.columns and "bits" in self.columns]
        return self.read(kept[0])[kept[0]] if kept else None


def open_folder(path: str | Path) -> CodesFolder:
    """Open a folder that `htaf.concepts.extract` or `binarise` wrote. The record and the head are read.

    Args:
        path: the folder.

    Raises:
        ConceptError: no such folder, another format, not finished, or a missing or damaged file, which it names.
    """
    path = Path(path)
    record = read_record(path)
    if record is None:
        raise ConceptError(f"expected a folder of codes with {RECORD}, found none at {path}")
    if record["status"] != "finished":
        raise ConceptError(f"{path} is not finished: give the command that makes it again, to finish it")
    parts = [Part(path / FOLDER / one["file"], one["images"], one["sha256"]) for one in record["parts"]]
    if gone := [part.file for part in parts if not part.file.is_file()]:
        raise damaged(gone[0], "is missing")
    return CodesFolder(path, record, tuple(parts), *_head(path, record))


def open_codes(path: str | Path) -> Codes:
    """`CodesFolder.codes` of a folder; errors as there and as `open_folder`."""
    return open_folder(path).codes()


def read_record(path: Path) -> dict[str, Any] | None:
    """concepts.json of a folder, None where there is none. Raises ConceptError: damaged, or of another format."""
    file = path / RECORD
    record = _read_record(file, FORMAT, ConceptError)
    if record is None:
        return None
    kinds: dict[str, type] = {"status": str, "key": str, "settings": dict, "concepts": int, "classes": list}
    kinds |= {"columns": list, "head": str}
    kinds |= {"images": int, "parts": list} if record.get("status") == "finished" else {}
    if wrong := sorted(name for name, kind in kinds.items() if type(record.get(name)) is not kind):
        raise ConceptError(f"{file} is damaged: it lacks {', '.join(wrong)}")
    named = all(isinstance(name, str) for name in (*record["classes"], *record["columns"]))
    if record["concepts"] < 1 or not named or not {"id", "label", "part", "smooth"} <= set(record["columns"]):
        raise ConceptError(f"{file} is damaged: expected concepts, and names of classes and columns")
    schema_of(record)
    if record["status"] == "finished":
        _check_parts(file, record)
    return record


def _check_parts(file: Path, record: Mapping[str, Any]) -> None:
    kinds = {"file": str, "images": int, "sha256": str}
    for entry in record["parts"]:
        if type(entry) is not dict or any(type(entry.get(name)) is not kind for name, kind in kinds.items()):
            raise ConceptError(f"{file} is damaged: expected file, images and SHA-256 of each part")
        name = entry["file"]
        if not name or set(name) & set("/\\:\0") or name in (".", "..") or entry["images"] < 1:
            raise ConceptError(f"{file} is damaged: expected a file in {FOLDER} with images, got {name!r:.80}")
    names = [entry["file"] for entry in record["parts"]]
    if not names or len(set(names)) != len(names) or sum(e["images"] for e in record["parts"]) != record["images"]:
        raise ConceptError(f"{file} is damaged: expected different parts of {record['images']:,} images in all")


def schema_of(record: Mapping[str, Any]) -> pa.Schema:
    """Return the columns of each part. Raises ConceptError: one that is unknown."""
    size = record["concepts"]
    kinds: dict[str, pa.DataType] = {"id": pa.string(), "part": pa.string()}
    kinds |= {name: pa.int32() for name in NUMBERS}
    bytes_of = {"bits": (size + 7) // 8, "margins": 2 * size, "features": 4 * size}
    kinds |= {name: pa.binary(width) for name, width in bytes_of.items()}
    if unknown := sorted(set(record["columns"]) - kinds.keys()):
        raise ConceptError(f"expected columns of {', '.join(kinds)}, got {unknown[0]!r:.80}")
    return pa.schema([pa.field(name, kinds[name], nullable=False) for name in record["columns"]])


def damaged(file: Path, why: str = f"is damaged: its SHA-256 differs from the one in {RECORD}") -> ConceptError:
    """Return an error that says what to do."""
    return ConceptError(f"{file} {why}; put back a copy of it, or delete it and give the command that wrote it again")


@contextmanager
def _refusing(file: Path) -> Iterator[None]:
    """What the block cannot read is damaged."""
    try:
        yield
    except ConceptError:
        raise
    except FileNotFoundError:
        raise damaged(file, "is missing") from None
    except Exception as error:  # Arrow's readers raise nearly everything on damaged files
        raise damaged(file, f"is damaged: {str(error) or type(error).__name__:.300}") from None


def opened(data: bytes, file: Path, record: Mapping[str, Any]) -> pq.ParquetFile:
    """Return the bytes of a part, whose columns are those of the record. Raises ConceptError: damaged, or of other
    columns."""
    with _refusing(file):
        found = pq.ParquetFile(io.BytesIO(data))
        if not found.schema_arrow.equals(schema_of(record)):
            raise ValueError(f"expected the columns {', '.join(record['columns'])}, none of them with empty cells")
        return found


def _read(part: Part, record: Mapping[str, Any], columns: Sequence[str]) -> dict[str, Any]:
    """Read columns of a part as `CodesFolder.read` has them."""
    with _refusing(part.file):
        data = regular(part.file).read_bytes()
    if hashlib.sha256(data).hexdigest() != part.sha256:
        raise damaged(part.file)
    source = opened(data, part.file, record)
    if source.metadata.num_rows != part.images:
        raise damaged(part.file, f"is damaged: expected {part.images:,} images, got {source.metadata.num_rows:,}")
    with _refusing(part.file):
        table = source.read(columns=list(columns), use_threads=False)
        table.validate(full=True)
        return {name: _checked(name, table.column(name), record) for name in columns}


def _checked(name: str, column: pa.ChunkedArray, record: Mapping[str, Any]) -> Any:
    """Return a column as `CodesFolder.read` has it. Raises ValueError: values that cannot be."""
    array = column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
    if name == "id":
        return array.to_pylist()
    if name == "part":
        numbers = pc.call_function("index_in", [array], pc.SetLookupOptions(pa.array(PARTS, array.type)))
        if numbers.null_count:
            raise ValueError(f"expected the parts {', '.join(PARTS)}, got others")
        return numbers.to_numpy().astype(np.uint8)
    if name in NUMBERS:
        values, classes = array.to_numpy(), len(record["classes"])
        ends = {"label": (-1, classes), "smooth": (-1, classes), "exact": (0, classes)}
        least, end = ends.get(name, (-1, record["concepts"] + 1))
        if len(values) and not least <= int(values.min()) <= int(values.max()) < end:
            raise ValueError(f"expected {name} from {least} to {end - 1}, got {values.min()} to {values.max()}")
        return values
    width, kind = array.type.byte_width, DTYPES[name]
    data = np.frombuffer(array.buffers()[1], np.uint8, len(array) * width, array.offset * width)
    values = data.view(kind).reshape(len(array), width // kind.itemsize)
    extra = record["concepts"] % 8
    if name == "bits" and extra and (values[:, -1] >> extra).any():
        raise ValueError(f"expected {record['concepts']} concepts, got bits of more")
    return values


def _head(
    path: Path, record: Mapping[str, Any]
) -> tuple[Float32[np.ndarray, "classes concepts"], Float32[np.ndarray, " classes"]]:
    """weight and bias. Raises ConceptError: the file is missing or damaged."""
    k, c, file = len(record["classes"]), record["concepts"], path / HEAD
    with _refusing(file):
        data = regular(file).read_bytes()
        if hashlib.sha256(data).hexdigest() != record["head"]:
            raise ValueError(f"its SHA-256 differs from the one in {RECORD}")
        head = safetensors.numpy.load(data)
        if [(head[n].shape, head[n].dtype) for n in ("weight", "bias")] != [((k, c), "f4"), ((k,), "f4")]:
            raise ValueError(f"it differs from what {RECORD} says")
    return head["weight"], head["bias"]


@dataclass(frozen=True)
class Head:
    """What a folder is to hold beside its images.

    settings: what makes two folders the same, flat and JSON. columns: of each part.
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
    """Return where part `number` of a folder is."""
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
        """Return what a part says of itself; None where it cannot be read."""
        try:
            data = regular(file).read_bytes()
            source = opened(data, file, self.record)
            said = parse_json((source.schema_arrow.metadata or {}).get(METADATA, b"{}"))
            if file != part_file(self.path, said["number"]) or "key" not in said:
                return None
        except (ConceptError, OSError, ValueError, LookupError, TypeError):
            return None
        return said | {"images": source.metadata.num_rows, "sha256": hashlib.sha256(data).hexdigest()}

    def finish(self, **info: Any) -> None:
        """Write the record of the parts that are there; it makes the folder whole. info: more for it."""
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
        _remove_unfinished(path)
        yield OpenFolder(path, _record(path, head))
        _remove_unfinished(path)  # a node may have died while it wrote


def _remove_unfinished(path: Path) -> None:
    """Remove what processes left that were killed while they wrote."""
    for folder in (path, path / FOLDER):
        for left in (*folder.glob(f".{RECORD}.*"), *folder.glob(f".{HEAD}.*"), *folder.glob(".part-*")):
            left.unlink(missing_ok=True)


def _record(path: Path, head: Head) -> dict[str, Any]:
    """That of the folder, or a new one."""
    key, settings = content_hash(head.settings), json.loads(to_json(head.settings))
    record = read_record(path)
    if record is not None and record["key"] != key:
        there = record["settings"]
        differ = [name for name in sorted(there | settings) if there.get(name) != settings.get(name)]
        said = [f"{name}: {shown(there.get(name))} there, {shown(settings.get(name))} here" for name in differ[:4]]
        raise ConceptError(f"{path} holds other codes ({'; '.join(said)}): choose another --out")
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
    """Write a part, whole or not at all, by any process that knows the record.

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
    """Return a file's name as valid text: some systems allow names that are not."""
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
    """Write a folder of codes, or of features, that are at hand; parts that a stopped call has written are kept.

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
        there, size = folder.there(), PART_IMAGES
        for number, first in enumerate(range(0, len(codes), size)):
            if number not in there:
                some = {name: column[first : first + size] for name, column in columns.items()}
                write_part(folder.path, folder.record, number, some)
        for name, data in (files or {}).items():
            write_atomic(folder.path / name, data)
        folder.finish()
    return open_folder(path)
