"""Where images without a set of their own come from: image files, folders of them, and Parquet files.

A source is a list of stretches: runs of images in one place, of known length, that can be cut anywhere before anything
is read. So a list of any length is planned in one process and read in many.

Images of Parquet files are in a column of bytes, or of {bytes, path} as Hugging Face's datasets write it; their labels
in a column `label` or `cls`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from jaxtyping import Float32, Int32, Int64, UInt8
from torch import Tensor

from htaf._ground.errors import first_line
from htaf._ground.files import regular
from htaf.data.image_reading import SUFFIXES, Content, image_files, read_each
from htaf.data.images import MemoryPart
from htaf.data.reading import DataError, listed

PARQUET = ".parquet"
LABELS = ("label", "cls")  # columns of labels
ROWS_AT_ONCE = 64  # read from a Parquet file
GONE = (FileNotFoundError, PermissionError, ConnectionError, TimeoutError)

Label = int | str | None


@dataclass(frozen=True, slots=True)
class Image:
    """One image that is to be decoded.

    id: its name. content: its file, or what the file holds. label: as it stands there. part: a number that it carries,
    if any. size: of its file in bytes, -1 where there was none when the list was made. zeros: zeros stand in for it
    where it cannot be decoded.
    """

    id: str
    content: Content
    label: Label = -1
    part: int | None = None
    size: int = -1
    zeros: bool = False


@dataclass(frozen=True)
class Files:
    """Image files."""

    images: tuple[Image, ...]

    def __len__(self) -> int:
        return len(self.images)

    def cut(self, first: int, last: int) -> Files:
        """Return images first to last - 1."""
        return Files(self.images[first:last])

    def names(self) -> Iterable[object]:
        """Return what identifies these images, as JSON values."""
        return ([one.id, one.size, one.label] for one in self.images)

    def first(self) -> str:
        """Return a file that was there when the list was made, "" for none."""
        return str(self.images[0].content) if self.images[0].size >= 0 else ""


@runtime_checkable
class Batches(Protocol):
    """Images in memory or on disk, or what a frozen backbone gives of them."""

    def batch(self, rows: Int64[Tensor, " rows"]) -> UInt8[Tensor, "rows c h w"] | Float32[Tensor, "rows f"]:
        """Return the images of some rows."""
        ...


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows of a part of a set. source: what gives them; other fields as in `Image`. Another process is given their
    pixels, not the part."""

    source: Batches
    rows: Int64[Tensor, " rows"]
    ids: tuple[str, ...]
    labels: tuple[int, ...]
    parts: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.ids)

    def cut(self, first: int, last: int) -> Rows:
        some = slice(first, last)
        return Rows(self.source, self.rows[some], self.ids[some], self.labels[some], self.parts[some])

    def names(self) -> Iterable[object]:
        return self.ids

    def first(self) -> str:
        return ""

    def __reduce__(self) -> tuple[Any, ...]:
        held = MemoryPart(self.source.batch(self.rows), torch.tensor(self.labels))
        return Rows, (held, torch.arange(len(self)), self.ids, self.labels, self.parts)


@dataclass(frozen=True)
class ParquetRows:
    """Rows begin to end - 1 of a Parquet file. column: of the images. label: the column of their labels, if any."""

    file: str
    size: int
    column: str
    label: str | None
    begin: int
    end: int

    def __len__(self) -> int:
        return self.end - self.begin

    def cut(self, first: int, last: int) -> ParquetRows:
        return replace(self, begin=self.begin + first, end=min(self.end, self.begin + last))

    def names(self) -> Iterable[object]:
        return [[self.file, self.size, self.column, self.label, self.begin, self.end]]

    def first(self) -> str:
        return self.file

    @property
    def images(self) -> list[Image]:
        """All of them, in order. Raises DataError: the file cannot be read."""
        with _opened(self.file) as stream, _parquet(self.file):
            table = pq.ParquetFile(stream)
            sizes = [table.metadata.row_group(group).num_rows for group in range(table.num_row_groups)]
            starts = [0, *np.cumsum(sizes).tolist()]
            groups = [g for g in range(len(sizes)) if starts[g] < self.end and self.begin < starts[g + 1]]
            columns = [self.column, *([self.label] if self.label else [])]
            rows: list[dict[str, Any]] = []
            at = starts[groups[0] if groups else 0]
            for batch in table.iter_batches(ROWS_AT_ONCE, groups, columns) if groups else ():
                wanted = batch.slice(max(0, self.begin - at), max(0, self.end - max(at, self.begin)))
                at += len(batch)
                rows += wanted.to_pylist()
        if len(rows) != len(self):
            raise DataError(f"{self.file}: expected {self.end:,} rows, as it had before, got fewer")
        return [
            Image(f"{self.file}/{place}", _bytes(row[self.column]), row[self.label] if self.label else None)
            for place, row in enumerate(rows, self.begin)
        ]


