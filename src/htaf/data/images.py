"""Labelled images, in memory or as files, their splits, what makes them network inputs, and batches of them."""

from __future__ import annotations

import hashlib
import json
import math
import warnings
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch
from jaxtyping import Bool, Float32, Int64, UInt8
from torch import Generator, Tensor
from torch.nn.functional import pad
from torch.utils.data import Dataset

from htaf._ground.errors import expect_seed
from htaf._ground.files import file_sha256
from htaf._ground.names import Augment
from htaf.data import stored
from htaf.data.image_reading import read_each, threads
from htaf.data.notes import lists
from htaf.data.order import random_order
from htaf.data.reading import DataError, listed

FORMAT, VERSION = "htaf-images", 1
KEYS = ("mean", "std", "size", "channels", "classes", "notes")
SAMPLE = 2000  # files decoded for mean and deviation
CHUNK = 1024  # images summed at a time
PAD_SHARE = 8  # "crop-flip" pads by size // 8: 4 pixels at 32
SHIFT_SHARE = 16  # "shift" moves by size // 16: 2 pixels at 32, 1 below


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
        """Return the images of these rows, as a copy."""
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

    def batch(self, rows: Int64[Tensor, " b"], *, strict: bool = False) -> UInt8[Tensor, "b c h w"]:
        """Return the images of these rows, decoded in as many threads as there are cores (one in a loader's worker).

        A file that no longer decodes, though it did at load, becomes an all-zero image with a warning, so that it
        does not end a run hours in; with `strict` it is an error.

        Raises:
            DataError: a file is gone or the system refuses to read it.
        """
        paths = [self.folder / self.names[row] for row in rows.tolist()]
        pixels, problems = read_each(paths, self.channels, self.size)
        for error in filter(None, problems):
            cause = error.__cause__
            if strict or (isinstance(cause, OSError) and cause.errno is not None):
                raise error
            warnings.warn(f"{error}; zeros stand in for it", stacklevel=2)
        return pixels

    def in_memory(self) -> MemoryPart:
        """Decode all images once, n * C * H * W bytes; batches of it equal those of this part.

        Raises:
            DataError: a file is gone or damaged.
        """
        return MemoryPart(self.batch(torch.arange(len(self)), strict=True), self.labels, self.names)

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

    def __repr__(self) -> str:
        images, shape = f"{len(self.train):,} training and {len(self.test):,} test images", self.train.size
        size = " x ".join(map(str, (self.train.channels, *shape)))
        return f"Images({self.name!r}: {len(self.classes):,} classes, {images}, {size})"


def as_images(name: str, classes: tuple[str, ...], train: Part, test: Part, notes: list[str]) -> Images:
    """Return the set of these parts, with its fingerprint, and notes on equal images where they mislead."""
    content = json.dumps([*classes, train.fingerprint(), test.fingerprint()])
    found = hashlib.sha256(content.encode()).hexdigest()
    return Images(name, classes, train, test, found, (*notes, *_about_equal_images(classes, train, test)))


def _keys(parts: Sequence[Part]) -> list[str]:
    """Return for each image what equal images share: a hash of its pixels, or of its file. Of files those of one size
    alone are read."""
    pixels = (one for part in parts if isinstance(part, MemoryPart) for one in part.pixels)
    hashes = [hashlib.sha256(one.contiguous().numpy().data).hexdigest() for one in pixels]
    files = [part.folder / name for part in parts if isinstance(part, FilePart) for name in part.names]
    sizes = [file.stat().st_size for file in files]
    alone = {size for size, times in Counter(sizes).items() if times == 1}
    with ThreadPoolExecutor(threads()) as pool:  # they wait for files
        return [*hashes, *pool.map(lambda file, size: str(file) if size in alone else file_sha256(file), files, sizes)]


def _about_equal_images(classes: Sequence[str], train: Part, test: Part) -> list[str]:
    """Notes on test images that the training part has too, and on equal images of several classes."""
    sides = (("train", train), ("test", test))
    names = [name for side, p in sides for name in p.names or [f"{side}/{row}" for row in range(len(p))]]
    labels, border = [*train.labels.tolist(), *test.labels.tolist()], len(train)
    groups: dict[str, list[int]] = {}
    for row, key in enumerate(_keys((train, test))):
        groups.setdefault(key, []).append(row)
    several = [group for group in groups.values() if len(group) > 1]
    both = [f"{names[row]} = {names[group[0]]}" for group in several for row in group if row >= border > group[0]]
    mixed = [group for group in several if len({labels[row] for row in group}) > 1]
    notes: list[str] = []
    if both:
        notes.append(
            f"{len(both):,} of {len(test):,} test images are in the training part too, so the figures of the test part "
            f"are too good: {listed(both, 3)}"
        )
    if mixed:
        twins = [(group[0], next(row for row in group if labels[row] != labels[group[0]])) for group in mixed]
        each = [" = ".join(f"{names[row]} ({classes[labels[row]]})" for row in pair) for pair in twins]
        notes.append(f"{sum(map(len, mixed)):,} images are equal to one of another class: {listed(each, 3)}")
    return notes


