"""Labelled images, in memory or as files; one interface, final classes."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

from jaxtyping import Int64, UInt8
from torch import Tensor

from htaf.data.image_reading import read_files


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


def as_images(name: str, classes: tuple[str, ...], train: Part, test: Part, notes: list[str]) -> Images:
    """The set of these parts, with its fingerprint."""
    content = json.dumps([*classes, train.fingerprint(), test.fingerprint()])
    return Images(name, classes, train, test, hashlib.sha256(content.encode()).hexdigest(), tuple(notes))
