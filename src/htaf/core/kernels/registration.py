"""A kernel as a torch operator: fake kernel, autograd, vmap, and the choice of the implementation."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Iterable
from functools import cache, reduce
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch._functorch.utils import enable_single_level_autograd_function
from torch.autograd import forward_ad

from htaf.core.kernels import native

LIBRARY = torch.library.Library("htaf", "DEF")


@cache
def implementation(operator: str, kind: str) -> ModuleType:
    """`reference`, `cpu` or `triton` of the folder of an operator."""
    return importlib.import_module(f"htaf.core.kernels.{operator}.{kind}")


@cache
def has(operator: str, kind: str) -> bool:
    """Whether the folder of an operator holds that implementation; only `reference` must be there."""
    return importlib.util.find_spec(f"htaf.core.kernels.{operator}.{kind}") is not None


@cache
def has_triton() -> bool:
    """Whether CUDA tensors get Triton's kernels."""
    return importlib.util.find_spec("triton") is not None


def choose(operator: str, x: Tensor, *parameters: float | Tensor) -> ModuleType:
    """The implementation that runs for x: compiled kernels, Triton's, or the reference for what they do not take."""
    device = x.device.type
    kind = "cpu" if device == "cpu" and native.available() else "triton" if device == "cuda" and has_triton() else None
    if kind is not None and has(operator, kind):
        fast = implementation(operator, kind)
        if fast.supports(x, *parameters):
            return fast
    return implementation(operator, "reference")


class Operator:
    """A torch operator and its derivatives.

    `backward(needed, grads, *inputs)` gives the gradients of the inputs. `forward(tangents, *inputs)` gives the
    tangents of the results; it may be left out where a value depends on none but its own one of each input. `formula`
    is the same in terms of PyTorch's own operators.
    """

    def __init__(
        self,
        schema: str,
        run: Callable[..., Any],
        fake: Callable[..., Any],
        vmap: Callable[[Callable[..., Any]], Callable[..., Any]],
        backward: Callable[..., Any] | None = None,
        forward: Callable[..., Any] | None = None,
        formula: Callable[..., Any] | None = None,
    ) -> None:
        LIBRARY.define(schema, tags=(torch.Tag.pt2_compliant_tag,))
        name = schema[: schema.index("(")]
        packet, _, overload = name.partition(".")
        self.op = getattr(getattr(torch.ops.htaf, packet), overload or "default")
        self.run, self.backward, self.forward = run, backward, forward or self.forward_by_backward
        self.formula = formula
        LIBRARY.impl(name, run, "CompositeExplicitAutograd")
        torch.library.register_fake(f"htaf::{name}", fake, lib=LIBRARY)
        torch.library.register_vmap(f"htaf::{name}", vmap(self.op), lib=LIBRARY)
        if backward is not None:
            # register_autograd knows neither forward mode, whose tangents it would drop, nor torch.func
            LIBRARY.impl(name, self.record, "Autograd", with_keyset=True)

    def __call__(self, *inputs: Any) -> Any:
        if torch.compiler.is_compiling():
            # torch's table of decompositions would serve ONNX too, but with it no model compiles where CI is set
            if self.formula is not None and torch.onnx.is_in_onnx_export():
                return self.formula(*inputs)
            return self.op(*inputs)
        if is_plain(inputs):  # the dispatcher has nothing to add, and costs as much as a small kernel
            if self.backward is not None and torch.is_grad_enabled() and _any_requires_grad(inputs):
                return _Eager.apply(self, *inputs)
            return self.run(*inputs)
        if self.formula is not None and torch.jit.is_tracing():  # pyright: ignore[reportPrivateImportUsage]
            return self.formula(*inputs)  # a TorchScript file, and the older export to ONNX
        return self.op(*inputs)

    def record(self, keys: Any, *inputs: Any) -> Any:
        """What the dispatcher calls for autograd."""
        if not (transformed() or (torch.is_grad_enabled() and _any_requires_grad(inputs))):
            return _below_autograd(self, keys, *inputs)
        with enable_single_level_autograd_function():  # of the transforms of torch.func: each comes here by itself
            return _Recorded.apply(self, keys, *inputs)  # pyright: ignore[reportAttributeAccessIssue]

    def save(self, ctx: Any, inputs: tuple[Any, ...]) -> None:
        ctx.save_for_backward(*(value for value in inputs if isinstance(value, Tensor)))
        ctx.others = [None if isinstance(value, Tensor) else value for value in inputs]

    def differentiate(self, ctx: Any, *grads: Tensor | None) -> Any:
        inputs = _inputs(ctx, ctx.saved_tensors)
        if all(grad is None for grad in grads):
            return (None,) * len(inputs)
        needed = ctx.needs_input_grad[-len(inputs) :]
        return self.backward(needed, grads, *inputs)  # pyright: ignore[reportOptionalCall]

    def forward_by_backward(self, tangents: tuple[Tensor | None, ...], *inputs: Any) -> Tensor:
        """A value depends on one value of each input alone, so a tangent goes the way that a gradient comes."""
        parts = []
        for i, tangent in enumerate(tangents):
            if tangent is not None:
                needed = tuple(j == i for j in range(len(inputs)))
                parts.append(self.backward(needed, (tangent,), *inputs)[i])  # pyright: ignore[reportOptionalCall]
        return reduce(torch.add, parts)


def _inputs(ctx: Any, saved: Iterable[Tensor]) -> list[Any]:
    """The inputs of an operator, of which `Operator.save` kept the tensors."""
    tensors = iter(saved)
    return [next(tensors) if value is None else value for value in ctx.others]


