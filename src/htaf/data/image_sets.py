"""The image sets known by name: their files, where they come from, and how they are read."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import sklearn.datasets
import torch

from htaf._ground.errors import installed
from htaf.data.image_folders import Listing, held_out, images_from_files
from htaf.data.image_parts import Images, MemoryPart, as_images
from htaf.data.reading import DataError, data_folders, listed


def read_published(name: str, folder: Path) -> Images:
    """The published files of CIFAR-10, CIFAR-100 or MNIST, as torchvision reads them; those of CIFAR by their MD5.

    Args:
        name: "cifar10", "cifar100" or "mnist".
        folder: with the files, under its published name.
    Returns:
        the set, in memory.
    Raises:
        DataError: a file is missing, or is not the published one. MissingError: torchvision is not installed.
    """
    with installed():
        from torchvision.datasets import CIFAR10, CIFAR100, MNIST
    published = {"cifar10": CIFAR10, "cifar100": CIFAR100, "mnist": MNIST}[name]
    try:
        train, test = (published(folder.parent, train=train) for train in (True, False))
    except RuntimeError as error:
        raise DataError(
            f"{folder}: expected the files of {name} as they are published, got others, or not all of them: unpack "
            "the archive again"
        ) from error

    def part(read: Any) -> MemoryPart:
        pixels = torch.as_tensor(read.data)
        pixels = pixels[:, None] if pixels.ndim == 3 else pixels.permute(0, 3, 1, 2).contiguous()
        return MemoryPart(pixels, torch.as_tensor(read.targets))

    return as_images(name, tuple(train.classes), part(train), part(test), [])


def read_tiny_imagenet(
    folder: Path, size: int | None = None, *, classes: int = 200, train: int = 500, test: int = 50
) -> Images:
    """Tiny ImageNet in its official layout; the public validation images, which have labels, are the test part.

    Args:
        folder: `tiny-imagenet-200`.
        size: as in `htaf.data.image_folders.read_folder`.
        classes, train, test: how many classes, and images of each in both parts, it must hold.
    Returns:
        the set, in memory at 64 x 64 pixels; a class is named by its first synonym in words.txt, with its WordNet
        number where two share one.
    Raises:
        DataError: missing files, other counts, an annotation of an unknown class.
    """
    wnids = [line[0] for line in lines(folder / "wnids.txt", 1)]
    if len(set(wnids)) != classes or len(wnids) != classes:
        raise DataError(f"{folder / 'wnids.txt'}: expected {classes} distinct classes, got {len(set(wnids))}")
    wnids = sorted(wnids)
    numbers = {wnid: number for number, wnid in enumerate(wnids)}
    listing: Listing = []
    for wnid, number in numbers.items():
        files = sorted(path.name for path in (folder / "train" / wnid / "images").glob("*.JPEG"))
        if len(files) != train:
            raise DataError(f"{folder / 'train' / wnid / 'images'}: expected {train} .JPEG files, got {len(files)}")
        listing += [(f"train/{wnid}/images/{file}", number) for file in files]
    test_listing: Listing = []
    annotations = folder / "val" / "val_annotations.txt"
    for entry in lines(annotations, 2):
        if entry[1] not in numbers:
            raise DataError(f"{annotations}: expected a class of wnids.txt for {entry[0]!r}, got {entry[1]!r}")
        test_listing.append((f"val/images/{entry[0]}", numbers[entry[1]]))
    if len(test_listing) != test * classes:
        raise DataError(f"{annotations}: expected {test * classes:,} images, got {len(test_listing):,}")
    _check_files(folder, test_listing)
    names = _words(folder / "words.txt", wnids)
    return images_from_files("tiny-imagenet", folder, names, listing, test_listing, size, [])


def _words(path: Path, wnids: Sequence[str]) -> list[str]:
    if not path.is_file():
        return list(wnids)
    words = dict(line.split("\t", 1) for line in path.read_text().splitlines() if "\t" in line)
    first = [words.get(wnid, wnid).split(",")[0].strip() for wnid in wnids]
    return [name if first.count(name) == 1 else f"{name} ({wnid})" for name, wnid in zip(first, wnids, strict=True)]


def read_cub(folder: Path, size: int | None = None) -> Images:
    """CUB-200-2011 in its official layout, with the official split; all 200 classes or some of them.

    Args:
        folder: `CUB_200_2011`.
        size: height and width in pixels; None means 224.
    Returns:
        the set, in files; classes are named as in classes.txt ("001.Black_footed_Albatross").
    Raises:
        DataError: missing files, or lists that contradict each other.
    """
    files, labels, split, named = (
        {line[0]: line[1] for line in lines(folder / name, 2)}
        for name in ("images.txt", "image_class_labels.txt", "train_test_split.txt", "classes.txt")
    )
    for name, entries in (("image_class_labels.txt", labels), ("train_test_split.txt", split)):
        if entries.keys() != files.keys():
            raise DataError(
                f"{folder / name}: expected the {len(files):,} images of images.txt, got {len(entries):,} entries, "
                f"{len(entries.keys() & files.keys()):,} of them in images.txt"
            )
    unknown = sorted(set(labels.values()) - named.keys())
    if unknown:
        raise DataError(
            f"{folder / 'image_class_labels.txt'}: expected classes of classes.txt, got {listed(unknown, 5)}"
        )
    notes: list[str] = []
    present = {number for number, name in named.items() if (folder / "images" / name).is_dir()} & set(labels.values())
    absent = [name for number, name in named.items() if number not in present]
    if absent:
        notes.append(f"{len(present)} of {len(named)} classes; no images of {listed(absent, 3)}")
    if len(present) < 2:
        raise DataError(f"{folder / 'images'}: expected images of two classes or more, got {len(present)}")
    order = [number for number in named if number in present]
    parts: dict[str, Listing] = {"1": [], "0": []}
    for image, file in files.items():
        if split[image] not in parts:
            raise DataError(
                f"{folder / 'train_test_split.txt'}: expected 0 or 1 for image {image}, got {split[image]!r}"
            )
        if labels[image] in present:
            parts[split[image]].append((f"images/{file}", order.index(labels[image])))
    for listing in parts.values():
        _check_files(folder, listing)
    names = [named[number] for number in order]
    return images_from_files("cub", folder, names, parts["1"], parts["0"], size or 224, notes)


def read_digits() -> Images:
    """The 1,797 handwritten digits of scikit-learn: grey, 8 x 8, 0 to 16 scaled to 0 to 255; 20% are the test part."""
    bunch: Any = sklearn.datasets.load_digits()
    pixels = torch.from_numpy((bunch.images * (255 / 16)).round().astype(np.uint8))[:, None]
    labels = torch.from_numpy(bunch.target.astype(np.int64))
    notes, classes = ["bundled with scikit-learn"], tuple(map(str, range(10)))
    rows, test = held_out("digits", labels, classes, notes)
    return as_images(
        "digits", classes, MemoryPart(pixels[rows], labels[rows]), MemoryPart(pixels[test], labels[test]), notes
    )


@dataclass(frozen=True)
class ImageSet:
    """A known set.

    Attributes:
        folder: its published name; "": bundled.
        url: its public home.
        sized: whether its images are files that are read at any size.
        read: (folder, size in pixels or None) -> the set.
    """

    folder: str
    url: str
    sized: bool
    read: Callable[[Path, int | None], Images]


CIFAR = "https://www.cs.toronto.edu/~kriz"
SETS: dict[str, ImageSet] = {
    "cifar10": ImageSet(
        "cifar-10-batches-py",
        f"{CIFAR}/cifar-10-python.tar.gz",
        False,
        lambda folder, _: read_published("cifar10", folder),
    ),
    "cifar100": ImageSet(
        "cifar-100-python",
        f"{CIFAR}/cifar-100-python.tar.gz",
        False,
        lambda folder, _: read_published("cifar100", folder),
    ),
    "mnist": ImageSet(
        "MNIST",
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        False,
        lambda folder, _: read_published("mnist", folder),
    ),
    "tiny-imagenet": ImageSet(
        "tiny-imagenet-200", "http://cs231n.stanford.edu/tiny-imagenet-200.zip", True, read_tiny_imagenet
    ),
    "cub": ImageSet(
        "CUB_200_2011", "https://data.caltech.edu/records/65de6-vp158/files/CUB_200_2011.tgz", True, read_cub
    ),
    "digits": ImageSet("", "", False, lambda _folder, _size: read_digits()),
}


def folder_of(name: str, data_dir: str | os.PathLike[str] | None = None) -> Path:
    """The folder of a public set: in `data_dir`, then in the folder that HTAF_DATA names; either may be it.

    Raises:
        DataError: it is in neither.
    """
    known = SETS[name]
    roots = data_folders(data_dir)
    for root in roots:
        for found in (root / known.folder, root):
            if found.name == known.folder and found.is_dir():
                return found
    looked = f" in {listed([str(root) for root in roots])}" if roots else ""
    raise DataError(
        f"{name}: expected the folder {known.folder}, got none{looked}: download {known.url}, unpack it, and name the "
        "folder that holds it in HTAF_DATA or --data-dir"
    )


def lines(path: Path, fields: int) -> list[list[str]]:
    """The lines of a list, each with so many fields or more."""
    if not path.is_file():
        raise DataError(f"{path}: expected this file of the set, got none")
    rows = [line.split() for line in path.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    short = next((place for place, row in enumerate(rows) if len(row) < fields), None)
    if short is not None:
        raise DataError(f"{path}: expected {fields} fields in each line, got {' '.join(rows[short])!r}")
    if not rows:
        raise DataError(f"{path}: expected entries, got an empty file")
    return rows


def _check_files(folder: Path, listing: Listing) -> None:
    missing = [file for file, _ in listing if not (folder / file).is_file()]
    if missing:
        raise DataError(
            f"{folder}: expected all images of its lists, got {len(missing):,} missing: {listed(missing, 3)}"
        )
