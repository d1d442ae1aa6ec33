"""The kernels as torch operators `torch.ops.htaf.*`.

    htaf(x, alpha0, alpha1, bipolar)          and its overload .tensor, with tensor parameters of one shape
    htaf_backward(grad, x, ...)               the gradient of x, again with .tensor
    htaf_backward_all(grad, x, ...)           those of x and of the tensor parameters
    scaled_sigmoid, scaled_sigmoid_backward, scaled_sigmoid_backward_all    likewise with beta
    heaviside(x, bipolar)
    levels(x, thresholds, bipolar)            the share of the thresholds that x reaches
    straight_through(x, slope, parameters, bipolar), straight_through_backward(grad, x, ...)
    surrogate(x, slope, bipolar)              the step whose derivative is the tensor `slope`
    pack_bits(x)
    lookup(x, entries)                        truth tables of k inputs, multilinear between bits
    spikes(x, leak, gain, threshold, soft)    exact neurons over time from rest, as exported programs hold them
    transpose_bits(bits, size), count_common_bits(a, b)

Autocast needs nothing: an operator keeps the dtype of x whatever that of its parameters.
"""

from __future__ import annotations

from functools import reduce
from typing import Any

import torch
from torch import Tensor

from htaf.core.kernels import decomposed, native
from htaf.core.kernels.formulas import compute_dtype
from htaf.core.kernels.neuron.reference import Neuron, backward, forward
from htaf.core.kernels.registration import (
    Operator,
    choose,
    elementwise,
    implementation,
    is_plain,
    like,
    one_by_one,
    over_time,
    with_parameters,
)

Gradients = tuple[Tensor | None, ...]


def _weighted(factors: tuple[Tensor | None, ...], derivatives: tuple[Tensor, ...], dtype: torch.dtype) -> Tensor:
    """The sum of factor times derivative, over the first ones that have a factor; None is zero."""
    pairs = zip(factors, derivatives, strict=False)
    return reduce(torch.add, (factor.to(dtype) * derivative for factor, derivative in pairs if factor is not None))


