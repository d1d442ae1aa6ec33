"""The maximum of bits over windows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor

from htaf.kernels.layers import Geometry
from htaf.kernels.packed_native import aligned, shape2d
from htaf.packed.errors import PackedError
from htaf.packed.instructions.contract import Decided, Instruction, Machine, Ready, Values
from htaf.packed.instructions.schema import Border, Made, Read, TensorName, Window
from htaf.packed.instructions.sizes import empty, expect, expect_bits
from htaf.packed.planning import At, Planning


@final
@dataclass(frozen=True)
class Pool(Instruction):
    """Maximum over windows of bits [batch, height, width, bytes].

    smallest: uint8 [bytes], the channels of which it is the minimum.
    stepped: the model pools first; the bits are those that its step of this name makes then.
    """

    opcode = "pool"

    name: str
    input: Read
    kernel: Window
    stride: Window
    padding: Border
    dilation: Window
    bits: Made
    smallest: TensorName | None = None
    stepped: bool = False

    def sizes(self, values: Sequence[Any], tensors: Mapping[str, Tensor], most: int) -> list[Any]:
        x = expect_bits(values[self.input], 4, None)
        pool = Geometry(1, 1, self.kernel, self.stride, self.padding, self.dilation)
        if any(2 * p > k for p, k in zip(self.padding, self.kernel, strict=True)):
            raise PackedError(f"expected a padding of at most half a window, got {self.padding}")
        pool.check()
        if any(p > size for p, size in zip(self.padding, x.shape[1:3], strict=True)):
            raise PackedError(f"expected a padding of at most the image {list(x.shape[1:3])}, got {self.padding}")
        if self.smallest is not None:
            expect(tensors[self.smallest], [x.shape[3]], torch.uint8)
        return [empty([x.shape[0], *pool.out_size(x.shape[1], x.shape[2]), x.shape[3]], torch.uint8)]

    def prepare(self, machine: Machine) -> Ready:
        pool, source, bits = machine.maps.max_pool, self.input, self.bits
        windows = (self.kernel, self.stride, self.padding, self.dilation)
        smallest = None if self.smallest is None else aligned(machine.tensors[self.smallest])

        def run(values: Values, batch: int) -> None:
            values[bits] = pool(values[source], *windows, smallest)

        return Ready(run, smallest)

    def plan(self, planning: Planning, ready: Ready) -> bool:
        bits = planning.example(self.input)
        if not bits.is_contiguous():
            return False
        channels = 8 * bits.shape[-1]
        windows = Geometry(channels, channels, self.kernel, self.stride, self.padding, self.dilation)
        places = At(self.input), At(self.bits), planning.address(ready.layer)
        planning.step("max_bits", shape2d(bits, windows), *places, makes=[self.bits])
        return True

    def decided(self) -> Decided | None:
        return Decided(self.bits, 1) if self.stepped else None

    def holds(self) -> tuple[int, ...]:
        return ()
