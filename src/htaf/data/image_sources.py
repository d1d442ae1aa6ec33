"""Where images without a set of their own come from: files, Parquet files, tar shards, here or at an address.

A source is a list of stretches: runs of images in one place, of known length, that can be cut anywhere before anything
is read. So a list of any length is planned in one process and read in many.

- image files, and folders of them
- Parquet: a column of bytes, or of {bytes, path} as Hugging Face writes it; labels from a column `label` or `cls`
- WebDataset: uncompressed tar files; members of one basename are one image, with NAME.cls or NAME.json as its label

Each of them is a local path or an address that fsspec reads, such as s3://bucket/shards/0001.tar. Nothing in them is
run: no pickle is read.
"""

from __future__ import annotations

import os
import tarfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby, islice
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, Protocol, runtime_checkable

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from jaxtyping import Float32, Int32, Int64, UInt8
from torch import Tensor

from htaf._errors import first_line
from htaf._files import parse_json, regular
from htaf.data.image_reading import LARGEST_FILE, SUFFIXES, advice, image_files, read_each
from htaf.data.reading import DataError, listed

SHARDS = (".parquet", ".tar")
PACKED = (".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar.zst")
LABELS = ("label", "cls")  # of a Parquet column, of an entry of NAME.json
GONE = (FileNotFoundError, PermissionError, ConnectionError, TimeoutError)
LONGEST = 4096  # bytes of a label's file that are read
HELD = 2**32  # bytes of files of one shard that a block may hold
NEAR, SPAN = 2**20, 2**26  # bytes: files so near each other are read at once, so many at most

Label = int | str | None
Fetch = Callable[[], bytes | Path]


@dataclass(frozen=True)
class Image:
    """One image that is to be decoded.

    id: its name. label: as it stands there. fetch: its file, or what the file holds. part: a number that it carries,
    if any. sure: it was there when the list was made. zeros: zeros stand in for it where it cannot be decoded.
    """

    id: str
    label: Label
    fetch: Fetch
    part: int | None = None
    sure: bool = False
    zeros: bool = False


@runtime_checkable
class Stretch(Protocol):
    """Images in one place."""

    def __len__(self) -> int: ...
    def cut(self, first: int, last: int) -> Stretch:
        """Images first to last - 1."""
        ...

    def names(self) -> Iterable[object]:
        """What tells these images from others, as JSON values."""
        ...

    def images(self) -> list[Image]:
        """All of them, in order. Raises DataError or OSError: the place cannot be read."""
        ...


@dataclass(frozen=True)
class Files:
    """Image files.

    paths: or addresses. sizes: in bytes, -1 where there was no such file. ids: None: the paths. labels: class numbers,
    None: -1. parts: numbers that the images carry. zeros: as in `Image`.
    """

    paths: tuple[str, ...]
    sizes: tuple[int, ...]
    ids: tuple[str, ...] | None = None
    labels: tuple[int, ...] | None = None
    parts: tuple[int, ...] | None = None
    zeros: bool = False

    def __len__(self) -> int:
        return len(self.paths)

    def cut(self, first: int, last: int) -> Files:
        rows = slice(first, last)
        kept = {name: value and value[rows] for name in ("ids", "labels", "parts") for value in [getattr(self, name)]}
        return replace(self, paths=self.paths[rows], sizes=self.sizes[rows], **kept)

    def names(self) -> Iterable[object]:
        labels = self.labels or (-1,) * len(self)
        return map(list, zip(self.ids or self.paths, self.sizes, labels, strict=True))

    def images(self) -> list[Image]:
        n = len(self)
        fields = (self.paths, self.sizes, self.ids or self.paths, self.labels or (-1,) * n, self.parts or (None,) * n)
        return [
            Image(name, label, partial(_whole, path) if size or self.zeros else bytes, part, size >= 0, self.zeros)
            for path, size, name, label, part in zip(*fields, strict=True)
        ]


@runtime_checkable
class Batches(Protocol):
    """Images in memory or on disk, or what a frozen backbone gives of them."""

    def batch(self, rows: Int64[Tensor, " rows"]) -> UInt8[Tensor, "rows c h w"] | Float32[Tensor, "rows f"]:
        """Those of some rows."""
        ...


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows of a part of a set. source: what gives them; other fields as in `Files`. Another process is given their
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

    def images(self) -> list[Image]:
        raise TypeError("expected images to be decoded, these are")

    def __reduce__(self) -> tuple[Any, ...]:
        held = _Held(self.source.batch(self.rows))
        return Rows, (held, torch.arange(len(self)), self.ids, self.labels, self.parts)


