"""The program of a packed model: what is kept, written to a file and run.

A value is numbered by the instruction that makes it, in order, so that an instruction can only read earlier values: no
cycles. Floats lie as PyTorch has them (images [batch, channels, height, width] in channels_last); bits have their
channels moved to the end and packed there, see htaf/kernels/layers.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from htaf.packed.errors import PackedError
from htaf.packed.instructions import Instruction


class Input(NamedTuple):
    """What a packed model takes: sizes, None for the batch; float32, or integers or bools as of ids and masks."""

    sizes: tuple[int | None, ...]
    dtype: torch.dtype = torch.float32


@dataclass(frozen=True)
class Program:
    """What a packed model runs.

    inputs: the first values. outputs: {"v": number} for a value, {"none": None}, or {"list" | "tuple": [...]},
    {"dict": {...}} of these.

    Raises:
        PackedError: something else than an `Instruction` among them.
    """

    inputs: tuple[Input, ...]
    instructions: tuple[Instruction, ...]
    outputs: dict[str, Any]
    tensors: dict[str, Tensor]

    def __post_init__(self) -> None:
        for one in self.instructions:
            if not isinstance(one, Instruction):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise PackedError(f"expected instructions of packed programs, got {type(one).__name__}")

    def last_uses(self) -> dict[int, int]:
        """The place of the last instruction that makes or reads each value; of those in the outputs behind all."""
        last = {value: at for at, i in enumerate(self.instructions) for value in (*i.makes, *i.reads)}
        return last | dict.fromkeys(self.returned(), len(self.instructions))

    def returned(self) -> list[Any]:
        """The values in the outputs."""
        return _values_in(self.outputs)


def _values_in(written: dict[str, Any]) -> list[Any]:
    ((key, content),) = written.items()
    if key in ("v", "none"):
        return [content] if key == "v" else []
    return [value for item in (content.values() if key == "dict" else content) for value in _values_in(item)]
