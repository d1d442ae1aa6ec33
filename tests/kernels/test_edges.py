"""Unusual callers of the operators: default devices, strides, lazy and dual tensors, bad arguments, extreme alphas."""

from __future__ import annotations

import functools
import itertools
from contextlib import nullcontext
from dataclasses import make_dataclass
from typing import Any

import pytest
import test_implementations
import torch
from test_operators import python
from torch import Tensor
from torch.autograd import forward_ad, gradcheck
from torch.utils.flop_counter import FlopCounterMode

from closed_form import derivatives
from htaf import functional as F
from htaf import surrogates
from htaf.core.activations import HTAF, StraightThrough
from htaf.core.binary import BinaryLinear, binary_weight
from htaf.core.kernels import native
from htaf.core.kernels.registration import implementation
from htaf.core.surrogates import straight_through

BOTH = pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
INF, NAN, SHAPE = float("inf"), float("nan"), (2, 3, 4, 5)
SLOPES = {"sigmoid": [2.0], "tanh": [], "rectangular": [], "atan": [2.0], "approx_sign": [], "htaf": [1.5, 3.0]}
kind, ops = test_implementations.kind, torch.ops.htaf


def values(seed: int, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape or SHAPE, generator=torch.Generator().manual_seed(seed)).to(dtype)


def naive(x: Tensor, *p: Any) -> Tensor:
    """HTAF for two parameters, the scaled sigmoid for one."""
    return torch.sigmoid(p[1] * torch.tanh(p[0] * x) if len(p) == 2 else p[0] * x)


def exact(grad: Tensor, x: Tensor, *parameters: Any) -> tuple[Tensor, ...]:
    """The value, and the gradients of x and of the parameters, by plain autograd in float64."""
    leaves = [torch.as_tensor(v).detach().double().contiguous().requires_grad_() for v in (x, *parameters)]
    y = naive(*leaves)
    return y.detach(), *torch.autograd.grad(y, leaves, grad.double())


def close(found: Tensor, truth: Tensor, rtol: float = 2e-5, atol: float = 1e-6) -> None:
    torch.testing.assert_close(found.double(), truth.double(), rtol=rtol, atol=atol, equal_nan=True)


LAYOUTS = {
    "contiguous": lambda v: v.clone(),
    "channels last": lambda v: v.to(memory_format=torch.channels_last),
    "strided": lambda v: v.repeat_interleave(2, -1)[..., ::2],
}
A = values(2, 19).abs() + 1
DUAL = {  # a function, and one of the same derivative
    "htaf": (lambda x: F.htaf(x, 1.5, 3.0, bipolar=True), lambda x: 2 * naive(x, 1.5, 3.0)),
    "scaled sigmoid": (lambda x: F.scaled_sigmoid(x, 3.0), lambda x: naive(x, 3.0)),
    "straight through": (lambda x: straight_through(x, surrogates.sigmoid), torch.sigmoid),
    "heaviside": (F.heaviside, lambda x: 0 * x),
    "x of tensor alphas": (lambda x: F.htaf(x, A, 3.0), lambda x: naive(x, A, 3.0)),
    "alphas": (lambda x: F.htaf(A.to(x.dtype), 1 + x * x, 2 + x * x), lambda x: naive(A, 1 + x * x, 2 + x * x)),
}
ONE, TWO, THREE, X = (torch.ones(n) for n in (1, 2, 3, 8))
SLOPE = ops.straight_through_backward
MISFITS = [
    (ops.htaf_backward, TWO, X, 2.0, 11.0), (ops.htaf_backward, X.expand(2, 8), X, 2.0, 11.0),
    (ops.htaf_backward.tensor, TWO, X, ONE, ONE), (ops.htaf_backward_all, TWO, X, ONE, ONE),
    (ops.scaled_sigmoid_backward, TWO, X, 2.0), (ops.scaled_sigmoid_backward.tensor, X, X, THREE),
    (ops.scaled_sigmoid_backward_all, X, X, THREE), (ops.htaf.tensor, X, THREE, THREE), (ops.htaf.tensor, X, X, THREE),
    (ops.htaf.tensor, X, TWO[:, None], TWO[:, None]), (SLOPE, TWO, X, "tanh", []), (SLOPE, X, X, "atan", []),
    (SLOPE, X, X, "tanh", [1.0]), (SLOPE, X, X, "sigmoid", []), (SLOPE, X, X, "sine", [1.0]),
]  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_the_default_device_does_not_matter(dtype: torch.dtype) -> None:
    found = []
    for device in ("cpu", "meta"):
        x, a = values(0, 4, 13, dtype=dtype).requires_grad_(), values(1, 13).exp().requires_grad_()
        with torch.device(device):
            smooth = [F.htaf(x), F.scaled_sigmoid(x, 3.0), F.htaf(x, a, 3.0), straight_through(x, surrogates.tanh)]
            grads, bits = torch.autograd.grad([y.sum() for y in smooth], [x, a]), F.pack_bits(x)
            found.append([*smooth, *grads, F.heaviside(x), bits])
    torch.testing.assert_close(*found, rtol=0, atol=0)