@dataclass(frozen=True, eq=False)
class _Held:
    values: Tensor

    def batch(self, rows: Tensor) -> Tensor:
        return self.values[rows]


@dataclass(frozen=True)
class ParquetRows:
    """Rows first to last - 1 of a Parquet file. column: of the images. label: the column of their labels, if any."""

    file: str
    size: int
    column: str
    label: str | None
    first: int
    last: int

    def __len__(self) -> int:
        return self.last - self.first

    def cut(self, first: int, last: int) -> ParquetRows:
        return replace(self, first=self.first + first, last=min(self.last, self.first + last))

    def names(self) -> Iterable[object]:
        return [[self.file, self.size, self.column, self.label, self.first, self.last]]

    def images(self) -> list[Image]:
        found: list[Image] = []
        held = 0
        with _opened(self.file) as stream, _parquet(self.file):
            for row, (value, label) in enumerate(self._rows(pq.ParquetFile(stream)), self.first):
                held += value.nbytes
                _expect_held(self.file, held)
                found.append(Image(f"{self.file}/{row}", _known(label[0].as_py()), partial(_cell, value[0])))
        if len(found) != len(self):
            raise DataError(f"{self.file}: expected {self.last:,} rows, as it had before, got fewer")
        return found

    def _rows(self, table: pq.ParquetFile) -> Iterator[tuple[pa.Array, pa.Array]]:
        """The image and the label of each row, one at a time: a few bytes can stand for gigabytes of equal rows."""
        columns, start = [self.column, *([self.label] if self.label else [])], 0
        for group in range(table.num_row_groups):
            end = start + table.metadata.row_group(group).num_rows
            if start < self.last and self.first < end:
                rows = table.iter_batches(1, row_groups=[group], columns=columns)
                for one in islice(rows, max(0, self.first - start), self.last - start):
                    yield one.column(self.column), one.column(self.label) if self.label else pa.nulls(1)
            start = end


@dataclass(frozen=True)
class Member:
    """An image of a tar file: where its bytes are, and those of its label, if it has one."""

    name: str
    offset: int
    size: int
    label: str = ""  # suffix of its label's file
    label_offset: int = 0
    label_size: int = 0


@dataclass(frozen=True)
class TarMembers:
    """Images of a tar file."""

    file: str
    size: int
    members: tuple[Member, ...]

    def __len__(self) -> int:
        return len(self.members)

    def cut(self, first: int, last: int) -> TarMembers:
        return replace(self, members=self.members[first:last])

    def names(self) -> Iterable[object]:
        return [[self.file, self.size], *([m.name, m.offset, m.size] for m in self.members)]

    def images(self) -> list[Image]:
        places = [(m.offset, m.size) for m in self.members if m.size <= LARGEST_FILE]
        places += [(m.label_offset, min(m.label_size, LONGEST)) for m in self.members if m.label]
        _expect_held(self.file, sum(size for _, size in places))
        data = _at_places(self.file, sorted(places))
        found: list[Image] = []
        for m in self.members:
            name = f"{self.file}/{m.name}"
            label = _label(m.label, data[m.label_offset]) if m.label else None
            found.append(Image(name, label, partial(_of_member, name, data.get(m.offset), m.size)))
        return found


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


def is_local(address: str) -> bool:
    """Whether this is a path of this machine's file system, not an address."""
    return "://" not in address


def are_sources(addresses: Sequence[str]) -> bool:
    """Whether some of these are more than local image files and folders of them: shards, or addresses."""
    return any(not is_local(a) or a.lower().endswith((*SHARDS, *PACKED)) or _shards_in(a) for a in addresses)


def source(
    addresses: Sequence[str],
    *,
    column: str | None = None,
    mapped: Callable[[Callable[[str], Stretch], list[str]], Iterable[Stretch]] | None = None,
) -> tuple[list[Stretch], list[str]]:
    """The images at paths and addresses: files, folders (image files at any depth, else shards), shards, patterns (*).

    Args:
        addresses: local paths, or addresses that fsspec reads.
        column: of the images, in Parquet files that have several columns of bytes.
        mapped: applies a function to the name of each shard, in order; default: in threads.

    Returns:
        stretches, in order; and notes on what is left out.

    Raises:
        DataError: nothing there, a shard that cannot be read, or no images in all of them.
    """
    notes: list[str] = []
    found = [entry for address in addresses for entry in _expanded(address, notes)]
    if packed := [name for name, _ in found if name.lower().endswith(PACKED)]:
        raise DataError(f"{packed[0]}: expected an uncompressed tar file, in which one image can be read by itself")
    if found and all(size < 0 for _, size in found):
        raise DataError(
            f"{addresses[0]}: expected image files, folders of them, Parquet files or tar shards, got neither"
        )
    index = partial(stretch_of, column=column)
    shards = [name for name, _ in found if _is_shard(name)]
    looked = iter(_in_threads(index, shards) if mapped is None else mapped(index, shards))
    made: list[Stretch] = []
    for shard, entries in groupby(found, key=lambda entry: _is_shard(entry[0])):
        if shard:
            made += [next(looked) for _ in entries]
        else:
            names, sizes = zip(*entries, strict=True)
            made.append(Files(names, sizes))
    if not any(map(len, made)):
        raise DataError(f"expected images, got none in {listed([str(a) for a in addresses], 3)}")
    return [one for one in made if len(one)], notes


