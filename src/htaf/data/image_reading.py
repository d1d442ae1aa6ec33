"""Image files to uint8 tensors: every kind that PIL reads becomes grey or RGB of one size."""

from __future__ import annotations

import io
import os
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import UInt8
from torch import Tensor
from torch.utils.data import get_worker_info

from htaf._ground.console import progress
from htaf._ground.errors import DataError, counted, expect_memory, first_line, installed
from htaf._ground.files import regular

if TYPE_CHECKING:
    from PIL import Image, ImageOps, UnidentifiedImageError
else:
    with suppress(ModuleNotFoundError):  # what reads no image needs none, such as a packed file
        from PIL import Image, ImageOps, UnidentifiedImageError

        Image.core.set_block_size(2**26)  # beyond 2**25 bytes they go back to the system; else they stay in each thread

MOST_WORKERS = 1024  # processes that read images
SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".avif", ".tif", ".tiff", ".ppm", ".pgm")
FORMATS = ("JPEG", "PNG", "BMP", "GIF", "WEBP", "AVIF", "TIFF", "PPM")  # no reader that runs another program
MAX_PIXELS = 89_478_485  # PIL's own limit for a decompression bomb: 256 MiB in RGB
LARGEST_FILE = 8 * MAX_PIXELS  # bytes: four channels of 16 bits, uncompressed
STRIP = 100  # times its shorter edge: a longer image is a strip, which takes many times its bytes when it is enlarged
ORIENTATION = 0x0112  # the EXIF tag
TILE_WIDTH, TILE_LENGTH = 322, 323  # tags of TIFF
SMALL = 8  # pixels to whose eightfold a file is decoded when it is only looked at
Content = Path | bytes


@dataclass(frozen=True)
class Look:
    """What one file is.

    Attributes:
        size: (H, W) in pixels, upright.
        problem: why it cannot be read, or "" where it can.
    """

    size: tuple[int, int] = (0, 0)
    problem: str = ""


def threads() -> int:
    """As many as there are cores for this process; one in a worker of a loader, which has its siblings."""
    if get_worker_info() is not None:
        return 1
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def look(path: Path, *, whole: bool = True) -> Look:
    """Find out whether a file can be read; whole: decode all of it (JPEG at down to 1/8 size, which still reads every
    byte), not the header only."""
    _expect_reader()
    try:
        with _opened(path) as image:
            width, height = image.size
            sideways = image.format != "TIFF" and image.getexif().get(ORIENTATION, 1) > 4  # TIFF is upright already
            if whole:
                image.draft(None, (8 * SMALL, 8 * SMALL))
                _rgb(image)
    except Exception as error:  # PIL's readers raise nearly everything on damaged files
        return Look(problem=_reason(error))
    return Look((width, height) if sideways else (height, width))


def look_all(paths: Sequence[Path]) -> list[Look]:
    """`look` for each file, in threads."""
    _expect_reader()
    with warnings.catch_warnings(), ThreadPoolExecutor(threads()) as pool:
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # `look` reports them
        with progress("reading images", len(paths), shown=None) as more:
            looks = []
            for one in pool.map(look, paths):
                looks.append(one)
                more()
            return looks


def decode(path: Path | bytes, channels: int, size: tuple[int, int], name: str = "image") -> UInt8[np.ndarray, "c h w"]:
    """Read one file as the training does.

    First frame, turned upright by its EXIF tag, 16 bits scaled to 8, transparency dropped, CMYK and grey to RGB (or
    all to grey); resized (bilinear, antialiased) to the smallest size that covers `size`, then the centre is cropped.

    Args:
        path: a file, or the content of one, of a kind in `FORMATS`.
        channels: 3 for RGB, 1 for grey.
        size: (H, W) in pixels.
        name: of a content, for the message.
    Returns:
        uint8 [C, H, W].
    Raises:
        DataError: not readable as an image. MissingError: pillow is not installed.
    """
    name, (height, width) = name if isinstance(path, bytes) else str(path), size
    _expect_reader()
    try:
        with _opened(path) as image:
            image.draft(None, (2 * max(size), 2 * max(size)))  # JPEG at 1/2 to 1/8 where both edges stay above this
            ImageOps.exif_transpose(image, in_place=True)
            plain = _rgb(image) if channels == 3 else _rgb(image).convert("L")
            scale = max(height / plain.height, width / plain.width)
            cover = max(width, round(plain.width * scale)), max(height, round(plain.height * scale))
            if cover != plain.size:
                plain = plain.resize(cover, Image.Resampling.BILINEAR)
            left, top = (cover[0] - width) // 2, (cover[1] - height) // 2
            pixels = np.asarray(plain.crop((left, top, left + width, top + height)))
            return np.ascontiguousarray(pixels.reshape(height, width, channels).transpose(2, 0, 1))
    except Exception as error:  # as in `look`
        raise DataError(f"{name}: expected an image, got {_reason(error)}") from error