class Smooth:
    """The operators of a smooth activation: for float parameters (`floats`) and for tensors (`tensors`)."""

    def __init__(self, name: str, *parameters: str) -> None:
        self.name, self.count = name, len(parameters)
        self.formulas = implementation(name, "reference")
        floats = ", ".join(f"float {p}" for p in parameters)
        tensors = ", ".join(f"Tensor {p}" for p in parameters)
        all_gradients = ", ".join(["Tensor"] * (1 + self.count))

        self.backward = Operator(
            f"{name}_backward(Tensor grad, Tensor x, {floats}, bool bipolar) -> Tensor",
            self.run_backward, like(1), elementwise, self.second,
        )  # fmt: skip
        self.backward_tensors = Operator(
            f"{name}_backward.tensor(Tensor grad, Tensor x, {tensors}, bool bipolar) -> Tensor",
            self.run_backward, like(1), with_parameters(2), self.second,
            lambda tangents, *inputs: self.second_forward(tangents, *inputs)[0],
        )  # fmt: skip
        self.backward_all = Operator(
            f"{name}_backward_all(Tensor grad, Tensor x, {tensors}, bool bipolar) -> ({all_gradients})",
            self.run_backward_all, lambda grad, *rest: tuple(torch.empty_like(t) for t in rest[:-1]),
            with_parameters(2), self.second, self.second_forward,
        )  # fmt: skip
        self.floats = Operator(
            f"{name}(Tensor x, {floats}, bool bipolar) -> Tensor", self.run, like(0), elementwise, self.first
        )
        self.tensors = Operator(
            f"{name}.tensor(Tensor x, {tensors}, bool bipolar) -> Tensor",
            self.run, like(0), with_parameters(1), self.first_of_tensors, self.first_forward,
        )  # fmt: skip

    def run(self, x: Tensor, *rest: Any) -> Tensor:
        *parameters, bipolar = rest
        return choose(self.name, x, *parameters).forward(x, *parameters, bipolar=bipolar)

    def run_backward(self, grad: Tensor, x: Tensor, *rest: Any) -> Tensor:
        *parameters, bipolar = rest
        return choose(self.name, x, *parameters).backward(grad, x, *parameters, bipolar=bipolar)

    def run_backward_all(self, grad: Tensor, x: Tensor, *rest: Any) -> tuple[Tensor, ...]:
        *parameters, bipolar = rest
        return choose(self.name, x, *parameters).backward_all(grad, x, *parameters, bipolar=bipolar)

    def first(self, needed: tuple[bool, ...], grads: tuple[Tensor, ...], x: Tensor, *rest: Any) -> Gradients:
        return self.backward(grads[0], x, *rest), *(None for _ in rest)

    def first_of_tensors(self, needed: tuple[bool, ...], grads: tuple[Tensor, ...], x: Tensor, *rest: Any) -> Gradients:
        if any(needed[1:]):
            return *self.backward_all(grads[0], x, *rest), None
        return self.backward_tensors(grads[0], x, *rest), *(None for _ in rest)

    def first_forward(self, tangents: tuple[Tensor | None, ...], x: Tensor, *rest: Any) -> Tensor:
        """The tangent of f: that of x times f's derivative by x, and so on for the parameters."""
        *parameters, bipolar = rest
        if all(tangent is None for tangent in tangents[1:]):
            return self.backward_tensors(tangents[0], x, *rest)
        wide = x.to(compute_dtype(x))
        each = (p.expand(x.shape) for p in parameters)  # so that nothing is summed
        derivatives = self.backward_all(torch.ones_like(wide), wide, *each, bipolar)
        return _weighted(tangents, derivatives, wide.dtype).to(x.dtype)

    def second_forward(self, tangents: tuple[Tensor | None, ...], grad: Tensor, x: Tensor, *rest: Any) -> Any:
        """The tangents of the results r_i = s grad f_i of `second`."""
        *parameters, bipolar = rest
        wide = compute_dtype(x)
        scale, at = 2 if bipolar else 1, (x.to(wide), *parameters)
        of_grad, *of_point, _ = tangents
        found = []
        for first, row, value in zip(
            self.formulas.gradients(*at), self.formulas.hessian(*at), (x, *parameters), strict=True
        ):
            tangent = _weighted((of_grad, *of_point), (first, *(grad.to(wide) * second for second in row)), wide)
            found.append((scale * tangent).sum_to_size(value.shape).to(value.dtype))
        return tuple(found)

    def second(
        self, needed: tuple[bool, ...], grads: tuple[Tensor | None, ...], grad: Tensor, x: Tensor, *rest: Any
    ) -> Gradients:
        """With f's derivatives f_i, the results are r_i = s grad f_i (summed for a parameter): the gradients of
        sum_i grads_i r_i with respect to grad, x and the parameters, from f's second derivatives f_ij.
        """
        *parameters, bipolar = rest
        wide = compute_dtype(x)
        at = (x.to(wide), *parameters)
        grad_wide = (2 if bipolar else 1) * grad.to(wide)

        def weighted(derivatives: tuple[Tensor, ...]) -> Tensor:
            return _weighted(grads, derivatives, wide)

        found: list[Tensor | None] = [None] * (len(parameters) + 3)
        if needed[0]:
            found[0] = ((2 if bipolar else 1) * weighted(self.formulas.gradients(*at))).to(grad.dtype)
        if any(needed[1:]):
            rows = [grad_wide * weighted(row) if need else None for row, need in
                    zip(self.formulas.hessian(*at), needed[1:], strict=False)]  # fmt: skip
            for i, (row, value) in enumerate(zip(rows, (x, *parameters), strict=True)):
                if row is not None:
                    found[1 + i] = row.sum_to_size(value.shape).to(value.dtype)
        return tuple(found)


htaf = Smooth("htaf", "alpha0", "alpha1")
scaled_sigmoid = Smooth("scaled_sigmoid", "beta")
SMOOTH = (htaf, scaled_sigmoid)


def _step(x: Tensor, bipolar: bool) -> Tensor:
    return choose("heaviside", x).forward(x, bipolar=bipolar)


def _step_backward(needed: tuple[bool, ...], grads: tuple[Tensor, ...], x: Tensor, bipolar: bool) -> Gradients:
    return torch.where(torch.isnan(x), grads[0], 0), None  # so that a NaN stays one


def _levels(x: Tensor, thresholds: list[float], bipolar: bool) -> Tensor:
    if not thresholds:
        raise ValueError("expected a threshold or more, got none")
    if native.supports(x) and native.available():
        return native.step_levels(x, thresholds, bipolar)
    return torch.empty_like(x).copy_(decomposed.levels(x, thresholds, bipolar))  # laid out as x


def _levels_backward(needed: tuple[bool, ...], grads: tuple[Tensor, ...], x: Tensor, *rest: Any) -> Gradients:
    return _step_backward(needed, grads, x, False)[0], None, None


def _curve(slope: str, parameters: list[float]) -> Any:
    """The slope of that name; ValueError unless there is one with as many parameters."""
    slopes = implementation("straight_through", "reference").SLOPES
    if slope not in slopes or len(parameters) != slopes[slope].parameters:
        counts = {name: curve.parameters for name, curve in slopes.items()}
        raise ValueError(f"slope must be one of {counts} (name: parameters), got {slope!r} with {parameters}")
    return slopes[slope]


def _straight_through(x: Tensor, slope: str, parameters: list[float], bipolar: bool) -> Tensor:
    return _step(x, bipolar)