@BOTH
@pytest.mark.parametrize("shape", [None, (), (3, 1, 1), SHAPE])
@pytest.mark.parametrize(("name", "floats"), [("htaf", (1.5, 3.0)), ("scaled_sigmoid", (3.0,))])
def test_results_have_the_strides_of_an_empty_like(name: str, floats: Any, shape: Any, dtype: torch.dtype) -> None:
    overload, backward_all = "default" if shape is None else "tensor", getattr(ops, f"{name}_backward_all")
    forward, backward = (getattr(getattr(ops, f"{name}{end}"), overload) for end in ("", "_backward"))
    for *layouts, other in itertools.product(LAYOUTS, LAYOUTS, (dtype, torch.bfloat16)):
        x, grad = LAYOUTS[layouts[0]](values(0, dtype=dtype)), LAYOUTS[layouts[1]](values(1, dtype=other))
        p = floats if shape is None else [v + torch.rand(shape, dtype=dtype) for v in floats]
        y, gx, *sums = exact(grad, x, *p)
        found = [(forward(x, *p, False), x, y), (backward(grad, x, *p, False), x, gx)]
        if shape is None:
            found.append((ops.heaviside(x, False), x, x >= 0))
            for s, q in SLOPES.items():
                truth = grad.double() * getattr(surrogates, s)(x.double(), *q)
                found.append((ops.straight_through_backward(grad, x, s, q, False), x, truth))
        else:
            found += zip(backward_all(grad, x, *p, False), (x, *p), (gx, *sums), strict=True)
            torch.library.opcheck(backward_all.default, (grad, x, *p, False), test_utils="test_faketensor")
        for result, like, truth in found:
            assert result.stride() == torch.empty_like(like).stride(), layouts
            close(result, truth)


CODE = """
import htaf, torch, torch.nn as nn
from torch._dynamo.testing import CompileCounterWithBackend
stem, net = nn.Linear(3, 4), nn.Sequential(
    htaf.HTAF(), nn.Flatten(), nn.Unflatten(1, (4, 9, 9)), nn.Conv2d(4, 4, 3), htaf.StraightThrough(),
    nn.Conv2d(4, 4, 3), htaf.HTAF(torch.ones(4, 1, 1), 11.0)).to(memory_format=torch.channels_last)
run = lambda x: net(stem(x).permute(0, 3, 1, 2))  # to channels last; a gradient comes back contiguous from Flatten
for dtype in (torch.float32, torch.float64):
    x, grad, found = torch.randn(2, 9, 9, 3, dtype=dtype), torch.randn(2, 4, 5, 5, dtype=dtype), []
    parameters = [*stem.to(dtype).parameters(), *net.to(dtype).parameters()]
    for f in (run, torch.compile(run, backend="aot_eager", fullgraph=True)):
        found.append([f(x).detach(), *torch.autograd.grad(f(x), parameters, grad)])
    torch.testing.assert_close(*found)
x, functions = torch.linspace(-2, 2, 41), (htaf.HTAF(), htaf.functional.scaled_sigmoid)
graphs = [CompileCounterWithBackend("aot_eager") for f in functions]  # without AOT no float becomes a constant again
compiled = [torch.compile(f, backend=counter, fullgraph=True) for f, counter in zip(functions, graphs)]
for i in range(12):
    functions[0].alpha0, found = 1 + 0.1 * i, []
    for f, g in (functions, compiled):
        leaf = x.clone().requires_grad_()
        y = f(leaf) + g(leaf, 1 + 0.1 * i)
        found.append([y.detach(), *torch.autograd.grad(y.sum(), leaf)])
    torch.testing.assert_close(*found)
for f in (lambda x: torch.func.jvp(functions[0], (x,), (x,))[1],
          lambda x: torch.func.hessian(lambda x: functions[1](x).sum())(x),
          lambda x: torch.func.jvp(lambda x: htaf.surrogates.straight_through(x, torch.exp), (x,), (x,))[1]):
    torch.testing.assert_close(torch.compile(f, backend="aot_eager", fullgraph=True)(x), f(x))
assert all(1 <= counter.frame_count <= 3 for counter in graphs), [counter.frame_count for counter in graphs]
dense, F = torch.eye(3) - 2 * torch.eye(3).roll(1, 0), htaf.functional
for x in (dense.to_sparse(), dense.to_sparse_csr(), dense.to_mkldnn()):
    for call in (F.heaviside, F.htaf, F.pack_bits, lambda x: F.htaf(x, torch.tensor(2.0), 11.0)):
        try:
            y = call(x)
            assert torch.equal(y.to_dense() if y.layout != torch.strided else y, call(dense))
        except (RuntimeError, TypeError, ValueError) as error:
            assert str(error)
"""


