"""A convolution or linear layer over bits, of binary weights or by tables of sums."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, final

import torch
from torch import Tensor

from htaf.kernels.layers import Epilogue, Geometry, row_bytes
from htaf.kernels.packed_native import shape2d
from htaf.kernels.table_convolution.reference import Kind
from htaf.packed.errors import PackedError
from htaf.packed.instructions.contract import Decided, Instruction, Machine, Ready, Seen, Values
from htaf.packed.instructions.schema import LARGEST, Field, Made, Read, TensorName, integer, pair
from htaf.packed.instructions.sizes import empty, expect, expect_bits, expect_channels
from htaf.packed.planning import At, Planning

# how bits and sums lie: [batch, height, width, .], [batch, length, .], [..., .]; whole: images as rows
Form = Literal["image", "line", "row", "whole"]

_COUNT = integer(1, LARGEST)
_GEOMETRY = (_COUNT, _COUNT, pair(1), pair(1), pair(0), pair(1), _COUNT)


def _geometry(value: Any) -> Geometry:
    if not isinstance(value, list) or len(value) != len(_GEOMETRY):
        raise PackedError(f"expected a geometry of {len(_GEOMETRY)} entries, got {value!r:.40}")
    found = Geometry(*(check(item) for check, item in zip(_GEOMETRY, value, strict=True)))
    if found.channels % found.groups or found.outputs % found.groups:
        raise PackedError(f"expected channels and outputs in {found.groups} groups, got {found}")
    return found


Written = Annotated[Geometry, Field(_geometry)]
Planes = Annotated[int, Field(integer(1, 8), missing=1)]  # version 1 of the file has none


@final
@dataclass(frozen=True)
class Layer(Instruction):
    """A convolution or linear layer over bits and its epilogue; tensors by their names, values by their numbers.

    slope: the largest |derivative| of the pre-activation of the bits by what the interval is compared with.
    planes: of a table, the bit planes of its input, which lie side by side as channels; its weights are kept once.
    """

    opcode = "layer"

    name: str
    weights: Literal["binary", "table"]
    form: Form
    geometry: Written
    weight: TensorName
    bipolar: bool
    tables: Kind
    input: Read
    residual: Read | None
    scale: TensorName | None
    shift: TensorName | None
    lower: TensorName | None
    upper: TensorName | None
    y: Made | None
    bits: Made | None
    slope: float = 1.0
    planes: Planes = 1

    def sizes(self, values: Sequence[Any], tensors: Mapping[str, Tensor], most: int) -> list[Any]:
        g = self.geometry
        g.check()
        x = expect_bits(values[self.input], {"image": 4, "line": 3}.get(self.form), g.channels)
        self._check_weights(tensors, most)
        floats, bits = self._sums(x, most)
        if self.residual is not None:
            expect(values[self.residual], floats, torch.float32)
        made = [] if self.y is None else [empty(floats, torch.float32)]
        return made if self.bits is None else [*made, empty([*bits, row_bytes(g.outputs)], torch.uint8)]

    def _check_weights(self, tensors: Mapping[str, Tensor], most: int) -> None:
        g = self.geometry
        per_group = g.channels // g.groups
        if self.weights == "binary":
            expect(tensors[self.weight], [g.outputs, *g.kernel, row_bytes(per_group)], torch.uint8)
            if self.planes != 1:
                raise PackedError(f"expected one plane of bits for binary weights, got {self.planes}")
        else:
            expect(tensors[self.weight], [g.outputs, self._kept(tensors[self.weight]), *g.kernel], torch.float32)
            if (size := 4 * g.outputs * per_group * math.prod(g.kernel)) > most:
                raise PackedError(f"expected weights of at most {most:,} bytes, got {size:,}")
            if self.bipolar:
                raise PackedError("expected bits 0 and 1 for a table, got -1 and 1")
        for name in (self.scale, self.shift, self.lower, self.upper):
            if name is not None:
                expect_channels(tensors[name], g.outputs)
        if (self.lower is None) != (self.upper is None) or (self.bits is None) != (self.lower is None):
            raise PackedError("expected both ends of an interval where there are bits, got one or none")
        if self.y is None and self.bits is None:
            raise PackedError("expected a layer with an output, got none")

    def _kept(self, weight: Tensor) -> int:
        """The channels of a table's weights, of which those of the file may be the first of each plane."""
        g = self.geometry
        each = g.channels // g.groups // self.planes
        if g.channels // g.groups != each * self.planes or (self.planes > 1 and (g.groups > 1 or each % 64)):
            raise PackedError(f"expected {self.planes} planes of whole words in one group, got {g}")
        kept = weight.shape[1] if weight.ndim == 4 else 0
        return kept if g.groups == 1 and not each % 64 and each - 64 < kept <= each else each

    def _sums(self, x: Tensor, most: int) -> tuple[list[int], list[int]]:
        """The sizes of the sums as floats, and those of the bits but for their bytes."""
        g, lead = self.geometry, list(x.shape[:-1])
        if self.form == "image":
            _check_padded(g, lead[0], lead[1], lead[2], most)
            size = g.out_size(*lead[1:])
            return [lead[0], g.outputs, *size], [lead[0], *size]
        if self.form == "line":
            _check_padded(g, lead[0], 1, lead[1], most)
            height, width = g.out_size(1, lead[1])
            if height != 1:
                raise PackedError(f"expected a height of 1, got {height}")
            return [lead[0], g.outputs, width], [lead[0], width]
        if self.form == "row":
            if g._replace(channels=1, outputs=1, groups=1) != Geometry(1, 1) or g.groups != 1:
                raise PackedError(f"expected a linear layer, got {g}")
            return [*lead, g.outputs], lead
        expect_bits(x, len(x.shape) if x.ndim in (3, 4) else 4, g.channels)
        if tuple(lead[1:]) != (g.kernel if x.ndim == 4 else g.kernel[1:]) or (x.ndim == 3 and g.kernel[0] != 1):
            raise PackedError(f"expected images of {g.kernel} pixels, got {lead[1:]}")
        if (g.stride, g.padding, g.dilation, g.groups) != ((1, 1), (0, 0), (1, 1), 1):
            raise PackedError(f"expected a linear layer over whole images, got {g}")
        return [lead[0], g.outputs], lead[:1]

    def prepare(self, machine: Machine) -> Ready:
        t, g = machine.tensors, self.geometry
        if self.weights == "binary":
            kernel, weights = machine.binary, machine.binary.prepare(t[self.weight], g, bipolar=self.bipolar)
        else:
            kernel = machine.tables
            weights = kernel.prepare(widened(t[self.weight], g, self.planes), g, self.tables)
        scale, shift, lower, upper = (
            None if n is None else t[n].expand(g.outputs).contiguous()
            for n in (self.scale, self.shift, self.lower, self.upper)
        )
        source, residual, y_at, bits_at = self.input, self.residual, self.y, self.bits
        layer = kernel.bind(weights, g, Epilogue(scale, shift, None, lower, upper, self.y is not None))
        outputs, width = g.outputs, row_bytes(g.outputs)
        take, lay, give = FORMS[self.form]
        spare = machine.spare

        def run(values: Values, batch: int) -> None:
            bits = values[source]
            y, out = layer(take(bits), None if residual is None else lay(values[residual]), spare)
            if y_at is not None:
                values[y_at] = give(y, bits, outputs, True)
            if bits_at is not None:
                values[bits_at] = give(out, bits, width, False)

        return Ready(run, weights, layer)

    def plan(self, planning: Planning, ready: Ready) -> bool:
        if (native := getattr(ready.layer, "native", None)) is None:
            return False
        take, lay, _ = FORMS[self.form]
        bits = planning.example(self.input)
        if not bits.is_contiguous():
            return False
        if self.residual is not None:
            residual = planning.example(self.residual)
            if lay(residual).data_ptr() != residual.data_ptr():
                return False
        name, weights, constants = native
        ends = planning.ends(constants, self.residual, self.y, self.bits)
        planning.step(name, shape2d(take(bits), self.geometry), At(self.input), weights, ends=ends)
        return True

    def bounds(self, seen: Seen) -> list[float]:
        bound = 0.0
        if self.weights == "table":
            scale = 1 if self.scale is None else seen.tensors[self.scale].abs().double()
            bound = float((seen.weights.error * scale).max())
        bound += 0.0 if self.residual is None else seen.errors[self.residual]
        return [bound] * (self.y is not None) + [bound * self.slope] * (self.bits is not None)

    def decided(self) -> Decided | None:
        return None if self.bits is None else Decided(self.bits, 1 if self.form in ("image", "line") else -1)

    def holds(self) -> tuple[int, ...]:
        return ()

    def dense(self) -> tuple[int, ...]:
        return () if self.y is None or self.form != "image" else (self.y,)


