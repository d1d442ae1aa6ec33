"""Programs as JSON, and back with every field checked: a file may hold anything."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from htaf.packed import operators
from htaf.packed.errors import PackedError
from htaf.packed.instructions import Instruction
from htaf.packed.instructions.schema import LARGEST, MOST, integer, items, mapping, text
from htaf.packed.program import Input, Program

_SIZE = integer(0, LARGEST)


def program_to_json(program: Program) -> dict[str, Any]:
    """The program without its tensors; of one tensor under several names, the first is to be kept: `same`."""
    first: dict[int, str] = {}
    same = {name: first[id(t)] for name, t in program.tensors.items() if first.setdefault(id(t), name) != name}
    steps = [instruction.to_json() for instruction in program.instructions]
    inputs = [{"sizes": sizes, "dtype": str(dtype).removeprefix("torch.")} for sizes, dtype in program.inputs]
    return {"inputs": inputs, "steps": steps, "outputs": program.outputs, "same": same}


def program_from_json(written: Any, tensors: dict[str, Tensor], classes: Mapping[str, type[Instruction]]) -> Program:
    """The inverse; `classes`: the instructions that may stand in it, by opcode.

    Raises:
        PackedError: a field that is missing, unknown or out of range, a value that no earlier instruction makes, or a
            tensor that is not there.
    """
    written = mapping(written)
    tensors = tensors | {name: _same(other, tensors) for name, other in mapping(written["same"]).items()}
    inputs = tuple(map(_input, items(written["inputs"])))
    if not inputs or any(not sizes for sizes, _ in inputs):
        raise PackedError("expected at least one input of at least one dimension, got none")
    steps = tuple(_instruction(item, classes) for item in items(written["steps"]))
    if len(steps) > MOST:
        raise PackedError(f"expected at most {MOST} steps, got {len(steps)}")
    program = Program(inputs, steps, _outputs(written["outputs"]), tensors)
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
    for value in program.returned():
        _earlier(value, known, "the outputs")
    return program


def _input(written: Any) -> Input:
    fields = mapping(written)
    if fields.keys() != {"sizes", "dtype"} or text(fields["dtype"]) not in operators.INPUTS:
        raise PackedError(f"expected sizes and a dtype, one of {', '.join(operators.INPUTS)}, got {written!r:.80}")
    sizes = (None if size is None else _SIZE(size) for size in items(fields["sizes"]))
    return Input(tuple(sizes), operators.INPUTS[fields["dtype"]])


def _same(name: Any, tensors: dict[str, Tensor]) -> Tensor:
    if not isinstance(name, str) or name not in tensors:
        raise PackedError(f"expected a tensor of the file, got {name!r:.40}")
    return tensors[name]


def _instruction(written: Any, classes: Mapping[str, type[Instruction]]) -> Instruction:
    fields = dict(mapping(written))
    opcode = text(fields.pop("step", None))
    if opcode not in classes:
        raise PackedError(
            f"expected a step, one of {', '.join(classes)}, got {opcode!r:.40}: "
            "an instruction of your own is given to load(..., instructions=[...])"
        )
    return classes[opcode].from_json(fields)


def _earlier(value: Any, known: int, where: str) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < known:
        raise PackedError(f"{where}: expected one of the {known} values made before, got {value!r:.40}")


def _outputs(written: Any, depth: int = 0) -> dict[str, Any]:
    written = mapping(written)
    if len(written) != 1 or depth > 16:
        raise PackedError(f"expected outputs, got {written!r:.40}")
    ((key, content),) = written.items()
    if key == "dict":
        for item in mapping(content).values():
            _outputs(item, depth + 1)
    elif key in ("list", "tuple"):
        for item in items(content):
            _outputs(item, depth + 1)
    elif key not in ("v", "none"):
        raise PackedError(f"expected outputs, got {written!r:.40}")
    return written
