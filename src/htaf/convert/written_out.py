"""Activations that a forward writes out as a formula, `x * x.sigmoid()`: which calls make one, and what its input is.

A `Value` is a tensor that is a function of another one, element by element. A formula is an activation as a whole where
it multiplies or adds functions of one tensor, an activation among them; where it squares an activation; and where it
computes one that is known, such as `F.relu6(x + 3) / 6`. `x * sigmoid(g(x))` with a layer g is none: that is a gate.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.weak import WeakIdKeyDictionary

# the same values: what follows is of the tensor before
_SAME = {"to", "float", "half", "bfloat16", "double", "type_as", "contiguous", "clone", "detach", "requires_grad_"}
_LONGEST = 40  # steps of a formula
# they ask for something else than values
_ASKING = {"__get__", "size", "dim", "numel", "is_floating_point", "stride", "is_contiguous", "type", "__len__"}
_KNOWN: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "relu6": F.relu6,
    "relu_squared": lambda x: F.relu(x).square(),
    "elu": F.elu,
    "selu": F.selu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "quick_gelu": lambda x: x * torch.sigmoid(1.702 * x),
    "silu": F.silu,
    "mish": F.mish,
    "hardswish": F.hardswish,
    "hardsigmoid": F.hardsigmoid,
    "sigmoid": torch.sigmoid,
    "logsigmoid": F.logsigmoid,
    "tanh": torch.tanh,
    "tanhshrink": F.tanhshrink,
    "softplus": F.softplus,
    "softsign": F.softsign,
}


@dataclass(eq=False)
class Value:
    """A tensor as a function of others that are values too; one without inputs is where a formula begins."""

    call: Any = None  # as the forward counts it; None of a module
    kind: str | None = None  # an activation by itself
    inputs: tuple[Value, ...] = ()
    source: Value | None = None  # the nearest one of which this is a function
    depth: int = 0
    rerun: Callable[[Callable[[Value], Tensor]], Tensor] | None = None  # computes it from its inputs
    shown: list[tuple[Any, int | str]] = field(default_factory=list)  # counted calls that have it as an argument
    used_by: set[Value | None] = field(default_factory=set)  # None: by something that is no value
    index: int = 0  # how many there were before it in its forward
    overwritten_at: int | None = None  # how many there were when its tensor was overwritten


@dataclass(frozen=True, eq=False)
class Whole:
    """A formula that is an activation."""

    kind: str
    output: Value
    within: set[Value]  # what is computed for it, with the output
    inside: tuple[Value, ...]  # of it the activations
    shown: tuple[Any, int | str] | None  # a counted call that has its input as an argument; None: no call does
    problem: str = ""  # why no module can stand in for it


class Values:
    """The values of one forward."""

    def __init__(self) -> None:
        self.of: Any = WeakIdKeyDictionary()
        self.made: list[Value] = []

    def follow(
        self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any, call: Any
    ) -> Value | None:
        """Note what a function made of its arguments; `call` is how the forward counts it, None: it does not."""
        name = getattr(function, "__name__", "")
        if name in _ASKING:
            return None
        first = args[0] if args else None
        in_place = _writes(name) or bool(kwargs.get("inplace"))
        if name in _SAME or (result is first and not in_place):
            if isinstance(first, Tensor) and isinstance(result, Tensor) and (value := self._value(first)) is not None:
                self.of[result] = value
            return None
        if in_place and isinstance(first, Tensor):
            result = first
        if isinstance(result, Tensor) and result in self.of:
            self.of[result].overwritten_at = len(self.made)
        if call is None or not isinstance(result, Tensor):
            return self._escape_from(args, kwargs, result)
        held = {key: v for key, v in (*enumerate(args), *kwargs.items()) if isinstance(v, Tensor)}
        values = {key: self._value(tensor) for key, tensor in held.items() if not _is_constant(tensor, self.of)}
        known = [value for value in values.values() if value is not None]
        source = functools.reduce(_common, known) if len(known) == len(values) > 0 else None
        if source is None or any(held[key].shape != result.shape for key in values):
            return self._escape_from(args, kwargs, result)
        made = Value(call, call.kind, tuple(known), source, source.depth + 1)
        if all(tensor.numel() == 1 for key, tensor in held.items() if key not in values):
            made.rerun = _rerun(function, args, kwargs, values)
        for key, value in values.items():
            assert value is not None
            value.shown.append((call, key))
        return self._add(result, made)

    def follow_module(self, module: nn.Module, kind: str, x: object, result: object) -> Value | None:
        """Note what a module that is an activation made of its input."""
        value = self._value(x) if isinstance(x, Tensor) else None
        if value is None or not isinstance(result, Tensor):
            return None
        rerun = None if module._modules else lambda of: module.forward(of(value))
        return self._add(result, Value(None, kind, (value,), value, value.depth + 1, rerun))

    def escape(self, used: object) -> None:
        """These are used by something that is not followed."""
        for leaf in tree_leaves(used):
            if isinstance(leaf, Tensor) and leaf in self.of:
                self.of[leaf].used_by.add(None)

    def _escape_from(self, args: tuple[Any, ...], kwargs: dict[str, Any], result: object) -> None:
        self.escape((args, kwargs))
        if isinstance(result, Tensor) and result in self.of:  # in place: it is another one from here on
            del self.of[result]

    def wholes(self) -> Iterator[Whole]:
        """The formulas that are activations, the largest of those that hold each other."""
        found = {}
        for value in self.made:
            found[value] = _whole(value, found)
        covered: set[Value] = set()
        for value in reversed(self.made):
            kind, source, new = found[value]
            if source is None or not new or value in covered:
                continue
            between = _between(value, source)
            covered |= between
            yield _described(kind, value, source, between)

    def _value(self, tensor: Tensor) -> Value | None:
        if tensor not in self.of:
            if not tensor.is_floating_point() or tensor.is_nested or tensor.numel() < 2:
                return None
            self.of[tensor] = Value(index=len(self.made))
        return self.of[tensor]

    def _add(self, result: Tensor, made: Value) -> Value:
        for value in made.inputs:
            value.used_by.add(made)
        made.index = len(self.made)
        self.of[result] = made
        self.made.append(made)
        return made


def _writes(name: str) -> bool:
    """Whether a function of this name writes into its first argument."""
    return name == "__setitem__" or (name.endswith("_") and not name.startswith("__") and name not in _SAME)


def _is_constant(tensor: Tensor, known: Any) -> bool:
    return tensor not in known and (isinstance(tensor, nn.Parameter) or tensor.numel() == 1)


def _rerun(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], values: dict[Any, Any]) -> Callable[..., Any]:
    args = tuple(values.get(i, one) for i, one in enumerate(args))
    kwargs = {key: values.get(key, one) for key, one in kwargs.items()}

    def run(of: Callable[[Value], Tensor]) -> Tensor:
        at, named = tree_map_only(Value, lambda value: of(value).clone(), (args, kwargs))
        made = function(*at, **named)
        return at[0] if made is None else made

    return run


def _common(a: Value | None, b: Value | None) -> Value | None:
    """The nearest value of which both are functions."""
    while a is not b:
        if a is None or b is None:
            return None
        a, b = (a.source, b) if a.depth > b.depth else (a, b.source) if b.depth > a.depth else (a.source, b.source)
    return a


def _between(value: Value, source: Value) -> set[Value]:
    """What is computed on the way from `source` to `value`, without the two."""
    found: set[Value] = set()
    left = list(value.inputs)
    while left:
        one = left.pop()
        if one is not source and one not in found:
            found.add(one)
            left += one.inputs
    return found


def _has_activation(value: Value, source: Value) -> bool:
    return value is not source and any(one.kind is not None for one in {value} | _between(value, source))


def _whole(value: Value, found: dict[Value, tuple[str, Value | None, bool]]) -> tuple[str, Value | None, bool]:
    """The activation that a value is, of which other value, and whether it is another one than each of its inputs."""
    if value.kind is not None:
        return value.kind, value.source, False
    name, source = value.call.name, value.source
    if source is None or value.index - source.index > _LONGEST:
        return "", None, False
    bearing = [_has_activation(one, source) for one in value.inputs]
    formed = None
    if len(value.inputs) == 2 and value.inputs[0] is not value.inputs[1]:
        if (name in ("mul", "div") and any(bearing)) or (name in ("add", "sub") and all(bearing)):
            formed = source
    elif value.inputs[0].kind is not None and (name in ("pow", "square") or (name, len(value.inputs)) == ("mul", 2)):
        formed = value.inputs[0].source
    at: Value | None = source
    while at is not None and value.index - at.index <= _LONGEST:
        if any(one.kind is not None for one in _between(value, at)) and (kind := _known(value, at)):
            return kind, at, not any(found.get(one, ("", None))[:2] == (kind, at) for one in value.inputs)
        at = at.source
    return ("formula", formed, True) if formed is not None else ("", None, False)


def _known(value: Value, source: Value) -> str | None:
    """The known activation that `value` is as a function of `source`."""
    made: dict[Value, Tensor] = {}

    def of(one: Value) -> Tensor:
        if one not in made:
            if one.rerun is None:
                raise ValueError
            made[one] = one.rerun(of)
        return made[one]

    def function(x: Tensor) -> Tensor:
        made[source] = x
        return of(value)

    return known_kind(function)


def known_kind(function: Callable[[Tensor], Any]) -> str | None:
    """The kind of the known activation that a function is, None for any other."""
    x = torch.linspace(-8.0, 8.0, 65)
    try:
        with torch.no_grad():
            y = function(x.clone())
            if not isinstance(y, Tensor) or y.shape != x.shape:
                return None
            close = ((_values() - y.float()).abs().amax(1) < 1e-4).tolist()
    except Exception:  # whatever a stranger's formula does with a tensor of this shape
        return None
    return next((kind for kind, yes in zip(_KNOWN, close, strict=True) if yes), None)


@functools.cache
def _values() -> Tensor:
    x = torch.linspace(-8.0, 8.0, 65)
    return torch.stack([function(x) for function in _KNOWN.values()])


def _described(kind: str, value: Value, source: Value, between: set[Value]) -> Whole:
    within = between | {value}
    inside = tuple(one for one in between if one.kind is not None)
    calls = {id(one.call) for one in within}
    # its own argument; or one of a call that is counted anyway; or of any other
    shown = sorted(
        (one for one in source.shown if id(one[0]) in calls),
        key=lambda one: (one[0] is not value.call, one[0].kind is None),
    )
    problem = ""
    if not shown:
        problem = "whose input no call of the forward shows"
    elif any(not one.used_by <= within for one in between if _has_activation(one, source)):
        problem = "a part of which is used elsewhere too"
    elif source.overwritten_at is not None and source.overwritten_at < value.index:
        problem = "whose input is overwritten on the way"
    if kind == "formula":
        kind = f"{min(inside, key=lambda one: one.index).kind}_formula"
    return Whole(kind, value, within, inside, shown[0] if shown else None, problem)
