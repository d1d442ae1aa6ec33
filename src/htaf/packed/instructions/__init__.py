"""The instructions of packed programs: one class each, which says all that there is to know of it (contract.py)."""

from collections.abc import Iterable

from htaf.packed.instructions.call import Call
from htaf.packed.instructions.contract import Instruction
from htaf.packed.instructions.layer import Layer
from htaf.packed.instructions.means import Means
from htaf.packed.instructions.pool import Pool
from htaf.packed.instructions.rounded import Rounded
from htaf.packed.instructions.spikes import Spikes
from htaf.packed.instructions.threshold import Threshold
from htaf.packed.instructions.unpack import Unpack

__all__ = [
    "INSTRUCTIONS",
    "Call",
    "Instruction",
    "Layer",
    "Means",
    "Pool",
    "Rounded",
    "Spikes",
    "Threshold",
    "Unpack",
    "by_opcode",
]

INSTRUCTIONS: tuple[type[Instruction], ...] = (
    Layer, Threshold, Spikes, Pool, Unpack, Call, Rounded, Means,
)  # fmt: skip


def by_opcode(more: Iterable[type[Instruction]] = ()) -> dict[str, type[Instruction]]:
    """The instructions that a file may hold, ours and `more`, by opcode. Raises ValueError for two of one opcode."""
    found: dict[str, type[Instruction]] = {}
    for cls in (*INSTRUCTIONS, *more):
        if cls is not found.setdefault(cls.opcode, cls):
            other = found[cls.opcode].__name__
            raise ValueError(f"expected one instruction an opcode, got {other} and {cls.__name__} of {cls.opcode!r}")
    return found
