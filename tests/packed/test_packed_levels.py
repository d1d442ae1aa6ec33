"""Steps of several levels over packed bits: equal to the hardened network, in every kind of layer."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import htaf
from htaf.core.binary import BinaryConv2d, BinaryLinear
from htaf.core.functional import heaviside
from htaf.program.packed import load, pack, save, verify
from htaf.program.packed.lowering import Bits
from htaf.transform.grid import on_grid

Step = Callable[[], nn.Module]


def mlp(step: Step, layer: type[nn.Linear] = nn.Linear) -> nn.Module:
    norm = nn.BatchNorm1d(40)
    return nn.Sequential(nn.Linear(8, 70), step(), layer(70, 40), norm, step(), layer(40, 16), step(), nn.Linear(16, 3))


def convolutions(step: Step, layer: type[nn.Conv2d] = nn.Conv2d) -> nn.Module:
    """With pooling before and behind steps, and pixels that are flattened."""
    return nn.Sequential(
        nn.Conv2d(3, 20, 3, padding=1), nn.BatchNorm2d(20), step(), nn.MaxPool2d(2),
        layer(20, 64, 3, padding=1, bias=False), nn.MaxPool2d(2), nn.BatchNorm2d(64), step(),
        layer(64, 64, 3, padding=1), step(), nn.Flatten(), nn.Linear(64 * 4, 5),
    )  # fmt: skip


class Residual(nn.Module):
    """Shares are added to shares, and only means are taken at the end."""

    def __init__(self, step: Step) -> None:
        super().__init__()
        self.stem, self.inner, self.last = nn.Conv2d(3, 32, 3), nn.Conv2d(32, 32, 3, padding=1), nn.Conv2d(32, 32, 1)
        self.one, self.two, self.three, self.head = step(), step(), step(), nn.Linear(32, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.one(self.stem(x))
        x = x + self.two(self.inner(x))
        return self.head(self.three(self.last(x)).mean((2, 3)))


NETWORKS: dict[str, tuple[Callable[[Step], nn.Module], tuple[int, ...]]] = {
    "mlp": (mlp, (8,)),
    "binary mlp": (lambda step: mlp(step, BinaryLinear), (8,)),
    "convolutions": (convolutions, (3, 8, 8)),
    "binary convolutions": (lambda step: convolutions(step, BinaryConv2d), (3, 8, 8)),
    "residual": (Residual, (3, 8, 8)),
}


def fresh(name: str, **options: object) -> tuple[nn.Module, Tensor]:
    """A hardened network whose norms know their inputs, and these."""
    torch.manual_seed(0)
    make, shape = NETWORKS[name]
    net, x = make(lambda: htaf.HTAF(2.0, 11.0, **options)), torch.randn(40, *shape)  # pyright: ignore[reportArgumentType]
    with torch.no_grad():
        for _ in range(5):
            net(x)
    return htaf.harden(net.eval()), x


@pytest.mark.parametrize("bipolar", [False, True])
@pytest.mark.parametrize("levels", [2, 3, 4])
@pytest.mark.parametrize("name", NETWORKS)
def test_packed_networks_are_the_hardened_ones(name: str, levels: int, bipolar: bool) -> None:
    if name == "residual" and bipolar:
        pytest.skip("sums of -1 and 1 run in float, of one level too")
    exact, x = fresh(name, levels=levels, bipolar=bipolar, spacing=0.5)
    packed = pack(exact, x[:4])
    found = verify(packed, exact, x)
    assert found.ok, str(found)
    assert len(found.layers) == 3 * levels
    if found.count == 0:
        with torch.no_grad():
            torch.testing.assert_close(packed(x), exact(x), rtol=1e-5, atol=1e-5)
    assert levels == 3 or found.count == 0  # shares of 3 are rounded in the hardened network, which ties notice


@pytest.mark.parametrize("name", ["mlp", "convolutions"])
def test_weights_on_a_grid_keep_every_bit(name: str) -> None:
    torch.manual_seed(0)
    make, shape = NETWORKS[name]
    x = torch.randn(200, *shape)
    net = on_grid(make(lambda: htaf.HTAF(levels=2)), x)
    with torch.no_grad():
        net.train()(x)
    exact = htaf.harden(net.eval())
    packed = pack(exact, x[:4])
    assert "packed: integer" in str(packed.report)
    with torch.no_grad():
        assert torch.equal(packed(x), exact(x))
        assert torch.equal(packed(x[:1]), exact(x[:1]))


def test_how_layers_run() -> None:
    ways = {name: str(pack(*map_of(name)).report) for name in ("binary convolutions", "convolutions")}
    assert ways["binary convolutions"].count("packed: binary") == 2
    assert ways["convolutions"].count("packed: table") == 3
    assert all(way.count("packed: pooled bits") == 1 for way in ways.values())
    for name in ("binary convolutions", "binary mlp"):  # of 20 and 70 channels, which fill no words
        exact, x = fresh(name, levels=2, bipolar=True)
        assert str(pack(exact, x).report).count("packed: binary") == 2


def map_of(name: str) -> tuple[nn.Module, Tensor]:
    exact, x = fresh(name, levels=2)
    return exact, x[:4]


def test_a_padding_that_is_no_level_stays_in_float() -> None:
    exact, x = fresh("convolutions", levels=2, bipolar=True)
    assert "float: its padding is not the level of a bit that is 0, -1" in str(pack(exact, x).report)


@given(st.lists(st.floats(-3, 3, width=32), min_size=8, max_size=8), st.integers(2, 5), st.floats(0.1, 2))
@settings(max_examples=25, deadline=None)
def test_bits_of_the_last_step_are_its_thresholds(row: list[float], levels: int, spacing: float) -> None:
    step = htaf.Heaviside(levels=levels, spacing=spacing)
    net = nn.Sequential(nn.Identity(), step, nn.Linear(8, 3)).eval()
    x = torch.tensor([row])
    outputs, bits = pack(net, torch.randn(2, 8)).with_bits(x)
    reached = (heaviside(x, levels=levels, spacing=spacing) * levels).round()
    assert bits.shape == (1, 8 * levels)
    assert torch.equal(bits.unflatten(1, (8, levels)).sum(-1), reached.long())
    with torch.no_grad():
        torch.testing.assert_close(outputs, net(x))


def test_files_hold_them(tmp_path: Path) -> None:
    exact, x = fresh("binary convolutions", levels=2)
    save(pack(exact, x), tmp_path / "net.packed")
    with torch.no_grad():
        torch.testing.assert_close(load(tmp_path / "net.packed")(x), exact(x))


def test_levels_of_a_kind_are_those_of_the_step() -> None:
    for levels in range(2, 8):
        reached = torch.arange(levels + 1.0)
        assert torch.equal(Bits(1, 1, 0.0, 1.0, levels).levels(), reached / levels)
        assert torch.equal(Bits(1, 1, -1.0, 1.0, levels).levels(), (2 * reached - levels) / levels)
        assert torch.equal(Bits(1, 1, 0.0, float(levels), levels).levels(), reached)


class Mapped(nn.Module):
    """Steps whose levels a map of every entry changes, in front of a linear layer or a convolution."""

    def __init__(self, levels: int, of: Callable[[Tensor], Tensor], flat: bool) -> None:
        super().__init__()
        layer: Any = nn.Linear if flat else partial(nn.Conv2d, kernel_size=3)
        self.first, self.second, self.last = layer(3, 48), layer(48, 40), layer(40, 5)
        self.step, self.of = htaf.Heaviside(levels=levels, spacing=0.4), of

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.step(self.second(self.of(self.step(self.first(x))))))


MAPS: dict[str, Callable[[Tensor], Tensor]] = {
    "-1 to 1": lambda h: h * 2 - 1, "neg": lambda h: -h, "scaled": lambda h: 1.7159 * h, "far": lambda h: 0.1 * h + 3,
    "normalised": lambda h: (h - 0.5) / 0.29,
}  # fmt: skip


@pytest.mark.parametrize("flat", [True, False])
@pytest.mark.parametrize("of", MAPS)
@pytest.mark.parametrize("levels", [2, 3, 5])
def test_maps_of_levels_that_are_rounded_stay_packed(levels: int, of: str, flat: bool) -> None:
    torch.manual_seed(0)
    net, x = Mapped(levels, MAPS[of], flat).eval(), torch.randn(200, *((3,) if flat else (3, 9, 9)))
    packed = pack(net, x[:4])
    assert packed.report.layers == 2, packed.report
    assert str(packed.report).count("packed: the same bits") >= 3
    found = verify(packed, net, x)
    assert found.ok, str(found)
    if found.count == 0:
        with torch.no_grad():
            torch.testing.assert_close(packed(x), net(x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("of", [torch.tanh, torch.square, lambda h: h * 1e-3 + 1e3])
def test_levels_that_lie_unevenly_stay_floats(of: Callable[[Tensor], Tensor]) -> None:
    rows = pack(Mapped(3, of, True).eval(), torch.randn(4, 3)).report.rows
    assert {row.name: row.how for row in rows}["linear_1"] == "float: its input is not bits"


class Flattened(nn.Module):
    """Pixels of levels that a layer takes flattened, and that are outputs too."""

    def __init__(self, levels: int, of: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.last, self.of = nn.Conv2d(3, 20, 3), nn.Linear(20 * 9, 5), of
        self.step = htaf.Heaviside(levels=levels, spacing=0.4)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        flat = self.step(self.first(x)).flatten(1)
        return self.last(self.of(flat)), flat, self.of(flat)


@pytest.mark.parametrize("levels", [1, 2, 3])
@pytest.mark.parametrize("of", [torch.neg, lambda flat: flat, lambda flat: flat * 2 - 1])
def test_flattened_levels_are_outputs_too(levels: int, of: Callable[[Tensor], Tensor]) -> None:
    torch.manual_seed(0)
    net, x = Flattened(levels, of).eval(), torch.randn(6, 3, 5, 5)
    packed = pack(net, x)
    assert packed.report.layers == 1
    assert verify(packed, net, x).ok
    for got, wanted in zip(packed(x), net(x), strict=True):
        torch.testing.assert_close(got, wanted)