class _Eager(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, operator: Operator, *inputs: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx.operator = operator
        operator.save(ctx, inputs)
        return operator.run(*inputs)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return None, *ctx.operator.differentiate(ctx, *grads)


def _below_autograd(operator: Operator, keys: Any, *inputs: Any) -> Any:
    with torch._C._AutoDispatchBelowAutograd():
        return operator.op.redispatch(keys & torch._C._after_autograd_keyset, *inputs)


class _Recorded(torch.autograd.function._SingleLevelFunction):
    """PyTorch runs `forward` and `jvp` with both modes turned off, which the transforms around this one need."""

    @staticmethod
    def forward(operator: Operator, keys: Any, *inputs: Any) -> Any:
        with torch.enable_grad(), forward_ad._set_fwd_grad_enabled(True):
            return _below_autograd(operator, keys, *inputs)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.operator = inputs[0]
        ctx.operator.save(ctx, inputs[2:])
        ctx.save_for_forward(*(value for value in inputs if isinstance(value, Tensor)))
        ctx.set_materialize_grads(False)  # what has no tangent need not be differentiated

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return None, None, *ctx.operator.differentiate(ctx, *grads)

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor | None) -> Any:
        with forward_ad._set_fwd_grad_enabled(True):
            saved = (forward_ad.unpack_dual(tensor, level=0).primal for tensor in ctx.saved_tensors)
            return ctx.operator.forward(tangents[2:], *_inputs(ctx, saved))


# Whether a transform of torch.func runs, and how many dispatch modes (fake tensors, tracing) are active: should PyTorch
# drop these questions, yes and one, which are always right.
_under_transforms: Callable[[], bool] = getattr(torch._C, "_are_functorch_transforms_active", lambda: True)
_dispatch_modes: Callable[[], int] = getattr(torch._C, "_len_torch_dispatch_stack", lambda: 1)
_ORDINARY = (Tensor, torch.nn.Parameter)
# gradients with `is_grads_batched`: plain tensors by type, without memory of their own
_several_at_once: Callable[[Tensor], bool] = getattr(
    getattr(torch._C, "_functorch", None), "is_legacy_batchedtensor", lambda _: False
)


def _forward_level() -> int:
    """-1 outside torch.autograd.forward_ad.dual_level."""
    return getattr(forward_ad, "_current_level", 0)


def transformed() -> bool:
    """Whether torch.func or forward mode is at work, for which a function needs more than a gradient."""
    return _under_transforms() or _forward_level() >= 0


def _is_ordinary(value: Tensor) -> bool:
    """Whether its values lie in memory as they are: no subclass, sparse tensor, lazy negation or lazy zeros."""
    if type(value) not in _ORDINARY or value.layout is not torch.strided:
        return False
    return not (value.is_neg() or value._is_zerotensor() or value.is_nested or _several_at_once(value))


def is_plain(inputs: tuple[Any, ...]) -> bool:
    """Whether these are ordinary tensors in eager mode, with nobody watching the operators."""
    traced = torch.jit.is_tracing()  # pyright: ignore[reportPrivateImportUsage]
    if traced or _dispatch_modes() or transformed():
        return False
    return all(_is_ordinary(value) for value in inputs if isinstance(value, Tensor))


def _any_requires_grad(inputs: tuple[Any, ...]) -> bool:
    return any(value.requires_grad for value in inputs if isinstance(value, Tensor))


def like(position: int) -> Callable[..., Tensor]:
    """The fake kernel of an operator whose result is like the input at that position."""
    return lambda *inputs: torch.empty_like(inputs[position])


def _batch_first(x: Tensor, dim: int | None, size: int) -> Tensor:
    return x.expand(size, *x.shape) if dim is None else x.movedim(dim, 0)


def elementwise(op: Callable[..., Any]) -> Callable[..., Any]:
    """The vmap rule of an operator whose tensors all have the shape of x, or its leading dimensions."""

    def rule(info: Any, in_dims: Any, *inputs: Any) -> Any:
        batched = [
            _batch_first(value, dim, info.batch_size) if isinstance(value, Tensor) else value
            for value, dim in zip(inputs, in_dims, strict=True)
        ]
        return op(*batched), 0

    return rule


def with_parameters(data: int) -> Callable[..., Any]:
    """The vmap rule of an operator of `data` tensors like x, then parameters that broadcast to x, then one flag."""

    def of(op: Callable[..., Any]) -> Callable[..., Any]:
        def rule(info: Any, in_dims: Any, *inputs: Any) -> Any:
            *tensors, flag = inputs
            tensors = [_batch_first(t, dim, info.batch_size) for t, dim in zip(tensors, in_dims, strict=False)]
            ndim, parameters = tensors[0].ndim, tensors[data:]
            aligned = [p.reshape(p.shape[0], *(1,) * (ndim - p.ndim), *p.shape[1:]) for p in parameters]
            found = op(*tensors[:data], *aligned, flag)
            if isinstance(found, Tensor):
                return found, 0
            sums = (s.reshape(p.shape) for s, p in zip(found[1:], parameters, strict=True))
            return (found[0], *sums), (0,) * len(found)

        return rule

    return of


def one_by_one(op: Callable[..., Any]) -> Callable[..., Any]:
    """The vmap rule of an operator of matrices: one after the other."""

    def rule(info: Any, in_dims: Any, *inputs: Any) -> Any:
        found = [
            op(*(v if dim is None else v.select(dim, i) for v, dim in zip(inputs, in_dims, strict=True)))
            for i in range(info.batch_size)
        ]
        return torch.stack(found), 0

    return rule


def over_time(op: Callable[..., Any]) -> Callable[..., Any]:
    """The vmap rule of an operator of one tensor [T, ...], whose first dimension is time."""

    def rule(info: Any, in_dims: Any, x: Tensor, *rest: Any) -> Any:
        return op(x.movedim(in_dims[0], 1), *rest), 1

    return rule
