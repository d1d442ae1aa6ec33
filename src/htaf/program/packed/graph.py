"""The graph of a hardened model, exported: functional, constants folded, with what does nothing taken out."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.export.graph_signature import InputKind
from torch.fx import Graph, Node
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols
from torch.fx.node import map_arg
from torch.utils import _pytree as pytree

from htaf._ground.console import progress as shown_progress
from htaf.program.packed import operators
from htaf.program.packed.errors import PackedError
from htaf.program.packed.nodes import Constants, aten, read_affine, same, shape_of
from htaf.transform.convert.exported import check_hardened, export_program
from htaf.transform.convert.functional_sites import duplicate
from htaf.transform.grid import settled

_NOTHING = (
    aten.clone.default, aten.detach.default, aten.alias.default, aten.contiguous.default, aten.lift_fresh_copy.default,
)  # fmt: skip
_LEVELS = torch.ops.htaf.levels.default
_RENAMED = (aten._unsafe_view.default, aten.rrelu.default, _LEVELS)
_DROPPED = ("_assert", "sym_constrain", "sym_assert")


@dataclass(frozen=True)
class Traced:
    """graph: of call_function nodes; constants: nodes whose values are known; inputs: placeholders of the example."""

    graph: Graph
    constants: Constants
    inputs: tuple[Node, ...]
    outputs: tuple[Node | None, ...]
    out_spec: pytree.TreeSpec
    module: torch.fx.GraphModule
    batch: Any


def arguments_of(example: Any) -> tuple[Tensor, ...]:
    """The example as positional arguments."""
    found = tuple(example) if isinstance(example, (tuple, list)) else (example,)
    for tensor in found:
        if not isinstance(tensor, Tensor):
            raise PackedError(f"expected the example to be a tensor or a tuple of tensors, got {type(tensor).__name__}")
        if tensor.device.type != "cpu":
            raise PackedError(f"expected an example on the CPU, got one on {tensor.device}")
        if tensor.dtype not in operators.INPUTS.values():
            raise PackedError(f"expected an example in float32, integers or bools, got {tensor.dtype}")
        if tensor.ndim == 0 or tensor.shape[0] == 0:
            raise PackedError(f"expected an example with a batch, got shape {tuple(tensor.shape)}")
    if not found:
        raise PackedError("expected an example to run the model on, got an empty tuple")
    return found


def check_model(model: nn.Module) -> None:
    """Raises PackedError where the model is smooth, not on the CPU, not float32, or has NaN."""
    check_hardened(model, PackedError)
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if tensor.device.type != "cpu":
            raise PackedError(f"expected a model on the CPU, got {name} on {tensor.device}: pack model.cpu()")
        if tensor.is_floating_point() and tensor.dtype != torch.float32:
            raise PackedError(f"expected parameters in float32, got {name} in {tensor.dtype}: pack model.float()")
        if tensor.is_floating_point() and bool(tensor.isnan().any()):
            raise PackedError(f"expected a model without NaN, got NaN in {name}")


def trace(model: nn.Module, example: Any, *, progress: bool = False) -> Traced:
    """Export a model in eval mode, once for `pack` and `verify`, which take it in place of the model.

    Args:
        model, example, progress: as `pack` takes them.

    Raises:
        PackedError: a model that is smooth or has NaN, or that cannot be exported; the message is PyTorch's.
    """
    example = arguments_of(example)
    check_model(model)
    with shown_progress("exporting the network", None, shown=progress):
        return _traced(model, example)


def _traced(model: nn.Module, example: tuple[Tensor, ...]) -> Traced:
    model = duplicate(model, parameters=True, buffers=True).eval()
    exported = export_program(settled(model), example, PackedError, stays=_stays)
    if exported.graph_signature.buffers_to_mutate:
        names = ", ".join(exported.graph_signature.buffers_to_mutate.values())
        raise PackedError(f"expected a model without state that changes, got one that writes to {names}")
    if exported.graph_signature.user_inputs_to_mutate:
        raise PackedError("expected a model that leaves its inputs as they are, got one that writes to them")
    graph, constants, inputs = exported.graph, {}, []
    for spec, node in zip(exported.graph_signature.input_specs, graph.find_nodes(op="placeholder"), strict=True):
        if spec.kind == InputKind.USER_INPUT:
            inputs.append(node)
            continue
        target = spec.target or ""
        value = exported.state_dict[target] if target in exported.state_dict else exported.constants[target]
        if isinstance(value, Tensor):
            constants[node] = value.detach()
    if len(inputs) != len(example):
        raise PackedError(f"expected {len(inputs)} inputs of the model, got an example of {len(example)}")
    module = exported.graph_module
    _simplify(graph, constants)
    _check_sizes(graph, constants)
    (result,) = graph.find_nodes(op="output")
    spec = exported.call_spec.out_spec
    assert spec is not None
    for n in result.args[0]:
        if n is not None and not (isinstance(n, Node) and isinstance(n.meta.get("val"), Tensor)):
            got = "a size" if isinstance(n, Node) else repr(n)
            raise PackedError(f"expected tensors as outputs, or None, got {got:.80}")
    return Traced(graph, constants, tuple(inputs), tuple(result.args[0]), spec, module, shape_of(inputs[0])[0])


def _stays(node: Node) -> bool:
    """Whether an operator is one that a packed model can run, or that `_simplify` takes out or writes otherwise."""
    if node.target is aten.batch_norm.default:
        return not node.args[5]  # in training it writes to its statistics
    return (
        operators.name_of(node) is not None
        or node.target in (*_NOTHING, *_RENAMED, aten.sym_size.int)
        or (node.target is aten.dropout.default and not node.args[2])
        or any(word in str(node.target) for word in _DROPPED)
        or (not node.all_input_nodes and _foldable(node, {}))
    )


def _check_sizes(graph: Graph, constants: Constants) -> None:
    """Raises PackedError where a size or a number depends on the data, as of a mask that is an index.

    Those that constants have, such as a list of indices from a buffer, are known.
    """
    known = set[Any]().union(*(free_unbacked_symbols(node.meta.get("val", 0)) for node in constants))
    for node in graph.nodes:
        if node.op == "call_function" and free_unbacked_symbols(node.meta.get("val")) - known:
            raise PackedError(
                f"expected sizes that do not depend on the data, got those of {node.target} ({node.name})"
            )


def _simplify(graph: Graph, constants: Constants) -> None:
    for node in list(graph.nodes):
        if node.op != "call_function":
            continue
        if node.target in (aten.view.default, aten._unsafe_view.default):
            node.target = aten.reshape.default  # a view forbids that values lie otherwise, as they do in channels_last
        if node.target is aten.rrelu.default:  # whose slope is random in training alone
            source, lower, upper = (*node.args[:3], *(0.125, 1 / 3)[max(0, len(node.args) - 1) :])
            node.target, node.args, node.kwargs = aten.leaky_relu.default, (source, (lower + upper) / 2), {}
        pools = (aten.adaptive_avg_pool2d.default, aten._adaptive_avg_pool2d.default)
        if node.target in pools and list(node.args[1:]) == [[1, 1]]:  # PyTorch takes the mean there too
            node.target, node.args, node.kwargs = aten.mean.dim, (node.args[0], [-1, -2], True), {}
        if any(word in str(node.target) for word in _DROPPED):
            graph.erase_node(node)
        elif (source := _unchanged(node, constants)) is not None:
            node.replace_all_uses_with(source)
            graph.erase_node(node)
        elif _foldable(node, constants):
            args, kwargs = map_arg((node.args, node.kwargs), constants.__getitem__)
            with torch.no_grad():
                value = node.target(*args, **kwargs)
            if isinstance(value, Tensor):
                constants[node] = value
        if node.target is aten._native_batch_norm_legit_no_training.default:  # which gives statistics too
            *given, momentum, eps = node.args
            node.target, node.args = aten.batch_norm.default, (*given, False, momentum, eps, False)
            node.meta["val"] = node.meta["val"][0]
        if node.target is _LEVELS and node not in constants:
            _spread(graph, node, constants)
    for node in reversed(list(graph.nodes)):
        if node.op == "call_function" and not node.users:
            graph.erase_node(node)


def _spread(graph: Graph, node: Node, constants: Constants) -> None:
    """A step with other thresholds than 0 as a step for each of them and the share of them that is reached.

    Affine maps that only this step takes come before each of these, so that all are computed with the layer in front.
    """
    source, thresholds, bipolar = node.args
    assert isinstance(source, Node)
    assert isinstance(thresholds, (list, tuple))
    chain, first = list[Node](), source
    while len(first.users) == 1 and (affine := read_affine(first, constants)) is not None:
        chain.append(first)
        first = affine.source

    def call(target: Any, *args: Any, **more: Any) -> Node:
        made = graph.call_function(target, args)
        made.meta = {**node.meta, **more}
        return made

    with graph.inserting_before(node):
        total: Node | None = None
        for threshold in thresholds:
            copied: dict[Node, Node] = {}
            for link in reversed(chain):
                copied[link] = graph.node_copy(link, lambda given, copied=copied: copied.get(given, given))
            distance = call(aten.sub.Tensor, copied.get(source, source), threshold)
            step = call(torch.ops.htaf.heaviside.default, distance, False)
            total = step if total is None else call(aten.add.Tensor, total, step, nested=True)
        assert total is not None
        if bipolar:
            total = call(aten.sub.Tensor, call(aten.mul.Tensor, total, 2.0), float(len(thresholds)))
        share = call(aten.div.Tensor, total, float(len(thresholds))) if len(thresholds) > 1 else total
    node.replace_all_uses_with(share)
    graph.erase_node(node)


def _foldable(node: Node, constants: Constants) -> bool:
    if node in constants or not isinstance(node.target, torch._ops.OpOverload):
        return False
    if torch.Tag.nondeterministic_seeded in node.target.tags:
        return False
    return all(source in constants for source in node.all_input_nodes)


def _unchanged(node: Node, constants: Constants) -> Node | None:
    """The node whose value this one only repeats."""
    source = node.args[0] if node.args else None
    if node.target is aten.copy.default:  # as of operators in place, which write over all that was there
        source = node.args[1]
    if not isinstance(source, Node) or source in constants:
        return None
    if node.target is operator.getitem:
        return source if source.target is aten.batch_norm.default else None
    if node.target in (*_NOTHING, aten.dropout.default):
        return source
    before, after = source.meta.get("val"), node.meta.get("val")
    if not isinstance(before, Tensor) or not isinstance(after, Tensor) or before.dtype != after.dtype:
        return None
    if node.target is aten._to_copy.default:
        return source
    views = (aten.reshape.default, aten.expand.default, aten.slice.Tensor, aten.copy.default)
    return source if node.target in views and same(shape_of(source), shape_of(node)) else None
