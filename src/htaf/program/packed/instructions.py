"""The instructions of packed programs: one class each, which says all that there is to know of it.

First what an instruction must say of itself and what it is given to run, then the instructions: layers over bits and
over floats that are rounded, what makes bits of floats and floats of bits, and operators of PyTorch.
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, partial
from types import UnionType
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Union, final, get_args, get_origin, get_type_hints

import torch
from torch import Tensor

from htaf.core.kernels import native
from htaf.core.kernels.binary_convolution import cpu as binary
from htaf.core.kernels.binary_convolution import reference as binary_formulas
from htaf.core.kernels.float_layers import reference as float_layers
from htaf.core.kernels.float_layers.cpu import NO_WINDOW, shape_of, windows
from htaf.core.kernels.integer_convolution import cpu as integers
from htaf.core.kernels.integer_convolution import reference as integers_formulas
from htaf.core.kernels.integer_convolution.reference import check_exact
from htaf.core.kernels.layers import Epilogue, Geometry, row_bytes
from htaf.core.kernels.packed_maps import cpu as maps
from htaf.core.kernels.packed_maps import reference as maps_formulas
from htaf.core.kernels.packed_maps.reference import LinearOfMeans
from htaf.core.kernels.packed_native import aligned, shape2d
from htaf.core.kernels.table_convolution import cpu as tables
from htaf.core.kernels.table_convolution import reference as tables_formulas
from htaf.program.packed import operators
from htaf.program.packed.errors import PackedError
from htaf.program.packed.planning import At, Ends, Planning

LARGEST = 1 << 24  # of a size, a stride, a number of channels, the number of a value
MOST = 100_000  # instructions of a program


def references(written: Any, key: str) -> Iterator[Any]:
    """The values ("v") or tensors ("t") in arguments as `operators.encode` writes them."""
    if isinstance(written, list):
        for item in written:
            yield from references(item, key)
    elif isinstance(written, dict):
        if key in written and len(written) == 1:
            yield written[key]
        else:
            for item in written.values():
                yield from references(item, key)


# ---- types of fields, and what a file may say of them ----

Read = Annotated[int, "reads"]  # the number of a value that an instruction takes
Made = Annotated[int, "makes"]  # the number of one that it makes
TensorName = Annotated[str, "tensors"]  # a tensor of the program
Arguments = Annotated[list[Any], "arguments"]  # in which values and tensors stand, as `operators.encode` writes them
Keywords = Annotated[dict[str, Any], "arguments"]
Pair = tuple[int, int]  # height and width
Form = Literal["image", "row", "whole"]  # how bits and sums lie: [batch, height, width, .]; [..., .]; images as rows
_SAID = {str: "a text", bool: "true or false", int: "an integer", float: "a number", list: "a list", dict: "an object"}


def role(hint: Any) -> str:
    """What a field of this type holds: "reads", "makes", "tensors", "arguments"; "" where it is plain."""
    if get_origin(hint) is Annotated:
        return hint.__metadata__[0]
    return next((found for part in get_args(hint) if (found := role(part))), "")


def checked(value: Any, hint: Any) -> Any:
    """What a file says of a field, as the field's type has it; `| None` allows null.

    Integers are of at most `LARGEST` and numbers finite; which of them fit is seen to by `Instruction.sizes`.

    Raises:
        PackedError: a value of another type.
    """
    origin, parts = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return checked(value, parts[0])
    if origin in (Union, UnionType):
        return None if value is None else checked(value, parts[0])
    if origin is Literal:
        if value not in parts or not isinstance(value, str):
            raise PackedError(f"expected one of {', '.join(parts)}, got {value!r:.40}")
        return value
    if origin is tuple or hint is Geometry:
        kinds = parts if origin is tuple else tuple(get_type_hints(Geometry).values())
        if not isinstance(value, list) or len(value) != len(kinds):
            raise PackedError(f"expected {len(kinds)} entries, got {value!r:.40}")
        made = [checked(item, kind) for item, kind in zip(value, kinds, strict=True)]
        return tuple(made) if origin is tuple else Geometry(*made)
    kind = origin or hint
    fits = isinstance(value, (int, float) if kind is float else kind) and (kind is bool or not isinstance(value, bool))
    if not fits or (kind is int and abs(value) > LARGEST) or (kind is float and not math.isfinite(value)):
        raise PackedError(f"expected {_SAID[kind]}, got {value!r:.40}")
    return float(value) if kind is float else value


# ---- instructions ----

Values = list[Any]  # of a run, by number
Run = Callable[[Values, int], None]  # (values, batch): puts what is made into the values


def kernels() -> tuple[Any, Any, Any, Any]:
    """binary_convolution, table_convolution, packed_maps, integer_convolution: the compiled ones, else the formulas."""
    if native.available():
        return binary, tables, maps, integers
    return binary_formulas, tables_formulas, maps_formulas, integers_formulas


class Machine(NamedTuple):
    """What instructions are run with: copies of the program's tensors, whose addresses may be kept, and the kernels."""

    tensors: Mapping[str, Tensor]
    binary: Any
    tables: Any
    maps: Any
    integers: Any
    floats: Any = None  # kernels/float_layers/cpu.py, where there is an extension


