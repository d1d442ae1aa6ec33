"""The Triton kernels in Triton's interpreter: what the table of all kernels leaves out; run by test_triton.py."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from htaf.core.kernels import triton as triton_maps
from htaf.core.kernels.htaf import reference
from htaf.core.kernels.htaf import triton as htaf
from htaf.core.kernels.scaled_sigmoid import triton as scaled_sigmoid

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
PAIRS = [(0.1, 220.0), (0.5, 44.0), (1.0, 22.0), (2.0, 11.0), (3.0, 7.3), (5.0, 4.4)]
ROUNDING = {torch.float32: 4e-7, torch.bfloat16: 2**-8 + 2e-5, torch.float16: 2**-11 + 2e-5}  # relative
TINY = {torch.float32: 1e-37, torch.bfloat16: 1e-37, torch.float16: 7e-8}  # half the last place of a denormal, at least


def exact(operator: str, x: Tensor, *parameters: float | Tensor) -> tuple[Tensor, ...]:
    """In float64, of parameters rounded to float32: the value, its derivative, those with respect to the parameters."""
    x = x.double()
    p = [torch.as_tensor(v, dtype=torch.float32).double() for v in parameters]
    rate = 2 * p[0] if operator == "htaf" else p[0]
    e = torch.exp(-rate * x.abs())
    if operator == "scaled_sigmoid":
        slope = p[0] * e / (1 + e) ** 2
        return torch.sigmoid(p[0] * x), slope, x * slope / p[0]
    t = torch.tanh(p[0] * x)
    f = torch.exp(-p[1] * t.abs())
    bell = f / (1 + f) ** 2
    slope = 4 * p[0] * p[1] * e / (1 + e) ** 2 * bell
    return torch.sigmoid(p[1] * t), slope, x * slope / p[0], t * bell


def close(got: Tensor, wanted: Tensor, dtype: torch.dtype, absolute: float = 0.0) -> None:
    """Rounded once to dtype; `absolute` on top for what cancels."""
    assert got.dtype == dtype
    assert got.shape == wanted.shape
    error = (got.double() - wanted).abs() - wanted.abs() * ROUNDING[dtype] - TINY[dtype] - absolute
    assert error.numel() == 0 or error.max() <= 0, (got.flatten()[error.argmax()], wanted.flatten()[error.argmax()])


def kernels(operator: str):
    return {"htaf": htaf, "scaled_sigmoid": scaled_sigmoid}[operator]


PARAMETER_SHAPES = {
    "one of a vector": ((1000,), (1,)),
    "0-d": ((33, 31), ()),
    "of 0-d": ((), ()),
    "image": ((4, 5, 7, 7), (5, 1, 1)),
    "large image": ((2, 3, 13, 11), (3, 1, 1)),
    "rows of 16": ((2, 3, 16, 32), (3, 1, 1)),
    "tokens": ((40, 3, 65), (65,)),
    "wide tokens": ((3, 1300), (1300,)),
    "few tokens": ((700, 3), (3,)),
    "first": ((31, 33), (31, 1)),
    "with leading 1": ((4, 5, 6), (1, 5, 1)),
    "one channel": ((4, 1, 50), (1, 1)),
    "empty": ((0, 3), (3,)),
}


@pytest.mark.parametrize("dtype", DTYPES[:2])
@pytest.mark.parametrize(
    ("case", "channels_last"),
    [(case, last) for case, (shape, _) in PARAMETER_SHAPES.items() for last in (False, True)[: 1 + (len(shape) == 4)]],
)
def test_several_tiles_a_program(
    case: str, channels_last: bool, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    shape, parameter_shape = PARAMETER_SHAPES[case]
    monkeypatch.setattr(triton_maps, "MOST_TILES", 3)  # which else only large tensors have
    monkeypatch.setattr(triton_maps, "LEAST_PROGRAMS", 0.01)
    x, grad = (torch.randn(shape, generator=torch.Generator().manual_seed(i)).to(dtype) for i in (0, 1))
    if channels_last:
        x = x.to(memory_format=torch.channels_last)
    a0, a1 = torch.randn(2, *parameter_shape, generator=torch.Generator().manual_seed(2)).abs() + 0.5
    a1 = a1 + 3
    for operator, parameters in (("htaf", (a0, a1)), ("scaled_sigmoid", (a1,))):
        y, slope, *others = exact(operator, x, *parameters)
        close(kernels(operator).forward(x, *parameters), y, dtype, 5e-7 if dtype == torch.float32 else 1e-5)
        got, *sums = kernels(operator).backward_all(grad, x, *parameters, bipolar=True)
        wanted = 2 * grad.double() * slope
        most = wanted.abs().max().item() if wanted.numel() else 0
        close(got, wanted, dtype, 1e-6 * most)
        assert got.stride() == x.stride()
        assert torch.equal(got, kernels(operator).backward(grad, x, *parameters, bipolar=True))
        for found, p, derivative in zip(sums, parameters, others, strict=True):
            terms = 2 * grad.double() * derivative
            assert (found.dtype, found.shape) == (p.dtype, p.shape)
            error = (found.double() - terms.sum_to_size(p.shape)).abs()
            relative = 1e-6 if dtype == torch.float32 else 2e-5
            bound = relative * terms.abs() + 1e-7 * grad.double().abs()  # near 0 tanh errs by an absolute 1e-7
            assert (error <= bound.sum_to_size(p.shape)).all(), error


def test_float_and_tensor_parameters_give_the_same_bits() -> None:
    x = torch.randn(3000)
    for dtype in DTYPES:
        for a0, a1 in PAIRS:
            tensors = torch.tensor(a0), torch.tensor(a1)
            assert torch.equal(htaf.forward(x.to(dtype), a0, a1), htaf.forward(x.to(dtype), *tensors))
            ones = torch.ones_like(x, dtype=dtype)
            assert torch.equal(htaf.backward(ones, x.to(dtype), a0, a1), htaf.backward(ones, x.to(dtype), *tensors))


def test_supports() -> None:
    x = torch.randn(2, 3, 4)
    assert all(htaf.supports(x.to(dtype), 2.0, 11.0) for dtype in DTYPES)
    assert not htaf.supports(x.double(), 2.0, 11.0)
    for shape in ((), (1,), (4,), (3, 1), (2, 1, 1), (1, 3, 1)):
        assert htaf.supports(x, torch.ones(shape), torch.ones(shape))
    assert not htaf.supports(x, torch.ones(3, 4), torch.ones(3, 4))
    assert not htaf.supports(x, torch.ones(4), torch.ones(()))
    assert not htaf.supports(x, torch.ones(4), 11.0)
    assert not htaf.supports(x, 2.0, torch.ones(4))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("pair", [(2.0, 1e4), (1e-7, 1e7), (1e-20, 1e20), (1e-37, 1e37)])
def test_tiny_alpha0_with_huge_alpha1(pair: tuple[float, float], dtype: torch.dtype) -> None:
    p = [torch.tensor(v) for v in pair]
    x = (torch.linspace(-0.5, 9, 301) / (pair[0] * pair[1])).to(dtype)
    wide, ones = [v.double() for v in (x, *p)], torch.ones_like(x)
    limit = 3e-5 if dtype == torch.float32 else 4.1e-3
    for q in (p, pair):
        y = htaf.forward(x, *q, bipolar=False).double()
        torch.testing.assert_close(y, reference.forward(*wide, bipolar=False), rtol=limit, atol=2.5e-7)
    truth = reference.backward_all(ones.double(), *wide, bipolar=False)
    for found, right in zip(htaf.backward_all(ones, x, *p, bipolar=False), truth, strict=True):
        torch.testing.assert_close(found.double(), right, rtol=2 * limit, atol=1e-6 * right.abs().max().item())
