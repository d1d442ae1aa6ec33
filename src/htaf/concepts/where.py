"""The images behind codes, by their ids, and exact maps of where a network sees its concepts in them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from jaxtyping import UInt8
from torch import Tensor

from htaf.concepts.codes import ConceptError
from htaf.concepts.extract import ConceptNetwork, Device, ids_of
from htaf.concepts.regions import Map, Regions
from htaf.data.image_reading import decode, look
from htaf.data.images import FilePart, ImagePreprocessor, Images, MemoryPart
from htaf.data.reading import DataError
from htaf.training.runs import Run

BATCH = 16  # images in one pass
NEAR = 1e-3  # to the threshold: a bit that another machine, or another number of threads, may turn
STRENGTH = 0.7  # of the strongest colour over the picture
FOR, AGAINST = (213, 94, 0), (0, 114, 178)  # orange and blue, which all can tell apart


@dataclass(frozen=True, eq=False)
class Pictures:
    """Images by the ids that `htaf.concepts.extract` gave them.

    Attributes:
        of: the set that the codes are of, whose ids are paths within its folder or, where it has no files, "train/12"
            and "test/3"; of codes of files, whose ids are their paths, what reads them.
    """

    of: Images | ImagePreprocessor

    @cached_property
    def places(self) -> dict[str, tuple[MemoryPart | FilePart, int]]:
        """The part and the row of each image of the set."""
        if isinstance(self.of, ImagePreprocessor):
            return {}
        return {
            name: (part, row)
            for side, part in (("train", self.of.train), ("test", self.of.test))
            for row, name in enumerate(ids_of(part, side, torch.arange(len(part))))
        }

    def pixels(self, ids: Sequence[str]) -> UInt8[Tensor, "n channels height width"]:
        """As the network sees them, before normalisation.

        Raises:
            ConceptError: no image of the set. DataError: a file that cannot be read.
        """
        if isinstance(self.of, ImagePreprocessor):
            return self.of.read(ids)
        asked = [self._place(one) for one in ids]
        found = torch.zeros(len(ids), self.of.train.channels, *self.of.train.size, dtype=torch.uint8)
        for part in (self.of.train, self.of.test):
            rows = [(place, row) for place, (whose, row) in enumerate(asked) if whose is part]
            if rows:  # all at once: a part of files decodes them in threads
                where, own = torch.tensor(rows).T
                found[where] = part.batch(own)
        return found

    def file(self, image: str) -> Path | None:
        """The file of an image; None of one in memory. Raises ConceptError: no image of the set."""
        if isinstance(self.of, ImagePreprocessor):
            return Path(image)
        part, row = self._place(image)
        return part.folder / part.names[row] if isinstance(part, FilePart) else None

    def original(self, image: str) -> UInt8[np.ndarray, "channels height width"]:
        """An image at its own size: of a file upright and in RGB, of one in memory as it is there.

        Raises:
            ConceptError: no image of the set. DataError: a file that cannot be read, or is too large to be decoded.
        """
        path = self.file(image)
        if path is None:
            return self.pixels([image])[0].numpy()
        seen = look(path, whole=False)
        if seen.problem:
            raise DataError(f"{path}: {seen.problem}")
        return decode(path, 3, seen.size)

    def _place(self, image: str) -> tuple[MemoryPart | FilePart, int]:
        if image not in self.places:
            name = self.of.name if isinstance(self.of, Images) else ""
            raise ConceptError(f"expected ids of {name}, such as {next(iter(self.places), '')!r}, got {image!r}")
        return self.places[image]


def expect_bit(image: str, found: Map, bit: int) -> None:
    """Raises ConceptError: a map of an image whose pre-activation says another bit than the codes do."""
    now = found.pre_activation
    if bit != (now >= 0) and abs(now) > NEAR:
        raise ConceptError(
            f"{image}, concept {found.concept}: the codes say {bit}, the network {int(now >= 0)} ({now:.4g}): expected "
            "codes of this run and of these images"
        )


class Maps:
    """Maps of a run's images, by their ids.

    Args:
        run: of `htaf train icbm`, with bits.
        images: those that the codes are of; None for codes of files, whose ids are paths.
        device: where the network runs.

    Attributes:
        regions: the maps of the network that decides the bits. preprocessor: of the run. pictures: of its images.
        head: float [K, C], the network's weights. key: of all of its weights.

    Raises:
        ConceptError: a run without bits, or no such map of it.
    """

    def __init__(self, run: Run, images: Images | None, device: Device = "auto") -> None:
        network = ConceptNetwork(run, device)
        net, _ = network.deciding(run)
        self.head = network.weight
        self.key = str(run.record["model_sha256"])
        self.regions = Regions(net)
        self.preprocessor = network.preprocessor
        self.pictures = Pictures(network.preprocessor if images is None else images)

    def of(self, ids: Sequence[str], concepts: Sequence[int]) -> list[list[Map]]:
        """A map for each image, by its id, and each concept; a few images go through the network at once."""
        found: list[list[Map]] = []
        for first in range(0, len(ids), BATCH):
            pixels = self.pictures.pixels(ids[first : first + BATCH])
            found += self.regions.of(self.preprocessor.normalise(pixels), concepts)
        return found
