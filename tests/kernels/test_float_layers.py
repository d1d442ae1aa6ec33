"""Layers over floats: the compiled kernels against PyTorch, on every instruction set that runs here."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from instruction_sets import INSTRUCTION_SETS, using
from torch import Tensor

from htaf.kernels import native
from htaf.kernels.float_layers import reference
from htaf.kernels.layers import Epilogue, Geometry, row_bytes
from htaf.kernels.packed_maps import reference as maps
from htaf.kernels.table_convolution import reference as tables_reference

pytestmark = pytest.mark.skipif(not native.available(), reason="built without the extension")
if native.available():
    from htaf.kernels.float_layers import cpu
    from htaf.kernels.table_convolution import cpu as tables

EXAMPLES = settings(max_examples=40, deadline=None)
PAIRS = st.tuples(st.integers(1, 3), st.integers(1, 3))


def quarters(*shape: int, seed: int) -> Tensor:
    """Multiples of 1/4, whose sums and products here are exact in float32."""
    return torch.randint(-16, 17, shape, generator=torch.Generator().manual_seed(seed)) / 4


@pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS)
@given(
    channels=st.sampled_from([1, 2, 3, 16, 65]), outputs=st.sampled_from([1, 7, 16, 33, 64, 65, 130]), kernel=PAIRS,
    stride=PAIRS, padding=st.tuples(st.integers(0, 2), st.integers(0, 2)), dilation=PAIRS, size=st.integers(7, 13),
    batch=st.integers(1, 3), last=st.booleans(), bias=st.booleans(), threads=st.integers(1, 2), seed=st.integers(0, 9),
)  # fmt: skip
@EXAMPLES
def test_convolution(
    instruction_set: str, channels: int, outputs: int, kernel: tuple[int, int], stride: tuple[int, int],
    padding: tuple[int, int], dilation: tuple[int, int], size: int, batch: int, last: bool, bias: bool, threads: int,
    seed: int,
) -> None:  # fmt: skip
    g = Geometry(channels, outputs, kernel, stride, padding, dilation)
    x = quarters(batch, channels, size + 2, size, seed=seed)
    x = x.contiguous(memory_format=torch.channels_last) if last else x
    weight, added = quarters(outputs, channels, *kernel, seed=seed + 1), quarters(outputs, seed=seed + 2)
    added = added if bias else None
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        with using(instruction_set):
            found = cpu.convolution(x, cpu.prepare(weight), added, g)
    finally:
        torch.set_num_threads(before)
    assert torch.equal(found, reference.convolution(x, weight, added, g))
    assert found.is_contiguous(memory_format=torch.channels_last)


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
