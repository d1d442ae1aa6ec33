"""The traced graph of a hardened model, and what its nodes are, for every form that a network is written in.

First the export: functional, constants folded, with what does nothing taken out. Then what a node is: affine maps of
every channel and the intervals in which a step after one gives 1, steps, poolings, what is rounded, layers with
constant weights.
"""

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
from htaf.core.kernels.layers import Geometry
from htaf.program.packed import operators
from htaf.program.packed.errors import PackedError
from htaf.program.packed.instructions import Form
from htaf.transform.convert.exported import check_hardened, export_program
from htaf.transform.convert.functional_sites import duplicate
from htaf.transform.grid import settled

aten = torch.ops.aten
Constants = dict[Node, Tensor]
Limits = tuple[float, float]
Pair = tuple[int, int]
CONVOLUTIONS = (aten.conv2d.default, aten.conv2d.padding)
PRODUCTS = (aten.linear.default, aten.matmul.default)
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


# ---- what a node is: affine maps of every channel, and the intervals in which a step after one gives 1 ----


@dataclass(frozen=True)
class Affine:
    """scale source + shift; float64 [channels] along dimension `axis` of source, or [] with axis None."""

    source: Node
    scale: Tensor
    shift: Tensor
    axis: int | None


def identity(node: Node, scale: float = 1.0) -> Affine:
    """The node itself, or some times it."""
    return Affine(node, torch.tensor(scale, dtype=torch.float64), torch.tensor(0.0, dtype=torch.float64), None)


def shape_of(node: Node) -> tuple[Any, ...]:
    """Sizes as the export found them: integers, and symbols for the batch."""
    value = node.meta.get("val")
    return tuple(map(_known, value.shape)) if isinstance(value, Tensor) else ()


def _known(size: Any) -> Any:
    """A size as an integer where its symbol stands for one, as of what a mask chooses for a layer of known inputs."""
    number = size.node.maybe_as_int() if isinstance(size, torch.SymInt) else None
    return size if number is None else number


def same(a: tuple[Any, ...], b: tuple[Any, ...]) -> bool:
    """Equal sizes; symbols are compared by what they are, without a guard."""
    return len(a) == len(b) and all(str(x) == str(y) for x, y in zip(a, b, strict=True))


def batch_norm(node: Node, constants: Constants) -> Affine | None:
    if node.target is not aten.batch_norm.default or node.args[5]:
        return None
    source, *parts = node.args[:5]
    eps = node.args[7]
    weight, bias, mean, var = (constants.get(p) if isinstance(p, Node) else None for p in parts)  # pyright: ignore
    if mean is None or var is None or not isinstance(source, Node) or not isinstance(eps, float):
        return None
    scale = (var.double() + eps).rsqrt()
    scale = scale if weight is None else scale * weight.double()
    shift = -mean.double() * scale
    return Affine(source, scale, shift if bias is None else shift + bias.double(), 1)


def read_affine(node: Node, constants: Constants) -> Affine | None:
    """The node as an affine map of one float value, with constants that vary along one dimension at most."""
    if node.op != "call_function" or node in constants:
        return None
    if (norm := batch_norm(node, constants)) is not None:
        return norm
    if node.target is aten._to_copy.default and _copied(node):
        return identity(node.args[0])  # pyright: ignore
    if node.target is aten.neg.default and isinstance(node.args[0], Node):
        return identity(node.args[0], -1.0)
    signs: dict[Any, int] = {
        aten.add.Tensor: 1, aten.add.Scalar: 1, aten.sub.Tensor: -1, aten.sub.Scalar: -1, aten.rsub.Scalar: -1,
        aten.rsub.Tensor: -1, aten.mul.Tensor: 0, aten.mul.Scalar: 0, aten.div.Tensor: 0, aten.div.Scalar: 0,
    }  # fmt: skip
    if node.target not in signs or len(node.args) != 2 or node.kwargs:
        return None
    left, right = node.args
    if node.target in (aten.rsub.Scalar, aten.rsub.Tensor):
        left, right = right, left
    source = left if _is_value(left, constants) else right
    other = right if source is left else left
    if not isinstance(source, Node) or not _is_value(source, constants):
        return None
    constant = _along_one(other, source, constants)
    if constant is None or not same(shape_of(node), shape_of(source)):
        return None
    value, axis = constant
    one, zero = torch.ones_like(value), torch.zeros_like(value)
    if "div" in str(node.target):
        return None if source is right else Affine(source, 1 / value, zero, axis)
    if signs[node.target] == 0:
        return Affine(source, value, zero, axis)
    sign = signs[node.target]
    if source is left:
        return Affine(source, one, sign * value, axis)
    return Affine(source, sign * one, value, axis)


def is_float(node: Node) -> bool:
    """Whether a value is float32, as all that is fused begins and ends; between, a model may compute in float64."""
    value = node.meta.get("val")
    return isinstance(value, Tensor) and value.dtype == torch.float32


