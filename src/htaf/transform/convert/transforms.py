"""Whole-model transforms: find the activations of a model, replace them, exchange smooth steps for exact ones.

Every transform returns a new model and says what it did: see `conversion`.
"""

from __future__ import annotations

import dataclasses
import logging
import sys
import warnings
import weakref
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.weak import WeakIdKeyDictionary

from htaf.core.activations import StraightThrough
from htaf.core.contract import ContractError, SmoothStep, lacking, looks_smooth
from htaf.transform.convert import functional_sites as functional
from htaf.transform.convert.finding import Found, Site, arguments, find, left_smooth
from htaf.transform.convert.functional_sites import Model
from htaf.transform.convert.modes import evaluating
from htaf.transform.convert.widths import fit_widths, trained_step

logger = logging.getLogger("htaf.transform.convert")


def _mark_for_saving(module: nn.Module) -> None:
    """See to it that `from_pretrained` does not read a folder of `save_pretrained` as the network of before.

    In the config of transformers the name of the activation becomes "htaf", which no class of theirs takes; `htaf` in
    it says what it was. Without such a name, as of diffusers, `save_pretrained` refuses.
    """
    config, known = getattr(module, "config", None), getattr(sys.modules.get("transformers.activations"), "ACT2FN", ())
    if getattr(config, "htaf", None) is not None:
        return
    found = {k: v for k, v in getattr(config, "__dict__", {}).items() if "act" in k and type(v) is str and v in known}
    for name in found:
        setattr(config, name, "htaf")
    if found:
        config.htaf = found  # pyright: ignore[reportOptionalMemberAccess]
    else:
        module.__dict__["save_pretrained"] = _refuse_to_save


def _refuse_to_save(*_: Any, **__: Any) -> None:
    raise ValueError(
        "expected a network with its own activations, got one with steps, which save_pretrained does not write: keep "
        "torch.save(net.state_dict(), file), and load it into htaf.replace of the same network"
    )


@dataclass(frozen=True)
class Conversion:
    """What a transform changed.

    Attributes:
        replaced: the sites that have new modules.
        left: the sites that are as they were; `Site.stays` says why one stayed that `where` did not choose.
        hints: where activations may act that the transform could not see.
        unseen: the hints about code that the transform did not look at, because no example ran it. `replace` also
            warns of them.
        beyond: activations that no module can replace, and what to do: inside torch's fused recurrent layers and
            GLU, in an autograd Function, in scripted code, in a hook.
        steps: new steps to which the example gave a threshold other than 0, and new steps that give one value for the
            whole example.
    """

    replaced: tuple[Site, ...]
    left: tuple[Site, ...]
    hints: tuple[str, ...] = ()
    beyond: tuple[str, ...] = ()
    unseen: tuple[str, ...] = ()
    steps: tuple[str, ...] = ()

    def __str__(self) -> str:
        everything = len(self.replaced) + len(self.left) + len(self.beyond)
        seen = " that were seen" if self.hints else ""
        lines = [f"replaced {len(self.replaced)} of {everything} activation sites{seen}"]
        lines += [f"  replaced {site}" for site in self.replaced]
        lines += [f"  left     {site}" for site in (*self.left, *self.beyond)]
        lines += [f"  note     {hint}" for hint in (*self.steps, *self.hints)]
        return "\n".join(lines)


Where = str | type | Callable[[Site], Any] | tuple[Any, ...] | list[Any]


