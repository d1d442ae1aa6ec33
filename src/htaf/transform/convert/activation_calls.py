"""Activation functions called inside a forward (`F.relu(x)`, `x.sigmoid()`): telling them, and seeing them run.

A call belongs to the innermost running module, its owner. `CallRecorder` sees the calls of one run.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import math
import sys
import types
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import FunctionMeta
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from htaf.transform.convert.flow import Flow, Made, holds, tensors_of
from htaf.transform.convert.places import Order, Place, name_of, order_of, place_of

_PLAIN = (
    "relu", "relu6", "gelu", "silu", "mish", "elu", "selu", "celu", "leaky_relu", "prelu", "rrelu", "hardswish",
    "hardsigmoid", "hardtanh", "sigmoid", "tanh", "softplus", "softsign", "logsigmoid", "threshold", "hardshrink",
    "softshrink", "tanhshrink",
)  # fmt: skip
_OTHERWISE = {"special_expit": "sigmoid", "log_sigmoid": "logsigmoid", "_threshold": "threshold"}
# name of a torch function or method, without the in-place underscore -> kind
FUNCTIONS = {name: name for name in _PLAIN} | _OTHERWISE
# torch.compile reads a name as a constant but cannot take it apart, so the in-place names have entries
IN_PLACE = {f"{name}_": kind for name, kind in FUNCTIONS.items()}
_CALLS = FUNCTIONS | IN_PLACE | {f"{name}.default": kind for name, kind in FUNCTIONS.items()}
# with some arguments these are a ReLU, `x.clamp(min=0)`; such a one is named and left as it is
_CLAMPS = {"clamp", "clip", "clamp_min", "clamp_", "clip_", "clamp_min_"}
_MAXIMA = {"maximum", "fmax", "max"}
# what an activation is written out with, `torch.where(x > 0, x, 0.1 * x)`: named and left too
_WITH_A_MASK = {"where", "mul", "mul_", "multiply", "masked_fill", "masked_fill_", "__setitem__"}
# names in code, without the in-place underscore, that are worth a look
NAMING = FUNCTIONS.keys() | {"clamp", "clip", "clamp_min", "maximum"}
# inside a module of its own these make an activation too; elsewhere they are mostly something else
_COMPARING = {"erf", "special_erf", "sign", "heaviside", "gt", "ge", "lt", "le", "where", "masked_fill"}
ALSO_IN_A_MODULE = _COMPARING | {"clamp", "clip", "clamp_min"} | _MAXIMA
# layers of torch.nn that hold activations which no module can stand in for, and functions that do
FUSED_MODULES = (nn.RNNBase, nn.RNNCellBase, nn.GLU)
_FUSED_CALLS = {
    "rnn_relu", "rnn_tanh", "rnn_relu_cell", "rnn_tanh_cell", "lstm", "gru", "lstm_cell", "gru_cell", "glu",
}  # fmt: skip
# operators as they arrive below Python -> the activation; whoever reaches them unseen is named
_OPERATOR_KINDS = (
    FUNCTIONS
    | {"_prelu_kernel": "prelu", "log_sigmoid_forward": "logsigmoid", "rrelu_with_noise": "rrelu", "glu": "glu"}
    | {"mkldnn_rnn_layer": "lstm", "_thnn_fused_lstm_cell": "lstm", "_thnn_fused_gru_cell": "gru"}
)
# nonlinear and elementwise, but mostly no activations
_DOUBTFUL = {
    **dict.fromkeys(("clamp", "clamp_min", "clamp_max"), "clamp"),
    **dict.fromkeys(("maximum", "fmax"), "maximum"),
    **dict.fromkeys(("minimum", "fmin"), "minimum"),
    **{name: name for name in ("exp", "exp2", "expm1", "erf", "sin", "cos", "abs", "sign", "heaviside", "round")},
    **{name: name for name in ("logaddexp", "erfc", "atan", "sinh", "cosh", "asinh")},
}


def function_kind(function: object) -> str | None:
    """The kind of a torch activation function or method, None for anything else."""
    from_torch = (getattr(function, "__module__", None) or "torch").startswith("torch")
    return _CALLS.get(getattr(function, "__name__", "")) if from_torch else None


def call_kind(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
    """The kind of a call that a mode received; squashing a parameter (`softplus(self.scale)`) is no activation."""
    kind = _CALLS.get(getattr(function, "__name__", ""))
    return None if kind is None or isinstance(call_input(args, kwargs), nn.Parameter) else kind


def is_of_a_parameter(path: str) -> bool:
    """Whether a module makes a parameter (torch.nn.utils.parametrize): squashing one is no activation."""
    return ".parametrizations." in f".{path}."


def call_input(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return args[0] if args else kwargs.get("input", kwargs.get("self"))


# ---- activations that are written out: by `clamp`, `maximum` or a mask ----


def _is_relu(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a clamp or a maximum is a ReLU with these arguments, up to 6 or without a bound."""
    x = call_input(args, kwargs)
    if name in _CLAMPS:
        low, high = (args[i] if i < len(args) else kwargs.get(key) for i, key in ((1, "min"), (2, "max")))
        return _is_input(x) and _equals(low, 0) and (high is None or _equals(high, math.inf) or _equals(high, 6))
    other = args[1] if len(args) > 1 else kwargs.get("other")
    pairs = ((x, other), (other, x)) if isinstance(other, Tensor) else ()
    return any(_is_input(one) and _equals(zero, 0) and zero.numel() <= one.numel() for one, zero in pairs)


