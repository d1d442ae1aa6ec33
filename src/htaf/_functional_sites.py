"""Activation functions called inside a forward (`F.relu(x)`, `x.sigmoid()`): seeing them, and exchanging them.

`convert` looks for modules; this file is about calls. A call belongs to the innermost running module, its owner.
`Recorder` sees the calls of one run. `divert` gives an owner child modules that stand in for its calls: its class
becomes a subclass with another `forward`, which runs the original one under a `TorchFunctionMode`. A subclass, and not
a function put on the instance, because that survives deepcopy, pickle, replication and torch.compile.
"""

from __future__ import annotations

import copy
import functools
import inspect
import types
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack

# name of a torch function or method, without the in-place underscore -> kind
FUNCTIONS = {
    "relu": "relu",
    "relu6": "relu6",
    "gelu": "gelu",
    "silu": "silu",
    "mish": "mish",
    "elu": "elu",
    "selu": "selu",
    "celu": "celu",
    "leaky_relu": "leaky_relu",
    "prelu": "prelu",
    "rrelu": "rrelu",
    "hardswish": "hardswish",
    "hardsigmoid": "hardsigmoid",
    "hardtanh": "hardtanh",
    "sigmoid": "sigmoid",
    "special_expit": "sigmoid",
    "tanh": "tanh",
    "softplus": "softplus",
    "softsign": "softsign",
    "logsigmoid": "logsigmoid",
    "log_sigmoid": "logsigmoid",
    "threshold": "threshold",
    "_threshold": "threshold",
    "hardshrink": "hardshrink",
    "softshrink": "softshrink",
    "tanhshrink": "tanhshrink",
}
# torch.compile reads a name as a constant but cannot take it apart, so the in-place names have entries
_IN_PLACE = {f"{name}_": kind for name, kind in FUNCTIONS.items()}
_CALLS = FUNCTIONS | _IN_PLACE
# inside a module of its own these make an activation too; elsewhere they are mostly something else
ALSO_IN_A_MODULE = {"erf", "special_erf", "clamp", "clamp_min", "clip"}


def function_kind(function: object) -> str | None:
    """The kind of a torch activation function or method, None for anything else."""
    from_torch = (getattr(function, "__module__", None) or "torch").startswith("torch")
    return _CALLS.get(getattr(function, "__name__", "")) if from_torch else None


