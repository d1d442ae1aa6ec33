"""A folder of codes on disk: arrays are memory-mapped, all else is checked in full; `htaf.concepts.writing` writes it.

concepts.json      format, status, settings, run, data, classes, sizes, versions; SHA-256 of the files once finished
codes.npy          uint8 [N, ceil(C / 8)], the bits; not there for a plain network
features.npy       float32 [N, C], pre-activations, where asked for
margins.npy        float16 [N, C], the same, to order images by; not there where it would be large
smooth.npy, exact.npy, saturated.npy    int32 [N], as in `htaf.concepts.codes.Codes`
images.arrow       id, label and part of each image; an Arrow file
head.safetensors   weight [K, C], bias [K] and, from `binarise`, thresholds [C]
done.npy           a byte for each chunk of images, only while the folder is being written
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import safetensors.numpy
from jaxtyping import Float16, Float32, Int32, UInt8

from htaf import _files
from htaf.concepts.codes import PARTS, Codes, ConceptError

if TYPE_CHECKING:
    from htaf.concepts.sharded import ShardedCodes

FORMAT = 2
CHUNK = 1000  # images written at once: a whole number of batches of 250, as evaluation takes them
RECORD, IMAGES, HEAD, DONE = "concepts.json", "images.arrow", "head.safetensors", "done.npy"
SCHEMA = pa.schema([("id", pa.large_string()), ("label", pa.int32()), ("part", pa.dictionary(pa.uint8(), pa.string()))])


@dataclass(frozen=True, eq=False)
class Features:
    """Pre-activations of N images: what a plain network has instead of codes. Fields as in `Codes`.

    values: float32 [N, C], memory-mapped.
    """

    values: Float32[np.ndarray, "images concepts"]
    classes: tuple[str, ...]
    labels: Int32[np.ndarray, " images"]
    parts: UInt8[np.ndarray, " images"]
    ids: Sequence[str]
    weight: Float32[np.ndarray, "classes concepts"]
    bias: Float32[np.ndarray, " classes"]
    smooth: Int32[np.ndarray, " images"]
    info: Mapping[str, Any]

    def __len__(self) -> int:
        """N."""
        return len(self.values)


def accuracies(found: Codes | Features) -> list[dict[str, Any]]:
    """Of each part that has images: {"part", "images", "smooth", "exact"}, the accuracies on those with a label.

    An accuracy is None where there are none, and "exact" of features, which have no exact network.
    """
    rows = []
    for number, part in enumerate(PARTS):
        here = found.parts == number
        known = here & (found.labels >= 0)
        guesses = {"smooth": found.smooth, "exact": found.exact if isinstance(found, Codes) else None}
        shares = {
            name: None if guess is None or not known.any() else float((guess[known] == found.labels[known]).mean())
            for name, guess in guesses.items()
        }
        if here.any():
            rows.append({"part": part, "images": int(here.sum()), **shares})
    return rows


def open_codes(path: str | Path, *, verify: bool = True) -> Codes:
    """The codes of a finished folder; the bits are memory-mapped.

    Args:
        path: a folder that `extract` or `binarise` wrote; of one in parts (`htaf.concepts.sharded`) the bits are
            copied into memory.
        verify: read the arrays and compare their SHA-256, about a second for a gigabyte. What else the folder holds is
            always compared and checked.

    Raises:
        ConceptError: no such folder, another format, not finished, a missing, truncated or changed file, values that
            cannot be, or the features of a plain network, which has no codes; codes in parts that take more than
            `htaf.concepts.sharded.MOST` bytes.
    """
    path = Path(path)
    if in_parts(path):
        return _sharded(path).whole(verify=verify)
    record = _finished(path)
    if "codes" not in record["arrays"]:
        raise ConceptError(
            f"{path} holds features of a plain network, not codes: make codes of them with htaf concepts binarise"
        )
    names = ("codes", "smooth", "exact", "saturated")
    bits, smooth, exact, saturated = open_arrays(path, record, *names, verify=verify)
    fields = _images(path, record)
    k, c = len(record["classes"]), record["concepts"]
    for name, array, least, most in (
        ("smooth", smooth, -1, k),
        ("exact", exact, 0, k),
        ("saturated", saturated, -1, c + 1),
    ):
        in_range(path / f"{name}.npy", array, least, most)
    if c % 8 and verify and (bits[:, -1] >> c % 8).any():
        raise ConceptError(f"{path / 'codes.npy'} is damaged: expected {c} concepts, got bits of more")
    return Codes(bits=bits, concepts=record["concepts"], smooth=smooth, exact=exact, saturated=saturated, **fields)


def open_features(path: str | Path) -> Features:
    """The features of a finished folder, memory-mapped.

    Raises:
        ConceptError: as `open_codes`, or a folder without features.
    """
    path = Path(path)
    if in_parts(path):
        return _sharded(path).whole_features()
    record = _finished(path)
    if "features" not in record["arrays"]:
        raise ConceptError(
            f"{path} has no features.npy: extract them with htaf concepts extract --features, into a new folder"
        )
    values, smooth = open_arrays(path, record, "features", "smooth")
    in_range(path / "smooth.npy", smooth, -1, len(record["classes"]))
    return Features(values=values, smooth=smooth, **_images(path, record))


def open_margins(path: str | Path) -> Float16[np.ndarray, "images concepts"] | None:
    """The pre-activations of a finished folder of codes, to order images by; memory-mapped.

    Returns:
        float16 [N, C], rows as in `open_codes`; >= 0 just where the bit is 1. None of a folder that has none: one
        of more images than are kept without `--margins True`.

    Raises:
        ConceptError: as `open_codes`.
    """
    path = Path(path)
    if in_parts(path):
        return _sharded(path).whole_margins()
    record = _finished(path)
    return open_arrays(path, record, "margins")[0] if "margins" in record["arrays"] else None


def in_parts(path: Path) -> bool:
    """Whether a folder holds codes in parts."""
    return (path / "manifest.json").is_file() and not (path / RECORD).exists()


def _sharded(path: Path) -> ShardedCodes:
    from htaf.concepts.sharded import open_sharded  # which imports this module

    return open_sharded(path)


def known_record(path: Path) -> dict[str, Any] | None:
    """concepts.json of a folder, or manifest.json of codes in parts; None where there is neither. Both have status,
    key and settings. Raises ConceptError: damaged, or of another format."""
    from htaf.concepts.sharded import read_manifest

    return read_manifest(path) if in_parts(path) else read_record(path)


def _finished(path: Path) -> dict[str, Any]:
    record = read_record(path)
    if record is None:
        raise ConceptError(f"expected a folder of codes with {RECORD}, found none at {path}")
    if record["status"] != "finished":
        raise ConceptError(f"{path} is not finished: give the command that makes it again, to finish it")
    return record


def damaged(file: Path, why: str = f"is damaged: its SHA-256 differs from the one in {RECORD}") -> ConceptError:
    again = f"put back a copy of it, or delete {file.parent} and run the command that wrote it again"
    return ConceptError(f"{file} {why}; {again}")


def in_range(file: Path, array: np.ndarray, least: int, end: int) -> None:
    if len(array) and not least <= int(array.min()) <= int(array.max()) < end:
        raise ConceptError(f"{file} is damaged: expected {least} to {end - 1}, got {array.min()} to {array.max()}")


def read_record(path: Path) -> dict[str, Any] | None:
    """concepts.json of a folder, None where there is none. Raises ConceptError: damaged, or of another format."""
    file = path / RECORD
    record = _files.read_record(file, FORMAT, ConceptError)
    if record is None:
        return None
    kinds = {"status": str, "key": str, "settings": dict, "images": int, "concepts": int, "classes": list}
    kinds |= {"arrays": list} | ({"files": dict} if record.get("status") == "finished" else {})
    if wrong := sorted(name for name, kind in kinds.items() if type(record.get(name)) is not kind):
        raise ConceptError(f"{file} is damaged: it lacks {', '.join(wrong)}")
    if min(record["images"], record["concepts"]) < 1 or not all(isinstance(name, str) for name in record["classes"]):
        raise ConceptError(f"{file} is damaged: expected images, concepts and names of classes")
    return record


def open_arrays(path: Path, record: Mapping[str, Any], *names: str, verify: bool = True) -> list[np.ndarray]:
    shapes, files = array_shapes(record), {name: path / f"{name}.npy" for name in names}
    arrays = [map_array(file, *shapes[name]) for name, file in files.items()]
    for file in files.values():
        if verify and sha256(file) != record["files"].get(file.name):
            raise damaged(file)
    return arrays


def map_array(file: Path, dtype: np.dtype, shape: tuple[int, ...]) -> np.ndarray:
    """An npy file, memory-mapped read-only. Raises ConceptError unless it has this dtype, shape and size."""
    try:
        array = np.lib.format.open_memmap(_files.regular(file), mode="r")
        size = file.stat().st_size
    except FileNotFoundError:
        raise damaged(file, "is missing") from None
    except Exception as error:  # numpy's reader of headers raises nearly everything
        raise damaged(file, f"is damaged: {error}") from None
    if (array.dtype, array.shape) != (dtype, shape):
        raise ConceptError(f"{file}: expected {dtype} {shape}, got {array.dtype} {array.shape}")
    if size != array.offset + array.nbytes:
        raise ConceptError(f"{file}: expected {array.offset + array.nbytes:,} bytes, got {size:,}")
    return array


def read_images(path: Path, record: Mapping[str, Any]) -> pa.RecordBatch:
    """The table of the images, every value checked. Raises ConceptError: it is missing or damaged."""
    batch = _checked_batch(path / IMAGES, hashed(path / IMAGES, record), record["images"])
    in_range(path / IMAGES, batch.column("label").to_numpy(zero_copy_only=True), -1, len(record["classes"]))
    return batch


def read_head(
    path: Path, record: Mapping[str, Any]
) -> tuple[Float32[np.ndarray, "classes concepts"], Float32[np.ndarray, " classes"]]:
    """weight and bias. Raises ConceptError: the file is missing or damaged."""
    k, c = len(record["classes"]), record["concepts"]
    data = hashed(path / HEAD, record)
    try:
        head = safetensors.numpy.load(data)
        kinds = [(head[name].shape, head[name].dtype) for name in ("weight", "bias")]
    except Exception as error:  # of a header that makes no sense
        raise ConceptError(f"{path / HEAD} is damaged: {error}") from None
    if kinds != [((k, c), np.float32), ((k,), np.float32)]:
        raise ConceptError(f"{path / HEAD} is damaged: it differs from what {RECORD} says")
    return head["weight"], head["bias"]


def _images(path: Path, record: dict[str, Any]) -> dict[str, Any]:
    """labels, parts, ids, weight, bias, classes and info."""
    batch = read_images(path, record)
    labels, part = batch.column("label"), batch.column("part")
    weight, bias = read_head(path, record)
    return {
        "labels": labels.to_numpy(zero_copy_only=True),
        "parts": part.indices.to_numpy(zero_copy_only=True),
        "ids": Ids(batch.column("id")),
        "weight": weight,
        "bias": bias,
        "classes": tuple(record["classes"]),
        "info": record,
    }


def hashed(file: Path, record: Mapping[str, Any]) -> bytes:
    """The bytes of a file, once their SHA-256 is the one in the record."""
    try:
        data = _files.regular(file).read_bytes()
    except FileNotFoundError:
        raise damaged(file, "is missing") from None
    except OSError as error:
        raise damaged(file, f"cannot be read: {error.strerror or error}") from None
    if hashlib.sha256(data).hexdigest() != record["files"].get(file.name):
        raise damaged(file)
    return data


def _checked_batch(file: Path, data: bytes, images: int) -> pa.RecordBatch:
    """The table of an Arrow file, every offset and index checked: Arrow itself reads whatever they point to."""
    try:
        found = pa.ipc.open_file(pa.BufferReader(data))
        if not found.schema.equals(SCHEMA) or found.num_record_batches != 1:
            raise ValueError("expected one table with id, label and part")
        batch = found.get_batch(0)
        batch.validate(full=True)
        check_parts(batch.column("part"))
        if any(column.null_count for column in batch.columns):
            raise ValueError("expected a value in each cell, got none in some")
        if batch.num_rows != images:
            raise ValueError(f"expected {images:,} images, got {batch.num_rows:,}")
    except Exception as error:  # Arrow's readers raise nearly everything on damaged files
        raise ConceptError(f"{file} is damaged: {error}") from None
    return batch


def check_parts(column: pa.DictionaryArray) -> None:
    """Raises ValueError unless its dictionary is PARTS."""
    column.dictionary.validate(full=True)
    if (found := column.dictionary.to_pylist()) != list(PARTS):
        raise ValueError(f"expected the parts {PARTS}, got {found!r:.80}")


class Ids(Sequence[str]):
    """Names in an Arrow array, read one by one."""

    def __init__(self, array: pa.Array) -> None:
        self.array = array

    def __len__(self) -> int:
        return len(self.array)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[str]: ...
    def __getitem__(self, index: int | slice) -> str | Sequence[str]:
        if isinstance(index, slice):
            return Ids(self.array.take(pa.array(range(*index.indices(len(self))), pa.int64())))
        return self.array[index].as_py()

    def index(self, value: str, start: int = 0, stop: int | None = None) -> int:
        """The first row of that name, without making each a Python text."""
        row = pc.index(self.array.slice(start, None if stop is None else stop - start), value).as_py()
        if row < 0:
            raise ValueError(f"{value!r} is none of {len(self):,} names")
        return row + start


def array_shapes(record: Mapping[str, Any]) -> dict[str, tuple[np.dtype, tuple[int, ...]]]:
    """dtype and shape of each array of a folder."""
    n, c, has = record["images"], record["concepts"], record["arrays"]
    shapes: dict[str, tuple[np.dtype, tuple[int, ...]]] = {"smooth": (np.dtype("<i4"), (n,))}
    if "codes" in has:
        shapes["codes"] = (np.dtype("u1"), (n, (c + 7) // 8))
        shapes |= {name: (np.dtype("<i4"), (n,)) for name in ("exact", "saturated")}
    if "features" in has:
        shapes["features"] = (np.dtype("<f4"), (n, c))
    if "margins" in has:
        shapes["margins"] = (np.dtype("<f2"), (n, c))
    return shapes


def chunk_count(record: Mapping[str, Any]) -> int:
    """How many chunks the images make."""
    return -(-record["images"] // CHUNK)


def sha256(file: Path) -> str:
    """Hexadecimal. Raises ConceptError when the file cannot be read."""
    try:
        return _files.file_sha256(file)
    except OSError as error:
        raise ConceptError(f"{file} is missing or damaged: {error.strerror}") from None
