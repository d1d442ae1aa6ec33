"""Floats of bits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor

from htaf.packed.errors import PackedError
from htaf.packed.instructions.contract import Instruction, Machine, Ready, Values
from htaf.packed.instructions.schema import Axis, Count, Made, Read
from htaf.packed.instructions.sizes import empty, expect_bits
from htaf.packed.planning import At, Planning


@final
@dataclass(frozen=True)
class Unpack(Instruction):
    """Floats, `low` where a bit is 0 and `high` where it is 1, their channels in dimension `axis`."""

    opcode = "unpack"

    name: str
    input: Read
    channels: Count
    axis: Axis
    low: float
    high: float
    y: Made

    def sizes(self, values: Sequence[Any], tensors: Mapping[str, Tensor], most: int) -> list[Any]:
        x = expect_bits(values[self.input], None, self.channels)
        if self.axis >= x.ndim:
            raise PackedError(f"expected a dimension of {x.ndim}, got {self.axis}")
        sizes = list(x.shape[:-1])
        sizes.insert(self.axis, self.channels)
        return [empty(sizes, torch.float32)]

    def prepare(self, machine: Machine) -> Ready:
        unpack, source, channels, axis, y = machine.maps.unpack, self.input, self.channels, self.axis, self.y
        low, high = self.low, self.high
        bipolar = (low, high) == (-1.0, 1.0)
        plain = bipolar or (low, high) == (0.0, 1.0)
        levels = torch.tensor([low, high], dtype=torch.float32, device="cpu")

        def run(values: Values, batch: int) -> None:
            found = unpack(values[source], channels, bipolar=bipolar)
            if not plain:
                found = torch.where(found > 0, levels[1], levels[0])
            values[y] = found.movedim(-1, axis)

        return Ready(run)

    def plan(self, planning: Planning, ready: Ready) -> bool:
        bits = planning.example(self.input)
        if (self.low, self.high) not in ((-1.0, 1.0), (0.0, 1.0)) or not bits.is_contiguous():
            return False
        pixels = bits.numel() // bits.shape[-1]
        planning.step("unpack", At(self.input), At(self.y), pixels, self.channels, self.low, makes=[self.y])
        return True

    def decided(self) -> None:
        return None

    def holds(self) -> tuple[int, ...]:
        return ()
