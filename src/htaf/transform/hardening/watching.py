"""What becomes of a layer's output within a network: the norm behind it, and the sum that it is added into.

A run is watched by forward hooks of layers and norms and by a `TorchFunctionMode`, which sees additions; operands are
known by identity. Between a layer and its sum may lie what can be undone: an eval batch norm, dropout and reshaping.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakIdKeyDictionary

from htaf.transform.convert.modes import hooked
from htaf.transform.hardening.report import call

LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
Undo = Callable[[Tensor], Tensor]

_ADDS = {"add", "__add__", "__radd__", "add_", "__iadd__"}
_SAME_ORDER = {
    "reshape", "view", "flatten", "unflatten", "squeeze", "unsqueeze", "contiguous", "clone", "to", "float", "detach",
    "dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_dropout",
}  # fmt: skip


def is_norm(module: nn.Module) -> bool:
    """Whether a module is a batch norm that keeps running statistics."""
    return isinstance(module, _BatchNorm) and module.running_mean is not None


def norm_scale(norm: Any) -> tuple[Tensor, Tensor]:
    """Of a batch norm in eval mode, a and b of its output a x + b, each [channels]."""
    gain = torch.ones_like(norm.running_var) if norm.weight is None else norm.weight
    scale = gain / (norm.running_var + norm.eps).sqrt()
    shift = -norm.running_mean * scale
    return scale, shift if norm.bias is None else shift + norm.bias


def along(values: Tensor, x: Tensor) -> Tensor:
    """Values [channels] laid along dimension 1 of x."""
    return values.reshape([1, -1, *[1] * (x.ndim - 2)])


@dataclass
class Route:
    """How a tensor came from a call of a layer."""

    layer: str
    call: int
    undo: tuple[Undo, ...] = ()  # in the order in which they were done
    norm: str | None = None

    def then(self, undo: Undo) -> Route:
        """The route one step further."""
        return Route(self.layer, self.call, (*self.undo, undo), self.norm)


@dataclass
class Call:
    """One call of a watched layer: its input and output, and the sum it went into, all as they were then."""

    input: Tensor
    output: Tensor
    route: Route | None = None
    other: Tensor | None = None
    sum: Tensor | None = None

    def back(self, x: Tensor) -> Tensor:
        """A value of the sum, less what was added, as a value of the layer's output."""
        assert self.route is not None
        for undo in reversed(self.route.undo):
            x = undo(x)
        return x


@dataclass
class Unit:
    """A layer or a norm of a network.

    calls: in one run. sums: into which their outputs go with no layer in between. norms: that read its output.
    norms_of_sum: that read that sum, or its output beside others. inputs: of each call the sums of values and of
    squares, by which inputs of two networks are compared.
    """

    name: str
    module: nn.Module
    calls: int = 0
    sums: int = 0
    norms: set[str] = field(default_factory=set)
    norms_of_sum: set[str] = field(default_factory=set)
    inputs: list[tuple[float, float]] = field(default_factory=list)

    @property
    def is_layer(self) -> bool:
        """Not a norm."""
        return isinstance(self.module, LAYERS)

    @property
    def to_sum(self) -> bool:
        """Whether every call's output goes into a sum."""
        return self.sums == self.calls

    @property
    def norm(self) -> str | None:
        """The norm that reads its output, and nothing else."""
        return next(iter(self.norms)) if len(self.norms) == 1 else None


class _Done(Exception):
    """All that was asked for has been seen."""