class Ready(NamedTuple):
    """An instruction that can run. layer: what `Instruction.plan` needs."""

    run: Run
    layer: Any = None


class Decided(NamedTuple):
    """Bits that a comparison with a threshold decides, so that rounding can flip them: `verify` looks at each.

    bits: the number of the value. axis: the dimension of the channels in the model's own tensor, in which the node of
    the same name as the instruction makes the step. over_time: a flip changes those after it along dimension 0.
    """

    bits: int
    axis: int
    over_time: bool = False


class Instruction(ABC):
    """One step of a packed program. A subclass is a frozen dataclass.

    It has an `opcode`, its name in files; a first field `name: str`, the node of the model that it computes; fields
    with the types above, of which one at least is `Made`; `sizes` and `prepare`; and `decided` where it makes bits of
    floats. What it reads, makes and keeps in a file follows from the types of its fields.
    """

    opcode: ClassVar[str]
    fields: ClassVar[Mapping[str, Any]]
    name: str

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        hints = get_type_hints(cls, include_extras=True).items()
        cls.fields = {name: hint for name, hint in hints if get_origin(hint) is not ClassVar}

    @cached_property
    def reads(self) -> tuple[int, ...]:
        """The values that it takes."""
        return self._found("reads")

    @cached_property
    def makes(self) -> tuple[int, ...]:
        """The values that it makes, in order."""
        return self._found("makes")

    @cached_property
    def tensors(self) -> tuple[str, ...]:
        """The names of the program's tensors that it needs."""
        return self._found("tensors")

    def _found(self, what: str) -> tuple[Any, ...]:
        found, key = list[Any](), {"reads": "v", "tensors": "t"}.get(what)
        for name, hint in self.fields.items():
            content = getattr(self, name)
            if role(hint) == what and content is not None:
                found.append(content)
            elif role(hint) == "arguments" and key is not None:
                found += references(content, key)
        return tuple(found)

    def to_json(self) -> dict[str, Any]:
        """Its opcode and fields, as a file has them."""
        return {"step": self.opcode, **{name: getattr(self, name) for name in self.fields}}

    @classmethod
    def from_json(cls, written: Mapping[str, Any]) -> Instruction:
        """The inverse of `to_json`, without the opcode. Raises PackedError for other fields or contents."""
        if written.keys() != cls.fields.keys():
            raise PackedError(f"expected fields {', '.join(cls.fields)}, got {', '.join(sorted(written))!r:.200}")
        return cls(**{name: checked(written[name], hint) for name, hint in cls.fields.items()})

    @abstractmethod
    def sizes(self, values: Sequence[Any], tensors: Mapping[str, Tensor], most: int) -> list[Any]:
        """What it makes, in the order of `makes`, as tensors on the device "meta": sizes and dtypes alone.

        Args:
            values: those made before, on "meta"; the first input has the batch in dimension 0.
            tensors: of the program, on "meta".
            most: the bytes that a value, or a copy that a kernel makes, may have.

        Raises:
            PackedError: sizes, dtypes or fields that do not fit. Nothing runs before they were checked.
        """

    @abstractmethod
    def prepare(self, machine: Machine) -> Ready:
        """Its execution: whatever is the same in every run is done here, the rest in one closure."""

    def decided(self) -> Decided | None:
        """The bits that it decides by a threshold; None where it makes floats, or bits that follow from others."""
        return None

    def plan(self, planning: Planning, ready: Ready) -> bool:
        """Puts its execution for the sizes at hand into a plan, which runs without Python: see packed/planning.py.

        Returns False where it cannot, as here; then the closure of `ready` runs. A plan computes what the closure
        computes, to the last bit.
        """
        return False


