"""Where the features of a backbone come from: the activation that acts last, read off the graph of gradients."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.fx
from torch import Tensor, nn

from htaf.transform import convert
from htaf.transform.convert.functional_sites import duplicate
from htaf.transform.convert.modes import evaluating, hooked

# Gradient nodes of operations that move, pool or average values without changing their nature.
_MOVING = (
    "View", "UnsafeView", "ReshapeAlias", "Alias", "Clone", "AsStrided", "Expand", "Permute", "Transpose", "T",
    "Squeeze", "Unsqueeze", "Select", "Slice", "Split", "Unbind", "Narrow", "Index", "Cat", "Stack", "ToCopy",
    "NativeDropout", "Contiguous",
)  # fmt: skip
_POOLING = (
    "Mean", "Sum", "Div", "AdaptiveAvgPool2D", "MkldnnAdaptiveAvgPool2D", "AvgPool2D", "AvgPool3D", "AdaptiveMaxPool2D",
    "MaxPool2DWithIndices",
)  # fmt: skip
_ACTIVATIONS = (
    "Relu", "Gelu", "Silu", "Mish", "Elu", "LeakyRelu", "PreluKernel", "Hardswish", "Hardsigmoid", "Hardtanh",
    "Sigmoid", "Tanh", "Softplus", "Threshold", "ClampMin", "Clamp", "LogSigmoid", "Hardshrink", "Softshrink",
)  # fmt: skip
_NORMALISING = ("NativeLayerNorm", "FusedRmsNorm", "NativeGroupNorm")


class Origin(NamedTuple):
    """What a backbone's output comes from.

    activations: paths of the modules whose activation acts last, behind nothing but pooling and reshaping; "" for a
    function called in a forward. normalised: the output is a layer norm's, with nothing behind it that pools.
    """

    activations: tuple[str, ...]
    normalised: bool


def origin(model: nn.Module, example: Tensor) -> Origin:
    """What the output of a model comes from; the model runs once, in eval mode, and stays as it is."""
    makers: dict[Any, str] = {}

    def remember(path: str):
        def hook(module: nn.Module, inputs: Any, output: Any) -> None:
            if isinstance(output, Tensor) and output.grad_fn is not None:
                makers.setdefault(output.grad_fn, path)  # modules inside end before those around them

        return hook

    handles = [module.register_forward_hook(remember(path)) for path, module in model.named_modules() if path]
    with evaluating(model), hooked(handles), torch.enable_grad():
        output = model(example.detach().clone().requires_grad_())
    if not isinstance(output, Tensor) or output.ndim != 2:
        shown = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
        raise ValueError(
            f"expected a backbone with features [batch, features], got {shown} from {type(model).__name__}"
        )
    found: list[str] = []
    normalised = False
    waiting, seen = [(output.grad_fn, False)], set()
    while waiting:
        node, pooled = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        kind = type(node).__name__.split("Backward")[0]
        if kind in _ACTIVATIONS:
            found.append(makers.get(node, ""))
        elif kind in _NORMALISING:
            normalised |= not pooled
        elif kind in _MOVING or kind in _POOLING:
            waiting += [(parent, pooled or kind in _POOLING) for parent, _ in node.next_functions]
    return Origin(tuple(found), normalised)


def without_final_activation(model: nn.Module, example: Tensor) -> nn.Module:
    """The model without the activation that acts last before pooling; the model itself where there is none.

    Raises:
        ValueError: it cannot be told apart from the others, such as one module that runs in several places of code that
            torch.fx cannot trace.
    """
    found = origin(model, example).activations
    if not found:
        return model
    sites = convert.sites(model, example)
    modules = {path: site for site in sites if not site.functional for path in (site.path, *site.aliases)}
    chosen = [modules[path] for path in dict.fromkeys(found) if path in modules]
    if len(chosen) < len(set(found)):  # a function called in a forward: the last such call
        called = [site for site in sites if site.functional and (site.path in found or "" in found)]
        if len(set(found)) > 1 or not called:
            raise ValueError(_unclear(model))
        return _checked(convert.replace(model, nn.Identity, where=called[-1].name, example=example), example)
    if len(chosen) == 1 and (chosen[0].calls or 0) > 1:
        return _checked(_without_last_call(model, (chosen[0].path, *chosen[0].aliases)), example)
    if all(site.calls == 1 for site in chosen):
        names = [site.name for site in chosen]
        return _checked(convert.replace(model, nn.Identity, where=names, example=example), example)
    raise ValueError(_unclear(model))


def _without_last_call(model: nn.Module, paths: tuple[str, ...]) -> nn.Module:
    """The model as a traced graph, without the last call of a module that runs several times."""
    try:
        other = torch.fx.symbolic_trace(duplicate(model, parameters=True, buffers=True).train(not model.training))
        graph = torch.fx.symbolic_trace(model)
    except Exception as error:  # tracing raises nearly everything
        raise ValueError(f"{_unclear(model)} ({error})") from None
    if graph.code != other.code:  # a graph keeps the mode that it was traced in: eval() would not reach its dropout
        raise ValueError(_unclear(model))
    calls = [node for node in graph.graph.nodes if node.op == "call_module" and node.target in paths]
    if not calls:
        raise ValueError(_unclear(model))
    calls[-1].replace_all_uses_with(calls[-1].args[0])
    graph.graph.erase_node(calls[-1])
    graph.recompile()
    return graph


def _checked(model: nn.Module, example: Tensor) -> nn.Module:
    if origin(model, example).activations:
        raise ValueError(_unclear(model))
    return model


def _unclear(model: nn.Module) -> str:
    return (
        f"the activation behind the features of {type(model).__name__} cannot be taken away by itself: give a backbone "
        "whose features do not end in an activation"
    )
