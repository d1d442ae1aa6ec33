"""The operators of PyTorch that a packed model may call: all compute on their arguments and touch nothing else."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node

from htaf.kernels import operators as _registered  # noqa: F401  torch.ops.htaf
from htaf.packed.program import PackedError

_NAMES = """
abs.default adaptive_avg_pool1d.default adaptive_avg_pool2d.default _adaptive_avg_pool2d.default add.Scalar add.Tensor
addcmul.default addmm.default amax.default amin.default avg_pool1d.default avg_pool2d.default
batch_norm.default bitwise_and.Tensor bitwise_or.Tensor bitwise_xor.Tensor bitwise_not.default
bmm.default cat.default ceil.default clamp.default clamp_max.default clamp_min.default constant_pad_nd.default
conv1d.default conv1d.padding conv2d.default conv2d.padding convolution.default cos.default div.Scalar div.Tensor
elu.default eq.Scalar eq.Tensor erf.default exp.default expand.default floor.default ge.Scalar ge.Tensor gelu.default
glu.default group_norm.default gt.Scalar gt.Tensor hardsigmoid.default hardswish.default hardtanh.default
heaviside.default instance_norm.default layer_norm.default le.Scalar le.Tensor leaky_relu.default linear.default
log.default log_softmax.int logical_and.default logical_not.default logical_or.default lt.Scalar lt.Tensor
matmul.default max_pool1d.default max_pool2d.default maximum.default mean.default mean.dim minimum.default mish.default
mm.default mul.Scalar mul.Tensor native_group_norm.default native_layer_norm.default ne.Scalar ne.Tensor neg.default
permute.default pixel_shuffle.default pow.Tensor_Scalar prelu.default reciprocal.default reflection_pad2d.default
relu.default relu6.default repeat.default replication_pad2d.default reshape.default roll.default round.default
rsqrt.default rsub.Scalar rsub.Tensor scaled_dot_product_attention.default select.int selu.default sigmoid.default
sign.default silu.default sin.default slice.Tensor softmax.int softplus.default split.Tensor split_with_sizes.default
sqrt.default squeeze.default squeeze.dim squeeze.dims stack.default sub.Scalar sub.Tensor sum.default sum.dim_IntList
t.default tanh.default to.dtype _to_copy.default transpose.int unbind.int unflatten.int unsqueeze.default
upsample_bilinear2d.vec upsample_nearest2d.vec var.correction view.default where.ScalarSelf where.ScalarOther
where.Scalar where.self _softmax.default _log_softmax.default
"""
_SAME = {"view.default": "reshape.default"}  # values may lie otherwise here, which a view forbids
_DTYPES = {str(d).removeprefix("torch."): d for d in (torch.float32, torch.bool, torch.uint8, torch.int64, torch.int32)}
_IGNORED = {"device", "layout", "pin_memory", "non_blocking", "memory_format"}


def _overload(namespace: Any, name: str) -> Callable[..., Any] | None:
    packet, _, overload = name.partition(".")
    return getattr(getattr(namespace, packet, None), overload, None)


def _item(values: Any, index: int) -> Tensor:
    return values[index]


ALLOWED: dict[str, Callable[..., Any]] = {"getitem": _item}
for _name in _NAMES.split():
    if (_function := _overload(torch.ops.aten, _name)) is not None:
        ALLOWED[_name] = _function
ALLOWED["htaf.heaviside.default"] = torch.ops.htaf.heaviside.default
if (_function := _overload(torch.ops.htaf, "spikes.default")) is not None:
    ALLOWED["htaf.spikes.default"] = _function


def name_of(node: Node) -> str | None:
    """The name under which a node's operator is allowed, or None."""
    if node.target is operator.getitem:
        return "getitem"
    name = str(node.target).removeprefix("aten.")
    name = _SAME.get(name, name)
    return name if name in ALLOWED else None


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


Resolve = Callable[[list[Any], tuple[int, ...]], Any]


def decode(written: Any, tensors: dict[str, Tensor]) -> Any:
    """The argument that `encode` wrote, if no value stands in it; else a `Pending` over the values of a run.

    Raises:
        PackedError: it is written otherwise, or names a tensor that is not there.
    """
    if isinstance(written, list):
        items = [decode(item, tensors) for item in written]
        return Pending(items, _from_list) if any(isinstance(i, Pending) for i in items) else items
    if written is None or isinstance(written, (bool, int, float, str)):
        return written
    if isinstance(written, dict) and len(written) == 1:
        ((key, content),) = written.items()
        if key == "v" and _is_index(content):
            return Pending(content, _from_value)
        if key == "t" and isinstance(content, str) and content in tensors:
            return tensors[content]
        if key == "d" and isinstance(content, str) and content in _DTYPES:
            return _DTYPES[content]
        if key == "f" and content in ("inf", "-inf", "nan"):
            return float(content)
        if key == "s" and isinstance(content, list) and len(content) == 3 and all(map(_is_index, content)):
            if content[1] > 0:
                return Pending(tuple(content), _from_size)
    raise PackedError(f"expected an argument of an operator, got {written!r:.80}")


class Pending:
    """An argument that depends on the values of a run."""

    __slots__ = ("content", "how")

    def __init__(self, content: Any, how: Callable[[Any, list[Any], int], Any]) -> None:
        self.content, self.how = content, how

    def get(self, values: list[Any], batch: int) -> Any:
        return self.how(self.content, values, batch)


def _from_value(index: int, values: list[Any], batch: int) -> Any:
    return values[index]


def _from_size(terms: tuple[int, int, int], values: list[Any], batch: int) -> int:
    times, over, plus = terms
    return batch * times // over + plus


def _from_list(items: list[Any], values: list[Any], batch: int) -> list[Any]:
    return [item.get(values, batch) if isinstance(item, Pending) else item for item in items]


def _is_index(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**31
