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

from htaf.concepts.naming.album import COLUMNS, GAP, boxes
from htaf.llm import Message
from htaf.llm.pictures import START
from htaf.llm.sight import DIGITS, drawn_digits
from htaf_paper import drawn

Seeing = Literal["sees", "random name", "same name", "random ratings", "fits always"]
R = TypeVar("R", bound=BaseModel)
TITLE = re.compile(r"(.+), pictures (\d+) to (\d+)(, numbered on one sheet)?:")


class VisionModel:
    """Names with the attribute that separates the two groups best, rates by what it reads in the pictures.

    Args:
        errs: how often it misreads an attribute of a picture, each time anew.
        behaviour: "sees" does as said; the others name badly (a random attribute or its negation; always the first
            one) or rate badly (at random; the best for all).
        seed: of what is random; the same request is answered in the same way.
    """

    def __init__(self, errs: float = 0.0, behaviour: Seeing = "sees", seed: int = 0) -> None:
        self.model = f"vision model: {behaviour}, errs {errs:g}"
        self.errs, self.behaviour, self.seed = errs, behaviour, seed

    def known(self, messages: Sequence[Message], *, sample: int = 0) -> bool:
        """Nothing is kept."""
        return False

    def ask(
        self, messages: Sequence[Message], reply: type[R], *, sample: int = 0, context: Mapping[str, Any] | None = None
    ) -> R:
        """As `htaf.llm.Client`."""
        return reply.model_validate(json.loads(self.answer(messages)), context=context)

    def answer(self, messages: Sequence[Message]) -> str:
        """The text of the reply, JSON."""
        digest = hashlib.sha256(f"{self.seed} {json.dumps(without_pictures(messages))}".encode()).digest()
        rng = np.random.default_rng(int.from_bytes(digest[:8], "little"))
        parts = next(message["content"] for message in reversed(messages) if isinstance(message["content"], list))
        text, groups = parts[-1].get("text", ""), images_in(parts)
        if "Task: Name" in text:
            return json.dumps(self._name(text, [self._read(groups[name], rng) for name in ("Group A", "Group B")], rng))
        if "Task: Sort" in text:
            return json.dumps(self._ratings(text, self._read(groups["Images"], rng), rng))
        seen = [picture_pixels(part["image_url"]["url"]) for part in parts if part["type"] == "image_url"]
        same = any(one.shape == drawn_digits().shape and np.abs(one - 1.0 * drawn_digits()).mean() < 8 for one in seen)
        return json.dumps({"digits": DIGITS if same else ""})

    def _read(self, tiles: list[np.ndarray], rng: np.random.Generator) -> Bool[np.ndarray, "n attributes"]:
        found = drawn.read(tiles)
        return found ^ (rng.random(found.shape) < self.errs)

    def _name(self, text: str, has: list[np.ndarray], rng: np.random.Generator) -> dict[str, Any]:
        offered = [json.loads(line) for line in re.findall(r'^\d+\. (".*")$', text, re.MULTILINE)]
        columns = [drawn.NAMES.index(name) for name in offered] if offered else list(range(len(drawn.NAMES)))
        difference = (has[0].mean(0) - has[1].mean(0))[columns]
        place = int(np.abs(difference).argmax())
        negated = bool(difference[place] < 0)
        if self.behaviour == "random name":
            place, negated = int(rng.integers(len(columns))), bool(rng.integers(2))
        elif self.behaviour == "same name":
            place, negated = 0, False
        if offered:
            return {"number": place + 1, "negated": negated}
        name = drawn.NAMES[columns[place]]
        labels = (f"not {name}", name) if negated else (name, f"not {name}")
        return {"concept": labels[0], "label_1": labels[0], "label_0": labels[1], "justification": "as I see it"}

    def _ratings(self, text: str, has: np.ndarray, rng: np.random.Generator) -> dict[str, Any]:
        found = re.search(r'^Label 1: (".*")$', text, re.MULTILINE)
        label = json.loads(found[1]) if found else ""
        name = label.removeprefix("not ")
        fits = rng.random(len(has)) < 0.5
        if self.behaviour == "fits always":
            fits[:] = True
        elif self.behaviour != "random ratings" and name in drawn.NAMES:
            fits = has[:, drawn.NAMES.index(name)] ^ (name != label)
        grades = np.where(fits, 10, 0) + np.where(fits, -1, 1) * rng.integers(0, 4, len(has))
        return {"pictures": [{"number": n, "fits": int(grade)} for n, grade in enumerate(grades.tolist(), 1)]}


def picture_pixels(url: str) -> UInt8[np.ndarray, "height width 3"]:
    """The pixels of a picture of `htaf.llm.picture_part`: uint8 [height, width, 3]."""
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
    title, count = "", 0  # of images on a sheet; 0 for no sheet
    for part in parts:
        if part["type"] == "text":
            if match := TITLE.fullmatch(part["text"]):
                title, count = match[1], int(match[3]) - int(match[2]) + 1 if match[4] else 0
            continue
        pixels = picture_pixels(part["image_url"]["url"])
        if count:
            side = (pixels.shape[1] - GAP) // min(COLUMNS, count) - GAP
            corners = boxes(count, side)[1]
            found.setdefault(title, []).extend(pixels[y : y + side, x : x + side] for y, x in corners)
        else:
            found.setdefault(title, []).append(pixels)
    return found
