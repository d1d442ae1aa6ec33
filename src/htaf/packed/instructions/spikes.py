"""Bits of spiking neurons over time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

from torch import Tensor

from htaf.packed.errors import PackedError
from htaf.packed.instructions.contract import Decided, Instruction, Machine, Ready, Values
from htaf.packed.instructions.schema import Axis, Made, Read
from htaf.packed.instructions.sizes import expect_floats, packed_along
from htaf.packed.planning import At, Planning


@final
@dataclass(frozen=True)
class Spikes(Instruction):
    """Bits of spiking neurons over dimension 0 of floats, see htaf/kernels/packed_maps/reference.py."""

    opcode = "spikes"

    name: str
    input: Read
    axis: Axis
    leak: float
    gain: float
    threshold: float
    soft: bool
    bits: Made

    def sizes(self, values: Sequence[Any], tensors: Mapping[str, Tensor], most: int) -> list[Any]:
        x = expect_floats(values[self.input], self.axis)
        if x.ndim < 2 or self.axis == 0 or x.shape[0] == 0:
            raise PackedError(f"expected time steps, then more dimensions, got {list(x.shape)}")
        return [packed_along(x, self.axis)]

    def prepare(self, machine: Machine) -> Ready:
        spikes, source, axis, bits = machine.maps.spikes, self.input, self.axis, self.bits
        numbers = {"leak": self.leak, "gain": self.gain, "threshold": self.threshold, "soft": self.soft}

        def run(values: Values, batch: int) -> None:
            values[bits] = spikes(values[source].movedim(axis, -1), None, None, **numbers)

        return Ready(run)

    def plan(self, planning: Planning, ready: Ready) -> bool:
        x = planning.example(self.input).movedim(self.axis, -1)
        if not x[0].is_contiguous():
            return False
        steps, channels = x.shape[0], x.shape[-1]
        neuron = (self.leak, self.gain, self.threshold, self.soft)
        sizes = (steps, x[0].numel() // channels, channels)
        planning.step("spikes", At(self.input), x.stride(0), At(self.bits), *sizes, neuron, makes=[self.bits])
        return True

    def decided(self) -> Decided:
        return Decided(self.bits, self.axis, over_time=True)

    def holds(self) -> tuple[int, ...]:
        return ()