def _call_kind(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
    """The kind of a call that a mode received; squashing a parameter (`softplus(self.scale)`) is no activation."""
    kind = _CALLS.get(getattr(function, "__name__", ""))
    return None if kind is None or isinstance(_input(args, kwargs), nn.Parameter) else kind


def _input(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return args[0] if args else kwargs.get("input", kwargs.get("self"))


# ---- is a piece of code an elementwise activation? ----


class _Names(TorchFunctionMode):
    """Notes the names of the torch functions called."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.names.add(getattr(func, "__name__", "").removesuffix("_"))
        return func(*args, **(kwargs or {}))


def acts_elementwise(function: Callable[[Tensor], object]) -> bool:
    """Try `function` on small tensors: does it call an activation and map every element by itself?"""
    for shape in ((12,), (2, 2, 3), (1, 3, 2, 2)):
        x = torch.linspace(-2.5, 3.0, 12, device="cpu").reshape(shape)
        changed = x.clone()
        changed.view(-1)[0] = 1.7
        try:
            with torch.no_grad(), warnings.catch_warnings(), _Names() as seen:
                warnings.simplefilter("ignore")
                y, backwards, other = (function(t) for t in (x.clone(), x.flatten().flip(0).reshape(shape), changed))
        except Exception:  # whatever code that is no activation may do with a tensor of this shape
            continue
        outputs = [t.flatten() for t in (y, backwards, other) if isinstance(t, Tensor) and t.shape == shape]
        if len(outputs) < 3:
            return False
        return (
            bool(seen.names & (FUNCTIONS.keys() | ALSO_IN_A_MODULE))
            and torch.allclose(outputs[0].flip(0), outputs[1])
            and torch.allclose(outputs[0][1:], outputs[2][1:])
        )
    return False


def stored_function_kind(value: object) -> str | None:
    """The kind of an activation function kept in an attribute: a torch function, a partial of one, or a user's own."""
    function = value.func if isinstance(value, functools.partial) else value
    if isinstance(function, nn.Module) or not callable(function):
        return None
    kind = function_kind(function)
    if kind is not None:
        return kind
    # run a stranger's function only when its code names an activation
    if isinstance(function, types.FunctionType) and _names_in(function) & FUNCTIONS.keys():
        return function.__name__.lower() if acts_elementwise(value) else None  # pyright: ignore[reportArgumentType]
    return None


def probably_calls(module: nn.Module) -> bool:
    """Whether the forward of a module names activation functions; read off its code without running it."""
    if type(module).__module__.startswith("torch.nn.modules"):
        return False
    own = module._modules.keys() | vars(module).keys()
    names = _names_in(inspect.unwrap(type(module).forward), type(module))
    return bool({n.removesuffix("_") for n in names - own} & FUNCTIONS.keys())


def _names_in(function: object, owner: type | None = None, depth: int = 3) -> set[str]:
    """The names that a function's code uses, with those of the functions and methods it names."""
    if not isinstance(function, types.FunctionType) or depth == 0:
        return set()
    codes, names = [function.__code__], set()
    while codes:
        code = codes.pop()
        names |= set(code.co_names)
        codes += [c for c in code.co_consts if isinstance(c, types.CodeType)]
    for name in tuple(names):
        called = function.__globals__.get(name) or getattr(owner, name, None)
        if called is not function and not (getattr(called, "__module__", None) or "torch").startswith("torch"):
            names |= _names_in(called, owner, depth - 1)
    return names


# ---- seeing ----


class Recorder(TorchFunctionMode):
    """What ran, in one run of a model: every activation site, and every activation call of any other module.

    Args:
        paths: id of a module -> its path.
        sites: ids of the modules that are sites; what they call is their own affair.
    """

    def __init__(self, paths: dict[int, str], sites: set[int]) -> None:
        super().__init__()
        self.paths, self.sites = paths, sites
        self.order: dict[tuple[str, int | None], int] = {}  # (path, call index) -> times, in order of first run
        self.kinds: dict[tuple[str, int], str] = {}
        self.forwards: dict[str, set[tuple[str, ...]]] = {}  # path -> the different call sequences of its forwards
        self.callees: dict[str, set[str]] = {}
        self.in_place: set[str] = set()  # sites whose caller uses what they wrote into their input
        self._stack: list[tuple[nn.Module, list[str]]] = []
        self._stale: dict[object, tuple[str, Tensor]] = {}
        self._writers = set()

    def watch(self, model: nn.Module) -> None:
        """Put hooks on every module; the model is a copy made for this run."""
        for module in model.modules():
            if isinstance(module, torch.jit.ScriptModule):  # takes no hooks, and no mode sees inside
                continue
            if id(module) in self.sites and getattr(module, "inplace", False) is True:
                # out of place for this run: whoever still reads the input relied on the overwriting
                module.__dict__["inplace"] = False
                self._writers.add(id(module))
            module.register_forward_pre_hook(self._enter, prepend=True)
            module.register_forward_hook(self._leave, always_call=True)

    def _enter(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        path = self.paths[id(module)]
        if self._stack:
            self.callees.setdefault(self.paths[id(self._stack[-1][0])], set()).add(path)
        self._stack.append((module, []))
        if id(module) in self.sites:
            self._count(path, None)

    def _leave(self, module: nn.Module, args: tuple[Any, ...], output: object) -> None:
        while self._stack:
            running, calls = self._stack.pop()
            if running is module:
                break
        else:
            return
        path = self.paths[id(module)]
        if id(module) not in self.sites:
            self.forwards.setdefault(path, set()).add(tuple(calls))
            self._read(output)
        elif id(module) in self._writers and args and isinstance(args[0], Tensor):
            self._stale[_storage(args[0])] = (path, args[0])

    def _count(self, path: str, index: int | None) -> None:
        self.order[path, index] = self.order.get((path, index), 0) + 1

    def _read(self, value: object) -> None:
        if isinstance(value, Tensor):
            if self._stale and _storage(value) in self._stale:
                self.in_place.add(self._stale[_storage(value)][0])
        elif isinstance(value, (list, tuple)):
            for item in value:
                self._read(item)
        elif isinstance(value, dict):
            self._read(list(value.values()))

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if self._stale and getattr(func, "__name__", "") not in ("__get__", "size", "dim"):
            self._read((args, kwargs))
        if self._stack and id(self._stack[-1][0]) not in self.sites:
            kind = _call_kind(func, args, kwargs)
            if kind is not None:
                module, calls = self._stack[-1]
                path = self.paths[id(module)]
                self.kinds.setdefault((path, len(calls)), kind)
                self._count(path, len(calls))
                calls.append(kind)
        return func(*args, **kwargs)


def _storage(tensor: Tensor) -> object:
    try:
        return tensor.untyped_storage().data_ptr() or id(tensor)
    except (RuntimeError, NotImplementedError):  # nested, sparse and fake tensors have none
        return id(tensor)


# ---- exchanging ----


@dataclass(frozen=True)
class Calls:
    """The activation calls of one forward of a module, in order: what each was, and the child that stands in for it."""

    path: str
    kinds: tuple[str, ...]
    children: tuple[str | None, ...]  # None: the call is left as it is


class _Diverted(TorchFunctionMode):
    """Sends the i-th activation call of one running forward to the owner's i-th child."""

    def __init__(self, owner: nn.Module, calls: Calls) -> None:
        super().__init__()
        self.owner, self.calls, self.position = owner, calls, 0
        self.inside: list[nn.Module] = []  # modules that run now inside the owner: their calls are not the owner's

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        kind = None if self.inside else _call_kind(func, args, kwargs)
        if kind is None:
            return func(*args, **kwargs)
        position = self.position
        self.position = position + 1
        if position >= len(self.calls.kinds) or self.calls.kinds[position] != kind:
            raise RuntimeError(_unexpected(self.calls, position, kind))
        name = self.calls.children[position]
        if name is None:
            return func(*args, **kwargs)
        x, module = _input(args, kwargs), self.owner._modules[name]
        assert module is not None
        if kwargs.get("out") is not None:
            return kwargs["out"].copy_(module(x))
        # the step keeps its input for the backward pass, so it gets a copy of what is overwritten
        if getattr(func, "__name__", None) in _IN_PLACE or kwargs.get("inplace"):
            return x.copy_(module(x.clone()))
        return module(x)


def _unexpected(calls: Calls, position: int, kind: str | None) -> str:
    came = f"call {position} was {kind}" if kind else f"there were {position}"
    return (
        f"{calls.path or 'the model'}: expected the activation calls of the example, "
        f"{', '.join(calls.kinds)} ({len(calls.kinds)} in all), but {came}. "
        "A forward whose calls vary cannot be converted: leave it out with where=, or give it activation modules"
    )


def _running() -> _Diverted | None:
    for mode in reversed(_get_current_function_mode_stack()):
        if isinstance(mode, _Diverted):
            return mode
    return None


def _enter(module: nn.Module, args: tuple[Any, ...]) -> None:
    mode = _running()
    if mode is not None:
        mode.inside.append(module)


def _leave(module: nn.Module, args: tuple[Any, ...], output: object) -> None:
    mode = _running()
    if mode is not None and mode.inside and mode.inside[-1] is module:
        mode.inside.pop()


class _Rebuilt:
    """What every derived class has: it is made again, not looked up, when a copy is made or a pickle is read."""

    _htaf_base: type[nn.Module]

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return _new, (type(self)._htaf_base,), self.__getstate__()  # pyright: ignore[reportAttributeAccessIssue]

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
    with _Diverted(self, calls) as mode:
        output = base.forward(self, *args, **kwargs)
    if mode.position != len(calls.kinds):
        raise RuntimeError(_unexpected(calls, mode.position, None))
    return output


@functools.cache
def _derived(base: type[nn.Module]) -> type[nn.Module]:
    # the same name: configurations and messages are made from it
    body = {
        "_htaf_base": base,
        "forward": functools.wraps(base.forward)(_forward),
        "__module__": base.__module__,
        "__qualname__": base.__qualname__,
        "__doc__": base.__doc__,
    }
    return type(base.__name__, (_Rebuilt, base), body)


def _new(base: type[nn.Module]) -> nn.Module:
    cls = _derived(base)
    return cls.__new__(cls)


def own_class(module: nn.Module) -> type[nn.Module]:
    """The class that a module had before it was derived."""
    return type(module)._htaf_base if isinstance(module, _Rebuilt) else type(module)


def derive(module: nn.Module) -> None:
    """Make a module an instance of the class derived from its own."""
    if not isinstance(module, _Rebuilt):
        module.__class__ = _derived(type(module))


def unshadow(module: nn.Module) -> None:
    """Drop attributes that hide a child: TransformerDecoderLayer puts F.relu over its activation when it is copied."""
    for name in module._modules.keys() & module.__dict__.keys():
        del module.__dict__[name]


def divert(owner: nn.Module, path: str, kinds: tuple[str, ...], modules: dict[int, nn.Module]) -> dict[int, str]:
    """Let `modules[i]` stand in for the i-th of the activation calls that `owner` still makes itself.

    Args:
        owner: changed in place.
        path: its path, for messages.
        kinds: the kinds of those calls in one forward, in order.
        modules: index of a call -> the module.

    Returns:
        Index of a call -> the name of the new child.

    Raises:
        ValueError: the owner's `forward` is not that of its class, so no other can be put in its place.
    """
    if "forward" in vars(owner) or isinstance(owner, torch.fx.GraphModule):
        raise ValueError(
            f"{path or 'the model'}: expected a {type(owner).__name__} that runs the forward of its class, got a "
            "traced graph or a forward set on the instance: its functional calls cannot be replaced"
        )
    before = owner.__dict__.get("_htaf_calls") or Calls(path, kinds, (None,) * len(kinds))
    still = [position for position, child in enumerate(before.children) if child is None]
    children, names = list(before.children), {}
    for index, module in modules.items():
        name = f"{before.kinds[still[index]]}_{still[index]}"
        while hasattr(owner, name):
            name += "_"
        owner.add_module(name, module)
        children[still[index]] = names[index] = name
    owner.__dict__["_htaf_calls"] = Calls(path, before.kinds, tuple(children))
    derive(owner)
    return names


def shield(owner: nn.Module, also: list[nn.Module]) -> None:
    """Mark when a module runs inside `owner`, so that its activation calls are not taken for the owner's."""
    stand_ins = set(owner.__dict__["_htaf_calls"].children)
    for module in [*_callable_children(owner, stand_ins), *also]:
        if not _inert(module) and _enter not in module._forward_pre_hooks.values():
            module.register_forward_pre_hook(_enter)
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


def duplicate(model: nn.Module, *, parameters: bool = False, buffers: bool = False) -> nn.Module:
    """Deep copy of a model that may hold the very same parameters and buffers as the original."""
    memo: dict[int, Any] = {}
    if parameters:
        memo.update((id(p), p) for p in model.parameters())
    if buffers:
        memo.update((id(b), b) for b in model.buffers())
    new = copy.deepcopy(model, memo)
    for module in new.modules():
        unshadow(module)
    return new
