"""SpikingJelly's neurons as htaf's, in place: layers, norms and pooling between them stay as they are.

    IFNode                           IF          v_threshold: threshold, both fire where v >= threshold
    LIFNode, ParametricLIFNode       LIF         tau, decay_input; of the latter tau = 1 / sigmoid(w)
    v_reset = 0, None                reset = "hard", "soft"

Both see [T, N, ...] (step_mode "m"). Theirs keep the potential between calls: `functional.reset_net` before each.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from htaf.core.activations import Heaviside
from htaf.transform.convert.functional_sites import Model, duplicate
from htaf.transform.spiking.neurons import IF, LIF, Neuron


def from_spikingjelly(model: Model, spike: Callable[[], nn.Module] = Heaviside) -> Model:
    """A copy with `htaf.IF` and `htaf.LIF` in the place of SpikingJelly's neurons.

    Args:
        model: in multi-step mode (`functional.set_step_mode(model, "m")`); not changed.
        spike: makes one module a neuron; Heaviside, or a step that trains such as HTAF.

    Raises:
        ValueError: no neuron of SpikingJelly, one in single-step mode or at several places, or one that htaf has not:
            another class, also a subclass of yours, or a v_reset that is neither 0 nor None.
    """
    found = {
        path: module
        for path, module in model.named_modules(remove_duplicate=False)
        if hasattr(module, "v_threshold") and any(map(_is_theirs, type(module).__mro__))
    }
    first = {id(module): path for path, module in reversed(found.items())}
    for path, module in found.items():
        if first[id(module)] != path:
            raise ValueError(f"{path}: expected its own neuron, got that of {first[id(module)]}, which has a potential")
    made = {path: _ours(path, module, spike) for path, module in found.items()}
    if not made:
        raise ValueError(f"expected neurons of SpikingJelly in {type(model).__name__}, got none")
    if "" in made:
        return made[""].train(model.training)  # pyright: ignore[reportReturnType]
    new = duplicate(model)
    for path, neuron in made.items():
        new.set_submodule(path, neuron.train(model.training))
    return new


def _is_theirs(kind: type) -> bool:
    return kind.__module__.startswith("spikingjelly.")


def _ours(path: str, node: Any, spike: Callable[[], nn.Module]) -> Neuron:
    kind, label = type(node).__name__, path or "the model"
    if kind not in ("IFNode", "LIFNode", "ParametricLIFNode") or not _is_theirs(type(node)):
        raise ValueError(f"{label}: expected an IFNode, LIFNode or ParametricLIFNode, got {kind}")
    if node.step_mode != "m":
        raise ValueError(
            f'{label}: expected step_mode "m", got "{node.step_mode}": functional.set_step_mode(model, "m")'
        )
    if node.v_reset not in (None, 0):
        raise ValueError(f"{label}: expected v_reset=0 or None, got {node.v_reset}: htaf's neurons rest at 0")
    reset = "soft" if node.v_reset is None else "hard"
    shared = {"threshold": float(node.v_threshold), "reset": reset, "detach_reset": node.detach_reset}
    if kind == "IFNode":
        return IF(spike(), **shared)
    tau = node.tau if kind == "LIFNode" else 1 / node.w.sigmoid().item()
    return LIF(spike(), tau=tau, decay_input=node.decay_input, **shared)
