"""Depthwise convolution of bits and sums of spikes: the formulas' sums and bits on every instruction set."""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from instruction_sets import INSTRUCTION_SETS, threads, using
from torch import Tensor

from htaf.kernels.depthwise_convolution import cpu, reference
from htaf.kernels.layers import Epilogue, Geometry, Outputs, row_bytes
from htaf.kernels.packed_maps.reference import pack

compiled = pytest.mark.skipif(not INSTRUCTION_SETS, reason="no compiled kernels")


class Case(NamedTuple):
    geometry: Geometry
    planes: int
    bipolar: bool
    batch: int
    height: int
    width: int
    seed: int

    def weight(self, whole: bool) -> Tensor:
        made = torch.Generator().manual_seed(self.seed)
        shape = (self.geometry.outputs, 1, *self.geometry.kernel)
        return torch.randint(-127, 128, shape, generator=made).float() if whole else torch.randn(shape, generator=made)

    def levels(self) -> Tensor:
        """bool [planes, batch, height, width, channels]."""
        made = torch.Generator().manual_seed(self.seed + 1)
        shape = (self.planes, self.batch, self.height, self.width, self.geometry.channels)
        return torch.rand(shape, generator=made) < 0.6

    def bits(self) -> Tensor:
        return torch.cat([pack(plane) for plane in self.levels()], -1)

    def epilogue(self, fields: str) -> Epilogue:
        g, made = self.geometry, torch.Generator().manual_seed(self.seed + 2)
        size = (self.batch, *g.out_size(self.height, self.width), g.outputs)
        lower = torch.randint(-200, 200, (g.outputs,), generator=made) / 2  # half of them numbers that sums meet
        upper, which = lower + 50, torch.randint(0, 3, (g.outputs,), generator=made)
        upper[which == 1], lower[which == 2] = torch.inf, -torch.inf
        return Epilogue(
            residual=torch.randn(size, generator=made) if "r" in fields else None,
            lower=lower if "b" in fields else None,
            upper=upper if "b" in fields else None,
            keep="y" in fields,
            wide=torch.randn(2, g.outputs, dtype=torch.float64, generator=made) if "w" in fields else None,
        )

    def run(self, kernel: object, whole: bool, epilogue: Epilogue) -> Outputs:
        weights = kernel.prepare(self.weight(whole), self.geometry, planes=self.planes, bipolar=self.bipolar)  # pyright: ignore[reportAttributeAccessIssue]
        return kernel.forward(self.bits(), weights, self.geometry, epilogue)  # pyright: ignore[reportAttributeAccessIssue]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    planes = draw(st.sampled_from([1, 1, 1, 2, 3, 7]))
    channels = draw(st.one_of(st.integers(2, 40), st.sampled_from([63, 64, 65, 96, 130, 200])))
    pair = st.tuples(st.integers(1, 4), st.integers(1, 4))
    kernel, stride, dilation = draw(pair), draw(pair), draw(pair)
    padding = draw(st.tuples(st.integers(0, 5), st.integers(0, 5)))
    least = [max(1, d * (k - 1) + 1 - 2 * p) for k, d, p in zip(kernel, dilation, padding, strict=True)]
    size = [draw(st.integers(n, 15)) for n in least]
    geometry = Geometry(channels, channels, kernel, stride, padding, dilation, channels)
    bipolar = planes == 1 and draw(st.booleans())
    return Case(geometry, planes, bipolar, draw(st.integers(0, 3)), size[0], size[1], draw(st.integers(0, 99)))


@compiled
@settings(max_examples=60, deadline=None)
@given(case=cases(), fields=st.sampled_from(["y", "b", "yb", "ry", "wy", "wb", "rwyb"]), whole=st.booleans())
def test_every_instruction_set_gives_what_the_formulas_give(case: Case, fields: str, whole: bool) -> None:
    epilogue = case.epilogue(fields)
    expected = case.run(reference, whole, epilogue)
    for name in INSTRUCTION_SETS:
        with using(name):
            got = case.run(cpu, whole, epilogue)
        for a, b in zip(got, expected, strict=True):
            assert (a is None) == (b is None)
            if a is None or b is None:
                continue
            assert a.shape == b.shape
            if whole and not ("r" in fields and "w" in fields and a.dtype == torch.float32):
                assert torch.equal(a, b), name
            elif a.dtype == torch.float32:
                torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-4)


