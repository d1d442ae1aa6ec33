"""Pictures in messages: encoded as data URLs, decoded again, counted, and left out of what is kept on disk.

The content of a message is a text or a list of parts, as OpenAI's chat completions have them:

    {"role": "user", "content": [text_part("What is this?"), picture_part(pixels)]}
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import io
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from jaxtyping import UInt8

Part = dict[str, Any]
QUALITY = 90  # of JPEG
PATCH = 28  # pixels: models of pictures take a token for about so many in each direction
START = "data:image/jpeg;base64,"
FORMATS = ("JPEG", "PNG", "GIF", "WEBP")  # what models of pictures take; PIL knows some that run another program


def text_part(text: str) -> Part:
    """A part of a message that is a text."""
    return {"type": "text", "text": text}


def picture_part(pixels: UInt8[np.ndarray, "height width 3"]) -> Part:
    """A part of a message that is a picture: a JPEG in a data URL. It holds pixels alone, no place, time or name.

    Args:
        pixels: uint8 [height, width, 3], red, green, blue.
    """
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(pixels)).save(file, "JPEG", quality=QUALITY, subsampling=0)
    return {"type": "image_url", "image_url": {"url": START + base64.b64encode(file.getvalue()).decode("ascii")}}


def pictures_in(messages: Sequence[Mapping[str, Any]]) -> list[str]:
    """The URLs of all pictures of messages, in their order."""
    parts = (part for message in messages if isinstance(message["content"], list) for part in message["content"])
    return [part["image_url"]["url"] for part in parts if part.get("type") == "image_url"]


def picture_bytes(url: str) -> bytes:
    """The file in a data URL.

    Raises:
        ValueError: it is none.
    """
    head, _, data = url.partition(",")
    if not (head.startswith("data:image/") and head.endswith(";base64")):
        raise ValueError(f"expected a data URL of a picture, got {url[:40]!r}")
    try:
        return base64.b64decode(data, validate=True)
    except binascii.Error as error:
        raise ValueError(f"expected base64 in a data URL, got something else: {error}") from None


def picture_pixels(url: str) -> UInt8[np.ndarray, "height width 3"]:
    """The pixels of a data URL: uint8 [height, width, 3].

    Raises:
        ValueError: it is no data URL of a picture.
    """
    from PIL import Image

    try:
        with Image.open(io.BytesIO(picture_bytes(url)), formats=FORMATS) as picture:
            return np.asarray(picture.convert("RGB"))
    except OSError as error:
        raise ValueError(f"expected a picture, got something else: {error}") from None


@lru_cache(maxsize=2**12)
def picture_tokens(url: str) -> int:
    """About how many tokens a picture is: one for each 28 x 28 pixels, as Qwen2-VL counts them; 0 for an address."""
    from PIL import Image

    if not url.startswith("data:"):
        return 0
    with Image.open(io.BytesIO(picture_bytes(url)), formats=FORMATS) as picture:  # reads the header alone
        width, height = picture.size
    return -(-width // PATCH) * -(-height // PATCH)


def without_pictures(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The messages with the SHA-256 of each picture in its place."""

    def lighter(part: Part) -> Part:
        if part.get("type") != "image_url":
            return part
        digest = hashlib.sha256(part["image_url"]["url"].encode()).hexdigest()
        return {"type": "image_url", "image_url": {"sha256": digest}}

    return [
        {**message, "content": [lighter(part) for part in message["content"]]}
        if isinstance(message["content"], list)
        else dict(message)
        for message in messages
    ]
