"""Activations that a forward writes out as a formula, `x * x.sigmoid()`: which calls make one, and what its input is.

A `Value` is a tensor that is a function of another one, element by element. A formula is an activation as a whole where
it multiplies or adds functions of one tensor, an activation among them; where it squares an activation; and where it
computes one that is known, such as `F.relu6(x + 3) / 6`. `x * sigmoid(g(x))` with a layer g is none: that is a gate.
One that cannot be followed, or would lose what it learned, has a `problem`: it is named and left as it is.
"""

from __future__ import annotations

import functools
import itertools
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
    shape: torch.Size | None = None
    bears: bool = False  # an activation, or a function of one
    holds_own: bool = False  # made with parameters or buffers of more than one number
    rerun: Callable[[Callable[[Value], Tensor]], Tensor] | None = None  # computes it from its inputs
    # counted calls that have it as an argument, which one, and its shape there
    shown: list[tuple[Any, int | str, torch.Size]] = field(default_factory=list)
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
    advice: str = "make it a module without children"


@dataclass(frozen=True)
class _Form:
    """What a value is as an activation."""

    kind: str = ""
    source: Value | None = None  # of which other value; None: it is no activation
    is_new: bool = False  # another one than each of its inputs


class Values:
    """The values of one forward; `own` are the parameters and buffers of the model, and what is computed of them."""

    def __init__(self, own: Any) -> None:
        self.own = own
        self.of: Any = WeakIdKeyDictionary()
        self.made: list[Value] = []
        self.met: list[tuple[str, Value]] = []  # products by a call that is not followed, with its name

    def follow(
        self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any, call: Any
    ) -> Value | None:
        """Note what a function made of its arguments; `call` is how the forward counts it, None: it does not."""
        name = getattr(function, "__name__", "")
        if name in _ASKING:
            return None
        first = args[0] if args else None
        in_place = _writes(name) or bool(kwargs.get("inplace"))
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        followed = len(tensors) == 1 if call is None else call.kind is None
        if followed and tensors and isinstance(result, Tensor) and all(tensor in self.own for tensor in tensors):
            self.own[result] = None
            return None
        if name in _SAME or (not in_place and _is_same(first, result)):
            if isinstance(first, Tensor) and isinstance(result, Tensor) and (value := self._value(first)) is not None:
                self.of[result] = value
            return None
        if in_place and isinstance(first, Tensor):
            result = first
        if isinstance(result, Tensor) and result in self.of:
            self.of[result].overwritten_at = len(self.made)
        if call is None or not isinstance(result, Tensor):
            return self._escape_from(function, args, kwargs, result)
        held = {key: v for key, v in (*enumerate(args), *kwargs.items()) if isinstance(v, Tensor)}
        values = {key: self._value(v) for key, v in held.items() if not self._is_constant(v, result)}
        known = [value for value in values.values() if value is not None]
        source = functools.reduce(_common, known) if len(known) == len(values) > 0 else None
        if source is None or any(held[key].shape != result.shape for key in values):
            return self._escape_from(function, args, kwargs, result)
        made = Value(call, call.kind, tuple(known), source, source.depth + 1)
        made.holds_own = any(tensor.numel() > 1 for key, tensor in held.items() if key not in values)
        if not made.holds_own:
            made.rerun = _rerun(function, args, kwargs, values)
        for key, value in values.items():
            assert value is not None
            value.shown.append((call, key, held[key].shape))
        return self._add(result, made)

    def follow_module(self, module: nn.Module, kind: str, x: object, result: object) -> Value | None:
        """Note what a module that is an activation made of its input."""
        value = self._value(x) if isinstance(x, Tensor) else None
        if value is None or not isinstance(result, Tensor):
            return None
        rerun = None if module._modules else lambda of: module.forward(of(value))
        return self._add(result, Value(None, kind, (value,), value, value.depth + 1, rerun=rerun))

    def escape(self, used: object) -> None:
        """These are used by something that is not followed."""
        for leaf in tree_leaves(used):
            if isinstance(leaf, Tensor) and leaf in self.of:
                self.of[leaf].used_by.add(None)

    def _escape_from(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: object) -> None:
        self.escape((args, kwargs))
        if isinstance(result, Tensor) and result.is_floating_point():
            self._meet(function, args, kwargs, result)
        if isinstance(result, Tensor) and result in self.of:  # in place: it is another one from here on
            del self.of[result]

    def _meet(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Tensor) -> None:
        """Note that a call which is not followed multiplies an activation by another function of the same tensor."""
        alike = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor) and leaf in self.of]
        alike = [leaf for leaf in alike if leaf.numel() == result.numel()]
        for a, b in itertools.combinations(alike, 2):
            source = _common(self.of[a], self.of[b])
            if source is not None and source.kind is not None:
                source = source.source
            product = Value(inputs=(self.of[a], self.of[b]), source=source, index=len(self.made))
            if source is not None and _has_activation(product, source) and _multiplies(function, args, kwargs, a, b):
                self.met.append((getattr(function, "__name__", "a call"), product))

    def wholes(self) -> Iterator[Whole]:
        """The formulas that are activations, the largest of those that hold each other."""
        found: dict[Value, _Form] = {}
        for value in self.made:
            found[value] = _form(value, found)
        covered: set[Value] = set()
        for value in reversed(self.made):
            form = found[value]
            if form.source is None or not form.is_new or value in covered:
                continue
            between = _between(value, form.source)
            covered |= between
            yield _described(form.kind, value, form.source, between)
        for name, value in self.met:
            assert value.source is not None
            between = _between(value, value.source)
            inside = tuple(one for one in between if one.kind is not None)
            yield Whole(_formula(inside), value, between, inside, None, f"whose product {name} computes")

    def _is_constant(self, tensor: Tensor, result: Tensor) -> bool:
        if tensor in self.of:
            return False
        single = tensor.numel() == 1 and (tensor.dim() == 0 or tensor.shape != result.shape)
        return single or isinstance(tensor, nn.Parameter) or tensor in self.own

    def _value(self, tensor: Tensor) -> Value | None:
        if tensor not in self.of:
            if not tensor.is_floating_point() or tensor.is_nested or tensor.dim() == 0:
                return None
            self.of[tensor] = Value(index=len(self.made))
        return self.of[tensor]

    def _add(self, result: Tensor, made: Value) -> Value:
        for value in made.inputs:
            value.used_by.add(made)
        made.index, made.shape = len(self.made), result.shape
        made.bears = made.kind is not None or any(value.bears for value in made.inputs)
        self.of[result] = made
        self.made.append(made)
        return made


