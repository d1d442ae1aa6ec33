"""Bits of floats, floats of bits, and their maxima and means over windows and images."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor

from htaf.core.kernels.layers import Epilogue, Geometry
from htaf.core.kernels.packed_maps.reference import LinearOfMeans
from htaf.core.kernels.packed_native import aligned, shape2d
from htaf.program.packed.errors import PackedError
from htaf.program.packed.instructions.contract import (
    LARGEST,
    Axis,
    Border,
    Count,
    Decided,
    Instruction,
    Machine,
    Made,
    Read,
    Ready,
    TensorName,
    Values,
    Window,
    empty,
    expect,
    expect_bits,
    expect_channels,
    expect_floats,
    packed_along,
)
from htaf.program.packed.planning import At, Ends, Planning


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


@final
@dataclass(frozen=True)
class Spikes(Instruction):
    """Bits of spiking neurons over dimension 0 of floats, see htaf/core/kernels/packed_maps/reference.py."""

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
            values[bits] = spikes(values[source].movedim(axis, -1), **numbers)

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
    bits: Made
    smallest: TensorName | None = None
    stepped: bool = False

    def sizes(self, values: Sequence[Any], tensors: Mapping[str, Tensor], most: int) -> list[Any]:
        x = expect_bits(values[self.input], 4, None)
        pool = Geometry(1, 1, self.kernel, self.stride, self.padding)
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
        windows = (self.kernel, self.stride, self.padding)
        smallest = None if self.smallest is None else aligned(machine.tensors[self.smallest])

        def run(values: Values, batch: int) -> None:
            values[bits] = pool(values[source], *windows, smallest)

        return Ready(run, smallest)

    def plan(self, planning: Planning, ready: Ready) -> bool:
        bits = planning.example(self.input)
        if not bits.is_contiguous():
            return False
        channels = 8 * bits.shape[-1]
        windows = Geometry(channels, channels, self.kernel, self.stride, self.padding)
        places = At(self.input), At(self.bits), planning.address(ready.layer)
        planning.step("max_bits", shape2d(bits, windows), *places, makes=[self.bits])
        return True

    def decided(self) -> Decided | None:
        return Decided(self.bits, 1) if self.stepped else None


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


def _images(bits: Tensor) -> Tensor:
    """[steps, images, pixels, bytes]."""
    return (bits if bits.ndim == 5 else bits.unsqueeze(0)).flatten(2, 3)