# ---- splits ----


@dataclass(frozen=True)
class Split:
    """Row numbers of `Images.train`, ascending and disjoint; int64 [rows of the part] each."""

    train: Int64[Tensor, " train"]
    validation: Int64[Tensor, " validation"]


def split(images: Images, *, train: int | float = 0, validation: int | float = 0.1, seed: int = 0) -> Split:
    """Training and validation rows of the training part, taken class by class; a function of the seed alone.

    A whole number is a count of images in all, spread evenly over the classes (the first classes get one more where
    it does not divide). A fraction below 1 is that share of each class, rounded, one image at least. Of one seed, a
    smaller training part lies within a larger one, with the same validation part.

    Args:
        images: the set.
        train: how many, or which share; 0 takes all that validation leaves.
        validation: how many, or which share; 0 takes none.
        seed: >= 0.
    Returns:
        the row numbers.
    Raises:
        DataError: a negative number, a fraction of 1 or more, or a class with too few images.
    """
    expect_seed(seed, DataError)
    classes = len(images.classes)
    of_class = shuffled_by_class(images.train.labels, classes, seed)
    kept: tuple[list[Tensor], list[Tensor]] = ([], [])
    for number, rows in enumerate(of_class):
        held = _share("validation", validation, number, classes, len(rows))
        wanted = _share("train", train, number, classes, len(rows)) if train else max(1, len(rows) - held)
        if held + wanted > len(rows):
            raise DataError(
                f"{images.name}: expected {wanted} training and {held} validation images of "
                f"{images.classes[number]!r}, got {len(rows)}: lower train_images or validation_images"
            )
        kept[0].append(rows[held : held + wanted])
        kept[1].append(rows[:held])
    return Split(*(torch.cat(part).sort().values for part in kept))


def _share(what: str, amount: int | float, number: int, classes: int, rows: int) -> int:
    """Return how many rows of class `number` belong to an amount."""
    fraction = isinstance(amount, float) and (amount == 1 or not amount.is_integer())
    if not (0 < amount < 1 if fraction else amount >= 0):
        raise DataError(f"{what}_images: expected a whole number >= 0 or a fraction below 1, got {amount}")
    if fraction:
        return max(1, round(amount * rows))
    if 0 < amount < classes:
        raise DataError(f"{what}_images: expected at least {classes}, one for each class, got {amount}")
    return int(amount) // classes + (number < int(amount) % classes)


def shuffled_by_class(labels: Int64[Tensor, " n"], classes: int, seed: int) -> list[Int64[Tensor, " _"]]:
    """Return the rows of each class in an order that depends on the seed alone, the same on every machine.

    Args:
        labels: int64 [n], 0 to classes - 1.
        classes: how many.
        seed: >= 0.
    Returns:
        int64 [rows of the class] for each class.
    """
    order = torch.from_numpy(random_order(len(labels), seed))
    ordered = labels[order]
    return [order[ordered == number] for number in range(classes)]


# ---- network inputs ----