def _straight_through_backward(needed: tuple[bool, ...], grads: tuple[Tensor, ...], x: Tensor, *rest: Any) -> Gradients:
    return straight_through_backward(grads[0], x, *rest), *(None for _ in rest)


def _slope(grad: Tensor, x: Tensor, slope: str, parameters: list[float], bipolar: bool) -> Tensor:
    _curve(slope, parameters)
    return choose("straight_through", x).backward(grad, x, slope, parameters, bipolar=bipolar)


def _slope_backward(
    needed: tuple[bool, ...], grads: tuple[Tensor, ...], grad: Tensor, x: Tensor, slope: str, *rest: Any
) -> Gradients:
    parameters, bipolar = rest
    curve, wide = _curve(slope, parameters), compute_dtype(x)
    v = (2 if bipolar else 1) * grads[0].to(wide)
    return (
        (v * curve.value(x.to(wide), *parameters)).to(grad.dtype) if needed[0] else None,
        (v * grad.to(wide) * curve.derivative(x.to(wide), *parameters)).to(x.dtype) if needed[1] else None,
        None, None, None,
    )  # fmt: skip


def _surrogate(x: Tensor, slope: Tensor, bipolar: bool) -> Tensor:
    if slope.shape != x.shape:
        raise ValueError(f"the slope must have the shape of x, {tuple(x.shape)}, got {tuple(slope.shape)}")
    return _step(x, bipolar)


def _surrogate_backward(needed: tuple[bool, ...], grads: tuple[Tensor, ...], x: Tensor, *rest: Any) -> Gradients:
    slope, bipolar = rest
    return ((2 if bipolar else 1) * grads[0].to(slope.dtype) * slope).to(x.dtype), None, None


def _surrogate_forward(tangents: tuple[Tensor | None, ...], x: Tensor, *rest: Any) -> Tensor:
    if tangents[0] is None:
        return torch.zeros_like(x)
    return _surrogate_backward((True,), (tangents[0],), x, *rest)[0]  # pyright: ignore[reportReturnType]


def _lookup(x: Tensor, entries: Tensor) -> Tensor:
    if entries.ndim != 2 or x.ndim < 2 or entries.shape != (x.shape[-2], 2 ** x.shape[-1]):
        raise ValueError(
            f"x must be [..., n, k] and the entries [n, 2^k], got shapes {tuple(x.shape)} and {tuple(entries.shape)}"
        )
    if x.device != entries.device or x.dtype != entries.dtype:
        raise ValueError(
            "x and the entries must be of one dtype on one device, "
            f"got {x.dtype} on {x.device} and {entries.dtype} on {entries.device}"
        )
    return choose("lookup", x, entries).forward(x, entries)


def _lookup_backward(needed: tuple[bool, ...], grads: tuple[Tensor, ...], x: Tensor, entries: Tensor) -> Gradients:
    plain = not torch.is_grad_enabled() and is_plain((grads[0], x, entries))
    by = choose("lookup", x, entries) if plain else implementation("lookup", "reference")
    return by.backward(grads[0], x, entries)


def _lookup_forward(tangents: tuple[Tensor | None, ...], x: Tensor, entries: Tensor) -> Tensor:
    """Linear in each input and in the entries: the tangents go through one after the other."""
    of_x, of_entries = tangents
    found = torch.zeros(x.shape[:-1], dtype=x.dtype, device=x.device)
    if of_x is not None:
        slopes, _ = implementation("lookup", "reference").backward(torch.ones_like(found), x, entries)
        found = found + (slopes * of_x).sum(-1)
    return found if of_entries is None else found + implementation("lookup", "reference").forward(x, of_entries)


def _exact(leak: float, gain: float, threshold: float, soft: bool) -> Neuron:
    return Neuron("step", "", (), leak, gain, threshold, soft, exact_reset=False, attached=False)


def _spikes(x: Tensor, leak: float, gain: float, threshold: float, soft: bool) -> Tensor:
    if x.ndim == 0 or len(x) == 0:
        raise ValueError(f"x must be [T, ...] with T >= 1 time steps, got shape {tuple(x.shape)}")
    neuron = _exact(leak, gain, threshold, soft)
    fast = implementation("neuron", "cpu") if native.available() else None
    if fast is not None and fast.supports(x, None, neuron):
        return fast.forward(x, None, neuron, last=False)[0]
    return _spikes_like(x).copy_(forward(x, None, neuron)[0])


def _spikes_like(x: Tensor, *others: Any) -> Tensor:
    """Every time step laid out as that of x, one after the other: as the compiled kernels lay them out."""
    if x[0].is_contiguous():  # strides that say so, which a dynamic batch needs
        return x.new_empty(x.shape)
    step = torch.empty_like(x[0])
    return x.new_empty_strided((x.shape[0], *step.shape), (step.numel(), *step.stride()))


