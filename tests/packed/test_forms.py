"""Forms of steps, layers and numbers that a network of one's own may use."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from packed_nets import packed_beside
from torch import Tensor, nn

import htaf
from htaf.core.functional import heaviside
from htaf.program.packed import pack, verify
from htaf.program.packed.errors import PackedError
from htaf.program.packed.graph import interval

aten = torch.ops.aten
F = nn.functional
STEPS: dict[str, Callable[[Tensor], Tensor]] = {
    "step": heaviside,
    "sign": lambda z: 2 * heaviside(z) - 1,
    "below": lambda z: 1 - heaviside(z),
    "minus sign": lambda z: 1 - 2 * heaviside(z),
}


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


class Net(nn.Module):
    """A layer, any function, a layer."""

    def __init__(self, first: nn.Module, between: Callable[[Tensor], Tensor], last: nn.Module) -> None:
        super().__init__()
        self.first, self.between, self.last = first, between, last

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.between(self.first(x)))


def agree(model: nn.Module, x: Tensor, **options) -> htaf.packed.PackedModel:
    packed = pack(model, x, **options)
    with torch.no_grad():
        torch.testing.assert_close(packed(x), model(x), rtol=1e-4, atol=1e-5, equal_nan=True)
    return packed


@pytest.mark.parametrize("integer", [False, True])
def test_an_infinite_shift_decides_whatever_the_sum(integer: bool) -> None:
    scale = torch.tensor([2.0, -2.0, 0.0] * 2, dtype=torch.float64)
    shift = torch.tensor([torch.inf] * 3 + [-torch.inf] * 3, dtype=torch.float64)
    lower, upper = interval(scale, shift, integer=integer)
    for x in (-1e30, 0.0, 7.0):
        assert ((lower <= x) & (x <= upper)).tolist() == [True] * 3 + [False] * 3
    lower, upper = interval(torch.tensor([torch.inf, torch.nan]).double(), torch.ones(2).double(), integer=integer)
    assert not ((lower <= 3) & (upper >= 3)).any()


@pytest.mark.parametrize(("name", "binary"), [*((name, False) for name in STEPS), ("step", True), ("minus sign", True)])
def test_what_is_not_finite_is_refused(name: str, binary: bool) -> None:
    """The network gives NaN, or what a comparison with NaN gives; bits have no value for it."""
    last = htaf.BinaryLinear(64, 4) if binary else nn.Linear(64, 4)
    model = Net(nn.Linear(5, 64), STEPS[name], last).eval()
    x = torch.randn(8, 5)
    packed = agree(model, x)
    assert packed.report.layers == 1
    assert not binary or "packed: binary" in str(packed.report)
    for value in (torch.nan, torch.inf, -torch.inf):
        x[3, 2] = value
        for _ in range(2):  # a plan is made at the first call
            with pytest.raises(PackedError, match="finite"):
                packed(x)


def test_no_rows_give_no_outputs() -> None:
    packed = agree(Net(nn.Linear(5, 64), STEPS["step"], nn.Linear(64, 4)).eval(), torch.randn(8, 5))
    assert packed(torch.randn(0, 5)).shape == (0, 4)


@pytest.mark.parametrize("name", ["below", "minus sign"])
@pytest.mark.parametrize("binary", [False, True])
def test_steps_below_a_threshold_before_padding(name: str, binary: bool) -> None:
    layer = htaf.BinaryConv2d(10, 7, 3, padding=1) if binary else nn.Conv2d(10, 7, 3, padding=1)
    front = nn.Sequential(nn.Conv2d(3, 9, 3), htaf.Heaviside(), nn.Conv2d(9, 10, 1))
    packed = agree(Net(front, STEPS[name], layer).eval(), torch.randn(4, 3, 8, 8))
    counted = binary and name == "minus sign"
    assert packed.report.layers == 1 + counted
    assert counted or "float: its padding is not the level of a bit that is 0, 1" in str(packed.report)


def test_every_flip_of_a_step_is_counted() -> None:
    model = nn.Sequential(nn.Linear(5, 9), htaf.Heaviside(), nn.Linear(9, 3)).eval()
    x = torch.randn(4, 5)
    packed = pack(model, x)
    (name,) = (s.lower for s in packed.program.instructions if hasattr(s, "lower") and s.lower)
    packed.program.tensors[name].fill_(torch.inf)
    (layer,) = verify(htaf.packed.PackedModel(packed.program, packed.report), model, x).layers
    with torch.no_grad():
        z = model[0](x)
    assert (layer.flips, layer.bits) == (int((z >= 0).sum()), z.numel())
    assert layer.farthest == pytest.approx(float(z[z >= 0].max()), rel=1e-5)


@pytest.mark.parametrize("multiplier", [1, 2])
def test_depthwise_layers_stay_in_float(multiplier: int) -> None:
    depthwise = nn.Conv2d(16, 16 * multiplier, 3, padding=1, groups=16)
    rest = nn.Sequential(depthwise, htaf.Heaviside(), nn.Conv2d(16 * multiplier, 4, 1))
    packed = agree(Net(nn.Conv2d(3, 16, 1), STEPS["step"], rest).eval(), torch.randn(4, 3, 8, 8))
    assert packed.report.layers == 1
    assert "float: its channels are in groups" in str(packed.report)


class Outputs(nn.Module):
    """Two outputs of one row of bits, times a number each."""

    def __init__(self, *factors: float) -> None:
        super().__init__()
        self.front = nn.Sequential(nn.Linear(5, 64), htaf.Heaviside())
        self.last = nn.Linear(64, 4, bias=False)
        with torch.no_grad():
            self.last.weight *= factors[0]
        self.factors = factors

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.last(self.front(x))
        return y, torch.relu(y) * self.factors[1]


def changed(packed: htaf.packed.PackedModel, name: str, factor: float) -> htaf.packed.PackedModel:
    tensors = {n: t * factor if name in n and t.is_floating_point() else t for n, t in packed.program.tensors.items()}
    return htaf.packed.PackedModel(replace(packed.program, tensors=tensors), packed.report)


def test_small_outputs_that_are_wrong_are_found() -> None:
    model, x = Outputs(1e-6, 1.0).eval(), torch.randn(32, 5)
    packed = pack(model, x)
    assert verify(packed, model, x).ok
    assert not verify(changed(packed, ".weight", -1.0), model, x).ok


def test_nan_in_a_second_output_is_found() -> None:
    x = torch.randn(32, 5)
    model = Outputs(1.0, 1.0).eval()
    packed = pack(model, x)
    model.factors = (1.0, torch.nan)
    assert not verify(packed, model, x).ok


def test_infinite_numbers_before_a_step_hide_no_others() -> None:
    model, x = nn.Sequential(nn.Linear(5, 64), htaf.Heaviside(), nn.Linear(64, 4)).eval(), torch.randn(32, 5)
    with torch.no_grad():
        model[0].bias[0] = torch.inf
    packed = pack(model, x)
    assert verify(packed, model, x).ok
    lower = next(n for n in packed.program.tensors if n.endswith(".lower"))
    lowers = packed.program.tensors[lower].repeat(64)  # one number, as all were equal
    lowers[1:] += 0.5
    packed.program.tensors[lower] = lowers
    again = htaf.packed.PackedModel(packed.program, packed.report)
    assert not verify(again, model, x).ok


def _written(x: Tensor) -> Tensor:
    y = x.clone()
    y[:, :, 1:3] = 0.5
    return y


# of bits [batch, 8, 6, 6]; each once was refused
ORDINARY: dict[str, Callable[[Tensor, nn.ModuleDict], Tensor]] = {
    "zeros": lambda x, net: F.pad(x, (1, 0, 2, 1)),
    "constant": lambda x, net: F.pad(x, (1, 1), value=0.5),
    "reflect": lambda x, net: F.pad(x, (1, 2, 0, 1), mode="reflect"),
    "replicate": lambda x, net: F.pad(x.flatten(2), (1, 2), mode="replicate"),
    "circular": lambda x, net: F.pad(x, (1, 2, 0, 1), mode="circular"),
    "transposed 1d": lambda x, net: net["line"](x.flatten(2)),
    "transposed 2d": lambda x, net: net["image"](x),
    "a view that is not checked": lambda x, net: torch.ops.aten._unsafe_view(x, [-1, 36]),
    "the largest of each part": lambda x, net: F.adaptive_max_pool2d(x * 0.5, (2, 4)),
    "written into": lambda x, net: _written(x),
    "picked": lambda x, net: x[:, [2, 0, 1]],
    "decomposed": lambda x, net: F.local_response_norm(x, 2) + F.softsign(x),
    "made on the way": lambda x, net: x * torch.arange(6) + torch.full((x.shape[0], 1, 1, 1), 0.25),
    "sorted": lambda x, net: x.sort(2).values + x.cumsum(1).argmax(1, keepdim=True),
    "of a random slope in training": lambda x, net: F.rrelu(x - 0.5) + F.rrelu(-x, 0.25, 0.75),
    "in float64": lambda x, net: (x.double() / 3).float(),
}


class Ordinary(nn.Module):
    """All of them after one step, and one input as `*inputs`."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 2, 3)
        self.parts = nn.ModuleDict({"line": nn.ConvTranspose1d(8, 3, 2, 2), "image": nn.ConvTranspose2d(8, 4, 3, 2)})

    def forward(self, *inputs: Tensor) -> dict[str, Tensor]:
        bits = heaviside(self.first(inputs[0]))
        return {"packed": self.last(bits)} | {name: form(bits, self.parts) for name, form in ORDINARY.items()}


