"""Files of integer programs: safetensors, whose metadata hold the operations as JSON and a SHA-256 of everything."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

from htaf._ground.errors import first_line
from htaf._ground.files import parse_json, read_seal, regular
from htaf.program.integer.ops import OPS, IntegerError, Op, arrays
from htaf.program.integer.program import Input, IntegerProgram
from htaf.program.packed.files import read_file, write_file

FORMAT, VERSION = "htaf-integer", "2"


def save(program: IntegerProgram, path: str | Path) -> None:
    """Write a program, whole or not at all.

    Raises:
        IntegerError: the file cannot be written. HtafError: the path is that of a folder, or of a file of a run.
    """
    kept = {f"{i}.{name}": _smallest(array) for i, op in enumerate(program.ops) for name, array in arrays(op).items()}
    text = json.dumps(program.described(), allow_nan=False)
    write_file(Path(path), kept, {"format": FORMAT, "version": VERSION, "graph": text}, IntegerError)


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
    metadata, tensors = read_file(Path(path), FORMAT, VERSION, IntegerError)
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