Stretch = Files | Rows | ParquetRows  # images in one place


@dataclass(frozen=True, eq=False)
class Decoded:
    """Images of one block, decoded.

    ids: names. labels: int32 [n], class numbers, -1 for none. parts: uint8 [n]. pixels: uint8 [n, C, H, W], or float32
    [n, F], what a frozen backbone gives of them.
    problems: of each image that is left out its name and why. notes: what else is to be said.
    """

    ids: tuple[str, ...]
    labels: Int32[np.ndarray, " n"]
    parts: UInt8[np.ndarray, " n"]
    pixels: UInt8[np.ndarray, "n c h w"] | Float32[np.ndarray, "n f"]
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    unknown: int = 0  # labels that are none of the classes


def source(paths: Sequence[str]) -> tuple[list[Stretch], list[str]]:
    """Return the images at paths: files, folders (their image files at any depth, else their Parquet files), Parquet
    files.

    Returns:
        stretches, in order; and notes on what is left out.

    Raises:
        DataError: nothing there, a Parquet file that cannot be read, or no images in all of them.
    """
    notes: list[str] = []
    found = [entry for path in paths for entry in _expanded(path, notes)]
    if found and all(size < 0 for _, size in found):
        raise DataError(f"{paths[0]}: expected image files, folders of them or Parquet files, got neither")
    made: list[Stretch] = []
    for parquet, entries in groupby(found, key=lambda entry: _is_parquet(entry[0])):
        if parquet:
            with ThreadPoolExecutor(16) as pool:
                made += pool.map(_parquet_rows, [name for name, _ in entries])
        else:
            made.append(Files(tuple(Image(name, Path(name), size=size) for name, size in entries)))
    if not any(map(len, made)):
        raise DataError(f"expected images, got none in {listed(paths, 3)}")
    return [one for one in made if len(one)], notes


def blocks(stretches: Sequence[Stretch], images: int) -> list[tuple[Stretch, ...]]:
    """Return the list cut into blocks of so many images, the last of fewer."""
    made: list[tuple[Stretch, ...]] = []
    current: list[Stretch] = []
    left = images
    for stretch in stretches:
        first = 0
        while first < len(stretch):
            last = min(len(stretch), first + left)
            current.append(stretch.cut(first, last))
            left -= last - first
            first = last
            if not left:
                made.append(tuple(current))
                current, left = [], images
    return [*made, tuple(current)] if current else made


def read_block(
    block: Sequence[Stretch],
    channels: int,
    size: tuple[int, int],
    classes: Sequence[str],
    part: int = 0,
    *,
    threads: int = 1,
) -> Decoded:
    """Read the images of a block, decoded as the training reads them (`htaf.data.image_reading.decode`).

    Args:
        channels, size: of the network.
        classes: a label is a number or name of one of these; others become -1 and are counted.
        part: the number of images that carry none.
        threads: that decode.

    Raises:
        DataError: a file that was there when the list was made and cannot be read here.
    """
    parts = [
        _held([*some]) if held else _decoded([*some], channels, size, classes, part, threads)
        for held, some in groupby(block, key=lambda one: isinstance(one, Rows))
    ]
    if len(parts) == 1:
        return parts[0]
    made: Any = {name: sum((getattr(one, name) for one in parts), ()) for name in ("ids", "problems", "notes")}
    made |= {name: np.concatenate([getattr(one, name) for one in parts]) for name in ("labels", "parts", "pixels")}
    return Decoded(**made, unknown=sum(one.unknown for one in parts))


def _held(rows: Sequence[Any]) -> Decoded:
    """Return rows of sets, whose images are decoded already."""
    ids, labels, parts = (sum((getattr(one, name) for one in rows), ()) for name in ("ids", "labels", "parts"))
    pixels = torch.cat([one.source.batch(one.rows) for one in rows]).numpy()
    return Decoded(ids, np.array(labels, np.int32), np.array(parts, np.uint8), pixels)


