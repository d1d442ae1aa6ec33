"""What an instruction of a packed program must say of itself, and what it is given to run.

A field is typed as `str`, `bool`, `float`, a `Literal` of texts, or one of the types below, which say what a file may
hold there, and which values and tensors it names; `| None` allows null.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from types import NoneType, UnionType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    ClassVar,
    Literal,
    NamedTuple,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

import torch
from torch import Tensor

from htaf.core.kernels import native
from htaf.core.kernels.binary_convolution import cpu as binary
from htaf.core.kernels.binary_convolution import reference as binary_formulas
from htaf.core.kernels.integer_convolution import cpu as integers
from htaf.core.kernels.integer_convolution import reference as integers_formulas
from htaf.core.kernels.layers import row_bytes
from htaf.core.kernels.packed_maps import cpu as maps
from htaf.core.kernels.packed_maps import reference as maps_formulas
from htaf.core.kernels.table_convolution import cpu as tables
from htaf.core.kernels.table_convolution import reference as tables_formulas
from htaf.program.packed.errors import PackedError

if TYPE_CHECKING:
    from htaf.program.packed.planning import Planning

LARGEST = 1 << 24  # of a size, a stride, a number of channels
MOST = 100_000  # instructions of a program
Check = Callable[[Any], Any]


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


@dataclass(frozen=True)
class Field:
    """One field of an instruction.

    check: from what a file says to the field's content; raises PackedError. holds: the number of a value that the
    instruction reads or makes, the name of one of its tensors, or arguments in which values and tensors stand.
    """

    check: Check
    holds: Literal["", "reads", "makes", "tensors", "arguments"] = ""

    def found(self, what: str, content: Any) -> Iterable[Any]:
        """What the content has of the values that are read or made, or of the tensors."""
        if self.holds == "arguments":
            return () if what == "makes" else references(content, "v" if what == "reads" else "t")
        return () if content is None or self.holds != what else (content,)


def field_of(hint: Any) -> Field:
    """The field that a type stands for."""
    origin, parts = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return next(part for part in parts if isinstance(part, Field))
    if origin is Literal:
        return Field(choice(*parts))
    if origin in (Union, UnionType):
        some = field_of(next(part for part in parts if part is not NoneType))
        return replace(some, check=lambda value: None if value is None else some.check(value))
    return _PLAIN[hint]


# ---- checks ----


def integer(least: int, most: int) -> Check:
    def check(value: Any) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            raise PackedError(f"expected an integer from {least} to {most}, got {value!r:.40}")
        return value

    return check


def number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise PackedError(f"expected a number, got {value!r:.40}")
    return float(value)


def of_type(kind: type, said: str) -> Check:
    def check(value: Any) -> Any:
        if not isinstance(value, kind):
            raise PackedError(f"expected {said}, got {value!r:.40}")
        return value

    return check


flag, text = of_type(bool, "true or false"), of_type(str, "a text")
items, mapping = of_type(list, "a list"), of_type(dict, "an object")


def choice(*choices: str) -> Check:
    def check(value: Any) -> str:
        if value not in choices or not isinstance(value, str):
            raise PackedError(f"expected one of {', '.join(choices)}, got {value!r:.40}")
        return value

    return check


def pair(least: int) -> Check:
    item = integer(least, LARGEST)

    def check(value: Any) -> tuple[int, int]:
        if not isinstance(value, list) or len(value) != 2:
            raise PackedError(f"expected two integers, got {value!r:.40}")
        return item(value[0]), item(value[1])

    return check


# ---- types ----

_VALUE = integer(0, 10 * MOST)
_PLAIN = {str: Field(text), bool: Field(flag), float: Field(number)}

Read = Annotated[int, Field(_VALUE, "reads")]  # the number of a value that an instruction takes
Made = Annotated[int, Field(_VALUE, "makes")]  # the number of one that it makes
TensorName = Annotated[str, Field(text, "tensors")]  # a tensor of the program
Count = Annotated[int, Field(integer(1, LARGEST))]  # channels
Axis = Annotated[int, Field(integer(0, 16))]  # a dimension
Window = Annotated[tuple[int, int], Field(pair(1))]  # height and width
Border = Annotated[tuple[int, int], Field(pair(0))]  # padding down and across


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
    fields: ClassVar[Mapping[str, Field]]
    name: str

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        hints = get_type_hints(cls, include_extras=True).items()
        cls.fields = {name: field_of(hint) for name, hint in hints if get_origin(hint) is not ClassVar}

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
        return tuple(v for name, field in self.fields.items() for v in field.found(what, getattr(self, name)))

    def to_json(self) -> dict[str, Any]:
        """Its opcode and fields, as a file has them."""
        return {"step": self.opcode, **{name: getattr(self, name) for name in self.fields}}

    @classmethod
    def from_json(cls, written: Mapping[str, Any]) -> Instruction:
        """The inverse of `to_json`, without the opcode. Raises PackedError for other fields or contents."""
        if written.keys() != cls.fields.keys():
            raise PackedError(f"expected fields {', '.join(cls.fields)}, got {', '.join(sorted(written))!r:.200}")
        return cls(**{name: field.check(written[name]) for name, field in cls.fields.items()})

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
    fits = x.dtype == torch.uint8 and x.ndim >= 1 and (rank is None or x.ndim == rank)
    if not fits or (x.shape[-1] % 8 if channels is None else x.shape[-1] != row_bytes(channels)):
        wanted = "whole words" if channels is None else f"{row_bytes(channels)} bytes"
        raise PackedError(f"expected bits of {wanted} a pixel, got {x.dtype} {list(x.shape)}")
    return x


def expect_floats(x: Any, axis: int) -> Tensor:
    """The floats, which have a dimension `axis`. Raises PackedError for others."""
    x = expect_tensor(x)
    if x.dtype != torch.float32 or axis >= x.ndim:
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