@settings(max_examples=30, deadline=None)
@given(case=cases())
def test_the_formula(case: Case) -> None:
    """Tap by tap, as the docstring has it."""
    g, values = case.geometry, case.levels().double()
    level = sum(2.0**i * plane for i, plane in enumerate(values))
    assert isinstance(level, Tensor)
    level = 2 * level - 1 if case.bipolar else level
    weight = case.weight(True)
    height, width = g.out_size(case.height, case.width)
    expected = torch.zeros(case.batch, height, width, g.channels, dtype=torch.float64)
    for oy in range(height):
        for ox in range(width):
            for ky in range(g.kernel[0]):
                for kx in range(g.kernel[1]):
                    y = oy * g.stride[0] - g.padding[0] + ky * g.dilation[0]
                    x = ox * g.stride[1] - g.padding[1] + kx * g.dilation[1]
                    if 0 <= y < case.height and 0 <= x < case.width:
                        expected[:, oy, ox] += level[:, y, x] * weight[:, 0, ky, kx]
    y, _ = case.run(reference, True, Epilogue())
    assert y is not None
    assert torch.equal(y.double(), expected)


@compiled
@pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS)
@pytest.mark.parametrize("steps", [(1, 1), (1, 2), (2, 3)])
@pytest.mark.parametrize("dilation", [(1, 1), (2, 3)])
def test_images_of_several_parts(instruction_set: str, steps: tuple[int, int], dilation: tuple[int, int]) -> None:
    """A part is 24 columns by 28 rows of the output."""
    g = Geometry(70, 70, (3, 3), steps, (2, 1), dilation, 70)
    case = Case(g, 1, True, 1, 31 * steps[0] + 5, 60 * steps[1] + 5, 3)
    expected = case.run(reference, True, case.epilogue("yb"))
    with using(instruction_set):
        got = case.run(cpu, True, case.epilogue("yb"))
    for a, b in zip(got, expected, strict=True):
        assert a is not None
        assert b is not None
        assert torch.equal(a, b)


@compiled
@pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS)
def test_threads_and_batches_change_nothing(instruction_set: str) -> None:
    g = Geometry(130, 130, (3, 3), (1, 2), (1, 1), (1, 1), 130)
    case = Case(g, 1, False, 3, 40, 41, 5)
    found: list[tuple[Tensor, Tensor]] = []
    with using(instruction_set):
        for number in (1, 3):
            with threads(number):
                y, bits = case.run(cpu, False, case.epilogue("yb"))
            assert y is not None
            assert bits is not None
            found.append((y, bits))
        weights = cpu.prepare(case.weight(False), g)
        alone, _ = cpu.forward(case.bits()[1:2].contiguous(), weights, g, Epilogue())
    assert torch.equal(found[0][0], found[1][0])
    assert torch.equal(found[0][1], found[1][1])
    assert alone is not None
    assert torch.equal(alone, found[0][0][1:2])


@pytest.mark.parametrize("kernel", [reference, pytest.param(cpu, marks=compiled)])
def test_bad_weights(kernel: object) -> None:
    prepare, g = kernel.prepare, Geometry(70, 70, (3, 1), groups=70)  # pyright: ignore[reportAttributeAccessIssue]
    good = torch.ones(70, 1, 3, 1)
    with pytest.raises(TypeError, match="must be float32 on the CPU"):
        prepare(good.double(), g)
    with pytest.raises(ValueError, match=r"expected weight \(70, 1, 3, 1\)"):
        prepare(good[:4], g)
    with pytest.raises(ValueError, match="expected finite weights"):
        prepare(good * torch.nan, g)
    with pytest.raises(ValueError, match="expected 1 to 7 planes"):
        prepare(good, g, planes=8)
    with pytest.raises(ValueError, match="1 of -1 and 1, got 2"):
        prepare(good, g, planes=2, bipolar=True)
    with pytest.raises(ValueError, match="as many groups and outputs as channels"):
        prepare(good, g._replace(outputs=140))


@compiled
def test_bad_inputs() -> None:
    g = Geometry(70, 70, groups=70)
    made = cpu.prepare(torch.ones(70, 1, 1, 1), g, planes=2)
    with pytest.raises(ValueError, match=f"{2 * row_bytes(70)}"):
        cpu.forward(torch.zeros(1, 1, 1, row_bytes(70), dtype=torch.uint8), made, g, Epilogue())
    with pytest.raises(ValueError, match="prepared for this geometry"):
        cpu.bind(made, g._replace(kernel=(2, 1)), Epilogue())
