"""Files of integer programs: safetensors, whose metadata hold the operations as JSON and a SHA-256 of everything."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from safetensors import SafetensorError

from htaf._ground.errors import first_line
from htaf._ground.files import check_output, parse_json, read_seal, regular, sealed_tensors, write_atomic
from htaf.program.integer.ops import OPS, IntegerError, Op, arrays
from htaf.program.integer.program import Input, IntegerProgram

FORMAT, VERSION = "htaf-integer", "2"


def save(program: IntegerProgram, path: str | Path) -> None:
    """Write a program, whole or not at all.

    Raises:
        IntegerError: the file cannot be written. HtafError: the path is that of a folder, or of a file of a run.
    """
    path = Path(path)
    check_output(path, flag="path")
    kept = {f"{i}.{name}": _smallest(array) for i, op in enumerate(program.ops) for name, array in arrays(op).items()}
    text = json.dumps(program.described(), allow_nan=False)
    data = sealed_tensors(kept, {"format": FORMAT, "version": VERSION, "graph": text})
    if not path.parent.is_dir():
        raise IntegerError(f"{path} cannot be written: expected the folder {path.parent}, got none")
    try:
        write_atomic(path, data)
    except OSError as error:
        raise IntegerError(f"{path} cannot be written: {error.strerror or error}") from None


def is_program(path: Path) -> bool:
    """Whether a file says that it is one of `save`, whole or not."""
    try:
        with regular(path).open("rb") as opened:
            return read_seal(opened)[0].get("format") == FORMAT
    except (OSError, ValueError):
        return False


def load(path: str | Path) -> IntegerProgram:
    """Read a program; nothing of the file is run before it is checked.

    Raises:
        IntegerError: no file of `save`, one that was changed, or one whose operations do not fit each other.
    """
    try:
        data = regular(Path(path)).read_bytes()
        metadata, whole = read_seal(io.BytesIO(data))
        tensors = safetensors.torch.load(data)
    except (OSError, ValueError, SafetensorError) as error:
        raise IntegerError(f"{path} cannot be read as an integer program: {first_line(error)}") from None
    if metadata.get("format") != FORMAT or metadata.get("version") != VERSION:
        found = f"{metadata.get('format')} {metadata.get('version')}"
        raise IntegerError(f"{path}: expected the format {FORMAT} {VERSION}, got {found}; export it again")
    if not whole:
        raise IntegerError(f"{path}: expected a file as it was written, got one that was changed; export it again")
    try:
        return _program(parse_json(metadata["graph"]), {name: t.numpy() for name, t in tensors.items()})
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise IntegerError(f"{path}: expected an integer program, got {first_line(error)}") from None


def _program(graph: Any, tensors: dict[str, np.ndarray]) -> IntegerProgram:
    ops = list[Op]()
    for i, described in enumerate(graph["ops"]):
        fields: dict[str, Any] = {
            k: tuple(v) if isinstance(v, list) else v for k, v in described.items() if k not in ("op", "arrays")
        }
        fields |= {name: tensors[f"{i}.{name}"] for name in described["arrays"]}
        ops.append(OPS[described["op"]](**fields))
    given = graph["input"]
    taken = Input(**{**given, "shape": tuple(given["shape"])})
    return IntegerProgram(taken, tuple(ops), graph["output"], tuple(graph["unit"]), graph["about"])


def _smallest(array: np.ndarray) -> torch.Tensor:
    """As the smallest integers that hold it."""
    for kind in (np.int8, np.int16, np.int32):
        if not array.size or (np.iinfo(kind).min <= array.min() and array.max() <= np.iinfo(kind).max):
            return torch.from_numpy(array.astype(kind))
    return torch.from_numpy(array.copy())
