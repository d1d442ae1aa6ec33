"""Files of packed models: safetensors, whose metadata hold the graph as JSON and a SHA-256 of everything.

Never pickle, and nothing of a file is called by name that is not in the list of packed/operators.py.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
from safetensors import SafetensorError

from htaf._errors import first_line
from htaf._files import check_output, parse_json, read_seal, regular, sealed_tensors, write_atomic
from htaf.packed.checking import check
from htaf.packed.errors import PackedError
from htaf.packed.instructions import Instruction, by_opcode
from htaf.packed.model import PackedModel
from htaf.packed.report import Report
from htaf.packed.writing import program_from_json, program_to_json

FORMAT, VERSION = "htaf-packed", "6"


def save(packed: PackedModel, path: str | Path, extra: Mapping[str, Any] | None = None) -> None:
    """Write a packed model, whole or not at all.

    Args:
        packed: made by `pack` or `load`.
        path: of the file; its folder must exist.
        extra: what else to keep, by name: JSON values, `.extra` of the loaded model. None: that of `packed`.

    Raises:
        PackedError: `extra` is not JSON, or the file cannot be written; a file that was there is then untouched.
        HtafError: the path is that of a folder, or of a file of a run or of codes.
    """
    path = Path(path)
    check_output(path, flag="path")
    graph = program_to_json(packed.program)
    try:
        metadata = {
            "format": FORMAT,
            "version": VERSION,
            "graph": _text(graph, by_name=False),  # a dict of outputs keeps its order
            "report": _text(packed.report.to_json()),
            "extra": _text(dict(packed.extra if extra is None else extra)),
        }
    except (TypeError, ValueError) as error:
        raise PackedError(f"expected JSON values to save beside the model: {error}") from None
    data = sealed_tensors({k: t for k, t in packed.program.tensors.items() if k not in graph["same"]}, metadata)
    if not path.parent.is_dir():
        raise PackedError(f"{path} cannot be written: expected the folder {path.parent}, got none")
    try:
        write_atomic(path, data)
    except OSError as error:
        raise PackedError(f"{path} cannot be written: {error.strerror or error}") from None


def load(path: str | Path, *, instructions: Iterable[type[Instruction]] = ()) -> PackedModel:
    """Read a packed model.

    Args:
        path: of the file.
        instructions: classes of your own that may stand in it; a file cannot name others.

    Raises:
        PackedError: no such file, not a packed model, another version, damaged, or one that would run anything but the
            operators of a packed model on tensors of sensible sizes.
        ValueError: two instructions of one opcode.
    """
    path, classes = Path(path), by_opcode(instructions)
    try:
        data = regular(path).read_bytes()
    except OSError as error:
        raise PackedError(f"{path} cannot be read: {error.strerror or error}") from None
    try:
        metadata, whole = read_seal(io.BytesIO(data))
        if metadata.get("format") != FORMAT:
            raise PackedError(f"expected a packed model (format {FORMAT}), got another safetensors file")
        if metadata.get("version") != VERSION:
            raise PackedError(
                f"expected version {VERSION} of the format, got {metadata.get('version')!r:.40}: pack again"
            )
        if not whole:
            raise PackedError("it is damaged: its SHA-256 differs from the one in its metadata; put back a copy of it")
        tensors = safetensors.torch.load(data)
        program = program_from_json(json.loads(metadata["graph"]), tensors, classes)
        report, extra = Report.from_json(parse_json(metadata["report"])), parse_json(metadata["extra"])
        if not isinstance(extra, dict):
            raise PackedError(f"expected `extra` to be an object, got {type(extra).__name__}")
        check(program)
        return PackedModel(program, report, extra)
    except PackedError as error:
        raise PackedError(f"{path}: {error}") from None
    except (
        ArithmeticError, AttributeError, LookupError, MemoryError, RuntimeError, SafetensorError, TypeError, ValueError
    ) as error:  # fmt: skip
        raise PackedError(f"{path} is no packed model: {first_line(error)}") from None


def _text(value: Any, *, by_name: bool = True) -> str:
    return json.dumps(value, sort_keys=by_name, allow_nan=False, ensure_ascii=True, separators=(",", ":"))
