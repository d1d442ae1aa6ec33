"""Bits of floats by an interval."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

from torch import Tensor

from htaf.kernels.layers import Epilogue
from htaf.packed.instructions.contract import Decided, Instruction, Machine, Ready, Values
from htaf.packed.instructions.schema import Axis, Made, Read, TensorName
from htaf.packed.instructions.sizes import expect_channels, expect_floats, packed_along
from htaf.packed.planning import At, Ends, Planning


@final
@dataclass(frozen=True)
class Threshold(Instruction):
    """Bits of floats: lower <= x <= upper for every channel, the dimension `axis` of x."""

    opcode = "threshold"

    name: str
    input: Read
    axis: Axis
    lower: TensorName
    upper: TensorName
    bits: Made

    def sizes(self, values: Sequence[Any], tensors: Mapping[str, Tensor], most: int) -> list[Any]:
        x = expect_floats(values[self.input], self.axis)
        for end in (self.lower, self.upper):
            expect_channels(tensors[end], x.shape[self.axis])
        return [packed_along(x, self.axis)]

    def prepare(self, machine: Machine) -> Ready:
        lower, upper = machine.tensors[self.lower], machine.tensors[self.upper]
        finish, source, axis, bits = machine.maps.finish, self.input, self.axis, self.bits
        epilogues: dict[int, Epilogue] = {}  # the channels are known when a value is there

        def constants(channels: int) -> Epilogue:
            if channels not in epilogues:
                low, high = (end.expand(channels).contiguous() for end in (lower, upper))
                epilogues[channels] = Epilogue(None, None, None, low, high, False)
            return epilogues[channels]

        def run(values: Values, batch: int) -> None:
            x = values[source].movedim(axis, -1).contiguous()
            values[bits] = finish(x, constants(x.shape[-1]))[1]

        return Ready(run, constants)

    def plan(self, planning: Planning, ready: Ready) -> bool:
        x = planning.example(self.input).movedim(self.axis, -1)
        if not x.is_contiguous():
            return False
        lower, upper = (planning.address(end) for end in ready.layer(x.shape[-1])[3:5])
        if planning.with_bits(self.input, lower, upper, self.bits):  # in the pass that makes the floats
            return True
        ends = Ends(lower=lower, upper=upper, bits=self.bits)
        planning.step("finish", At(self.input), x.numel() // x.shape[-1], x.shape[-1], ends=ends)
        return True

    def decided(self) -> Decided:
        return Decided(self.bits, self.axis)

    def holds(self) -> tuple[int, ...]:
        return ()
