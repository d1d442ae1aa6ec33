"""Pictures in messages, and whether a model sees them.

The content of a message is a text or a list of parts, as OpenAI's chat completions have them:

    {"role": "user", "content": [text_part("What is this?"), picture_part(pixels)]}
"""

from __future__ import annotations

import base64
import io
from typing import Any

import numpy as np
from jaxtyping import UInt8
from pydantic import BaseModel

from htaf.llm.chat import MalformedReply, ModelError, short
from htaf.llm.client import Client

Part = dict[str, Any]
QUALITY = 90  # of JPEG
START = "data:image/jpeg;base64,"
DIGITS = "8053"  # none at its place in 1234, 5678 or 0000, which a model that sees nothing says
READ = 2  # of the digits, at their places: a poor eye may do, a guess hardly ever does


class _Digits(BaseModel):
    digits: str | int


def text_part(text: str) -> Part:
    """Make a part of a message that is a text."""
    return {"type": "text", "text": text}


def picture_part(pixels: UInt8[np.ndarray, "height width 3"]) -> Part:
    """Make a part of a message that is a picture: a JPEG in a data URL, of pixels alone, no place, time or name.

    Args:
        pixels: uint8 [height, width, 3], red, green, blue.
    """
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(pixels)).save(file, "JPEG", quality=QUALITY, subsampling=0)
    return {"type": "image_url", "image_url": {"url": START + base64.b64encode(file.getvalue()).decode("ascii")}}


def drawn_digits() -> UInt8[np.ndarray, "height width 3"]:
    """Draw the picture that `expect_sight` shows: four black digits on white."""
    from PIL import Image, ImageDraw, ImageFont

    picture = Image.new("RGB", (336, 168), "white")
    ImageDraw.Draw(picture).text((168, 84), " ".join(DIGITS), "black", ImageFont.load_default(72), anchor="mm")
    return np.asarray(picture)


def expect_sight(client: Client) -> None:
    """Let the model read four digits from a made picture, before anybody's own is sent; one request, kept as others.

    Raises:
        ModelError: the model reads less than two of the digits, as some servers drop pictures without a word; or as
            the client.
    """
    asked = text_part('Read the digits in the picture. Reply with {"digits": "..."} and nothing else.')
    messages = [{"role": "user", "content": [asked, picture_part(drawn_digits())]}]
    try:
        said = str(client.ask(messages, _Digits).digits)
    except MalformedReply as error:
        said = str(error)
    read = "".join(letter for letter in said if letter.isdecimal())
    if sum(one == other for one, other in zip(read, DIGITS, strict=False)) < READ:
        raise ModelError(
            f"{client.model} does not see pictures: expected the digits {DIGITS} of a made picture, got "
            f"{short(said, 80)!r}; give a model that sees pictures, of a server that passes them on"
        )
