"""A transposed convolution over bits: one layer for each place between the inputs, whose sums lie side by side."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, final

import torch
from torch import Tensor

from htaf.kernels.layers import Geometry, row_bytes
from htaf.kernels.table_convolution.reference import Kind
from htaf.packed.errors import PackedError
from htaf.packed.instructions.contract import Decided, Instruction, Machine, Ready, Seen, Values
from htaf.packed.instructions.layer import Layer, Planes, Written
from htaf.packed.instructions.schema import Border, Made, Read, TensorName
from htaf.packed.instructions.sizes import empty, expect_bits


class Phase(NamedTuple):
    """The outputs in every stride-th place from `first` on, along one dimension.

    taps: of the kernel that reach them, from the last to the first, as those of a convolution of stride 1 with this
    padding, of which the outputs from `start` on are meant. more: how many there are beyond the number of inputs.
    """

    first: int
    taps: tuple[int, ...]
    padding: int
    start: int
    more: int


def phases(kernel: int, stride: int, padding: int, more: int) -> list[Phase] | None:
    """The phases along one dimension; None where there are outputs that no tap reaches. more: the output padding."""
    found = []
    for first in range(stride):
        tap = (first + padding) % stride
        taps = tuple(range(tap, kernel, stride))[::-1]
        if not taps:
            return None
        ahead = (first + padding - tap) // stride  # the input that the first tap reaches, from the output's place
        left = len(taps) - 1 - ahead
        beyond = -(-(kernel - stride - 2 * padding + more - first) // stride)
        border = max(left, ahead + beyond, 0)
        found.append(Phase(first, taps, border, border - left, beyond))
    return found


@final
@dataclass(frozen=True)
class Transposed(Instruction):
    """A transposed convolution over bits and its epilogue; its fields are those of a `Layer`.

    geometry: of the transposed convolution, of one group and no dilation. more: its output padding. weight: as of a
    convolution, [outputs, ...], of binary weights as packed bits, of integers as int8.
    """

    opcode = "transposed"

    name: str
    weights: Literal["binary", "table", "integer"]
    form: Literal["image", "line"]
    geometry: Written
    more: Border
    weight: TensorName
    bipolar: bool
    tables: Kind
    input: Read
    scale: TensorName | None
    shift: TensorName | None
    lower: TensorName | None
    upper: TensorName | None
    y: Made | None
    bits: Made | None
    slope: float = 1.0
    planes: Planes = 1
    wide: TensorName | None = None

    @classmethod
    def of(cls, layer: Layer, more: tuple[int, int]) -> Transposed:
        """That whose geometry and constants a layer has."""
        fields = {name: getattr(layer, name) for name in layer.fields if name not in ("residual", "pooled")}
        return cls(more=more, **fields)

    def layers(self, tensors: Mapping[str, Tensor]) -> Iterator[tuple[tuple[Phase, Phase], Layer, dict[str, Tensor]]]:
        """The layer of each pair of phases, down and across, and its tensors: of value 0 it makes 1, or 1 and 2."""
        g = self.geometry
        if (g.dilation, g.groups) != ((1, 1), 1) or max(*g.stride, *g.kernel) > 64:
            raise PackedError(f"expected one group, no dilation and a stride and kernel of at most 64, got {g}")
        if any(m >= s for m, s in zip(self.more, g.stride, strict=True)):
            raise PackedError(f"expected an output padding below the stride {g.stride}, got {self.more}")
        down, across = (phases(*n) for n in zip(g.kernel, g.stride, g.padding, self.more, strict=True))
        if down is None or across is None:
            raise PackedError(f"expected a kernel that reaches every output, got {g}")
        weight = tensors[self.weight]
        taps = weight.shape[1:3] if self.weights == "binary" else weight.shape[2:]
        if weight.ndim != 4 or tuple(taps) != g.kernel or (weight.dtype == torch.uint8 and self.weights != "binary"):
            raise PackedError(f"expected weights with a kernel of {g.kernel}, got {weight.dtype} {list(weight.shape)}")
        at = 1 if self.weights == "binary" else 2
        y, bits = (None if self.y is None else 1), (None if self.bits is None else 1 + (self.y is not None))
        for one in down:
            for other in across:
                chosen = (torch.tensor(phase.taps, device=weight.device) for phase in (one, other))
                own = weight
                for number, places in enumerate(chosen):
                    own = own.index_select(at + number, places)
                inner = Geometry(
                    g.channels, g.outputs, (len(one.taps), len(other.taps)), padding=(one.padding, other.padding)
                )
                layer = Layer(
                    self.name, self.weights, self.form, inner, self.weight, self.bipolar, self.tables, 0, None,
                    self.scale, self.shift, self.lower, self.upper, y, bits, self.slope, self.planes, self.wide,
                )  # fmt: skip
                yield (one, other), layer, {**tensors, self.weight: own}

    def sizes(self, values: Sequence[Any], tensors: Mapping[str, Tensor], most: int) -> list[Any]:
        x = expect_bits(values[self.input], {"image": 4, "line": 3}[self.form], None)
        lead = [1, *x.shape[1:-1]] if self.form == "line" else list(x.shape[1:-1])
        kept = {name: tensors[name] for name in self.tensors}
        for found, layer, own in self.layers(kept):
            made = layer.sizes([x], own, most)
            size = list(made[0].shape[2:] if layer.y is not None else made[0].shape[1:-1])[-2:]
            wanted = [phase.start + n + phase.more for phase, n in zip(found, lead, strict=True)][-len(size) :]
            if any(n < 1 or n > have for n, have in zip(wanted, size, strict=True)):
                raise PackedError(f"expected images that give an output, got {lead}")
        g, sizes = self.geometry, self._size(lead)
        floats, bits = [x.shape[0], g.outputs, *sizes], [x.shape[0], *sizes, row_bytes(g.outputs)]
        made = [] if self.y is None else [empty(floats, torch.float32)]
        return made if self.bits is None else [*made, empty(bits, torch.uint8)]

    def _size(self, lead: Sequence[int]) -> list[int]:
        """Height and width of the outputs, or the length."""
        g = self.geometry
        numbers = zip(lead, g.kernel, g.stride, g.padding, self.more, strict=True)
        size = [(n - 1) * s - 2 * p + k + m for n, k, s, p, m in numbers]
        return size if self.form == "image" else size[1:]

    def prepare(self, machine: Machine) -> Ready:
        kept = {name: machine.tensors[name] for name in self.tensors}
        parts = [
            (found, layer, layer.prepare(machine._replace(tensors=own))) for found, layer, own in self.layers(kept)
        ]
        source, g, image = self.input, self.geometry, self.form == "image"
        y_at, bits_at = self.y, self.bits

        def run(values: Values, batch: int) -> None:
            x = values[source]
            lead = x.shape[1:-1] if image else (1, *x.shape[1:-1])
            sizes = self._size(lead)
            y = bits = None
            if y_at is not None:
                values[y_at] = torch.empty(len(x), *sizes, g.outputs).movedim(-1, 1)
                y = values[y_at].movedim(1, -1)
            if bits_at is not None:
                values[bits_at] = torch.empty(len(x), *sizes, row_bytes(g.outputs), dtype=torch.uint8)
                bits = values[bits_at].view(torch.int64)
            for found, layer, ready in parts:
                made: list[Any] = [x, None, None]
                ready.run(made, batch)
                ends = list(zip(found, lead, g.stride, strict=True))[0 if image else 1 :]
                to = (slice(None), *(slice(p.first, None, s) for p, _, s in ends))
                of = (slice(None), *(slice(p.start, p.start + n + p.more) for p, n, _ in ends))
                if y is not None and layer.y is not None:
                    y[to] = made[layer.y].movedim(1, -1)[of]
                if bits is not None and layer.bits is not None:
                    bits[to] = made[layer.bits].view(torch.int64)[of]

        return Ready(run, [ready.weights for _, _, ready in parts])

    def bounds(self, seen: Seen) -> list[float]:
        found = [
            layer.bounds(Seen({}, [], seen.tensors, weights))
            for (_, layer, _), weights in zip(
                self.layers({n: seen.tensors[n] for n in self.tensors}), seen.weights, strict=True
            )
        ]
        return [max(some) for some in zip(*found, strict=True)]

    def decided(self) -> Decided | None:
        return None if self.bits is None else Decided(self.bits, 1)

    def holds(self) -> tuple[int, ...]:
        return ()