def sites(model: nn.Module, example: Any) -> list[Site]:
    """List every place where an elementwise activation acts, in order of first run.

    A site is a module (all elementwise activations of torch.nn, those of htaf, and any childless module without
    parameters that calls an activation function, or compares, and maps every element by itself), an activation function
    kept in an attribute (`TransformerEncoderLayer.activation`), or one called inside a forward. In a formula that is
    written out, such as `x * x.sigmoid()`, each activation is a site, which `replace` leaves. `F.silu(x)`, or a module,
    is one call and one site.

    `Site.stays` says why `replace` leaves a site that is no activation between layers. It follows the values of the
    site through the run::

        output    they reach an output with no layer in between: convolution, product with weights, embedding, norm
        gate      a sigmoid, tanh or their like multiplies another value, and no layer reads it: squeeze and excite, the
                  gates of an LSTM. An activation without bounds, as SiLU in the gated MLP of a language model, is none
        scale     a softplus that multiplies another value: a time step, a standard deviation
        scores    they go into a softmax, or into a product of two computed matrices
        choice    they are only compared or sorted, as the objectness of boxes
        formula   x * sigmoid(x), GELU by tanh, any product of functions of one x, or a logarithm of an activation

    Softmax and functions of a parameter are no sites. Activations that cannot be replaced are none either, but
    `conversion` names them after `replace`: those inside torch's recurrent layers and GLU, in an autograd Function, in
    scripted or compiled code, in a hook, and a ReLU written with a mask or a bound, such as `torch.where(x > 0, x, 0)`,
    `x * (x > 0)` or `x.clamp(min=0)`. Its notes name other elementwise functions (`x.clamp(0, 1)`, `x.sin()`,
    `x.exp()`), which mostly are no activations.

    The example runs once, in eval mode without gradients, on a copy that shares the parameters. The model does not
    change. The fused path of torch's transformer layers is off during that run.

    Args:
        model: any module.
        example: a tensor, a tuple of positional arguments, or a mapping of keyword arguments.

    Returns:
        Sites; those that never ran come last, with calls = 0. A functional call that never ran cannot be listed.

    Raises:
        TypeError: `example` is something else.
        ValueError: the model is compiled already.

    Example:
        >>> [str(site) for site in sites(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1)), torch.zeros(2, 3))]
        ['1 (relu, 1 call)']
    """
    return list(find(model, arguments(example)).sites)


