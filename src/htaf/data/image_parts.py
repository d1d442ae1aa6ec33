"""Labelled images, in memory or as files; one interface, final classes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from jaxtyping import Int64, UInt8
from torch import Tensor

from htaf._ground.files import file_sha256
from htaf.data.image_reading import read_files, threads
from htaf.data.reading import listed


@dataclass(frozen=True, eq=False)
class MemoryPart:
    """Images in memory.

    Attributes:
        pixels: uint8 [n, C, H, W].
        labels: int64 [n], class numbers.
        names: of the files that they were read from, relative to the set's folder; None where there are none.
    """

    pixels: UInt8[Tensor, "n c h w"]
    labels: Int64[Tensor, " n"]
    names: tuple[str, ...] | None = None

    @property
    def channels(self) -> int:
        """1 or 3."""
        return self.pixels.shape[1]

    @property
    def size(self) -> tuple[int, int]:
        """(H, W) in pixels."""
        return self.pixels.shape[2], self.pixels.shape[3]

    def __len__(self) -> int:
        return len(self.labels)

    def batch(self, rows: Int64[Tensor, " b"]) -> UInt8[Tensor, "b c h w"]:
        """The images of these rows, as a copy."""
        return self.pixels.index_select(0, rows)

    def fingerprint(self) -> str:
        """SHA-256 of shape, pixels and labels."""
        digest = hashlib.sha256(json.dumps(["memory", *self.pixels.shape]).encode())
        digest.update(self.pixels.contiguous().numpy().data)
        digest.update(self.labels.numpy().astype("<i8").tobytes())
        return digest.hexdigest()

    def telling(self) -> tuple[Callable[[int], Hashable], ...]:
        """As `FilePart.telling`: of a row its pixels."""
        pixels = self.pixels.contiguous().numpy()
        return (lambda row: hashlib.sha256(pixels[row]).digest(),)


@dataclass(frozen=True, eq=False)
class FilePart:
    """Images in files, decoded when a batch asks for them; see `htaf.data.image_reading.decode`.

    Attributes:
        folder: what the names are relative to.
        names: one file each, with forward slashes.
        labels: int64 [n], class numbers.
        size: (H, W) in pixels, to which each image is resized and cropped.
        channels: 1 or 3.
    """

    folder: Path
    names: tuple[str, ...]
    labels: Int64[Tensor, " n"]
    size: tuple[int, int]
    channels: int = 3

    def __len__(self) -> int:
        return len(self.labels)

    def batch(self, rows: Int64[Tensor, " b"]) -> UInt8[Tensor, "b c h w"]:
        """The images of these rows, decoded in as many threads as there are cores (one in a loader's worker).

        A file that no longer decodes, though it did at load, becomes an all-zero image with a warning, so that it
        does not end a run hours in.

        Raises:
            DataError: a file is gone or the system refuses to read it.
        """
        return read_files([self.folder / self.names[row] for row in rows.tolist()], self.channels, self.size)

    def in_memory(self) -> MemoryPart:
        """All images decoded once, n * C * H * W bytes; batches of it equal those of this part.

        Raises:
            DataError: a file is gone or damaged.
        """
        paths = [self.folder / name for name in self.names]
        return MemoryPart(read_files(paths, self.channels, self.size, strict=True), self.labels, self.names)

    def fingerprint(self) -> str:
        """SHA-256 of relative names, sizes in bytes and labels, and of the size that images are brought to."""
        digest = hashlib.sha256(json.dumps(["files", self.channels, *self.size]).encode())
        for name, label in zip(self.names, self.labels.tolist(), strict=True):
            entry = [name, (self.folder / name).stat().st_size, label]
            digest.update(json.dumps(entry).encode())
        return digest.hexdigest()

    def telling(self) -> tuple[Callable[[int], Hashable], ...]:
        """What tells rows apart: where all of it is equal, so are their files. Each is asked of rows alone that those
        before it leave together, so that few files are read."""

        def size(row: int) -> int:
            return (self.folder / self.names[row]).stat().st_size

        def content(row: int) -> str:
            return file_sha256(self.folder / self.names[row])

        return size, content


Part = MemoryPart | FilePart


@dataclass(frozen=True, eq=False)
class Images:
    """A set of labelled images in two parts; validation images are taken from `train` by `htaf.data.images.split`.

    Attributes:
        name: the set's name or the folder's.
        classes: class names in the order of the labels.
        train: the training part.
        test: the test part.
        fingerprint: SHA-256 of classes and both parts, equal on every machine.
        notes: everything that was handled, one line each.
    """

    name: str
    classes: tuple[str, ...]
    train: Part
    test: Part
    fingerprint: str
    notes: tuple[str, ...]

    def __repr__(self) -> str:
        images, shape = f"{len(self.train):,} training and {len(self.test):,} test images", self.train.size
        size = " x ".join(map(str, (self.train.channels, *shape)))
        return f"Images({self.name!r}: {len(self.classes):,} classes, {images}, {size})"


def as_images(name: str, classes: tuple[str, ...], train: Part, test: Part, notes: list[str]) -> Images:
    """The set of these parts, with its fingerprint, and notes on equal images where they mislead."""
    content = json.dumps([*classes, train.fingerprint(), test.fingerprint()])
    found = hashlib.sha256(content.encode()).hexdigest()
    return Images(name, classes, train, test, found, (*notes, *_told(classes, train, test)))


def _equal(train: Part, test: Part) -> list[Sequence[int]]:
    """Groups of equal images: rows of the training part, then those of the test part."""
    if type(train) is not type(test):  # pixels and files cannot be compared
        return []
    border, total = len(train), len(train) + len(test)
    groups: list[Sequence[int]] = [range(total)]
    for of_train, of_test in zip(train.telling(), test.telling(), strict=True):
        asked = [row for group in groups for row in group]
        with ThreadPoolExecutor(threads()) as pool:
            ask = map if isinstance(train, MemoryPart) else pool.map  # threads wait for files
            told = ask(lambda row: of_train(row) if row < border else of_test(row - border), asked)  # noqa: B023
            apart: dict[tuple[int, Hashable], list[int]] = {}
            for number, group in enumerate(groups):
                for row in group:
                    apart.setdefault((number, next(told)), []).append(row)
        groups = [group for group in apart.values() if len(group) > 1]
    return groups


def _told(classes: Sequence[str], train: Part, test: Part) -> list[str]:
    """Notes on test images that the training part has too, on images that repeat others within it, and on equal images
    of several classes."""
    groups, border = _equal(train, test), len(train)
    labels = [*train.labels.tolist(), *test.labels.tolist()]

    def named(row: int) -> str:
        part, place = (train, row) if row < border else (test, row - border)
        return f"{'train' if row < border else 'test'}/{place}" if part.names is None else part.names[place]

    def shown(pairs: Sequence[tuple[int, int]]) -> str:
        return listed([f"{named(row)} = {named(first)}" for row, first in pairs], 3)

    both = [(row, group[0]) for group in groups for row in group if row >= border > group[0]]
    within = [(row, group[0]) for group in groups for row in group[1:] if row < border]
    mixed = [group for group in groups if len({labels[row] for row in group}) > 1]
    notes: list[str] = []
    if both:
        notes.append(
            f"{len(both):,} of {len(test):,} test images are in the training part too, so the figures of the test part "
            f"are too good: {shown(both)}"
        )
    if within:
        notes.append(
            f"{len(within):,} of {border:,} training images are equal to one before, and validation images are drawn "
            f"from them all: {shown(within)}"
        )
    if mixed:
        twins = [(group[0], next(row for row in group if labels[row] != labels[group[0]])) for group in mixed]
        each = [" = ".join(f"{named(row)} ({classes[labels[row]]})" for row in pair) for pair in twins]
        notes.append(f"{sum(map(len, mixed)):,} images are equal to one of another class: {listed(each, 3)}")
    return notes
