"""Two networks side by side: scores, classes, which concepts of one are those of the other, where they disagree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float64, Int64

from htaf.concepts.codes import CHUNK, PARTS, Codes, ConceptError, PartName
from htaf.concepts.redundancy import phi
from htaf.explorer import contents

LISTED = 200  # images of each kind of disagreement


@dataclass(frozen=True, eq=False)
class Beside:
    """Another network.

    codes: its bits, of the same images, at least in part. title: what it is called. names: of its concepts, as
    `htaf.concepts.naming.files.read_names` gives them; None: there are none.
    """

    codes: Codes
    title: str
    names: Sequence[Mapping[str, Any]] | None = None


def common_images(codes: Codes, other: Codes) -> tuple[Int64[np.ndarray, " common"], Int64[np.ndarray, " common"]]:
    """Rows of the images that both have, by their ids: int64, in the order of the first; the first of equal ids."""
    place: dict[str, int] = {}
    for row, one in enumerate(other.ids):
        place.setdefault(one, row)
    found = [(row, place[one]) for row, one in enumerate(codes.ids) if one in place]
    pairs = np.array(found, dtype=np.int64).reshape(-1, 2)
    return pairs[:, 0], pairs[:, 1]


def matches(codes: Codes, other: Codes) -> tuple[Int64[np.ndarray, " concepts"], Float64[np.ndarray, " concepts"]]:
    """For each concept of one network the concept of the other whose bit correlates most with it, in size.

    Args:
        codes, other: of the same images, row by row.

    Returns:
        int64 [C], numbers of the other's concepts, ties by number, -1 where none correlates (a bit that is always the
        same, no images); float64 [C], their correlation phi, -1 to 1: below 0, one is on where the other is off.
    """
    if not len(codes) or not other.concepts:
        return np.full(codes.concepts, -1), np.zeros(codes.concepts)
    both = np.zeros((codes.concepts, other.concepts))
    ones = [np.zeros(codes.concepts), np.zeros(other.concepts)]
    for start in range(0, len(codes), CHUNK):
        some = slice(start, start + CHUNK)
        mine, theirs = codes.unpack(some).astype(np.float32), other.unpack(some).astype(np.float32)
        both += mine.T @ theirs
        ones[0] += mine.sum(0)
        ones[1] += theirs.sum(0)
    related = phi(both, ones[0], ones[1], len(codes))
    best = np.abs(np.round(related, 12)).argmax(1)
    value = related[np.arange(len(best)), best]
    return np.where(np.abs(value) > 0, best, -1), value


def compared(codes: Codes, shown: Codes, beside: Beside, part: PartName) -> dict[str, Any]:
    """data/beside.js.

    Args:
        codes: of the page's network, all images. shown: those on the page. beside: the other network. part: that is
            scored, of both.

    Returns:
        "title", "concepts", "common" (images of the part that both have), "scores" of the other, "accuracies" of the
        page's classes in the other (None: it does not have the class), "matches" and "matched_by" for each concept,
        "names" of the matched concepts by number, "tally" [both right, only the page's, only the other's, neither] of
        common images with a label, "only_here" and "only_there": rows of images on the page that one alone has right.

    Raises:
        ConceptError: the other has no image of the part that this one has.
    """
    other = beside.codes
    mine, theirs = common_images(codes, other)
    of_part = PARTS.index(part)
    scored = (np.asarray(codes.parts)[mine] == of_part) & (np.asarray(other.parts)[theirs] == of_part)
    mine, theirs = mine[scored], theirs[scored]
    if not len(mine):
        raise ConceptError(
            f"expected codes of the same images beside these: {beside.title} has none of their {part} images, by id, "
            "in that part"
        )
    there = {name: number for number, name in enumerate(other.classes)}
    found = contents.measure(other, part)
    numbers = contents.class_objects(other, found)
    here, beyond = codes.take(mine), other.take(theirs)
    partner, value = matches(here, beyond)
    given = {entry["concept"]: entry for entry in beside.names or ()}
    right = np.asarray(here.labels) == np.asarray(here.exact)
    names = np.array([*codes.classes, ""], dtype=object)
    guess = np.array([*other.classes, None], dtype=object)[np.asarray(beyond.exact)]
    known = np.asarray(here.labels) >= 0
    also = names[np.asarray(here.labels)] == guess
    tally = [int((known & a & b).sum()) for a, b in ((right, also), (right, ~also), (~right, also), (~right, ~also))]
    at = {one: row for row, one in reversed(list(enumerate(shown.ids)))}
    rows = np.array([at.get(one, -1) for one in here.ids], dtype=np.int64)
    ours, their_own = (
        [int(row) for row in rows[known & which] if row >= 0][:LISTED] for which in (right & ~also, ~right & also)
    )
    return {
        "title": beside.title,
        "concepts": other.concepts,
        "common": len(mine),
        "scores": contents.score_objects(found, "image"),  # the words of the page are its own
        "accuracies": [numbers[there[name]]["accuracy"] if name in there else None for name in codes.classes],
        "matches": partner.tolist(),
        "matched_by": [round(float(one), 6) for one in value],
        "names": {
            str(number): {key: given[number].get(key) for key in ("name", "verified")}
            for number in sorted(set(partner.tolist()))
            if number in given
        },
        "tally": tally,
        "only_here": ours,
        "only_there": their_own,
    }