def replace(
    model: Model,
    factory: Callable[[], nn.Module] | None = None,
    *,
    where: Where | None = None,
    keep: Where | None = None,
    example: Any = None,
    levels: int | Mapping[str, int] = 1,
    share: bool = False,
) -> Model:
    """Return a new model with other activations: steps to be trained, or what `factory` makes.

    Without a factory the new modules are exact steps that train, `htaf.StraightThrough` with HTAF's own gradient. Each
    is as wide as its pre-activations on the example, at least 1. If these are never negative, as after another ReLU,
    the step rises near their median, because at 0 it would always give 1. Your training loop stays as it is. In a
    process group every process calls `replace`, and all use the numbers of the first process.

    `replace` leaves what is no activation between layers, and `conversion` says why: outputs, gates that multiply, time
    steps, scores, written-out formulas (see `sites`). `where` chooses other sites, these too. Everything that is chosen
    becomes a step, except what `keep` names. `keep="first"` leaves every activation that no other one comes before; the
    layer after it then reads real numbers.

    `factory` is called once for each site. A site that runs several times, or a module at several paths, stays one
    module. Functional calls are replaced if there is an `example`: the new modules become children (`relu_0`, ...) of
    the module that makes the calls, and the place in the code tells which child a call uses. So a line may run any
    number of times, for each level or each step of a sequence. In a loop over layers it is one site for each layer; the
    layer that ran last tells which. A call that did not run in the example raises a RuntimeError in eval mode; in
    training it is left, with a warning. Calls made outside that module's forward (a method called from elsewhere, a
    function that `torch.utils.checkpoint` runs again) are not replaced.

    Make the optimizer afterwards, because the parameters are new. A warning says if an optimizer of the old parameters
    takes a step while the new ones have the gradients.

    Results can be copied, pickled, trained and exported. `torch.compile(fullgraph=True)` takes them, functional sites
    too, except that `torch.relu_(x)` and its like raise there (`x.relu_()` does not).

    Args:
        model: any module; not changed.
        factory: makes the new module of a site, such as `HTAF` or `partial(HTAF, 1.0, 22.0)`; None: as above.
        where: which sites; None for those between layers, "*" for all. A module class (or a tuple of classes), a path
            or a glob over paths ("layer1.*", "*.act"; a functional call is "block.relu_0"), a predicate on `Site`, or a
            list of these, of which any may match. For kinds: `lambda site: site.kind == "relu"`. "first" is those that
            no other activation comes before in the example (`Site.first`).
        keep: which of these stay activations; given as for `where`.
        example: as for `sites`. It also finds callers that ignore what an in-place activation returns. Without a
            factory the widths come from it: give some hundred rows of the training part. Layers that wait for their
            first input (`nn.LazyLinear`) get their parameters from it.
        levels: of the steps, without a factory: 2 gives the values 0, 1 / 2 and 1. Or a mapping from paths or globs to
            them, {"layer1.*": 2}; all others have one.
        share: the new model holds the same parameter and buffer tensors, for evaluation while the first one trains.

    Returns:
        The new model, of the type of `model`. If the model is an activation itself, it is what `factory` made, whatever
        the annotation says. `conversion` says what was changed. A warning names modules whose forward calls activation
        functions and was not seen: there was no `example`, or the example does not run it.

    Raises:
        ValueError: no site matched `where`, `keep` or a path of `levels`; no example (only a factory with `where`
            needs none); both a factory and levels; or pre-activations of the example that are not finite.
        TypeError: `factory` made something that is no module, or `where` or `keep` cannot be read.

    Example:
        >>> net, x = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1), nn.Sigmoid()), torch.randn(9, 3)
        >>> model = replace(net, HTAF, example=x)
        >>> print(conversion(model))
        replaced 1 of 2 activation sites
          replaced 1 (relu, 1 call)
          left     3 (sigmoid, 1 call), stays: its value reaches an output, no layer in between
    """
    by_path = isinstance(levels, Mapping)
    if factory is not None and levels != 1:
        raise ValueError(f"levels= is for steps without a factory: give levels={levels} to what factory makes")
    if factory is not None and (isinstance(factory, nn.Module) or not callable(factory)):
        shown = type(factory).__name__
        raise TypeError(f"factory must be a function that makes a module, such as lambda: HTAF(2, 11), got a {shown}")
    if example is None and (factory is None or where is None):
        raise ValueError(
            "expected example=, some hundred rows of inputs, whose run tells outputs, gates and the width of every "
            'step; or a factory such as lambda: HTAF(2, 11) with where=, "*" for all modules; got neither'
        )
    if example is not None:
        example = arguments(example)
        model = _with_parameters(model, example)
    found = find(model, example)
    chosen, left = _parted(model, found, where, keep)
    if unknown := [path for path in levels if not any(_matches(path, site) for site in chosen)] if by_path else []:
        raise ValueError(f"expected levels= by paths of {', '.join(site.name for site in chosen)}, got {unknown[0]!r}")
    new: nn.Module = functional.duplicate(model, parameters=share, buffers=share)
    modules: dict[str, nn.Module] = dict(new.named_modules(remove_duplicate=False))
    made = [_placed(factory() if factory else trained_step(_levels_of(site, levels)), new) for site in chosen]
    calls: dict[str, dict[int, tuple[str, nn.Module]]] = {}
    for site, module in zip(chosen, made, strict=True):
        if site.functional:
            module.train(modules[site.path].training)
            calls.setdefault(site.path, {})[site.index] = site.kind, module
        else:
            new = put(new, modules, site, module)
    for path, stand_ins in calls.items():
        order = found.forwards[path]
        functional.divert(modules[path], path, order, stand_ins)
        for layer in modules.keys() & order.behind.values():
            modules[layer].__dict__.setdefault("_htaf_layer", layer)
    _settle(new, set(map(id, made)), modules, found.callees)
    fitted = [step for step in made if isinstance(step, StraightThrough)] if factory is None else []
    steps = fit_widths(new, fitted, example) if fitted and example is not None else ()
    if not share:
        _follow(model, new)
    if found.unseen:
        where_left = ", ".join(hint.partition(": ")[0] for hint in found.unseen[:3])
        more = f" and {len(found.unseen) - 3} more" if len(found.unseen) > 3 else ""
        text = "pass an example= that runs all of the model: activations may be left in"
        warnings.warn(f"{text} {where_left}{more}", stacklevel=2)
    for module in new.modules() if any(isinstance(step, SmoothStep) for step in made) else ():
        if hasattr(module, "save_pretrained"):  # of transformers and diffusers
            _mark_for_saving(module)
    replaced = tuple(dataclasses.replace(site, stays=None) for site in chosen)
    account = Conversion(replaced, left, found.hints, found.beyond, found.unseen, steps)
    return cast(Model, with_account(new, account))