# ---- sizes without content, checked before anything runs ----

BATCH = 2  # for which sizes are checked
_ENTRIES = 1 << 33


def empty(sizes: list[int], dtype: torch.dtype) -> Tensor:
    """A tensor of these sizes on the device "meta". Raises PackedError for negative or huge ones."""
    if any(size < 0 for size in sizes) or math.prod(sizes) > _ENTRIES:
        raise PackedError(f"expected values of at most {_ENTRIES:,} entries, got {sizes}")
    return torch.empty(sizes, dtype=dtype, device="meta")


def expect(tensor: Any, sizes: list[int], dtype: torch.dtype) -> None:
    """Raises PackedError for other sizes or another dtype."""
    if not isinstance(tensor, Tensor) or tensor.dtype != dtype or list(tensor.shape) != sizes:
        got = f"{tensor.dtype} {list(tensor.shape)}" if isinstance(tensor, Tensor) else type(tensor).__name__
        raise PackedError(f"expected {dtype} {sizes}, got {got}")


def expect_channels(tensor: Tensor, channels: int) -> None:
    """Raises PackedError where there is not a number of every channel, or one for all."""
    expect(tensor, [1] if list(tensor.shape) == [1] else [channels], torch.float32)


def expect_bits(x: Any, rank: int | None, channels: int | None) -> Tensor:
    """The bits [..., bytes], of this rank and of so many channels. Raises PackedError for others."""
    x = expect_tensor(x)
    fits = x.dtype == torch.uint8 and x.ndim >= 1 and (rank is None or x.ndim == rank) and channels != 0
    if not fits or (x.shape[-1] % 8 if channels is None else x.shape[-1] != row_bytes(channels)):
        wanted = "whole words" if channels is None else f"{row_bytes(channels)} bytes"
        raise PackedError(f"expected bits of {wanted} a pixel, got {x.dtype} {list(x.shape)}")
    return x


def expect_floats(x: Any, axis: int) -> Tensor:
    """The floats, which have a dimension `axis`. Raises PackedError for others."""
    x = expect_tensor(x)
    if x.dtype != torch.float32 or not 0 <= axis < x.ndim:
        raise PackedError(f"expected floats with a dimension {axis}, got {x.dtype} {list(x.shape)}")
    return x


def expect_tensor(x: Any) -> Tensor:
    """The tensor. Raises PackedError for what a `split` makes, a list of them."""
    if not isinstance(x, Tensor):
        raise PackedError("expected a tensor, got a list of them")
    return x


def packed_along(x: Tensor, axis: int) -> Tensor:
    """The sizes of the bits of floats whose channels lie in dimension `axis`."""
    sizes = list(x.shape)
    channels = sizes.pop(axis)
    return empty([*sizes, row_bytes(channels)], torch.uint8)


# ---- layers over bits ----