def _copied(node: Node) -> bool:
    """Whether a float becomes one of another width."""
    dtypes = [n.meta["val"].dtype for n in (node, *node.all_input_nodes) if isinstance(n.meta.get("val"), Tensor)]
    return len(dtypes) == 2 and all(dtype in (torch.float32, torch.float64) for dtype in dtypes)


def compose(outer: Affine, inner: Affine) -> Affine | None:
    """outer after inner, where `outer.source` is the node of `inner`; None where they vary along other dimensions."""
    if outer.axis is not None and inner.axis is not None and outer.axis != inner.axis:
        return None
    axis = inner.axis if outer.axis is None else outer.axis
    scale, shift = outer.scale * inner.scale, outer.scale * inner.shift + outer.shift
    scale, shift = torch.broadcast_tensors(scale, shift)
    return Affine(inner.source, scale, shift, axis)


def interval(scale: Tensor, shift: Tensor, *, integer: bool) -> tuple[Tensor, Tensor]:
    """float32 ends [channels] between which scale x + shift >= 0 in exact arithmetic.

    With integer x the finite end lies halfway between the last integer outside and the first inside; a bound within
    1e-9 of an integer, which float64 cannot tell from it, counts as that integer.
    """
    bound = torch.where(scale == 0, 0.0, -shift / scale)
    always = shift >= 0
    if integer:
        near = bound.round()
        bound = torch.where((bound - near).abs() <= 1e-9 * near.abs().clamp(min=1), near, bound)
        at_least, at_most = (bound.ceil() - 0.5).float(), (bound.floor() + 0.5).float()
    else:
        at_least, at_most = _rounded(bound, up=True), _rounded(bound, up=False)
    infinity = torch.full_like(at_least, torch.inf)
    lower = torch.where(scale > 0, at_least, torch.where((scale < 0) | always, -infinity, infinity))
    upper = torch.where(scale < 0, at_most, torch.where((scale > 0) | always, infinity, -infinity))
    never = ~scale.isfinite() | shift.isnan() | torch.isneginf(shift)  # NaN is never >= 0
    certain = torch.isposinf(shift)
    lower = torch.where(never, infinity, torch.where(certain, -infinity, lower))
    upper = torch.where(never, -infinity, torch.where(certain, infinity, upper))
    return lower.contiguous(), upper.contiguous()


def _rounded(bound: Tensor, *, up: bool) -> Tensor:
    """The least float32 >= bound, or the greatest <= bound."""
    to = torch.full_like(bound, torch.inf if up else -torch.inf).float()
    found = bound.float()
    missed = found.double() < bound if up else found.double() > bound
    return torch.where(missed, torch.nextafter(found, to), found)


def _is_value(argument: Any, constants: Constants) -> bool:
    return isinstance(argument, Node) and argument not in constants and shape_of(argument) != ()


def _along_one(other: Any, source: Node, constants: Constants) -> tuple[Tensor, int | None] | None:
    """A constant as float64 [channels] and the dimension of source along which it lies."""
    if isinstance(other, (int, float)) and not isinstance(other, bool):
        return torch.tensor(float(other), dtype=torch.float64), None
    value = constants.get(other) if isinstance(other, Node) else None
    rank = len(shape_of(source))
    if value is None or value.ndim > rank or not (value.is_floating_point() or value.dtype == torch.int64):
        return None
    wide = [i for i, size in enumerate(value.shape) if size != 1]
    if len(wide) > 1:
        return None
    axis = wide[0] + rank - value.ndim if wide else None
    return value.detach().double().reshape(-1 if wide else ()), axis


# ---- steps, neurons, poolings ----


@dataclass(frozen=True)
class Step:
    """1 where source >= 0, else `low`; NaN is no such place."""

    source: Node
    low: float


def read_step(node: Node, constants: Constants) -> Step | None:
    """The node as a step of one float value; None if it is none."""
    if node.op != "call_function" or node in constants or str(node.target) != "htaf.heaviside.default":
        return None
    source, bipolar = node.args
    return Step(source, -1.0 if bipolar else 0.0) if isinstance(source, Node) else None


def maps_each(node: Node) -> bool:
    """Whether a node is a function of every entry of one value, with numbers for its other arguments."""
    tags = getattr(node.target, "tags", ())
    once = sum(isinstance(a, Node) for a in node.args) == len(node.all_input_nodes) == 1
    return torch.Tag.pointwise in tags and once and is_float(node) and is_float(node.all_input_nodes[0])


def is_spikes(node: Node) -> bool:
    return str(node.target) == "htaf.spikes.default"


def is_pool(node: Node) -> bool:
    """A maximum over windows of images without dilation, whose sizes are not rounded up."""
    if node.target is not aten.max_pool2d.default or len(shape_of(node)) != 4:
        return False
    dilation, ceil = [*node.args[4:], *[1, False][max(len(node.args) - 4, 0) :]]
    return pair(node.kwargs.get("dilation", dilation)) == (1, 1) and not node.kwargs.get("ceil_mode", ceil)


def pair(value: Any) -> Pair:
    """Two sizes, of which an operator may be given one."""
    first, *rest = value if isinstance(value, (list, tuple)) else [value]
    return int(first), int(rest[-1] if rest else first)


