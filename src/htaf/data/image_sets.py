"""Sets of images: by name, or from a folder with one folder of image files for each class."""

from __future__ import annotations

import os
from collections.abc import Sequence
from math import ceil
from pathlib import Path
from pickle import UnpicklingError
from statistics import median
from typing import Any

import numpy as np
import sklearn.datasets
import torch
from jaxtyping import Int64
from torch import Tensor

from htaf._ground.errors import counted, installed, option, suggestion
from htaf._ground.files import OutputError
from htaf.data.image_reading import MAX_PIXELS, SUFFIXES, in_folder, look_all
from htaf.data.images import FilePart, Images, MemoryPart, Part, as_images, shuffled_by_class
from htaf.data.reading import DataError, data_folders, listed

LARGEST_SIZE = int(MAX_PIXELS**0.5)  # of --size
SMALLEST, LARGEST, STEP = 32, 224, 32  # sizes that are chosen
SMALL, MEMORY = 64, 2**32  # images up to this size are held in memory, up to so many bytes
TEST_FOLDERS = ("test", "val", "valid", "validation")
HELD_OUT = 0.2

Listing = list[tuple[str, int]]  # relative names with forward slashes, class numbers


def is_named(name: str | os.PathLike[str]) -> bool:
    """Return whether `load` takes this for a known set, not for a folder; names go in any case."""
    return os.fspath(name).lower() in SETS


def expect_outside(out: Path, name: str, flag: str = "--data") -> None:
    """Raise OutputError: an output folder in the folder of images that `name` is, which would be read with them."""
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
    """Return whether `load` reads image files for this name, so that it takes a size."""
    return os.fspath(name).lower() not in {*SETS} - {"cub"}


