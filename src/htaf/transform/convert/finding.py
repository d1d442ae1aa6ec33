"""Finding the sites of a model: modules, functions kept in attributes, and calls seen in a run of an example."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter
from torch.utils._pytree import tree_leaves, tree_map

from htaf.core import functional
from htaf.core.activations import Heaviside
from htaf.core.contract import SmoothStep, lacking, looks_smooth
from htaf.transform.convert import activation_calls as calls
from htaf.transform.convert.flow import WORDS, Made, Stays
from htaf.transform.convert.functional_sites import duplicate, own_class
from htaf.transform.convert.places import Order

_CLASSES = (
    nn.CELU, nn.ELU, nn.GELU, nn.Hardshrink, nn.Hardsigmoid, nn.Hardswish, nn.Hardtanh, nn.LogSigmoid, nn.Mish,
    nn.PReLU, nn.ReLU, nn.ReLU6, nn.RReLU, nn.SELU, nn.SiLU, nn.Sigmoid, nn.Softplus, nn.Softshrink, nn.Softsign,
    nn.Tanh, nn.Tanhshrink, nn.Threshold, Heaviside,
)  # fmt: skip
_MODULES: dict[type, str] = {cls: cls.__name__.lower() for cls in _CLASSES} | {nn.LeakyReLU: "leaky_relu"}
_FUNCTIONS = (
    F.relu, F.relu6, F.elu, F.selu, F.gelu, F.silu, F.mish, F.hardswish, F.hardsigmoid, F.tanhshrink, F.softplus,
    F.softsign, torch.sigmoid, torch.tanh,
)  # fmt: skip
_KNOWN: dict[str, Callable[[Tensor], Tensor]] = {function.__name__: function for function in _FUNCTIONS} | {
    "logsigmoid": F.logsigmoid,
    "relu_squared": lambda x: F.relu(x).square(),
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "quick_gelu": lambda x: x * torch.sigmoid(1.702 * x),
}
_SMOOTH_FUNCTIONS = (functional.htaf, functional.scaled_sigmoid)  # a straight-through one gives exact values


@dataclass(frozen=True)
class Site:
    """A place where an elementwise activation acts.

    Attributes:
        path: module path; of a functional call, the path of the module whose forward makes it.
        kind: "relu", "gelu", "htaf", ...; of an activation class that torch does not have, its name in lower case.
        calls: how often it ran in the example batch; None when there was no example.
        functional: a call such as `F.relu(x)` inside a forward.
        index: number of the functional call among those in the forwards of its module, in order of first run; 0 for
            modules. A line of code that runs several times after the same layers is one call. In a loop over layers it
            is one call for each layer.
        module_type: class of the module; None for a function.
        aliases: further paths of the same module.
        in_place: the model still reads the input that the activation overwrites.
        stays: why `replace` leaves it unless `where` chooses it: "output", "gate", "scale", "scores",
            "choice" or "formula"; "kept": `keep` chose it; None: it acts between layers, as far as the run tells.
        first: in the example no other activation comes before it.
        work: how many products of its values with weights the layers after it compute for the example.
    """

    path: str
    kind: str
    calls: int | None = None
    functional: bool = False
    index: int = 0
    module_type: type | None = None
    aliases: tuple[str, ...] = ()
    in_place: bool = field(default=False, repr=False)
    stays: Stays | None = field(default=None, compare=False)
    first: bool = field(default=False, repr=False, compare=False)
    work: int = field(default=0, repr=False, compare=False)

    @property
    def name(self) -> str:
        """The path; for a functional call that of the module that would stand in for it ("block.relu_0")."""
        child = f"{self.kind}_{self.index}"
        return (f"{self.path}.{child}" if self.path else child) if self.functional else self.path

    def __str__(self) -> str:
        return self.label if self.stays is None else f"{self.label}, stays: {WORDS[self.stays]}"

    @property
    def label(self) -> str:
        """Its name, kind and calls, in words."""
        notes = [self.kind]
        if self.functional:
            notes.append("functional")
        if self.calls is not None:
            notes.append("1 call" if self.calls == 1 else f"{self.calls} calls")
        also = f", also {', '.join(self.aliases)}" if self.aliases else ""
        return f"{self.name or '(the model)'} ({', '.join(notes)}){also}"


@dataclass(frozen=True)
class Found:
    sites: tuple[Site, ...]
    hints: tuple[str, ...]
    beyond: tuple[str, ...] = ()
    scripted: tuple[str, ...] = ()  # of the hints those that hold for smooth steps too
    forwards: dict[str, Order] = field(default_factory=dict)
    callees: dict[str, set[str]] = field(default_factory=dict)
    unseen: tuple[str, ...] = ()  # of the hints those that tell of a forward that did not run


class _Stored(nn.Module):
    """An activation function kept in an attribute, made a module so that its runs are seen."""

    def __init__(self, function: Callable[..., Tensor], kind: str) -> None:
        super().__init__()
        self.function, self.kind = function, kind

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        return self.function(*args, **kwargs)


ROWS = 512  # of batches that are taken as an example


def module_of(kind: str) -> nn.Module:
    """An activation of a kind of `Site`; ReLU for one that PyTorch does not have, or not without arguments."""
    made = {name: cls for cls, name in _MODULES.items() if cls not in (nn.Threshold, Heaviside)}
    return made[kind]() if kind in made else _Stored(_KNOWN.get(kind, F.relu), kind)


def arguments(example: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The positional and keyword arguments that an example stands for; of batches those of their first rows."""
    leaves = tree_leaves(example)
    arrays = [x for x in leaves if hasattr(x, "__array__") and not isinstance(x, Tensor)]
    if arrays and len(arrays) == len(leaves):
        raise TypeError(
            f"expected tensors in example, got {type(arrays[0]).__name__}: give torch.as_tensor(x, dtype=torch.float32)"
        )
    if isinstance(example, Tensor):
        return (example,), {}
    if isinstance(example, tuple):
        return example, {}
    if isinstance(example, Mapping):
        return (), dict(example)
    if isinstance(example, Iterable) and not isinstance(example, str):
        inputs = _first_rows(example)
        return arguments(inputs) if isinstance(inputs, (Tensor, tuple, Mapping)) else ((inputs,), {})
    raise TypeError(
        "example must be a tensor, a tuple of arguments, a mapping of keyword arguments, or batches of these as a list "
        f"or a DataLoader, got {type(example).__name__}"
    )


