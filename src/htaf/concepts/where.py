"""Maps over pictures, of the images of a concept or the concepts of an image; the images behind codes, by their ids."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int64, UInt8
from PIL import Image
from torch import Tensor

from htaf._ground.console import progress as progress_of
from htaf._ground.files import expect_folder
from htaf.concepts.codes import Codes, ConceptError, PartName
from htaf.concepts.extract import ConceptNetwork, Device
from htaf.concepts.regions import Box, Map, Regions
from htaf.concepts.store import open_folder
from htaf.data.image_reading import decode, look
from htaf.data.images import FilePart, ImagePreprocessor, Images, MemoryPart
from htaf.data.reading import DataError
from htaf.training.runs import Run, locked, write_atomic

INDEX = "index.jsonl"
BATCH = 16  # images in one pass
LARGE, SMALL = 768, 192  # pixels of a picture's longer side at most, and of its shorter one at least
NEAR = 1e-3  # to the threshold: a bit that another machine, or another number of threads, may turn
STRENGTH = 0.7  # of the strongest colour over the picture
FOR, AGAINST, FRAME = (213, 94, 0), (0, 114, 178), (255, 255, 255)  # orange and blue, which all can tell apart


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
            for row, name in enumerate(part.names or (f"{side}/{row}" for row in range(len(part))))
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


def ordered(
    codes: Codes,
    margins: Float[np.ndarray, "images concepts"],
    concept: int,
    *,
    part: PartName = "test",
    count: int = 12,
) -> Int64[np.ndarray, " rows"]:
    """Images that have a concept, from the strongest to the barely on.

    Args:
        codes: of the images. margins: pre-activations of the same rows, of `htaf.concepts.store.CodesFolder.margins`.
        concept: its number. part: of which images are taken. count: how many.

    Returns:
        at most `count` row numbers, the pre-activation falling: the largest, the smallest that is >= 0, and between
        them evenly spaced in rank. Equal ones in the order of rows.
    """
    rows = _on(codes, concept, part)
    return spaced(rows, np.asarray(margins[rows, concept], np.float32), count)


def strongest(codes: Codes, row: int, count: int = 12) -> Int64[np.ndarray, " concepts"]:
    """Concepts that an image has, by their weight for the class that the exact network predicts, largest first."""
    if not 0 <= row < len(codes) or count < 1:
        raise ConceptError(f"expected a row below {len(codes):,} and count >= 1, got {row} and {count}")
    on = np.flatnonzero(codes.unpack(slice(row, row + 1))[0])
    weight = codes.weight[max(0, int(codes.exact[row])), on]
    return on[np.argsort(-weight, kind="stable")][:count]


def coloured(picture: UInt8[np.ndarray, "h w 3"], found: Map) -> UInt8[np.ndarray, "h w 3"]:
    """Draw a map over its picture: orange where it speaks for the bit, blue where against.

    Args:
        picture: the view that the network had, of any resolution.
        found: the map; its largest absolute value is the strongest colour.
    """
    height, width = picture.shape[:2]
    top = float(np.abs(found.values).max()) or 1.0
    small = Image.fromarray((found.values / top).astype(np.float32))
    values = np.asarray(small.resize((width, height), Image.Resampling.BILINEAR))[..., None]
    colour = np.where(values > 0, np.array(FOR, np.float32), np.array(AGAINST, np.float32))
    strength = STRENGTH * np.abs(values).clip(0, 1)
    return (picture * (1 - strength) + colour * strength).round().astype(np.uint8)


def framed(picture: UInt8[np.ndarray, "h w 3"], found: Map) -> UInt8[np.ndarray, "h w 3"]:
    """Draw a map over its picture (`coloured`), and the box of its region."""
    drawn, box = coloured(picture, found), found.box()
    if box is not None:
        left, upper, right, lower = _scaled(box, found.size, drawn.shape)
        line = max(1, min(drawn.shape[:2]) // 150)
        inside = drawn[upper:lower, left:right].copy()
        drawn[upper:lower, left:right] = FRAME
        drawn[upper + line : lower - line, left + line : right - line] = inside[line:-line, line:-line]
    return drawn


def expect_bit(image: str, found: Map, bit: int) -> None:
    """Raises ConceptError: a map of an image whose pre-activation says another bit than the codes do."""
    now = found.pre_activation
    if bit != (now >= 0) and abs(now) > NEAR:
        raise ConceptError(
            f"{image}, concept {found.concept}: the codes say {bit}, the network {int(now >= 0)} ({now:.4g}): expected "
            "codes of this run and of these images"
        )


class Maps:
    """Maps over the pictures of a run's images, for other drawings.

    Args:
        run, images, device: as `write_where` takes them.

    Attributes:
        regions: the maps of the network that decides the bits. preprocessor: of the run. pictures: of its images.
        head: float [K, C], the network's weights. key: of all of its weights.

    Raises:
        ConceptError: a run without bits, or no such map of it.
    """

    def __init__(self, run: Run, images: Images | None, device: Device = "auto") -> None:
        network = ConceptNetwork(run, device)
        if network.plain:
            raise ConceptError(f"expected a run with bits, {run.path} is a plain network (method relu)")
        self.head = network.weight
        self.key = str(run.record["model_sha256"])
        self.regions = Regions(network.smooth if network.exact is None else network.exact)
        self.preprocessor = network.preprocessor
        self.pictures = Pictures(network.preprocessor if images is None else images)

    def of(self, ids: Sequence[str], concepts: Sequence[int]) -> list[list[Map]]:
        """A map for each image, by its id, and each concept; a few images go through the network at once."""
        found: list[list[Map]] = []
        for first in range(0, len(ids), BATCH):
            pixels = self.pictures.pixels(ids[first : first + BATCH])
            found += self.regions.of(self.preprocessor.normalise(pixels), concepts)
        return found

    def picture(self, image: str) -> UInt8[np.ndarray, "h w 3"]:
        """The view that the network has of an image, in RGB and from its file as large as that allows, up to 768
        pixels."""
        height, width = size = self.preprocessor.size
        file, factor = self.pictures.file(image), 1
        if file is not None:
            there = look(file, whole=False).size
            factor = max(1, min(there[0] // height, there[1] // width, LARGE // max(size)))
        if file is not None and factor > 1:
            return rgb(decode(file, 3, (factor * height, factor * width)))
        return rgb(self.pictures.pixels([image])[0].numpy())


def write_where(
    run: Run,
    images: Images | None,
    codes: str | Path,
    out: str | Path,
    *,
    concepts: Sequence[int] = (),
    image: str | None = None,
    count: int = 12,
    part: PartName = "test",
    device: Device = "auto",
    progress: bool = False,
) -> list[dict[str, Any]]:
    """Write maps over pictures, and an index.

    Of each concept: at most `count` images, from the strongest to the barely on (`ordered`). Of an image: the concepts
    asked for, else those that it has and that weigh most for its class (`strongest`).

    Args:
        run: of `htaf train icbm`, with bits.
        images: those that the codes are of; None for codes of files, whose ids are paths.
        codes: the folder of codes; of concepts' images with margins or features.
        out: a new or empty folder, or that of an earlier call, whose files are replaced: concept-NUMBER/001-map.png,
            and of an image image-ROW/concept-NUMBER-map.png; index.jsonl with a line for each map.
        concepts: their numbers. image: an id or a row number, as `Codes.row`
            takes it. One of both, or both.
        count: images of a concept, or concepts of an image. part: of which images are taken.
        device: where the network runs. progress: show a bar on the error stream.

    Returns:
        the lines of index.jsonl: {"image", "row", "label", "predicted", "concept", "bit", "margin", "box": [left, top,
        right, bottom] in pixels of the image as the network sees it, right and bottom outside, or None, "size":
        [height, width] of that, "share" of the positive values inside the box, "map"}.

    Raises:
        ConceptError: a run without bits, or no exact maps of it; codes of another network, or without margins; no such
            concept or image; a concept that no image of the part has; a folder of other files. DataError: images that
            are not there.
    """
    out = Path(out)
    folder = open_folder(codes)
    opened = folder.codes()
    if count < 1 or not (concepts or image is not None):
        raise ConceptError(f"expected concepts or an image and count >= 1, got {list(concepts)}, {image} and {count}")
    if bad := [j for j in concepts if not 0 <= j < opened.concepts]:
        raise ConceptError(f"expected concepts from 0 to {opened.concepts - 1}, got {bad[0]}")
    row = None if image is None else opened.row(image)
    if row is not None:
        chosen = list(dict.fromkeys(map(int, concepts))) or strongest(opened, row, count).tolist()
        asked = [(f"image-{row}", np.array([row]), chosen)]
    else:
        margins: Any = folder.margins()
        if margins is None and "features" in folder.columns:
            margins = folder.features().values
        if margins is None:
            raise ConceptError(f"{codes} have no margins to order images by: extract them with --keep margins")
        numbers = [int(j) for j in dict.fromkeys(concepts)]
        asked = [(f"concept-{j}", ordered(opened, margins, j, part=part, count=count), [j]) for j in numbers]
    maps = Maps(run, images, device)
    if opened.weight.shape != maps.head.shape:
        shapes = f"{list(maps.head.shape)}, got {list(opened.weight.shape)}"
        raise ConceptError(f"{codes} are of another network: expected a head of [classes, concepts] {shapes}")
    expect_folder(out, "the maps", ConceptError)
    with locked(out, "another process writes", ConceptError):
        others = sorted(p.name for p in out.iterdir() if not p.name.startswith("."))
        if INDEX in others:  # what this or a stopped command drew here is drawn anew
            names = {name for name, _, _ in asked}
            others = [other for other in others if other != INDEX and Path(other).stem not in names]
        if others:
            raise ConceptError(f"expected a new or empty folder, {out} holds {others[0]!r}: choose another --out")
        write_atomic(out / INDEX, "")
        lines: list[dict[str, Any]] = []
        with progress_of("concepts" if len(asked) > 1 else "maps", len(asked), shown=progress) as advance:
            for name, rows, wanted in asked:
                lines += _drawn(out, name, rows, wanted, opened, maps, by_image=row is not None)
                dumped = (json.dumps(line, ensure_ascii=False, sort_keys=True) for line in lines)
                write_atomic(out / INDEX, "".join(f"{line}\n" for line in dumped))
                advance()
    return lines


def _drawn(
    out: Path, name: str, rows: np.ndarray, concepts: list[int], codes: Codes, maps: Maps, *, by_image: bool
) -> list[dict[str, Any]]:
    """Write the pictures of some images and concepts; their lines."""
    bits, lines = codes.unpack(rows), []
    for first in range(0, len(rows), BATCH):
        some = rows[first : first + BATCH]
        ids = [codes.ids[int(row)] for row in some]
        for place, (row, one, found_of) in enumerate(
            zip(some.tolist(), ids, maps.of(ids, concepts), strict=True), first
        ):
            picture = enlarged(maps.picture(one))
            for found in found_of:
                bit, now = int(bits[place, found.concept]), found.pre_activation
                expect_bit(one, found, bit)
                file = f"{name}/concept-{found.concept}" if by_image else f"{name}/{place + 1:03}"
                drawn, box = framed(picture, found), found.box()
                write_atomic(out / f"{file}-map.png", _png(drawn))
                label, predicted = int(codes.labels[row]), int(codes.exact[row])
                line = {
                    "image": one, "row": row, "label": codes.classes[label] if label >= 0 else None,
                    "predicted": codes.classes[predicted] if predicted >= 0 else None,
                    "concept": found.concept, "bit": bit, "margin": now, "box": None if box is None else list(box),
                    "size": list(found.size), "share": 0.0 if box is None else found.share(box),
                    "map": f"{file}-map.png",
                }  # fmt: skip
                lines.append(line)
    return lines


def _on(codes: Codes, concept: int, part: PartName) -> Int64[np.ndarray, " rows"]:
    """Rows of a part that have a concept."""
    rows = codes.rows(part)
    rows = rows[codes.has(concept, rows)]
    if not len(rows):
        raise ConceptError(f"no {part} image has concept {concept}: choose another concept, or --part")
    return rows


def spaced(rows: np.ndarray, margins: np.ndarray, count: int) -> Int64[np.ndarray, " rows"]:
    """Of rows with the highest margins first, some evenly spaced in rank."""
    if count < 1:
        raise ConceptError(f"expected count >= 1, got {count}")
    falling = rows[np.argsort(-margins, kind="stable")]
    return falling[np.linspace(0, len(rows) - 1, min(count, len(rows))).round().astype(np.int64)]


def _scaled(box: Box, own: tuple[int, int], to: Sequence[int]) -> Box:
    """A box of one size on another, at least a pixel wide and high."""
    (height, width), (rows, columns) = own, to[:2]
    left, upper = box[0] * columns // width, box[1] * rows // height
    right, lower = -(-box[2] * columns // width), -(-box[3] * rows // height)
    return left, upper, max(right, left + 1), max(lower, upper + 1)


def enlarged(picture: UInt8[np.ndarray, "h w 3"]) -> UInt8[np.ndarray, "rows columns 3"]:
    """Small pictures by a whole factor, each pixel a square."""
    factor = max(1, min(-(-SMALL // min(picture.shape[:2])), LARGE // max(picture.shape[:2])))
    return picture.repeat(factor, 0).repeat(factor, 1)


def rgb(pixels: UInt8[np.ndarray, "c h w"]) -> UInt8[np.ndarray, "h w 3"]:
    """An image, grey ones too, as it is drawn."""
    return np.ascontiguousarray(np.broadcast_to(pixels, (3, *pixels.shape[1:])).transpose(1, 2, 0))


def _png(picture: UInt8[np.ndarray, "h w 3"]) -> bytes:
    data = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(picture)).save(data, format="png")
    return data.getvalue()
