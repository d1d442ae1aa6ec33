"""Files of packed models: safetensors, whose metadata hold the graph as JSON and a SHA-256 of everything.

Never pickle, and nothing of a file is called by name that is not in the list of packed/operators.py.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
from safetensors import SafetensorError
from torch import Tensor

from htaf._errors import first_line
from htaf._files import check_output, parse_json, regular, write_atomic
from htaf.packed.checking import check
from htaf.packed.errors import PackedError
from htaf.packed.instructions import Instruction, by_opcode
from htaf.packed.model import PackedModel
from htaf.packed.report import Report
from htaf.packed.writing import program_from_json, program_to_json

FORMAT, VERSION = "htaf-packed", "3"
_READ = ("1", "2", "3")
_LONGEST_HEADER = 1 << 26


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
        header, body = _parts(data)
        metadata = header.get("__metadata__")
        if not isinstance(metadata, dict) or metadata.get("format") != FORMAT:
            raise PackedError(f"expected a packed model (format {FORMAT}), got another safetensors file")
        if metadata.get("version") not in _READ:
            wanted = " or ".join(_READ)
            raise PackedError(f"expected version {wanted} of the format, got {metadata.get('version')!r:.40}")
        if _digest(header, [body]) != metadata.get("sha256"):
            raise PackedError("it is damaged: expected the SHA-256 in its metadata, got another")
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


def sealed_tensors(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> bytes:
    """A safetensors file whose metadata hold its SHA-256 too."""
    header, body = _parts(safetensors.torch.save(dict(tensors)))
    header["__metadata__"] = dict(metadata)
    header["__metadata__"]["sha256"] = _digest(header, [body])
    text = json.dumps(header, ensure_ascii=True, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + body


def seal_holds(file: Path) -> bool:
    """Whether a file of `sealed_tensors` is as it was written; it is not read into memory at once.

    Raises:
        ValueError: no safetensors file. OSError: it cannot be read.
    """
    with file.open("rb") as opened:
        size = int.from_bytes(opened.read(8), "little")
        if size > min(file.stat().st_size, _LONGEST_HEADER):
            raise ValueError("expected a safetensors file, got one without a whole header")
        header = json.loads(opened.read(size).decode())
        metadata = header.get("__metadata__") if isinstance(header, dict) else None
        if not isinstance(metadata, dict):
            raise ValueError("expected metadata, got none")
        return _digest(header, iter(lambda: opened.read(1 << 20), b"")) == metadata.get("sha256")


def _parts(data: bytes) -> tuple[dict[str, Any], bytes]:
    """The header of a safetensors file and the bytes of its tensors."""
    size = int.from_bytes(data[:8], "little")
    if len(data) < 8 or size > min(len(data) - 8, _LONGEST_HEADER):
        raise PackedError("expected a packed model, got a file without a whole header")
    header = json.loads(data[8 : 8 + size].decode())
    if not isinstance(header, dict):
        raise PackedError("expected a packed model, got a header that is no object")
    return header, data[8 + size :]


def _digest(header: Mapping[str, Any], body: Iterable[bytes]) -> str:
    """SHA-256 of the header without the digest itself, and of the tensors."""
    metadata = {k: v for k, v in header["__metadata__"].items() if k != "sha256"}
    found = hashlib.sha256(_text({**header, "__metadata__": metadata}).encode())
    for chunk in body:
        found.update(chunk)
    return found.hexdigest()


def _text(value: Any, *, by_name: bool = True) -> str:
    return json.dumps(value, sort_keys=by_name, allow_nan=False, ensure_ascii=True, separators=(",", ":"))
