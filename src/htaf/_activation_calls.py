"""Activation functions called inside a forward (`F.relu(x)`, `x.sigmoid()`): telling them, and seeing them run.

A call belongs to the innermost running module, its owner. `Recorder` sees the calls of one run.
"""

from __future__ import annotations

import functools
import inspect
import types
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

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
IN_PLACE = {f"{name}_": kind for name, kind in FUNCTIONS.items()}
_CALLS = FUNCTIONS | IN_PLACE
# inside a module of its own these make an activation too; elsewhere they are mostly something else
ALSO_IN_A_MODULE = {"erf", "special_erf", "clamp", "clamp_min", "clip"}


def function_kind(function: object) -> str | None:
    """The kind of a torch activation function or method, None for anything else."""
    from_torch = (getattr(function, "__module__", None) or "torch").startswith("torch")
    return _CALLS.get(getattr(function, "__name__", "")) if from_torch else None


def call_kind(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
    """The kind of a call that a mode received; squashing a parameter (`softplus(self.scale)`) is no activation."""
    kind = _CALLS.get(getattr(function, "__name__", ""))
    return None if kind is None or isinstance(call_input(args, kwargs), nn.Parameter) else kind


def call_input(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
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
            kind = call_kind(func, args, kwargs)
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