def stretch_of(file: str, *, column: str | None = None) -> Stretch:
    """The images of a Parquet file or a tar shard: of the one its footer is read, of the other its headers.

    Raises:
        DataError: it cannot be read, or has no images.
    """
    return _parquet_rows(file, column) if file.lower().endswith(".parquet") else _tar_members(file)


def blocks(stretches: Sequence[Stretch], images: int) -> list[tuple[Stretch, ...]]:
    """The list cut into blocks of so many images, the last of fewer."""
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
    strict: bool = False,
) -> Decoded:
    """The images of a block, decoded as the training reads them (`htaf.data.image_reading.decode`).

    Args:
        channels, size: of the network.
        classes: a label is a number or name of one of these; others become -1 and are counted.
        part: the number of images that carry none.
        threads: that decode.
        strict: raise for an image that cannot be decoded; else it is left out.

    Raises:
        DataError: with `strict`, such an image; a file that was there when the list was made and cannot be read here,
            and a shard that cannot.
    """
    parts = [_decoded(one, channels, size, classes, part, threads, strict) for one in block]
    return Decoded(
        tuple(name for part in parts for name in part.ids),
        np.concatenate([part.labels for part in parts]),
        np.concatenate([part.parts for part in parts]),
        parts[0].pixels if len(parts) == 1 else np.concatenate([part.pixels for part in parts]),
        tuple(problem for part in parts for problem in part.problems),
        tuple(note for part in parts for note in part.notes),
        sum(part.unknown for part in parts),
    )