def load(
    name: str | os.PathLike[str],
    *,
    data_dir: str | os.PathLike[str] | None = None,
    size: int | None = None,
) -> Images:
    """Load a named set, or any folder with one folder of images for each class.

    The public sets ("cifar10", "cifar100", "mnist", "cub") are looked for in `data_dir`, then in the folder
    that the environment variable HTAF_DATA names. "digits" comes with scikit-learn. For folders see
    `read_folder`. All files are decoded once at load; those that cannot be read are left out and noted.

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
    if size is not None and not 1 <= size <= LARGEST_SIZE:
        needed = f", {15 * size * size / 1e9:,.1f} GB for one image in the network" if size > LARGEST_SIZE else ""
        raise DataError(f"size: expected 1 to {LARGEST_SIZE:,} pixels, got {size}{needed}")
    known = given.lower()
    if size is not None and not of_files(known):
        raise DataError(f"{known}: leave size out, it is for sets of image files; these images are of one size")
    if known == "digits":
        return read_digits()
    if known in SETS:
        folder = folder_of(known, data_dir)
        return read_cub(folder, size) if known == "cub" else read_published(known, folder)
    if not given or not Path(given).is_dir():  # "" would be the working folder
        came = "a file" if given and Path(given).exists() else "neither"
        near = suggestion(given, [*SETS])
        raise DataError(f"{given!r}: expected one of {listed([*SETS])} or a folder of images, got {came}{near}")
    return read_folder(Path(given), size)


# ---- folders ----


def read_folder(folder: Path, size: int | None) -> Images:
    """Read a folder in ImageFolder layout.

    FOLDER/class/... has 20% of each class held out as the test part, with a fixed seed; FOLDER/train/class/... takes
    it from FOLDER/test/class/... or FOLDER/val/class/..., and holds out 20% where neither exists.

    Args:
        folder: the folder.
        size: height and width in pixels to which images are brought; None keeps small images of one size, and of all
            others takes the median of their shorter sides, rounded up to a multiple of 32, from 32 to 224.
    Returns:
        the set; the classes are the folders' names in alphabetical order.
    Raises:
        DataError: fewer than two classes with images, more unreadable files than readable ones, a class that only the
            test part has.
    """
    folder, notes = folder.resolve(), []
    train_root, test_name = "", None
    if _folders(folder / "train"):
        train_root = "train/"
        found = [name for name in TEST_FOLDERS if _folders(folder / name)]
        test_name = found[0] if found else None
        if found[1:]:
            notes.append(f"{found[0]!r} is the test part; not used: {listed(found[1:])}")
    classes = _folders(folder / train_root)
    if len(classes) < 2:
        inside = f"only {classes[0]!r}" if classes else "none"
        raise DataError(f"{folder / train_root}: expected a folder for each of two classes or more, got {inside}")
    numbers = {name: number for number, name in enumerate(classes)}
    listing = _listing(folder, train_root, numbers, notes)
    test_listing: Listing = []
    if test_name is not None:
        unknown = [name for name in _folders(folder / test_name) if name not in numbers]
        if unknown:
            raise DataError(f"{folder / test_name}: expected the classes of 'train', got {listed(unknown, 5)} too")
        present = {name: numbers[name] for name in _folders(folder / test_name)}
        test_listing = _listing(folder, f"{test_name}/", present, notes)
    return images_from_files(folder.name, folder, classes, listing, test_listing, size, notes)


def images_from_files(
    name: str,
    folder: Path,
    classes: Sequence[str],
    train: Listing,
    test: Listing,
    size: int | None,
    notes: list[str],
) -> Images:
    """Check the files, leave out those that cannot be read, and make both parts.

    Args:
        name: of the set.
        folder: what the names are relative to.
        classes: class names in the order of the labels.
        train, test: names and labels; without any in `test` 20% of each class are held out.
        size: as in `read_folder`.
        notes: what is handled is appended.
    Returns:
        the set.
    Raises:
        DataError: as `read_folder`.
    """
    listing = train + test
    looks = look_all([folder / file for file, _ in listing])
    bad = [f"{file} ({seen.problem})" for (file, _), seen in zip(listing, looks, strict=True) if seen.problem]
    if len(bad) * 2 > len(listing):
        raise DataError(f"{folder}: expected images, got {len(bad):,} of {len(listing):,} unreadable: {listed(bad, 3)}")
    if bad:
        notes.append(f"{counted(len(bad), 'unreadable file')} left out: {listed(bad, 5)}")
    usable = [entry for entry, seen in zip(listing, looks, strict=True) if not seen.problem]
    border = sum(not seen.problem for seen in looks[: len(train)])
    every = [seen.size for seen in looks if not seen.problem]
    sizes = set(every)
    labels = torch.tensor([label for _, label in usable], dtype=torch.int64)
    present = _present(folder, classes, labels[:border], "training part" if test else "folder", notes)
    if len(present) < len(classes):
        kept = torch.isin(labels, present)
        usable = [entry for entry, keep in zip(usable, kept.tolist(), strict=True) if keep]
        border, labels = int(kept[:border].sum()), torch.searchsorted(present, labels[kept])
        classes = [name for number, name in enumerate(classes) if number in present]
    if test:
        if border == len(usable):
            raise DataError(f"{folder}: expected images in the test part, got none")
        absent = [classes[number] for number in range(len(classes)) if number not in labels[border:]]
        if absent:
            notes.append(f"no test images of {listed(absent, 5)}")
        rows, test_rows = torch.arange(border), torch.arange(border, len(usable))
    else:
        rows, test_rows = held_out(name, labels, classes, notes)
    small = len(sizes) == 1 and max(max(sizes)) <= SMALL
    shorter = median(min(pair) for pair in every) if every else 0
    suited = min(max(SMALLEST, ceil(shorter / STEP) * STEP), LARGEST)
    height, width = next(iter(sizes)) if size is None and small else (size or suited,) * 2
    if sizes != {(height, width)}:
        why = "" if size else f", as the median of their shorter sides is {shorter:g}; size (--size) sets another"
        lowest, highest = (tuple(edge(pair[axis] for pair in sizes) for axis in (1, 0)) for edge in (min, max))
        notes.append(
            f"images of {_range(lowest[0], highest[0])} pixels wide and {_range(lowest[1], highest[1])} high: "
            f"resized and cropped to {width} x {height}{why}"
        )

    in_memory = max(height, width) <= SMALL and 3 * height * width * len(usable) <= MEMORY

    def part(chosen: Int64[Tensor, " rows"]) -> Part:
        names = tuple(usable[row][0] for row in chosen.tolist())
        files = FilePart(folder, names, labels[chosen], (height, width))
        return files.in_memory() if in_memory else files

    return as_images(name, tuple(classes), part(rows), part(test_rows), notes)


def held_out(
    name: str, labels: Int64[Tensor, " n"], classes: Sequence[str], notes: list[str]
) -> tuple[Int64[Tensor, " train"], Int64[Tensor, " test"]]:
    """20% of each class, one image at least, chosen with a fixed seed.

    Args:
        name: of the set, for messages.
        labels: int64 [n].
        classes: class names in the order of the labels.
        notes: says so.
    Returns:
        row numbers of the rest and of the held-out part, ascending.
    Raises:
        DataError: a class with one image.
    """
    test: list[Tensor] = []
    for number, rows in enumerate(shuffled_by_class(labels, len(classes), 0)):
        if len(rows) < 2:
            raise DataError(
                f"{name}: expected two images or more of {classes[number]!r}, to hold out a test part, got {len(rows)}"
            )
        test.append(rows[: max(1, round(len(rows) * HELD_OUT))])
    taken = torch.zeros(len(labels), dtype=torch.bool)
    taken[torch.cat(test)] = True
    notes.append(f"no test part: {HELD_OUT:.0%} of each class held out, {int(taken.sum()):,} images, seeded")
    return (~taken).nonzero()[:, 0], taken.nonzero()[:, 0]


def _present(folder: Path, classes: Sequence[str], labels: Tensor, where: str, notes: list[str]) -> Tensor:
    """Return the numbers of the classes that have images."""
    counts = torch.bincount(labels, minlength=len(classes))
    empty = [name for name, count in zip(classes, counts.tolist(), strict=True) if not count]
    if empty and len(classes) - len(empty) < 2:
        came = "; ".join([listed(empty, 5), *notes])
        raise DataError(f"{folder}: expected readable images of two classes or more in the {where}, got none of {came}")
    if empty:
        kind = "1 class" if len(empty) == 1 else f"{len(empty):,} classes"
        notes.append(f"{kind} without a readable image in the {where} left out: {listed(empty, 5)}")
    return counts.nonzero()[:, 0]


def _range(lowest: int, highest: int) -> str:
    return f"{lowest}" if lowest == highest else f"{lowest} to {highest}"


def _folders(folder: Path) -> list[str]:
    """Return names of the folders inside that may be classes, sorted; hidden ones and those of macOS archives are
    not."""
    if not folder.is_dir():
        return []
    return sorted(
        entry.name for entry in folder.iterdir() if entry.is_dir() and entry.name[0] != "." and entry.name != "__MACOSX"
    )


def _listing(folder: Path, root: str, numbers: dict[str, int], notes: list[str]) -> Listing:
    """Return the image files of each class, at any depth, in alphabetical order."""
    found: Listing = []
    others: list[str] = []
    for name, number in numbers.items():
        images, beside = in_folder(folder / root / name)
        found += [(path.relative_to(folder).as_posix(), number) for path in images]
        others += [path.relative_to(folder).as_posix() for path in beside]
    if others:
        notes.append(f"{counted(len(others), 'file')} without an image's suffix not used: {listed(others, 3)}")
    loose = sorted(path.name for path in (folder / root).iterdir() if path.suffix.lower() in SUFFIXES)
    if loose:
        notes.append(f"{counted(len(loose), 'image')} beside the folders of classes not used: {listed(loose, 3)}")
    return found


# ---- public sets ----


def read_published(name: str, folder: Path) -> Images:
    """Read the published files of CIFAR-10, CIFAR-100 or MNIST, as torchvision reads them; those of CIFAR by their MD5.

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

    def part(read: Any) -> MemoryPart:
        pixels = torch.as_tensor(read.data)
        pixels = pixels[:, None] if pixels.ndim == 3 else pixels.permute(0, 3, 1, 2).contiguous()
        labels = torch.as_tensor(read.targets)
        if len(labels) != len(pixels) or not bool(((labels >= 0) & (labels < len(read.classes))).all()):
            raise ValueError("a label of each image")
        return MemoryPart(pixels, labels)

    try:
        train, test = (published(folder.parent, train=train) for train in (True, False))
        parts = part(train), part(test)
    except (RuntimeError, ValueError, AssertionError, LookupError, TypeError, EOFError, UnpicklingError) as error:
        raise DataError(
            f"{folder}: expected the files of {name} as they are published, got others, or not all of them: unpack "
            "the archive again"
        ) from error

    return as_images(name, tuple(train.classes), *parts, [])


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
        entries(folder / name)
        for name in ("images.txt", "image_class_labels.txt", "train_test_split.txt", "classes.txt")
    )
    same = files.keys() == labels.keys() == split.keys()
    if not same or not {*labels.values()} <= named.keys() or not {*split.values()} <= {"0", "1"}:
        raise DataError(
            f"{folder}: expected lists of the same images, their classes and parts, as they are published, got others: "
            "unpack the archive again"
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
        if labels[image] in present:
            parts[split[image]].append((f"images/{file}", order.index(labels[image])))
    names = [named[number] for number in order]
    return images_from_files("cub", folder, names, parts["1"], parts["0"], size or 224, notes)


def read_digits() -> Images:
    """Read the 1,797 handwritten digits of scikit-learn: grey, 8 x 8, 0 to 16 scaled to 0 to 255; 20% are the test
    part."""
    bunch: Any = sklearn.datasets.load_digits()
    pixels = torch.from_numpy((bunch.images * (255 / 16)).round().astype(np.uint8))[:, None]
    labels = torch.from_numpy(bunch.target.astype(np.int64))
    notes, classes = ["bundled with scikit-learn"], tuple(map(str, range(10)))
    rows, test = held_out("digits", labels, classes, notes)
    return as_images(
        "digits", classes, MemoryPart(pixels[rows], labels[rows]), MemoryPart(pixels[test], labels[test]), notes
    )


CIFAR = "https://www.cs.toronto.edu/~kriz"
SETS: dict[str, tuple[str, str]] = {  # name -> its published folder, and where it is published
    "cifar10": ("cifar-10-batches-py", f"{CIFAR}/cifar-10-python.tar.gz"),
    "cifar100": ("cifar-100-python", f"{CIFAR}/cifar-100-python.tar.gz"),
    "mnist": ("MNIST", "https://ossci-datasets.s3.amazonaws.com/mnist/"),
    "cub": ("CUB_200_2011", "https://data.caltech.edu/records/65de6-vp158/files/CUB_200_2011.tgz"),
    "digits": ("", ""),  # bundled
}


def folder_of(name: str, data_dir: str | os.PathLike[str] | None = None) -> Path:
    """Return the folder of a public set: in `data_dir`, then in the folder that HTAF_DATA names; either may be it.

    Raises:
        DataError: it is in neither.
    """
    published, url = SETS[name]
    roots = data_folders(data_dir)
    for root in roots:
        for found in (root / published, root):
            if found.name == published and found.is_dir():
                return found
    looked = f" in {listed([str(root) for root in roots])}" if roots else ""
    raise DataError(
        f"{name}: expected the folder {published}, got none{looked}: download {url}, unpack it, and name the folder "
        "that holds it in HTAF_DATA or --data-dir"
    )


def entries(path: Path) -> dict[str, str]:
    """Return the lines of a list: what follows the first field of each, by this field.

    Raises:
        DataError: no such file, an empty one, or a line of one field.
    """
    if not path.is_file():
        raise DataError(f"{path}: expected this file of the set, got none")
    text = path.read_text(encoding="utf-8", errors="replace")
    rows = [line.split(maxsplit=1) for line in text.splitlines() if line.strip()]
    if not rows or any(len(row) < 2 for row in rows):
        raise DataError(f"{path}: expected lines of a number and a name, got {text[:40]!r}")
    return {number: name.strip() for number, name in rows}
