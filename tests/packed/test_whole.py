"""What networks on a grid hold beside layers over bits: rounded inputs, poolings before steps, heads over means."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from packed_nets import settled
from tests.kernels.instruction_sets import INSTRUCTION_SETS, using
from torch import nn

import htaf
from htaf.core.kernels import native
from htaf.core.kernels.float_layers import cpu as floats
from htaf.core.kernels.float_layers import reference as float_formulas
from htaf.core.kernels.float_layers.reference import Rounded as RoundedWeights
from htaf.core.kernels.layers import Epilogue, Geometry
from htaf.core.kernels.packed_maps import cpu as maps
from htaf.core.kernels.packed_maps import reference as map_formulas
from htaf.core.kernels.packed_maps.reference import LinearOfMeans
from htaf.core.kernels.table_convolution import cpu as tables
from htaf.core.kernels.table_convolution import reference as table_formulas
from htaf.models.whitened import WhitenedConvNet
from htaf.program.packed import PackedError, PackedModel, load, pack, save, verify
from htaf.program.packed.instructions import Call, Layer, Means, Pool, Rounded

needs_extension = pytest.mark.skipif(not native.available(), reason="built without the extension")
SIZE = (3, 13, 14)
ACT = partial(htaf.HTAF, 0.4, 5.0)


def disturbed(net: nn.Module) -> nn.Module:
    """Norms of which some fall, some are constant."""
    with torch.no_grad():
        for norm in net.modules():
            if isinstance(norm, nn.BatchNorm2d):
                norm.weight.add_(torch.randn_like(norm.weight))
                norm.bias.add_(0.3 * torch.randn_like(norm.bias))
                norm.weight[1] = 0
    return net


@pytest.fixture(scope="module", params=[False, True], ids=["int8", "binary"])
def both(request: pytest.FixtureRequest) -> tuple[nn.Module, PackedModel]:
    torch.manual_seed(0)
    conv, act = (htaf.BinaryConv2d, partial(ACT, bipolar=True)) if request.param else (nn.Conv2d, ACT)
    net = WhitenedConvNet(5, act, widths=(20, 70), conv=conv)
    x = torch.randn(8, *SIZE)
    net.whiten(x)
    with torch.no_grad():
        net.train()(x)
    exact = settled(htaf.on_grid(disturbed(net), x), x)
    return exact, pack(exact, x[:4])


def test_a_network_on_a_grid_is_one_plan_of_integers(both: tuple[nn.Module, PackedModel], tmp_path: Path) -> None:
    model, packed = both
    kinds = [type(i) for i in packed.program.instructions]
    assert (kinds.count(Rounded), kinds.count(Means), kinds.count(Pool), kinds.count(Layer)) == (2, 1, 1, 3)
    assert {i.operator for i in packed.program.instructions if isinstance(i, Call)} <= {"max_pool2d.default"}
    x = 3 * torch.randn(32, *SIZE)
    with torch.no_grad():
        expected = model(x)
    for _ in range(2):  # the second by a plan
        assert torch.equal(packed(x), expected)
    found = verify(packed, model, x)
    assert found.ok, found
    assert found.count == 0
    save(packed, tmp_path / "net")
    assert torch.equal(load(tmp_path / "net")(x), expected)


@needs_extension
@pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS)
def test_every_processor_computes_the_network(both: tuple[nn.Module, PackedModel], instruction_set: str) -> None:
    model, packed = both
    x = torch.randn(3, *SIZE)
    with using(instruction_set), torch.no_grad():
        fresh = PackedModel(packed.program, packed.report)
        assert all(torch.equal(fresh(x), model(x)) for _ in range(2))


@needs_extension
@pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS)
@given(seed=st.integers(0, 10**6), batch=st.integers(1, 3))
def test_rounded_convolutions_are_their_formula(instruction_set: str, seed: int, batch: int) -> None:
    torch.manual_seed(seed)
    channels, outputs = int(torch.randint(1, 14, ())), int(torch.randint(1, 140, ()))
    kernel, stride, padding = ((int(n) for n in torch.randint(1, 4, (2,))) for _ in range(3))
    g = Geometry(channels, outputs, tuple(kernel), tuple(stride), tuple(padding), (1 + seed % 2, 1))  # pyright: ignore
    weight = torch.randint(-127, 128, (outputs, channels, *g.kernel)).short()
    limit = max(1, min(32767, 2**24 // max(int(weight.long().abs().flatten(1).sum(1).max()), 1)))
    held = RoundedWeights(weight, 2.0 ** torch.randint(-9, 3, (outputs,)), seed % 12, limit)
    x = torch.randn(batch, channels, 9, 8) * limit / 2.0**held.exponent
    x[0, 0, 3, 3], x[-1, -1, 4, 4] = torch.inf, 0.5 / 2.0**held.exponent
    wanted = float_formulas.rounded(x, held, g)
    with using(instruction_set):
        laid = floats.prepare_rounded(held)
        for images in (x, x.contiguous(memory_format=torch.channels_last), x.repeat(1, 1, 1, 2)[..., :8]):
            assert torch.equal(floats.rounded(images, laid, g), wanted)
        x[0, 0, 0, 0] = torch.nan
        found = floats.rounded(x, laid, g)
        assert bool(found[0].isnan().all())
        assert torch.equal(found[1:], wanted[1:])


def test_integers_that_do_not_fit_are_refused() -> None:
    weight = torch.full((1, 1, 3, 3), 100).short()
    for changed, words in [
        ((weight, torch.ones(1), 3, 20000), "sums of at most 16,777,216"),
        ((weight, torch.ones(1), 3, 40000), "inputs up to 32767"),
        ((weight.int(), torch.ones(1), 3, 5), "int16"),
        ((weight, torch.ones(1), 300, 5), "exponent"),
    ]:
        with pytest.raises(ValueError, match=words):
            RoundedWeights(*changed).check()
    ones = torch.ones(2, 4, dtype=torch.int32)
    with pytest.raises(ValueError, match="int64"):
        LinearOfMeans(ones, torch.ones(2), 1.0).check()
    with pytest.raises(ValueError, match="up to 65,536"):
        LinearOfMeans(ones * 2**20, torch.ones(2).long(), 1.0).check()


@needs_extension
@pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS)
@pytest.mark.parametrize(("channels", "outputs"), [(1, 1), (64, 10), (70, 9), (256, 100)])
def test_layers_over_means_are_their_formula(instruction_set: str, channels: int, outputs: int) -> None:
    bits = map_formulas.pack(torch.rand(2, 3, 7, channels) > 0.5)
    weight = torch.randint(-(2**16), 2**16, (outputs, channels), dtype=torch.int32)
    layer = LinearOfMeans(weight, torch.randint(-(2**28), 2**28, (outputs,)), 2.0**-12)
    with using(instruction_set):
        assert torch.equal(maps.means(bits, maps.prepare_means(layer)), map_formulas.means(bits, layer))


@needs_extension
@pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS)
def test_some_channels_are_pooled_to_the_least(instruction_set: str) -> None:
    bits, windows = map_formulas.pack(torch.rand(2, 7, 9, 70) > 0.5), ((3, 2), (2, 1), (1, 1))
    smallest = map_formulas.pack(torch.rand(70) > 0.5)
    wanted = map_formulas.max_pool(bits, *windows, smallest)
    assert not torch.equal(wanted, map_formulas.max_pool(bits, *windows))
    with using(instruction_set):
        assert torch.equal(maps.max_pool(bits, *windows, smallest), wanted)


@needs_extension
@pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS)
@given(seed=st.integers(0, 10**6), batch=st.integers(1, 3))
def test_tables_of_fours_hold_all_sums(instruction_set: str, seed: int, batch: int) -> None:
    torch.manual_seed(seed)
    groups = 1 + seed % 3
    channels, outputs = groups * int(torch.randint(1, 100, ())), groups * int(torch.randint(1, 80, ()))
    stride, padding = (tuple(int(n) for n in torch.randint(1, 3, (2,))) for _ in range(2))
    g = Geometry(channels, outputs, (3, 2), stride, padding, (1, 1 + seed % 2), groups)  # pyright: ignore
    weight = torch.randint(-63, 64, (outputs, channels // groups, *g.kernel)).float()
    made = table_formulas.fours(weight, g)
    assert made is not None
    x = (torch.rand(batch, channels, 8, 7) > 0.5).float()
    wanted = nn.functional.conv2d(x.double(), weight.double(), None, g.stride, g.padding, g.dilation, groups).float()
    plain = Epilogue(None, None, None, None, None, True)
    formula, _ = table_formulas.forward(map_formulas.pack(x.permute(0, 2, 3, 1) > 0), made, g, plain)
    assert formula is not None
    assert torch.equal(formula.permute(0, 3, 1, 2), wanted)
    with using(instruction_set):
        bits = map_formulas.pack(x.permute(0, 2, 3, 1) > 0)
        lower = torch.zeros(outputs)
        y, found = tables.forward(bits, made, g, Epilogue(None, None, None, lower, lower + torch.inf, True))
    assert y is not None
    assert found is not None
    assert torch.equal(y.permute(0, 3, 1, 2), wanted)
    assert torch.equal(found, map_formulas.pack(wanted.permute(0, 2, 3, 1) >= 0))


def test_fours_of_larger_weights_are_none() -> None:
    g = Geometry(4, 1)
    assert table_formulas.fours(torch.full((1, 4, 1, 1), 63.0), g) is not None
    assert table_formulas.fours(torch.full((1, 4, 1, 1), 64.0), g) is None
    assert table_formulas.fours(torch.full((1, 4, 1, 1), 0.5), g) is None


class Before(nn.Module):
    """Poolings of sums that other layers read too, or that overlap."""

    def __init__(self, *, shared: bool, norm_first: bool = False) -> None:
        super().__init__()
        self.norm_first = norm_first
        self.first, self.act = nn.Conv2d(3, 16, 3), htaf.HTAF()
        self.conv, self.norm, self.step = nn.Conv2d(16, 40, 3, padding=1), nn.BatchNorm2d(40), htaf.HTAF()
        self.last = nn.Conv2d(40, 4, 1)
        self.shared = shared

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.conv(self.act(self.first(x)))
        if self.norm_first:
            return self.last(self.step(torch.max_pool2d(self.norm(x), 3, 2, 1))).mean((2, 3))
        pooled = torch.max_pool2d(x, 3, 2, 1)
        y = self.last(self.step(self.norm(pooled))).mean((2, 3))
        return y + pooled.mean() if self.shared else y


@pytest.mark.parametrize(("shared", "norm_first"), [(False, False), (True, False), (False, True)])
def test_only_poolings_of_a_step_alone_move(shared: bool, norm_first: bool) -> None:
    torch.manual_seed(1)
    x = torch.randn(6, *SIZE)
    net = htaf.on_grid(disturbed(settled(Before(shared=shared, norm_first=norm_first), x)), x)
    packed = pack(net, x)
    moved = [i for i in packed.program.instructions if isinstance(i, Pool)]
    assert len(moved) == (not shared)
    with torch.no_grad():
        torch.testing.assert_close(packed(x), net(x), atol=1e-5, rtol=0)
    assert verify(packed, net, x).count == 0
    if moved:  # behind a norm nothing falls with what is pooled
        assert (moved[0].smallest is None) == norm_first


@pytest.mark.parametrize("bound", [{"min": 0}, {"max": 2}, {"min": -2, "max": 2}])
def test_rounding_with_one_end_stays_floats(bound: dict[str, int]) -> None:
    """Of a user's own rounding, both ends must be there and alike for integers of 16 bits."""

    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.act, self.last = nn.Conv2d(3, 16, 3, bias=False), htaf.HTAF(), nn.Conv2d(16, 4, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.last(self.act(self.first((x.clamp(**bound) * 16).round() / 16))).mean((2, 3))

    torch.manual_seed(0)
    x, net = torch.randn(4, *SIZE), htaf.harden(Own().eval())
    packed = pack(net, x)
    assert not any(isinstance(i, Rounded) for i in packed.program.instructions)
    with torch.no_grad():
        torch.testing.assert_close(packed(x), net(x))


class Head(nn.Module):
    """A linear layer over means, as users write it. also: another layer reads the means too."""

    def __init__(self, channels: int, convolutions: int, *, flat: bool, bipolar: bool = False, also: bool = False):
        super().__init__()
        sizes = [(3, channels), *[(channels, channels)] * (convolutions - 1)]
        layers = [(nn.Conv2d(*s, 3, padding=1), nn.BatchNorm2d(channels), ACT(bipolar=bipolar)) for s in sizes]
        self.body, self.pool = nn.Sequential(*(part for layer in layers for part in layer)), nn.AdaptiveAvgPool2d(1)
        self.flat, self.also, self.last = flat, also, nn.Linear(channels, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.body(x)
        mean = self.pool(x).flatten(1) if self.flat else x.mean((2, 3))
        return self.last(mean) + mean[:, :1] if self.also else self.last(mean)


@pytest.mark.parametrize(
    ("channels", "size", "convolutions", "flat", "bipolar"),
    [(8, 10, 1, True, False), (8, 8, 2, False, False), (32, 7, 1, False, True), (64, 10, 2, True, True)],
)
def test_heads_of_users_are_counted(channels: int, size: int, convolutions: int, flat: bool, bipolar: bool) -> None:
    """Of a network of one convolution nothing else runs over bits. Over -1/1 means of 100 are multiples of 1 / 50."""
    torch.manual_seed(channels)
    x = torch.randn(8, 3, size, size)
    net = settled(Head(channels, convolutions, flat=flat, bipolar=bipolar), x)
    exact = htaf.on_grid(net, x)
    packed = pack(exact, x[:2])
    assert [type(i) for i in packed.program.instructions][-1] is Means
    assert packed.report.layers == (1 if bipolar else convolutions), packed.report
    x = torch.randn(300, 3, size, size)
    with torch.no_grad():
        assert torch.equal(packed(x), exact(x))
        assert torch.equal(packed(x[:1]), exact(x)[:1])
    assert verify(packed, exact, x[:4]).ok


class Otherwise(nn.Module):
    """A linear layer over means that are clipped, or rounded to other numbers than counts, or divided by another."""

    def __init__(self, over: float, divisor: float | None = None, most: float | None = None, bipolar: bool = False):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 8, 1), htaf.Heaviside(), nn.Conv2d(8, 8, 1), htaf.Heaviside(bipolar=bipolar)
        )
        self.over, self.divisor, self.most = over, divisor or over, most
        self.weight = nn.Parameter(torch.randint(-9, 9, (5, 8)) / 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mean = self.body(x).mean((2, 3))
        mean = mean if self.most is None else mean.clamp(-self.most, self.most)
        return (nn.functional.linear((mean.double() * self.over).round(), self.weight.double()) / self.divisor).float()


def test_other_heads_stay_floats() -> None:
    """Of images of 25 bits."""
    torch.manual_seed(0)
    x = torch.randn(40, 3, 5, 5)
    found = {
        "these": Otherwise(25.0), "more": Otherwise(25.0, 50.0), "clipped": Otherwise(25.0, most=0.5),
        "coarser": Otherwise(5.0), "halves": Otherwise(12.5, bipolar=True), "finer": Otherwise(25.0 * 2**20),
        "none": Otherwise(0.0, 1.0),
        "shared": htaf.on_grid(settled(Head(8, 2, flat=True, also=True), x), x),
    }  # fmt: skip
    for name, exact in found.items():
        packed = pack(exact.eval(), x)
        assert any(isinstance(i, Means) for i in packed.program.instructions) == (name == "these"), name
        with torch.no_grad():
            assert torch.equal(packed(x), exact(x)), name


@pytest.mark.usefixtures("unchecked")
def test_a_file_with_other_integers_is_refused(both: tuple[nn.Module, PackedModel], tmp_path: Path) -> None:
    _, packed = both
    instructions: list[Any] = list(packed.program.instructions)
    first = next(i for i in instructions if isinstance(i, Rounded))
    head = next(i for i in instructions if isinstance(i, Means))
    for name, tensor, words in [
        (first.weight, torch.full_like(packed.program.tensors[first.weight], 30000), "sums of at most"),
        (first.weight, packed.program.tensors[first.weight].int(), "int16"),
        (head.weight, torch.full_like(packed.program.tensors[head.weight], 2**30), "weights up to"),
        (head.bias, packed.program.tensors[head.bias].int(), "int64"),
    ]:
        tensors = {**packed.program.tensors, name: tensor}
        program = packed.program.__class__(
            packed.program.inputs, packed.program.instructions, packed.program.outputs, tensors
        )
        save(_Unchecked(program, packed), tmp_path / "bad")  # pyright: ignore[reportArgumentType]
        with pytest.raises(PackedError, match=words):
            load(tmp_path / "bad")


class _Unchecked:
    """What `save` reads of a model."""

    def __init__(self, program: Any, packed: PackedModel) -> None:
        self.program, self.report, self.extra = program, packed.report, packed.extra