def harden(model: Model, *, where: Where | None = None, share: bool = False) -> Model:
    """Return a new model in which every smooth step (`htaf.SmoothStep`: HTAF, ScaledSigmoid, ...) is the exact one.

    Args:
        model: not changed.
        where: which steps, given as for `replace`; None for all. The spike of a neuron is its "....spike".
        share: the new model holds the same parameter and buffer tensors.

    Returns:
        The new model, of the type of `model` and with the same state-dict keys. If the model is a smooth step itself,
        it is a `Heaviside`, whatever the annotation says. `conversion` says what was changed. It also names what may
        still be smooth: a function called in a forward, modules kept in a list, scripted code.

    Raises:
        ValueError: there is no smooth step, or none matched `where`; or a module has `hardened()` and is no smooth
            step: the message says what it lacks. TypeError: `where` cannot be read.

    Example:
        >>> harden(nn.Sequential(nn.Linear(3, 4), HTAF()))[1]
        Heaviside()
    """
    for path, module in model.named_modules():
        if wrong := lacking(module, functional.own_class(module)):
            raise ContractError(
                f"{path or 'the model'} ({type(module).__name__}) has hardened() but cannot be made exact, since it is "
                f"no htaf.SmoothStep: {wrong}"
            )
    found, beyond = find(model, None, of_parameters=True), tuple(left_smooth(model))
    smooth = [s for s in found.sites if s.module_type is not None and hasattr(s.module_type, "hardened")]
    chosen = [site for site in smooth if _matches(where, site)]
    if smooth and not chosen:
        text = f"expected a smooth step to harden in {type(model).__name__} where {where!r}, got none of these:"
        raise ValueError("\n  ".join([text, *map(str, smooth)]))
    if not chosen:
        kinds = ", ".join(sorted({site.kind for site in found.sites})) or "no activation module"
        text = f"expected a smooth step such as HTAF (a module with hardened()) in {type(model).__name__}, got {kinds}"
        text += ": call htaf.replace first, and train the model that it returns" if found.sites else ""
        raise ValueError("\n  ".join([text, *beyond, *found.scripted]))
    new: nn.Module = functional.duplicate(model, parameters=share, buffers=share)
    modules: dict[str, nn.Module] = dict(new.named_modules(remove_duplicate=False))
    for site in chosen:
        new = put(new, modules, site, _exact(modules[site.path], site.path))
    left = tuple(site for site in found.sites if site not in chosen)
    hints, unseen = _not_looked_at(model, found)
    account = Conversion(tuple(chosen), left, hints, (*found.beyond, *beyond), unseen)
    return cast(Model, with_account(new, account))


