"""Pictures in messages.

The content of a message is a text or a list of parts, as OpenAI's chat completions have them:

    {"role": "user", "content": [text_part("What is this?"), picture_part(pixels)]}
"""

from __future__ import annotations

import base64
import io
from typing import Any

import numpy as np
from jaxtyping import UInt8

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
