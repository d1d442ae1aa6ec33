"""Binary weights against Bi-Real Net's code, restated, and what the layers share with those of torch."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from htaf.core.binary import BinaryConv2d, BinaryLinear, binary_weight

SHAPES = [(4, 3, 3, 3), (5, 1, 1, 1), (1, 7), (6, 2, 4)]


def published(w: Tensor) -> Tensor:
    """HardBinaryConv of liuzechun/Bi-Real-net, up to the convolution (its sign gives 0 at 0)."""
    scale = w.abs()
    for dim in reversed(range(1, w.ndim)):
        scale = scale.mean(dim, keepdim=True)
    no_grad = scale.detach() * torch.sign(w)
    clipped = torch.clamp(w, -1.0, 1.0)
    return no_grad.detach() - clipped.detach() + clipped


def weights(shape: tuple[int, ...], dtype: torch.dtype = torch.float64) -> Tensor:
    """Some within [-1, 1], some beyond, some at the ends."""
    torch.manual_seed(sum(shape))
    w = 1.5 * torch.randn(shape, dtype=dtype)
    w.view(-1)[:4] = torch.tensor([1.0, -1.0, 1.0000001, -1.0000001], dtype=dtype)
    return w


@pytest.mark.parametrize("shape", SHAPES)
def test_equals_the_published_code(shape: tuple[int, ...]) -> None:
    grad = torch.randn(shape, dtype=torch.float64)
    results = []
    for function in (published, binary_weight):
        w = weights(shape).requires_grad_()
        out = function(w)
        out.backward(grad)
        results.append((out.detach(), w.grad))
    torch.testing.assert_close(results[1], results[0], rtol=1e-13, atol=1e-13)


@given(
    st.lists(st.lists(st.floats(-3, 3, width=32), min_size=3, max_size=3), min_size=1, max_size=5),
    st.sampled_from([torch.float32, torch.float64, torch.bfloat16, torch.float16]),
)
@settings(max_examples=50, deadline=None)
def test_values_and_gradient(rows: list[list[float]], dtype: torch.dtype) -> None:
    w = torch.tensor(rows, dtype=dtype).requires_grad_()
    out = binary_weight(w)
    assert out.dtype == dtype
    values = w.detach().double()
    assert torch.equal(out.detach() >= 0, (values >= 0) | (out == 0))
    eps = torch.finfo(dtype).eps
    scales = out.detach().abs().double()
    torch.testing.assert_close(scales, values.abs().mean(1, keepdim=True).expand(-1, 3), rtol=2 * eps, atol=1e-7)
    grad = torch.arange(1.0, w.numel() + 1).reshape(w.shape).to(dtype)  # not multiplied by the scale
    out.backward(grad)
    assert torch.equal(w.grad, grad * (w.detach().abs() <= 1))


def test_zero_and_nan() -> None:
    w = torch.tensor([[0.0, -0.0, 0.0], [-0.0, 3.0, 0.0], [float("nan"), -1.0, 0.5]], requires_grad=True)
    out = binary_weight(w)
    assert out[0].tolist() == [0.0, 0.0, 0.0]
    assert out[1].tolist() == [1.0, 1.0, 1.0]  # -0.0 counts as 0, so its sign is +1
    assert out[2].isnan().all()
    out.backward(torch.full((3, 3), torch.inf))
    assert w.grad.tolist() == [[torch.inf] * 3, [torch.inf, 0.0, torch.inf], [0.0, torch.inf, torch.inf]]


def test_scale_of_a_long_filter_in_half_precision() -> None:
    w = torch.full((2, 5000), 20.0, dtype=torch.float16)  # its sum is beyond float16
    assert (binary_weight(w) == 20).all()


@pytest.mark.usefixtures("unchecked")
def test_bad_arguments() -> None:
    with pytest.raises(TypeError, match=r"^w must be a floating-point tensor, got dtype torch.int64$"):
        binary_weight(torch.ones(2, 2, dtype=torch.int64))
    with pytest.raises(ValueError, match=r"^w must have at least two dimensions, got shape \(3,\)$"):
        binary_weight(torch.ones(3))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"stride": 2, "padding": 1},
        {"padding": "same", "dilation": 2, "bias": True},
        {"groups": 2, "padding": (1, 0), "padding_mode": "circular"},
    ],
)
def test_convolution_is_torch_convolution_with_binary_weights(options: dict) -> None:
    torch.manual_seed(0)
    layer, plain = BinaryConv2d(4, 6, 3, **options), nn.Conv2d(4, 6, 3, **{"bias": False} | options)
    assert list(layer.state_dict()) == list(plain.state_dict())
    x = torch.randn(2, 4, 8, 8)
    plain.load_state_dict(layer.state_dict())
    plain.weight.data = published(layer.weight.data)
    torch.testing.assert_close(layer(x), plain(x))
    torch.testing.assert_close(layer(x[0]), plain(x[0]))


def test_linear() -> None:
    torch.manual_seed(0)
    for bias in (False, True):
        layer = BinaryLinear(5, 3, bias=bias)
        assert list(layer.state_dict()) == list(nn.Linear(5, 3, bias=bias).state_dict())
        x = torch.randn(2, 4, 5)
        torch.testing.assert_close(layer(x), F.linear(x, published(layer.weight), layer.bias))


def test_channels_last_and_autocast() -> None:
    torch.manual_seed(0)
    layer, x = BinaryConv2d(4, 6, 3, bias=True), torch.randn(2, 4, 8, 8)
    expected = layer(x)
    layer.to(memory_format=torch.channels_last)
    assert binary_weight(layer.weight).is_contiguous(memory_format=torch.channels_last)
    out = layer(x.to(memory_format=torch.channels_last))
    assert out.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(out, expected)
    with torch.autocast("cpu", torch.bfloat16):
        out = layer(x.sign())
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(out.float(), layer(x.sign()), rtol=0.02, atol=0.02)
    out.sum().backward()
    assert layer.weight.grad.dtype == torch.float32


def test_under_vmap_and_twice_differentiated() -> None:
    w = weights((3, 2, 4))
    each = torch.stack([binary_weight(entry) for entry in w])
    assert torch.equal(torch.func.vmap(binary_weight)(w), each)
    batched = torch.func.vmap(torch.func.grad(lambda v: binary_weight(v).square().sum()))(w)
    assert torch.equal(batched, 2 * each * (w.abs() <= 1))
    grad = torch.randn_like(w, requires_grad=True)  # the gradient is linear in the one that comes in
    leaf = w.clone().requires_grad_()
    (first,) = torch.autograd.grad(binary_weight(leaf), leaf, grad, create_graph=True)
    assert torch.equal(torch.autograd.grad(first.sum(), grad)[0], (w.abs() <= 1).double())
