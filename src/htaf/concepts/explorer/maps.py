"""Maps of concepts over the pictures of a page: a small file for each image, which the page loads when it needs it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int64

from htaf._ground.console import progress as progress_of
from htaf.concepts.codes import Codes, ConceptError
from htaf.concepts.explorer.folder import DATA, packed, script, value_of
from htaf.concepts.regions import Map
from htaf.concepts.where import AGAINST, BATCH, FOR, STRENGTH, Maps, expect_bit
from htaf.data.reading import DataError
from htaf.training.runs import content_hash, write_atomic

CONCEPTS = 128  # of an image at most
LEVELS = 127  # of a value, each way


def concepts_of(shown: Codes, row: int, wanted: Sequence[int]) -> Int64[np.ndarray, " concepts"]:
    """The concepts of which an image has a map.

    All, up to 128. Of more the first 128 in this order: the wanted ones, those that are on, the others; within each the
    largest absolute weight for the predicted class first.

    Args:
        shown: the images. row: of the one. wanted: numbers of concepts.

    Returns:
        int64 [at most 128], numbers of concepts, ascending.
    """
    if shown.concepts <= CONCEPTS:
        return np.arange(shown.concepts)
    first = np.isin(np.arange(shown.concepts), wanted)
    on = shown.unpack(slice(row, row + 1))[0].astype(bool)
    weight = np.abs(shown.weight[max(0, int(shown.exact[row]))])
    return np.sort(np.lexsort((-weight, ~on, ~first))[:CONCEPTS])


def packed_maps(maps: Sequence[Map]) -> dict[str, Any]:
    """The maps of one image: i4 concepts [m], u1 values [m, h, w], f4 tops [m], f4 margins [m], i4 boxes [m, 4].

    A value is (byte - 128) / 127 of its map's top, the largest absolute value. A box is in pixels of the image as the
    network sees it: left, top, right, bottom, the last two outside; -1 four times where there is none.
    """
    values = np.stack([one.values for one in maps])
    tops = np.abs(values).max((1, 2))
    levels = np.round(LEVELS * values / np.where(tops > 0, tops, 1)[:, None, None])
    return packed(
        {
            "concepts": np.array([one.concept for one in maps], np.int32),
            "values": (levels + 128).astype(np.uint8),
            "tops": tops.astype(np.float32),
            "margins": np.array([one.pre_activation for one in maps], np.float32),
            "boxes": np.array([one.box() or (-1, -1, -1, -1) for one in maps], np.int32),
        }
    )


def map_file(row: int) -> str:
    return f"{DATA}/maps-{row:06d}.js"


def write_maps(
    out: Path,
    shown: Codes,
    rows: Sequence[int],
    wanted: Mapping[int, Sequence[int]],
    maps: Maps,
    *,
    progress: bool,
    notes: list[str],
) -> dict[str, Any] | None:
    """Write the maps of these images, but for those that the folder has; one file each, so that a call goes on.

    Args:
        out: the folder of the page. shown: its images. rows: of those that get maps.
        wanted: concepts of a row that must be among its maps. maps: of the run.
        progress: show a bar on the error stream. notes: what went wrong is added here.

    Returns:
        What the page's head says of them: {"rows", "grid": [h, w], "size": [height, width] of an image as the network
        sees it, "colours": {"for", "against"}, "strength"}. None: there are no maps.
    """
    if not len(rows):
        return None
    pooling = maps.regions.pooling
    chosen = {row: concepts_of(shown, row, wanted.get(row, ())) for row in rows}
    keys = {row: content_hash([1, maps.key, shown.ids[row], chosen[row].tolist()]) for row in rows}
    whole = {row for row in rows if _has(out / map_file(row), keys[row])}
    groups = [rows[first : first + BATCH] for first in range(0, len(rows), BATCH)]
    # a group goes through the network together, or not at all: the same bytes, whenever a call was stopped
    missing = [some for some in groups if not whole.issuperset(some)]
    with progress_of("maps", sum(map(len, missing)), shown=progress) as advance:
        try:
            for some in missing:
                ids, bits = [shown.ids[row] for row in some], shown.unpack(np.array(some))
                every = np.unique(np.concatenate([chosen[row] for row in some]))
                for place, (row, one, of_all) in enumerate(zip(some, ids, maps.of(ids, every.tolist()), strict=True)):
                    found = [of_all[k] for k in np.searchsorted(every, chosen[row])]
                    for each in found:
                        expect_bit(one, each, int(bits[place, each.concept]))
                    value = {"key": keys[row], **packed_maps(found)}
                    write_atomic(out / map_file(row), script(Path(map_file(row)).stem, value))
                    whole.add(row)
                    advance(1)
        except (ConceptError, DataError, OSError) as error:
            notes.append(f"{'maps of some images only' if whole else 'no maps over pictures'}: {error}")
    if not whole:
        return None
    return {
        "rows": sorted(whole),
        "grid": list(pooling.grid),
        "size": list(maps.preprocessor.size),
        "colours": {"for": list(FOR), "against": list(AGAINST)},
        "strength": STRENGTH,
    }


def _has(file: Path, key: str) -> bool:
    try:
        return value_of(file.read_text("ascii"), file.stem)["key"] == key
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return False