SMALL = 7  # of an integer weight that takes four bits
FEW, MANY = 16, 512  # output pixels: products of bytes are faster below, tables above, where there are no tiles
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
    geometry: Geometry
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
    planes: int = 1
    wide: TensorName | None = None
    pooled: bool = False

    def sizes(self, values: Sequence[Any], tensors: Mapping[str, Tensor], most: int) -> list[Any]:
        g = self.geometry
        g.check()
        if g.groups != 1 or not 1 <= self.planes <= 8:
            raise PackedError(f"expected a layer without groups of 1 to 8 planes, got {g} of {self.planes}")
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
            _check_padded(g, lead[0], lead[1], lead[2], most // (2 if self.weights == "integer" else 1))
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

    def _whole(self, weight: Tensor) -> Tensor:
        """Integer weights, int8 [outputs, channels, kernel height, kernel width]."""
        g = self.geometry
        shape = (g.outputs, g.channels, *g.kernel)
        return from_nibbles(weight, shape) if weight.dtype == torch.uint8 else weight

    def _bound(self, machine: Machine, epilogue: Epilogue) -> Any:
        """The layer with its weights and constants, by the faster kernel where two have the same sums.

        Integer weights are looked up in tables that hold the sums of images' bits, or multiplied as bytes, which takes
        several planes at once. Binary ones are counted, or multiplied where there are tiles.
        """
        g, weight, planes = self.geometry, machine.tensors[self.weight], self.planes
        tables, integers, binary = machine.tables, machine.integers, machine.binary  # without its tensors
        tiles = native.available() and native.extension().tiles()
        if self.weights == "table":
            return tables.bind(tables.prepare(widened(weight, g, planes), g, "float32"), g, epilogue)
        if self.weights == "binary":
            signs = partial(binary.prepare, weight, g, bipolar=self.bipolar)
            counts = binary.bind(signs(), g, epilogue)
            return _ByPixels(counts, lambda: binary.bind(signs(tiles=True), g, epilogue), g, 0) if tiles else counts
        whole = self._whole(weight)
        check_exact(whole, planes)

        def products() -> Any:
            return integers.bind(integers.prepare(self._whole(weight), g, planes=planes), g, epilogue)

        made = tables.prepare_whole(whole.float(), g) if planes == 1 and self.form == "image" else None
        if made is None:
            return products()
        return _ByPixels(tables.bind(made, g, epilogue), products, g, FEW, math.inf if tiles else MANY)

    def prepare(self, machine: Machine) -> Ready:
        t, g = machine.tensors, self.geometry
        scale, shift, lower, upper = (
            None if n is None else t[n].expand(g.outputs).contiguous()
            for n in (self.scale, self.shift, self.lower, self.upper)
        )
        wide = None if self.wide is None else t[self.wide]
        source, residual, y_at, bits_at = self.input, self.residual, self.y, self.bits
        layer = self._bound(machine, Epilogue(scale, shift, None, lower, upper, self.y is not None, wide))
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
    """A layer by two kernels with the same sums: one up to `least` pixels, the other from `most` on.

    Tables are four times as large as the weights of products, and tables of bytes are made anew in every call: few
    pixels do not repay that. How many do, depends on the processor and on the layer. So the first call of a size
    between takes the time of both. The kernel for few pixels is prepared when first wanted.
    """

    def __init__(self, many: Any, few: Callable[[], Any], geometry: Geometry, least: int, most: float = math.inf):
        self.many, self.few, self.geometry, self.least, self.most = many, cache(few), geometry, least, most
        self.measured: dict[tuple[int, int], Any] = {}  # by pixels and threads

    def of(self, bits: Tensor, residual: Tensor | None = None) -> Any:
        """The kernel for bits uint8 [batch, height, width, bytes]."""
        pixels = bits.shape[0] * math.prod(self.geometry.out_size(*bits.shape[1:3]))
        if not self.least < pixels < self.most:
            return self.few() if pixels <= self.least else self.many
        key = pixels, torch.get_num_threads()
        if key not in self.measured:
            self.measured[key] = self._faster(bits, residual)
        return self.measured[key]

    def _faster(self, bits: Tensor, residual: Tensor | None) -> Any:
        seconds: dict[Any, list[float]] = {self.few(): [], self.many: []}
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


def _rows(x: Tensor) -> Tensor:
    x = x.contiguous()
    return x.view(1, 1, x.numel() // max(x.shape[-1], 1), x.shape[-1])


def _image_give(out: Tensor, bits: Tensor, last: int, floats: bool) -> Tensor:
    return out.permute(0, 3, 1, 2) if floats else out


FORMS: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor], Callable[..., Tensor]]] = {
    "image": (lambda bits: bits, lambda x: x.permute(0, 2, 3, 1).contiguous(), _image_give),
    "row": (_rows, _rows, lambda out, bits, last, _: out.view(*bits.shape[:-1], last)),
    "whole": (
        lambda bits: bits,
        lambda x: x.contiguous().view(x.shape[0], 1, 1, x.shape[1]),
        lambda out, bits, last, _: out.view(out.shape[0], last),
    ),
}


