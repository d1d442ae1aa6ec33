"""A linear layer over the means of bits, as the head of a network with weights on a grid."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor

from htaf.kernels.packed_maps.reference import LinearOfMeans
from htaf.packed.errors import PackedError
from htaf.packed.instructions.contract import Instruction, Machine, Ready, Values
from htaf.packed.instructions.schema import LARGEST, Made, Read, TensorName
from htaf.packed.instructions.sizes import empty, expect, expect_bits
from htaf.packed.planning import At, Planning


@final
@dataclass(frozen=True)
class Means(Instruction):
    """y = unit (weight mean + bias) of bits [(steps,) images, height, width, bytes], see kernels/packed_maps.

    The means are over pixels, and over steps. weight: int32 [outputs, channels]; bias: int64 [outputs].
    """

    opcode = "means"

    name: str
    input: Read
    weight: TensorName
    bias: TensorName
    unit: float
    y: Made

    def sizes(self, values: Sequence[Any], tensors: Mapping[str, Tensor], most: int) -> list[Any]:
        weight, x = tensors[self.weight], values[self.input]
        if weight.ndim != 2 or not all(weight.shape):
            raise PackedError(f"expected weights [outputs, channels], got {list(weight.shape)}")
        outputs, channels = weight.shape
        expect(weight, [outputs, channels], torch.int32)
        expect(tensors[self.bias], [outputs], torch.int64)
        expect_bits(x, 5 if x.ndim == 5 else 4, channels)
        if not 0 < math.prod(x.shape[:-4]) * math.prod(x.shape[-3:-1]) * channels <= LARGEST:
            raise PackedError(f"expected images of up to {LARGEST:,} bits, got {list(x.shape)} bytes")
        return [empty([x.shape[-4], outputs], torch.float32)]

    def prepare(self, machine: Machine) -> Ready:
        source, y, maps = self.input, self.y, machine.maps
        given = LinearOfMeans(machine.tensors[self.weight], machine.tensors[self.bias], self.unit)
        layer = maps.prepare_means(given)

        def run(values: Values, batch: int) -> None:
            values[y] = maps.means(_images(values[source]), layer)

        return Ready(run, layer)

    def plan(self, planning: Planning, ready: Ready) -> bool:
        bits = planning.example(self.input)
        if not bits.is_contiguous():
            return False
        planning.kept.append(ready.layer)
        sizes = tuple(_images(bits).shape[:3])
        planning.step("means", At(self.input), At(self.y), sizes, ready.layer.held(), makes=[self.y])
        return True

    def decided(self) -> None:
        return None

    def holds(self) -> tuple[int, ...]:
        return ()


def _images(bits: Tensor) -> Tensor:
    """[steps, images, pixels, bytes]."""
    return (bits if bits.ndim == 5 else bits.unsqueeze(0)).flatten(2, 3)
