"""Pictures whose attributes are known and can be read back, and a stand-in for a model that sees and sorts them."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from PIL import Image

from htaf.concepts.codes import Codes, codes_of
from htaf.concepts.naming.evidence import COLUMNS, GAP, boxes
from htaf.llm.messages import START, Message

SIDE, CELL, ACROSS = 48, 12, 4
NAMES = tuple(f"bright field {'abc'[n // ACROSS]}{n % ACROSS + 1}" for n in range(10))  # row a to c, column 1 to 4
FIXED, LINKED, FREE = (0,), (1, 3, 4, 5), (2, 6, 7, 8, 9)  # by the class: all or none; 90% or 10%; of no class
DARK, BRIGHT = 60, 200
TITLE = re.compile(r"(.+), (\d+) pictures, numbered:")


def pictured(classes: int, images: int, rng: np.random.Generator) -> tuple[Codes, np.ndarray]:
    """Codes whose bit j is attribute j of an image, and the images, uint8 [n, 3, 48, 48].

    Of each class a third is the test part; attributes of `FIXED` and `LINKED` go with half of the classes.
    """
    shares = np.empty((classes, len(NAMES)))
    shares[:, FREE] = rng.uniform(0.35, 0.65, len(FREE))
    for attribute in (*FIXED, *LINKED):
        low_high = np.array((0.0, 1.0) if attribute in FIXED else (0.1, 0.9))
        shares[:, attribute] = low_high[(rng.permutation(classes) < classes / 2).astype(int)]
    labels = np.arange(images) % classes
    has = rng.random((images, len(NAMES))) < shares[labels]
    grey = np.full((images, SIDE // CELL * ACROSS), DARK)
    grey[:, : len(NAMES)] = np.where(has, BRIGHT, DARK)
    fields = grey.reshape(images, 1, -1, ACROSS).repeat(CELL, axis=2).repeat(CELL, axis=3).repeat(3, axis=1)
    pixels = (fields + rng.integers(-6, 7, fields.shape)).astype(np.uint8)
    parts = np.where(np.arange(images) // classes % 3 == 2, 2, 0).astype(np.uint8)
    weights = np.ones((classes, len(NAMES)))
    return codes_of(has, labels, weights, np.zeros(classes), parts=parts), pixels


def read(tiles: Sequence[np.ndarray]) -> np.ndarray:
    """The attributes of square pictures of any size, uint8 [height, width, 3] each: bool [n, attributes]."""
    found = np.zeros((len(tiles), len(NAMES)), dtype=bool)
    for row, tile in zip(found, tiles, strict=True):
        small = np.asarray(Image.fromarray(tile).resize((SIDE, SIDE), Image.Resampling.BOX), dtype=np.float64)
        for n in range(len(NAMES)):
            y, x = n // ACROSS * CELL, n % ACROSS * CELL
            row[n] = small[y + 3 : y + CELL - 3, x + 3 : x + CELL - 3].mean() > (DARK + BRIGHT) / 2
    return found


class VisionModel:
    """Names with the attribute that separates the two groups best, sorts by what it reads in the pictures it is sent.

    The same request is answered in the same way.
    """

    model = "vision model"

    def ask(self, messages: Sequence[Message], reply: Any, *, context: Mapping[str, Any] | None = None) -> Any:
        return reply.model_validate(json.loads(self.answer(messages)), context=context)

    def answer(self, messages: Sequence[Message]) -> str:
        """The text of the reply, JSON."""
        parts = next(message["content"] for message in reversed(messages) if isinstance(message["content"], list))
        text, groups = parts[0].get("text", ""), images_in(parts)
        if "Group A" in groups:
            return json.dumps(self._name([read(groups[name]) for name in ("Group A", "Group B")]))
        return json.dumps(self._sorting(text, read(groups["Pictures"])))

    def _name(self, has: list[np.ndarray]) -> dict[str, Any]:
        difference = has[0].mean(0) - has[1].mean(0)
        place = int(np.abs(difference).argmax())
        name = NAMES[place]
        labels = (f"not {name}", name) if difference[place] < 0 else (name, f"not {name}")
        return {"concept": labels[0], "label_1": labels[0], "label_0": labels[1], "justification": "as I see it"}

    def _sorting(self, text: str, has: np.ndarray) -> dict[str, Any]:
        found = re.search(r'^Label 1: (".*")$', text, re.MULTILINE)
        label = json.loads(found[1]) if found else ""
        name = label.removeprefix("not ")
        rng = np.random.default_rng(int.from_bytes(hashlib.sha256(f"{label} {has}".encode()).digest()[:8], "little"))
        fits = has[:, NAMES.index(name)] ^ (name != label) if name in NAMES else rng.random(len(has)) < 0.5
        numbers = np.arange(1, len(has) + 1)
        return {"label_1": numbers[fits].tolist(), "label_0": numbers[~fits].tolist()}


def picture_pixels(url: str) -> np.ndarray:
    """The pixels of a picture of `htaf.llm.messages.picture_part`: uint8 [height, width, 3]."""
    with Image.open(io.BytesIO(base64.b64decode(url.removeprefix(START)))) as picture:
        return np.asarray(picture.convert("RGB"))


def images_in(parts: Sequence[Mapping[str, Any]]) -> dict[str, list[np.ndarray]]:
    """The images that a request shows, uint8 [height, width, 3] each, by the title above them; sheets are cut up."""
    found: dict[str, list[np.ndarray]] = {}
    title, count = "", 0
    for part in parts:
        if part["type"] == "text":
            if match := TITLE.fullmatch(part["text"]):
                title, count = match[1], int(match[2])
            continue
        pixels = picture_pixels(part["image_url"]["url"])
        side = (pixels.shape[1] - GAP) // min(COLUMNS, count) - GAP
        corners = boxes(count, side)[1]
        found[title] = [pixels[y : y + side, x : x + side] for y, x in corners]
    return found
