"""The images behind codes, by their ids."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from jaxtyping import UInt8
from torch import Tensor

from htaf.concepts.codes import ConceptError
from htaf.data.images import FilePart, Images, MemoryPart


def pixels_of_files(
    paths: Sequence[str], size: tuple[int, int], channels: int
) -> UInt8[Tensor, "n channels height width"]:
    """Images in files, as `htaf.concepts.extract` showed them to a network before normalisation.

    Args:
        paths: their ids.
        size: height and width. channels: 1 or 3.

    Raises:
        DataError: a file that cannot be read.
    """
    none = torch.full((len(paths),), -1, dtype=torch.int64)
    return FilePart(Path(), tuple(paths), none, size, channels).batch(torch.arange(len(paths)))


def pixels_of(images: Images, ids: Sequence[str]) -> UInt8[Tensor, "n channels height width"]:
    """The images that `htaf.concepts.extract` gave these ids.

    Args:
        images: the set that the codes are of.
        ids: paths within the set's folder; of images that are no files "train/12" or "test/3".

    Returns:
        uint8 [n, channels, height, width], as the network was shown them before normalisation.

    Raises:
        ConceptError: an id that the set does not have.
    """
    places: dict[str, tuple[MemoryPart | FilePart, int]] = {}
    for side in ("train", "test"):
        part = getattr(images, side)
        # names come first, but images in memory keep their numbers: codes made before parts had names know no others
        numbers = (f"{side}/{row}" for row in range(len(part) if isinstance(part, MemoryPart) else 0))
        for names in (part.names or (), numbers):
            places |= {name: (part, row) for row, name in enumerate(names)}
    unknown = [one for one in ids if one not in places]
    if unknown:
        raise ConceptError(f"expected ids of {images.name}, such as {next(iter(places), '')!r}, got {unknown[0]!r}")
    found = torch.zeros(len(ids), images.train.channels, *images.train.size, dtype=torch.uint8)
    for part in (images.train, images.test):
        asked = [(place, places[one][1]) for place, one in enumerate(ids) if places[one][0] is part]
        if asked:  # all at once: a part of files decodes them in threads
            where, rows = torch.tensor(asked).T
            found[where] = part.batch(rows)
    return found


def files_of(images: Images, ids: Sequence[str]) -> list[Path | None]:
    """The files of images by their ids; None of those that are not read from files by each batch."""
    parts = [part for part in (images.train, images.test) if isinstance(part, FilePart)]
    folders = {name: part.folder for part in parts for name in part.names}
    return [folders[one] / one if one in folders else None for one in ids]
