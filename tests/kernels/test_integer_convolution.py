"""Convolution of small integers with integer weights: the formulas' sums and bits on every instruction set."""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from instruction_sets import INSTRUCTION_SETS, WITH_TILES, threads, using
from torch import Tensor

from htaf.core.kernels.integer_convolution import cpu, reference
from htaf.core.kernels.layers import Epilogue, Geometry
from htaf.core.kernels.packed_maps.reference import pack
from htaf.core.kernels.table_convolution import cpu as tables
from htaf.core.kernels.table_convolution.reference import holds

compiled = pytest.mark.skipif(not INSTRUCTION_SETS, reason="no compiled kernels")


class Case(NamedTuple):
    geometry: Geometry
    planes: int
    batch: int
    height: int
    width: int
    seed: int

    def weight(self, most: int = 127) -> Tensor:
        g, made = self.geometry, torch.Generator().manual_seed(self.seed)
        shape = (g.outputs, g.channels // g.groups, *g.kernel)
        drawn = torch.randint(-most, most + 1, shape, generator=made)
        return torch.where(drawn == most - 1, most, drawn).to(torch.int8)  # the largest one, twice as often

    def bits(self) -> Tensor:
        made = torch.Generator().manual_seed(self.seed + 1)
        planes = torch.rand(self.planes, self.batch, self.height, self.width, self.geometry.channels, generator=made)
        return torch.cat([pack(plane < 0.7) for plane in planes], -1)

    def epilogue(self, fields: str) -> Epilogue:
        g, made = self.geometry, torch.Generator().manual_seed(self.seed + 2)
        size = (self.batch, *g.out_size(self.height, self.width), g.outputs)
        lower = torch.randint(-200, 200, (g.outputs,), generator=made) / 2  # half of them numbers that sums meet
        upper, which = lower + 50, torch.randint(0, 4, (g.outputs,), generator=made)
        upper[which == 1], lower[which == 2] = torch.inf, -torch.inf  # steps that rise, and that fall
        lower[which == 3] = upper[which == 3]  # one number, or none
        return Epilogue(
            residual=torch.randn(size, generator=made) if "r" in fields else None,
            lower=lower if "b" in fields else None,
            upper=upper if "b" in fields else None,
            keep="y" in fields,
            wide=torch.randn(2, g.outputs, dtype=torch.float64, generator=made) if "w" in fields else None,
        )


@st.composite
def cases(draw: st.DrawFn) -> Case:
    planes = draw(st.sampled_from([1, 1, 1, 2, 3, 7]))
    groups = 1 if planes > 1 else draw(st.sampled_from([1, 1, 1, 2, 3]))
    channels = groups * draw(st.one_of(st.integers(1, 20), st.sampled_from([31, 61, 63, 64, 65, 70, 130])))
    outputs = groups * draw(st.one_of(st.integers(1, 9), st.sampled_from([16, 63, 64, 65, 130])))
    pair = st.tuples(st.integers(1, 3), st.integers(1, 3))
    kernel, stride, dilation = draw(pair), draw(pair), draw(pair)
    padding = draw(st.tuples(st.integers(0, 3), st.integers(0, 3)))
    size = [
        draw(st.integers(max(1, d * (k - 1) + 1 - 2 * p), 9)) for k, d, p in zip(kernel, dilation, padding, strict=True)
    ]
    geometry = Geometry(channels, outputs, kernel, stride, padding, dilation, groups)
    return Case(geometry, planes, draw(st.integers(1, 3)), size[0], size[1], draw(st.integers(0, 99)))


@compiled
@settings(max_examples=40, deadline=None)
@given(case=cases(), fields=st.sampled_from(["y", "b", "yb", "ry", "rb", "wy", "wb", "rwyb"]))
def test_every_instruction_set_gives_what_the_formulas_give(case: Case, fields: str) -> None:
    weight, bits, epilogue, g = case.weight(), case.bits(), case.epilogue(fields), case.geometry
    expected = reference.forward(bits, reference.prepare(weight, g, planes=case.planes), g, epilogue)
    for name in WITH_TILES:
        with using(name):
            got = cpu.forward(bits, cpu.prepare(weight, g, planes=case.planes), g, epilogue)
        for a, b in zip(got, expected, strict=True):
            assert (a is None) == (b is None)
            if a is not None and b is not None:
                if "r" in fields and "w" in fields and a.dtype == torch.float32:
                    torch.testing.assert_close(a, b)
                else:
                    assert torch.equal(a, b), name


@compiled
@pytest.mark.parametrize("instruction_set", WITH_TILES)
@pytest.mark.parametrize("fields", ["y", "b"])
def test_threads_share_images_and_tiles(instruction_set: str, fields: str) -> None:
    for groups, planes in ((1, 2), (2, 1)):  # more than one thread copies, and than stays in a cache
        case = Case(Geometry(256 * groups, 70 * groups, (1, 3), (1, 2), (1, 1), groups=groups), planes, 2, 33, 64, 5)
        weights = cpu.prepare(case.weight(), case.geometry, planes=planes)
        with using(instruction_set):
            found = []
            for number in (1, 3):
                with threads(number):
                    found += cpu.forward(case.bits(), weights, case.geometry, case.epilogue(fields))
        one, three = (x for x in found if x is not None)
        assert torch.equal(one, three)


@compiled
@pytest.mark.parametrize("instruction_set", WITH_TILES)
def test_the_largest_sums_are_exact(instruction_set: str) -> None:
    """Every input 127 and every weight 127 or -127: no pair of products and no sum may be cut off."""
    most = 2**24 // 127**2  # inputs
    g = Geometry(most, 70)
    signs = torch.tensor([1, -1]).repeat(35).view(-1, 1, 1, 1)
    weight = (127 * signs).expand(70, most, 1, 1).to(torch.int8).contiguous()
    weight[2, ::2] = -127  # of outputs 2 and 3 the pairs end in 0
    weight[3, ::2] = 127
    weights = cpu.prepare(weight, g, planes=7)
    ones = torch.cat([pack(torch.ones(1, 1, 7, most, dtype=torch.bool))] * 7, -1)
    sums = 127 * weight.long().flatten(1).sum(1)
    assert 2**24 - 127**2 < int(sums.max()) < 2**24
    equal = Epilogue(lower=sums.float(), upper=sums.float())
    with using(instruction_set):
        y, bits = cpu.forward(ones, weights, g, equal)
        _, alone = cpu.forward(ones, weights, g, equal._replace(keep=False))
        beside = cpu.forward(ones, weights, g, Epilogue(lower=sums.float() + 1, keep=False, upper=sums.float() + 2))[1]
    assert y is not None
    assert torch.equal(y.long(), sums.expand(1, 1, 7, 70))
    every = pack(torch.ones(1, 1, 7, 70, dtype=torch.bool))
    assert torch.equal(bits, every)  # pyright: ignore[reportArgumentType]
    assert torch.equal(alone, every)  # pyright: ignore[reportArgumentType]
    assert not beside.any()  # pyright: ignore[reportOptionalMemberAccess]
    one_more = Geometry(most + 1, 1)
    with pytest.raises(ValueError, match=f"expected sums below 2\\^24, got up to {(most + 1) * 127**2}"):
        cpu.prepare(torch.full((1, most + 1, 1, 1), 127, dtype=torch.int8), one_more, planes=7)


@compiled
@settings(max_examples=25, deadline=None)
@given(case=cases(), fields=st.sampled_from(["y", "b", "yb", "wy"]), kind=st.sampled_from(["int16", "int8"]))
def test_tables_hold_the_sums_of_small_integers(case: Case, fields: str, kind: tables.Kind) -> None:
    case = case._replace(planes=1)
    weight, g = case.weight(20), case.geometry
    assert holds(weight, kind)  # 12 of them sum to 240
    expected = reference.forward(case.bits(), reference.prepare(weight, g), g, case.epilogue(fields))
    for name in INSTRUCTION_SETS:
        with using(name):
            made = tables.prepare(weight.float(), g, kind, whole=True)
            got = tables.forward(case.bits(), made, g, case.epilogue(fields))
        assert float(made.error.max()) == 0
        for a, b in zip(got, expected, strict=True):
            assert (a is None and b is None) or torch.equal(a, b), name  # pyright: ignore[reportArgumentType]


def test_sums_of_real_weights_do_not_fit_a_whole_unit() -> None:
    geometry = Geometry(12, 1)
    fits = torch.full((1, 12, 1, 1), 21.0)
    fits[0, 0] = 24
    assert tables.prepare(fits, geometry, "int8", whole=True).unit.item() == 1
    for weight in (fits + 0.5, fits + torch.eye(12)[0].view(1, 12, 1, 1)):
        with pytest.raises(ValueError, match="expected integers whose sums of 2 sixes range over 255 at most"):
            tables.prepare(weight, geometry, "int8", whole=True)


@pytest.mark.parametrize("kernel", [reference, pytest.param(cpu, marks=compiled)])
def test_bad_weights(kernel: object) -> None:
    prepare, g = kernel.prepare, Geometry(70, 5)  # pyright: ignore[reportAttributeAccessIssue]
    good = torch.ones(5, 70, 1, 1, dtype=torch.int8)
    with pytest.raises(TypeError, match="must be int8 on the CPU"):
        prepare(good.float(), g)
    with pytest.raises(ValueError, match=r"expected weight \(5, 70, 1, 1\)"):
        prepare(good[:4], g)
    with pytest.raises(ValueError, match="got -128"):
        prepare(good * -128, g)
    with pytest.raises(ValueError, match="expected 1 to 7 planes"):
        prepare(good, g, planes=8)
    with pytest.raises(ValueError, match="expected 1 to 7 planes, 1 of layers in groups"):
        prepare(good[:4, :35], Geometry(70, 4, groups=2), planes=2)
    large = torch.full((1, 2**18, 1, 1), 127, dtype=torch.int8)
    with pytest.raises(ValueError, match="expected sums below 2\\^24"):
        prepare(large, Geometry(2**18, 1))
