"""What several verbs share: flags with their help, how flags are read, and what to say of a run without a source."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Iterator
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args

from tyro.conf import FlagConversionOff, Positional, arg
from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

from htaf._ground.console import UsageError

LANGUAGE_RECORD = "htaf_record.json"  # of htaf.language.run, which needs torch

NONE = "(default: none)"  # of flags that take several values
Json = Annotated[bool, arg(help="Print JSON for programs instead of a table.")]
Baselines = Annotated[
    FlagConversionOff[bool],
    arg(help="Also fit a constant, a linear model and histogram boosting on the same rows, to compare with."),
]


def _at_hub(words: list[str]) -> Path:
    """The folder or file of a RUN: here, or fetched from the hub."""
    if "/" not in words[0] or os.path.exists(words[0]):
        return Path(words[0])
    from htaf.sharing import fetched

    return fetched(words[0])


AT_HUB = PrimitiveConstructorSpec(
    nargs=1, metavar="RUN", instance_from_str=_at_hub, is_instance=lambda it: it is None or isinstance(it, Path),
    str_from_instance=lambda it: ["none" if it is None else str(it)],
)  # fmt: skip
RunDir = Annotated[
    Positional[Path], arg(help="Run folder, or owner/name[@revision] at the Hugging Face hub.", metavar="RUN"), AT_HUB
]
DataDir = Annotated[str | None, arg(help="Folder of the named data sets; none: HTAF_DATA.", metavar="DIR")]
Source = Annotated[
    str | None,
    arg(help="Where the run's own data are now; none: where they were at the training.", metavar="NAME_OR_PATH"),
]
Device = Literal["auto", "cpu", "cuda", "mps"]
# how a flag of a verb is shown, whose docstring says what it does
Place = Annotated[str | None, arg(metavar="NAME_OR_PATH")]
Folder = Annotated[Path, arg(metavar="DIR")]
File = Annotated[Path | None, arg(metavar="FILE")]
CodesOf = Annotated[Path | None, arg(metavar="CODES")]
Column = Annotated[str | None, arg(metavar="COLUMN")]
Columns = Annotated[tuple[str, ...], arg(metavar="COLUMN", help_behavior_hint=NONE)]
Concepts = Annotated[tuple[int, ...], arg(metavar="C ...", help_behavior_hint=NONE)]


@contextlib.contextmanager
def needs_source(instead: str) -> Iterator[None]:
    """Where a run does not say where its data came from, the command was used wrongly: say what to do instead."""
    from htaf.training.runs import UnknownSourceError

    try:
        yield
    except UnknownSourceError as error:
        raise UsageError(f"{error.said}: {instead}") from None


def is_language_model(path: Path) -> bool:
    """Whether it is a folder of transformers, with gates or without, or a GGUF file."""
    marks = (LANGUAGE_RECORD, "htaf_gates.safetensors", "config.json")
    return path.suffix == ".gguf" or any((path / name).is_file() for name in marks)


def refuse_flags(given: dict[str, Any], run: Path) -> None:
    """Raises UsageError for flags that were given and that a run of a language model has no use for."""
    if used := [f"--{name}" for name, value in given.items() if value]:
        raise UsageError(f"{', '.join(used)}: not for {run}, a language model: leave it out")


registry = ConstructorRegistry()


@registry.primitive_rule
def optional(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any] | None:
    """A flag of type `T | None` reads and shows a T: None is what it is when it is left out."""
    kinds = get_args(info.type)
    if NoneType not in kinds or info.type_origin not in (Union, UnionType):
        return None
    kind: Any = Union[tuple(kind for kind in kinds if kind is not NoneType)]  # noqa: UP007
    spec = ConstructorRegistry.get_primitive_spec(PrimitiveTypeInfo.make(kind, info.markers))
    if not isinstance(spec, PrimitiveConstructorSpec):
        return None
    return dataclasses.replace(
        spec,
        is_instance=lambda given: True if given is None else spec.is_instance(given),
        str_from_instance=lambda given: ["none"] if given is None else spec.str_from_instance(given),
    )
