"""What turns raw images into network inputs: one mean and deviation for each channel, learned on the training rows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float32, Int64, UInt8
from torch import Tensor

from htaf.data import stored
from htaf.data.image_parts import FilePart, Images
from htaf.data.image_reading import read_each, read_files
from htaf.data.notes import lists
from htaf.data.order import random_order
from htaf.data.reading import DataError

FORMAT, VERSION = "htaf-images", 1
KEYS = ("mean", "std", "size", "channels", "classes", "notes")
SAMPLE = 2000  # files decoded for mean and deviation
CHUNK = 1024  # images summed at a time


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
        """Raw images to network inputs, on the device and in the memory format of `pixels`.

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
        """Image files of any kind and size, brought to colour and size as in training.

        Args:
            paths: b files.
        Returns:
            uint8 [b, C, H, W], for `normalise`.
        Raises:
            DataError: a file is missing or cannot be read as an image.
        """
        return read_files([Path(path) for path in paths], self.channels, self.size, strict=True)

    def read_each(self, paths: Sequence[str | Path | bytes]) -> tuple[UInt8[Tensor, "b c h w"], list[DataError | None]]:
        """As `read`, with zeros for files that cannot be read, and for each file the error or None.

        Bytes are the content of a file, of a kind in `image_reading.FORMATS`; their error begins with "image: ".
        """
        files = [path if isinstance(path, bytes) else Path(path) for path in paths]
        return read_each(files, self.channels, self.size)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values; `from_json` restores the same bits."""
        return {"format": FORMAT, "version": VERSION} | {key: lists(getattr(self, key)) for key in KEYS}

    @classmethod
    def from_json(cls, data: Any) -> ImagePreprocessor:
        """Restores what `to_json` gave.

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