def _masks(used: object) -> bool | None:
    """Whether one of the tensors of a call is 1 where another one is positive and 0 where it is negative, or the other
    way round; None where it could be, as a bool of an input that is of one sign throughout."""
    tensors = [one for one in tree_leaves(used) if isinstance(one, Tensor)]
    pairs = [(x, mask) for x in tensors if _is_input(x) for mask in tensors if mask.shape == x.shape and mask is not x]
    found = [_agrees(mask, x) for x, mask in pairs]
    return None if None in found and True not in found else True in found


def _is_input(x: object) -> bool:
    return isinstance(x, Tensor) and x.is_floating_point() and not isinstance(x, nn.Parameter) and x.numel() > 1


def _equals(value: object, number: float) -> bool:
    """Whether a number, or every entry of a tensor whose values are at hand, is `number`."""
    if isinstance(value, Tensor):
        return holds(lambda: (value == number).all())
    return type(value) in (int, float) and value == number


def _agrees(mask: Tensor, x: Tensor) -> bool | None:
    def sided(on: Tensor) -> bool:
        return bool(on[x > 0].all()) and not bool(on[x < 0].any())

    boolean = mask.dtype == torch.bool
    if not holds(lambda: (boolean or ((mask == 0) | (mask == 1)).all()) and (sided(mask == 1) or sided(mask == 0))):
        return False
    both = holds(lambda: (x > 0).any() and (x < 0).any())
    return True if both else None if boolean else False


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
        x = torch.linspace(-4.5, 5.0, 12, device="cpu").reshape(shape)
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
        named = seen.names & (FUNCTIONS.keys() | ALSO_IN_A_MODULE)
        return (
            bool(named or torch.allclose(outputs[0], x.flatten().relu()))
            and torch.allclose(outputs[0].flip(0), outputs[1])
            and torch.allclose(outputs[0][1:], outputs[2][1:])
            and not torch.allclose(outputs[0].diff(n=2), torch.zeros(10), atol=1e-6)  # affine here: a guard, no curve
        )
    return False


