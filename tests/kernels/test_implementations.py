"""Every implementation of every kernel against its reference in float64: outputs and all gradients, in one table."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Callable, Iterator
from types import ModuleType

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from instruction_sets import INSTRUCTION_SETS, threads
from torch import Tensor

from htaf.core.kernels import native
from htaf.core.kernels.registration import implementation

# name -> (file of the operator's folder, instruction set)
IMPLEMENTATIONS: dict[str, tuple[str, str]] = {
    "reference": ("reference", ""),
    **{name: ("cpu", name) for name in INSTRUCTION_SETS},
}
TRITON = os.environ.get("TRITON_INTERPRET") == "1"  # settled at the first import, so test_triton.py runs this again
if TRITON:
    IMPLEMENTATIONS["triton"] = ("triton", "")
MANY = 6000 if TRITON else 40000  # more values than a block holds, whose kernels Python interprets there
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
PAIRS = [(0.1, 220.0), (0.5, 44.0), (1.0, 22.0), (2.0, 11.0), (3.0, 7.3), (5.0, 4.4)]

LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {  # from many values, an x
    "0-d": lambda v: v[3],
    "empty": lambda v: v[:0],
    "empty rows": lambda v: v[:0].reshape(3, 0, 2),
    "1": lambda v: v[:1],
    "31": lambda v: v[:31],
    "33": lambda v: v[:33],
    "65": lambda v: v[:65],
    "1000": lambda v: v[:1000],
    "unaligned": lambda v: v[1:130],
    "3-d": lambda v: v[:24].reshape(2, 3, 4),
    "images": lambda v: v[:1176].reshape(2, 12, 7, 7),
    "channels last": lambda v: v[:1176].reshape(2, 12, 7, 7).to(memory_format=torch.channels_last),
    "transposed": lambda v: v[:91].reshape(7, 13).t(),
    "permuted": lambda v: v[:210].reshape(5, 6, 7).permute(2, 0, 1),
    "strided": lambda v: v[:240].reshape(20, 12)[::3, 1:9:2],
    "expanded": lambda v: v[:9].reshape(9, 1).expand(9, 5),
    "more than one block": lambda v: v[:MANY],
    "wide rows": lambda v: v[: 3 * MANY // 2].reshape(3, MANY // 2),
}


@pytest.fixture(params=IMPLEMENTATIONS)
def kind(request: pytest.FixtureRequest) -> Iterator[str]:
    """The file that implements an operator, the compiled kernels set to one instruction set."""
    file, instruction_set = IMPLEMENTATIONS[request.param]
    if not instruction_set:
        yield file
        return
    before = native.extension().instruction_set()
    native.extension().use_instruction_set(instruction_set)
    yield file
    native.extension().use_instruction_set(before)


@pytest.fixture(scope="module")
def values() -> Tensor:
    """Values as a network has them, the far tails, and the awkward ones; float64."""
    torch.manual_seed(0)
    special = [0.0, -0.0, 1e-45, -1e-45, 1e-38, -3e-39, 6e-8, -6e-8, 1.0, -1.0, 20.0, -20.0, 65504.0, -65504.0]
    parts = [torch.tensor(special, dtype=torch.float64), 3 * torch.randn(59986, dtype=torch.float64)]
    return torch.cat(parts)[torch.randperm(60000)]


def rounded(parameters: tuple[float, ...]) -> tuple[float, ...]:
    """As float32 arithmetic sees them."""
    return tuple(torch.tensor(parameters, dtype=torch.float32).tolist())


def check(found: Tensor, exact: Tensor, relative: float, absolute: float = 0.0) -> None:
    """|found - exact| <= relative |exact| + absolute, half a unit of a 16-bit type more, one denormal always."""
    info = torch.finfo(found.dtype)
    assert found.shape == exact.shape
    if found.dtype != torch.float32:
        relative += 0.5 * info.eps
    exact = exact.clamp(-info.max, info.max)
    slack = relative * exact.abs() + absolute + info.smallest_normal * info.eps
    if found.dtype == torch.float32:  # below the normal numbers only the absolute error counts
        slack = torch.where(exact.abs() < info.tiny, slack + 1e-43, slack)
    error = (found.double().clamp(-info.max, info.max) - exact).abs()  # float16 overflows
    assert (error <= slack).all(), f"off by {(error / slack.clamp(min=1e-300)).max().item():.3g} times the limit"


def is_rough(kind: str, dtype: torch.dtype) -> bool:
    """Whether the error before the rounding to 16 bits may be that of a shorter exponential."""
    return dtype == torch.bfloat16 or (kind == "triton" and dtype != torch.float32)


def slope_limit(dtype: torch.dtype, alpha1: float) -> float:
    """The relative error that the gradients of a float32 kernel may have before they are rounded."""
    return (3e-5 if alpha1 > 44 else 1e-5) * (1 if dtype == torch.float32 else 2)


def parameter_sum_is_right(found: Tensor, terms: Tensor, sizes: Tensor) -> None:
    """A sum of terms against the sum of their errors."""
    assert found.shape == sizes.shape
    error = (found.double() - terms.sum_to_size(found.shape)).abs()
    assert (error <= sizes + 1e-43).all(), f"off by {(error / (sizes + 1e-43)).max().item():.3g} times the limit"


SMOOTH = [("htaf", pair) for pair in PAIRS] + [("scaled_sigmoid", (beta,)) for beta in (1.0, 22.0, 100.0)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("operator", "parameters"), SMOOTH)
def test_smooth_with_floats(
    kind: str, operator: str, parameters: tuple[float, ...], dtype: torch.dtype, values: Tensor
) -> None:
    module, exact = implementation(operator, kind), implementation(operator, "reference")
    p = rounded(parameters)
    limit = slope_limit(dtype, p[-1])
    names = ("0-d", "empty", "1", "33", "permuted", "strided", "expanded", "more than one block")
    for name, bipolar in itertools.product(names, (False, True)):
        x, scale = LAYOUTS[name](values).to(dtype), 2 if bipolar else 1
        y = module.forward(x, *p, bipolar=bipolar)
        assert y.dtype == dtype
        assert y.stride() == torch.empty_like(x).stride()
        error = (3e-5, 3e-5 * bipolar + 2e-38) if is_rough(kind, dtype) else (0.0, scale * 2.5e-7)
        check(y, exact.forward(x.double(), *p, bipolar=bipolar), *error)
        grad = LAYOUTS[name](values.flip(0)).to(dtype)
        gx = module.backward(grad, x, *p, bipolar=bipolar)
        assert gx.dtype == dtype
        assert gx.stride() == torch.empty_like(x).stride()
        check(gx, grad.double() * scale * exact.slope(x.double(), *p), limit)
        assert torch.equal(gx, module.backward(grad, -x, *p, bipolar=bipolar))  # exactly even


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("operator", ["htaf", "scaled_sigmoid"])
def test_smooth_with_tensors(kind: str, operator: str, dtype: torch.dtype, values: Tensor) -> None:
    module, reference = implementation(operator, kind), implementation(operator, "reference")
    for name, shape in ((n, shape) for n in LAYOUTS for shape in parameter_shapes(LAYOUTS[n](values))):
        x, grad = LAYOUTS[name](values).to(dtype), LAYOUTS[name](values.flip(0)).to(dtype)
        generator = torch.Generator().manual_seed(1)
        bounds = ((0.5, 3.0), (2.0, 12.0)) if operator == "htaf" else ((2.0, 30.0),)
        p = [low + (high - low) * torch.rand(shape, generator=generator) for low, high in bounds]
        if kind != "reference":
            assert module.supports(x, *p)
        wide = [t.double() for t in p]
        check(module.forward(x, *p, bipolar=True), reference.forward(x.double(), *wide, bipolar=True), 1e-5, 3e-5)
        slope, *others = reference.gradients(x.double(), *wide)
        limit = slope_limit(dtype, 12)
        check(module.backward(grad, x, *p, bipolar=True), 2 * grad.double() * slope, limit)
        gx, *sums = module.backward_all(grad, x, *p, bipolar=True)
        check(gx, 2 * grad.double() * slope, limit)
        for found, of, other in zip(sums, p, others, strict=True):
            assert found.dtype == of.dtype
            terms = 2 * grad.double() * other
            error = limit * terms.abs()
            if dtype == torch.bfloat16 or kind == "triton":  # tanh is good to 2e-7 there, also where it is small
                error = error + 2e-7 * grad.double().abs()
            parameter_sum_is_right(found, terms, error.sum_to_size(shape))


def parameter_shapes(x: Tensor) -> list[torch.Size]:
    """One parameter for all of x, and one for each place along each dimension."""
    shapes = [torch.Size([]), torch.Size([1])][: 1 + (x.ndim > 0)]
    return shapes + [torch.Size([n if d == dim else 1 for d, n in enumerate(x.shape)][dim:]) for dim in range(x.ndim)]


SLOPES = [
    ("sigmoid", [1.0]), ("sigmoid", [4.0]), ("tanh", []), ("rectangular", []), ("atan", [2.0]), ("atan", [0.3]),
    ("approx_sign", []), ("htaf", [2.0, 11.0]),
]  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("slope", "parameters"), SLOPES)
def test_straight_through(kind: str, slope: str, parameters: list[float], dtype: torch.dtype, values: Tensor) -> None:
    module, exact = implementation("straight_through", kind), implementation("straight_through", "reference")
    for name in ("0-d", "empty", "1", "33", "permuted", "strided", "more than one block"):
        x, grad = LAYOUTS[name](values).to(dtype), LAYOUTS[name](values.flip(0)).to(dtype)
        for bipolar in (False, True):
            found = module.backward(grad, x, slope, parameters, bipolar=bipolar)
            assert found.dtype == dtype
            wide = exact.backward(grad.double(), x.double(), slope, list(rounded(tuple(parameters))), bipolar=bipolar)
            check(found, wide, slope_limit(dtype, 1.0))


NAN, INF = math.nan, math.inf


NEURONS = [("htaf", "", (2.0, 11.0)), ("scaled_sigmoid", "", (7.0,)), ("step", "", ())]
NEURONS += [("step", slope, tuple(parameters)) for slope, parameters in SLOPES]
CHARGES = [(1.0, 1.0), (0.5, 0.5), (0.75, 1.0)]  # leak and gain


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("spike", "slope", "parameters"), NEURONS)
def test_neurons(kind: str, spike: str, slope: str, parameters: tuple[float, ...], dtype: torch.dtype) -> None:
    if kind == "triton":
        pytest.skip("neurons have no Triton kernel")
    module, exact = implementation("neuron", kind), implementation("neuron", "reference")
    draw = torch.Generator().manual_seed(0)
    sizes = itertools.cycle(((4, 300), (1, 33), (7, 65), (4, 300), (3, 0)))
    for i, (soft, exact_reset, attached) in enumerate(itertools.product((False, True), repeat=3)):
        (steps, n), (leak, gain) = next(sizes), CHARGES[i % 3]
        # sixteenths: every charged potential is exact, so no spike hangs on the rounding
        x, v, gs, gv = (
            torch.randint(-32, 48, shape, generator=draw).float() / 16 for shape in ((steps, n), (n,), (steps, n), (n,))
        )
        x, gs = x.to(dtype), gs.to(dtype)
        neuron = exact.Neuron(spike, slope, rounded(parameters), leak, gain, 0.75, soft, exact_reset, attached)
        for state, back in ((v, gv), (None, None)):
            wide = [None if t is None else t.double() for t in (state, back)]
            spikes, last = module.forward(x, state, neuron)
            s, end = exact.forward(x.double(), wide[0], neuron)
            gx, g0 = module.backward(gs, back, x, state, neuron)
            gradients = exact.backward(gs.double(), wide[1], x.double(), wide[0], neuron)
            assert spikes.dtype == gx.dtype == dtype
            assert last.dtype == g0.dtype == torch.float32
            check(spikes, s, 0.0, 5e-6)
            check(last, end, 0.0, 5e-6)
            check(gx, gradients[0], 1e-4, 2e-4)
            check(g0, gradients[1], 1e-4, 2e-4)


@pytest.mark.parametrize("spike", ["htaf", "step"])
def test_a_nan_stays_in_its_neuron(kind: str, spike: str) -> None:
    if kind == "triton":
        pytest.skip("neurons have no Triton kernel")
    module, exact = implementation("neuron", kind), implementation("neuron", "reference")
    neuron = exact.Neuron(spike, "", (2.0, 11.0) if spike == "htaf" else (), 1.0, 1.0, 1.0, False, False, False)
    x = torch.zeros(3, 100)
    x[1, 40] = NAN
    spikes, v = module.forward(x, None, neuron)
    gx, _ = module.backward(torch.ones_like(x), None, x, None, neuron)
    for found, first in ((spikes, 1), (gx[:2], 0), (v[None], 0)):
        assert found[first:, 40].isnan().all()
        assert not torch.cat([found[:, :40], found[:, 41:]], 1).isnan().any()
    assert spikes[0, 40] < 1e-4


@pytest.mark.parametrize("dtype", DTYPES)
def test_special_values(kind: str, dtype: torch.dtype) -> None:
    htaf, sigmoid = implementation("htaf", kind), implementation("scaled_sigmoid", kind)
    x = torch.tensor([NAN, INF, -INF, 0.0, -0.0], dtype=dtype)
    ones = torch.ones_like(x)
    top = 1 / (1 + math.exp(-11))

    def same(found: Tensor, expected: list[float]) -> None:
        torch.testing.assert_close(found, torch.tensor(expected, dtype=dtype), rtol=2e-7, atol=3e-7, equal_nan=True)

    same(htaf.forward(x, 2.0, 11.0, bipolar=False), [NAN, top, 1 - top, 0.5, 0.5])
    same(htaf.forward(x, 2.0, 11.0, bipolar=True), [NAN, 2 * top - 1, 1 - 2 * top, 0, 0])
    same(sigmoid.forward(x, 22.0, bipolar=False), [NAN, 1, 0, 0.5, 0.5])
    assert sigmoid.forward(x, 22.0, bipolar=False)[2] == 0  # exactly
    same(htaf.backward(ones, x, 2.0, 11.0, bipolar=False), [NAN, 0, 0, 5.5, 5.5])
    same(sigmoid.backward(ones, x, 22.0, bipolar=False), [NAN, 0, 0, 5.5, 5.5])
    assert (htaf.backward(ones, x, 2.0, 11.0, bipolar=False)[1:3] == 0).all()
    nan_grad = htaf.backward(torch.tensor([NAN, INF, -INF], dtype=dtype), ones[:3], 2.0, 11.0, bipolar=False)
    assert nan_grad[0].isnan()
    assert (nan_grad[1:] == torch.tensor([INF, -INF], dtype=dtype)).all()
    for side in (INF, -INF):
        point = torch.full((1,), side, dtype=dtype)
        alphas = [torch.tensor(v) for v in (2.0, 11.0)]
        gx, g0, g1 = htaf.backward_all(torch.ones_like(point), point, *alphas, bipolar=False)
        assert [gx.item(), g0.item()] == [0, 0]
        assert g1.item() == pytest.approx(math.copysign(math.exp(-11) / (1 + math.exp(-11)) ** 2, side), rel=1e-5)


@pytest.mark.parametrize("bipolar", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_heaviside(kind: str, dtype: torch.dtype, bipolar: bool, values: Tensor) -> None:
    module, below = implementation("heaviside", kind), -1 if bipolar else 0
    for name, layout in LAYOUTS.items():
        x = layout(values).to(dtype)
        found, expected = module.forward(x, bipolar=bipolar), torch.where(x >= 0, 1, below).to(dtype)
        assert torch.equal(found, expected), name
        assert found.stride() == torch.empty_like(x).stride(), name
    x = torch.tensor([0.0, -0.0, 6e-8, -6e-8, INF, -INF, NAN], dtype=dtype)
    step = torch.tensor([1, 1, 1, below, 1, below, NAN], dtype=dtype)
    torch.testing.assert_close(module.forward(x, bipolar=bipolar), step, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", DTYPES)
def test_bits_are_those_of_numpy(kind: str, dtype: torch.dtype, values: Tensor) -> None:
    module = implementation("heaviside", kind)
    for name, layout in LAYOUTS.items():
        x = layout(values).to(dtype)
        if x.ndim == 0:
            continue
        bits = module.pack(x)
        expected = np.packbits(x.float().numpy() >= 0, axis=-1, bitorder="little")
        assert bits.dtype == torch.uint8
        assert np.array_equal(bits.numpy(), expected), name
        for bipolar in (False, True):
            back = implementation("heaviside", "reference").unpack(bits, x.shape[-1], dtype, bipolar=bipolar)
            assert torch.equal(back, module.forward(x, bipolar=bipolar).contiguous()), name


def test_a_nan_anywhere_cannot_be_packed(kind: str) -> None:
    module = implementation("heaviside", kind)
    for size in (1, 7, 8, 64, 1000, 20001):
        for place in {0, size // 2, size - 1}:
            x = torch.zeros(size)
            x[place] = NAN
            with pytest.raises(ValueError, match=r"^cannot pack NaN to bits: the input holds NaN$"):
                module.pack(x)


@pytest.mark.parametrize("name", INSTRUCTION_SETS)
@given(data=st.data())
def test_packing_any_shape(name: str, data: st.DataObject) -> None:
    shape = [*data.draw(st.lists(st.integers(0, 5), max_size=2)), data.draw(st.integers(0, 200))]
    x = torch.randn(shape, generator=torch.Generator().manual_seed(data.draw(st.integers(0, 99))))
    native.extension().use_instruction_set(name)
    bits = native.pack(x)
    native.extension().use_instruction_set(INSTRUCTION_SETS[0])
    assert np.array_equal(bits.numpy(), np.packbits(x.numpy() >= 0, axis=-1, bitorder="little"))


@pytest.mark.skipif(not INSTRUCTION_SETS, reason="no compiled kernels")
def test_the_result_does_not_depend_on_the_threads(values: Tensor) -> None:
    cpu: ModuleType = implementation("htaf", "cpu")
    p = [torch.rand(12, 1, 1) + 1, 5 * torch.rand(12, 1, 1) + 1]
    found = []
    for x in (values[:58800].float().reshape(100, 12, 7, 7), values[:58800].float().reshape(1, 12, 70, 70)):
        x = x.to(memory_format=torch.channels_last) if x.shape[0] == 100 else x
        for number in (1, 2, 5):
            with threads(number):
                found.append(cpu.backward_all(torch.ones_like(x), x, *p, bipolar=False))
        for other in found[-2:]:
            assert all(torch.equal(a, b) for a, b in zip(other, found[-3], strict=True))


@pytest.mark.slow
@pytest.mark.skipif(not INSTRUCTION_SETS, reason="no compiled kernels")
def test_more_than_two_to_the_31_values() -> None:
    size = 2**31 + 77  # 4 GiB a tensor
    x = torch.zeros(size, dtype=torch.bfloat16)
    places = torch.tensor([0, 2**30 + 5, 2**31 - 2, 2**31, 2**31 + 40, size - 1])
    x[places] = -1.0
    cpu = implementation("heaviside", "cpu")
    bits = cpu.pack(x)
    assert bits.numel() == (size + 7) // 8
    assert [(bits[i // 8].item() >> (i % 8)) & 1 for i in places.tolist()] == [0] * 6
    assert [(bits[i // 8].item() >> (i % 8)) & 1 for i in (places[1:-1] + 1).tolist()] == [1] * 4
    del bits
    y = implementation("htaf", "cpu").forward(x, 2.0, 11.0, bipolar=False)
    assert (y[places] < 1e-4).all()
    assert (y[places[1:-1] + 1] == 0.5).all()
    assert (y[7 :: 2**20] == 0.5).all()
    del y
    gx = implementation("htaf", "cpu").backward(x, x, 2.0, 11.0, bipolar=False)
    assert (gx[places] < 0).all()
    assert (gx[places[1:-1] + 1] == 0).all()
