"""Fields of a recipe on the command line: a few have flags in the help, `--set` and `--recipe FILE` set them all."""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, get_type_hints

from tyro.conf import Suppress

from htaf._ground.console import UsageError
from htaf._ground.files import regular

SHOWN = {
    "backbone", "concepts", "depth", "epochs", "exclude", "hidden", "id", "method", "pretrained", "size", "target",
    "task", "test", "width",
}  # fmt: skip
ALL = "--help-all"
Words = list[str]


def of_flags(words: Sequence[str]) -> set[str]:
    """The fields whose flags are among the words: `--lr-end 0` names lr_end."""
    flags = [word.partition("=")[0][2:].replace("-", "_") for word in words if word.startswith("--")]
    return {*flags, *(flag.removeprefix("no_") for flag in flags)}


def expanded(words: Sequence[str], kinds: Mapping[str, Any], family: str) -> Words:
    """The words with a flag in place of each `--set FIELD=VALUE`, and of each field of a `--recipe FILE`.

    Args:
        kinds: the type of each field that can be set.
        family: of the recipes.

    Raises:
        UsageError: no such field, no value, a file that holds no such recipe.
    """
    made, left = Words(), [*words]
    while left:
        word = left.pop(0)
        if word == "--set":
            pairs = Words()
            while left and not left[0].startswith("--"):
                pairs.append(left.pop(0))
            for pair in pairs or [""]:
                name, equals, value = pair.partition("=")
                name = name.replace("-", "_")
                if not equals or name not in kinds:
                    raise UsageError(f"--set: expected FIELD=VALUE with a field that {ALL} lists, got {pair!r}")
                made += _flag(name, value, kinds[name])
        elif word == "--recipe" and left and left[0].endswith(".toml"):
            given = of_flags(words) | {pair.partition("=")[0] for pair in words}
            fields = _read(Path(left.pop(0)), family, kinds)
            for name, value in fields.items():
                if name not in given:
                    made += _flag(name, value, kinds[name])
        else:
            made.append(word)
    return made


def _flag(name: str, value: Any, kind: Any) -> Words:
    """The words that set a field: a text as it was written, or a value of a file."""
    flag = "--" + name.replace("_", "-")
    text = isinstance(value, str)
    if kind is bool:
        on = value if not text else {"true": True, "false": False}.get(value.lower())
        if not isinstance(on, bool):
            raise UsageError(f"{flag}: expected true or false, got {value!r}")
        return [flag if on else f"{flag[:2]}no-{flag[2:]}"]
    if "tuple" in str(kind):
        values = [str(one) for one in value]
        if text:  # names of columns may have blanks
            values = [one for one in (value if "str" in str(kind) else value.replace(" ", ",")).split(",") if one]
        return [flag, *values] if values else []
    if isinstance(value, bool) or (text and value.lower() in ("true", "false")):
        return [flag, str(value).capitalize()]
    return [flag, str(value)]


def _read(file: Path, family: str, kinds: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a recipe that `--print-recipe` printed or a person wrote."""
    try:
        found = tomllib.loads(regular(file).read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        said = (isinstance(error, OSError) and error.strerror) or error
        raise UsageError(f"--recipe {file}: expected a TOML file, got: {said}") from None
    fields = found.get("recipe")
    if not isinstance(fields, dict):
        raise UsageError(f"--recipe {file}: expected a table [recipe], as --print-recipe prints it, got none")
    fields = dict(fields)
    if (there := fields.pop("family", family)) != family:
        raise UsageError(f"--recipe {file}: expected a recipe of family {family}, got {there}")
    if unknown := sorted(fields.keys() - kinds.keys()):
        raise UsageError(f"--recipe {file}: expected fields that {ALL} lists, got {unknown[0]!r}")
    return fields


def with_flags(of: type, shown: set[str]) -> type:
    """The dataclass, of which only these fields are flags."""
    hints = get_type_hints(of, include_extras=True)
    hidden: list[Any] = [
        (field.name, Annotated[hints[field.name], Suppress], dataclasses.field(default=field.default))
        for field in dataclasses.fields(of)
        if field.name not in shown
    ]
    return dataclasses.make_dataclass(of.__name__, hidden, bases=(of,), frozen=True, namespace={"__doc__": of.__doc__})