@pytest.mark.parametrize("without", ["0", pytest.param("1", marks=pytest.mark.slow)])
@pytest.mark.slow
def test_compiled_channels_last_networks_changing_floats_and_sparse_tensors(without: str) -> None:
    # in its own process: Dynamo cannot trace through the type checks that conftest.py installs, a crash ends all tests
    done = python(CODE, HTAF_NO_EXTENSION=without)
    assert done.returncode == 0, done.stderr[-3000:]


@BOTH
@pytest.mark.parametrize("name", DUAL)
@pytest.mark.parametrize("way", ["dual", "dual, learned", "dual, watched", "jvp"])
def test_forward_mode(name: str, way: str, dtype: torch.dtype) -> None:
    (function, smooth), x, direction = DUAL[name], values(0, 19, dtype=dtype), values(1, 19, dtype=dtype)
    wide = values(0, 19, dtype=torch.float64).requires_grad_()
    if way == "jvp":
        y, tangent = torch.func.jvp(function, (x,), (direction,))
    else:
        with forward_ad.dual_level(), FlopCounterMode(display=False) if "watched" in way else nullcontext():
            dual = forward_ad.make_dual(x.clone().requires_grad_("learned" in way), direction)
            y, tangent = forward_ad.unpack_dual(function(dual))
    assert torch.equal(y, function(x))
    close(tangent, torch.autograd.grad(smooth(wide).sum(), wide)[0] * direction)


def per_channel(x: Tensor) -> Tensor:
    """Alphas that vary along one dimension, all three with tangents."""
    p = x.square().sum(1, keepdim=True)
    return F.htaf(x, 1 + p, 2 + p, bipolar=True) * F.scaled_sigmoid(x, 1 + p)


EVERY = {
    **{name: function for name, (function, _) in DUAL.items() if "tensor" not in name and name != "alphas"},
    "per channel": per_channel,
    "one alpha of all": lambda x: F.htaf(x, 1 + x.square().mean(), torch.tensor(3.0, dtype=x.dtype)),
    "sign": F.sign,
    **{name: functools.partial(straight_through, slope=getattr(surrogates, name), bipolar=True) for name in SLOPES},
    "own slope": lambda x: straight_through(x, lambda v: torch.exp(-v * v), bipolar=True),
    "binary weight": binary_weight,
    "exported spikes": lambda x: ops.spikes(x, 0.5, 1.0, 0.3, True),
}


@pytest.mark.parametrize("name", EVERY)
def test_transforms_of_forward_and_reverse_mode_agree(name: str) -> None:
    x, direction = values(3, 2, 2, dtype=torch.float64), values(4, 3, 2, 2, dtype=torch.float64)
    function, (ahead, back) = EVERY[name], (torch.func.jacfwd, torch.func.jacrev)
    first, second = back(function)(x), back(back(function))(x)
    close(ahead(function)(x), first)
    for outer, inner in ((ahead, ahead), (ahead, back), (back, ahead)):
        close(outer(inner(function))(x), second)
    close(ahead(ahead(ahead(function)))(x), back(back(back(function)))(x))

    along = torch.stack([torch.tensordot(back(function)(x + v), v) for v in direction])
    close(torch.func.vmap(lambda x, v: torch.func.jvp(function, (x,), (v,))[1])(x + direction, direction), along)
    close(torch.func.jvp(torch.func.vmap(function), (x + direction,), (direction,))[1], along)