def _not_looked_at(model: nn.Module, found: Found) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The hints that hold for a hardened model, and of these what `replace` was not shown."""
    accounts = [account for module in model.modules() if (account := _account_of(module)) is not None]
    if not accounts:  # made by hand: what its forward calls may be meant to stay
        return (*found.scripted, *found.unseen), ()
    hints = [hint for account in accounts for hint in account.hints if hint not in found.scripted]
    return (*found.scripted, *hints), tuple(hint for account in accounts for hint in account.unseen)


def _exact(smooth: nn.Module, path: str) -> nn.Module:
    """What `hardened()` makes, once it is sure that it can take the place of the smooth step."""
    assert isinstance(smooth, SmoothStep)
    exact = smooth.hardened()
    label = f"{path or 'the model'}: expected {type(smooth).__name__}.hardened() to make"
    if not isinstance(exact, nn.Module) or any(map(looks_smooth, exact.modules())):
        raise ContractError(f"{label} an exact module, got {exact!r}")
    before, after = smooth.state_dict().keys(), exact.state_dict().keys()
    if before != after:
        raise ContractError(f"{label} the state-dict keys {sorted(before)}, got {sorted(after)}: Heaviside.of(self)")
    return exact


def conversion(model: nn.Module) -> Conversion:
    """What the last `replace` or `harden` did.

    Raises:
        ValueError: the model did not come from either.
    """
    account = _account_of(model)
    if account is None:
        raise ValueError(f"expected a model made by htaf.replace or htaf.harden, got a plain {type(model).__name__}")
    return account


def _account_of(model: nn.Module) -> Conversion | None:
    """What the last `replace` or `harden` did; None where the model came from neither."""
    return model.__dict__.get("_htaf_conversion")


def with_account(model: Model, account: Conversion) -> Model:
    model.__dict__["_htaf_conversion"] = account  # no tensor: it stays out of the state dict
    logger.info("%s", account)
    return model


# ---- choosing ----


def _matches(where: Where | None, site: Site) -> bool:
    if where is None:
        return True
    if isinstance(where, str):
        names = (site.name, site.path, *site.aliases)
        return (where == "first" and site.first) or any(name == where or fnmatchcase(name, where) for name in names)
    if isinstance(where, type):
        return site.module_type is not None and issubclass(site.module_type, where)
    if isinstance(where, (list, tuple)):
        return any(_matches(one, site) for one in where)
    if callable(where):
        return bool(where(site))
    raise TypeError(
        f"where must be a module class, a path or glob, a predicate on Site, or a list of these, got {where!r}"
    )


def _parted(
    model: nn.Module, found: Found, where: Where | None, keep: Where | None
) -> tuple[list[Site], tuple[Site, ...]]:
    """The sites that are to be replaced, and the others, of which those that `keep` chose say so."""
    candidates = [site for site in found.sites if (site.stays is None if where is None else _matches(where, site))]
    kept = {site: dataclasses.replace(site, stays="kept") for site in candidates if keep and _matches(keep, site)}
    chosen = [site for site in candidates if site not in kept]
    if not chosen or (keep and not kept):
        raise ValueError(_nothing(model, where, keep if candidates else None, found))
    return chosen, tuple(kept.get(site, site) for site in found.sites if site not in chosen)


def _levels_of(site: Site, levels: int | Mapping[str, int]) -> int:
    if not isinstance(levels, Mapping):
        return levels
    return next((count for where, count in levels.items() if _matches(where, site)), 1)


def _with_parameters(model: Model, example: tuple[tuple[Any, ...], dict[str, Any]]) -> Model:
    """The model; a copy that ran the example where layers wait for it to know their sizes."""
    if not any(isinstance(held, UninitializedParameter) for held in model.parameters()):
        return model
    model = functional.duplicate(model)
    with evaluating(model):
        model(*example[0], **example[1])
    return model


def _nothing(model: nn.Module, where: Where | None, keep: Where | None, found: Found) -> str:
    text = f"expected an activation to replace in {type(model).__name__}"
    if keep:
        text += f", and one that keep={keep!r} leaves as it is"
        text += " (which only an example= tells)" * (keep == "first" and not found.forwards)
    text += f" where {where!r}" if where is not None else ""
    if not found.sites:
        text += ", got none: it has no activation site"
    elif where is None:
        text += f" that acts between layers, got none of these {len(found.sites)} sites; choose some with where=:"
    else:
        text += f", got none of these {len(found.sites)} sites:"
    return "\n  ".join([text, *map(str, found.sites), *found.beyond, *found.hints])


# ---- placing ----


def _placed(module: object, model: nn.Module) -> nn.Module:
    """A new module on the device of a model that lies on one."""
    if not isinstance(module, nn.Module):
        raise TypeError(f"factory must make an nn.Module, got {type(module).__name__}")
    devices = {tensor.device for tensor in (*model.parameters(), *model.buffers())}
    return module.to(devices.pop()) if len(devices) == 1 else module


def put(model: nn.Module, modules: dict[str, nn.Module], site: Site, new: nn.Module) -> nn.Module:
    """Put a module at every path of a site; returns the model, which is the new module when it was the site itself."""
    old = modules.get(site.path)  # None: a function kept in an attribute
    if old is not None:
        new.train(old.training)
        functional.keep_hooks(new, old)
    if site.in_place:
        functional.overwrite_input(new)
    for path in (site.path, *site.aliases):
        if not path:
            return new
        above, _, name = path.rpartition(".")
        parent = modules[above]
        if old is None:
            delattr(parent, name)
            new.train(parent.training)
        parent._modules[name] = new
        modules[path] = new
    return model


def _settle(model: nn.Module, made: set[int], modules: dict[str, nn.Module], callees: dict[str, set[str]]) -> None:
    """Once every new module is in its place: shields, and torch's fused transformer paths, which ignore them."""
    for path, module in list(model.named_modules()):
        if "_htaf_calls" in module.__dict__:
            functional.shield(module, [modules[callee] for callee in callees.get(path, ()) if callee in modules])
        if isinstance(module, nn.TransformerDecoderLayer) and id(module._modules.get("activation")) in made:
            functional.derive(module)  # copying or reading a plain one puts F.relu over its activation
    layers: Iterable[nn.Module] = [m for m in model.modules() if isinstance(m, nn.TransformerEncoderLayer)]
    ours = {id(m) for m in layers if any(id(child) in made for child in m.modules())}
    for module in model.modules():
        if id(module) in ours:
            module.__dict__["activation_relu_or_gelu"] = 0
        elif isinstance(module, nn.TransformerEncoder) and any(id(layer) in ours for layer in module.layers):
            module.use_nested_tensor = False  # nested tensors know few of the operations a new activation needs


