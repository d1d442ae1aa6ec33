"""Pictures in messages: encoded as data URLs, and counted.

The content of a message is a text or a list of parts, as OpenAI's chat completions have them:

    {"role": "user", "content": [text_part("What is this?"), picture_part(pixels)]}
"""

from __future__ import annotations

import base64
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


@lru_cache(maxsize=2**12)
def picture_tokens(url: str) -> int:
    """About how many tokens a picture of `picture_part` is: one for each 28 x 28 pixels, as Qwen2-VL counts them; 0 for
    a picture given in another way."""
    from PIL import Image

    if not url.startswith(START):
        return 0
    file = io.BytesIO(base64.b64decode(url.removeprefix(START)))
    with Image.open(file, formats=("JPEG",)) as picture:  # reads the header alone
        width, height = picture.size
    return -(-width // PATCH) * -(-height // PATCH)
