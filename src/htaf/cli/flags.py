"""What several verbs share: flags with their help, how flags are read, and what to say of a run without a source."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, cast, get_args

from tyro.conf import FlagConversionOff, Positional, arg
from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

from htaf._ground.console import UsageError
from htaf._ground.errors import first_line

if TYPE_CHECKING:
    from htaf.core.contract import StepFactory
    from htaf.training.runs import Run

LANGUAGE_RECORD = "htaf_record.json"  # of htaf.language.run, which needs torch
NONE = "(default: none)"  # of flags that take several values
Json = Annotated[bool, arg(help="Print JSON for programs instead of a table.")]
Baselines = Annotated[
    FlagConversionOff[bool],
    arg(help="Also fit a constant, a linear model and histogram boosting on the same rows, to compare with."),
]


def _at_hub(words: list[str]) -> Path:
    """Return the folder or file of a RUN, fetched from the hub if it is not here."""
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
CodesOf = Annotated[Path, arg(metavar="CODES")]
Column = Annotated[str | None, arg(metavar="COLUMN")]
Columns = Annotated[tuple[str, ...], arg(metavar="COLUMN", help_behavior_hint=NONE)]
Concepts = Annotated[tuple[int, ...], arg(metavar="C ...", help_behavior_hint=NONE)]
registry = ConstructorRegistry()
MethodOfRun = Annotated[
    str | None,
    arg(
        help="Class of the run's activation, if it is not one of htaf's. htaf runs its code.",
        metavar="PACKAGE.MODULE:CLASS",
    ),
]


@contextlib.contextmanager
def needs_source(instead: str) -> Iterator[None]:
    """Turn the error of a run that does not say where its data are into one that says what to do instead."""
    from htaf.training.runs import UnknownSourceError

    try:
        yield
    except UnknownSourceError as error:
        raise UsageError(f"{error.said}: {instead}") from None


def is_language_model(path: Path) -> bool:
    """Return whether it is a folder of transformers, with gates or without, or a GGUF file."""
    marks = (LANGUAGE_RECORD, "htaf_gates.safetensors", "config.json")
    return path.suffix == ".gguf" or any((path / name).is_file() for name in marks)


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


def opened_run(run: Path, method: str | None = None) -> Run:
    """Return the run in a folder.

    Args:
        method: the class of its step, as `--method` names it. UsageError: one of htaf's methods.
    """
    from htaf.training.runs import open_run

    step = outside_step(method)
    if method is not None and step is None:
        raise UsageError(
            f"expected --method PACKAGE.MODULE:CLASS, got {method}: leave it out for a run of one of htaf's own methods"
        )
    return open_run(run, method=step)


def outside_step(method: str | None) -> StepFactory | None:
    """Return the class that a flag names by its import path; None for no flag and for htaf's own methods.

    The working folder is searched last. Only what the command line says is ever given to this function: importing runs
    code, so no name from a file may come here.

    Raises:
        UsageError: it cannot be imported, or is no class or function.
    """
    if method is None:
        return None
    from htaf._ground.names import is_outside

    if not is_outside(method):
        return None
    module, _, name = method.partition(":")
    if os.getcwd() not in sys.path:  # a command, unlike `python`, does not search it
        sys.path.append(os.getcwd())
    try:
        found: Any = getattr(importlib.import_module(module), name)
    except Exception as error:  # whatever the module's own code raises
        raise UsageError(
            f"--method {method} cannot be imported: {type(error).__name__}: {first_line(error)} "
            f"(looked for in {os.getcwd()} and where Python looks)"
        ) from error
    if not callable(found):
        raise UsageError(f"--method {method} must name a class of modules, got {type(found).__name__}")
    return cast("StepFactory", found)
