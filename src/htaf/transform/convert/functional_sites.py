"""Exchanging activation functions that are called inside a forward.

`divert` gives the owner of such calls child modules that stand in for them: its class becomes a subclass with another
`forward`, which runs the original one under a `TorchFunctionMode`. A subclass, and not a function put on the instance,
because that survives deepcopy, pickle, replication and torch.compile.

A call is told by its place in the code, and so it may run any number of times. A place that runs behind other layers
each time, in a loop over them, has as many modules, and the layer that ran last tells which. Compiled code does not
know its place: there the order of the calls counts.
"""

from __future__ import annotations

import copy
import functools
import sys
import types
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.fx
from torch import nn
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack

from htaf.transform.convert.activation_calls import IN_PLACE, call_input, call_kind
from htaf.transform.convert.places import Order, Place, name_of, place_of

Model = TypeVar("Model", bound=nn.Module)  # a transform returns the type that it is given


@dataclass(frozen=True)
class Calls:
    """The activation calls of the forwards of a module, by number, and the children that stand in for them."""

    path: str
    order: Order
    children: tuple[str | None, ...]  # None: the call is left as it is


class _Diverted(TorchFunctionMode):
    """Sends the activation calls of one running forward to the owner's children."""

    def __init__(self, owner: nn.Module, calls: Calls) -> None:
        super().__init__()
        self.owner, self.calls, self.position = owner, calls, 0
        self.inside: list[nn.Module] = []  # modules that run now inside the owner: their calls are not the owner's
        self.layer: str | None = None  # the one that the owner called last, of those that tell calls apart
        self.passed = 0  # how many of them it called
        self.seen: dict[int, int] = {}  # how many of them, when the place of a call was reached last

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        kind = None if self.inside else call_kind(func, args, kwargs)
        if kind is None:
            return func(*args, **kwargs)
        # compiled code has no frames to look at
        if torch.compiler.is_dynamo_compiling():
            number = self._next(kind)
        else:
            number = self._at(place_of(sys._getframe(1)), kind)
        if number is None:
            return func(*args, **kwargs)
        name = self.calls.children[number]
        if name is None:
            return func(*args, **kwargs)
        x = call_input(args, kwargs)
        module = self.owner._modules[name]
        assert module is not None
        if kwargs.get("out") is not None:
            return kwargs["out"].copy_(module(x))
        # the step keeps its input for the backward pass, so it gets a copy of what is overwritten
        if getattr(func, "__name__", None) in IN_PLACE or kwargs.get("inplace"):
            return x.copy_(module(x.clone()))
        return module(x)

    def _next(self, kind: str) -> int:
        """The number of the next call, by the order of the example."""
        position, order = self.position, self.calls.order
        self.position = position + 1
        sequence = order.sequence
        if sequence is None:
            raise self._error("they vary, which torch.compile cannot follow")
        if position >= len(sequence) or order.kinds[sequence[position]] != kind:
            raise self._error(f"call {position} was {kind}")
        number = sequence[position]
        if self._told((number,)) is None:
            raise self._error(f"call {position} ran behind {self.layer}")
        return number

    def _at(self, place: Place, kind: str) -> int | None:
        """The number of the call that runs at a place; None: one that only training makes."""
        numbers = self.calls.order.at((place, kind))
        if numbers is None:
            if not self.owner.training:
                raise self._error(f"there was {kind} {_line(place)}")
            text = f"{self.calls.path or 'the model'}: {kind} {_line(place)} did not run in the example, which runs in"
            warnings.warn(f"{text} eval mode, and stays as it is: make it a module", stacklevel=3)
            return None
        told = self._told(numbers)
        if told is None:
            raise self._error(f"{kind} {_line(place)} ran behind {self.layer}, or a layer that the example has not")
        return told

    def _told(self, numbers: tuple[int, ...]) -> int | None:
        """Which of the calls at a place this is, by the layer that ran since the last one; None: it tells none."""
        behind, first = self.calls.order.behind, numbers[0]
        if first not in behind:
            return first
        fresh, self.seen[first] = self.seen.get(first, 0) < self.passed, self.passed
        return next((one for one in numbers if fresh and behind[one] == self.layer), None)

    def finish(self) -> None:
        """At the end of a compiled forward: raises RuntimeError where a call is missing."""
        sequence = self.calls.order.sequence
        if torch.compiler.is_dynamo_compiling() and (sequence is None or self.position != len(sequence)):
            raise self._error(f"there were {self.position}")

    def _error(self, came: str) -> RuntimeError:
        kinds = self.calls.order.kinds
        return RuntimeError(
            f"{self.calls.path or 'the model'}: expected the activation calls of the example, "
            f"{', '.join(kinds)} ({len(kinds)} in all), but {came}. "
            "Nothing is assigned by guess: leave it out with where=, or give it activation modules"
        )


