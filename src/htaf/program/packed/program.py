"""The program of a packed model: what is kept, written to a file and run.

A value is numbered by the instruction that makes it, in order, so that an instruction can only read earlier values: no
cycles. Floats lie as PyTorch has them (images [batch, channels, height, width] in channels_last); bits have their
channels moved to the end and packed there, see htaf/core/kernels/layers.py.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from htaf._ground.errors import TooLargeError, expect_memory, first_line
from htaf.program.packed import operators
from htaf.program.packed.errors import PackedError
from htaf.program.packed.instructions import BATCH, Instruction, empty


class Input(NamedTuple):
    """What a packed model takes: sizes, None for the batch; float32, or integers or bools as of ids and masks."""

    sizes: tuple[int | None, ...]
    dtype: torch.dtype = torch.float32


@dataclass(frozen=True)
class Program:
    """What a packed model runs.

    inputs: the first values. outputs: the number of a value, None, or lists, tuples and dicts of these.

    Raises:
        PackedError: something else than an `Instruction` among them, or in the outputs.
    """

    inputs: tuple[Input, ...]
    instructions: tuple[Instruction, ...]
    outputs: Any
    tensors: dict[str, Tensor]

    def __post_init__(self) -> None:
        for one in self.instructions:
            if not isinstance(one, Instruction):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise PackedError(f"expected instructions of packed programs, got {type(one).__name__}")
        outputs_to_json(self.outputs)

    def last_uses(self) -> dict[int, int]:
        """The place of the last instruction that makes or reads each value; of those in the outputs behind all."""
        last = {value: at for at, i in enumerate(self.instructions) for value in (*i.makes, *i.reads)}
        return last | dict.fromkeys(self.returned(), len(self.instructions))

    def returned(self) -> list[Any]:
        """The values in the outputs."""
        return [value for value in tree_leaves(self.outputs) if value is not None]


def outputs_to_json(outputs: Any) -> dict[str, Any]:
    """As a file has them: {"v": number}, {"none": null}, or a "list", "tuple" or "dict" of these."""
    if outputs is None or type(outputs) is int:
        return {"none": None} if outputs is None else {"v": outputs}
    if type(outputs) in (list, tuple):
        return {type(outputs).__name__: [outputs_to_json(item) for item in outputs]}
    if type(outputs) is dict and all(isinstance(key, str) for key in outputs):
        return {"dict": {key: outputs_to_json(item) for key, item in outputs.items()}}
    raise PackedError(f"expected tensors in tuples, lists and dicts as outputs, got {type(outputs).__name__}")


# ---- the sizes of every tensor and of every value, before any of it runs ----

_LARGEST, _TIMES = 1 << 30, 1 << 10  # bytes of a value, and where it is more: times the inputs'
_TOGETHER = 4  # times that: of values in memory at once, and of all that are read and made for a batch of two


def check(program: Program, batch: int = BATCH) -> list[Any]:
    """Go through the instructions with tensors that have sizes and no content.

    Args:
        batch: the size of the inputs where it is open. What a value may hold grows in proportion to it, up to the
            machine's memory.

    Returns:
        The values by number, as tensors on "meta" and lists of them.

    Raises:
        PackedError: an operator that is not allowed, or sizes that do not fit or are too large.
    """
    meta = {name: tensor.to("meta") for name, tensor in program.tensors.items()}
    values: list[Any] = []
    for sizes, dtype in program.inputs:
        values.append(empty([batch if size is None else size for size in sizes], dtype))
    given = _TIMES * sum(_bytes(x) for x in values)
    most = max(_LARGEST * max(batch, BATCH) // BATCH, given)
    left = _TOGETHER * most  # time is in proportion to what is moved
    last = program.last_uses()
    size = {value: _size(x) for value, x in enumerate(values)}
    held = peak = 0
    for at, instruction in enumerate(program.instructions):
        try:
            made = instruction.sizes(values, meta, most)
            if len(made) != len(instruction.makes):
                raise PackedError(f"expected the sizes of {len(instruction.makes)} values, got {len(made)}")
            size |= {y: _check_size(x, most, batch) for y, x in zip(instruction.makes, made, strict=True)}
        except PackedError as error:
            raise PackedError(f"{instruction.name}: {error}") from None
        except Exception as error:  # whatever an operator raises for arguments that do not fit
            raise PackedError(f"{instruction.name}: {first_line(error):.200}") from None
        held += sum(size[value] for value in instruction.makes)
        left -= sum(size[value] for value in (*instruction.reads, *instruction.makes))
        if held > _TOGETHER * most or left < 0:
            how = "together" if left >= 0 else "read and made together"
            raise PackedError(f"expected values of at most {_TOGETHER * most:,} bytes {how}, got more{_advice(batch)}")
        peak = max(peak, held)
        done = {v for v in (*instruction.reads, *instruction.makes) if last[v] == at and v >= len(program.inputs)}
        held -= sum(size[value] for value in done)
        values += made
    if peak > _LARGEST:
        try:
            expect_memory(peak, f"a batch of {batch}", "give fewer rows at a time")
        except TooLargeError as error:
            raise PackedError(str(error)) from None
    return values


def _check_size(value: Any, most: int, batch: int) -> int:
    """The bytes of a value. Raises PackedError where they are too many."""
    for tensor in value if isinstance(value, (list, tuple)) else [value]:
        if not isinstance(tensor, Tensor):
            raise PackedError(f"expected a tensor, got {type(tensor).__name__}")
        if tensor.dtype not in operators.DTYPES:
            raise PackedError(f"expected values in float32 or whole numbers, got {tensor.dtype}")
        if _bytes(tensor) > most:
            got = f"{list(tensor.shape)}{_advice(batch)}"
            raise PackedError(f"expected values of at most {most:,} bytes, got {got}")
    return _size(value)


def _advice(batch: int) -> str:
    return f" for a batch of {batch}: give fewer rows at a time" if batch > BATCH else ""


def _size(value: Any) -> int:
    return sum(map(_bytes, value)) if isinstance(value, (list, tuple)) else _bytes(value)


def _bytes(tensor: Tensor) -> int:
    return math.prod(tensor.shape) * tensor.element_size()  # numel() may overflow