def stored_function_kind(value: object) -> str | None:
    """The kind of an activation function kept in an attribute: a torch function, a partial of one, or a user's own."""
    function = value.func if type(value) is functools.partial else value
    if not _is_function(function):  # a stranger's object, whose attributes may do anything when they are asked for
        return None
    kind = function_kind(function)
    if kind is not None:
        return kind
    # run a stranger's function only when its code names an activation
    if type(function) is types.FunctionType and _names_in(function) & NAMING:
        return function.__name__.lower() if acts_elementwise(value) else None  # pyright: ignore[reportArgumentType]
    return None


def probably_calls(module: nn.Module) -> bool:
    """Whether the forward of a module names activation functions; read off its code without running it."""
    if type(module).__module__.startswith("torch.nn.modules"):
        return False
    own = module._modules.keys() | vars(module).keys()
    names = _names_in(_plain_function(inspect.getattr_static(type(module), "forward", None)), type(module))
    return bool({name.removesuffix("_") for name in names - own} & NAMING)


def names_one_of(module: nn.Module, functions: tuple[types.FunctionType, ...]) -> bool:
    """Whether a module keeps one of these functions, or its forward names one; read off its code, nothing runs."""
    if type(module).__module__.startswith("torch.nn.modules"):
        return False
    functions = tuple(map(_plain_function, functions))
    if any(_plain_function(value) is wanted for value in vars(module).values() for wanted in functions):
        return True
    forward = _plain_function(inspect.getattr_static(type(module), "forward", None))
    names = _names_in(forward, type(module)) & {function.__name__ for function in functions}
    modules = {name for name in names if type(getattr(forward, "__globals__", {}).get(name)) is types.ModuleType}
    return bool(names - modules) or bool(modules and "functional" in _names_in(forward, type(module)))


def _names_in(function: object, owner: type | None = None, depth: int = 3) -> set[str]:
    """The names that a function's code uses, with those of the functions and methods it names."""
    if type(function) is not types.FunctionType or depth == 0:
        return set()
    codes, names = [function.__code__], set()
    while codes:
        code = codes.pop()
        names |= set(code.co_names)
        codes += [c for c in code.co_consts if isinstance(c, types.CodeType)]
    for name in tuple(names) + function.__code__.co_freevars:
        for called in _called(name, function, owner):
            if called is not function and not called.__module__.startswith("torch"):
                names |= _names_in(called, owner, depth - 1)
    return names


def _called(name: str, function: types.FunctionType, owner: type | None) -> Iterator[types.FunctionType]:
    """The functions that `name` may mean in a function's code: a global, what its closure holds, a method of `owner`.

    What else bears the name may be anything, a tensor, a table, a proxy: nothing is asked of it but its type.
    """
    values = [function.__globals__.get(name), None if owner is None else inspect.getattr_static(owner, name, None)]
    if name in function.__code__.co_freevars:
        cell = (function.__closure__ or ())[function.__code__.co_freevars.index(name)]
        with contextlib.suppress(ValueError):  # not filled yet
            values.append(cell.cell_contents)
    for value in values:
        plain = _plain_function(value)
        if type(plain) is types.FunctionType and isinstance(plain.__module__, str):
            yield plain


_METHODS = (staticmethod, classmethod, types.MethodType)
_FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType, types.MethodDescriptorType, types.MethodType)
_OPERATORS = (torch._ops.OpOverload, torch._ops.OpOverloadPacket)


def _is_function(value: object) -> bool:
    return any(type(value) is kind for kind in _FUNCTIONS + _OPERATORS)


def _plain_function(value: Any) -> Any:
    """The function inside a method, a partial, a property, a decorated function or an autograd Function."""
    for _ in range(10):
        kind = type(value)
        if any(kind is method for method in _METHODS):
            bound = getattr(value, "__self__", None) if kind is types.MethodType else None
            value = bound if _is_autograd_function(bound) else value.__func__
        elif kind is property:
            value = value.fget
        elif kind is functools.partial:
            value = value.func
        elif kind is types.FunctionType and "__wrapped__" in value.__dict__:
            value = value.__dict__["__wrapped__"]
        elif _is_autograd_function(value):
            value = inspect.getattr_static(value, "forward", None)
        else:
            return value
    return value


