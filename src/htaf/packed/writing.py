"""Programs as JSON, and back with every field checked: a file may hold anything."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from torch import Tensor

from htaf.kernels.layers import Geometry
from htaf.packed.program import (
    Call,
    Layer,
    PackedError,
    Pool,
    Program,
    Spikes,
    Step,
    Threshold,
    Unpack,
    made,
    read,
    references,
)

_LARGEST = 1 << 24  # of a size, a stride, a number of channels
_STEPS = 100_000
Check = Callable[[Any], Any]


def _integer(least: int, most: int) -> Check:
    def check(value: Any) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            raise PackedError(f"expected an integer from {least} to {most}, got {value!r:.40}")
        return value

    return check


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise PackedError(f"expected a number, got {value!r:.40}")
    return float(value)


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise PackedError(f"expected true or false, got {value!r:.40}")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise PackedError(f"expected a text, got {value!r:.40}")
    return value


def _choice(*choices: str) -> Check:
    def check(value: Any) -> str:
        if value not in choices or not isinstance(value, str):
            raise PackedError(f"expected one of {', '.join(choices)}, got {value!r:.40}")
        return value

    return check


def _pair(least: int) -> Check:
    item = _integer(least, _LARGEST)

    def check(value: Any) -> tuple[int, int]:
        if not isinstance(value, list) or len(value) != 2:
            raise PackedError(f"expected two integers, got {value!r:.40}")
        return item(value[0]), item(value[1])

    return check


def _maybe(check: Check) -> Check:
    return lambda value: None if value is None else check(value)


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise PackedError(f"expected a list, got {value!r:.40}")
    return value


def _object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise PackedError(f"expected an object, got {value!r:.40}")
    return value


def _geometry(value: Any) -> Geometry:
    if not isinstance(value, list) or len(value) != len(_GEOMETRY):
        raise PackedError(f"expected a geometry of {len(_GEOMETRY)} entries, got {value!r:.40}")
    found = Geometry(*(check(item) for check, item in zip(_GEOMETRY, value, strict=True)))
    if found.channels % found.groups or found.outputs % found.groups:
        raise PackedError(f"expected channels and outputs in {found.groups} groups, got {found}")
    return found


_COUNT, _VALUE, _AXIS = _integer(1, _LARGEST), _integer(0, 10 * _STEPS), _integer(0, 16)
_GEOMETRY = (_COUNT, _COUNT, _pair(1), _pair(1), _pair(0), _pair(1), _COUNT)
_FIELDS: dict[type[Step], dict[str, Check]] = {
    Layer: {
        "name": _text, "weights": _choice("binary", "table"), "form": _choice("image", "line", "row", "whole"),
        "geometry": _geometry, "weight": _text, "bipolar": _flag, "tables": _choice("float32", "int16", "int8"),
        "input": _VALUE, "residual": _maybe(_VALUE), "scale": _maybe(_text), "shift": _maybe(_text),
        "lower": _maybe(_text), "upper": _maybe(_text), "y": _maybe(_VALUE), "bits": _maybe(_VALUE),
        "slope": _number, "planes": _integer(1, 8),
    },
    Threshold: {"name": _text, "input": _VALUE, "axis": _AXIS, "lower": _text, "upper": _text, "bits": _VALUE,
        "slope": _number,
    },
    Spikes: {
        "name": _text, "input": _VALUE, "axis": _AXIS, "leak": _number, "gain": _number, "threshold": _number,
        "soft": _flag, "bits": _VALUE,
    },
    Pool: {
        "name": _text, "input": _VALUE, "kernel": _pair(1), "stride": _pair(1), "padding": _pair(0),
        "dilation": _pair(1), "bits": _VALUE,
    },
    Unpack: {
        "name": _text, "input": _VALUE, "channels": _COUNT, "axis": _AXIS, "low": _number, "high": _number, "y": _VALUE,
    },
    Call: {"name": _text, "operator": _text, "args": _list, "kwargs": _object, "y": _VALUE},
}  # fmt: skip
_NAMES = {cls.__name__.lower(): cls for cls in _FIELDS}


def program_to_json(program: Program) -> dict[str, Any]:
    """The program without its tensors; of one tensor under several names, the first is to be kept: `same`."""
    steps = []
    for step in program.steps:
        fields = {name: getattr(step, name) for name in _FIELDS[type(step)]}
        steps.append({"step": type(step).__name__.lower(), **fields})
    first: dict[int, str] = {}
    same = {name: first[id(t)] for name, t in program.tensors.items() if first.setdefault(id(t), name) != name}
    return {"inputs": program.inputs, "steps": steps, "outputs": program.outputs, "same": same}


def program_from_json(written: Any, tensors: dict[str, Tensor]) -> Program:
    """The inverse.

    Raises:
        PackedError: a field that is missing, unknown or out of range, a value that no earlier step makes, or a tensor
            that is not there.
    """
    written = _object(written)
    tensors = tensors | {name: _same(other, tensors) for name, other in _object(written.get("same", {})).items()}
    inputs = tuple(tuple(_maybe(_integer(0, _LARGEST))(size) for size in _list(i)) for i in _list(written["inputs"]))
    if not inputs or any(not sizes for sizes in inputs):
        raise PackedError("expected at least one input of at least one dimension, got none")
    steps = tuple(_step(item) for item in _list(written["steps"]))
    if len(steps) > _STEPS:
        raise PackedError(f"expected at most {_STEPS} steps, got {len(steps)}")
    program = Program(inputs, steps, _outputs(written["outputs"]), tensors)
    known = len(inputs)
    for step in steps:
        for value in read(step):
            _earlier(value, known, step.name)
        for value in made(step):
            if value != known:
                raise PackedError(f"{step.name}: expected to make value {known}, got {value!r:.40}")
            known += 1
        _named(step, tensors)
    for value in _values(program.outputs):
        _earlier(value, known, "the outputs")
    return program


def _same(name: Any, tensors: dict[str, Tensor]) -> Tensor:
    if not isinstance(name, str) or name not in tensors:
        raise PackedError(f"expected a tensor of the file, got {name!r:.40}")
    return tensors[name]


def _step(written: Any) -> Step:
    fields = dict(_object(written))
    kind = _NAMES.get(_text(fields.pop("step", None)))
    if kind is Layer:
        fields.setdefault("planes", 1)  # version 1 has none
    if kind is None:
        raise PackedError(f"expected a step, one of {', '.join(_NAMES)}, got {written.get('step')!r:.40}")
    checks = _FIELDS[kind]
    if fields.keys() != checks.keys():
        raise PackedError(f"expected fields {', '.join(checks)}, got {', '.join(sorted(fields))!r:.200}")
    return kind(**{name: check(fields[name]) for name, check in checks.items()})  # pyright: ignore[reportCallIssue]


def _earlier(value: Any, known: int, where: str) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < known:
        raise PackedError(f"{where}: expected one of the {known} values made before, got {value!r:.40}")


def _named(step: Step, tensors: dict[str, Tensor]) -> None:
    if isinstance(step, Call):
        names = list(references([step.args, step.kwargs], "t"))
    elif isinstance(step, Layer):
        names = [n for n in (step.weight, step.scale, step.shift, step.lower, step.upper) if n is not None]
    else:
        names = [step.lower, step.upper] if isinstance(step, Threshold) else []
    for name in names:
        if not isinstance(name, str) or name not in tensors:
            raise PackedError(f"{step.name}: expected a tensor of the file, got {name!r:.40}")


def _outputs(written: Any, depth: int = 0) -> dict[str, Any]:
    written = _object(written)
    if len(written) != 1 or depth > 16:
        raise PackedError(f"expected outputs, got {written!r:.40}")
    ((key, content),) = written.items()
    if key == "dict":
        for item in _object(content).values():
            _outputs(item, depth + 1)
    elif key in ("list", "tuple"):
        for item in _list(content):
            _outputs(item, depth + 1)
    elif key not in ("v", "none"):
        raise PackedError(f"expected outputs, got {written!r:.40}")
    return written


def _values(written: dict[str, Any]) -> list[Any]:
    ((key, content),) = written.items()
    if key in ("v", "none"):
        return [content] if key == "v" else []
    return [value for item in (content.values() if key == "dict" else content) for value in _values(item)]