def _writes(name: str) -> bool:
    """Whether a function of this name writes into its first argument."""
    return name == "__setitem__" or (name.endswith("_") and not name.startswith("__") and name not in _SAME)


def _is_same(x: object, result: object) -> bool:
    """Whether a result is a tensor itself, or a view of all its numbers in their order."""
    if x is result:
        return True
    if not isinstance(x, Tensor) or not isinstance(result, Tensor) or x.is_nested or result.is_nested:
        return False
    if x.numel() != result.numel() or x.dtype != result.dtype:
        return False
    try:
        in_order = (x.is_contiguous() and result.is_contiguous()) or _steps(x) == _steps(result)
        return in_order and x.data_ptr() == result.data_ptr() != 0
    except (RuntimeError, NotImplementedError):  # sparse and fake tensors have no storage
        return False


def _steps(tensor: Tensor) -> list[tuple[int, int]]:
    """Size and stride of each dimension of more than one."""
    return [(size, step) for size, step in zip(tensor.shape, tensor.stride(), strict=True) if size > 1]


def _multiplies(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], a: Tensor, b: Tensor) -> bool:
    """Whether a call multiplies two of its arguments, element by element: it is tried with the first of each raised."""

    def run(*raised: Tensor) -> Tensor:
        def given(tensor: Tensor) -> Tensor:
            copied = tensor.detach().clone(memory_format=torch.contiguous_format)
            if any(tensor is one for one in raised):
                copied.view(-1)[0] += 1
            return copied

        at, named = tree_map_only(Tensor, given, (args, kwargs))
        return function(*at, **named).flatten().double()

    try:
        before, one, other, both = run(), run(a), run(b), run(a, b)
        spread = torch.maximum((one - before).abs(), (other - before).abs())[1:]
        return not bool(spread.any()) and bool((both - one - other + before).abs()[0] > 1e-3)
    except Exception:  # whatever a call of others does when it runs again
        return False


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


def _form(value: Value, found: dict[Value, _Form]) -> _Form:
    """What a value is as an activation, once its inputs are `found`."""
    if value.kind is not None:
        return _Form(value.kind, value.source)
    name, source = value.call.name, value.source
    if source is None or value.index - source.index > _LONGEST:
        return _Form()
    bearing = [_has_activation(one, source) for one in value.inputs]
    formed = None
    if len(value.inputs) == 2 and value.inputs[0] is not value.inputs[1]:
        if (name in ("mul", "div") and any(bearing)) or (name in ("add", "sub") and all(bearing)):
            formed = source
        elif name in ("mul", "div") and source.kind is not None:  # p * (1 - p)
            formed = source.source
    elif value.inputs[0].kind is not None and (name in ("pow", "square") or (name, len(value.inputs)) == ("mul", 2)):
        formed = value.inputs[0].source
    at: Value | None = source
    while at is not None and value.index - at.index <= _LONGEST:
        if any(one.kind is not None for one in _between(value, at)) and (kind := _known(value, at)):
            before = [found[one] for one in value.inputs if one in found]
            return _Form(kind, at, not any((one.kind, one.source) == (kind, at) for one in before))
        at = at.source
    return _Form("formula", formed, True) if formed is not None else _Form()


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
        (one[:2] for one in source.shown if id(one[0]) in calls and one[2] == value.shape),
        key=lambda one: (one[0] is not value.call, one[0].kind is None),
    )
    problem, advice = "", Whole.advice
    if any(one.holds_own for one in within):
        problem, advice = "with parameters or buffers of its own, which would be lost", "write it without them"
    elif not shown:
        problem = "whose input no call of the forward shows"
    elif any(not one.used_by <= within for one in between if _has_activation(one, source)):
        problem = "a part of which is used elsewhere too"
    elif source.overwritten_at is not None and source.overwritten_at < value.index:
        problem = "whose input is overwritten on the way"
    if kind == "formula":
        kind = _formula(inside)
    return Whole(kind, value, within, inside, shown[0] if shown else None, problem, advice)


def _formula(inside: tuple[Value, ...]) -> str:
    return f"{min(inside, key=lambda one: one.index).kind}_formula"