def _decoded(
    stretch: Stretch,
    channels: int,
    size: tuple[int, int],
    classes: Sequence[str],
    number: int,
    threads: int,
    strict: bool,
) -> Decoded:
    if isinstance(stretch, Rows):
        labels, parts = np.array(stretch.labels, np.int32), np.array(stretch.parts, np.uint8)
        return Decoded(stretch.ids, labels, parts, stretch.source.batch(stretch.rows).numpy())
    images = stretch.images()
    read, problems = read_each(
        [image.fetch for image in images], channels, size, [image.id for image in images], threads
    )
    pixels = read.numpy()
    for image, error in zip(images, problems, strict=True):
        cause = error and error.__cause__  # of the system: PIL's own have no number
        if image.sure and isinstance(cause, OSError) and (isinstance(cause, GONE) or cause.errno is not None):
            raise DataError(
                f"{image.id} was there when the images were listed and cannot be read here "
                f"({first_line(cause)}): images must lie where every node sees them"
            ) from cause
        if strict and error is not None:
            raise error
    left_out = [problem is not None and not image.zeros for problem, image in zip(problems, images, strict=True)]
    kept = [row for row, out in enumerate(left_out) if not out]
    numbers, unknown = _numbers([images[row].label for row in kept], classes)
    return Decoded(
        tuple(images[row].id for row in kept),
        numbers,
        np.array([number if (part := images[row].part) is None else part for row in kept], np.uint8),
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
    """Class numbers, -1 for none; and how many labels are none of the classes."""
    names = {name: number for number, name in enumerate(classes)}

    def number(label: Label) -> int | None:
        if isinstance(label, str) and label in names:
            return names[label]
        try:
            value = -1 if label is None else int(label)
        except ValueError:
            return None
        return value if -1 <= value < len(classes) else None

    found = [number(label) for label in labels]
    return np.array([-1 if one is None else one for one in found], np.int32), found.count(None)


def _is_shard(name: str) -> bool:
    return name.lower().endswith(SHARDS)


def _in_threads(function: Callable[[str], Stretch], names: list[str]) -> list[Stretch]:
    with ThreadPoolExecutor(min(16, len(names) or 1)) as pool:
        return list(pool.map(function, names))


def _shards_in(folder: str) -> bool:
    """Whether a local folder holds shards and no image files, directly in it."""
    try:
        names = [entry.name.lower() for entry in os.scandir(folder)]
    except OSError:
        return False
    return any(n.endswith(SHARDS) for n in names) and not any(n.endswith(SUFFIXES) for n in names)


def _expanded(address: str, notes: list[str]) -> list[tuple[str, int]]:
    """Names of image files and shards, with their sizes in bytes."""
    if not is_local(address):
        return _expanded_away(address, notes)
    path = Path(address)
    if path.name.lower().endswith((*SHARDS, *PACKED)) and not path.is_dir():
        if not path.exists():
            raise DataError(f"{path}: expected a file, got none")
        return [(address, path.stat().st_size)]
    if not path.exists():
        return [(address, -1)]
    if _shards_in(address):
        return [(str(p), p.stat().st_size) for p in sorted(path.iterdir()) if p.name.lower().endswith(SHARDS)]
    found, left_out = image_files([path])
    notes += left_out
    return [(str(file), _size(file)) for file in found]


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError:
        return -1


def _expanded_away(address: str, notes: list[str]) -> list[tuple[str, int]]:
    fs, path = _file_system(address)
    try:
        if "*" in path:
            listing = fs.glob(path, detail=True)
        elif fs.isfile(path):
            listing = {path: fs.info(path)}
        else:
            listing = fs.find(path, detail=True)
    except Exception as error:  # each file system raises its own
        raise DataError(f"{address} cannot be read: {first_line(error)}") from error
    known = (*SUFFIXES, *SHARDS, *PACKED)
    files = {name: info for name, info in sorted(listing.items()) if info.get("type") != "directory"}
    found = [(fs.unstrip_protocol(n), int(i.get("size") or 0)) for n, i in files.items() if n.lower().endswith(known)]
    if not found:
        raise DataError(f"{address}: expected image files, Parquet files or tar shards, got none{advice([*files])}")
    if len(found) < len(files):
        notes.append(f"{len(files) - len(found):,} files at {address} are left out, by their endings{advice([*files])}")
    return found


def _file_system(address: str) -> tuple[Any, str]:
    """The file system of an address, and the path in it."""
    from fsspec.core import url_to_fs

    try:
        return url_to_fs(address)
    except (ImportError, ValueError) as error:  # s3fs is not installed; no such protocol
        raise DataError(f"{address} cannot be read: {first_line(error)}") from None
    except Exception as error:  # each file system raises its own
        raise DataError(f"{address} cannot be read: {first_line(error)}") from error


@contextmanager
def _opened(file: str):
    """A file for reading. Raises DataError: it cannot be opened."""
    stream: BinaryIO
    try:
        if is_local(file):
            stream = regular(Path(file)).open("rb")
        else:
            fs, path = _file_system(file)
            stream = fs.open(path, "rb")
    except DataError:
        raise
    except Exception as error:  # each file system raises its own
        why = (error.strerror if isinstance(error, OSError) else None) or first_line(error)
        raise DataError(f"{file} cannot be read: {why}") from error
    with stream:
        yield stream


def _whole(path: str) -> bytes | Path:
    if is_local(path):
        return Path(path)
    with _opened(path) as stream:
        return stream.read(LARGEST_FILE + 1)  # one more: `decode` says that it is too large


def _at_places(file: str, places: Sequence[tuple[int, int]]) -> dict[int, bytes]:
    """What a file holds at these places, (offset, bytes) in order, by offset; what lies between is passed over."""
    found: dict[int, bytes] = {}
    first = 0
    with _opened(file) as stream:
        for last in range(1, len(places) + 1):
            (begin, _), end = places[first], sum(places[last - 1])
            if last < len(places) and places[last][0] - end <= NEAR and sum(places[last]) - begin <= SPAN:
                continue
            try:
                stream.seek(begin)
                data = stream.read(end - begin)
            except Exception as error:  # as above
                raise DataError(f"{file} cannot be read: {first_line(error)}") from error
            found |= {offset: data[offset - begin : offset - begin + size] for offset, size in places[first:last]}
            first = last
    return found


def _expect_held(file: str, held: int) -> None:
    """Raises DataError where the images of one block are more than it may hold."""
    if held > HELD:
        raise DataError(
            f"{file}: expected at most {HELD / 1e9:.1f} GB of images in one block, got more: a smaller number of "
            "images in a part (--part-images) makes blocks smaller"
        )


@contextmanager
def _parquet(file: str):
    try:
        yield
    except DataError:
        raise
    except (pa.ArrowException, OSError, ValueError, KeyError) as error:
        raise DataError(f"{file}: expected a Parquet file, got a damaged one ({first_line(error)})") from error


def _parquet_rows(file: str, column: str | None) -> ParquetRows:
    with _opened(file) as stream, _parquet(file):
        stream.seek(0, os.SEEK_END)
        size = stream.tell()
        found = pq.ParquetFile(stream)
        schema, rows = found.schema_arrow, found.metadata.num_rows
    able = [field.name for field in schema if _holds_bytes(field.type)]
    if column is None:
        chosen = able if len(able) == 1 else [name for name in able if name == "image"]
        if not chosen:
            came = f"the columns of bytes {listed(able, 5)}: `column` chooses one" if able else "none"
            raise DataError(f"{file}: expected one column of images as bytes, got {came}")
        column = chosen[0]
    elif column not in able:
        raise DataError(f"{file}: expected a column {column!r} of bytes, got the columns {listed(schema.names, 10)}")
    label = next((name for name in LABELS if name in schema.names and _holds_labels(schema.field(name).type)), None)
    return ParquetRows(file, size, column, label, 0, rows)


def _holds_bytes(kind: pa.DataType) -> bool:
    if pa.types.is_struct(kind):
        return any(kind.field(i).name == "bytes" and _holds_bytes(kind.field(i).type) for i in range(kind.num_fields))
    return pa.types.is_binary(kind) or pa.types.is_large_binary(kind)


def _holds_labels(kind: pa.DataType) -> bool:
    return pa.types.is_integer(kind) or pa.types.is_string(kind) or pa.types.is_large_string(kind)


def _cell(value: Any) -> bytes:
    """The bytes of a cell; none for null, which is an empty file to who decodes it."""
    content = value.as_py()
    return (content.get("bytes") if isinstance(content, dict) else content) or b""


def _known(label: Any) -> Label:
    return label if isinstance(label, int | str) and not isinstance(label, bool) else None


def _tar_members(file: str) -> TarMembers:
    """The images of a tar file, from its headers: data are passed over by seeking."""
    images: dict[str, tarfile.TarInfo] = {}  # by basename
    labels: dict[str, tarfile.TarInfo] = {}
    with _opened(file) as stream:
        try:
            stream.seek(0, os.SEEK_END)
            size = stream.tell()
            stream.seek(0)
            with tarfile.open(fileobj=stream, mode="r:") as tar:
                for member in tar:
                    tar.members = []  # pyright: ignore[reportAttributeAccessIssue]  # else it keeps all
                    if not member.isreg() or member.sparse is not None:
                        continue
                    base, suffix = _split(member.name)
                    if suffix in SUFFIXES:
                        if base in images:
                            raise DataError(
                                f"{file}: expected one image for each basename, got {images[base].name} and "
                                f"{member.name}"
                            )
                        images[base] = member
                    elif suffix == ".cls" or (suffix == ".json" and base not in labels):
                        labels[base] = member
        except DataError:
            raise
        except (tarfile.TarError, OSError, EOFError, ValueError) as error:
            raise DataError(f"{file}: expected a tar file, got a damaged one ({first_line(error)})") from error
    members: list[Member] = []
    for base, info in images.items():
        member = Member(info.name, info.offset_data, info.size)
        if (label := labels.get(base)) is not None:
            suffix = _split(label.name)[1]
            member = replace(member, label=suffix, label_offset=label.offset_data, label_size=label.size)
        members.append(member)
    return TarMembers(file, size, tuple(members))


def _split(name: str) -> tuple[str, str]:
    """Basename and suffix as WebDataset has them: the name is split at the first dot of its last step."""
    path = PurePosixPath(name)
    first, _, rest = path.name.partition(".")
    return str(path.with_name(first)) if first else name, f".{rest.lower()}"


def _of_member(name: str, content: bytes | None, size: int) -> bytes:
    """The content of a member. Raises DataError: it was too large to be read, or is cut off."""
    if content is None:
        raise DataError(f"{name}: a file of {size / 1e9:,.1f} GB, more than {LARGEST_FILE / 1e9:,.1f}")
    if len(content) < size:
        raise DataError(f"{name}: expected {size:,} bytes, got {len(content):,}: the tar file is cut off")
    return content


def _label(suffix: str, content: bytes) -> Label:
    """The class number or name in NAME.cls, or in an entry `label` or `cls` of NAME.json; None where there is none."""
    text = content.decode("utf-8", "replace").strip()
    if suffix == ".cls":
        return text or None
    try:
        found = parse_json(text)
    except ValueError:
        return None
    return next((_known(found[name]) for name in LABELS if name in found), None) if isinstance(found, dict) else None