def widened(weight: Tensor, g: Geometry, planes: int) -> Tensor:
    """A table's weights for all channels of the geometry: w, 2 w, 4 w for bit planes, 0 where a file keeps none."""
    each = g.channels // g.groups // planes
    if weight.shape[1] == each and planes == 1:
        return weight
    dense = torch.zeros(g.outputs, planes, each, *g.kernel, dtype=torch.float32, device=weight.device)
    for i in range(planes):
        dense[:, i, : weight.shape[1]] = weight * 2**i
    return dense.flatten(1, 2)


def _check_padded(g: Geometry, batch: int, height: int, width: int, most: int) -> None:
    """What a kernel may make of its input: a copy with a border, every group in words, or indices for tables."""
    (down, across), columns = g.padding, g.stride[1]
    pixels = batch * (height + 2 * down) * (width + 2 * across + columns)
    if (size := pixels * g.groups * 4 * math.ceil(g.channels / g.groups / 8)) > most:
        raise PackedError(f"expected padded images of at most {most:,} bytes, got {size:,}")


# ---- how values lie: what a kernel takes, its residual, and what it gives ----


def _image_residual(x: Tensor) -> Tensor:
    return x.permute(0, 2, 3, 1).contiguous()


def _image_give(out: Tensor, bits: Tensor, last: int, floats: bool) -> Tensor:
    return out.permute(0, 3, 1, 2) if floats else out


def _line_give(out: Tensor, bits: Tensor, last: int, floats: bool) -> Tensor:
    return out.squeeze(1).transpose(1, 2) if floats else out.squeeze(1)


def _row_give(out: Tensor, bits: Tensor, last: int, floats: bool) -> Tensor:
    return out.view(*bits.shape[:-1], last)


def _rows(x: Tensor) -> Tensor:
    x = x.contiguous()
    return x.view(1, 1, x.numel() // max(x.shape[-1], 1), x.shape[-1])


def _whole_give(out: Tensor, bits: Tensor, last: int, floats: bool) -> Tensor:
    return out.view(out.shape[0], last)


FORMS: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor], Callable[..., Tensor]]] = {
    "image": (lambda bits: bits, _image_residual, _image_give),
    "line": (lambda bits: bits.unsqueeze(1), lambda x: x.transpose(1, 2).contiguous().unsqueeze(1), _line_give),
    "row": (_rows, _rows, _row_give),
    "whole": (
        lambda bits: bits.view(bits.shape[0], -1, *bits.shape[-2:]),
        lambda x: x.contiguous().view(x.shape[0], 1, 1, x.shape[1]),
        _whole_give,
    ),
}
