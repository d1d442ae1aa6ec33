"""The operators of PyTorch that a packed model may call: all compute on their arguments and touch nothing else."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node

from htaf.core.kernels import operators as _registered  # noqa: F401  torch.ops.htaf
from htaf.program.packed.errors import PackedError

# Composite ones that run whole, as they are faster than their parts; what is not listed and not core is decomposed.
_WHOLE = """
adaptive_avg_pool2d.default adaptive_avg_pool3d.default adaptive_max_pool1d.default adaptive_max_pool2d.default
adaptive_max_pool3d.default addcmul.default baddbmm.default batch_norm.default celu.default
clamp_max.default clamp_min.default conv1d.default conv1d.padding conv2d.default conv2d.padding conv3d.default
conv3d.padding conv_transpose1d.default conv_transpose2d.input conv_transpose3d.input glu.default group_norm.default
hardshrink.default hardsigmoid.default hardswish.default heaviside.default instance_norm.default layer_norm.default
lerp.Scalar lerp.Tensor linalg_vector_norm.default linear.default log_sigmoid.default log_softmax.int logit.default
masked_fill.Scalar matmul.default max_pool1d.default max_pool2d.default max_pool3d.default median.dim mish.default
pad.default pixel_shuffle.default pixel_unshuffle.default prelu.default relu6.default reshape.default rms_norm.default
roll.default rsub.Scalar rsub.Tensor scaled_dot_product_attention.default selu.default silu.default softmax.int
softplus.default softshrink.default split.Tensor square.default squeeze.default stack.default sum.default t.default
transpose.int unbind.int unfold.default upsample_bicubic2d.vec upsample_linear1d.vec
upsample_nearest1d.vec var_mean.correction where.Scalar where.ScalarOther where.ScalarSelf _adaptive_avg_pool2d.default
_adaptive_avg_pool3d.default _cdist_forward.default _log_softmax.default _native_batch_norm_legit_no_training.default
_softmax.default _to_copy.default
"""
DTYPES = (torch.float32, torch.float64, torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
_DTYPES = {str(d).removeprefix("torch."): d for d in DTYPES}
INPUTS = {name: dtype for name, dtype in _DTYPES.items() if dtype != torch.float64}  # of inputs, by name
_IGNORED = {"device", "layout", "pin_memory", "non_blocking", "memory_format"}


# of the core set: what gives memory as it was found, depends on how values lie, or is a part of training
_NOT = ("empty", "as_strided", "sym_", "_")
_TYPES = {"Tensor", "int", "SymInt", "float", "bool", "number", "Scalar", "str", "ScalarType"}
_ELSEWHERE = {"Device", "Layout", "MemoryFormat"}  # of arguments that say where a value lies: never given
_DEPENDS = {
    torch.Tag.nondeterministic_seeded,
    torch.Tag.data_dependent_output,
    torch.Tag.dynamic_output_shape,
}


_OURS: dict[str, Callable[..., Any]] = {"getitem": operator.getitem}
for _name in ("heaviside", "spikes"):
    if (_packet := getattr(torch.ops.htaf, _name, None)) is not None:
        _OURS[f"htaf.{_name}.default"] = _packet.default
_KEPT = {*_WHOLE.split(), "index.Tensor"}  # with a mask its size depends on the data; on sizes alone that is refused


@lru_cache(maxsize=4096)
def allowed(name: str) -> Callable[..., Any] | None:
    """The operator of this name, if a packed model may call it; else None.

    Operators of ATen's core set (`torch.Tag.core`), and composite ones of a list: pure functions of their arguments,
    neither random nor of a size that depends on the data.
    """
    if name in _OURS:
        return _OURS[name]
    if not re.fullmatch(r"[a-z_0-9]+\.[A-Za-z_0-9]+", name, re.ASCII):
        return None
    packet, _, overload = name.partition(".")
    found = getattr(getattr(torch.ops.aten, packet, None), overload, None)
    if not isinstance(found, torch._ops.OpOverload) or found.namespace != "aten":
        return None
    return found if name in _KEPT or _is_pure_core(name, found) else None


def _is_pure_core(name: str, function: torch._ops.OpOverload) -> bool:
    schema, tags = function._schema, set(function.tags)
    if torch.Tag.core not in tags or tags & _DEPENDS or schema.is_mutable:
        return False
    if name.startswith(_NOT) or "backward" in name:
        return False
    types = {part for a in schema.arguments for part in re.findall(r"[A-Za-z]+", str(a.real_type))}
    results = {str(r.type) for r in schema.returns}
    return types <= _TYPES | _ELSEWHERE | {"Optional", "List"} and results <= {"Tensor", "List[Tensor]"}


def check_arguments(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Check what PyTorch does not: it takes any integer for a dtype, and crashes.

    Raises:
        PackedError: another dtype than one of PyTorch's, or an argument that says on which device or in which layout a
            value is to lie; of an item of a list, anything but a list and an integer.
    """
    if not isinstance(function, torch._ops.OpOverload):
        if kwargs or len(args) != 2 or not isinstance(args[0], (list, tuple)) or type(args[1]) is not int:
            raise PackedError("expected a list of values and an integer")
        return
    given = {**dict(zip((a.name for a in function._schema.arguments), args, strict=False)), **kwargs}
    for one in function._schema.arguments:
        value, kind = given.get(one.name), str(one.real_type)
        if value is not None and (one.name == "pin_memory" or any(word in kind for word in _ELSEWHERE)):
            raise PackedError(f"expected no argument {one.name}, got one")
        if value is not None and "ScalarType" in kind and not isinstance(value, torch.dtype):
            raise PackedError(f"expected a dtype as the argument {one.name}, got {value!r:.40}")