def _spikes_backward(needed: tuple[bool, ...], grads: tuple[Tensor, ...], x: Tensor, *rest: Any) -> Gradients:
    return backward(grads[0], None, x, None, _exact(*rest))[0], None, None, None, None  # 0, but where a NaN is


def _pack(x: Tensor) -> Tensor:
    return choose("heaviside", x).pack(x)


def _pack_like(x: Tensor) -> Tensor:
    return x.new_empty((*x.shape[:-1], (x.shape[-1] + 7) // 8), dtype=torch.uint8)


def _bit_counts(bits: Tensor) -> Any:
    """The compiled kernels, or the reference, whose matrix products are fast on CUDA too."""
    return implementation("bit_counts", "cpu" if bits.device.type == "cpu" and native.available() else "reference")


def _transpose(bits: Tensor, size: int) -> Tensor:
    if bits.dtype != torch.uint8 or bits.ndim != 2 or bits.shape[1] != (size + 7) // 8:
        raise ValueError(
            f"bits must be uint8 of shape [rows, {(size + 7) // 8}] for {size} columns, "
            f"got {bits.dtype} of shape {tuple(bits.shape)}"
        )
    return _bit_counts(bits).transpose(bits, size)


def _transpose_like(bits: Tensor, size: int) -> Tensor:
    return bits.new_empty((size, (bits.shape[0] + 7) // 8), dtype=torch.uint8)


def _common(a: Tensor, b: Tensor) -> Tensor:
    if a.dtype != torch.uint8 or b.dtype != torch.uint8 or a.ndim != 2 or b.ndim != 2 or a.shape[1] != b.shape[1]:
        raise ValueError(
            "a and b must be uint8 of shapes [m, bytes] and [n, bytes], "
            f"got {a.dtype} {tuple(a.shape)} and {b.dtype} {tuple(b.shape)}"
        )
    if a.device != b.device:
        raise ValueError(f"a and b must be on one device, got {a.device} and {b.device}")
    return _bit_counts(a).common(a, b)


def _common_like(a: Tensor, b: Tensor) -> Tensor:
    return a.new_empty((a.shape[0], b.shape[0]), dtype=torch.int64)


heaviside = Operator(
    "heaviside(Tensor x, bool bipolar) -> Tensor",
    _step, like(0), elementwise, _step_backward, formula=decomposed.heaviside,
)  # fmt: skip
levels = Operator(
    "levels(Tensor x, float[] thresholds, bool bipolar) -> Tensor",
    _levels, like(0), elementwise, _levels_backward, formula=decomposed.levels,
)  # fmt: skip
straight_through = Operator(
    "straight_through(Tensor x, str slope, float[] parameters, bool bipolar) -> Tensor",
    _straight_through, like(0), elementwise, _straight_through_backward,
)  # fmt: skip
straight_through_backward = Operator(
    "straight_through_backward(Tensor grad, Tensor x, str slope, float[] parameters, bool bipolar) -> Tensor",
    _slope, like(1), elementwise, _slope_backward,
)  # fmt: skip
surrogate = Operator(
    "surrogate(Tensor x, Tensor slope, bool bipolar) -> Tensor",
    _surrogate, like(0), elementwise, _surrogate_backward, _surrogate_forward,
)  # fmt: skip
lookup = Operator(
    "lookup(Tensor x, Tensor entries) -> Tensor",
    _lookup, lambda x, entries: x.new_empty(x.shape[:-1]), one_by_one, _lookup_backward, _lookup_forward,
    formula=implementation("lookup", "reference").forward,
)  # fmt: skip
spikes = Operator(
    "spikes(Tensor x, float leak, float gain, float threshold, bool soft) -> Tensor",
    _spikes, _spikes_like, over_time, _spikes_backward, formula=decomposed.spikes,
)  # fmt: skip
pack_bits = Operator("pack_bits(Tensor x) -> Tensor", _pack, _pack_like, elementwise, formula=decomposed.pack_bits)
transpose_bits = Operator("transpose_bits(Tensor bits, int size) -> Tensor", _transpose, _transpose_like, one_by_one)
count_common_bits = Operator("count_common_bits(Tensor a, Tensor b) -> Tensor", _common, _common_like, one_by_one)
# of programs: of any inputs, and of inputs without NaN, where a step is one comparison
DECOMPOSITIONS: dict[Any, Any] = {one.op: one.formula for one in (heaviside, levels, lookup, spikes, pack_bits)}
COMPARISONS: dict[Any, Any] = DECOMPOSITIONS | {
    heaviside.op: decomposed.compared, levels.op: decomposed.compared_levels,
}  # fmt: skip