def pool_sizes(node: Node) -> tuple[Pair, Pair, Pair]:
    """Kernel, stride and padding of a maximum over windows."""

    def given(name: str, index: int, default: Any) -> Pair:
        return pair((node.args[index] if len(node.args) > index else node.kwargs.get(name)) or default)

    kernel = given("kernel_size", 1, None)
    return kernel, given("stride", 2, kernel), given("padding", 3, 0)


# ---- layers, and what is rounded before them ----


@dataclass(frozen=True)
class LayerSite:
    """A convolution or linear layer: weight float32 [outputs, channels / groups, height, width], bias [outputs]."""

    node: Node
    source: Node
    form: Form
    geometry: Geometry
    weight: Tensor
    bias: Tensor | None
    axis: int


def read_layer(node: Node, constants: Constants) -> LayerSite | None:
    """The node as a layer with constant weights."""
    if node.op != "call_function" or node in constants:
        return None
    if node.target in CONVOLUTIONS:
        return _convolution(node, constants)
    if node.target in PRODUCTS:
        return _product(node, constants)
    return None


def _convolution(node: Node, constants: Constants) -> LayerSite | None:
    names = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")
    defaults: dict[str, Any] = {"bias": None, "stride": [1], "padding": [0], "dilation": [1], "groups": 1}
    given: dict[str, Any] = defaults | dict[str, Any](zip(names, node.args, strict=False)) | node.kwargs
    source, weight = given["input"], constants.get(given["weight"])
    bias = constants.get(given["bias"]) if given["bias"] is not None else None
    if weight is None or source in constants or len(shape_of(source)) != 4 or weight.dtype != torch.float32:
        return None
    if given["bias"] is not None and bias is None:
        return None
    groups = given["groups"]
    kernel = (weight.shape[2], weight.shape[3])
    dilation, padding = pair(given["dilation"]), given["padding"]
    if isinstance(padding, str):
        reach = [d * (k - 1) for d, k in zip(dilation, kernel, strict=True)]
        if padding == "same" and any(r % 2 for r in reach):
            return None  # one pixel more on one side
        pads = (reach[0] // 2, reach[1] // 2) if padding == "same" else (0, 0)
    else:
        pads = pair(padding)
    sizes = (weight.shape[1] * groups, weight.shape[0])
    geometry = Geometry(*sizes, kernel, pair(given["stride"]), pads, dilation, groups)
    return LayerSite(node, source, "image", geometry, weight, bias, 1)


def _product(node: Node, constants: Constants) -> LayerSite | None:
    args = list(node.args)
    source, weight = args[0], constants.get(args[1]) if isinstance(args[1], Node) else None
    bias = constants.get(args[2]) if len(args) > 2 and isinstance(args[2], Node) else None
    if weight is None or weight.ndim != 2 or weight.dtype != torch.float32 or not isinstance(source, Node):
        return None
    if source in constants or len(shape_of(source)) < 2 or (len(args) > 2 and args[2] is not None and bias is None):
        return None
    if node.target is not aten.linear.default:
        weight = weight.t()
    if bias is not None and tuple(bias.shape) != (weight.shape[0],):
        return None
    geometry = Geometry(weight.shape[1], weight.shape[0])
    weight = weight.reshape(*weight.shape, 1, 1)
    return LayerSite(node, source, "row", geometry, weight, bias, len(shape_of(source)) - 1)


def on_powers(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Numbers of float32, finite, as integers times the greatest power of two a filter with which all are.

    Returns:
        float64 of the shape of weight and float64 [filters].
    """
    flat = weight.detach().flatten(1).double()
    mantissa, exponent = flat.frexp()
    digits = (mantissa * 2**24).long()  # float32 has so many
    lowest = (digits & -digits).double().frexp().exponent - 25 + exponent  # of the last one that is set
    lowest = torch.where(flat == 0, 10_000, lowest).amin(1)
    step = torch.ldexp(torch.ones(len(flat), dtype=torch.float64), torch.where(lowest == 10_000, 0, lowest))
    return (flat / step[:, None]).reshape(weight.shape), step


def before_rounding(node: Node, constants: Constants) -> tuple[Node, float, Limits | None, list[Node]]:
    """What a node rounds, to integers or to float32.

    Returns:
        The value before, by how much it is multiplied, where it is clipped then, and the nodes between.
    """
    source = node.args[0]
    factor, limits, between = 1.0, None, list[Node]()
    while True:
        assert isinstance(source, Node)
        affine = read_affine(source, constants)
        if affine is not None and affine.scale.ndim == 0 and float(affine.shift) == 0:
            between.append(source)
            factor, source = factor * float(affine.scale), affine.source
        elif source.target is aten.clamp.default and limits is None and len(source.args) == 3 and not source.kwargs:
            if None in source.args:
                return source, factor, limits, between
            between.append(source)
            limits = (float(source.args[1]) * factor, float(source.args[2]) * factor)  # pyright: ignore
            source = source.args[0]
        else:
            return source, factor, limits, between