def name_of(node: Node) -> str | None:
    """The name under which a node's operator is allowed, or None."""
    if node.target is operator.getitem:
        return "getitem"
    if not isinstance(node.target, torch._ops.OpOverload):
        return None
    name = str(node.target).removeprefix("aten.")
    return name if allowed(name) is not None else None


def encode(argument: Any, value_of: Callable[[Node], dict[str, Any]]) -> Any:
    """An argument as JSON: values, tensors and sizes as `value_of` writes their nodes.

    Raises:
        PackedError: an argument that is none of these.
    """
    if isinstance(argument, Node):
        return value_of(argument)
    if isinstance(argument, (list, tuple)):
        return [encode(item, value_of) for item in argument]
    if isinstance(argument, float) and not math.isfinite(argument):
        return {"f": str(argument)}
    if argument is None or isinstance(argument, (bool, int, float, str)):
        return argument
    if isinstance(argument, torch.dtype) and str(argument).removeprefix("torch.") in _DTYPES:
        return {"d": str(argument).removeprefix("torch.")}
    raise PackedError(f"expected tensors, numbers and lists as arguments of an operator, got {argument!r:.80}")


def encode_keywords(node: Node, value_of: Callable[[Node], dict[str, Any]]) -> dict[str, Any]:
    """The keyword arguments of a node that say what is computed, not where."""
    return {k: encode(v, value_of) for k, v in node.kwargs.items() if k not in _IGNORED}


def makes(function: Callable[..., Any]) -> bool:
    """Whether an operator takes no tensor, so that where and what it makes is PyTorch's default unless it is told."""
    schema = getattr(function, "_schema", None)
    return schema is not None and not any("Tensor" in str(a.type) for a in schema.arguments)


def decode(written: Any, tensors: Mapping[str, Tensor]) -> Any:
    """The argument that `encode` wrote, if no value stands in it; else a `Pending` over the values of a run.

    Raises:
        PackedError: it is written otherwise, or names a tensor that is not there.
    """
    if isinstance(written, list):
        items = [decode(item, tensors) for item in written]
        if not any(isinstance(i, Pending) for i in items):
            return items
        return Pending(lambda values, batch: [i.get(values, batch) if isinstance(i, Pending) else i for i in items])
    if written is None or isinstance(written, (bool, int, float, str)):
        return written
    if isinstance(written, dict) and len(written) == 1:
        ((key, content),) = written.items()
        if key == "v" and _is_index(content):
            return Pending(lambda values, batch: values[content])
        if key == "t" and isinstance(content, str) and content in tensors:
            return tensors[content]
        if key == "d" and isinstance(content, str) and content in _DTYPES:
            return _DTYPES[content]
        if key == "f" and content in ("inf", "-inf", "nan"):
            return float(content)
        if key == "s" and isinstance(content, list) and _is_size(content):
            times, over, plus = content
            return Pending(lambda values, batch: batch * times // over + plus)
    raise PackedError(f"expected an argument of an operator, got {written!r:.80}")


class Pending:
    """An argument that depends on the values of a run: `get(values, batch)`."""

    __slots__ = ("get",)

    def __init__(self, get: Callable[[Sequence[Any], int], Any]) -> None:
        self.get = get


def _is_size(terms: list[Any]) -> bool:
    return len(terms) == 3 and all(map(_is_index, terms)) and terms[1] > 0


def _is_index(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**31
