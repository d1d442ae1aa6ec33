"""A kernel as a torch operator: fake kernel, autograd, vmap, and the choice of the implementation."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from functools import cache
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from htaf.kernels import native

LIBRARY = torch.library.Library("htaf", "DEF")


@cache
def implementation(operator: str, kind: str) -> ModuleType:
    """`reference`, `cpu` or `triton` of the folder of an operator."""
    return importlib.import_module(f"htaf.kernels.{operator}.{kind}")


@cache
def has_triton() -> bool:
    """Whether CUDA tensors get Triton's kernels."""
    return importlib.util.find_spec("triton") is not None


def choose(operator: str, x: Tensor, *parameters: float | Tensor) -> ModuleType:
    """The implementation that runs for x: compiled kernels, Triton's, or the reference for what they do not take."""
    device = x.device.type
    kind = "cpu" if device == "cpu" and native.available() else "triton" if device == "cuda" and has_triton() else None
    if kind is not None:
        fast = implementation(operator, kind)
        if fast.supports(x, *parameters):
            return fast
    return implementation(operator, "reference")


class Operator:
    """A torch operator and its derivative: `backward(needed, grads, *inputs)` gives the gradients of the inputs."""

    def __init__(
        self,
        schema: str,
        run: Callable[..., Any],
        fake: Callable[..., Any],
        vmap: Callable[[Callable[..., Any]], Callable[..., Any]],
        backward: Callable[..., Any] | None = None,
    ) -> None:
        LIBRARY.define(schema, tags=(torch.Tag.pt2_compliant_tag,))
        name = schema[: schema.index("(")]
        packet, _, overload = name.partition(".")
        self.op = getattr(getattr(torch.ops.htaf, packet), overload or "default")
        self.run, self.backward = run, backward
        LIBRARY.impl(name, run, "CompositeExplicitAutograd")
        torch.library.register_fake(f"htaf::{name}", fake, lib=LIBRARY)
        torch.library.register_vmap(f"htaf::{name}", vmap(self.op), lib=LIBRARY)
        if backward is not None:
            torch.library.register_autograd(f"htaf::{name}", self.differentiate, setup_context=self.save, lib=LIBRARY)

    def __call__(self, *inputs: Any) -> Any:
        if torch.compiler.is_compiling():
            return self.op(*inputs)
        if _plain(inputs):  # the dispatcher has nothing to add, and costs as much as a small kernel
            recorded = torch.is_grad_enabled() and _any_requires_grad(inputs)
            if self.backward is not None and (recorded or _forward_level() >= 0):
                return _Eager.apply(self, *inputs)
            return self.run(*inputs)
        if self.backward is not None and _under_transforms():
            return _Transformable.apply(self, *inputs)
        return self.op(*inputs)

    def save(self, ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.save_for_backward(*(value for value in inputs if isinstance(value, Tensor)))
        ctx.others = [None if isinstance(value, Tensor) else value for value in inputs]

    def differentiate(self, ctx: Any, *grads: Tensor) -> Any:
        tensors = iter(ctx.saved_tensors)
        inputs = [next(tensors) if value is None else value for value in ctx.others]
        needed = ctx.needs_input_grad[-len(inputs) :]
        return self.backward(needed, grads, *inputs)  # pyright: ignore[reportOptionalCall]


class _Eager(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, operator: Operator, *inputs: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx.operator = operator
        operator.save(ctx, inputs, None)
        if _forward_level() >= 0:
            ctx.inputs = inputs
        return operator.run(*inputs)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return None, *ctx.operator.differentiate(ctx, *grads)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        """A value depends on one value of x alone, so the tangent goes the way that a gradient comes."""
        _, of_x, *others = tangents
        if of_x is None or any(t is not None for t in others):
            raise NotImplementedError("forward-mode derivatives are there with respect to x only, and only the first")
        needed = tuple(i == 0 for i in range(len(ctx.inputs)))
        return ctx.operator.backward(needed, (of_x,), *ctx.inputs)[0]


class _Transformable(torch.autograd.Function):
    """The form that torch.func asks for: with setup_context."""

    generate_vmap_rule = True

    @staticmethod
    def forward(operator: Operator, *inputs: Any) -> Any:
        return operator.op(*inputs)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.operator = inputs[0]
        ctx.operator.save(ctx, inputs[1:], output)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return None, *ctx.operator.differentiate(ctx, *grads)


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
    return getattr(torch.autograd.forward_ad, "_current_level", 0)


def _is_ordinary(value: Tensor) -> bool:
    """Whether its values lie in memory as they are: no subclass, sparse tensor, lazy negation or lazy zeros."""
    if type(value) not in _ORDINARY or value.layout is not torch.strided:
        return False
    return not (value.is_neg() or value._is_zerotensor() or value.is_nested or _several_at_once(value))


def _plain(inputs: tuple[Any, ...]) -> bool:
    """Whether these are ordinary tensors in eager mode, with nobody watching the operators."""
    traced = torch.jit.is_tracing()  # pyright: ignore[reportPrivateImportUsage]
    if traced or _dispatch_modes() or _under_transforms():
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