def _is_autograd_function(value: object) -> bool:
    return type(value) is FunctionMeta


# ---- seeing ----


@dataclass(eq=False)
class _Call:
    """An activation call of a forward."""

    kind: str
    fixed: bool = False  # inside an autograd Function, whose backward would not know of another
    place: Place = ()
    layers: object = None  # what it runs behind
    behind: str | None = None  # the layer that its module called last


@dataclass
class _Frame:
    """A module that runs."""

    module: nn.Module
    calls: list[_Call] = field(default_factory=list)
    forward: bool = False  # its forward runs, not its hooks
    run: int = -1  # of a site: the number of the run
    made: Made | None = None  # of a site: its value in this run
    last: str | None = None  # the layer that it called last


class CallRecorder(TorchFunctionMode):
    """What ran, in one run of a model: every activation site, and every activation call of any other module.

    Args:
        paths: id of a module -> its path.
        sites: ids of the modules that are sites, with their kinds; what they call is their own affair.
    """

    def __init__(self, paths: dict[int, str], sites: dict[int, str]) -> None:
        super().__init__()
        self.paths, self.sites = paths, sites
        self.order: dict[tuple[str, int | None], int] = {}  # (path, call index) -> times, in order of first run
        self.calls: dict[tuple[str, int], _Call] = {}
        self.forwards: dict[str, Order] = {}  # path -> the calls of its forwards
        self.callees: dict[str, set[str]] = {}
        self.in_place: set[str] = set()  # sites whose caller uses what they wrote into their input
        # (path, what acts there, what to do): no module can stand in
        self.beyond: dict[tuple[str, str, str], None] = {}
        self.doubtful: dict[str, dict[str, None]] = {}  # path -> operators that may be activations
        self.functions: dict[str, dict[str, None]] = {}  # path -> autograd Functions
        self.flow = Flow()
        self.values: dict[tuple[str, int | None], list[Made]] = {}  # as in `order`: what became of each value
        self._became: dict[int, Made] = {}  # the number of a run, or a call -> what became of its value
        self._ran: list[tuple[str, _Frame | None, int]] = []
        self._left: list[tuple[str, _Frame]] = []
        self._number: dict[int, int] = {}  # id of a call -> its number among those of its module
        self._stack: list[_Frame] = []
        self._covered = 0
        self._stale: dict[object, tuple[str, Tensor]] = {}
        self._writers: set[int] = set()
        self._function_codes = dict(_autograd_functions(torch.autograd.Function))

    def watch(self, model: nn.Module, example: object) -> None:
        """Put hooks on every module; the model is a copy made for this run on an example."""
        self.flow.begin(model, example)
        for module in model.modules():
            if isinstance(module, torch.jit.ScriptModule):  # takes no hooks, and no mode sees inside
                continue
            if id(module) in self.sites and getattr(module, "inplace", False) is True:
                # out of place for this run: whoever still reads the input relied on the overwriting
                module.__dict__["inplace"] = False
                self._writers.add(id(module))
            # first and last, so that what the hooks of others call is not taken for the forward's
            module.register_forward_pre_hook(self._enter, prepend=True)
            module.register_forward_pre_hook(self._begin)
            module.register_forward_hook(self._end, prepend=True)
            module.register_forward_hook(self._leave, always_call=True)

    def _enter(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        path = self.paths[id(module)]
        if self._stack:
            self.callees.setdefault(self.paths[id(self._stack[-1].module)], set()).add(path)
        self._stack.append(_Frame(module))
        if id(module) in self.sites:
            self._stack[-1].run = len(self._ran)
            self._stack[-1].made = self.flow.activation(args[0] if args else None)
            self._ran.append((path, None, 0))

    def _begin(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        self._stack[-1].forward = True

    def _end(self, module: nn.Module, args: tuple[Any, ...], output: object) -> None:
        if self._stack and self._stack[-1].module is module:
            self._stack[-1].forward = False

    def _leave(self, module: nn.Module, args: tuple[Any, ...], output: object) -> None:
        while self._stack:
            frame = self._stack.pop()
            if frame.module is module:
                break
        else:
            return
        path = self.paths[id(module)]
        if id(module) not in self.sites:
            self._left.append((path, frame))
            if self._stack and next(module.parameters(), None) is not None:
                self._stack[-1].last = name_of(module, path)
            self._read(output)
            return
        if frame.made is not None:
            self.flow.make(frame.made, output)
            self._became[frame.run] = frame.made
        if id(module) in self._writers and args and isinstance(args[0], Tensor):
            self._stale[_storage(args[0])] = (path, args[0])

    def _read(self, value: object) -> None:
        for tensor in tensors_of(value) if self._stale else ():
            if _storage(tensor) in self._stale:
                self.in_place.add(self._stale[_storage(tensor)][0])

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if self._stale and name not in ("__get__", "size", "dim"):
            self._read((args, kwargs))
        # torch's own compositions (normalize, losses) are known to be no activations
        covers = getattr(func, "__module__", None) == "torch.nn.functional"
        if not self._stack or self._covered or id(self._stack[-1].module) in self.sites:
            with self.covering() if covers else contextlib.nullcontext():
                return func(*args, **kwargs)
        frame = self._stack[-1]
        counted = len(frame.calls)
        covers = self._note(func, name, args, kwargs) or covers
        call = frame.calls[counted] if len(frame.calls) > counted else None
        became = None
        if call is not None:
            became = self._became[id(call)] = self.flow.activation(call_input(args, kwargs))
        with self.covering() if covers else contextlib.nullcontext():
            result = func(*args, **kwargs)
        if became is not None:
            self.flow.make(became, args[0] if result is None else result)
        return result

    @contextlib.contextmanager
    def covering(self) -> Iterator[None]:
        """What runs inside is accounted for."""
        self._covered += 1
        try:
            yield
        finally:
            self._covered -= 1

    def _note(self, func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Note a call of the running module; whether it is an activation that is accounted for."""
        frame = self._stack[-1]
        path = self.paths[id(frame.module)]
        if is_of_a_parameter(path):
            return True
        function = self._running_function()
        if function is not None:
            self.functions.setdefault(path, {})[function] = None
        if name in _FUSED_CALLS:
            if not isinstance(frame.module, FUSED_MODULES):
                self.beyond[path, f"activations inside {name}", "write its formula with modules"] = None
            return True
        kind = call_kind(func, args, kwargs)
        if kind is None:
            return self._is_written(path, name, args, kwargs)
        if not frame.forward:
            self.beyond[path, f"{kind} called by a hook", "make it a module"] = None
            return True
        place, layers = place_of(sys._getframe(1)), self.flow.layers((args, kwargs))
        call = _Call(kind, function is not None, place, layers, frame.last)
        if call.fixed:
            self.beyond[path, f"autograd Function {function}, which calls {kind}", "write it as a module"] = None
        else:
            self._ran.append((path, frame, len(frame.calls)))
        frame.calls.append(call)
        return True

    def _is_written(self, path: str, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Name an activation that is written with a mask, a clamp or a maximum; whether nothing below tells of it."""
        with self.covering():
            clipped = name in _CLAMPS | _MAXIMA and _is_relu(name, args, kwargs)
            found = clipped or (name in _WITH_A_MASK and _masks((args, kwargs)))
        if found:
            advice = "call it by one function (F.relu), or make it a module without children"
            self.beyond[path, f"an activation written with {name.strip('_')}", advice] = None
        elif found is None and name == "where":
            self.doubtful.setdefault(path, {})[name] = None
        return clipped

    def operator(self, name: str, args: tuple[Any, ...]) -> None:
        """Note an operator that ran below Python, unless something above accounts for it."""
        kind = _OPERATOR_KINDS.get(name) or _DOUBTFUL.get(name)
        if kind is None or self._covered or not args or not _is_input(args[0]):
            return
        path = ""
        if self._stack:
            module = self._stack[-1].module
            path = self.paths[id(module)]
            if id(module) in self.sites or type(module).__module__.startswith("torch.nn.modules"):
                return
        function = self._running_function()
        if function is not None:
            self.beyond[path, f"autograd Function {function}, which calls {kind}", "write it as a module"] = None
        elif name in _OPERATOR_KINDS:  # seen by no function mode
            self.beyond[path, f"{kind} in scripted, compiled or C++ code", "call it from Python"] = None
        elif not (kind == "clamp" and len(args) > 1 and type(args[1]) in (int, float) and 0 < args[1] <= 1e-3):
            self.doubtful.setdefault(path, {})[kind] = None  # (a clamp to a small positive number guards a division)

    def _running_function(self) -> str | None:
        """The autograd Function whose forward runs in the innermost module, found on the stack: torch tells nobody."""
        frame = sys._getframe(1) if self._function_codes else None
        while frame is not None and frame.f_code is not nn.Module._call_impl.__code__:
            if frame.f_code in self._function_codes:
                return self._function_codes[frame.f_code]
            frame = frame.f_back
        return None

    def settle(self) -> None:
        """Once the run is over: the index of each site among the calls of its forward."""
        of_paths: dict[str, list[list[_Call]]] = {}
        for path, frame in self._left:
            of_paths.setdefault(path, []).append(frame.calls)
        for path, forwards in of_paths.items():
            told = [[((c.place, c.kind), c.layers, c.behind) for c in calls] for calls in forwards]
            self.forwards[path], numbers = order_of(told)
            for calls, own in zip(forwards, numbers, strict=True):
                self._number |= zip(map(id, calls), own, strict=True)
        for run, (path, frame, position) in enumerate(self._ran):
            key: tuple[str, int | None] = (path, None)
            part = run
            if frame is not None:
                call = frame.calls[position]
                key, part = (path, self._number[id(call)]), id(call)
                self.calls.setdefault(key, call)
            self.order[key] = self.order.get(key, 0) + 1
            self.values.setdefault(key, []).extend([self._became[part]] if part in self._became else [])


class Operators(TorchDispatchMode):
    """Shows a recorder the operators that run."""

    supports_higher_order_operators = True

    def __init__(self, recorder: CallRecorder) -> None:
        super().__init__()
        self.recorder = recorder

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if not isinstance(func, torch._ops.OpOverload):  # one that runs a function of the model's
            return func(*args, **(kwargs or {}))
        if func.namespace == "aten":
            self.recorder.operator(func._schema.name.removeprefix("aten::").removesuffix("_"), args)
        with self.recorder.covering():  # or it would be seen again
            result = func(*args, **(kwargs or {}))
            self.recorder.flow.operator(func, args, kwargs or {}, result)
        return result


def _autograd_functions(base: type) -> Iterator[tuple[types.CodeType, str]]:
    """The code of the forward of every autograd Function that is neither torch's nor this library's -> its name."""
    for function in type.__subclasses__(base):
        yield from _autograd_functions(function)
        forward = _plain_function(inspect.getattr_static(function, "forward", None))
        if type(forward) is types.FunctionType and not str(function.__module__).startswith(("torch.", "htaf.")):
            yield forward.__code__, function.__name__


def _storage(tensor: Tensor) -> object:
    try:
        return tensor.untyped_storage().data_ptr() or id(tensor)
    except (RuntimeError, NotImplementedError):  # nested, sparse and fake tensors have none
        return id(tensor)
