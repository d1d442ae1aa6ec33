"""Values as classic scripts `htafData("NAME", VALUE);`: a page opened from disk may load scripts, but fetch nothing."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from htaf.concepts.naming.files import valid_text

KINDS = {"u1": "<u1", "i4": "<i4", "f4": "<f4"}


def script(name: str, value: Any) -> str:
    """One call of htafData, in ASCII alone; no text in it can end the script or open a comment.

    Raises:
        ValueError: a number that is not finite.
    """
    # a half of a surrogate pair would break encodeURIComponent
    whole = valid_text(json.dumps(value, ensure_ascii=False, allow_nan=False))
    text = json.dumps(json.loads(whole), separators=(",", ":")).replace("<", "\\u003c")
    return f'htafData("{name}", {text});\n'


def value_of(text: str, name: str) -> Any:
    """What `script` wrote. Raises ValueError: anything else."""
    start, end = f'htafData("{name}", ', ");\n"
    if not (text.startswith(start) and text.endswith(end)):
        raise ValueError(f"expected a call of htafData with {name}")
    return json.loads(text[len(start) : -len(end)])


def packed(arrays: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Arrays of bytes, whole numbers and floats as JSON: dtype u1, i4 or f4, shape, and base64 little-endian."""
    made = {}
    for name, array in arrays.items():
        kind = {"u": "u1", "i": "i4", "f": "f4"}[array.dtype.kind]
        data = np.ascontiguousarray(array, dtype=KINDS[kind]).tobytes()
        made[name] = {"dtype": kind, "shape": list(array.shape), "data": base64.b64encode(data).decode("ascii")}
    return made


def unpacked(values: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """What `packed` made."""
    return {
        name: np.frombuffer(base64.b64decode(one["data"]), KINDS[one["dtype"]]).reshape(one["shape"])
        for name, one in values.items()
    }
