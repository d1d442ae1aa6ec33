"""A folder of codes on disk, read by memory mapping; `htaf.concepts.writing` writes it.

concepts.json      format, status, settings, run, data, classes, sizes, versions; SHA-256 of the files once finished
codes.npy          uint8 [N, ceil(C / 8)], the bits; not there for a plain network
features.npy       float32 [N, C], pre-activations, where asked for
smooth.npy, exact.npy, saturated.npy    int32 [N], as in `htaf.concepts.codes.Codes`
images.arrow       id, label and part of each image; an Arrow file that can be memory-mapped
head.safetensors   weight [K, C], bias [K] and, from `binarise`, thresholds [C]
done.npy           a byte for each chunk of images, only while the folder is being written
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, overload

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import safetensors.numpy
from jaxtyping import Float32, Int32, UInt8
from safetensors import SafetensorError

from htaf.concepts.codes import PARTS, Codes, ConceptError

FORMAT = 1
CHUNK = 1000  # images written at once: a whole number of batches of 250, as evaluation takes them
RECORD, IMAGES, HEAD, DONE = "concepts.json", "images.arrow", "head.safetensors", "done.npy"


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


def open_codes(path: str | Path, *, verify: bool = False) -> Codes:
    """The codes of a finished folder, memory-mapped: of any size, opened at once.

    Args:
        path: a folder that `extract` or `binarise` wrote.
        verify: read all files and compare their SHA-256.

    Raises:
        ConceptError: no such folder, another format, not finished, a missing, truncated or changed file, or the
            features of a plain network, which has no codes.
    """
    path = Path(path)
    record = _finished(path, verify)
    if "codes" not in record["arrays"]:
        raise ConceptError(f"{path} holds features of a plain network: make its codes with `htaf concepts binarise`")
    bits, smooth, exact, saturated = _arrays(path, record, "codes", "smooth", "exact", "saturated")
    fields = _images(path, record)
    return Codes(bits=bits, concepts=record["concepts"], smooth=smooth, exact=exact, saturated=saturated, **fields)


def open_features(path: str | Path) -> Features:
    """The features of a finished folder, memory-mapped.

    Raises:
        ConceptError: as `open_codes`, or a folder without features.
    """
    path = Path(path)
    record = _finished(path, False)
    if "features" not in record["arrays"]:
        raise ConceptError(f"{path} has no features.npy: extract with features")
    values, smooth = _arrays(path, record, "features", "smooth")
    return Features(values=values, smooth=smooth, **_images(path, record))


def _finished(path: Path, verify: bool) -> dict[str, Any]:
    record = read_record(path)
    if record is None:
        raise ConceptError(f"expected a folder of codes with {RECORD}, found none at {path}")
    if record["status"] != "finished":
        raise ConceptError(f"{path} is not finished: run the same command again, it goes on where it was")
    for name, digest in record["files"].items():
        if verify and sha256(path / name) != digest:
            raise ConceptError(f"{path / name} is damaged: its SHA-256 differs from the one in {RECORD}")
    return record


def read_record(path: Path) -> dict[str, Any] | None:
    """concepts.json of a folder, None where there is none. Raises ConceptError: damaged, or of another format."""
    file = path / RECORD
    try:
        record = json.loads(file.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, RecursionError) as error:
        raise ConceptError(f"{file} is damaged: {error}") from None
    if not isinstance(record, dict) or record.get("format") != FORMAT:
        found = record.get("format") if isinstance(record, dict) else type(record).__name__
        raise ConceptError(f"{file}: expected format {FORMAT}, got {found}")
    kinds = {"status": str, "key": str, "settings": dict, "images": int, "concepts": int, "classes": list}
    kinds |= {"arrays": list} | ({"files": dict} if record.get("status") == "finished" else {})
    if wrong := sorted(name for name, kind in kinds.items() if not isinstance(record.get(name), kind)):
        raise ConceptError(f"{file} is damaged: it lacks {', '.join(wrong)}")
    return record


def _arrays(path: Path, record: Mapping[str, Any], *names: str) -> list[np.ndarray]:
    shapes = array_shapes(record)
    return [map_array(path / f"{name}.npy", *shapes[name]) for name in names]


def map_array(file: Path, dtype: np.dtype, shape: tuple[int, ...]) -> np.ndarray:
    """An npy file, memory-mapped read-only. Raises ConceptError unless it has this dtype, shape and size."""
    try:
        array = np.load(file, mmap_mode="r")
        size = file.stat().st_size
    except (OSError, ValueError, EOFError) as error:
        raise ConceptError(f"{file} is missing or damaged: {error}") from None
    if (array.dtype, array.shape) != (dtype, shape):
        raise ConceptError(f"{file}: expected {dtype} {shape}, got {array.dtype} {array.shape}")
    if size != array.offset + array.nbytes:
        raise ConceptError(f"{file}: expected {array.offset + array.nbytes:,} bytes, got {size:,}")
    return array


def _images(path: Path, record: dict[str, Any]) -> dict[str, Any]:
    """labels, parts, ids, weight, bias, classes and info."""
    n, k, c = record["images"], len(record["classes"]), record["concepts"]
    try:
        file = pa.ipc.open_file(pa.memory_map(str(path / IMAGES)))
        batch = file.get_batch(0)
        if batch.num_rows != n:
            raise ConceptError(f"{path / IMAGES}: expected {n:,} images, got {batch.num_rows:,}")
        labels, part = batch.column("label"), batch.column("part")
        if part.dictionary.to_pylist() != list(PARTS):
            raise ConceptError(f"{path / IMAGES}: expected the parts {PARTS}, got {part.dictionary.to_pylist()}")
    except (OSError, KeyError, pa.ArrowException) as error:
        raise ConceptError(f"{path / IMAGES} is missing or damaged: {error}") from None
    try:
        data = (path / HEAD).read_bytes()
        head = safetensors.numpy.load(data)
        shapes = head["weight"].shape, head["bias"].shape
    except (OSError, KeyError, SafetensorError) as error:
        raise ConceptError(f"{path / HEAD} is missing or damaged: {error}") from None
    if shapes != ((k, c), (k,)) or hashlib.sha256(data).hexdigest() != record["files"].get(HEAD):
        raise ConceptError(f"{path / HEAD} is damaged: it differs from what {RECORD} says")
    return {
        "labels": labels.to_numpy(zero_copy_only=True),
        "parts": part.indices.to_numpy(zero_copy_only=True),
        "ids": Ids(batch.column("id")),
        "weight": head["weight"],
        "bias": head["bias"],
        "classes": tuple(record["classes"]),
        "info": record,
    }


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
    return shapes


def chunk_count(record: Mapping[str, Any]) -> int:
    """How many chunks the images make."""
    return -(-record["images"] // CHUNK)


def sha256(file: Path) -> str:
    """Hexadecimal. Raises ConceptError when the file cannot be read."""
    try:
        with file.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise ConceptError(f"{file} is missing or damaged: {error.strerror}") from None
