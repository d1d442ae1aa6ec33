"""Sets of images: by name, or from a folder with one folder of image files for each class. And lists of images without
a set: image files, folders of them, and Parquet files.

A list can be cut anywhere before anything is read, so it is planned in one process and read in many. Images of Parquet
files are in a column of bytes, or of {bytes, path} as Hugging Face's datasets write it; their labels in a column
`label` or `cls`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from math import ceil
from pathlib import Path
from pickle import UnpicklingError
from statistics import median
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import sklearn.datasets
import torch
from jaxtyping import Float32, Int32, Int64, UInt8
from torch import Tensor

from htaf._ground.errors import counted, first_line, installed, option, suggestion
from htaf._ground.files import OutputError, regular
from htaf.data.image_reading import MAX_PIXELS, SUFFIXES, Content, image_files, in_folder, look_all, read_each
from htaf.data.images import FilePart, Images, MemoryPart, Part, as_images, shuffled_by_class
from htaf.data.reading import DataError, data_folders, listed

LARGEST_SIZE = int(MAX_PIXELS**0.5)  # of --size
SMALLEST, LARGEST, STEP = 32, 224, 32  # sizes that are chosen
SMALL, MEMORY = 64, 2**32  # images up to this size are held in memory, up to so many bytes
TEST_FOLDERS = ("test", "val", "valid", "validation")
HELD_OUT = 0.2

PARQUET = ".parquet"
LABELS = ("label", "cls")  # columns of labels
ROWS_AT_ONCE = 64  # read from a Parquet file
GONE = (FileNotFoundError, PermissionError, ConnectionError, TimeoutError)

Listing = list[tuple[str, int]]  # relative names with forward slashes, class numbers
Label = int | str | None


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
        of_axes = ({pair[axis] for pair in sizes} for axis in (1, 0))
        wide, high = (" to ".join(dict.fromkeys((f"{min(of)}", f"{max(of)}"))) for of in of_axes)
        notes.append(f"images of {wide} pixels wide and {high} high: resized and cropped to {width} x {height}{why}")

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


# ---- images without a set ----


@dataclass(frozen=True, slots=True)
class Held:
    """An image that needs no decoding: a row of what gives it, such as a part of a set. Another process is sent its
    pixels, not the source."""

    source: Any
    row: int

    def __reduce__(self) -> tuple[Any, ...]:
        return Held, (MemoryPart(self.source.batch(torch.tensor([self.row])), torch.zeros(1, dtype=torch.int64)), 0)


@dataclass(frozen=True, slots=True)
class Cell:
    """An image in a row of a Parquet file. column: of the images. label: the column of their labels, if any."""

    file: str
    column: str
    label: str | None
    row: int


@dataclass(frozen=True, slots=True)
class Image:
    """One image.

    id: its name. content: where it is. label: as it stands there. part: a number that it carries, if any. size: of its
    file in bytes, -1 where there was none when the list was made. zeros: zeros stand in for it where it cannot be
    decoded.
    """

    id: str
    content: Path | Cell | Held
    label: Label = -1
    part: int | None = None
    size: int = -1
    zeros: bool = False


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


def source(paths: Sequence[str]) -> tuple[list[Image], list[str]]:
    """Return the images at paths: files, folders (their image files at any depth, else their Parquet files), Parquet
    files.

    Returns:
        the images, in order; and notes on what is left out.

    Raises:
        DataError: nothing there, a Parquet file that cannot be read, or no images in all of them.
    """
    notes: list[str] = []
    files = [file for path in paths for file in _expanded(Path(path), notes)]
    if files and not any(map(os.path.exists, files)):
        raise DataError(f"{paths[0]}: expected image files, folders of them or Parquet files, got neither")
    found: list[Image] = []
    with ThreadPoolExecutor(16) as pool:
        for some in pool.map(_images_of, files):
            found += some
    if not found:
        raise DataError(f"expected images, got none in {listed(paths, 3)}")
    return found, notes


def read_block(
    block: Sequence[Image],
    channels: int,
    size: tuple[int, int],
    classes: Sequence[str],
    part: int = 0,
    *,
    threads: int = 1,
) -> Decoded:
    """Read the images of a block, decoded as the training reads them (`htaf.data.image_reading.decode`).

    Args:
        block: all of them held, or none.
        channels, size: of the network.
        classes: a label is a number or name of one of these; others become -1 and are counted.
        part: the number of images that carry none.
        threads: that decode.

    Raises:
        DataError: a file that was there when the list was made and cannot be read here.
    """
    if isinstance(block[0].content, Held):
        pixels, labels = np.concatenate([*_held(block)]), [image.label for image in block]
        problems: list[DataError | None] = [None] * len(block)
    else:
        contents, labels = _contents(block)
        read, problems = read_each(contents, channels, size, [image.id for image in block], threads)
        pixels = read.numpy()
    for image, error in zip(block, problems, strict=True):
        cause = error and error.__cause__  # of the system: PIL's own have no number
        if image.size >= 0 and isinstance(cause, OSError) and (isinstance(cause, GONE) or cause.errno is not None):
            raise DataError(
                f"{image.id} was there when the images were listed and cannot be read here "
                f"({first_line(cause)}): images must lie where every node sees them"
            ) from cause
    left_out = [problem is not None and not image.zeros for problem, image in zip(problems, block, strict=True)]
    kept = [row for row, out in enumerate(left_out) if not out]

    def why(row: int) -> str:
        return str(problems[row]).removeprefix(f"{block[row].id}: ").removeprefix("expected an image, got ")

    numbers, unknown = _numbers([labels[row] for row in kept], classes)
    return Decoded(
        tuple(block[row].id for row in kept),
        numbers,
        np.array([part if (own := block[row].part) is None else own for row in kept], np.uint8),
        pixels if len(kept) == len(block) else pixels[kept],
        tuple(f"{block[row].id} ({why(row)})" for row, out in enumerate(left_out) if out),
        tuple(f"{problems[row]}; zeros stand in for it" for row in kept if problems[row] is not None),
        unknown,
    )


def _held(block: Sequence[Any]) -> Iterator[np.ndarray]:
    """Return the images of a block that are held, those of one source at once."""
    for _, some in groupby(block, key=lambda image: id(image.content.source)):
        images = [image.content for image in some]
        yield images[0].source.batch(torch.tensor([one.row for one in images])).numpy()


def _contents(block: Sequence[Image]) -> tuple[list[Content], list[Label]]:
    """Return files, or what the cells of Parquet files hold, and the labels."""
    found: list[tuple[Any, Label]] = []
    cells = ((image, image.content if isinstance(image.content, Cell) else None) for image in block)
    for run, some in groupby(enumerate(cells), key=lambda one: (c := one[1][1]) and (c.file, c.row - one[0])):
        images = [image for _, (image, _) in some]
        found += [(one.content, one.label) for one in images] if run is None else _read_cells([*images])
    return [content for content, _ in found], [label for _, label in found]


def _read_cells(images: Sequence[Any]) -> list[tuple[bytes, Label]]:
    """Read rows of a Parquet file that follow each other: images, b"" for null, and labels.

    Raises:
        DataError: the file cannot be read.
    """
    first, begin = images[0].content, images[0].content.row
    end = begin + len(images)
    with _opened(first.file) as stream:
        table = pq.ParquetFile(stream)
        sizes = [table.metadata.row_group(group).num_rows for group in range(table.num_row_groups)]
        starts = [0, *np.cumsum(sizes).tolist()]
        groups = [g for g in range(len(sizes)) if starts[g] < end and begin < starts[g + 1]]
        columns = [first.column, *([first.label] if first.label else [])]
        rows: list[dict[str, Any]] = []
        at = starts[groups[0] if groups else 0]
        for batch in table.iter_batches(ROWS_AT_ONCE, groups, columns) if groups else ():
            rows += batch.slice(max(0, begin - at), max(0, end - max(at, begin))).to_pylist()
            at += len(batch)
    if len(rows) != len(images):
        raise DataError(f"{first.file}: expected {end:,} rows, as it had before, got fewer")
    cells = (row[first.column] for row in rows)
    contents = ((cell.get("bytes") if isinstance(cell, dict) else cell) or b"" for cell in cells)
    return [(content, row[first.label] if first.label else None) for content, row in zip(contents, rows, strict=True)]


def _numbers(labels: Sequence[Label], classes: Sequence[str]) -> tuple[Int32[np.ndarray, " n"], int]:
    """Return class numbers, -1 for none; and how many labels are none of the classes."""
    known: dict[Label, int] = {None: -1, **{str(number): number for number in range(-1, len(classes))}}
    known |= {number: number for number in range(-1, len(classes))}
    known |= {name: number for number, name in enumerate(classes)}  # a name comes before a number
    found = [known.get(label) for label in labels]
    return np.array([-1 if one is None else one for one in found], np.int32), found.count(None)


def _expanded(path: Path, notes: list[str]) -> list[Path]:
    """Return the files of a folder: Parquet files directly in it where no image files are there, else image files."""
    if not path.is_dir():
        return [path]
    inside = sorted(path.iterdir())
    parquet = [file for file in inside if file.suffix.lower() == PARQUET]
    if parquet and not any(file.suffix.lower() in SUFFIXES for file in inside):
        return parquet
    found, left_out = image_files([path])
    notes += left_out
    return found


def _images_of(file: Path) -> list[Image]:
    """Return the image of a file, or those of a Parquet file."""
    name = str(file)
    if file.suffix.lower() != PARQUET:
        try:
            return [Image(name, file, size=file.stat().st_size)]
        except OSError:
            return [Image(name, file)]
    with _opened(name) as stream:
        size = stream.seek(0, os.SEEK_END)
        found = pq.ParquetFile(stream)
        schema, rows = found.schema_arrow, found.metadata.num_rows
    able = [field.name for field in schema if _holds_bytes(field.type)]
    chosen = able if len(able) == 1 else [column for column in able if column == "image"]
    if not chosen:
        came = f"the columns of bytes {listed(able, 5)}: call that of the images 'image'" if able else "none"
        raise DataError(f"{name}: expected one column of images as bytes, got {came}")
    kinds = (pa.types.is_integer, pa.types.is_string, pa.types.is_large_string)  # of labels
    of = ((one, schema.field(one).type) for one in LABELS if one in schema.names)
    label = next((one for one, kind in of if any(is_kind(kind) for is_kind in kinds)), None)
    return [Image(f"{name}/{row}", Cell(name, chosen[0], label, row), size=size) for row in range(rows)]


@contextmanager
def _opened(file: str) -> Iterator[Any]:
    """A Parquet file for reading. Raises DataError: it cannot be opened or read."""
    try:
        stream = regular(Path(file)).open("rb")
    except OSError as error:
        raise DataError(f"{file} cannot be read: {error.strerror or first_line(error)}") from error
    with stream:
        try:
            yield stream
        except (pa.ArrowException, OSError, ValueError, KeyError) as error:
            raise DataError(f"{file}: expected a Parquet file, got a damaged one ({first_line(error)})") from error


def _holds_bytes(kind: pa.DataType) -> bool:
    if pa.types.is_struct(kind):
        return any(kind.field(i).name == "bytes" and _holds_bytes(kind.field(i).type) for i in range(kind.num_fields))
    return pa.types.is_binary(kind) or pa.types.is_large_binary(kind)
