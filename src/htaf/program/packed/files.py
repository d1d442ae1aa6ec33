"""Files of packed models: safetensors, whose metadata hold the graph as JSON and a SHA-256 of everything.

Never pickle, and nothing of a file is called by name that is not in the list of packed/operators.py.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
from safetensors import SafetensorError
from torch import Tensor

from htaf._ground.errors import HtafError, first_line
from htaf._ground.files import check_output, parse_json, read_seal, regular, sealed_tensors, write_atomic
from htaf.program.packed import operators
from htaf.program.packed.errors import PackedError
from htaf.program.packed.instructions import INSTRUCTIONS, MOST, Instruction, checked
from htaf.program.packed.model import PackedModel
from htaf.program.packed.program import Input, Program, check, outputs_to_json
from htaf.program.packed.report import Report

FORMAT, VERSION = "htaf-packed", "7"


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
    graph = program_to_json(packed.program)
    try:
        metadata = {
            "graph": _text(graph, by_name=False),  # a dict of outputs keeps its order
            "report": _text(packed.report.to_json()),
            "extra": _text(dict(packed.extra if extra is None else extra)),
        }
    except (TypeError, ValueError) as error:
        raise PackedError(f"expected JSON values to save beside the model: {error}") from None
    write_file(Path(path), packed.program.tensors, {"format": FORMAT, "version": VERSION, **metadata}, PackedError)


def load(path: str | Path) -> PackedModel:
    """Read a packed model.

    Args:
        path: of the file.

    Raises:
        PackedError: no such file, not a packed model, another version, damaged, or one that would run anything but the
            operators of a packed model on tensors of sensible sizes.
    """
    path = Path(path)
    metadata, tensors = read_file(path, FORMAT, VERSION, PackedError)
    try:
        program = program_from_json(json.loads(metadata["graph"]), tensors)
        report, extra = Report.from_json(parse_json(metadata["report"])), parse_json(metadata["extra"])
        check(program)
        return PackedModel(program, report, checked(extra, dict))
    except PackedError as error:
        raise PackedError(f"{path}: {error}") from None
    except (ArithmeticError, AttributeError, LookupError, MemoryError, RuntimeError, TypeError, ValueError) as error:
        raise PackedError(f"{path} is no packed model: {first_line(error)}") from None


# ---- files of ours: whole or not at all, of one version, and as they were written ----


def write_file(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str], error: type[HtafError]) -> None:
    """Write tensors and metadata with their SHA-256. Raises `error` where they cannot be written."""
    check_output(path, flag="path")
    data = sealed_tensors(tensors, metadata)
    if not path.parent.is_dir():
        raise error(f"{path} cannot be written: expected the folder {path.parent}, got none")
    try:
        write_atomic(path, data)
    except OSError as wrong:
        raise error(f"{path} cannot be written: {wrong.strerror or wrong}") from None


def read_file(path: Path, form: str, version: str, error: type[HtafError]) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The metadata and the tensors of a file of `write_file`.

    Raises:
        error: no such file, one of another format or version, or one that was changed.
    """
    try:
        data = regular(path).read_bytes()
        metadata, whole = read_seal(io.BytesIO(data))
        found = metadata.get("format"), metadata.get("version")
        if found != (form, version):
            raise error(f"{path}: expected a file of format {form}, version {version}, got {found!r:.80}: write anew")
        if not whole:
            what = "expected a file as it was written, got one that was changed: put back a copy, or write it again"
            raise error(f"{path} is damaged: {what}")
        return metadata, safetensors.torch.load(data)
    except (OSError, ValueError, SafetensorError) as wrong:
        raise error(f"{path} cannot be read as a file of format {form}: {first_line(wrong)}") from None


def _text(value: Any, *, by_name: bool = True) -> str:
    return json.dumps(value, sort_keys=by_name, allow_nan=False, ensure_ascii=True, separators=(",", ":"))


# ---- programs as JSON, and back with every field checked: a file may hold anything ----


def program_to_json(program: Program) -> dict[str, Any]:
    """The program without its tensors."""
    steps = [instruction.to_json() for instruction in program.instructions]
    inputs = [{"sizes": sizes, "dtype": str(dtype).removeprefix("torch.")} for sizes, dtype in program.inputs]
    return {"inputs": inputs, "steps": steps, "outputs": outputs_to_json(program.outputs)}


def program_from_json(written: Any, tensors: dict[str, Tensor]) -> Program:
    """The inverse.

    Raises:
        PackedError: a field that is missing, unknown or out of range, a value that no earlier instruction makes, or a
            tensor that is not there.
    """
    written = checked(written, dict)
    inputs = tuple(map(_input, checked(written["inputs"], list)))
    if not inputs or any(not sizes for sizes, _ in inputs):
        raise PackedError("expected at least one input of at least one dimension, got none")
    steps = tuple(map(_instruction, checked(written["steps"], list)))
    if len(steps) > MOST:
        raise PackedError(f"expected at most {MOST} steps, got {len(steps)}")
    known = len(inputs)
    for instruction in steps:
        for value in instruction.reads:
            _earlier(value, known, instruction.name)
        for value in instruction.makes:
            if value != known:
                raise PackedError(f"{instruction.name}: expected to make value {known}, got {value!r:.40}")
            known += 1
        for name in instruction.tensors:
            if not isinstance(name, str) or name not in tensors:
                raise PackedError(f"{instruction.name}: expected a tensor of the file, got {name!r:.40}")
    return Program(inputs, steps, _outputs(written["outputs"], known), tensors)


def _input(written: Any) -> Input:
    fields = checked(written, dict)
    if fields.keys() != {"sizes", "dtype"} or checked(fields["dtype"], str) not in operators.INPUTS:
        raise PackedError(f"expected sizes and a dtype, one of {', '.join(operators.INPUTS)}, got {written!r:.80}")
    sizes = (None if size is None else checked(size, int) for size in checked(fields["sizes"], list))
    return Input(tuple(sizes), operators.INPUTS[fields["dtype"]])


def _instruction(written: Any) -> Instruction:
    fields = dict(checked(written, dict))
    opcode = checked(fields.pop("step", None), str)
    if opcode not in INSTRUCTIONS:
        raise PackedError(f"expected a step, one of {', '.join(INSTRUCTIONS)}, got {opcode!r:.40}")
    return INSTRUCTIONS[opcode].from_json(fields)


def _earlier(value: Any, known: int, where: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < known:
        raise PackedError(f"{where}: expected one of the {known} values made before, got {value!r:.40}")
    return value


def _outputs(written: Any, known: int, depth: int = 0) -> Any:
    """The inverse of `outputs_to_json`, of values that are known."""
    written = checked(written, dict)
    if len(written) != 1 or depth > 16:
        raise PackedError(f"expected outputs, got {written!r:.40}")
    ((key, content),) = written.items()
    if key in ("v", "none"):
        return _earlier(content, known, "the outputs") if key == "v" else None
    if key == "dict":
        return {checked(name, str): _outputs(item, known, depth + 1) for name, item in checked(content, dict).items()}
    if key not in ("list", "tuple"):
        raise PackedError(f"expected outputs, got {written!r:.40}")
    found = [_outputs(item, known, depth + 1) for item in checked(content, list)]
    return found if key == "list" else tuple(found)
