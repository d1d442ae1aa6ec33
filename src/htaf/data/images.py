"""Images by name or from a folder, their splits, and the batches that networks are trained on."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Float32, Int64
from torch import Tensor
from torch.utils.data import Dataset

from htaf._ground.errors import expect_seed, option, suggestion
from htaf._ground.files import OutputError
from htaf._ground.names import Augment
from htaf.data.augment import augment, check_preset
from htaf.data.image_folders import read_folder, shuffled_by_class
from htaf.data.image_parts import FilePart, Images, MemoryPart, Part
from htaf.data.image_preprocess import ImagePreprocessor, fit_preprocessor
from htaf.data.image_reading import MAX_PIXELS, advice
from htaf.data.image_sets import SETS, folder_of
from htaf.data.reading import DataError, listed

__all__ = [
    "Augment",
    "FilePart",
    "ImageDataset",
    "ImagePreprocessor",
    "Images",
    "MemoryPart",
    "Part",
    "Split",
    "expect_outside",
    "fit_preprocessor",
    "is_named",
    "load",
    "of_files",
    "split",
]


LARGEST = int(MAX_PIXELS**0.5)  # of --size


@dataclass(frozen=True)
class Split:
    """Row numbers of `Images.train`, ascending and disjoint; int64 [rows of the part] each."""

    train: Int64[Tensor, " train"]
    validation: Int64[Tensor, " validation"]


def is_named(name: str | os.PathLike[str]) -> bool:
    """Whether `load` takes this for a known set, not for a folder; names go in any case."""
    return os.fspath(name).lower() in SETS


def expect_outside(out: Path, name: str, flag: str = "--data") -> None:
    """Raises OutputError: an output folder in the folder of images that `name` is, which would be read with them."""
    if is_named(name):
        return
    try:
        images, there = Path(name).resolve(strict=True), out.resolve()
    except (OSError, ValueError, RuntimeError):  # what reads and writes them says what is wrong
        return
    if there.is_relative_to(images):
        where = f"{option('--out', 'out')} must lie outside the images of {option(f'{flag} {name}', name)}"
        raise OutputError(f"{where}, got {out}: choose another folder")


def of_files(name: str | os.PathLike[str]) -> bool:
    """Whether `load` reads image files for this name, so that it takes a size."""
    known = SETS.get(os.fspath(name).lower())
    return known is None or known.sized


def load(
    name: str | os.PathLike[str],
    *,
    data_dir: str | os.PathLike[str] | None = None,
    size: int | None = None,
) -> Images:
    """A named set, or any folder with one folder of images for each class.

    The public sets ("cifar10", "cifar100", "tiny-imagenet", "cub") are looked for in `data_dir`, then in the folder
    that the environment variable HTAF_DATA names. "digits" comes with scikit-learn. For folders see
    `htaf.data.image_folders.read_folder`. All files are decoded once at load; those that cannot be read are left out
    and noted (beyond 50,000 files only headers are read).

    Args:
        name: a set's name, in any case, or a folder.
        data_dir: a folder with the public sets.
        size: height and width in pixels of images from files; None: their own where all are alike and small, else by
            their shorter sides, from 32 to 224.
    Returns:
        the set; images in memory where they are of at most 64 pixels, else read from files by each batch.
    Raises:
        DataError: nothing by that name, or images that cannot be used.
    """
    given = os.fspath(name)
    if size is not None and not 1 <= size <= LARGEST:
        needed = f", {15 * size * size / 1e9:,.1f} GB for one image in the network" if size > LARGEST else ""
        raise DataError(f"size: expected 1 to {LARGEST:,} pixels, got {size}{needed}")
    known = given.lower()
    if size is not None and not of_files(known):
        raise DataError(f"{known}: leave size out, it is for sets of image files; these images are of one size")
    if known in SETS:
        folder = folder_of(known, data_dir) if SETS[known].folder else Path()
        return SETS[known].read(folder, size)
    if not given or not Path(given).is_dir():  # "" would be the working folder
        came = f"a file{advice([given])}" if given and Path(given).exists() else "neither"
        came = "a link that leads nowhere" if given and came == "neither" and Path(given).is_symlink() else came
        near = suggestion(given, [*SETS])
        raise DataError(f"{given!r}: expected one of {listed([*SETS])} or a folder of images, got {came}{near}")
    return read_folder(Path(given), size)


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
    """How many rows of class `number` belong to an amount."""
    if isinstance(amount, float) and not amount.is_integer():
        if not 0 < amount < 1:
            raise DataError(f"{what}_images: expected a whole number >= 0 or a fraction below 1, got {amount}")
        return max(1, round(amount * rows))
    if amount < 0 or (amount == 1.0 and isinstance(amount, float)):
        raise DataError(f"{what}_images: expected a whole number >= 0 or a fraction below 1, got {amount}")
    if 0 < amount < classes:
        raise DataError(f"{what}_images: expected at least {classes}, one for each class, got {amount}")
    return int(amount) // classes + (number < int(amount) % classes)


@dataclass(frozen=True, eq=False)
class ImageDataset(Dataset[tuple[Tensor, Tensor]]):
    """Batches for a `DataLoader(dataset, batch_size=None, sampler=...)` whose sampler yields (rows, key).

    Attributes:
        part: the images.
        preprocessor: fitted on the training rows.
        augment: a preset of `htaf.data.augment`.
    """

    part: Part
    preprocessor: ImagePreprocessor
    augment: Augment = "none"

    def __post_init__(self) -> None:
        check_preset(self.augment)
        expected, came = (
            (self.preprocessor.channels, *self.preprocessor.size),
            (self.part.channels, *self.part.size),
        )
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
        """The labels of these rows, without reading an image."""
        return self.part.labels[rows]
