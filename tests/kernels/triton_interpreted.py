"""The Triton kernels in Triton's interpreter against closed forms in float64; run by test_triton.py."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from htaf.kernels import triton_maps
from htaf.kernels.heaviside import triton as heaviside
from htaf.kernels.htaf import reference
from htaf.kernels.htaf import triton as htaf
from htaf.kernels.scaled_sigmoid import triton as scaled_sigmoid
from htaf.kernels.straight_through import triton as straight_through
from quick import slow_but

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
PAIRS = [(0.1, 220.0), (0.5, 44.0), (1.0, 22.0), (2.0, 11.0), (3.0, 7.3), (5.0, 4.4)]
ROUNDING = {torch.float32: 4e-7, torch.bfloat16: 2**-8 + 2e-5, torch.float16: 2**-11 + 2e-5}  # relative
TINY = {torch.float32: 1e-37, torch.bfloat16: 1e-37, torch.float16: 7e-8}  # half the last place of a denormal, at least
OPERATORS = [("htaf", (2.0, 11.0)), ("scaled_sigmoid", (22.0,))]
SLOPES = [
    ("sigmoid", (3.0,)),
    ("tanh", ()),
    ("rectangular", ()),
    ("atan", (2.0,)),
    ("approx_sign", ()),
    ("htaf", (1.0, 9.0)),
]

LAYOUTS = {
    **{
        str(shape): lambda shape=shape: torch.empty(shape)
        for shape in (1, 31, 33, 65, 1000, 5000, (2, 3, 4), (4, 5, 7, 7))
    },
    "channels-last": lambda: torch.empty(4, 5, 7, 7).to(memory_format=torch.channels_last),
    "transposed": lambda: torch.empty(3, 4, 50).transpose(0, 2),
    "sliced": lambda: torch.empty(4, 30)[:, 3:20],
    "misaligned": lambda: torch.empty(2051)[1:],
    "repeated": lambda: torch.empty(3, 1).expand(3, 5),
    "empty": lambda: torch.empty(0, 3),
    "0-d": lambda: torch.empty(()),
}


def sample(like: Tensor, dtype: torch.dtype, seed: int = 0) -> Tensor:
    """Normal numbers in the layout of `like`."""
    values = torch.randn(like.shape, generator=torch.Generator().manual_seed(seed))
    out = torch.empty(like.untyped_storage().nbytes() // 4, dtype=dtype).as_strided(
        like.shape, like.stride(), like.storage_offset()
    )
    return out.copy_(values) if 0 not in like.stride() else values.to(dtype)[:, :1].expand(like.shape)


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


@pytest.mark.parametrize("pair", slow_but(PAIRS, (0.1, 220.0), (2.0, 11.0)))
def test_accuracy_of_htaf(pair: tuple[float, float]) -> None:
    x = torch.cat([torch.linspace(-20, 20, 12001), torch.linspace(-0.02, 0.02, 1001), torch.logspace(-40, -1, 200)])
    y, slope, *_ = exact("htaf", x, *pair)
    error = (htaf.forward(x, *pair).double() - y).abs()
    assert error.max() <= 2.5e-7
    assert (error / 2**-24)[x >= 0].max() <= 4
    got = htaf.backward(torch.ones_like(x), x, *pair)
    normal = slope >= 2**-126
    assert ((got.double() - slope).abs() / slope)[normal].max() <= (1e-5 if pair[1] <= 44 else 3e-5)
    assert torch.equal(got, htaf.backward(torch.ones_like(x), -x, *pair))


@pytest.mark.parametrize("beta", [0.5, 22.0, 1000.0])
def test_accuracy_of_scaled_sigmoid(beta: float) -> None:
    x = torch.cat([torch.linspace(-20, 20, 8001), torch.linspace(-0.1, 0.1, 2001)])
    y, slope, _ = exact("scaled_sigmoid", x, beta)
    assert (scaled_sigmoid.forward(x, beta).double() - y).abs().max() <= 2.5e-7
    got, normal = scaled_sigmoid.backward(torch.ones_like(x), x, beta), slope >= 2**-126
    assert ((got.double() - slope).abs() / slope)[normal].max() <= 1e-6


@pytest.mark.parametrize("dtype", DTYPES[1:])
@pytest.mark.parametrize("pair", slow_but([(0.1, 220.0), (2.0, 11.0), (5.0, 4.4)], (2.0, 11.0)))
def test_accuracy_in_16_bits(pair: tuple[float, float], dtype: torch.dtype) -> None:
    x = torch.linspace(-20, 20, 6001).to(dtype)
    y, slope, *_ = exact("htaf", x, *pair)
    close(htaf.forward(x, *pair), y, dtype, 1e-5)
    close(htaf.backward(torch.ones_like(x), x, *pair), slope, dtype)
    y, slope, *_ = exact("scaled_sigmoid", x, pair[1])
    close(scaled_sigmoid.forward(x, pair[1]), y, dtype, 1e-5)
    close(scaled_sigmoid.backward(torch.ones_like(x), x, pair[1]), slope, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("operator", "parameters"), OPERATORS)
def test_layouts(operator: str, parameters: tuple[float, ...], layout: str, dtype: torch.dtype) -> None:
    x = sample(LAYOUTS[layout](), dtype)
    bipolar = dtype == torch.bfloat16
    scale = 2 if bipolar else 1
    y, slope, *_ = exact(operator, x, *parameters)
    got = kernels(operator).forward(x, *parameters, bipolar=bipolar)
    assert got.stride() == torch.empty_like(x).stride()
    close(got, scale * y - (scale - 1), dtype, 5e-7 if dtype == torch.float32 else 2e-5)
    grad = torch.randn(x.shape, dtype=torch.float32, generator=torch.Generator().manual_seed(1)).to(
        dtype
    )  # its own strides
    got = kernels(operator).backward(grad, x, *parameters, bipolar=bipolar)
    assert got.stride() == torch.empty_like(x).stride()
    wanted = scale * grad.double() * slope
    close(got, wanted, dtype, 1e-5 * wanted.abs().max().item() if wanted.numel() else 0)


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


ROWS = [
    (case, dtype, tiles, channels_last)
    for dtype in DTYPES[:2]
    for case, (shape, _) in PARAMETER_SHAPES.items()
    for tiles in (1, 3)
    for channels_last in (False, True)[: 1 + (len(shape) == 4)]
]
FEW = ("image", "tokens", "few tokens")  # each in every way, the others in the first


@pytest.mark.parametrize(
    ("case", "dtype", "tiles", "channels_last"),
    slow_but(ROWS, *(row for row in ROWS if row[1] == DTYPES[0] and (row[2] == 1 or row[0] in FEW)), rows=True),
)
def test_parameters(
    case: str, dtype: torch.dtype, tiles: int, channels_last: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    shape, parameter_shape = PARAMETER_SHAPES[case]
    if tiles > 1:  # several tiles a program, which else only large tensors have
        monkeypatch.setattr(triton_maps, "MOST_TILES", tiles)
        monkeypatch.setattr(triton_maps, "LEAST_PROGRAMS", 0.01)
    x, grad = (torch.randn(shape, generator=torch.Generator().manual_seed(i)).to(dtype) for i in (0, 1))
    if channels_last:
        x = x.to(memory_format=torch.channels_last)
    a0, a1 = sample(torch.empty(2, *parameter_shape), torch.float32, 2).abs() + 0.5
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


@pytest.mark.parametrize("dtype", DTYPES)
def test_special_values(dtype: torch.dtype) -> None:
    inf, nan, least = (
        torch.inf,
        torch.nan,
        2.0 ** {torch.float32: -149, torch.bfloat16: -133, torch.float16: -24}[dtype],
    )
    x = torch.tensor(
        [inf, -inf, nan, 0.0, -0.0, least, -least, torch.finfo(dtype).max, torch.finfo(dtype).min], dtype=dtype
    )
    ones, a0, a1 = torch.ones_like(x), torch.tensor(2.0), torch.tensor(11.0)
    for pair in PAIRS:
        top, low = (torch.sigmoid(torch.tensor(s * pair[1])).to(dtype) for s in (1, -1))
        y, gx = htaf.forward(x, *pair), htaf.backward(ones, x, *pair)
        torch.testing.assert_close(y[[0, 1, 7, 8]], torch.stack([top, low, top, low]), rtol=1e-5, atol=1e-38)
        assert y[2].isnan()
        assert (y[3:7] == 0.5).all()
        assert gx[2].isnan()
        assert (gx[[0, 1, 7, 8]] == 0).all()
        torch.testing.assert_close(gx[3:7], torch.full((4,), pair[0] * pair[1] / 4, dtype=dtype))
    assert scaled_sigmoid.forward(x, 22.0)[:2].tolist() == [1, 0]
    assert (scaled_sigmoid.backward(ones, x, 22.0)[[0, 1, 7, 8]] == 0).all()
    for i, sign in ((0, 1), (1, -1)):  # the limits: 0, and sigma'(alpha1) with the sign of x
        _, g0, g1 = htaf.backward_all(ones[i], x[i], a0, a1)
        f = torch.exp(-a1.double())
        assert g0 == 0
        torch.testing.assert_close(g1.double(), sign * f / (1 + f) ** 2, rtol=1e-5, atol=0)
        assert scaled_sigmoid.backward_all(ones[i], x[i], a1)[1] == 0
    assert all(g.isnan() for g in htaf.backward_all(ones[2], x[2], a0, a1))


@pytest.mark.parametrize("dtype", DTYPES)
def test_heaviside(dtype: torch.dtype) -> None:
    x = torch.tensor([-torch.inf, -2, -0.0, 0, 1e-7, -1e-7, 3, torch.inf, torch.nan], dtype=torch.float32).to(dtype)
    h = [0, 0, 1, 1, 1, 1 if dtype == torch.float16 and x[5] == 0 else 0, 1, 1]
    assert heaviside.forward(x)[:-1].tolist() == h
    assert heaviside.forward(x, bipolar=True)[:-1].tolist() == [2 * v - 1 for v in h]
    assert heaviside.forward(x)[-1].isnan()
    for make in LAYOUTS.values():
        values = sample(make(), dtype)
        got = heaviside.forward(values)
        assert got.stride() == torch.empty_like(values).stride()
        assert torch.equal(got, (values >= 0).to(dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [1, 7, 8, 9, 31, 33, 64, 65, 1000])
def test_bits(size: int, dtype: torch.dtype) -> None:
    x = torch.randn(size, 2, 3, generator=torch.Generator().manual_seed(size)).to(dtype).transpose(0, 2)
    bits = heaviside.pack(x)
    assert bits.tolist() == [
        [[sum(1 << j for j in range(8) if 8 * i + j < size and row[8 * i + j] >= 0) for i in range((size + 7) // 8)]
         for row in plane] for plane in x.tolist()
    ]  # fmt: skip
    assert torch.equal(heaviside.unpack(bits, size, dtype), (x >= 0).to(dtype))
    assert torch.equal(heaviside.unpack(bits, size, dtype, bipolar=True), 2 * (x >= 0).to(dtype) - 1)
    x[1, 0, size - 1] = torch.nan
    with pytest.raises(ValueError, match="cannot pack NaN to bits: the input holds NaN"):
        heaviside.pack(x)


def test_bits_of_nothing() -> None:
    assert heaviside.pack(torch.empty(3, 0)).shape == (3, 0)
    assert heaviside.pack(torch.empty(0, 9)).shape == (0, 2)
    assert heaviside.unpack(torch.empty(0, 2, dtype=torch.uint8), 9, torch.float32).shape == (0, 9)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("slope", "parameters"), SLOPES)
def test_straight_through(slope: str, parameters: tuple[float, ...], dtype: torch.dtype) -> None:
    x = torch.cat([torch.linspace(-4, 4, 2001), torch.tensor([1.0, -1.0, torch.inf, -torch.inf])]).to(dtype)
    z = x.double()
    curves = {
        "sigmoid": lambda: exact("scaled_sigmoid", x, 3.0)[1],
        "tanh": lambda: 1 / torch.cosh(z) ** 2,
        "rectangular": lambda: (z.abs() < 1).double(),
        "atan": lambda: 1 / (1 + (torch.pi * z) ** 2),
        "approx_sign": lambda: (1 - z.abs()).clamp(min=0),
        "htaf": lambda: exact("htaf", x, 1.0, 9.0)[1],
    }
    grad = torch.randn(x.shape, generator=torch.Generator().manual_seed(2)).to(dtype)
    got = straight_through.backward(grad, x, slope, list(parameters), bipolar=True)
    close(got, 2 * grad.double() * curves[slope](), dtype, 2e-6)


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
