"""The sizes of every tensor and of every value of a program, before any of it runs."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from htaf._errors import first_line
from htaf.packed import operators
from htaf.packed.errors import PackedError
from htaf.packed.instructions.sizes import BATCH, empty
from htaf.packed.program import Program

_LARGEST, _TIMES = 1 << 30, 1 << 10  # bytes of a value for a batch of two, and where it is more: times the inputs'
_TOGETHER = 4  # times that: of all values that a file makes


def check(program: Program) -> None:
    """Go through the instructions with tensors that have sizes and no content, for a batch of two.

    Raises:
        PackedError: an operator that is not allowed, or sizes that do not fit or are too large.
    """
    meta = {name: tensor.to("meta") for name, tensor in program.tensors.items()}
    values: list[Any] = []
    for sizes in program.inputs:
        values.append(empty([BATCH if size is None else size for size in sizes], torch.float32))
    most = max(_LARGEST, _TIMES * sum(_bytes(x) for x in values))
    left = _TOGETHER * most
    for instruction in program.instructions:
        try:
            made = instruction.sizes(values, meta, most)
            if len(made) != len(instruction.makes):
                raise PackedError(f"expected the sizes of {len(instruction.makes)} values, got {len(made)}")
            left -= sum(_check_size(value, most) for value in made)
        except PackedError as error:
            raise PackedError(f"{instruction.name}: {error}") from None
        except Exception as error:  # whatever an operator raises for arguments that do not fit
            raise PackedError(f"{instruction.name}: {first_line(error):.200}") from None
        if left < 0:
            raise PackedError(f"expected values of at most {_TOGETHER * most:,} bytes together, got more")
        values += made


def _check_size(value: Any, most: int) -> int:
    """The bytes of a value."""
    total = 0
    for tensor in value if isinstance(value, (list, tuple)) else [value]:
        if not isinstance(tensor, Tensor):
            raise PackedError(f"expected a tensor, got {type(tensor).__name__}")
        if tensor.dtype not in operators.DTYPES:
            raise PackedError(f"expected values in float32 or whole numbers, got {tensor.dtype}")
        if _bytes(tensor) > most:
            raise PackedError(f"expected values of at most {most:,} bytes, got {list(tensor.shape)}")
        total += _bytes(tensor)
    return total


def _bytes(tensor: Tensor) -> int:
    return math.prod(tensor.shape) * tensor.element_size()  # numel() may overflow
