"""Convolutions and linear layers over bits, and a convolution over floats that are rounded to integers."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, Literal, final

import torch
from torch import Tensor

from htaf.core.kernels.float_layers import reference as float_layers
from htaf.core.kernels.float_layers.cpu import NO_WINDOW
from htaf.core.kernels.integer_convolution.reference import check_exact
from htaf.core.kernels.layers import Epilogue, Geometry, row_bytes
from htaf.core.kernels.packed_native import shape2d
from htaf.program.packed.errors import PackedError
from htaf.program.packed.instructions.contract import (
    LARGEST,
    Decided,
    Field,
    Instruction,
    Machine,
    Made,
    Read,
    Ready,
    TensorName,
    Values,
    empty,
    expect,
    expect_bits,
    expect_channels,
    expect_floats,
    integer,
    pair,
)
from htaf.program.packed.planning import At, Ends, Planning

# how bits and sums lie: [batch, height, width, .], [..., .]; whole: images as rows
Form = Literal["image", "row", "whole"]

_COUNT = integer(1, LARGEST)
_GEOMETRY = (_COUNT, _COUNT, pair(1), pair(1), pair(0), pair(1), _COUNT)


def _geometry(value: Any) -> Geometry:
    if not isinstance(value, list) or len(value) != len(_GEOMETRY):
        raise PackedError(f"expected a geometry of {len(_GEOMETRY)} entries, got {value!r:.40}")
    return Geometry(*(check(item) for check, item in zip(_GEOMETRY, value, strict=True)))


Written = Annotated[Geometry, Field(_geometry)]
Planes = Annotated[int, Field(integer(1, 8))]
SMALL = 7  # of an integer weight that takes four bits
FEW, MANY = 16, 512  # output pixels: products of bytes are faster below, tables of sums above; between is measured
ROUNDS = 5  # of such a measurement


@final
@dataclass(frozen=True)
class Layer(Instruction):
    """A convolution or linear layer over bits and its epilogue; tensors by their names, values by their numbers.

    bipolar: bits are -1 and 1; of binary weights.
    planes: of a table, the bit planes of its input, which lie side by side as channels; its weights are kept once. Of
        integers the same, but the geometry's channels are those of one plane.
    wide: float64 [2, outputs], scale and shift that are computed in float64.
    pooled: the model pools before it compares, so that its step has other bits: those of the `Pool` behind.
    """

    opcode = "layer"

    name: str
    weights: Literal["binary", "table", "integer"]
    form: Form
    geometry: Written
    weight: TensorName
    bipolar: bool
    input: Read
    residual: Read | None
    scale: TensorName | None
    shift: TensorName | None
    lower: TensorName | None
    upper: TensorName | None
    y: Made | None
    bits: Made | None
    planes: Planes = 1
    wide: TensorName | None = None
    pooled: bool = False

    def sizes(self, values: Sequence[Any], tensors: Mapping[str, Tensor], most: int) -> list[Any]:
        g = self.geometry
        g.check()
        if g.groups != 1:
            raise PackedError(f"expected a layer without groups, got {g}")
        x = expect_bits(values[self.input], 4 if self.form != "row" else None, self._channels)
        self._check_weights(tensors, most)
        floats, bits = self._sums(x, most)
        if self.residual is not None:
            expect(values[self.residual], floats, torch.float32)
        made = [] if self.y is None else [empty(floats, torch.float32)]
        return made if self.bits is None else [*made, empty([*bits, row_bytes(g.outputs)], torch.uint8)]

    @property
    def _channels(self) -> int:
        """Of the bits that are read: the geometry's, or those of planes beside each other."""
        apart = self.planes > 1 and self.weights == "integer"
        return 8 * self.planes * row_bytes(self.geometry.channels) if apart else self.geometry.channels

    def _check_weights(self, tensors: Mapping[str, Tensor], most: int) -> None:
        g = self.geometry
        if self.weights == "binary":
            expect(tensors[self.weight], [g.outputs, *g.kernel, row_bytes(g.channels)], torch.uint8)
            if self.planes != 1:
                raise PackedError(f"expected one plane of bits for binary weights, got {self.planes}")
        elif self.weights == "integer":
            self._check_integers(tensors[self.weight], most)
        else:
            expect(tensors[self.weight], [g.outputs, self._kept(tensors[self.weight]), *g.kernel], torch.float32)
            if (size := 4 * g.outputs * g.channels * math.prod(g.kernel)) > most:
                raise PackedError(f"expected weights of at most {most:,} bytes, got {size:,}")
        if self.bipolar and self.weights != "binary":
            raise PackedError(f"expected bits 0 and 1 for weights of kind {self.weights}, got -1 and 1")
        if self.wide is not None:
            expect(tensors[self.wide], [2, g.outputs], torch.float64)
            if self.scale is not None or self.shift is not None:
                raise PackedError("expected wide in place of scale and shift, got both")
        for name in (self.scale, self.shift, self.lower, self.upper):
            if name is not None:
                expect_channels(tensors[name], g.outputs)
        if (self.lower is None) != (self.upper is None) or (self.bits is None) != (self.lower is None):
            raise PackedError("expected both ends of an interval where there are bits, got one or none")
        if self.y is None and self.bits is None:
            raise PackedError("expected a layer with an output, got none")

    def _check_integers(self, weight: Tensor, most: int) -> None:
        g = self.geometry
        each = g.channels * math.prod(g.kernel)
        if (size := g.outputs * each) > most:
            raise PackedError(f"expected weights of at most {most:,} bytes, got {size:,}")
        if weight.dtype == torch.uint8:
            expect(weight, [g.outputs, (each + 1) // 2], torch.uint8)
        else:
            expect(weight, [g.outputs, g.channels, *g.kernel], torch.int8)

    def _kept(self, weight: Tensor) -> int:
        """The channels of a table's weights, of which those of the file may be the first of each plane."""
        g = self.geometry
        each = g.channels // self.planes
        if g.channels != each * self.planes or (self.planes > 1 and each % 64):
            raise PackedError(f"expected {self.planes} planes of whole words, got {g}")
        kept = weight.shape[1] if weight.ndim == 4 else 0
        return kept if not each % 64 and each - 64 < kept <= each else each

    def _sums(self, x: Tensor, most: int) -> tuple[list[int], list[int]]:
        """The sizes of the sums as floats, and those of the bits but for their bytes."""
        g, lead = self.geometry, list(x.shape[:-1])
        if self.form == "image":
            _check_padded(g, lead[0], lead[1], lead[2], most // self._bytes)
            size = g.out_size(*lead[1:])
            return [lead[0], g.outputs, *size], [lead[0], *size]
        if self.form == "row":
            if g._replace(channels=1, outputs=1) != Geometry(1, 1):
                raise PackedError(f"expected a linear layer, got {g}")
            return [*lead, g.outputs], lead
        if tuple(lead[1:]) != g.kernel:
            raise PackedError(f"expected images of {g.kernel} pixels, got {lead[1:]}")
        if (g.stride, g.padding, g.dilation) != ((1, 1), (0, 0), (1, 1)):
            raise PackedError(f"expected a linear layer over whole images, got {g}")
        return [lead[0], g.outputs], lead[:1]

    @property
    def _bytes(self) -> int:
        """How many times the half bytes of `_check_padded` a channel of a copy has."""
        return 2 if self.weights == "integer" else 1

    def _whole(self, weight: Tensor) -> Tensor:
        """Integer weights, int8 [outputs, channels, kernel height, kernel width]."""
        g = self.geometry
        shape = (g.outputs, g.channels, *g.kernel)
        return from_nibbles(weight, shape) if weight.dtype == torch.uint8 else weight

    def _integers(self, machine: Machine) -> tuple[Any, Any]:
        """The kernel for integer weights, and these as it takes them: tables of bytes where they hold the sums.

        Products of bytes are faster for a few rows or pixels, and for several planes, which they take at once.
        """
        g, weight = self.geometry, self._whole(machine.tensors[self.weight])
        check_exact(weight, self.planes)
        looked_up = self.planes == 1 and self.form == "image"
        if looked_up and (made := machine.tables.prepare_whole(weight.float(), g)) is not None:
            return machine.tables, made
        return machine.integers, machine.integers.prepare(weight, g, planes=self.planes)

    def _products(self, kernel: Any, weight: Tensor, epilogue: Epilogue) -> Any:
        """The layer by products of bytes."""
        made = kernel.prepare(self._whole(weight), self.geometry, planes=self.planes)
        return kernel.bind(made, self.geometry, epilogue)

    def prepare(self, machine: Machine) -> Ready:
        t, g = machine.tensors, self.geometry
        if self.weights == "binary":
            kernel, weights = machine.binary, machine.binary.prepare(t[self.weight], g, bipolar=self.bipolar)
        elif self.weights == "integer":
            kernel, weights = self._integers(machine)
        else:
            kernel = machine.tables
            weights = kernel.prepare(widened(t[self.weight], g, self.planes), g, "float32")
        scale, shift, lower, upper = (
            None if n is None else t[n].expand(g.outputs).contiguous()
            for n in (self.scale, self.shift, self.lower, self.upper)
        )
        wide = None if self.wide is None else t[self.wide]
        source, residual, y_at, bits_at = self.input, self.residual, self.y, self.bits
        epilogue = Epilogue(scale, shift, None, lower, upper, self.y is not None, wide)
        layer = kernel.bind(weights, g, epilogue)
        if self.weights == "integer" and kernel is machine.tables:
            products, weight = machine.integers, t[self.weight]  # without the machine, which holds all tensors
            layer = _ByPixels(layer, lambda: self._products(products, weight, epilogue), g)
        outputs, width = g.outputs, row_bytes(g.outputs)
        take, lay, give = FORMS[self.form]

        def run(values: Values, batch: int) -> None:
            bits = values[source]
            y, out = layer(take(bits), None if residual is None else lay(values[residual]))
            if y_at is not None:
                values[y_at] = give(y, bits, outputs, True)
            if bits_at is not None:
                values[bits_at] = give(out, bits, width, False)

        return Ready(run, layer)

    def plan(self, planning: Planning, ready: Ready) -> bool:
        take, lay, _ = FORMS[self.form]
        bits = planning.example(self.input)
        layer = ready.layer.of(take(bits)) if isinstance(ready.layer, _ByPixels) else ready.layer
        if (native := getattr(layer, "native", None)) is None:
            return False
        if not bits.is_contiguous():
            return False
        if self.residual is not None:
            residual = planning.example(self.residual)
            if lay(residual).data_ptr() != residual.data_ptr():
                return False
        name, weights, constants = native
        planning.kept.append(layer)  # with its weights, of which these are addresses
        ends = Ends(*constants, residual=self.residual, y=self.y, bits=self.bits)
        planning.step(name, shape2d(take(bits), self.geometry), At(self.input), weights, ends=ends)
        return True

    def decided(self) -> Decided | None:
        return None if self.bits is None or self.pooled else Decided(self.bits, 1 if self.form == "image" else -1)


class _ByPixels:
    """A layer of integer weights by two kernels with the same sums: products of bytes for few pixels, else tables.

    Tables are four times as large as the weights of products, and tables of bytes are made anew in every call: few
    pixels do not repay that. How many do, depends on the processor and on the layer. So the first call of a size takes
    the time of both. Products are prepared when first wanted.
    """

    def __init__(self, many: Any, products: Callable[[], Any], geometry: Geometry) -> None:
        self.many, self._products, self.geometry = many, products, geometry
        self.measured: dict[tuple[int, int], Any] = {}  # by pixels and threads

    @cached_property
    def few(self) -> Any:
        return self._products()

    def of(self, bits: Tensor, residual: Tensor | None = None) -> Any:
        """The kernel for bits uint8 [batch, height, width, bytes]."""
        pixels = bits.shape[0] * math.prod(self.geometry.out_size(*bits.shape[1:3]))
        if not FEW < pixels < MANY:
            return self.few if pixels <= FEW else self.many
        key = pixels, torch.get_num_threads()
        if key not in self.measured:
            self.measured[key] = self._faster(bits, residual)
        return self.measured[key]

    def _faster(self, bits: Tensor, residual: Tensor | None) -> Any:
        seconds: dict[Any, list[float]] = {self.few: [], self.many: []}
        for _ in range(ROUNDS):
            for layer, taken in seconds.items():
                begin = time.perf_counter()
                layer(bits, residual)
                taken.append(time.perf_counter() - begin)
        return min(seconds, key=lambda layer: min(seconds[layer]))

    def __call__(self, bits: Tensor, residual: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
        return self.of(bits, residual)(bits, residual)


def to_nibbles(weight: Tensor) -> Tensor:
    """Integers of -7 to 7, int8 [outputs, ...] -> uint8 [outputs, ceil(n / 2)]: plus 8, the first in the lower half."""
    flat = torch.nn.functional.pad((weight.flatten(1) + 8).to(torch.uint8), (0, weight[0].numel() % 2))
    return flat[:, ::2] | flat[:, 1::2] << 4


def from_nibbles(packed: Tensor, shape: Sequence[int]) -> Tensor:
    """The inverse of `to_nibbles`; int8 of that shape."""
    both = torch.stack([packed & 15, packed >> 4], -1).flatten(1)[:, : math.prod(shape[1:])]
    return (both.to(torch.int8) - 8).reshape(*shape)


def widened(weight: Tensor, g: Geometry, planes: int) -> Tensor:
    """A table's weights for all channels of the geometry: w, 2 w, 4 w for bit planes, 0 where a file keeps none."""
    each = g.channels // planes
    if weight.shape[1] == each and planes == 1:
        return weight
    dense = torch.zeros(g.outputs, planes, each, *g.kernel, dtype=torch.float32, device=weight.device)
    for i in range(planes):
        dense[:, i, : weight.shape[1]] = weight * 2**i
    return dense.flatten(1, 2)


def _check_padded(g: Geometry, batch: int, height: int, width: int, most: int) -> None:
    """What a kernel may make of its input: a copy with a border, or indices for tables."""
    (down, across), columns = g.padding, g.stride[1]
    pixels = batch * (height + 2 * down) * (width + 2 * across + columns)
    if (size := pixels * 4 * math.ceil(g.channels / 8)) > most:
        raise PackedError(f"expected padded images of at most {most:,} bytes, got {size:,}")


# ---- how values lie: what a kernel takes, its residual, and what it gives ----


def _image_residual(x: Tensor) -> Tensor:
    return x.permute(0, 2, 3, 1).contiguous()


def _image_give(out: Tensor, bits: Tensor, last: int, floats: bool) -> Tensor:
    return out.permute(0, 3, 1, 2) if floats else out


def _row_give(out: Tensor, bits: Tensor, last: int, floats: bool) -> Tensor:
    return out.view(*bits.shape[:-1], last)


def _rows(x: Tensor) -> Tensor:
    x = x.contiguous()
    return x.view(1, 1, x.numel() // max(x.shape[-1], 1), x.shape[-1])


def _whole_give(out: Tensor, bits: Tensor, last: int, floats: bool) -> Tensor:
    return out.view(out.shape[0], last)


FORMS: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor], Callable[..., Tensor]]] = {
    "image": (lambda bits: bits, _image_residual, _image_give),
    "row": (_rows, _rows, _row_give),
    "whole": (
        lambda bits: bits,
        lambda x: x.contiguous().view(x.shape[0], 1, 1, x.shape[1]),
        _whole_give,
    ),
}


# ---- over floats ----

Exponent = Annotated[int, Field(integer(-100, 100))]
Limit = Annotated[int, Field(integer(1, float_layers.WIDEST))]


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
        weights = float_layers.Rounded(machine.tensors[self.weight], unit, self.exponent, self.limit)
        weights.check()
        laid = None if floats is None else floats.prepare_rounded(weights)

        def run(values: Values, batch: int) -> None:
            if laid is None or floats is None:
                values[y] = float_layers.rounded(values[source], weights, g)
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
