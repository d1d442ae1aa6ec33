"""The images behind codes, by their ids."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import UInt8
from torch import Tensor

from htaf.concepts.codes import ConceptError
from htaf.data.images import FilePart, Images, MemoryPart


def pixels_of(images: Images, ids: Sequence[str]) -> UInt8[Tensor, "n channels height width"]:
    """The images that `htaf.concepts.extract` gave these ids.

    Args:
        images: the set that the codes are of.
        ids: paths within the set's folder; of images in memory "train/12" or "test/3".

    Returns:
        uint8 [n, channels, height, width], as the network was shown them before normalisation.

    Raises:
        ConceptError: an id that the set does not have.
    """
    places: dict[str, tuple[MemoryPart | FilePart, int]] = {}
    for side in ("train", "test"):
        part = getattr(images, side)
        names = part.names if isinstance(part, FilePart) else (f"{side}/{row}" for row in range(len(part)))
        places |= {name: (part, row) for row, name in enumerate(names)}
    unknown = [one for one in ids if one not in places]
    if unknown:
        raise ConceptError(f"expected ids of {images.name}, such as {next(iter(places), '')!r}, got {unknown[0]!r}")
    found = [part.batch(torch.tensor([row])) for part, row in (places[one] for one in ids)]
    height, width = images.train.size
    return torch.cat(found) if found else torch.zeros(0, images.train.channels, height, width, dtype=torch.uint8)
