"""What all exports share: what their numbers mean, as text from which it is read again, digests, and test rows."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from pathlib import Path
from string import Template
from typing import Any

import numpy as np

from htaf.program.integer.program import Array, IntegerProgram

_MEANS = {
    "regression": 'prediction = y[0] * {unit} * "std" + "mean"',
    "classification": 'y[i] belongs to class i; the class is that of the first greatest y, or, with a "threshold", '
    "class 1 from this probability on: 1 / (1 + exp((y[0] - y[1]) * {unit}))",
}


def lines(program: IntegerProgram) -> list[str]:
    """Text for a comment: how raw values become the inputs, a line of JSON each, and what the outputs are.

    None where `about` has no "columns" and no "target", as `htaf.training.runs.packing` makes them.
    """
    given, about, found = program.input, program.about, list[str]()
    if columns := about.get("columns"):
        from htaf.data.cells import BLANKS  # of the extra tables, as such inputs are

        blanks = ", ".join(sorted(BLANKS - {""}))
        ends = {"low": given.low, "high": given.high, "least": given.low + (given.low < 0)}
        said = {"blanks": blanks, "exponent": given.exponent, "most": given.high - (given.low >= 0), **ends}
        rules = filled("raw.txt" if is_raw(columns) else "prepared.txt", **said)
        found += [*rules.splitlines(), *map(_json, columns)]
    if target := about.get("target"):
        exponent, divisor = program.unit
        unit = f"2^{exponent} / {divisor}" if divisor != 1 else f"2^{exponent}"
        found += [_MEANS[target["task"]].format(unit=unit), _json({"y": target})]
    return found


def least_difference(program: IntegerProgram) -> int | None:
    """The least y[1] - y[0] at which class 1 is predicted, where a threshold of its probability is said; else None."""
    threshold = (program.about.get("target") or {}).get("threshold")
    end = program.values[program.output]
    if threshold is None or end.size != 2:
        return None
    unit, below, above = 2.0 ** program.unit[0] / program.unit[1], end.low - end.high - 1, end.high - end.low + 1
    while above - below > 1:  # it is reached from somewhere on, or nowhere
        middle = (below + above) // 2
        below, above = (below, middle) if (1 + np.tanh(middle * unit / 2)) / 2 >= threshold else (middle, above)
    return above


def classes(y: Array, least: int | None) -> Array:
    """The class of each row's outputs: the first greatest one, or of two by their least difference."""
    return y.argmax(1) if least is None else (y[:, 1] - y[:, 0] >= least).astype(np.int64)


def filled(file: str, **given: object) -> str:
    """A text of the folder `templates`, with what is given in place of its ${names}."""
    return Template((Path(__file__).parent / "templates" / file).read_text()).substitute(given)


def is_raw(columns: Sequence[dict[str, Any]]) -> bool:
    """Whether lines of inputs are those of raw columns, see `htaf.program.integer.raw`."""
    return bool(columns) and columns[0].get("kind") in ("fixed", "index")


def read(text: str) -> list[dict[str, Any]]:
    """The inputs that the comments of an export list; none where it lists none."""
    return [json.loads(line) for line in re.findall(r'^(?:   |// |)(\{"x": .*\})$', text, re.MULTILINE)]


def _json(said: dict[str, Any]) -> str:
    """One line that neither ends a comment nor begins one."""
    text = re.sub(r"/(?=\*)|(?<=\*)/", r"\\u002f", json.dumps(said, ensure_ascii=False))
    return "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in text)


# ---- the SHA-256 of a file in itself, so that an edited export is told from a written one ----

OPEN = "0" * 64  # where the digest of a file is put: that of the file with these zeros
KEY = "file_sha256"  # of the metadata of ONNX
_SEAL = re.compile(rb"(?:text sha256: |%s\x12@)([0-9a-f]{64})" % KEY.encode())  # \x12@: a text of 64 letters follows


def sealed(data: bytes) -> bytes:
    """The file with its digest in place of the zeros behind `text sha256: `, or of ONNX's file_sha256: they are there
    once."""
    assert _SEAL.findall(data) == [OPEN.encode()]
    return _filled(data, hashlib.sha256(data).hexdigest())


def is_sealed(data: bytes) -> bool:
    """Whether a file says its digest, right or wrong."""
    return _SEAL.search(data) is not None


def is_whole(data: bytes) -> bool:
    """Whether a file is as `sealed` made it."""
    return len(_SEAL.findall(data)) == 1 and sealed(_filled(data, OPEN)) == data


def _filled(data: bytes, digest: str) -> bytes:
    found = _SEAL.search(data)
    assert found
    return data[: found.start(1)] + digest.encode() + data[found.end(1) :]


# ---- rows with the outputs that a program gives for them, by which an export of it is tested ----


def vectors(program: IntegerProgram, rows: int | Array) -> tuple[Array, Array]:
    """Rows and their outputs.

    Args:
        rows: integers [rows, *input.shape], as rows of data, which are taken as they are; or how many to draw: uniform
            over the range of the input, columns of every magnitude too, and two rows that are all at one end.
    Returns:
        x and `program.run(x)`, int64.
    """
    if not isinstance(rows, int):
        return np.asarray(rows).astype(np.int64), program.run(rows)
    rng, given = np.random.default_rng(0), program.input
    x = rng.integers(given.low, given.high + 1, (rows, *given.shape))
    if given.kind == "columns":
        x[::2] >>= rng.integers(0, 32, x[::2].shape)
    x[1:2], x[2:3] = given.low, given.high
    return x, program.run(x)