@final
@dataclass(frozen=True)
class Rounded(Instruction):
    """y = convolution of floats [batch, channels, height, width] in integers, see kernels/float_layers/reference.py."""

    opcode = "rounded"

    name: str
    input: Read
    geometry: Geometry
    weight: TensorName
    unit: TensorName
    exponent: int
    limit: int
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


# ---- bits of floats, floats of bits, and their maxima and means over windows and images ----


@final
@dataclass(frozen=True)
class Threshold(Instruction):
    """Bits of floats: lower <= x <= upper for every channel, the dimension `axis` of x."""

    opcode = "threshold"

    name: str
    input: Read
    axis: int
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
    axis: int
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
    kernel: Pair
    stride: Pair
    padding: Pair
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
    channels: int
    axis: int
    low: float
    high: float
    y: Made

    def sizes(self, values: Sequence[Any], tensors: Mapping[str, Tensor], most: int) -> list[Any]:
        x = expect_bits(values[self.input], None, self.channels)
        if not 0 <= self.axis < x.ndim:
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


# ---- an operator of PyTorch, of those that operators.py allows ----


@final
@dataclass(frozen=True)
class Call(Instruction):
    """An operator of PyTorch on floats, or on bytes that hold bits; arguments as operators.encode writes them."""

    opcode = "call"

    name: str
    operator: str
    args: Arguments
    kwargs: Keywords
    y: Made

    def sizes(self, values: Sequence[Any], tensors: Mapping[str, Tensor], most: int) -> list[Any]:
        function = operators.allowed(self.operator)
        if function is None:
            raise PackedError(f"expected an operator of a packed model, got {self.operator!r:.40}")
        batch = values[0].shape[0]

        def given(written: Any) -> Any:
            argument = operators.decode(written, tensors)
            return argument.get(values, batch) if isinstance(argument, operators.Pending) else argument

        args = [given(a) for a in self.args]
        named = {k: given(a) for k, a in self.kwargs.items()}
        operators.check_arguments(function, args, named)
        where = {"device": "meta"} if operators.makes(function) else {}
        return [_as_float32(self, function, args, "meta")(*args, **named, **where)]

    def prepare(self, machine: Machine) -> Ready:
        weighted = self.operator in ("conv2d.default", "linear.default") and not self.kwargs
        if weighted and machine.floats is not None and (layer := _weighted(self, machine)) is not None:
            return Ready(layer.run, layer)
        return Ready(_run(self, machine.tensors))

    def plan(self, planning: Planning, ready: Ready) -> bool:
        if isinstance(ready.layer, _Layer):
            return ready.layer.plan(planning)
        return _plan(self, planning)


# ---- layers over floats that have a kernel ----

MOST_INPUTS = 1024  # of an output: the weights of 64 outputs stay in a cache of the second level


class _Layer(NamedTuple):
    """The kernel of csrc/floats.cpp for a call."""

    run: Run
    plan: Callable[[Planning], bool]


def _constants(call: Call, machine: Machine, weight_dimensions: int) -> tuple[int, Tensor, Tensor | None] | None:
    """The number of the input, weight and bias; None where they are no constants in float32."""
    source, weight, bias = [*call.args, None, None][:3]
    values, found = list(references(source, "v")), _constant(weight, machine.tensors)
    if source != {"v": values[0] if values else None} or found is None or len(call.reads) != 1:
        return None
    added = None if bias is None else _constant(bias, machine.tensors)
    if (bias is None) != (added is None) or found.ndim != weight_dimensions or found.dtype != torch.float32:
        return None
    if added is not None and (added.dtype != torch.float32 or added.shape != found.shape[:1]):
        return None
    if not found.numel() or found[0].numel() > MOST_INPUTS:
        return None
    return values[0], found, added