def _line(place: Place) -> str:
    return f"in {place[0][0]}, line {place[0][1]} of it" if place else "in PyTorch's code"


def _all_running() -> list[_Diverted]:
    return [mode for mode in _get_current_function_mode_stack() if isinstance(mode, _Diverted)]


def _running() -> _Diverted | None:
    running = _all_running()
    return running[-1] if running else None


def _enter(module: nn.Module, args: tuple[Any, ...]) -> None:
    mode = _running()
    if mode is not None:
        mode.inside.append(module)


def _leave(module: nn.Module, args: tuple[Any, ...], output: object) -> None:
    mode = _running()
    if mode is not None and mode.inside and mode.inside[-1] is module:
        mode.inside.pop()
        if not mode.inside and (layer := name_of(module)) is not None:
            mode.layer, mode.passed = layer, mode.passed + 1


class _Rebuilt:
    """What every derived class has: it is made again, not looked up, when a copy is made or a pickle is read."""

    _htaf_base: type[nn.Module]
    _htaf_methods: frozenset[str]

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return _new, (type(self)._htaf_base, type(self)._htaf_methods), self.__getstate__()  # pyright: ignore[reportAttributeAccessIssue]

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # pyright: ignore[reportAttributeAccessIssue]
        unshadow(self)  # pyright: ignore[reportArgumentType]


def _forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
    base = type(self)._htaf_base  # pyright: ignore[reportAttributeAccessIssue]
    calls = self.__dict__.get("_htaf_calls")
    if self.__dict__.get("_htaf_overwrites"):
        return args[0].copy_(base.forward(self, args[0].clone(), *args[1:], **kwargs))
    if calls is None:
        return base.forward(self, *args, **kwargs)
    mode = _Diverted(self, calls)
    with mode:  # torch.compile loses what `as` would bind
        output = base.forward(self, *args, **kwargs)
    mode.finish()
    return output


