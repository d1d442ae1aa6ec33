"""What an instruction of a packed program must say of itself, and what it is given to run."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from inspect import get_annotations
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, get_origin, get_type_hints

from torch import Tensor

from htaf.kernels import native
from htaf.kernels.binary_convolution import cpu as binary
from htaf.kernels.binary_convolution import reference as binary_formulas
from htaf.kernels.integer_convolution import cpu as integers
from htaf.kernels.integer_convolution import reference as integers_formulas
from htaf.kernels.layers import Spare
from htaf.kernels.packed_maps import cpu as maps
from htaf.kernels.packed_maps import reference as maps_formulas
from htaf.kernels.table_convolution import cpu as tables
from htaf.kernels.table_convolution import reference as tables_formulas
from htaf.packed.errors import PackedError
from htaf.packed.instructions.schema import Field, field_of, nothing

if TYPE_CHECKING:
    from htaf.packed.planning import Planning

Values = list[Any]  # of a run, by number
Run = Callable[[Values, int], None]  # (values, batch): puts what is made into the values


def kernels() -> tuple[Any, Any, Any, Any]:
    """binary_convolution, table_convolution, packed_maps, integer_convolution: the compiled ones, else the formulas."""
    if native.available():
        return binary, tables, maps, integers
    return binary_formulas, tables_formulas, maps_formulas, integers_formulas


class Machine(NamedTuple):
    """What instructions are run with: copies of the program's tensors, whose addresses may be kept, the kernels, and
    memory that layers may write over."""

    tensors: Mapping[str, Tensor]
    binary: Any
    tables: Any
    maps: Any
    integers: Any
    spare: Spare
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
    """One step of a packed program. A subclass is a frozen dataclass, whole or refused when its class is made.

    It has an `opcode`, its name in files; a first field `name: str`, the node of the model that it computes; fields
    typed as schema.py says, of which one at least is `Made`; and `sizes`, `prepare` and `decided`. What it
    reads, makes and keeps in a file follows from the types of its fields. `holds` and `dense` have safe defaults, which
    an instruction overrides where memory can be freed or used again sooner.
    """

    opcode: ClassVar[str]
    fields: ClassVar[Mapping[str, Field]]
    name: str

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        own = get_annotations(cls)
        lacking = [] if isinstance(cls.__dict__.get("opcode"), str) else ["an opcode"]
        lacking += [] if "name" in own else ["a field `name`"]
        hints = {n: h for n, h in get_type_hints(cls, include_extras=True).items() if get_origin(h) is not ClassVar}
        found = {name: field_of(hint) for name, hint in hints.items()}
        lacking += [f"a type of schema.py for the field `{name}`" for name, field in found.items() if field is None]
        fields = {name: field for name, field in found.items() if field is not None}
        lacking += [] if any(field.makes is not nothing for field in fields.values()) else ["a field of type `Made`"]
        lacking += [f"`{m}`" for m in PIECES if getattr(cls, m) is getattr(Instruction, m)]
        if lacking:
            raise TypeError(f"expected the instruction {cls.__name__} to have {', '.join(lacking)}, got it without")
        cls.fields = fields

    @property
    def reads(self) -> tuple[int, ...]:
        """The values that it takes."""
        return tuple(v for name, field in self.fields.items() for v in field.reads(getattr(self, name)))

    @property
    def makes(self) -> tuple[int, ...]:
        """The values that it makes, in order."""
        return tuple(v for name, field in self.fields.items() for v in field.makes(getattr(self, name)))

    @property
    def tensors(self) -> tuple[str, ...]:
        """The names of the program's tensors that it needs."""
        return tuple(t for name, field in self.fields.items() for t in field.tensors(getattr(self, name)))

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

    @abstractmethod
    def decided(self) -> Decided | None:
        """The bits that it decides by a threshold; None where it makes floats, or bits that follow from others."""

    def holds(self) -> tuple[int, ...]:
        """The values it reads in whose memory what it makes may lie: nothing writes over them."""
        return self.reads

    def dense(self) -> tuple[int, ...]:
        """Floats [batch, channels, height, width] that it makes in fresh memory, in channels_last: a later layer may
        write over them once they were read."""
        return ()

    def plan(self, planning: Planning, ready: Ready) -> bool:
        """Puts its execution for the sizes at hand into a plan, which runs without Python: see packed/planning.py.

        Returns False where it cannot, as here; then the closure of `ready` runs. A plan computes what the closure
        computes, to the last bit.
        """
        return False


PIECES = tuple(sorted(Instruction.__abstractmethods__))
