"""Labelled images, in memory or as files; one interface, final classes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from jaxtyping import Int64, UInt8
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d

from htaf._files import file_sha256
from htaf.data.image_reading import SMALL, read_files, threads
from htaf.data.reading import listed

MIDDLE = 4096  # bytes of a file that are read before all of it is
CHUNK = 4096  # images that are made small at once
SAME = 0.995  # cosine of two small images, less their channels' means and the mean image: they look the same
FLAT = 2.0  # deviation of the pixels of a small image; of less nothing is to be seen
NEAREST, AXES = 8, 12  # images that are compared with each one, by so many principal axes


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

    def thumbnails(self) -> UInt8[Tensor, "n c h w"] | None:
        """As `FilePart.thumbnails`."""
        found = [adaptive_avg_pool2d(some.float(), SMALL).round().byte() for some in self.pixels.split(CHUNK)]
        return torch.cat(found) if found else None

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
        small: the whole images at `SMALL` x `SMALL` pixels, RGB; None where they were not decoded.
    """

    folder: Path
    names: tuple[str, ...]
    labels: Int64[Tensor, " n"]
    size: tuple[int, int]
    channels: int = 3
    small: UInt8[Tensor, "n c h w"] | None = None

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

    def thumbnails(self) -> UInt8[Tensor, "n c h w"] | None:
        """Images at `SMALL` x `SMALL` pixels, by which those that look the same are found."""
        return self.small

    def telling(self) -> tuple[Callable[[int], Hashable], ...]:
        """What tells rows apart: where all of it is equal, so are their files. Each is asked of rows alone that those
        before it leave together, so that few files are read."""

        def size(row: int) -> int:
            return (self.folder / self.names[row]).stat().st_size

        def middle(row: int) -> bytes:
            with (self.folder / self.names[row]).open("rb") as file:
                file.seek(max(0, (size(row) - MIDDLE) // 2))
                return file.read(MIDDLE)

        def content(row: int) -> str:
            return file_sha256(self.folder / self.names[row])

        return size, middle, content


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

    @cached_property
    def look_alikes(self) -> tuple[str, ...]:
        """Notes on images that look the same and are not equal, as a photo that was saved again; found when asked."""
        small = [part.thumbnails() for part in (self.train, self.test)]
        if small[0] is None or small[1] is None or small[0].shape[1] != small[1].shape[1]:
            return ()
        copies = {row: group[0] for group in _equal(self.train, self.test) for row in group[1:]}
        pixels = torch.cat([small[0], small[1]])
        rows = np.array([row for row in range(len(pixels)) if row not in copies], np.int64)  # copies are told already
        groups = _joined(rows[_looking_alike(pixels[rows])].tolist(), len(pixels))
        of = {row: number for number, group in enumerate(groups) for row in group}
        for row, first in copies.items():
            if first in of:
                groups[of[first]].append(row)
        return tuple(_told(self.classes, self.train, self.test, [sorted(group) for group in groups], "~", copies))


def as_images(name: str, classes: tuple[str, ...], train: Part, test: Part, notes: list[str]) -> Images:
    """The set of these parts, with its fingerprint, and notes on equal images where they mislead."""
    content = json.dumps([*classes, train.fingerprint(), test.fingerprint()])
    found = hashlib.sha256(content.encode()).hexdigest()
    return Images(name, classes, train, test, found, (*notes, *_told(classes, train, test, _equal(train, test), "=")))


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


def _looking_alike(small: UInt8[Tensor, "n c h w"]) -> Int64[np.ndarray, "pairs 2"]:
    """Pairs of images that look the same, each row with some of those nearest to it."""
    from scipy.spatial import KDTree

    values = small.numpy().reshape(*small.shape[:2], -1).astype(np.float32)
    values = (values - values.mean(2, keepdims=True)).reshape(len(values), -1)
    plain = values.std(1) < FLAT
    values -= values.mean(0)  # of images of one scene only what differs counts
    rows = np.flatnonzero(~plain & (values.std(1) >= FLAT))
    if len(rows) < 2:
        return np.empty((0, 2), np.int64)
    unit = values[rows] / np.linalg.norm(values[rows], axis=1, keepdims=True)
    places = unit @ np.linalg.eigh(unit.T @ unit)[1][:, -AXES:]  # no two are farther apart there than they are
    most = min(NEAREST + 1, len(rows))
    near = KDTree(places).query(places, most, distance_upper_bound=(2 - 2 * SAME) ** 0.5)[1]  # a missing one: len(rows)
    own, other = np.repeat(np.arange(len(rows)), most), near.ravel()
    kept = (own != other) & (other < len(rows))
    first, second = np.minimum(own, other)[kept], np.maximum(own, other)[kept]
    alike = np.concatenate(
        [
            np.einsum("ij,ij->i", unit[first[i : i + CHUNK]], unit[second[i : i + CHUNK]])
            for i in range(0, len(first), CHUNK)
        ]
        or [np.empty(0)]
    )
    return rows[np.stack([first, second], 1)[alike > SAME]]


def _joined(pairs: Sequence[Sequence[int]], total: int) -> list[list[int]]:
    """Groups of rows that pairs join, each ascending."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    if not pairs:
        return []
    first, second = np.array(pairs).T
    of = connected_components(coo_array((np.ones(len(first)), (first, second)), (total, total)), directed=False)[1]
    groups: dict[int, list[int]] = {}
    for row in sorted({*first.tolist(), *second.tolist()}):
        groups.setdefault(int(of[row]), []).append(row)
    return [*groups.values()]


def _labels(train: Part, test: Part) -> list[int]:
    return [*train.labels.tolist(), *test.labels.tolist()]


def _told(
    classes: Sequence[str],
    train: Part,
    test: Part,
    groups: Sequence[Sequence[int]],
    sign: Literal["=", "~"],
    copies: Mapping[int, int] | None = None,
) -> list[str]:
    """Notes on test images that the training part has too, on images that repeat others within it, and on images of
    several classes; = of equal images, ~ of those that look the same.

    Args:
        copies: rows that are equal to another one, which comes before: what = tells of them is not told again.
    """
    copies = copies or {}
    border, labels = len(train), _labels(train, test)
    equal = sign == "="

    def named(row: int) -> str:
        part, place = (train, row) if row < border else (test, row - border)
        return f"{'train' if row < border else 'test'}/{place}" if part.names is None else part.names[place]

    def shown(pairs: Sequence[tuple[int, int]]) -> str:
        return listed([f"{named(row)} {sign} {named(first)}" for row, first in pairs], 3)

    both = [
        (row, group[0])
        for group in groups
        for row in group
        if row >= border > group[0] and copies.get(row, row) >= border
    ]
    within = [(row, group[0]) for group in groups for row in group[1:] if row < border and row not in copies]
    mixed = [group for group in groups if len({labels[row] for row in group}) > 1]
    notes: list[str] = []
    if both:
        are = "are in the training part too" if equal else "look the same as one of the training part"
        notes.append(
            f"{len(both):,} of {len(test):,} test images {are}, so the figures of the test part "
            f"{'are' if equal else 'may be'} too good: "
            f"{shown(both)}"
        )
    if within:
        are = "are equal to" if equal else "look the same as"
        notes.append(
            f"{len(within):,} of {border:,} training images {are} one before, and validation images are drawn from "
            f"them all: {shown(within)}"
        )
    if mixed:
        twins = [(group[0], next(row for row in group if labels[row] != labels[group[0]])) for group in mixed]
        each = [f" {sign} ".join(f"{named(row)} ({classes[labels[row]]})" for row in pair) for pair in twins]
        are = "are equal to one" if equal else "look the same as one"
        notes.append(f"{sum(map(len, mixed)):,} images {are} of another class: {listed(each, 3)}")
    return notes