def _by_itself(self: nn.Module, calls: Calls, method: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    with _Diverted(self, calls):
        return method(self, *args, **kwargs)


def _method(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    """A method that forward calls, and others by themselves: `encode`, or what a checkpoint runs again."""

    @functools.wraps(original)
    def method(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        own = getattr(type(self)._htaf_base, name)  # pyright: ignore[reportAttributeAccessIssue]
        calls = self.__dict__.get("_htaf_calls")
        if calls is None or any(mode.owner is self for mode in _all_running()):
            return own(self, *args, **kwargs)
        return _by_itself(self, calls, own, args, kwargs)

    return method


@functools.cache
def _derived(base: type[nn.Module], methods: frozenset[str] = frozenset()) -> type[nn.Module]:
    # the same name: configurations and messages are made from it
    body = {
        **{name: _method(name, getattr(base, name)) for name in methods},
        "_htaf_base": base,
        "_htaf_methods": methods,
        "forward": functools.wraps(base.forward)(_forward),
        "__module__": base.__module__,
        "__qualname__": base.__qualname__,
        "__doc__": base.__doc__,
    }
    return type(base.__name__, (_Rebuilt, base), body)


def _new(base: type[nn.Module], methods: frozenset[str]) -> nn.Module:
    cls = _derived(base, methods)
    return cls.__new__(cls)


def own_class(module: nn.Module) -> type[nn.Module]:
    """The class that a module had before it was derived."""
    return type(module)._htaf_base if isinstance(module, _Rebuilt) else type(module)


def derive(module: nn.Module, methods: frozenset[str] = frozenset()) -> None:
    """Make a module an instance of the class derived from its own, whose calls in these methods are diverted too."""
    before = type(module)._htaf_methods if isinstance(module, _Rebuilt) else frozenset[str]()
    cls: Any = _derived(own_class(module), before | methods)
    module.__class__ = cls


def _methods(cls: type[nn.Module], order: Order) -> frozenset[str]:
    """The methods of a class that lead from its forward to an activation."""
    names = {qualified.rpartition(".")[2] for place, _ in order.places for qualified, *_ in place} - {"forward"}
    plain = {name for one in cls.__mro__ for name, held in vars(one).items() if isinstance(held, types.FunctionType)}
    return frozenset(names & plain)


def unshadow(module: nn.Module) -> None:
    """Drop attributes that hide a child: TransformerDecoderLayer puts F.relu over its activation when it is copied."""
    for name in module._modules.keys() & module.__dict__.keys():
        del module.__dict__[name]


def divert(
    owner: nn.Module,
    path: str,
    order: Order,
    modules: dict[int, tuple[str, nn.Module]],
) -> None:
    """Let modules stand in for some of the activation calls that `owner` still makes itself.

    Args:
        owner: changed in place.
        path: its path, for messages.
        order: those calls.
        modules: number of a call -> its kind and the module.

    Raises:
        ValueError: the owner's `forward` is not that of its class, so no other can be put in its place; or its calls
            are not those that are left of an earlier `divert`.
    """
    if "forward" in vars(owner) or isinstance(owner, torch.fx.GraphModule):
        raise ValueError(
            f"{path or 'the model'}: expected a {type(owner).__name__} that runs the forward of its class, got a "
            "traced graph or a forward set on the instance: its functional calls cannot be replaced"
        )
    before: Calls = owner.__dict__.get("_htaf_calls") or Calls(path, order, (None,) * len(order.kinds))
    still = [number for number, child in enumerate(before.children) if child is None]
    if order.kinds != (kinds := tuple(before.order.kinds[number] for number in still)):
        raise ValueError(
            f"{path or 'the model'}: expected the calls that an earlier replace left, {', '.join(kinds)}, got "
            f"{', '.join(order.kinds)}: give it the same example"
        )
    children = list(before.children)
    for index, (kind, module) in modules.items():
        name = f"{kind}_{still[index]}"
        while hasattr(owner, name):
            name += "_"
        owner.add_module(name, module)
        children[still[index]] = name
    owner.__dict__["_htaf_calls"] = Calls(path, before.order, tuple(children))
    derive(owner, _methods(own_class(owner), before.order))


def shield(owner: nn.Module, also: list[nn.Module]) -> None:
    """Mark when a module runs inside `owner`, so that its activation calls are not taken for the owner's."""
    stand_ins = set(owner.__dict__["_htaf_calls"].children)
    for module in [*_callable_children(owner, stand_ins), *also]:
        if (not _inert(module) or name_of(module) is not None) and _enter not in module._forward_pre_hooks.values():
            module.register_forward_pre_hook(_enter, prepend=True)  # before the hooks of others, which may call too
            module.register_forward_hook(_leave, always_call=True)


def _callable_children(module: nn.Module, skip: set[str | None]) -> Iterator[nn.Module]:
    for name, child in module.named_children():
        if name in skip:
            continue
        if isinstance(child, (nn.ModuleList, nn.ModuleDict)):
            yield from _callable_children(child, set())
        else:
            yield child


def _inert(module: nn.Module) -> bool:
    """A layer of torch.nn that calls no activation function: convolutions, norms, linear maps, dropout, pooling."""
    if module._forward_hooks or module._forward_pre_hooks:  # which may
        return False
    kind = type(module).__module__
    return kind.startswith("torch.nn.modules.") and not kind.endswith(".activation") and not module._modules


def keep_hooks(new: nn.Module, old: nn.Module) -> None:
    """Give a module the forward hooks of the one it replaces, and its habit of overwriting the input."""
    if old.__dict__.get("_htaf_overwrites"):
        overwrite_input(new)
    for attribute in (
        "_forward_pre_hooks",
        "_forward_pre_hooks_with_kwargs",
        "_forward_hooks",
        "_forward_hooks_with_kwargs",
        "_forward_hooks_always_called",
    ):
        getattr(new, attribute).update(getattr(old, attribute))


def overwrite_input(module: nn.Module) -> None:
    """Make a module write its output over its input, as an activation with `inplace=True` does."""
    module.__dict__["_htaf_overwrites"] = True
    derive(module)


def duplicate(model: Model, *, parameters: bool = False, buffers: bool = False) -> Model:
    """Deep copy of a model that may hold the very same parameters and buffers as the original."""
    memo: dict[int, Any] = {}
    if parameters:
        memo.update((id(p), p) for p in model.parameters())
    if buffers:
        memo.update((id(b), b) for b in model.buffers())
    for module in model.modules():
        for held in vars(module).values():
            kind = type(held)
            inside: Any = held.values() if kind is dict else held if kind in (list, tuple) else ()
            for value in (held, *inside):
                if issubclass(type(value), (torch.jit.ScriptFunction, types.ModuleType)):  # without state, not to copy
                    memo[id(value)] = value
                elif issubclass(type(value), torch.Tensor) and not value.is_leaf:  # kept from a forward: nor these
                    memo[id(value)] = value.detach().clone()
    new = copy.deepcopy(model, memo)
    for module in new.modules():
        unshadow(module)
    return new
