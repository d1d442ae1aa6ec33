"""Layers over floats: the compiled kernels against PyTorch, on every instruction set that runs here."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from instruction_sets import INSTRUCTION_SETS, threads, using
from torch import Tensor

from htaf.core.kernels import native
from htaf.core.kernels.float_layers import reference
from htaf.core.kernels.layers import Epilogue, Geometry, row_bytes
from htaf.core.kernels.packed_maps import reference as maps
from htaf.core.kernels.table_convolution import reference as tables_reference

pytestmark = pytest.mark.skipif(not native.available(), reason="built without the extension")
if native.available():
    from htaf.core.kernels.float_layers import cpu
    from htaf.core.kernels.table_convolution import cpu as tables

EXAMPLES = settings(max_examples=40, deadline=None)
PAIRS = st.tuples(st.integers(1, 3), st.integers(1, 3))


def quarters(*shape: int, seed: int) -> Tensor:
    """Multiples of 1/4, whose sums and products here are exact in float32."""
    return torch.randint(-16, 17, shape, generator=torch.Generator().manual_seed(seed)) / 4


@pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS)
@given(
    channels=st.sampled_from([1, 2, 3, 16, 65]), outputs=st.sampled_from([1, 7, 16, 33, 64, 65, 130]), kernel=PAIRS,
    stride=PAIRS, padding=st.tuples(st.integers(0, 2), st.integers(0, 2)), dilation=PAIRS, size=st.integers(7, 13),
    batch=st.integers(1, 3), last=st.booleans(), bias=st.booleans(), number=st.integers(1, 2), seed=st.integers(0, 9),
)  # fmt: skip
@EXAMPLES
def test_convolution(
    instruction_set: str, channels: int, outputs: int, kernel: tuple[int, int], stride: tuple[int, int],
    padding: tuple[int, int], dilation: tuple[int, int], size: int, batch: int, last: bool, bias: bool, number: int,
    seed: int,
) -> None:  # fmt: skip
    g = Geometry(channels, outputs, kernel, stride, padding, dilation)
    x = quarters(batch, channels, size + 2, size, seed=seed)
    x = x.contiguous(memory_format=torch.channels_last) if last else x
    weight, added = quarters(outputs, channels, *kernel, seed=seed + 1), quarters(outputs, seed=seed + 2)
    added = added if bias else None
    prepared = cpu.prepare(weight)
    with using(instruction_set), threads(number):
        found = cpu.convolution(x, prepared, added, g)
    assert torch.equal(found, reference.convolution(x, weight, added, g))
    assert found.is_contiguous(memory_format=torch.channels_last)


@st.composite
def windows_of_maxima(draw: st.DrawFn) -> tuple[tuple[int, int], tuple[int, int], tuple[int, int]]:
    """Kernel, stride and padding; a stride may pass over rows that no window takes."""
    kernel = draw(st.tuples(st.integers(1, 4), st.integers(1, 4)))
    padding = draw(st.integers(0, kernel[0] // 2)), draw(st.integers(0, kernel[1] // 2))
    return kernel, draw(st.tuples(st.integers(1, 5), st.integers(1, 5))), padding


@pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS)
@pytest.mark.parametrize("rounded", [False, True])
@given(
    outputs=st.sampled_from([1, 15, 64, 65, 130]), kernel=PAIRS, window=windows_of_maxima(), batch=st.integers(1, 3),
    number=st.integers(1, 3), keep=st.booleans(), seed=st.integers(0, 9),
)  # fmt: skip
@EXAMPLES
def test_maxima_of_sums_that_are_not_kept(
    instruction_set: str, rounded: bool, outputs: int, kernel: tuple[int, int],
    window: tuple[tuple[int, int], tuple[int, int], tuple[int, int]], batch: int, number: int, keep: bool, seed: int,
) -> None:  # fmt: skip
    """The largest sums of windows, their bias and their bits, in one pass."""
    g = Geometry(3, outputs, kernel, padding=(1, 0))
    x, weight = quarters(batch, 3, 9, 11, seed=seed), quarters(outputs, 3, *kernel, seed=seed + 1)
    bias, lower = quarters(outputs, seed=seed + 2), quarters(outputs, seed=seed + 3)
    upper = torch.where(lower > 0, torch.inf, lower + 40)
    if rounded:
        integers = reference.Rounded((4 * weight).short(), torch.full((outputs,), 0.25), 2, 10)
        laid, whole = cpu.prepare_rounded(integers), reference.rounded(x, integers, g)
        weights, native_call = laid.held(), native.extension().rounded_convolution
    else:
        laid, whole = cpu.prepare(weight), reference.convolution(x, weight, None, g)
        weights, native_call = laid.data_ptr(), native.extension().float_convolution
    y = (reference.maximum(whole, *window) + bias.view(-1, 1, 1)).permute(0, 2, 3, 1)
    found, bits = torch.empty(y.shape), torch.empty(*y.shape[:-1], row_bytes(outputs), dtype=torch.uint8)
    into = found.data_ptr() if keep else 0, lower.data_ptr(), upper.data_ptr(), bits.data_ptr()
    with using(instruction_set):
        native_call(
            cpu.shape_of(x, g),
            x.data_ptr(),
            cpu.strides_of(x),
            weights,
            window,
            (0, bias.data_ptr(), 0, *into, 0, 0),
            number,
        )
    assert not keep or torch.equal(found, y)
    assert torch.equal(bits, maps.pack((lower <= y) & (y <= upper)))


@pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS)
def test_integers_of_images_that_have_none(instruction_set: str) -> None:
    """NaN makes its image NaN and no other one; what is beyond the limit, as inf, is clipped."""
    g = Geometry(3, 5, (3, 3), padding=(1, 1))
    integers = reference.Rounded((4 * quarters(5, 3, 3, 3, seed=1)).short(), torch.full((5,), 0.25), 12, 9000)
    laid = cpu.prepare_rounded(integers)
    x = quarters(6, 3, 7, 6, seed=2) / 8
    x[1, 2, 3, 4], x[2, 0, 0, 0], x[3, 2, 6, 5] = torch.nan, torch.inf, -torch.inf
    x[4], x[5] = 1e-38 * x[4], 0
    with using(instruction_set):
        found = cpu.rounded(x, laid, g)
    assert found[1].isnan().all()
    assert found[[0, 2, 3, 4, 5]].isfinite().all()
    assert not found[4:].any()
    torch.testing.assert_close(found, reference.rounded(x, integers, g), rtol=0, atol=0, equal_nan=True)
    clipped = x.clamp(-9000 / 4096, 9000 / 4096)
    exact = reference.convolution(clipped.double(), quarters(5, 3, 3, 3, seed=1).double(), None, g)
    assert torch.equal(found[[0, 2, 3]], exact[[0, 2, 3]].float())  # quarters of eighths are on the grid


@pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS)
def test_the_largest_integer_sums_fit(instruction_set: str) -> None:
    """Inputs of the largest number and weights of one sign: the sum that comes nearest to 2^24."""
    g = Geometry(37, 3, (1, 3))
    weight = torch.ones(3, 37, 1, 3).short()
    weight[1], weight[2, 0] = -1, 4
    limit = 2**24 // 120
    limit = min(limit, 32767)
    integers, x = reference.Rounded(4 * weight, torch.ones(3), 0, limit), torch.full((1, 37, 1, 5), 1e30)
    with using(instruction_set):
        found = cpu.rounded(x, cpu.prepare_rounded(integers), g)
    assert torch.equal(found, reference.rounded(x, integers, g))
    assert float(found.max()) == limit * 4 * 120


@pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS)
@given(
    channels=st.sampled_from([1, 5, 64, 70]), kernel=PAIRS, stride=PAIRS, padded=st.booleans(), seed=st.integers(0, 9),
    size=st.integers(3, 9),
)  # fmt: skip
@EXAMPLES
def test_windows(
    instruction_set: str, channels: int, kernel: tuple[int, int], stride: tuple[int, int], padded: bool, seed: int,
    size: int,
) -> None:  # fmt: skip
    x = quarters(2, channels, size, size + 1, seed=seed).contiguous(memory_format=torch.channels_last)
    padding = (kernel[0] // 2, kernel[1] // 2) if padded else (0, 0)
    with using(instruction_set):
        means, largest = cpu.average(x, kernel, stride), cpu.maximum(x, kernel, stride, padding)
        x_nan = torch.where(x == 1, torch.nan, x)
        with_nan = cpu.maximum(x_nan, kernel, stride, padding)
    torch.testing.assert_close(means, reference.average(x, kernel, stride))
    assert torch.equal(largest, reference.maximum(x, kernel, stride, padding))
    torch.testing.assert_close(
        with_nan, reference.maximum(x_nan, kernel, stride, padding), equal_nan=True, rtol=0, atol=0
    )


@pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS)
@given(
    inputs=st.sampled_from([1, 31, 64, 65, 200]), outputs=st.sampled_from([1, 16, 63, 65, 200]), rows=st.integers(1, 6),
    seed=st.integers(0, 9),
)  # fmt: skip
@EXAMPLES
def test_few_rows_of_a_linear_layer(instruction_set: str, inputs: int, outputs: int, rows: int, seed: int) -> None:
    g = Geometry(inputs, outputs)
    bits = maps.pack(torch.rand(1, 1, rows, inputs, generator=torch.Generator().manual_seed(seed)) < 0.5)
    weights = tables.prepare(quarters(outputs, inputs, 1, 1, seed=seed), g, "float32")
    lower = quarters(outputs, seed=seed + 1)
    epilogue = Epilogue(None, None, None, lower, torch.full_like(lower, torch.inf), True)
    with using(instruction_set):
        y, found = tables.bind(weights, g, epilogue)(bits)
    expected = tables_reference.forward(bits, weights, g, epilogue)
    assert torch.equal(y, expected[0])
    assert found.shape[-1] == row_bytes(outputs)
    assert torch.equal(found, expected[1])


def test_what_does_not_fit_is_refused() -> None:
    weights, x = cpu.prepare(torch.zeros(4, 3, 2, 2)), torch.zeros(1, 3, 5, 5)
    with pytest.raises(TypeError, match="float32 on the CPU, got"):
        cpu.convolution(x.double(), weights, None, Geometry(3, 4, (2, 2)))
    with pytest.raises(ValueError, match="images of 3 channels in one group"):
        cpu.convolution(x[:, :2], weights, None, Geometry(3, 4, (2, 2)))
    with pytest.raises(ValueError, match="weights must have the shape"):
        cpu.convolution(x, weights, None, Geometry(3, 4, (3, 3)))
    with pytest.raises(ValueError, match="at least 9 pixels"):
        cpu.convolution(x, cpu.prepare(torch.zeros(4, 3, 9, 1)), None, Geometry(3, 4, (9, 1)))
    with pytest.raises(ValueError, match="half of the kernel"):
        cpu.maximum(x, (2, 2), (1, 1), (2, 0))
    with pytest.raises(TypeError, match=r"got torch.float32 \(3, 5, 5\)"):
        cpu.average(x[0], (2, 2), (1, 1))