@dataclass(frozen=True)
class ImagePreprocessor:
    """`(pixel / 255 - mean) / std`, channel by channel.

    Attributes:
        mean: of each channel, in [0, 1].
        std: of each channel, > 0, in the same unit.
        size: (H, W) in pixels.
        channels: 1 (grey) or 3 (RGB).
        classes: class names in the order of the labels.
        notes: what was handled when it was fitted.
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]
    size: tuple[int, int]
    channels: int
    classes: tuple[str, ...]
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.channels not in (1, 3):
            raise DataError(f"channels: expected 1 or 3, got {self.channels}")
        if not len(self.mean) == len(self.std) == self.channels:
            raise DataError(
                f"mean and std: expected {self.channels} values each, got {len(self.mean)} and {len(self.std)}"
            )
        if not all(math.isfinite(value) for value in self.mean) or not all(0 < value < math.inf for value in self.std):
            raise DataError(f"expected finite means and std > 0, got mean {self.mean}, std {self.std}")
        if len(self.size) != 2 or min(self.size) < 1:
            raise DataError(f"size: expected (H, W) of 1 or more, got {self.size}")

    def normalise(self, pixels: UInt8[Tensor, "b c h w"]) -> Float32[Tensor, "b c h w"]:
        """Turn raw images into network inputs, on the device and in the memory format of `pixels`.

        Args:
            pixels: uint8 [b, C, H, W].
        Returns:
            float32 [b, C, H, W].
        Raises:
            ValueError: another number of channels.
        """
        if pixels.shape[1] != self.channels:
            raise ValueError(f"expected {self.channels} channels, got {pixels.shape[1]}")
        scale = [1 / (255 * std) for std in self.std]
        shift = [-mean / std for mean, std in zip(self.mean, self.std, strict=True)]
        constants = torch.tensor([scale, shift], dtype=torch.float32, device=pixels.device).view(2, 1, -1, 1, 1)
        return pixels.to(torch.float32).mul_(constants[0]).add_(constants[1])

    def read(self, paths: Sequence[str | Path]) -> UInt8[Tensor, "b c h w"]:
        """Return the pixels of `read_each`; raises the DataError of the first file that cannot be read."""
        pixels, problems = self.read_each(paths)
        for problem in problems:
            if problem is not None:
                raise problem
        return pixels

    def read_each(self, paths: Sequence[str | Path | bytes]) -> tuple[UInt8[Tensor, "b c h w"], list[DataError | None]]:
        """Return image files of any kind and size, brought to colour and size as in training: uint8 [b, C, H, W], for
        `normalise`, with zeros for files that cannot be read, and for each file the error or None.

        Bytes are the content of a file, of a kind in `image_reading.FORMATS`; their error begins with "image: ".
        """
        files = [path if isinstance(path, bytes) else Path(path) for path in paths]
        return read_each(files, self.channels, self.size)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values; `from_json` restores the same bits."""
        return {"format": FORMAT, "version": VERSION} | {key: lists(getattr(self, key)) for key in KEYS}

    @classmethod
    def from_json(cls, data: Any) -> ImagePreprocessor:
        """Restore what `to_json` gave.

        Args:
            data: the dict, as it came from `json.load`.
        Raises:
            DataError: another format or version, a missing, unknown or impossible entry.
        """
        top = stored.of_format(data, "preprocessing", FORMAT, VERSION, KEYS)
        return stored.read(cls, {key: top[key] for key in KEYS}, "preprocessing")


def fit_preprocessor(images: Images, rows: Int64[Tensor, " rows"]) -> ImagePreprocessor:
    """Mean and standard deviation of each channel over the training rows.

    Exact for images in memory: sums of whole numbers. For files over 2,000 of the rows, drawn with a fixed seed.
    A channel without variation gets the deviation 1. Both cases are noted.

    Args:
        images: the set.
        rows: int64 [rows], row numbers of `images.train`.
    Returns:
        the fitted preprocessor.
    Raises:
        DataError: no rows.
    """
    if not len(rows):
        raise DataError(f"{images.name}: expected at least one training row, got none")
    part, notes = images.train, []
    if isinstance(part, FilePart) and len(rows) > SAMPLE:
        notes.append(f"mean and standard deviation from {SAMPLE:,} of {len(rows):,} training images, seeded")
        rows = rows[torch.from_numpy(random_order(len(rows), 0)[:SAMPLE])]
    sums = torch.zeros(2, part.channels, dtype=torch.int64)
    for chunk in rows.split(CHUNK):
        pixels = part.batch(chunk)
        sums[0] += pixels.sum(dim=(0, 2, 3), dtype=torch.int64)
        sums[1] += pixels.to(torch.int32).square_().sum(dim=(0, 2, 3), dtype=torch.int64)
    count = len(rows) * part.size[0] * part.size[1]
    mean, std = [], []
    for channel, (total, squares) in enumerate(zip(*sums.tolist(), strict=True)):
        spread = count * squares - total * total  # whole numbers of any size: nothing cancels
        mean.append(total / count / 255)
        std.append(math.sqrt(spread) / count / 255 if spread else 1.0)
        if not spread:
            notes.append(f"channel {channel + 1} has one value, {total // count}, in every pixel; its deviation is 1")
    return ImagePreprocessor(tuple(mean), tuple(std), part.size, part.channels, images.classes, tuple(notes))


# ---- batches ----


