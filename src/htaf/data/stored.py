"""Dataclasses from the JSON values that were written of them; what does not fit is an error that says where it is."""

import sys
from collections.abc import Sequence
from dataclasses import fields
from types import UnionType
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from htaf.data.reading import DataError

Kept = TypeVar("Kept")


def entries(data: Any, where: str, keys: Sequence[str]) -> dict[str, Any]:
    """Return the same object, which must have these keys, no fewer and no more.

    Raises:
        DataError: it has others, or is none.
    """
    if not isinstance(data, dict) or set(data) != set(keys):
        came = sorted(map(str, data)) if isinstance(data, dict) else type(data).__name__
        raise DataError(f"{where}: expected the keys {sorted(keys)}, got {came}")
    return data


def of_format(data: Any, where: str, name: str, version: int, keys: Sequence[str]) -> dict[str, Any]:
    """As `entries`, of an object that begins with the name and the version of its format.

    Raises:
        DataError: another format or version, or other keys.
    """
    found = entries(data, where, ("format", "version", *keys))
    if (found["format"], found["version"]) != (name, version):
        came = f"{found['format']!r} version {found['version']!r}"
        raise DataError(f"{where}: expected format {name!r} version {version}, got {came}")
    return found


def read(kind: type[Kept], data: Any, where: str, keys: Sequence[str] | None = None) -> Kept:
    """Read a dataclass from an object with its fields.

    Args:
        kind: of the dataclass.
        data: a value from `json.load`.
        where: what it is, for the message.
        keys: the fields that are there, no fewer and no more; the others have their defaults. None: all.
    Raises:
        DataError: missing or unknown keys, or a value of another type.
    """
    hints = get_type_hints(kind)
    names = [field.name for field in fields(kind)] if keys is None else keys  # pyright: ignore[reportArgumentType]
    found = entries(data, where, names)
    return kind(**{name: value(hints[name], found[name], f"{where} {name}".strip()) for name in names})


def value(kind: Any, given: Any, where: str) -> Any:
    """Return a JSON value as this type: a list as a tuple, a whole number as a float where one is wanted.

    Args:
        kind: float, int, str, bool, a literal of texts, or a tuple, a dict or a union with None of these.
    Raises:
        DataError: it is of another type; a truth value is no number.
    """
    of, parts = get_origin(kind), get_args(kind)
    if kind is float and type(given) in (int, float) and abs(given) <= sys.float_info.max:
        return float(given)
    if of is UnionType:
        return None if given is None else value(parts[0], given, where)
    if of is tuple and isinstance(given, list) and (parts[-1] is ... or len(parts) == len(given)):
        kinds = parts[:1] * len(given) if parts[-1] is ... else parts
        return tuple(value(one, each, where) for one, each in zip(kinds, given, strict=True))
    if of is dict and isinstance(given, dict):
        return {value(parts[0], key, where): value(parts[1], each, where) for key, each in given.items()}
    if of is Literal and isinstance(given, str) and given in parts:
        return given
    if kind in (int, str, bool) and type(given) is kind:
        return given
    wanted = kind if of else f"a finite {kind.__name__}" if kind is float else kind.__name__
    raise DataError(f"{where}: expected {wanted}, got {given!r:.80}")
