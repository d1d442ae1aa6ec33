"""The page of a network's concepts: a folder with the page itself, its data and thumbnails, complete or not at all."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int64, UInt8
from PIL import Image

from htaf._ground.console import progress as progress_of
from htaf.concepts.codes import PARTS, Codes, ConceptError, codes_key
from htaf.concepts.counts import HIGH, LOW
from htaf.concepts.doubtful import doubtful
from htaf.concepts.explorer import contents
from htaf.concepts.explorer.contents import chosen_rows, example_row
from htaf.concepts.explorer.folder import (
    DATA,
    FORMAT,
    FULL,
    INDEX,
    claimed,
    packed,
    page_files,
    remove_stale,
    script,
    value_of,
)
from htaf.concepts.explorer.shown import Heading, Items, Shown
from htaf.concepts.regions import Map
from htaf.concepts.scores import dead_row, summary
from htaf.concepts.where import AGAINST, BATCH, FOR, STRENGTH, Maps, expect_bit
from htaf.data.reading import DataError
from htaf.training.runs import content_hash, write_atomic

AS_USUAL, UNTITLED, IMAGES = Shown(), Heading(), Items()
Pixels = Callable[[Sequence[str]], UInt8[np.ndarray, "n channels height width"]]
Original = Callable[[str], UInt8[np.ndarray, "channels height width"]]
CELLS = 16  # a side of a sheet, where cells are small
SIDE = 2048  # of a sheet at most, in pixels: what phones still draw
THUMBNAIL = 96  # pixels of the longer side of a larger image
LOSSLESS = 48  # pixels of the longer side up to which images are kept as they are
QUALITY = 80
CONCEPTS = 128  # of an image at most
LEVELS = 127  # of a value, each way
DOUBTED = 100  # doubtful labels of a kind that are listed


def build_page(
    codes: Codes,
    out: str | Path,
    *,
    pixels: Pixels | None = None,
    names: Sequence[Mapping[str, Any]] | None = None,
    margins: np.ndarray | None = None,
    features: np.ndarray | None = None,
    original: Original | None = None,
    maps: Maps | None = None,
    items: Items = IMAGES,
    shown: Shown = AS_USUAL,
    heading: Heading = UNTITLED,
    progress: bool = False,
) -> dict[str, Any]:
    """Write the page of a network's concepts to a folder: open its index.html, from disk or from any web server.

    The same arguments give the same bytes. A build that was killed leaves a page that says so; the same call makes it
    whole.

    Args:
        codes: bits of the training images, from which rates and groups come, and of the part that is shown.
        out: a new or empty folder, or one that this function wrote: its files are replaced, others stay.
        pixels: gives the images of some ids as uint8 [n, C, H, W], C 1 or 3, for a sheet of 256 or fewer at once; None:
            no thumbnails. Where it raises ConceptError, DataError or OSError there are none either, and a note why.
        names: as `htaf.concepts.naming.files.read_names` gives them; None: there are none.
        margins: [images, C] float, of all images of the codes: how far above its threshold the pre-activation of a bit
            lies. The page then shows the images that have a concept most strongly, barely, and barely not.
        features: [images, F] float, of all images of the codes, by which doubtful labels are found, such as what a
            backbone gives; None: by the bits, which show them less well.
        original: gives the image of one id at full size, as uint8 [C, H, W], C 1 or 3; None: thumbnails alone. Errors
            as of `pixels`.
        maps: exact maps of where a network sees its concepts; None: there are none. An error of them is a note. Maps
            that the folder has are kept.
        items: what the rows of the codes are. Texts stand on the page as texts, links lead where they point; rows show
            their ids.
        shown: which images, and how many: images >= 1, see `htaf.concepts.explorer.contents.chosen_rows`; detailed >=
            0: the example, the strongest and the weakest that have each concept where `maps` and `margins` are given,
            mistakes, typical ones, samples.
        heading: the title of the page, and what stands under it.
        progress: show bars on the error stream, lines where it is no terminal.

    Returns:
        {"out", "page": path of index.html, "part", "images", "concepts", "classes", "named", "verified", "sprites",
        "originals" and "maps": numbers of files, "doubtful": see `doubtful_pairs`, "bytes", "notes"}.

    Raises:
        ConceptError: a folder with other files; no images of the part; arguments out of range; a head that is not
            finite; a label that is no class; an installation without the page. OSError: it cannot be written.
    """
    out = Path(out)
    part, images = shown.part, shown.images
    if images < 1 or shown.detailed < 0:
        raise ConceptError(f"expected images >= 1 and detailed >= 0, got {images} and {shown.detailed}")
    for array in (codes.weight, codes.bias):
        if not np.isfinite(array).all():
            raise ConceptError(f"expected finite weights and biases of the head, got {array[~np.isfinite(array)][0]}")
    by_number = None if names is None else {entry["concept"]: entry for entry in names}
    page = page_files()
    rows = chosen_rows(codes, part, images)
    seen = codes.take(rows) if len(rows) else codes.part(part)  # the latter says which parts there are
    texts = None if items.texts is None else [items.texts[one] for one in seen.ids]
    found = contents.measure(codes, part)
    kept = None if margins is None else np.asarray(margins[rows])
    led = contents.discovery_of(codes, seen, found, kept)
    named = [entry for entry in names or () if entry.get("name")]
    dead = [dead_row(int(found.dead.sum()), items.kind)]
    scores = dead if found.scores is None else summary(found.scores, items.kind)
    head: dict[str, Any] = {
        "format": FORMAT,
        "codes": codes_key(codes),
        "chunks": contents.chunk_sizes(seen, texts),
        "version": metadata.version("htaf"),
        "title": heading.title,
        "part": part,
        "items": {"kind": items.kind, "texts": texts is not None},
        "about": [[label, value] for label, value in heading.about],
        "classes": list(codes.classes),
        "concepts": codes.concepts,
        "images": len(seen),
        "parts": {name: int((codes.parts == number).sum()) for number, name in enumerate(PARTS)},
        "groups": {"low": LOW, "high": HIGH},
        "few": contents.FEW,
        "scores": scores,
        "example": example_row(seen, found.rates),
        "per_class": contents.class_objects(codes, found),
        "notes": [*heading.notes, *contents.notes_of(codes, seen, found, by_number, items.kind)],
    }
    pairs, compared = doubtful_pairs(codes, features, rows)
    if pairs:
        head["notes"].append(f"{len(pairs):,} labels are doubtful: look at them, under Mistakes")
    with claimed(out):
        (out / DATA / "page.js").unlink(missing_ok=True)  # from here on the folder holds no whole page
        head["sprites"] = _sprites(out, seen.ids, pixels, progress, head["notes"])
        beside = [one[side]["id"] for one in pairs for side in ("image", "like")]
        sheet = head["sprites"] and _sprites(out, beside, pixels, False, head["notes"], "sprite-d")
        worth = _worth_seeing(seen, head["example"], led)[: shown.detailed]
        head["originals"] = _originals(out, seen.ids, worth, original, progress, head["notes"])
        ends, notes = _ends(led), head["notes"]
        head["maps"] = maps and write_maps(out, seen, worth, ends, maps, progress=progress, notes=notes)
        values: dict[str, Any] = {
            "concepts": contents.concept_objects(codes, found, by_number or {}),
            "arrays": packed(led),
            "rows": packed(contents.rows_of(seen)),
            "doubtful": {"pairs": pairs, "compared": compared, "sprites": sheet},
            **dict(contents.chunks_of(seen, texts)),
            "page": head,
        }
        files: dict[str, bytes | str] = {**page}
        files |= {f"{DATA}/{name}.js": script(name, value) for name, value in values.items()}
        sprites = [name for one in (head["sprites"], sheet) if one for name in one["files"]]
        none = {"rows": ()}
        full = [f"{DATA}/{FULL}/{row:06d}.webp" for row in (head["originals"] or none)["rows"]]
        drawn_over = [map_file(row) for row in (head["maps"] or none)["rows"]]
        remove_stale(out, {*files, *sprites, *full, *drawn_over})
        for name, data in files.items():  # page.js comes last
            write_atomic(out / name, data)
    return {
        "out": str(out),
        "page": str(out / INDEX),
        "part": part,
        "images": len(seen),
        "concepts": codes.concepts,
        "classes": len(codes.classes),
        "named": len(named),
        "verified": sum(bool(entry.get("verified")) for entry in named),
        "sprites": len(sprites),
        "originals": len(full),
        "maps": len(drawn_over),
        "doubtful": pairs,
        "bytes": sum((out / name).stat().st_size for name in (*files, *sprites, *full, *drawn_over)),
        "notes": head["notes"],
    }


def doubtful_pairs(
    codes: Codes, features: np.ndarray | None, rows: Int64[np.ndarray, " images"]
) -> tuple[list[dict[str, Any]], int]:
    """List images with doubtful labels beside the images that speak against these, the surest first.

    Args:
        rows: of the codes that the page shows.

    Returns:
        at most 100 of each kind, as JSON values: {"kind": "copy" or "class", "seems": a class, "strength": see
        `htaf.concepts.doubtful.Doubt`, "image" and "like": {"id", "label" and "prediction": classes, "part", "row" on
        the page, -1: it has not this one}}; and how many images were compared.
    """
    found, compared = doubtful(codes, features)
    on_page = {row: n for n, row in enumerate(rows.tolist())}

    def image(row: int) -> dict[str, Any]:
        said = {"id": codes.ids[row], "part": PARTS[codes.parts[row]], "row": on_page.get(row, -1)}
        return said | {"label": codes.classes[codes.labels[row]], "prediction": codes.classes[codes.exact[row]]}

    return [
        {
            "kind": one.kind,
            "seems": codes.classes[one.seems],
            "strength": round(one.strength, 4),
            "image": image(one.row),
            "like": image(one.like),
        }
        for kind in ("copy", "class")
        for one in [one for one in found if one.kind == kind][:DOUBTED]
    ], compared


def _worth_seeing(shown: Codes, example: int | None, led: Mapping[str, np.ndarray]) -> list[int]:
    """Return rows of images: the example, the strongest and the barely on of each concept, mistakes, more of these,
    typical ones, samples of concepts; each once."""
    wrong = np.flatnonzero((shown.labels >= 0) & (shown.labels != shown.exact))
    some = [[] if example is None else [example], wrong, led["typical"].ravel(), led["samples"].ravel()]
    if "strongest" in led:
        on = led["strongest"][:2]  # the third kind lacks the concept
        some[1:2] = [on[:, :, 0].ravel(), wrong, on.transpose(2, 0, 1).ravel()]
    rows = np.concatenate([np.asarray(one, dtype=np.int64) for one in some])
    return list(dict.fromkeys(rows[rows >= 0].tolist()))


def _ends(led: Mapping[str, np.ndarray]) -> dict[int, list[int]]:
    """Of each row of an image the concepts of which it is among the strongest or the barely on."""
    found: dict[int, list[int]] = {}
    for kind, concept, place in np.argwhere(led["strongest"][:2] >= 0).tolist() if "strongest" in led else ():
        found.setdefault(int(led["strongest"][kind, concept, place]), []).append(concept)
    return found


def _sprites(
    out: Path, ids: Sequence[str], pixels: Pixels | None, progress: bool, notes: list[str], name: str = "sprite-"
) -> dict[str, Any] | None:
    """Write the sheets of thumbnails, one by one; where the images cannot be had give None, and note why."""
    if pixels is None or not len(ids):
        return None
    shape: dict[str, Any] = {}
    files: list[str] = []
    with progress_of("thumbnails", len(ids), shown=progress) as advance:
        try:
            for form, data in sheets(ids, pixels):
                shape = {name: getattr(form, name) for name in ("width", "height", "columns", "rows")}
                files.append(f"{DATA}/{name}{len(files):04d}.webp")
                write_atomic(out / files[-1], data)
                advance(form.columns * form.rows)
        except (ConceptError, DataError, OSError) as error:
            notes.append(f"no thumbnails: {error}")
            return None
    return shape | {"files": files}


def _originals(
    out: Path, ids: Sequence[str], rows: Sequence[int], original: Original | None, progress: bool, notes: list[str]
) -> dict[str, Any] | None:
    """Write the images of these rows as files of their own, but for those that are no larger than in the sheets."""
    if original is None or not rows:
        return None
    (out / DATA / FULL).mkdir(exist_ok=True)
    written: list[int] = []
    with progress_of("pictures at full size", len(rows), shown=progress) as advance:
        for row in rows:
            try:
                image = original(ids[row])
            except (ConceptError, DataError, OSError) as error:
                notes.append(f"no pictures at full size: {error}")
                return None
            if max(image.shape[1:]) > THUMBNAIL:
                write_atomic(out / DATA / FULL / f"{row:06d}.webp", webp(_as_picture(image)))
                written.append(row)
            advance(1)
    return {"folder": f"{DATA}/{FULL}", "rows": sorted(written)} if written else None


@dataclass(frozen=True)
class Layout:
    """width, height: of a cell in pixels. columns, rows: cells of a sheet. lossless: nothing is scaled."""

    width: int
    height: int
    columns: int
    rows: int
    lossless: bool


def layout(height: int, width: int) -> Layout:
    """Lay out cells for images of that size, in pixels: as they are up to 48, else their longer side 96 at most."""
    longer = max(height, width)
    scale = 1.0 if longer <= LOSSLESS else min(1.0, THUMBNAIL / longer)
    size = max(1, round(width * scale)), max(1, round(height * scale))
    columns, rows = (max(1, min(CELLS, SIDE // side)) for side in size)
    return Layout(*size, columns, rows, longer <= LOSSLESS)


def sheets(ids: Sequence[str], pixels: Pixels) -> Iterator[tuple[Layout, bytes]]:
    """Draw WebP files one after the other; image i is in cell i % cells, row by row, of sheet i // cells.

    Args:
        ids: of the images. pixels: gives uint8 [n, C, H, W] for some of them, C 1 or 3; asked for a sheet at a time.
    """
    height, width = pixels(ids[:1]).shape[2:]
    form = layout(height, width)
    for start in range(0, len(ids), cells := form.columns * form.rows):
        yield form, _sheet(pixels(ids[start : start + cells]), form)


def _sheet(pixels: UInt8[np.ndarray, "n channels height width"], form: Layout) -> bytes:
    grey = pixels.shape[1] == 1
    sheet = Image.new("L" if grey else "RGB", (form.columns * form.width, form.rows * form.height))
    for number, image in enumerate(pixels):
        cell = _as_picture(image)
        if cell.size != (form.width, form.height):
            cell = cell.resize((form.width, form.height), Image.Resampling.LANCZOS)
        sheet.paste(cell, (number % form.columns * form.width, number // form.columns * form.height))
    return webp(sheet, lossless=form.lossless)


def webp(image: Image.Image, *, lossless: bool = False) -> bytes:
    """Encode an image as a WebP file, its longer side 2,048 pixels at most."""
    image.thumbnail((SIDE, SIDE), Image.Resampling.LANCZOS)
    data = io.BytesIO()
    image.convert("RGB").save(data, format="WEBP", lossless=lossless, quality=QUALITY, method=4)
    return data.getvalue()


def _as_picture(pixels: UInt8[np.ndarray, "channels height width"]) -> Image.Image:
    return Image.fromarray(pixels[0] if len(pixels) == 1 else np.ascontiguousarray(pixels.transpose(1, 2, 0)))


def concepts_of(shown: Codes, row: int, wanted: Sequence[int]) -> Int64[np.ndarray, " concepts"]:
    """Return the concepts of which an image has a map.

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
    """Return the maps of one image: i4 concepts [m], u1 values [m, h, w], f4 tops [m], f4 margins [m], i4 boxes [m, 4].

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
