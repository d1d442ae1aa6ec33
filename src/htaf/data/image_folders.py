"""Folders with one folder of image files for each class, and what every set of image files goes through."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from pathlib import Path
from statistics import median

import torch
from jaxtyping import Int64
from torch import Tensor

from htaf._ground.errors import counted
from htaf.data.image_parts import FilePart, Images, Part, as_images
from htaf.data.image_reading import SUFFIXES, advice, in_folder, look_all
from htaf.data.order import random_order
from htaf.data.reading import DataError, listed

SMALLEST, LARGEST, STEP = 32, 224, 32  # sizes that are chosen
SMALL, MEMORY = 64, 2**32  # images up to this size are held in memory, up to so many bytes
WHOLE = 50_000  # up to so many files all are decoded once at load, beyond that only their headers are read
TEST_FOLDERS = ("test", "val", "valid", "validation")
HELD_OUT = 0.2

Listing = list[tuple[str, int]]  # relative names with forward slashes, class numbers


def read_folder(folder: Path, size: int | None) -> Images:
    """A folder in ImageFolder layout.

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
    """Checks the files, leaves out those that cannot be read, and makes both parts.

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
    whole = len(listing) <= WHOLE
    looks = look_all([folder / file for file, _ in listing], whole=whole)
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
    if not whole and not in_memory:
        notes.append(
            f"{len(listing):,} files: only their headers were checked; a damaged one becomes zeros when it is read, "
            "with a warning"
        )

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


def shuffled_by_class(labels: Int64[Tensor, " n"], classes: int, seed: int) -> list[Int64[Tensor, " _"]]:
    """The rows of each class in an order that depends on the seed alone, the same on every machine.

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


def _present(folder: Path, classes: Sequence[str], labels: Tensor, where: str, notes: list[str]) -> Tensor:
    """The numbers of the classes that have images."""
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
    """Names of the folders inside that may be classes, sorted; hidden ones and those of macOS archives are not."""
    if not folder.is_dir():
        return []
    return sorted(
        entry.name for entry in folder.iterdir() if entry.is_dir() and entry.name[0] != "." and entry.name != "__MACOSX"
    )


def _listing(folder: Path, root: str, numbers: dict[str, int], notes: list[str]) -> Listing:
    """The image files of each class, at any depth, in alphabetical order."""
    found: Listing = []
    others: list[str] = []
    for name, number in numbers.items():
        images, beside = in_folder(folder / root / name)
        found += [(path.relative_to(folder).as_posix(), number) for path in images]
        others += [path.relative_to(folder).as_posix() for path in beside]
    if others:
        notes.append(
            f"{counted(len(others), 'file')} without an image's suffix not used: {listed(others, 3)}{advice(others)}"
        )
    loose = sorted(path.name for path in (folder / root).iterdir() if path.suffix.lower() in SUFFIXES)
    if loose:
        notes.append(f"{counted(len(loose), 'image')} beside the folders of classes not used: {listed(loose, 3)}")
    return found
