"""Messages to a language model, of texts and pictures, and how its replies are read; no network.

The content of a message is a text or a list of parts, as OpenAI's chat completions have them:

    {"role": "user", "content": [text_part("What is this?"), picture_part(pixels)]}

Text that others wrote is put into a prompt as a JSON string (`quoted`): it can neither end its line nor hide.
"""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, TypeVar

import numpy as np
from jaxtyping import UInt8
from pydantic import BaseModel, ValidationError

from htaf._ground.console import visible
from htaf._ground.errors import HtafError

SAID = 400  # characters of a server's or a model's words in a message
LONGEST = 200  # characters of a text that is quoted in a prompt

Message = dict[str, Any]  # "role" and "content": a text, or a list of parts
R = TypeVar("R", bound=BaseModel)


class ModelError(HtafError):
    """The server, the key or the reply; the message never holds the key."""


class BudgetError(ModelError):
    """The calls are used up."""


class MalformedReply(ModelError):
    """No reply to this request could be used; other requests may do better."""


def shortened(text: str, most: int = LONGEST) -> str:
    """Cut a text to so many characters; the last is an ellipsis where some are missing."""
    return text if len(text) <= most else text[: most - 1] + "…"


@lru_cache(maxsize=2**14)  # many prompts hold the same texts
def quoted(text: str, most: int = LONGEST) -> str:
    """Write a text, shortened, as a JSON string of visible characters on one line; `json.loads` gives it back."""
    return visible(json.dumps(shortened(text, most), ensure_ascii=False))


def numbered(texts: Sequence[str]) -> str:
    """Write a line for each text: its number, counted from 1, and the text as a JSON string."""
    return "\n".join(f"{number}. {quoted(text)}" for number, text in enumerate(texts, 1))


def validated(text: str, reply: type[R], context: Mapping[str, Any] | None = None) -> R:
    """Read the reply that a text holds: its JSON object, from the first brace to the last, after </think>.

    Raises:
        MalformedReply: there is none; the message says what is wrong, for the model too.
    """
    said = text.rpartition("</think>")[2]
    found = said[max(0, said.find("{")) : said.rfind("}") + 1]
    if not found:
        raise MalformedReply(f"expected a JSON object, got {short(text, 80)!r}")
    try:
        return reply.model_validate_json(found, strict=True, context=None if context is None else dict(context))
    except ValidationError as error:
        faults = error.errors(include_url=False, include_context=False, include_input=False)[:5]
    texts = [f"{'.'.join(map(str, fault['loc'])) or 'the reply'}: {fault['msg']}" for fault in faults]
    raise MalformedReply(short("; ".join(texts)))


def short(text: str, limit: int = SAID) -> str:
    """Put a text on one line, without control characters, at most `limit` characters."""
    line = " ".join("".join(c if c.isprintable() else " " for c in text[: 4 * limit]).split())
    return line if len(line) <= limit else line[: limit - 3] + "..."


Part = dict[str, Any]
QUALITY = 90  # of JPEG
START = "data:image/jpeg;base64,"


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