@pytest.mark.parametrize(("alpha0", "alpha1"), [(0.1, 220.0), (2.0, 11.0), (5.0, 4.4)])
def test_a_hessian_is_the_closed_form(alpha0: float, alpha1: float) -> None:
    x = torch.linspace(-4, 4, 9, dtype=torch.float64)
    truth = [derivatives(v, alpha0, alpha1) for v in x.tolist()]
    close(torch.func.hessian(lambda x: F.htaf(x, alpha0, alpha1).sum())(x), torch.tensor([t.xx for t in truth]).diag())
    learned = [torch.tensor(a, dtype=torch.float64) for a in (alpha0, alpha1)]
    jacobian = torch.func.jacfwd(F.htaf, argnums=(0, 1, 2))(x, *learned)
    for found, part in zip(jacobian, ("x", "alpha0", "alpha1"), strict=True):
        exact = torch.tensor([getattr(t, part) for t in truth], dtype=torch.float64)
        close(found, exact.diag() if part == "x" else exact, rtol=1e-12, atol=0)


def test_forward_mode_goes_through_gradients_and_modules() -> None:
    function, x, direction = DUAL["alphas"][0], values(0, 19, dtype=torch.float64), values(1, 19, dtype=torch.float64)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x.clone().requires_grad_(), direction)
        (gradient,) = torch.autograd.grad(function(dual).sum(), dual, create_graph=True)
        forward_over_reverse = forward_ad.unpack_dual(gradient).tangent
        tangent = forward_ad.unpack_dual(function(dual)).tangent
        (reverse_over_forward,) = torch.autograd.grad(tangent.sum(), dual)
    truth = torch.func.hessian(lambda x: DUAL["alphas"][1](x.double()).sum())(x) @ direction
    close(forward_over_reverse, truth)
    close(reverse_over_forward, truth)

    learned = HTAF(torch.rand(3) + 1, torch.rand(3) + 5, learnable=True)
    net = torch.nn.Sequential(BinaryLinear(4, 3), learned, torch.nn.Linear(3, 3), HTAF(2.0, 11.0), StraightThrough())
    p = {name: value.detach().double() for name, value in net.named_parameters()}
    run = functools.partial(torch.func.functional_call, net, args=values(5, 6, 4, dtype=torch.float64))
    torch.testing.assert_close(torch.func.jacfwd(run)(p), torch.func.jacrev(run)(p))


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("call", MISFITS)
def test_arguments_that_do_not_fit_are_refused(call: Any, compiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "available", lambda: compiled and native.load()[0] is not None)
    with pytest.raises((ValueError, RuntimeError, TypeError)):
        call[0](*call[1:], bipolar=False)


@BOTH
@pytest.mark.parametrize("required", list(itertools.product((False, True), repeat=3))[1:])
def test_gradients_are_where_they_are_required(required: tuple[bool, ...], dtype: torch.dtype) -> None:
    inputs, grad = (values(0), values(1, 3, 1, 1).exp(), values(2, 3, 1, 1).exp()), values(3, dtype=dtype)
    for function in (F.htaf, lambda *leaves: ops.htaf.tensor(*leaves, False)):
        leaves = [v.to(dtype, copy=True).requires_grad_(needed) for v, needed in zip(inputs, required, strict=True)]
        function(*leaves).backward(grad)
        assert tuple(leaf.grad is not None for leaf in leaves) == required
        for leaf, truth in zip(leaves, exact(grad, *leaves)[1:], strict=True):
            close(truth if leaf.grad is None else leaf.grad, truth)


