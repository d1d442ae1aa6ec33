"""Maps of packed images: the compiled kernels against the formulas, on every instruction set that runs here."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from instruction_sets import INSTRUCTION_SETS, threads, using
from torch import Tensor

from htaf.core.kernels import native
from htaf.core.kernels.layers import Epilogue
from htaf.core.kernels.packed_maps import reference
from htaf.transform.spiking.neurons import IF, LIF

pytestmark = pytest.mark.skipif(not native.available(), reason="built without the extension")
if native.available():
    from htaf.core.kernels.packed_maps import cpu

EXAMPLES = settings(max_examples=40, deadline=None)
CHANNELS = st.sampled_from([1, 3, 8, 16, 31, 33, 63, 64, 65, 100, 128, 130, 192])


def quarters(*shape: int, seed: int) -> Tensor:
    """Multiples of 1/4, whose sums and products here are exact in float32."""
    return torch.randint(-16, 17, shape, generator=torch.Generator().manual_seed(seed)) / 4


def random_bits(*shape: int, seed: int) -> Tensor:
    return reference.pack(torch.rand(shape, generator=torch.Generator().manual_seed(seed)) < 0.4)


@pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS)
@given(channels=CHANNELS, pixels=st.integers(0, 9), bipolar=st.booleans(), seed=st.integers(0, 9))
@EXAMPLES
def test_unpack(instruction_set: str, channels: int, pixels: int, bipolar: bool, seed: int) -> None:
    bits = random_bits(2, pixels, channels, seed=seed)
    with using(instruction_set):
        found = cpu.unpack(bits, channels, bipolar=bipolar)
    assert torch.equal(found, reference.unpack(bits, channels, bipolar=bipolar))


@pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS)
@given(
    channels=CHANNELS,
    pixels=st.integers(0, 9),
    given=st.lists(st.booleans(), min_size=5, max_size=5),
    seed=st.integers(0, 9),
)
@EXAMPLES
def test_finish(instruction_set: str, channels: int, pixels: int, given: list[bool], seed: int) -> None:
    shape = (1, pixels, 2, channels)
    sums = quarters(*shape, seed=seed)
    lower, upper = quarters(channels, seed=seed + 3) - 2, quarters(channels, seed=seed + 4) + 2
    lower[::3], upper[1::3] = -math.inf, math.inf
    lower[::5] = math.inf  # never
    epilogue = Epilogue(
        quarters(channels, seed=seed + 1) if given[0] else None,
        quarters(channels, seed=seed + 2) if given[1] else None,
        quarters(*shape, seed=seed + 5) if given[0] else None,
        lower if given[3] else None,
        upper if given[3] else None,
        given[4],
    )
    with using(instruction_set):
        y, bits = cpu.finish(sums, epilogue)
    expected, expected_bits = reference.finish(sums, epilogue)
    assert (y is None) == (not given[4])
    assert (bits is None) == (not given[3])
    assert y is None or (expected is not None and torch.equal(y, expected))
    assert bits is None or (expected_bits is not None and torch.equal(bits, expected_bits))


@pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS)
def test_nan_is_within_no_interval_and_the_ends_are_in(instruction_set: str) -> None:
    sums = torch.tensor([[math.nan, 1.0, 2.0, 3.0, -math.inf, math.inf, 0.0, -0.0]]).repeat(1, 9)
    lower, upper = torch.full((72,), 1.0), torch.full((72,), 2.0)
    lower[4], upper[4], lower[5], upper[5] = -math.inf, math.inf, -math.inf, math.inf
    lower[6:8], upper[6:8] = 0.0, math.inf
    with using(instruction_set):
        _, bits = cpu.finish(sums, Epilogue(lower=lower, upper=upper, keep=False))
    assert bits is not None
    assert cpu.unpack(bits, 72)[0, :8].tolist() == [0, 1, 1, 0, 1, 1, 1, 1]


@pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS)
@given(
    channels=CHANNELS,
    size=st.tuples(st.integers(3, 9), st.integers(3, 9)),
    kernel=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    stride=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    padded=st.booleans(),
    seed=st.integers(0, 9),
)
@EXAMPLES
def test_max_pool(
    instruction_set: str, channels: int, size: tuple[int, int], kernel: tuple[int, int], stride: tuple[int, int],
    padded: bool, seed: int,
) -> None:  # fmt: skip
    bits = random_bits(2, *size, channels, seed=seed)
    padding = (kernel[0] // 2, kernel[1] // 2) if padded else (0, 0)
    with using(instruction_set):
        found = cpu.max_pool(bits, kernel, stride, padding)
    for bipolar in (False, True):
        images = reference.unpack(bits, channels, bipolar=bipolar).permute(0, 3, 1, 2)
        pooled = torch.nn.functional.max_pool2d(images, kernel, stride, padding)
        assert torch.equal(reference.unpack(found, channels, bipolar=bipolar).permute(0, 3, 1, 2), pooled)
    assert torch.equal(found, reference.max_pool(bits, kernel, stride, padding))


@pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS)
@given(channels=CHANNELS, steps=st.integers(1, 5), given=st.tuples(*[st.booleans()] * 2), seed=st.integers(0, 9))
@EXAMPLES
def test_spikes(instruction_set: str, channels: int, steps: int, given: tuple[bool, ...], seed: int) -> None:
    x = quarters(steps, 2, 3, channels, seed=seed)
    leak = {"leak": 0.5, "gain": 0.5} if given[0] else {"leak": 1.0, "gain": 1.0}
    with using(instruction_set):
        found = cpu.spikes(x, **leak, threshold=1.0, soft=given[1])
    assert torch.equal(found, reference.spikes(x, **leak, threshold=1.0, soft=given[1]))


@pytest.mark.parametrize("reset", ["hard", "soft"])
@pytest.mark.parametrize("neuron", [IF, LIF])
def test_spikes_are_those_of_the_neurons(neuron: type[IF] | type[LIF], reset: str) -> None:
    from htaf import Heaviside

    made = neuron(Heaviside(), reset=reset)  # pyright: ignore[reportArgumentType]
    x = quarters(6, 5, 70, seed=1)
    leak, gain = made.weights
    found = cpu.spikes(x, leak=leak, gain=gain, threshold=1.0, soft=reset == "soft")
    assert torch.equal(cpu.unpack(found, 70), made(x))


def test_an_expanded_input_is_read_where_it_lies() -> None:
    x = quarters(1, 4, 70, seed=2).expand(5, 4, 70)
    options = {"leak": 1.0, "gain": 1.0, "threshold": 1.0, "soft": False}
    assert torch.equal(cpu.spikes(x, **options), cpu.spikes(x.contiguous(), **options))


@pytest.mark.parametrize("number", [1, 2])
def test_threads_change_nothing(number: int) -> None:
    sums, bits = quarters(3, 40, 40, 65, seed=0), random_bits(3, 40, 40, 65, seed=1)
    interval = Epilogue(lower=torch.zeros(65), upper=torch.full((65,), math.inf))
    windows = (3, 3), (2, 2), (1, 1)
    with threads(number):
        finished, pooled, unpacked = cpu.finish(sums, interval)[1], cpu.max_pool(bits, *windows), cpu.unpack(bits, 65)
    assert torch.equal(finished, reference.finish(sums, interval)[1])  # pyright: ignore
    assert torch.equal(pooled, reference.max_pool(bits, *windows))
    assert torch.equal(unpacked, reference.unpack(bits, 65))


def test_what_does_not_fit_is_refused() -> None:
    bits, sums = random_bits(1, 4, 4, 70, seed=0), torch.zeros(1, 2, 2, 70)
    with pytest.raises(ValueError, match=r"must be uint8 \[\.\.\., 8\] for 64 channels"):
        cpu.unpack(bits, 64)
    with pytest.raises(ValueError, match=r"scale must have the shape \(70,\), got \(69,\)"):
        cpu.finish(sums, Epilogue(scale=torch.ones(69)))
    with pytest.raises(ValueError, match="residual must have the shape"):
        cpu.finish(sums, Epilogue(residual=torch.zeros(1, 2, 70)))
    with pytest.raises(ValueError, match="both lower and upper"):
        cpu.finish(sums, Epilogue(lower=torch.ones(70)))
    with pytest.raises(TypeError, match=r"float32 on the CPU, got torch\.float64"):
        cpu.finish(sums.double(), Epilogue())
    with pytest.raises(ValueError, match="at least 5 pixels"):
        cpu.max_pool(bits, (5, 5), (1, 1), (0, 0))
    with pytest.raises(ValueError, match="at most half"):
        cpu.max_pool(bits, (3, 3), (1, 1), (2, 2))
    with pytest.raises(TypeError, match="bits must be uint8"):
        cpu.max_pool(bits.int(), (2, 2), (1, 1), (0, 0))
    with pytest.raises(TypeError, match="x must be float32"):
        cpu.spikes(torch.zeros(3, 4, dtype=torch.float64), leak=1, gain=1, threshold=1, soft=False)