def _weighted(call: Call, machine: Machine) -> _Layer | None:
    """A convolution, or a linear layer as one of 1 x 1 over one image of one row; None where PyTorch runs it."""
    is_linear = call.operator == "linear.default"
    constants = _constants(call, machine, 2 if is_linear else 4)
    usual: list[Any] = [[1, 1], [0, 0], [1, 1], 1]
    stride, padding, dilation, groups = [*call.args[3:], *usual[max(len(call.args) - 3, 0) :]]
    strides, border, apart = _pair(stride), _pair(padding), _pair(dilation)
    if constants is None or groups != 1 or strides is None or border is None or apart is None:
        return None
    source, weight, bias = constants
    weight = weight[..., None, None] if is_linear else weight
    outputs, channels, height, width = weight.shape
    g = Geometry(channels, outputs, (height, width), strides, border, apart)
    fallback, floats, laid, y = _run(call, machine.tensors), machine.floats, machine.floats.prepare(weight), call.y
    added = None if bias is None else bias.contiguous()

    def images(x: Tensor) -> Tensor:
        if not is_linear:
            return x
        return x.reshape(1, 1, x.numel() // max(x.shape[-1], 1), x.shape[-1]).permute(0, 3, 1, 2)

    def run(values: Values, batch: int) -> None:
        x = values[source]
        if not is_linear and x.ndim != 4:
            fallback(values, batch)
            return
        made = floats.convolution(images(x), laid, added, g)
        values[y] = made.permute(0, 2, 3, 1).view(*x.shape[:-1], outputs) if is_linear else made

    def plan(planning: Planning) -> bool:
        x = planning.example(source)
        if not x.is_contiguous() if is_linear else x.ndim != 4:
            return False
        x = images(x)
        where = floats.shape_of(x, g), At(source), floats.strides_of(x), planning.address(laid)
        planning.step("floats", *where, NO_WINDOW, ends=Ends(shift=planning.address(added), y=y))
        return True

    return _Layer(run, plan)


def _pair(written: Any) -> tuple[int, int] | None:
    """Two integers, given as a list of one or two; None for what is none."""
    if not isinstance(written, list) or len(written) not in (1, 2) or not all(type(n) is int for n in written):
        return None
    return written[0], written[-1]


def _in_rows_of_channels(x: Tensor) -> bool:
    return x.ndim == 4 and x.dtype == torch.float32 and x.permute(0, 2, 3, 1).is_contiguous()


_BITWISE = {"bitwise_and.Tensor": 0, "bitwise_or.Tensor": 1, "bitwise_xor.Tensor": 2}  # the order of csrc/bind_plan.cpp


def _plan(call: Call, planning: Planning) -> bool:
    """Calls whose closure is PyTorch's operator and that give the same in a plan."""
    y, reads = call.y, call.reads
    if planning.alias(y):
        return True
    made = planning.example(y)
    if call.operator in _BITWISE and len(reads) == 2 and call.args == [{"v": v} for v in reads]:
        both = [planning.example(v) for v in reads]
        alike = all(x.dtype == torch.uint8 and x.shape == made.shape and x.is_contiguous() for x in both)
        if alike and made.numel() % 8 == 0:
            places = [At(v) for v in (*reads, y)]
            planning.step("bitwise", _BITWISE[call.operator], *places, made.numel() // 8, makes=[y])
            return True
    if call.operator == "cat.default" and call.args == [[{"v": v} for v in reads], -1] and not call.kwargs:
        parts = [planning.example(v) for v in reads]
        if all(x.dtype == torch.uint8 and x.is_contiguous() and x.shape[-1] % 8 == 0 for x in parts):
            sizes = [(At(v), x.shape[-1] // 8) for v, x in zip(reads, parts, strict=True)]
            planning.step("join", sizes, At(y), made.numel() // made.shape[-1], makes=[y])
            return True
    if call.operator == "add.Tensor" and call.args == [{"v": v} for v in reads] and len(reads) == 2 and not call.kwargs:
        both = [planning.example(v) for v in reads]
        alike = all(x.dtype == torch.float32 and x.shape == made.shape and x.stride() == made.stride() for x in both)
        if alike and made.numel() * 4 == planning.layouts[y].bytes():
            planning.step("sum", *(At(v) for v in (*reads, y)), made.numel(), makes=[y])
            return True
    if call.operator == "max_pool2d.default" and not call.kwargs:
        return _plan_maximum(call, planning)
    return False


def _plan_maximum(call: Call, planning: Planning) -> bool:
    kernel = call.args[1] if len(call.args) > 1 else None
    stride = (call.args[2] if len(call.args) > 2 else None) or kernel
    padding, dilation, ceiling = [*call.args[3:], *[[0], [1], False][max(len(call.args) - 3, 0) :]]
    source, y = call.reads[0], call.y
    x = planning.example(source)
    pairs = [_pair(kernel), _pair(stride), _pair(padding)]
    if ceiling or _pair(dilation) != (1, 1) or None in pairs or call.args[0] != {"v": source}:
        return False
    if not _in_rows_of_channels(x) or not _in_rows_of_channels(planning.example(y)):
        return False
    window: Any = tuple(pairs)
    if planning.with_maximum(source, window, y):
        return True
    planning.step("maximum", shape_of(x, windows(x, *window)), At(source), ends=Ends(y=y))
    return True


# ---- execution ----


def _run(call: Call, tensors: Mapping[str, Tensor]) -> Run:
    function = operators.allowed(call.operator)
    assert function is not None  # `sizes` has seen to it
    args = [operators.decode(a, tensors) for a in call.args]
    kwargs = {k: operators.decode(a, tensors) for k, a in call.kwargs.items()}
    pending = [(i, a) for i, a in enumerate(args) if isinstance(a, operators.Pending)]
    named = [(k, a) for k, a in kwargs.items() if isinstance(a, operators.Pending)]
    function = _looked_up if call.operator == "embedding.default" else _as_float32(call, function, args, "cpu")
    if operators.makes(function):
        kwargs["device"] = "cpu"
    y = call.y
    if "conv2d" in call.operator and len(call.args) > 1 and isinstance(args[1], Tensor):
        args[1] = args[1].contiguous(memory_format=torch.channels_last)  # then so is the output

    def run(values: Values, batch: int) -> None:
        given = args.copy()
        for i, argument in pending:
            given[i] = argument.get(values, batch)
        if named:
            values[y] = function(*given, **kwargs | {k: a.get(values, batch) for k, a in named})
        else:
            values[y] = function(*given, **kwargs)

    return run


def _as_float32(call: Call, function: Callable[..., Any], args: list[Any], device: str) -> Callable[..., Any]:
    """The operator; of levels that are numbers, whose dtype would be PyTorch's default, they become float32."""
    if call.operator != "where.Scalar" or float not in map(type, args[1:]):
        return function
    args[1:] = [torch.tensor(level, dtype=torch.float32, device=device) for level in args[1:]]
    return torch.where


def _looked_up(weight: Tensor, ids: Tensor, *more: Any) -> Tensor:
    """Rows of a table. Raises PackedError for ids that it does not have, of which PyTorch says neither range nor id."""
    try:
        return torch.ops.aten.embedding.default(weight, ids, *more)
    except IndexError:
        got = f"{int(ids.min())} to {int(ids.max())}"
        raise PackedError(f"expected ids from 0 to {len(weight) - 1} for an embedding, got {got}") from None


def _constant(written: Any, tensors: Mapping[str, Tensor]) -> Tensor | None:
    return tensors[written["t"]] if isinstance(written, dict) and "t" in written else None


INSTRUCTIONS: dict[str, type[Instruction]] = {  # that a file may hold, by opcode
    one.opcode: one for one in (Layer, Threshold, Spikes, Pool, Unpack, Call, Rounded, Means)
}
