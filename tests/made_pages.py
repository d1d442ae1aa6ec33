"""Codes that nobody trained, and the files of a page read back without the code that wrote them."""

from __future__ import annotations

import base64
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from htaf.concepts.codes import Codes, codes_of

PREFIX, SUFFIX = 'htafData("', ");\n"
HOSTILE = [
    "<img src=x onerror=window.hit=1><script>window.hit=1</script>",
    "</script><script>window.hit=1</script><!--",
    "\"'><svg onload=window.hit=1> &lt;b&gt; &amp;",
    "javascript:window.hit=1//{{7*7}}${window.hit=1}",
    "\u202eright to left\u2066 שלום\n\r\n\ttabs and lines\u2028\u0000\u007f",
    "#/image/?row=1&x=%2e%2e/../'\"?#%",
    "x" * 10_000,
    "half \ud800 of a pair",
    "__proto__",
    " ",
]


def made_codes(
    images: int = 120, concepts: int = 21, classes: int = 5, *, seed: int = 0, names: tuple[str, ...] = ()
) -> Codes:
    """A third of them training images; one in five has the wrong label, one in six test images none."""
    rng = np.random.default_rng(seed)
    centres = rng.random((classes, concepts)) < 0.5
    labels = rng.integers(0, classes, images)
    bits = centres[labels] ^ (rng.random((images, concepts)) < 0.15)
    weight, bias = rng.normal(0, 0.2, (classes, concepts)) + centres - 0.5, rng.normal(0, 0.1, classes)
    parts = (np.arange(images) % 3).astype(np.uint8)
    labels = np.where(rng.random(images) < 0.2, rng.integers(0, classes, images), labels)
    labels[np.arange(images) % 18 == 5] = -1
    codes = codes_of(bits, labels, weight, bias, parts=parts, classes=names)
    smooth = np.where(rng.random(images) < 0.1, 0, codes.exact).astype(np.int32)
    return replace(codes, smooth=smooth, saturated=np.full(images, concepts - 1, np.int32))


def read_script(file: Path) -> Any:
    """The value of a data file."""
    text = file.read_bytes().decode("ascii")
    start = f"{PREFIX}{file.stem}"
    assert text.startswith(start)
    assert text.endswith(SUFFIX)
    return json.loads(text[len(start) + 3 : -len(SUFFIX)])


def read_page(out: Path) -> dict[str, Any]:
    """All files: "page", "concepts", "images" with their ids, "doubtful", and "arrays" as NumPy reads them."""
    data = out / "data"
    found = {name: read_script(data / f"{name}.js") for name in ("page", "concepts", "arrays")}
    found["arrays"] |= read_script(data / "rows.js")
    ids = [one for file in sorted(data.glob("ids-*.js")) for one in read_script(file)]
    found |= {"images": {"ids": ids}, "doubtful": read_script(data / "doubtful.js")}
    kinds = {"u1": np.uint8, "i4": np.dtype("<i4"), "f4": np.dtype("<f4")}
    found["arrays"] = {
        name: np.frombuffer(base64.b64decode(one["data"]), kinds[one["dtype"]]).reshape(one["shape"])
        for name, one in found["arrays"].items()
    }
    width = (found["page"]["concepts"] + 7) // 8
    parts = [base64.b64decode(read_script(file)["bits"]["data"]) for file in sorted(data.glob("bits-*.js"))]
    found["arrays"]["bits"] = np.frombuffer(b"".join(parts), np.uint8).reshape(-1, width)
    return found


def contents(out: Path) -> dict[str, bytes]:
    """Every file of a folder."""
    return {file.relative_to(out).as_posix(): file.read_bytes() for file in sorted(out.rglob("*")) if file.is_file()}


def coloured(ids: Any) -> np.ndarray:
    """Each image of one colour, its id."""
    numbers = np.array([int(one) % 256 for one in ids], dtype=np.uint8)
    return np.broadcast_to(numbers[:, None, None, None], (len(ids), 3, 4, 6))
