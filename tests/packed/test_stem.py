"""Convolutions of the images in integers of 16 bits: `pack(..., stem="int16")`."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from packed_nets import settled
from tests.kernels.instruction_sets import INSTRUCTION_SETS, using
from torch import nn

import htaf
from htaf.kernels import native
from htaf.kernels.float_layers import reference
from htaf.kernels.layers import Geometry
from htaf.models.mlp import MLP
from htaf.models.wide_resnet import WideResNet
from htaf.packed import PackedError, PackedModel, load, pack, save, verify
from htaf.packed.instructions import Rounded

SIZE = (3, 14, 13)


class Stem(nn.Module):
    """As of Bi-Real Net: a convolution whose maxima are compared and added."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 70, 7, stride=2, padding=3, bias=False)
        self.norm = nn.BatchNorm2d(70)
        self.conv = nn.Conv2d(70, 70, 3, padding=1)
        self.step = htaf.HTAF()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.max_pool2d(self.norm(self.stem(x)), 3, 2, 1)
        return (self.conv(self.step(x)) + x).mean((2, 3))


@pytest.fixture(scope="module")
def both() -> tuple[nn.Module, PackedModel]:
    torch.manual_seed(0)
    model = settled(Stem(), torch.randn(8, *SIZE))
    return model, pack(model, torch.randn(4, *SIZE), stem="int16")


def test_what_rounding_changes_is_within_its_bound(both: tuple[nn.Module, PackedModel], tmp_path: Path) -> None:
    model, packed = both
    assert [type(i) for i in packed.program.instructions].count(Rounded) == 1
    assert re.search(r"in int16: \d+% of all products", str(packed.report))  # the rest gains nothing
    x = torch.randn(64, *SIZE)
    found = verify(packed, model, x)
    assert found.ok, found
    assert 0 < found.bound < 1
    difference = (packed(x) - model(x)).abs().max()
    assert 1e-6 < difference < 0.05
    save(packed, tmp_path / "net")
    assert torch.equal(load(tmp_path / "net")(x), packed(x))


@pytest.mark.skipif(not native.available(), reason="built without the extension")
@pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS)
def test_every_processor_computes_the_same(both: tuple[nn.Module, PackedModel], instruction_set: str) -> None:
    from htaf.kernels.float_layers import cpu

    _, packed = both
    x = torch.randn(3, *SIZE)
    wanted = packed._execution((x,), after=lambda at, values: None)
    with using(instruction_set):
        assert all(torch.equal(packed._execution((x,)), wanted) for _ in range(2))
        for g in (Geometry(3, 70, (7, 7), (2, 2), (3, 3)), Geometry(3, 5, (2, 3), (1, 2), (0, 1), (2, 1))):
            weight, bias = torch.randn(g.outputs, 3, *g.kernel), torch.randn(g.outputs)
            integers = reference.rounding(weight)
            for images in (x, x.contiguous(memory_format=torch.channels_last), x[:, :, 1:], torch.zeros_like(x)):
                expected = reference.rounded(images, integers, bias, g)
                assert torch.equal(cpu.rounded(images, cpu.prepare_rounded(integers), bias, g), expected)


@pytest.mark.parametrize("size", [1e-30, 1e-3, 1.0, 1e30])
def test_rounding_keeps_its_bounds(size: float) -> None:
    g = Geometry(3, 9, (5, 5), (1, 1), (2, 2))
    x, weight = size * torch.randn(2, 3, 8, 8), torch.randn(9, 3, 5, 5)
    weight[0], weight[1, 0], weight[2] = 0, 100, 1.0
    integers = reference.rounding(weight)
    assert int(integers.values.abs().max()) <= 32767
    assert int(integers.values.abs().flatten(1).sum(1).max()) * reference.MOST < 2**31
    exact = reference.convolution(x.double(), weight.double(), None, g)
    apart = (reference.rounded(x, integers, None, g) - exact).abs().amax((0, 2, 3))
    assert (apart <= reference.rounding_error(x, weight, integers)).all()
    one_by_one = torch.cat([reference.rounded(image[None], integers, None, g) for image in x])
    assert torch.equal(one_by_one, reference.rounded(x, integers, None, g))


@pytest.mark.usefixtures("unchecked")
def test_other_stems_are_refused() -> None:
    net = htaf.harden(MLP(4, 2, (8,)).eval())
    with pytest.raises(PackedError, match="float32 or int16, got 'int8'"):
        pack(net, torch.randn(2, 4), stem="int8")  # pyright: ignore[reportArgumentType]
    with pytest.raises(PackedError, match="a convolution that takes the input"):
        pack(net, torch.randn(2, 4), stem="int16")
    with pytest.raises(ValueError, match="finite weights"):
        reference.rounding(torch.full((1, 1, 1, 1), torch.nan))
    deep = pack(htaf.harden(WideResNet(10, 1, 6).eval()), torch.randn(2, 3, 8, 8), stem="int16")
    assert isinstance(deep.program.instructions[0], Rounded)
