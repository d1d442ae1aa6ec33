"""A convolution over floats that are rounded to integers of 16 bits, with weights that are such integers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, final

import torch
from torch import Tensor

from htaf.kernels.float_layers import reference
from htaf.kernels.float_layers.cpu import NO_WINDOW
from htaf.packed.errors import PackedError
from htaf.packed.instructions.contract import Instruction, Machine, Ready, Values
from htaf.packed.instructions.layer import Written
from htaf.packed.instructions.schema import Field, Made, Read, TensorName, integer
from htaf.packed.instructions.sizes import empty, expect, expect_channels, expect_floats
from htaf.packed.planning import At, Ends, Planning

Exponent = Annotated[int, Field(integer(-100, 100))]
Limit = Annotated[int, Field(integer(1, reference.WIDEST))]


@final
@dataclass(frozen=True)
class Rounded(Instruction):
    """y = convolution of floats [batch, channels, height, width] in integers, see kernels/float_layers/reference.py."""

    opcode = "rounded"

    name: str
    input: Read
    geometry: Written
    weight: TensorName
    unit: TensorName
    exponent: Exponent
    limit: Limit
    y: Made

    def sizes(self, values: Sequence[Any], tensors: Mapping[str, Tensor], most: int) -> list[Any]:
        g, x = self.geometry, expect_floats(values[self.input], axis=3)
        if x.ndim != 4 or x.shape[1] != g.channels or g.groups != 1 or g.dilation[1] != 1:
            raise PackedError(f"expected images of {g.channels} channels, one group and no dilation, got {g}")
        g.check()
        expect(tensors[self.weight], [g.outputs, g.channels, *g.kernel], torch.int16)
        expect_channels(tensors[self.unit], g.outputs)
        (down, across), (height, width) = g.padding, x.shape[2:]
        padded = x.shape[0] * (height + 2 * down) * (width + 2 * across) * g.channels * 2
        if padded > most:
            raise PackedError(f"expected padded images of at most {most:,} bytes, got {padded:,}")
        return [empty([x.shape[0], g.outputs, *g.out_size(height, width)], torch.float32)]

    def prepare(self, machine: Machine) -> Ready:
        g, source, y, floats = self.geometry, self.input, self.y, machine.floats
        unit = machine.tensors[self.unit].expand(g.outputs).contiguous()
        weights = reference.Rounded(machine.tensors[self.weight], unit, self.exponent, self.limit)
        weights.check()
        laid = None if floats is None else floats.prepare_rounded(weights)

        def run(values: Values, batch: int) -> None:
            if laid is None or floats is None:
                values[y] = reference.rounded(values[source], weights, g)
            else:
                values[y] = floats.rounded(values[source], laid, g)

        return Ready(run, (floats, laid))

    def plan(self, planning: Planning, ready: Ready) -> bool:
        floats, laid = ready.layer
        x = planning.example(self.input)
        planning.kept.append(laid)
        where = floats.shape_of(x, self.geometry), At(self.input), floats.strides_of(x), laid.held()
        planning.step("rounded", *where, NO_WINDOW, ends=Ends(y=self.y))
        return True

    def decided(self) -> None:
        return None

    def holds(self) -> tuple[int, ...]:
        return ()
