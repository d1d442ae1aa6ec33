"""The instructions of packed programs: one class each, which says all that there is to know of it (contract.py)."""

from htaf.program.packed.instructions.call import Call
from htaf.program.packed.instructions.contract import Instruction
from htaf.program.packed.instructions.layer import Layer, Rounded
from htaf.program.packed.instructions.maps import Means, Pool, Spikes, Threshold, Unpack

__all__ = ["INSTRUCTIONS", "Call", "Instruction", "Layer", "Means", "Pool", "Rounded", "Spikes", "Threshold", "Unpack"]

INSTRUCTIONS: dict[str, type[Instruction]] = {  # that a file may hold, by opcode
    one.opcode: one for one in (Layer, Threshold, Spikes, Pool, Unpack, Call, Rounded, Means)
}
