"""Does a model see pictures? Servers that cannot show it some say so in many ways, or say nothing and let it guess."""

from __future__ import annotations

import re

import numpy as np
from jaxtyping import UInt8
from pydantic import BaseModel, field_validator

from htaf.llm.chat import MalformedReply, Message, ModelError, short
from htaf.llm.client import Client
from htaf.llm.pictures import picture_part, text_part

DIGITS = "8053"  # none at its place in 1234, 5678 or 0000, which a model that sees nothing says
READ = 2  # of the digits, at their places: a poor eye may do, a guess hardly ever does
BLIND = re.compile(r"imag|vision|multi-?modal|mmproj|content.?type|content.{0,20}(string|str\b)|picture", re.IGNORECASE)
ASKED = 'Read the digits in the picture. Reply with {"digits": "..."} and nothing else.'


class BlindError(ModelError):
    """The model or its server does not take pictures."""


class _Digits(BaseModel):
    digits: str

    @field_validator("digits", mode="before")
    @classmethod
    def _text(cls, value: object) -> object:
        return str(value) if isinstance(value, int) else value


def drawn_digits() -> UInt8[np.ndarray, "height width 3"]:
    """The picture that `expect_sight` shows: four black digits on white."""
    from PIL import Image, ImageDraw, ImageFont

    picture = Image.new("RGB", (336, 168), "white")
    ImageDraw.Draw(picture).text((168, 84), " ".join(DIGITS), "black", ImageFont.load_default(72), anchor="mm")
    return np.asarray(picture)


def sight_prompt() -> list[Message]:
    """The messages that ask for the digits."""
    return [{"role": "user", "content": [text_part(ASKED), picture_part(drawn_digits())]}]


def expect_sight(client: Client) -> None:
    """Let the model read four digits from a made picture, before anybody's own is sent; one request, kept as others.

    Raises:
        BlindError: the server refuses pictures, or the model reads less than two of the digits.
        ModelError: as the client.
    """
    how = "give a model that sees pictures, of a server that passes them on"
    try:
        said = client.ask(sight_prompt(), _Digits).digits
    except MalformedReply as error:
        raise BlindError(
            f"{client.model} does not read a picture of four digits ({short(str(error))}): {how}"
        ) from None
    except ModelError as error:
        if not BLIND.search(str(error).replace(getattr(client, "base_url", "") or " ", "")):
            raise  # it is down, or wants a key
        raise BlindError(f"{client.model} takes no pictures ({short(str(error))}): {how}") from None
    read = re.sub(r"\D", "", said)
    if sum(one == other for one, other in zip(read, DIGITS, strict=False)) < READ:
        raise BlindError(
            f"{client.model} does not see pictures: shown the digits {DIGITS} it read {short(said, 40)!r}; {how}"
        )
