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
        images: Most images on the page, drawn at random, evenly over the classes; scores are of all.
        detailed: Most images at full size, where they are files, and with maps of where a concept is seen, if the
            network has exact ones; 0: none. A map costs one pass of the network and some 14 kB for 128 concepts.
    """

    part: PartName = "test"
    images: int = 10_000
    detailed: int = 1000


@dataclass(frozen=True)
class Items:
    """What the rows of codes are. kind: the word for one of them. texts: those of texts, which may be links, by id."""

    kind: Literal["image", "text", "row"] = "image"
    texts: Mapping[str, str] | None = None


@dataclass(frozen=True)
class Heading:
    """What a page says of itself. title: of the page. about: labels and values under it. notes: more to say beside
    those that are found."""

    title: str = "Concepts"
    about: Sequence[tuple[str, str]] = ()
    notes: Sequence[str] = ()