def read_each(
    files: Sequence[Content],
    channels: int,
    size: tuple[int, int],
    names: Sequence[str] | None = None,
    most: int | None = None,
) -> tuple[UInt8[Tensor, "b c h w"], list[DataError | None]]:
    """`decode` for each file, in threads: the images, zeros where one cannot be read, and why not.

    Args:
        files: their paths or contents.
        names: of contents, for messages.
        most: threads; None: as `threads` says.

    Raises:
        TooLargeError: so many images of this size do not fit into memory.
    """
    height, width = size
    expect_memory(
        len(files) * channels * height * width * 5,  # bytes here, float32 in the network
        f"a batch of {len(files)} images of {height} x {width} pixels", "choose a smaller size",
    )  # fmt: skip
    pixels = np.zeros((len(files), channels, *size), dtype=np.uint8)

    def fill(place: int) -> DataError | None:
        try:
            pixels[place] = decode(files[place], channels, size, names[place] if names else "image")
        except DataError as error:
            return error
        return None

    count = min(most or threads(), len(files))
    if count <= 1:
        problems = list(map(fill, range(len(files))))
    else:
        with ThreadPoolExecutor(count) as pool:
            problems = list(pool.map(fill, range(len(files))))
    return torch.from_numpy(pixels), problems


def _expect_reader() -> None:
    """Raise MissingError where pillow is not installed."""
    with installed():
        import PIL  # noqa: F401


@contextmanager
def _opened(file: Path | bytes) -> Iterator[Image.Image]:
    """An image that is not decoded yet.

    Raises:
        ValueError: an empty file, too large a one, too many pixels, a strip.
        NoFileError: a pipe, a socket or a device.
        Exception: nearly everything, of PIL's readers.
    """
    if isinstance(file, bytes):
        size, source = len(file), io.BytesIO(file)
    else:
        size, source = regular(file).stat().st_size, file
    if not size:
        raise ValueError("an empty file")
    if size > LARGEST_FILE:
        raise ValueError(f"a file of {size / 1e9:,.1f} GB, more than {LARGEST_FILE / 1e9:,.1f}")
    with Image.open(source, formats=FORMATS) as image:
        if image.width * image.height > MAX_PIXELS:
            raise ValueError(f"{image.width} x {image.height} pixels, more than {MAX_PIXELS:,}")
        tags = getattr(image, "tag_v2", {})
        tile = tags.get(TILE_WIDTH, 0) * tags.get(TILE_LENGTH, 0)  # of a TIFF, which may be larger than the image
        if tile > MAX_PIXELS:
            raise ValueError(f"tiles of {tile:,} pixels, more than {MAX_PIXELS:,}")
        if max(image.size) > STRIP * min(image.size):
            raise ValueError(f"{image.width} x {image.height} pixels, a strip: cut it into parts")
        yield image


def _reason(error: Exception) -> str:
    if isinstance(error, MemoryError):
        return "more than memory holds"
    if isinstance(error, UnidentifiedImageError):
        return "a file of another kind"
    return (error.strerror if isinstance(error, OSError) else None) or first_line(error)


def _rgb(image: Image.Image) -> Image.Image:
    """Return the decoded image in RGB."""
    if image.mode.startswith("I"):  # PIL would clip these at 255; "I" holds 16-bit PNG in older versions of it
        values = np.asarray(image)
        if values.size and (values.min() < 0 or values.max() > 65535):
            raise ValueError(f"values from {values.min()} to {values.max()}: 8 or 16 bits, 0 to 65535, are read")
        values = values.astype(np.uint32)
        values += 128  # rounds
        values //= 257
        image = Image.fromarray(values.astype(np.uint8))
    elif image.mode == "F":
        raise ValueError("floating-point values: 8 or 16 bits are read")
    elif image.mode == "P" and "transparency" in image.info:
        image = image.convert("RGBA")
    return image.convert("RGB")


def in_folder(folder: Path) -> tuple[list[Path], list[Path]]:
    """Image files by their endings, and other files, at any depth in alphabetical order, but what begins with a dot."""
    inside = sorted(path for path in folder.rglob("*") if not path.is_dir())
    shown = [path for path in inside if not any(step[0] == "." for step in path.relative_to(folder).parts)]
    images = [path for path in shown if path.suffix.lower() in SUFFIXES]
    return images, [path for path in shown if path.suffix.lower() not in SUFFIXES]


def image_files(paths: Sequence[Path]) -> tuple[list[Path], list[str]]:
    """Return the files that are given, missing ones too, and all image files of a folder, in alphabetical order.

    Returns:
        the files; and, where folders hold files that are no images by their endings, a note with how many and the first
        name. Files and folders that begin with a dot are passed over.

    Raises:
        DataError: a folder without an image file; none of several paths exists, or the only one does not.
    """
    found: list[Path] = []
    others: list[Path] = []
    if paths and not any(map(os.path.exists, paths)):
        raise DataError(f"{paths[0]}: expected an image file or a folder of images, got neither")
    for path in paths:
        inside = [path]
        if path.is_dir():
            inside, beside = in_folder(path)
            if not inside:
                came = f"{len(beside):,} others, such as {beside[0].name}" if beside else "none"
                raise DataError(f"{path}: expected image files ({', '.join(SUFFIXES)}), got {came}")
            others += beside
        found += inside
    left_out = f"{counted(len(others), 'file')} without an ending of images left out, such as "
    return found, [f"{left_out}{others[0]}"] if others else []
