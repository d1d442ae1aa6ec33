"""A stand-in for a model that sees pictures: it decodes those it is sent and knows what the drawn ones can have."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeVar

import numpy as np
from jaxtyping import Bool, UInt8
from PIL import Image
from pydantic import BaseModel

from htaf.concepts.llm import START, Message
from htaf.concepts.naming.job import COLUMNS, GAP, boxes
from htaf_paper import drawn

Seeing = Literal["sees", "random name", "same name", "random sorting", "fits always"]
R = TypeVar("R", bound=BaseModel)
TITLE = re.compile(r"(.+), (\d+) pictures, numbered:")


class VisionModel:
    """Names with the attribute that separates the two groups best, sorts by what it reads in the pictures.

    Args:
        errs: how often it misreads an attribute of a picture, each time anew.
        behaviour: "sees" does as said; the others name badly (a random attribute or its negation; always the first
            one) or sort badly (at random; all under the first label).
        seed: of what is random; the same request is answered in the same way.
    """

    def __init__(self, errs: float = 0.0, behaviour: Seeing = "sees", seed: int = 0) -> None:
        self.model = f"vision model: {behaviour}, errs {errs:g}"
        self.errs, self.behaviour, self.seed = errs, behaviour, seed

    def ask(self, messages: Sequence[Message], reply: type[R], *, context: Mapping[str, Any] | None = None) -> R:
        """As `htaf.concepts.llm.ServerClient`."""
        return reply.model_validate(json.loads(self.answer(messages)), context=context)

    def answer(self, messages: Sequence[Message]) -> str:
        """The text of the reply, JSON."""
        digest = hashlib.sha256(f"{self.seed} {json.dumps(without_pictures(messages))}".encode()).digest()
        rng = np.random.default_rng(int.from_bytes(digest[:8], "little"))
        parts = next(message["content"] for message in reversed(messages) if isinstance(message["content"], list))
        text, groups = parts[0].get("text", ""), images_in(parts)
        if "Group A" in groups:
            return json.dumps(self._name([self._read(groups[name], rng) for name in ("Group A", "Group B")], rng))
        return json.dumps(self._sorting(text, self._read(groups["Pictures"], rng), rng))

    def _read(self, tiles: list[np.ndarray], rng: np.random.Generator) -> Bool[np.ndarray, "n attributes"]:
        found = drawn.read(tiles)
        return found ^ (rng.random(found.shape) < self.errs)

    def _name(self, has: list[np.ndarray], rng: np.random.Generator) -> dict[str, Any]:
        difference = has[0].mean(0) - has[1].mean(0)
        place = int(np.abs(difference).argmax())
        negated = bool(difference[place] < 0)
        if self.behaviour == "random name":
            place, negated = int(rng.integers(len(drawn.NAMES))), bool(rng.integers(2))
        elif self.behaviour == "same name":
            place, negated = 0, False
        name = drawn.NAMES[place]
        labels = (f"not {name}", name) if negated else (name, f"not {name}")
        return {"concept": labels[0], "label_1": labels[0], "label_0": labels[1], "justification": "as I see it"}

    def _sorting(self, text: str, has: np.ndarray, rng: np.random.Generator) -> dict[str, Any]:
        found = re.search(r'^Label 1: (".*")$', text, re.MULTILINE)
        label = json.loads(found[1]) if found else ""
        name = label.removeprefix("not ")
        fits = rng.random(len(has)) < 0.5
        if self.behaviour == "fits always":
            fits[:] = True
        elif self.behaviour != "random sorting" and name in drawn.NAMES:
            fits = has[:, drawn.NAMES.index(name)] ^ (name != label)
        numbers = np.arange(1, len(has) + 1)
        return {"label_1": numbers[fits].tolist(), "label_0": numbers[~fits].tolist()}


def picture_pixels(url: str) -> UInt8[np.ndarray, "height width 3"]:
    """The pixels of a picture of `htaf.concepts.llm.picture_part`: uint8 [height, width, 3]."""
    with Image.open(io.BytesIO(base64.b64decode(url.removeprefix(START)))) as picture:
        return np.asarray(picture.convert("RGB"))


def without_pictures(messages: Sequence[Message]) -> list[Message]:
    """The messages with the SHA-256 of each picture in its place."""

    def lighter(part: dict[str, Any]) -> dict[str, Any]:
        if part.get("type") != "image_url":
            return part
        digest = hashlib.sha256(part["image_url"]["url"].encode()).hexdigest()
        return {"type": "image_url", "image_url": {"sha256": digest}}

    return [
        {**message, "content": [lighter(part) for part in message["content"]]}
        if isinstance(message["content"], list)
        else message
        for message in messages
    ]


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
