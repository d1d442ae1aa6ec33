"""What a smooth step is: the one contract between activations that train and everything that works on them.

`HTAF`, `ScaledSigmoid` and `StraightThrough` follow it. A module of yours that follows it can be found, replaced,
sharpened, measured, hardened, trained by name and packed like them. You register nothing and inherit from no class.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from htaf._ground.errors import check_positive, option

if TYPE_CHECKING:
    from torch import nn

StepFactory = Callable[..., "nn.Module"]


@runtime_checkable
class SmoothStep(Protocol):
    """A module that stands in for the exact step while a network is trained.

    The first three are plain attributes of the class or the module. A step of several thresholds has two more, which
    others may lack: `levels`, their number, and `spacing`, as `htaf.functional.thresholds` takes them (`levels_of`).
    """

    @property
    def kind(self) -> str:
        """Its name in sites, records and tables, such as "htaf"."""
        ...

    @property
    def sharpness(self) -> tuple[str, ...]:
        """Names of its attributes that are numbers > 0 and make it steeper, () for none.

        A schedule (`htaf.core.sharpening`) can change a plain number, and records keep it. A number that is trained may
        be the parameter log_NAME instead.
        """
        ...

    @property
    def bipolar(self) -> bool:
        """Whether outputs lie in [-1, 1] and exact values are {-1, +1}; else [0, 1] and {0, 1}.

        With several levels the exact values lie evenly between these two as well.
        """
        ...

    def hardened(self) -> nn.Module:
        """The exact step as a new module with the same state-dict keys: `Heaviside.of(self)`."""
        ...


class ContractError(ValueError):
    """A module that looks like a smooth step and does not keep the contract."""


def looks_smooth(module: nn.Module) -> bool:
    """Whether the class of a module has `hardened`. Whether it keeps the rest of the contract: `lacking`."""
    return inspect.getattr_static(type(module), "hardened", None) is not None


def lacking(module: nn.Module, own: type | None = None) -> str:
    """What a module that looks like a smooth step lacks of the contract, in words; "" for all others.

    Args:
        own: its class as it was written, where a transform has derived another from it.
    """
    if not looks_smooth(module):
        return ""
    given: dict[str, Any] = {name: getattr(module, name, None) for name in ("kind", "sharpness", "bipolar")}
    names, wrong = given["sharpness"], []
    if not callable(getattr(module, "hardened", None)):
        wrong.append("hardened() must be a method")
    elif forward := _foreign_forward(own or type(module)):
        wrong.append(f"its forward is that of {forward}, its hardened() that of the class before: give it its own")
    if not isinstance(given["kind"], str) or not given["kind"]:
        wrong.append(f"kind must be a text, got {given['kind']!r}")
    if not isinstance(names, tuple) or not all(isinstance(name, str) for name in names):
        wrong.append(f"sharpness must be a tuple of names, got {names!r}")
    elif absent := [name for name in names if not (hasattr(module, name) or hasattr(module, f"log_{name}"))]:
        wrong.append(f"sharpness names {', '.join(absent)}, which it does not have")
    if not isinstance(given["bipolar"], bool):
        wrong.append(f"bipolar must be True or False, got {given['bipolar']!r}")
    levels = levels_of(module)
    if not isinstance(levels, int) or isinstance(levels, bool) or levels < 1:
        wrong.append(f"levels must be an integer >= 1, got {levels!r}")
    elif levels > 1 and not isinstance(getattr(module, "spacing", None), float):
        wrong.append(
            f"spacing must be a float where there are {levels} levels, got {getattr(module, 'spacing', None)!r}"
        )
    return "; ".join(wrong)


def expect_step(module: nn.Module) -> SmoothStep:
    """The module as a smooth step.

    Raises:
        ContractError: the module is no smooth step; the message names what it lacks.
    """
    label = type(module).__name__
    if not looks_smooth(module):
        raise ContractError(f"expected a smooth step (htaf.SmoothStep), got {label}, which has no hardened()")
    if wrong := lacking(module):
        raise ContractError(f"expected a smooth step (htaf.SmoothStep), got {label}: {wrong}")
    assert isinstance(module, SmoothStep)
    return module


def _foreign_forward(kind: type) -> str:
    """The class whose forward hides the one that `hardened` was written for, "" where the two belong together."""
    from torch import nn

    owner = next(base for base in kind.__mro__ if "hardened" in vars(base))
    forward = next(base for base in kind.__mro__ if "forward" in vars(base))
    written_for = next(base for base in owner.__mro__ if "forward" in vars(base) or base is object)
    hidden = forward is not written_for and written_for not in (nn.Module, object)
    return forward.__name__ if hidden and issubclass(forward, owner) else ""


def sharpness_of(module: object) -> dict[str, float]:
    """The sharpness parameters of a step that are plain numbers, by name."""
    held = {name: getattr(module, name, None) for name in getattr(module, "sharpness", ())}
    return {name: float(value) for name, value in held.items() if isinstance(value, float | int)}


def levels_of(module: object) -> int:
    """How many thresholds a step has, 1 where it does not say; its exact values are i / levels for i = 0 to levels."""
    return getattr(module, "levels", 1)


def expect_one_level(module: object, where: str, instead: str) -> None:
    """Refuse a step of several levels in a place that takes bits alone.

    Raises:
        ContractError: it has several.
    """
    if (levels := levels_of(module)) != 1:
        raise ContractError(
            f"{where}: expected a step with levels=1, got {type(module).__name__} with levels={levels}: {instead}"
        )


def from_outside(method: str, step: StepFactory | None) -> StepFactory:
    """The class of a step that a record or a recipe only names.

    Raises:
        ContractError: it was not given. It is never imported by a name read from a file: that would run its code.
    """
    if step is None:
        raise ContractError(
            f"expected the class of method {method}, which was given by its path and is never imported by a name in a "
            f"file: give {option(f'--method {method}', 'method=' + method.rpartition(':')[2])}"
        )
    return step


def make_step(
    step: StepFactory, values: Mapping[str, Any], *, kind: str = "", bipolar: bool = False, levels: int = 1
) -> nn.Module:
    """One module of a step from outside.

    Args:
        step: its class, or a function that makes it; takes `bipolar=True` where it is to be bipolar.
        values: its sharpness parameters by name, {}: as it sets them itself.
        kind: that it must have.
        levels: as `bipolar`: given to it where it is to have several.

    Raises:
        ContractError: it lacks something of the contract, is of another kind, or has other parameters.
        TypeError, ValueError: a value is out of range, or it does not take `bipolar` or `levels`.
    """
    from torch import nn

    given: dict[str, Any] = {"bipolar": True} if bipolar else {}
    module = step(**given, levels=levels) if levels > 1 else step(**given)
    if not isinstance(module, nn.Module):
        raise ContractError(f"expected a class of modules, got one that makes {type(module).__name__}")
    found = expect_step(module)
    if kind and found.kind != kind:
        raise ContractError(f"expected a step of kind {kind}, got {type(module).__name__} of kind {found.kind}")
    if found.bipolar != bipolar:
        raise ContractError(f"expected {found.kind} with bipolar={bipolar}, got bipolar={found.bipolar}")
    if levels_of(found) != levels:
        raise ContractError(f"expected {found.kind} with levels={levels}, got levels={levels_of(found)}")
    if values and values.keys() != sharpness_of(module).keys():
        held = ", ".join(sharpness_of(module)) or "none"
        raise ContractError(f"expected {found.kind} with the numbers {', '.join(values)}, got {held}")
    for name, value in values.items():
        setattr(module, name, check_positive(name, value))
    return module
