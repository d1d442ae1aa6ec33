"""`--method package.module:Class`: a smooth step from outside htaf, imported because its user names it here."""

from __future__ import annotations

import importlib
import os
import sys
from typing import TYPE_CHECKING, Annotated, Any, cast

from tyro.conf import arg

from htaf._ground.console import UsageError
from htaf._ground.errors import first_line

if TYPE_CHECKING:
    from htaf.core.contract import StepFactory

MethodOfRun = Annotated[
    str | None,
    arg(
        help="Class of the run's activation, if it is not one of htaf's. Its code is executed.",
        metavar="PACKAGE.MODULE:CLASS",
    ),
]


def step_of_run(method: str | None) -> StepFactory | None:
    """The class that `--method` names for a finished run, None for no flag. UsageError: one of htaf's methods too."""
    step = outside_step(method)
    if method is not None and step is None:
        raise UsageError(
            f"expected --method PACKAGE.MODULE:CLASS, got {method}: leave it out for a run of one of htaf's own methods"
        )
    return step


def outside_step(method: str | None) -> StepFactory | None:
    """The class that a flag names by its import path; None for no flag and for htaf's own methods.

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
