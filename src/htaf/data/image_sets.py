"""The image sets known by name: their files, where they come from, and how they are read."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import sklearn.datasets
import torch

from htaf._errors import first_line
from htaf.data.downloads import Archive
from htaf.data.image_folders import Listing, held_out, images_from_files
from htaf.data.image_parts import Images, MemoryPart, as_images
from htaf.data.reading import DataError, listed


@dataclass(frozen=True)
class Cifar:
    """The layout of a CIFAR set: pickled dicts with "data", uint8 [rows, 3072], and labels."""

    name: str
    archive: Archive
    train: tuple[str, ...]
    test: str
    labels: str
    meta: str
    meta_key: str
    rows: int  # of each file of `train`
    test_rows: int
    classes: int


CIFAR10 = Cifar(
    "cifar10",
    Archive(
        "cifar-10-batches-py",
        "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
        "c58f30108f718f92721af3b95e74349a",
    ),
    tuple(f"data_batch_{number}" for number in range(1, 6)),
    "test_batch",
    "labels",
    "batches.meta",
    "label_names",
    10_000,
    10_000,
    10,
)
CIFAR100 = Cifar(
    "cifar100",
    Archive(
        "cifar-100-python",
        "https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz",
        "eb9058c3a382ffc7106e4002c42a8d85",
    ),
    ("train",),
    "test",
    "fine_labels",
    "meta",
    "fine_label_names",
    50_000,
    10_000,
    100,
)
TINY_IMAGENET = Archive(
    "tiny-imagenet-200",
    "http://cs231n.stanford.edu/tiny-imagenet-200.zip",
    "90528d7ca1a48142e341f4ef8d21d0de",
)
CUB = Archive(
    "CUB_200_2011",
    "https://data.caltech.edu/records/65de6-vp158/files/CUB_200_2011.tgz",
    "97eceeb196236b17998738112f37df78",
)


def read_cifar(layout: Cifar, folder: Path) -> Images:
    """The official pickles of a CIFAR set.

    Args:
        layout: which set.
        folder: with the pickles.
    Returns:
        the set, in memory.
    Raises:
        DataError: a file is missing, damaged or holds something else.
    """
    meta = _unpickled(folder / layout.meta)
    classes = meta.get(layout.meta_key)
    if not isinstance(classes, list) or len(classes) != layout.classes or not all(type(n) is str for n in classes):
        raise DataError(
            f"{folder / layout.meta}: expected {layout.classes} names in {layout.meta_key!r}, got {classes!r:.80}"
        )
    parts = [_cifar_file(layout, folder / name, layout.rows) for name in layout.train]
    train = MemoryPart(torch.cat([part.pixels for part in parts]), torch.cat([part.labels for part in parts]))
    return as_images(
        layout.name, tuple(classes), train, _cifar_file(layout, folder / layout.test, layout.test_rows), []
    )


def _cifar_file(layout: Cifar, path: Path, rows: int) -> MemoryPart:
    content = _unpickled(path)
    pixels, labels = content.get("data"), content.get(layout.labels)
    if not isinstance(pixels, np.ndarray) or pixels.dtype != np.uint8 or pixels.shape != (rows, 3072):
        came = f"{pixels.dtype} {pixels.shape}" if isinstance(pixels, np.ndarray) else type(pixels).__name__
        raise DataError(f"{path}: expected uint8 ({rows}, 3072) in 'data', got {came}")
    if not isinstance(labels, list) or len(labels) != rows:
        came = f"{len(labels):,}" if isinstance(labels, list) else type(labels).__name__
        raise DataError(f"{path}: expected {rows:,} labels in {layout.labels!r}, got {came}")
    if not all(type(label) is int and 0 <= label < layout.classes for label in labels):
        raise DataError(f"{path}: expected labels 0 to {layout.classes - 1} in {layout.labels!r}, got others too")
    return MemoryPart(torch.from_numpy(pixels.reshape(rows, 3, 32, 32)), torch.tensor(labels, dtype=torch.int64))


class _Dtype:
    """What a pickle says of the type of an array."""

    def __init__(self, code: Any, *_: Any) -> None:
        self.code: Any = code
        self.order: Any = "|"

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.order = state[1]

    def value(self) -> np.dtype:
        dtype = np.dtype(self.code if isinstance(self.code, str) else "O").newbyteorder(self.order)
        if dtype.kind not in "biuf":
            raise pickle.UnpicklingError(f"it holds an array of {dtype}")
        return dtype


class _Array:
    """What a pickle says of an array: NumPy's own way back trusts flags and sizes that a file can make up."""

    def __init__(self, *_: Any) -> None:
        self.value = np.empty(0)

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, shape, dtype, fortran, data = state
        raw = data.encode("latin1") if isinstance(data, str) else bytes(data)
        self.value = np.frombuffer(raw, dtype.value()).reshape(shape, order="F" if fortran else "C").copy()


class _Unpickler(pickle.Unpickler):
    """Admits arrays of numbers and plain containers; anything else in a pickle could run code."""

    def find_class(self, module: str, name: str) -> Any:
        module = module.replace("numpy.core.", "numpy._core.")  # the name before numpy 2
        match module, name:
            case ("numpy", "ndarray") | ("numpy._core.multiarray", "_reconstruct"):
                return _Array
            case "numpy", "dtype":
                return _Dtype
            case "_codecs", "encode":  # how Python 3 writes bytes in the old protocols
                return lambda text, _: text.encode("latin1")
        raise pickle.UnpicklingError(f"it refers to {module}.{name}")


def _unpickled(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise DataError(f"{path}: expected this file of the set, got none")
    try:
        with path.open("rb") as file:
            content = _Unpickler(file, encoding="latin1").load()
    except Exception as error:  # a damaged pickle raises nearly everything
        raise DataError(f"{path}: expected a pickle of plain data, cannot be read: {first_line(error)}") from error
    if not isinstance(content, dict):
        raise DataError(f"{path}: expected a dict in the pickle, got {type(content).__name__}")
    return {key: value.value if isinstance(value, _Array) else value for key, value in content.items()}


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
        archive: where it comes from; None: bundled.
        sized: whether its images are files that are read at any size.
        read: (folder of the archive, size in pixels or None) -> the set.
    """

    archive: Archive | None
    sized: bool
    read: Callable[[Path, int | None], Images]


SETS: dict[str, ImageSet] = {
    "cifar10": ImageSet(CIFAR10.archive, False, lambda folder, _: read_cifar(CIFAR10, folder)),
    "cifar100": ImageSet(CIFAR100.archive, False, lambda folder, _: read_cifar(CIFAR100, folder)),
    "tiny-imagenet": ImageSet(TINY_IMAGENET, True, read_tiny_imagenet),
    "cub": ImageSet(CUB, True, read_cub),
    "digits": ImageSet(None, False, lambda _folder, _size: read_digits()),
}


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
