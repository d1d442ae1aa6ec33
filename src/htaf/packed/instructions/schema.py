"""Types of an instruction's fields: each says what a file may hold there, and which values and tensors it names.

A field is typed as `str`, `bool`, `float`, a `Literal` of texts, one of the types below, or one of your own,
`Annotated[T, Field(check)]`; `| None` allows null.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from htaf.packed.errors import PackedError

LARGEST = 1 << 24  # of a size, a stride, a number of channels
MOST = 100_000  # instructions of a program
Check = Callable[[Any], Any]
Names = Callable[[Any], Iterable[Any]]


def nothing(content: Any) -> Iterable[Any]:
    return ()


def _itself(content: Any) -> Iterable[Any]:
    return (content,)


@dataclass(frozen=True)
class Field:
    """One field of an instruction.

    check: from what a file says to the field's content; raises PackedError.
    reads, makes, tensors: from the content to the numbers of the values, and the names of the tensors, in it.
    """

    check: Check
    reads: Names = nothing
    makes: Names = nothing
    tensors: Names = nothing

    def or_none(self) -> Field:
        """The same, or null."""
        check, names = self.check, (self.reads, self.makes, self.tensors)
        some = [nothing if find is nothing else _unless_none(find) for find in names]
        return Field(lambda value: None if value is None else check(value), *some)


def _unless_none(find: Names) -> Names:
    return lambda content: () if content is None else find(content)


def field_of(hint: Any) -> Field | None:
    """The field that a type stands for; None where the type leaves open what a file may hold."""
    origin, parts = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return next((part for part in parts[1:] if isinstance(part, Field)), None)
    if origin is Literal:
        return Field(choice(*parts))
    if origin in (Union, UnionType) and len(parts) == 2 and NoneType in parts:
        found = field_of(next(part for part in parts if part is not NoneType))
        return None if found is None else found.or_none()
    return _PLAIN.get(hint)


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


def flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise PackedError(f"expected true or false, got {value!r:.40}")
    return value


def text(value: Any) -> str:
    if not isinstance(value, str):
        raise PackedError(f"expected a text, got {value!r:.40}")
    return value


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


def items(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise PackedError(f"expected a list, got {value!r:.40}")
    return value


def mapping(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise PackedError(f"expected an object, got {value!r:.40}")
    return value


# ---- types ----

_VALUE = integer(0, 10 * MOST)
_PLAIN = {str: Field(text), bool: Field(flag), float: Field(number)}

Read = Annotated[int, Field(_VALUE, reads=_itself)]  # the number of a value that an instruction takes
Made = Annotated[int, Field(_VALUE, makes=_itself)]  # the number of one that it makes
TensorName = Annotated[str, Field(text, tensors=_itself)]  # a tensor of the program
Count = Annotated[int, Field(integer(1, LARGEST))]  # channels
Axis = Annotated[int, Field(integer(0, 16))]  # a dimension
Window = Annotated[tuple[int, int], Field(pair(1))]  # height and width
Border = Annotated[tuple[int, int], Field(pair(0))]  # padding down and across