def augment(
    preset: Augment,
    images: UInt8[Tensor, "b c h w"],
    key: int,
    *,
    rows: Int64[Tensor, " b"] | None = None,
    epoch: int = 0,
) -> UInt8[Tensor, "b c h w"]:
    """Apply a preset, with every random draw a function of `key` (and of the number and size of the images).

    "none": nothing. "crop-flip": zero padding by size // 8, a random window of the original size, mirrored left to
    right with probability 1/2. "shift": moved by at most size // 16 (or 1), edges reflected. "shift-flip": this, and
    mirrored in every other epoch, one half of the images in the even ones and the other half in the odd ones (Jordan
    2024, arXiv:2404.00498). Each image has its own draws. The size is the shorter side.

    Args:
        preset: one of the names.
        images: uint8 [b, C, H, W].
        key: one for each batch, >= 0; the same key gives the same draws.
        rows: which image each one is, for "shift-flip"; None: counted from 0.
        epoch: how often the images were seen before, for "shift-flip".
    Returns:
        uint8 [b, C, H, W].
    Raises:
        ValueError: an unknown preset, or a negative key.
    """
    check_preset(preset)
    if key < 0:
        raise ValueError(f"key must be >= 0, got {key}")
    seed = np.random.SeedSequence(key).generate_state(1, np.uint64)  # keys that differ in one bit: unrelated draws
    generator = Generator("cpu").manual_seed(int(seed[0]) >> 1)
    if preset == "none" or not len(images):
        return images
    height, width = images.shape[2:]
    by_chance, shorter = preset == "crop-flip", min(height, width)
    margin = shorter // PAD_SHARE if by_chance else min(max(1, shorter // SHIFT_SHARE), shorter - 1)
    top, left = torch.randint(0, 2 * margin + 1, (2, len(images)), generator=generator, device="cpu")
    if by_chance:
        mirrored = torch.rand(len(images), generator=generator, device="cpu", dtype=torch.float64) < 0.5
    else:
        seen = torch.arange(len(images), device="cpu") if rows is None else rows
        turn = (seen.cpu() * 2654435761 >> 16) + epoch  # Knuth's multiplicative hash: halves of any order
        mirrored = (turn % 2 == 1) & (preset == "shift-flip")
    how, kind = ("constant", torch.uint8) if by_chance else ("reflect", torch.float32)  # whole numbers do not reflect
    padded = pad(images.to(kind), (margin,) * 4, mode=how).to(torch.uint8) if margin else images
    return crop(padded, (height, width), top, left, mirrored)


def check_preset(preset: str) -> None:
    """Raise ValueError for an unknown preset."""
    if preset not in get_args(Augment):
        raise ValueError(f"augment: expected one of {', '.join(get_args(Augment))}, got {preset!r}")


def crop(
    images: UInt8[Tensor, "b c h w"],
    size: tuple[int, int],
    top: Int64[Tensor, " b"],
    left: Int64[Tensor, " b"],
    flip: Bool[Tensor, " b"],
) -> UInt8[Tensor, "b c2 h2 w2"]:
    """Cut given windows of the images, mirrored where `flip` says so.

    Args:
        images: uint8 [b, C, H, W].
        size: height and width of a window.
        top, left: int64 [b], where each window begins.
        flip: bool [b].
    Returns:
        uint8 [b, C, *size].
    """
    count, channels = images.shape[:2]
    height, width = size
    columns = torch.arange(width, device=left.device)
    columns = torch.where(flip[:, None], width - 1 - columns, columns) + left[:, None]
    rows = torch.arange(height, device=top.device) + top[:, None]
    places = rows[:, :, None] * images.shape[3] + columns[:, None, :]
    index = places.view(count, 1, -1).expand(-1, channels, -1).to(images.device)
    return images.reshape(count, channels, -1).gather(2, index).view(count, channels, height, width)


@dataclass(frozen=True, eq=False)
class ImageDataset(Dataset[tuple[Tensor, Tensor]]):
    """Batches for a `DataLoader(dataset, batch_size=None, sampler=...)` whose sampler yields (rows, key).

    Attributes:
        part: the images.
        preprocessor: fitted on the training rows.
        augment: a preset of `augment`.
    """

    part: Part
    preprocessor: ImagePreprocessor
    augment: Augment = "none"

    def __post_init__(self) -> None:
        check_preset(self.augment)
        expected, came = ((one.channels, *one.size) for one in (self.preprocessor, self.part))
        if expected != came:
            raise DataError(f"expected images of [channels, height, width] {expected}, got {came}")

    def __len__(self) -> int:
        """How many images, not batches."""
        return len(self.part)

    def __getitem__(
        self, batch: tuple[Int64[Tensor, " b"], int] | tuple[Int64[Tensor, " b"], int, int]
    ) -> tuple[Float32[Tensor, "b c h w"], Int64[Tensor, " b"]]:
        """The images of the rows, augmented as a function of key and epoch and normalised, with their labels.

        Args:
            batch: (int64 [b] row numbers of the part, a key >= 0 for each batch, the epoch if it is not the first).
        Returns:
            float32 [b, C, H, W] and int64 [b].
        """
        rows, key, *epoch = batch
        seen = augment(self.augment, self.part.batch(rows), key, rows=rows, epoch=sum(epoch))
        return self.preprocessor.normalise(seen), self.part.labels[rows]

    def targets(self, rows: Int64[Tensor, " b"]) -> Int64[Tensor, " b"]:
        """Return the labels of these rows, without reading an image."""
        return self.part.labels[rows]


def pixel_table(known: ImagePreprocessor) -> Tensor:
    """Make float32 [channels, 256]: what the network is given for each pixel."""
    each = torch.arange(256, dtype=torch.uint8).expand(1, known.channels, 1, 256)
    return known.normalise(each)[0, :, 0]