def test_ordinary_operators_are_not_refused() -> None:
    model, x = Ordinary().eval(), torch.randn(5, 3, 6, 6)
    packed = pack(model, x)
    found = verify(packed, model, x)
    assert found.ok, found
    with torch.no_grad():
        wanted, got = model(x), packed(x)
    for name in ("packed", *ORDINARY):
        torch.testing.assert_close(got[name], wanted[name], rtol=1e-5, atol=1e-6)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)  # what is made on the way is as it was exported
    try:
        assert packed(x)["made on the way"].dtype == torch.float32
    finally:
        torch.set_default_dtype(before)


def test_a_padding_of_its_own_is_floats() -> None:
    net = Net(nn.Conv2d(3, 9, 3), lambda z: F.pad(STEPS["sign"](z), (1, 1)), nn.Conv2d(9, 4, 3)).eval()
    with pytest.raises(PackedError, match="nothing to pack"):
        pack(net, torch.randn(2, 3, 8, 8))


def test_a_step_that_runs_in_float_is_compared_too() -> None:
    """Of which layers that read it in float would make other bits, as a flip that no rounding explains."""
    a, b, c, s = nn.Conv2d(3, 20, 3), nn.Conv2d(20, 20, 3), nn.Conv2d(20, 4, 3), htaf.Heaviside()
    net = nn.Sequential(a, s, b, s, nn.AvgPool2d(2), c, s).eval()
    _, found = packed_beside(net, torch.randn(6, 3, 12, 12))
    assert found.ok, found
    assert len(found.layers) == 3