# ---- optimizers from before ----

# parameter -> itself and those that took its place, in order; one list for all of them
_LINES: WeakIdKeyDictionary = WeakIdKeyDictionary()
_watching = False


def _follow(old: nn.Module, new: nn.Module) -> None:
    """Remember which parameters took the place of which, so that an optimizer left behind can be told."""
    global _watching
    successors = dict(new.named_parameters())
    for name, parameter in old.named_parameters():
        if name in successors:
            line = _LINES[parameter] if parameter in _LINES else [weakref.ref(parameter)]
            line.append(weakref.ref(successors[name]))
            _LINES[parameter] = _LINES[successors[name]] = line
    if not _watching:
        register_optimizer_step_pre_hook(_tell_left_behind)
        _watching = True


def _tell_left_behind(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
    """Warn once of an optimizer whose parameters have no gradients while those that took their place have."""
    if torch.compiler.is_compiling() or "_htaf_told" in optimizer.__dict__:
        return
    held = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    idle = [p for p in held if p.grad is None and p.requires_grad and p in _LINES]
    if not idle or any(p.grad is not None and p in _LINES for p in held):  # the others are trained on purpose
        return
    own = set(map(id, held))
    if any(q.grad is not None and id(q) not in own for p in idle for q in _successors(p)):
        optimizer.__dict__["_htaf_told"] = True
        warnings.warn(
            f"this {type(optimizer).__name__} holds the parameters of a model from before htaf.replace, which returned "
            "a new model: that one has gradients and is not trained. Make the optimizer from its parameters()",
            stacklevel=4,
        )


def _successors(parameter: Tensor) -> list[Tensor]:
    line = [ref() for ref in _LINES[parameter]]
    at = next(i for i, one in enumerate(line) if one is parameter)
    return [one for one in line[at + 1 :] if one is not None]
