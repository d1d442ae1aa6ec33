"""What a page of concepts shows, and how much of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from htaf.concepts.codes import PartName


@dataclass(frozen=True)
class Shown:
    """How much is on the page.

    Args:
        part: Which images are shown and scored.
        images: Most images on the page: half at random, then misclassified ones; scores are of all.
        thumbnail: Longest side of a picture on the page, in pixels; images up to 48 pixels are kept as they are.
        originals: Most images that are on the page at full size too, where they are files.
        maps: Most images with maps of where a concept is seen, if the network has exact ones; 0: none. Each costs one
            pass of the network and some 14 kB for 128 concepts.
    """

    part: PartName = "test"
    images: int = 10_000
    thumbnail: int = 96
    originals: int = 1000
    maps: int = 1000


@dataclass(frozen=True)
class Items:
    """What the rows of codes are. kind: the word for one of them. texts: those of texts and links, by id."""

    kind: Literal["image", "text", "link", "row"] = "image"
    texts: Mapping[str, str] | None = None


@dataclass(frozen=True)
class Heading:
    """What a page says of itself. title: of the page. about: labels and values under it. notes: more to say beside
    those that are found."""

    title: str = "Concepts"
    about: Sequence[tuple[str, str]] = ()
    notes: Sequence[str] = ()