def inputs_of(batch: Any) -> Any:
    """The inputs of a batch: the first of a pair, else the batch."""
    return batch[0] if isinstance(batch, (tuple, list)) and len(batch) == 2 else batch


def rows_of(inputs: Any) -> int | None:
    """How many rows inputs have: those of their first tensor; None without one."""
    return next((len(x) for x in tree_leaves(inputs) if isinstance(x, Tensor) and x.ndim), None)


def _first_rows(batches: Iterable[Any]) -> Any:
    """The inputs of the first batches, as one where they can be joined, up to ROWS rows."""
    taken: list[Any] = []
    for batch in batches:
        taken.append(inputs_of(batch))
        if sum(rows_of(inputs) or 0 for inputs in taken) >= ROWS:
            break
    if not taken:
        raise ValueError("expected an example of one batch or more, got none")
    try:
        return tree_map(lambda *parts: torch.cat(parts) if isinstance(parts[0], Tensor) else parts[0], *taken)
    except (RuntimeError, ValueError):  # they differ in shape
        return taken[0]


def check_fit(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Raises TypeError where a model does not take these arguments."""
    try:
        signature = inspect.signature(model.forward)
    except (TypeError, ValueError):  # of compiled code
        return
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        hint = "; a model that takes one mapping gets it in a tuple, example=(mapping,)" if kwargs else ""
        raise TypeError(
            f"expected an example with the arguments of {type(model).__name__}.forward{signature}: {error}{hint}"
        ) from None


def find(
    model: nn.Module, example: tuple[tuple[Any, ...], dict[str, Any]] | None, *, of_parameters: bool = False
) -> Found:
    """The sites of a model, seen in a copy that shares its parameters; with `of_parameters` also smooth steps that act
    on a parameter (`torch.nn.utils.parametrize`)."""
    compiled = [path for path, _ in model.named_modules() if path.rpartition(".")[2] == "_orig_mod"]
    if compiled:
        raise ValueError(
            f"expected a model before torch.compile, got a compiled one: convert its {compiled[0]} instead"
        )
    lazy = [name for name, value in model.named_parameters() if isinstance(value, UninitializedParameter)]
    if lazy:
        raise ValueError(f"expected parameters with values, got {lazy[0]} without: run the model on a batch first")
    if example is not None:
        check_fit(model, *example)
    with torch.random.fork_rng(devices=[]):
        trial = duplicate(model, parameters=True).eval()
        protos: dict[int, Site] = {}
        inner: set[int] = set()  # what a site is made of is its own affair; elsewhere it is a site itself
        steps: list[str] = []  # where sites are, each with a dot
        for path, module in list(trial.named_modules(remove_duplicate=False)):
            if path.startswith(tuple(steps)):
                inner.add(id(module))
                continue
            if id(module) in protos:
                site = protos[id(module)]
                protos[id(module)] = dataclasses.replace(site, aliases=(*site.aliases, path))
                steps.append(f"{path}.")
                continue
            if calls.is_of_a_parameter(path) and not (of_parameters and looks_smooth(module)):
                continue
            kind = _module_kind(module)
            if kind is not None:
                steps.append(f"{path}." if path else "")
                protos[id(module)] = Site(path, kind, module_type=own_class(module))
                continue
            for name, value in list(vars(module).items()):
                kind = None if name == "forward" else calls.stored_function_kind(value)
                if kind is not None:
                    stored = _Stored(value, kind)
                    delattr(module, name)
                    module.add_module(name, stored.eval())
                    overwrites = getattr(value, "__name__", "").endswith("_")
                    protos[id(stored)] = Site(f"{path}.{name}" if path else name, kind, in_place=overwrites)
        paths = {id(module): path for path, module in trial.named_modules()}
        paths |= {of: site.path for of, site in protos.items()}  # of one that a step before it holds too: its own
        record = calls.CallRecorder(paths, dict.fromkeys(inner, "") | {of: site.kind for of, site in protos.items()})
        if example is not None:
            _run(trial, record, *example)
            record.settle()
    scripted = tuple(_scripted(trial))
    unseen = tuple(_unseen(trial, inner | protos.keys(), record, example is not None))
    hints = (*scripted, *unseen, *_hints(trial, record))
    beyond = tuple(_beyond(trial, record))
    if example is None:
        return Found(tuple(protos.values()), hints, beyond, scripted, unseen=unseen)
    modules = {site.path: site for site in protos.values()}
    ran = []
    for (path, index), times in record.order.items():
        values = record.values.get((path, index), ())
        seen = {"first": any(one.first for one in values), "work": sum(one.work for one in values)}
        if index is None:
            site = modules.pop(path, None)
            if site is None:  # inside one
                continue
            stays = _stays(values, site.kind, trial.get_submodule(path)) if path else None
            in_place = site.in_place or path in record.in_place
            ran.append(dataclasses.replace(site, calls=times, in_place=in_place, stays=stays, **seen))
        else:
            kind = record.calls[path, index].kind
            ran.append(Site(path, kind, times, functional=True, index=index, stays=_stays(values, kind), **seen))
    never = [dataclasses.replace(site, calls=0) for site in modules.values()]
    return Found((*ran, *never), hints, beyond, scripted, record.forwards, record.callees, unseen)


def _stays(values: Iterable[Made], kind: str, module: nn.Module | None = None) -> Stays | None:
    """Why an activation is none between layers, from what became of its values in a run."""
    if isinstance(module, Heaviside) or (module is not None and looks_smooth(module)):
        return None  # it was put there by choice
    kind = kind if module is None else _known_kind(kind, module)
    return next((stays for one in values if (stays := one.stays(kind)) is not None), None)


def _known_kind(kind: str, module: nn.Module) -> str:
    """The kind; of a class that torch does not have, that of the known activation that it computes."""
    return kind if kind in _MODULES.values() else known_kind(module.forward) or kind


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


def _beyond(trial: nn.Module, record: calls.CallRecorder) -> Iterator[str]:
    """Activations that no module can stand in for: inside torch's fused layers, and what the run brought to light."""
    for path, module in trial.named_modules():
        if isinstance(module, calls.FUSED_MODULES):
            yield f"{_label(trial, path)}: activations inside a fused layer; write its formula with modules"
    for path, what, advice in record.beyond:
        yield f"{_label(trial, path)}: {what}; {advice}"


def _label(trial: nn.Module, path: str) -> str:
    return f"{path or 'the model'} ({type(trial.get_submodule(path)).__name__})"


def left_smooth(model: nn.Module) -> Iterator[str]:
    """Smooth steps that no transform reaches: called as functions, or kept where a model does not look for modules."""
    for path, module in model.named_modules():
        if isinstance(module, torch.jit.ScriptModule) or looks_smooth(module):
            continue
        for name, value in vars(module).items():
            held = value.values() if type(value) is dict else value if type(value) in (list, tuple, set) else ()
            parts = [part for one in held if isinstance(one, nn.Module) for part in one.modules()]
            if not name.startswith("_") and any(map(looks_smooth, parts)):
                yield f"{_label(model, path)}: smooth steps in its attribute {name}; keep them in an nn.ModuleList"
        if calls.names_one_of(module, _SMOOTH_FUNCTIONS):
            yield f"{_label(model, path)}: calls a smooth function of htaf.functional; make it a module (htaf.HTAF)"


def _scripted(trial: nn.Module) -> Iterator[str]:
    for path, module in trial.named_modules():
        if isinstance(module, torch.jit.ScriptModule) and (
            "." not in path or not isinstance(trial.get_submodule(path.rpartition(".")[0]), torch.jit.ScriptModule)
        ):
            yield f"{_label(trial, path)}: scripted, so its activations cannot be seen; convert before scripting"


def _unseen(trial: nn.Module, known_modules: set[int], record: calls.CallRecorder, ran: bool) -> Iterator[str]:
    """Forwards that did not run and name activation functions."""
    for path, module in trial.named_modules():
        if isinstance(module, torch.jit.ScriptModule):
            continue
        seen = id(module) in known_modules or path in record.forwards or "_htaf_calls" in module.__dict__
        if not seen and calls.probably_calls(module):
            reason = "never ran in the example" if ran else "pass example= to convert functional calls"
            yield f"{_label(trial, path)}: {reason}; its forward names activation functions"


def _hints(trial: nn.Module, record: calls.CallRecorder) -> Iterator[str]:
    """What ran and may be an activation."""
    known = {path for path, *_ in record.beyond}
    for path, functions in record.functions.items():
        if path not in known:
            yield f"{_label(trial, path)}: runs the autograd Function {', '.join(functions)}, which is left as it is"
    alike: dict[tuple[type, str], list[str]] = {}  # one line for all blocks of a kind
    for path, operators in record.doubtful.items():
        alike.setdefault((type(trial.get_submodule(path)), ", ".join(operators)), []).append(path)
    for (_, operators), among in alike.items():
        more = f" and {len(among) - 1} more of its class" if len(among) > 1 else ""
        yield f"{_label(trial, among[0])}{more}: also computes {operators}, left as it is"


def _run(trial: nn.Module, record: calls.CallRecorder, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    fused = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)  # it computes relu or gelu itself, without asking `activation`
    record.watch(trial, (args, kwargs))
    try:
        # compiled functions run as they are written, where their calls are seen
        with torch.compiler.set_stance("force_eager"), torch.no_grad(), calls.Operators(record), record:
            record.flow.end(trial(*args, **kwargs))
    finally:
        torch.backends.mha.set_fastpath_enabled(fused)


def _module_kind(module: nn.Module) -> str | None:
    if isinstance(module, torch.jit.ScriptModule):  # cannot be exchanged
        return None
    if isinstance(module, SmoothStep) and not lacking(module, own_class(module)):
        return module.kind
    for base in type(module).__mro__:
        if base in _MODULES:
            return _MODULES[base]
    stateless = not any(True for _ in (*module.parameters(), *module.buffers()))
    if not stateless or type(module).__module__.startswith("torch.nn.modules"):
        return None
    trial = duplicate(module)
    if not trial._modules:
        return type(module).__name__.lower() if calls.acts_elementwise(trial.forward) else None
    inner = [child for child in trial.modules() if child is not trial and _module_kind(child) is not None]
    kind = known_kind(trial.forward) if inner else None  # written out around an activation of its own
    return None if any(known_kind(child) == kind for child in inner) else kind  # which is the site where it is all
