"""The steps of a packed model: what is kept, written to a file and run.

A value is numbered by the step that makes it, in order, so that a step can only read earlier values: no cycles. Floats
lie as PyTorch has them (images [batch, channels, height, width] in channels_last); bits have their channels moved to
the end and packed there, see htaf/kernels/layers.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor

from htaf._errors import HtafError
from htaf.kernels.layers import Geometry

Kind = Literal["float32", "int16", "int8"]
# how bits and sums lie: [batch, height, width, .], [batch, length, .], [..., .]; whole: images as rows
Form = Literal["image", "line", "row", "whole"]


class PackedError(HtafError):
    """A model that cannot be packed, a file that is no packed model, or inputs that it does not take."""


@dataclass(frozen=True)
class Layer:
    """A convolution or linear layer over bits and its epilogue; tensors by their names, values by their numbers.

    slope: the largest |derivative| of the pre-activation of the bits by what the interval is compared with.
    planes: of a table, the bit planes of its input, which lie side by side as channels; its weights are kept once.
    """

    name: str
    weights: Literal["binary", "table"]
    form: Form
    geometry: Geometry
    weight: str
    bipolar: bool
    tables: Kind
    input: int
    residual: int | None
    scale: str | None
    shift: str | None
    lower: str | None
    upper: str | None
    y: int | None
    bits: int | None
    slope: float = 1.0
    planes: int = 1


@dataclass(frozen=True)
class Threshold:
    """Bits of floats: lower <= x <= upper for every channel, the dimension `axis` of x."""

    name: str
    input: int
    axis: int
    lower: str
    upper: str
    bits: int
    slope: float = 1.0


@dataclass(frozen=True)
class Spikes:
    """Bits of spiking neurons over dimension 0 of floats, see htaf/kernels/packed_maps/reference.py."""

    name: str
    input: int
    axis: int
    leak: float
    gain: float
    threshold: float
    soft: bool
    bits: int


@dataclass(frozen=True)
class Pool:
    """Maximum over windows of bits [batch, height, width, bytes]."""

    name: str
    input: int
    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]
    bits: int


@dataclass(frozen=True)
class Unpack:
    """Floats, `low` where a bit is 0 and `high` where it is 1, their channels in dimension `axis`."""

    name: str
    input: int
    channels: int
    axis: int
    low: float
    high: float
    y: int


@dataclass(frozen=True)
class Call:
    """An operator of PyTorch on floats, or on bytes that hold bits; arguments as operators.encode writes them."""

    name: str
    operator: str
    args: list[Any]
    kwargs: dict[str, Any]
    y: int


Step = Layer | Threshold | Spikes | Pool | Unpack | Call


@dataclass(frozen=True)
class Program:
    """What a packed model runs.

    inputs: the sizes of each input, None for the batch. outputs: {"v": number} for a value, {"none": None}, or
    {"list" | "tuple": [...]}, {"dict": {...}} of these. The inputs are the first values.
    """

    inputs: tuple[tuple[int | None, ...], ...]
    steps: tuple[Step, ...]
    outputs: dict[str, Any]
    tensors: dict[str, Tensor]

    def layers(self) -> dict[str, str]:
        """Of each layer over bits, by its name: the node of its weights."""
        return {s.name: s.weight.removesuffix(".weight") for s in self.steps if isinstance(s, Layer)}


def made(step: Step) -> tuple[int, ...]:
    """The values that a step makes."""
    if isinstance(step, Layer):
        return tuple(v for v in (step.y, step.bits) if v is not None)
    return (step.bits,) if isinstance(step, (Threshold, Spikes, Pool)) else (step.y,)


def read(step: Step) -> tuple[int, ...]:
    """The values that a step takes."""
    if isinstance(step, Call):
        return tuple(references([step.args, step.kwargs], "v"))
    if isinstance(step, Layer) and step.residual is not None:
        return step.input, step.residual
    return (step.input,)


def references(written: Any, key: str) -> Iterator[Any]:
    """The values ("v") or tensors ("t") in written arguments."""
    if isinstance(written, list):
        for item in written:
            yield from references(item, key)
    elif isinstance(written, dict):
        if key in written and len(written) == 1:
            yield written[key]
        else:
            for item in written.values():
                yield from references(item, key)