def _decoded(
    block: Sequence[Any],
    channels: int,
    size: tuple[int, int],
    classes: Sequence[str],
    part: int,
    threads: int,
) -> Decoded:
    images = [image for one in block for image in one.images]
    read, problems = read_each(
        [image.content for image in images], channels, size, [image.id for image in images], threads
    )
    pixels = read.numpy()
    for image, error in zip(images, problems, strict=True):
        cause = error and error.__cause__  # of the system: PIL's own have no number
        if image.size >= 0 and isinstance(cause, OSError) and (isinstance(cause, GONE) or cause.errno is not None):
            raise DataError(
                f"{image.id} was there when the images were listed and cannot be read here "
                f"({first_line(cause)}): images must lie where every node sees them"
            ) from cause
    left_out = [problem is not None and not image.zeros for problem, image in zip(problems, images, strict=True)]
    kept = [row for row, out in enumerate(left_out) if not out]
    numbers, unknown = _numbers([images[row].label for row in kept], classes)
    return Decoded(
        tuple(images[row].id for row in kept),
        numbers,
        np.array([part if (own := images[row].part) is None else own for row in kept], np.uint8),
        pixels if len(kept) == len(images) else pixels[kept],
        tuple(_problem(images[row], problems[row]) for row, out in enumerate(left_out) if out),
        tuple(f"{problems[row]}; zeros stand in for it" for row in kept if problems[row] is not None),
        unknown,
    )


def _problem(image: Image, error: DataError | None) -> str:
    """`NAME (why)`, as a record names it."""
    why = str(error).removeprefix(f"{image.id}: ").removeprefix("expected an image, got ")
    return f"{image.id} ({why})"


def _numbers(labels: Sequence[Label], classes: Sequence[str]) -> tuple[Int32[np.ndarray, " n"], int]:
    """Return class numbers, -1 for none; and how many labels are none of the classes."""
    names = {name: number for number, name in enumerate(classes)}

    def number(label: Label) -> int | None:
        if isinstance(label, str) and label in names:
            return names[label]
        try:
            value = -1 if label is None else int(label)
        except (TypeError, ValueError):
            return None
        return value if -1 <= value < len(classes) else None

    found = [number(label) for label in labels]
    return np.array([-1 if one is None else one for one in found], np.int32), found.count(None)


def _is_parquet(name: str) -> bool:
    return name.lower().endswith(PARQUET)


def _parquet_in(folder: Path) -> list[Path]:
    """Return the Parquet files directly in a folder that holds no image files there."""
    names = sorted(folder.iterdir()) if folder.is_dir() else []
    if any(name.suffix.lower() in SUFFIXES for name in names):
        return []
    return [name for name in names if _is_parquet(name.name)]


def _expanded(given: str, notes: list[str]) -> list[tuple[str, int]]:
    """Return names of image files and Parquet files, with their sizes in bytes, -1 where there is none."""
    path = Path(given)
    if not path.exists():
        if _is_parquet(given):
            raise DataError(f"{path}: expected a file, got none")
        return [(given, -1)]
    if _is_parquet(given) and not path.is_dir():
        return [(given, _size(path))]
    found = _parquet_in(path)
    if not found:
        found, left_out = image_files([path])
        notes += left_out
    return [(str(file), _size(file)) for file in found]


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError:
        return -1


@contextmanager
def _opened(file: str) -> Iterator[Any]:
    """A file for reading. Raises DataError: it cannot be opened."""
    try:
        stream = regular(Path(file)).open("rb")
    except OSError as error:
        raise DataError(f"{file} cannot be read: {error.strerror or first_line(error)}") from error
    with stream:
        yield stream


@contextmanager
def _parquet(file: str):
    try:
        yield
    except DataError:
        raise
    except (pa.ArrowException, OSError, ValueError, KeyError) as error:
        raise DataError(f"{file}: expected a Parquet file, got a damaged one ({first_line(error)})") from error


def _parquet_rows(file: str) -> ParquetRows:
    with _opened(file) as stream, _parquet(file):
        stream.seek(0, os.SEEK_END)
        size = stream.tell()
        found = pq.ParquetFile(stream)
        schema, rows = found.schema_arrow, found.metadata.num_rows
    able = [field.name for field in schema if _holds_bytes(field.type)]
    chosen = able if len(able) == 1 else [name for name in able if name == "image"]
    if not chosen:
        came = f"the columns of bytes {listed(able, 5)}: call that of the images 'image'" if able else "none"
        raise DataError(f"{file}: expected one column of images as bytes, got {came}")
    label = next((name for name in LABELS if name in schema.names and _holds_labels(schema.field(name).type)), None)
    return ParquetRows(file, size, chosen[0], label, 0, rows)


def _holds_bytes(kind: pa.DataType) -> bool:
    if pa.types.is_struct(kind):
        return any(kind.field(i).name == "bytes" and _holds_bytes(kind.field(i).type) for i in range(kind.num_fields))
    return pa.types.is_binary(kind) or pa.types.is_large_binary(kind)


def _holds_labels(kind: pa.DataType) -> bool:
    return pa.types.is_integer(kind) or pa.types.is_string(kind) or pa.types.is_large_string(kind)


def _bytes(cell: Any) -> bytes:
    """Return the bytes of a cell; b"" for null, which the decoder names as an empty file."""
    return (cell.get("bytes") if isinstance(cell, dict) else cell) or b""