def test_rules_of_autograd_and_slopes_that_no_kernel_knows() -> None:
    inputs = [values(i, 7, dtype=torch.float64).requires_grad_() for i in (0, 1)]
    p = [1 + values(i, 7, dtype=torch.float64).exp().detach().requires_grad_() for i in (2, 3)]
    every = {"check_forward_ad": True, "check_batched_grad": True, "check_batched_forward_grad": True}
    assert gradcheck(lambda x, *p: F.htaf(x, *p, bipolar=True), (inputs[0], *p), **every)
    assert gradcheck(lambda *inputs: ops.htaf_backward_all(*inputs, True), (*inputs, *p), **every)
    assert gradcheck(lambda g, x: ops.htaf_backward(g, x, 1.5, 3.0, True), inputs, **every)
    for s in ("sigmoid", "tanh", "atan", "htaf"):
        assert gradcheck(lambda g, x, s=s: ops.straight_through_backward(g, x, s, SLOPES[s], True), inputs)
    htafs = F.htaf, F.scaled_sigmoid, lambda v: F.htaf(torch.ones(1), v, 2.0)
    for function in (*htafs, lambda v: straight_through(v, surrogates.tanh)):
        x = torch.ones(1, requires_grad=True) + 1
        for guard in (torch.no_grad, torch.inference_mode):
            with guard():
                assert not function(x).requires_grad
        y = function(x)
        x.add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.sum().backward()
    triangle = make_dataclass("Triangle", ["width"], namespace={"__call__": lambda s, x: (s.width - x.abs()).clamp(0)})
    for slope in (triangle(2.0), functools.partial(surrogates.sigmoid, beta=-1.0)):  # the first has no hash
        x = values(0).requires_grad_()
        assert torch.equal(torch.autograd.grad(straight_through(x, slope).sum(), x)[0], slope(x.detach()))


@pytest.mark.parametrize("bad", [0.0, -1.0, NAN])
@pytest.mark.parametrize(("name", "place"), [("htaf", 0), ("htaf", 1), ("scaled_sigmoid", 0)])
def test_a_channel_whose_alphas_are_not_positive_is_nan(kind: str, name: str, place: int, bad: float) -> None:
    module, reference = implementation(name, kind), implementation(name, "reference")
    for shape, dtype, limit in (((6, 5, 3), torch.float32, 2e-5), ((2, 5, 200), torch.bfloat16, 8e-3)):
        x, p = values(0, *shape, dtype=dtype), [v + torch.rand(5, 1) for v in (1.0, 3.0)[: 1 + (name == "htaf")]]
        x[0, :, :3] = torch.tensor([0.0, INF, -INF])
        wide, ones = [v.double() for v in (x, *p)], torch.ones_like(x)
        truth = [reference.forward(*wide, bipolar=False), *reference.backward_all(ones, *wide, bipolar=False)]
        p[place][2] = bad
        found = [module.forward(x, *p, bipolar=False), *module.backward_all(ones, x, *p, bipolar=False)]
        for v, right in zip((*found, module.backward(ones, x, *p, bipolar=False)), (*truth, truth[1]), strict=True):
            right.select(right.ndim - 2, 2).fill_(NAN)
            close(v, right, limit, limit)


@pytest.mark.parametrize("p", [[2.0, 220.0], [2.0, 1e3], [2.0, 1e4], [1e-38, 11.0], [1e-36], [3e38]])
def test_extreme_alphas(kind: str, p: list[float]) -> None:
    name, tensors, x = "htaf" if len(p) == 2 else "scaled_sigmoid", torch.tensor(p), torch.linspace(-0.1, 0.1, 4001)
    module, reference = implementation(name, kind), implementation(name, "reference")
    x = x if p[0] == 2 else torch.tensor([1.0, -1.0, 0.0, INF, -INF][: 3 if p[0] > 1 else 5])
    wide, ones = [v.double() for v in (x, *tensors)], torch.ones_like(x)
    truth, summed = reference.slope(*wide), module.backward_all(ones, x, *tensors, bipolar=False)[0]
    for q in (p, tensors):
        close(module.forward(x, *q, bipolar=False), reference.forward(*wide, bipolar=False))
        gx = module.backward(ones, x, *q, bipolar=False)
        assert gx.isfinite().all()
        if p[0] == 2:
            assert ((gx - summed).abs() / truth)[truth >= torch.finfo(x.dtype).tiny].max() <= 2e-5
        elif p[0] < 1:
            close(gx, truth)


def test_bits_and_steps(kind: str) -> None:
    module, x = implementation("heaviside", kind), torch.full((100,), -6e-8, dtype=torch.float16)
    try:
        torch.set_flush_denormal(True)
        found = module.forward(x, bipolar=False), module.pack(x)
    finally:
        torch.set_flush_denormal(False)
    assert [v.count_nonzero().item() for v in found] == [0, 0]
