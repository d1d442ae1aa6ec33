"""Where images without a set of their own come from: image files, folders of them, and Parquet files.

A source is a list of images, each with the place of its content. It can be cut anywhere before anything is read, so a
list is planned in one process and read in many.

Images of Parquet files are in a column of bytes, or of {bytes, path} as Hugging Face's datasets write it; their labels
in a column `label` or `cls`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from jaxtyping import Float32, Int32, UInt8

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
class Held:
    """An image that needs no decoding: a row of what gives it, such as a part of a set. Another process is sent its
    pixels, not the source."""

    source: Any
    row: int

    def __reduce__(self) -> tuple[Any, ...]:
        return Held, (MemoryPart(self.source.batch(torch.tensor([self.row])), torch.zeros(1, dtype=torch.int64)), 0)


@dataclass(frozen=True, slots=True)
class Cell:
    """An image in a row of a Parquet file. column: of the images. label: the column of their labels, if any."""

    file: str
    column: str
    label: str | None
    row: int


@dataclass(frozen=True, slots=True)
class Image:
    """One image.

    id: its name. content: where it is. label: as it stands there. part: a number that it carries, if any. size: of its
    file in bytes, -1 where there was none when the list was made. zeros: zeros stand in for it where it cannot be
    decoded.
    """

    id: str
    content: Path | Cell | Held
    label: Label = -1
    part: int | None = None
    size: int = -1
    zeros: bool = False


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


def source(paths: Sequence[str]) -> tuple[list[Image], list[str]]:
    """Return the images at paths: files, folders (their image files at any depth, else their Parquet files), Parquet
    files.

    Returns:
        the images, in order; and notes on what is left out.

    Raises:
        DataError: nothing there, a Parquet file that cannot be read, or no images in all of them.
    """
    notes: list[str] = []
    files = [file for path in paths for file in _expanded(Path(path), notes)]
    if files and not any(map(os.path.exists, files)):
        raise DataError(f"{paths[0]}: expected image files, folders of them or Parquet files, got neither")
    found: list[Image] = []
    with ThreadPoolExecutor(16) as pool:
        for some in pool.map(_images_of, files):
            found += some
    if not found:
        raise DataError(f"expected images, got none in {listed(paths, 3)}")
    return found, notes


def read_block(
    block: Sequence[Image],
    channels: int,
    size: tuple[int, int],
    classes: Sequence[str],
    part: int = 0,
    *,
    threads: int = 1,
) -> Decoded:
    """Read the images of a block, decoded as the training reads them (`htaf.data.image_reading.decode`).

    Args:
        block: all of them held, or none.
        channels, size: of the network.
        classes: a label is a number or name of one of these; others become -1 and are counted.
        part: the number of images that carry none.
        threads: that decode.

    Raises:
        DataError: a file that was there when the list was made and cannot be read here.
    """
    if isinstance(block[0].content, Held):
        pixels, labels = np.concatenate([*_held(block)]), [image.label for image in block]
        problems: list[DataError | None] = [None] * len(block)
    else:
        contents, labels = _contents(block)
        read, problems = read_each(contents, channels, size, [image.id for image in block], threads)
        pixels = read.numpy()
    for image, error in zip(block, problems, strict=True):
        cause = error and error.__cause__  # of the system: PIL's own have no number
        if image.size >= 0 and isinstance(cause, OSError) and (isinstance(cause, GONE) or cause.errno is not None):
            raise DataError(
                f"{image.id} was there when the images were listed and cannot be read here "
                f"({first_line(cause)}): images must lie where every node sees them"
            ) from cause
    left_out = [problem is not None and not image.zeros for problem, image in zip(problems, block, strict=True)]
    kept = [row for row, out in enumerate(left_out) if not out]
    numbers, unknown = _numbers([labels[row] for row in kept], classes)
    return Decoded(
        tuple(block[row].id for row in kept),
        numbers,
        np.array([part if (own := block[row].part) is None else own for row in kept], np.uint8),
        pixels if len(kept) == len(block) else pixels[kept],
        tuple(_problem(block[row], problems[row]) for row, out in enumerate(left_out) if out),
        tuple(f"{problems[row]}; zeros stand in for it" for row in kept if problems[row] is not None),
        unknown,
    )


def _held(block: Sequence[Any]) -> Iterator[np.ndarray]:
    """Return the images of a block that are held, those of one source at once."""
    for _, some in groupby(block, key=lambda image: id(image.content.source)):
        images = [image.content for image in some]
        yield images[0].source.batch(torch.tensor([one.row for one in images])).numpy()


def _contents(block: Sequence[Image]) -> tuple[list[Content], list[Label]]:
    """Return files, or what the cells of Parquet files hold, and the labels."""
    found: list[tuple[Any, Label]] = []
    cells = ((image, image.content if isinstance(image.content, Cell) else None) for image in block)
    for run, some in groupby(enumerate(cells), key=lambda one: (c := one[1][1]) and (c.file, c.row - one[0])):
        images = [image for _, (image, _) in some]
        found += [(one.content, one.label) for one in images] if run is None else _read_cells([*images])
    return [content for content, _ in found], [label for _, label in found]


def _read_cells(images: Sequence[Any]) -> list[tuple[bytes, Label]]:
    """Read rows of a Parquet file that follow each other: images, b"" for null, and labels.

    Raises:
        DataError: the file cannot be read.
    """
    first, begin = images[0].content, images[0].content.row
    end = begin + len(images)
    with _opened(first.file) as stream:
        table = pq.ParquetFile(stream)
        sizes = [table.metadata.row_group(group).num_rows for group in range(table.num_row_groups)]
        starts = [0, *np.cumsum(sizes).tolist()]
        groups = [g for g in range(len(sizes)) if starts[g] < end and begin < starts[g + 1]]
        columns = [first.column, *([first.label] if first.label else [])]
        rows: list[dict[str, Any]] = []
        at = starts[groups[0] if groups else 0]
        for batch in table.iter_batches(ROWS_AT_ONCE, groups, columns) if groups else ():
            rows += batch.slice(max(0, begin - at), max(0, end - max(at, begin))).to_pylist()
            at += len(batch)
    if len(rows) != len(images):
        raise DataError(f"{first.file}: expected {end:,} rows, as it had before, got fewer")
    cells = (row[first.column] for row in rows)
    contents = ((cell.get("bytes") if isinstance(cell, dict) else cell) or b"" for cell in cells)
    return [(content, row[first.label] if first.label else None) for content, row in zip(contents, rows, strict=True)]


def _problem(image: Image, error: DataError | None) -> str:
    """`NAME (why)`, as a record names it."""
    why = str(error).removeprefix(f"{image.id}: ").removeprefix("expected an image, got ")
    return f"{image.id} ({why})"


def _numbers(labels: Sequence[Label], classes: Sequence[str]) -> tuple[Int32[np.ndarray, " n"], int]:
    """Return class numbers, -1 for none; and how many labels are none of the classes."""
    known: dict[Label, int] = {None: -1, **{str(number): number for number in range(-1, len(classes))}}
    known |= {number: number for number in range(-1, len(classes))}
    known |= {name: number for number, name in enumerate(classes)}  # a name comes before a number
    found = [known.get(label) for label in labels]
    return np.array([-1 if one is None else one for one in found], np.int32), found.count(None)


def _expanded(path: Path, notes: list[str]) -> list[Path]:
    """Return the files of a folder: Parquet files directly in it where no image files are there, else image files."""
    if not path.is_dir():
        return [path]
    inside = sorted(path.iterdir())
    parquet = [file for file in inside if file.suffix.lower() == PARQUET]
    if parquet and not any(file.suffix.lower() in SUFFIXES for file in inside):
        return parquet
    found, left_out = image_files([path])
    notes += left_out
    return found


def _images_of(file: Path) -> list[Image]:
    """Return the image of a file, or those of a Parquet file."""
    name = str(file)
    if file.suffix.lower() != PARQUET:
        try:
            return [Image(name, file, size=file.stat().st_size)]
        except OSError:
            return [Image(name, file)]
    with _opened(name) as stream:
        size = stream.seek(0, os.SEEK_END)
        found = pq.ParquetFile(stream)
        schema, rows = found.schema_arrow, found.metadata.num_rows
    able = [field.name for field in schema if _holds_bytes(field.type)]
    chosen = able if len(able) == 1 else [column for column in able if column == "image"]
    if not chosen:
        came = f"the columns of bytes {listed(able, 5)}: call that of the images 'image'" if able else "none"
        raise DataError(f"{name}: expected one column of images as bytes, got {came}")
    label = next((one for one in LABELS if one in schema.names and _holds_labels(schema.field(one).type)), None)
    return [Image(f"{name}/{row}", Cell(name, chosen[0], label, row), size=size) for row in range(rows)]


@contextmanager
def _opened(file: str) -> Iterator[Any]:
    """A Parquet file for reading. Raises DataError: it cannot be opened or read."""
    try:
        stream = regular(Path(file)).open("rb")
    except OSError as error:
        raise DataError(f"{file} cannot be read: {error.strerror or first_line(error)}") from error
    with stream:
        try:
            yield stream
        except (pa.ArrowException, OSError, ValueError, KeyError) as error:
            raise DataError(f"{file}: expected a Parquet file, got a damaged one ({first_line(error)})") from error


def _holds_bytes(kind: pa.DataType) -> bool:
    if pa.types.is_struct(kind):
        return any(kind.field(i).name == "bytes" and _holds_bytes(kind.field(i).type) for i in range(kind.num_fields))
    return pa.types.is_binary(kind) or pa.types.is_large_binary(kind)


def _holds_labels(kind: pa.DataType) -> bool:
    return pa.types.is_integer(kind) or pa.types.is_string(kind) or pa.types.is_large_string(kind)
