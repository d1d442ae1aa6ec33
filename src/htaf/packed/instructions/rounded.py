"""A convolution over floats whose inputs and weights are rounded to integers of 16 bits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor

from htaf.kernels.float_layers import reference
from htaf.kernels.float_layers.cpu import NO_WINDOW
from htaf.packed.errors import PackedError
from htaf.packed.instructions.contract import Instruction, Machine, Ready, Seen, Values
from htaf.packed.instructions.layer import Written
from htaf.packed.instructions.schema import Made, Read, TensorName
from htaf.packed.instructions.sizes import empty, expect, expect_floats
from htaf.packed.planning import At, Ends, Planning


@final
@dataclass(frozen=True)
class Rounded(Instruction):
    """y = convolution of floats [batch, channels, height, width] in integers, see kernels/float_layers/reference.py.

    The weights are kept in float32; which integers they become follows from them.
    """

    opcode = "rounded"

    name: str
    input: Read
    geometry: Written
    weight: TensorName
    bias: TensorName | None
    y: Made

    def sizes(self, values: Sequence[Any], tensors: Mapping[str, Tensor], most: int) -> list[Any]:
        g, x = self.geometry, expect_floats(values[self.input], axis=3)
        if x.ndim != 4 or x.shape[1] != g.channels or g.groups != 1 or g.dilation[1] != 1:
            raise PackedError(f"expected images of {g.channels} channels, one group and no dilation, got {g}")
        g.check()
        expect(tensors[self.weight], [g.outputs, g.channels, *g.kernel], torch.float32)
        if self.bias is not None:
            expect(tensors[self.bias], [g.outputs], torch.float32)
        (down, across), (height, width) = g.padding, x.shape[2:]
        padded = x.shape[0] * (height + 2 * down) * (width + 2 * across) * g.channels * 2
        if padded > most:
            raise PackedError(f"expected padded images of at most {most:,} bytes, got {padded:,}")
        return [empty([x.shape[0], g.outputs, *g.out_size(height, width)], torch.float32)]

    def prepare(self, machine: Machine) -> Ready:
        weight, g, source, y = machine.tensors[self.weight], self.geometry, self.input, self.y
        bias = None if self.bias is None else machine.tensors[self.bias].contiguous()
        weights, floats = reference.rounding(weight), machine.floats
        laid = None if floats is None else floats.prepare_rounded(weights)

        def run(values: Values, batch: int) -> None:
            if laid is None or floats is None:
                values[y] = reference.rounded(values[source], weights, bias, g)
            else:
                values[y] = floats.rounded(values[source], laid, bias, g)

        return Ready(run, weights, (floats, laid, bias))

    def plan(self, planning: Planning, ready: Ready) -> bool:
        floats, laid, bias = ready.layer
        x = planning.example(self.input)
        ends = Ends(shift=planning.address(bias), y=self.y)
        weights = planning.address(laid.values), planning.address(laid.unit)
        where = floats.shape_of(x, self.geometry), At(self.input), floats.strides_of(x), weights
        planning.step("rounded", *where, NO_WINDOW, ends=ends)
        return True

    def bounds(self, seen: Seen) -> list[float]:
        weight = seen.tensors[self.weight]
        own = float(reference.rounding_error(seen.values[self.input], weight, seen.weights).max())
        return [own + seen.errors[self.input] * float(weight.double().abs().flatten(1).sum(1).max())]

    def decided(self) -> None:
        return None

    def holds(self) -> tuple[int, ...]:
        return ()