class _Watch(TorchFunctionMode):
    """Follows the outputs of layers through one run of a network."""

    def __init__(self, names: Mapping[nn.Module, str], only: str | None = None) -> None:
        super().__init__()
        self.names, self.only = names, only
        self.routes: Any = WeakIdKeyDictionary()
        self.sums: Any = WeakIdKeyDictionary()
        self.counts: dict[str, int] = {}
        self.last: tuple[str, int] | None = None
        self.units: dict[str, Unit] = {}
        self.calls: list[Call] = []
        self.wanted = 0  # calls that make a run complete; with `sums` once each has its sum
        self.need_sums = False

    # ---- hooks ----

    def layer(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        name = self.names[module]
        number = self.counts[name] = self.counts.get(name, 0) + 1
        self.last = name, number
        if self.only is None:
            self._counted(name, module, args[0])
        elif name != self.only:
            return
        else:
            self.calls.append(Call(args[0].clone(), output.clone()))
        self._keep(output, Route(name, number))
        self._finish()

    def norm(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        name, source = self.names[module], args[0]
        route = self._route(source)
        if self.only is None:
            self._counted(name, module, source)
            if route is not None:
                self.units[route.layer].norms.add(name)
            if (summed := self.sums.get(source)) is not None:
                self.units[summed.layer].norms_of_sum.add(name)
        elif name == self.only:
            self.calls.append(Call(source.clone(), output))
            self._finish()
        if route is not None and route.norm is None:
            scale, shift = norm_scale(module)
            safe = torch.where(scale == 0, 1, scale)

            def undo(x: Tensor) -> Tensor:  # a channel of gain 0 tells nothing: NaN there, which is left out
                return torch.where(along(scale, x) == 0, torch.nan, (x - along(shift, x)) / along(safe, x))

            route = route.then(undo)
            self._keep(output, Route(route.layer, route.call, route.undo, name))

    def _counted(self, name: str, module: nn.Module, x: Tensor) -> None:
        unit = self.units.setdefault(name, Unit(name, module))
        unit.calls += 1
        unit.inputs.append((x.sum(dtype=torch.float32).item(), x.square().sum(dtype=torch.float32).item()))

    # ---- functions ----

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name in _ADDS and len(args) == 2 and not kwargs.keys() - {"input", "other"}:
            return self._added(func, args, kwargs)
        route = self._route(args[0]) if args else None
        if route is None:
            return func(*args, **kwargs)
        source, shape = args[0], args[0].shape
        result = func(*args, **kwargs)
        if name == "__setitem__" or (name.endswith("_") and not name.endswith("__")):  # overwritten, if in part
            self.routes.pop(source, None)
        if isinstance(result, Tensor) and name in _SAME_ORDER and result.numel() == source.numel():
            self._keep(result, route if result is source else route.then(lambda x: x.reshape(shape)))
        elif result is source:  # overwritten by something else
            self.routes.pop(source, None)
        return result

    def _keep(self, x: Tensor, route: Route) -> None:
        self.routes[x] = route, _writes(x)

    def _route(self, x: Any) -> Route | None:
        """How a tensor came from a layer; None where it did not, or was written to since, if through a view."""
        route, writes = self.routes.get(x, (None, 0)) if isinstance(x, Tensor) else (None, 0)
        return route if route is not None and writes == _writes(x) else None

    def _added(self, func: Any, args: Any, kwargs: Any) -> Any:
        a, b = args
        if not isinstance(a, Tensor) or not isinstance(b, Tensor) or a.shape != b.shape:
            return func(*args, **kwargs)
        found = [(self._route(x), y) for x, y in ((a, b), (b, a))]
        found = [(r, y) for r, y in found if r is not None and (r.layer, r.call) == self.last]
        if not found:
            result = func(*args, **kwargs)
        else:
            route, other = found[0]
            assert route is not None
            kept = None
            if self.only is None:
                self.units[route.layer].sums += 1
            else:
                kept = self.calls[route.call - 1]
                kept.route, kept.other = route, other.clone()
            result = func(*args, **kwargs)
            if kept is not None:
                kept.sum = result.clone()
            self.sums[result] = route
        if result is a or result is b:
            self.routes.pop(result, None)
        if found:
            self._finish()
        return result

    def _finish(self) -> None:
        done = self.calls if not self.need_sums else [c for c in self.calls if c.sum is not None]
        if self.only is not None and len(done) == self.wanted:
            raise _Done


def _writes(x: Tensor) -> int:
    """How often a tensor has been written to in place; tensors of inference mode do not tell."""
    return 0 if x.is_inference() else x._version


def survey(model: nn.Module, x: Any) -> list[Unit]:
    """Layers and norms of a network in the order of first run, and what becomes of their outputs."""
    watch = _run(model, x, None)
    units = list(watch.units.values())
    sources = Counter(norm for unit in units for norm in unit.norms)
    for unit in units:  # a norm that reads other values too is not this layer's own
        if unit.norms and (unit.norm is None or sources[unit.norm] > 1 or watch.units[unit.norm].calls != unit.calls):
            unit.norms_of_sum, unit.norms = unit.norms_of_sum | unit.norms, set()
    return units


def observe(model: nn.Module, x: Any, unit: Unit) -> list[Call]:
    """The calls of a layer or norm in one run, which ends once all that is asked for has been seen."""
    return _run(model, x, unit).calls


def _run(model: nn.Module, x: Any, unit: Unit | None) -> _Watch:
    names = {module: name for name, module in model.named_modules() if isinstance(module, LAYERS) or is_norm(module)}
    watch = _Watch(names, None if unit is None else unit.name)
    if unit is not None:
        watch.wanted, watch.need_sums = unit.calls, unit.is_layer and unit.to_sum
    handles = [m.register_forward_hook(watch.norm if is_norm(m) else watch.layer) for m in names]
    with suppress(_Done), hooked(handles), watch:
        call(model, x)
    return watch
